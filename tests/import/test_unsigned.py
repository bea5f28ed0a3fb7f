"""Integers at the ends of their types: order, and data above what s64 holds."""
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

TYPES = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]
ENGINES = ["interp", "compiled"]


def run_model(run, tmp_path, nodes, x, out, engine):
    """y of a model of `nodes` with input x; `out`: its dtype and shape."""
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", kind, x.shape)],
                              [helper.make_tensor_value_info("y", *out)])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
              tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", x)
    run("run", tmp_path / "model.onnx", f"--input=x={tmp_path / 'x.npy'}", f"--engine={engine}",
        f"--output-dir={tmp_path}")
    return np.load(tmp_path / "y.npy")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", TYPES)
def test_arg_min_and_max(run, tmp_path, dtype, engine):
    ends = np.iinfo(dtype)
    x = np.array([[1, ends.min, 0, ends.max], [ends.max, 2, ends.max, 1], [ends.max - 1, ends.max, 3, 4],
                  [ends.min + 1, ends.min, ends.min, 0]], dtype)
    for name, want in ("ArgMin", x.argmin(1)), ("ArgMax", x.argmax(1)):
        got = run_model(run, tmp_path, [helper.make_node(name, ["x"], ["y"], axis=1, keepdims=0)], x,
                        (TensorProto.INT64, [4]), engine)
        assert got.tolist() == want.tolist(), name


@pytest.mark.parametrize("engine", ENGINES)
def test_data_above_s64(run, tmp_path, engine):
    x = np.array([0, 1, 2**63 - 1, 2**63, 2**64 - 1], np.uint64)
    got = run_model(run, tmp_path, [helper.make_node("Add", ["x", "x"], ["y"])], x, (TensorProto.UINT64, [5]), engine)
    assert got.dtype == np.uint64 and got.tolist() == (x + x).tolist()
    got = run_model(run, tmp_path, [helper.make_node("Identity", ["x"], ["y"])], x, (TensorProto.UINT64, [5]), engine)
    assert got.tolist() == x.tolist()
