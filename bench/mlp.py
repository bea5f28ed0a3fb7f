"""mlp.py FOLDER: mlp.onnx, 784-1024-1024-10 with ReLU, open batch and random weights, and x.npy and labels.npy, 20 batches
of 256 rows for it."""
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTHS, ROWS = (784, 1024, 1024, 10), 20 * 256


def main(folder):
    random = np.random.default_rng(0)
    nodes, weights, x = [], [], "x"
    for i, (inputs, outputs) in enumerate(zip(WIDTHS, WIDTHS[1:])):
        weight = random.standard_normal((outputs, inputs)) / np.sqrt(inputs)
        for name, value in (f"{i}.weight", weight), (f"{i}.bias", np.zeros(outputs)):
            weights.append(numpy_helper.from_array(value.astype(np.float32), name))
        if i:
            nodes.append(helper.make_node("Relu", [x], [x := f"relu{i}"]))
        nodes.append(helper.make_node("Gemm", [x, f"{i}.weight", f"{i}.bias"], [x := f"gemm{i}"], transB=1))
    graph = helper.make_graph(nodes, "mlp",
                              [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", WIDTHS[0]])],
                              [helper.make_tensor_value_info(x, TensorProto.FLOAT, ["batch", WIDTHS[-1]])], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "mlp.onnx")
    np.save(folder / "x.npy", random.standard_normal((ROWS, WIDTHS[0])).astype(np.float32))
    np.save(folder / "labels.npy", random.integers(0, WIDTHS[-1], ROWS))


main(Path(sys.argv[1]))
