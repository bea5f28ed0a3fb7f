"""Cast and CastLike to small floats: what `saturate` and `round_mode` become."""
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
