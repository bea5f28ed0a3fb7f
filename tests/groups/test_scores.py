"""Scores of 16 bits are not rounded between the product and the softmax (score_give in codegen/groups/score_tiles.c): with scores of about 40, which bf16
rounds to multiples of 1/4, weights would be wrong by a tenth."""
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save_model

SHAPE = (2, 3, 20, 16)


def model(masked):
    scores = ["s"]
    nodes = [helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]), helper.make_node("MatMul", ["q", "kt"], ["s"])]
    weights = []
    if masked:
        nodes.append(helper.make_node("Where", ["mask", "s", "low"], ["t"]))
        weights += [numpy_helper.from_array(np.tril(np.ones(SHAPE[2:3] * 2, bool)), "mask"), numpy_helper.from_array(np.float32(-1e9), "low")]
        scores = ["t"]
    nodes += [helper.make_node("Softmax", scores, ["p"], axis=-1), helper.make_node("MatMul", ["p", "v"], ["y"])]
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, SHAPE) for n in ("q", "k", "v")]
    return helper.make_model(helper.make_graph(nodes, "g", info, [helper.make_tensor_value_info("y", TensorProto.FLOAT, SHAPE)], weights),
                             opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize("masked", [False, True])
def test_scores_keep_their_digits(run, tmp_path, monkeypatch, masked):
    monkeypatch.chdir(tmp_path)
    save_model(model(masked), "m.onnx")
    rng = np.random.default_rng(2)
    q, k, v = (rng.integers(-24, 25, SHAPE).astype(np.float32) / 8 for _ in range(3))  # numbers of bf16
    for name, x in ("q", q), ("k", k), ("v", v):
        np.save(f"{name}.npy", x)
    assert "fused attention" in run("dump", "m.onnx", "--precision=bf16", "--after=fuse", "--target=cpu").stdout
    run("run", "m.onnx", *(f"--input={n}={n}.npy" for n in "qkv"), "--precision=bf16", "--engine=compiled", "--output-dir=out")
    s = q.astype(np.float64) @ k.transpose(0, 1, 3, 2)
    s = np.where(np.tril(np.ones(s.shape[-2:], bool)), s, -1e9) if masked else s
    p = np.exp(s - s.max(-1, keepdims=True))
    want = p / p.sum(-1, keepdims=True) @ v
    assert np.abs(np.load("out/y.npy") - want).max() <= 0.015 * np.abs(v).max()
