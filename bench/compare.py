"""Trains bench models with gradc and with PyTorch, by turns, and says how fast, how large and why.

`make bench` runs it in bench/.venv; bench/README.md says what it measures and what its files hold.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import facts
import summary
from process import Failure, call

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT.parent / "shared/reference"
WARMUP = 3       # steps of a process that its medians leave out
BATCHES = 8      # different ones; then they come again
CONTENDERS = ("gradc", "eager", "compile")
RECORDED_VARIABLES = ("OMP_", "GOMP_", "KMP_", "MKL_", "TORCH", "GRADC_")
RECORDED_PACKAGES = ("torch", "torchvision", "transformers", "onnx")


@dataclass
class Model:
    """A bench model: rows a step, and what its one input and its class labels look like."""
    rows: int
    input: str
    shape: tuple     # of a row of the input
    labels: tuple    # of a row of labels
    classes: int
    vocabulary: int = 0      # tokens below it; 0: floats
    options: tuple = ()      # of gradc compile

    def text(self):
        """The input's shape, rows first."""
        return "x".join(map(str, (self.rows, *self.shape)))


MODELS = {
    "mlp": Model(256, "input", (784,), (), 10, options=("--batch=256",)),
    "gpt2_10m": Model(8, "input_ids", (256,), (256,), 256, 256, ("--dim=batch=8", "--dim=seq=256")),
    "gpt2_124m": Model(2, "input_ids", (256,), (256,), 50257, 50257, ("--dim=batch=2", "--dim=seq=256")),
    "resnet18": Model(8, "image", (3, 224, 224), (), 1000, options=("--batch=8",)),
}


def write_data(model, folder):
    """inputs.npy and labels.npy of BATCHES steps, the same at every run."""
    random = np.random.default_rng(0)
    n = BATCHES * model.rows
    shape = (n, *model.shape)
    inputs = (random.integers(0, model.vocabulary, shape) if model.vocabulary
              else random.standard_normal(shape, dtype=np.float32))
    np.save(folder / "inputs.npy", inputs)
    np.save(folder / "labels.npy", random.integers(0, model.classes, (n, *model.labels)))


def export(name, folder, reference):
    """Path of the model's ONNX file, written by export_models.py unless it is there."""
    path = folder / name / "model.onnx"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as half:  # nobody takes half a file for a whole one
            call([sys.executable, reference / "export_models.py", "--bench", name, "--out", half])
            os.rename(Path(half) / name, folder / name)
    return path


# ---------------------------------------------------------------- gradc

def compile_gradc(model, onnx, exe, extra):
    """Seconds that gradc takes for the executable."""
    start = time.monotonic()
    call([ROOT / "build/gradc", "compile", onnx, "-o", exe, *model.options, *extra])
    return time.monotonic() - start


def training(model, exe, folder, steps, threads):
    """The command that trains on write_data's files."""
    return [exe, "--data", f"{model.input}={folder / 'inputs.npy'}", "--data",
            f"labels={folder / 'labels.npy'}", f"--steps={steps}", f"--threads={threads}",
            "--shuffle=off", "--progress=off", "--table=off"]


def high_water(pid, before):
    """The process's largest resident bytes so far; `before` when it has gone. (getrusage would count
    what this process had when it forked.)"""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        return 1024 * int(status.split("VmHWM:")[1].split()[0])
    except (OSError, IndexError):
        return before


def log_lines(command):
    """(seconds when it came, object) for each line of the training's log, and the memory's peak last."""
    read, write = os.pipe()
    start, peak, lines = time.monotonic(), 0, []
    with subprocess.Popen([str(c) for c in command] + ["--log", f"/dev/fd/{write}"], pass_fds=[write],
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        os.close(write)
        with os.fdopen(read) as log:
            for line in log:
                lines.append((time.monotonic() - start, json.loads(line)))
                if len(lines) > WARMUP:
                    peak = high_water(process.pid, peak)
        said = process.stderr.read().strip()
    if process.returncode:
        raise Failure(f"{command[0]}: exit {process.returncode}: {said}")
    return lines, peak


def run_gradc(model, onnx, folder, o):
    """One round of gradc: it compiles, and the executable trains."""
    exe = folder / "train"
    seconds = compile_gradc(model, onnx, exe, o.compile_option)
    lines, peak = log_lines(training(model, exe, folder, o.steps, o.threads))
    first_at, first = lines[0]
    info = json.loads(call([exe, "--info", "--json"]))
    return {"compile_s": seconds, "start_ms": 1e3 * first_at - first["step_ms"] + first["data_ms"],
            "step_ms": [line["step_ms"] for _, line in lines], "loss": [line["loss"] for _, line in lines],
            "peak_bytes": peak, "steady_bytes": peak, "planned_bytes": info["peak_bytes"],
            "binary_bytes": exe.stat().st_size - info["weights_bytes"]}


def profile_gradc(model, onnx, folder, o):
    """The times by kernel, from a training of its own: measuring takes time itself."""
    exe, page = folder / "train", folder / "report.html"
    if not exe.exists():
        compile_gradc(model, onnx, exe, o.compile_option)
    call([*training(model, exe, folder, o.steps, o.threads), "--report", page])
    return summary.profile_of(page.read_text())


# ---------------------------------------------------------------- PyTorch

def run_torch(name, model, mode, folder, o):
    """One round of PyTorch, with empty caches of compiled kernels. What compiling takes is what the
    first step takes more than the others."""
    with tempfile.TemporaryDirectory(dir=folder) as cache:
        environment = dict(os.environ, TORCHINDUCTOR_CACHE_DIR=cache, TRITON_CACHE_DIR=cache,
                           CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS=str(o.threads))
        start = time.monotonic()
        said = call([sys.executable, ROOT / "bench/torch_worker.py", o.reference, name, mode, folder,
                     model.rows, o.steps, o.threads], env=environment)
    run = json.loads(said.splitlines()[-1])
    usual = statistics.median(run["step_ms"][WARMUP:])
    return {**run, "start_ms": 1e3 * (run.pop("began") - start),
            "compile_s": (run["step_ms"][0] - usual) / 1e3 if mode == "compile" else None}


def packages():
    """Versions of the packages of this venv that a result depends on."""
    from importlib import metadata
    found = {d.metadata["Name"]: d.version for d in metadata.distributions()}
    return {name: found[name] for name in RECORDED_PACKAGES if name in found}


# ---------------------------------------------------------------- the comparison

def run_once(contender, name, model, onnx, folder, o):
    """One process of a contender."""
    if contender == "gradc":
        return run_gradc(model, onnx, folder, o)
    return run_torch(name, model, contender, folder, o)


def measure(name, model, onnx, o):
    """The result of a model. Contenders take turns, another one first in each round."""
    watch = facts.Watch()
    limits = facts.limits(o.threads)
    rounds = {c: [] for c in o.contenders}
    with tempfile.TemporaryDirectory(prefix="gradc-bench-") as scratch:
        folder = Path(scratch)
        write_data(model, folder)
        for r in range(o.rounds):
            first = r % len(o.contenders)
            for contender in o.contenders[first:] + o.contenders[:first]:
                rounds[contender].append(run_once(contender, name, model, onnx, folder, o))
        profile = profile_gradc(model, onnx, folder, o)
    machine = facts.machine()
    machine["versions"].update(packages())
    load = watch.facts()
    settings = {"shape": model.text(), "rows": model.rows, "precision": "f32", "optimizer": "adamw",
                "threads": o.threads, "steps": o.steps, "warmup": WARMUP, "rounds": o.rounds,
                "compile_options": [*model.options, *o.compile_option],
                "environment": {k: v for k, v in os.environ.items() if k.startswith(RECORDED_VARIABLES)}}
    return summary.of_model(name, settings, rounds, profile, machine, limits, load,
                            [facts.load_warning(load)])


def prepare():
    """The programs that facts.limits runs, built."""
    call(["cmake", "--build", ROOT / "build", "--target", "bench_gemm", "bench_bandwidth"])


def write(result, folder):
    """FOLDER/MODEL.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{result['model']}.json").write_text(json.dumps(result, indent=1) + "\n")


def listed(known):
    """A parser of comma-separated names out of known ones."""
    def parse(text):
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return names
    return parse


def at_least(least):
    """A parser of whole numbers."""
    def parse(text):
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no number from {least}")
        return int(text)
    return parse


def options(arguments):
    """The command line."""
    p = argparse.ArgumentParser(prog="bench/compare.py", description=__doc__.splitlines()[0],
                                formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("--models", type=listed(MODELS), default=list(MODELS), help="names, comma-separated")
    p.add_argument("--contenders", type=listed(CONTENDERS), default=list(CONTENDERS), help="likewise")
    p.add_argument("--steps", type=at_least(WARMUP + 2), default=23, help="of each process")
    p.add_argument("--rounds", type=at_least(1), default=5, help="processes of each contender")
    p.add_argument("--threads", type=at_least(1), default=len(os.sched_getaffinity(0)), help="of each process")
    p.add_argument("--compile-option", action="append", default=[], help="of gradc compile, repeatable")
    p.add_argument("--onnx", type=Path, default=ROOT / "bench/.models", help="where exported models are kept")
    p.add_argument("--reference", type=Path, default=REFERENCE, help="the folder of export_models.py")
    p.add_argument("--out", type=Path, default=ROOT / "bench/results", help="for MODEL.json")
    return p.parse_args(arguments)


def main(arguments):
    """Measures model by model; what fails is said, and the next one follows."""
    o = options(arguments)
    failed = 0
    for name in o.models:
        try:
            prepare()
            result = measure(name, MODELS[name], export(name, o.onnx, o.reference), o)
        except Failure as failure:
            print(f"bench: error: {name}: {failure}", file=sys.stderr)
            failed = 1
            continue
        write(result, o.out)
        print(summary.table(result), flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
