"""--split: rows of the training data are held out for evaluation."""
import json
import subprocess

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper


MPIRUN = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2"]


@pytest.fixture(scope="module")
def exe(gradc, models, tmp_path_factory):
    out = tmp_path_factory.mktemp("split") / "train"
    subprocess.run([gradc, "compile", models / "mlp_digits/model.onnx", "-o", out, "--batch=32", "--precision=f64"], check=True,
                   capture_output=True)
    return out


def data(models):
    return [f"--data={name}={models}/mlp_digits/{name}.npy" for name in ("input", "labels")]


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_two_sides_are_all_rows(run, exe, models, tmp_path):
    """With a learning rate of 0, the losses of the two sides add up to the loss over all rows."""
    rows = len(np.load(models / "mlp_digits/labels.npy"))
    whole = json.loads(run(exe, *data(models), *[d.replace("--data", "--eval-data") for d in data(models)], "--steps=1", "--lr=0",
                           "--json", "--progress=off").stdout)
    said = run(exe, *data(models), "--split=0.2", "--lr=0", "--keep-last", f"--log={tmp_path}/log", "--json", "--progress=off")
    held = json.loads(said.stdout)
    assert held["eval_rows"] == round(0.2 * rows)
    steps = [line for line in lines_of(tmp_path / "log") if line["step"] > 0]
    assert sum(line["count"] for line in steps) == rows - held["eval_rows"]
    total = sum(line["loss"] * line["count"] for line in steps) + held["eval_loss"] * held["eval_rows"]
    assert total == pytest.approx(whole["eval_loss"] * rows, rel=1e-9)


def test_resumed_and_on_ranks(run, exe, models, tmp_path):
    """The same rows are held out: the same losses in one run, in two, and on two ranks."""
    options = [*data(models), "--split=0.25,7", "--eval-every=4", "--progress=off"]
    run(exe, *options, "--steps=8", "--accumulate=2", f"--log={tmp_path}/whole")
    run(exe, *options, "--steps=4", "--accumulate=2", f"--save={tmp_path}/saved", f"--log={tmp_path}/parts")
    said = run(exe, *options, "--steps=8", "--accumulate=2", f"--save={tmp_path}/saved", "--resume=auto", f"--log={tmp_path}/parts")
    assert "split" not in said.stderr
    subprocess.run([*MPIRUN, exe, *options, "--steps=8", f"--log={tmp_path}/ranks"], check=True, capture_output=True)
    whole, *others = ([(line["step"], line.get("loss"), line["eval_loss"]) for line in lines_of(tmp_path / name) if "eval_loss" in line and line["step"] > 0]
                      for name in ("whole", "parts", "ranks"))
    assert len(whole) == 2 and others == [whole, whole]
    for other in ["--split=0.25,8"], []:
        said = run(exe, *data(models), *other, "--steps=9", "--accumulate=2", f"--save={tmp_path}/saved", "--resume=auto", "--progress=off", exit=2)
        assert "held rows out with --split=0.25,7: give the same --split" in said.stderr
    run(exe, *data(models), "--split=.25,7", "--steps=9", "--accumulate=2", f"--save={tmp_path}/saved", "--resume=auto", "--progress=off")


@pytest.mark.parametrize("option, code, says", [
    ("--split=0", 2, "need a share between 0 and 1"),
    ("--split=1", 2, "need a share between 0 and 1"),
    ("--split=0.2,x", 2, "need a share between 0 and 1"),
    ("--split=", 2, "--split"),
    ("--split=0.999", 6, "samples are less than the"),
])
def test_refused(run, exe, models, option, code, says):
    done = run(exe, *data(models), option, exit=code)
    assert says in done.stderr


def test_one_row_or_two_kinds_of_evaluation(run, exe, models, tmp_path):
    for name in ("input", "labels"):
        np.save(tmp_path / f"{name}.npy", np.load(models / f"mlp_digits/{name}.npy")[:1])
    one = [f"--data={name}={tmp_path}/{name}.npy" for name in ("input", "labels")]
    assert "1 row" in run(exe, *one, "--split=0.5", exit=6).stderr
    both = run(exe, *data(models), "--split=0.5", f"--eval-data=input={tmp_path}/input.npy", exit=2)
    assert "--split and evaluation data: only one of them" in both.stderr


def test_each_class_gives_its_share(run, exe, models, tmp_path):
    """The model answers one class for all rows, which a tenth of the labels is: so is a tenth of the held-out rows, by any seed."""
    x = np.zeros((200, *np.load(models / "mlp_digits/input.npy").shape[1:]), np.float32)
    np.save(tmp_path / "input.npy", x)

    def accuracies(labels, *options):
        np.save(tmp_path / "labels.npy", labels)
        said = run(exe, f"--data=input={tmp_path}/input.npy", f"--data=labels={tmp_path}/labels.npy", "--steps=1", "--lr=0", "--json", "--progress=off", *options)
        return json.loads(said.stdout)["eval_accuracy"]

    answer = next(c for c in range(10) if accuracies(np.full(200, c), "--split=0.5") == 1)
    labels = np.where(np.arange(200) % 10 == 0, answer, (answer + 1) % 10)
    assert [accuracies(labels, f"--split=0.2,{seed}") for seed in range(4)] == [0.1] * 4


def test_labels_of_0_and_1_give_their_shares(run, tmp_path):
    """Float labels of a binary loss are classes, too: of ten among 100 rows, two are held out by any seed."""
    weight = numpy_helper.from_array(np.zeros((3, 1), np.float32), "w")
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", k]) for n, k in (("x", 3), ("y", 1)))
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    run("compile", "m.onnx", "-o", "train", "--batch=10", "--loss=bce_with_logits", "--train-mode=keep")
    np.save(tmp_path / "x.npy", np.zeros((100, 3), np.float32))
    np.save(tmp_path / "labels.npy", np.float32(np.arange(100) % 10 == 3)[:, None])
    for seed in range(4):
        said = run(tmp_path / "train", "--data=x=x.npy", "--data=labels=labels.npy", f"--split=0.2,{seed}", "--steps=1", "--lr=0", "--metric=accuracy", "--json", "--progress=off")
        # all outputs are 0: the class 0 is predicted for all rows, and its share is the accuracy
        assert json.loads(said.stdout)["eval_accuracy"] == pytest.approx(0.9)
