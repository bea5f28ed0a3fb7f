"""What the bench models would cost on a GPU, in batches that fill one, and which launches have too few parts for it.

    .venv/bin/python tests/codegen/costs.py             what starved.json lacks or has too much
    .venv/bin/python tests/codegen/costs.py --page      writes docs/predictions/gpt2_124m_h100.md

The reference models are left out: the largest step of them takes half a millisecond, most of it launches.
"""
import json
import subprocess
import sys
import tempfile
from fnmatch import fnmatchcase
from pathlib import Path

import schedules  # puts bench/ on the path
import workloads

# Of a training step: rows that fill a GPU.
MODELS = {
    "gpt2_124m": ("--dim=batch=16", "--dim=seq=1024"),
    "llama_100m": ("--dim=batch=16", "--dim=seq=1024"),
    "bert_base": ("--dim=batch=64", "--dim=seq=128"),
    "vit_small": ("--batch=128",),
    "resnet50": ("--batch=128",),
}
TRAINS = ("--init=random", "--loss=cross_entropy", "--optimizer=adamw")
LEAST = 0.6             # of a launch's roofline, with so many parts
NEGLIGIBLE = 0.001      # of a step
STARVED = Path(__file__).with_name("starved.json")
PAGE = schedules.ROOT / "docs/predictions/gpt2_124m_h100.md"


def command(name, machine, *options):
    """The arguments of gradc in a folder that has the model's graph."""
    return ["dump", f"{name}.onnx", *TRAINS, *MODELS[name], "--stage=schedule", f"--machine={machine}", *options]


def dump(gradc, name, machine, scratch, *options):
    """What gradc prints of a model."""
    workloads.write_graph(name, scratch / f"{name}.onnx")
    done = subprocess.run([gradc, *command(name, machine, *options)], cwd=scratch, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{name}: {done.stderr}"
    return done.stdout


def predicted(gradc, name, machine, scratch):
    """The JSON of a model, as Python has it."""
    return json.loads(dump(gradc, name, machine, scratch, "--format=json"))


def starved(step):
    """{place: least utilization} of the launches that have too few parts and take more than a negligible share."""
    found = {}
    for launch in step["launches"]:
        if launch["op"] == "run" and launch["share"] >= NEGLIGIBLE and launch["utilization"] < LEAST:
            where = schedules.place(launch)
            found[where] = min(found.get(where, 1), launch["utilization"])
    return found


def judge(found, reasons):
    """({model: {place: utilization}} that no reason explains, "model: pattern" that match no launch). starved.json is a list of
    {"why": reason, "kernels": {model: [pattern]}}."""
    patterns = [(model, p) for r in reasons for model, several in r["kernels"].items() for p in several]
    unexplained = {model: {where: round(n, 2) for where, n in launches.items()
                           if not any(m == model and fnmatchcase(where, p) for m, p in patterns)}
                   for model, launches in found.items()}
    useless = [f"{m}: {p}" for m, p in patterns if not any(fnmatchcase(where, p) for where in found[m])]
    return {model: launches for model, launches in unexplained.items() if launches}, useless


def page(gradc, scratch):
    """The page that measurements are held against."""
    text = dump(gradc, "gpt2_124m", "h100", scratch)
    words = " ".join(command("gpt2_124m", "h100"))
    return ("# gpt2_124m on an H100, predicted\n\n"
            "A training step of 16 × 1024 tokens in f32, launch by launch, as [cost-model.md](../cost-model.md) predicts it. Nothing\n"
            "here is measured: measurements are held against it. Written by `.venv/bin/python tests/codegen/costs.py --page`, a test\n"
            "compares.\n\n"
            f"```\n$ gradc {words}\n{text}```\n")


def main():
    gradc = schedules.ROOT / "build/gradc"
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        if "--page" in sys.argv[1:]:
            PAGE.parent.mkdir(exist_ok=True)
            PAGE.write_text(page(gradc, scratch))
            return
        found = {name: starved(predicted(gradc, name, "h100", scratch)["steps"][0]) for name in MODELS}
    unexplained, useless = judge(found, json.loads(STARVED.read_text()))
    print("not explained:", json.dumps(unexplained, indent=1))
    print("matching nothing:", json.dumps(useless, indent=1))


if __name__ == "__main__":
    main()
