"""Attention without a kernel, for some queries at a time: gradients as without chunks, and no buffer of queries times keys."""
import json

import numpy as np
import pytest
from chunked import CASES, HEADS, LENGTH, write
from running import same_gradients
from test_stored_scores import values

CHUNKS = "--pass-option=ungroup.attention_queries="
SHOWN = ["--loss=mse", "--optimizer=adamw", "--stage=memory", "--target=cpu:x86-64-v4"]


def is_matrix(shape):
    """Has a value an element for each query and key of all samples and heads?"""
    return shape.count(LENGTH) > 1 and np.prod(shape) > HEADS * LENGTH * LENGTH


# queries of a chunk: a rest of 2, of 18, one chunk
@pytest.mark.parametrize("name, queries", [(name, 5) for name in CASES] + [(name, n) for name in ("heads_mixed", "disentangled") for n in (19, LENGTH)])
def test_chunks_change_nothing(run, tmp_path, name, queries):
    trained = write(tmp_path, name)
    same_gradients(run, tmp_path, trained, options=[f"{CHUNKS}{queries}"])


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("name", CASES)
def test_no_scores_are_stored(run, tmp_path, name, precision):
    """A table of all queries and keys may be, without the batch."""
    write(tmp_path, name)
    shown = run("dump", "model.onnx", *SHOWN, f"--precision={precision}", CHUNKS + "5")
    found = list(values(shown.stdout))
    assert {p for p, _ in found} >= {"accumulate", "eval", "update"} and "looks like" not in shown.stderr
    assert not [(p, shape) for p, shape in found if is_matrix(shape)]


@pytest.mark.parametrize("name", ["heads_mixed", "relative_shift"])
def test_stored_scores_are_found(run, tmp_path, name):
    """Few queries are one chunk, says the target's table."""
    write(tmp_path, name)
    assert any(is_matrix(shape) for _, shape in values(run("dump", "model.onnx", *SHOWN).stdout))


def test_a_target_without_chunks_says_so(run, tmp_path):
    write(tmp_path, "heads_mixed")
    note = run("dump", "model.onnx", "--loss=mse", "--optimizer=adamw", "--stage=memory", "--target=cuda:sm_80").stderr
    assert note.count("is a chunked_attention, which target") == 1


@pytest.mark.parametrize("name", ["disentangled", "heads_mixed"])
def test_export(run, tmp_path, name):
    """ONNX has nodes, not groups."""
    write(tmp_path, name)
    run("dump", "model.onnx", "--loss=mse", "--stage=train", "--format=onnx", "-o", "train.onnx")


@pytest.mark.parametrize("name", ["heads_mixed", "positions_mixed"])
def test_weights_that_are_outputs(run, tmp_path, name):
    """The user reads the weights, so they are stored; a note says why."""
    write(tmp_path, name, stores_weights=True)
    shown = run("dump", "model.onnx", "--after=recognize")
    assert "chunked_attention" not in shown.stdout and "looks like attention, but" in shown.stderr


@pytest.mark.parametrize("name, precision, cancels", [
    ("heads_mixed", "bf16", True), ("heads_mixed", "f32", False), ("positions_mixed", "bf16", False), ("two_products", "f16", True),
    ("relative_shift", "bf16", True), ("disentangled", "bf16", False)])
def test_errors_are_no_larger(run, tmp_path, name, precision, cancels):
    """At most twice the error of the nodes without groups in the same precision, against f64. Chunks' sums may cancel."""
    write(tmp_path, name, cancels=cancels)

    def gradients(where, *options):
        run("grad", "model.onnx", "--loss=mse", "--input=x=x.npy", "--input=labels=labels.npy", "--engine=compiled", "--train=*",
            f"--output-dir={where}", *options)
        files = json.loads((tmp_path / where / "names.json").read_text())
        return {n: np.load(tmp_path / where / entry["file"]).astype(float) for n, entry in files.items()}
    exact = gradients("f64", "--precision=f64", "--disable=recognize")
    nodes = gradients("nodes", f"--precision={precision}", "--disable=recognize")
    chunks = gradients("chunks", f"--precision={precision}", CHUNKS + "5")
    largest = max(np.linalg.norm(x) for x in exact.values())
    for n, want in exact.items():
        if np.linalg.norm(want) < 1e-9 * largest:
            continue  # 0 but for rounding, as the gradient of what is added to all keys
        whole, parts = (np.linalg.norm(x[n] - want) / np.linalg.norm(want) for x in (nodes, chunks))
        assert parts <= max(2 * whole, 5e-7), (n, whole, parts)
