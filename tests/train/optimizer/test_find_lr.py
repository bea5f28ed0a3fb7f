"""--find-lr: the sweep of learning rates, what it says of them against numpy, and that it leaves nothing behind."""
import json

import numpy as np
import pytest
from regression import Regression

STEPS, LOW, HIGH = 60, 1e-4, 100.0
SWEEP = [f"--find-lr={LOW},{HIGH}", f"--steps={STEPS}"]


@pytest.fixture
def regression(run, tmp_path):
    r = Regression(tmp_path, STEPS)
    run("compile", "model.onnx", "-o", "train", "--batch=8", "--loss=mse", "--optimizer=sgd")
    return r


def smoothed(losses):
    """As fastai's lr_find: an average of factor 0.98, without its bias to 0."""
    average, out = 0.0, []
    for i, loss in enumerate(losses):
        average = 0.98 * average + 0.02 * loss
        out.append(average / (1 - 0.98 ** (i + 1)))
    return np.array(out)


def test_the_sweep_is_numpys(run, regression, tmp_path):
    found = json.loads(run(tmp_path / "train", *regression.data, *SWEEP, "--json", "--log=log.jsonl").stdout)
    lines = regression.log()
    rates, losses = (np.array([line[k] for line in lines]) for k in ("lr", "loss"))
    want = smoothed(losses)
    assert np.allclose(rates, LOW * (HIGH / LOW) ** (np.arange(len(rates)) / (STEPS - 1)), rtol=1e-12)
    assert np.allclose(found["lr"], rates, rtol=1e-15) and np.allclose(found["loss"], want, rtol=1e-12)
    # It ended at the first smoothed loss above four times the lowest one before the sweep's end.
    assert found["diverged"] and len(rates) < STEPS
    assert want[-1] > 4 * want.min() and all(want[i] <= 4 * want[:i + 1].min() for i in range(len(want) - 1))
    slope = np.diff(want) / np.diff(np.log(rates))
    first = len(rates) // 10
    assert found["steepest"] == rates[first + slope[first:].argmin()]
    assert found["tenth_of_lowest"] == pytest.approx(rates[want.argmin()] / 10, rel=1e-12)
    # Of a quadratic, whose curvature the data say, that converges.
    curvature = 2 / 3 * np.linalg.eigvalsh(np.mean([x.T @ x for x in regression.x], 0) / 8).max()
    assert LOW < found["steepest"] < 2 / curvature


def test_what_is_shown_and_that_nothing_is_left(run, regression, tmp_path):
    before = {p.name for p in tmp_path.iterdir()}
    said = run(tmp_path / "train", *regression.data, *SWEEP).stdout.splitlines()
    assert said[0].split() == ["learning", "rate", "smoothed", "loss"] and 10 < len(said) < 40
    assert "the loss diverged" in said[-2] and said[-1].startswith("steepest descent: --lr ")
    assert {p.name for p in tmp_path.iterdir()} == before


def test_a_loss_that_is_not_finite_ends_it(run, regression, tmp_path):
    """So far up in one step that f32 overflows: no fault, and the steps before are told."""
    found = json.loads(run(tmp_path / "train", *regression.data, "--find-lr=1e-3,1e38", "--steps=12", "--json").stdout)
    assert found["diverged"] and 0 < len(found["lr"]) < 12


def test_a_loss_that_never_falls_has_no_best(run, regression, tmp_path):
    said = run(tmp_path / "train", *regression.data, "--find-lr=5,6", "--steps=30").stdout
    assert "the loss never fell" in said


@pytest.mark.parametrize("option", ["--save=d", "--export=e.onnx", "--resume=d", "--lr=1", "--lr-schedule=cosine", "--warmup=3", "--dump-gradients=g"])
def test_what_trains_is_refused(run, regression, tmp_path, option):
    said = run(tmp_path / "train", *regression.data, *SWEEP, option, exit=2).stderr
    assert f"--find-lr and {option.split('=')[0]}: one of them" in said
    assert not any((tmp_path / n).exists() for n in ("d", "e.onnx", "g"))
