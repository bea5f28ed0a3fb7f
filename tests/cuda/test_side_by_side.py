"""Kernels write their results where a concat would copy them to (codegen/lower/concat_in_place.c): losses and gradients are those of the CPU, for
which tests/codegen/test_concat_in_place.py has NumPy's results."""
import json
import re

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from pretended import ON_CPU, ON_GPU
from tolerances import limit

BATCH, WIDTH, CLASSES, STEPS = 96, 48, 16, 2
PRECISIONS = {"f32": "devices f32", "bf16": "devices 16 bits"}


def model(rng, v=1.0, w=1.0):
    """Logits of two products side by side; the gradient of three slices of one tensor, which is a concat, too."""
    def weights(name, *shape, scale=1.0):
        return numpy_helper.from_array((rng.standard_normal(shape) / np.sqrt(shape[0]) * scale).astype(np.float32), name)

    return helper.make_model(helper.make_graph(
        [helper.make_node("MatMul", ["x", "v"], ["a"], name="a"), helper.make_node("MatMul", ["x", "w"], ["b"], name="b"),
         helper.make_node("Concat", ["a", "b"], ["c"], axis=1, name="c"), helper.make_node("Softmax", ["c"], ["d"], axis=1, name="d"),
         helper.make_node("MatMul", ["d", "u"], ["e"], name="e"), helper.make_node("Split", ["e"], ["q", "k", "l"], axis=1, name="split"),
         helper.make_node("MatMul", ["q", "o"], ["q1"]), helper.make_node("MatMul", ["k", "p"], ["k1"]), helper.make_node("MatMul", ["l", "r"], ["l1"]),
         helper.make_node("Sum", ["q1", "k1", "l1"], ["logits"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", WIDTH])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", CLASSES])],
        [weights("v", WIDTH, 32, scale=v), weights("w", WIDTH, 64, scale=w), weights("u", 96, 96), *(weights(n, 32, CLASSES) for n in "opr")]),
        opset_imports=[helper.make_opsetid("", 17)])


def compiled(gpu, precision, **scales):
    def make():
        rng = np.random.default_rng(5)
        inputs = {"x": rng.standard_normal((STEPS * BATCH, WIDTH)).astype(np.float32), "labels": rng.integers(0, CLASSES, STEPS * BATCH)}
        return gpu.compile_model(model(rng, **scales), inputs, "--loss=cross_entropy", "--optimizer=sgd", f"--batch={BATCH}", f"--precision={precision}",
                                 train=["--lr=0.1", f"--steps={STEPS}"])
    return gpu.once(("concat", precision, *scales), make)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_nothing_is_copied(gpu, run, precision):
    printed = run("dump", compiled(gpu, precision).path, "--stage=schedule").stdout
    assert len(re.findall(r"\bdot_\w+_concat\b", printed)) >= 5 and not re.search(r"\bconcat_", printed)


@pytest.mark.parametrize("precision, libraries", [("f32", "on"), ("f32", "off"), ("bf16", "on")])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_losses(gpu, tmp_path, precision, libraries, accumulate):
    """With NaN in memory that nothing has written."""
    trainer, allowed = gpu.trainer(compiled(gpu, precision), tmp_path), limit(PRECISIONS[precision])
    on_gpu, on_cpu = (trainer.result(device, f"--libraries={libraries}", "--poison", f"--accumulate={accumulate}", f"--steps={STEPS // accumulate}",
                                     name=device[9:])[0] for device in (ON_GPU, ON_CPU))
    assert len(on_gpu) == len(on_cpu) == STEPS // accumulate
    for a, b in zip(on_gpu, on_cpu):
        assert abs(a["loss"] - b["loss"]) <= allowed * b["loss"]
        assert abs(a["grad_norm"] - b["grad_norm"]) <= allowed * b["grad_norm"]


@pytest.mark.parametrize("device", [ON_GPU, ON_CPU])
@pytest.mark.parametrize("product, weight, columns", [("a", "v", 32), ("b", "w", 64)])
def test_the_first_infinity_is_named(gpu, tmp_path, device, product, weight, columns):
    """Of the buffer that two products write, only the columns of the product that made the infinity are described; what the other one has
    written there is no operand."""
    trainer = gpu.trainer(compiled(gpu, "f32", **{weight: 1e38}), tmp_path)
    printed = trainer.run(device, "--find-nan", "--log=found.jsonl", exit=8).stderr
    found = json.loads((tmp_path / "found.jsonl").read_text().splitlines()[-1])["not_finite"]
    assert found["nodes"] == [product]
    assert re.findall(r"result (.*?):", printed) == [f'"{product}" (f32, {BATCH * columns} elements)']
    assert re.findall(r'operand \w+ "(\w+)"', printed) == ["x", weight] and printed.count("operand") == 2
