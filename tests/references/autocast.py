"""PyTorch's losses under autocast, with weights of f32: what mixed precision is held against.

    make references         writes tests/references/autocast.json: {model: {"bf16": losses, "f16": losses}}

The first trace of each model, trained from its ONNX file (torch_onnx.py) by torch.optim; f16 with torch.amp.GradScaler. f32 is trained
too: it must follow the stored f32 losses, or the graph is not run as it was meant.
"""
import json
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from torch_onnx import Graph

MODELS = ("gpt2_mini", "llama_mini", "vit_mini", "resnet_mini", "bert_mini")
TYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
SAME = {"resnet_mini": 2e-2}  # f32, relative: it is chaotic; the others 1e-4


def optimizer(trace, values):
    h = trace["hyperparameters"]
    if trace["optimizer"] == "adamw":
        return torch.optim.AdamW(values, lr=h["lr"], betas=(h["beta1"], h["beta2"]), eps=h["eps"], weight_decay=h["weight_decay"], foreach=False)
    return torch.optim.SGD(values, lr=h["lr"], momentum=h["momentum"], weight_decay=h["weight_decay"], nesterov=trace["optimizer"] == "nesterov",
                           foreach=False)


def trained(folder, precision):
    """The losses of its first trace's steps."""
    reference = json.loads((folder / "reference.json").read_text())
    trace, graph = reference["traces"][0], Graph(folder / "model.onnx")
    names = list(np.load(folder / "grads.npz"))
    for name in names:
        graph.values[name].requires_grad_()
    opt = optimizer(trace, [graph.values[n] for n in names])
    data = {i["name"]: torch.from_numpy(np.load(folder / i["file"])) for i in reference["inputs"]}
    labels = torch.from_numpy(np.load(folder / reference["labels"]["file"]))
    scaler = torch.amp.GradScaler("cpu", enabled=precision == "f16")
    losses, rows = [], trace["micro_batch"]
    for step in range(trace["steps"]):
        at = step % (len(labels) // rows) * rows
        with torch.autocast("cpu", TYPES.get(precision, torch.bfloat16), enabled=precision in TYPES):
            out = graph({k: v[at:at + rows] for k, v in data.items()})
            loss = F.cross_entropy(out.reshape(-1, out.shape[-1]), labels[at:at + rows].reshape(-1))
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        losses.append(loss.item())
    return losses, trace["f32"]["losses"]


def main():
    models, found = Path(sys.argv[1]), {}
    torch.manual_seed(0)
    for name in MODELS:
        got, want = trained(models / name, "f32")
        worst = max(abs(a - b) / abs(b) for a, b in zip(got, want))
        print(f"{name}: f32 within {worst:.1e}", flush=True)
        assert worst < SAME.get(name, 1e-4), name
        found[name] = {p: trained(models / name, p)[0] for p in TYPES}
    path = Path(__file__).with_name("autocast.json")
    path.write_text(json.dumps({"torch": torch.__version__, "losses": found}, indent=1) + "\n")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
