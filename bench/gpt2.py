"""gpt2.py FOLDER: model.onnx, a GPT-2 of 10 million parameters (6 layers, 384 features, 6 heads, 256 tokens,
256 words) with open batch, and tokens.bin, a stream for it. Weights are random: it is for time only."""
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

LAYERS, WIDTH, HEADS, LENGTH, WORDS = 6, 384, 6, 256, 256


class Graph:
    def __init__(self):
        self.nodes, self.weights = [], []
        self.random = np.random.default_rng(0)

    def weight(self, name, *shape, value=None):
        data = self.random.standard_normal(shape) * 0.02 if value is None else np.full(shape, value)
        self.weights.append(numpy_helper.from_array(data.astype(np.float32), name))
        return name

    def constant(self, name, data):
        if name not in (w.name for w in self.weights):
            self.weights.append(numpy_helper.from_array(np.array(data), name))
        return name

    def add(self, op, *inputs, **attributes):
        name = f"/{len(self.nodes)}/{op}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def linear(self, x, name, inputs, outputs):
        y = self.add("MatMul", x, self.weight(f"{name}.weight", inputs, outputs))
        return self.add("Add", y, self.weight(f"{name}.bias", outputs, value=0))

    def norm(self, x, name):
        return self.add("LayerNormalization", x, self.weight(f"{name}.weight", WIDTH, value=1),
                        self.weight(f"{name}.bias", WIDTH, value=0), axis=-1)

    def attention(self, x, name):
        heads = self.constant("heads", np.array([0, 0, HEADS, WIDTH // HEADS]))
        parts = []
        self.nodes.append(helper.make_node(
            "Split", [self.linear(x, f"{name}.c_attn", WIDTH, 3 * WIDTH)],
            [f"{name}.{p}" for p in "qkv"], name=f"{name}/Split", axis=2, num_outputs=3))
        for part, order in ("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3]):
            parts.append(self.add("Transpose", self.add("Reshape", f"{name}.{part}", heads),
                                  perm=order))
        scale = self.constant("scale", np.float32((WIDTH // HEADS) ** -0.5))
        scores = self.add("Mul", self.add("MatMul", parts[0], parts[1]), scale)
        mask = self.constant("mask", np.tril(np.ones((LENGTH, LENGTH), bool)))
        scores = self.add("Where", mask, scores, self.constant("low", np.float32(-1e9)))
        mixed = self.add("MatMul", self.add("Softmax", scores, axis=-1), parts[2])
        merged = self.add("Reshape", self.add("Transpose", mixed, perm=[0, 2, 1, 3]),
                          self.constant("merged", np.array([0, 0, WIDTH])))
        return self.linear(merged, f"{name}.c_proj", WIDTH, WIDTH)

    def mlp(self, x, name):
        h = self.add("Gelu", self.linear(x, f"{name}.c_fc", WIDTH, 4 * WIDTH), approximate="tanh")
        return self.linear(h, f"{name}.c_proj", 4 * WIDTH, WIDTH)


def gpt2():
    g = Graph()
    x = g.add("Add", g.add("Gather", g.weight("wte", WORDS, WIDTH), "input_ids"),
              g.weight("wpe", LENGTH, WIDTH))
    for i in range(LAYERS):
        x = g.add("Add", x, g.attention(g.norm(x, f"h.{i}.ln_1"), f"h.{i}.attn"))
        x = g.add("Add", x, g.mlp(g.norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp"))
    g.nodes.append(helper.make_node("MatMul", [g.norm(x, "ln_f"), g.weight("head", WIDTH, WORDS)],
                                    ["logits"], name="head"))
    graph = helper.make_graph(
        g.nodes, "gpt2_10m",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", LENGTH])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", LENGTH, WORDS])],
        g.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def main(folder):
    onnx.save(gpt2(), folder / "model.onnx")
    np.random.default_rng(1).integers(0, WORDS, 400 * LENGTH).astype("<u2").tofile(
        folder / "tokens.bin")


main(Path(sys.argv[1]))
