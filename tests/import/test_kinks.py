"""Gradients where a function or the formula it is made of has a kink: as PyTorch's. What is smooth has its derivative
there, whatever it is made of."""
import os
import sys

import numpy as np
import onnx
import pytest

sys.path.insert(0, os.path.dirname(__file__))
from make_malformed import model, node, tensor, value  # noqa: E402

SELU = 1.0507009873554805 * 1.6732632423543772
NAN, INF = float("nan"), float("inf")


def bounds(*both):
    return [tensor(name, np.float32(b)) for name, b in zip(("low", "high"), both)]


# node, its other inputs, x, dy/dx
CASES = [
    (node("Relu"), [], [0], [0]),
    (node("LeakyRelu", alpha=0.25), [], [0], [0.25]),
    (node("Abs"), [], [0], [0]),
    (node("Softplus"), [], [0, 1], [0.5, 1 / (1 + np.exp(-1))]),
    (node("Mish"), [], [0], [0.6]),
    (node("Elu", alpha=2.0), [], [0, -1, 1], [2, 2 * np.exp(-1), 1]),
    (node("Celu", alpha=2.0), [], [0, -1, 1], [1, np.exp(-0.5), 1]),
    (node("Selu"), [], [0], [SELU]),
    (node("Softsign"), [], [0], [1]),
    (node("Asinh"), [], [0, -1, 1], [1, 0.5 ** 0.5, 0.5 ** 0.5]),
    (node("Clip", ["x", "low", "high"]), bounds(-1, 2), [-2, -1, 0, 2, 3], [0, 0, 1, 0, 0]),
    (node("Clip", ["x", "low"]), bounds(0), [0, 1], [0, 1]),
    (node("Max", ["x", "low"]), bounds(0), [0, 1], [0.5, 1]),
    (node("HardSigmoid", alpha=0.25), [], [-2, 0, 2], [0, 0.25, 0]),
    (node("HardSwish"), [], [-3, 0, 3], [0, 0.5, 1]),
    (node("ReduceL2"), [], [0, 0, 0], [0, 0, 0]),
    (node("ReduceL2"), [], [3, 0, 4], [0.6, 0, 0.8]),
    (node("ReduceL1"), [], [-3, 0, 4], [-1, 0, 1]),
    (node("ReduceProd"), [], [2, 0, 3], [0, 6, 0]),
    (node("ReduceProd"), [], [2, 0, 0], [0, 0, 0]),
    (node("ReduceMax"), [], [2, 2, 0], [0.5, 0.5, 0]),
    (node("ReduceLogSumExp"), [], [0, -INF], [1, 0]),
    (node("Pow", ["x", "low"]), bounds(2), [0, -3], [0, -6]),
    (node("Pow", ["x", "low"]), bounds(0), [0, 2], [0, 0]),
]


def case_name(case):
    return f"{case[0].op_type}-" + "-".join(f"{x:g}" for x in case[2])


def write_model(folder, nodes, inputs, n, outputs):
    onnx.save(model(nodes, inputs=[value("x", (n,))], outputs=[value(*o) for o in outputs],
                    initializers=inputs, opset=18), folder / "model.onnx")


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_gradient(run, tmp_path, case):
    step, inputs, x, expected = case
    total = node("ReduceSum", ["y"], ["total"], name="total", keepdims=0)
    write_model(tmp_path, [step, total], inputs, len(x), [("total", ())])
    np.save(tmp_path / "x.npy", np.float32(x))
    run("grad", "model.onnx", "--loss=output:total", "--input", "x=x.npy", "--wrt", "x", "--output-dir", "out")
    np.testing.assert_allclose(np.load(tmp_path / "out" / "grad.x.npy"), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("engine", ["interp", "compiled"])
@pytest.mark.parametrize("step, inputs, x, expected", [
    (node("Clip", ["x", "low", "high"]), bounds(-1, 2), [NAN, INF, -INF], [NAN, 2, -1]),
    (node("Elu"), [], [NAN, INF, -INF], [NAN, INF, -1]),
    (node("Softplus"), [], [NAN, INF, -INF, 100], [NAN, INF, 0, 100]),
    (node("Asinh"), [], [NAN, -1e-30, 1e-30], [NAN, -1e-30, 1e-30]),
    (node("HardSigmoid"), [], [NAN, INF, -INF], [NAN, 1, 0]),
    (node("ReduceL2"), [], [NAN, 0], [NAN]),
    (node("ReduceL2"), [], [0, -0.0], [0]),
    (node("ReduceLogSumExp"), [], [-INF, -INF], [-INF]),
    (node("ReduceLogSumExp"), [], [-INF, INF], [INF]),
    (node("ReduceLogSumExp"), [], [NAN, 0], [NAN]),
], ids=lambda v: v.op_type if isinstance(v, onnx.NodeProto) else "")
def test_value(run, tmp_path, step, inputs, x, expected, engine):
    write_model(tmp_path, [step], inputs, len(x), [("y", None)])
    np.save(tmp_path / "x.npy", np.float32(x))
    run("run", "model.onnx", f"--engine={engine}", "--input", "x=x.npy", "--output-dir", "out")
    np.testing.assert_allclose(np.load(tmp_path / "out" / "y.npy").ravel(), np.float32(expected), rtol=1e-6)
