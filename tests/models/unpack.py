#!/usr/bin/env python3
"""Unpacks the copies of the reference models: each becomes a folder like the one it was made from.

usage: tests/models/unpack.py DIR [NAME...]
"""
import hashlib
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import onnx

HERE = Path(__file__).resolve().parent


def names():
    return sorted(p.parent.name for p in HERE.glob("*/reference.json"))


def has_kernels_of_its_own(name):
    """Not gpt2_mini exported in other ways."""
    return not name.startswith("gpt2_mini_")


def external_bytes(model, tensors):
    """The data file of `model` (loaded without it), from tensors of equal names: {name: bytes}."""
    places = []
    for t in model.graph.initializer:
        entry = {e.key: e.value for e in t.external_data}
        if entry:
            places.append((int(entry["offset"]), int(entry["length"]), tensors[t.name]))
    data = bytearray(max(offset + length for offset, length, _ in places))
    for offset, length, raw in places:
        assert len(raw) == length
        data[offset:offset + length] = raw
    return bytes(data)


def raw_tensors(path):
    return {t.name: t.raw_data for t in onnx.load(path).graph.initializer}


def unpack(name, folder):
    """Writes folder/model.onnx, reference.json, an .npy per input, and grads.npz where it is kept."""
    source, made = HERE / name, json.loads((HERE / name / "copy.json").read_text())
    folder.mkdir(parents=True, exist_ok=True)
    for file in ("model.onnx", "reference.json"):
        shutil.copyfile(source / file, folder / file)
    for file, array in np.load(source / "inputs.npz").items():
        np.save(folder / file, array)
    if made["grads"]:
        shutil.copyfile(HERE / made["grads"] / "grads.npz", folder / "grads.npz")
    if made["data_of"]:
        model = onnx.load(source / "model.onnx", load_external_data=False)
        data = external_bytes(model, raw_tensors(HERE / made["data_of"] / "model.onnx"))
        assert hashlib.sha256(data).hexdigest() == made["data_sha256"]
        (folder / "model.onnx.data").write_bytes(data)
    return folder


def main():
    target = Path(sys.argv[1])
    for name in sys.argv[2:] or names():
        print(unpack(name, target / name))


if __name__ == "__main__":
    main()
