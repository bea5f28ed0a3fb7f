"""A two-layer LSTM language model of the size of PyTorch's example (200 units, 35 tokens, 20 rows, 33,278 words), trained by gradc and by PyTorch.

    bench/.venv/bin/python bench/lstm.py [--gradc build/gradc] [--steps 12] [--rounds 3] [--words 33278]

Needs PyTorch. Prints the median step of each and their ratio; the contenders take turns, the first steps of each are left out, and the losses of the
first step must agree. https://github.com/pytorch/examples/tree/main/word_language_model
"""
import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import executable
import numpy as np
import workloads

ROOT = Path(__file__).resolve().parents[1]
UNITS, LAYERS, LENGTH, ROWS, LR = 200, 2, 35, 20, 0.5


def network(words):
    import torch

    class LanguageModel(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = torch.nn.Embedding(words, UNITS)
            self.rnn = torch.nn.LSTM(UNITS, UNITS, LAYERS)
            self.decoder = torch.nn.Linear(UNITS, words)

        def forward(self, input_ids):
            hidden, _ = self.rnn(self.encoder(input_ids.t()))
            return self.decoder(hidden.transpose(0, 1))

    torch.manual_seed(0)
    return LanguageModel()


def train_torch(folder, words, steps, threads):
    """Prints the milliseconds of each step, and its loss."""
    import torch
    torch.set_num_threads(threads)
    net, rows = network(words), [torch.from_numpy(np.load(folder / f"{name}.npy")) for name in ("inputs", "labels")]
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    for step in range(steps):
        began, at = time.perf_counter(), step % workloads.BATCHES * ROWS
        x, y = (a[at:at + ROWS] for a in rows)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x).reshape(-1, words), y.reshape(-1))
        loss.backward()
        optimizer.step()
        value = loss.item()
        print(f"{(time.perf_counter() - began) * 1e3} {value}")


def by_torch(folder, arguments):
    words = [sys.executable, __file__, "--torch", folder, "--words", arguments.words, "--steps", arguments.steps, "--threads", arguments.threads]
    lines = subprocess.run([str(w) for w in words], check=True, capture_output=True, text=True).stdout.split("\n")[:-1]
    return [tuple(map(float, line.split())) for line in lines]


def by_gradc(folder, model, arguments):
    command = executable.training(model, folder / "train", folder, arguments.steps, arguments.threads)
    lines, _ = executable.log_lines([*command, f"--lr={LR}"])
    return [(line["step_ms"], line["loss"]) for _, line in lines if "step_ms" in line]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gradc", type=Path, default=ROOT / "build/gradc")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--words", type=int, default=33278)
    parser.add_argument("--torch", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.torch:
        train_torch(arguments.torch, arguments.words, arguments.steps, arguments.threads)
        return
    import torch
    model = workloads.Model(ROWS, "input_ids", (LENGTH,), (LENGTH,), arguments.words, arguments.words)
    found = {"gradc": [], "PyTorch": []}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        workloads.write_data(model, folder)
        torch.onnx.export(network(arguments.words), (torch.zeros(ROWS, LENGTH, dtype=torch.long),), folder / "model.onnx", dynamo=False, opset_version=17,
                          input_names=["input_ids"], output_names=["logits"])
        subprocess.run([arguments.gradc, "compile", folder / "model.onnx", "-o", folder / "train", "--loss=cross_entropy", "--optimizer=sgd"], check=True,
                       stdout=subprocess.DEVNULL)
        for _ in range(arguments.rounds):
            runs = {"PyTorch": by_torch(folder, arguments), "gradc": by_gradc(folder, model, arguments)}
            first = [run[0][1] for run in runs.values()]
            assert abs(first[0] - first[1]) <= 1e-4 * abs(first[1]), f"first losses {first}"
            for name, run in runs.items():
                found[name] += [ms for ms, _ in run[executable.WARMUP:]]
    for name, times in found.items():
        print(f"{name:8} {statistics.median(times):8.1f} ms a step, {min(times):8.1f} at best")
    print(f"PyTorch's median step is {statistics.median(found['PyTorch']) / statistics.median(found['gradc']):.2f} of gradc's")


if __name__ == "__main__":
    main()
