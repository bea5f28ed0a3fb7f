"""Quantized operators of files: forward against ONNX's own tests and onnxruntime, gradients against the straight-through rule in
NumPy, and files that are wrong."""
import json
import os
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.backend.test
import onnxruntime
import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "import"))
from make_malformed import model, node, tensor, value  # noqa: E402

BACKEND = Path(onnx.backend.test.__file__).parent / "data/node"
WORDS = ("quantizelinear", "qlinear", "convinteger", "matmulinteger")
BACKEND_TESTS = sorted(p.name for p in BACKEND.iterdir() if any(word in p.name for word in WORDS))
MICROSOFT = "com.microsoft"
RANDOM = np.random.default_rng(7)


def read_pb(path):
    proto = onnx.TensorProto()
    proto.ParseFromString(path.read_bytes())
    return onnx.numpy_helper.to_array(proto)


@pytest.mark.parametrize("engine", ["interp", "compiled"])
@pytest.mark.parametrize("name", BACKEND_TESTS)
def test_backend(run, tmp_path, name, engine):
    data = BACKEND / name / "test_data_set_0"
    graph = onnx.load(BACKEND / name / "model.onnx").graph
    inputs = [a for i, x in enumerate(graph.input) for a in ("--input", f"{x.name}={data}/input_{i}.pb")]
    run("run", BACKEND / name / "model.onnx", f"--engine={engine}", *inputs, "--output-format=pb", "--output-dir=out")
    files = json.loads((tmp_path / "out/names.json").read_text())
    for i, output in enumerate(graph.output):
        got, want = read_pb(tmp_path / "out" / files[output.name]["file"]), read_pb(data / f"output_{i}.pb")
        assert got.dtype == want.dtype and got.shape == want.shape
        np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))


# ---- beside onnxruntime, without its optimizations
def run_both(run, folder, proto, feeds, engine):
    """(gradc's, onnxruntime's) results of a model."""
    onnx.save(proto, folder / "model.onnx")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])
    for name, x in feeds.items():
        np.save(folder / f"{name}.npy", x)
    inputs = [a for name in feeds for a in ("--input", f"{name}={name}.npy")]
    run("run", "model.onnx", f"--engine={engine}", *inputs, "--output-dir", "out")
    return np.load(folder / "out/y.npy"), session.run(["y"], feeds)[0]


def assert_codes_agree(got, want):
    """At most one code apart, in at most 1e-4 of the elements."""
    apart = np.abs(got.astype(np.int64) - want.astype(np.int64))
    assert apart.max() <= 1
    assert np.mean(apart != 0) <= 1e-4


def held(**arrays):
    return [tensor(name, a) for name, a in arrays.items()]


def codes(kind, *shape):
    info = np.iinfo(kind)
    return RANDOM.integers(info.min, info.max + 1, shape).astype(kind)


def weight_codes(kind, *shape):
    """Signed ones of 7 bits: on a CPU without VNNI onnxruntime's sum of two u8 times s8 saturates at 16 bits (its `reduce_range`)."""
    return RANDOM.integers(-64, 64, shape).astype(kind) if np.dtype(kind).kind == "i" else codes(kind, *shape)


def kind_of(dtype):
    return onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


QLINEAR = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"]


@pytest.mark.parametrize("x, w, per_channel", [("u1", "i1", True), ("u1", "u1", False), ("i1", "i1", True)])
def test_product_of_codes(run, tmp_path, x, w, per_channel):
    """A product and a convolution of codes, and a maximum of windows between them."""
    scales = np.float32(RANDOM.uniform(0.001, 0.01, 24)) if per_channel else np.float32(0.004)
    zeros = np.zeros(24, w) if per_channel else np.array(3, w)
    q = np.iinfo(x)
    middle = np.array((q.min + q.max + 1) // 2, x)
    weights = held(xs=np.float32(0.02), xz=middle, w=weight_codes(w, 24, 8, 3, 3), ws=scales, wz=zeros, ys=np.float32(0.11),
                   yz=middle, b=RANDOM.integers(-4000, 4000, 24).astype(np.int32), flat=np.array([4, -1]),
                   m=weight_codes("i1", 24 * 25, 40), ms=np.float32(0.005), mz=np.array(0, "i1"), zs=np.float32(1.5), zz=middle)
    nodes = [node("QLinearConv", [*QLINEAR, "b"], ["c"], name="c", pads=[1, 1, 1, 1]),
             node("MaxPool", ["c"], ["p"], name="p", kernel_shape=[2, 2], strides=[2, 2]),
             node("Reshape", ["p", "flat"], ["f"], name="f"),
             node("QLinearMatMul", ["f", "ys", "yz", "m", "ms", "mz", "zs", "zz"], name="m")]
    proto = model(nodes, inputs=[value("x", (4, 8, 10, 10), kind_of(x))], outputs=[value("y", (4, 40), kind_of(x))],
                  initializers=weights, opset=21, ir=10)
    assert_codes_agree(*run_both(run, tmp_path, proto, {"x": codes(x, 4, 8, 10, 10)}, "compiled"))


@pytest.mark.parametrize("engine", ["interp", "compiled"])
@pytest.mark.parametrize("op", ["MatMulInteger", "QLinearMatMul"])
def test_zero_points_of_rows(run, tmp_path, op, engine):
    """One for each row on the left, one for each column on the right; onnxruntime 1.27 has them for columns alone."""
    a, b, az, bz = codes("u1", 3, 6, 7), codes("i1", 3, 7, 5), codes("u1", 6), codes("i1", 5)
    product = (a.astype(int) - az[:, None]) @ (b.astype(int) - bz)
    if op == "MatMulInteger":
        weights, inputs, kind, want = held(b=b, az=az, bz=bz), ["a", "b", "az", "bz"], np.int32, product
    else:
        by, bs = RANDOM.uniform(0.01, 0.1, 6).astype("f4"), RANDOM.uniform(0.01, 0.1, 5).astype("f4")
        weights = held(b=b, az=az, bz=bz, by=by, bs=bs, ys=np.float32(2), yz=np.uint8(120))
        inputs, kind = ["a", "by", "az", "b", "bs", "bz", "ys", "yz"], np.uint8
        want = np.clip(np.rint(product * by[:, None].astype(float) * bs / 2) + 120, 0, 255)
    onnx.save(model([node(op, inputs)], inputs=[value("a", a.shape, kind_of("u1"))], outputs=[value("y", want.shape, kind_of(kind))],
                    initializers=weights, opset=21, ir=10), tmp_path / "model.onnx")
    np.save(tmp_path / "a.npy", a)
    run("run", "model.onnx", f"--engine={engine}", "--input=a=a.npy", "--output-dir=out")
    got = np.load(tmp_path / "out/y.npy")
    assert got.dtype == kind and np.abs(got - want).max() <= (op == "QLinearMatMul")
    assert np.mean(got != want) <= 0.01


def unpack(packed, bits):
    """Codes of bytes, the first in the low bits."""
    parts = [packed >> at & 2**bits - 1 for at in range(0, 8, bits)]
    return np.stack(parts, -1).reshape(*packed.shape[:-1], -1)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", ["none", "packed", "float"])
def test_matmul_nbits(run, tmp_path, bits, zeros):
    rows, columns, block = 24, 80, 32  # three blocks, the last one half full
    blocks, each = 3, 32 * bits // 8
    w, s = codes("u1", rows, blocks, each), np.float32(RANDOM.uniform(0.01, 0.1, (rows, blocks)))
    bias, zero, inputs, weights = 0, 2.0**(bits - 1), ["x", "w", "s"], held(w=w, s=s)
    if zeros == "packed":
        z = codes("u1", rows, (blocks * bits + 7) // 8)
        zero, inputs, weights = unpack(z, bits)[:, :blocks, None].astype(float), [*inputs, "z"], [*weights, *held(z=z)]
    elif zeros == "float":
        z = np.float32(RANDOM.uniform(0, 2**bits, (rows, blocks)))
        zero, inputs, weights = z[..., None], [*inputs, "z"], [*weights, *held(z=z)]
    else:
        bias = np.float32(RANDOM.normal(size=rows))
        inputs, weights = [*inputs, "", "", "bias"], [*weights, *held(bias=bias)]
    step = node("MatMulNBits", inputs, domain=MICROSOFT, N=rows, K=columns, bits=bits, block_size=block)
    proto = model([step], inputs=[value("x", (2, 5, columns))], initializers=weights, opset=21, ir=10,
                  imports=[onnx.helper.make_opsetid(MICROSOFT, 1)])
    x = np.float32(RANDOM.normal(size=(2, 5, columns)))
    numbers = ((unpack(w, bits) - zero) * s[..., None].astype(float)).reshape(rows, -1)[:, :columns]
    want = x @ numbers.T + bias
    if zeros == "float" and bits != 4:  # onnxruntime 1.27 has them for 4 bits alone
        onnx.save(proto, tmp_path / "model.onnx")
        np.save(tmp_path / "x.npy", x)
        run("run", "model.onnx", "--engine=interp", "--input", "x=x.npy", "--output-dir", "out")
        got = np.load(tmp_path / "out/y.npy")
    else:
        got, theirs = run_both(run, tmp_path, proto, {"x": x}, "interp")
        np.testing.assert_allclose(theirs, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("kind", [0, 1], ids=["fp4", "nf4"])
def test_matmul_bnb4(run, tmp_path, kind):
    rows, columns, block = 24, 80, 64
    weights = held(w=codes("u1", rows * columns // 2), largest=np.float32(RANDOM.uniform(0.5, 2, rows * columns // block)))
    step = node("MatMulBnb4", ["x", "w", "largest"], domain=MICROSOFT, N=rows, K=columns, block_size=block,
                quant_type=kind)
    proto = model([step], inputs=[value("x", (7, columns))], initializers=weights, opset=21, ir=10,
                  imports=[onnx.helper.make_opsetid(MICROSOFT, 1)])
    got, want = run_both(run, tmp_path, proto, {"x": np.float32(RANDOM.normal(size=(7, columns)))}, "interp")
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


def test_dynamic_quantization(run, tmp_path):
    """What onnxruntime's quantize_dynamic writes."""
    weights = held(w=weight_codes("i1", 12, 20), wz=np.array(0, "i1"), ws=np.float32(0.03))
    nodes = [node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], name="q"),
             node("MatMulInteger", ["q", "w", "z", "wz"], ["i"], name="i"),
             node("Cast", ["i"], ["f"], name="f", to=onnx.TensorProto.FLOAT),
             node("Mul", ["s", "ws"], ["both"], name="both"), node("Mul", ["f", "both"])]
    proto = model(nodes, inputs=[value("x", (6, 12))], initializers=weights, opset=17)
    got, want = run_both(run, tmp_path, proto, {"x": np.float32(RANDOM.normal(size=(6, 12)))}, "interp")
    np.testing.assert_allclose(got, want, rtol=1e-6)


# ---- gradients: the rounding counts as the identity
def fake(x, scale, zero, low, high):
    """(what is left of x, which elements are inside the range)"""
    at = np.round(x / scale) + zero
    return (np.clip(at, low, high) - zero) * scale, (at >= low) & (at <= high)


def gradient(run, folder, proto, x, *options):
    onnx.save(proto, folder / "model.onnx")
    np.save(folder / "x.npy", np.float32(x))
    run("grad", "model.onnx", "--loss=output:total", "--input", "x=x.npy", "--wrt", "x", "--precision=f64",
        *options, "--output-dir", "out")
    names = json.loads((folder / "out/names.json").read_text())
    return {name: np.load(folder / "out" / entry["file"]) for name, entry in names.items()}


def total(nodes, weights, shape, opset=21):
    """The model, with the sum of y's products with fixed numbers as its loss."""
    nodes = [*nodes, node("Mul", ["y", "by"], ["m"], name="m"), node("ReduceSum", ["m"], ["total"], name="t", keepdims=0)]
    return model(nodes, inputs=[value("x", shape)], outputs=[value("total", ())], initializers=weights, opset=opset, ir=10)


def quantize_pair(name, source, into, **attributes):
    names = [f"{name}s", f"{name}z"]
    return [node("QuantizeLinear", [source, *names], [f"{name}q"], name=f"{name}q", **attributes),
            node("DequantizeLinear", [f"{name}q", *names], [into], name=into, **attributes)]


def test_gradient_of_pairs(run, tmp_path):
    """An activation in u8 and a weight in s4 with blocks, the last one shorter."""
    x = np.linspace(-1.4, 3.1, 4 * 10).reshape(4, 10).astype(np.float32).astype(np.float64)
    w = np.float32(RANDOM.normal(size=(10, 3))).astype(np.float64)
    scales = np.float32(RANDOM.uniform(0.05, 0.3, (3, 3)))
    by = np.float32(RANDOM.normal(size=(4, 3)))
    weights = [*held(xs=np.float32(0.0131), xz=np.uint8(40), w=np.float32(w), by=by, ws=scales),
               onnx.helper.make_tensor("wz", onnx.TensorProto.INT4, (3, 3), np.zeros(9, int))]
    nodes = [*quantize_pair("x", "x", "a"), *quantize_pair("w", "w", "b", axis=0, block_size=4),
             node("MatMul", ["a", "b"], name="y")]
    got = gradient(run, tmp_path, total(nodes, weights, (4, 10)), x)
    each = np.repeat(scales.astype(np.float64), 4, axis=0)[:10]
    a, a_inside = fake(x, np.float64(np.float32(0.0131)), 40, 0, 255)
    b, b_inside = fake(w, each, 0, -8, 7)
    assert 0 < a_inside.sum() < a_inside.size and 0 < b_inside.sum() < b_inside.size
    np.testing.assert_allclose(got["x"], by.astype(np.float64) @ b.T * a_inside, rtol=1e-9)
    np.testing.assert_allclose(got["w"], a.T @ by.astype(np.float64) * b_inside, rtol=1e-9)


@pytest.mark.parametrize("mode", ["lsq", "torch"])
@pytest.mark.parametrize("rule", ["lsq", "inv_n", "none"])
def test_gradient_of_learned_scales(run, tmp_path, mode, rule):
    """One scale of an activation with a zero point, and one for each column of a weight."""
    x = np.float32(RANDOM.normal(size=(4, 10)) * 1.5).astype(np.float64)
    w = np.float32(RANDOM.normal(size=(10, 3))).astype(np.float64)
    ws = np.float32(RANDOM.uniform(0.15, 0.3, 3))
    by = np.float32(RANDOM.normal(size=(4, 3)))
    weights = [*held(xs=np.float32(0.013), xz=np.uint8(100), w=np.float32(w), by=by, ws=ws),
               onnx.helper.make_tensor("wz", onnx.TensorProto.INT4, (3,), np.zeros(3, int))]
    nodes = [*quantize_pair("x", "x", "a"), *quantize_pair("w", "w", "b", axis=1), node("MatMul", ["a", "b"], name="y")]
    got = gradient(run, tmp_path, total(nodes, weights, (4, 10)), x, f"--scale-learning={mode},scale-grad={rule}")

    def slopes(v, scale, zero, low, high):
        """(y, which elements are inside, dy/dscale of each element)"""
        y, inside = fake(v, scale, zero, low, high)
        if mode == "lsq":
            inside = (v / scale + zero >= low) & (v / scale + zero <= high)
        return y, inside, np.where(inside, (y - v) / scale, y / scale)

    def factor(n, largest):
        return {"lsq": (n * largest) ** -0.5, "inv_n": 1 / n, "none": 1}[rule]

    a, a_inside, da = slopes(x, np.float64(np.float32(0.013)), 100, 0, 255)
    b, b_inside, db = slopes(w, ws.astype(np.float64), 0, -8, 7)
    dy = by.astype(np.float64)
    np.testing.assert_allclose(got["x"], dy @ b.T * a_inside, rtol=1e-9)
    np.testing.assert_allclose(got["w"], a.T @ dy * b_inside, rtol=1e-9)
    np.testing.assert_allclose(got["xs"], (dy @ b.T * da).sum() * factor(10, 255), rtol=1e-9)
    np.testing.assert_allclose(got["ws"], (a.T @ dy * db).sum(0) * factor(10, 7), rtol=1e-9)


def test_gradient_through_codes(run, tmp_path):
    """A maximum of windows and a product between the codes and the floats."""
    random = np.random.default_rng(3)
    x = np.float32(random.normal(size=(2, 3, 4, 4)) * 2).astype(np.float64)
    w = random.integers(-128, 128, (3 * 4, 5)).astype("i1")
    by = np.float32(random.normal(size=(2, 5)))
    weights = held(xs=np.float32(0.02), xz=np.uint8(128), w=w, ws=np.float32(0.01), wz=np.int8(0), ys=np.float32(0.03),
                   yz=np.uint8(100), flat=np.array([2, -1]), by=by)
    nodes = [node("QuantizeLinear", ["x", "xs", "xz"], ["q"], name="q"),
             node("MaxPool", ["q"], ["p"], name="p", kernel_shape=[2, 2], strides=[2, 2]),
             node("Reshape", ["p", "flat"], ["f"], name="f"),
             node("QLinearMatMul", ["f", "xs", "xz", "w", "ws", "wz", "ys", "yz"], ["c"], name="c"),
             node("DequantizeLinear", ["c", "ys", "yz"], name="d")]
    got = gradient(run, tmp_path, total(nodes, weights, x.shape), x)
    s, t, u = (np.float64(np.float32(v)) for v in (0.02, 0.01, 0.03))
    a, inside = fake(x, s, 128, 0, 255)
    windows = a.reshape(2, 3, 2, 2, 2, 2).transpose(0, 1, 2, 4, 3, 5).reshape(2, 12, 4)
    first = windows.argmax(2)
    f = windows.max(2)
    y, y_inside = fake(f @ (w * t), u, 100, 0, 255)
    assert 0 < inside.sum() < inside.size and 0 < y_inside.sum() < y_inside.size
    df = (by.astype(np.float64) * y_inside) @ (w * t).T
    dwindows = np.zeros_like(windows)
    np.put_along_axis(dwindows, first[..., None], df[..., None], 2)
    dx = dwindows.reshape(2, 3, 2, 2, 2, 2).transpose(0, 1, 2, 4, 3, 5).reshape(x.shape) * inside
    np.testing.assert_allclose(got["x"], dx, rtol=1e-9, atol=1e-12)


# ---- files that are wrong
def nbits(**change):
    attributes = {"N": 4, "K": 32, "bits": 4, "block_size": 16, **change}
    weights = held(w=np.zeros((4, 2, 8), np.uint8), s=np.ones((4, 2), np.float32))
    return model([node("MatMulNBits", ["x", "w", "s"], domain=MICROSOFT, **attributes)], inputs=[value("x", (2, 32))],
                 initializers=weights, opset=21, ir=10, imports=[onnx.helper.make_opsetid(MICROSOFT, 1)])


def linear(op="QuantizeLinear", x=(4, 6), kind=onnx.TensorProto.FLOAT, scale=np.float32(1), zero=np.uint8(0), opset=21,
           **attributes):
    return model([node(op, ["x", "s", "z"], **attributes)], inputs=[value("x", x, kind)],
                 outputs=[onnx.helper.make_empty_tensor_value_info("y")], initializers=held(s=scale, z=zero), opset=opset, ir=10)


@pytest.mark.parametrize("engine", ["interp", "compiled"])
@pytest.mark.parametrize("kind", [np.float32, np.int32])
def test_scales_that_are_integers(run, tmp_path, kind, engine):
    """Allowed by opset 23 for floats too; onnxruntime 1.27 has no kernel."""
    x = RANDOM.integers(-900, 900, (4, 6)).astype(kind)
    onnx.save(linear(x=x.shape, kind=kind_of(kind), scale=np.int32(3), zero=np.uint8(100), opset=23), tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", x)
    run("run", "model.onnx", f"--engine={engine}", "--input", "x=x.npy", "--output-dir=out")
    np.testing.assert_array_equal(np.load(tmp_path / "out/y.npy"), np.clip(np.rint(x / 3) + 100, 0, 255).astype(np.uint8))


@pytest.mark.parametrize("engine", ["interp", "compiled"])
@pytest.mark.parametrize("x", [np.zeros(5, np.float32), np.float32([-2, 0, 1])], ids=["zeros", "numbers"])
def test_dynamic_quantization(run, tmp_path, x, engine):
    """The scale of zeros is 1, as onnxruntime's: the standard's own formula divides by 0."""
    outputs = {"y": kind_of("u1"), "s": onnx.TensorProto.FLOAT, "z": kind_of("u1")}
    onnx.save(model([node("DynamicQuantizeLinear", ["x"], list(outputs))], inputs=[value("x", x.shape)],
                    outputs=[value(n, x.shape if n == "y" else (), kind) for n, kind in outputs.items()], opset=13), tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", x)
    run("run", "model.onnx", f"--engine={engine}", "--input", "x=x.npy", "--output-dir=out")
    wanted = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"]).run(list(outputs), {"x": x})
    for name, want in zip(outputs, wanted):
        np.testing.assert_array_equal(np.load(tmp_path / f"out/{name}.npy"), want)


WRONG = {
    "zero of another type": (linear("DequantizeLinear", kind=onnx.TensorProto.INT8), 3, "codes are s8, but their zero point is u8"),
    "codes of s64": (linear(zero=np.int64(0)), 3, "s64 cannot be the type of codes"),
    "scales of another axis": (linear(scale=np.ones(5, np.float32), zero=np.zeros(5, np.uint8)), 3,
                               "a value per channel has 5 elements and rank 1, needs 6 elements and rank 1"),
    "axis out of range": (linear(scale=np.ones(6, np.float32), zero=np.zeros(6, np.uint8), axis=2), 3, "axis 2"),
    "blocks of another count": (linear(scale=np.ones((4, 2), np.float32), zero=np.zeros((4, 2), np.uint8), block_size=2), 3,
                                "blocks of 2 along axis 1"),
    "negative blocks": (linear(block_size=-1), 3, "block_size is -1"),
    "scales of 64 bits": (linear(scale=np.int64(1)), 4, "a scale of s64"),
    "too few bytes": (nbits(bits=8), 3, "input 1: 64 elements of u8, need 128 bytes for 128 codes of 8 bits"),
    "no sizes": (nbits(N=0), 3, "N = 0, K = 32"),
    "too large": (nbits(N=1 << 40, K=1 << 40), 3, "N = 1099511627776"),
    "blocks of 24": (nbits(block_size=24), 3, "block_size = 24, need a power of two of 16 or more"),
    "three bits": (nbits(bits=3), 4, "bits = 3"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong(run, tmp_path, name):
    proto, code, message = WRONG[name]
    onnx.save(proto, tmp_path / "model.onnx")
    assert message in run("check", "model.onnx", exit=code).stderr
