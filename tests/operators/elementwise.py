"""Operators that work element by element."""
import numpy as np
from case import Case, numbers


def unary(op, torch, low=-2.0, high=2.0, **attrs):
    return [Case(f"{op}_{'x'.join(map(str, shape)) or 'scalar'}", op, {"x": numbers(*shape, low=low, high=high)}, torch, attrs)
            for shape in ((3, 5), (0, 2), ())]


CASES = [
    *unary("Exp", lambda x: x.exp()),
    *unary("Tanh", lambda x: x.tanh()),
    *unary("Sqrt", lambda x: x.sqrt(), low=0.1),
]
