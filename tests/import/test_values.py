"""Values where a formula or a rule breaks although the operator does not: numbers near the largest, empty
tensors, positions from the end. Most were found by tests/differential."""
import os
import sys

import numpy as np
import onnx
import pytest

sys.path.insert(0, os.path.dirname(__file__))
from make_malformed import model, node, tensor, value  # noqa: E402

INF, NAN = np.inf, np.nan
LARGE = [INF, -INF, NAN, 3e38, -3e38, 1e30, 300, 89.3, 88.9, -88.9, 2.5, 1.0001, 1, 0.5, 0]


def of_numpy(op, function, opset=22):
    """A case of one unary operator over LARGE; NumPy computes in f64, the result is f32."""
    x = np.float32(LARGE)
    with np.errstate(all="ignore"):
        y = function(x.astype(np.float64)).astype(np.float32)
    return op, [node(op)], {"x": x}, y, opset


CASES = [
    of_numpy("Sinh", np.sinh), of_numpy("Cosh", np.cosh), of_numpy("Asinh", np.arcsinh),
    of_numpy("Acosh", np.arccosh),
]


@pytest.mark.parametrize("engine", ["interp", "compiled"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0])
def test_value(run, tmp_path, case, engine):
    _, nodes, values, expected, opset = case
    held = [tensor("at", values["at"])] if "at" in values else []
    onnx.save(model(nodes, inputs=[value("x", values["x"].shape)], outputs=[value("y", expected.shape)],
                    initializers=held, opset=opset), tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", values["x"])
    run("run", "model.onnx", f"--engine={engine}", "--input", "x=x.npy", "--output-dir", "out")
    np.testing.assert_allclose(np.load(tmp_path / "out" / "y.npy"), expected, rtol=1e-5, atol=1e-9)
