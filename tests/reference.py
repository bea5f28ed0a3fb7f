"""What tests know of the reference models: their reference.json and how its command lines are run."""
import json
import shlex
from pathlib import Path

import numpy as np

COPIES = Path(__file__).resolve().parent / "models"
NAMES = sorted(p.parent.name for p in COPIES.glob("*/reference.json"))
PRECISIONS = ("f64", "f32")


def load(name):
    return json.loads((COPIES / name / "reference.json").read_text())


def traces():
    """(model, index of the trace, precision) of each that this build can run."""
    return [(name, i, precision) for name in NAMES for i, t in enumerate(load(name)["traces"])
            for precision in PRECISIONS if precision in t["gradc"]]


def trace_id(value):
    return str(value)


def compile_options(name, precision, trace=0, drop=()):
    """The options of a trace's compile line behind `-o train`, without those that `drop` starts."""
    words = shlex.split(load(name)["traces"][trace]["gradc"][precision][0])
    assert words[:5] == ["gradc", "compile", "model.onnx", "-o", "train"]
    options, i = [], 5
    while i < len(words):
        two = "=" not in words[i]
        if not words[i].startswith(tuple(drop) or ("none",)):
            options += words[i:i + 1 + two]
        i += 1 + two
    return options


def train_options(name, precision, trace=0):
    words = shlex.split(load(name)["traces"][trace]["gradc"][precision][1])
    assert words[0] == "./train"
    return words[1:]


def first_batch(folder, target, precision="f32", labels=True, most=None):
    """Files with the first batch of a model's data, or `most` rows of it where the model leaves their number open: the arguments that
    name them."""
    reference = json.loads((folder / "reference.json").read_text())
    rows, arguments = reference["traces"][0]["micro_batch"], []
    if most and all(isinstance(i["shape"][0], str) for i in reference["inputs"]):
        rows = min(rows, most)
    files = [(i["name"], i["file"]) for i in reference["inputs"]]
    for name, file in files + ([("labels", reference["labels"]["file"])] if labels else []):
        np.save(target / file, np.load(folder / file)[:rows])
        arguments += ["--input", f"{name}={target / file}"]
    return arguments


def results(folder):
    """{tensor name: array} of a folder with names.json."""
    names = json.loads((folder / "names.json").read_text())
    return {name: np.load(folder / entry["file"]) for name, entry in names.items()}


def log_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def step_losses(path):
    """Losses of a log's training steps, in order."""
    return [line["loss"] for line in log_lines(path) if "lr" in line]


def relative(got, want):
    """Norm of the difference, relative to the norm of `want`."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape, f"shape {got.shape}, expected {want.shape}"
    return float(np.linalg.norm(got - want) / max(np.linalg.norm(want), 1e-300))
