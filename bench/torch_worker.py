"""One PyTorch process of the comparison: trains a bench model on the files that gradc trains on.

    python torch_worker.py REFERENCE MODEL eager|compile FOLDER ROWS STEPS THREADS f32|bf16
    python torch_worker.py REFERENCE MODEL export FOLDER

REFERENCE is the folder of export_models.py, FOLDER holds inputs.npy and labels.npy. Prints one JSON object:
`began` (monotonic seconds, like the parent's, when the first step's batch is there and it begins),
`step_ms`, `loss`, `peak_bytes` and `steady_bytes` (without what the imports took), `parameters` (their number).
The second form writes FOLDER/MODEL/model.onnx; models of this file alone need it.
"""
import importlib
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

WARMUP = 3  # steps after which the peak is measured once more, as `steady_bytes`
# What a model's class comes from: imported before memory is measured, like torch itself.
LIBRARIES = {"resnet18": "torchvision.models", "resnet50": "torchvision.models",
             **{name: f"transformers.models.{family}.modeling_{family}" for name, family in
                (("gpt2_10m", "gpt2"), ("gpt2_124m", "gpt2"), ("gpt_256", "gpt2"), ("llama_100m", "llama"),
                 ("bert_base", "bert"), ("vit_small", "vit"))}}


class Caught(Exception):
    """Carries a model out of the function that would export it."""


def status_bytes(field):
    """VmRSS or VmHWM of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return 1024 * int(line.split()[1])
    raise LookupError(field)


def forget_peak():
    """VmHWM starts again at VmRSS."""
    Path("/proc/self/clear_refs").write_text("5")


def gpt_256(exporters, folder):
    """Exports a GPT of 4 layers, 256 features, 4 heads and 256 words, for up to 8192 tokens. Its Gelu is one operation:
    PyTorch would keep five values of transformers' own."""
    model = exporters.gpt2(layers=4, width=256, heads=4, vocab=256, ctx=8192, activation_function="gelu_pytorch_tanh")
    exporters.bench_file(model, exporters.ids_of(128, 256), exporters.IDS, ["logits"], folder, "gpt_256")


OWN = {"gpt_256": gpt_256}  # models that export_models.py does not have


def export(exporters, name, folder):
    """Writes FOLDER/NAME/model.onnx."""
    if name in OWN:
        OWN[name](exporters, folder)
    else:
        exporters.BENCH[name](folder)


def model_of(exporters, name):
    """The very model that export() writes, weights and mode included."""
    def exporter(*_, **__):
        def catch(model, *_):
            raise Caught(model)
        return catch

    exporters.dynamo = exporters.torchscript = exporter
    with tempfile.TemporaryDirectory() as folder:
        try:
            export(exporters, name, folder)
        except Caught as caught:
            return caught.args[0]
    raise LookupError(f"{name}: export_models.py exported nothing")


def loss_of(model, x, labels, narrow):
    """Mean cross entropy over all targets; narrow: under autocast to bf16."""
    with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
        out = model(x)
    logits = getattr(out, "logits", out).float()
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


def batches(folder, rows, steps):
    """Consecutive rows of the files, from the start again after the last."""
    arrays = [np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("inputs", "labels")]
    for step in range(steps):
        at = step * rows % len(arrays[0])
        yield [torch.from_numpy(np.array(a[at:at + rows])) for a in arrays]


def stop_compiling():
    """Ends the processes that the first step started to compile in: they would take CPUs from the next."""
    from torch._inductor.async_compile import shutdown_compile_workers
    shutdown_compile_workers()


def train(model, loss_function, after_first, folder, rows, steps, narrow):
    """(seconds when the first step began, milliseconds of each step, losses, peak bytes, steady bytes).
    A step takes the batch, reads the loss back, and ends after the update, as gradc's does;
    after_first() comes between the first two."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
    times, losses, began, peak = [], [], None, 0
    for step, (x, labels) in enumerate(batches(folder, rows, steps)):
        if step == min(WARMUP, steps - 1):
            peak = status_bytes("VmHWM")
            forget_peak()
        start = time.monotonic()
        began = began or start
        optimizer.zero_grad(set_to_none=True)
        loss = loss_function(model, x, labels, narrow)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        times.append(1e3 * (time.monotonic() - start))
        if step == 0:
            after_first()
    steady = status_bytes("VmHWM")
    return began, times, losses, max(peak, steady), steady


def measure(exporters, name, mode, folder, rows, steps, threads, precision):
    """Prints what the head of this file says."""
    if name in LIBRARIES:
        importlib.import_module(LIBRARIES[name])
    torch.set_num_threads(int(threads))
    imported = status_bytes("VmRSS")
    model = model_of(exporters, name)
    loss_function, after_first = loss_of, lambda: None
    if mode == "compile":
        loss_function, after_first = torch.compile(loss_of, dynamic=False), stop_compiling
    began, times, losses, peak, steady = train(model, loss_function, after_first, Path(folder), int(rows),
                                               int(steps), precision == "bf16")
    print(json.dumps({"began": began, "step_ms": times, "loss": losses,
                      "peak_bytes": max(0, peak - imported), "steady_bytes": max(0, steady - imported),
                      "parameters": sum(p.numel() for p in model.parameters())}))


def main(reference, name, mode, folder, *numbers):
    """See the head of this file."""
    sys.path.insert(0, reference)
    exporters = importlib.import_module("export_models")
    if mode == "export":
        export(exporters, name, folder)
    else:
        measure(exporters, name, mode, folder, *numbers)


if __name__ == "__main__":
    main(*sys.argv[1:])
