"""Windows that slide over spatial axes: the pools, what puts maxima back, and LRN, a pool over channels."""
import numpy as np
from case import Case, numbers


def functional():
    import torch.nn.functional as F
    return F


def image(*shape, **options):
    return {"x": numbers(*shape, **options)}


def window(kernel, strides=None, pads=None, **more):
    attrs = {"kernel_shape": list(kernel), **more}
    if strides:
        attrs["strides"] = list(strides)
    if pads:
        attrs["pads"] = list(pads) * 2
    return attrs


def max_pool(axes, kernel, stride=1, padding=0, dilation=1, ceil=False):
    return lambda x: getattr(functional(), f"max_pool{axes}d")(x, kernel, stride, padding, dilation, ceil)


def average_pool(axes, kernel, stride=1, padding=0, ceil=False, with_pads=False):
    return lambda x: getattr(functional(), f"avg_pool{axes}d")(x, kernel, stride, padding, ceil, with_pads)


def norm_pool(p, axes, kernel, stride=1, padding=0):
    """torch's lp_pool has no pads, and takes a sum's sign: this is the sum of |x|^p, padded by hand."""
    def run(x):
        F = functional()
        size = 1
        for k in kernel:
            size *= k
        padded = F.pad(x.abs().pow(p), [padding] * (2 * axes))
        return (getattr(F, f"avg_pool{axes}d")(padded, kernel, stride) * size).pow(1 / p)
    return run


def max_pool_places(kernel, stride, padding, columns=False):
    def run(x):
        y, at = functional().max_pool2d(x, kernel, stride, padding, return_indices=True)
        rows, width = x.shape[2:]
        if columns:
            at = at // width + at % width * rows
        planes = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], 1, 1) * rows * width
        return y, at + at.new_tensor(planes)
    return run


def unpooled(kernel, stride, size):
    return lambda x, at, *_: functional().max_unpool2d(x, at, kernel, stride, output_size=size)


PLACES = np.array([[[[0, 7], [10, 15]]]], np.int64)

CASES = [
    Case("MaxPool_1d", "MaxPool", image(2, 3, 7), max_pool(1, 3), window([3])),
    Case("MaxPool_2d", "MaxPool", image(2, 3, 7, 8), max_pool(2, (3, 2), (2, 1), (1, 0)), window([3, 2], [2, 1], [1, 0])),
    Case("MaxPool_dilated", "MaxPool", image(1, 2, 7, 9), max_pool(2, 3, 2, 1, 2), window([3, 3], [2, 2], [1, 1], dilations=[2, 2])),
    Case("MaxPool_ceil", "MaxPool", image(1, 1, 6, 7), max_pool(2, 3, 2, 0, 1, True), window([3, 3], [2, 2], ceil_mode=1)),
    Case("MaxPool_same", "MaxPool", image(1, 2, 5, 5), lambda x: functional().max_pool2d(functional().pad(x, (0, 1, 0, 1), value=-9), 2),
         window([2, 2], [2, 2], auto_pad="SAME_UPPER")),
    Case("MaxPool_3d", "MaxPool", image(1, 1, 4, 5, 3), max_pool(3, 2), window([2, 2, 2])),
    Case("MaxPool_one", "MaxPool", image(1, 1, 1, 1), max_pool(2, 1), window([1, 1])),
    Case("MaxPool_none", "MaxPool", image(0, 2, 5, 5), None, window([2, 2])),
    Case("MaxPool_places", "MaxPool", image(2, 3, 7, 8), max_pool_places((3, 2), (2, 1), (1, 0)), window([3, 2], [2, 1], [1, 0]), outputs=2),
    Case("MaxPool_columns", "MaxPool", image(2, 2, 5, 7), max_pool_places(2, 2, 0, True), window([2, 2], [2, 2], storage_order=1), outputs=2),

    Case("AveragePool_1d", "AveragePool", image(2, 3, 7), average_pool(1, 3), window([3])),
    Case("AveragePool_pads", "AveragePool", image(2, 3, 7, 8), average_pool(2, (3, 2), (2, 1), (1, 0)), window([3, 2], [2, 1], [1, 0])),
    Case("AveragePool_with_pads", "AveragePool", image(2, 3, 7, 8), average_pool(2, 3, 2, 1, False, True),
         window([3, 3], [2, 2], [1, 1], count_include_pad=1)),
    Case("AveragePool_ceil", "AveragePool", image(1, 2, 6, 7), average_pool(2, 3, 2, 0, True), window([3, 3], [2, 2], ceil_mode=1)),
    Case("AveragePool_dilated", "AveragePool", image(1, 1, 7), lambda x: (x[..., :-4] + x[..., 2:-2] + x[..., 4:]) / 3, window([3], dilations=[2])),
    Case("AveragePool_3d", "AveragePool", image(1, 2, 3, 4, 5), average_pool(3, 2), window([2, 2, 2])),

    *(Case(f"LpPool_{p}", "LpPool", image(2, 3, 7, 8), norm_pool(p, 2, (3, 2), (2, 1)), window([3, 2], [2, 1], p=p)) for p in (1, 2, 3)),
    Case("LpPool_pads", "LpPool", image(1, 2, 7), norm_pool(2, 1, [3], 2, 1), window([3], [2], [1])),
    Case("LpPool_dilated", "LpPool", image(1, 1, 7), lambda x: (x[..., :-4]**2 + x[..., 2:-2]**2 + x[..., 4:]**2).sqrt(), window([3], dilations=[2])),
    Case("LpPool_ceil", "LpPool", image(1, 1, 5, 5, 5), None, window([2, 2, 2], [2, 2, 2], ceil_mode=1)),
    Case("LpPool_11", "LpPool", image(1, 1, 5, 6), norm_pool(2, 2, (2, 2)), window([2, 2]), opset=11),
    Case("LpPool_zeros", "LpPool", {"x": np.zeros((1, 1, 4))}, None, window([2]), differences=False),

    Case("GlobalMaxPool", "GlobalMaxPool", image(2, 3, 4, 5), lambda x: x.amax((2, 3), keepdim=True)),
    Case("GlobalAveragePool", "GlobalAveragePool", image(2, 3, 4, 5), lambda x: x.mean((2, 3), keepdim=True)),
    Case("GlobalAveragePool_1d", "GlobalAveragePool", image(2, 3, 1), lambda x: x.mean(2, keepdim=True)),
    *(Case(f"GlobalLpPool_{p}", "GlobalLpPool", image(2, 3, 4, 5, low=0.3), lambda x, p=p: x.abs().pow(p).sum((2, 3), keepdim=True).pow(1 / p), {"p": p})
      for p in (1, 2, 5)),

    Case("MaxUnpool", "MaxUnpool", {"x": numbers(1, 1, 2, 2), "at": PLACES}, unpooled(2, 2, (4, 4)), window([2, 2], [2, 2])),
    Case("MaxUnpool_shape", "MaxUnpool", {"x": numbers(1, 1, 2, 2), "at": PLACES, "shape": np.array([1, 1, 5, 6])},
         lambda x, at, shape: functional().pad(functional().max_unpool2d(x, at, 2, 2), (0, 2, 0, 1)), window([2, 2], [2, 2])),
    Case("MaxUnpool_fed", "MaxUnpool", {"x": numbers(1, 1, 2, 2), "at": PLACES}, unpooled(2, 2, (4, 4)), window([2, 2], [2, 2]), fed=("at",)),

    *(Case(f"LRN_{size}", "LRN", image(2, 6, 3, 3), lambda x, size=size: functional().local_response_norm(x, size, 0.25, 0.625, 1.5) if size % 2 else None,
           {"size": size, "alpha": 0.25, "beta": 0.625, "bias": 1.5}) for size in (1, 3, 5)),
    Case("LRN_even", "LRN", image(2, 5, 4), None, {"size": 4}),
    Case("LRN_defaults", "LRN", image(1, 7, 2, 2), lambda x: functional().local_response_norm(x, 3), {"size": 3}, opset=12),
    Case("LRN_none", "LRN", image(1, 0, 2, 2), None, {"size": 3}),
]
