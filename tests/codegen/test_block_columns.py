"""Kernels that reduce rows and sum the columns of blocks of rows, as gradients of layer norms do, for sizes that teams of threads divide and do not
divide (codegen/lower/block_columns.c)."""
import re
from types import SimpleNamespace

import numpy as np
import pytest
from team_lines import Library, typed

# Blocks, rows of a block, columns: a warp a row, with and without a rest; wide rows, for the whole team.
SHAPES = [(4, 8, 64), (6, 10, 100), (5, 7, 33), (3, 4, 200), (16, 32, 24), (2, 2, 2), (7, 3, 1000), (6, 8, 1028), (2, 3, 1500)]
KINDS = {"sum": np.add, "max": np.maximum}


def function(blocks, rows, width, kind):
    """x, y -> x + sum over the row of x y; by block and column: the sum (or maximum) of x y, and of the first result."""
    n = blocks * rows
    full, cut, columns = typed("f32", (n, width)), typed("f32", (blocks, rows, width)), typed("f32", (blocks, width))
    text = (f"(%a0: {full}, %a1: {full}) -> ({full}, {columns}, {columns}) {{\n"
            f"  %0 = mul %a0, %a1 : {full}\n  %1 = reduce %0 {{kind = sum, axes = [1]}} : f32[{n}]\n"
            f"  %2 = broadcast %1 {{shape = [{n},{width}], axes = [0]}} : {full}\n  %3 = add %a0, %2 : {full}\n"
            f"  %4 = reshape %0 {{shape = [{blocks},{rows},{width}]}} : {cut}\n  %5 = reduce %4 {{kind = {kind}, axes = [1]}} : {columns}\n"
            f"  %6 = reshape %3 {{shape = [{blocks},{rows},{width}]}} : {cut}\n  %7 = reduce %6 {{kind = {kind}, axes = [1]}} : {columns}\n"
            f"  return %3, %5, %7\n}}\n")
    return SimpleNamespace(text=text, operands=[("f32", (n, width))] * 2, results=[("f32", (n, width)), *[("f32", (blocks, width))] * 2])


def right(x, y, blocks, kind):
    """The results in f64."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    z = x + (x * y).sum(1, keepdims=True)
    return (z, *(KINDS[kind].reduce(v.reshape(blocks, -1, v.shape[1]), axis=1) for v in (x * y, z)))


@pytest.mark.parametrize("kind", KINDS)
def test_results(run, tmp_path, kind):
    functions = [function(*shape, kind) for shape in SHAPES]
    team = Library(run, tmp_path, "cuda-sm_90", functions)
    assert len(re.findall(r"kernel @\w+\(", team.text)) == len(SHAPES)
    rng = np.random.default_rng(7)
    for i, (shape, f) in enumerate(zip(SHAPES, functions)):
        x, y = (rng.standard_normal(s).astype(np.float32) for _, s in f.operands)
        for got, want in zip(team.call(i, [x, y]), right(x, y, shape[0], kind)):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max(), err_msg=str(shape))


def test_cpus_have_two_kernels(run, tmp_path):
    """On a CPU's target, columns have a kernel of their own."""
    assert len(re.findall(r"kernel @\w+\(", Library(run, tmp_path, "cpu-512", [function(4, 8, 64, "sum")]).text)) == 3
