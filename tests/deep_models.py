"""Large ONNX graphs: a perceptron of many layers, many random elementwise nodes, and many residual blocks.

usage: deep_models.py FOLDER [LAYERS [NODES [BLOCKS]]]     writes layers.onnx, nodes.onnx and blocks.onnx
"""
import pathlib
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH = 16


def save(path, nodes, weights, output):
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", WIDTH])
             for name in ("x", output)]
    graph = helper.make_graph(nodes, path.stem, ports[:1], ports[1:],
                              [numpy_helper.from_array(a.astype(np.float32), name)
                               for name, a in weights.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
              path)
    return path


def layers(path, n):
    """n times Gemm and Relu."""
    random = np.random.default_rng(0)
    nodes, weights, x = [], {}, "x"
    for i in range(n):
        weights[f"l{i}.weight"] = random.standard_normal((WIDTH, WIDTH)) * 0.3
        weights[f"l{i}.bias"] = np.zeros(WIDTH)
        nodes += [helper.make_node("Gemm", [x, f"l{i}.weight", f"l{i}.bias"], [f"g{i}"],
                                   name=f"/l{i}/Gemm", transB=1),
                  helper.make_node("Relu", [f"g{i}"], [f"r{i}"], name=f"/l{i}/Relu")]
        x = f"r{i}"
    return save(path, nodes, weights, x)


def nodes(path, n):
    """n elementwise nodes, each reading some of the 20 before it, or a weight."""
    random = np.random.default_rng(0)
    weights = {f"w{i}": random.standard_normal(WIDTH) for i in range(50)}
    values, graph = ["x"], []

    def recent():
        return values[-1 - int(random.integers(0, min(len(values), 20)))]

    for i in range(n):
        kind = random.choice(["Add", "Mul", "Sub", "Tanh", "Sigmoid", "Relu"])
        operands = [recent()]
        if kind in ("Add", "Mul", "Sub"):
            operands.append(f"w{random.integers(0, 50)}" if random.random() < 0.3 else recent())
        graph.append(helper.make_node(kind, operands, [f"v{i}"], name=f"n{i}"))
        values.append(f"v{i}")
    return save(path, graph, weights, values[-1])


def blocks(path, n):
    """n residual blocks of seven nodes: x + MatMul(Relu(MatMul(LayerNormalization(x)) + a)) + b."""
    random = np.random.default_rng(0)
    nodes, weights, x = [], {}, "x"
    for i in range(n):
        for k in "12":
            weights[f"b{i}.fc{k}.weight"] = random.standard_normal((WIDTH, WIDTH)) * 0.1
            weights[f"b{i}.fc{k}.bias"] = np.zeros(WIDTH)
        weights[f"b{i}.norm.weight"], weights[f"b{i}.norm.bias"] = np.ones(WIDTH), np.zeros(WIDTH)
        for op, inputs, output in [
                ("LayerNormalization", [x, f"b{i}.norm.weight", f"b{i}.norm.bias"], "n"), ("MatMul", ["n", f"b{i}.fc1.weight"], "h"),
                ("Add", ["h", f"b{i}.fc1.bias"], "s"), ("Relu", ["s"], "r"), ("MatMul", ["r", f"b{i}.fc2.weight"], "g"),
                ("Add", ["g", f"b{i}.fc2.bias"], "t"), ("Add", [x, "t"], "x")]:
            own = [f"{name}{i}" if len(name) == 1 and name not in x else name for name in inputs]
            nodes.append(helper.make_node(op, own, [f"{output}{i}"], name=f"/b{i}/{op}_{output}"))
        x = f"x{i}"
    return save(path, nodes, weights, x)


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    layers(folder / "layers.onnx", int(sys.argv[2]) if len(sys.argv) > 2 else 1000)
    nodes(folder / "nodes.onnx", int(sys.argv[3]) if len(sys.argv) > 3 else 20000)
    blocks(folder / "blocks.onnx", int(sys.argv[4]) if len(sys.argv) > 4 else 1000)
