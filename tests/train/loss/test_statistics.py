"""Batch norms that are frozen normalize by their running statistics and keep them, unless --statistics=update."""
import json

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

RANDOM = np.random.default_rng(0)
BN = {"bn.weight": 1 + RANDOM.random(3), "bn.bias": RANDOM.random(3), "bn.mean": RANDOM.random(3), "bn.var": 1 + RANDOM.random(3)}


def write(path, training):
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]),
             helper.make_node("BatchNormalization", ["h", *BN], ["y", *(["m", "v"] if training else [])], "norm",
                              training_mode=training, momentum=0.5)]
    ports = [helper.make_tensor_value_info(n, 1, ["batch", 3]) for n in "xy"]
    weights = [numpy_helper.from_array(v.astype(np.float32), n) for n, v in {"w": np.eye(3), **BN}.items()]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


@pytest.mark.parametrize("training, restore", [(1, []), (0, ["--train-mode=restore"])])
@pytest.mark.parametrize("options, kept", [
    (["--freeze=bn.*"], True), (["--freeze=bn.*", "--statistics=keep"], True), (["--freeze=*", "--train=w"], True),
    (["--freeze=bn.*", "--statistics=update"], False), (["--freeze=bn.weight"], False), ([], False),
    (["--freeze=*", "--train=*"], False), (["--statistics=keep"], False),
])
def test_frozen_statistics_are_kept(run, tmp_path, training, restore, options, kept):
    write(tmp_path / "model.onnx", training)
    x, y = RANDOM.standard_normal((2, 8, 3)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    said = run("compile", "model.onnx", "-o", "train", "--batch=8", "--loss=mse", "--optimizer=sgd", *restore, *options).stdout
    assert ('batchnorm: "norm" is frozen: it normalizes by its running statistics' in said) == kept
    run(tmp_path / "train", "--data", "x=x.npy", "--data", "labels=y.npy", "--steps=2", "--lr=0", "--log=log.jsonl", "--export=out.onnx",
        "--shuffle=off")
    after = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "out.onnx").graph.initializer}
    assert np.array_equal(after["bn.mean"], BN["bn.mean"].astype(np.float32)) == kept
    assert np.array_equal(after["bn.var"], BN["bn.var"].astype(np.float32)) == kept
    mean, var = (BN["bn.mean"], BN["bn.var"]) if kept else (x.mean(0), x.var(0))
    want = (((x - mean) / np.sqrt(var + 1e-5) * BN["bn.weight"] + BN["bn.bias"] - y) ** 2).mean()
    losses = [json.loads(line).get("loss") for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    losses = [v for v in losses if v is not None]
    assert np.allclose(losses[0], want, rtol=1e-5)


def write_twice(path, form, opset):
    """norm(a) - norm(b), one norm. Its nodes read the same statistics, or the second those that the first gives, or one each that are tied."""
    mode = {"training_mode": 1} if opset >= 14 else {}
    second = {"shared": ["bn.mean", "bn.var"], "chained": ["m", "v"], "tied": ["bn.mean.1", "bn.var.1"]}[form]
    outputs = (["m", "v"], ["m2", "v2"]) if opset >= 14 else (["m", "v", "sm", "sv"], ["m2", "v2", "sm2", "sv2"])
    nodes = [helper.make_node("Identity", [n], [f"{n}.1"]) for n in ("bn.mean", "bn.var") if form == "tied"]
    nodes += [helper.make_node("Gemm", [x, "w"], [f"h{x}"]) for x in "ab"]
    nodes += [helper.make_node("BatchNormalization", ["ha", *BN], ["ya", *outputs[0]], momentum=0.5, **mode),
              helper.make_node("BatchNormalization", ["hb", "bn.weight", "bn.bias", *second], ["yb", *outputs[1]], momentum=0.75, **mode),
              helper.make_node("Sub", ["ya", "yb"], ["y"])]
    ports = [helper.make_tensor_value_info(n, 1, ["batch", 3]) for n in "aby"]
    weights = [numpy_helper.from_array(v.astype(np.float32), n) for n, v in {"w": np.eye(3), **BN}.items()]
    graph = helper.make_graph(nodes, "g", ports[:2], ports[2:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9), path)


@pytest.mark.parametrize("form, opset", [("shared", 17), ("shared", 13), ("chained", 17), ("tied", 17)])
def test_a_norm_that_is_called_twice_moves_its_statistics_twice(run, tmp_path, form, opset):
    """In each micro-batch in turn; what evaluates and what is exported reads the last."""
    write_twice(tmp_path / "model.onnx", form, opset)
    random = np.random.default_rng(3)
    a, b, y = random.standard_normal((3, 8, 3)).astype(np.float32) + np.float32([[[0]], [[5]], [[0]]])
    for name, value in {"a": a, "b": b, "y": y}.items():
        np.save(tmp_path / f"{name}.npy", value)
    data = [f"--{kind}={name}={file}.npy" for kind in ("data", "eval-data") for name, file in (("a", "a"), ("b", "b"), ("labels", "y"))]
    run("compile", "model.onnx", "-o", "train", "--batch=4", "--loss=mse", "--optimizer=sgd")
    printed = run(tmp_path / "train", *data, "--steps=1", "--accumulate=2", "--lr=0", "--export=out.onnx", "--shuffle=off").stdout
    mean, var = BN["bn.mean"], BN["bn.var"]
    for part in (slice(0, 4), slice(4, 8)):
        for x, keep in ((a, 0.5), (b, 0.75)):
            mean, var = keep * mean + (1 - keep) * x[part].mean(0), keep * var + (1 - keep) * x[part].var(0)
    after = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "out.onnx").graph.initializer}
    assert np.allclose(after["bn.mean"], mean, rtol=1e-5) and np.allclose(after["bn.var"], var, rtol=1e-5)
    evaluated = ((a - b) / np.sqrt(var + 1e-5) * BN["bn.weight"] - y).astype(np.float64)
    assert np.allclose(float(printed.split("-> ")[1].split()[0]), (evaluated**2).mean(), rtol=1e-5)
