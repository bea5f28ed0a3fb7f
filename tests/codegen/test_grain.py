"""How finely kernels are parted among threads: a product that a core does in some microseconds is not worth a second one."""
import re

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper


@pytest.mark.parametrize("rows, inner, columns, parted", [(32, 64, 128, False), (8, 128, 32, False), (256, 512, 512, True)])
def test_products(run, tmp_path, rows, inner, columns, parted):
    weight = np.zeros((inner, columns), np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "product")], "grain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", inner])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", columns])],
        [numpy_helper.from_array(weight, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    run("compile", tmp_path / "m.onnx", "-o", tmp_path / "train", f"--batch={rows}", "--loss=cross_entropy")
    text = run("dump", tmp_path / "train", "--stage=schedule").stdout
    flops = 2 * rows * inner * columns
    found = re.findall(rf"kernel \w+ \([^)]*\): (\d+) iterations, grain (\d+), {flops} flops", text)
    assert len(found) >= 2, text  # forward and the weight's gradient
    for iterations, grain in found:
        assert (int(iterations) >= 2 * int(grain)) == parted, text
