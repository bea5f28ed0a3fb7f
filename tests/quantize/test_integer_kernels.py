"""Between codes onnxruntime computes with integers: no product of a quantized model runs in float there, by the profile that it writes."""
import json
import os
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import reference
from onnx import numpy_helper

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "import"))
from make_malformed import model, node, tensor, value  # noqa: E402

FLOATS = {"Conv", "FusedConv", "ConvTranspose", "MatMul", "FusedMatMul", "Gemm", "FusedGemm"}
# onnxruntime's CPU has no integer kernel for these.
LEFT = {"unet_mini": {"ConvTranspose"}}


def kernels(path, feeds, folder):
    """Names of the operators that ran."""
    options = onnxruntime.SessionOptions()
    options.enable_profiling, options.profile_file_prefix, options.intra_op_num_threads = True, str(folder / "profile"), 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    results = session.run(None, feeds)
    events = json.loads(open(session.end_profiling()).read())
    return [e["args"]["op_name"] for e in events if e.get("cat") == "Node" and e["name"].endswith("_kernel_time")], results


@pytest.mark.parametrize("name, options", [*((n, []) for n in ("cnn_mnist", "resnet_mini", "mobilenet_mini", "bert_mini", "unet_mini")), ("resnet_mini", ["--per-channel"])])
def test_products_run_on_codes(run, models, tmp_path, name, options):
    known = reference.load(name)
    feeds = {i["name"]: np.load(models / name / i["file"])[:8] for i in known["inputs"]}
    for key, x in feeds.items():
        np.save(tmp_path / f"{key}.npy", x)
    run("quantize", models / name / "model.onnx", *(w for key in feeds for w in ("--data", f"{key}={key}.npy")), "--batch=8", *options, "-o", "q.onnx")
    ran, _ = kernels(tmp_path / "q.onnx", feeds, tmp_path)
    assert set(ran) & FLOATS == LEFT.get(name, set())
    assert {"QLinearConv", "QLinearMatMul", "MatMulIntegerToFloat", "QGemm"} & set(ran)


@pytest.mark.parametrize("last", [["Conv"], ["Conv", "Relu"], ["Conv", "Clip"], ["Conv", "Sigmoid"], ["Conv", "BatchNormalization", "Relu"], ["Conv", "Conv"], ["Conv", "Relu", "both"]],
                         ids=" ".join)
def test_what_the_graph_gives_out(run, tmp_path, last):
    """A convolution that ends the graph, bounds behind it, a result that the graph gives out and that a product reads, too: names and shapes stay."""
    random = np.random.default_rng(0)
    weights = [tensor(f"w{i}", np.float32(random.normal(size=(4, 4, 3, 3)) / 6)) for i in range(3)]
    weights += [tensor("low", np.float32(0)), tensor("high", np.float32(6)), *(tensor(f"n{i}", np.float32(1 + random.random(4))) for i in range(4))]
    behind = {"Clip": ["low", "high"], "BatchNormalization": [f"n{i}" for i in range(4)]}
    nodes, at, n = [node("Conv", ["x", "w0"], ["first"], name="first", pads=[1] * 4)], "first", 1
    for i, op in enumerate(last):
        if op == "both":
            nodes.append(node("Conv", [at, "w2"], ["second"], name="second", pads=[1] * 4))
            continue
        rest = [f"w{n}"] if op == "Conv" else behind.get(op, [])
        n += op == "Conv"
        to = "y" if op == [o for o in last if o != "both"][-1] and i == len([o for o in last if o != "both"]) - 1 else f"h{i}"
        nodes.append(node(op, [at, *rest], [to], name=f"{op}{i}", **({"pads": [1] * 4} if op == "Conv" else {})))
        at = to
    outputs = [value("y", (4, 4, 8, 8)), *([value("second", (4, 4, 8, 8))] if "both" in last else [])]
    onnx.save(model(nodes, inputs=[value("x", (4, 4, 8, 8))], outputs=outputs, initializers=weights, opset=17), tmp_path / "model.onnx")
    x = np.float32(random.normal(size=(4, 4, 8, 8)))
    np.save(tmp_path / "x.npy", x)
    run("quantize", "model.onnx", "--data=x=x.npy", "-o", "q.onnx")
    onnx.checker.check_model(str(tmp_path / "q.onnx"), full_check=True)
    assert [o.name for o in onnx.load(tmp_path / "q.onnx").graph.output] == [o.name for o in outputs]
    _, want = kernels(tmp_path / "model.onnx", {"x": x}, tmp_path)
    ran, got = kernels(tmp_path / "q.onnx", {"x": x}, tmp_path)
    assert not set(ran) & FLOATS
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape and np.abs(a - b).max() < 0.05 * np.abs(b).max()


@pytest.mark.parametrize("options", [[], ["--no-fold-batch-norms"]], ids=" ".join)
def test_a_model_in_training_form_is_quantized_as_it_is_evaluated(run, tmp_path, options):
    random = np.random.default_rng(1)
    bn = {"s": 1 + random.random(4), "b": random.random(4), "m": random.random(4), "v": 1 + random.random(4)}
    w = np.float32(random.normal(size=(4, 4, 3, 3)) / 6)
    nodes = [node("Conv", ["x", "w"], ["c"], name="c", pads=[1] * 4), node("BatchNormalization", ["c", *bn], ["n", "m1", "v1"], name="n", training_mode=1),
             node("Dropout", ["n", "ratio", "on"], ["d"], name="d"), node("Relu", ["d"], name="r")]
    held = [tensor("w", w), *(tensor(k, np.float32(a)) for k, a in bn.items()), tensor("ratio", np.float32(0.5)), tensor("on", np.array(True))]
    onnx.save(model(nodes, inputs=[value("x", (4, 4, 8, 8))], outputs=[value("y", (4, 4, 8, 8))], initializers=held, opset=17), tmp_path / "model.onnx")
    x = np.float32(random.normal(size=(4, 4, 8, 8)))
    np.save(tmp_path / "x.npy", x)
    said = run("quantize", "model.onnx", "--data=x=x.npy", "-o", "q.onnx", *options).stderr
    assert "the model is in training form: it is quantized in inference form" in said
    q = onnx.load(tmp_path / "q.onnx")
    assert ("BatchNormalization" in [n.op_type for n in q.graph.node]) == bool(options) and "Dropout" not in [n.op_type for n in q.graph.node]
    plain = onnx.load(tmp_path / "model.onnx")
    del plain.graph.node[1].output[1:], plain.graph.node[1].attribute[:], plain.graph.node[2].input[1:]
    onnx.save(plain, tmp_path / "plain.onnx")
    want, got = (onnxruntime.InferenceSession(tmp_path / f, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0] for f in ("plain.onnx", "q.onnx"))
    assert np.abs(got - want).max() < 0.05 * np.abs(want).max()
    plain.graph.node[1].output.append("m1")
    plain.graph.node[1].output.append("v1")
    plain.graph.node[1].attribute.append(onnx.helper.make_attribute("training_mode", 1))
    plain.graph.output.append(value("m1", (4,)))
    onnx.save(plain, tmp_path / "model.onnx")
    assert "its other outputs are read: export the model for inference" in run("quantize", "model.onnx", "--data=x=x.npy", "-o", "q2.onnx", exit=4).stderr


@pytest.mark.parametrize("others, options, kept", [([], [], "s8"), ([], ["--per-channel", "--activation-type=dynamic"], "s8"), ([], ["--weight-type=u8", "--activation-type=none"], "u8"),
                                                   (["head"], [], "s8"), (["head"], ["--per-channel"], "f32"), (["sum"], [], "f32"), (["output"], [], "f32"), ([], ["--skip=rows"], "f32"),
                                                   ([], ["--weight-type=s4", "--activation-type=none", "--opset=21"], "f32")], ids=str)
def test_tables_are_codes(run, tmp_path, others, options, kept):
    """Rows are picked as codes, so that the floats of the table are nowhere: it is a quarter of its size. Where something else reads the table, it stays."""
    random = np.random.default_rng(0)
    table = np.float32(random.normal(size=(50, 8)))
    nodes = [node("Gather", ["t", "x"], ["rows"], name="rows"), node("MatMul", ["rows", "w"], ["h"], name="product")]
    if "head" in others:
        nodes += [node("Transpose", ["t"], ["u"], name="turn", perm=[1, 0]), node("MatMul", ["h", "u"], ["y"], name="head")]
    elif "sum" in others:
        nodes += [node("ReduceSum", ["t"], ["s"], name="s", keepdims=0), node("Add", ["h", "s"], ["y"], name="add")]
    else:
        nodes += [node("Identity", ["h"], ["y"], name="end")]
    outputs = [value("y", (4, 6, 50 if "head" in others else 8)), *([value("t", (50, 8))] if "output" in others else [])]
    onnx.save(model(nodes, inputs=[value("x", (4, 6), onnx.TensorProto.INT64)], outputs=outputs, initializers=[tensor("t", table), tensor("w", np.float32(random.normal(size=(8, 8))))],
                    opset=21 if "--opset=21" in options else 17, ir=10), tmp_path / "model.onnx")
    ids = random.integers(0, 50, (4, 6))
    np.save(tmp_path / "x.npy", ids)
    data = [] if {"--activation-type=none", "--activation-type=dynamic"} & set(options) else ["--data=x=x.npy"]
    run("quantize", "model.onnx", *data, *options, "-o", "q.onnx")
    q = onnx.load(tmp_path / "q.onnx")
    onnx.checker.check_model(q, full_check=True)
    held = {t.name: numpy_helper.to_array(t) for t in q.graph.initializer}
    assert ("t" in held) == (kept == "f32") and ("t_quantized" in held) == (kept != "f32" or "head" in others)
    gather = next(n for n in q.graph.node if n.op_type == "Gather")
    assert gather.input[0] == ("t" if kept == "f32" else "t_quantized")
    if kept != "f32":
        assert held["t_quantized"].dtype == (np.uint8 if kept == "u8" else np.int8) and held["t_scale"].shape == ()
    want, got = (onnxruntime.InferenceSession(tmp_path / f, providers=["CPUExecutionProvider"]).run(None, {"x": ids})[0] for f in ("model.onnx", "q.onnx"))
    assert np.abs(got - want).max() < (0.2 if "s4" in str(options) else 0.05) * np.abs(want).max()
    run("run", "q.onnx", "--input=x=x.npy", "--output-dir=out")
    plain = onnxruntime.SessionOptions()
    plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    exact = onnxruntime.InferenceSession(tmp_path / "q.onnx", plain, providers=["CPUExecutionProvider"]).run(["y"], {"x": ids})[0]
    np.testing.assert_allclose(np.load(tmp_path / "out/y.npy"), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("n, options, n_codes", [(10000, [], 10000), (4, ["--skip=rows0", "--skip=rows2"], 2)], ids=str)
def test_a_table_that_many_gathers_read(run, tmp_path, n, options, n_codes):
    """It takes time linear in their number. A Gather that --skip leaves out reads the floats beside the codes of the others."""
    nodes = [node("Gather", ["t", "x"], [f"r{i}"], name=f"rows{i}") for i in range(n)]
    nodes += [node("Add", [f"a{i}" if i else "r0", f"r{i + 1}"], [f"a{i + 1}"], name=f"add{i}") for i in range(n - 1)]
    nodes += [node("MatMul", [f"a{n - 1}", "w"], ["y"], name="product")]
    table, w = np.float32(np.random.default_rng(0).normal(size=(50, 8))), np.eye(8, dtype=np.float32)
    onnx.save(model(nodes, inputs=[value("x", (2,), onnx.TensorProto.INT64)], outputs=[value("y", (2, 8))], initializers=[tensor("t", table), tensor("w", w)], opset=17, ir=10),
              tmp_path / "model.onnx")
    run("quantize", "model.onnx", "--activation-type=none", *options, "-o", "q.onnx", timeout=60)
    gathers = [g for g in onnx.load(tmp_path / "q.onnx").graph.node if g.op_type == "Gather"]
    assert sum(g.input[0] == "t_quantized" for g in gathers) == n_codes and len(gathers) == n


def test_a_false_of_dropout_is_no_training(run, tmp_path):
    nodes = [node("Dropout", ["x", "ratio", "off"], ["d"], name="d"), node("MatMul", ["d", "w"], name="m")]
    held = [tensor("w", np.ones((4, 2), np.float32)), tensor("ratio", np.float32(0.5)), tensor("off", np.array(False))]
    onnx.save(model(nodes, inputs=[value("x", (3, 4))], outputs=[value("y", (3, 2))], initializers=held, opset=17), tmp_path / "model.onnx")
    assert "training form" not in run("quantize", "model.onnx", "--activation-type=none", "-o", "q.onnx").stderr
    assert numpy_helper.to_array(next(t for t in onnx.load(tmp_path / "q.onnx").graph.initializer if t.name == "w_quantized")).shape == (4, 2)
