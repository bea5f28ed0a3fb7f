"""Losses that the graph computes, of steps and evaluations whose micro-batches have different numbers of targets.
Right values are numpy's in f64, of all rows of a step together."""
import re

import numpy as np
import onnx
import pytest
import reference
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64
WIDTH, CLASSES, IGNORED = 5, 7, -100
RANDOM = np.random.default_rng(0)
W = RANDOM.standard_normal((WIDTH, CLASSES)).astype(np.float32)
X = RANDOM.standard_normal((16, WIDTH)).astype(np.float32)
LABELS = RANDOM.integers(0, CLASSES, 16)
LABELS[[1, 2, 3, 9, 12, 13, 14, 15]] = IGNORED  # of four micro-batches: 1, 4, 3 and 0 count


def node(op, inputs, output, **attributes):
    return helper.make_node(op, inputs.split(), output.split(), **attributes)


COUNT = [node("Equal", "lab ignored", "eq"), node("Not", "eq", "ne"), node("Cast", "ne", "counts", to=FLOAT),
         node("ReduceSum", "counts", "n", keepdims=0)]
SUM = [node("SoftmaxCrossEntropyLoss", "logits lab", "each", ignore_index=IGNORED, reduction="none"), node("ReduceSum", "each", "sum", keepdims=0)]
FORMS = {  # the mean over the labels that count
    "operator": [node("SoftmaxCrossEntropyLoss", "logits lab", "loss", ignore_index=IGNORED, reduction="mean")],
    "division": [*SUM, node("Div", "sum n", "loss")],
    "at least 1": [*SUM, node("Clip", "n one", "m"), node("Div", "sum m", "loss")],
    "mask": [node("Where", "eq zero lab", "class"), node("SoftmaxCrossEntropyLoss", "logits class", "all", reduction="none"),
             node("Mul", "all counts", "each"), node("ReduceSum", "each", "sum", keepdims=0), node("Div", "sum n", "loss")],
    "scaled": [*SUM, node("Neg", "sum", "minus"), node("Div", "minus n", "q"), node("Mul", "q two", "p"), node("Neg", "p", "loss")],
}
UNEVEN = {  # what no count makes even
    "two means": [*SUM, node("Div", "sum n", "q"), node("ReduceMean", "logits", "r", keepdims=0), node("Add", "q r", "loss")],
    "divided before the sum": [*SUM[:1], node("Div", "each n", "d"), node("ReduceSum", "d", "loss", keepdims=0)],
    "divided by what is trained": [*SUM, node("Exp", "logits", "e"), node("ReduceSum", "e", "a", keepdims=0), node("Div", "sum a", "loss")],
}


def save(path, nodes):
    ports = [[helper.make_tensor_value_info(n, t, s) for n, t, s in l] for l in
             ([("x", FLOAT, ["batch", WIDTH]), ("lab", INT, ["batch"])],
              [("loss", FLOAT, []), ("n", FLOAT, []), ("logits", FLOAT, ["batch", CLASSES])])]
    weights = {"w": W, "ignored": np.array(IGNORED), "zero": np.array(0), "one": np.float32(1), "two": np.float32(2), "last": np.array([1])}
    graph = helper.make_graph([node("MatMul", "x w", "logits"), *COUNT, *nodes], "g", *ports,
                              [numpy_helper.from_array(np.asarray(v), n) for n, v in weights.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def mean_and_gradient(w, rows):
    keep = LABELS[rows] != IGNORED
    x, at = X[rows][keep].astype(float), LABELS[rows][keep]
    z = x @ w
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    return -np.log(p[np.arange(len(at)), at]).mean(), x.T @ (p - np.eye(CLASSES)[at]) / len(at)


def steps(scale=1, n=4):
    """SGD over 8 rows a step."""
    w, losses = W.astype(float), []
    for i in range(n):
        loss, gradient = mean_and_gradient(w, slice(8 * (i % 2), 8 * (i % 2) + 8))
        losses.append(scale * loss)
        w -= 0.5 * scale * gradient
    return losses


@pytest.fixture
def data(tmp_path):
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "lab.npy", LABELS)
    return ["--data=x=x.npy", "--data=lab=lab.npy", "--shuffle=off", "--progress=off", "--log=log.jsonl"]


def losses(folder):
    return [line["loss"] for line in reference.log_lines(folder / "log.jsonl") if "lr" in line]


def evaluated(done):
    return float(re.search(r"eval loss [\d.]+ -> ([\d.]+)", done.stdout).group(1))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("count", ["", ",count=n"])
def test_the_mean_is_that_of_the_step(run, tmp_path, data, form, count):
    save(tmp_path / "m.onnx", FORMS[form])
    run("compile", "m.onnx", "-o", "train", "--batch=4", f"--loss=output:loss{count}", "--optimizer=sgd", "--precision=f64")
    done = run(tmp_path / "train", *data, "--steps=4", "--lr=0.5", "--accumulate=2")
    assert np.allclose(losses(tmp_path), steps(2 if form == "scaled" else 1), rtol=1e-10)
    done = run(tmp_path / "train", *data, "--steps=0", "--eval-data=x=x.npy", "--eval-data=lab=lab.npy")
    assert np.isclose(evaluated(done), (2 if form == "scaled" else 1) * mean_and_gradient(W.astype(float), slice(16))[0], rtol=1e-8)


def test_a_step_without_targets_changes_nothing(run, tmp_path, data):
    save(tmp_path / "m.onnx", FORMS["operator"])
    np.save(tmp_path / "lab.npy", np.where(np.arange(16) < 8, IGNORED, LABELS))
    run("compile", "m.onnx", "-o", "train", "--batch=4", "--loss=output:loss", "--optimizer=sgd", "--precision=f64")
    done = run(tmp_path / "train", *data, "--steps=2", "--lr=0.5", "--accumulate=2")
    assert "step 1: every target is ignored: no update" in done.stderr
    assert np.isclose(losses(tmp_path)[1], mean_and_gradient(W.astype(float), slice(8, 16))[0], rtol=1e-10)


@pytest.mark.parametrize("form", UNEVEN)
def test_means_of_means_are_refused(run, tmp_path, data, form):
    save(tmp_path / "m.onnx", UNEVEN[form])
    np.save(tmp_path / "lab.npy", np.where(LABELS == IGNORED, 0, LABELS))
    run("compile", "m.onnx", "-o", "train", "--batch=4", "--loss=output:loss", "--optimizer=sgd", "--precision=f64")
    refused = run(tmp_path / "train", *data, "--steps=1", "--accumulate=2", exit=2).stderr
    assert "a step of 2 micro-batches: the model's loss divides by a number that the data of each decide" in refused and "count=" in refused
    done = run(tmp_path / "train", *data, "--steps=2", "--lr=0", "--eval-data=x=x.npy", "--eval-data=lab=lab.npy")
    assert "warning: the evaluation loss is the mean of the losses of 4 batches" in done.stderr
    apart = losses(tmp_path)
    run("compile", "m.onnx", "-o", "train", "--batch=4", "--loss=output:loss,count=1", "--optimizer=sgd", "--precision=f64")
    done = run(tmp_path / "train", *data, "--steps=1", "--lr=0", "--accumulate=2", "--eval-data=x=x.npy", "--eval-data=lab=lab.npy")
    assert np.allclose(losses(tmp_path), [np.mean(apart)], rtol=1e-12) and "mean of" not in done.stderr


def test_means_over_all_elements_add_up(run, tmp_path, data):
    """What divides by a constant is even; so is a norm, whose divisor is each row's own."""
    save(tmp_path / "m.onnx", [node("ReduceMax", "logits", "top", axes=[1], keepdims=1), node("Div", "logits top", "q"),
                               node("Mul", "q q", "s"), node("ReduceMean", "s", "loss", keepdims=0)])
    run("compile", "m.onnx", "-o", "train", "--batch=4", "--loss=output:loss", "--optimizer=sgd", "--precision=f64")
    run(tmp_path / "train", *data, "--steps=1", "--lr=0", "--accumulate=2")
    z = X[:8].astype(float) @ W
    assert np.allclose(losses(tmp_path), [((z / z.max(1, keepdims=True)) ** 2).mean()], rtol=1e-12)


def test_what_an_evaluation_leaves_out_is_said(run, tmp_path, data):
    save(tmp_path / "m.onnx", FORMS["operator"])
    run("compile", "m.onnx", "-o", "train", "--batch=8", "--loss=output:loss", "--precision=f64")
    for n in (12, 8, 7):
        np.save(tmp_path / "ex.npy", X[:n])
        np.save(tmp_path / "elab.npy", LABELS[:n])
        done = run(tmp_path / "train", *data, "--steps=2", "--eval-data=x=ex.npy", "--eval-data=lab=elab.npy", "--eval-every=1",
                   "--lr-schedule=plateau,patience=0", exit=6 if n == 7 else 0)
        if n == 7:
            assert "7 rows do not fill a batch of 8, and the batch cannot be padded: the model computes its own loss" in done.stderr
            continue
        logged = [line for line in reference.log_lines(tmp_path / "log.jsonl") if "eval_loss" in line]
        assert len(logged) == 3 and {(line["eval_rows"], line.get("eval_all_rows")) for line in logged} == {(8, 12 if n == 12 else None)}
        assert (", 8 of 12 rows (the model computes its own loss)\n" in done.stdout) == (n == 12)


@pytest.mark.parametrize("batch", [1, 4])
def test_a_rows_own_divisor_is_not_the_steps(run, tmp_path, data, batch):
    """The mean over rows of each row's own quotient: micro-batches of one row, too, count the same."""
    save(tmp_path / "m.onnx", [node("ReduceSum", "x last", "s", keepdims=0), node("Mul", "s s", "m"), node("ReduceSum", "logits last", "l", keepdims=0),
                               node("Div", "l m", "q"), node("ReduceMean", "q", "loss", keepdims=0)])
    run("compile", "m.onnx", "-o", "train", f"--batch={batch}", "--loss=output:loss", "--optimizer=sgd", "--precision=f64")
    run(tmp_path / "train", *data, "--steps=1", "--lr=0", f"--accumulate={8 // batch}")
    x = X[:8].astype(float)
    assert np.allclose(losses(tmp_path), [((x @ W).sum(1) / x.sum(1) ** 2).mean()], rtol=1e-10)
