"""PyTorch's results and gradients in f64 for the tables of tests/operators, in tests/operators/torch/FAMILY.npz: CASE.yN and grad.CASE.INPUT.

usage: operators.py [FAMILY...]
"""
import sys
from pathlib import Path

import numpy as np
import torch

OPERATORS = Path(__file__).resolve().parents[1] / "operators"
sys.path.insert(0, str(OPERATORS))
import case as tables  # noqa: E402


def values(case, out):
    """Adds those of a case."""
    wrt = case.differentiable()
    inputs = {n: None if x is None else torch.from_numpy(np.array(x)).requires_grad_(n in wrt) for n, x in case.inputs.items()}
    results = case.torch(*inputs.values())
    results = results if isinstance(results, tuple) else (results,)
    total = 0
    for i, y in enumerate(results[:case.outputs]):
        out[tables.port(case, f"y{i}")] = y.detach().numpy()
    for y in results[:case.outputs]:
        if y.dtype == torch.float64 and case.gradient:
            total = total + (y * torch.from_numpy(tables.weights(tuple(y.shape))).to(y)).sum()
    if wrt and isinstance(total, torch.Tensor) and total.requires_grad:
        grads = torch.autograd.grad(total, [inputs[n] for n in wrt], allow_unused=True)
        for n, g in zip(wrt, grads):
            out[f"grad.{tables.port(case, n)}"] = np.zeros_like(case.inputs[n]) if g is None else g.numpy()


def main():
    (OPERATORS / "torch").mkdir(exist_ok=True)
    for family in sys.argv[1:] or tables.families():
        out = {}
        for group in tables.cases(family).values():
            for case in group:
                if case.torch:
                    values(case, out)
        np.savez_compressed(OPERATORS / "torch" / f"{family}.npz", **out)
        print(f"{family}: {len(out)} arrays")


if __name__ == "__main__":
    main()
