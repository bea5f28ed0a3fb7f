"""The loss of a training without --loss: by the form of the first output, and said with the reason."""
import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper


def write(path, shape, end=None, outputs=1, dtype=TensorProto.FLOAT):
    """x [batch,3,...] times w, with the output's shape; `end`: a last operator."""
    width = int(np.prod([d for d in shape[1:]]))
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]),
             helper.make_node("Reshape", ["h", "shape"], ["r"])]
    nodes += [helper.make_node(end, ["r"], ["y"])] if end else [helper.make_node("Identity", ["r"], ["y"])]
    weights = {"w": np.linspace(-1, 1, 3 * width, dtype=np.float32).reshape(3, width), "shape": np.array([-1, *shape[1:]], np.int64)}
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])],
                              [helper.make_tensor_value_info("y", dtype, shape)], [numpy_helper.from_array(a, n) for n, a in weights.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.parametrize("shape, end, loss, why", [
    (["batch"], None, "mse", "is one number for each row"),
    (["batch", 1], None, "mse", "is one number for each row"),
    (["batch", 1, 1], None, "mse", "is one number for each row"),
    (["batch", 1], "Relu", "mse", "is one number for each row"),
    (["batch", 1], "Sigmoid", "mse", "is the result of a sigmoid"),
    (["batch", 4], "Sigmoid", "mse", "is the result of a sigmoid"),
    (["batch", 4], None, "cross_entropy", "several classes"),
    (["batch", 4], "LogSoftmax", "cross_entropy", "several classes"),
    (["batch", 5, 1], None, "mse", "has one channel"),
    (["batch", 5, 4], None, "cross_entropy", "several classes"),
    (["batch", 1, 4, 4], None, "mse", "has one channel"),
    (["batch", 3, 4, 4], None, "cross_entropy", "several classes"),
])
def test_by_form(run, tmp_path, shape, end, loss, why):
    model = write(tmp_path / "m.onnx", shape, end)
    said = run("compile", model, "-o", "out", "--batch=2", "--stop-after=loss").stderr
    assert f'note: {model}: no --loss is given: it is {loss}, because output "y"' in said and why in said
    assert f"--loss={loss} says the same" in said and "hint: " in said
    assert "no --loss" not in run("compile", model, "-o", "out", "--batch=2", "--stop-after=loss", f"--loss={loss}").stderr
    assert run("compile", model, "-o", "out", "--batch=2", "--stop-after=loss", "-q").stderr == ""


@pytest.mark.parametrize("engine", ["interp", "compiled"])
def test_the_gradient_is_of_that_loss(run, tmp_path, engine):
    model = write(tmp_path / "m.onnx", ["batch", 1])
    x, labels = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([[1], [2]], np.float32)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "labels.npy", labels)
    done = run("grad", model, "--input=x=x.npy", "--input=labels=labels.npy", "--output-dir=out", f"--engine={engine}", "--json")
    w = np.linspace(-1, 1, 3, dtype=np.float32)[:, None]
    assert json.loads(done.stdout)["loss"] == pytest.approx(float(((x @ w - labels) ** 2).mean()), rel=1e-6)
    assert "no --loss is given: it is mse" in done.stderr


def test_check_shows_no_loss(run, tmp_path):
    said = run("check", write(tmp_path / "m.onnx", ["batch", 1]))
    assert "no --loss" not in said.stderr and "target" not in said.stdout
