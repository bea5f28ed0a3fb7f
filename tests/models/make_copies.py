#!/usr/bin/env python3
"""Makes the copies of the reference models in this folder from the full ones.

usage: tests/models/make_copies.py MODELS_DIR

README.md says what a copy holds and what was left out for size. Run it again when the models change.
"""
import hashlib
import io
import json
import shutil
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx

from unpack import external_bytes, raw_tensors

HERE = Path(__file__).resolve().parent
LIMIT = 15_000_000
LEFT_OUT = []
SAME_TENSORS = {"gpt2_mini_external": "gpt2_mini"}
# Variants of gpt2_mini, whose gradients are here.
NO_GRADIENTS = ["gpt2_mini_opset14", "gpt2_mini_raw"]
EXACT_BELOW = 200_000               # bytes of gradients that are kept to the last bit
MANTISSA = 32                       # bits that larger ones keep: 1.2e-10 relative, limit 1e-8


def rows_used(reference):
    """Rows that the traces read: steps s take batch s % n of n whole batches."""
    size = reference["batch_size"]
    batches = reference["labels"]["shape"][0] // size
    return max(min(t["steps"], batches) * size for t in reference["traces"])


def truncation_is_safe(reference, rows):
    """Either nothing of a whole batch is cut, or no trace comes round to the first batch again."""
    size = reference["batch_size"]
    batches = reference["labels"]["shape"][0] // size
    return rows == batches * size or all(t["steps"] * size <= rows for t in reference["traces"])


def shorten(a):
    """a with its mantissas rounded to MANTISSA bits: the rest are zeros, which compress."""
    drop = 52 - MANTISSA
    bits = np.ascontiguousarray(a).view(np.int64)
    return (((bits + (1 << (drop - 1))) >> drop) << drop).view(np.float64).reshape(a.shape)


def save(path, arrays):
    """As np.savez, compressed better; np.load reads it. Dates are fixed: the same bytes each time."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            data = io.BytesIO()
            np.lib.format.write_array(data, np.ascontiguousarray(array).reshape(array.shape))
            entry = zipfile.ZipInfo(name + ".npy")
            archive.writestr(entry, data.getvalue(), zipfile.ZIP_LZMA)


def copy_gradients(source, target):
    grads = dict(np.load(source / "grads.npz"))
    if sum(g.nbytes for g in grads.values()) > EXACT_BELOW:
        grads = {k: shorten(g) for k, g in grads.items()}
    save(target / "grads.npz", grads)


def copy_data_file(source, name):
    """The data file is not copied where another model's tensors give it byte for byte."""
    same = SAME_TENSORS[name]
    data = (source / "model.onnx.data").read_bytes()
    model = onnx.load(source / "model.onnx", load_external_data=False)
    assert external_bytes(model, raw_tensors(source.parent / same / "model.onnx")) == data
    mine, theirs = (np.load(source.parent / n / "grads.npz") for n in (name, same))
    assert all(np.array_equal(mine[k], theirs[k]) for k in mine.files)
    return dict(data_of=same, data_sha256=hashlib.sha256(data).hexdigest(), grads=same)


def copy_model(source):
    name, target = source.name, HERE / source.name
    reference = json.loads((source / "reference.json").read_text())
    rows = rows_used(reference)
    assert truncation_is_safe(reference, rows)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for file in ("model.onnx", "reference.json"):
        shutil.copyfile(source / file, target / file)
    inputs = {i["file"]: np.load(source / i["file"])[:rows] for i in reference["inputs"]}
    inputs["labels.npy"] = np.load(source / "labels.npy")[:rows]
    for file in (reference.get("eval") or {}).get("files", []):
        inputs[file] = np.load(source / file)
    save(target / "inputs.npz", inputs)
    made = dict(rows=rows, grads=name, data_of=None)
    if name in SAME_TENSORS:
        made.update(copy_data_file(source, name))
    elif name in NO_GRADIENTS:
        made["grads"] = None
    else:
        copy_gradients(source, target)
    (target / "copy.json").write_text(json.dumps(made, indent=1) + "\n")
    for file in target.iterdir():
        file.chmod(0o644)


def main():
    for path in sorted(Path(sys.argv[1]).glob("*/reference.json")):
        if path.parent.name not in LEFT_OUT:
            copy_model(path.parent)
    total = 0
    for folder in sorted(p for p in HERE.iterdir() if (p / "copy.json").exists()):
        size = sum(f.stat().st_size for f in folder.iterdir())
        print(f"{size:10} {folder.name}")
        total += size
    print(f"{total:10} in all, at most {LIMIT}")
    sys.exit(1 if total > LIMIT else 0)


if __name__ == "__main__":
    main()
