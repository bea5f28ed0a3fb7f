"""Operators that work element by element: arithmetic, elementary functions, activations, choices."""
import numpy as np
from case import Case, numbers


def functional():
    import torch.nn.functional as F
    return F


def unary(op, torch, low=-2.0, high=2.0, name="", shapes=((3, 5), (0, 2), ()), opset=26, differences=True, **attrs):
    return [Case("_".join(filter(None, (op, name, "x".join(map(str, shape)) or "scalar"))), op, {"x": numbers(*shape, low=low, high=high)}, torch,
                 attrs, opset=opset, differences=differences) for shape in shapes]


def one(op, torch, low=-2.0, high=2.0, name="", **attrs):
    return unary(op, torch, low, high, name, ((3, 5),), **attrs)


PAIRS = {"same": ((3, 5), (3, 5)), "row": ((3, 5), (5,)), "column": ((1, 5), (3, 1)), "scalar": ((), (2, 3)), "none": ((0, 2), (1, 2))}


def binary(op, torch, low=-2.0, high=2.0, low_y=None, pairs=PAIRS, opset=26, **attrs):
    return [Case(f"{op}_{name}", op, {"x": numbers(*x, low=low, high=high), "y": numbers(*y, seed=1, low=low if low_y is None else low_y, high=high)},
                 torch, attrs, opset=opset) for name, (x, y) in pairs.items()]


def several(op, torch):
    shapes = {"one": [(3, 5)], "two": [(3, 5), (5,)], "three": [(2, 1, 3), (4, 1), (1,)]}
    return [Case(f"{op}_{name}", op, {f"x{i}": numbers(*s, seed=i) for i, s in enumerate(list_)}, torch) for name, list_ in shapes.items()]


def reduced(f):
    def run(*x):
        import functools
        return functools.reduce(f, x)
    return run


def broadcast_before_7(op, torch):
    x, y = numbers(2, 3, 4, low=0.5, high=2), numbers(3, seed=1, low=0.5, high=2)
    return Case(f"{op}_6", op, {"x": x, "y": y}, lambda a, b: torch(a, b[:, None]), {"broadcast": 1, "axis": 1}, opset=6)


def gelu_of_numbers_in_f32(x):
    """ONNX's function has its constants in f32."""
    return x / 2 * (1 + (float(np.float32(2 / np.pi))**0.5 * (x + float(np.float32(0.044715)) * x**3)).tanh())


def maximum(a, b):
    return a.maximum(b)


def minimum(a, b):
    return a.minimum(b)


LEFT = np.array([[True, False, True], [False, False, True]])

flat = {"differences": False}  # its gradient is 0
CASES = [
    *unary("Abs", lambda x: x.abs()), *unary("Neg", lambda x: -x), *unary("Exp", lambda x: x.exp()), *unary("Log", lambda x: x.log(), low=0.1),
    *unary("Sqrt", lambda x: x.sqrt(), low=0.1), *unary("Reciprocal", lambda x: x.reciprocal(), low=0.3),
    *one("Floor", lambda x: x.floor(), **flat), *one("Ceil", lambda x: x.ceil(), **flat), *one("Sign", lambda x: x.sign(), **flat),
    *unary("Round", lambda x: x + (x.round() - x).detach(), differences=False), *unary("Erf", lambda x: x.erf()),
    *one("Sin", lambda x: x.sin(), high=9), *one("Cos", lambda x: x.cos(), high=9), *one("Tan", lambda x: x.tan(), -1.4, 1.4),
    *one("Asin", lambda x: x.asin(), -1, 1), *one("Acos", lambda x: x.acos(), -1, 1), *one("Atan", lambda x: x.atan(), -4, 4),
    *one("Sinh", lambda x: x.sinh()), *one("Cosh", lambda x: x.cosh()), *unary("Tanh", lambda x: x.tanh()),
    *one("Asinh", lambda x: x.asinh(), -4, 4), *one("Acosh", lambda x: x.acosh(), 1.1, 4), *one("Atanh", lambda x: x.atanh(), -0.95, 0.95),
    *unary("Sigmoid", lambda x: x.sigmoid()),
    Case("Asin_ends", "Asin", {"x": np.array([-1.0, 0.0, 0.5, 1.0])}, lambda x: x.asin(), differences=False, gradient=False),
    Case("Acos_ends", "Acos", {"x": np.array([-1.0, 0.0, 0.5, 1.0])}, lambda x: x.acos(), differences=False, gradient=False),

    *binary("Add", lambda x, y: x + y), *binary("Sub", lambda x, y: x - y), *binary("Mul", lambda x, y: x * y),
    *binary("Div", lambda x, y: x / y, low_y=0.4), *binary("Pow", lambda x, y: x**y, low=0.3),
    *binary("Mod", lambda x, y: x.fmod(y), -7, 7, 2.3, fmod=1),
    *(broadcast_before_7(op, f) for op, f in (("Add", lambda x, y: x + y), ("Sub", lambda x, y: x - y), ("Mul", lambda x, y: x * y),
                                              ("Div", lambda x, y: x / y), ("Pow", lambda x, y: x**y))),
    Case("Pow_squares", "Pow", {"x": numbers(3, 5), "y": np.array(2.0)}, lambda x, y: x**2, constants=("y",)),
    Case("Pow_integer", "Pow", {"x": numbers(3, 5, low=0.3), "y": np.array(3)}, lambda x, y: x**3),
    *several("Sum", reduced(lambda a, b: a + b)), *several("Max", reduced(maximum)), *several("Min", reduced(minimum)),
    *several("Mean", lambda *x: reduced(lambda a, b: a + b)(*x) / len(x)),

    Case("Clip_both", "Clip", {"x": numbers(3, 5), "low": np.array(-0.4), "high": np.array(0.3)}, lambda x, low, high: x.clamp(low, high)),
    Case("Clip_low", "Clip", {"x": numbers(3, 5), "low": np.array(-0.4), "high": None}, lambda x, low, high: x.clamp(min=low)),
    Case("Clip_high", "Clip", {"x": numbers(3, 5), "low": None, "high": np.array(0.3)}, lambda x, low, high: x.clamp(max=high)),
    Case("Clip_none", "Clip", {"x": numbers(3, 5)}, lambda x: x * 1), Case("Clip_empty", "Clip", {"x": numbers(0), "low": np.array(0.0)}, None),
    Case("Clip_6", "Clip", {"x": numbers(3, 5)}, lambda x: x.clamp(-0.25, 0.5), {"min": -0.25, "max": 0.5}, opset=6),
    *(Case(f"Where_{name}", "Where", {"c": LEFT, "x": x, "y": y}, lambda c, x, y: x.where(c, y))
      for name, x, y in (("same", numbers(2, 3), numbers(2, 3, seed=1)), ("row", numbers(3), numbers(2, 1)), ("scalar", numbers(), numbers(4, 1, 1)))),
    Case("Cast", "Cast", {"x": numbers(3, 5)}, lambda x: x * 1, {"to": 11}), Case("CastLike", "CastLike", {"x": numbers(3), "y": numbers(2, seed=1)}, lambda x, y: x * 1, constants=("y",)),
    Case("Identity", "Identity", {"x": numbers(3, 5)}, lambda x: x * 1),

    *unary("Relu", lambda x: x.relu()), *unary("LeakyRelu", lambda x: functional().leaky_relu(x, 0.25), alpha=0.25),
    *one("Elu", lambda x: functional().elu(x, 0.75), alpha=0.75), *one("Celu", lambda x: functional().celu(x, 0.75), alpha=0.75),
    *one("Selu", lambda x: 1.0625 * functional().elu(x, 1.75), alpha=1.75, gamma=1.0625),
    *one("Gelu", lambda x: functional().gelu(x)), *one("Gelu", gelu_of_numbers_in_f32, name="tanh", approximate="tanh"),
    *one("HardSigmoid", lambda x: (x * 0.25 + 0.5).clamp(0, 1), -4, 4, alpha=0.25, beta=0.5), *one("HardSwish", lambda x: x * (x * float(np.float32(1 / 6)) + 0.5).clamp(0, 1), -5, 5),
    *one("Mish", lambda x: functional().mish(x)), *unary("Softplus", lambda x: functional().softplus(x), high=9), *one("Softsign", lambda x: functional().softsign(x)),
    *one("ThresholdedRelu", lambda x: functional().threshold(x, 0.5, 0), alpha=0.5),
    *one("Shrink", lambda x: functional().hardshrink(x, 0.5), lambd=0.5), *one("Shrink", lambda x: functional().softshrink(x, 0.5), name="soft", lambd=0.5, bias=0.5),
    *one("Swish", lambda x: functional().silu(x)), *one("Swish", lambda x: x * (x * 1.5).sigmoid(), name="alpha", alpha=1.5),
    Case("PRelu_channel", "PRelu", {"x": numbers(2, 3, 4), "slope": numbers(3, 1, seed=1)}, lambda x, s: x.where(x > 0, x * s)),
    Case("PRelu_one", "PRelu", {"x": numbers(2, 3, 4), "slope": numbers(1, seed=1)}, lambda x, s: x.where(x > 0, x * s)),
    Case("PRelu_same", "PRelu", {"x": numbers(2, 3), "slope": numbers(2, 3, seed=1)}, lambda x, s: x.where(x > 0, x * s)),
    Case("Dropout_inference", "Dropout", {"x": numbers(3, 5), "ratio": np.array(0.5), "training": np.array(False)}, lambda x, *_: x * 1, constants=("ratio",)),
    Case("BitShift", "BitShift", {"x": np.array([1, 2, 3], np.uint8), "y": np.array([2], np.uint8)}, lambda x, y: x << y, {"direction": "LEFT"}, fed=("x",)),
]
