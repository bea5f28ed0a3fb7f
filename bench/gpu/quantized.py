"""Losses of `--quantize` on a CPU, beside which gpu-check puts those of a GPU.

    python3 bench/gpu/quantized.py          writes gpu/quantized.json, by a gradc with LLVM (scripts/gpu-pack does it)
"""
import json
import shlex
import sys
import tempfile
from pathlib import Path

import machine

STEPS = 5
MODELS = ("bert_mini", "cnn_mnist", "gpt2_mini", "llama_mini", "resnet_mini", "vit_mini")
OPTIONS = {"w8a8": ["--quantize=w8a8"], "w4a8-token": ["--quantize=w4a8-token"],
           "w4a8 by LSQ": ["--quantize=w4a8", "--scale-learning=lsq"], "w2a8-dynamic": ["--quantize=w2a8-dynamic"],
           "w4a8-g16-token": ["--quantize=w4a8-g16-token"]}
BLOCKS_DIVIDE = ("bert_mini", "gpt2_mini", "llama_mini")  # axes of 48 and more; not those of images
FILE = machine.ROOT / "gpu/quantized.json"


def cases():
    """(model, what, compile options, run options): the first f32 trace of each model."""
    for name in MODELS:
        trace = json.loads((machine.models() / name / "reference.json").read_text())["traces"][0]
        compile_line, run_line = map(shlex.split, trace["gradc"]["f32"][:2])
        compiling = [w for w in compile_line[5:] if not w.startswith("--precision")]
        running = [w for w in run_line[1:] if not w.startswith("--steps")]
        for what, options in OPTIONS.items():
            if "-g" not in what or name in BLOCKS_DIVIDE:
                yield name, what, [*compiling, "--opset=25", *options], [*running, f"--steps={STEPS}"]


def distance(got, want):
    """The worst relative difference of two runs' losses."""
    return max(abs(a - b) / abs(b) for a, b in zip(got, want))


def losses(case, target, device, folder, repeats=1):
    """Of each step; what went wrong, two runs that differ among it."""
    name, what, options, run = case
    exe, log, found = folder / f"{name}.{what}".replace(" ", "_"), folder / f"{name}.{what}.jsonl", []
    home = machine.models() / name
    code, text, _ = machine.call(machine.gradc(), "compile", "model.onnx", "-o", exe, *options, f"--target={target}", cwd=home, timeout=300)
    for _ in range(0 if code else repeats):
        code, text, _ = machine.call(exe, *run, f"--device={device}", "--log", log, "--progress=off", "--table=off", cwd=home, timeout=120)
        if code:
            break
        found.append([line["loss"] for line in map(json.loads, log.read_text().splitlines()) if "lr" in line])
    if code:
        return None, f"exit {code}: {text[-600:]}"
    if any(len(f) != STEPS for f in found):
        return None, f"{len(found[-1])} losses of {STEPS} steps"
    return found[0], "" if all(f == found[0] for f in found) else f"{repeats} runs differ"


def on_cpu():
    """{"model what": {"losses", "rounding"}}: those of gpu/ where it has them, else trained here. Rounding: how far they lie from f64's,
    where other codes fall on the other side of a half; a model with batch norms of few rows makes much of one."""
    if FILE.exists():
        return json.loads(FILE.read_text())
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, what, options, run in cases():
            rows = [losses((name, what, [*options, f"--precision={p}"], run), "cpu", "cpu", Path(folder)) for p in ("f32", "f64")]
            fault = next((text for _, text in rows if text), "")
            if fault:
                sys.exit(f"{name} {what} on the CPU: {fault}")
            found[f"{name} {what}"] = {"losses": rows[0][0], "rounding": distance(rows[1][0], rows[0][0])}
    return found


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    FILE.unlink(missing_ok=True)
    FILE.write_text(json.dumps(on_cpu(), indent=1) + "\n")
