"""Integers at the ends of their types, where a double has no such number: order, pads, ranges, and data above what s64 holds."""
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

TYPES = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]
ENGINES = ["interp", "compiled"]


def run_model(run, tmp_path, nodes, x, out, engine, opset=17):
    """y of a model of `nodes` with input x; `out`: its dtype and shape."""
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", kind, x.shape)],
                              [helper.make_tensor_value_info("y", *out)])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8),
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
def test_equal_numbers_above_s64(run, tmp_path, engine):
    """Constants of one number each, which folding reads as a scalar: 0 and all bits of it."""
    x = np.arange(3, dtype=np.uint64)
    nodes = [helper.make_node("ConstantOfShape", ["n"], ["zeros"], value=helper.make_tensor("v", TensorProto.UINT64, [1], [0])),
             helper.make_node("BitwiseNot", ["zeros"], ["ones"]), helper.make_node("BitwiseXor", ["x", "ones"], ["y"])]
    nodes.insert(0, helper.make_node("Constant", [], ["n"], value_ints=[3]))
    got = run_model(run, tmp_path, nodes, x, (TensorProto.UINT64, [3]), engine, opset=18)
    assert got.tolist() == (~x).tolist()


@pytest.mark.parametrize("engine", ENGINES)
def test_data_above_s64(run, tmp_path, engine):
    x = np.array([0, 1, 2**63 - 1, 2**63, 2**64 - 1], np.uint64)
    got = run_model(run, tmp_path, [helper.make_node("Add", ["x", "x"], ["y"])], x, (TensorProto.UINT64, [5]), engine)
    assert got.dtype == np.uint64 and got.tolist() == (x + x).tolist()
    got = run_model(run, tmp_path, [helper.make_node("Identity", ["x"], ["y"])], x, (TensorProto.UINT64, [5]), engine)
    assert got.tolist() == x.tolist()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("value", [np.int64(2**63 - 1), np.int64(-2**63 + 1), np.int64(2**53 + 1), np.uint64(2**63 + 1)])
def test_pads(run, tmp_path, value, engine):
    nodes = [helper.make_node("Constant", [], ["p"], value_ints=[1, 0]),
             helper.make_node("Constant", [], ["v"], value=onnx.numpy_helper.from_array(np.array(value))),
             helper.make_node("Pad", ["x", "p", "v"], ["y"])]
    x = np.array([1, 2], value.dtype)
    got = run_model(run, tmp_path, nodes, x, (helper.np_dtype_to_tensor_dtype(x.dtype), [3]), engine)
    assert got.tolist() == [int(value), 1, 2]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("ends", [(2**60, 2**60 + 5, 2), (2**53 + 1, 2**53 + 4, 1), (-2**63, 2**63 - 1, 2**62), (2**63 - 1, -2**63, -2**63), (5, 2, 1)])
def test_ranges(run, tmp_path, ends, engine):
    nodes = [helper.make_node("Constant", [], [n], value_int=i) for n, i in zip("abd", ends)]
    want = list(range(*ends))
    nodes += [helper.make_node("Range", ["a", "b", "d"], ["r"]), helper.make_node("Add", ["r", "x"], ["y"])]
    got = run_model(run, tmp_path, nodes, np.zeros(len(want), np.int64), (TensorProto.INT64, [len(want)]), engine)
    assert got.tolist() == want
