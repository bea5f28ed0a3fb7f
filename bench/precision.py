"""Trains one GPT by every recipe of 16 and 8 bits: loss curves, bytes a parameter, time of a step beside f32's.

usage: bench/precision.py [--steps 300] [--rounds 3] [--threads 2] [--out bench/results]
Writes recipes.json and docs/precision-curves.svg. The model is bench/graphs/gpt2_10m, from one seed, over the bytes of docs/*.md; times are
medians over short trainings that take turns with f32's.
"""
import argparse
import json
import lzma
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LAST = 20   # steps whose mean loss counts
SHORT = 12  # steps of a training that is timed, of which some are left out
ROWS, TOKENS = 2, 128
BF16 = ["--precision=bf16"]
SINGLE = ["--max-accumulate=1", "--gradients=bf16"]
ALONE = [*BF16, "--master=off"]
RECIPES = {
    "f32": [],
    "bf16": BF16,
    "f16": ["--precision=f16"],
    "bf16, moments of bf16": [*BF16, "--moments=bf16"],
    "bf16, gradients of bf16": [*BF16, *SINGLE],
    "bf16, 8-bit AdamW": [*BF16, "--optimizer=adamw8bit"],
    "bf16 alone, to nearest": ALONE,
    "bf16 alone, stochastic": [*ALONE, "--rounding=stochastic"],
    "bf16 alone, stochastic, all of bf16": [*ALONE, *SINGLE, "--rounding=stochastic", "--moments=bf16"],
    "bf16 alone, stochastic, 8-bit AdamW": [*ALONE, *SINGLE, "--rounding=stochastic", "--optimizer=adamw8bit"],
}


def call(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command[0]}: exit {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def compile_all(folder):
    graph = folder / "gpt2_10m.onnx"
    graph.write_bytes(lzma.decompress((ROOT / "bench/graphs/gpt2_10m.onnx.xz").read_bytes()))
    for i, options in enumerate(RECIPES.values()):
        call(ROOT / "build/gradc", "compile", graph, "-o", folder / f"train{i}", "--init=random", "--loss=cross_entropy", f"--dim=batch={ROWS}",
             f"--dim=seq={TOKENS}", *options)


def train(folder, i, steps, threads):
    """The lines of a training's log."""
    log = folder / "log.jsonl"
    call(folder / f"train{i}", "--text", folder / "text", f"--steps={steps}", f"--threads={threads}", "--lr=3e-4", "--warmup=20", "--lr-schedule=cosine",
         "--progress=off", "--table=off", "--log", log)
    return [line for line in map(json.loads, log.read_text().splitlines()) if "lr" in line]


def step_ms(folder, i, threads):
    return statistics.median(line["step_ms"] for line in train(folder, i, SHORT, threads)[SHORT // 4:])


def measure(folder, o):
    found = {}
    for i, (name, options) in enumerate(RECIPES.items()):
        print(f"{name} ...", file=sys.stderr, flush=True)
        lines = train(folder, i, o.steps, o.threads)
        info = json.loads(call(folder / f"train{i}", "--info", "--json"))
        ratios = [step_ms(folder, i, o.threads) / step_ms(folder, 0, o.threads) for _ in range(o.rounds)]
        found[name] = {"options": options, "bytes_per_parameter": info["bytes_per_parameter"], "losses": [line["loss"] for line in lines],
                       "skipped": sum("skipped" in line for line in lines),
                       "last_loss": statistics.mean(line["loss"] for line in lines[-LAST:]), "step_time_ratio": statistics.median(ratios)}
    return found


def print_table(found):
    f32 = found["f32"]["last_loss"]
    print("| recipe | bytes a parameter | weights | working | gradients | moments | last 20 losses | against f32 | a step's time by f32's |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, r in found.items():
        b = r["bytes_per_parameter"]
        parts = " | ".join(f"{b[k]:.2f}" for k in ("total", "weights", "working", "gradients", "moments"))
        print(f"| {name} | {parts} | {r['last_loss']:.4f} | {100 * (r['last_loss'] / f32 - 1):+.2f} % | {r['step_time_ratio']:.2f} |")


def smooth(losses, width=10):
    return [statistics.mean(losses[max(0, i - width + 1):i + 1]) for i in range(len(losses))]


def draw(found, path):
    import matplotlib
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "gradc"
    from matplotlib import pyplot
    figure, (curves, off) = pyplot.subplots(2, 1, figsize=(9, 8), sharex=True, height_ratios=(2, 1))
    f32 = smooth(found["f32"]["losses"])
    for i, (name, r) in enumerate(found.items()):
        style = ("-", "--", ":")[i // 10 if name == "f32" else 1 + i % 2]
        curves.plot(smooth(r["losses"]), style, label=f"{name}: {r['bytes_per_parameter']['total']:.2f} bytes", linewidth=1.2)
        off.plot([100 * (a / b - 1) for a, b in zip(smooth(r["losses"]), f32)], style, linewidth=1)
    curves.set_ylabel("loss, mean of 10 steps")
    curves.legend(fontsize=8)
    off.set_ylabel("off f32, %")
    off.set_xlabel("step")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--without", action="append", default=[], choices=[n for n in RECIPES if n != "f32"], help="a recipe to leave out; repeatable")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/results")
    o = parser.parse_args()
    for name in o.without:
        del RECIPES[name]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "text").write_bytes(b"".join(p.read_bytes() for p in sorted((ROOT / "docs").glob("*.md"))))
        compile_all(folder)
        found = measure(folder, o)
    o.out.mkdir(parents=True, exist_ok=True)
    version = call(ROOT / "build/gradc", "--version").split()[-1]
    (o.out / "recipes.json").write_text(json.dumps({"model": "gpt2_10m", "rows": ROWS, "tokens": TOKENS, "steps": o.steps, "threads": o.threads,
                                                     "version": version, "recipes": found}, indent=1) + "\n")
    draw(found, ROOT / "docs/precision-curves.svg")
    print_table(found)


if __name__ == "__main__":
    main()
