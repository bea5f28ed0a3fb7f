"""Trains bench models with gradc and with PyTorch, by turns, and says how fast, how large and why.

`make bench` runs it in bench/.venv; bench/README.md says what it measures and what its files hold.
"""
import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import executable
import facts
import summary
import traffic
from executable import WARMUP
from process import Failure, call
from workloads import MODELS, write_data

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT.parent / "shared/reference"
CONTENDERS = ("gradc", "eager", "compile")
PRECISIONS = ("f32", "bf16")
RECORDED_VARIABLES = ("OMP_", "GOMP_", "KMP_", "MKL_", "TORCH", "GRADC_")
RECORDED_PACKAGES = ("torch", "torchvision", "transformers", "onnx")


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


def run_gradc(model, onnx, folder, o):
    """One round of gradc: it compiles, and the executable trains."""
    exe = folder / "train"
    seconds = compile_gradc(model, onnx, exe, o.compile_option)
    lines, peak = executable.log_lines(executable.training(model, exe, folder, o.steps, o.threads))
    first_at, first = lines[0]
    info = json.loads(call([exe, "--info", "--json"]))
    return {"compile_s": seconds, "first_step_end_s": first_at,
            "start_ms": 1e3 * first_at - first["step_ms"] + first["data_ms"],
            "step_ms": [line["step_ms"] for _, line in lines], "loss": [line["loss"] for _, line in lines],
            "peak_bytes": peak, "steady_bytes": peak, "planned_bytes": info["peak_bytes"],
            "binary_bytes": exe.stat().st_size - info["weights_bytes"]}


def profile_gradc(model, onnx, folder, o):
    """The arguments of summary.kernels, but the limits. The times by kernel are from trainings of their own, with all
    threads and with one: measuring takes time itself."""
    exe, page = folder / "train", folder / "report.html"
    if not exe.exists():
        compile_gradc(model, onnx, exe, o.compile_option)
    profiles = []
    for threads in (o.threads, 1):
        call([*executable.training(model, exe, folder, o.steps, threads), "--report", page])
        profiles.append(summary.profile_of(page.read_text()))
    gradc = ROOT / "build/gradc"
    lowered = call([gradc, "dump", onnx, "--loss=cross_entropy", "--optimizer=adamw", *model.options,
                    *o.compile_option, "--stage=lowered"])
    schedule = [gradc, "dump", exe, "--stage=schedule"]
    parts = parts_of(json.loads(call([*schedule, "--format=json"])))
    return (*profiles, traffic.of_kernels(lowered, call(schedule)), parts)


def parts_of(schedule):
    """{kernel: parts of a launch}"""
    return {i["kernel"]: i["parts"] for p in schedule["programs"] for i in p["instructions"] if i["kernel"]}


# ---------------------------------------------------------------- PyTorch

def run_torch(name, model, mode, folder, o):
    """One round of PyTorch, with empty caches of compiled kernels. What compiling takes is what the
    first step takes more than the others."""
    with tempfile.TemporaryDirectory(dir=folder) as cache:
        environment = dict(os.environ, TORCHINDUCTOR_CACHE_DIR=cache, TRITON_CACHE_DIR=cache,
                           CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS=str(o.threads))
        start = time.monotonic()
        said = call([sys.executable, ROOT / "bench/torch_worker.py", o.reference, name, mode, folder,
                     model.rows, o.steps, o.threads, o.precision], env=environment)
    run = json.loads(said.splitlines()[-1])
    usual = statistics.median(run["step_ms"][WARMUP:])
    start_ms = 1e3 * (run.pop("began") - start)
    return {**run, "start_ms": start_ms, "first_step_end_s": (start_ms + run["step_ms"][0]) / 1e3,
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
    limits = facts.better(limits, facts.limits(o.threads))
    machine = facts.machine()
    machine["versions"].update(packages())
    load = watch.facts()
    settings = {"shape": model.text(), "rows": model.rows, "precision": o.precision, "optimizer": "adamw",
                "threads": o.threads, "steps": o.steps, "warmup": WARMUP, "rounds": o.rounds,
                "compile_options": [*model.options, *o.compile_option],
                "environment": {k: v for k, v in os.environ.items() if k.startswith(RECORDED_VARIABLES)}}
    return summary.of_model(name, settings, rounds, summary.kernels(*profile, limits), machine, limits, load,
                            [facts.load_warning(load)])


def prepare():
    """The programs that facts.limits runs, built."""
    call(["cmake", "--build", ROOT / "build", "--target", "bench_gemm", "bench_bandwidth"])


def write(result, folder):
    """FOLDER/MODEL.json, FOLDER/MODEL-bf16.json."""
    folder.mkdir(parents=True, exist_ok=True)
    precision = result["settings"]["precision"]
    (folder / f"{result['model']}{'' if precision == 'f32' else '-' + precision}.json").write_text(json.dumps(result, indent=1) + "\n")


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
    p.add_argument("--precisions", type=listed(PRECISIONS), default=["f32"],
                   help="f32, bf16: gradc's --precision, PyTorch's autocast; one after the other")
    p.add_argument("--compile-option", action="append", default=[], help="of gradc compile, repeatable")
    p.add_argument("--onnx", type=Path, default=ROOT / "bench/.models", help="where exported models are kept")
    p.add_argument("--reference", type=Path, default=REFERENCE, help="the folder of export_models.py")
    p.add_argument("--out", type=Path, default=ROOT / "bench/results", help="for MODEL.json")
    return p.parse_args(arguments)


def main(arguments):
    """Measures model by model; what fails is said, and the next one follows."""
    o = options(arguments)
    given, failed = o.compile_option, 0
    for name, o.precision in itertools.product(o.models, o.precisions):
        o.compile_option = [*given, f"--precision={o.precision}"]
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
