"""Adapters of each kind beside one layer, on the pretended GPU: the CPU's losses by the same executable, and the same merged weights."""
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from pretended import ON_CPU, ON_GPU

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "import"))
from make_malformed import model, node, tensor, value  # noqa: E402

RANDOM = np.random.default_rng(5)
ROWS = 8


def weight(*shape):
    return tensor("w", np.float32(RANDOM.normal(size=shape) / np.sqrt(np.prod(shape[1:]))))


def layer(nodes, w, shape, dtype="float32"):
    """(model, its data)"""
    nodes[-1].output[0] = "y"
    kind = onnx.TensorProto.INT64 if dtype == "int64" else onnx.TensorProto.FLOAT
    made = model(nodes, inputs=[onnx.helper.make_tensor_value_info("x", kind, (ROWS, *shape))], outputs=[value("y", (ROWS, 6))], initializers=[w], opset=17, ir=9)
    x = RANDOM.integers(0, 12, (4 * ROWS, *shape)) if dtype == "int64" else np.float32(RANDOM.normal(size=(4 * ROWS, *shape)))
    return made, {"x": x, "labels": np.float32(RANDOM.normal(size=(4 * ROWS, 6)))}


PRODUCT = layer([node("Gemm", ["x", "w"], name="product", transB=1)], weight(6, 70), (70,))
CONVOLUTION = layer([node("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]), node("GlobalAveragePool", ["c"], ["g"], name="pool"),
                     node("Flatten", ["g"], name="flat")], weight(6, 8, 3, 3), (8, 5, 5))
TABLE = layer([node("Gather", ["w", "x"], name="table")], weight(12, 6), (), "int64")
CASES = {"product": (PRODUCT, ["--lora=w,rank=3"]), "convolution": (CONVOLUTION, ["--lora=w,rank=2"]), "table": (TABLE, ["--lora=w,rank=2"]),
         "dora": (PRODUCT, ["--lora=w,rank=3,dora"]), "dropout": (PRODUCT, ["--lora=w,rank=3,dropout=0.3"]),
         "nf4": (PRODUCT, ["--qlora=w,rank=3"]), "fp4, plain absmax": (PRODUCT, ["--qlora=w,rank=3,bits=fp4,double=off"]),
         "nf4 of a convolution": (CONVOLUTION, ["--qlora=w,rank=2"]), "nf4 of a table": (TABLE, ["--qlora=w,rank=2"]),
         "nf4 in bf16": (PRODUCT, ["--qlora=w,rank=3", "--precision=bf16"])}


@pytest.mark.parametrize("case", CASES)
def test_losses_and_merged_weights(gpu, tmp_path, case):
    (proto, data), options = CASES[case]
    exe = gpu.compile_model(proto, data, "--loss=mse", *options, train=["--steps=4", "--lr=0.05"])
    trainer = gpu.trainer(exe, tmp_path)
    found = {}
    for device in (ON_GPU, ON_CPU):
        name = device[9:]
        losses = trainer.losses(device, f"--export-merged={name}.onnx", name=name)
        found[device] = losses, numpy_helper.to_array(onnx.load(tmp_path / f"{name}.onnx").graph.initializer[0])
    far = 1e-2 if "bf16" in case else 1e-5
    np.testing.assert_allclose(found[ON_GPU][0], found[ON_CPU][0], rtol=far)
    assert len(set(found[ON_GPU][0])) == 4
    np.testing.assert_allclose(found[ON_GPU][1], found[ON_CPU][1], rtol=far, atol=far)
