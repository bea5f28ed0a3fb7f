"""Rows, columns, squares and flat loops of teams of threads, of sizes that none of them divides, give what one thread gives."""
import itertools
import re
from types import SimpleNamespace

import numpy as np
import pytest
from team_lines import Library, numbers
from team_shapes import dims, shapes, text_of


def transposed_parts(n):
    """A concatenation of n transposes, more than a block of threads has memory for, and of parts that have no square."""
    lines = [f"%p{i} = transpose %x {{order = [0,2,1]}} : f32[3,40,9]" for i in range(n)]
    names = ", ".join(f"%p{i}" for i in range(n))
    ops = "\n    ".join([*lines, f"%0 = concat {names} {{axis = 1}} : f32[3,{40 * n},9]"]).removeprefix("%0 = ")
    return ops, (3, 9, 40), (3, 40 * n, 9)


def test_shapes(run, tmp_path):
    """Sums are in another order; numbers are small, so that their exponentials are, too."""
    cases = [*itertools.islice(shapes(), 0, None, 2)]
    functions = [SimpleNamespace(text=text_of(*c).replace("%x", "%a0"), operands=[("f32", c[1])], results=[("f32", c[2])]) for c in cases]
    ops, x, y = transposed_parts(40)
    functions.append(SimpleNamespace(text=f"(%a0: {dims(x)}) -> {dims(y)} {{\n    {ops.replace('%x', '%a0')}\n    return %0\n  }}\n",
                                     operands=[("f32", x)], results=[("f32", y)]))
    team, one = (Library(run, tmp_path, t, functions) for t in ("cuda-sm_90", "cpu-512"))
    assert team.text.count("square") > 100
    for i, f in enumerate(functions):
        x, = numbers(f.operands)
        got, = team.call(i, [x / 32])
        want, = one.call(i, [x / 32])
        np.testing.assert_allclose(got, want, rtol=2e-6, err_msg=f.text)


@pytest.mark.parametrize("width, target, kept, loads", [
    (200, "cuda-sm_90", "private", 1), (1030, "cuda-sm_90", "private", 1), (9001, "cuda-sm_90", "local", 1),
    (50257, "cuda-sm_90", "local", 1), (50257, "cuda-sm_80", None, 3), (60000, "cuda-sm_90", None, 3)])
def test_a_row_is_loaded_once(run, tmp_path, width, target, kept, loads):
    """A softmax keeps its row, where registers or a processor's memory hold it."""
    x = f"f32[8,{width}]"
    (tmp_path / "rows.gir").write_text(
        f"func @f(%x: {x}) -> {x} {{\n  %0 = reduce %x {{kind = max, axes = [1]}} : f32[8]\n"
        f"  %1 = broadcast %0 {{shape = [8,{width}], axes = [0]}} : {x}\n  %2 = sub %x, %1 : {x}\n  %3 = exp %2 : {x}\n"
        f"  %4 = reduce %3 {{kind = sum, axes = [1]}} : f32[8]\n  %5 = broadcast %4 {{shape = [8,{width}], axes = [0]}} : {x}\n"
        f"  %6 = div %3, %5 : {x}\n  return %6\n}}\n")
    passes = ",".join(f"{p}{{target={target}}}" for p in ("legalize", "fuse", "lower"))
    said = run("opt", "rows.gir", "--stage=train", "--verify-each", f"--passes={passes}").stdout
    assert said.count("kernel @") == 1
    assert said.count("= load x0") == loads
    assert (f"{kept} " in said) if kept else not re.search(" (local|private) ", said)
    assert ("team 1024 " in said) == (9000 < width < 57344)
