"""Exports a PyTorch model, trains it for five steps and writes both down: what the five families of PyTorch share."""
import contextlib
import copy
import io
import warnings
from dataclasses import dataclass, field

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from torch import nn

import case_files
from case_files import fixed, floats, integers  # noqa: F401  for the lists of models

warnings.filterwarnings("ignore")
torch.set_num_threads(1)


@dataclass
class Row:
    name: str
    make: object                    # () -> module
    inputs: dict                    # name -> floats(...), integers(...), fixed(...)
    exporter: str = "dynamo"        # "dynamo", "dynamo, optimize=False", "TorchScript"
    form: str = "inference"         # or "training"
    labels: object = None           # None: the model computes its own loss, as output "loss"
    loss: str = "cross_entropy"
    pick: object = None             # what the module returns -> the tensor that the loss reads
    rows: int = 4
    lr: float = 0.05
    is_moved: bool = True
    is_open: bool = False           # the batch dimension has a name
    opset: int | None = None
    options: list = field(default_factory=list)  # more for gradc compile
    freeze: str = ""                # prefix of the parameters that the framework does not train


RAW, SCRIPT = "dynamo, optimize=False", "TorchScript"


def first(out):
    if isinstance(out, torch.Tensor):
        return out
    for name in "loss", "logits", "sample", "last_hidden_state":
        if getattr(out, name, None) is not None:
            return getattr(out, name)
    return first(next(iter(out.values())) if isinstance(out, dict) else out[0])


class Picked(nn.Module):
    """One tensor comes out; inputs come by position, under the names of the row."""

    def __init__(self, module, names, pick):
        super().__init__()
        self.module, self.names, self.pick = module, list(names), pick or first

    def forward(self, *inputs):
        return self.pick(self.module(**dict(zip(self.names, inputs))))


def no_dropout(module):
    """Noise would make a comparison impossible."""
    for m in module.modules():
        for name in "p", "drop_prob", "dropout", "attention_dropout", "dropout_prob", "attn_drop", "attn_dropout":
            if isinstance(getattr(m, name, None), float):
                setattr(m, name, 0.0)


def move(module):
    rng = case_files.random(7)
    with torch.no_grad():
        for m in module.modules():
            if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.running_mean is not None:
                m.running_mean.copy_(torch.from_numpy(0.1 * rng.standard_normal(m.running_mean.shape)))
                m.running_var.copy_(torch.from_numpy(0.75 + 0.5 * rng.random(m.running_var.shape)))
        for p in module.parameters():
            if p.requires_grad:
                p.copy_(torch.from_numpy(case_files.moved(p.numpy(), rng)))


def shaken(module):
    """A copy, off by about what f32 rounds."""
    copied, rng = copy.deepcopy(module), case_files.random(11)
    with torch.no_grad():
        for p in copied.parameters():
            p.copy_(torch.from_numpy(case_files.moved(p.numpy(), rng, case_files.SHAKEN * np.abs(p.numpy()))))
    return copied


def tensors(module):
    """Parameters, tied ones once, and buffers of floats."""
    state = dict(module.named_parameters()) | dict(module.named_buffers())
    return {k: v.detach().float().numpy().copy() for k, v in state.items() if v.is_floating_point()}


def export(row, module, names, sample, path):
    output = ["loss"] if row.labels is None else ["out"]
    if row.exporter == SCRIPT:
        training = row.form == "training"
        mode = torch.onnx.TrainingMode.TRAINING if training else torch.onnx.TrainingMode.EVAL
        torch.onnx.export(module, sample, str(path), dynamo=False, input_names=names, output_names=output,
                          opset_version=row.opset or 17, training=mode, do_constant_folding=not training,
                          dynamic_axes={n: {0: "batch"} for n in names + output} if row.is_open else None)
        return
    shapes = (tuple({0: torch.export.Dim("batch", min=2)} for _ in names),) if row.is_open else None
    program = torch.onnx.export(module, sample, dynamo=True, input_names=names, output_names=output, verbose=False,
                                opset_version=row.opset, optimize=row.exporter == "dynamo",
                                dynamic_shapes=shapes)
    program.save(str(path))


def take_statistics(module, path):
    """Running statistics as the file has them: tracing in training mode moves them."""
    tensors = {t.name: t for t in onnx.load(path).graph.initializer}
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            if name.endswith(("running_mean", "running_var")) and name in tensors:
                buffer.copy_(torch.from_numpy(onnx.numpy_helper.to_array(tensors[name]).copy()))


def loss_of(row, out, labels):
    if row.labels is None:
        return out.reshape(())
    if row.loss == "mse":
        return F.mse_loss(out, labels)
    if row.loss == "bce_with_logits":
        return F.binary_cross_entropy_with_logits(out, labels)
    if out.ndim > 2 and labels.shape == out.shape[:-1]:
        return F.cross_entropy(out.flatten(0, -2), labels.flatten())
    return F.cross_entropy(out, labels)


def train(row, module, parts, names, lr):
    """Five steps of SGD: the loss before each."""
    losses = []
    optimizer = torch.optim.SGD([p for k, p in module.named_parameters()
                                 if not (row.freeze and k.startswith("module." + row.freeze))], lr=lr, foreach=False)
    for part in parts:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(row, module(*(part[k] for k in names)), part.get("labels"))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def make(row, folder):
    torch.manual_seed(0)
    module = Picked(row.make(), row.inputs, row.pick)
    no_dropout(module)
    module.train(row.form == "training")
    if row.is_moved:
        move(module)
    specs = dict(row.inputs) | ({"labels": row.labels} if row.labels else {})
    arrays = case_files.draw(specs, row.rows)
    parts = [{k: torch.from_numpy(v) for k, v in b.items()} for b in case_files.batches(arrays, row.rows)]
    names = list(row.inputs)
    sample = tuple(parts[0][k] for k in names)
    quiet = io.StringIO()
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        export(row, module, names, sample, folder / "model.onnx")
    module.train(row.form == "training")
    take_statistics(module, folder / "model.onnx")
    before = tensors(module)
    for lr in case_files.learning_rates(row.lr):
        trained, other = copy.deepcopy(module), shaken(module)
        losses = train(row, trained, parts, names, lr)
        if case_files.is_steady(losses, train(row, other, parts, names, lr)):
            break
    else:
        raise ValueError(f"no learning rate trains it steadily: losses {losses}")
    after = tensors(trained)
    case_files.write(folder, arrays, before, after, [k for k, _ in module.named_buffers()], losses,
                     case_files.noise(after, tensors(other)),
                     exporter=row.exporter, form=row.form, is_moved=row.is_moved, lr=lr,
                     options=["--loss", row.loss if row.labels else "output:loss", *row.options,
                              *(["--batch", str(row.rows)] if row.is_open else [])])


def main(framework, rows, packages):
    case_files.main(framework, rows, make, ["torch", "onnx", "onnxscript", *packages])
