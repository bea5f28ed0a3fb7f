"""Values where a formula or a rule breaks although the operator does not: large numbers, empty tensors,
positions from the end. Most were found by tests/differential."""
import os
import sys

import numpy as np
import onnx
import pytest

sys.path.insert(0, os.path.dirname(__file__))
from make_malformed import model, node, tensor, value  # noqa: E402

INF, NAN = np.inf, np.nan
LARGE = [INF, -INF, NAN, 3e38, -3e38, 1e30, 300, 89.3, 88.9, -88.9, 2.5, 1.0001, 1, 0.5, 0]


def of_numpy(op, function, opset=22, x=LARGE):
    """A case of one unary operator; NumPy computes in f64, the result is f32."""
    x = np.float32(x)
    with np.errstate(all="ignore"):
        y = function(x.astype(np.float64)).astype(np.float32)
    return op, [node(op)], {"x": x}, y, opset


def sequence(position):
    """Inserted at a position of a sequence of two, then told apart by concatenation."""
    nodes = [node("SequenceConstruct", ["x", "x"], ["s"]), node("Neg", ["x"], ["m"]),
             node("SequenceInsert", ["s", "m", "at"], ["t"]), node("ConcatFromSequence", ["t"], ["y"], axis=0)]
    parts = [1, 1]
    parts.insert(position, -1)
    return (f"SequenceInsert{position}", nodes, {"x": np.float32([1]), "at": np.array(position)},
            np.float32(parts), 17)


def empty(op, shape, result, **attributes):
    return f"empty {op}", [node(op, **attributes)], {"x": np.zeros(shape, np.float32)}, np.float32(result), 21


def no_axes():
    """An empty list is all axes, as for ReduceMean in the function body."""
    step = node("MeanVarianceNormalization")
    step.attribute.append(onnx.helper.make_attribute("axes", [], attr_type=onnx.AttributeProto.INTS))
    return "MeanVarianceNormalization", [step], {"x": np.float32([[1, 3]])}, np.float32([[-1, 1]]), 17


def ignored(op):
    """The scores of an ignored label do not count, NaN neither."""
    x = np.float32([[NAN, 1], [-2, -3]])
    nodes = [node("Constant", [], ["t"], value=tensor("", np.array([0, 1]))),
             node(op, ["x", "t"], ignore_index=0)]
    y = 3 if op == "NegativeLogLikelihoodLoss" else np.log(np.exp(-2) + np.exp(-3)) + 3
    return op, nodes, {"x": x}, np.float32(y), 17


def remainder(dtype):
    """Quotients of up to 2^300 bits, and a divisor that is infinite."""
    x = np.array([1e20, -1e20, 7e15, 1e30, -5.5, 1e-3, INF, 1e10], dtype)
    y = np.array([7, 7, 0.1, 1e-30, 2, INF, 2, 3], dtype)
    with np.errstate(invalid="ignore"):
        return f"Mod {dtype.__name__}", [node("Mod", ["x", "at"], fmod=1)], {"x": x, "at": y}, np.fmod(x, y), 17


TURNS = [1e30, -1e30, 3e38, 1e20, -1e16, 1.1e9, 12345, INF]

CASES = [
    remainder(np.float32), remainder(np.float64),
    of_numpy("Sin", np.sin, x=TURNS), of_numpy("Cos", np.cos, x=TURNS), of_numpy("Tan", np.tan, x=TURNS),
    ignored("NegativeLogLikelihoodLoss"), ignored("SoftmaxCrossEntropyLoss"),
    ("Clip_6", [node("Clip", min=0.0)], {"x": np.float32([-INF, -1, 0.5, 3e38, INF, NAN])},
     np.float32([0, 0, 0.5, 3e38, np.finfo(np.float32).max, NAN]), 6),
    of_numpy("Sinh", np.sinh), of_numpy("Cosh", np.cosh), of_numpy("Asinh", np.arcsinh),
    of_numpy("Acosh", np.arccosh),
    *(sequence(p) for p in (0, 1, 2, -1, -2)),
    no_axes(),
    empty("Hardmax", (2, 0), np.zeros((2, 0))), empty("Relu", (0, 3), np.zeros((0, 3))),
    empty("ReduceSum", (0, 2), 0, keepdims=0),
]


@pytest.mark.parametrize("engine", ["interp", "compiled"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0])
def test_value(run, tmp_path, case, engine):
    _, nodes, values, expected, opset = case
    held = [tensor("at", values["at"])] if "at" in values else []
    kind = onnx.helper.np_dtype_to_tensor_dtype(values["x"].dtype)
    onnx.save(model(nodes, inputs=[value("x", values["x"].shape, kind)], outputs=[value("y", expected.shape, kind)],
                    initializers=held, opset=opset), tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", values["x"])
    run("run", "model.onnx", f"--engine={engine}", "--input", "x=x.npy", "--output-dir", "out")
    np.testing.assert_allclose(np.load(tmp_path / "out" / "y.npy"), expected, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("engine", ["interp", "compiled"])
def test_file_for_an_initializer_is_refused(run, tmp_path, engine):
    onnx.save(model([node("Add", ["x", "w"])], inputs=[value("x"), value("w")],
                    initializers=[tensor("w", np.zeros((2, 3), np.float32))]), tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", np.ones((2, 3), np.float32))
    arguments = ["--input", "x=x.npy", "--input", "w=x.npy", "--output-dir", "out"]
    done = run("run", "model.onnx", f"--engine={engine}", *arguments, exit=2)
    assert "--input w: the model has no input of this name" in done.stderr


@pytest.mark.parametrize("engine", ["interp", "compiled"])
def test_statistics_of_layer_norm_have_their_own_type(run, tmp_path, engine):
    """stash_type is f32 by default, x f64."""
    kinds = {"x": onnx.TensorProto.DOUBLE, "y": onnx.TensorProto.DOUBLE, "m": onnx.TensorProto.FLOAT}
    ports = {name: value(name, (2, 3) if name != "m" else (2, 1), kind) for name, kind in kinds.items()}
    onnx.save(model([node("LayerNormalization", ["x", "s"], ["y", "m"])], inputs=[ports["x"]],
                    outputs=[ports["y"], ports["m"]], initializers=[tensor("s", np.ones(3))]),
              tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", np.arange(6.0).reshape(2, 3))
    run("run", "model.onnx", f"--engine={engine}", "--input", "x=x.npy", "--output-dir", "out")
    mean = np.load(tmp_path / "out" / "m.npy")
    assert mean.dtype == np.float32
    assert mean.tolist() == [[1], [4]]
