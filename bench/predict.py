#!/usr/bin/env python3
"""Compares `predict` of an executable with onnxruntime on the exported model: rows a second, at the same batch, on all cores of this machine.

usage: .venv/bin/python bench/predict.py [--models mlp,gpt2_10m,...] [--rounds 5] [--seconds 3] [--threads N] [--gradc build/gradc]

The models are those of bench/graphs, with random weights, which the executable exports for onnxruntime. Both read the same .npy file and write a
.npy file. Each round runs one after the other; a run predicts so many rows that it takes about `--seconds`. Start-up does not count: gradc's time
is that of the run minus that of a run over a single batch, onnxruntime's begins after its first batch. A line per model has the medians and the ratio
gradc / onnxruntime of each round's rates; below stands the worst model. Results may differ by rounding; the program compares both files and fails
if they differ by more than 1e-3 of the largest output."""
import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from process import Failure, call
from workloads import MODELS, write_graph

ROOT = Path(__file__).resolve().parents[1]
DEFAULT = "mlp,gpt2_10m,vit_small,resnet18,bert_base"


def write_inputs(model, rows, path):
    random = np.random.default_rng(0)
    shape = (rows, *model.shape)
    np.save(path, random.integers(0, model.vocabulary, shape) if model.vocabulary else random.standard_normal(shape, dtype=np.float32))


class Gradc:
    name = "gradc"

    def __init__(self, gradc, name, model, folder, threads):
        self.model, self.folder, self.exe, self.threads = model, folder, folder / "train", threads
        write_graph(name, folder / "model.onnx")
        call([gradc, "compile", folder / "model.onnx", "-o", self.exe, "--init=random", *model.options])
        call([self.exe, "--steps=0", "--export", folder / "trained.onnx"])
        write_inputs(model, model.rows, folder / "one.npy")
        self.start = min(self.process("one.npy") for _ in range(3))

    def process(self, inputs):
        begin = time.perf_counter()
        call([self.exe, "predict", "--data", f"{self.model.input}={self.folder / inputs}", "--output", self.folder / "gradc.npy",
              "--threads", self.threads])
        return time.perf_counter() - begin

    def seconds(self):
        return self.process("inputs.npy") - self.start


class Onnxruntime:
    """In a process of its own, so that neither keeps threads while the other runs."""
    name = "onnxruntime"

    def __init__(self, model, folder, threads):
        self.model, self.folder, self.threads = model, folder, threads

    def seconds(self):
        said = call([sys.executable, __file__, "--onnxruntime", self.folder, self.model.input, self.model.rows, self.threads])
        return float(said)


def run_onnxruntime(folder, name, batch, threads):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(folder / "trained.onnx"), options, providers=["CPUExecutionProvider"])
    inputs = np.load(folder / "inputs.npy", mmap_mode="r")
    feed = {i.name: np.ones((batch, *inputs.shape[1:]), np.int64) for i in session.get_inputs() if i.name == "attention_mask"}
    first = session.run(None, {name: np.asarray(inputs[:batch]), **feed})[0]
    begin = time.perf_counter()
    out = np.lib.format.open_memmap(folder / "onnxruntime.npy", "w+", first.dtype, (len(inputs), *first.shape[1:]))
    for i in range(0, len(inputs), batch):
        out[i:i + batch] = session.run(None, {name: np.asarray(inputs[i:i + batch]), **feed})[0]
    out.flush()
    print(time.perf_counter() - begin)


def check_same(folder):
    a, b = (np.load(folder / f"{n}.npy", mmap_mode="r") for n in ("gradc", "onnxruntime"))
    if a.shape != b.shape:
        raise Failure(f"shapes {a.shape} and {b.shape} differ")
    worst = max(float(np.abs(a[i] - b[i]).max()) for i in range(len(a)))
    if not worst <= 1e-3 * float(np.abs(b).max()):
        raise Failure(f"outputs differ by {worst}")


def measure(o, name, folder):
    """{gradc, onnxruntime: rows a second of each round}."""
    model = MODELS[name]
    ours, theirs = Gradc(o.gradc.resolve(), name, model, folder, o.threads), Onnxruntime(model, folder, o.threads)
    rows = 4 * model.rows
    while True:    # so many rows that a run takes long enough
        write_inputs(model, rows, folder / "inputs.npy")
        took = theirs.seconds()
        if took >= o.seconds / 2 or rows * np.prod(model.shape) > 1 << 28:
            break
        rows = model.rows * max(1, int(min(16, o.seconds / max(took, 1e-3)) * rows / model.rows))
    ours.seconds()
    check_same(folder)
    rates = {ours.name: [], theirs.name: []}
    for i in range(o.rounds):
        for contender in (ours, theirs) if i % 2 else (theirs, ours):
            rates[contender.name].append(rows / contender.seconds())
    return rates


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=DEFAULT)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--gradc", type=Path, default=ROOT / "build/gradc")
    parser.add_argument("--json", type=Path, help="write the rates of all rounds")
    parser.add_argument("--onnxruntime", nargs=4, help=argparse.SUPPRESS)
    o = parser.parse_args()
    if o.onnxruntime:
        return run_onnxruntime(Path(o.onnxruntime[0]), o.onnxruntime[1], int(o.onnxruntime[2]), int(o.onnxruntime[3]))
    worst, found = {}, {}
    print(f"{'model':12} {'batch':>5} {'gradc':>12} {'onnxruntime':>12}   rows a second; ratio of each round")
    for name in o.models.split(","):
        with tempfile.TemporaryDirectory() as folder:
            try:
                rates = found[name] = measure(o, name, Path(folder))
            except Failure as fault:
                sys.exit(f"bench/predict.py: {name}: {fault}")
        ratios = [a / b for a, b in zip(*rates.values())]
        worst[name] = statistics.median(ratios)
        middle = [statistics.median(r) for r in rates.values()]
        print(f"{name:12} {MODELS[name].rows:5} {middle[0]:12.1f} {middle[1]:12.1f}   {worst[name]:.2f} of onnxruntime: "
              + " ".join(f"{r:.2f}" for r in ratios), flush=True)
    name = min(worst, key=worst.get)
    print(f"worst: {name}, {worst[name]:.2f} of onnxruntime's rows a second")
    if o.json:
        o.json.write_text(json.dumps(found, indent=1))
    return None


if __name__ == "__main__":
    main()
