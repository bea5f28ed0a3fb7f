"""Layers whose operands pass codes, on the pretended GPU: the CPU's losses by the same executable, and the same codes exported."""
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from pretended import ON_CPU, ON_GPU

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "import"))
from make_malformed import model, node, tensor, value  # noqa: E402

RANDOM = np.random.default_rng(3)


def layer(step, shape, weight, after=()):
    nodes = [step, *after]
    last = nodes[-1]
    last.output[0] = "y"
    return model(nodes, inputs=[value("x", (8, *shape))], outputs=[value("y", (8, 5))], initializers=weight, opset=21, ir=10)


def weights(**shapes):
    return [tensor(n, np.float32(RANDOM.normal(size=s) / np.sqrt(np.prod(s[1:] or 1)))) for n, s in shapes.items()]


PRODUCT = layer(node("MatMul", ["x", "w"], name="product"), (32,), weights(w=(32, 5)))
CONVOLUTION = layer(node("Conv", ["x", "w", "b"], ["c"], name="conv", pads=[1, 1, 1, 1]), (2, 6, 6), weights(w=(5, 2, 3, 3), b=(5,)),
                    [node("GlobalAveragePool", ["c"], ["g"], name="pool"), node("Flatten", ["g"], name="flat")])
CASES = {"running ranges": (PRODUCT, ["--quantize=w8a8"]), "rows and blocks": (PRODUCT, ["--quantize=w4a8-g8-token"]),
         "learned scales": (PRODUCT, ["--quantize=w4a8", "--scale-learning=lsq,zero-points=on"]), "a convolution": (CONVOLUTION, ["--quantize=w8a8"])}


@pytest.mark.parametrize("case", CASES)
def test_losses_and_codes(gpu, tmp_path, case):
    proto, options = CASES[case]
    x = np.float32(RANDOM.normal(size=(32, *[d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim[1:]])))
    data = {"x": x, "labels": np.float32(RANDOM.normal(size=(32, 5)))}
    exe = gpu.compile_model(proto, data, "--loss=mse", "--optimizer=sgd", *options, train=["--steps=4", "--lr=0.05"])
    trainer = gpu.trainer(exe, tmp_path)
    found = {}
    for device in (ON_GPU, ON_CPU):
        losses = trainer.losses(device, f"--export={device[9:]}.onnx", name=device[9:])
        held = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / f"{device[9:]}.onnx").graph.initializer}
        found[device] = losses, held
    np.testing.assert_allclose(found[ON_GPU][0], found[ON_CPU][0], rtol=1e-5)
    assert len(set(found[ON_GPU][0])) == 4
    got, want = found[ON_GPU][1], found[ON_CPU][1]
    assert got["w_quantized"].dtype == want["w_quantized"].dtype and np.mean(got["w_quantized"] != want["w_quantized"]) <= 0.01
    np.testing.assert_allclose(got["w_scale"], want["w_scale"], rtol=1e-5)
