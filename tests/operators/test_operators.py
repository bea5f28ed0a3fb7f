"""Operators by the tables of this folder: results and gradients of both engines in f64 against PyTorch's (torch/FAMILY.npz), and the
gradients against central differences. One run of gradc takes all cases of one family and opset."""
import json
import re
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import case as tables  # noqa: E402

GROUPS = [(family, key) for family in tables.families() for key in tables.cases(family)]
RTOL, ATOL = 1e-9, 1e-10  # f64 on both sides; sums are of some hundred terms


def group_name(value):
    return value if isinstance(value, str) else "-".join(str(v) for v in value if v != "")


def saved(folder):
    """name -> array, of what gradc wrote to a folder"""
    files = json.loads((folder / "names.json").read_text())
    return {name: np.load(folder / entry["file"]) for name, entry in files.items()}


def feed(folder, feeds):
    words = []
    for i, (name, x) in enumerate(feeds.items()):
        np.save(folder / f"{i}.npy", x)
        words += ["--input", f"{name}={i}.npy"]
    return words


def near(what, got, want):
    assert got.shape == want.shape, what
    np.testing.assert_allclose(got, want, rtol=RTOL, atol=ATOL, err_msg=what)


def shapes_of_results(run, folder, parts, key, words, engine):
    """Runs a model, results to out/; name -> shape of the float64 ones that weigh in its total."""
    onnx.save(tables.with_total(parts, {}, *key), folder / "plain.onnx")
    run("run", "plain.onnx", "--precision=f64", f"--engine={engine}", *words, "--output-dir=out")
    results = saved(folder / "out")
    return {t: results[t].shape for t in parts.terms if results[t].dtype == np.float64}


@pytest.fixture(scope="module")
def torch_values():
    """family -> what tests/references/operators.py stored"""
    return {p.stem: dict(np.load(p)) for p in (Path(__file__).parent / "torch").glob("*.npz")}


@pytest.mark.parametrize("engine", ["interp", "compiled"])
@pytest.mark.parametrize("family, key", GROUPS, ids=group_name)
def test_group(run, tmp_path, torch_values, family, key, engine):
    group, stored = tables.cases(family)[key], torch_values.get(family, {})
    parts = tables.model(group)
    words = feed(tmp_path, parts.feeds)
    shapes = shapes_of_results(run, tmp_path, parts, key, words, engine)
    results = saved(tmp_path / "out")
    for name, want in stored.items():
        if name in results:
            near(name, results[name], want)
    for case in group:
        for i in range(case.outputs):
            name = tables.port(case, f"y{i}")
            assert case.torch is None or name in stored, f"{name}: `make references` has not been run since the case is there"

    wanted = [tables.port(case, name) for case in group for name in case.differentiable()]
    if not wanted:
        return
    onnx.save(tables.with_total(parts, shapes, *key), tmp_path / "model.onnx")
    run("grad", "model.onnx", "--loss=output:total", "--precision=f64", f"--engine={engine}", *words,
        *(f"--wrt={name}" for name in wanted), "--output-dir=grads")
    grads = saved(tmp_path / "grads")
    for case in group:
        for name in case.differentiable():
            where = f"grad.{tables.port(case, name)}"
            if where in stored:
                near(where, grads[tables.port(case, name)], stored[where])


@pytest.mark.parametrize("family, key", GROUPS, ids=group_name)
def test_differences(run, tmp_path, family, key):
    group = [case for case in tables.cases(family)[key] if case.differences and any(case.inputs[n].size for n in case.differentiable())]
    if not group:
        pytest.skip("no case of this opset has slopes")
    parts = tables.model(group, as_parameters=True)
    words = feed(tmp_path, parts.feeds)
    shapes = shapes_of_results(run, tmp_path, parts, key, words, "interp")
    onnx.save(tables.with_total(parts, shapes, *key), tmp_path / "model.onnx")
    wanted = [tables.port(case, name) for case in group for name in case.differentiable() if case.inputs[name].size]
    said = run("grad", "model.onnx", "--loss=output:total", "--precision=f64", "--engine=interp", *words, "--freeze=*",
               *(f"--train={name}" for name in wanted), "--check-gradients=6").stdout
    rows = re.findall(r"^  (\S+) +(\S+) +at \S+ +gradient (\S+) +difference (\S+)$", said, re.M)
    # long names are cut, and keep their ends
    cut = {tuple(row[0].split("…")) for row in rows}
    assert len(rows) == len(wanted) == sum(any(name.startswith(c[0]) and name.endswith(c[-1]) for c in cut) for name in wanted)
    # The total is a sum of some hundred: its differences have an error of up to 1e-9 by rounding alone.
    off = [name for name, error, gradient, slope in rows if not float(error) <= 1e-6 and not abs(float(gradient) - float(slope)) <= 2e-9]
    assert not off, said
