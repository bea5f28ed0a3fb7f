"""A model whose loop ends by its data, and whose branch is chosen by them: s = tanh(s W) while the sum of squares of s is above 1, at most 12
times; then s W where s's sum is above 0, else -s; times V."""
import numpy as np
from onnx import TensorProto, helper, numpy_helper

ROWS, BATCH, STEPS, LR, TRIPS = 64, 8, 10, 0.05, 12


def data():
    random = np.random.default_rng(0)
    w, v = random.standard_normal((4, 4)) * 0.6, random.standard_normal((4, 1))
    x, y = random.standard_normal((ROWS, 4)), random.standard_normal((ROWS, 1))
    return {name: a.astype(np.float32) for name, a in {"W": w, "V": v, "x": x, "y": y}.items()}


def value(name, *shape, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def model():
    d, node, graph = data(), helper.make_node, helper.make_graph
    step = graph([node("MatMul", ["s", "W"], ["m"]), node("Tanh", ["m"], ["next"]), node("Mul", ["next", "next"], ["squares"]),
                  node("ReduceSum", ["squares"], ["size"], keepdims=0), node("Greater", ["size", "limit"], ["again"])], "step",
                 [value("i", kind=TensorProto.INT64), value("go", kind=TensorProto.BOOL), value("s", "n", 4)],
                 [value("again", kind=TensorProto.BOOL), value("next", "n", 4)])
    yes = graph([node("MatMul", ["last", "W"], ["product"])], "yes", [], [value("product", "n", 4)])
    no = graph([node("Neg", ["last"], ["negative"])], "no", [], [value("negative", "n", 4)])
    nodes = [node("Loop", ["trips", "", "x"], ["last"], body=step, name="loop"), node("ReduceSum", ["last"], ["sum"], keepdims=0),
             node("Greater", ["sum", "zero"], ["positive"]), node("If", ["positive"], ["chosen"], then_branch=yes, else_branch=no, name="if"),
             node("MatMul", ["chosen", "V"], ["out"])]
    constants = {"W": d["W"], "V": d["V"], "trips": np.int64(TRIPS), "limit": np.float32(1), "zero": np.float32(0)}
    main = graph(nodes, "while", [value("x", "n", 4)], [value("out", "n", 1)], [numpy_helper.from_array(a, k) for k, a in constants.items()])
    return helper.make_model(main, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
