"""Windows and lines of teams of threads: pooling, argmax, running sums, sorting. Whatever the sizes, they give what one thread gives,
bit for bit, or what NumPy does."""


import numpy as np

from team_lines import (BLOCKS, COLUMNS, CUMULATED, LONG, RUNS, SHORT, WINDOWS, Library, argmax, cumulate, everything, lower, numbers,
                        sort, windows)
from test_lines import sorted_places

TEAM, CPU = "cuda-sm_90", "cpu-512"


def same_as_one_thread(run, folder, cases):
    """cases: {name: Function}"""
    functions = list(cases.values())
    team, one = (Library(run, folder, t, functions) for t in (TEAM, CPU))
    for i, (name, f) in enumerate(cases.items()):
        xs = list(numbers(f.operands, ties="max" in name or "gather" in name))
        for got, want in zip(team.call(i, xs), one.call(i, xs)):
            assert got.tobytes() == want.tobytes(), name


def test_windows(run, tmp_path):
    same_as_one_thread(run, tmp_path, {f"{case}: {what}": f for case in WINDOWS for what, f in windows(case).items()})


def test_running_sums(run, tmp_path):
    same_as_one_thread(run, tmp_path, {f"{s}: {how}": cumulate(*s, "f32", how) for s in RUNS + SHORT for how in CUMULATED[1::2]})


def test_sorted(run, tmp_path):
    """The first of equal ones first; NaN is larger than all."""
    cases = [(*s, d, o) for d, shapes in (("f32", SHORT + LONG), ("s64", SHORT[:4] + LONG[:2])) for s in shapes for o in (True, False)]
    team = Library(run, tmp_path, TEAM, [sort(*c) for c in cases])
    for i, (shape, axis, dtype, descending) in enumerate(cases):
        x, = numbers([(dtype, shape)], ties=True)
        y, places = team.call(i, [x])
        want = sorted_places(x, axis, descending)
        np.testing.assert_array_equal(places, want, err_msg=str(cases[i]))
        np.testing.assert_array_equal(y, np.take_along_axis(x, want, axis), err_msg=str(cases[i]))


def test_argmax(run, tmp_path):
    """NaN is no maximum; where there is nothing else it is the first."""
    cases = SHORT + LONG + COLUMNS + BLOCKS
    team = Library(run, tmp_path, TEAM, [argmax(*s, "f32") for s in cases])
    for i, (shape, axis) in enumerate(cases):
        x, = numbers([("f32", shape)], ties=True)
        for share in (0, 0.9, 1):
            x[np.random.default_rng(0).random(shape) < share] = np.nan
            order = np.where(np.isnan(x), -1, np.where(np.isinf(x), 0, x + 100))
            got, = team.call(i, [x])
            np.testing.assert_array_equal(got, np.argmax(order, axis), err_msg=str(cases[i]))


def test_every_kernel_has_a_team(run, tmp_path):
    for name, functions in everything().items():
        text = lower(run, tmp_path, TEAM, functions).read_text()
        kernels = [i for i in text.split("\n") if i.startswith("  kernel @")]
        assert len(kernels) > 50 and all(" team " in k for k in kernels), name
