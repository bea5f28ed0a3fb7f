"""Open dimensions: bound by symbol, by INPUT[AXIS] where they have none, and by the files of inputs."""
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper


@pytest.fixture
def model(tmp_path):
    """y = x + z; x f32[?, ?, 3], z f32[rows, ?, 3]."""
    ports = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, None, 3]),
             helper.make_tensor_value_info("z", TensorProto.FLOAT, ["rows", None, 3]),
             helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, None, 3])]
    graph = helper.make_graph([helper.make_node("Add", ["x", "z"], ["y"], name="add")], "open",
                              ports[:2], ports[2:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
              tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


@pytest.mark.parametrize("form", ["npy", "pb"])
@pytest.mark.parametrize("engine", ["interp", "compiled"])
def test_files_bind_open_dimensions(run, model, tmp_path, engine, form):
    random = np.random.default_rng(0)
    values = {n: random.standard_normal((2, 5, 3)).astype(np.float32) for n in "xz"}
    inputs = []
    for name, a in values.items():
        path = tmp_path / f"{name}.{form}"
        if form == "npy":
            np.save(path, a)
        else:
            path.write_bytes(numpy_helper.from_array(a, name).SerializeToString())
        inputs += ["--input", f"{name}={path}"]
    run("run", model, f"--engine={engine}", *inputs, "--output-dir", tmp_path / "out")
    np.testing.assert_array_equal(np.load(tmp_path / "out/y.npy"), values["x"] + values["z"])


def test_compile_binds_by_input_and_axis(run, model, tmp_path):
    done = run("dump", model, "--stage=import", "--dim=x[0]=2", "--dim=rows=2", "--dim=x[1]=7",
               "--dim=z[1]=7")
    assert "func @forward(%x: f32[2,7,3] is input 0 rows, %z: f32[2,7,3] is input 1 rows)" in done.stdout


def test_what_is_open_is_listed(run, model, tmp_path):
    done = run("compile", model, "-o", tmp_path / "train", "--loss=mse", exit=2)
    for text in ('x[0] of input "x" (axis 0)', 'x[1] of input "x" (axis 1)',
                 'rows of input "z" (axis 0)', 'z[1] of input "z" (axis 1)'):
        assert text in done.stderr
    done = run("check", model, "--dim=x[2]=3", exit=2)
    assert "its open dimensions: x[0], x[1], rows, z[1]" in done.stderr
