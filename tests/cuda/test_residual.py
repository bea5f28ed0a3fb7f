"""A residual block in bf16, whose images have channels last (pass layouts), with batch norms whose channels no kernel keeps near (merge_sums):
losses, norms of gradients and running statistics are those of the CPU, which has neither, and does not round gradients of filters to 16 bits."""
import re
import subprocess

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from pretended import ON_CPU, ON_GPU
from tolerances import limit

BATCH, CHANNELS, SIZE, STEPS = 4, 8, 50, 3


def block():
    """conv, norm, relu, conv, norm, + its input, relu."""
    rng = np.random.default_rng(3)
    weights = []

    def weight(name, *shape, scale=1.0, offset=0.0):
        weights.append(numpy_helper.from_array((offset + scale * rng.standard_normal(shape)).astype(np.float32), name))
        return name

    def norm(x, i):
        names = [weight(f"scale{i}", CHANNELS, scale=0.1, offset=1), weight(f"shift{i}", CHANNELS, scale=0.1),
                 weight(f"mean{i}", CHANNELS, scale=0), weight(f"variance{i}", CHANNELS, scale=0, offset=1)]
        return helper.make_node("BatchNormalization", [x, *names], [f"n{i}", f"mean{i}.next", f"variance{i}.next"], name=f"norm{i}", training_mode=1)

    def conv(x, i, n):
        return helper.make_node("Conv", [x, weight(f"w{i}", CHANNELS, n, 3, 3, scale=0.2)], [f"c{i}"], name=f"conv{i}", pads=[1] * 4)

    nodes = [conv("x", 0, 3), norm("c0", 0), helper.make_node("Relu", ["n0"], ["r0"]), conv("r0", 1, CHANNELS), norm("c1", 1),
             helper.make_node("Add", ["n1", "r0"], ["a"]), helper.make_node("Relu", ["a"], ["r1"]),
             helper.make_node("GlobalAveragePool", ["r1"], ["p"]), helper.make_node("Flatten", ["p"], ["f"]),
             helper.make_node("MatMul", ["f", weight("w2", CHANNELS, 3)], ["logits"])]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, SIZE, SIZE])],
                              [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 3])], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.fixture(scope="module")
def exe(gpu):
    rng = np.random.default_rng(4)
    inputs = {"x": (5 + rng.standard_normal((STEPS * BATCH, 3, SIZE, SIZE))).astype(np.float32), "labels": rng.integers(0, 3, STEPS * BATCH)}
    return gpu.compile_model(block(), inputs, "--loss=cross_entropy", "--optimizer=sgd", f"--batch={BATCH}", "--precision=bf16",
                             train=["--lr=0.05", f"--steps={STEPS}"])


def test_the_library_reads_channels_last(gpu, exe):
    """Of images of 8 channels; filters are dense."""
    text = subprocess.run([gpu.gradc, "dump", exe.path, "--stage=schedule"], text=True, capture_output=True, check=True).stdout
    image, strides = rf"= bf16\[{BATCH},{CHANNELS},{SIZE},{SIZE}\] at \d+", rf" by \[{CHANNELS * SIZE * SIZE},1,{CHANNELS * SIZE},{CHANNELS}\]"
    on_cpu, on_gpu = text.split(" for cuda-sm_90:", 1)
    assert len(re.findall(image, on_gpu)) == len(re.findall(image + strides, on_gpu)) > 8
    assert len(re.findall(image, on_cpu)) > 8 and not re.search(image + strides, on_cpu)


@pytest.mark.parametrize("libraries", ["on", "off"])
def test_steps(gpu, exe, tmp_path, libraries):
    trainer, near = gpu.trainer(exe, tmp_path), limit("devices 16 bits")
    (on_gpu, got), (on_cpu, want) = (trainer.result(device, f"--libraries={libraries}", name=device[9:])[:2] for device in (ON_GPU, ON_CPU))
    assert len(on_gpu) == len(on_cpu) == STEPS
    for a, b in zip(on_gpu, on_cpu):
        assert abs(a["loss"] - b["loss"]) <= near * b["loss"]
        assert abs(a["grad_norm"] - b["grad_norm"]) <= near * b["grad_norm"]
    got, want = ({t.name: numpy_helper.to_array(t) for t in onnx.load_from_string(m).graph.initializer} for m in (got, want))
    for name in want:
        assert np.linalg.norm(got[name] - want[name]) <= near * np.linalg.norm(want[name]), name
