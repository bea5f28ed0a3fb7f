"""gradc quantize --activation-type token: each row of an activation has a scale and a zero point from the row itself."""
import json
import os
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

sys.path[:0] = [os.path.join(os.path.dirname(__file__), "..", folder) for folder in ("import", "train")]
import reference  # noqa: E402
from make_malformed import model, node, tensor, value  # noqa: E402

RANDOM = np.random.default_rng(12)
A, B = np.float32(RANDOM.normal(size=(12, 7))), np.float32(RANDOM.normal(size=(3, 7)))


def tensors(path):
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def in_onnxruntime(path, feeds):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, feeds)[0]


def rows(x, axes=-1):
    """DynamicQuantizeLinear's formulas, for each row."""
    low, high = np.minimum(x.min(axes, keepdims=True), 0), np.maximum(x.max(axes, keepdims=True), 0)
    scale = np.where(high == low, np.float32(1), high - low) / np.float32(255)
    zero = np.rint(np.clip(-low / scale, 0, 255))
    return (np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale


def channels(w, axis):
    scale = np.abs(w).max(axis, keepdims=True) * np.float32(2) / np.float32(254)
    return np.rint(w / scale) * scale


def quantize(run, *options):
    done = run("quantize", "model.onnx", "--activation-type=token", "--per-channel", "-o", "q.onnx", "--json", *options)
    return {t["name"]: t for t in json.loads(done.stdout)["tensors"]}, done.stderr


def run_both(run, folder, x):
    np.save(folder / "x.npy", x)
    run("run", "q.onnx", "--input", "x=x.npy", "--output-dir", "out")
    return np.load(folder / "out/y.npy"), in_onnxruntime(folder / "q.onnx", {"x": x})


def save(folder, nodes, x_shape, y_shape, weights, opset=21, ir=10):
    onnx.save(model(nodes, inputs=[value("x", x_shape)], outputs=[value("y", y_shape)], initializers=[tensor(n, w) for n, w in weights.items()],
                    opset=opset, ir=ir), folder / "model.onnx")


@pytest.mark.parametrize("shape", [(5, 12), (2, 3, 12), (1, 2, 2, 12)])
def test_rows_of_two_sizes(run, tmp_path, shape):
    """12 into the first product, 7 into the second, whose weight lies the other way; one row is zeros, one has a size of its own."""
    two = len(shape) == 2
    last = node("Gemm", ["t", "b", "c"], name="second", transB=1) if two else node("MatMul", ["t", "b"], name="second")
    save(tmp_path, [node("MatMul", ["x", "a"], ["h"], name="first"), node("Tanh", ["h"], ["t"], name="tanh"), last], ("batch", *shape[1:]),
         ("batch", *shape[1:-1], 3), {"a": A, "b": B if two else np.ascontiguousarray(B.T), **({"c": B[:, 0]} if two else {})})
    report, told = quantize(run)
    assert "8-bit codes with a scale for each row" in told
    onnx.checker.check_model(str(tmp_path / "q.onnx"), full_check=True)
    assert {n: (t["type"], t.get("scales"), t["block_size"]) for n, t in report.items() if t["kind"] == "activation"} == {
        "x": ("u8", "token", 12), "t": ("u8", "token", 7)}
    assert "c" not in report
    x = np.float32(RANDOM.normal(size=shape)) * np.float32(10.0 ** RANDOM.uniform(-3, 3, size=(*shape[:-1], 1)))
    if two:
        x[1] = 0
    h = np.tanh(rows(x) @ channels(A, 0))
    want = rows(h) @ channels(B.T, 0) + (B[:, 0] if two else 0)
    got, theirs = run_both(run, tmp_path, x)
    np.testing.assert_allclose(got, theirs, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=0.02)  # a code of h may be its neighbour
    assert np.mean(np.abs(got - want) > 1e-4) < 0.2


def test_a_vector_is_one_row(run, tmp_path):
    save(tmp_path, [node("MatMul", ["x", "a"], name="first")], (12,), (7,), {"a": A})
    report, _ = quantize(run)
    assert report["x"]["scales"] == "dynamic"
    x = np.float32(RANDOM.normal(size=12))
    got, theirs = run_both(run, tmp_path, x)
    np.testing.assert_allclose(got, rows(x) @ channels(A, 0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got, theirs, rtol=1e-5, atol=1e-5)


def test_a_vector_that_nothing_declares(run, tmp_path):
    """Its rank comes from the importer; in training, too. What nothing declares and has rows keeps a scale for each."""
    w = np.float32(RANDOM.normal(size=(7, 12)))
    nodes = [node("Squeeze", ["x"], ["v"], name="squeeze"), node("MatMul", ["v", "a"], ["h"], name="vector"), node("Unsqueeze", ["h", "axis"], ["r"], name="unsqueeze"),
             node("Relu", ["r"], ["s"], name="relu"), node("MatMul", ["s", "w"], name="row")]
    save(tmp_path, nodes, (1, 12), (1, 12), {"a": A, "w": w, "axis": np.int64([0])})
    report, _ = quantize(run)
    assert report["v"]["scales"] == "dynamic" and report["s"]["scales"] == "token"
    x = np.float32(RANDOM.normal(size=(1, 12)))
    got, theirs = run_both(run, tmp_path, x)
    np.testing.assert_allclose(got, theirs, rtol=1e-5, atol=1e-5)
    want = rows(np.maximum(rows(x) @ channels(A, 0), 0)) @ channels(w, 0)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    np.save(tmp_path / "labels.npy", x)
    run("compile", "model.onnx", "-o", "train", "--loss=mse", "--quantize=w8a8-token")
    run(tmp_path / "train", "--data=x=x.npy", "--data=labels=labels.npy", "--steps=0", "--export=q.onnx", "--progress=off")
    np.testing.assert_allclose(in_onnxruntime(tmp_path / "q.onnx", {"x": x}), want, rtol=1e-4, atol=1e-4)


def test_codes_are_numpys(run, tmp_path):
    """To the bit, in both evaluators."""
    save(tmp_path, [node("MatMul", ["x", "a"], name="first")], ("batch", 12), ("batch", 7), {"a": A})
    quantize(run)
    proto = onnx.load(tmp_path / "q.onnx")
    proto.graph.output.append(onnx.helper.make_tensor_value_info("x_QuantizeLinear_Output", onnx.TensorProto.UINT8, None))
    onnx.save(proto, tmp_path / "codes.onnx")
    x = np.float32(RANDOM.normal(size=(300, 12))) * np.float32(10.0 ** RANDOM.uniform(-3, 3, size=(300, 1)))
    np.save(tmp_path / "x.npy", x)
    run("run", "codes.onnx", "--input", "x=x.npy", "--output-dir", "out")
    low, high = np.minimum(x.min(1, keepdims=True), 0), np.maximum(x.max(1, keepdims=True), 0)
    scale = (high - low) / np.float32(255)
    codes = np.clip(np.rint(x / scale) + np.rint(-low / scale), 0, 255).astype(np.uint8)
    np.testing.assert_array_equal(np.load(tmp_path / "out/x_QuantizeLinear_Output.npy"), codes)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(tmp_path / "codes.onnx", options, providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(["x_QuantizeLinear_Output"], {"x": x})[0], codes)


def test_who_has_rows(run, tmp_path):
    """A weight behind Transpose has them; convolutions, products of two activations, a turned operand, and what is also read by those have one scale."""
    save(tmp_path, [node("Transpose", ["a"], ["at"], name="turn"), node("MatMul", ["x", "at"], ["h"], name="rows"), node("Transpose", ["h"], ["h2"], name="keys"),
                    node("MatMul", ["h", "h2"], ["s"], name="scores"), node("MatMul", ["s", "e"], ["v"], name="also"),
                    node("Gemm", ["s", "g"], ["u"], name="turned", transA=1), node("Add", ["u", "v"], ["z"], name="sum"), node("MatMul", ["l", "z"], name="left")],
         (4, 7), (2, 5), {"a": A, "e": np.float32(RANDOM.normal(size=(4, 5))), "g": np.float32(RANDOM.normal(size=(4, 5))), "l": np.float32(RANDOM.normal(size=(2, 4)))})
    report, _ = quantize(run)
    assert {n: (t["scales"], t["block_size"]) for n, t in report.items() if t["kind"] == "activation"} == {
        "x": ("token", 7), "h": ("dynamic", 0), "h2": ("dynamic", 0), "s": ("dynamic", 0), "z": ("dynamic", 0)}
    got, theirs = run_both(run, tmp_path, np.float32(RANDOM.normal(size=(4, 7))))
    np.testing.assert_allclose(got, theirs, rtol=1e-4, atol=1e-3)


def test_a_convolution_has_one_scale(run, models, tmp_path):
    run("quantize", models / "cnn_mnist/model.onnx", "--activation-type=token", "--per-channel", "--opset=21", "-o", "q.onnx")
    kinds = [n.op_type for n in onnx.load(tmp_path / "q.onnx").graph.node]
    assert kinds.count("DynamicQuantizeLinear") == kinds.count("Conv") > 0 and kinds.count("QuantizeLinear") == kinds.count("Gemm") > 0


@pytest.mark.parametrize("name, options", [("mlp_digits", []), ("gpt2_mini", ["--weight-type=s4", "--block-size=16"])])
def test_training_without_a_step_writes_the_same(run, models, tmp_path, name, options):
    """The file that training exports has the same codes and scales, and the same results."""
    known = reference.load(name)
    spec = "w4a8-g16-token" if options else "w8a8-token"
    run("quantize", models / name / "model.onnx", "--activation-type=token", "--opset=21", "-o", "q.onnx", *(options or ["--per-channel"]))
    run("compile", models / name / "model.onnx", "-o", tmp_path / "train", f"--quantize={spec}", "--opset=21", *reference.compile_options(name, "f32"))
    files = [(i["name"], i["file"]) for i in known["inputs"]] + [("labels", known["labels"]["file"])]
    run(tmp_path / "train", *[a for x, file in files for a in ("--data", f"{x}={models / name / file}")], "--steps=0", "--export=out.onnx")
    got, want = tensors(tmp_path / "q.onnx"), tensors(tmp_path / "out.onnx")
    assert {n for n in got if n.endswith("_quantized")} == {n for n in want if n.endswith("_quantized")}
    for n in got:
        if n.endswith(("_quantized", "_scale", "_zero_point")):
            assert got[n].tobytes() == want[n].tobytes(), n
    feeds = {x: np.load(models / name / file)[:8] for x, file in files[:-1]}
    np.testing.assert_array_equal(in_onnxruntime(tmp_path / "q.onnx", feeds), in_onnxruntime(tmp_path / "out.onnx", feeds))


def test_weights_of_8_bit_floats(run, tmp_path):
    save(tmp_path, [node("MatMul", ["x", "a"], name="first")], ("batch", 12), ("batch", 7), {"a": A})
    _, told = quantize(run, "--weight-type=f8e4m3fn")
    assert "no product of codes of 8-bit floats" in told
    x = np.float32(RANDOM.normal(size=(6, 12)))
    got, theirs = run_both(run, tmp_path, x)
    np.testing.assert_allclose(got, theirs, rtol=1e-5, atol=1e-5)
    assert np.abs(got - x @ A).max() < 0.6


def test_an_old_opset_is_named(run, tmp_path):
    save(tmp_path, [node("MatMul", ["x", "a"], name="first")], ("batch", 12), ("batch", 7), {"a": A}, opset=17, ir=8)
    done = run("quantize", "model.onnx", "--activation-type=token", "-o", "q.onnx", exit=4)
    assert "opset 17 has no DequantizeLinear with blocks, a scale for each row" in done.stderr and "--opset=21" in done.stderr
    assert not (tmp_path / "q.onnx").exists()
    quantize(run, "--opset=21")


def test_sensitivity_of_tokens(run, tmp_path):
    save(tmp_path, [node("MatMul", ["x", "a"], name="first")], ("batch", 12), ("batch", 7), {"a": A})
    np.save(tmp_path / "x.npy", np.float32(RANDOM.normal(size=(32, 12))))
    report, _ = quantize(run, "--sensitivity", "--data=x=x.npy", "--report=r.html")
    assert report["a"]["gain_db"] > 0 and report["x"]["gain_db"] > 0 and "token" in (tmp_path / "r.html").read_text()


def test_a_product_that_does_not_fit_is_reported(run, tmp_path):
    """By the product, as without codes."""
    save(tmp_path, [node("MatMul", ["x", "a"], name="first")], ("batch", 5), ("batch", 7), {"a": A})
    done = run("check", "model.onnx", "--loss=mse", "--quantize=w8a8-token", exit=3)
    assert "first" in done.stderr
