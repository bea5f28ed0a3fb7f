"""Outputs that are not what the loss takes: probabilities where it takes logits, logits where it takes log-probabilities."""
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper


def node(op, inputs, output, **attributes):
    return helper.make_node(op, inputs.split(), output.split(), **attributes)


SOFTMAX = node("Softmax", "z", "p", axis=-1)
SPELLED = [node("Exp", "z", "e"), node("ReduceSum", "e last", "s"), node("Div", "e s", "y")]
ENDS = {
    "softmax": [node("Softmax", "z", "y", axis=-1)],
    "and views": [SOFTMAX, node("Identity", "p", "q"), node("Reshape", "q shape", "y")],
    "spelled out": SPELLED,
    "bounded": [SOFTMAX, node("Clip", "p small", "y")],
    "sigmoid": [node("Sigmoid", "z", "y")],
    "sigmoid spelled out": [node("Neg", "z", "n"), node("Exp", "n", "e"), node("Add", "e one", "d"), node("Div", "one d", "y")],
    "two classes of one": [node("Sigmoid", "z", "p"), node("Sub", "one p", "q"), node("Concat", "q p", "y", axis=1)],
    "log softmax": [node("LogSoftmax", "z", "y", axis=-1)],
    "logarithm": [SOFTMAX, node("Log", "p", "y")],
    "logits": [node("Identity", "z", "y")],
    "layers behind a sigmoid": [node("Sigmoid", "z", "p"), node("MatMul", "p square", "y")],
    "gated": [node("Sigmoid", "z", "p"), node("Mul", "z p", "y")],
    "normalized": [node("ReduceMax", "z", "m", axes=[1]), node("Div", "z m", "y")],
}


@pytest.mark.parametrize("end, loss, says", [
    ("softmax", "cross_entropy", "softmax"), ("and views", "cross_entropy", "softmax"), ("spelled out", "cross_entropy", "softmax"),
    ("bounded", "cross_entropy", "softmax"), ("two classes of one", "cross_entropy", "sigmoid"), ("sigmoid", "bce_with_logits", "sigmoid"),
    ("sigmoid spelled out", "bce_with_logits", "sigmoid"), ("softmax", "nll", "softmax"), ("logits", "nll", "is no logarithm"),
    ("layers behind a sigmoid", "nll", "is no logarithm"),
    ("softmax", "mse", None), ("log softmax", "cross_entropy", None), ("log softmax", "nll", None), ("logarithm", "nll", None),
    ("logits", "cross_entropy", None), ("logits", "bce_with_logits", None), ("layers behind a sigmoid", "cross_entropy", None),
    ("gated", "cross_entropy", None), ("gated", "bce_with_logits", None), ("normalized", "cross_entropy", None),
])
def test_forms(run, tmp_path, end, loss, says):
    width = 8 if end == "two classes of one" else 4
    weights = {"w": np.ones((5, 4), np.float32), "square": np.ones((4, 4), np.float32), "one": np.float32(1), "small": np.float32(1e-7),
               "last": np.array([-1]), "shape": np.array([-1, 4])}
    graph = helper.make_graph([node("MatMul", "x w", "z"), *ENDS[end]], "g",
                              [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 5])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", width])],
                              [numpy_helper.from_array(np.asarray(v), n) for n, v in weights.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    for command in (["check", "m.onnx", "--batch=2"], ["compile", "m.onnx", "-o", "train", "--batch=2"])[:1 if says is None else 2]:
        warned = [line for line in run(*command, f"--loss={loss}").stderr.splitlines() if f"--loss={loss} takes" in line]
        assert len(warned) == (says is not None)
        assert not says or (says in warned[0] and 'output "y"' in warned[0])
