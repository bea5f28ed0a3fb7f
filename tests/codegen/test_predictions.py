"""What cost/ predicts beside what GPUs measured (bench/results): close enough, and what is far off has its reason."""
import json
import re
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench/gpu"))
import predictions  # noqa: E402

TRANSFORMERS = ("gpt2_124m", "llama_100m", "bert_base", "vit_small")
FITTED = ("gpu-bench", "gpu-bench-bf16", "gpu-bench-h100", "gpu-bench-h100-bf16")
NINE_OF_TEN, STEP = 0.9, 0.08
REASONS = Path(__file__).with_name("above_prediction.json")


@pytest.fixture(scope="module")
def steps(build):
    """All stored steps, with today's predictions."""
    found = []
    for gpu, steps in predictions.stored():
        if predictions.predict(build / "bench_predict", gpu, steps):  # else a GPU that cost/ does not know
            found += steps
    return found


def of_transformers(steps):
    return [s for s in steps if s.result in FITTED and s.model in TRANSFORMERS]


def test_nine_of_ten_launches_are_near(steps):
    judged = [x for s in of_transformers(steps) for x in s.launches if x.judged]
    near = [x for x in judged if abs(x.ratio - 1) <= predictions.NEAR]
    assert len(judged) > 600
    assert len(near) >= NINE_OF_TEN * len(judged), sorted((str(x) for x in judged if x not in near))


def test_steps_are_near(steps):
    found = {f"{s.result} {s.model}": s.error for s in of_transformers(steps)}
    assert len(found) == len(FITTED) * len(TRANSFORMERS)
    assert {name: error for name, error in found.items() if abs(error) > STEP} == {}


def test_what_takes_twice_its_prediction_has_a_reason(steps):
    """above_prediction.json: a list of {"why": reason, "kernels": {model: [pattern of a kernel's name without its number]}}."""
    reasons, used, unexplained = json.loads(REASONS.read_text()), set(), []
    patterns = {(model, p) for r in reasons for model, several in r["kernels"].items() for p in several}
    for x in predictions.above_twice(steps):
        name = re.sub(r"_\d+$", "", x.row["kernel"])
        fitting = {(model, p) for model, p in patterns if model == x.model and fnmatchcase(name, p)}
        used |= fitting
        unexplained += [] if fitting else [str(x)]
    assert not unexplained, f"no reason in {REASONS.name}"
    assert patterns == used, f"{REASONS.name} explains what does not exist"


def test_results_keep_what_a_launch_asks(steps):
    """So that they can be predicted again: what a call is, its sizes, bytes and operations; of loops their parts and instructions."""
    for s in steps:
        for x in s.launches:
            if x.row["class"] == "product":
                assert x.row["call"].startswith("dot {") and all(x.row[k] > 0 for k in ("m", "n", "k", "batch", "runs", "bytes", "flops")), x
            elif x.row["class"] == "loops":
                assert all(x.row.get(k, 0) > 0 for k in ("parts", "blocks", "block_threads")), x


@pytest.mark.parametrize("asked, message", [
    ({"machine": "h1000"}, "unknown machine: h1000"),
    ({"machine": "h100", "set": {"memory": 1}}, "unknown number: memory"),
    ({"machine": "h100", "launches": [{"class": "dance", "math": "f32"}]}, "unknown word: dance"),
])
def test_the_program_refuses(build, asked, message):
    done = subprocess.run([build / "bench_predict"], input=json.dumps(asked), capture_output=True, text=True, check=False)
    assert done.returncode == 2 and message in done.stderr


def test_a_number_can_be_tried(build):
    """A product at twice the rate takes half of its time, but for what is fixed."""
    row = {"class": "product", "math": "tf32", "flops": 2.0 * 8192 ** 3, "bytes": 1, "m": 8192, "n": 8192, "k": 8192, "batch": 1, "runs": 1,
           "alignment": 16}
    step = predictions.Step("", "", 1, 0, 0, [predictions.Launch("", "", row, 1, 1)])
    times = []
    for reached in (0.4, 0.8):
        predictions.predict(build / "bench_predict", "NVIDIA H100 80GB HBM3", [step], {"products.tf32.reached": reached, "call_seconds": 0})
        times.append(step.launches[0].predicted)
    assert times[0] == pytest.approx(2 * times[1], rel=1e-6)
