"""Rows, columns, squares and flat loops of teams of threads, of sizes that none of them divides, give what one thread gives."""
import itertools
from types import SimpleNamespace

import numpy as np
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
