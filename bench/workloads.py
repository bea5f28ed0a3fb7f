"""The bench models: what a step of each takes, data for it, and its graph.

Two files of each exist. The one that export_models.py writes has weights, and PyTorch trains the same ones: compare.py
takes it. The one in bench/graphs is the same graph without weights, which `--init=random` makes: no PyTorch is needed.
"""
import lzma
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

GRAPHS = Path(__file__).resolve().parent / "graphs"
BATCHES = 8      # different ones; then they come again


@dataclass
class Model:
    """Rows a step, and what its one input and its class labels look like."""
    rows: int
    input: str
    shape: tuple     # of a row of the input
    labels: tuple    # of a row of labels
    classes: int
    vocabulary: int = 0      # tokens below it; 0: floats
    options: tuple = ()      # of gradc compile

    def text(self):
        """The input's shape, rows first."""
        return "x".join(map(str, (self.rows, *self.shape)))


def language_model(rows, length, words):
    """Predicts each next token."""
    return Model(rows, "input_ids", (length,), (length,), words, words, (f"--dim=batch={rows}", f"--dim=seq={length}"))


def image_classifier(rows, name):
    """Of 1000 classes."""
    return Model(rows, name, (3, 224, 224), (), 1000, options=(f"--batch={rows}",))


MODELS = {
    "mlp": Model(256, "input", (784,), (), 10, options=("--batch=256",)),
    "gpt2_10m": language_model(8, 256, 256),
    "gpt2_124m": language_model(2, 256, 50257),
    "llama_100m": language_model(2, 256, 32000),
    # A classifier of two classes. Its attention mask is filled with ones, in PyTorch as in gradc's executables.
    "bert_base": Model(4, "input_ids", (128,), (), 2, 30522, ("--dim=batch=4", "--dim=seq=128")),
    "vit_small": image_classifier(8, "pixel_values"),
    "resnet18": image_classifier(8, "image"),
    "resnet50": image_classifier(8, "image"),
}

# A GPT of 4 layers and 256 features for up to 8192 tokens; export_models.py does not have it, torch_worker.py exports it.
LONG = {"gpt_256": language_model(1, 512, 256)}


def sized(text):
    """(name, model) of MODEL or MODEL:ROWSxTOKENS, such as gpt2_124m:1x1024. KeyError: no such model; ValueError: its
    size cannot be read or changed."""
    name, _, size = text.partition(":")
    model = {**MODELS, **LONG}[name]
    if not size:
        return name, model
    rows, tokens = map(int, size.split("x"))
    if not model.vocabulary or min(rows, tokens) < 1:
        raise ValueError(size)
    return name, replace(model, rows=rows, shape=(tokens,), labels=(tokens,) if model.labels else (),
                         options=(f"--dim=batch={rows}", f"--dim=seq={tokens}"))


def write_data(model, folder):
    """inputs.npy and labels.npy of BATCHES steps, the same at every run."""
    random = np.random.default_rng(0)
    n = BATCHES * model.rows
    shape = (n, *model.shape)
    inputs = (random.integers(0, model.vocabulary, shape) if model.vocabulary
              else random.standard_normal(shape, dtype=np.float32))
    np.save(folder / "inputs.npy", inputs)
    np.save(folder / "labels.npy", random.integers(0, model.classes, (n, *model.labels)))


def write_graph(name, path):
    """The model's graph without weights."""
    path.write_bytes(lzma.decompress((GRAPHS / f"{name}.onnx.xz").read_bytes()))
