"""gradc quantize --algorithm=awq: factors and codes are those of the formula in NumPy, the function of the model stays, and codes lose less."""
import os
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import reference
from onnx import numpy_helper

sys.path[:0] = [os.path.join(os.path.dirname(__file__), "..", "import")]
from make_malformed import model, node, tensor, value  # noqa: E402

RANDOM = np.random.default_rng(12)
SCALE = {"s8": (127, -127), "s4": (7.5, -8), "s2": (1.5, -2)}  # the largest size by the scale, the least code


def random(*shape):
    return np.float32(RANDOM.normal(size=shape))


def held(path):
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def outputs(proto, feeds):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def uneven(rows, inputs, large=4):
    """Rows with some inputs 30 times as large as others."""
    x = random(rows, inputs)
    x[:, ::inputs // large] *= 30
    return x


def quantized(w, kind, block):
    """Codes and numbers of [inputs, outputs]; block 0: a scale for each output, -1: one for all."""
    by, least = SCALE[kind]
    size = block if block > 0 else len(w)
    codes, numbers = np.empty(w.shape, int), np.empty(w.shape)
    for i in range(0, len(w), size):
        part = w[i:i + size]
        step = np.float32(np.abs(part).max() if block < 0 else np.abs(part).max(0)) / np.float32(by)
        codes[i:i + size] = np.clip(np.rint(part / step), least, -least if kind == "s8" else -least - 1)
        numbers[i:i + size] = codes[i:i + size] * np.float64(step)
    return codes, numbers


def awq(x, w, kind, block):
    """Factors, codes and numbers of the alpha with the least error of x w."""
    best = None
    for alpha in np.arange(20) / 20:
        s = np.maximum(np.abs(x.astype(float)).mean(0) ** alpha, 1e-4)
        s = np.float32(s / np.sqrt(s.max() * s.min()))
        codes, numbers = quantized(w * s[:, None], kind, block)
        error = np.square(x.astype(float) @ (numbers / s[:, None] - w)).sum()
        if best is None or error < best[0]:
            best = error, s, codes, numbers
    return best


FORMS = {"s4": ("s4", 16, 21), "s8": ("s8", -1, 21), "s4 by channel": ("s4", 0, 21), "s2": ("s2", 8, 25), "s8 in blocks": ("s8", 16, 21)}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("transposed", [False, True])
def test_beside_numpy(run, tmp_path, name, transposed):
    kind, block, opset = FORMS[name]
    w, x = random(48, 20), uneven(64, 48)
    product = node("Gemm", ["x", "w"], name="p", transB=1) if transposed else node("MatMul", ["x", "w"], name="p")
    onnx.save(model([product], inputs=[value("x", ("batch", 48))], outputs=[value("y", ("batch", 20))],
                    initializers=[tensor("w", w.T.copy() if transposed else w)], opset=21, ir=10),
              tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", x)
    groups = [f"--block-size={block}"] if block > 0 else ["--per-channel"] if block == 0 else []
    run("quantize", "model.onnx", "--data=x=x.npy", "--batch=16", f"--weight-type={kind}", *groups, "--activation-type=none", "--algorithm=awq",
        f"--opset={opset}", "-o", "q.onnx")
    onnx.checker.check_model(str(tmp_path / "q.onnx"))
    _, s, codes, numbers = awq(x, w, kind, block)
    got = held(tmp_path / "q.onnx")
    np.testing.assert_allclose(got["x_factor"], 1 / s, rtol=1e-6)
    mine = got["w_quantized"].astype(int)
    assert (mine.T if transposed else mine).tolist() == codes.tolist()
    np.save(tmp_path / "x.npy", x[:16])
    run("run", "q.onnx", "--input=x=x.npy", "--output-dir=out")
    np.testing.assert_allclose(np.load(tmp_path / "out/y.npy"), (x[:16] / s) @ numbers, rtol=1e-3, atol=1e-3)


def block_of_everything():
    """LayerNormalization before two products, of which one is a gate's; a product behind their Mul and a Reshape; a sum that others read,
    too; an RMSNorm in parts before a Gemm, whose outputs go into another with a bias between."""
    w = {"ln": 1 + random(24) / 4, "lnb": random(24), "wq": random(24, 32), "wk": random(32, 24), "bk": random(32), "wo": random(32, 24) * np.geomspace(0.1, 10, 24, dtype=np.float32),
         "shape": np.array([-1, 32]), "wp": random(24, 24), "rms": 1 + random(1, 24) / 4, "wg": random(40, 24), "bg": random(40), "wh": random(40, 16),
         "bh": random(16), "two": np.float32(2), "wz": random(16, 6)}
    nodes = [node("LayerNormalization", ["x", "ln", "lnb"], ["h"], name="norm"), node("MatMul", ["h", "wq"], ["q"], name="q"),
             node("Transpose", ["wk"], ["wkt"], name="turn", perm=[1, 0]), node("MatMul", ["h", "wkt"], ["k"], name="k"), node("Add", ["bk", "k"], ["kb"], name="kb"),
             node("Sigmoid", ["q"], ["gate"], name="gate"), node("Mul", ["gate", "kb"], ["g"], name="g"), node("Reshape", ["g", "shape"], ["r"], name="r"),
             node("MatMul", ["r", "wo"], ["o"], name="o"), node("Relu", ["o"], ["a"], name="a"), node("MatMul", ["a", "wp"], ["p"], name="p"),
             node("Add", ["a", "p"], ["res"], name="res"), node("Pow", ["res", "two"], ["sq"], name="sq"), node("ReduceMean", ["sq"], ["ms"], name="ms", keepdims=1),
             node("Sqrt", ["ms"], ["rt"], name="rt"), node("Div", ["res", "rt"], ["nd"], name="nd"), node("Mul", ["nd", "rms"], ["n"], name="n"),
             node("Gemm", ["n", "wg", "bg"], ["u"], name="u", transB=1, alpha=0.5), node("Gemm", ["u", "wh"], ["v"], name="v"),
             node("Add", ["v", "bh"], ["vb"], name="vb"), node("MatMul", ["vb", "wz"], name="z")]
    return model(nodes, inputs=[value("x", ("batch", 24))], outputs=[value("y", ("batch", 6))], initializers=[tensor(n, a) for n, a in w.items()], opset=21,
                 ir=10), w


def test_the_function_stays(run, tmp_path):
    """With the matrices' exact numbers, factors on both sides, in place of their codes."""
    proto, w = block_of_everything()
    onnx.save(proto, tmp_path / "model.onnx")
    x = random(64, 24) * np.float32(np.linspace(0.1, 3, 24))
    np.save(tmp_path / "x.npy", x)
    run("quantize", "model.onnx", "--data=x=x.npy", "--batch=16", "--weight-type=s4", "--block-size=8", "--activation-type=none", "--algorithm=awq",
        "-o", "q.onnx")
    onnx.checker.check_model(str(tmp_path / "q.onnx"))
    q = onnx.load(tmp_path / "q.onnx")
    got = held(tmp_path / "q.onnx")
    assert [n.name for n in q.graph.node if n.op_type == "Mul"] == ["g", "a_scaled_Mul", "n"]  # all others in numbers of the file
    one = {"h": w["ln"] / got["ln"], "kb": w["bk"] / got["bk"], "a": 1 / got["a_factor"], "n": (w["rms"] / got["rms"])[0], "u": w["bg"] / got["bg"],
           "vb": w["bh"] / got["bh"]}
    np.testing.assert_allclose(w["lnb"] / got["lnb"], one["h"], rtol=1e-5)
    assert all(np.ptp(s) > 0.1 for s in one.values())
    exact = {"wq": w["wq"] * one["h"][:, None], "wk": (w["wk"] * one["h"]) / one["kb"][:, None], "wo": w["wo"] * one["kb"][:, None],
             "wp": w["wp"] * one["a"][:, None], "wg": w["wg"] * one["n"] / one["u"][:, None], "wh": w["wh"] * one["u"][:, None] / one["vb"],
             "wz": w["wz"] * one["vb"][:, None]}
    steps = {n.input[0]: n for n in q.graph.node if n.op_type == "DequantizeLinear"}
    for name, a in exact.items():
        step = steps[f"{name}_quantized"]
        step.op_type = "Identity"
        step.input[:] = [f"{name}_exact"]
        del step.attribute[:]
        q.graph.initializer.append(tensor(f"{name}_exact", np.float32(a)))
    assert len(exact) == len(steps)
    want = outputs(proto, {"x": x})[0]
    np.testing.assert_allclose(outputs(q, {"x": x})[0], want, rtol=1e-4, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("activations", ["none", "u8"])
def test_large_inputs_lose_less(run, tmp_path, activations):
    """The formula's gain where few inputs matter; with codes of activations, too, whose range is that of what is left."""
    w, x = random(256, 32), uneven(256, 256, large=2)
    onnx.save(model([node("MatMul", ["x", "w"], name="p")], inputs=[value("x", ("batch", 256))], initializers=[tensor("w", w)], opset=21, ir=10),
              tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", x)
    error = {}
    for algorithm in "rtn", "awq":
        run("quantize", "model.onnx", "--data=x=x.npy", "--weight-type=s4", "--per-channel", f"--activation-type={activations}",
            f"--algorithm={algorithm}", "-o", "q.onnx")
        error[algorithm] = np.square(outputs(onnx.load(tmp_path / "q.onnx"), {"x": x})[0] - x @ w).mean()
    assert error["awq"] < 0.6 * error["rtn"], error


@pytest.mark.parametrize("name", ["gpt2_mini", "llama_mini"])
def test_language_models(run, models, tmp_path, name):
    """Blocks of 16, on rows that awq has not seen: no worse than noise, for these models have few large inputs; what it gains is shown above."""
    path, x, labels = models / name / "model.onnx", np.load(models / name / "input_ids.npy"), np.load(models / name / "labels.npy")
    rows = reference.load(name)["traces"][0]["micro_batch"]
    np.save(tmp_path / "ids.npy", x[:2 * rows])
    x, labels = x[-rows:], labels[-rows:]
    results = {"floats": outputs(onnx.load(path), {"input_ids": x})[0].astype(float)}
    for algorithm in "rtn", "awq":
        run("quantize", path, "--data=input_ids=ids.npy", f"--batch={rows}", "--weight-type=s4", "--block-size=16", "--activation-type=none", "--opset=21",
            f"--algorithm={algorithm}", "-o", "q.onnx")
        results[algorithm] = outputs(onnx.load(tmp_path / "q.onnx"), {"input_ids": x})[0].astype(float)
    error = {a: np.square(results[a] - results["floats"]).mean() for a in ("rtn", "awq")}
    assert error["awq"] <= 1.05 * error["rtn"], error

    def loss(y):
        y = y - y.max(-1, keepdims=True)
        return np.mean(np.log(np.exp(y).sum(-1)) - np.take_along_axis(y, labels[..., None].astype(int), -1)[..., 0])

    assert loss(results["awq"]) <= loss(results["rtn"]) + 2e-3


def save(folder, nodes, weights, x, shape=("batch", 16)):
    onnx.save(model(nodes, inputs=[value("x", shape)], initializers=[tensor(n, a) for n, a in weights.items()], opset=21, ir=10), folder / "model.onnx")
    np.save(folder / "x.npy", np.float32(x))


AWQ = ["--weight-type=s4", "--per-channel", "--activation-type=none", "--algorithm=awq"]


def test_a_matrix_that_others_read(run, tmp_path):
    """It keeps its numbers for them."""
    w, x = random(16, 16), uneven(32, 16)
    save(tmp_path, [node("MatMul", ["x", "w"], ["s"], name="p"), node("Add", ["s", "w"], name="sum")], {"w": w}, x[:16], (16, 16))
    run("quantize", "model.onnx", "--data=x=x.npy", *AWQ, "-o", "q.onnx")
    got = held(tmp_path / "q.onnx")
    np.testing.assert_array_equal(got["w"], w)
    assert "w_scaled_quantized" in got and "x_factor" in got
    y = outputs(onnx.load(tmp_path / "q.onnx"), {"x": x[:16]})[0]
    assert np.abs(y - x[:16] @ w - w).mean() < 0.1 * np.abs(x[:16] @ w).mean()


def test_what_cannot_be_scaled_stays(run, tmp_path):
    """A matrix of two products has two activations; and a factor that is divided has one reader, of as many numbers."""
    w = {"w": random(16, 16), "v": random(16, 16), "f": random(16) + 3, "g": np.float32([3])}
    nodes = [node("MatMul", ["x", "w"], ["a"], name="a"), node("MatMul", ["a", "w"], ["b"], name="b"), node("Mul", ["b", "f"], ["c"], name="c"),
             node("Mul", ["c", "g"], ["d"], name="d"), node("MatMul", ["d", "v"], ["e"], name="e"), node("Add", ["e", "f"], name="sum")]
    x = uneven(32, 16)
    save(tmp_path, nodes, w, x)
    run("quantize", "model.onnx", "--data=x=x.npy", *AWQ, "-o", "q.onnx")
    got = held(tmp_path / "q.onnx")
    assert [n for n in got if n.endswith("factor")] == ["d_factor"]
    np.testing.assert_array_equal(got["f"], w["f"])
    step = got["w_scale"].astype(float)
    assert (np.abs(got["w_quantized"] * step - w["w"]) <= 0.501 * step).all()


@pytest.mark.parametrize("x", [np.zeros((8, 16)), np.full((8, 16), 3e38), np.full((8, 16), 1e-40)], ids=["zeros", "large", "small"])
def test_data_that_say_little(run, tmp_path, x):
    save(tmp_path, [node("MatMul", ["x", "w"], name="p")], {"w": random(16, 4)}, x)
    run("quantize", "model.onnx", "--data=x=x.npy", *AWQ, "-o", "q.onnx")
    assert all(np.isfinite(a.astype(float)).all() for a in held(tmp_path / "q.onnx").values())


BAD = {
    "no data": ([node("MatMul", ["x", "w"], name="p")], 0, AWQ, 2, "no --data: the weights' importance comes from real data"),
    "NaN": ([node("MatMul", ["x", "w"], name="p")], np.full((8, 16), np.nan), AWQ, 6, "value x of node p is not finite in batch 1"),
    "no matrix": ([node("Gemm", ["x", "w"], name="p", transA=1)], np.ones((16, 16)), AWQ, 2, "--algorithm=awq: no MatMul or Gemm multiplies by a matrix of its own"),
    "weights of NaN": ([node("MatMul", ["x", "v"], name="p")], np.ones((8, 16)), AWQ, 3, "v of node p has numbers that are not finite"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(run, tmp_path, name):
    nodes, x, options, code, message = BAD[name]
    save(tmp_path, nodes, {"w": random(16, 4), "v": np.full((16, 4), np.nan, np.float32)}, x, (16, 16) if name == "no matrix" else ("batch", 16))
    data = [] if name == "no data" else ["--data=x=x.npy"]
    done = run("quantize", "model.onnx", *data, *options, "-o", "q.onnx", exit=code)
    assert message in done.stderr and not (tmp_path / "q.onnx").exists()


def test_with_bias_correction(run, tmp_path):
    """The means are those of what is read behind the factor."""
    w, b, x = random(16, 6), random(6), 1 + uneven(32, 16)
    save(tmp_path, [node("Gemm", ["x", "w", "b"], name="p")], {"w": w, "b": b}, x)
    run("quantize", "model.onnx", "--data=x=x.npy", *AWQ, "--bias-correction", "-o", "q.onnx")
    y = outputs(onnx.load(tmp_path / "q.onnx"), {"x": x})[0]
    np.testing.assert_allclose(y.mean(0), (x.astype(float) @ w + b).mean(0), atol=1e-4)
    assert np.abs(held(tmp_path / "q.onnx")["b"] - b).max() > 1e-3
