"""Rows that a library wants at multiples of 16 bytes have a pitch (codegen/legalize/pitch.c): losses and weights are those of the CPU, which has
none."""
import json
import subprocess

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from pretended import ON_CPU, ON_GPU
from tolerances import limit

BATCH, WIDTH, CLASSES, STEPS = 384, 48, 1001, 3


def weights(name, shape, rng):
    return numpy_helper.from_array((rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32), name)


def compile_layers(gpu, *last):
    """A layer, the logits, 1001 numbers a row, and cross entropy: the gradients of both operands read such rows, too."""
    rng = np.random.default_rng(3)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w0"], ["h0"]), helper.make_node("Tanh", ["h0"], ["h"]),
         helper.make_node("MatMul", ["h", "w1"], ["z"], name="z"), helper.make_node("Add", ["z", "b1"], ["shifted"]), *last], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", WIDTH])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", CLASSES])],
        [weights("w0", (WIDTH, WIDTH), rng), weights("w1", (WIDTH, CLASSES), rng), weights("b1", (CLASSES,), rng)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    inputs = {"x": rng.standard_normal((STEPS * BATCH, WIDTH)).astype(np.float32), "labels": rng.integers(0, CLASSES, STEPS * BATCH)}
    return gpu.compile_model(model, inputs, "--loss=cross_entropy", "--optimizer=adamw", f"--batch={BATCH}",
                             train=["--lr=0.01", f"--steps={STEPS}"])


@pytest.fixture(scope="module")
def exe(gpu):
    return compile_layers(gpu, helper.make_node("Identity", ["shifted"], ["logits"]))


def test_products_have_a_pitch(gpu, exe):
    """The logits of training, and their gradient in both products that read it."""
    schedule = subprocess.run([gpu.gradc, "dump", exe.path, "--stage=schedule"], text=True, capture_output=True, check=True).stdout
    found = [line for line in schedule.splitlines() if "1004" in line]
    assert sum(f"z = f32[{BATCH},{CLASSES}] at 3 by [1004,1]" in line for line in found) >= 1
    assert sum(f"x = f32[{BATCH},{CLASSES}] at 0 by [1004,1]" in line for line in found) >= 1
    assert sum(f"y = f32[{BATCH},{CLASSES}] at 1 by [1004,1]" in line for line in found) >= 1


@pytest.mark.parametrize("libraries", ["on", "off"])
def test_losses(gpu, exe, tmp_path, libraries):
    trainer = gpu.trainer(exe, tmp_path)
    on_gpu, on_cpu = (trainer.result(device, f"--libraries={libraries}", name=device[9:])[0] for device in (ON_GPU, ON_CPU))
    assert len(on_gpu) == len(on_cpu) == STEPS
    for a, b in zip(on_gpu, on_cpu):
        assert abs(a["loss"] - b["loss"]) <= limit("devices f32") * b["loss"]
        assert abs(a["grad_norm"] - b["grad_norm"]) <= limit("devices f32") * b["grad_norm"]


def test_what_lies_between_rows_is_no_finding(gpu, tmp_path):
    """NaN here, which --poison has put there."""
    logarithm = compile_layers(gpu, helper.make_node("Log", ["shifted"], ["logits"], name="log"))
    trainer = gpu.trainer(logarithm, tmp_path)
    trainer.run(ON_GPU, "--find-nan", "--poison", "--log=found.jsonl", exit=8)
    found = json.loads((tmp_path / "found.jsonl").read_text())["not_finite"]
    assert "log" in found["nodes"] and "z" not in found["nodes"]
    z = next(t for t in found["tensors"] if t["name"] == "z")
    assert z["role"] == "operand" and z["elements"] == BATCH * 1004 and z["nan"] == 0 and z["since"] is None
