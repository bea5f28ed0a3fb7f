"""onnxruntime's own operators on codes: results beside those of its CPU kernels, of the first case of each operator by both engines."""
import json

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

MICROSOFT = "com.microsoft"
RANDOM = np.random.default_rng(11)
OTHER = {"a_zero": np.uint8(121), "y_zero": np.uint8(131)}


def codes(*shape, dtype=np.uint8, low=None, high=None):
    info = np.iinfo(dtype)
    return RANDOM.integers(info.min if low is None else low, (info.max if high is None else high) + 1, shape).astype(dtype)


def floats(*shape, scale=1.0):
    return (scale * RANDOM.standard_normal(shape)).astype(np.float32)


def scales(n):
    return (0.01 + 0.02 * RANDOM.random(n)).astype(np.float32)


F = np.float32
U, I = np.uint8, np.int8
# name -> (operator, inputs in order: an array is given at run time, a pair (array,) is an initializer, None is left out; attributes, opset)
CASES = {
    "MatMulIntegerToFloat": ("MatMulIntegerToFloat", [codes(3, 8), (codes(8, 5, dtype=I),), (F(0.02),), (F(0.013),), (U(117),), None, (floats(5),)], {}),
    "MatMulIntegerToFloat_columns": ("MatMulIntegerToFloat", [codes(2, 3, 8), (codes(8, 5),), (F(0.02),), (scales(5),), (U(117),), (codes(5),)], {}),
    "MatMulIntegerToFloat_signed": ("MatMulIntegerToFloat", [codes(3, 8, dtype=I), (codes(8, 5, dtype=I),), (F(0.02),), (F(0.013),), (I(3),), (I(-2),)], {}),
    "DynamicQuantizeMatMul": ("DynamicQuantizeMatMul", [floats(3, 8), (codes(8, 5, dtype=I),), (F(0.013),), (I(2),)], {}),
    "DynamicQuantizeMatMul_columns": ("DynamicQuantizeMatMul", [floats(2, 3, 8), (codes(8, 5),), (scales(5),), (codes(5),), (floats(5),)], {}),
    "DynamicQuantizeMatMul_above": ("DynamicQuantizeMatMul", [abs(floats(3, 8)), (codes(8, 5, dtype=I),), (scales(5),)], {}),
    "QGemm": ("QGemm", [codes(3, 8), (F(0.02),), (U(117),), (codes(8, 5, dtype=I),), (F(0.013),), (I(0),), (codes(5, dtype=np.int32, low=-999, high=999),), (F(0.05),), (U(131),)], {}),
    "QGemm_turned": ("QGemm", [codes(8, 3), (F(0.02),), (U(117),), (codes(5, 8, dtype=I),), (scales(5),), (codes(5, dtype=I, low=0, high=0),), None, (F(0.05),), (U(131),)],
                     {"transA": 1, "transB": 1, "alpha": 0.5}),
    "QGemm_floats": ("QGemm", [codes(3, 8), (F(0.02),), (U(117),), (codes(5, 8),), (F(0.013),), (U(90),), (codes(3, 5, dtype=np.int32, low=-999, high=999),)], {"transB": 1, "alpha": 1.5}),
    "QLinearConv": ("QLinearConv", [codes(2, 4, 6, 5), (F(0.02),), (U(117),), (codes(6, 2, 3, 3, dtype=I),), (scales(6),), (codes(6, dtype=I, low=0, high=0),), (F(0.09),), (U(131),),
                                    (codes(6, dtype=np.int32, low=-999, high=999),)], {"group": 2, "pads": [1, 0, 1, 1]}),
    "QLinearConv_last": ("QLinearConv", [codes(2, 6, 5, 4), (F(0.02),), (U(117),), (codes(6, 4, 3, 2, dtype=U),), (F(0.013),), (U(120),), (F(0.19),), (U(131),)],
                         {"channels_last": 1, "strides": [2, 1]}),
    "QLinearSoftmax": ("QLinearSoftmax", [codes(3, 7), (F(0.07),), (U(117),), (F(1 / 256),), (U(0),)], {"axis": -1, "opset": 13}),
    "QLinearSoftmax_axis": ("QLinearSoftmax", [codes(2, 5, 4), (F(0.03),), (U(117),), (F(1 / 200),), (U(2),)], {"axis": 1, "opset": 13}),
    "QLinearSoftmax_flat": ("QLinearSoftmax", [codes(2, 5, 4), (F(0.03),), (U(117),), (F(1 / 256),), (U(0),)], {"axis": 1, "opset": 11}),
    "QLinearSoftmax_signed": ("QLinearSoftmax", [codes(3, 7, dtype=I), (F(0.07),), (I(4),), (F(1 / 256),), (I(-128),)], {"axis": -1, "opset": 13}),
    "QLinearGlobalAveragePool": ("QLinearGlobalAveragePool", [codes(2, 5, 4, 7), (F(0.02),), (U(117),), (F(0.011),), (U(131),)], {"channels_last": 0}),
    "QLinearGlobalAveragePool_last": ("QLinearGlobalAveragePool", [codes(2, 4, 7, 5), (F(0.02),), (U(117),), (F(0.011),), (U(131),)], {"channels_last": 1}),
    "QLinearAdd": ("QLinearAdd", [codes(2, 5, 4), (F(0.021),), (U(117),), codes(5, 1), (F(0.033),), (U(90),), (F(0.05),), (U(131),)], {}),
    "QLinearAdd_signed": ("QLinearAdd", [codes(2, 5, dtype=I), (F(0.021),), (I(3),), codes(2, 5, dtype=I), (F(0.033),), (I(-4),), (F(0.03),), (I(5),)], {}),
    "QLinearMul": ("QLinearMul", [codes(2, 5, 4), (F(0.021),), (U(117),), codes(4), (F(0.033),), (U(90),), (F(0.05),), (U(131),)], {}),
    "QLinearAdd_all": ("QLinearAdd", [np.arange(256, dtype=U), (F(0.021),), (U(117),), np.arange(256, dtype=U)[:, None], (F(0.033),), (U(90),), (F(0.05),), (U(131),)], {}),
    "QLinearMul_all": ("QLinearMul", [np.arange(256, dtype=U), (F(0.02),), (U(10),), np.arange(256, dtype=U)[:, None], (F(0.03),), (U(20),), (F(0.05),), (U(130),)], {}),
    "QLinearConcat": ("QLinearConcat", [(F(0.05),), (U(131),), codes(2, 3), (F(0.02),), (U(117),), codes(2, 4), (F(0.05),), (U(131),)], {"axis": 1}),
    "QLinearSigmoid": ("QLinearSigmoid", [codes(3, 50), (F(0.03),), (U(117),), (F(1 / 256),), (U(0),)], {}),
    "QLinearLeakyRelu": ("QLinearLeakyRelu", [codes(3, 50), (F(0.03),), (U(117),), (F(0.02),), (U(60),)], {"alpha": 0.2}),
}


def lstm(steps=5, batch=2, inputs=3, hidden=4, directions=1, dtype=I, columns=False, zero=0, states=False, lengths=None, peepholes=False, **attributes):
    per = (directions, 4 * hidden) if columns else (directions,)
    info = (np.full(per, zero, dtype),)
    given = [floats(steps, batch, inputs), (codes(directions, inputs, 4 * hidden, dtype=dtype),), (codes(directions, hidden, 4 * hidden, dtype=dtype),),
             (floats(directions, 8 * hidden, scale=0.3),), (np.array(lengths, np.int32),) if lengths else None, *((floats(directions, batch, hidden),) * 1 if states else (None,)),
             floats(directions, batch, hidden) if states else None, (floats(directions, 3 * hidden, scale=0.3),) if peepholes else None,
             (scales(per) * F(0.5),), info, (scales(per) * F(0.5),), info]
    return "DynamicQuantizeLSTM", given, {"hidden_size": hidden, **attributes}


CASES |= {
    "DynamicQuantizeLSTM": lstm(), "DynamicQuantizeLSTM_unsigned": lstm(dtype=U, zero=121), "DynamicQuantizeLSTM_columns": lstm(columns=True),
    "DynamicQuantizeLSTM_both": lstm(directions=2, direction="bidirectional"), "DynamicQuantizeLSTM_back": lstm(direction="reverse", batch=1),
    "DynamicQuantizeLSTM_states": lstm(states=True, peepholes=True), "DynamicQuantizeLSTM_lengths": lstm(lengths=[3, 5]),
    "DynamicQuantizeLSTM_lengths_both": lstm(lengths=[3, 5], directions=2, direction="bidirectional"), "DynamicQuantizeLSTM_lengths_back": lstm(lengths=[5, 2], direction="reverse"),
    "DynamicQuantizeLSTM_clip": lstm(clip=0.5, input_forget=0, activations=["HardSigmoid", "Tanh", "Relu"]),
}


def write(path, case):
    """The model, and what it is given when it runs."""
    op, inputs, attributes = CASES[case]
    names, feeds, held = [], {}, []
    for i, x in enumerate(inputs):
        names.append("" if x is None else f"i{i}")
        if isinstance(x, tuple):
            held.append(numpy_helper.from_array(np.asarray(x[0]), names[-1]))
        elif x is not None:
            feeds[names[-1]] = x
    outputs = ["y", "h", "c"] if "LSTM" in op else ["y"]
    node = helper.make_node(op, names, outputs, "n", domain=MICROSOFT, **attributes)
    kind = {"QGemm_floats": 1}.get(case) or (1 if "Float" in op or "Dynamic" in op else helper.np_dtype_to_tensor_dtype(inputs[2].dtype if op == "QLinearConcat" else inputs[0].dtype))
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in feeds.items()],
                              [helper.make_tensor_value_info(o, kind, None) for o in outputs], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)], ir_version=8)
    onnx.save(model, path)
    return feeds, outputs


@pytest.mark.parametrize("case", CASES)
def test_results_are_onnxruntimes(run, tmp_path, case):
    feeds, outputs = write(tmp_path / "model.onnx", case)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    wanted = onnxruntime.InferenceSession(tmp_path / "model.onnx", options, providers=["CPUExecutionProvider"]).run(outputs, feeds)
    words = []
    for name, x in feeds.items():
        np.save(tmp_path / f"{name}.npy", x)
        words.append(f"--input={name}={name}.npy")
    first = next(c for c in CASES if CASES[c][0] == CASES[case][0])
    for engine in ("interp", "compiled")[:1 + (case == first or "lengths_both" in case)]:
        run("run", "model.onnx", f"--engine={engine}", *words, "--output-dir=out")
        files = json.loads((tmp_path / "out/names.json").read_text())
        for name, want in zip(outputs, wanted):
            got = np.load(tmp_path / "out" / files[name]["file"])
            assert got.dtype == want.dtype and got.shape == want.shape
            if want.dtype == np.float32:
                np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
            else:
                np.testing.assert_array_equal(got, want)


def decoded(held, weight, scale, zero, axis):
    shape = [-1 if i == axis else 1 for i in range(2)]
    return (held[weight].astype(float) - held.get(zero, np.zeros(1)).astype(float).reshape(shape if held.get(zero, np.zeros(1)).size > 1 else (1, 1))) * (
        held[scale].astype(float).reshape(shape if held[scale].size > 1 else (1, 1)))


@pytest.mark.parametrize("case, weight, scale, zero", [("DynamicQuantizeMatMul", "i1", "i2", "i3"), ("DynamicQuantizeMatMul_above", "i1", "i2", "")])
def test_codes_train_and_gradients_pass_their_rounding(run, tmp_path, case, weight, scale, zero):
    """One step of descent by hand, where rounding has the derivative 1: the weight moves as floats do, the exported file has its codes, and onnxruntime
    runs it."""
    feeds, _ = write(tmp_path / "model.onnx", case)
    held = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "model.onnx").graph.initializer}
    said = json.loads(run("check", "--json", "model.onnx").stdout)
    assert {p["name"]: p["kind"] for p in said["parameters"]}[weight] == "trainable"
    x, w = feeds["i0"].astype(float), decoded(held, weight, scale, zero, 1)
    y = RANDOM.standard_normal((3, 5)).astype(np.float32)
    for name, array in (("x", feeds["i0"]), ("y", y)):
        np.save(tmp_path / f"{name}.npy", array)
    low, high = min(x.min(), 0), max(x.max(), 0)
    step = (high - low) / 255
    seen = (np.round(x / step) + np.round(-low / step) - np.round(-low / step)) * step
    error = 2 * (seen @ w - y) / y.size
    run("grad", "model.onnx", "--loss=mse", "--input=i0=x.npy", "--input=labels=y.npy", "--wrt=i0", "--output-dir=out")
    files = json.loads((tmp_path / "out/names.json").read_text())
    np.testing.assert_allclose(np.load(tmp_path / "out" / files["i0"]["file"]), error @ w.T, rtol=1e-4, atol=1e-5)
    run("compile", "model.onnx", "-o", "train", "--loss=mse", "--optimizer=sgd")
    run(tmp_path / "train", "--data=i0=x.npy", "--data=labels=y.npy", "--steps=1", "--lr=1", "--shuffle=off", "--export=out.onnx")
    after = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "out.onnx").graph.initializer}
    moved = (w - seen.T @ error) / held[scale].reshape(-1) + held.get(zero, np.zeros(1)).reshape(-1)
    assert np.abs(after[weight] - np.clip(np.round(moved), -128, 127)).max() <= (np.abs(moved % 1 - .5) < 1e-3).max()
    assert not np.array_equal(after[weight], held[weight])
    onnxruntime.InferenceSession(tmp_path / "out.onnx", providers=["CPUExecutionProvider"]).run(None, feeds)


@pytest.mark.parametrize("case", ["QGemm_turned", "QLinearConv", "MatMulIntegerToFloat_columns", "DynamicQuantizeLSTM_columns"])
def test_scales_stay_and_codes_are_known(run, tmp_path, case):
    """Weights in codes train where a scale for each channel stands beside them; no scale becomes a parameter by itself."""
    write(tmp_path / "model.onnx", case)
    rows = {p["name"]: (p["kind"], p["why"]) for p in json.loads(run("check", "--json", "model.onnx").stdout)["parameters"]}
    assert {n: r for n, r in rows.items() if r[0] == "trainable" and "codes" not in r[1] and not (case.startswith("Dyn") and n == "i3")} == {}
    weight = {"QGemm_turned": "i3", "QLinearConv": "i3"}.get(case)
    assert not weight or rows[weight] == ("trainable", "codes with a scale")


FAULTS = {
    "rank": (("QGemm", [codes(2, 3, 8), (F(0.02),), (U(117),), (codes(8, 5),), (F(0.013),), (U(0),)], {}), "input 0 has rank 3, need 2"),
    "zero": (("MatMulIntegerToFloat", [codes(3, 8), (codes(8, 5, dtype=I),), (F(0.02),), (F(0.013),), (I(1),)], {}), "codes are u8, but their zero point is s8"),
    "parts": (("QLinearConcat", [(F(0.05),), (U(131),), codes(2, 3), (F(0.02),)], {"axis": 1}), "4 inputs, need 2 and 3 for each part"),
    "places": (("QLinearGlobalAveragePool", [codes(2, 5), (F(0.02),), (U(117),), (F(0.011),), (U(131),)], {"channels_last": 0}), "input 0 has rank 2, need 3 or more"),
    "weight": (("DynamicQuantizeLSTM", [floats(5, 2, 3), (codes(3, 16, dtype=I),), (codes(1, 4, 16, dtype=I),), None, None, None, None, None, (F([0.1]),), (I([0]),), (F([0.1]),), (I([0]),)],
                {"hidden_size": 4}), "input 1 is s8[3,16]"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_wrong_is_said(run, tmp_path, name):
    CASES["fault"], said = FAULTS[name]
    write(tmp_path / "model.onnx", "fault")
    del CASES["fault"]
    assert said in run("check", "model.onnx", exit=3).stderr
