"""Gathers and scatters."""
import numpy as np
from case import Case, numbers


def gather(name, shape, at, axis, fed=False, opset=13):
    at = np.array(at, np.int64)

    def run(x, at):
        at = at % x.shape[axis]
        shape = x.shape[:axis % x.dim()] + at.shape + x.shape[axis % x.dim() + 1:]
        return x.index_select(axis, at.reshape(-1)).reshape(shape)
    return Case(f"Gather_{name}", "Gather", {"x": numbers(*shape), "at": at}, run, {"axis": axis}, fed=("at",) if fed else (), opset=opset)


def elements(name, shape, at, axis, fed=False):
    return Case(f"GatherElements_{name}", "GatherElements", {"x": numbers(*shape), "at": np.array(at, np.int64)},
                lambda x, at: x.gather(axis, at % x.shape[axis]), {"axis": axis}, fed=("at",) if fed else ())


def tuples(name, shape, at, torch, batch=0, fed=False):
    return Case(f"GatherND_{name}", "GatherND", {"x": numbers(*shape), "at": np.array(at, np.int64)}, lambda x, _: torch(x), {"batch_dims": batch},
                fed=("at",) if fed else ())


REDUCE = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def scatter_elements(name, shape, at, axis, reduction="none", fed=False, op="ScatterElements", opset=18, low=-1.0, **options):
    at = np.array(at, np.int64)

    def run(x, at, updates):
        at = at % x.shape[axis]
        return x.scatter(axis, at, updates) if reduction == "none" else x.scatter_reduce(axis, at, updates, REDUCE[reduction])
    attrs = {"axis": axis, **({} if reduction == "none" else {"reduction": reduction})}
    return Case(f"{op}_{name}", op, {"x": numbers(*shape, low=low, high=1.7), "at": at, "updates": numbers(*at.shape, seed=1, low=low, high=1.9)}, run, attrs,
                fed=("at",) if fed else (), opset=opset, **options)


def scatter_tuples(name, shape, at, updates, reduction="none", fed=False, low=-1.0, **options):
    at = np.array(at, np.int64)

    def run(x, at, updates):
        import torch
        n, k = int(np.prod(x.shape[at.shape[-1]:])), at.shape[-1]
        flat, place = x.reshape(-1, n), 0
        for i in range(k):
            place = place * x.shape[i] + at[..., i] % x.shape[i]
        place, updates = place.reshape(-1, 1).expand(-1, n), updates.reshape(-1, n)
        y = flat.scatter(0, place, updates) if reduction == "none" else flat.scatter_reduce(0, place, updates, REDUCE[reduction])
        return y.reshape(x.shape)
    attrs = {} if reduction == "none" else {"reduction": reduction}
    return Case(f"ScatterND_{name}", "ScatterND", {"x": numbers(*shape, low=low, high=1.7), "at": at, "updates": numbers(*updates, seed=1, low=low, high=1.9)}, run, attrs,
                fed=("at",) if fed else (), opset=18, **options)


def reversed_rows(time):
    def run(x, lens):
        import torch
        rows = x if time == 1 else x.transpose(0, 1)
        y = torch.stack([torch.cat([r[:n].flip(0), r[n:]]) for r, n in zip(rows, lens.tolist())])
        return y if time == 1 else y.transpose(0, 1)
    return run


def reverse(name, shape, lens, time, fed=False):
    return Case(f"ReverseSequence_{name}", "ReverseSequence", {"x": numbers(*shape), "lens": np.array(lens, np.int64)}, reversed_rows(time),
                {"time_axis": time, "batch_axis": 1 - time}, fed=("lens",) if fed else ())


def one_hot(axis, name="", at=(1, -1, 2)):
    def run(at, depth, values):
        places = at.new_tensor(range(4))
        hot = ((at[:, None] == places) | (at[:, None] + 4 == places)).to(values)
        y = values[0] + (values[1] - values[0]) * hot
        return y.T if axis == 0 else y
    return Case(f"OneHot_{axis}{name}", "OneHot", {"at": np.array(at), "depth": np.array(4), "values": np.array([0.25, 2.0])}, run, {"axis": axis})


ROWS = [[0, 2], [3, 1], [1, 0]]
TWICE = [[0, 2, 2, 0], [1, 1, 0, 2]]  # places that are named twice

CASES = [
    gather("rows", (5, 3), [4, 0, 4], 0), gather("matrix", (2, 4, 3), [[0, -1], [2, 2]], 1), gather("scalar", (3, 4), 2, -1), gather("fed", (5, 3), [1, 3, 3, 0], 0, True),
    gather("none", (3, 2), np.zeros((0,), np.int64), 0), gather("one", (1, 2), [0], 0),
    elements("rows", (4, 2), [[0, 3], [1, 1]], 0), elements("last", (2, 3), [[2, 0, -1, 1], [0, 0, 1, 2]], 1), elements("fed", (4, 2), [[0, 3], [1, 1]], 0, True),
    tuples("points", (2, 3, 4), [[0, 1, 2], [1, -1, 0]], lambda x: x[[0, 1], [1, 2], [2, 0]]), tuples("rows", (2, 3, 4), [[[0, 1]], [[1, 2]]], lambda x: x[[0, 1], [1, 2]][:, None]),
    tuples("batch", (2, 3, 4), [[[2], [0]], [[1], [1]]], lambda x: x[[[0, 0], [1, 1]], [[2, 0], [1, 1]]], 1),
    tuples("fed", (2, 3), [[1, 2], [0, 0], [1, 2]], lambda x: x[[1, 0, 1], [2, 0, 2]], fed=True),

    scatter_elements("set", (3, 4), ROWS, 1), scatter_elements("first", (5, 2), [[4, 0], [1, 3]], 0), scatter_elements("add", (2, 3), TWICE, 1, "add"),
    scatter_elements("mul", (2, 3), TWICE, 1, "mul", low=0.5), scatter_elements("max", (2, 3), TWICE, 1, "max"), scatter_elements("min", (2, 3), TWICE, 1, "min"),
    scatter_elements("fed", (2, 3), TWICE, -1, "add", True), scatter_elements("11", (3, 4), ROWS, 1, opset=11),
    scatter_elements("9", (3, 4), ROWS, 1, op="Scatter", opset=9),
    scatter_tuples("set", (4, 3), [[1], [3]], (2, 3)), scatter_tuples("points", (3, 4), [[0, 1], [2, 3], [1, -1]], (3,)),
    *(scatter_tuples(kind, (3, 2, 2), [[0], [2], [0]], (3, 2, 2), kind, low=0.5) for kind in REDUCE), scatter_tuples("fed", (4, 3), [[1], [3], [1]], (3, 3), "add", True),

    reverse("time", (4, 3, 2), [3, 1, 4], 0), reverse("batch", (3, 4), [4, 2, 0], 1), reverse("fed", (4, 2), [2, 3], 0, True), reverse("one", (1, 1), [1], 0),
    one_hot(0), one_hot(-1), one_hot(-1, "_outside", (4, -5, 3, -4)),
]
