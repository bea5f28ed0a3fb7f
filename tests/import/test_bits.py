"""BitCast between all types of one width, both ways, in both engines."""
import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

ENGINES = ["interp", "compiled"]
WIDTHS = [
    (np.float64, np.int64), (np.float64, np.uint64), (np.uint64, np.int64), (np.float32, np.int32), (np.float32, np.uint32),
    (np.float16, np.int16), (ml_dtypes.bfloat16, np.uint16), (np.float16, ml_dtypes.bfloat16), (ml_dtypes.float8_e4m3fn, np.int8),
    (ml_dtypes.float8_e5m2, np.uint8), (ml_dtypes.float8_e4m3fnuz, np.int8), (ml_dtypes.float8_e5m2fnuz, np.uint8),
    (ml_dtypes.float8_e8m0fnu, np.uint8), (ml_dtypes.float4_e2m1fn, ml_dtypes.uint4), (ml_dtypes.int4, ml_dtypes.uint4),
    (ml_dtypes.int2, ml_dtypes.uint2),
]


def run_one(run, tmp_path, engine, x, to):
    kinds = [helper.np_dtype_to_tensor_dtype(np.dtype(t)) for t in (x.dtype, to)]
    graph = helper.make_graph([helper.make_node("BitCast", ["x"], ["y"], to=kinds[1])], "bits", [helper.make_tensor_value_info("x", kinds[0], x.shape)],
                              [helper.make_tensor_value_info("y", kinds[1], x.shape)])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 26)], ir_version=13), tmp_path / "m.onnx")
    (tmp_path / "x.pb").write_bytes(numpy_helper.from_array(x, "x").SerializeToString())
    run("run", "m.onnx", f"--engine={engine}", "--input=x=x.pb", "--output-dir=out", "--output-format=pb")
    return numpy_helper.to_array(onnx.load_tensor(tmp_path / "out/y.pb"))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("a, b", WIDTHS, ids=lambda t: np.dtype(t).name)
def test_there_and_back(run, tmp_path, engine, a, b):
    x = np.random.default_rng(0).standard_normal((3, 5)) * 3
    x = (abs(x) if a is ml_dtypes.float8_e8m0fnu else x).astype(a) if np.dtype(a).kind not in "iu" else np.arange(15).reshape(3, 5).astype(a)
    y = run_one(run, tmp_path, engine, x, b)
    assert y.dtype == b and (y == x.view(b)).all()
    back = run_one(run, tmp_path, engine, x.view(b), a)
    assert back.dtype == a and (back == x).all()


def test_widths_differ(run, tmp_path):
    graph = helper.make_graph([helper.make_node("BitCast", ["x"], ["y"], to=onnx.TensorProto.INT64)], "bits",
                              [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [3])], [helper.make_tensor_value_info("y", onnx.TensorProto.INT64, [3])])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 26)], ir_version=13), tmp_path / "m.onnx")
    assert "f32 has 32 bits, s64 has 64" in run("check", "m.onnx", exit=3).stderr
