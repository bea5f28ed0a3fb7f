"""gradc quantize beside onnxruntime's quantizer: the same settings give the same codes and scales. What comes out is run in both."""
import contextlib
import io
import json
import os
import re
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_static

sys.path[:0] = [os.path.join(os.path.dirname(__file__), "..", folder) for folder in ("import", "")]
import browser  # noqa: E402
from make_malformed import model, node, tensor, value  # noqa: E402

PRODUCTS = ["Conv", "ConvTranspose", "Gemm", "MatMul"]
# The sums in an activation are rounded in another order: its largest value differs by a few units in the last place, and a zero point
# of 127.5, the middle of a range of equal ends, is rounded to either side.
ULPS_OF_ACTIVATIONS, ZERO_OF_ACTIVATIONS = 16, 1


class Batches(CalibrationDataReader):
    def __init__(self, feeds, rows):
        count = len(next(iter(feeds.values()))) // rows * rows
        self.left = iter([{name: x[i:i + rows] for name, x in feeds.items()} for i in range(0, count, rows)])

    def get_next(self):
        return next(self.left, None)


def tensors(path):
    return {t.name: t for t in onnx.load(path).graph.initializer}


def ulps(a, b):
    a, b = (numpy_helper.to_array(t).ravel().view(np.int32).astype(np.int64) for t in (a, b))
    return np.abs(a - b).max()


def quantize(run, path, feeds, *options):
    """The report of gradc quantize, by tensor."""
    data = [a for name, file in feeds.items() for a in ("--data", f"{name}={file}")]
    done = run("quantize", path, *data, "-o", "q.onnx", "--json", *options)
    return {t["name"]: t for t in json.loads(done.stdout)["tensors"]}


def inference_form(path, to):
    """A copy whose batch norms read their running statistics and whose Dropout is gone, as `gradc quantize` takes it; the path."""
    m = onnx.load(path)
    for n in m.graph.node:
        if n.op_type == "BatchNormalization":
            del n.output[1:]
            kept = [a for a in n.attribute if a.name != "training_mode"]
            del n.attribute[:]
            n.attribute.extend(kept)
        elif n.op_type == "Dropout":
            n.op_type = "Identity"
            del n.input[1:], n.output[1:], n.attribute[:]
    onnx.save(m, to)
    return to


SETTINGS = {
    "minmax": ([], {}),
    "per channel, s8": (["--per-channel", "--activation-type=s8"], {"per_channel": True, "activation_type": QuantType.QInt8}),
    "percentile": (["--calibrate=percentile:99.9"], {"calibrate_method": CalibrationMethod.Percentile,
                                                     "extra_options": {"CalibPercentile": 99.9}}),
    "entropy": (["--calibrate=entropy"], {"calibrate_method": CalibrationMethod.Entropy}),
    "moving average": (["--calibrate=moving-average"], {"extra_options": {"CalibMovingAverage": True}}),
    "weights of u8": (["--weight-type=u8"], {"weight_type": QuantType.QUInt8}),
    "weights of 4 bits": (["--weight-type=s4", "--activation-type=u16", "--opset=21"],
                          {"weight_type": QuantType.QInt4, "activation_type": QuantType.QUInt16}),
}
CASES = [("cnn_mnist", ["image"], 32, name) for name in SETTINGS] + [
    ("resnet_mini", ["image"], 16, "per channel, s8"), ("vit_mini", ["pixel_values"], 16, "percentile"),
    ("bert_mini", ["input_ids", "attention_mask"], 8, "minmax"), ("gpt2_mini", ["input_ids"], 8, "per channel, s8")]


@pytest.mark.parametrize("name, inputs, rows, setting", CASES)
def test_same_settings_same_numbers(run, models, tmp_path, name, inputs, rows, setting):
    options, theirs = SETTINGS[setting]
    path = models / name / "model.onnx"
    files = {}
    for x in inputs:
        files[x] = tmp_path / f"{x}.npy"
        np.save(files[x], np.load(models / name / f"{x}.npy")[:4 * rows])
    path = inference_form(path, tmp_path / "inference.onnx")
    report = quantize(run, models / name / "model.onnx", files, f"--batch={rows}", "--no-fold-batch-norms", *options)
    arguments = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8, **theirs}
    source = path
    if "--opset=21" in options:  # onnxruntime raises the opset of the quantizing nodes alone
        raised = onnx.load(path)
        next(o for o in raised.opset_import if not o.domain).version = 21
        raised.ir_version = 10
        source = tmp_path / "raised.onnx"
        onnx.save(raised, source)
    with contextlib.redirect_stdout(io.StringIO()):
        quantize_static(source, tmp_path / "theirs.onnx", Batches({x: np.load(f) for x, f in files.items()}, rows),
                        quant_format=QuantFormat.QDQ, op_types_to_quantize=PRODUCTS, **arguments)
    onnx.checker.check_model(str(tmp_path / "q.onnx"))
    floats, got, want = tensors(path), tensors(tmp_path / "q.onnx"), tensors(tmp_path / "theirs.onnx")
    compared = dict.fromkeys(("weight", "activation"), 0)
    for tensor_name, entry in report.items():
        if entry["kind"] == "bias":
            step = numpy_helper.to_array(got[f"{tensor_name}_quantized_scale"]).astype(float)
            numbers = numpy_helper.to_array(got[f"{tensor_name}_quantized"]) * step
            assert (np.abs(numbers - numpy_helper.to_array(floats[tensor_name])) <= 0.501 * step).all(), tensor_name
        if entry["kind"] == "bias" or f"{tensor_name}_scale" not in want:
            continue
        scale, zero = f"{tensor_name}_scale", f"{tensor_name}_zero_point"
        compared[entry["kind"]] += 1
        equal = entry["kind"] == "weight" or tensor_name in inputs  # the numbers, in both
        assert ulps(got[scale], want[scale]) <= (0 if equal else ULPS_OF_ACTIVATIONS), tensor_name
        assert got[zero].data_type == want[zero].data_type
        apart = numpy_helper.to_array(got[zero]).astype(int) - numpy_helper.to_array(want[zero])
        assert np.abs(apart).max() <= (0 if entry["kind"] == "weight" else ZERO_OF_ACTIVATIONS), tensor_name
        if entry["kind"] == "weight":
            codes = f"{tensor_name}_quantized"
            assert numpy_helper.to_array(got[codes]).tobytes() == numpy_helper.to_array(want[codes]).tobytes(), tensor_name
    # theirs takes what is behind a Transpose for an activation
    turned = {n.input[0] for n in onnx.load(path).graph.node if n.op_type in ("Transpose", "Gather")}
    assert compared["weight"] == sum(t["kind"] == "weight" and name not in turned for name, t in report.items())
    assert compared["activation"] == sum(t["kind"] == "activation" for t in report.values())


# ---- one layer
RANDOM = np.random.default_rng(5)
W = np.float32(RANDOM.normal(size=(40, 12)))
X = np.float32(RANDOM.normal(size=(64, 40)))


@pytest.fixture
def layer(tmp_path):
    """A product with a bias, in the test's folder, with its data."""
    nodes = [node("MatMul", ["x", "w"], ["m"], name="product"), node("Add", ["m", "b"], name="sum")]
    onnx.save(model(nodes, inputs=[value("x", ("batch", 40))], initializers=[tensor("w", W), tensor("b", W[0])]),
              tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", X)
    return tmp_path


def run_both(run, folder):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(folder / "q.onnx", options, providers=["CPUExecutionProvider"])
    run("run", "q.onnx", "--input", "x=x.npy", "--output-dir", "out")
    return np.load(folder / "out/y.npy"), session.run(["y"], {"x": X})[0]


@pytest.mark.parametrize("options, error", [
    ((), 0.06), (("--per-channel", "--calibrate=mse"), 0.06), (("--activation-type=dynamic",), 0.06),
    (("--weight-type=s4", "--block-size=16", "--activation-type=none", "--opset=21"), 0.5),
    (("--weight-type=u4", "--block-size=7", "--activation-type=none", "--opset=21"), 0.5),
    (("--weight-type=s2", "--block-size=4", "--activation-type=none", "--opset=25"), 2.5),
    (("--weight-type=u2", "--per-channel", "--opset=25"), 5),
])
def test_quantized_layer_in_both(run, layer, options, error):
    data = [] if "--activation-type=dynamic" in options or "--activation-type=none" in options else ["--data=x=x.npy"]
    table = run("quantize", "model.onnx", *data, "-o", "q.onnx", *options).stdout
    assert "weights and biases: 1920 bytes became" in table
    got, want = run_both(run, layer)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert 1e-4 < np.abs(want - (X @ W + W[0])).mean() < error


def test_blocks_hold_their_largest(run, layer):
    """Codes of a block are by its own scale, the last block shorter."""
    run("quantize", "model.onnx", "--weight-type=s4", "--block-size=16", "--activation-type=none", "--opset=21", "-o", "q.onnx")
    t = tensors(layer / "q.onnx")
    scale, codes = (numpy_helper.to_array(t[f"w_{n}"]).astype(np.float64) for n in ("scale", "quantized"))
    assert scale.shape == (3, 12)
    for block in range(3):
        rows = W[16 * block:16 * block + 16].astype(np.float64)
        np.testing.assert_allclose(scale[block], np.abs(rows).max(0) * 2 / 15, rtol=1e-6)
        assert np.abs(rows - (scale[block] * codes[16 * block:16 * block + 16])).max() <= scale[block].max() * 0.51


def gptq(w, x, group):
    """Algorithm 1 of arXiv:2210.17323 in NumPy: the numbers of symmetric codes of 4 bits."""
    w, h = w.astype(np.float64), x.T.astype(np.float64) @ x
    h += np.eye(len(h)) * 0.01 * np.trace(h) / len(h)
    u = np.linalg.cholesky(np.linalg.inv(h)).T
    for i in range(len(w)):
        if i % group == 0:
            scale = np.float32(np.abs(np.float32(w[i:i + group])).max(0) * 2 / 15)
        rounded = np.clip(np.round(np.float32(w[i]) / scale), -8, 7) * scale.astype(np.float64)
        w[i + 1:] -= np.outer(u[i, i + 1:], (w[i] - rounded) / u[i, i])
        w[i] = rounded
    return w


@pytest.mark.parametrize("transposed", [False, True])
def test_gptq_keeps_products(run, tmp_path, transposed):
    """Inputs that depend on each other: what one weight loses the others make up for."""
    x = np.float32(RANDOM.normal(size=(192, 12)) @ RANDOM.normal(size=(12, 40)) + 0.1 * RANDOM.normal(size=(192, 40)))
    held = tensor("w", np.ascontiguousarray(W.T) if transposed else W)
    step = node("Gemm", ["x", "w"], name="product", transB=1) if transposed else node("MatMul", ["x", "w"], name="product")
    onnx.save(model([step], inputs=[value("x", ("batch", 40))], initializers=[held], opset=21, ir=10), tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", x)
    errors = {}
    for algorithm in ("rtn", "gptq"):
        run("quantize", "model.onnx", "--data=x=x.npy", "--weight-type=s4", "--block-size=16", "--activation-type=none",
            f"--algorithm={algorithm}", "-o", "q.onnx")
        t = tensors(tmp_path / "q.onnx")
        scale, codes = (numpy_helper.to_array(t[f"w_{n}"]).astype(np.float64) for n in ("scale", "quantized"))
        if transposed:
            scale, codes = scale.T, codes.T
        numbers = np.repeat(scale, 16, axis=0)[:40] * codes
        errors[algorithm] = np.square(x @ (numbers - W)).mean()
    want = gptq(W, x, 16)
    assert np.mean(np.abs(numbers - want) > 1e-5) < 0.01
    np.testing.assert_allclose(errors["gptq"], np.square(x @ (want - W)).mean(), rtol=0.02)
    assert errors["gptq"] < 0.6 * errors["rtn"]


def test_chosen_nodes(run, layer):
    run("quantize", "model.onnx", "--data=x=x.npy", "--skip=prod*", "-o", "q.onnx", exit=4)
    run("quantize", "model.onnx", "--data=x=x.npy", "--only=prod*", "-o", "q.onnx")


def broken(x):
    x = X.copy()
    x[40, 3] = np.nan
    return x


BAD = {
    "no data": ([], None, 2, "no --data: the ranges of activations come from real data"),
    "NaN": (["--data=x=bad.npy", "--batch=16"], broken, 6, "value x of node product is not finite in batch 3"),
    "too little": (["--data=x=x.npy", "--batch=100"], None, 6, "64 rows are less than the 100 that the model takes at once"),
    "another shape": (["--data=x=bad.npy"], lambda x: x[:, :7], 6, "bad.npy: shape [64,7], \"x\" takes rows of [40]"),
    "no rows": (["--data=x=bad.npy"], lambda x: x[:0], 6, "bad.npy holds no rows"),
    "a number": (["--data=x=bad.npy"], lambda x: x[0, 0], 6, "bad.npy holds no rows"),
    "another type": (["--data=x=bad.npy"], lambda x: x.astype(np.float16), 6, '"x" takes f32'),
    "another input": (["--data=z=x.npy"], None, 2, "--data z=x.npy: the model has no input of this name"),
    "no such file": (["--data=x=none.npy"], None, 6, "none.npy"),
    "a glob that fits nothing": (["--data=x=x.npy", "--only=prduct"], None, 2, '--only=prduct matches none of the 1 products'),
    "another glob": (["--data=x=x.npy", "--skip=zz*"], None, 2, 'the nearest names are "product"'),
    "an old opset": (["--activation-type=none", "--block-size=16"], None, 4,
                     "opset 17 has no DequantizeLinear with blocks, a scale for each row, or codes of 4 or 16 bits: it needs opset 21 or later"),
    "an older opset": (["--data=x=x.npy", "--opset=11"], None, 2, "--opset=11: must be between the model's opset 17 and 27"),
    "a method": (["--data=x=x.npy", "--calibrate=best"], None, 2, "--calibrate=best: need one of minmax, percentile"),
    "a percentile": (["--data=x=x.npy", "--calibrate=percentile:20"], None, 2, "percentile:20"),
    "both groupings": (["--data=x=x.npy", "--per-channel", "--block-size=8"], None, 2, "one of them"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(run, layer, name):
    options, change, code, message = BAD[name]
    if change:
        np.save(layer / "bad.npy", change(X))
    done = run("quantize", "model.onnx", *options, "-o", "q.onnx", exit=code)
    assert message in done.stderr
    assert not (layer / "q.onnx").exists()


@pytest.mark.parametrize("options, message", [
    (["-o", "x.npy"], "-o x.npy is also --data x.npy: it would be written over"),
    (["-o", "soft.npy"], "-o soft.npy is also --data x.npy"), (["-o", "hard.npy"], "-o hard.npy is also --data x.npy"),
    (["-o", "q.onnx", "--report", "./x.npy"], "--report ./x.npy is also --data x.npy")], ids=lambda o: o[-1] if isinstance(o, list) else "")
def test_data_is_not_written_over(run, layer, options, message):
    before = (layer / "x.npy").read_bytes()
    (layer / "soft.npy").symlink_to("x.npy")
    (layer / "hard.npy").hardlink_to(layer / "x.npy")
    done = run("quantize", "model.onnx", "--data=x=x.npy", *options, exit=2)
    assert message in done.stderr and not (layer / "q.onnx").exists()
    assert (layer / "x.npy").read_bytes() == before and (layer / "soft.npy").is_symlink()


def test_rows_of_bytes_become_floats(run, layer):
    """As an executable's own --scale and --mean-std have them: the ranges are those of the floats."""
    bytes_ = np.random.default_rng(0).integers(0, 256, (64, 40), np.uint8)
    np.save(layer / "u8.npy", bytes_)
    np.save(layer / "by_scale.npy", np.float32(bytes_ * np.float64(0.25) - 3))
    np.save(layer / "mean_std.npy", np.float32([[100] * 40, [50] * 40]))
    np.save(layer / "by_mean.npy", (np.float32(bytes_) - np.float32(100)) / np.float32(50))
    for options, file in ((["--scale=x=0.25,-3"], "by_scale"), (["--mean-std=x=mean_std.npy"], "by_mean")):
        run("quantize", "model.onnx", "--data=x=u8.npy", *options, "-o", "bytes.onnx")
        run("quantize", "model.onnx", f"--data=x={file}.npy", "-o", "floats.onnx")
        assert (layer / "bytes.onnx").read_bytes() == (layer / "floats.onnx").read_bytes(), file
    assert '"x" takes f32 (--scale or --mean-std converts them)' in run("quantize", "model.onnx", "--data=x=u8.npy", "-o", "q.onnx", exit=6).stderr
    assert "--scale z=2: no --data of this name" in run("quantize", "model.onnx", "--data=x=u8.npy", "--scale=z=2", "-o", "q.onnx", exit=2).stderr
    assert "--scale x: no --data of this name" in run("quantize", "model.onnx", "--data=x=u8.npy", "--scale=x", "-o", "q.onnx", exit=2).stderr
    assert '"y" is not MUL or MUL,ADD' in run("quantize", "model.onnx", "--data=x=u8.npy", "--scale=x=y", "-o", "q.onnx", exit=2).stderr


def test_an_input_with_data_and_a_number_is_told(run, layer):
    said = run("quantize", "model.onnx", "--data=x=x.npy", "--fill=x=5.5", "-o", "q.onnx", exit=2).stderr
    assert "--fill x=5.5 and --data x: one of them" in said and "gradc-" not in said


@pytest.mark.parametrize("options", [[], ["--batch=4"]], ids=str)
@pytest.mark.parametrize("n", [2, "k"])
def test_other_numbers_of_rows_are_told(run, tmp_path, n, options):
    """A run takes as many rows of every input. One that is open has the others' number, unless --dim says another."""
    weights = [tensor("w", np.ones((3, 2), np.float32))]
    nodes = [node("MatMul", ["x", "w"], ["a"]), node("MatMul", ["z", "w"], ["b"]), node("Concat", ["a", "b"], ["y"], axis=0)]
    onnx.save(model(nodes, inputs=[value("x", (4, 3)), value("z", (n, 3))], initializers=weights), tmp_path / "model.onnx")
    np.save(tmp_path / "rows.npy", np.ones((12, 3), np.float32))
    bound = ["--dim=k=2"] if n == "k" and not options else []
    done = run("quantize", "model.onnx", "--data=x=rows.npy", "--data=z=rows.npy", "-o", "q.onnx", *bound, *options, exit=6 if bound or n == 2 else 0)
    if bound or n == 2:
        assert re.search(r'--data z=rows.npy: "z" takes 2 rows at once, but the model takes 4\n|--data x=rows.npy: "x" takes 4 rows at once, but the model takes 2\n', done.stderr), done.stderr
        assert "gradc-" not in done.stderr and done.stderr.count("error") == 1


def test_a_model_of_no_rows_is_told(run, tmp_path):
    one_product(tmp_path, node("MatMul", ["x", "w"]), [tensor("w", np.ones((3, 2), np.float32))], (0, 3), np.ones((4, 3)))
    done = run("quantize", "model.onnx", "--data=x=x.npy", "-o", "q.onnx", exit=6, timeout=60)
    assert '--data x=x.npy: "x" takes 0 rows at once, but the model takes 1\n' in done.stderr


@pytest.mark.parametrize("options", [f"--calibrate={m}" for m in ("minmax", "percentile", "entropy", "mse", "moving-average")]
                         + ["--algorithm=gptq", "--algorithm=awq", "--bias-correction", "--sensitivity"])
def test_empty_values_are_told(run, tmp_path, options):
    one_product(tmp_path, node("MatMul", ["x", "w"], name="product"), [tensor("w", np.ones((3, 2), np.float32))], ("n", 0, 3), np.ones((5, 0, 3)))
    done = run("quantize", "model.onnx", "--data=x=x.npy", "-o", "q.onnx", options)
    assert "value x of node product is empty in all calibration data" in done.stderr and "too large" not in done.stderr
    held = tensors(tmp_path / "q.onnx")
    assert numpy_helper.to_array(held["x_scale"]) == 1 and np.isfinite(numpy_helper.to_array(held["w_scale"])).all()


def test_entropy_over_long_tails(run, layer):
    """onnxruntime's default has as many bins as levels: its range is the whole one."""
    x = np.float32(RANDOM.standard_t(2, size=(512, 40)))
    np.save(layer / "x.npy", x)
    report = quantize(run, "model.onnx", {"x": "x.npy"}, "--batch=64", "--calibrate=entropy")["x"]
    with contextlib.redirect_stdout(io.StringIO()):
        quantize_static(layer / "model.onnx", layer / "theirs.onnx", Batches({"x": x}, 64), quant_format=QuantFormat.QDQ,
                        op_types_to_quantize=PRODUCTS, activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
                        calibrate_method=CalibrationMethod.Entropy)
    want = numpy_helper.to_array(tensors(layer / "theirs.onnx")["x_scale"])
    np.testing.assert_allclose(report["scale"], want, rtol=1e-6)


def test_constant_values_are_told(run, layer):
    np.save(layer / "zeros.npy", np.zeros_like(X))
    done = run("quantize", "model.onnx", "--data=x=zeros.npy", "-o", "q.onnx")
    assert "value x of node product is 0 in all calibration data" in done.stderr
    assert numpy_helper.to_array(tensors(layer / "q.onnx")["x_scale"]) == 1


@pytest.mark.parametrize("size", [1e8, 1e30, -3e38])
def test_constant_large_values(run, layer, size):
    """Which have no halves beside them."""
    np.save(layer / "large.npy", np.full_like(X, size))
    run("quantize", "model.onnx", "--data=x=large.npy", "--calibrate=percentile", "--only=product", "-o", "q.onnx")
    assert np.isfinite(numpy_helper.to_array(tensors(layer / "q.onnx")["x_scale"]))


def test_sums_that_overflow_are_told(run, layer):
    np.save(layer / "large.npy", np.full_like(X, 3e38))
    done = run("quantize", "model.onnx", "--data=x=large.npy", "--calibrate=moving-average", "--batch=16", "-o", "q.onnx", exit=6)
    assert "value x of node product is too large for --calibrate=moving-average" in done.stderr


def test_an_operator_that_changed_is_named(run, tmp_path):
    nodes = [node("Softmax", ["x"], ["r"], name="soft"), node("MatMul", ["r", "w"], name="product")]
    onnx.save(model(nodes, inputs=[value("x", (2, 3, 4))], initializers=[tensor("w", np.ones((4, 2), np.float32))], opset=11),
              tmp_path / "model.onnx")
    done = run("quantize", "model.onnx", "--activation-type=none", "--weight-type=s4", "--opset=21", "-o", "q.onnx", exit=4)
    assert 'node "soft" (Softmax, opset 11): opset 21 has another meaning of Softmax' in done.stderr


def test_resize_has_other_inputs(run, tmp_path):
    nodes = [node("Resize", ["x", "s"], ["r"], name="resize"), node("MatMul", ["r", "w"], name="product")]
    onnx.save(model(nodes, inputs=[value("x", (2, 4))], initializers=[tensor("s", np.float32([1, 2])), tensor("w", np.ones((8, 2), np.float32))], opset=10),
              tmp_path / "model.onnx")
    done = run("quantize", "model.onnx", "--activation-type=none", "--per-channel", "--opset=13", "-o", "q.onnx", exit=4)
    assert 'node "resize" (Resize, opset 10): opset 13 has another meaning of Resize' in done.stderr


def test_a_name_that_is_taken(run, tmp_path):
    nodes = [node("ReduceMean", ["x"], ["m"], name="mean", axes=[1]), node("Relu", ["m"], ["m_axes"], name="relu"), node("MatMul", ["m_axes", "w"], name="product")]
    onnx.save(model(nodes, inputs=[value("x", (2, 3, 4))], outputs=[value("y", (2, 1, 2))], initializers=[tensor("w", np.ones((4, 2), np.float32))],
                    opset=13), tmp_path / "model.onnx")
    run("quantize", "model.onnx", "--activation-type=none", "--opset=21", "-o", "q.onnx")
    onnx.checker.check_model(str(tmp_path / "q.onnx"), full_check=True)
    in_onnxruntime(tmp_path / "q.onnx", {"x": np.ones((2, 3, 4), np.float32)})


def test_what_only_moved_is_converted(run, tmp_path):
    """Axes became an input of reductions and of Unsqueeze, in a branch, too; Split wants the number of its parts."""
    branch = onnx.helper.make_graph([node("ReduceMean", ["u"], ["v"], name="inner", axes=[-1], keepdims=1)], "branch", [], [value("v", (1, 6, 1))])
    nodes = [node("Unsqueeze", ["x"], ["u"], name="up", axes=[0]), node("If", ["yes"], ["i"], name="if", then_branch=branch, else_branch=branch),
             node("Mul", ["u", "i"], ["p"], name="p"), node("ReduceSum", ["p"], ["s"], name="sum", axes=[0], keepdims=0),
             node("Split", ["s"], ["a", "b"], name="split", axis=1), node("Add", ["a", "b"], ["c"], name="add"),
             node("Cast", ["c"], ["d"], name="cast", to=1), node("MatMul", ["d", "w"], name="product")]
    onnx.save(model(nodes, inputs=[value("x", (6, 4))], outputs=[value("y", (6, 3))], opset=11,
                    initializers=[tensor("w", W[:2, :3].copy()), tensor("yes", np.array(True))]), tmp_path / "model.onnx")
    run("quantize", "model.onnx", "--activation-type=none", "--per-channel", "--opset=25", "-o", "q.onnx")
    onnx.checker.check_model(str(tmp_path / "q.onnx"), full_check=True)
    x = np.float32(RANDOM.normal(size=(6, 4)))
    np.save(tmp_path / "x.npy", x)
    run("run", "q.onnx", "--input=x=x.npy", "--output-dir=out")
    w = W[:2, :3]
    step = np.abs(w).max(0) / 127
    p = x * x.mean(-1, keepdims=True)
    np.testing.assert_allclose(np.load(tmp_path / "out/y.npy"), (p[:, :2] + p[:, 2:]) @ (np.rint(w / step) * step), rtol=1e-5, atol=1e-6)


def test_quantized_model_is_trained(run, layer):
    """What comes out is a model that holds codes."""
    run("quantize", "model.onnx", "--data=x=x.npy", "--per-channel", "-o", "q.onnx")
    np.save(layer / "labels.npy", X @ W * 0.5)
    run("compile", "q.onnx", "-o", "train", "--batch=32", "--loss=mse", "--optimizer=adam")
    log = layer / "log.jsonl"
    run(layer / "train", "--data=x=x.npy", "--data=labels=labels.npy", "--epochs=40", "--lr=0.02", f"--log={log}", "--progress=off",
        "--export=trained.onnx")
    losses = [json.loads(line)["loss"] for line in log.read_text().splitlines() if '"loss"' in line]
    assert losses[-1] < 0.3 * losses[0]
    assert tensors(layer / "trained.onnx")["w_quantized"].data_type == TensorProto.INT8


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_weights_elsewhere(run, tmp_path, left, turned):
    """Behind Identity and Transpose, and as the first operand: a scale for each row of the result's own axis."""
    w = W.T if left != turned else W  # of the file
    before = [node("Identity", ["w"], ["i"], name="i"), node("Transpose", ["i"], ["v"], name="t")] if turned else []
    name = "v" if turned else "w"
    step = node("MatMul", [name, "x"] if left else ["x", name], name="product")
    shape = (40, 6) if left else (6, 40)
    x = X[:6].T if left else X[:6]
    one_product(tmp_path, step, [tensor("w", np.ascontiguousarray(w))], shape, np.ascontiguousarray(x), before=before)
    run("quantize", "model.onnx", "--data=x=x.npy", "--per-channel", "-o", "q.onnx")
    t = tensors(tmp_path / "q.onnx")
    assert "w" not in t and t["w_scale"].dims == [12]
    np.testing.assert_allclose(numpy_helper.to_array(t["w_scale"]), np.abs(W).max(0) / 127, rtol=1e-6)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(tmp_path / "q.onnx", options, providers=["CPUExecutionProvider"])
    got = session.run(["y"], {"x": np.float32(x)})[0]
    np.testing.assert_allclose(got, W.T @ x if left else x @ W, atol=0.2)


def test_a_turned_weight_that_others_read_is_told(run, tmp_path):
    before = [node("Transpose", ["w"], ["v"], name="t"), node("MatMul", ["x", "v"], ["a"], name="first"), node("ReduceSum", ["v"], ["b"], name="s", keepdims=0)]
    one_product(tmp_path, node("Add", ["a", "b"], name="last"), [tensor("w", np.ascontiguousarray(W.T))], (4, 40), X[:4], before=before)
    done = run("quantize", "model.onnx", "--data=x=x.npy", "-o", "q.onnx", exit=4)
    assert "1 of 1 products are not quantized" in done.stderr


@pytest.mark.parametrize("how, told", [(["--per-channel"], True), (["--block-size=2"], True), ([], False)])
def test_a_weight_that_is_read_by_both_axes_is_told(run, tmp_path, how, told):
    w = np.float32(np.random.default_rng(0).normal(size=(4, 4)))
    onnx.save(model([node("MatMul", ["x", "w"], ["h"], name="first"), node("Gemm", ["h", "w"], name="second", transB=1)], inputs=[value("x", (8, 4))],
                    outputs=[value("y", (8, 4))], initializers=[tensor("w", w)], opset=21, ir=10), tmp_path / "model.onnx")
    done = run("quantize", "model.onnx", *how, "--activation-type=none", "-o", "q.onnx")
    assert ('weight "w": node "first" sums over its axis 0, node "second" over its axis 1' in done.stderr) == told
    x = np.float32(np.random.default_rng(1).normal(size=(8, 4)))
    held = {n: numpy_helper.to_array(t) for n, t in tensors(tmp_path / "q.onnx").items()}
    scale = held["w_scale"].reshape(held["w_scale"].shape or (1, 1))
    back = held["w_quantized"] * np.kron(scale, np.ones((4 // scale.shape[0] if scale.ndim == 2 else 4, 4 // scale.shape[-1])))
    np.testing.assert_allclose(in_onnxruntime(tmp_path / "q.onnx", {"x": x}), x @ back @ back.T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [["--per-channel"], ["--per-channel", "--activation-type=s8"], ["--per-channel", "--algorithm=gptq"],
                                     ["--per-channel", "--bias-correction"], ["--per-channel", "--activation-type=dynamic"]], ids=" ".join)
@pytest.mark.parametrize("op", ["MatMul", "Gemm"])
@pytest.mark.parametrize("first_is_turned", [False, True])
def test_a_weight_that_is_read_by_both_axes_runs_in_onnxruntime(run, tmp_path, first_is_turned, op, options):
    """Also when onnxruntime makes integer products of it, which take scales of output channels alone."""
    random = np.random.default_rng(0)
    w = (random.standard_normal((8, 5)) * np.geomspace(0.1, 1, 5)).astype(np.float32)
    weights = {"w": w} | ({"b": np.ones(8, np.float32), "c": np.ones(5, np.float32)} if op == "Gemm" else {})
    reads = {"t": ["t", "b"], "w": ["w", "c"]} if op == "Gemm" else {"t": ["t"], "w": ["w"]}
    first, second = ("t", "w") if first_is_turned else ("w", "t")
    nodes = [node("Transpose", ["w"], ["t"], name="turn", perm=[1, 0]), node(op, ["x", *reads[first]], ["h"], name="first"),
             node("Relu", ["h"], ["r"], name="between"), node(op, ["r", *reads[second]], ["y"], name="second")]
    n = 5 if first_is_turned else 8
    onnx.save(model(nodes, inputs=[value("x", ("batch", n))], outputs=[value("y", ("batch", n))],
                    initializers=[tensor(k, v) for k, v in weights.items()]), tmp_path / "m.onnx")
    x = random.standard_normal((64, n)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    run("quantize", "m.onnx", *([] if "--activation-type=dynamic" in options else ["--data=x=x.npy"]), "-o", "q.onnx", *options)
    want, got = (onnxruntime.InferenceSession(tmp_path / f, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0] for f in ("m.onnx", "q.onnx"))
    assert np.abs(got - want).max() < 0.05 * np.abs(want).max()


@pytest.mark.parametrize("kind", ["dynamic", "token", "u8"])
@pytest.mark.parametrize("to", [TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.INT32])
def test_products_of_other_types_stay(run, tmp_path, to, kind):
    """Behind a Cast, through operators that keep the type, whatever the file declares; a filled tensor is f32 though its shape is not."""
    w = np.float32(np.random.default_rng(0).normal(size=(4, 5)))
    nodes = [node("Cast", ["x"], ["a"], name="to", to=to), node("Transpose", ["a"], ["b"], name="turn"), node("MatMul", ["a", "b"], ["c"], name="inner"),
             node("Cast", ["c"], ["d"], name="back", to=1), node("MatMul", ["d", "w"], ["e"], name="outer"), node("ConstantOfShape", ["n"], ["o"], name="zeros"),
             node("Add", ["e", "o"], ["g"], name="add"), node("MatMul", ["g", "v"], ["y"], name="last")]
    onnx.save(model(nodes, inputs=[value("x", (4, 3))], outputs=[value("y", (4, 2))],
                    initializers=[tensor("w", w), tensor("n", np.int64([4, 5])), tensor("v", w.reshape(5, 4)[:, :2].copy())], opset=21, ir=10), tmp_path / "model.onnx")
    x = np.float32(np.random.default_rng(1).normal(size=(4, 3)))
    np.save(tmp_path / "x.npy", x)
    done = run("quantize", "model.onnx", "--data=x=x.npy", f"--activation-type={kind}", "-o", "q.onnx", "--json")
    assert "1 of 3 products are not quantized" in done.stderr
    assert {t["node"] for t in json.loads(done.stdout)["tensors"]} == {"outer", "last"}
    want = in_onnxruntime(tmp_path / "model.onnx", {"x": x})
    assert np.abs(in_onnxruntime(tmp_path / "q.onnx", {"x": x}) - want).max() < 0.05 * np.abs(want).max()


def test_what_is_missing_is_told(run, tmp_path):
    """Numbers of a weight that two products read; nothing that may be quantized."""
    w = np.float32(np.ones((4, 4)))
    proto = model([node("MatMul", ["x", "w"], ["h"], name="first"), node("MatMul", ["h", "w"], name="second")], inputs=[value("x", (8, 4))],
                  outputs=[value("y", (8, 4))], initializers=[tensor("w", w)], opset=21, ir=10)
    onnx.save(proto, tmp_path / "model.onnx")
    done = run("quantize", "model.onnx", "--activation-type=none", "--skip=*", "-o", "q.onnx", exit=4)
    assert "nothing to quantize: none of the 2 products is chosen" in done.stderr
    proto.graph.initializer[0].ClearField("raw_data")
    onnx.save(proto, tmp_path / "model.onnx")
    for kind in ("none", "dynamic", "token"):
        done = run("quantize", "model.onnx", f"--activation-type={kind}", "-o", "q.onnx", exit=3)
        assert 'tensor "w" has no data' in done.stderr
    half = model([node("MatMul", ["x", "w"], name="first")], inputs=[value("x", (8, 4), TensorProto.FLOAT16)], outputs=[value("y", (8, 4), TensorProto.FLOAT16)],
                 initializers=[tensor("w", np.float16(w))], opset=21, ir=10)
    onnx.save(half, tmp_path / "model.onnx")
    done = run("quantize", "model.onnx", "--activation-type=dynamic", "-o", "q.onnx", exit=4)
    assert "1 of 1 products are not quantized" in done.stderr and "nothing to quantize: 1 of 1 products cannot be quantized, see above" in done.stderr
    assert not (tmp_path / "q.onnx").exists()


def test_codes_are_not_quantized_again(run, layer):
    run("quantize", "model.onnx", "--data=x=x.npy", "-o", "q.onnx")
    done = run("quantize", "q.onnx", "--data=x=x.npy", "-o", "r.onnx", exit=4)
    assert "made of codes already" in done.stderr


def test_blocks_are_no_larger_than_their_axis(run, layer):
    done = run("quantize", "model.onnx", "--data=x=x.npy", f"--block-size={2**63 - 1}", "--opset=21", "-o", "q.onnx")
    assert "onnxruntime's CPU has no product of 8-bit codes with weights in blocks" in done.stderr
    dequantize = next(n for n in onnx.load(layer / "q.onnx").graph.node if n.input[0] == "w_quantized")
    assert {a.name: a.i for a in dequantize.attribute} == {"axis": 0, "block_size": 40}


def one_product(folder, step, weights, shape, data, opset=17, ir=8, **more):
    onnx.save(model([*more.pop("before", []), step], inputs=[value("x", shape)], initializers=weights, opset=opset, ir=ir, **more),
              folder / "model.onnx")
    np.save(folder / "x.npy", np.float32(data))


def test_an_operator_that_kept_its_attributes_is_named(run, tmp_path):
    """Softmax flattened until opset 12."""
    one_product(tmp_path, node("MatMul", ["s", "w"], name="product"), [tensor("w", W[:4])], (2, 3, 4), np.ones((2, 3, 4)), opset=11,
                before=[node("Softmax", ["x"], ["s"], name="softmax")])
    done = run("quantize", "model.onnx", "--data=x=x.npy", "--per-channel", "--opset=13", "-o", "q.onnx", exit=4)
    assert 'node "softmax" (Softmax, opset 11): opset 13 has another meaning of Softmax' in done.stderr


def test_a_bias_that_does_not_fit_stays(run, tmp_path):
    w = np.float32(RANDOM.normal(size=(3, 8)))
    w[1] *= 1e-9
    one_product(tmp_path, node("Gemm", ["x", "w", "b"], name="product", transB=1), [tensor("w", w), tensor("b", np.ones(3, np.float32))],
                (4, 8), RANDOM.normal(size=(4, 8)))
    done = run("quantize", "model.onnx", "--data=x=x.npy", "--per-channel", "-o", "q.onnx")
    assert "bias b of node product stays f32" in done.stderr
    assert "b" in tensors(tmp_path / "q.onnx") and "b_quantized" not in tensors(tmp_path / "q.onnx")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bias_is_finite(run, tmp_path, bad):
    one_product(tmp_path, node("Gemm", ["x", "w", "b"], name="product"), [tensor("w", W[:8, :2]), tensor("b", np.float32([1, bad]))],
                (4, 8), RANDOM.normal(size=(4, 8)))
    done = run("quantize", "model.onnx", "--data=x=x.npy", "-o", "q.onnx", exit=3)
    assert "b of node product has numbers that are not finite" in done.stderr


@pytest.mark.parametrize("options", [["--weight-type=u8"], ["--weight-type=s4", "--per-channel"]], ids=" ".join)
def test_weights_whose_codes_overflow_are_told(run, tmp_path, options):
    """The largest code times the scale is beyond f32, where the largest number is not."""
    one_product(tmp_path, node("MatMul", ["x", "w"], name="product"), [tensor("w", np.float32(3.4e38 * np.sign(W[:6, :5])))],
                (4, 6), RANDOM.normal(size=(4, 6)), opset=21, ir=10)
    done = run("quantize", "model.onnx", "--activation-type=none", *options, "-o", "q.onnx", exit=3)
    assert "w of node product has numbers too large for codes of " in done.stderr
    assert not (tmp_path / "q.onnx").exists()


def test_weights_whose_codes_fit_barely(run, tmp_path):
    one_product(tmp_path, node("MatMul", ["x", "w"], name="product"), [tensor("w", np.float32(3.3e38 * np.sign(W[:6, :5])))],
                (4, 6), RANDOM.normal(size=(4, 6)), opset=21, ir=10)
    run("quantize", "model.onnx", "--activation-type=none", "--weight-type=s8", "-o", "q.onnx")
    held = {n: numpy_helper.to_array(t) for n, t in tensors(tmp_path / "q.onnx").items()}
    assert np.isfinite(held["w_quantized"] * held["w_scale"]).all()


def test_blocks_of_a_convolution_are_of_channels(run, tmp_path):
    one_product(tmp_path, node("Conv", ["x", "w"], name="product"), [tensor("w", np.float32(RANDOM.normal(size=(8, 32, 3, 3))))],
                (1, 32, 5, 5), np.ones((1, 32, 5, 5)), opset=21, ir=10)
    run("quantize", "model.onnx", "--activation-type=none", "--weight-type=s4", "--block-size=16", "-o", "q.onnx")
    assert list(tensors(tmp_path / "q.onnx")["w_scale"].dims) == [8, 2, 3, 3]


def test_rows_that_are_left_out_are_told(run, layer):
    np.save(layer / "x.npy", np.concatenate([X[:32], X[:1] * 100]))
    done = run("quantize", "model.onnx", "--data=x=x.npy", "-o", "q.onnx")
    assert "the last 1 of 33 rows are left out: the model runs on 32 at once" in done.stderr


def test_what_older_files_have(run, tmp_path):
    """Initializers that are inputs, too, and an opset before DynamicQuantizeLinear."""
    one_product(tmp_path, node("MatMul", ["x", "w"], name="product"), [tensor("w", W)], (4, 40), X[:4], opset=10, ir=3)
    proto = onnx.load(tmp_path / "model.onnx")
    proto.graph.input.append(value("w", W.shape))
    onnx.save(proto, tmp_path / "model.onnx")
    run("quantize", "model.onnx", "--data=x=x.npy", "-o", "q.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "q.onnx", providers=["CPUExecutionProvider"])
    assert [i.name for i in session.get_inputs()] == ["x"]
    done = run("quantize", "model.onnx", "--activation-type=dynamic", "-o", "d.onnx", exit=4)
    assert "opset 10 has no DequantizeLinear with scales computed from values: it needs opset 11 or later" in done.stderr


def test_products_that_stay_are_told(run, tmp_path):
    one_product(tmp_path, node("MatMul", ["x", "c"], name="second"), [], (4, 40), X[:4],
                before=[node("Constant", [], ["c"], name="c", value=tensor("", W)), node("MatMul", ["x", "c"], ["z"], name="first")])
    done = run("quantize", "model.onnx", "--data=x=x.npy", "-o", "q.onnx", exit=4)
    assert "2 of 2 products are not quantized" in done.stderr


def beside(name, place, a):
    """A tensor whose numbers stand in beside.bin."""
    t = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=a.shape, data_location=TensorProto.EXTERNAL)
    for key, what in ("location", "beside.bin"), ("offset", place * a.nbytes), ("length", a.nbytes):
        t.external_data.add(key=key, value=str(what))
    return t


def two_branches(folder):
    """Numbers in a file beside the model: of an initializer, a Constant node, and both in each branch of an If."""
    a = np.float32(RANDOM.normal(size=(6, 3, 5)))
    (folder / "beside.bin").write_bytes(a.tobytes())
    branches = {}
    for i, name in enumerate(["then_branch", "else_branch"]):
        nodes = [node("Constant", [], [f"k{i}"], name=f"k{i}", value=beside("", 2 + 2 * i, a[0])),
                 node("Add", [f"k{i}", f"v{i}"], [f"s{i}"], name=f"s{i}"), node("MatMul", ["x", f"s{i}"], [f"o{i}"], name=f"o{i}")]
        branches[name] = helper.make_graph(nodes, name, [], [value(f"o{i}", None)], [beside(f"v{i}", 3 + 2 * i, a[0])])
    nodes = [node("MatMul", ["x", "w"], ["p"], name="first"), node("Constant", [], ["k"], name="k", value=beside("", 1, a[0])),
             node("MatMul", ["x", "k"], ["q"], name="second"), node("If", ["c"], ["r"], name="if", **branches), node("Sum", ["p", "q", "r"], name="sum")]
    onnx.save(model(nodes, inputs=[value("x", (4, 3)), value("c", (), TensorProto.BOOL)], outputs=[value("y", (4, 5))],
                    initializers=[beside("w", 0, a[0])]), folder / "model.onnx")
    x = np.float32(RANDOM.normal(size=(4, 3)))
    return {c: ({"x": x, "c": np.array(c)}, x @ (a[0] + a[1] + (a[2] + a[3] if c else a[4] + a[5]))) for c in (True, False)}


def test_data_beside_the_model_comes_into_the_new_one(run, tmp_path):
    """Of graphs inside and of Constant nodes, too: the new file lies elsewhere."""
    cases = two_branches(tmp_path)
    (tmp_path / "out").mkdir()
    run("quantize", "model.onnx", "--activation-type=none", "--per-channel", "-o", "out/q.onnx")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["q.onnx"]
    for feeds, want in cases.values():
        np.testing.assert_allclose(in_onnxruntime(tmp_path / "out/q.onnx", feeds), want, atol=0.02 * np.abs(want).max())


def test_functions_take_their_data_along(run, tmp_path):
    (tmp_path / "beside.bin").write_bytes(np.arange(15, dtype=np.float32).tobytes())
    inner = [node("Constant", [], ["k"], name="k", value=beside("", 0, np.zeros((3, 5), np.float32))), node("MatMul", ["x", "k"], ["y"], name="inner")]
    f = helper.make_function("own", "F", ["x"], ["y"], inner, [helper.make_opsetid("", 17)])
    nodes = [node("MatMul", ["x", "w"], ["p"], name="product"), helper.make_node("F", ["x"], ["q"], domain="own"), node("Add", ["p", "q"], name="sum")]
    onnx.save(model(nodes, inputs=[value("x", (4, 3))], outputs=[value("y", (4, 5))], initializers=[tensor("w", W[:3, :5])], functions=[f],
                    imports=[helper.make_opsetid("own", 1)]), tmp_path / "model.onnx")
    run("quantize", "model.onnx", "--activation-type=none", "-o", "q.onnx")
    t = onnx.load(tmp_path / "q.onnx", load_external_data=False).functions[0].node[0].attribute[0].t
    assert t.data_location == TensorProto.DEFAULT
    np.testing.assert_array_equal(numpy_helper.to_array(t), np.arange(15).reshape(3, 5))


@pytest.mark.parametrize("options", [[], ["--quantize=w8a8"]], ids=["floats", "codes"])
def test_data_beside_a_trained_model_comes_along(run, tmp_path, options):
    """Of a branch and of a Constant that trains no further."""
    cases = two_branches(tmp_path)
    proto = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    del proto.graph.input[1]
    proto.graph.initializer.append(tensor("c", np.array(True)))
    onnx.save(proto, tmp_path / "model.onnx")
    feeds, want = cases[True]
    np.save(tmp_path / "x.npy", feeds["x"])
    np.save(tmp_path / "labels.npy", np.zeros((4, 5), np.float32))
    (tmp_path / "out").mkdir()
    run("compile", "model.onnx", "-o", "train", "--loss=mse", "--freeze=k", *options)
    run(tmp_path / "train", "--data=x=x.npy", "--data=labels=labels.npy", "--steps=1", "--lr=0", "--export=out/e.onnx")
    np.testing.assert_allclose(in_onnxruntime(tmp_path / "out/e.onnx", {"x": feeds["x"]}), want, atol=0.03 * np.abs(want).max())


def in_onnxruntime(path, feeds):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, feeds)[0]


def norm(name, x, y, channels, **attributes):
    """A BatchNormalization and its numbers."""
    held = [np.float32(RANDOM.uniform(0.5, 2, channels)), *np.float32(RANDOM.normal(size=(2, channels))), np.float32(RANDOM.uniform(0.5, 2, channels))]
    names = [f"{name}.{i}" for i in range(4)]
    return node("BatchNormalization", [x, *names], y, name=name, **attributes), [tensor(n, a) for n, a in zip(names, held)]


@pytest.mark.parametrize("shared", [False, True])
def test_batch_norms_are_folded(run, tmp_path, shared):
    """Groups, a transposed convolution, a weight that two read, another epsilon; the one behind Add stays and is told."""
    first, a = norm("first", "c", ["n"], 6)
    second, b = norm("second", "t", ["m"], 4, epsilon=0.1)
    third, c = norm("third", "s", ["z"], 4)
    nodes = [node("Conv", ["x", "w"], ["c"], name="conv", group=2, pads=[1, 1, 1, 1]), first, node("Dropout", ["n"], ["d"], name="drop"),
             node("ConvTranspose", ["d", "v", "vb"], ["t"], name="up"), second, node("Add", ["m", "m"], ["s"], name="add"), third]
    if shared:
        nodes += [node("Conv", ["x", "w"], ["e"], name="again", group=2), node("ReduceMean", ["e"], ["r"], name="mean", keepdims=0),
                  node("Add", ["z", "r"], name="sum")]
    else:
        nodes += [node("Identity", ["z"], name="sum")]
    weights = [tensor("w", np.float32(RANDOM.normal(size=(6, 2, 3, 3)))), tensor("v", np.float32(RANDOM.normal(size=(6, 4, 2, 2)))),
               tensor("vb", np.float32(RANDOM.normal(size=4))), *a, *b, *c]
    onnx.save(model(nodes, inputs=[value("x", (3, 4, 8, 8))], outputs=[value("y", (3, 4, 9, 9))], initializers=weights, opset=17), tmp_path / "model.onnx")
    done = run("quantize", "model.onnx", "--activation-type=none", "--per-channel", "--fold-batch-norms", "-o", "q.onnx")
    assert "1 of 3 batch norms are not folded" in done.stderr
    onnx.checker.check_model(str(tmp_path / "q.onnx"), full_check=True)
    kinds = [n.op_type for n in onnx.load(tmp_path / "q.onnx").graph.node]
    assert kinds.count("BatchNormalization") == 1 and "Dropout" not in kinds
    x = np.float32(RANDOM.normal(size=(3, 4, 8, 8)))
    want, got = (in_onnxruntime(tmp_path / name, {"x": x}) for name in ("model.onnx", "q.onnx"))
    assert np.abs(got - want).max() <= 0.02 * np.abs(want).max()
    held = tensors(tmp_path / "q.onnx")
    name = next(n for n in held if n.startswith("w") and n.endswith("_folded_quantized" if shared else "w_quantized"))
    factor = numpy_helper.to_array(a[0]) / np.sqrt(numpy_helper.to_array(a[3]).astype(float) + 1e-5)
    exact = numpy_helper.to_array(weights[0]) * factor[:, None, None, None]
    scale = numpy_helper.to_array(held[name.replace("_quantized", "_scale")]).astype(float)[:, None, None, None]
    assert (np.abs(numpy_helper.to_array(held[name]) * scale - exact) <= 0.501 * scale).all()


@pytest.mark.parametrize("variance, epsilon", [(-1, 1e-5), (0, 0.0), (1e-38, 0.0)])
def test_batch_norms_without_finite_factors_stay(run, tmp_path, variance, epsilon):
    """The root of a variance below 0, a division by 0, and a product beyond f32: the convolution keeps its numbers."""
    step, held = norm("norm", "c", ["y"], 6, epsilon=epsilon)
    held[0], held[3] = tensor("norm.0", np.full(6, 1e20, np.float32)), tensor("norm.3", np.float32([1] * 5 + [variance]))
    w = np.float32(RANDOM.normal(size=(6, 4, 3, 3)))
    onnx.save(model([node("Conv", ["x", "w"], ["c"], name="conv"), step], inputs=[value("x", (3, 4, 8, 8))], outputs=[value("y", (3, 6, 6, 6))],
                    initializers=[tensor("w", w), *held]), tmp_path / "model.onnx")
    done = run("quantize", "model.onnx", "--activation-type=none", "--per-channel", "--fold-batch-norms", "-o", "q.onnx")
    assert "1 of 1 batch norms are not folded: they follow no convolution of their own, their numbers are not f32, or their factors are not finite" in done.stderr
    assert "BatchNormalization" in [n.op_type for n in onnx.load(tmp_path / "q.onnx").graph.node]
    codes, scale = (numpy_helper.to_array(tensors(tmp_path / "q.onnx")[f"w_{n}"]) for n in ("quantized", "scale"))
    assert (np.abs(codes * scale[:, None, None, None] - w) <= 0.501 * scale[:, None, None, None]).all()


def unlike(*shape, axis):
    """Random numbers whose channels are up to 1000 times as large as others."""
    factor = 10 ** RANDOM.uniform(-1.5, 1.5, shape[axis])
    return np.float32(RANDOM.normal(size=shape) * factor.reshape([-1 if i == axis else 1 for i in range(len(shape))]))


CONVOLUTIONS = ([node("Conv", ["x", "a", "ab"], ["p"], name="a", pads=[1, 1, 1, 1]), node("Relu", ["p"], ["q"], name="r"),
                 node("Conv", ["q", "b"], ["s"], name="b", group=8, pads=[1, 1, 1, 1]), node("LeakyRelu", ["s"], ["t"], name="l"),
                 node("MaxPool", ["t"], ["u"], name="m", kernel_shape=[2, 2]), node("Conv", ["u", "c", "cb"], name="c")],
                {"a": unlike(8, 3, 3, 3, axis=0), "ab": np.float32(RANDOM.normal(size=8)), "b": unlike(8, 1, 3, 3, axis=0),
                 "c": unlike(5, 8, 2, 2, axis=1), "cb": np.float32(RANDOM.normal(size=5))}, (2, 3, 8, 8), (2, 5, 6, 6), [("a", 0, "b", 0), ("b", 0, "c", 1)])
MATRICES = ([node("Gemm", ["x", "a", "ab"], ["p"], name="a", transB=1), node("Relu", ["p"], ["q"], name="r"), node("MatMul", ["q", "b"], ["s"], name="b"),
             node("Add", ["bb", "s"], ["t"], name="add"), node("Gemm", ["t", "c"], name="c")],
            {"a": unlike(9, 6, axis=0), "ab": np.float32(RANDOM.normal(size=9)), "b": unlike(9, 7, axis=1), "bb": np.float32(RANDOM.normal(size=(1, 7))),
             "c": unlike(7, 4, axis=0)}, (5, 6), (5, 4), [("a", 0, "b", 0), ("b", 1, "c", 0)])


@pytest.mark.parametrize("kind", [CONVOLUTIONS, MATRICES], ids=["convolutions", "matrices"])
def test_equalized_layers(run, tmp_path, kind):
    """The function stays; the channels of both weights of a pair have the same ranges."""
    nodes, weights, shape, out, pairs = kind
    onnx.save(model(nodes, inputs=[value("x", shape)], outputs=[value("y", out)], initializers=[tensor(n, a) for n, a in weights.items()]),
              tmp_path / "model.onnx")
    x = np.float32(RANDOM.normal(size=shape))
    want = in_onnxruntime(tmp_path / "model.onnx", {"x": x})
    error = {}
    for options in [], ["--equalize"]:
        run("quantize", "model.onnx", "--activation-type=none", *options, "-o", "q.onnx")
        error[len(options)] = np.linalg.norm(in_onnxruntime(tmp_path / "q.onnx", {"x": x}) - want) / np.linalg.norm(want)
    assert error[1] < 0.05
    held = {n: numpy_helper.to_array(t) for n, t in tensors(tmp_path / "q.onnx").items()}
    for first, i, second, k in pairs:
        ranges = []
        for name, axis in (first, i), (second, k):
            numbers = np.abs(held[f"{name}_quantized"] * held[f"{name}_scale"].astype(float))
            ranges.append(numbers.max(tuple(a for a in range(numbers.ndim) if a != axis)))
        step = max(held[f"{first}_scale"], held[f"{second}_scale"])
        np.testing.assert_allclose(*ranges, rtol=0.01, atol=1.5 * step)


PLAIN = node("MatMul", ["x", "a"], ["p"], name="a")
ALONG_ROWS = {
    "a column": (PLAIN, node("Add", ["p", "ab"], ["q"], name="s"), (4, 1), (4, 3)),
    "a column of three axes": (PLAIN, node("Add", ["ab", "p"], ["q"], name="s"), (4, 1, 1), (4, 4, 3)),
    "Gemm's column": (node("Gemm", ["x", "a", "ab"], ["p"], name="a"), node("Relu", ["p"], ["q"], name="s"), (4, 1), (4, 3)),
    "MaxPool": (PLAIN, node("MaxPool", ["p"], ["q"], name="s", kernel_shape=[1, 3], pads=[0, 1, 0, 1]), None, (2, 1, 4, 3)),
    "AveragePool": (PLAIN, node("AveragePool", ["p"], ["q"], name="s", kernel_shape=[1, 3], pads=[0, 1, 0, 1]), None, (2, 1, 4, 3)),
}


@pytest.mark.parametrize("name", ALONG_ROWS)
def test_equalize_leaves_what_joins_channels(run, tmp_path, name):
    """Numbers for each row, and pooling over a matrix's channels: no factor of a channel goes through."""
    first, step, bias, shape = ALONG_ROWS[name]
    weights = {"a": unlike(3, 4, axis=1), "b": unlike(4, 2, axis=0), **({"ab": 3 * np.float32(RANDOM.normal(size=bias))} if bias else {})}
    onnx.save(model([first, step, node("MatMul", ["q", "b"], name="b")], inputs=[value("x", shape)], outputs=[value("y", None)],
                    initializers=[tensor(n, a) for n, a in weights.items()], opset=21, ir=10), tmp_path / "model.onnx")
    x = np.float32(RANDOM.normal(size=shape))
    quantize = ["quantize", "model.onnx", "--activation-type=none", "--per-channel"]
    run(*quantize, "-o", "plain.onnx")
    done = run(*quantize, "--equalize", "-o", "q.onnx")
    exact, want, got = (in_onnxruntime(tmp_path / n, {"x": x}) for n in ("model.onnx", "plain.onnx", "q.onnx"))
    np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max())
    np.testing.assert_allclose(got, exact, atol=0.02 * np.abs(exact).max())
    assert "--equalize: no product leads into another" in done.stderr


def test_nothing_to_equalize_is_told(run, layer):
    assert "--equalize: no product leads into another" in run("quantize", "model.onnx", "--activation-type=none", "--equalize", "-o", "q.onnx").stderr


def test_the_report_is_a_page(run, layer):
    """The worst tensor first; names are text, and nothing is fetched."""
    name = "</script><b>&'\""
    proto = onnx.load(layer / "model.onnx")
    proto.graph.node[0].input[1] = proto.graph.initializer[0].name = name
    onnx.save(proto, layer / "model.onnx")
    run("quantize", "model.onnx", "--data=x=x.npy", "--weight-type=s4", "--per-channel", "--opset=21", "-o", "q.onnx", "--report=r.html")
    page = (layer / "r.html").read_text()
    assert not re.search(r"(?:src|href)=[\"']|@import|url\(", page.split('<script type="app')[0])
    held = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])
    assert held["model"] == "model.onnx" and {t["name"]: t["kind"] for t in held["tensors"]} == {name: "weight", "x": "activation"}
    assert "--report r.html is also -o" in run("quantize", "model.onnx", "--data=x=x.npy", "-o", "r.html", "--report=r.html", exit=2).stderr
    if not browser.CHROMIUM:
        pytest.skip("chromium is not installed: scripts/setup")
    text, tags = browser.parts(layer / "r.html", layer / "profile")
    assert tags["tr"] == 3 and tags.get("b", 0) == 0
    shown = text["main"]
    assert "2 tensors in codes" in shown and shown.index(name) < shown.index("activation") and "5 scales" not in shown
    assert browser.screenshot(layer / "r.html", layer / "profile", layer / "page.png") > 10


def test_the_tensor_that_hurts_most(run, tmp_path):
    """One weight has an outlier, by which one scale for the matrix is coarse: leaving it out gains most, and as much as NumPy says."""
    a, b = np.float32(RANDOM.normal(size=(16, 12))), np.float32(RANDOM.normal(size=(12, 6)))
    a[3, 4] = 60
    onnx.save(model([node("MatMul", ["x", "a"], ["h"], name="first"), node("MatMul", ["h", "b"], name="second")],
                    inputs=[value("x", ("batch", 16))], initializers=[tensor("a", a), tensor("b", b)]), tmp_path / "model.onnx")
    x = np.float32(RANDOM.normal(size=(32, 16)))
    np.save(tmp_path / "x.npy", x)
    done = run("quantize", "model.onnx", "--data=x=x.npy", "--activation-type=none", "--sensitivity", "--json", "-o", "q.onnx")
    held = json.loads(done.stdout)
    gain = {t["name"]: t["gain_db"] for t in held["tensors"]}

    def rounded(w):
        step = np.abs(w).max() / np.float32(127)
        return np.rint(w / step) * step

    def decibels(y):
        return 10 * np.log10((x @ a @ b).__pow__(2).sum() / ((x @ a @ b - y) ** 2).sum())

    whole = decibels(x @ rounded(a) @ rounded(b))
    np.testing.assert_allclose(held["output_snr_db"], whole, rtol=1e-3)
    np.testing.assert_allclose([gain["a"], gain["b"]], [decibels(x @ a @ rounded(b)) - whole, decibels(x @ rounded(a) @ b) - whole], atol=0.05)
    assert gain["a"] > 10 > gain["b"]
    table = run("quantize", "model.onnx", "--data=x=x.npy", "--activation-type=none", "--sensitivity", "-o", "q.onnx").stdout
    assert "left out" in table and f"results: SNR {whole:.1f} dB" in table
    assert "--sensitivity: needs --data" in run("quantize", "model.onnx", "--activation-type=none", "--sensitivity", "-o", "q.onnx", exit=2).stderr
