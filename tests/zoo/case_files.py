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


def integers(below, *shape, dtype=np.int64):
    return lambda rng, rows: rng.integers(0, below, (rows, *shape), dtype=dtype)


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
    return (array + scale * rng.standard_normal(array.shape)).astype(array.dtype)


def write(folder, arrays, before, after, buffers, losses, **facts):
    """All but model.onnx, which lies there already."""
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    tensors = {f"before/{k}": v for k, v in before.items()} | {f"after/{k}": v for k, v in after.items()}
    np.savez(folder / "tensors.npz", **tensors)
    facts |= dict(losses=losses, buffers=sorted(buffers), inputs=list(arrays),
                  parameters=sum(int(v.size) for k, v in before.items() if k not in buffers))
    (folder / "case.json").write_text(json.dumps(facts, indent=1) + "\n")


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
        if not fnmatch.fnmatch(row.name, options.models) or (folder.exists() and not options.again):
            continue
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            make(row, folder)
            print(f"{framework}: {row.name}: exported", flush=True)
        except Exception as e:
            traceback.print_exc()
            lines = str(e).strip().splitlines()
            (folder / "case.json").write_text(json.dumps(dict(
                exporter=row.exporter, form=row.form, error=f"{type(e).__name__}: {lines[0] if lines else ''}"[:300])) + "\n")
            print(f"{framework}: {row.name}: not exported: {e}"[:300], flush=True)
