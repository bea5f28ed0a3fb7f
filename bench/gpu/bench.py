"""How fast is a GPU? Bench models without weights, in batches that fill it.

    make gpu-bench          or: python3 bench/gpu/bench.py [--models gpt2_124m,...] [--steps N]

Tokens (or samples) a second, MFU, memory beside the plan, time by kernel beside the prediction, launch gaps, and what compiling and
starting take. Needs build/gradc, a GPU with its driver, and NVRTC. Writes one JSON under bench/results.

MFU is the share of the GPU's peak that the model's own floating-point operations reach: those of all kernels of a step as the
compiler counts them (forward and backward, nothing that is computed twice), by the seconds of a step, by the peak of the unit that does
the products.
"""
import argparse
import json
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np

import machine
import workloads

TRAINS = ("--init=random", "--loss=cross_entropy", "--optimizer=adamw")
# Rows of a step; options that bind the dimensions; what a row counts as.
CASES = {
    "gpt2_124m": (16, ("--dim=batch=16", "--dim=seq=1024"), 1024),
    "llama_100m": (16, ("--dim=batch=16", "--dim=seq=1024"), 1024),
    "bert_base": (32, ("--dim=batch=32", "--dim=seq=128"), 128),
    "vit_small": (64, ("--batch=64",), 1),
    "resnet50": (64, ("--batch=64",), 1),
}
WARMUP = 3  # steps that the median leaves out


def data(name, rows, length, folder):
    """Files with two steps' rows."""
    model, random = workloads.MODELS[name], np.random.default_rng(0)
    shape = (2 * rows, length) if model.vocabulary else (2 * rows, *model.shape)
    inputs = random.integers(0, model.vocabulary, shape) if model.vocabulary else \
        random.standard_normal(shape, dtype=np.float32)
    labels = (2 * rows, length) if len(model.labels) else (2 * rows,)
    np.save(folder / "inputs.npy", inputs)
    np.save(folder / "labels.npy", random.integers(0, model.classes, labels))
    return ["--data", f"{model.input}={folder / 'inputs.npy'}", "--data", f"labels={folder / 'labels.npy'}"]


def by_kernel(trace):
    """{kernel: [seconds of each run]} of a trace's compute stream."""
    found = defaultdict(list)
    for e in json.loads(trace.read_text())["traceEvents"]:
        if e.get("cat") == "kernel" and e["tid"] == 0:
            found[e["args"]["kernel"]].append(e["dur"] * 1e-6)
    return found


def measure(name, o, folder):
    rows, options, length = CASES[name]
    graph, exe, log = folder / "graph.onnx", folder / name, folder / "log.jsonl"
    workloads.write_graph(name, graph)
    target = f"--target=cuda:{o.architecture}"
    code, text, compile_s = machine.call(machine.gradc(), "compile", graph, "-o", exe, *TRAINS, *options, *o.options, target)
    if code:
        return {"fault": text[-2000:]}
    _, _, again_s = machine.call(machine.gradc(), "compile", graph, "-o", exe, *TRAINS, *options, *o.options, target)
    bound = data(name, rows, length, folder)
    run = [exe, *bound, "--device=cuda", "--shuffle=off", "--progress=off", "--table=off"]
    code, text, seconds = machine.call(*run, f"--steps={o.steps}", "--log", log, timeout=200)
    if code:
        return {"compile_s": compile_s, "fault": f"exit {code}: {text[-2000:]}"}
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    steps = [line for line in lines if "lr" in line]
    step_s = statistics.median(s["step_ms"] for s in steps[WARMUP:]) * 1e-3
    trace = folder / "trace.json"
    code, text, _ = machine.call(*run, "--steps=2", "--trace", trace, timeout=200)
    kernels = by_kernel(trace) if code == 0 else {}
    total = sum(map(sum, kernels.values())) / 2
    result = {
        "rows": rows, "step_ms": 1e3 * step_s, "samples_per_s": rows / step_s,
        "tokens_per_s": rows * length / step_s if length > 1 else None,
        "losses": [s["loss"] for s in steps], "peak_bytes": steps[-1].get("peak_bytes"),
        "compile_s": compile_s, "compile_again_s": again_s, "process_s": seconds, "kernels_ms": 1e3 * total,
        "kernels": {k: [len(v) / 2, 1e6 * statistics.median(v)] for k, v in
                    sorted(kernels.items(), key=lambda kv: -sum(kv[1]))},
    }
    return result


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--models", type=lambda x: x.split(","), default=list(CASES))
    p.add_argument("--steps", type=int, default=12)
    p.add_argument("--architecture", default="sm_90a")
    p.add_argument("--options", type=lambda x: x.split(), default=[], help="more of gradc compile")
    p.add_argument("--name", default="gpu-bench")
    o = p.parse_args()
    found = {}
    for name in o.models:
        with tempfile.TemporaryDirectory() as folder:
            found[name] = r = measure(name, o, Path(folder))
        if "fault" in r:
            print(f"{name}: {r['fault']}", flush=True)
            continue
        print(f"{name:12} {r['step_ms']:9.2f} ms a step, kernels {r['kernels_ms']:9.2f} ms, "
              f"{r['tokens_per_s'] or r['samples_per_s']:10.0f} a second, compiled in {r['compile_s']:.1f} s", flush=True)
        for kernel, (n, us) in list(r["kernels"].items())[:12]:
            print(f"    {kernel[:60]:60} {n:6.0f} x {us:9.1f} us", flush=True)
    machine.write(o.name, {**machine.facts(), "models": found})


if __name__ == "__main__":
    main()
