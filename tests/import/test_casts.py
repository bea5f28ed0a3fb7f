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
    assert 'round_mode "sideways" is not one of up, down, nearest' in done.stderr


@pytest.mark.parametrize("engine", ["interp", "compiled"])
@pytest.mark.parametrize("to, least, most", [("INT4", -8, 7), ("UINT4", 0, 15), ("UINT2", 0, 3), ("INT8", -128, 127)])
def test_engines_run_packed_integers(run, tmp_path, engine, to, least, most):
    """Rows of 7 and 5 end within bytes. What does not fit keeps its low bits, as in ONNX's own tests."""
    x = np.linspace(-9.5, 20, 35, dtype=np.float32).reshape(7, 5)
    nodes = [helper.make_node("Cast", ["x"], ["q"], to=getattr(TensorProto, to)),
             helper.make_node("Transpose", ["q"], ["t"], perm=[1, 0]),
             helper.make_node("Cast", ["t"], ["y"], to=TensorProto.FLOAT)]
    graph = helper.make_graph(nodes, "packed", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [7, 5])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, [5, 7])])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=12), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", x)
    run("run", tmp_path / "m.onnx", f"--input=x={tmp_path / 'x.npy'}", f"--engine={engine}", f"--output-dir={tmp_path}")
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), (np.trunc(x) - least).T % (most - least + 1) + least)


def save_casts(path, to, **attributes):
    """y = the rounded x, widened; and the rounded one itself."""
    nodes = [helper.make_node("Cast", ["x"], ["q"], name="/round", to=getattr(TensorProto, to), **attributes),
             helper.make_node("Cast", ["q"], ["y"], name="/widen", to=TensorProto.FLOAT)]
    graph = helper.make_graph(nodes, "rounds", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [7])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, [7]),
                               helper.make_tensor_value_info("q", getattr(TensorProto, to), [7])])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=12), path)


X = np.array([465, 1e30, -1e30, 2.5, 0.3, 1.1, 3], np.float32)
NAN, INF = np.nan, np.inf


@pytest.mark.parametrize("engine", ["interp", "compiled"])
@pytest.mark.parametrize("to, attributes, y", [
    ("FLOAT8E4M3FN", {"saturate": 0}, [NAN, NAN, NAN, 2.5, 0.3125, 1.125, 3]),
    ("FLOAT8E4M3FN", {}, [448, 448, -448, 2.5, 0.3125, 1.125, 3]),
    ("FLOAT8E5M2", {"saturate": 0}, [448, INF, -INF, 2.5, 0.3125, 1, 3]),
    ("FLOAT8E5M2", {}, [448, 57344, -57344, 2.5, 0.3125, 1, 3]),
    ("FLOAT8E8M0", {"round_mode": "up"}, [512, 2.0 ** 100, None, 4, 0.5, 2, 4]),
    ("FLOAT8E8M0", {"round_mode": "down"}, [256, 2.0 ** 99, None, 2, 0.25, 1, 2]),
])
def test_engines_round_as_the_model_says(run, tmp_path, engine, to, attributes, y):
    """The model computes in f32; what its casts to eight bits lose is lost."""
    save_casts(tmp_path / "m.onnx", to, **attributes)
    np.save(tmp_path / "x.npy", X)
    run("run", tmp_path / "m.onnx", f"--input=x={tmp_path / 'x.npy'}", f"--engine={engine}", "--output-format=pb",
        f"--output-dir={tmp_path}")
    for name in "y", "q":
        got = onnx.numpy_helper.to_array(onnx.load_tensor(str(tmp_path / f"{name}.pb"))).astype(np.float32)
        known = [i for i, v in enumerate(y) if v is not None]
        np.testing.assert_array_equal(got[known], np.array([y[i] for i in known], np.float32))


def test_gradients_pass_a_rounding_unrounded(run, tmp_path):
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "w"], ["h"], name="/mul"),
         helper.make_node("Cast", ["h"], ["q"], name="/round", to=TensorProto.FLOAT8E4M3FN),
         helper.make_node("Cast", ["q"], ["y"], name="/widen", to=TensorProto.FLOAT)], "rounds",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
        [onnx.numpy_helper.from_array(np.ones(4, np.float32), "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "m.onnx")
    x = np.array([[0.3, 1.1, 2.7, 0.01]], np.float32)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "labels.npy", np.zeros_like(x))
    run("grad", tmp_path / "m.onnx", "--loss=mse", f"--input=x={tmp_path / 'x.npy'}",
        f"--input=labels={tmp_path / 'labels.npy'}", f"--output-dir={tmp_path}")
    rounded = np.array([0.3125, 1.125, 2.75, 0.009765625])
    np.testing.assert_allclose(np.load(tmp_path / "grad.w.npy"), (2 * rounded / 4 * x[0]).astype(np.float32), rtol=1e-6)


@pytest.mark.parametrize("engine", ["interp", "compiled"])
@pytest.mark.parametrize("to", ["INT4", "UINT4", "INT2", "UINT2", "FLOAT4E2M1", "FLOAT8E8M0", "FLOAT8E4M3FN", "BFLOAT16"])
def test_tensor_files_of_every_type(run, tmp_path, engine, to):
    """Seven elements end within a byte; they come out as they went in."""
    onnx_type = getattr(TensorProto, to)
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "same",
                              [helper.make_tensor_value_info("x", onnx_type, [7])],
                              [helper.make_tensor_value_info("y", onnx_type, [7])])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=12), tmp_path / "m.onnx")
    low = -1 if to.startswith("I") else 1
    values = np.array([1, low, 1, 1, low, low, 1]).astype(helper.tensor_dtype_to_np_dtype(onnx_type))
    (tmp_path / "x.pb").write_bytes(onnx.numpy_helper.from_array(values, "x").SerializeToString())
    run("run", tmp_path / "m.onnx", f"--input=x={tmp_path / 'x.pb'}", f"--engine={engine}", "--output-format=pb",
        f"--output-dir={tmp_path}")
    y = onnx.load_tensor(str(tmp_path / "y.pb"))
    assert y.data_type == onnx_type and onnx.numpy_helper.to_array(y).tobytes() == values.tobytes()
