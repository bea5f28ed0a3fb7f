"""Process peaks of training steps in f32, above parameters, gradients and moments: gradc, PyTorch eager, and torch.compile.

    bench/.venv/bin/python bench/peaks.py [--cases gpt2_124m:2x256,gpt_256:1x4096] [--contenders gradc,eager,compile]

A case is a bench model, its rows and its tokens. PyTorch's attention is scaled_dot_product_attention, its flash kernel where the model is causal.
Without PyTorch, `--contenders gradc` shows what gradc plans and takes. bench/README.md says what the columns are.
"""
import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

import compare
import executable
import facts
import workloads
from executable import WARMUP
from process import Failure, call

ROOT = Path(__file__).resolve().parents[1]
CASES = ("gpt2_124m:2x256", "gpt2_124m:1x1024", "bert_base:4x128", "llama_100m:2x256")
LONG = tuple(f"gpt_256:1x{tokens}" for tokens in (512, 1024, 2048, 4096, 8192))
STEPS = WARMUP + 2
WHOLE = 16  # bytes of a parameter with its gradient and its moments in f32


def of_gradc(name, model, folder, o):
    """gradc's part of a row. The weights are random: they are made when the process starts, and the file has none."""
    exe = folder / "train"
    workloads.write_graph(name, folder / "model.onnx")
    call([o.gradc, "compile", folder / "model.onnx", "-o", exe, "--init=random", "--loss=cross_entropy", "--optimizer=adamw",
          *model.options, *o.compile_option])
    info = json.loads(call([exe, "--info", "--json"]))
    _, peak = executable.log_lines(executable.training(model, exe, folder, STEPS, o.threads))
    state = round(int(info["trainable_elements"]) * info["bytes_per_parameter"]["total"])
    return {"peak_bytes": peak, "state_bytes": state, "above_bytes": peak - state, "workspace_bytes": info["regions"]["workspace"]}


def of_torch(name, model, mode, folder, o):
    """PyTorch's part of a row; its imports do not count."""
    run = compare.run_torch(name, model, mode, folder, o)
    state = WHOLE * run["parameters"]
    return {"peak_bytes": run["peak_bytes"], "state_bytes": state, "above_bytes": run["peak_bytes"] - state,
            "steady_above_bytes": run["steady_bytes"] - state}


def measure(text, folder, o):
    """A row of the result: a process of each contender, one after the other."""
    name, model = workloads.sized(text)
    workloads.write_data(model, folder)
    return {"model": name, "shape": model.text(),
            "contenders": {c: of_gradc(name, model, folder, o) if c == "gradc" else of_torch(name, model, c, folder, o)
                           for c in o.contenders if c != "compile" or name not in workloads.LONG}}


# ---------------------------------------------------------------- the table

def head(o):
    """The columns' names."""
    return (f"{'':<22}{'workspace':>13}" + "".join(f"{c:>13}" for c in o.contenders)
            + "".join(f"{'of ' + c:>13}" for c in o.contenders if c != "gradc"))


def line(row, o):
    """A row of the table, in MB."""
    found, gradc = row["contenders"], row["contenders"].get("gradc")

    def mb(contender, field):
        return f"{found[contender][field] / 1e6:>10.1f} MB" if contender in found else f"{'-':>13}"

    def ratio(contender):
        return f"{gradc['above_bytes'] / found[contender]['above_bytes']:>13.2f}" if gradc and contender in found else f"{'-':>13}"

    return (f"{row['model'] + ' ' + row['shape']:<22}" + mb("gradc", "workspace_bytes") + "".join(mb(c, "above_bytes") for c in o.contenders)
            + "".join(ratio(c) for c in o.contenders if c != "gradc"))


def cases(text):
    """Names with sizes out of the command line."""
    for name in text.split(","):
        try:
            workloads.sized(name)
        except (KeyError, ValueError):
            known = ", ".join((*workloads.MODELS, *workloads.LONG))
            raise argparse.ArgumentTypeError(f"{name!r} is none of {known}, nor a token model of these with a size, as gpt2_124m:1x1024") from None
    return text.split(",")


def options(arguments):
    """The command line."""
    p = argparse.ArgumentParser(prog="bench/peaks.py", description=__doc__.splitlines()[0],
                                formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("--cases", type=cases, default=[*CASES, *LONG], help="MODEL or MODEL:ROWSxTOKENS, comma-separated")
    p.add_argument("--contenders", type=compare.listed(compare.CONTENDERS), default=list(compare.CONTENDERS), help="likewise")
    p.add_argument("--threads", type=compare.at_least(1), default=len(os.sched_getaffinity(0)), help="of each process")
    p.add_argument("--compile-option", action="append", default=[], help="of gradc compile, repeatable")
    p.add_argument("--gradc", type=Path, default=ROOT / "build/gradc")
    p.add_argument("--reference", type=Path, default=compare.REFERENCE, help="the folder of export_models.py")
    p.add_argument("--out", type=Path, default=ROOT / "bench/results/peaks.json")
    o = p.parse_args(arguments)
    o.precision, o.steps = "f32", STEPS
    return o


def write(rows, watch, o):
    """The result's file, after each case."""
    machine = facts.machine()
    machine["versions"].update(compare.packages())
    settings = {"precision": "f32", "optimizer": "adamw", "threads": o.threads, "steps": STEPS, "warmup": WARMUP, "compile_options": o.compile_option}
    o.out.parent.mkdir(parents=True, exist_ok=True)
    o.out.write_text(json.dumps({"bench": "peaks", "settings": settings, "machine": machine, "load": watch.facts(), "warnings": [], "rows": rows},
                                indent=1) + "\n")


def main(arguments):
    """A line a case, as it is done; what fails is said, and the next one follows."""
    o = options(arguments)
    watch, rows, failed = facts.Watch(), [], 0
    print(head(o), flush=True)
    for text in o.cases:
        with tempfile.TemporaryDirectory(prefix="gradc-peaks-") as scratch:
            try:
                rows.append(measure(text, Path(scratch), o))
            except Failure as failure:
                print(f"peaks: error: {text}: {failure}", file=sys.stderr)
                failed = 1
                continue
        print(line(rows[-1], o), flush=True)
        write(rows, watch, o)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
