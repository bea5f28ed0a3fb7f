"""Functions over windows, lines and indices, of sizes that teams of threads divide and do not, and their kernels as a library."""
import ctypes
import itertools
import re
import subprocess

import numpy as np

DTYPES = {"f32": np.float32, "f64": np.float64, "s32": np.int32, "s64": np.int64, "u8": np.uint8, "f16": np.float16}


def typed(dtype, shape):
    return f"{dtype}[{','.join(map(str, shape))}]"


class Function:
    """One node: operands and results are (type, shape)."""

    def __init__(self, op, operands, attributes, *results):
        names = [f"%a{i}" for i in range(len(operands))]
        types = ", ".join(typed(*r) for r in results)
        outs = ", ".join(f"%{i}" for i in range(len(results)))
        parameters = ", ".join(f"{n}: {typed(*o)}" for n, o in zip(names, operands))
        self.operands, self.results = operands, results
        self.text = (f"({parameters}) -> ({types}) {{\n  {outs} = {op} {', '.join(names)} {{{attributes}}} : {types}\n"
                     f"  return {outs}\n}}\n")


PASSES = ("legalize", "fuse", "lower")


def lower(run, folder, target, functions, passes=PASSES):
    """The file of their kernels."""
    source = folder / f"{target}_source.gir"
    source.write_text("module @lines {\n" + "".join(f"func @f{i}{f.text}" for i, f in enumerate(functions)) + "}\n")
    passes = ",".join(p if p == "simplify" else f"{p}{{target={target}}}" for p in passes)
    run("opt", source, "--stage=train", "--verify-each", f"--passes={passes}", "-o", folder / f"{target}.gir")
    return folder / f"{target}.gir"


class Library:
    """Their kernels for a target, as C, compiled once."""

    def __init__(self, run, folder, target, functions, passes=PASSES):
        file = lower(run, folder, target, functions, passes)
        self.text, self.functions, library = file.read_text(), functions, folder / f"{target}.so"
        source = folder / f"{target}.c"
        source.write_text(run("dump", file, "--stage=c").stdout.replace('visibility("hidden")', 'visibility("default")'))
        subprocess.run(["cc", "-std=gnu11", "-O1", "-w", "-ffp-contract=off", "-shared", "-fPIC", source, "-o", library, "-lm"], check=True)
        self.code = ctypes.CDLL(str(library))

    def parts(self, kernel):
        """Iterations of the parallel loops, each directly within the one before."""
        body = re.search(rf"kernel @{kernel}\(.*\n((?:.*\n)*?  \}}\n)", self.text)[1]
        lines = [i for i in body.split("\n") if not re.match(r" +(local|private|tile|v\d+ = const)", i)]
        loops = itertools.takewhile(lambda m: m, (re.match(r" +parallel v\d+ < (\d+) ", i) for i in lines))
        return int(np.prod([int(m[1]) for m in loops], dtype=np.int64))

    def call(self, number, operands):
        """The results of a function, launch after launch."""
        f = self.functions[number]
        body = re.search(rf"func @f{number}\(.*?\n  \}}\n", self.text, re.S)[0]
        values = {f"%a{i}": np.ascontiguousarray(x) for i, x in enumerate(operands)}
        for outs, names, kernel, types in re.findall(r"(%[%\d, ]+) = launch (.*?) \{kernel = @(\w+)\} : (.*)", body):
            for out, dtype, shape in zip(outs.split(", "), *zip(*re.findall(r"(\w+)\[([\d,]*)\]", types))):
                values[out] = np.empty([int(i) for i in shape.split(",") if i], DTYPES[dtype])
            arguments = [values[n].ctypes.data for n in (names + ", " + outs).split(", ")]
            run = getattr(self.code, f"gradc_{kernel}")
            run((ctypes.c_void_p * len(arguments))(*arguments), None, ctypes.c_int64(0), ctypes.c_int64(self.parts(kernel)))
        got = [values[n] for n in re.search(r"return (.*)", body)[1].split(", ")]
        assert [(DTYPES[d], list(s)) for d, s in f.results] == [(x.dtype, list(x.shape)) for x in got]
        return got


def numbers(operands, seed=0, ties=False):
    """Of floats with ties some are NaN and infinite."""
    random = np.random.default_rng(seed)
    for dtype, shape in operands:
        x = random.integers(-9, 9, shape) if ties or dtype[0] != "f" else random.standard_normal(shape)
        x = x.astype(DTYPES[dtype])
        if dtype[0] == "f" and ties:
            x[random.random(shape) < 0.02] = np.nan
            x[random.random(shape) < 0.02] = -np.inf
        yield x


# ---- windows: (spatial size, window, stride, low, high, dilation)
WINDOWS = {
    "halves": ([56, 56], [2, 2], [2, 2], [0, 0], [0, 0], [1, 1]),
    "overlap": ([37, 41], [3, 3], [2, 2], [1, 1], [1, 1], [1, 1]),
    "every place": ([13, 17], [3, 5], [1, 1], [1, 2], [1, 2], [1, 1]),
    "gaps": ([29, 7], [2, 3], [5, 1], [0, 1], [0, 1], [1, 1]),
    "dilated": ([31, 24], [3, 2], [2, 1], [2, 0], [1, 3], [2, 7]),
    "dilated far": ([300], [2], [3], [1], [1], [200]),
    "large": ([40, 9], [11, 9], [2, 1], [5, 0], [5, 0], [1, 1]),
    "whole": ([7, 7], [7, 7], [7, 7], [0, 0], [0, 0], [1, 1]),
    "one of 1000": ([1000], [64], [7], [3], [60], [1]),
    "three axes": ([5, 11, 6], [2, 3, 2], [1, 2, 2], [1, 0, 0], [0, 1, 0], [1, 1, 1]),
}


def windows(case, planes=(2, 13), dtype="f32"):
    """{what: Function}: every op over windows."""
    size, *fields = WINDOWS[case]
    window, stride, low, high, dilation = fields
    out = [(n + a + b - (w - 1) * d - 1) // s + 1 for n, w, s, a, b, d in zip(size, window, stride, low, high, dilation)]
    x, y = (dtype, [*planes, *size]), (dtype, [*planes, *out])
    common = ", ".join(f"{k} = {v}" for k, v in zip(("window", "stride", "low", "high", "dilation"), fields))
    return {"pool max": Function("pool", [x], f"kind = max, {common}", y),
            "pool sum": Function("pool", [x], f"kind = sum, {common}", y),
            "pool_grad max": Function("pool_grad", [y, x], f"kind = max, {common}", x),
            "pool_grad sum": Function("pool_grad", [y], f"kind = sum, {common}, size = {size}", x),
            "pool_gather": Function("pool_gather", [x, x], common, y)}


# ---- lines: shapes and the axis
SHORT = [((300, 9), 1), ((5, 1), 1), ((70, 2), 1), ((33, 64), 1), ((7, 65), 1), ((9, 130), 0), ((3, 17, 40), 1)]
LONG = [((512,), 0), ((513,), 0), ((2, 1025), 1), ((1, 5003), 1), ((700, 3), 0), ((2, 600, 5), 1)]
COLUMNS = [((700, 33), 0), ((3, 5, 100), 1), ((2, 1, 300), 1), ((1, 2001, 64), 1)]
BLOCKS = [((70001,), 0), ((3, 30001), 1), ((30001, 3), 0), ((2, 1500, 37), 1), ((65536, 1), 0)]
RUNS = [((16390,), 0), ((2, 9000), 1), ((3, 30001), 1), ((30001, 3), 0), ((1, 102400), 1), ((100, 700), 1), ((300, 65), 1), ((40, 9, 60), 1),
        ((900, 50), 0)]
EMPTY = [((0, 9), 1), ((9, 0), 1), ((0, 5, 40), 1)]


def sort(shape, axis, dtype, descending):
    return Function("sort", [(dtype, shape)], f"axis = {axis}, descending = {str(descending).lower()}", (dtype, [*shape]), ("s64", [*shape]))


def argmax(shape, axis, dtype):
    return Function("argmax", [(dtype, shape)], f"axis = {axis}", ("s64", [*shape[:axis], *shape[axis + 1:]]))


CUMULATED = ("kind = sum", "kind = prod, exclusive = true", "kind = sum, reverse = true", "kind = sum, exclusive = true, reverse = true")


def cumulate(shape, axis, dtype, how):
    return Function("cumulate", [(dtype, shape)], f"axis = {axis}, {how}", (dtype, [*shape]))


# ---- indices: the data's shape, the axis, the indices' shape
FEW = [((9, 5), 0, (1,)), ((9,), 0, (7,)), ((5, 3), 0, (31,)), ((5, 3), 0, (0,)), ((0, 3), 0, (40,))]  # which one kernel sorts
SORTED = [((5, 3), 0, (32,)), ((7, 33), 0, (37,)), ((1, 3), 0, (600,)), ((2, 40), 0, (4099,)), ((1500, 24), 0, (700,)), ((70001,), 0, (5003,)),
          ((6, 600, 30), 1, (513,)), ((90, 50), 0, (9, 41)), ((3, 257, 2), 1, (16, 33)), ((9, 2500), 0, (300,)), ((256, 1), 0, (256,))]


def scatter(shape, axis, indices, dtype, kind, index_dtype="s64"):
    updates = [*shape[:axis], *indices, *shape[axis + 1:]]
    return Function("scatter", [(dtype, shape), (index_dtype, indices), (dtype, updates)], f"kind = {kind}, axis = {axis}", (dtype, [*shape]))


def scatter_in_order(rows, columns, count):
    """At 0, 1, 2 ..., as the gradient of positions has it."""
    f = scatter((rows, columns), 0, (count,), "f32", "add")
    (data, x), (_, i), (_, u) = f.operands
    f.operands = [(data, x), (data, u)]
    f.text = (f"(%a0: {typed(data, x)}, %a1: {typed(data, u)}) -> ({typed(data, x)}) {{\n  %0 = iota {{dtype = s64, shape = [{count}]}} : {typed('s64', i)}\n"
              f"  %1 = scatter %a0, %0, %a1 {{kind = add, axis = 0}} : {typed(data, x)}\n  return %1\n}}\n")
    return f


def everything():
    """[(name, Functions)]"""
    planes = [(1, 1), (2, 13), (0, 3)]
    over = [windows(c, p) for c, p in itertools.product(WINDOWS, planes)] + [windows(c, dtype="f16") for c in ("overlap", "halves")]
    return {
        "windows": [f for made in over for f in made.values()],
        "sort": [sort(*s, d, o) for d in ("f32", "u8") for s in SHORT + LONG + EMPTY for o in (True, False)],
        "argmax": [argmax(*s, d) for d in ("f32", "s64", "u8") for s in SHORT + LONG + COLUMNS + BLOCKS + EMPTY if s != ((9, 0), 1)],
        "cumulate": [cumulate(*s, d, h) for d in ("f32", "f64", "s32") for s in RUNS + SHORT + EMPTY for h in CUMULATED],
        "scatter": [scatter(*s, d, k, i) for d, k, i in (("f32", "add", "s64"), ("u8", "set", "s32")) for s in SORTED]
        + [scatter_in_order(700, 5, 500), scatter_in_order(40, 3, 40)],
    }
