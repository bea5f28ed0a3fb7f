"""The folder of one model, as the exporting scripts write it and judge.py reads it. NumPy only: every framework's venv
has it.

    model.onnx      as exported
    NAME.npy        five batches of each input, and labels.npy
    tensors.npz     before/NAME and after/NAME: the framework's parameters and buffers
    case.json       how it was made, the framework's losses, and how to run gradc
"""
import argparse
import fnmatch
import json
import re
import shutil
import traceback
from importlib import metadata
from pathlib import Path

import numpy as np

STEPS = 5


def random(seed):
    return np.random.default_rng(seed)


def floats(*shape):
    """A row of random numbers."""
    return lambda rng, rows: rng.standard_normal((rows, *shape)).astype(np.float32)


def integers(below, *shape, first=0, dtype=np.int64):
    return lambda rng, rows: rng.integers(first, below, (rows, *shape), dtype=dtype)


def fixed(array):
    """The same in every row."""
    return lambda rng, rows: np.repeat(np.asarray(array)[None], rows, 0)


def draw(specs, rows, seed=3):
    """{name: array} of all batches."""
    return {name: spec(random(seed + i), rows * STEPS) for i, (name, spec) in enumerate(specs.items())}


def batches(arrays, rows):
    for step in range(STEPS):
        yield {name: a[step * rows:(step + 1) * rows] for name, a in arrays.items()}


def moved(array, rng, scale=0.02):
    """The array with noise on it: no two elements are equal, none is zero."""
    return np.asarray(array + scale * rng.standard_normal(array.shape), array.dtype)


SHAKEN = 4e-7  # about what f32 rounds in a layer


def learning_rates(largest):
    return [largest / 10 ** i for i in range(5)]


def noise(after, after_shaken):
    """How far rounding takes each tensor."""
    return {k: float(np.abs(v - after_shaken[k]).max()) for k, v in after.items() if v.size}


def is_steady(losses, of_shaken_weights):
    """Do the losses hang on the weights, and not on how sums are rounded? False where one is not a number, too."""
    a, b = np.array(losses), np.array(of_shaken_weights)
    return bool(a.max() < 2 * a[0] + 1 and (np.abs(a - b) < 2e-5 * np.abs(a)).all())


def write(folder, arrays, before, after, buffers, losses, noise, **facts):
    """All but model.onnx, which lies there already."""
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    tensors = {f"before/{k}": v for k, v in before.items()} | {f"after/{k}": v for k, v in after.items()}
    np.savez(folder / "tensors.npz", **tensors)
    facts |= dict(losses=losses, noise=noise, buffers=sorted(buffers), inputs=list(arrays),
                  parameters=sum(int(v.size) for k, v in before.items() if k not in buffers))
    (folder / "case.json").write_text(json.dumps(facts, indent=1) + "\n")


def reason(error):
    """The first line of the first cause, without folders of this machine."""
    while error.__cause__:
        error = error.__cause__
    lines = str(error).strip().splitlines() or [""]
    return re.sub(r"/\S*/", "", f"{type(error).__name__}: {lines[0]}")[:200]


def main(framework, rows, make, packages):
    """The command line of an exporting script. make(row, folder) writes a folder; what it raises is kept as the result."""
    parser = argparse.ArgumentParser(description=f"exports the models of {framework}")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", default="*", help="a glob")
    parser.add_argument("--again", action="store_true", help="also those that lie there already")
    options = parser.parse_args()
    versions = {p: metadata.version(p) for p in packages}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "versions.json").write_text(json.dumps(versions, indent=1) + "\n")
    (options.out / "names.json").write_text(json.dumps([r.name for r in rows]) + "\n")
    assert len({r.name for r in rows}) == len(rows), "two models of one name"
    for row in rows:
        folder = options.out / row.name
        if not fnmatch.fnmatch(row.name, options.models) or ((folder / "tensors.npz").exists() and not options.again):
            continue
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            make(row, folder)
            print(f"{framework}: {row.name}: exported", flush=True)
        except Exception as e:
            (folder / "traceback.txt").write_text(traceback.format_exc())
            why = reason(e)
            (folder / "case.json").write_text(json.dumps(dict(exporter=row.exporter, form=row.form, error=why)) + "\n")
            print(f"{framework}: {row.name}: not exported: {why}", flush=True)
