"""`dump --stage=train --format=onnx`: onnxruntime runs what is written, and its gradients are gradc's."""
import json
import shlex

import numpy as np
import onnx
import onnxruntime
import pytest
import reference

NAMES = [name for name in reference.NAMES if name != "lstm_chars"]  # which has a loop


def options_of(name):
    return reference.compile_options(name, "f32", 0, drop=("--optimizer", "--precision"))


def data_of(name, models):
    """NAME -> array, of the trace's command line."""
    words = shlex.split(reference.load(name)["traces"][0]["gradc"]["f32"][1])
    pairs = (words[i + 1].split("=", 1) for i, word in enumerate(words) if word == "--data")
    return {key: np.load(models / name / file) for key, file in pairs}


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_gradcs(run, models, tmp_path, name):
    data, kinds = data_of(name, models), {"tensor(int64)": np.int64, "tensor(float)": np.float32}
    run("dump", models / name / "model.onnx", *options_of(name), "--stage=train", "--format=onnx", "-o", tmp_path / "grad.onnx", cwd=models / name)
    model = onnx.load(tmp_path / "grad.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert {node.domain for node in model.graph.node} <= {""} and model.opset_import[0].version == 18
    session = onnxruntime.InferenceSession(tmp_path / "grad.onnx", providers=["CPUExecutionProvider"])
    feeds, inputs = {}, []
    for x in session.get_inputs():
        rows = data[x.name][:x.shape[0]] if x.name in data else np.ones(x.shape)
        feeds[x.name] = rows.astype(kinds[x.type]).reshape(x.shape)
        if x.name != "sample_weight":
            np.save(tmp_path / f"{len(inputs)}.npy", feeds[x.name])
            inputs.append(f"--input={x.name}={tmp_path / str(len(inputs))}.npy")
    got = dict(zip((o.name for o in session.get_outputs()), session.run(None, feeds)))
    run("grad", models / name / "model.onnx", *options_of(name), *inputs, "--engine=compiled", "--output-dir", tmp_path / "out", cwd=models / name)
    files = json.loads((tmp_path / "out/names.json").read_text())
    want = {key: np.load(tmp_path / "out" / entry["file"]) for key, entry in files.items() if key != "loss"}
    assert {key for key in got if key.startswith("grad.")} == {f"grad.{key}" for key in want}
    np.testing.assert_allclose(got["loss"], np.load(tmp_path / "out/loss.npy"), rtol=1e-5)
    whole = np.sqrt(sum((w.astype(np.float64) ** 2).sum() for w in want.values()))
    for key, w in want.items():
        # Gradients that are 0 but for rounding have no relative error.
        off = np.linalg.norm((got[f"grad.{key}"] - w).astype(np.float64))
        assert off <= 1e-5 * np.linalg.norm(w.astype(np.float64)) + 1e-7 * whole, key


def test_what_has_no_form_is_named(run, models):
    said = run("dump", models / "lstm_chars/model.onnx", "--loss=cross_entropy:logits", "--batch=2", "--stage=train", "--format=onnx", exit=4).stderr
    assert 'node "/lstm/LSTM" (loop) has no form in plain ONNX' in said and said.count("has no form") == 1


@pytest.mark.parametrize("options", [["--stage=train"], ["--loss=cross_entropy"], ["--loss=cross_entropy", "--stage=fused"]], ids=" ".join)
def test_only_of_training(run, models, options):
    assert "needs --stage=train and --loss" in run("dump", models / "mlp_digits/model.onnx", "--format=onnx", *options, exit=2).stderr
