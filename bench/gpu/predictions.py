"""Predictions beside measurements: the launches that bench.py stored in bench/results, as cost/ predicts them today.

bench_predict (predict_work.c) computes the predictions from the numbers that a result stores with each launch, so old results
stay usable when kernels and formulas change.
"""
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results"
EVENT_US = 3.0      # by which a pair of events measures a library's call longer than CUPTI would: assumed, no result has both
SHARE = 0.005       # of a step: shorter kernels are not judged one by one
NEAR, TWICE = 0.25, 2
COPY = {"class": "device copy", "math": "f32"}  # of a few bytes
# What bench.py keeps of a launch in gradc's JSON, where it is not 0: the fields of Work (cost/cost.h), the call, the place in the model.
KEPT = ("class", "math", "call", "bytes", "flops", "instructions", "matrix_flops", "steps", "parts", "blocks", "block_threads",
        "shared_bytes", "m", "n", "k", "batch", "runs", "alignment", "transposed", "origin")


def stored_launch(launch, predicted=True):
    return {k: launch[k] for k in (*KEPT, *(["predicted_us"] if predicted else [])) if launch.get(k)}


@dataclass
class Launch:
    """A kernel of a measured step. us: measured, without the gap before; predicted: the same by cost/."""
    result: str
    model: str
    row: dict
    share: float
    us: float
    predicted: float = 0
    launch: float = 0
    bound: str = ""
    measured: bool = True  # its class was measured; a convolution's engine will change

    @property
    def ratio(self):
        return self.predicted / self.us

    @property
    def judged(self):
        return self.share >= SHARE and self.measured

    def __str__(self):
        return f"{self.result} {self.model} {self.row['kernel']}: {self.us:.1f} us, predicted {self.predicted:.1f} ({self.bound})"


@dataclass
class Step:
    """A measured step. ms: in which kernels ran, so that waiting for rows does not count; records: the number of kernels that ran;
    rest: ms of launches without numbers."""
    result: str
    model: str
    ms: float
    records: float
    rest: float
    launches: list
    launch_us: float = 0  # between two kernels, by cost/

    @property
    def unpredicted_ms(self):
        """Of what is not predicted, the measured time counts on both sides."""
        return self.rest + sum(x.us * x.row["launches"] for x in self.launches if not x.measured) / 1e3

    @property
    def predicted(self):
        return self.unpredicted_ms + sum(x.row["launches"] * (x.launch + x.predicted) for x in self.launches if x.measured) / 1e3

    @property
    def measured(self):
        """With the gaps between kernels."""
        return self.ms + self.records * self.launch_us / 1e3

    @property
    def error(self):
        """How far the prediction is off, as a fraction."""
        return self.predicted / self.measured - 1

    @property
    def error_of_predicted(self):
        """The same without what is not predicted."""
        return (self.predicted - self.unpredicted_ms) / (self.measured - self.unpredicted_ms) - 1


def of_result(path):
    """(CUDA's name of the GPU, [Step]) of a file that bench.py wrote; predictions are 0 so far."""
    result, steps = json.loads(path.read_text()), []
    for model, m in result["models"].items():
        if not m.get("kernels") or "step_ms_recorded" not in m:
            continue
        known = [k for k in m["kernels"] if "class" in k]
        launches = [Launch(path.stem, model, k, k["launches"] * k["us"] / m["step_ms_recorded"] / 1e3,
                           max(0.1, k["us"] - (EVENT_US if k["by"] == "events" else 0))) for k in known]
        # What prepares data for a library's call has an event, though it does not run; but not the copies around convolutions.
        rest = sum(k["us"] * k["launches"] for k in m["kernels"] if "class" not in k and k["us"] > EVENT_US)
        steps.append(Step(path.stem, model, m["step_ms_recorded"] * (1 - m["launch_gap"]), sum(n for n, _ in m["records"].values()),
                          rest / 1e3, launches))
    return result["gpu"]["name"], steps


def ask(program, **asked):
    """What bench_predict answers; None: it is not built, or does not know the GPU."""
    if not Path(program).exists():
        return None
    done = subprocess.run([program], input=json.dumps(asked), capture_output=True, text=True, check=False)
    if done.returncode and "unknown machine" not in done.stderr:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout) if done.returncode == 0 else None


def predict(program, gpu, steps, numbers=None):
    """Fills in the predictions of all launches; numbers: {name: value} in place of the machine's own. False: there is no prediction."""
    launches = [x for s in steps for x in s.launches]
    found = ask(program, gpu=gpu, set=numbers or {}, launches=[x.row for x in launches])
    for x, (us, launch, bound, measured) in zip(launches, found["launches"] if found else [], strict=bool(found)):
        x.predicted, x.launch, x.bound, x.measured = us - launch, launch, bound, measured
    for s in steps:
        s.launch_us = found["launch_us"] if found else 0
    return bool(found)


def stored(results=RESULTS):
    """[(CUDA's name of the GPU, [Step])] of all results in bench/results."""
    return [of_result(path) for path in sorted(Path(results).glob("gpu-bench*.json"))]


def above_twice(steps):
    """The launches of at least SHARE of a step that took more than twice their prediction."""
    return [x for s in steps for x in s.launches if x.share >= SHARE and x.us > TWICE * x.predicted]
