"""Gradients of layer norms on GPUs: one kernel reduces rows and sums their columns, for the weight, the bias and the bias of the product before
(codegen/lower/block_columns.c). Losses and gradients are the CPU's, which has kernels of its own for these sums."""
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from pretended import ON_CPU, ON_GPU
from tolerances import limit

STEPS, CLASSES = 2, 10
PRECISIONS = {"f32": "devices f32", "bf16": "devices 16 bits"}
# Rows and columns: a warp a row, without and with a rest; blocks of rows that warps do not divide; a row for the whole team.
SHAPES = [(512, 64), (600, 100), (528, 33), (96, 1032)]


def model(width, rng):
    def weights(name, *shape):
        return numpy_helper.from_array((rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32), name)

    nodes, init, x = [], [], "x"
    for i in range(2):
        nodes += [helper.make_node("LayerNormalization", [x, f"g{i}", f"b{i}"], [f"n{i}"]), helper.make_node("MatMul", [f"n{i}", f"w{i}"], [f"m{i}"]),
                  helper.make_node("Add", [f"m{i}", f"c{i}"], [f"a{i}"]), helper.make_node("Add", [x, f"a{i}"], [f"r{i}"])]
        init += [weights(f"g{i}", width), weights(f"b{i}", width), weights(f"w{i}", width, width), weights(f"c{i}", width)]
        x = f"r{i}"
    nodes += [helper.make_node("LayerNormalization", [x, "g", "b"], ["n"]), helper.make_node("MatMul", ["n", "w"], ["logits"])]
    init += [weights("g", width), weights("b", width), weights("w", width, CLASSES)]
    return helper.make_model(
        helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", width])],
                          [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", CLASSES])], init),
        opset_imports=[helper.make_opsetid("", 17)])


def compiled(gpu, rows, width, precision):
    def make():
        rng = np.random.default_rng(rows)
        inputs = {"x": rng.standard_normal((STEPS * rows, width)).astype(np.float32), "labels": rng.integers(0, CLASSES, STEPS * rows)}
        return gpu.compile_model(model(width, rng), inputs, "--loss=cross_entropy", "--optimizer=adamw", f"--batch={rows}",
                                 f"--precision={precision}", train=["--lr=0.01", f"--steps={STEPS}"])
    return gpu.once(("norms", rows, width, precision), make)


@pytest.mark.parametrize("rows, width", SHAPES)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_losses(gpu, tmp_path, rows, width, precision):
    trainer, allowed = gpu.trainer(compiled(gpu, rows, width, precision), tmp_path), limit(PRECISIONS[precision])
    on_gpu, on_cpu = (trainer.result(device, "--poison", name=device[9:])[0] for device in (ON_GPU, ON_CPU))
    assert len(on_gpu) == len(on_cpu) == STEPS
    for a, b in zip(on_gpu, on_cpu):
        assert abs(a["loss"] - b["loss"]) <= allowed * b["loss"]
        assert abs(a["grad_norm"] - b["grad_norm"]) <= allowed * b["grad_norm"]
