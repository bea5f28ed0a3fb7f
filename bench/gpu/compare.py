"""PyTorch beside gradc on one GPU, in one run: as users of PyTorch run it.

    make gpu-compare        or: python3 bench/gpu/compare.py [--models gpt2_124m,...] [--precision bf16]

PyTorch runs eager, and with torch.compile in its mode `default` and in `max-autotune-no-cudagraphs`; AdamW is fused; attention is
scaled_dot_product_attention, in the compiled graph, and the result says which kernel that was. GPT-2's table of 50257 words is padded to a
multiple of 64, as nanoGPT pads it. `peer` is the fastest of them. gradc trains the exported model as it is. Beside gpt2_124m stands
llm.c's published figure, with MFU by llm.c's formula for all.

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

# name: options of torch_step.py
KINDS = {"eager": (), "compile": ("--compile=default",), "compile max-autotune": ("--compile=max-autotune-no-cudagraphs",)}
PADDED = {"gpt2_124m": 50304}  # words of the table, a multiple of 64
# Parameters (with the padded table), layers, channels: of the formula.
SIZES = {"gpt2_124m": (124_475_904, 12, 768)}
LLM_C = {"tokens_per_s": 468e3, "gpu": "H100 80GB HBM3", "precision": "bf16", "source": "github.com/karpathy/llm.c, of one of 8 GPUs: 524,288 "
         "tokens in 140 ms"}


def llm_c_mfu(name, tokens_per_s, length, peak):
    """llm.c's gpt2_estimate_mfu (train_gpt2.cu): (6 N + 6 L C T) operations a token, of the GPU's peak. None: not of this model."""
    if name not in SIZES or not tokens_per_s or not peak:
        return None
    parameters, layers, channels = SIZES[name]
    return tokens_per_s * (6 * parameters + 6 * layers * channels * length) / peak


def of_torch(name, options, o):
    rows, _, length = bench.CASES[name]
    more = [f"--vocabulary={PADDED[name]}"] if name in PADDED else []
    code, text, seconds = machine.call(sys.executable, Path(__file__).with_name("torch_step.py"), name, rows, o.steps,
                                       f"--precision={o.precision}", *options, *more, timeout=o.timeout)
    if code:
        return {"fault": text[-600:]}
    found = json.loads(text.strip().splitlines()[-1])
    step_ms = statistics.median(found["step_ms"][bench.WARMUP:])
    return {**found, "step_ms": step_ms, "tokens_per_s": 1e3 * rows * length / step_ms if length > 1 else None, "process_s": seconds,
            "vocabulary": PADDED.get(name)}


def compared(name, o, folder):
    """{"gradc": ..., each of KINDS: ..., "peer": the name of the fastest}."""
    found = {"gradc": bench.measure(name, o, folder)} | {kind: of_torch(name, options, o) for kind, options in KINDS.items()}
    length, peak = bench.CASES[name][2], bench.peak_of(o.options)
    if name in SIZES and o.precision == LLM_C["precision"]:
        found["llm.c"] = dict(LLM_C)
    for kind, r in found.items():
        r["llm_c_mfu"] = llm_c_mfu(name, r.get("tokens_per_s"), length, bench.PEAKS["H100"]["bf16"] if kind == "llm.c" else peak)
    timed = {kind: r["step_ms"] for kind, r in found.items() if kind in KINDS and "step_ms" in r}
    return found | {"peer": min(timed, key=timed.get) if timed else None}


def show(name, found):
    own = found["gradc"].get("step_ms")
    for kind, r in found.items():
        if kind == "peer" or "fault" in r:
            print(f"{name:12} {kind:22} {r if kind == 'peer' else r['fault']}", flush=True)
            continue
        times = f"{r['step_ms']:9.2f} ms a step" if "step_ms" in r else " " * 19
        ratio = f", gradc takes {own / r['step_ms']:.3f} of it" if own and "step_ms" in r and kind != "gradc" else ""
        tokens = f", {r['tokens_per_s']:.0f} tokens/s" if r.get("tokens_per_s") else ""
        mfu = f", MFU {r['llm_c_mfu']:.3f}" if r.get("llm_c_mfu") else ""
        attention = "" if "attention_fused" not in r else ", fused attention" if r["attention_fused"] else ", attention not fused"
        print(f"{name:12} {kind:22} {times}{ratio}{tokens}{mfu}{attention}", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--models", type=lambda x: x.split(","), default=list(bench.CASES))
    p.add_argument("--precision", default="bf16")
    p.add_argument("--steps", type=int, default=12)
    p.add_argument("--architecture", default="sm_90a")
    p.add_argument("--timeout", type=int, default=300, help="seconds of one PyTorch process")
    p.add_argument("--name", default="gpu-compare")
    o = p.parse_args()
    o.options = [f"--precision={o.precision}"]
    found = {}
    for name in o.models:
        with tempfile.TemporaryDirectory() as folder:
            found[name] = compared(name, o, Path(folder))
        show(name, found[name])
        machine.write(o.name, {**machine.facts(), "precision": o.precision, "models": found})


if __name__ == "__main__":
    main()
