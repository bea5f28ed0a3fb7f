"""What goes out is what was evaluated: exports in inference form, and as imported."""
import json

import numpy as np
import onnx
import onnxruntime
import pytest
import reference
from inference_form import inference_form, nodes_of, training_form
from onnx import helper, numpy_helper

ROWS, CLASSES = 60, 5
VALUE = helper.make_tensor_value_info
NODE = helper.make_node


def weights_of(names, seed=1):
    random = np.random.default_rng(seed)
    shapes = {"conv": (6, 2, 3, 3), "w": (6, 16), "b": (16,), "v": (16, CLASSES), "square": (16, 16)}
    tensors = {}
    for n in names:
        kind = n.split(".")[-1]
        if kind in ("scale", "var", "bias", "mean"):
            width = 6 if n.startswith("c") else 16
            tensors[n] = random.uniform(0.5, 1.5, width) if kind in ("scale", "var") else random.normal(size=width)
        else:
            tensors[n] = random.normal(size=shapes[n]) / np.sqrt(np.prod(shapes[n][-1:]))
    return {n: v.astype(np.float32) for n, v in tensors.items()}


def norm(name, x, y, opset, stats=None, last=()):
    """A batch norm in training form, as PyTorch's TorchScript exporter writes it. stats: names of the statistics; last: of the outputs."""
    mean, var = stats or (f"{name}.mean", f"{name}.var")
    last = last or (f"{name}_mean", f"{name}_var", *([f"{name}_saved_mean", f"{name}_saved_var"] if opset < 14 else []))
    more = {"training_mode": 1} if opset >= 14 else {}
    return NODE("BatchNormalization", [x, f"{name}.scale", f"{name}.bias", mean, var], [y, *last], name=f"/{name}", momentum=0.8, epsilon=1e-4, **more)


def of_names(name):
    return [f"{name}.{k}" for k in ("scale", "bias", "mean", "var")]


def dropout(x, y, opset, name="/drop", mask=None, ratio="ratio", mode="mode"):
    outputs = [y] + ([mask] if mask else [])
    return NODE("Dropout", [x, ratio, mode], outputs, name=name) if opset >= 12 else NODE("Dropout", [x], outputs, name=name, ratio=0.25)


def plain(opset, mode="constant"):
    """Conv, norm, pool, Gemm, dropout, Gemm. mode: where dropout's training_mode lies."""
    nodes = [NODE("Conv", ["x", "conv"], ["c0"], name="/conv"), norm("c1", "c0", "n0", opset), NODE("Relu", ["n0"], ["r0"]), NODE("GlobalAveragePool", ["r0"], ["p0"]),
             NODE("Flatten", ["p0"], ["f0"]), NODE("Gemm", ["f0", "w", "b"], ["h0"], name="/fc"), norm("h1", "h0", "h1y", opset), dropout("h1y", "d0", opset, mask="kept"),
             NODE("MatMul", ["d0", "v"], ["y"])]
    weights = weights_of(["conv", "w", "b", "v", *of_names("c1"), *of_names("h1")])
    if opset >= 12 and mode == "constant":
        held = {"ratio": np.float32(0.25), "mode": np.array(True)}
        nodes = [*(NODE("Constant", [], [n], value=numpy_helper.from_array(np.asarray(v), n)) for n, v in held.items()), *nodes]
    elif opset >= 12:
        weights |= {"ratio": np.float32(0.25), "mode": np.array(True)}
    return nodes, weights, ["y"], []


def chained(opset):
    """One module called twice: the second call reads the first one's statistics; the last ones are outputs of the graph."""
    nodes = [NODE("Conv", ["x", "conv"], ["c0"]), norm("c1", "c0", "n0", opset, last=("m1", "v1")), NODE("Relu", ["n0"], ["r0"]),
             norm("c1", "r0", "n1", opset, stats=("m1", "v1"), last=("m2", "v2")), NODE("GlobalAveragePool", ["n1"], ["p0"]), NODE("Flatten", ["p0"], ["f0"]),
             NODE("Gemm", ["f0", "w", "b"], ["h0"]), dropout("h0", "d0", opset), dropout("d0", "d1", opset, name="/drop2", ratio=""), NODE("MatMul", ["d1", "v"], ["y"])]
    nodes[3].name = "/c1_again"
    weights = weights_of(["conv", "w", "b", "v", *of_names("c1")]) | {"ratio": np.float32(0.25), "mode": np.array(True)}
    return nodes, weights, ["y", "m2", "v2"], []


def inner(opset):
    """A norm in a function with training_mode from the call, and dropout in a branch."""
    body = [NODE("BatchNormalization", ["x", "s", "b", "m", "v"], ["y", "nm", "nv"], name="bn", epsilon=1e-4), dropout("y", "z", opset, name="drop", mode="t")]
    mode = onnx.AttributeProto(name="training_mode", ref_attr_name="training", type=onnx.AttributeProto.INT)
    body[0].attribute.append(mode)
    function = helper.make_function("local", "NormDrop", ["x", "s", "b", "m", "v", "ratio", "t"], ["z"], body, [helper.make_opsetid("", opset)], ["training"])
    then = helper.make_graph([norm("h1", "h0", "h1y", opset), dropout("h1y", "d0", opset, name="/inner/drop")], "then", [], [VALUE("d0", 1, None)])
    other = helper.make_graph([NODE("Relu", ["h0"], ["e0"])], "else", [], [VALUE("e0", 1, None)])
    nodes = [NODE("Conv", ["x", "conv"], ["c0"]), NODE("NormDrop", ["c0", *of_names("c1"), "ratio", "mode"], ["n0"], domain="local", name="/block", training=1),
             NODE("GlobalAveragePool", ["n0"], ["p0"]), NODE("Flatten", ["p0"], ["f0"]), NODE("Gemm", ["f0", "w", "b"], ["h0"]),
             NODE("If", ["mode"], ["d1"], then_branch=then, else_branch=other), NODE("MatMul", ["d1", "v"], ["y"])]
    weights = weights_of(["conv", "w", "b", "v", *of_names("c1"), *of_names("h1")]) | {"ratio": np.float32(0.25), "mode": np.array(True)}
    return nodes, weights, ["y"], [function]


MODELS = {"torchscript": lambda: (17, plain(17)), "initializers": lambda: (20, plain(20, "initializer")), "opset 13": lambda: (13, plain(13)), "opset 9": lambda: (9, plain(9)),
          "chained": lambda: (17, chained(17)), "inner": lambda: (18, inner(18))}


def save(path, name):
    opset, (nodes, weights, outputs, functions) = MODELS[name]()
    ports = [VALUE(o, 1, ["N", CLASSES] if o == "y" else [6]) for o in outputs]
    graph = helper.make_graph(nodes, "g", [VALUE("x", 1, ["N", 2, 8, 8])], ports, [numpy_helper.from_array(np.asarray(v), n) for n, v in weights.items()],
                              value_info=[VALUE("kept", 9 if opset >= 10 else 1, ["N", 16])] if any("kept" in n.output for n in nodes) else [])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset), *([helper.make_opsetid("local", 1)] if functions else [])], functions=functions,
                              ir_version=8 if opset > 9 else 4)
    onnx.save(model, path)
    return model


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder, random = tmp_path_factory.mktemp("pictures"), np.random.default_rng(2)
    x = random.normal(1, 2, (ROWS, 2, 8, 8)).astype(np.float32)
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", random.integers(0, CLASSES, ROWS))
    return folder


def options(folder, *more):
    return [f"--data=x={folder}/x.npy", f"--data=labels={folder}/y.npy", "--lr=0.05", "--progress=off", "--table=off", *more]


def by_onnxruntime(path, feed, rows):
    """The first output for all rows of the feed, that many at a time."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    total = len(next(iter(feed.values())))
    parts = [session.run(None, {n: v[i:i + rows] for n, v in feed.items()})[0] for i in range(0, total, rows)]
    return np.concatenate(parts)


def near(got, want):
    return np.max(np.abs(got - want)) <= 1e-5 * np.max(np.abs(want))


def last_line(log):
    return json.loads(log.read_text().splitlines()[-1])


def first_loss(run, tmp_path, model, folder, *compile_options):
    run("compile", model, "-o", "again", "--batch=20", "--loss=cross_entropy:y", "--optimizer=sgd", *compile_options)
    run(tmp_path / "again", *options(folder, "--steps=1", "--seed=3", f"--log={tmp_path}/again.jsonl"))
    return last_line(tmp_path / "again.jsonl")["loss"]


@pytest.mark.parametrize("name", MODELS)
def test_what_goes_out_is_what_was_evaluated(run, tmp_path, pictures, name):
    before = save(tmp_path / "m.onnx", name)
    norms, dropouts = training_form(before)
    run("compile", "m.onnx", "-o", "train", f"--dim=N={ROWS},20", "--loss=cross_entropy:y", "--optimizer=sgd")
    steps = options(pictures, "--steps=3", "--micro-batch=20", f"--eval-data=x={pictures}/x.npy", f"--eval-data=labels={pictures}/y.npy")
    said = run(tmp_path / "train", *steps, "--export=out.onnx", "--save=saved", f"--log={tmp_path}/log.jsonl").stderr
    n_drops = f", {len(dropouts)} dropout{'s' if len(dropouts) > 1 else ''} off" if dropouts else ""
    assert f"wrote out.onnx (inference form: {len(norms)} batch norms by running statistics{n_drops})" in said
    assert "training form" not in said
    head = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[0])
    assert head["export_form"] == said.split("wrote out.onnx (")[1].split(")")[0]
    said = run(tmp_path / "train", "--resume=saved", "--steps=0", "--export=as-imported.onnx", "--export-form=as-imported").stderr
    assert "wrote as-imported.onnx (as imported, which is training form)" in said

    out, same = onnx.load(tmp_path / "out.onnx"), onnx.load(tmp_path / "as-imported.onnx")
    onnx.checker.check_model(out)
    assert training_form(out) == ([], []) and {n.op_type for n in nodes_of(out.graph)} >= ({"Dropout"} if dropouts and not out.functions else set())
    assert [n.SerializeToString() for n in same.graph.node if n.op_type != "Constant"] == [n.SerializeToString() for n in before.graph.node if n.op_type != "Constant"]
    assert {n.name for n in nodes_of(before.graph) if n.name} == {n.name for n in nodes_of(out.graph) if n.name}
    assert out.opset_import == before.opset_import and out.graph.input == before.graph.input and out.graph.output == before.graph.output
    of_all = [{t.name: numpy_helper.to_array(t) for t in m.graph.initializer} for m in (out, same)]
    assert set(of_all[1]) - set(of_all[0]) <= {"mode"}
    assert all(np.array_equal(v, of_all[1][n]) for n, v in of_all[0].items())

    x, labels = np.load(pictures / "x.npy"), np.load(pictures / "y.npy")
    run(tmp_path / "train", "--resume=saved", "--once", f"--input=x={pictures}/x.npy", "--output-dir=once")
    run("run", "out.onnx", f"--input=x={pictures}/x.npy", "--output-dir=run")
    want = reference.results(tmp_path / "once")["y"]
    assert near(reference.results(tmp_path / "run")["y"], want)
    for rows in (1, 7, ROWS):
        assert near(by_onnxruntime(tmp_path / "out.onnx", {"x": x}, rows), want), rows
    logs = want - np.log(np.sum(np.exp(want), axis=1, keepdims=True))
    assert abs(last_line(tmp_path / "log.jsonl")["eval_loss"] - -np.mean(logs[np.arange(ROWS), labels])) < 1e-5
    as_imported = by_onnxruntime(tmp_path / "as-imported.onnx", {"x": x}, ROWS) if name not in ("opset 9", "opset 13") else None
    assert as_imported is None or not near(as_imported, want)

    # Compiled again, the export is the model that was exported.
    restored = first_loss(run, tmp_path, "out.onnx", pictures, "--train-mode=restore")
    assert first_loss(run, tmp_path, "as-imported.onnx", pictures, *(["--train-mode=restore"] if name == "opset 9" else [])) == restored
    assert first_loss(run, tmp_path, "out.onnx", pictures) != restored


@pytest.mark.parametrize("compiled, option", [
    (["--lora=w,rank=2,dropout=0.5", "--train=h1.*"], "--export"), (["--lora=w,rank=2,dropout=0.5", "--train=h1.*"], "--export-merged"),
    (["--quantize=w8a8"], "--export"), (["--ema=0.5"], "--export")])
def test_forms_of_other_exports(run, tmp_path, pictures, compiled, option):
    """Adapters beside their weights and merged into them, quantized models, moving averages."""
    before = save(tmp_path / "m.onnx", "initializers")
    run("compile", "m.onnx", "-o", "train", "--batch=20", "--loss=cross_entropy:y", *compiled)
    averages = ["--export-weights=ema"] if "--ema" in compiled[0] else []
    train = [tmp_path / "train", *options(pictures, "--steps=4", *averages)]
    said = run(*train, f"{option}=out.onnx", "--save=saved").stderr
    assert "wrote out.onnx (inference form: 2 batch norms by running statistics, 1 dropout off)" in said
    run(*train, f"{option}=as-imported.onnx", "--export-form=as-imported")
    out, same = onnx.load(tmp_path / "out.onnx"), onnx.load(tmp_path / "as-imported.onnx")
    assert training_form(out) == ([], []) and [len(nodes) for nodes in training_form(same)] == [len(nodes) for nodes in training_form(before)]
    assert {t.name for t in same.graph.initializer} - {t.name for t in out.graph.initializer} == {"mode"}
    if "--ema" in compiled[0]:
        return  # --once computes with the weights
    x = np.load(pictures / "x.npy")[:20]
    np.save(tmp_path / "part.npy", x)
    run(tmp_path / "train", "--resume=saved", "--once", "--input=x=part.npy", "--output-dir=once")
    want = reference.results(tmp_path / "once")["y"]
    for rows in (1, 7, 20):
        got = by_onnxruntime(tmp_path / "out.onnx", {"x": x}, rows)
        # a code on the other side of a half is a step of the scale off
        assert near(got, want) if "--quantize" not in compiled[0] else np.mean(np.abs(got - want)) < 0.01 * np.max(np.abs(want)), rows


OF_BOTH_FORMS = ["cnn_mnist"]  # reference models with batch norms or dropout; dynamo's exporter folded the others' away


@pytest.mark.parametrize("name", OF_BOTH_FORMS)
def test_of_reference_models(run, of_trace, models, tmp_path, name):
    exe, folder = of_trace(name), models / name
    steps = [o for o in reference.train_options(name, "f32") if not o.startswith("--steps")]
    run(exe, *steps, "--steps=3", "--progress=off", "--table=off", "--save", tmp_path / "saved", "--export", tmp_path / "out.onnx", cwd=folder)
    arguments = reference.first_batch(folder, tmp_path, labels=False)
    feed = {n: np.load(f) for n, f in (a.split("=", 1) for a in arguments if a != "--input")}
    run(exe, "--resume", tmp_path / "saved", "--once", *arguments, "--output-dir", tmp_path / "once")
    want = next(iter(reference.results(tmp_path / "once").values()))
    for rows in (1, 7, 60):
        assert near(by_onnxruntime(tmp_path / "out.onnx", feed, rows), want), rows


def test_which_reference_models_have_both_forms(models):
    held = [n for n in reference.NAMES for m in [onnx.load(models / n / "model.onnx", load_external_data=False)]
            if any(x.op_type in ("BatchNormalization", "Dropout") for h in (m.graph, *m.functions) for x in nodes_of(h))]
    assert held == OF_BOTH_FORMS


def test_large_constants_are_in_the_executable_once(run, tmp_path):
    """The second template needs no second copy of a tensor that no training changes."""
    sizes = []
    for name in ("inference", "training"):
        model = save(tmp_path / "m.onnx", "initializers")
        table = np.arange(1 << 17) % 16
        model.graph.initializer.append(numpy_helper.from_array(table, "table"))
        model.graph.node.insert(0, NODE("Gather", ["table", "zero"], ["first"], axis=0))
        model.graph.initializer.append(numpy_helper.from_array(np.array([0]), "zero"))
        model.graph.output.append(VALUE("first", onnx.TensorProto.INT64, [1]))
        if name == "inference":
            inference_form(model)
        onnx.save(model, tmp_path / "m.onnx")
        run("compile", "m.onnx", "-o", name, "--batch=20", "--loss=cross_entropy:y")
        sizes.append((tmp_path / name).stat().st_size)
        for form in ("inference", "as-imported"):
            run(tmp_path / name, "--steps=0", "--export=out.onnx", f"--export-form={form}")
            held = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "out.onnx").graph.initializer}
            assert np.array_equal(held["table"], table)
    assert sizes[1] - sizes[0] < table.nbytes / 2
