#!/usr/bin/env python3
"""Copies the models of KEPT from build-zoo/ to models/, where `make test` trains them again.

usage: .venv/bin/python tests/zoo/keep.py
A folder there has model.onnx without stack traces and their like, data.npz, tensors.npz and case.json, which says how the comparison ended
and which tensors of the file gradc changed.
"""
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import onnx

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "tests/models")]
import judge  # noqa: E402
from make_copies import save  # noqa: E402

LIMIT = 5_000_000
KEPT = {
    "timm/deit_distilled_fresh": "tokens of zeros, equal parameters that the exporter merged",
    "transformers/marian": "tables of sines, a tied embedding, a buffer of zeros that is called a bias",
    "transformers/clip": "a learned number among numbers of the code",
    "transformers/whisper": "sines that the module keeps as a parameter without a gradient",
    "transformers/wav2vec2_folded": "a weight norm that the exporter computed",
    "diffusers/prior": "a mask and single vectors, by metadata",
    "torch_geometric/gin_eps_script": "learned numbers that the exporter folded",
    "keras/scaled_attention": "a number that is a variable, by its name",
    "jax/nnx_scaled": "a number without a name",
    "paddle/scaled": "a number that is a parameter, by its name",
    "sklearn/pca_and_mlp": "a matrix that no SGD makes",
}


def without_traces(model):
    """Of what the exporter says of nodes only the paths of their modules, which gradc reads, are kept."""
    for node in model.graph.node:
        kept = [p for p in node.metadata_props if p.key == "pkg.torch.onnx.name_scopes"]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
        node.doc_string = ""
    assert b"/site-packages/" not in model.SerializeToString()
    return model


def changed(folder):
    """Names of the file's tensors that the training changed."""
    before, after = (judge.onnx_tensors(folder / f) for f in ("model.onnx", "out.onnx"))
    return sorted(k for k, v in before.items() if not np.array_equal(v, after[k]))


def unpack(kept, folder):
    """Makes a folder as the exporting scripts write it."""
    for file in ("model.onnx", "tensors.npz", "case.json"):
        shutil.copyfile(kept / file, folder / file)
    for name, array in np.load(kept / "data.npz").items():
        np.save(folder / f"{name}.npy", array)


def keep(name, why):
    source, target = ROOT / "build-zoo/cases" / name, HERE / "models" / name.replace("/", "_")
    result = judge.judge(ROOT / "build/gradc", source)
    assert result["result"] in ("right", "told"), f"{name}: {result}"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    onnx.save(without_traces(onnx.load(source / "model.onnx")), target / "model.onnx")
    case = json.loads((source / "case.json").read_text())
    save(target / "data.npz", {n: np.load(source / f"{n}.npy") for n in case["inputs"]})
    save(target / "tensors.npz", np.load(source / "tensors.npz"))
    case |= dict(kept_for=why, result=result["result"], changed=changed(source))
    (target / "case.json").write_text(json.dumps(case, indent=1) + "\n")


def main():
    for name, why in KEPT.items():
        keep(name, why)
    size = sum(f.stat().st_size for f in (HERE / "models").rglob("*") if f.is_file())
    print(f"{size} bytes, at most {LIMIT}")
    sys.exit(size > LIMIT)


if __name__ == "__main__":
    main()
