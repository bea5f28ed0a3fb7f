"""Times attention alone, forward and backward, in gradc and in PyTorch, by turns: 12 heads of 64 features, one sequence, f32.

    bench/.venv/bin/python bench/attention.py [--tokens 256,512,1024] [--forms full,causal] [--rounds 3] [--peak]

A step trains q, k and v, each [1, 12, tokens, 64], by SGD; its loss is the mean of attention(q, k, v) * g, where g is the step's data. The step
"none" has q + k + v in place of attention: its time and its memory are subtracted from both contenders', so what stays is attention. gradc compiles
ONNX's Attention, PyTorch runs scaled_dot_product_attention. bench/README.md says what the columns are.
"""
import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import executable
import facts
import numpy as np
import summary
from compare import RECORDED_VARIABLES, at_least, listed, packages
from executable import WARMUP
from process import Failure, call

ROOT = Path(__file__).resolve().parents[1]
HEADS, WIDTH = 12, 64
FORMS = ("full", "causal")
WITHOUT = "none"        # the step without attention
CONTENDERS = ("gradc", "again", "PyTorch")  # "again" is gradc a second time: how far its ratio is off 1 is noise
TOKENS = (256, 512, 1024, 2048, 4096)
SECONDS = 0.6           # that the timed steps of a run should take,
FEWEST, MOST = 5, 1000  # and how many there are
PRODUCTS = 6            # of matrices: two forward, four backward; what is computed a second time does not count
CLOSE = 1e-3            # by how much losses may differ, relatively to the largest
FLASH = "FlashAttention"  # in the name of PyTorch's backward that stores no scores


def shape_of(tokens):
    return 1, HEADS, tokens, WIDTH


def arrays(tokens):
    """{name: q, k, v, g}, the same at every call."""
    random = np.random.default_rng(0)
    return {name: random.standard_normal(shape_of(tokens), dtype=np.float32) for name in "qkvg"}


def rate(tokens):
    """SGD's learning rate: the gradient of a mean becomes less with more elements."""
    return HEADS * tokens * WIDTH / 400


# ---------------------------------------------------------------- gradc

def model_of(form, tokens):
    """The step as ONNX, with a graph's output as loss."""
    from onnx import TensorProto, helper, numpy_helper
    weights = [numpy_helper.from_array(a, name) for name, a in arrays(tokens).items() if name != "g"]
    o = (helper.make_node("Sum", ["q", "k", "v"], ["o"]) if form == WITHOUT else
         helper.make_node("Attention", ["q", "k", "v"], ["o"], is_causal=int(form == "causal")))
    nodes = [o, helper.make_node("Mul", ["o", "g"], ["og"]), helper.make_node("ReduceMean", ["og"], ["loss"], keepdims=0)]
    graph = helper.make_graph(nodes, "attention", [helper.make_tensor_value_info("g", TensorProto.FLOAT, shape_of(tokens))],
                              [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def compile_gradc(form, tokens, folder, o):
    """Writes FOLDER/FORM, an executable."""
    import onnx
    onnx.save(model_of(form, tokens), folder / "model.onnx")
    call([o.gradc, "compile", folder / "model.onnx", "-o", folder / form, "--loss=output:loss", "--optimizer=sgd", "--train=*",
          "--max-accumulate=1", *o.compile_option])


def run_gradc(form, tokens, steps, folder, o):
    """One process of gradc."""
    lines, peak = executable.log_lines([folder / form, "--data", f"g={folder / 'g.npy'}", f"--steps={steps}", f"--lr={rate(tokens)}",
                                        f"--threads={o.threads}", "--shuffle=off", "--progress=off", "--table=off"])
    return {"step_ms": [line["step_ms"] for _, line in lines], "loss": [line["loss"] for _, line in lines], "peak_bytes": peak}


# ---------------------------------------------------------------- PyTorch

def run_torch(form, tokens, steps, folder, o):
    """One process of PyTorch."""
    environment = dict(os.environ, CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS=str(o.threads))
    return json.loads(call([sys.executable, __file__, "--torch", form, tokens, steps, o.threads], env=environment).splitlines()[-1])


def train_torch(form, tokens, steps, threads):
    """The process: prints the milliseconds and the loss of each step, the peak above what imports took, and the node that
    does attention's backward."""
    import torch
    from torch_worker import status_bytes
    torch.set_num_threads(threads)
    attention = torch.nn.functional.scaled_dot_product_attention
    imported = status_bytes("VmRSS")
    q, k, v, g = map(torch.from_numpy, arrays(tokens).values())
    parameters = [torch.nn.Parameter(x) for x in (q, k, v)]
    optimizer = torch.optim.SGD(parameters, lr=rate(tokens), fused=True)
    times, losses = [], []
    for _ in range(steps):
        start = time.monotonic()
        optimizer.zero_grad(set_to_none=True)
        q, k, v = parameters
        y = q + k + v if form == WITHOUT else attention(q, k, v, is_causal=form == "causal")
        kernel = y.grad_fn.name()
        loss = (y * g).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        times.append(1e3 * (time.monotonic() - start))
    print(json.dumps({"step_ms": times, "loss": losses, "peak_bytes": status_bytes("VmHWM") - imported, "kernel": kernel}))


# ---------------------------------------------------------------- the comparison

def run_once(contender, *what):
    """One process of a contender."""
    return (run_torch if contender == "PyTorch" else run_gradc)(*what)


def ms_of(run):
    """Milliseconds of a step of a process: a tenth of its steps are faster. What disturbs a step only makes it slower."""
    steps = sorted(run["step_ms"][WARMUP:])
    return steps[len(steps) // 10]


def steps_for(form, tokens, folder, o):
    """How many steps a process has."""
    ms = ms_of(run_gradc(form, tokens, WARMUP + FEWEST, folder, o))
    return WARMUP + min(MOST, max(FEWEST, round(1e3 * SECONDS / ms)))


def measure(tokens, folder, o):
    """{form: {contender: its processes, one a round}}. Contenders take turns, another one first in each round."""
    forms = (WITHOUT, *o.forms)
    np.save(folder / "g.npy", arrays(tokens)["g"])
    for form in forms:
        compile_gradc(form, tokens, folder, o)
    steps = {form: steps_for(form, tokens, folder, o) for form in forms}
    runs = {form: {c: [] for c in o.contenders} for form in forms}
    for r in range(o.rounds):
        first = r % len(o.contenders)
        for form in forms:
            for contender in o.contenders[first:] + o.contenders[:first]:
                runs[form][contender].append(run_once(contender, form, tokens, steps[form], folder, o))
    return runs


def of_contender(runs, without, flops):
    """A contender's part of a row, from its processes with attention and without."""
    attention = [ms_of(a) - ms_of(b) for a, b in zip(runs, without)]
    ms = min(map(ms_of, runs)) - min(map(ms_of, without))
    peaks = [max(r["peak_bytes"] for r in some) for some in (runs, without)]
    return {"step_ms": summary.spread([ms for r in runs for ms in r["step_ms"][WARMUP:]]),
            "without_ms": summary.spread([ms for r in without for ms in r["step_ms"][WARMUP:]]),
            "attention_ms": ms, "attention_round_ms": attention, "gflops": flops / ms / 1e6 if ms > 0 else None,
            "peak_bytes": peaks[0], "attention_bytes": peaks[0] - peaks[1], "kernel": runs[0].get("kernel")}


def of_form(form, tokens, runs):
    """A row of the result. `ratios`: attention's time divided by gradc's, by round."""
    flops = PRODUCTS * 2 * HEADS * WIDTH * tokens ** 2 / (2 if form == "causal" else 1)
    found = {c: of_contender(r, runs[WITHOUT][c], flops) for c, r in runs[form].items()}
    ours = found.get("gradc", {}).get("attention_round_ms", [])
    ratios = {c: [a / b for a, b in zip(f["attention_round_ms"], ours)] for c, f in found.items() if ours and c != "gradc"}
    return {"tokens": tokens, "form": form, "flops": round(flops), "contenders": found, "ratios": ratios}


def losses_warning(row, runs):
    """A sentence when the contenders' first or last losses differ: then they did not compute the same. Else None."""
    losses = {c: r[0]["loss"] for c, r in runs.items()}
    largest = max(abs(x) for values in losses.values() for x in values)
    for at in (0, -1):
        ends = [values[at] for values in losses.values()]
        if max(ends) - min(ends) > CLOSE * largest:
            return f"{row['tokens']} tokens, {row['form']}: losses differ: " + ", ".join(f"{c} {v[at]:.6g}" for c, v in losses.items())
    return None


def kernel_warning(row):
    """A sentence when PyTorch did not run its flash kernel, else None."""
    kernel = row["contenders"].get("PyTorch", {}).get("kernel", FLASH)
    return None if FLASH in kernel else f"{row['tokens']} tokens, {row['form']}: PyTorch ran {kernel}"


# ---------------------------------------------------------------- the table

def head(o):
    """The columns' names."""
    once = [c for c in o.contenders if c != "again"]
    return (f"{'tokens':>6} {'form':<7}" + "".join(f"{c + ' ms':>12}" for c in o.contenders) + "".join(f"{c + ' GF/s':>14}" for c in once)
            + ("".join(f"{c + ' MB':>12}" for c in once) if o.peak else "") + "  times gradc's, by round")


def line(row, o):
    """A row of the table."""
    found = row["contenders"]
    once = [found[c] for c in o.contenders if c != "again"]
    return (f"{row['tokens']:>6} {row['form']:<7}" + "".join(f"{found[c]['attention_ms']:>12.3f}" for c in o.contenders)
            + "".join(f"{summary.unit(f['gflops'], 1, '{:.0f}'):>14}" for f in once)
            + ("".join(f"{f['attention_bytes'] / 1e6:>12.1f}" for f in once) if o.peak else "")
            + "".join(f"  {c} " + " ".join(f"{r:.2f}" for r in values) for c, values in row["ratios"].items()))


def options(arguments):
    """The command line."""
    p = argparse.ArgumentParser(prog="bench/attention.py", description=__doc__.splitlines()[0],
                                formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("--tokens", type=lambda text: [at_least(1)(n) for n in text.split(",")], default=list(TOKENS), help="comma-separated")
    p.add_argument("--forms", type=listed(FORMS), default=list(FORMS), help="likewise")
    p.add_argument("--contenders", type=listed(CONTENDERS), default=list(CONTENDERS), help="likewise; again: gradc a second time")
    p.add_argument("--rounds", type=at_least(1), default=3, help="processes of each contender")
    p.add_argument("--threads", type=at_least(1), default=len(os.sched_getaffinity(0)), help="of each process")
    p.add_argument("--peak", action="store_true", help="shows the memory that attention adds to a process's peak")
    p.add_argument("--compile-option", action="append", default=[], help="of gradc compile, repeatable")
    p.add_argument("--gradc", type=Path, default=ROOT / "build/gradc")
    p.add_argument("--out", type=Path, default=ROOT / "bench/results/attention.json")
    return p.parse_args(arguments)


def write(rows, warnings, watch, o):
    """The result's file, after each length; all warnings."""
    machine, load = facts.machine(), watch.facts()
    machine["versions"].update(packages())
    settings = {"heads": HEADS, "width": WIDTH, "rows": 1, "precision": "f32", "optimizer": "sgd", "threads": o.threads, "warmup": WARMUP,
                "rounds": o.rounds, "compile_options": o.compile_option,
                "environment": {k: v for k, v in os.environ.items() if k.startswith(RECORDED_VARIABLES)}}
    load_warning = facts.load_warning(load)
    warnings = [load_warning, *warnings] if load_warning else warnings
    o.out.parent.mkdir(parents=True, exist_ok=True)
    o.out.write_text(json.dumps({"bench": "attention", "settings": settings, "machine": machine, "load": load, "warnings": warnings,
                                 "rows": rows}, indent=1) + "\n")
    return warnings


def main(arguments):
    """A line a length and form, as it is done."""
    if arguments[:1] == ["--torch"]:
        train_torch(arguments[1], *map(int, arguments[2:]))
        return 0
    o = options(arguments)
    watch, rows, warnings, warned = facts.Watch(), [], [], []
    print(head(o), flush=True)
    for tokens in o.tokens:
        with tempfile.TemporaryDirectory(prefix="gradc-attention-") as scratch:
            try:
                runs = measure(tokens, Path(scratch), o)
            except Failure as failure:
                print(f"attention: error: {tokens} tokens: {failure}", file=sys.stderr)
                return 1
        for form in o.forms:
            rows.append(of_form(form, tokens, runs))
            warnings += [w for w in (losses_warning(rows[-1], runs[form]), kernel_warning(rows[-1])) if w]
            print(line(rows[-1], o), flush=True)
        warned = write(rows, warnings, watch, o)
    for warning in warned:
        print(f"warning: {warning}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
