"""The word eval: metrics are scikit-learn's, whatever the batch and whatever the layout of outputs and labels; what it refuses."""
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import reference
from onnx import TensorProto, helper, numpy_helper

CASES = json.loads((Path(__file__).resolve().parents[2] / "references/metrics.json").read_text())["cases"]


def write_identity(path, shape, dtype=np.float32):
    """A model whose outputs are its inputs x times a weight of ones."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph([helper.make_node("Mul", ["x", "w"], ["y"])], "identity",
                              [helper.make_tensor_value_info("x", kind, ["batch", *shape])],
                              [helper.make_tensor_value_info("y", kind, ["batch", *shape])],
                              [numpy_helper.from_array(np.ones(shape, dtype), "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.fixture
def identity(run, tmp_path):
    """identity(OUTPUTS, LABELS, LOSS, COMPILE OPTION...): an executable whose outputs are the rows of x.npy; labels.npy has the labels."""

    def make(outputs, labels, loss, *options, batch=8):
        outputs, labels = np.asarray(outputs, np.float32), np.asarray(labels)
        if loss in ("cross_entropy", "nll"):
            labels = labels.astype(np.int64)
            options = (*options, "--loss", f"{loss},axis={1 if labels.shape[1:] == outputs.shape[2:] else outputs.ndim - 1}")
        else:
            labels = labels.astype(np.float32)
            options = (*options, "--loss", loss)
        write_identity(tmp_path / "model.onnx", outputs.shape[1:])
        run("compile", "model.onnx", "-o", "train", f"--batch={batch}", "--train=w", *options)
        np.save(tmp_path / "x.npy", outputs)
        np.save(tmp_path / "labels.npy", labels)
        return tmp_path / "train"

    return make


DATA = ("--eval-data=x=x.npy", "--eval-data=labels=labels.npy")


def evaluate(run, exe, *options, exit=0):
    return json.loads(run(exe, "eval", *DATA, "--json", *options, exit=exit).stdout)


def check(got, case, tolerance, of_loss):
    """of_loss: for metrics of the loss's sum, which the device computes in the model's type."""
    undetermined = {"auc"} if case["name"] == "one class" else set()
    assert set(got["metrics"]) == set(case["metrics"]) | undetermined
    assert all(got["metrics"][name] is None for name in undetermined)
    for name, want in case["metrics"].items():
        limit = of_loss if name in ("loss", "perplexity") else tolerance
        assert got["metrics"][name] == pytest.approx(want, rel=limit, abs=limit), name
    for name, want in case.get("classes", {}).items():
        assert [c[name] for c in got["classes"]] == pytest.approx(want, abs=1e-12), name
    assert got.get("confusion") == case.get("confusion")


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["name"])
def test_metrics_are_scikit_learns(run, identity, case):
    rows = len(case["labels"])
    got = evaluate(run, identity(case["outputs"], case["labels"], case["loss"], "--precision=f64"))
    assert (got["rows"], got["all_rows"], got["left_out"]) == (rows, rows, None)
    check(got, case, 1e-9, 1e-9)
    check(evaluate(run, identity(case["outputs"], case["labels"], case["loss"], batch=5)), case, 1e-6, 1e-4)


def case_of(name):
    return next(c for c in CASES if c["name"] == name)


def test_text_names_the_classes(run, identity, tmp_path):
    case = case_of("two classes")
    exe = identity(case["outputs"], case["labels"], case["loss"])
    (tmp_path / "names.txt").write_text("cat\ndog, wet\n")
    text = run(exe, "eval", *DATA, "--classes=names.txt").stdout
    for name, value in case["metrics"].items():
        assert float(next(line.split()[1] for line in text.splitlines() if line.startswith(name + " "))) == pytest.approx(value, abs=1e-5)
    (a, b), (c, d) = case["confusion"]
    assert f"cat       {a:2} {b:2}\ndog, wet  {c:2} {d:2}\n" in text
    classes = json.loads(run(exe, "eval", *DATA, "--classes=names.txt", "--json").stdout)["classes"]
    assert [c["name"] for c in classes] == ["cat", "dog, wet"]


def test_log_gets_a_line(run, identity, tmp_path):
    case = case_of("vector")
    exe = identity(case["outputs"], case["labels"], case["loss"])
    (tmp_path / "log.jsonl").write_text('{"step":7}\n')
    run(exe, "eval", *DATA, "--log=log.jsonl")
    first, line = reference.log_lines(tmp_path / "log.jsonl")
    assert first == {"step": 7} and line["step"] == 0
    assert line["eval_rmse"] == pytest.approx(case["metrics"]["rmse"], rel=1e-5)


def test_steps_0_evaluates(run, identity):
    case = case_of("number")
    exe = identity(case["outputs"], case["labels"], case["loss"])
    assert json.loads(run(exe, "--steps=0", *DATA, "--json").stdout)["metrics"]["loss"] == evaluate(run, exe)["metrics"]["loss"]


def test_bits_per_byte_of_a_text(run, identity, tmp_path):
    """The model gives each next byte the probability 1/256, because its weights are zeros."""
    nodes = [helper.make_node("Gather", ["w", "tokens"], ["y"])]
    graph = helper.make_graph(nodes, "bytes", [helper.make_tensor_value_info("tokens", TensorProto.INT64, ["batch", 4])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4, 256])],
                              [numpy_helper.from_array(np.zeros((256, 256), np.float32), "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "bytes.onnx")
    run("compile", "bytes.onnx", "-o", "text", "--batch=2", "--train=w")
    (tmp_path / "text.txt").write_text("the quick brown fox")
    got = json.loads(run(tmp_path / "text", "eval", "--eval-text=text.txt", "--json").stdout)
    assert got["metrics"]["bits_per_byte"] == pytest.approx(8)
    assert got["metrics"]["perplexity"] == pytest.approx(256, rel=1e-5)


def test_every_label_ignored_is_an_error(run, identity):
    exe = identity(np.zeros((6, 3)), np.full(6, -100), "cross_entropy")
    assert "all targets of the 6 rows are ignored (-100)" in run(exe, "eval", *DATA, exit=8).stderr
    assert "eval loss nan" in run(exe, "--steps=0", *DATA, exit=8).stderr


def test_a_loss_that_is_not_finite_is_an_error(run, identity):
    exe = identity([[1e38], [1]], [[-1e38], [0]], "mse")
    assert "eval loss inf: a weight, an input or a result" in run(exe, "eval", *DATA, exit=8).stderr


def test_rows_left_out_are_named(run, tmp_path):
    """A model that computes its own loss has no weights of rows."""
    graph = helper.make_graph([helper.make_node("Mul", ["x", "w"], ["a"]), helper.make_node("ReduceMean", ["a"], ["y"], keepdims=0)], "own",
                              [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])],
                              [numpy_helper.from_array(np.ones(3, np.float32), "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "own.onnx")
    run("compile", "own.onnx", "-o", "own", "--batch=4", "--loss=output:y", "--train=w")
    np.save(tmp_path / "x.npy", np.ones((11, 3), np.float32))
    got = json.loads(run(tmp_path / "own", "eval", "--eval-data=x=x.npy", "--json").stdout)
    assert (got["rows"], got["all_rows"], got["metrics"]) == (8, 11, {"loss": 1})
    assert got["left_out"] == "the model computes its own loss"
    assert "8 rows of 11: the last 3 are left out: the model computes its own loss" in run(tmp_path / "own", "eval", "--eval-data=x=x.npy").stdout


@pytest.mark.parametrize("arguments, exit, said", [
    (("--classes=two.txt",), 6, "two.txt: 2 names, but the model has 3 classes"),
    (("--classes=control.txt",), 6, "control.txt: line 2 has a control character"),
    (("--classes=none.txt",), 5, "none.txt"),
    (("--steps=3",), 2, "--steps=3: has no meaning for `eval`"),
    (("--output=x.npy",), 2, "--output=x.npy: has no meaning for `eval`"),
    (("--resume=auto",), 2, "--resume DIR takes the newest checkpoint of a folder"),
])
def test_refused(run, identity, tmp_path, arguments, exit, said):
    exe = identity(np.zeros((6, 3)), np.arange(6) % 3, "cross_entropy")
    (tmp_path / "two.txt").write_text("a\nb\n")
    (tmp_path / "control.txt").write_text("a\n\x1b[2J\nc\n")
    assert said in run(exe, "eval", *DATA, *arguments, exit=exit).stderr


def test_no_data_is_refused(run, identity):
    exe = identity(np.zeros((6, 3)), np.arange(6) % 3, "cross_entropy")
    assert "there are no evaluation data" in run(exe, "eval", exit=2).stderr
    assert "words that may stand before the options: eval, predict" in run(exe, "evaluate", exit=2).stderr


def test_names_of_classes_need_classes(run, identity, tmp_path):
    exe = identity(np.zeros((6, 3)), np.zeros((6, 3)), "mse")
    (tmp_path / "three.txt").write_text("a\nb\nc\n")
    assert "its labels are not classes" in run(exe, "eval", *DATA, "--classes=three.txt", exit=2).stderr


def test_training_goes_on_after_such_an_evaluation(run, identity, tmp_path):
    """It is reported once, and the exit code tells it."""
    exe = identity(np.zeros((8, 3)), np.full(8, 1), "cross_entropy")
    np.save(tmp_path / "ignored.npy", np.full(8, -100))
    done = run(exe, "--data=x=x.npy", "--data=labels=labels.npy", "--eval-data=x=x.npy", "--eval-data=labels=ignored.npy", "--steps=3", "--eval-every=1",
               "--save=checkpoints", exit=8)
    assert done.stderr.count("gradc: error: eval loss nan: all targets of the 8 rows are ignored") == 1
    assert (tmp_path / "checkpoints/step-00000003").exists()


@pytest.mark.parametrize("options", [("--device=async",), ("--threads=2", "--deterministic")])
def test_the_same_bits_on_other_devices(run, identity, options):
    case = case_of("sequence")
    exe = identity(case["outputs"], case["labels"], case["loss"])
    got, want = evaluate(run, exe, *options), evaluate(run, exe)
    assert (got["metrics"], got["confusion"]) == (want["metrics"], want["confusion"])


def final(run, exe, folder, name, *options):
    run(exe, "--data=x=x.npy", "--data=labels=labels.npy", "--log", f"{name}.jsonl", "--table=off", *options)
    return [line for line in reference.log_lines(folder / f"{name}.jsonl") if "eval_loss" in line]


@pytest.mark.parametrize("name, metric", [("ten classes", "f1"), ("ten classes", "top3"), ("sequence", "recall"), ("binary", "auc"), ("vector", "rmse")])
def test_metric_of_a_training(run, identity, tmp_path, name, metric):
    """Any metric may decide; only it is computed besides what an evaluation gives anyway. A resumed run keeps it."""
    case = case_of(name)
    exe = identity(case["outputs"], case["labels"], case["loss"], "--precision=f64")
    first = final(run, exe, tmp_path, "log", "--steps=2", "--eval-every=1", *DATA, f"--metric={metric}", "--save=saved", "--keep-best", "--lr=0.01")
    if metric in case["metrics"]:
        assert first[0][f"eval_{metric}"] == pytest.approx(case["metrics"][metric], rel=1e-9)
    assert not {"eval_precision", "eval_r2"} & set(first[0])
    best = first[-1]["best"]
    value = {line["step"]: line[f"eval_{metric}"] for line in first}
    assert best["metric"] == metric and best["value"] == value[best["step"]] == (min if metric == "rmse" else max)(value[1], value[2])
    resumed = final(run, exe, tmp_path, "more", "--steps=3", "--eval-every=1", *DATA, "--save=saved", "--keep-best", "--resume=auto", "--lr=0.01")
    assert resumed[-1]["best"]["metric"] == metric and f"eval_{metric}" in resumed[-1]
    said = run(exe, "--data=x=x.npy", "--data=labels=labels.npy", *DATA, "--steps=1", f"--metric={metric}").stderr
    assert f", {metric} {value[0]:.5g}" in said


def test_metric_of_held_out_rows(run, identity, tmp_path):
    """The rows of --split, in the order of the evaluation."""
    case = case_of("number")
    exe = identity(case["outputs"], case["labels"], "mse", "--precision=f64")
    line = final(run, exe, tmp_path, "log", "--steps=1", "--lr=0", "--weight-decay=0", "--split=0.4", "--metric=rmse")[-1]
    assert line["eval_rows"] == 12
    assert line["eval_rmse"] == pytest.approx(line["eval_loss"] ** 0.5, rel=1e-9)


@pytest.mark.parametrize("name, metric, said", [
    ("vector", "f1", "has no meaning for this model: the labels are numbers, not classes; it has loss, r2, mae, rmse"),
    ("two classes", "mae", "the labels are classes, not numbers"),
    ("two classes", "top2", "there are 2 classes"),
    ("two classes", "perplexity", "the labels are not tokens of a sequence"),
    ("two classes", "hinge", "no such metric"),
    ("sequence", "auc", "a row has several labels"),
    ("sequence", "bits_per_byte", "--eval-text gives them"),
    ("binary", "top1", "each label is 0 or 1"),
])
def test_a_metric_without_meaning_is_refused(run, identity, name, metric, said):
    case = case_of(name)
    exe = identity(case["outputs"], case["labels"], case["loss"])
    assert said in run(exe, "--data=x=x.npy", "--data=labels=labels.npy", *DATA, "--steps=1", f"--metric={metric}", exit=2).stderr


def test_class_weights_leave_accuracy_alone(run, identity, tmp_path):
    case = case_of("two classes")
    np.save(tmp_path / "weights.npy", np.array([1, 9], np.float32))
    exe = identity(case["outputs"], case["labels"], "cross_entropy", f"--class-weight={tmp_path / 'weights.npy'}")
    assert evaluate(run, exe)["metrics"]["accuracy"] == pytest.approx(case["metrics"]["accuracy"])
    line = final(run, exe, tmp_path, "log", "--steps=0", *DATA, "--metric=accuracy")[-1]
    assert line["eval_accuracy"] == pytest.approx(case["metrics"]["accuracy"])
