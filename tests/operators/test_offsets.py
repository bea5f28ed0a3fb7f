"""Norms and reductions of f32 numbers far from 0. A variance that is E x^2 - (E x)^2 has no digits left there; with a mean of 1e6 it may
be negative. Right values are NumPy's in f64, gradients its central differences."""
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

SHAPE, EPSILON = (3, 4, 6), 2.0**-10
SCALE, BIAS = np.linspace(0.5, 1.5, 6, dtype=np.float32), np.linspace(-1, 1, 6, dtype=np.float32)


def normalized(x, axes, shape=SHAPE, epsilon=EPSILON):
    x = x.reshape(shape)
    d = x - x.mean(axes, keepdims=True)
    return (d / np.sqrt((d * d).mean(axes, keepdims=True) + epsilon)).reshape(SHAPE)


def channels(y, n):
    return y * SCALE[:n, None] + BIAS[:n, None]


def log_sum_exp(x):
    top = x.max(-1, keepdims=True)
    return np.log(np.exp(x - top).sum(-1)) + top[..., 0]


# name: (domain, operator, inputs behind x, attributes, the same in NumPy; do results stay near 0 whatever is added to x)
CASES = {
    "layer": ("", "LayerNormalization", [SCALE, BIAS], {"epsilon": EPSILON}, lambda x: normalized(x, -1) * SCALE + BIAS, True),
    "skip": ("com.microsoft", "SkipLayerNormalization", ["x", SCALE, BIAS], {"epsilon": EPSILON}, lambda x: normalized(2 * x, -1) * SCALE + BIAS, True),
    "instance": ("", "InstanceNormalization", [SCALE[:4], BIAS[:4]], {"epsilon": EPSILON}, lambda x: channels(normalized(x, 2), 4), True),
    "group": ("", "GroupNormalization", [SCALE[:4], BIAS[:4]], {"epsilon": EPSILON, "num_groups": 2},
              lambda x: channels(normalized(x, 2, (3, 2, 12)), 4), True),
    "batch": ("", "BatchNormalization", [SCALE[:4], BIAS[:4], np.zeros(4, np.float32), np.ones(4, np.float32)],
              {"epsilon": EPSILON, "training_mode": 1}, lambda x: channels(normalized(x, (0, 2)), 4), True),
    "mean_variance": ("", "MeanVarianceNormalization", [], {"axes": [0, 2]}, lambda x: normalized(x, (0, 2), epsilon=0), True),
    "mean_variance_all": ("", "MeanVarianceNormalization", [], {"axes": [0, 1, 2]}, lambda x: normalized(x, (0, 1, 2), epsilon=0), True),
    "softmax": ("", "Softmax", [], {"axis": -1}, lambda x: np.exp(x - log_sum_exp(x)[..., None]), True),
    "log_softmax": ("", "LogSoftmax", [], {"axis": 1}, lambda x: x - log_sum_exp(x.swapaxes(1, 2))[:, None], True),
    "rms": ("", "RMSNormalization", [SCALE], {"epsilon": EPSILON}, lambda x: x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * SCALE, False),
    "lp": ("", "LpNormalization", [], {"p": 2}, lambda x: x / np.sqrt((x * x).sum(-1, keepdims=True)), False),
    "mean": ("", "ReduceMean", [np.array([2])], {"keepdims": 0}, lambda x: x.mean(-1), False),
    "sum": ("", "ReduceSum", [np.array([0, 2])], {"keepdims": 0}, lambda x: x.sum((0, 2)), False),
    "l1": ("", "ReduceL1", [np.array([2])], {"keepdims": 0}, lambda x: np.abs(x).sum(-1), False),
    "l2": ("", "ReduceL2", [np.array([2])], {"keepdims": 0}, lambda x: np.sqrt((x * x).sum(-1)), False),
    "sum_square": ("", "ReduceSumSquare", [np.array([2])], {"keepdims": 0}, lambda x: (x * x).sum(-1), False),
    "log_sum": ("", "ReduceLogSum", [np.array([2])], {"keepdims": 0}, lambda x: np.log(x.sum(-1)), False),
    "log_sum_exp": ("", "ReduceLogSumExp", [np.array([2])], {"keepdims": 0}, log_sum_exp, False),
}


def weights(shape):
    return np.cos(np.arange(int(np.prod(shape))) * 1.7 + 0.3).reshape(shape)


def differences(function, x):
    """of the weighted sum of function's results, by five points"""
    step, slope = 3e-2, np.empty(x.shape)
    for i in np.ndindex(x.shape):
        at = {}
        for k in (-2, -1, 1, 2):
            moved = x.copy()
            moved[i] += k * step
            y = function(moved)
            at[k] = (y * weights(y.shape)).sum()
        slope[i] = (8 * (at[1] - at[-1]) - (at[2] - at[-2])) / (12 * step)
    return slope


def model(path):
    """One node a case, which reads an input of its own; `total` is the sum of all results, weighted."""
    nodes, inputs, outputs, initializers, terms = [], [], [], [], []
    for name, (domain, op, rest, attrs, function, _) in CASES.items():
        names = [f"{name}.x"]
        for i, value in enumerate(rest):
            names.append(f"{name}.x" if isinstance(value, str) else f"{name}.{i}")
            if not isinstance(value, str):
                initializers.append(numpy_helper.from_array(value, names[-1]))
        shape = function(np.ones(SHAPE) + np.arange(6)).shape
        results = [f"{name}.y"] + ([f"{name}.mean", f"{name}.variance"] if op == "BatchNormalization" else [])
        initializers.append(numpy_helper.from_array(weights(shape).astype(np.float32), f"{name}.w"))
        nodes += [helper.make_node(op, names, results, domain=domain, **attrs), helper.make_node("Mul", [f"{name}.y", f"{name}.w"], [f"{name}.weighted"]),
                  helper.make_node("ReduceSum", [f"{name}.weighted"], [f"{name}.sum"], keepdims=0)]
        inputs.append(helper.make_tensor_value_info(f"{name}.x", TensorProto.FLOAT, SHAPE))
        outputs.append(helper.make_tensor_value_info(f"{name}.y", TensorProto.FLOAT, shape))
        terms.append(f"{name}.sum")
    nodes.append(helper.make_node("Sum", terms, ["total"]))
    outputs.append(helper.make_tensor_value_info("total", TensorProto.FLOAT, ()))
    graph = helper.make_graph(nodes, "offsets", inputs, outputs, initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)], ir_version=10), path)


@pytest.mark.parametrize("engine", ["interp", "compiled"])
@pytest.mark.parametrize("offset", [1e3, 1e5, 1e6])
def test_far_from_zero(run, tmp_path, offset, engine):
    model(tmp_path / "model.onnx")
    x = (offset + np.random.default_rng(1).standard_normal(SHAPE) * offset**0.25).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    words = [w for name in CASES for w in ("--input", f"{name}.x=x.npy")]
    run("run", "model.onnx", f"--engine={engine}", *words, "--output-dir=out")
    run("grad", "model.onnx", f"--engine={engine}", "--loss=output:total", *words, *(f"--wrt={name}.x" for name in CASES), "--output-dir=grads")
    wide = x.astype(np.float64)
    for name, (_, _, _, _, function, near_zero) in CASES.items():
        y, slope = function(wide), differences(function, wide)
        # The mean is rounded to f32, and each element less it is what is left of `offset`: that much of a standard deviation.
        relative = 16 * 2.0**-24 * (offset / wide.std() if near_zero else 1)
        for what, got, want in (("y", np.load(tmp_path / f"out/{name}.y.npy"), y), ("gradient", np.load(tmp_path / f"grads/grad.{name}.x.npy"), slope)):
            error = np.abs(got - want).max() / np.abs(want).max()
            assert error < relative + 2e-6, f"{name}, {what}: {error}"
