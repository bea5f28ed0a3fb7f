"""--lr-schedule=plateau against torch.optim.lr_scheduler.ReduceLROnPlateau, written down here, and that it resumes."""
import math

import pytest
from checkpoints import read_manifest, tensors, write_manifest
from regression import Regression

STEPS, LR = 24, 0.4


class ReduceLROnPlateau:
    """torch's, with mode min and threshold_mode rel."""

    def __init__(self, lr, factor=0.1, patience=10, threshold=1e-4, cooldown=0, min_lr=0.0, eps=1e-8):
        self.lr, self.factor, self.patience, self.threshold, self.cooldown, self.min_lr, self.eps = lr, factor, patience, threshold, cooldown, min_lr, eps
        self.best, self.bad, self.cooling = math.inf, 0, 0

    def step(self, loss):
        if loss < self.best * (1 - self.threshold):
            self.best, self.bad = loss, 0
        else:
            self.bad += 1
        if self.cooling > 0:
            self.cooling -= 1
            self.bad = 0
        if self.bad > self.patience:
            new = max(self.lr * self.factor, self.min_lr)
            if self.lr - new > self.eps:
                self.lr = new
            self.cooling, self.bad = self.cooldown, 0


CASES = [
    ({"patience": 0}, 0.0, 0), ({"patience": 1, "factor": 0.5}, 0.0, 0), ({"patience": 0, "factor": 0.7, "cooldown": 2}, 0.0, 0),
    ({"patience": 0, "factor": 0.5}, 0.15, 0), ({"patience": 1, "threshold": 0.1, "factor": 0.5}, 0.0, 0),
    ({"patience": 0, "eps": 0.3}, 0.0, 0), ({"patience": 0, "factor": 0.5}, 0.0, 5)]


@pytest.fixture
def regression(run, tmp_path):
    r = Regression(tmp_path, STEPS)
    run("compile", "model.onnx", "-o", "train", "--batch=8", "--loss=mse", "--optimizer=sgd")
    return r


def train(run, r, schedule, *options, steps=STEPS, **more):
    return run(r.folder / "train", *r.data, *r.eval_data, f"--steps={steps}", *([] if any(o.startswith("--lr=") for o in options) else [f"--lr={LR}"]),
               f"--lr-schedule={schedule}", *options, **more)


@pytest.mark.parametrize("settings, least, warmup", CASES)
def test_learning_rates_are_torchs(run, regression, settings, least, warmup):
    """Evaluated every two steps; evaluations before the warm-up's end do not count."""
    text = ",".join(["plateau", *(f"{k}={v}" for k, v in settings.items())])
    train(run, regression, text, "--eval-every=2", f"--min-lr={least}", f"--warmup={warmup}", "--log=log.jsonl")
    torch, want = ReduceLROnPlateau(LR, min_lr=least, **settings), []
    for line in regression.log():
        step = line["step"]
        want.append(LR * step / warmup if step <= warmup else torch.lr)
        if step % 2 == 0 and step >= warmup:
            torch.step(line["eval_loss"])
    assert [line["lr"] for line in regression.log()] == want
    assert torch.lr < LR or settings.get("eps") == 0.3  # it did happen


def test_a_resumed_run_has_the_same_bits(run, regression):
    options = ["plateau,patience=1,factor=0.6,cooldown=1", "--eval-every=1"]
    train(run, regression, *options, "--save=whole", "--log=log.jsonl")
    whole = [(line["lr"], line["loss"]) for line in regression.log()]
    for steps in range(5, STEPS + 1, 5):
        train(run, regression, *options, "--save=parts", "--resume=auto", "--log=log.jsonl", steps=steps)
    said = train(run, regression, *options, "--save=parts", "--resume=auto", "--log=log.jsonl").stderr
    assert [(line["lr"], line["loss"]) for line in regression.log()] == whole and len({lr for lr, _ in whole}) > 3
    a, b = (tensors(regression.folder / f / f"step-{STEPS:08}") for f in ("whole", "parts"))
    assert all((a[n] == b[n]).all() for n in a)
    assert "warning" not in said  # how many steps there are is nothing to it


def test_the_end_of_a_training_is_no_evaluation(run, regression):
    """A training of 5 steps, evaluated every 2 and at its end, goes on as one of 8."""
    for folder, parts in (("a", [8]), ("b", [5, 8])):
        for steps in parts:
            train(run, regression, "plateau,patience=0,factor=0.5", "--eval-every=2", f"--save={folder}", "--resume=auto", "--log=log.jsonl", steps=steps)
        rates = [line["lr"] for line in regression.log()]
        assert len(rates) == 8 and (folder == "a" or rates == before)
        before = rates


def test_another_learning_rate_takes_effect(run, regression):
    train(run, regression, "plateau,patience=0,factor=0.5", "--eval-every=1", "--save=saved", steps=6)
    said = train(run, regression, "plateau,patience=0,factor=0.5", "--eval-every=1", "--resume=saved", "--lr=0.01", "--log=log.jsonl", steps=7).stderr
    assert '"lr" was 0.4, is 0.01' in said and regression.log()[-1]["lr"] == 0.01


@pytest.mark.parametrize("key, value", [("lr", -1), ("lr", None), ("first", 0), ("best", "x"), ("bad", -1), ("cooldown", 1.5)])
def test_a_manifest_that_is_wrong_is_refused(run, regression, key, value):
    train(run, regression, "plateau", "--eval-every=1", "--save=saved", steps=2)
    folder = regression.folder / "saved/step-00000002"
    manifest = read_manifest(folder)
    manifest["plateau"][key] = value
    write_manifest(folder, manifest)
    assert f'"{key}"' in train(run, regression, "plateau", "--eval-every=1", "--resume=saved", steps=3, exit=7).stderr


def test_it_needs_evaluations(run, regression):
    assert "needs --eval-every" in train(run, regression, "plateau", exit=2).stderr
    said = run(regression.folder / "train", *regression.data, "--steps=2", "--lr-schedule=plateau", "--eval-every=1", exit=2).stderr
    assert "there are no evaluation data" in said
