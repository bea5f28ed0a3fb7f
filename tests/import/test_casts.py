"""Cast and CastLike to small floats: what `saturate` and `round_mode` become."""
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper


def cast_model(path, op, to, opset, **attributes):
    like = op == "CastLike"
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])]
    inputs += [helper.make_tensor_value_info("like", to, [1])] if like else []
    node = helper.make_node(op, [i.name for i in inputs], ["y"], **({} if like else {"to": to}), **attributes)
    graph = helper.make_graph([node], "cast", inputs, [helper.make_tensor_value_info("y", to, [4])])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), path)


CASES = [
    ("FLOAT8E4M3FN", 19, {}, "{to = f8e4m3}"),
    ("FLOAT8E4M3FN", 19, {"saturate": 0}, "{to = f8e4m3, overflow = special}"),
    ("FLOAT8E5M2", 19, {}, "{to = f8e5m2, overflow = saturate}"),
    ("FLOAT8E5M2", 19, {"saturate": 0}, "{to = f8e5m2, overflow = special}"),
    ("FLOAT8E4M3FNUZ", 21, {"saturate": 0}, "{to = f8e4m3fnuz, overflow = special}"),
    ("FLOAT8E8M0", 24, {}, "{to = e8m0, round = away}"),
    ("FLOAT8E8M0", 24, {"round_mode": "down"}, "{to = e8m0, round = toward_zero}"),
    ("FLOAT8E8M0", 24, {"round_mode": "nearest", "saturate": 0}, "{to = e8m0, overflow = special}"),
    ("FLOAT16", 19, {"saturate": 0}, "{to = f16}"),
]


@pytest.mark.parametrize("op", ["Cast", "CastLike"])
@pytest.mark.parametrize("to, opset, attributes, text", CASES)
def test_attributes(run, tmp_path, op, to, opset, attributes, text):
    cast_model(tmp_path / "m.onnx", op, getattr(TensorProto, to), opset, **attributes)
    assert f"cast %x {text} : " in run("dump", tmp_path / "m.onnx", "--stage=import").stdout


def test_unknown_rounding(run, tmp_path):
    cast_model(tmp_path / "m.onnx", "Cast", TensorProto.FLOAT8E8M0, 24, round_mode="sideways")
    done = run("dump", tmp_path / "m.onnx", "--stage=import", exit=3)
    assert 'round_mode "sideways" is none of up, down, nearest' in done.stderr


@pytest.mark.parametrize("engine", ["interp", "compiled"])
@pytest.mark.parametrize("to, least, most", [("INT4", -8, 7), ("UINT4", 0, 15), ("UINT2", 0, 3), ("INT8", -128, 127)])
def test_engines_run_packed_integers(run, tmp_path, engine, to, least, most):
    """Rows of 7 and 5 end within bytes."""
    x = np.linspace(-9.5, 20, 35, dtype=np.float32).reshape(7, 5)
    nodes = [helper.make_node("Cast", ["x"], ["q"], to=getattr(TensorProto, to)),
             helper.make_node("Transpose", ["q"], ["t"], perm=[1, 0]),
             helper.make_node("Cast", ["t"], ["y"], to=TensorProto.FLOAT)]
    graph = helper.make_graph(nodes, "packed", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [7, 5])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, [5, 7])])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=12), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", x)
    run("run", tmp_path / "m.onnx", f"--input=x={tmp_path / 'x.npy'}", f"--engine={engine}", f"--output-dir={tmp_path}")
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), np.clip(np.trunc(x), least, most).T)
