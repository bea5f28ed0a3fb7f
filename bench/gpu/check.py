"""Is a GPU right? Each reference model's curve on it against PyTorch's, and three runs against each other.

    make gpu-check          or: python3 bench/gpu/check.py [--steps N] [--models gpt2_mini,...]

Needs build/gradc, the reference models and a GPU with its driver; NVRTC compiles the kernels. Writes one JSON under
bench/results, and exits 1 where something differs.
"""
import argparse
import json
import shlex
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import machine
import tolerances

CASES = ("f32", "f64")


def traces(names, steps):
    """(model, trace, precision, compile options, run options) of what is there."""
    for name in sorted(p.parent.name for p in machine.models().glob("*/reference.json")):
        if names and name not in names:
            continue
        reference = json.loads((machine.models() / name / "reference.json").read_text())
        for i, trace in enumerate(reference["traces"]):
            for precision in CASES:
                if precision in trace["gradc"]:
                    compile_line, run_line = map(shlex.split, trace["gradc"][precision][:2])
                    options = [o for o in run_line[1:] if not (steps and o.startswith("--steps"))]
                    yield name, i, precision, compile_line[5:], options + [f"--steps={steps}"] * bool(steps)


def compile_one(folder, architecture, case):
    """(executable, what went wrong)."""
    name, i, precision, options, _ = case
    exe = folder / f"{name}.{i}.{precision}"
    code, text, seconds = machine.call(machine.gradc(), "compile", "model.onnx", "-o", exe, *options,
                                       f"--target=cuda:{architecture}", cwd=machine.models() / name, timeout=300)
    return exe, text[-1000:] if code else "", seconds


def losses(log):
    return [line["loss"] for line in map(json.loads, log.read_text().splitlines()) if "lr" in line]


def run_one(exe, case, repeats):
    """The worst relative difference to PyTorch's losses; what went wrong."""
    name, i, precision, _, options = case
    want = json.loads((machine.models() / name / "reference.json").read_text())["traces"][i][precision]["losses"]
    found = []
    for r in range(repeats):
        log = exe.with_suffix(f".{r}.jsonl")
        code, text, _ = machine.call(exe, *options, "--device=cuda", "--log", log, "--progress=off", "--table=off",
                                     cwd=machine.models() / name, timeout=120)
        if code:
            return None, f"exit {code}: {text[-600:]}"
        found.append(losses(log))
    worst = max(abs(a - b) / abs(b) for a, b in zip(found[0], want))
    if any(f != found[0] for f in found):
        return worst, "three runs differ"
    limit = tolerances.limit(f"loss {precision}", name)
    return worst, "" if worst <= limit else f"above {limit:g}"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--models", type=lambda x: x.split(","), default=[])
    p.add_argument("--steps", type=int, default=0, help="of each curve (all)")
    p.add_argument("--architecture", default="sm_90a")
    p.add_argument("--repeats", type=int, default=3, help="runs that must have the same bits")
    p.add_argument("--compilers", type=int, default=8, help="at a time")
    o = p.parse_args()
    cases, rows = list(traces(o.models, o.steps)), []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(o.compilers) as pool:
        compiled = list(pool.map(lambda c: compile_one(Path(folder), o.architecture, c), cases))
        for case, (exe, fault, seconds) in zip(cases, compiled):
            worst, fault = (None, fault) if fault else run_one(exe, case, o.repeats)
            rows.append({"model": case[0], "trace": case[1], "precision": case[2], "compile_s": round(seconds, 2),
                         "worst": worst, "fault": fault})
            shown = "-" if worst is None else f"{worst:.1e}"
            print(f"{case[0]:20} {case[1]} {case[2]}  {shown:8} {fault or 'ok'}", flush=True)
    faults = [r for r in rows if r["fault"]]
    machine.write("gpu-check", {**machine.facts(), "curves": rows})
    print(f"{len(rows) - len(faults)} curves are PyTorch's, {len(faults)} are not")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
