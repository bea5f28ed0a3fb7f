"""Random functions of reductions of rows and of columns of blocks of rows, of their broadcasts and of what lies between, fused for a GPU and for a CPU:
their results are NumPy's in f64."""
from types import SimpleNamespace

import numpy as np
import pytest
from team_lines import Library, typed

PASSES = ("simplify", "legalize", "fuse", "lower")
SEEDS = range(40)
WIDTHS = [2, 5, 16, 24, 33, 64, 100, 127, 200, 384, 768, 1000, 1024, 1040, 1600]
REDUCTIONS = {"sum": np.sum, "max": np.max, "min": np.min}
FUNCTIONS = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "exp": np.exp, "neg": np.negative, "tanh": np.tanh}


class Program:
    """Values are pairs: a name in the text, and the numbers."""

    def __init__(self, seed):
        self.random, self.lines, self.results = np.random.default_rng(seed), [], []
        blocks, rows, width = (int(self.random.integers(*r)) for r in ((2, 9), (2, 17), (0, len(WIDTHS))))
        self.shape, self.blocks = (blocks * rows, WIDTHS[width]), (blocks, rows, WIDTHS[width])
        self.operands = [("f32", self.shape)] * 2
        self.inputs = [(0.3 * self.random.standard_normal(self.shape)).astype(np.float32) for _ in range(2)]
        self.full, self.rows = [(f"%a{i}", x.astype(np.float64)) for i, x in enumerate(self.inputs)], []

    def one_of(self, values):
        return values[int(self.random.integers(len(values)))]

    def node(self, text, numbers):
        self.lines.append(f"%{len(self.lines)} = {text} : {typed('f32', numbers.shape)}")
        return f"%{len(self.lines) - 1}", numbers

    def apply(self, ops, *operands):
        op = self.one_of(ops)
        return self.node(f"{op} {', '.join(name for name, _ in operands)}", FUNCTIONS[op](*(x for _, x in operands)))

    def reduce(self, x, axis, kind=None):
        kind = kind or self.one_of([*REDUCTIONS])
        return self.node(f"reduce {x[0]} {{kind = {kind}, axes = [{axis}]}}", REDUCTIONS[kind](x[1], axis=axis))

    def reshape(self, x, shape):
        return self.node(f"reshape {x[0]} {{shape = {list(shape)}}}", x[1].reshape(shape))

    def broadcast(self, x, shape, *axes):
        index = tuple(slice(None) if i in axes else None for i in range(len(shape)))
        return self.node(f"broadcast {x[0]} {{shape = {list(shape)}, axes = {list(axes)}}}", np.broadcast_to(x[1][index], shape))

    # ---- what a step adds
    def add_full(self):
        self.full.append(self.apply(["add", "sub", "mul"], self.one_of(self.full), self.one_of(self.full)))

    def add_tanh(self):
        self.full.append(self.apply(["tanh"], self.one_of(self.full)))

    def add_row_reduction(self):
        self.rows.append(self.reduce(self.one_of(self.full), 1))

    def add_row_value(self):
        if self.rows:
            self.rows.append(self.apply(["exp", "neg", "tanh"], self.apply(["tanh"], self.one_of(self.rows))))

    def add_row_broadcast(self):
        if self.rows:
            self.full.append(self.apply(["add"], self.broadcast(self.one_of(self.rows), self.shape, 0), self.one_of(self.full)))

    def add_columns(self):
        kind = self.one_of([*REDUCTIONS])
        columns = self.reduce(self.reshape(self.one_of(self.full), self.blocks), 1, kind)
        if self.random.random() < 0.5:
            again = self.reshape(self.broadcast(columns, self.blocks, 0, 2), self.shape)
            self.full.append(self.apply(["sub"], again, self.one_of(self.full)))
        self.results.append(columns if self.random.random() < 0.5 else self.reduce(columns, 0, kind))


STEPS = [Program.add_full, Program.add_tanh, Program.add_row_reduction, Program.add_row_value, Program.add_row_broadcast,
         Program.add_columns, Program.add_columns]


def function(seed):
    p = Program(seed)
    for _ in range(int(p.random.integers(5, 15))):
        p.one_of(STEPS)(p)
    p.results.append(p.apply(["tanh"], p.full[-1]))
    if p.rows:
        p.results.append(p.apply(["neg"], p.rows[-1]))
    types = [("f32", x.shape) for _, x in p.results]
    parameters = ", ".join(f"%a{i}: {typed(*o)}" for i, o in enumerate(p.operands))
    body = "".join(f"  {line}\n" for line in p.lines)
    text = (f"({parameters}) -> ({', '.join(typed(*t) for t in types)}) {{\n{body}"
            f"  return {', '.join(name for name, _ in p.results)}\n}}\n")
    return SimpleNamespace(text=text, operands=p.operands, results=types, inputs=p.inputs, right=[x for _, x in p.results])


@pytest.mark.parametrize("target", ["cuda-sm_90", "cpu-512"])
def test_results(run, tmp_path, target):
    functions = [function(seed) for seed in SEEDS]
    library = Library(run, tmp_path, target, functions, PASSES)
    for i, (seed, f) in enumerate(zip(SEEDS, functions)):
        for k, (got, want) in enumerate(zip(library.call(i, f.inputs), f.right)):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max(), err_msg=f"seed {seed}, result {k}")
