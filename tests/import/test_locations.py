"""A node of the IR is called after the ONNX node that it comes from, not after what that reads."""
import os
import sys

import numpy as np
import onnx

sys.path.insert(0, os.path.dirname(__file__))
from make_malformed import model, node, tensor, value  # noqa: E402


def locations(text):
    """op -> location of the nodes in a dump."""
    lines = [line.split() for line in text.splitlines() if line.lstrip().startswith("%")]
    return {words[2]: words[-1].strip('"') for words in lines}


def test_weights_do_not_name_their_readers(run, tmp_path):
    w = np.arange(12, dtype=np.float32).reshape(3, 4)
    m = model([node("Gemm", ["x", "w", "b"], ["h"], name="dense", alpha=0.5, beta=3.0),
               node("Gather", ["t", "i"], ["g"], name="table"),
               node("Add", ["h", "g"], name="sum")],
              outputs=[value("y", (2, 4))],
              initializers=[tensor("w", w), tensor("b", w[0]), tensor("t", w),
                            tensor("i", np.int64([2, 0]))])
    onnx.save(m, tmp_path / "model.onnx")
    found = locations(run("dump", "model.onnx", "--stage=import").stdout)
    assert found["dot"] == found["mul"] == "dense"
    assert found["gather"] == "table"
    assert found["add"] == "sum"
