"""Images whose channels are the last axis (pass layouts): kernels of teams give what they give with channels as axis 1."""
from types import SimpleNamespace

import numpy as np
import pytest
from team_lines import Library, numbers, typed

TARGET = "cuda-sm_90"
AS_IT_IS = ("simplify", "rematerialize", "legalize", "fuse", "lower")
SAME = "stride = [1,1], low = [1,1], high = [1,1], dilation = [1,1], groups = 1"
HALF = "stride = [2,2], low = [1,0], high = [0,1], dilation = [1,2], groups = 1"
WINDOW = "window = [3,2], stride = [2,1], low = [1,0], high = [1,1], dilation = [1,1]"
POINT = "stride = [1,1], low = [0,0], high = [0,0], dilation = [1,1], groups = 1"
LINE = "stride = [2], low = [2], high = [1], dilation = [1], groups = 1"
SPACE = "stride = [1,2,1], low = [1,0,1], high = [0,1,1], dilation = [1,1,2], groups = 1"
BOX = "window = [2,2,2], stride = [2,1,2], low = [0,1,0], high = [0,0,0], dilation = [1,1,1]"
X, W, V = (2, 32, 20, 24), (32, 32, 3, 3), (32, 32, 1, 1)


def function(nodes, results, *operands):
    """nodes: (text, shape), or (text, shape, type); %x, %w and %y are images, filters and images."""
    names = {"%x": "%a0", "%w": "%a1", "%y": "%a2"}
    dtypes = [dtype[0] if dtype else "f32" for _, _, *dtype in nodes]
    lines = [f"  %{i} = {text} : {typed(dtypes[i], shape)}" for i, (text, shape, *_) in enumerate(nodes)]
    body = "\n".join(lines)
    for name, number in names.items():
        body = body.replace(name, number)
    given = list(operands or (("f32", X), ("f32", W), ("f32", X)))
    types = [(dtypes[i], nodes[i][1]) for i in results]
    parameters = ", ".join(f"%a{i}: {typed(*o)}" for i, o in enumerate(given))
    text = f"({parameters}) -> ({', '.join(typed(*t) for t in types)}) {{\n{body}\n  return {', '.join(f'%{i}' for i in results)}\n}}\n"
    return SimpleNamespace(text=text, operands=given, results=types)


def conv(of, attributes=SAME, shape=X):
    return f"conv {of}, %w {{{attributes}, allow_tf32 = true}}", shape


SMALL = (2, 32, 10, 11)
CASES = {
    "strides": function([conv("%x", HALF, SMALL), conv("%0", SAME, SMALL)], [1]),
    "adjoints": function([conv("%x"), conv("%0"), (f"conv_grad_input %1, %w {{{SAME}, size = [20,24], allow_tf32 = true}}", X),
                          (f"conv_grad_weight %x, %2 {{{SAME}, size = [3,3], allow_tf32 = true}}", W)], [2, 3]),
    "pointwise": function([("cast %x {to = f16}", X, "f16"), ("cast %w {to = f16}", V, "f16"), (f"conv %0, %1 {{{POINT}}}", X, "f16"),
                           (f"conv %2, %1 {{{POINT}}}", X, "f16"), (f"conv_grad_weight %2, %3 {{{POINT}, size = [1,1], dtype = f32}}", V),
                           (f"conv_grad_input %3, %1 {{{POINT}, size = [20,24]}}", X, "f16"), ("cast %5 {to = f32}", X)],
                          [4, 6], ("f32", X), ("f32", V), ("f32", X)),
    "pools": function([conv("%x"), (f"pool %0 {{kind = max, {WINDOW}}}", (2, 32, 10, 24)), (f"pool %0 {{kind = sum, {WINDOW}}}", (2, 32, 10, 24)),
                       ("add %1, %2", (2, 32, 10, 24)), (f"pool_grad %3, %0 {{kind = max, {WINDOW}}}", X),
                       (f"pool_grad %3 {{kind = sum, {WINDOW}, size = [20,24]}}", X), ("sub %4, %5", X), conv("%6")], [3, 7]),
    "sums": function([conv("%x"), conv("%0"), ("reduce %1 {kind = sum, axes = [0,2,3]}", (32,)), ("reduce %1 {kind = max, axes = [2]}", (2, 32, 24)),
                      ("reduce %1 {kind = sum, axes = [0]}", (32, 20, 24)), ("broadcast %4 {shape = [2,32,20,24], axes = [1,2,3]}", X),
                      ("broadcast %3 {shape = [2,32,20,24], axes = [0,1,3]}", X), ("mul %5, %6", X), ("add %7, %1", X), conv("%8")], [2, 3, 9]),
    "many": function([conv("%x"), ("slice %0 {start = [0,0,0,0], stop = [2,1,20,24], step = [1,1,1,1]}", (2, 1, 20, 24)),
                      (f"concat {', '.join(['%1'] * 32)} {{axis = 1}}", X), conv("%2")], [3]),
    "pieces": function([conv("%x"), ("pad %0 {low = [0,1,2,0], high = [0,0,1,0], interior = [0,0,0,1], value = 3}", (2, 33, 23, 47)),
                        ("slice %1 {start = [0,1,0,1], stop = [2,33,20,47], step = [1,1,1,2]}", (2, 32, 20, 23)),
                        ("slice %0 {start = [0,0,0,0], stop = [2,32,20,1], step = [1,1,1,1]}", (2, 32, 20, 1)),
                        ("concat %2, %3 {axis = 3}", X), conv("%4"), ("reverse %5 {axes = [2]}", X)], [6]),
    "broadcast": function([("broadcast %y {shape = [2,32,20,24], axes = [0,1]}", X), (f"conv_grad_input %0, %w {{{SAME}, size = [20,24], allow_tf32 = true}}", X),
                           conv("%1"), (f"conv_grad_weight %2, %0 {{{SAME}, size = [3,3], allow_tf32 = true}}", W), ("mul %1, %2", X)],
                          [3, 4], ("f32", X), ("f32", W), ("f32", (2, 32))),
    "line": function([conv("%x", LINE, (8, 32, 40)), ("exp %0", (8, 32, 40)), conv("%1", LINE, (8, 32, 20)),
                      (f"conv_grad_input %2, %w {{{LINE}, size = [40], allow_tf32 = true}}", (8, 32, 40)),
                      (f"conv_grad_weight %1, %2 {{{LINE}, size = [5], allow_tf32 = true}}", (32, 32, 5)), ("reduce %3 {kind = sum, axes = [0,2]}", (32,))],
                     [3, 4, 5], ("f32", (8, 32, 80)), ("f32", (32, 32, 5)), ("f32", X)),
    "space": function([conv("%x", SPACE, (2, 16, 6, 4, 4)), (f"pool %0 {{kind = max, {BOX}}}", (2, 16, 3, 4, 2)),
                       (f"pool_grad %1, %0 {{kind = max, {BOX}}}", (2, 16, 6, 4, 4)),
                       (f"conv_grad_input %2, %w {{{SPACE}, size = [6,8,6], allow_tf32 = true}}", (2, 16, 6, 8, 6)), conv("%3", SPACE, (2, 16, 6, 4, 4)),
                       ("reduce %4 {kind = max, axes = [1,3]}", (2, 6, 4))],
                      [3, 4, 5], ("f32", (2, 16, 6, 8, 6)), ("f32", (16, 16, 2, 3, 3)), ("f32", X)),
}


@pytest.mark.parametrize("name", CASES)
def test_results_are_the_same(run, tmp_path, name):
    f = CASES[name]
    (tmp_path / "last").mkdir()
    last = Library(run, tmp_path / "last", TARGET, [f], ("layouts", *AS_IT_IS))
    first = Library(run, tmp_path, TARGET, [f], AS_IT_IS)
    assert "channels_last" not in first.text and "by [" in last.text and "by [" not in first.text
    operands = [x / 8 for x in numbers(f.operands)]
    # sums in another order may round to another f16
    for got, want in zip(last.call(0, operands), first.call(0, operands)):
        assert np.linalg.norm(got - want) <= (1e-3 if "f16" in f.text else 1e-6) * np.linalg.norm(want)
