"""Normalizations."""
import numpy as np
from case import Case, numbers


def functional():
    import torch.nn.functional as F
    return F


def layer(name, shape, axis, bias=True, epsilon=2.0**-10):
    tail = shape[axis:]
    return Case(f"LayerNormalization_{name}", "LayerNormalization", {"x": numbers(*shape), "scale": numbers(*tail, seed=1), "bias": numbers(*tail, seed=2) if bias else None},
                lambda x, scale, bias=None: functional().layer_norm(x, tail, scale, bias, epsilon), {"axis": axis, "epsilon": epsilon}, opset=17)


def rms(name, shape, axis, epsilon=2.0**-10):
    tail = shape[axis:]
    return Case(f"RMSNormalization_{name}", "RMSNormalization", {"x": numbers(*shape), "scale": numbers(*tail, seed=1)},
                lambda x, scale: functional().rms_norm(x, tail, scale, epsilon), {"axis": axis, "epsilon": epsilon}, opset=23)


def batch(name, shape, training, opset=15, **attrs):
    c = shape[1]
    inputs = {"x": numbers(*shape), "scale": numbers(c, seed=1), "bias": numbers(c, seed=2), "mean": numbers(c, seed=3), "var": numbers(c, seed=4, low=0.5, high=2)}
    epsilon = attrs.setdefault("epsilon", 2.0**-10)
    return Case(f"BatchNormalization_{name}", "BatchNormalization", inputs,
                lambda x, scale, bias, mean, var: functional().batch_norm(x, mean.detach().clone(), var.detach().clone(), scale, bias, False, 0.1, epsilon),
                attrs, opset=opset, constants=("mean", "var"))


CASES = [
    layer("last", (2, 3, 4), -1), layer("two", (2, 3, 4), 1), layer("plain", (3, 5), -1, False), layer("one", (3, 1), -1), layer("none", (0, 3), -1),
    rms("last", (2, 3, 4), -1), rms("two", (2, 3, 4), -2),
    Case("InstanceNormalization", "InstanceNormalization", {"x": numbers(2, 3, 4, 5), "scale": numbers(3, seed=1), "bias": numbers(3, seed=2)},
         lambda x, scale, bias: functional().instance_norm(x, None, None, scale, bias, True, 0.1, 2.0**-10), {"epsilon": 2.0**-10}),
    *(Case(f"GroupNormalization_{opset}", "GroupNormalization", {"x": numbers(2, 4, 3), "scale": numbers(n, seed=1), "bias": numbers(n, seed=2)},
           lambda x, scale, bias, n=n: functional().group_norm(x, 2, scale.repeat_interleave(4 // n), bias.repeat_interleave(4 // n), 2.0**-10),
           {"num_groups": 2, "epsilon": 2.0**-10}, opset=opset) for opset, n in ((18, 2), (21, 4))),
    *(Case(f"LpNormalization_{p}_{axis}", "LpNormalization", {"x": numbers(3, 5)},
           lambda x, p=p, axis=axis: x / (x.abs().sum(axis, keepdim=True) if p == 1 else x.square().sum(axis, keepdim=True).sqrt()), {"p": p, "axis": axis})
      for p in (1, 2) for axis in (0, -1)),
    Case("MeanVarianceNormalization", "MeanVarianceNormalization", {"x": numbers(2, 3, 4, 5)},
         lambda x: (x - x.mean((0, 2, 3), keepdim=True)) / (x.var((0, 2, 3), correction=0, keepdim=True).sqrt() + 1e-9)),
    Case("MeanVarianceNormalization_axes", "MeanVarianceNormalization", {"x": numbers(3, 7)},
         lambda x: (x - x.mean(1, keepdim=True)) / (x.var(1, correction=0, keepdim=True).sqrt() + 1e-9), {"axes": [1]}),
    Case("BatchNormalization_statistics", "BatchNormalization", {"x": numbers(3, 4, 2), "scale": numbers(4, seed=1), "bias": numbers(4, seed=2),
                                                                "mean": numbers(4, seed=3), "var": numbers(4, seed=4, low=0.5, high=2)},
         lambda x, *p: (x - p[2][:, None]) / (p[3] + 2.0**-10).sqrt()[:, None] * p[0][:, None] + p[1][:, None], {"epsilon": 2.0**-10}, opset=15, differences=False),
    batch("inference", (3, 4, 2), False), batch("plane", (2, 3, 4, 5), False), batch("9", (3, 4), False, 9),
]
