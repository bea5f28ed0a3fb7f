"""Determinants."""
import numpy as np
from case import Case, numbers

SINGULAR = np.array([[1.0, 2.0, 3.0], [2.0, 4.1, 6.0], [3.0, 6.0, 9.0]])


def det(name, x, **options):
    def run(x):
        import torch
        return torch.linalg.det(x)
    return Case(f"Det_{name}", "Det", {"x": x}, run, **options)


CASES = [
    *(det(str(n), numbers(n, n)) for n in (1, 2, 3, 7)), det("batch", numbers(2, 3, 4, 4)), det("none", numbers(0, 3, 3)),
    det("permutation", np.eye(5)[[3, 0, 4, 1, 2]]), det("11", numbers(2, 2), opset=11),
    # of rank 2: torch solves with the matrix, to fewer digits
    Case("Det_singular", "Det", {"x": SINGULAR}, None), Case("Det_zeros", "Det", {"x": np.zeros((2, 2))}, None),
]
