"""Batch norms on GPUs (pass merge_sums): mean and variance from one read, gradients from another, and how far the results are from f64's."""
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from team_lines import Library, typed

TARGET = "cuda-sm_90"
PASSES = ("merge_sums", "simplify", "rematerialize", "legalize", "fuse", "lower")
UNIT = 2.0**-24
ADDITIONS = 64  # of these shapes, at most so many follow one another: of a member, of the members' tree, of chunks


def batch_norm(shape, channel):
    """x, dy, w -> mean, variance, dx, dw, db, as import and autograd write a batch norm and its gradient."""
    rank, c = len(shape), shape[channel]
    axes = [i for i in range(rank) if i != channel]
    n = int(np.prod(shape)) // c
    x, v, lines = typed("f32", shape), f"f32[{c}]", []

    def node(text, of=x):
        lines.append(f"%{len(lines)} = {text} : {of}")
        return f"%{len(lines) - 1}"

    def large(op, *operands):
        return node(f"{op} {', '.join(operands)}")

    def small(op, *operands):
        return node(f"{op} {', '.join(operands)}", v)

    def total(of):
        return node(f"reduce {of} {{kind = sum, axes = {axes}}}", v)

    def spread(of):
        return node(f"broadcast {of} {{shape = {[*shape]}, axes = [{channel}]}}")

    def number(value):
        constant = node(f"constant {{value = f32[] [{value}]}}", "f32[]")
        return node(f"broadcast {constant} {{shape = [{c}]}}", v)

    count = number(float(n))
    mean = small("div", total("%a0"), count)
    d = large("sub", "%a0", spread(mean))
    variance = small("div", total(large("mul", d, d)), count)
    inverse = small("rsqrt", small("add", variance, number(1e-5)))
    scale = spread(inverse)
    db, dw = total("%a1"), total(large("mul", "%a1", large("mul", d, scale)))
    scaled = large("mul", "%a1", spread("%a2"))
    cube = small("mul", small("mul", inverse, inverse), inverse)
    factor = small("div", small("mul", total(large("mul", scaled, d)), cube), count)
    back = large("sub", large("mul", scaled, scale), large("mul", spread(factor), d))
    dx = large("add", back, spread(small("div", total(large("neg", back)), count)))
    results = [("f32", (c,)), ("f32", (c,)), ("f32", shape), ("f32", (c,)), ("f32", (c,))]
    body = "".join(f"  {line}\n" for line in lines)
    text = f"(%a0: {x}, %a1: {x}, %a2: {v}) -> ({', '.join(typed(*r) for r in results)}) {{\n{body}  return {mean}, {variance}, {dx}, {dw}, {db}\n}}\n"
    return SimpleNamespace(text=text, results=results, channel=channel, axes=tuple(axes), shape=shape, n=n,
                           middle=tuple(slice(None) if i == channel else size // 2 for i, size in enumerate(shape)))


def want(f, x, dy, w):
    """The same in f64."""
    wide = [1] * len(f.shape)
    wide[f.channel] = -1
    x, dy, w = x.astype(np.float64), dy.astype(np.float64), w.astype(np.float64).reshape(wide)
    mean, variance = x.mean(f.axes, keepdims=True), x.var(f.axes, keepdims=True)
    inverse = 1 / np.sqrt(variance + float(np.float32(1e-5)))
    normal = (x - mean) * inverse
    db, dw = dy.sum(f.axes), (dy * normal).sum(f.axes)
    dx = w * inverse * (dy - db.reshape(wide) / f.n - normal * dw.reshape(wide) / f.n)
    return mean.ravel(), variance.ravel(), dx, dw, db


CASES = [batch_norm(*c) for c in (((8, 16, 32, 40), 1), ((3, 5, 130, 131), 1), ((6, 33, 37, 64), 3), ((5000, 9), 1), ((4, 300, 16, 16), 1))]


@pytest.fixture
def library(run, tmp_path):
    return Library(run, tmp_path, TARGET, CASES, PASSES)


def data(f, offset=0, outlier=0):
    """outlier: added to the element of each channel from which distances are summed."""
    random = np.random.default_rng(1)
    x, dy = random.standard_normal((2, *f.shape))
    x[f.middle] += outlier
    return [a.astype(np.float32) for a in (x + offset, dy, random.standard_normal(f.shape[f.channel]))]


def test_errors_stay_below_their_bound(library):
    """The bound of merge_sums.c. Numbers around 1e5 have a resolution of 1/128: this is part of x, not of the error."""
    for (offset, outlier), (i, f) in itertools.product([(0, 0), (1e3, 0), (-1e5, 0), (1e3, 100)], enumerate(CASES)):
        x, dy, w = data(f, offset, outlier)
        got, (mean, variance, *_) = library.call(i, [x, dy, w]), want(f, x, dy, w)
        t = (mean - x[f.middle].astype(np.float64)) / np.sqrt(variance)
        of_mean = UNIT * (3 * abs(mean) + (ADDITIONS + 1) * np.sqrt(variance * (1 + t**2)))
        assert (abs(got[0] - mean) <= of_mean).all(), (offset, f.shape)
        assert (abs(got[1] - variance) <= 3 * (ADDITIONS + 4) * UNIT * (1 + t**2) * variance + of_mean**2).all(), (offset, f.shape)


def test_gradients(library):
    for offset, (i, f) in itertools.product([0, 10], enumerate(CASES)):
        operands = data(f, offset)
        for got, exact in zip(library.call(i, operands)[2:], want(f, *operands)[2:]):
            assert np.linalg.norm(got - exact) <= 1e-5 * np.linalg.norm(exact), (offset, f.shape)


def test_one_number_repeated_has_no_variance(library):
    for i, f in enumerate(CASES):
        x = np.full(f.shape, 1234.56, np.float32)
        mean, variance, *gradients = library.call(i, [x, *data(f)[1:]])
        assert (mean == x.flat[0]).all() and (variance == 0).all() and np.isfinite(gradients[0]).all(), f.shape


def test_a_given_centre(run, tmp_path):
    """sum((x - 1000) f), where f is known after a sum: x close to 1000 costs no digits."""
    shape, of = (16, 64, 512), "f32[16,64,512]"
    text = f"""(%a0: {of}, %a1: {of}) -> (f32[64], f32[64]) {{
  %0 = reduce %a1 {{kind = sum, axes = [0,2]}} : f32[64]
  %1 = broadcast %0 {{shape = [16,64,512], axes = [1]}} : {of}
  %2 = constant {{value = f32[] [1000.0]}} : f32[]
  %3 = broadcast %2 {{shape = [16,64,512]}} : {of}
  %4 = sub %a0, %3 : {of}
  %5 = mul %4, %1 : {of}
  %6 = reduce %5 {{kind = sum, axes = [0,2]}} : f32[64]
  return %0, %6
}}
"""
    f = SimpleNamespace(text=text, results=[("f32", (64,)), ("f32", (64,))])
    random = np.random.default_rng(2)
    x, y = (1000 + 0.01 * random.standard_normal(shape)).astype(np.float32), random.standard_normal(shape).astype(np.float32)
    _, got = Library(run, tmp_path, TARGET, [f], PASSES).call(0, [x, y])
    want = (x.astype(np.float64) - 1000).sum((0, 2)) * y.astype(np.float64).sum((0, 2))
    assert np.linalg.norm(got - want) <= 1e-5 * np.linalg.norm(want)
