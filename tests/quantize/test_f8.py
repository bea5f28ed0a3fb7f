"""gradc quantize with codes that are 8-bit floats: weights as onnxruntime's quantizer makes them, activations by NumPy's formula."""
import contextlib
import io
import json
import os
import sys

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quant_utils, quantize_static

sys.path[:0] = [os.path.join(os.path.dirname(__file__), "..", "import")]
from make_malformed import model, node, tensor, value  # noqa: E402

TYPES = {"f8e4m3fn": (ml_dtypes.float8_e4m3fn, TensorProto.FLOAT8E4M3FN), "f8e5m2": (ml_dtypes.float8_e5m2, TensorProto.FLOAT8E5M2)}
BYTES = np.std(np.arange(256, dtype=np.float32))
RANDOM = np.random.default_rng(8)
W = np.float32(RANDOM.normal(size=(40, 12)))
W[3, 5] = 30  # further out than onnxruntime's scale reaches
X = np.float32(RANDOM.normal(size=(64, 40)))


def tensors(path):
    return {t.name: t for t in onnx.load(path).graph.initializer}


def bits(t):
    return np.frombuffer(t.raw_data, np.uint8).reshape(tuple(t.dims))


@pytest.fixture
def layer(tmp_path):
    onnx.save(model([node("Gemm", ["x", "w", "b"], name="product")], inputs=[value("x", ("batch", 40))], outputs=[value("y", ("batch", 12))], initializers=[tensor("w", W), tensor("b", W[0])],
                    opset=19, ir=9), tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", X)
    return tmp_path


def in_onnxruntime(path, feeds):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, feeds)[0]


@pytest.mark.parametrize("name", ["mlp_digits", "cnn_mnist", "gpt2_mini"])
def test_weights_are_onnxruntimes(run, models, tmp_path, name):
    """Scale and codes of every weight, to the bit."""
    run("quantize", models / name / "model.onnx", "--weight-type=f8e4m3fn", "--activation-type=none", "--opset=20", "--no-fold-batch-norms", "-o", "q.onnx")
    floats, got = tensors(models / name / "model.onnx"), tensors(tmp_path / "q.onnx")
    names = [n.removesuffix("_quantized") for n in got if n.endswith("_quantized")]
    assert len(names) >= 3
    for w in names:
        numbers = numpy_helper.to_array(floats[w])
        zero, scale = quant_utils.compute_data_quant_params(numbers.flatten(), TensorProto.FLOAT8E4M3FN, True)
        codes = quant_utils.quantize_nparray(TensorProto.FLOAT8E4M3FN, numbers.flatten(), scale, zero)
        assert numpy_helper.to_array(got[f"{w}_scale"]).tobytes() == scale.tobytes(), w
        assert got[f"{w}_quantized"].data_type == got[f"{w}_zero_point"].data_type == TensorProto.FLOAT8E4M3FN
        np.testing.assert_array_equal(bits(got[f"{w}_quantized"]).ravel(), codes.view(np.uint8), err_msg=w)
        assert bits(got[f"{w}_zero_point"]) == 0


class OneBatch(CalibrationDataReader):
    def __init__(self, feeds):
        self.left = iter([feeds])

    def get_next(self):
        return next(self.left, None)


def test_distribution_is_onnxruntimes(run, models, tmp_path):
    """The whole way: quantize_static by the standard deviations of activations."""
    x = np.load(models / "mlp_digits/input.npy")[:32]
    np.save(tmp_path / "x.npy", x)
    run("quantize", models / "mlp_digits/model.onnx", "--data=input=x.npy", "--weight-type=f8e4m3fn", "--activation-type=f8e4m3fn",
        "--calibrate=distribution", "--opset=19", "-o", "q.onnx")
    with contextlib.redirect_stdout(io.StringIO()):
        quantize_static(models / "mlp_digits/model.onnx", tmp_path / "theirs.onnx", OneBatch({"input": x}), quant_format=QuantFormat.QDQ,
                        op_types_to_quantize=["Gemm", "MatMul"], activation_type=QuantType.QFLOAT8E4M3FN, weight_type=QuantType.QFLOAT8E4M3FN,
                        calibrate_method=CalibrationMethod.Distribution)
    got, want = tensors(tmp_path / "q.onnx"), tensors(tmp_path / "theirs.onnx")
    compared = 0
    for name in got.keys() & want.keys():
        if name.endswith("_scale"):
            np.testing.assert_allclose(numpy_helper.to_array(got[name]), numpy_helper.to_array(want[name]), rtol=2e-6, err_msg=name)
            compared += 1
        if name.endswith("_quantized"):
            np.testing.assert_array_equal(bits(got[name]), bits(want[name]), err_msg=name)
    assert compared >= 6
    np.testing.assert_allclose(in_onnxruntime(tmp_path / "q.onnx", {"input": x}), in_onnxruntime(tmp_path / "theirs.onnx", {"input": x}), rtol=0.05, atol=0.05)


def scale_of(numbers, largest):
    return np.float32(max(np.std(numbers) / BYTES, np.float32(float(np.abs(numbers).max()) / largest)))


@pytest.mark.parametrize("groups", ["--per-channel", "--block-size=16", None])
@pytest.mark.parametrize("name", TYPES)
def test_codes_of_groups(run, layer, name, groups):
    """By each group's standard deviation, or by its largest number where that has no code then."""
    of, onnx_type = TYPES[name]
    largest = float(ml_dtypes.finfo(of).max)
    run("quantize", "model.onnx", f"--weight-type={name}", "--activation-type=none", "--opset=21", "-o", "q.onnx", *([groups] if groups else []))
    onnx.checker.check_model(str(layer / "q.onnx"))
    got = tensors(layer / "q.onnx")
    scale = np.empty_like(W)
    for rows in [slice(i, i + 16) for i in (0, 16, 32)] if groups == "--block-size=16" else [slice(None)]:
        for columns in [slice(i, i + 1) for i in range(12)] if groups else [slice(None)]:
            scale[rows, columns] = scale_of(np.ascontiguousarray(W[rows, columns]), largest)
    held = numpy_helper.to_array(got["w_scale"])
    held = np.repeat(held, 16, 0)[:40] if held.ndim == 2 else held
    np.testing.assert_array_equal(np.broadcast_to(held, W.shape), scale)
    np.testing.assert_array_equal(bits(got["w_quantized"]), (W / scale).astype(of).view(np.uint8))
    assert got["w_quantized"].data_type == onnx_type and "b" in got
    assert np.isfinite((W / scale).astype(of).astype(np.float32)).all()


def test_groups_without_a_deviation(run, layer):
    """Of equal numbers, of zeros, and of numbers whose squares are infinite."""
    w = np.zeros((40, 4), np.float32)
    w[:, 0], w[:, 1], w[:, 2] = 0.5, np.tile(np.float32([3e30, -3e30]), 20), np.float32(1e-44)
    onnx.save(model([node("MatMul", ["x", "w"], name="product")], inputs=[value("x", ("batch", 40))], outputs=[value("y", ("batch", 4))], initializers=[tensor("w", w)], opset=19, ir=9),
              layer / "model.onnx")
    run("quantize", "model.onnx", "--weight-type=f8e4m3fn", "--activation-type=none", "--per-channel", "-o", "q.onnx")
    got = tensors(layer / "q.onnx")
    np.testing.assert_array_equal(numpy_helper.to_array(got["w_scale"]), np.float32([0.5 / 448, 3e30 / 448, 1, 1]))
    codes = bits(got["w_quantized"]).view(ml_dtypes.float8_e4m3fn).astype(float)
    np.testing.assert_array_equal(np.abs(codes).max(0), [448, 448, 0, 0])


@pytest.mark.parametrize("name, method", [("f8e4m3fn", "minmax"), ("f8e5m2", "minmax"), ("f8e4m3fn", "mse"), ("f8e4m3fn", "percentile:99"),
                                          ("f8e4m3fn", "moving-average")])
def test_activations(run, layer, name, method):
    """A scale by the largest size, no zero point; larger numbers become the largest code. Three evaluators have the same numbers."""
    of, onnx_type = TYPES[name]
    largest = float(ml_dtypes.finfo(of).max)
    done = run("quantize", "model.onnx", "--data=x=x.npy", f"--weight-type={name}", f"--activation-type={name}", f"--calibrate={method}", "--json", "-o", "q.onnx")
    assert "onnxruntime's CPU has no product of codes of 8-bit floats" in done.stderr
    entry = next(t for t in json.loads(done.stdout)["tensors"] if t["name"] == "x")
    scale = np.float32(entry["scale"][0])
    assert entry["type"] == name and entry["zero_point"] == [0]
    ends = {"moving-average": lambda: np.abs(np.mean([[b.min(), b.max()] for b in (X[:32], X[32:])], axis=0)).max(),
            "minmax": lambda: np.abs(X).max(), "percentile:99": lambda: np.quantile(np.abs(X), 0.99)}
    if method in ends:
        np.testing.assert_allclose(scale, ends[method]() / largest, rtol=0.01 if method[0] == "p" else 1e-6)
    numbers = np.clip(X / scale, -largest, largest).astype(of)
    first = X[:32].astype(float)
    noise = ((numbers[:32].astype(float) * scale - first) ** 2).sum()
    np.testing.assert_allclose(entry["snr_db"], 10 * np.log10((first ** 2).sum() / noise), rtol=1e-5)

    proto = onnx.load(layer / "q.onnx")
    proto.graph.output.append(onnx.helper.make_tensor_value_info("x_QuantizeLinear_Output", onnx_type, None))
    onnx.save(proto, layer / "codes.onnx")
    run("run", "codes.onnx", "--input=x=x.npy", "--output-dir=out")
    np.testing.assert_array_equal(np.load(layer / "out/x_QuantizeLinear_Output.npy").view(np.uint8), numbers.view(np.uint8))
    want = ReferenceEvaluator(proto).run(None, {"x": X})
    np.testing.assert_array_equal(want[1].view(np.uint8), numbers.view(np.uint8))
    got = np.load(layer / "out/y.npy")
    np.testing.assert_allclose(got, want[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got, in_onnxruntime(layer / "q.onnx", {"x": X}), rtol=1e-5, atol=1e-5)
    assert 1e-3 < np.abs(got - (X @ W + W[0])).mean() < 1


def test_mse_is_best(run, layer):
    """Of the ranges that it tries, on what the first batch shows: an outlier beyond the largest code costs more than a coarser scale."""
    np.save(layer / "x.npy", np.float32(RANDOM.uniform(-1, 1, size=(64, 40))))
    report = {}
    for method in "minmax", "mse":
        done = run("quantize", "model.onnx", "--data=x=x.npy", "--activation-type=f8e4m3fn", f"--calibrate={method}", "--json", "-o", "q.onnx")
        report[method] = next(t for t in json.loads(done.stdout)["tensors"] if t["name"] == "x")["snr_db"]
    assert report["mse"] >= report["minmax"] - 0.05


def test_the_table_has_room(run, layer):
    shown = run("quantize", "model.onnx", "--weight-type=f8e4m3fn", "--activation-type=none", "-o", "q.onnx").stdout
    assert "weight      f8e4m3fn w " in shown and "weights and biases: 1920 bytes became 485" in shown


def test_weights_of_gptq(run, layer):
    """Which are codes' numbers already, and change the product less."""
    x = np.float32(RANDOM.normal(size=(192, 8)) @ RANDOM.normal(size=(8, 40)) + 0.1 * RANDOM.normal(size=(192, 40)))
    np.save(layer / "x.npy", x)
    error = {}
    for algorithm in "rtn", "gptq":
        run("quantize", "model.onnx", "--data=x=x.npy", "--weight-type=f8e4m3fn", "--activation-type=none", "--per-channel", f"--algorithm={algorithm}", "-o", "q.onnx")
        got = tensors(layer / "q.onnx")
        numbers = bits(got["w_quantized"]).view(ml_dtypes.float8_e4m3fn).astype(float) * numpy_helper.to_array(got["w_scale"])
        error[algorithm] = np.square(x @ (numbers - W)).mean()
    assert error["gptq"] < 0.7 * error["rtn"]


OLD = "has no DequantizeLinear with codes of 8-bit floats: it needs opset 19 or later"


def test_an_old_opset_is_named(run, layer):
    onnx.save(model([node("MatMul", ["x", "w"], name="product")], inputs=[value("x", ("batch", 40))], outputs=[value("y", ("batch", 12))], initializers=[tensor("w", W)], opset=17), layer / "model.onnx")
    for option in "--weight-type=f8e4m3fn", "--weight-type=f8e5m2":
        done = run("quantize", "model.onnx", option, "--activation-type=none", "--per-channel", "-o", "q.onnx", exit=4)
        assert f"opset 17 {OLD}" in done.stderr and "--opset=19" in done.stderr and not (layer / "q.onnx").exists()
    done = run("quantize", "model.onnx", "--data=x=x.npy", "--activation-type=f8e4m3fn", "-o", "q.onnx", exit=4)
    assert f"opset 17 {OLD}" in done.stderr
    done = run("quantize", "model.onnx", "--weight-type=f8e4m3fn", "--activation-type=none", "--block-size=8", "--opset=19", "-o", "q.onnx", exit=4)
    assert "it needs opset 21 or later" in done.stderr
    run("quantize", "model.onnx", "--weight-type=f8e4m3fn", "--activation-type=none", "--opset=19", "-o", "q.onnx")
    raised = onnx.load(layer / "q.onnx")
    assert (raised.opset_import[0].version, raised.ir_version) == (19, 9)
    onnx.checker.check_model(raised)
    run("run", "q.onnx", "--input=x=x.npy", "--output-dir=out")
    np.testing.assert_allclose(np.load(layer / "out/y.npy"), in_onnxruntime(layer / "q.onnx", {"x": X}), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("option, choices", [("--weight-type=f8", "s8|u8|s4|u4|s2|u2|f8e4m3fn|f8e5m2"), ("--weight-type=f8e4m3fnuz", "f8e4m3fn|f8e5m2"),
                                             ("--activation-type=f4e2m1", "u8|s8|u16|s16|f8e4m3fn|f8e5m2|dynamic|token|none")])
def test_a_bad_type_is_told_the_list(run, layer, option, choices):
    done = run("quantize", "model.onnx", "--data=x=x.npy", option, "-o", "q.onnx", exit=2)
    assert f"{option}: need one of " in done.stderr and choices in done.stderr


@pytest.mark.parametrize("kind", ["u8", "s16", "none"])
def test_a_distribution_is_of_floats(run, layer, kind):
    done = run("quantize", "model.onnx", "--data=x=x.npy", f"--activation-type={kind}", "--calibrate=distribution", "--opset=21", "-o", "q.onnx", exit=2)
    assert "--calibrate=distribution: only for --activation-type=f8e4m3fn or f8e5m2" in done.stderr


@pytest.mark.parametrize("how, block", [([], 0), (["--per-channel"], 1), (["--block-size=8"], 8)])
def test_weights_of_4_bit_floats(run, layer, how, block):
    """f4e2m1, by the largest size / 6, beside ml_dtypes and onnx's evaluator; onnxruntime's CPU has none, which is told."""
    done = run("quantize", "model.onnx", "--weight-type=f4e2m1", "--activation-type=none", *how, "-o", "q.onnx", exit=4)
    assert "codes of 4-bit floats: it needs opset 23 or later" in done.stderr
    done = run("quantize", "model.onnx", "--weight-type=f4e2m1", "--activation-type=none", "--opset=23", *how, "-o", "q.onnx")
    assert "onnxruntime's CPU has no DequantizeLinear of 4-bit floats: gradc and onnx's ReferenceEvaluator run the model" in done.stderr
    proto = onnx.load(layer / "q.onnx")
    onnx.checker.check_model(proto)
    groups = {0: (1, 1), 1: (1, 12), 8: (5, 12)}[block]
    blocks = W.reshape(groups[0], 40 // groups[0], groups[1], 12 // groups[1])
    scale = np.abs(blocks).max((1, 3)) / np.float32(6)
    held = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    assert held["w_scale"].ravel().tolist() == scale.ravel().tolist()
    codes = (blocks / scale[:, None, :, None]).astype(ml_dtypes.float4_e2m1fn).reshape(W.shape)
    np.testing.assert_array_equal(held["w_quantized"].astype(float), codes.astype(float))
    assert len(set(held["w_quantized"].astype(float).ravel())) > (9 if block else 2)  # one number is far out
    back = (codes.astype(np.float32).reshape(blocks.shape) * scale[:, None, :, None]).reshape(W.shape)
    run("run", "q.onnx", "--input=x=x.npy", "--output-dir=out")
    np.testing.assert_allclose(np.load(layer / "out/y.npy"), X @ back + W[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(ReferenceEvaluator(proto).run(None, {"x": X})[0], X @ back + W[0], rtol=1e-4, atol=1e-4)
