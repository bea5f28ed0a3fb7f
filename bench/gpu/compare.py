"""PyTorch beside gradc on one GPU, in one run: eager and compiled, with stored attention scores and asked for fused attention.

The stored results have no fused attention: torch.compile did not see the context that asked for it, so "compile fused" has the time
and the memory's peak of "compile math" (96.4 and 96.7 ms, 22.85 GB in results/gpu-compare-bf16.json).

    make gpu-compare        or: python3 bench/gpu/compare.py [--models gpt2_124m,...] [--precision tf32]

Needs what gpu-bench needs and a Python with torch, transformers and torchvision. Writes one JSON under bench/results.
"""
import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

import bench
import machine

KINDS = (("eager", "math"), ("compile", "math"), ("compile", "fused"))


def of_torch(name, mode, attention, o):
    rows = bench.CASES[name][0]
    code, text, seconds = machine.call(sys.executable, Path(__file__).with_name("torch_step.py"), name, mode, o.precision, attention,
                                       rows, o.steps, timeout=o.timeout)
    if code:
        return {"fault": text[-600:]}
    found = json.loads(text.strip().splitlines()[-1])
    return {**found, "step_ms": statistics.median(found["step_ms"][bench.WARMUP:]), "process_s": seconds}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--models", type=lambda x: x.split(","), default=list(bench.CASES))
    p.add_argument("--precision", default="tf32")
    p.add_argument("--steps", type=int, default=12)
    p.add_argument("--architecture", default="sm_90a")
    p.add_argument("--timeout", type=int, default=200, help="seconds of one PyTorch process")
    p.add_argument("--name", default="gpu-compare")
    o = p.parse_args()
    o.options = [f"--precision={o.precision}"]
    found = {}
    for name in o.models:
        with tempfile.TemporaryDirectory() as folder:
            own = bench.measure(name, o, Path(folder))
        found[name] = {"gradc": own, **{f"{mode} {attention}": of_torch(name, mode, attention, o) for mode, attention in KINDS}}
        for kind, r in found[name].items():
            shown = r.get("fault") or f"{r['step_ms']:9.2f} ms a step, {own['step_ms'] / r['step_ms'] if 'step_ms' in own else 0:.3f} of gradc's"
            print(f"{name:12} {kind:14} {shown}", flush=True)
        machine.write(o.name, {**machine.facts(), "precision": o.precision, "models": found})


if __name__ == "__main__":
    main()
