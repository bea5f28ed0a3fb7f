"""Models that onnxruntime optimized, with its fused operators, compute what they did before: results, and gradients of all parameters."""
import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

ROWS = 2
FUSED = {"bert_mini": "SkipLayerNormalization", "gpt2_mini": "FastGelu", "gpt2_mini_opset14": "FusedMatMul", "llama_mini": "QuickGelu",
         "vit_mini": "BiasGelu", "resnet_mini": "FusedConv", "mlp_digits": "FusedGemm"}
TOLERANCE = 1e-6  # constants of Gelu are rounded to f32 in another way


def optimized(path, to, level):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.optimized_model_filepath = str(to)
    options.log_severity_level = 3
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def saved(folder):
    files = json.loads((folder / "names.json").read_text())
    return {name: np.load(folder / entry["file"]) for name, entry in files.items()}


def near(got, want, scale):
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE * scale)


@pytest.mark.parametrize("name", FUSED)
def test_an_optimized_model_is_the_same(run, models, tmp_path, name):
    source = models / name
    optimized(source / "model.onnx", tmp_path / "optimized.onnx", onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED)
    assert FUSED[name] in {node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node}
    words = []
    for port in json.loads((source / "reference.json").read_text())["inputs"]:
        np.save(tmp_path / f"{port['name']}.npy", np.load(source / port["file"])[:ROWS])
        words += ["--input", f"{port['name']}={port['name']}.npy"]
    results, grads = [], []
    for model in (source / "model.onnx", Path("optimized.onnx")):
        run("run", model, "--precision=f64", *words, "--output-dir=out")
        results.append(saved(tmp_path / "out"))
        np.save(tmp_path / "zeros.npy", np.zeros_like(next(iter(results[0].values()))))
        run("grad", model, "--precision=f64", "--loss=mse", *words, "--input", "labels=zeros.npy", f"--output-dir=grads{len(grads)}")
        grads.append(saved(tmp_path / f"grads{len(grads)}"))
    for output, want in results[0].items():
        near(results[1][output], want, 1)
    largest = max(np.abs(g).max() for g in grads[0].values())
    assert grads[0].keys() == grads[1].keys() and largest > 0
    for weight, want in grads[0].items():
        near(grads[1][weight], want, largest)


def test_the_order_of_one_machine_is_refused(run, models, tmp_path):
    optimized(models / "resnet_mini/model.onnx", tmp_path / "all.onnx", onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL)
    if not any(node.domain == "com.microsoft.nchwc" for node in onnx.load(tmp_path / "all.onnx").graph.node):
        pytest.skip("onnxruntime has no such order here")
    assert "ORT_ENABLE_EXTENDED" in run("check", "all.onnx", exit=4).stderr
