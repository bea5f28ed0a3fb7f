"""How fast is a GPU? Bench models without weights, in batches that fill it.

    make gpu-bench          or: python3 bench/gpu/bench.py [--models gpt2_124m,...] [--options=--precision=tf32]

Tokens (or samples) a second, MFU, memory beside the plan, time by kernel beside the prediction, and what compiling and
starting take. Needs gradc, a GPU with its driver, and NVRTC. Writes one JSON under bench/results.

MFU = floating-point operations of a step / seconds of a step / peak of the unit that does the products. Operations are those of all
kernels as the compiler counts them: nothing that is computed a second time for the sake of memory. The share between phases is
that of a step in which no phase was on: 1 - (forward + backward + update, by events on the GPU) / step. data_ms: how long a step
waits for its rows to be read. The launch gap is the share of a step's time in which no kernel ran, by CUPTI's records of some steps
(kernel_times.c); nothing where CUPTI is not installed.
"""
import argparse
import json
import statistics
import tempfile
import threading
from collections import defaultdict
from pathlib import Path

import numpy as np

import machine
import predictions
import workloads

TRAINS = ("--init=random", "--loss=cross_entropy", "--optimizer=adamw")
# Rows of a step; options that bind the dimensions; tokens of a row.
CASES = {
    "gpt2_124m": (16, ("--dim=batch=16", "--dim=seq=1024"), 1024),
    "llama_100m": (16, ("--dim=batch=16", "--dim=seq=1024"), 1024),
    "bert_base": (64, ("--dim=batch=64", "--dim=seq=128"), 128),
    "vit_small": (128, ("--batch=128",), 1),
    "resnet50": (128, ("--batch=128",), 1),
}
WARMUP = 3  # steps that the median leaves out
TRACED = 3  # steps for the times of kernels
RECORDED = 8  # steps for launch gaps
SHOWN = 12  # kernels, on the terminal
# FLOP/s without sparsity, of the SXM modules (NVIDIA's data sheets of H100 and H200, A100).
HOPPER = {"f32": 67e12, "tf32": 494.7e12, "bf16": 989.4e12, "f16": 989.4e12}
PEAKS = {"H100": HOPPER, "H200": HOPPER, "A100": {"f32": 19.5e12, "tf32": 156e12, "bf16": 312e12, "f16": 312e12}}


def data(name, rows, length, folder):
    """Files with two steps' rows: the options that name them."""
    model, random = workloads.MODELS[name], np.random.default_rng(0)
    shape = (2 * rows, length) if model.vocabulary else (2 * rows, *model.shape)
    inputs = random.integers(0, model.vocabulary, shape) if model.vocabulary else \
        random.standard_normal(shape, dtype=np.float32)
    np.save(folder / "inputs.npy", inputs)
    np.save(folder / "labels.npy", random.integers(0, model.classes, (2 * rows, length) if model.labels else (2 * rows,)))
    return ["--data", f"{model.input}={folder / 'inputs.npy'}", "--data", f"labels={folder / 'labels.npy'}"]


def by_kernel(trace, steps):
    """{kernel: seconds of each run} of a trace's compute stream; the first of `steps` steps loads code, and is left out."""
    found = defaultdict(list)
    for e in json.loads(trace.read_text())["traceEvents"]:
        if e.get("cat") == "kernel" and e["tid"] == 0:
            found[e["args"]["kernel"]].append(e["dur"] * 1e-6)
    return {k: runs[len(runs) // steps:] for k, runs in found.items()}


def predicted(graph, options):
    """{kernel: what its launch asks of a machine, and microseconds by cost/}, and the operations of a step. A GPU that cost/ does not
    know has no prediction. What is stored stays usable when kernels and formulas change: predictions.py predicts it again."""
    known = predictions.ask(machine.program("bench_predict"), gpu=machine.facts()["gpu"]["name"], launches=[])
    name = known["machine"] if known else "h100"
    code, text, _ = machine.call(machine.gradc(), "dump", graph, *TRAINS, *options, "--stage=schedule", f"--machine={name}",
                                 "--format=json")
    if code:
        return {}, None
    launches = [x for x in json.loads(text)["steps"][0]["launches"] if x["op"] == "run"]
    plan = {x["kernel"]: predictions.stored_launch(x, predicted=bool(known)) for x in launches}
    return plan, sum(x["flops"] * x.get("times", 1) for x in launches)


def by_steps(records, steps):
    """Those of each step from the third on (the first two load code and capture graphs) without the last; when each began, and the end
    of all, in nanoseconds. A kernel of the compute stream that runs once a step says where one begins."""
    starts = defaultdict(list)
    for start, end, stream, name in records:
        starts[name].append(start)
    once = next(sorted(at) for at in starts.values() if len(at) == steps)[2:]
    return [([r for r in records if a <= r[0] < b], a, b) for a, b in zip(once, once[1:])]


def idle(records, first, last):
    """The share of the time in which no kernel ran."""
    busy, until = 0, first
    for start, end, _, name in records:
        busy += max(0, min(end, last) - max(start, until))
        until = max(until, end)
    return 1 - busy / (last - first)


def of_records(command, steps, library, folder):
    """By CUPTI, medians of steps: {"launch_gap": share of time without a kernel, "step_ms_recorded": ..., "records": {kernel: [runs of a
    step, microseconds of a run]}}."""
    times = folder / "times.txt"
    code, text, _ = machine.call(*command, f"--steps={steps}", timeout=300, CUDA_INJECTION64_PATH=str(library), KERNEL_TIMES=str(times))
    if code or not times.exists():
        return {"launch_gap": None, "records_fault": f"exit {code}: {text[-600:]}"}
    records = [(int(a), int(b), int(c), d) for a, b, c, d in (x.split(maxsplit=3) for x in times.read_text().splitlines())]
    if not records:
        return {"launch_gap": None, "records_fault": f"CUPTI has no record: {text[-600:]}"}
    found, taken = defaultdict(list), by_steps(sorted(records), steps)
    for step, _, _ in taken:
        for start, end, _, name in step:
            found[name].append((end - start) / 1e3)
    return {"launch_gap": statistics.median(idle(*step) for step in taken),
            "step_ms_recorded": statistics.median(last - first for _, first, last in taken) / 1e6,
            "records": {name: [len(us) / len(taken), statistics.median(us)] for name, us in found.items()}}


class Memory:
    """The most that is taken of the GPU's memory while it is watched, less what was before."""

    def __init__(self):
        self.before, self.most, self.done = self.now(), 0, threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()

    @staticmethod
    def now():
        code, text, _ = machine.call("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")
        return int(text.split()[0]) << 20 if code == 0 else 0

    def watch(self):
        while not self.done.wait(0.2):
            self.most = max(self.most, self.now())

    def stop(self):
        self.done.set()
        self.thread.join()
        return max(0, self.most - self.before)


def peak_of(options):
    name = machine.facts()["gpu"]["name"]
    precision = next((o.split("=")[1] for o in options if o.startswith("--precision=")), "f32")
    return next((p.get(precision) for chip, p in PEAKS.items() if chip in name), None)


def kernels_of(measured, plan, recorded):
    """By what they take of a step: how often, microseconds and what measured them, what a launch asks of a machine. `measured` by the
    trace, whose events take three microseconds beside the kernel; where CUPTI has recorded a kernel of this name, its time."""
    rows = []
    for name, runs in sorted(measured.items(), key=lambda kv: -sum(kv[1])):
        function = f"gradc_{name}"
        us = recorded[function][1] if function in recorded else 1e6 * statistics.median(runs)
        row = {"kernel": name, "launches": len(runs) / (TRACED - 1), "us": round(us, 3), "by": "records" if function in recorded else "events"}
        rows.append(row | (predictions.COPY if name == "copy" else plan.get(name, {})))
    return rows


def run_steps(command, steps, folder):
    """(lines of the log's steps, memory taken, seconds; what went wrong)."""
    log, memory = folder / "log.jsonl", Memory()
    code, text, seconds = machine.call(*command, f"--steps={steps}", "--log", log, timeout=300)
    taken = memory.stop()
    if code:
        return [], taken, seconds, f"exit {code}: {text[-2000:]}"
    return [x for x in map(json.loads, log.read_text().splitlines()) if "lr" in x], taken, seconds, ""


def measure(name, o, folder):
    rows, options, length = CASES[name]
    graph, exe, trace = folder / "graph.onnx", folder / name, folder / "trace.json"
    workloads.write_graph(name, graph)
    compiling = (machine.gradc(), "compile", graph, "-o", exe, *TRAINS, *options, *o.options, f"--target=cuda:{o.architecture}")
    code, text, compile_s = machine.call(*compiling)
    if code:
        return {"fault": text[-2000:]}
    _, _, again_s = machine.call(*compiling)
    command = [exe, *data(name, rows, length, folder), "--device=cuda", "--shuffle=off", "--progress=off", "--table=off"]
    steps, taken, seconds, fault = run_steps(command, o.steps, folder)
    if fault:
        return {"compile_s": compile_s, "fault": fault}
    steady = steps[WARMUP:]
    step_s = statistics.median(s["step_ms"] for s in steady) * 1e-3
    busy_s = statistics.median(sum(s[f"{p}_ms"] for p in ("forward", "backward", "update")) for s in steady) * 1e-3
    data_ms = statistics.median(s["data_ms"] for s in steady)
    library, missing = machine.kernel_times(folder)
    recorded = of_records(command, RECORDED, library, folder) if library else {"launch_gap": None, "records_fault": missing}
    code, text, _ = machine.call(*command, f"--steps={TRACED}", "--trace", trace, timeout=300)
    plan, flops = predicted(graph, (*options, *o.options))
    peak = peak_of(o.options)
    return {
        "rows": rows, "step_ms": 1e3 * step_s, "samples_per_s": rows / step_s,
        "tokens_per_s": rows * length / step_s if length > 1 else None,
        "mfu": flops / step_s / peak if flops and peak else None, "flops": flops, "between_phases": 1 - busy_s / step_s,
        "data_ms": data_ms,
        "planned_bytes": steps[-1].get("gpu_peak_bytes"), "taken_bytes": taken,
        "compile_s": compile_s, "compile_again_s": again_s, "first_step_s": seconds - sum(s["step_ms"] for s in steps[1:]) * 1e-3,
        "losses": [s["loss"] for s in steps], "kernels": kernels_of(by_kernel(trace, TRACED), plan, recorded.get("records", {})) if code == 0 else [],
        **recorded,
    }


def show(name, r):
    rate = r["tokens_per_s"] or r["samples_per_s"]
    mfu = f"{r['mfu']:.3f}" if r["mfu"] else "-"
    print(f"{name:11} {r['step_ms']:8.2f} ms a step, {rate:.0f} a second, MFU {mfu}, between phases {r['between_phases']:.4f}, "
          f"data {r['data_ms']:.2f} ms, launch gap {'-' if r['launch_gap'] is None else format(r['launch_gap'], '.4f')}{' ' + r['records_fault'] if 'records_fault' in r else ''}, memory "
          f"{r['taken_bytes'] / 2**30:.2f} GiB of {(r['planned_bytes'] or 0) / 2**30:.2f} planned, compiled in {r['compile_s']:.1f} s",
          flush=True)
    for k in r["kernels"][:SHOWN]:
        rate = f"{k.get('bytes', 0) / k['us'] / 1e6:6.2f} TB/s {k.get('flops', 0) / k['us'] / 1e6:7.1f} TFLOP/s" if "bytes" in k else ""
        print(f"    {k['kernel'][:48]:48} {k['launches']:5.0f} x {k['us']:9.1f} us, predicted {k.get('predicted_us', 0):9.1f}  {rate}",
              flush=True)


def show_above(name):
    """Prints the launches of a result that took more than twice their prediction."""
    chip, steps = predictions.of_result(machine.result_path(name))
    if chip and predictions.predict(machine.program("bench_predict"), chip, steps):
        print("above twice the prediction:", *predictions.above_twice(steps), sep="\n    ")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--models", type=lambda x: x.split(","), default=list(CASES))
    p.add_argument("--steps", type=int, default=12)
    p.add_argument("--architecture", default="sm_90a")
    p.add_argument("--options", type=lambda x: x.split(), default=["--precision=tf32"], help="more of gradc compile (--precision=tf32)")
    p.add_argument("--name", default="gpu-bench")
    o = p.parse_args()
    found = {}
    for name in o.models:
        with tempfile.TemporaryDirectory() as folder:
            found[name] = r = measure(name, o, Path(folder))
        if "fault" in r:
            print(f"{name}: {r['fault']}", flush=True)
        else:
            show(name, r)
        machine.write(o.name, {**machine.facts(), "options": o.options, "models": found})
    show_above(o.name)


if __name__ == "__main__":
    main()
