"""Predictions beside measurements: the launches that bench.py stored in bench/results, as cost/ predicts them today.

bench_predict (predict_work.c) computes the predictions from the numbers that a result stores with each launch, so old results
stay usable when kernels and formulas change.
"""
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results"
MACHINES = {"H100": "h100", "H200": "h200", "A100": "a100"}  # by a word of CUDA's name
EVENT_US = 3.0      # by which a pair of events measures a library's call longer than CUPTI does (a median of results with both)
SHARE = 0.005       # of a step: shorter kernels are not judged one by one
NEAR, TWICE = 0.25, 2
NOT_MEASURED = "convolution"  # of these, the engine will change
COPY = {"class": "device copy", "math": "f32"}  # of a few bytes
# What bench.py keeps of a launch in gradc's JSON, where it is not 0: the fields of Work (cost/cost.h), the call, the place in the model.
KEPT = ("class", "math", "call", "bytes", "flops", "instructions", "matrix_flops", "steps", "parts", "blocks", "block_threads",
        "shared_bytes", "m", "n", "k", "batch", "runs", "alignment", "transposed", "origin", "predicted_us")


def machine_of(gpu):
    """The name for --machine of CUDA's name; None: not known."""
    return next((m for word, m in MACHINES.items() if word in gpu), None)


def stored_launch(launch):
    return {k: launch[k] for k in KEPT if launch.get(k)}


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

    @property
    def ratio(self):
        return self.predicted / self.us

    @property
    def judged(self):
        return self.share >= SHARE and self.row["class"] != NOT_MEASURED

    def __str__(self):
        return f"{self.result} {self.model} {self.row['kernel']}: {self.us:.1f} us, predicted {self.predicted:.1f} ({self.bound})"


@dataclass
class Step:
    """A measured step. ms: in which kernels ran, so that waiting for rows does not count. alone: ms of launches that are not predicted;
    records: the number of kernels that ran."""
    result: str
    model: str
    ms: float
    alone: float
    records: float
    launches: list

    @property
    def predicted(self):
        return self.alone + sum(x.row["launches"] * (x.launch + x.predicted) for x in self.launches if x.row["class"] != NOT_MEASURED) / 1e3


def of_result(path):
    """(machine, [Step]) of a file that bench.py wrote; predictions are 0 so far."""
    result, steps = json.loads(path.read_text()), []
    machine = machine_of(result["gpu"]["name"])
    for model, m in result["models"].items():
        if not m.get("kernels") or "step_ms_recorded" not in m:
            continue
        known = [k for k in m["kernels"] if "class" in k]
        launches = [Launch(path.stem, model, k, k["launches"] * k["us"] / m["step_ms_recorded"] / 1e3,
                           max(0.1, k["us"] - (EVENT_US if k["by"] == "events" else 0))) for k in known]
        alone = sum(x.us * x.row["launches"] for x in launches if x.row["class"] == NOT_MEASURED)
        alone += sum(k["us"] * k["launches"] for k in m["kernels"] if "class" not in k and k["kernel"].startswith("conv"))
        steps.append(Step(path.stem, model, m["step_ms_recorded"] * (1 - m["launch_gap"]), alone / 1e3,
                          sum(n for n, _ in m["records"].values()), launches))
    return machine, steps


def predict(program, machine, steps, numbers=None):
    """Fills in the predictions of all launches; numbers: {name: value} in place of the machine's own. False: the program is not built."""
    if not Path(program).exists():
        return False
    launches = [x for s in steps for x in s.launches]
    asked = {"machine": machine, "set": numbers or {}, "launches": [x.row for x in launches]}
    done = subprocess.run([program], input=json.dumps(asked), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    for x, (us, launch, bound) in zip(launches, json.loads(done.stdout)):
        x.predicted, x.launch, x.bound = us - launch, launch, bound
    return True


def stored(results=RESULTS):
    """[(machine, [Step])] of all results in bench/results."""
    return [of_result(path) for path in sorted(Path(results).glob("gpu-bench*.json"))]


def error(step, launch_us):
    """How far the step's prediction is off, as a fraction. The gaps between kernels are added to the measured time of the kernels."""
    return step.predicted / (step.ms + step.records * launch_us / 1e3) - 1


def above_twice(steps):
    """The launches of a share that counts which took more than twice their prediction, or convolutions."""
    return [x for s in steps for x in s.launches if x.share >= SHARE and x.us > TWICE * x.predicted]
