"""Models that onnxruntime optimized, with its fused operators, compute what they did before: results, and gradients of all parameters."""
import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime.transformers import optimizer
from onnxruntime.transformers.fusion_options import FusionOptions

ROWS = 2
LEVEL = onnxruntime.GraphOptimizationLevel
# By onnxruntime itself: an operator that must be there, and the level. Convolutions get the order of one machine in ORT_ENABLE_ALL.
BY_LEVEL = {"bert_mini": ("SkipLayerNormalization", LEVEL.ORT_ENABLE_ALL), "gpt2_mini": ("FastGelu", LEVEL.ORT_ENABLE_ALL),
            "gpt2_mini_opset14": ("FusedMatMul", LEVEL.ORT_ENABLE_ALL), "llama_mini": ("QuickGelu", LEVEL.ORT_ENABLE_ALL),
            "mlp_digits": ("FusedGemm", LEVEL.ORT_ENABLE_ALL), "vit_mini": ("BiasGelu", LEVEL.ORT_ENABLE_EXTENDED),
            "resnet_mini": ("FusedConv", LEVEL.ORT_ENABLE_EXTENDED)}
# By its optimizer of transformers: what it takes the model for, and what must be there.
BY_KIND = {"bert_mini": ("bert", {"SkipLayerNormalization", "BiasGelu"}), "gpt2_mini": ("gpt2", {"SkipLayerNormalization", "FastGelu"}),
           "vit_mini": ("vit", {"SkipLayerNormalization", "BiasGelu"}), "llama_mini": ("gpt2", {"SimplifiedLayerNormalization"}),
           "unet_mini": ("unet", {"NhwcConv", "GroupNorm"})}
TOLERANCE = 1e-6  # constants of Gelu are rounded to f32 in another way


def by_level(path, to, level):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.optimized_model_filepath = str(to)
    options.log_severity_level = 3
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def by_kind(path, to, kind):
    options = FusionOptions(kind)
    options.enable_shape_inference = False  # needs packages that the tests do without
    optimizer.optimize_model(str(path), model_type=kind, opt_level=0, optimization_options=options).save_model_to_file(str(to))


def operators(path):
    return {node.op_type for node in onnx.load(path).graph.node}


def saved(folder):
    files = json.loads((folder / "names.json").read_text())
    return {name: np.load(folder / entry["file"]) for name, entry in files.items()}


def near(got, want, scale, what):
    assert got.shape == want.shape, what
    np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE * scale, err_msg=what)


def compare(run, source, folder):
    """optimized.onnx in the folder and the model in `source`."""
    words = []
    for port in json.loads((source / "reference.json").read_text())["inputs"]:
        np.save(folder / f"{port['name']}.npy", np.load(source / port["file"])[:ROWS])
        words += ["--input", f"{port['name']}={port['name']}.npy"]
    results, grads = [], []
    for model in (source / "model.onnx", Path("optimized.onnx")):
        run("run", model, "--precision=f64", *words, "--output-dir=out")
        results.append(saved(folder / "out"))
        np.save(folder / "zeros.npy", np.zeros_like(next(iter(results[0].values()))))
        run("grad", model, "--precision=f64", "--loss=mse", *words, "--input", "labels=zeros.npy", f"--output-dir=grads{len(grads)}")
        grads.append(saved(folder / f"grads{len(grads)}"))
    for output, want in results[0].items():
        near(results[1][output], want, 1, output)
    same = [name for name in grads[0] if name in grads[1]]
    largest = max(np.abs(grads[0][name]).max() for name in same)
    for name in same:
        near(grads[1][name], grads[0][name], largest, name)
    sizes = [np.array(sorted(np.linalg.norm(g) for g in each.values())) for each in grads]  # of renamed ones, too
    near(sizes[1], sizes[0], sizes[0].max(), "norms of gradients")
    return len(grads[0]) - len(same)


@pytest.mark.parametrize("name", BY_LEVEL)
def test_an_optimized_model_is_the_same(run, models, tmp_path, name):
    operator, level = BY_LEVEL[name]
    by_level(models / name / "model.onnx", tmp_path / "optimized.onnx", level)
    assert operator in operators(tmp_path / "optimized.onnx")
    assert compare(run, models / name, tmp_path) == 0


@pytest.mark.parametrize("name", BY_KIND)
def test_an_optimized_transformer_is_the_same(run, models, tmp_path, name):
    kind, fused = BY_KIND[name]
    by_kind(models / name / "model.onnx", tmp_path / "optimized.onnx", kind)
    assert fused <= operators(tmp_path / "optimized.onnx")
    renamed = compare(run, models / name, tmp_path)
    assert renamed == (14 if name == "unet_mini" else 0)  # weights of six convolutions, scales and biases of four norms


def test_the_order_of_one_machine_is_refused(run, models, tmp_path):
    by_level(models / "resnet_mini/model.onnx", tmp_path / "all.onnx", LEVEL.ORT_ENABLE_ALL)
    if not any(node.domain == "com.microsoft.nchwc" for node in onnx.load(tmp_path / "all.onnx").graph.node):
        pytest.skip("onnxruntime has no such order here")
    assert "ORT_ENABLE_EXTENDED" in run("check", "all.onnx", exit=4).stderr
