"""Operands of a library's products have padding to multiples of 16 bytes (codegen/legalize/pitch.c): losses and weights are those of the CPU,
which has none."""
import json
import subprocess

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from pretended import ON_CPU, ON_GPU
from tolerances import limit

BATCH, WIDTH, ODD, CLASSES, STEPS = 1056, 48, 515, 1001, 2
PRECISIONS = {"f32": "devices f32", "bf16": "devices 16 bits"}


def weights(name, shape, rng):
    return numpy_helper.from_array((rng.standard_normal(shape) / np.sqrt(WIDTH)).astype(np.float32), name)


def compile_layers(gpu, *options):
    """Two products of which one reads the other's odd rows, a layer, the logits, 1001 numbers a row, and cross entropy. Weights are stored by
    input (w1, w2) and by output (w0, w3): an odd axis is the rows of one weight and the columns of the other."""
    rng = np.random.default_rng(3)
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w0"], ["h0"], transB=1), helper.make_node("MatMul", ["h0", "w1"], ["h1"]),
         helper.make_node("MatMul", ["h1", "w2"], ["h2"]), helper.make_node("Tanh", ["h2"], ["h"]),
         helper.make_node("Gemm", ["h", "w3", "b3"], ["logits"], transB=1)], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", WIDTH])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", CLASSES])],
        [weights("w0", (ODD, WIDTH), rng), weights("w1", (ODD, ODD + 2), rng), weights("w2", (ODD + 2, WIDTH), rng),
         weights("w3", (CLASSES, WIDTH), rng), weights("b3", (CLASSES,), rng)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    inputs = {"x": rng.standard_normal((STEPS * BATCH, WIDTH)).astype(np.float32), "labels": rng.integers(0, CLASSES, STEPS * BATCH)}
    return gpu.compile_model(model, inputs, "--loss=cross_entropy", "--optimizer=sgd", f"--batch={BATCH}", *options,
                             train=["--lr=0.1", f"--steps={STEPS}"])


def layers(gpu, precision):
    return gpu.once(("odd", precision), lambda: compile_layers(gpu, f"--precision={precision}"))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_products_are_padded(gpu, precision):
    """Every product of a step: its sizes and strides are whole 16 bytes."""
    done = subprocess.run([gpu.gradc, "dump", layers(gpu, precision).path, "--stage=schedule", "--format=json", "--machine=h100"], text=True,
                          capture_output=True, check=True)
    products = [x for step in json.loads(done.stdout)["steps"] for x in step["launches"] if x["class"] == "product"]
    assert len(products) >= 10 and {x["alignment"] for x in products} == {16}


@pytest.mark.parametrize("precision, libraries", [("f32", "on"), ("f32", "off"), ("bf16", "on")])
def test_losses(gpu, tmp_path, precision, libraries):
    """With NaN in memory that nothing has written."""
    trainer, allowed = gpu.trainer(layers(gpu, precision), tmp_path), limit(PRECISIONS[precision])
    on_gpu, on_cpu = (trainer.result(device, f"--libraries={libraries}", "--poison", name=device[9:])[0] for device in (ON_GPU, ON_CPU))
    assert len(on_gpu) == len(on_cpu) == STEPS
    for a, b in zip(on_gpu, on_cpu):
        assert abs(a["loss"] - b["loss"]) <= allowed * b["loss"]
        assert abs(a["grad_norm"] - b["grad_norm"]) <= allowed * b["grad_norm"]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_accumulation(gpu, tmp_path, precision):
    """The first micro-batch stores gradients of odd rows, the second adds: the sum is that of the CPU."""
    trainer, allowed = gpu.trainer(layers(gpu, precision), tmp_path), limit(PRECISIONS[precision])
    one, two = (trainer.result(device, "--accumulate=2", "--steps=1", "--libraries=on", name=device[9:])[0] for device in (ON_GPU, ON_CPU))
    assert abs(one[0]["grad_norm"] - two[0]["grad_norm"]) <= allowed * two[0]["grad_norm"]


def test_what_lies_between_rows_is_no_finding(gpu, tmp_path):
    """NaN here, which --poison has put there."""
    rng = np.random.default_rng(3)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["z"], name="z"), helper.make_node("Log", ["z"], ["logits"], name="log")], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", WIDTH])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", CLASSES])], [weights("w", (WIDTH, CLASSES), rng)])
    inputs = {"x": rng.standard_normal((BATCH, WIDTH)).astype(np.float32), "labels": rng.integers(0, CLASSES, BATCH)}
    logarithm = gpu.compile_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), inputs, "--loss=cross_entropy",
                                  f"--batch={BATCH}", train=["--lr=0.1", "--steps=1"])
    trainer = gpu.trainer(logarithm, tmp_path)
    trainer.run(ON_GPU, "--find-nan", "--poison", "--log=found.jsonl", exit=8)
    found = json.loads((tmp_path / "found.jsonl").read_text())["not_finite"]
    assert "log" in found["nodes"] and "z" not in found["nodes"]
    z = next(t for t in found["tensors"] if t["name"] == "z")
    assert z["role"] == "operand" and z["elements"] == BATCH * 1008 and z["nan"] == 0 and z["since"] is None
