"""Attention and its gradients by the formula in NumPy, float64."""
from dataclasses import dataclass

import numpy as np


@dataclass
class Result:
    """Of attend(): the output [B, H, Tq, Dv], and with a cotangent the gradients to q, k, v and to the biased scores."""
    output: np.ndarray
    dq: np.ndarray = None
    dk: np.ndarray = None
    dv: np.ndarray = None
    dscores: np.ndarray = None  # [B, H, Tq, Tk], 0 where keys are hidden


def softmax(x):
    """Along the last axis; rows of -inf are NaN."""
    with np.errstate(invalid="ignore"):
        e = np.exp(x - x.max(-1, keepdims=True, initial=-np.inf))
        return e / e.sum(-1, keepdims=True)


def sum_groups(x, kv_heads):
    """The sum over the query heads that share a head of k and v."""
    return x.reshape(x.shape[0], kv_heads, x.shape[1] // kv_heads, *x.shape[2:]).sum(2)


def attend(q, k, v, scale=1.0, bias=0.0, seen=True, cap=0.0, cotangent=None, fill=-np.inf, empty=np.nan):
    """softmax(where(seen, softcap(scale q k') + bias, fill)) v; rows of scores that are all -inf have `empty` as probabilities.

    q [B, H, Tq, D]; k and v [B, KV, Tk, .]; bias and seen broadcast to [B, H, Tq, Tk]; cotangent: of the output, None for the output alone."""
    group = q.shape[1] // k.shape[1]
    wide_k, wide_v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    with np.errstate(invalid="ignore", over="ignore"):
        x = scale * (q @ wide_k.swapaxes(2, 3))
        slope = 1.0
        if cap:
            t = np.tanh(x / cap)
            x, slope = cap * t, 1 - t * t
        x = np.where(seen, x + bias, fill)
        p = np.where((x == -np.inf).all(-1, keepdims=True), empty, softmax(x))
        if cotangent is None:
            return Result(p @ wide_v)
        dp = cotangent @ wide_v.swapaxes(2, 3)
        ds = np.where(seen, p * (dp - (p * dp).sum(-1, keepdims=True)), 0)
        dx = scale * slope * ds
        return Result(p @ wide_v, dx @ wide_k, sum_groups(dx.swapaxes(2, 3) @ q, k.shape[1]),
                      sum_groups(p.swapaxes(2, 3) @ cotangent, k.shape[1]), ds)
