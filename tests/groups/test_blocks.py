"""Attention of several blocks of queries and keys, whose sizes no block divides: with groups and without, in f64."""
import numpy as np
import pytest
from blocked_attention import HEADS, MASKS, SIZES, TRAINED, VALUES, write
from running import same_gradients


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("queries, keys", SIZES)
def test_gradients_of_several_blocks(run, tmp_path, queries, keys, mask):
    write(tmp_path / "model.onnx", queries, keys, mask)
    np.save(tmp_path / "x.npy", np.ones((1, 1, 1, 1), np.float32))
    np.save(tmp_path / "labels.npy", np.random.default_rng(1).standard_normal((2, HEADS, queries, VALUES)).astype(np.float32))
    same_gradients(run, tmp_path, {"q", "k", "v"} | TRAINED.get(mask, set()))


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("mask", MASKS)
def test_no_scores_are_stored(run, tmp_path, mask, precision):
    """A table of all queries and keys may be stored, without the batch."""
    write(tmp_path / "model.onnx", 67, 194, mask)
    text = run("dump", "model.onnx", "--loss=mse", "--optimizer=sgd", f"--precision={precision}", "--stage=memory", "--target=cpu:x86-64-v4").stdout
    stored = [line for line in text.splitlines() if (" = launch " in line or " = loop " in line) and "[2,2,67,194]" in line]
    assert not stored and "kernel @attention_" in text and "kernel @attention_grad" in text
