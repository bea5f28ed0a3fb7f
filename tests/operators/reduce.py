"""Reductions over axes."""
import numpy as np
from case import Case, numbers

AXES = {"all": None, "one": [1], "two": [-1, 0], "none": []}


def dims(axes, rank):
    return tuple(range(rank)) if axes is None else tuple(a % rank for a in axes)


def reduction(op, torch, low=-1.0):
    """torch: (x, axes, keep) -> result"""
    def case(name, axes, keep, shape=(2, 3, 4), opset=26, noop=0):
        over = () if noop and not axes else dims(axes or None, len(shape))
        attrs = {"keepdims": keep, **({"noop_with_empty_axes": noop} if opset >= 18 else {})}
        inputs = {"x": numbers(*shape, low=low, high=1.5)}
        if opset < 18:
            attrs.update({"axes": axes} if axes else {})
        elif axes is not None:
            inputs["axes"] = np.array(axes, np.int64)
        return Case(f"{op}_{name}_{keep}", op, inputs, lambda x, *_: torch(x, over, bool(keep)) if over else torch(x[None], (0,), False), attrs, opset=opset)
    cases = [case(name, axes, keep) for name, axes in AXES.items() for keep in (0, 1)]
    cases += [case("noop", [], 1, noop=1), case("vector", [0], 0, (5,)), case("single", [1], 1, (3, 1)), case("rows", [1], 0, (0, 3))]
    return cases + ([case("11", [1, 2], 0, opset=11)] if op != "ReduceSum" else [])


def product(x, axes, keep):
    for a in sorted(axes, reverse=True):
        x = x.prod(a, keepdim=keep)
    return x


CASES = [
    *reduction("ReduceSum", lambda x, a, k: x.sum(a, keepdim=k)), *reduction("ReduceMean", lambda x, a, k: x.mean(a, keepdim=k)),
    *reduction("ReduceMax", lambda x, a, k: x.amax(a, keepdim=k)), *reduction("ReduceMin", lambda x, a, k: x.amin(a, keepdim=k)),
    *reduction("ReduceProd", product, 0.5), *reduction("ReduceL1", lambda x, a, k: x.abs().sum(a, keepdim=k)),
    *reduction("ReduceL2", lambda x, a, k: x.square().sum(a, keepdim=k).sqrt()), *reduction("ReduceSumSquare", lambda x, a, k: x.square().sum(a, keepdim=k)),
    *reduction("ReduceLogSum", lambda x, a, k: x.sum(a, keepdim=k).log(), 0.5), *reduction("ReduceLogSumExp", lambda x, a, k: x.logsumexp(a, keepdim=k)),
    Case("ReduceMax_ties", "ReduceMax", {"x": np.array([[1.0, 3.0, 3.0, 2.0]])}, lambda x: x.amax((0, 1), keepdim=True), differences=False),
    Case("ReduceMin_ties", "ReduceMin", {"x": np.array([[1.0, 1.0, 1.0, 2.0]])}, lambda x: x.amin((0, 1), keepdim=True), differences=False),
    Case("ReduceProd_zeros", "ReduceProd", {"x": np.array([[0.0, 3.0, 2.0], [0.0, 0.0, 2.0]]), "axes": np.array([1])}, lambda x, _: x.prod(1, keepdim=True)),
    Case("ReduceL2_zeros", "ReduceL2", {"x": np.zeros((2, 3))}, lambda x: x.norm()[None, None], differences=False),
]
