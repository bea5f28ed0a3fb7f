"""Runs gradc on models of several spellings and compares results."""
import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from spellings import model

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import reference  # noqa: E402  tests/reference.py
import tolerances  # noqa: E402


def need_recognize(run):
    """Skips a test of groups where the build has none."""
    if not any(line.startswith("recognize ") for line in run("passes").stdout.splitlines()):
        pytest.skip("no pass recognize in this build")


def written(folder, spellings, losses=False, floats=np.float64):
    """The spellings as folder/model.onnx and their inputs as files, floats of one type; gradc's words for these inputs."""
    onnx.save(model(spellings, losses), folder / "model.onnx")
    words = []
    for spelling in spellings:
        for name, x in spelling.spelled.feeds.items():
            np.save(folder / f"{len(words)}.npy", x.astype(floats) if x.dtype == np.float64 else x)
            words += ["--input", f"{name}={len(words)}.npy"]
    return words


def forward(run, folder, words, *options):
    """{output: array} of folder/model.onnx"""
    run("run", "model.onnx", *words, *options, "--output-dir=out")
    return reference.results(folder / "out")


def gradients(run, folder, spellings, words, *options):
    """(loss, {spelling's name: {name of an input or a parameter: gradient}}) in f64"""
    wanted = {s.name: s.wanted()[1] for s in spellings}
    asked = [f"--{'wrt' if name in s.spelled.feeds else 'train'}={name}" for s in spellings for name in wanted[s.name]]
    run("grad", "model.onnx", "--loss=output:total", "--precision=f64", *words, "--freeze=*", *asked, *options, "--output-dir=grads")
    found = reference.results(folder / "grads")
    return float(np.load(folder / "grads/loss.npy")), {of: {name: found[name] for name in names} for of, names in wanted.items()}


def same_gradients(run, folder, names, engine="compiled", options=()):
    """Gradients of folder/model.onnx, whose input is x.npy, with groups and without, in f64. names: some that there must be; options: of the run with groups."""
    found = []
    for where, more in (("with", options), ("without", ["--disable=recognize"])):
        run("grad", "model.onnx", "--loss=mse", "--input=x=x.npy", "--input=labels=labels.npy", "--precision=f64", f"--engine={engine}",
            f"--output-dir={where}", "--train=*", *more)
        files = json.loads((folder / where / "names.json").read_text())
        found.append({n: np.load(folder / where / entry["file"]).astype(float) for n, entry in files.items()})
    assert names <= set(found[0]) == set(found[1])
    for n, want in found[1].items():
        assert np.abs(found[0][n] - want).max() <= tolerances.limit("groups f64") * max(np.abs(want).max(), 1e-3), n


def difference(got, want):
    """The norm of the difference, relative to the norm of `want` where it is above 1; infinite if shapes, NaNs or infinities differ."""
    if got.shape != want.shape or not np.array_equal(np.isnan(got), np.isnan(want)):
        return np.inf
    odd = ~np.isfinite(want)
    if not np.array_equal(got[odd], want[odd], equal_nan=True):
        return np.inf
    got, want = np.where(odd, 0, got), np.where(odd, 0, want)
    return float(np.linalg.norm(got - want) / max(np.linalg.norm(want), 1))


def differing(pairs, limit):
    """What of pairs {name: (got, want)} differs by more than a limit, the largest difference first."""
    found = {name: difference(np.asarray(got, np.float64), np.asarray(want, np.float64)) for name, (got, want) in pairs.items()}
    return sorted(((d, name) for name, d in found.items() if not d <= limit), reverse=True)
