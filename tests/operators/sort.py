"""Order along an axis, and running sums."""
import numpy as np
from case import Case, numbers


def top(k, axis, largest=1, sorted_=1):
    def run(x, _):
        values, at = x.topk(k, axis, bool(largest))
        return values, at
    return run


def top_k(name, x, k, axis, largest=1, opset=24):
    return Case(f"TopK_{name}", "TopK", {"x": x, "k": np.array([k])}, top(k, axis, largest), {"axis": axis, "largest": largest}, 2, opset=opset)


def cumulated(op, f):
    def case(name, x, axis, reverse=0, exclusive=0):
        def run(x, _):
            import torch
            y = x.flip(axis) if reverse else x
            if exclusive:
                one = torch.full_like(y.narrow(axis, 0, 1), 0.0 if op == "CumSum" else 1.0)
                y = torch.cat([one, y.narrow(axis, 0, y.shape[axis] - 1)], axis)
            y = f(y, axis)
            return y.flip(axis) if reverse else y
        return Case(f"{op}_{name}", op, {"x": x, "axis": np.array(axis)}, run, {"reverse": reverse, "exclusive": exclusive})
    return [case("plain", numbers(3, 5), 1), case("first", numbers(3, 5), -2), case("reverse", numbers(3, 5), 1, 1), case("exclusive", numbers(3, 5), 0, 0, 1),
            case("both", numbers(7), 0, 1, 1), case("one", numbers(1), 0)]


CASES = [
    top_k("largest", numbers(3, 7), 3, 1), top_k("smallest", numbers(3, 7), 2, -2, 0), top_k("all", numbers(5), 5, 0), top_k("one", numbers(2, 1), 1, 1),
    top_k("11", numbers(3, 7), 3, 1, opset=11),
    Case("TopK_9", "TopK", {"x": numbers(3, 7)}, lambda x: x.topk(2, 1), {"k": 2, "axis": 1}, 2, opset=9),
    *(Case(f"{op}_{axis}_{keep}", op, {"x": numbers(2, 3, 4)}, lambda x, f=f, axis=axis, keep=keep: getattr(x, f)(axis, keepdim=bool(keep)),
           {"axis": axis, "keepdims": keep}, constants=("x",)) for op, f in (("ArgMax", "argmax"), ("ArgMin", "argmin")) for axis in (0, -1) for keep in (0, 1)),
    *cumulated("CumSum", lambda x, a: x.cumsum(a)), *cumulated("CumProd", lambda x, a: x.cumprod(a)),
    Case("CumProd_zeros", "CumProd", {"x": np.array([1.5, 0.0, 2.0, 0.0]), "axis": np.array(0)}, lambda x, _: x.cumprod(0)),
]
