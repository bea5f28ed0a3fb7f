"""A trained model written back: onnxruntime runs it as gradc does, and the file differs from the
input in inference form only in what training changed."""
import re
import subprocess

import numpy as np
import onnx
import pytest
import reference
import widened
from inference_form import inference_form
from onnx import numpy_helper
from tolerances import limit


def feed_of(arguments):
    return {name: np.load(file) for name, file in
            (a.split("=", 1) for a in arguments if a != "--input")}


@pytest.fixture(scope="module")
def exported(gradc, models, tmp_path_factory):
    """exported(NAME, OPTION...): the executable and the model after three steps in f32."""
    made = {}

    def run_it(command, cwd):
        done = subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def make(name, *compile_options):
        if (name, compile_options) not in made:
            folder = tmp_path_factory.mktemp(name)
            exe, path = folder / "train", folder / "trained.onnx"
            run_it([gradc, "compile", "model.onnx", "-o", exe,
                    *reference.compile_options(name, "f32"), *compile_options], models / name)
            options = [re.sub(r"^--steps=\d+$", "--steps=3", o)
                       for o in reference.train_options(name, "f32")]
            run_it([exe, *options, "--export", path, "--progress", "off"], models / name)
            made[name, compile_options] = exe, path
        return made[name, compile_options]

    return make


def tensors(model):
    """Initializers and the tensors of Constant nodes, by name."""
    found = {t.name: t for t in model.graph.initializer}
    for n in model.graph.node:
        if n.op_type == "Constant":
            found.update({n.output[0]: a.t for a in n.attribute if a.name == "value"})
    return found


def stripped(model, identities):
    """The model without what training may change, as bytes."""
    m = onnx.ModelProto()
    m.CopyFrom(model)
    for t in tensors(m).values():
        for field in ("raw_data", "float_data", "double_data", "int32_data", "int64_data",
                      "external_data", "data_location"):
            t.ClearField(field)
    initializers = [t for t in m.graph.initializer if t.name not in identities]
    nodes = [n for n in m.graph.node if not (set(n.output) & identities)]
    del m.graph.initializer[:], m.graph.node[:]
    m.graph.initializer.extend(initializers)
    m.graph.node.extend(nodes)
    return m.SerializeToString(deterministic=True)


def unmerged(before, after):
    """Outputs of Identity nodes of the input that are initializers now: parameters un-merged."""
    now = {t.name for t in after.graph.initializer}
    weights = {t.name for t in before.graph.initializer}
    return {n.output[0] for n in before.graph.node
            if n.op_type == "Identity" and n.input[0] in weights and n.output[0] in now}


@pytest.mark.parametrize("name", reference.NAMES)
def test_export(exported, models, name):
    _, path = exported(name, "--keep-metadata")
    onnx.checker.check_model(str(path))
    before, after = inference_form(onnx.load(models / name / "model.onnx")), onnx.load(path)
    identities = unmerged(before, after)

    assert stripped(before, identities) == stripped(after, identities), "structure differs"

    trained = {p["name"] for p in reference.load(name)["parameters"]
               if p["trainable"] or p["kind"] == "state"}
    old, new = tensors(before), tensors(after)
    moved = {k for k in old if k in new and not np.array_equal(
        numpy_helper.to_array(old[k]), numpy_helper.to_array(new[k]), equal_nan=old[k].data_type
        in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE))}
    assert moved <= trained, f"changed, though not trained: {sorted(moved - trained)}"
    # A gradient that is zero in exact arithmetic may leave its parameter as it was.
    still = trained - moved - identities - set(reference.load(name)["zero_gradient"])
    merged = {n.input[0] for n in before.graph.node if n.op_type == "Identity"}
    assert still <= merged, f"trained, but unchanged: {sorted(still - merged)}"


def check_outputs(name, got, want):
    for key in want:
        off = np.max(np.abs(got[key] - want[key])) / np.max(np.abs(want[key]))
        assert off <= limit("export f32", name), f"{key}: relative {off:.2e}"


@pytest.mark.parametrize("name", reference.NAMES)
def test_onnxruntime_runs_the_export_as_gradc_does(exported, run, models, tmp_path, name):
    _, path = exported(name, "--keep-metadata")
    arguments = reference.first_batch(models / name, tmp_path, labels=False)
    want = widened.onnxruntime_results(path, feed_of(arguments))
    run("run", path, "--engine=compiled", *arguments, "--output-dir", tmp_path / "run")
    check_outputs(name, reference.results(tmp_path / "run"), want)


@pytest.mark.parametrize("name", ["mlp_digits", "cnn_mnist", "bert_mini", "gpt2_mini_fresh"])
def test_an_export_trains_again_and_runs_once(exported, run, models, tmp_path, name):
    _, path = exported(name, "--keep-metadata")
    arguments = reference.first_batch(models / name, tmp_path, labels=False)
    exe = tmp_path / "again"
    run("compile", path, "-o", exe, *reference.compile_options(name, "f32"))
    run(exe, "--once", *arguments, "--output-dir", tmp_path / "once")
    want = widened.onnxruntime_results(path, feed_of(arguments))
    check_outputs(name, reference.results(tmp_path / "once"), want)


def test_external_data_goes_to_a_file_of_its_own(exported, models):
    _, path = exported("gpt2_mini_external", "--keep-metadata")
    data = path.with_name(path.name + ".data")
    assert data.exists()
    model = onnx.load(path, load_external_data=False)
    places = {e.value for t in model.graph.initializer for e in t.external_data
              if e.key == "location"}
    assert places == {data.name}


def test_without_keep_metadata_only_stack_traces_go(exported, models):
    _, path = exported("lr_iris_ml")
    before, after = onnx.load(models / "lr_iris_ml/model.onnx"), onnx.load(path)
    for m in (before, after):
        for n in m.graph.node:
            kept = [p for p in n.metadata_props if "stack_trace" not in p.key]
            del n.metadata_props[:]
            n.metadata_props.extend(kept)
    assert stripped(before, set()) == stripped(after, set())


def test_numbers_that_are_not_finite_are_said(run, models, tmp_path):
    """Those of the last update, behind which no step says so."""
    run("compile", models / "mlp_digits/model.onnx", "-o", "train", "--batch=32", "--loss=cross_entropy")
    train = [tmp_path / "train", f"--data=input={models}/mlp_digits/input.npy", f"--data=labels={models}/mlp_digits/labels.npy", "--steps=1"]
    said = run(*train, "--lr=1e39", "--export=out.onnx").stderr
    assert '--export: 8192 of 8192 numbers of "0.weight" are not finite' in said
    assert "not finite" not in run(*train, "--export=out.onnx").stderr
