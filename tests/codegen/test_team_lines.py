"""Windows, lines and indices of teams of threads: pooling, argmax, running sums, sorting, scatters. Whatever the sizes, they give what one thread gives,
bit for bit, or what NumPy does."""


import numpy as np

from team_lines import (BLOCKS, COLUMNS, CUMULATED, DTYPES, FEW, LONG, RUNS, SHORT, SORTED, WINDOWS, Library, argmax, cumulate, everything,
                        lower, numbers, scatter, scatter_in_order, sort, windows)
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


def some_indices(keys, shape, dtype):
    """{how: indices}: alike, nearly so, few, all, beyond both ends, and none that there is."""
    ends = np.iinfo(dtype)
    random = np.random.default_rng(0)
    spread = random.integers(-2, keys + 3, shape)
    return {"one": np.full(shape, keys - 1), "most": np.where(random.random(shape) < 0.9, keys // 2, spread), "few": random.integers(0, 3, shape),
            "inside": random.integers(0, max(keys, 1), shape), "beyond": spread, "outside": np.where(spread < keys // 2, -1 - spread**2, spread + keys**2 + 2),
            "extreme": np.where(spread < keys // 2, ends.min, ends.max)}


def test_scatters(run, tmp_path):
    """Updates of an index in their order; indices that are none change nothing."""
    cases = [(*s, d, k, i) for d, k, i in (("f32", "add", "s64"), ("f32", "set", "s32"), ("s32", "max", "s64"), ("f16", "mul", "s64"))
             for s in FEW + SORTED]
    functions = [scatter(*c) for c in cases]
    team, one = (Library(run, tmp_path, t, functions) for t in (TEAM, CPU))
    assert team.text.count("kernel @sort_runs") > 10 and "sort" not in one.text
    for i, (c, f) in enumerate(zip(cases, functions)):
        x, _, u = numbers(f.operands)
        dtype = DTYPES[c[5]]
        for how, indices in some_indices(c[0][c[1]], c[2], dtype).items():
            xs = [x, indices.astype(dtype), u]
            got, want = team.call(i, xs)[0], one.call(i, xs)[0]
            assert got.tobytes() == want.tobytes(), (c, how)
            if "outside" in how or "extreme" in how:
                assert got.tobytes() == x.tobytes(), (c, how)


def test_scatters_in_order(run, tmp_path):
    """Nothing is sorted."""
    functions = [scatter_in_order(700, 5, 500), scatter_in_order(40, 3, 40), scatter_in_order(33, 2, 60)]
    team = Library(run, tmp_path, TEAM, functions)
    assert "sort_runs" not in team.text and "@sort_" not in team.text
    for i, f in enumerate(functions):
        x, u = numbers(f.operands)
        n = min(len(x), len(u))
        want = x.copy()
        want[:n] += u[:n]
        np.testing.assert_array_equal(team.call(i, [x, u])[0], want)


def test_every_kernel_has_a_team(run, tmp_path):
    for name, functions in everything().items():
        text = lower(run, tmp_path, TEAM, functions).read_text()
        kernels = [i for i in text.split("\n") if i.startswith("  kernel @")]
        assert len(kernels) > 50 and all(" team " in k for k in kernels), name
