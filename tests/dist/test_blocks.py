"""Loops and branches whose weights ranks hold in parts: what one gathers is there for all of it, and no rank waits in another's branch."""
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).resolve().parents[1] / "train")]
from test_ranks import call, openmpi  # noqa: E402, F401  openmpi is a fixture
from test_shard import same  # noqa: E402

WIDTH, ROWS = 68, 4  # a matrix is more than a block of a unit


def value(name, *shape, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def branches():
    """tanh(x W0), of whose rows some ranks' sum is positive: times W1 and W2, else negative; times W3."""
    node = helper.make_node
    yes = helper.make_graph([node("MatMul", ["h", "W1"], ["p"]), node("Tanh", ["p"], ["t"]), node("MatMul", ["t", "W2"], ["q"])], "yes", [],
                            [value("q", ROWS, WIDTH)])
    no = helper.make_graph([node("Neg", ["h"], ["r"])], "no", [], [value("r", ROWS, WIDTH)])
    return [node("MatMul", ["x", "W0"], ["m"]), node("Tanh", ["m"], ["h"]), node("ReduceSum", ["h"], ["s"], keepdims=0),
            node("Greater", ["s", "zero"], ["up"]), node("If", ["up"], ["c"], then_branch=yes, else_branch=no), node("Tanh", ["c"], ["d"]),
            node("MatMul", ["d", "W3"], ["y"])]


def loops():
    """tanh(x W0), six times tanh(tanh(. W1) W2), times W3."""
    node = helper.make_node
    body = helper.make_graph([node("MatMul", ["v", "W1"], ["p"]), node("Tanh", ["p"], ["t"]), node("MatMul", ["t", "W2"], ["q"]), node("Tanh", ["q"], ["w"]),
                              node("Identity", ["go"], ["again"])], "body",
                             [value("i", kind=TensorProto.INT64), value("go", kind=TensorProto.BOOL), value("v", ROWS, WIDTH)],
                             [value("again", kind=TensorProto.BOOL), value("w", ROWS, WIDTH)])
    return [node("MatMul", ["x", "W0"], ["m"]), node("Tanh", ["m"], ["h"]), node("Loop", ["six", "", "h"], ["c"], body=body), node("MatMul", ["c", "W3"], ["y"])]


@pytest.mark.parametrize("nodes, options", [(branches, []), (loops, []), (loops, ["--offload=params,optimizer"])], ids=["branches", "loops", "offload"])
def test_parts_of_what_they_read(openmpi, gradc, tmp_path, nodes, options):  # noqa: F811
    modes = ["zero3"] if options else ["zero3", "zero2"]
    r = np.random.default_rng(0)
    held = {f"W{k}": r.normal(size=(WIDTH, WIDTH)) / 8 for k in range(4)}
    tensors = [numpy_helper.from_array(a.astype("f"), name) for name, a in held.items()]
    tensors += [numpy_helper.from_array(np.float32(0), "zero"), numpy_helper.from_array(np.int64(6), "six")]
    graph = helper.make_graph(nodes(), "g", [value("x", ROWS, WIDTH)], [value("y", ROWS, WIDTH)], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9), tmp_path / "model.onnx")
    for name in ("x", "labels"):
        np.save(tmp_path / f"{name}.npy", r.normal(size=(64, WIDTH)).astype("f"))
    call([gradc, "compile", tmp_path / "model.onnx", "-o", tmp_path / "train", "--loss=mse", "--unit-bytes=1", f"--data-parallel={','.join(modes)},ddp",
          "--max-accumulate=2", *options])
    data = [f"--data=x={tmp_path}/x.npy", f"--data=labels={tmp_path}/labels.npy"]
    for mode in modes:
        same(openmpi, tmp_path / "train", data, tmp_path, mode, 2, 4)
    same(openmpi, tmp_path / "train", data, tmp_path, "zero3", 2, 3, "--poison")
