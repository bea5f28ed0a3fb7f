"""Windows and lines of teams of threads: pooling, argmax, running sums, sorting. Teams have the bits of one thread, whatever the
sizes; CUDA C, on this CPU, C and the interpreter have the same."""
import itertools
import os
import re
import subprocess

import numpy as np
import pytest
from test_lines import sorted_places

TEAM, CPU = "cuda-sm_90", "cpu-512"
SANITIZED = os.environ.get("GRADC_SANITIZED")
SIZES = {"f32": np.float32, "f64": np.float64, "s32": np.int32, "s64": np.int64, "u8": np.uint8, "f16": np.float16}


def typed(dtype, shape):
    return f"{dtype}[{','.join(map(str, shape))}]"


def function(op, operands, attributes, *results):
    """A function of one node: operands and results are (type, shape)."""
    names = [f"%a{i}" for i in range(len(operands))]
    types = [typed(*r) for r in results]
    outs = ", ".join(f"%{i}" for i in range(len(results)))
    parameters = ", ".join(f"{n}: {typed(*o)}" for n, o in zip(names, operands))
    return (f"({parameters}) -> ({', '.join(types)}) {{\n  {outs} = {op} {', '.join(names)} {{{attributes}}} : {', '.join(types)}\n"
            f"  return {outs}\n}}\n")


def lowered(run, folder, target, functions):
    """The file of their kernels."""
    source = folder / f"{target}_source.gir"
    source.write_text("module @lines {\n" + "".join(f"func @f{i}{f}" for i, f in enumerate(functions)) + "}\n")
    passes = ",".join(f"{p}{{target={target}}}" for p in ("legalize", "fuse", "lower"))
    run("opt", source, "--stage=train", "--verify-each", f"--passes={passes}", "-o", folder / f"{target}.gir")
    return folder / f"{target}.gir"


def launched(run, build, folder, target, text, operands):
    """The results of a function, launch after launch."""
    tool = build / "tests/run_kernel"
    if not tool.exists():
        pytest.skip(f"{tool} is not built")
    file = lowered(run, folder, target, [text])
    body = re.search(r"func @f0.*", file.read_text(), re.S)[0]
    files = {}
    for i, x in enumerate(operands):
        files[f"%a{i}"] = folder / f"a{i}"
        files[f"%a{i}"].write_bytes(np.ascontiguousarray(x).tobytes())
    for results, names, kernel in re.findall(r"(%[%\d, ]+) = launch (.*?) \{kernel = @(\w+)\}", body):
        outputs = results.split(", ")
        for o in outputs:
            files[o] = folder / f"{target}{o[1:]}"
        run(tool, file, kernel, "c", *(files[n.strip()] for n in names.split(", ")), *(files[o] for o in outputs))
    return [files[n].read_bytes() for n in re.search(r"return (.*)", body)[1].split(", ")]


def values(operands, seed=0, ties=False):
    """Numbers with repeated ones and, of floats, NaN and infinities."""
    random = np.random.default_rng(seed)
    for dtype, shape in operands:
        x = random.integers(-9, 9, shape) if ties or dtype[0] != "f" else random.standard_normal(shape)
        x = x.astype(SIZES[dtype])
        if dtype[0] == "f" and ties:
            x[random.random(shape) < 0.02] = np.nan
            x[random.random(shape) < 0.02] = -np.inf
        yield x


def same_as_one_thread(run, build, folder, text, operands, ties):
    xs = list(values(operands, ties=ties))
    assert launched(run, build, folder, TEAM, text, xs) == launched(run, build, folder, CPU, text, xs)


def same_by_all_printers(run, build, folder, functions, least):
    """C, CUDA C and, where they are few operations, the interpreter, which looks for races."""
    tool = build / "tests/compare_kernels"
    if not tool.exists():
        pytest.skip(f"{tool} is not built")
    file = lowered(run, folder, TEAM, functions[::5] if SANITIZED else functions)
    done = subprocess.run([tool, file, "cuda"], text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    count, differences = map(int, re.search(r"(\d+) kernels, 3 codes, (\d+) differences", done.stdout).groups())
    assert count >= (least + 4) // 5 if SANITIZED else least
    assert differences == 0
    assert all(" team " in line for line in re.findall(r"kernel @.*", file.read_text()))


PLAIN = pytest.mark.skipif(bool(SANITIZED), reason="compares targets, which sanitizers know nothing of")

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
PLANES = [(1, 1), (2, 13), (0, 3)]


def window_functions(case, planes, dtype="f32"):
    """{what: (text, operands)}: every op over windows."""
    size, *numbers = WINDOWS[case]
    window, stride, low, high, dilation = numbers
    out = [(n + a + b - (w - 1) * d - 1) // s + 1 for n, w, s, a, b, d in zip(size, window, stride, low, high, dilation)]
    x, y = (dtype, [*planes, *size]), (dtype, [*planes, *out])
    names = ("window", "stride", "low", "high", "dilation")
    common = ", ".join(f"{k} = {v}" for k, v in zip(names, numbers))
    made = {}
    for kind in ("max", "sum"):
        made[f"pool {kind}"] = "pool", [x], f"kind = {kind}, {common}", y
    made["pool_grad max"] = "pool_grad", [y, x], f"kind = max, {common}", x
    made["pool_grad sum"] = "pool_grad", [y], f"kind = sum, {common}, size = {size}", x
    made["pool_gather"] = "pool_gather", [x, x], common, y
    return {name: (function(*f), f[1]) for name, f in made.items()}


@PLAIN
@pytest.mark.parametrize("case", WINDOWS)
def test_windows(run, build, tmp_path, case):
    for name, (text, operands) in window_functions(case, (2, 13)).items():
        same_as_one_thread(run, build, tmp_path, text, operands, ties="max" in name or "gather" in name)


def test_windows_by_all_printers(run, build, tmp_path):
    made = [window_functions(c, p) for c, p in itertools.product(WINDOWS, PLANES)]
    made += [window_functions(c, (2, 13), "f16") for c in ("overlap", "halves")]
    functions = [text for m in made for text, _ in m.values()]
    same_by_all_printers(run, build, tmp_path, functions, 150)


# ---- lines: shapes and the axis
SHORT = [((300, 9), 1), ((5, 1), 1), ((70, 2), 1), ((33, 64), 1), ((7, 65), 1), ((9, 130), 0), ((3, 17, 40), 1), ((0, 9), 1), ((9, 0), 1)]
LONG = [((512,), 0), ((513,), 0), ((2, 1025), 1), ((1, 5003), 1), ((700, 3), 0), ((2, 600, 5), 1)]


def sorts(shape, axis, dtype):
    for descending in ("true", "false"):
        yield function("sort", [(dtype, shape)], f"axis = {axis}, descending = {descending}", (dtype, shape), ("s64", shape))


@PLAIN
@pytest.mark.parametrize("dtype, shape, axis", [(d, *s) for d, shapes in (("f32", SHORT + LONG), ("s64", SHORT[:4] + LONG[:2]))
                                                for s in shapes if 0 not in s[0]])
def test_sorted(run, build, tmp_path, dtype, shape, axis):
    """The first of equal ones first; NaN is larger than all."""
    for descending, text in zip((True, False), sorts(shape, axis, dtype)):
        x, = values([(dtype, shape)], ties=True)
        places = sorted_places(x, axis, descending)
        want = np.take_along_axis(x, places, axis)
        y, i = launched(run, build, tmp_path, TEAM, text, [x])
        np.testing.assert_array_equal(np.frombuffer(y, x.dtype).reshape(shape), want)
        np.testing.assert_array_equal(np.frombuffer(i, np.int64).reshape(shape), places)


def test_sorts_by_all_printers(run, build, tmp_path):
    functions = [f for d in ("f32", "u8") for s in SHORT + LONG for f in sorts(*s, d)]
    same_by_all_printers(run, build, tmp_path, functions, 100)


COLUMNS = [((700, 33), 0), ((3, 5, 100), 1), ((2, 1, 300), 1), ((1, 2001, 64), 1), ((0, 5, 40), 1)]
BLOCKS = [((70001,), 0), ((3, 30001), 1), ((30001, 3), 0), ((2, 1500, 37), 1), ((65536, 1), 0)]


def argmax(shape, axis, dtype):
    return function("argmax", [(dtype, shape)], f"axis = {axis}", ("s64", [*shape[:axis], *shape[axis + 1:]]))


@PLAIN
@pytest.mark.parametrize("values_", ["ties", "nan"])
@pytest.mark.parametrize("shape, axis", [s for s in SHORT + LONG + COLUMNS + BLOCKS if 0 not in s[0]])
def test_argmax(run, build, tmp_path, shape, axis, values_):
    """NaN is no maximum; where there is nothing else it is the first."""
    x, = values([("f32", shape)], ties=True)
    if values_ == "nan":
        x[np.random.default_rng(0).random(shape) < 0.9] = np.nan
    got, = launched(run, build, tmp_path, TEAM, argmax(shape, axis, "f32"), [x])
    number = np.where(np.isnan(x), -1, np.where(np.isinf(x), 0, x + 100)) # in the same order
    np.testing.assert_array_equal(np.frombuffer(got, np.int64), np.argmax(number, axis).ravel())


def test_argmax_by_all_printers(run, build, tmp_path):
    functions = [argmax(*s, d) for d in ("f32", "s64", "u8") for s in SHORT[:-1] + LONG + COLUMNS + BLOCKS]
    same_by_all_printers(run, build, tmp_path, functions, 70)


RUNS = [((16390,), 0), ((2, 9000), 1), ((3, 30001), 1), ((30001, 3), 0), ((1, 102400), 1), ((100, 700), 1), ((300, 65), 1), ((40, 9, 60), 1),
        ((900, 50), 0)]


def cumulates(shape, axis, dtype):
    for how in ("kind = sum", "kind = prod, exclusive = true", "kind = sum, reverse = true", "kind = sum, exclusive = true, reverse = true"):
        kind, *flags = how.split(", ")
        yield function("cumulate", [(dtype, shape)], ", ".join([kind, f"axis = {axis}", *flags]), (dtype, shape))


@PLAIN
@pytest.mark.parametrize("shape, axis", RUNS + SHORT[:7])
def test_running_sums(run, build, tmp_path, shape, axis):
    for text in [*cumulates(shape, axis, "f32")][1::2]:
        same_as_one_thread(run, build, tmp_path, text, [("f32", shape)], ties=False)


def test_running_sums_by_all_printers(run, build, tmp_path):
    functions = [f for d in ("f32", "f64", "s32") for s in RUNS + SHORT for f in cumulates(*s, d)]
    same_by_all_printers(run, build, tmp_path, functions, 200)
