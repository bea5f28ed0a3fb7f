"""What weights of 4 bits save and cost: a step of llama_100m, 4 rows of 128 tokens, trained in full, by --lora and by --qlora.

    .venv/bin/python bench/qlora.py [--gradc build/gradc] [--steps 12] [--rounds 3] [--precision f32]

Prints the median step and the largest resident memory of each, and the ratios that count: memory to full training's, speed to --lora's. The runs
take turns; the first steps of each are left out.
"""
import argparse
import statistics
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import executable
import workloads

ROOT = Path(__file__).resolve().parents[1]
ADAPTED = ("*proj.weight", "lm_head.weight")


def contenders(rank):
    return {"full": [], "lora": [f"--lora={glob},rank={rank}" for glob in ADAPTED], "qlora": [f"--qlora={glob},rank={rank}" for glob in ADAPTED]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gradc", type=Path, default=ROOT / "build/gradc")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", default="f32")
    arguments = parser.parse_args()
    options = ["--loss=cross_entropy", "--dim=batch=4", "--dim=seq=128"]
    model = replace(workloads.MODELS["llama_100m"], rows=4, shape=(128,), labels=(128,))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        workloads.write_graph("llama_100m", folder / "graph.onnx")
        workloads.write_data(model, folder)

        def compiled(name, onnx, *more):
            subprocess.run([arguments.gradc, "compile", onnx, "-o", folder / name, *options, *more], check=True, stdout=subprocess.DEVNULL)
            return folder / name

        start = compiled("start", folder / "graph.onnx", "--init=random")  # a file with weights
        subprocess.run([*executable.training(model, start, folder, 0, arguments.threads), f"--export={folder / 'model.onnx'}"], check=True,
                       stderr=subprocess.DEVNULL)
        exes = {name: compiled(name, folder / "model.onnx", f"--precision={arguments.precision}", *more) for name, more in contenders(8).items()}
        steps, peaks = {name: [] for name in exes}, dict.fromkeys(exes, 0)
        for _ in range(arguments.rounds):
            for name, exe in exes.items():
                lines, peak = executable.log_lines(executable.training(model, exe, folder, arguments.steps, arguments.threads))
                steps[name] += [line["step_ms"] for _, line in lines if "step_ms" in line][executable.WARMUP:]
                peaks[name] = max(peak, peaks[name])
    for name in exes:
        print(f"{name:6} {statistics.median(steps[name]):8.0f} ms a step  {peaks[name] / 2**20:7.0f} MiB")
    print(f"memory of qlora: {peaks['qlora'] / peaks['full']:.3f} of full; speed: {statistics.median(steps['lora']) / statistics.median(steps['qlora']):.2f} of lora")


if __name__ == "__main__":
    main()
