"""gradc quantize --bias-correction: biases are those of the formula in NumPy, and channels' means come closer to those of floats."""
import json
import os
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

sys.path[:0] = [os.path.join(os.path.dirname(__file__), "..", "import")]
from make_malformed import model, node, tensor, value  # noqa: E402

RANDOM = np.random.default_rng(11)
FEW_BITS = ["--weight-type=s4", "--per-channel", "--activation-type=none"]


def random(*shape):
    return np.float32(RANDOM.normal(size=shape))


def held(path):
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def numbers(path, name):
    """What the codes of a weight with a scale for each channel stand for."""
    p = onnx.load(path)
    h = held(path)
    step = next(n for n in p.graph.node if n.op_type == "DequantizeLinear" and n.input[0] == f"{name}_quantized")
    axis = next(a.i for a in step.attribute if a.name == "axis")
    codes = h[f"{name}_quantized"]
    return codes.astype(float) * np.expand_dims(h[f"{name}_scale"].astype(float), [i for i in range(codes.ndim) if i != axis])


def outputs(path, feeds, names=()):
    p = onnx.load(path)
    for name in names:
        p.graph.output.append(onnx.helper.make_tensor_value_info(name, 1, None))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(p.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(list(names) or None, feeds)


def grouped(group, o, i):
    """[o, i] of a convolution in groups as [o, group * i], with zeros where they do not meet."""
    return np.kron(np.eye(group), np.ones((o // group, i)))


# node, other nodes, w, bias, shape of x; the shift of the result's means by dw and the mean of x along all but its channels
CASES = {
    "Conv": (node("Conv", ["x", "w", "b"], name="p", pads=[1, 1, 1, 1]), [], (6, 4, 3, 3), (6,), (8, 4, 5, 5),
             lambda dw, m: dw.sum((2, 3)) @ m),
    "Conv without a bias": (node("Conv", ["x", "w"], name="p"), [], (6, 4, 3, 3), None, (8, 4, 5, 5), lambda dw, m: dw.sum((2, 3)) @ m),
    "Conv with an empty bias": (node("Conv", ["x", "w", ""], name="p"), [], (6, 4, 1, 3), None, (8, 4, 5, 5), lambda dw, m: dw.sum((2, 3)) @ m),
    "groups": (node("Conv", ["x", "w", "b"], name="p", group=2), [], (6, 3, 2), (6,), (8, 6, 7),
               lambda dw, m: (np.tile(dw.sum(2), 2) * grouped(2, 6, 3)) @ m),
    "ConvTranspose": (node("ConvTranspose", ["x", "w"], name="p", group=3, strides=[2, 1]), [], (6, 4, 2, 3), None, (8, 6, 5, 5),
                      lambda dw, m: np.concatenate([m[2 * g:2 * g + 2] @ dw.sum((2, 3))[2 * g:2 * g + 2] for g in range(3)]) / 2),
    "Gemm": (node("Gemm", ["x", "w", "b"], name="p", alpha=0.5, beta=2.0, transB=1), [], (5, 7), (1, 5), (8, 7), lambda dw, m: 0.25 * dw @ m),
    "Gemm without a bias": (node("Gemm", ["x", "w"], name="p"), [], (7, 5), None, (8, 7), lambda dw, m: m @ dw),
    "MatMul": (node("MatMul", ["x", "w"], ["s"], name="p"), [node("Add", ["s", "b"], name="sum")], (7, 5), (5,), (8, 3, 7), lambda dw, m: m @ dw),
    "the bias first": (node("MatMul", ["x", "w"], ["s"], name="p"), [node("Add", ["b", "s"], name="sum")], (7, 5), (1, 1, 5), (8, 3, 7), lambda dw, m: m @ dw),
    "transposed": (node("MatMul", ["x", "t"], ["s"], name="p"), [node("Add", ["s", "b"], name="sum")], (5, 7), (5,), (8, 3, 7), lambda dw, m: dw @ m),
}


@pytest.mark.parametrize("name", CASES)
def test_beside_numpy(run, tmp_path, name):
    product, more, w_shape, b_shape, x_shape, shift = CASES[name]
    before = [node("Transpose", ["w"], ["t"], name="turn", perm=[1, 0])] if name == "transposed" else []
    w, x = random(*w_shape), 1 + random(*x_shape)
    b = random(*b_shape) if b_shape else 0
    tensors = [tensor("w", w)] + ([tensor("b", b)] if b_shape else [])
    onnx.save(model([*before, product, *more], inputs=[value("x", ("batch", *x_shape[1:]))], outputs=[value("y", [f"y{i}" for i in range(len(x_shape))])],
                    initializers=tensors, opset=21, ir=10), tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", x)
    run("quantize", "model.onnx", "--data=x=x.npy", "--batch=4", *FEW_BITS, "--bias-correction", "-o", "q.onnx")
    onnx.checker.check_model(str(tmp_path / "q.onnx"))
    axis = 1 if "Conv" in product.op_type else x.ndim - 1
    means = x.astype(float).mean(tuple(i for i in range(x.ndim) if i != axis))
    want = b - shift(numbers(tmp_path / "q.onnx", "w") - w, means)
    got = held(tmp_path / "q.onnx")["b" if b_shape else "w_bias"]
    assert not b_shape or got.shape == b.shape
    np.testing.assert_allclose(got, want, atol=1e-6)
    assert np.abs(want - b).max() > 1e-3
    (floats,), (codes,) = (outputs(tmp_path / f, {"x": x}) for f in ("model.onnx", "q.onnx"))
    if "pads" not in str(product) and "Transpose" not in product.op_type:
        axis = 1 if axis == 1 else floats.ndim - 1
        rest = tuple(i for i in range(floats.ndim) if i != axis)
        if "Conv" not in product.op_type:  # there the window meets each input equally often
            np.testing.assert_allclose(codes.mean(rest), floats.mean(rest), atol=1e-5)


def test_transposed_x_and_gptq(run, tmp_path):
    """Gemm of x'; and codes of gptq, which are further from the weights than the nearest."""
    w, x = random(6, 5), 1 + random(6, 24)
    nodes = [node("Gemm", ["x", "w", "b"], ["s"], name="first", transA=1), node("Gemm", ["s", "v", "c"], name="second")]
    v, b, c = random(5, 4), random(5), random(4)
    onnx.save(model(nodes, inputs=[value("x", (6, 24))], initializers=[tensor("w", w), tensor("b", b), tensor("v", v), tensor("c", c)],
                    opset=21, ir=10), tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", x)
    run("quantize", "model.onnx", "--data=x=x.npy", *FEW_BITS, "--algorithm=gptq", "--bias-correction", "-o", "q.onnx")
    got, x = held(tmp_path / "q.onnx"), x.astype(float)
    np.testing.assert_allclose(got["b"], b - x.mean(1) @ (numbers(tmp_path / "q.onnx", "w") - w), atol=1e-6)
    np.testing.assert_allclose(got["c"], c - (x.T @ w + b).mean(0) @ (numbers(tmp_path / "q.onnx", "v") - v), atol=1e-6)


def test_codes_of_8_bit_floats(run, tmp_path):
    w, b, x = random(7, 5), random(5), 2 + random(16, 7)
    onnx.save(model([node("Gemm", ["x", "w", "b"], name="p")], inputs=[value("x", (16, 7))], initializers=[tensor("w", w), tensor("b", b)],
                    opset=21, ir=10), tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", x)
    for algorithm in ([], ["--algorithm=gptq"], ["--algorithm=awq"]):
        run("quantize", "model.onnx", "--data=x=x.npy", "--weight-type=f8e4m3fn", "--per-channel", "--activation-type=none", "--bias-correction",
            *algorithm, "-o", "q.onnx")
        got = held(tmp_path / "q.onnx")
        factors = got.get("x_factor", np.ones(7, np.float32)).astype(float)
        back = got["w_quantized"].astype(float) * got["w_scale"].astype(float) * factors[:, None]
        np.testing.assert_allclose(got["b"], b - x.astype(float).mean(0) @ (back - w), atol=2e-6)
        assert np.abs(got["b"] - b).max() > 1e-3 and np.abs(back - w).max() < 0.1 * np.abs(w).max()


@pytest.mark.parametrize("has", [True, False])
def test_biases_of_32_bits(run, tmp_path, has):
    w, b, x = random(6, 4, 3, 3), random(6), 3 + random(8, 4, 5, 5)
    onnx.save(model([node("Conv", ["x", "w", "b"] if has else ["x", "w"], name="p")], inputs=[value("x", (8, 4, 5, 5))],
                    initializers=[tensor("w", w)] + ([tensor("b", b)] if has else [])), tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", x)
    run("quantize", "model.onnx", "--data=x=x.npy", "--per-channel", "--bias-correction", "-o", "q.onnx")
    got, name = held(tmp_path / "q.onnx"), "b" if has else "w_bias"
    assert name not in got and got[f"{name}_quantized"].dtype == np.int32
    dw = numbers(tmp_path / "q.onnx", "w") - w
    want = (b if has else 0) - dw.sum((2, 3)) @ x.astype(float).mean((0, 2, 3))
    step = got[f"{name}_quantized_scale"].astype(float)
    np.testing.assert_allclose(got[f"{name}_quantized"] * step, want, atol=0.51 * step.max())
    assert np.abs(want - (b if has else 0)).max() > 5 * step.max()


@pytest.mark.parametrize("name", ["cnn_mnist", "resnet_mini"])
def test_means_of_layers(run, models, tmp_path, name):
    """All channels of all layers in onnxruntime, the errors of layers before included."""
    x = np.load(models / name / "image.npy")[:64]
    np.save(tmp_path / "x.npy", x)
    common = ["quantize", models / name / "model.onnx", "--data=image=x.npy", "--batch=16", "--fold-batch-norms", "--opset=21"]
    run(*common, "--weight-type=s8", "--block-size=2", "--activation-type=none", "-o", "floats.onnx")  # as near as codes come
    means = {}
    for which, options in {"plain": [], "corrected": ["--bias-correction"]}.items():
        run(*common, *FEW_BITS, *options, "-o", f"{which}.onnx")
    names = [n.output[0] for n in onnx.load(tmp_path / "plain.onnx").graph.node if n.op_type in ("Conv", "Gemm")]
    for which in "floats", "plain", "corrected":
        got = outputs(tmp_path / f"{which}.onnx", {"image": x}, names)
        means[which] = [y.mean((0, 2, 3) if y.ndim == 4 else 0) for y in got]
    error = {which: np.mean([np.abs(a - b).mean() / np.abs(b).mean() for a, b in zip(means[which], means["floats"])]) for which in ("plain", "corrected")}
    assert error["corrected"] < 0.7 * error["plain"], error


def linear(folder, x=None, **more):
    nodes = [node("MatMul", ["x", "w"], ["s"], name="p"), node("Add", ["s", "b"], ["z"], name="sum"), node("Identity", ["z"], name="out")]
    w, b = random(7, 5), random(5)
    w = np.abs(w) if more.get("positive") else w
    onnx.save(model(more.get("nodes", nodes), inputs=[value("x", ("batch", 7))], outputs=[value("y", ("rows", 5))],
                    initializers=[tensor("w", w), tensor("b", b)], opset=21, ir=10),
              folder / "model.onnx")
    np.save(folder / "x.npy", 1 + random(8, 7) if x is None else np.float32(x))
    return w, b


LEFT = {
    "read by others": [node("MatMul", ["x", "w"], ["s"], name="p"), node("Add", ["s", "b"], ["z"], name="sum"), node("Mul", ["z", "b"], name="out")],
    "none": [node("MatMul", ["x", "w"], name="p")],
    "the result is read twice": [node("MatMul", ["x", "w"], ["s"], name="p"), node("Add", ["s", "b"], ["z"], name="sum"), node("Mul", ["z", "s"], name="out")],
    "beta is 0": [node("Gemm", ["x", "w", "b"], name="p", beta=0.0)],
    "of activations": [node("Add", ["x", "x"], ["h"], name="h"), node("MatMul", ["x", "w"], ["s"], name="p"), node("ReduceMean", ["h"], ["c"], name="r"),
                       node("Add", ["s", "c"], name="sum")],
    "a weight of two": [node("Gemm", ["x", "w", "b"], ["s"], name="p"), node("Abs", ["x"], ["a"], name="abs"), node("Gemm", ["a", "w"], ["t"], name="q"),
                        node("Add", ["s", "t"], name="sum")],
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_is_told(run, tmp_path, name):
    _, b = linear(tmp_path, nodes=LEFT[name])
    done = run("quantize", "model.onnx", "--data=x=x.npy", *FEW_BITS, "--bias-correction", "-o", "q.onnx")
    assert "--bias-correction: 1 of 1 weights have no bias to correct" in done.stderr
    onnx.checker.check_model(str(tmp_path / "q.onnx"))
    np.testing.assert_array_equal(held(tmp_path / "q.onnx").get("b", b), b)


def test_what_leaving_a_weight_out_gains(run, tmp_path):
    """The reference of --sensitivity are floats without a correction."""
    w, b = linear(tmp_path)
    x = np.load(tmp_path / "x.npy").astype(float)
    done = run("quantize", "model.onnx", "--data=x=x.npy", *FEW_BITS, "--bias-correction", "--sensitivity", "--json", "-o", "q.onnx")
    got = json.loads(done.stdout)
    y, q = x @ w + b, x @ numbers(tmp_path / "q.onnx", "w") + held(tmp_path / "q.onnx")["b"]
    np.testing.assert_allclose(got["output_snr_db"], 10 * np.log10((y ** 2).sum() / ((y - q) ** 2).sum()), rtol=1e-3)
    assert "gain_db" not in got["tensors"][0] or got["tensors"][0]["gain_db"] > 60  # nothing is lost without its codes


def test_codes_that_lose_nothing(run, tmp_path):
    linear(tmp_path, x=np.zeros((8, 7)))
    b = held(tmp_path / "model.onnx")["b"]
    run("quantize", "model.onnx", "--data=x=x.npy", *FEW_BITS, "--bias-correction", "-o", "q.onnx")
    np.testing.assert_array_equal(held(tmp_path / "q.onnx")["b"], b)


BAD = {
    "no data": ([*FEW_BITS], None, 2, "no --data: --bias-correction's means come from real data"),
    "NaN": ([*FEW_BITS, "--data=x=x.npy"], np.full((8, 7), np.nan), 6, "value x of node p is not finite in batch 1"),
    "too large": (["--weight-type=s2", "--opset=25", "--activation-type=none", "--data=x=x.npy"], np.full((8, 7), 3e38), 6,
                  "--bias-correction: bias b of node p would not be finite at"),
    "no rows": ([*FEW_BITS, "--data=x=x.npy"], np.zeros((0, 7)), 6, "x.npy holds no rows"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(run, tmp_path, name):
    options, x, code, message = BAD[name]
    linear(tmp_path, x=x, positive=True)
    done = run("quantize", "model.onnx", *options, "--bias-correction", "-o", "q.onnx", exit=code)
    assert message in done.stderr and not (tmp_path / "q.onnx").exists()


def test_no_weight_at_all(run, tmp_path):
    onnx.save(model([node("MatMul", ["x", "x"], name="p")], inputs=[value("x", (4, 4))]), tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", random(4, 4))
    done = run("quantize", "model.onnx", "--data=x=x.npy", "--bias-correction", "-o", "q.onnx", exit=2)
    assert "--bias-correction: no weight is quantized" in done.stderr and "leave the option out" in done.stderr


@pytest.mark.parametrize("op, attributes", [("Conv", {"group": 0}), ("Conv", {"group": 5}), ("ConvTranspose", {"group": -1}), ("ConvTranspose", {"group": 4}),
                                            ("Conv", {"group": 2**62}), ("ConvTranspose", {"group": 2**62}), ("Conv", {"group": -2**63}),
                                            ("ConvTranspose", {"strides": [0, 0]})])
def test_attributes_that_fit_nothing(run, tmp_path, op, attributes):
    onnx.save(model([node(op, ["x", "w"], name="p", **attributes)], inputs=[value("x", (2, 6, 5, 5))], initializers=[tensor("w", random(6, 6, 3, 3))],
                    opset=21, ir=10), tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", random(2, 6, 5, 5))
    assert run("quantize", "model.onnx", "--data=x=x.npy", *FEW_BITS, "--bias-correction", "-o", "q.onnx", exit=None).returncode in (3, 4)
