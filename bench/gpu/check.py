"""Is a GPU right? The device suite, kernels against the interpreter, curves against PyTorch's, three equal runs, tf32, bf16 and f16 with
what cuBLASLt does beside multiplying, operands that pass codes against a CPU's, memory checked.

    make gpu-check          or: python3 bench/gpu/check.py [--only curves,...] [--models gpt2_mini,...]

Needs gradc, its tests in C, the reference models and a GPU with its driver; NVRTC compiles the kernels. Writes one JSON under
bench/results, and exits 1 where something differs. scripts/gpu-pack makes a folder of all that a machine without a network needs.
"""
import argparse
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import machine
import quantized
import tolerances

PRECISIONS = ("f32", "f64")
ROUNDED, ROUNDED_STEPS = ("tf32", "bf16", "f16"), 3  # of products' operands
DEPENDS_ON_STEPS = ("--lr-schedule", "--warmup")  # what a trace has whose first steps change with --steps


def reference(name):
    return json.loads((machine.models() / name / "reference.json").read_text())


def names(o):
    return [n for n in sorted(p.parent.name for p in machine.models().glob("*/reference.json"))
            if n not in machine.NOT_SUPPORTED and (not o.models or n in o.models)]


# ---- the device suite
def device_suite(o, folder):
    code, text, seconds = machine.call(machine.program("tests/runtime_device_test"), timeout=120, GRADC_TEST_DEVICE="cuda")
    passed = len(re.findall(r"^\[ +OK \] .* cuda$", text, re.M))
    return [{"what": "device suite", "passed": passed, "seconds": round(seconds, 1),
             "fault": "" if code == 0 and passed else f"exit {code}: {text[-800:]}"}]


# ---- kernels
def files_of_kernels(o, folder):
    """(name, file): of the reference models, of docs/loop-ir.md, and those for tensor cores, conversions and exponentials: what the prelude has."""
    page = (machine.ROOT / "docs/loop-ir.md").read_text()
    blocks = [b for b in re.findall(r"```\n(.*?)```", page, re.S) if "kernel @" in b]
    kernels = dict(re.findall(r"(?=kernel @(\w+))(kernel @.*?\n}\n)", "".join(blocks), re.S))
    (folder / "page.gir").write_text("module @page {\n" + "".join(kernels.values()) + "}\n")
    yield "docs/loop-ir.md", folder / "page.gir"
    for name in ("tensor_cores", "conversions", "fast"):
        yield name, machine.ROOT / f"tests/codegen/{name}.gir"
    for name in names(o):
        fused, lowered = folder / f"{name}.fused.gir", folder / f"{name}.gir"
        dims = [f"--dim={k}={min(v, 16)}" for k, v in (reference(name).get("dims") or {}).items()]
        machine.call(machine.gradc(), "dump", machine.models() / name / "model.onnx", "--loss", reference(name)["loss"], *dims,
                     "--optimizer=adamw", "--pass-option=multiversion.targets=cuda-sm_90", "--stage=fused", "-o", fused)
        machine.call(machine.gradc(), "opt", fused, "--passes=lower{target=cuda-sm_90}", "-o", lowered)
        yield name, lowered


def compare_kernels(o, folder):
    def compare(case):
        code, text, seconds = machine.call(machine.program("tests/compare_kernels"), case[1], "gpu", o.architecture, timeout=200,
                                           INTEGERS="7" if case[0] == "conversions" else "4")
        count = re.search(r"(\d+) kernels, \d+ codes, (\d+) differences", text)
        return {"what": f"kernels of {case[0]}", "kernels": int(count.group(1)) if count else 0, "seconds": round(seconds, 1),
                "fault": "" if code == 0 and count else f"exit {code}: {text[-800:]}"}

    with ThreadPoolExecutor(o.compilers) as pool:
        return list(pool.map(compare, list(files_of_kernels(o, folder))))


# ---- curves
def traces(o):
    """(model, trace, precision, compile options, run options) of what is there."""
    for name in names(o):
        for i, trace in enumerate(reference(name)["traces"]):
            for precision in PRECISIONS:
                if precision not in trace["gradc"]:
                    continue
                compile_line, run_line = map(shlex.split, trace["gradc"][precision][:2])
                options = run_line[1:]
                if o.steps and not any(word.startswith(DEPENDS_ON_STEPS) for word in options):
                    options = [word for word in options if not word.startswith("--steps")] + [f"--steps={o.steps}"]
                yield name, i, precision, compile_line[5:], options


def compile_one(o, folder, case):
    """(executable, what went wrong, seconds)."""
    name, i, precision, options, _ = case
    exe = folder / f"{name}.{i}.{precision}"
    code, text, seconds = machine.call(machine.gradc(), "compile", "model.onnx", "-o", exe, *options,
                                       f"--target=cuda:{o.architecture}", cwd=machine.models() / name, timeout=300)
    return exe, text[-1000:] if code else "", seconds


def losses(log):
    return [line["loss"] for line in map(json.loads, log.read_text().splitlines()) if "lr" in line]


def losses_of(exe, case, run, *more):
    """Of each step; what went wrong. Without --tune=FILE, runs use --tune=off, so that all take the same engines."""
    log = Path(f"{exe}.{run}.jsonl")
    tune = [] if any(o.startswith("--tune=") for o in more) else ["--tune=off"]
    code, text, _ = machine.call(exe, *case[4], *more, *tune, "--device=cuda", "--log", log, "--progress=off", "--table=off",
                                 cwd=machine.models() / case[0], timeout=120)
    return (None, f"exit {code}: {text[-600:]}") if code else (losses(log), "")


def run_one(exe, case, repeats):
    """The worst relative difference to PyTorch's losses; what went wrong."""
    name, i, precision = case[:3]
    want, found = reference(name)["traces"][i]["f32" if precision in ROUNDED else precision]["losses"], []
    for r in range(repeats):
        got, fault = losses_of(exe, case, r)
        if fault:
            return None, fault
        found.append(got)
    worst = max(abs(a - b) / abs(b) for a, b in zip(found[0], want))
    if any(f != found[0] for f in found):
        return worst, f"{repeats} runs differ"
    limit = tolerances.limit(f"loss {precision}", name)
    return worst, "" if worst <= limit else f"above {limit:g}"


def curve(o, folder, case):
    exe, fault, seconds = compile_one(o, folder, case)
    worst, fault = (None, fault) if fault else run_one(exe, case, o.repeats)
    return {"what": f"curve of {case[0]} {case[1]} {case[2]}", "compile_s": round(seconds, 2), "worst": worst, "runs": o.repeats,
            "fault": fault}


def curves(o, folder):
    with ThreadPoolExecutor(o.compilers) as pool:  # several train on the GPU at a time, which must change no bit
        return list(pool.map(lambda case: curve(o, folder, case), traces(o)))


# ---- what the library does with products beside multiplying
def in_fewer_bits(o):
    """The first f32 trace of each model in each such precision, a few steps of it."""
    for name, i, precision, options, run in traces(o):
        for rounded in ROUNDED if i == 0 and precision == "f32" else ():
            yield (name, 0, rounded, [w for w in options if not w.startswith("--precision")] + [f"--precision={rounded}"],
                   [w for w in run if not w.startswith("--steps")] + [f"--steps={ROUNDED_STEPS}"])


def tuned(exe, case):
    """Do two runs with the same file of trials have the same losses, near those without?"""
    file = Path(f"{exe}.tuned")
    rows = [losses_of(exe, case, r, f"--tune={file}") for r in ("tried", "known")]
    fault = next((text for _, text in rows if text), "")
    return fault or ("" if rows[0][0] == rows[1][0] else "two runs with --tune differ")


def curve_in_fewer_bits(o, folder, case):
    exe, fault, seconds = compile_one(o, folder, case)
    worst, fault = (None, fault) if fault else run_one(exe, case, 2)
    return {"what": f"curve of {case[0]} in {case[2]}", "compile_s": round(seconds, 2), "worst": worst, "fault": fault or tuned(exe, case)}


def fewer_bits(o, folder):
    with ThreadPoolExecutor(o.compilers) as pool:
        return list(pool.map(lambda case: curve_in_fewer_bits(o, folder, case), in_fewer_bits(o)))


# ---- operands that pass codes
def codes(o, folder):
    """A few steps of `--quantize` beside a CPU's: a code that falls on the other side moves a loss by little."""
    wanted = quantized.on_cpu()

    def compare(case):
        name, what = case[:2]
        got, fault = quantized.losses(case, f"cuda:{o.architecture}", "cuda", folder, o.repeats)
        want = wanted[f"{name} {what}"]
        worst, limit = quantized.distance(got, want["losses"]) if got else None, max(tolerances.limit("devices codes"), want["rounding"])
        return {"what": f"{name} with {what}", "worst": worst, "limit": limit, "fault": fault or ("" if worst <= limit else f"above {limit:g}")}

    with ThreadPoolExecutor(o.compilers) as pool:
        return list(pool.map(compare, [c for c in quantized.cases() if not o.models or c[0] in o.models]))


# ---- memory
def sanitizer(o, folder):
    """compute-sanitizer on two steps of a small model, where there is one."""
    if not shutil.which("compute-sanitizer", path=machine.environment()["PATH"] + ":/usr/local/cuda/bin"):
        return [{"what": "compute-sanitizer", "fault": "", "skipped": "it is not installed"}]
    tool = shutil.which("compute-sanitizer", path=machine.environment()["PATH"] + ":/usr/local/cuda/bin")
    case = next((c for c in traces(o) if c[0] == "gpt2_mini" and c[2] == "f32"), None) or next(traces(o))
    exe, fault, _ = compile_one(o, folder, case)
    rows = []
    for check in ("memcheck", "racecheck") if not fault else ():
        options = [word for word in case[4] if not word.startswith("--steps")]
        code, text, seconds = machine.call(tool, "--tool", check, "--error-exitcode", "77", exe, *options, "--steps=2", "--device=cuda",
                                           "--progress=off", "--table=off", cwd=machine.models() / case[0], timeout=150)
        rows.append({"what": f"compute-sanitizer {check} on {case[0]}", "seconds": round(seconds, 1),
                     "fault": "" if code == 0 else f"exit {code}: {text[-800:]}"})
    return rows or [{"what": "compute-sanitizer", "fault": fault}]


PARTS = {"device": device_suite, "kernels": compare_kernels, "curves": curves, "fewer_bits": fewer_bits, "codes": codes,
         "sanitizer": sanitizer}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--models", type=lambda x: x.split(","), default=[])
    p.add_argument("--only", type=lambda x: x.split(","), default=list(PARTS), help=",".join(PARTS))
    p.add_argument("--steps", type=int, default=0, help="of each curve (all)")
    p.add_argument("--architecture", default="sm_90a")
    p.add_argument("--repeats", type=int, default=3, help="runs of each curve, which must have the same bits")
    p.add_argument("--compilers", type=int, default=min(8, os.cpu_count() or 1), help="at a time")
    o = p.parse_args()
    rows = []
    for part in o.only:
        with tempfile.TemporaryDirectory() as folder:
            for row in PARTS[part](o, Path(folder)):
                rows.append(row)
                facts = "  ".join(f"{k} {v:.2g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()
                                  if k not in ("what", "fault") and v is not None)
                print(f"{row['what']:44} {row['fault'] or 'ok'}  {facts}", flush=True)
        machine.write("gpu-check", {**machine.facts(), "checks": rows})
    faults = [r for r in rows if r["fault"]]
    print(f"{len(rows) - len(faults)} passed, {len(faults)} failed")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
