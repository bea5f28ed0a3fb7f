#!/usr/bin/env python3
"""Seeds for fuzz_passes: small models after each pass of several command lines, the passes behind it in the first line.

usage: tests/fuzz/make_pass_seeds.py GRADC FOLDER
"""
import hashlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

RANDOM = np.random.default_rng(0)
N = helper.make_node


def weight(*shape):
    """At most 16 elements, which stand in the text itself."""
    return RANDOM.standard_normal(shape).astype(np.float32)


def norm(n):
    return {"s": weight(n), "bias": weight(n), "mean": weight(n), "var": np.abs(weight(n))}


# name: (nodes from x to y, initializers, shape of x, its type, shape of y)
MODELS = {
    "mlp": ([N("Gemm", ["x", "w", "b"], ["h"]), N("Gelu", ["h"], ["g"]), N("MatMul", ["g", "v"], ["y"])],
            {"w": weight(4, 3), "b": weight(3), "v": weight(3, 2)}, [4], TensorProto.FLOAT, [2]),
    "norm": ([N("MatMul", ["x", "w"], ["h"]), N("BatchNormalization", ["h", *norm(3)], ["n", "m1", "v1"], training_mode=1), N("Dropout", ["n", "ratio", "on"], ["d"]),
              N("LayerNormalization", ["d", "ls", "lb"], ["l"]), N("Softmax", ["l"], ["y"])],
             {"w": weight(4, 3), **norm(3), "ls": weight(3), "lb": weight(3), "ratio": np.float32(0.5), "on": np.array(True)}, [4], TensorProto.FLOAT, [3]),
    "conv": ([N("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], strides=[2, 1]), N("Relu", ["c"], ["r"]), N("MaxPool", ["r"], ["p"], kernel_shape=[2, 2]),
              N("Flatten", ["p"], ["f"]), N("MatMul", ["f", "v"], ["y"])], {"w": weight(2, 1, 3, 2)[:, :, :2, :], "v": weight(12, 1)}, [1, 4, 3], TensorProto.FLOAT, [1]),
    "table": ([N("Gather", ["t", "x"], ["e"]), N("MatMul", ["e", "w"], ["q"]), N("Transpose", ["e"], ["k"], perm=[0, 2, 1]), N("MatMul", ["q", "k"], ["s"]),
               N("Softmax", ["s"], ["a"]), N("MatMul", ["a", "e"], ["h"]), N("Transpose", ["t"], ["tt"], perm=[1, 0]), N("MatMul", ["h", "tt"], ["y"])],
              {"t": weight(5, 3), "w": weight(3, 3)}, [2], TensorProto.INT64, [2, 5]),
    "rnn": ([N("Transpose", ["x"], ["xt"], perm=[1, 0, 2]), N("GRU", ["xt", "w", "r"], ["s", "h"], hidden_size=1), N("Squeeze", ["h", "a"], ["q"]), N("MatMul", ["q", "v"], ["y"])],
            {"w": weight(1, 3, 2), "r": weight(1, 3, 1), "v": weight(1, 2), "a": np.array([0])}, [3, 2], TensorProto.FLOAT, [2]),
    "order": ([N("Mul", ["x", "w"], ["m"]), N("TopK", ["m", "k"], ["t", "i"]), N("CumSum", ["t", "a"], ["c"]), N("ScatterElements", ["m", "i", "c"], ["y"], axis=1, reduction="add")],
              {"w": weight(4), "k": np.array([2]), "a": np.array(1)}, [4], TensorProto.FLOAT, [4]),
}
LINES = [["--optimizer=adamw"], ["--optimizer=sgd", "--precision=bf16"], ["--optimizer=adamw8bit", "--ema=0.9"], ["--optimizer=lion", "--precision=f16", "--unit-bytes=1"],
         ["--optimizer=momentum", "--target=cuda:sm_90a", "--precision=tf32"], ["--optimizer=adam", "--lora=*,rank=1"], ["--optimizer=sgd", "--quantize=w8a8"],
         ["--optimizer=adamw", "--target=cpu:x86-64-v3,cpu:x86-64-v4", "--data-parallel=ddp,zero1,zero3"]]


def write(folder, name):
    nodes, weights, shape, kind, result = MODELS[name]
    ports = [helper.make_tensor_value_info("x", kind, ["batch", *shape]), helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", *result])]
    graph = helper.make_graph(nodes, name, ports[:1], ports[1:], [numpy_helper.from_array(v, k) for k, v in weights.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), folder / f"{name}.onnx")


def main():
    gradc, out = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    n = 0
    with tempfile.TemporaryDirectory() as scratch:
        for name in MODELS:
            write(Path(scratch), name)
            for i, line in enumerate(LINES):
                dumps = Path(scratch) / f"{name}-{i}"
                words = [gradc, "dump", f"{name}.onnx", "--batch=2", f"--loss={'cross_entropy' if name == 'table' else 'mse'}", *line, "--after=events",
                         "--dump-after=all", f"--dump-dir={dumps}"]
                done = subprocess.run(words, cwd=scratch, capture_output=True, text=True)
                if done.returncode:
                    print(f"{name} {' '.join(line)}: {done.stderr.strip()}", file=sys.stderr)
                texts = sorted(dumps.glob("*.gir"))
                passes = [re.sub(r"^\d+-", "", t.stem) for t in texts]
                for k, t in enumerate(texts):
                    seed = " ".join(passes[k + 1:k + 3] or passes[:2]).encode() + b"\n" + t.read_bytes()
                    (out / hashlib.sha1(seed).hexdigest()).write_bytes(seed)
                    n += 1
    print(f"{n} seeds")


main()
