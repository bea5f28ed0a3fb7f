"""Results that have as many elements as the data say, known when the model is read: Compress, Unique, NonZero; and BitCast."""
import numpy as np

from case import Case, numbers

FEW = np.array([3.5, -1.0, 2.0, 3.5, 2.0, -1.0, -1.0])


def compress(axis):
    def f(x, condition):
        kept = condition.nonzero().flatten()
        return x.flatten()[kept] if axis is None else x.index_select(axis, kept)
    return f


def unique(axis, first, group, counts):
    """Of those first elements or slices; torch.unique has no gradient."""
    def f(x):
        import torch
        y = x.flatten()[first] if axis is None else x.index_select(axis, torch.tensor(first))
        return y, torch.tensor(first), torch.tensor(group), torch.tensor(counts)
    return f


def as_integers(x):
    import torch
    return x.view(torch.int64)


def as_floats(x):
    import torch
    return x.view(torch.float64)


def bits(*words):
    return np.array(words, bool)


SLICES = np.stack([numbers(2, 3, seed=k) for k in (0, 1, 0, 2)], 1)  # [2, 4, 3]: slice 2 is slice 0
CASES = [
    Case("Compress", "Compress", {"x": numbers(3, 5), "condition": bits(1, 0, 1)}, compress(0), {"axis": 0}),
    Case("Compress_negative_axis", "Compress", {"x": numbers(3, 5), "condition": bits(0, 1, 1, 0, 1)}, compress(1), {"axis": -1}),
    Case("Compress_short", "Compress", {"x": numbers(2, 7), "condition": bits(1, 0, 1)}, compress(1), {"axis": 1}),
    Case("Compress_flat", "Compress", {"x": numbers(3, 3), "condition": bits(0, 1, 1, 0, 0, 0, 1, 1)}, compress(None)),
    Case("Compress_nothing", "Compress", {"x": numbers(3, 5), "condition": bits(0, 0, 0)}, compress(0), {"axis": 0}),
    Case("Compress_one", "Compress", {"x": numbers(1), "condition": bits(1)}, compress(0), {"axis": 0}),
    Case("Compress_empty", "Compress", {"x": numbers(0, 3), "condition": bits()}, compress(0), {"axis": 0}),
    # what is known of an input, not of a parameter: no differences
    Case("Unique", "Unique", {"x": FEW}, unique(None, [1, 2, 0], [2, 0, 1, 2, 1, 0, 0], [3, 2, 2]), outputs=4, differences=False),
    Case("Unique_as_they_come", "Unique", {"x": FEW}, unique(None, [0, 1, 2], [0, 1, 2, 0, 2, 1, 1], [2, 3, 2]), {"sorted": 0}, outputs=4,
         differences=False),
    Case("Unique_slices", "Unique", {"x": SLICES}, unique(1, [0, 1, 3], [0, 1, 0, 2], [2, 1, 1]), {"axis": -2, "sorted": 0}, outputs=4,
         differences=False),
    Case("Unique_one", "Unique", {"x": numbers(1)}, unique(None, [0], [0], [1]), outputs=4, differences=False),
    Case("NonZero", "NonZero", {"x": np.array([[0, 2.5, 0], [-1, 0, 3]])}, lambda x: x.nonzero().T, gradient=False),
    Case("NonZero_nothing", "NonZero", {"x": np.zeros((2, 3))}, lambda x: x.nonzero().T, gradient=False),
    Case("BitCast", "BitCast", {"x": numbers(3, 5)}, as_integers, {"to": 7}, gradient=False),
    Case("BitCast_back", "BitCast", {"x": np.arange(5, dtype=np.int64) << 60}, as_floats, {"to": 11},
         fed=("x",), gradient=False),
]
