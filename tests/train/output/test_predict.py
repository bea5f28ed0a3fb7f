"""The word predict: any number of rows in order, in every format; the same as --once, eval and onnxruntime compute."""
import csv
import json
import os
import threading

import numpy as np
import onnx
import onnxruntime
import pytest
import reference
from onnx import TensorProto, helper, numpy_helper
from test_eval import case_of, identity  # noqa: F401  identity is a fixture


def model_of(path, nodes, inputs, outputs, **weights):
    """inputs and outputs: {name: shape}, of floats."""
    values = [[helper.make_tensor_value_info(k, TensorProto.FLOAT, v) for k, v in ports.items()] for ports in (inputs, outputs)]
    graph = helper.make_graph(nodes, "made", *values, [numpy_helper.from_array(np.asarray(v), k) for k, v in weights.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def predict(run, exe, output, *options, **how):
    run(exe, "predict", "--data=x=x.npy", f"--output={output}", *options, **how)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("device", ["cpu", "async"])
@pytest.mark.parametrize("rows", [1, 7, 8, 60])
def test_any_number_of_rows(run, identity, tmp_path, rows, device):  # noqa: F811
    x = np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)
    exe = identity(x, np.arange(rows) % 4, "cross_entropy")
    predict(run, exe, "y.npy", "--device", device)
    got = np.load(tmp_path / "y.npy")
    assert got.dtype == np.float32 and np.array_equal(got, x)


def test_classes(run, identity, tmp_path):  # noqa: F811
    """jsonl and csv, with names; labels among the data are ignored."""
    case = case_of("ten classes")
    x = np.asarray(case["outputs"], np.float32)
    exe = identity(x, case["labels"], "cross_entropy")
    want = np.exp(x.astype(np.float64))
    want /= want.sum(1, keepdims=True)
    names = [f'the "{c}", so' for c in range(10)]
    (tmp_path / "names.txt").write_text("\n".join(names))
    predict(run, exe, "p.jsonl", "--classes=names.txt", "--data=labels=labels.npy")
    predict(run, exe, "p.csv", "--classes=names.txt")
    for i, (line, row) in enumerate(zip(lines(tmp_path / "p.jsonl"), csv.DictReader(open(tmp_path / "p.csv")), strict=True)):
        best = int(x[i].argmax())
        assert (line["row"], line["class"], line["name"]) == (i, best, names[best])
        assert (row["row"], row["class"], row["name"]) == (str(i), str(best), names[best])
        assert line["probabilities"] == pytest.approx(want[i], abs=1e-7)
        assert [float(row[f"p_{n}"]) for n in names] == line["probabilities"]
    assert run(exe, "predict", "--data=x=x.npy", "--classes=names.txt").stdout == (tmp_path / "p.jsonl").read_text()


@pytest.mark.parametrize("name", ["log-probabilities", "binary", "multi-label", "sequence"])
def test_probabilities(run, identity, tmp_path, name):  # noqa: F811
    case = case_of(name)
    x = np.asarray(case["outputs"], np.float32).astype(np.float64)
    predict(run, identity(x, case["labels"], case["loss"]), "p.jsonl")
    got = lines(tmp_path / "p.jsonl")
    if name == "log-probabilities":
        assert [g["class"] for g in got] == x.argmax(-1).tolist()
        assert np.allclose([g["probabilities"] for g in got], np.exp(x), atol=1e-6)
    elif name == "binary":
        p = 1 / (1 + np.exp(-x))
        assert [g["class"] for g in got] == (x[:, 0] > 0).astype(int).tolist()
        assert np.allclose([g["probabilities"] for g in got], np.hstack([1 - p, p]), atol=1e-6)
    elif name == "multi-label":
        assert [g["class"] for g in got] == (x > 0).astype(int).tolist()
        assert np.allclose([g["probability"] for g in got], 1 / (1 + np.exp(-x)), atol=1e-6)
    else:
        e = np.exp(x - x.max(-1, keepdims=True))
        assert [g["class"] for g in got] == x.argmax(-1).tolist()
        assert np.allclose([g["probability"] for g in got], (e / e.sum(-1, keepdims=True)).max(-1), atol=1e-6)


def test_numbers(run, identity, tmp_path):  # noqa: F811
    case = case_of("vector")
    x = np.asarray(case["outputs"], np.float32)
    x[3, 1] = np.inf
    exe = identity(x, case["labels"], "mse")
    predict(run, exe, "p.jsonl")
    predict(run, exe, "p.csv")
    rows = list(csv.reader(open(tmp_path / "p.csv")))
    assert rows[0] == ["row", "y_0", "y_1", "y_2"]
    assert np.array_equal(np.array(rows[1:], np.float32)[:, 1:], x)
    got = [line["outputs"]["y"] for line in lines(tmp_path / "p.jsonl")]
    assert got[3][1] is None
    assert np.array_equal(np.array(got, np.float64).astype(np.float32)[4:], x[4:])


def test_rows_along_other_axes(run, tmp_path):
    """Rows come first in the files, wherever the outputs have them; what depends on no row is left out. A folder gets all outputs."""
    nodes = [helper.make_node("Mul", ["x", "w"], ["same"]), helper.make_node("Transpose", ["same"], ["turned"], perm=[1, 0, 2]),
             helper.make_node("Reshape", ["same", "flat_shape"], ["a/flat"]), helper.make_node("ReduceSum", ["w"], ["none"])]
    model_of(tmp_path / "m.onnx", nodes, {"x": ["batch", 3, 2]}, {"turned": [3, "batch", 2], "a/flat": [None, 2], "none": [1, 1]},
             w=np.ones((3, 2), np.float32), flat_shape=np.array([-1, 2]))
    run("compile", "m.onnx", "-o", "m", "--batch=4", "--train=w", "--loss=mse:a/flat")
    x = np.random.default_rng(1).standard_normal((10, 3, 2)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    predict(run, tmp_path / "m", "out/")
    got = reference.results(tmp_path / "out")
    assert set(got) == {"turned", "a/flat"}
    assert np.array_equal(got["turned"], x) and np.array_equal(got["a/flat"], x)
    predict(run, tmp_path / "m", "flat.npy")    # the output that the loss compares
    assert np.array_equal(np.load(tmp_path / "flat.npy"), x)


def test_a_pipe_gets_rows_as_they_come(run, identity, tmp_path):  # noqa: F811
    x = np.arange(30, dtype=np.float32).reshape(10, 3)
    exe = identity(x, x, "mse")
    os.mkfifo(tmp_path / "pipe")
    got = []
    reader = threading.Thread(target=lambda: got.append((tmp_path / "pipe").read_text()))
    reader.start()
    predict(run, exe, "pipe")
    reader.join()
    assert got == [run(exe, "predict", "--data=x=x.npy", "--output=/dev/stdout").stdout]
    assert [json.loads(line)["outputs"]["y"] for line in got[0].splitlines()] == x.tolist()


def mixing(run, tmp_path):
    """Each output minus the mean over the batch."""
    nodes = [helper.make_node("Mul", ["x", "w"], ["a"]), helper.make_node("ReduceMean", ["a"], ["m"], axes=[0]), helper.make_node("Sub", ["a", "m"], ["y"])]
    model_of(tmp_path / "m.onnx", nodes, {"x": ["batch", 2]}, {"y": ["batch", 2]}, w=np.ones(2, np.float32))
    run("compile", "m.onnx", "-o", "m", "--batch=4", "--train=w", "--loss=mse")
    return tmp_path / "m"


def test_rows_that_depend_on_each_other(run, tmp_path):
    exe = mixing(run, tmp_path)
    x = np.random.default_rng(2).standard_normal((8, 2)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    predict(run, exe, "y.npy")
    want = x.reshape(2, 4, 2)
    assert np.allclose(np.load(tmp_path / "y.npy"), (want - want.mean(1, keepdims=True)).reshape(8, 2), atol=1e-6)
    np.save(tmp_path / "x.npy", x[:7])
    said = run(exe, "predict", "--data=x=x.npy", "--output=z.npy", exit=6).stderr
    assert '7 rows do not fill batches of 4, and a batch cannot be padded: a row of output "y" depends on the other rows' in said
    assert not (tmp_path / "z.npy").exists()


@pytest.mark.parametrize("arguments, exit, said", [
    (("--output=p.txt",), 2, "--output p.txt: need FILE.npy, FILE.csv, FILE.jsonl, or DIR/"),
    (("--output=p.csv",), 2, 'a row of output "y" is [2,2], and a line of CSV has one axis: write .npy or .jsonl'),
    (("--output=x.npy",), 2, "x.npy"),
    (("--output=p.npy", "--classes=model.onnx"), 2, "its labels are not classes"),
    (("--output=missing/p.npy",), 5, "missing/p.npy"),
    (("--steps=3",), 2, "--steps=3: has no meaning for `predict`"),
    (("--data=z=x.npy",), 2, "--data z: the model has no input of this name"),
])
def test_refused(run, identity, tmp_path, arguments, exit, said):  # noqa: F811
    case = case_of("matrix")
    exe = identity(case["outputs"], case["labels"], "mse")
    before = (tmp_path / "x.npy").read_bytes()
    assert said in run(exe, "predict", "--data=x=x.npy", *arguments, exit=exit).stderr
    assert (tmp_path / "x.npy").read_bytes() == before
    assert not list(tmp_path.glob("p.*"))


def test_no_file_after_a_fault(run, identity, tmp_path):  # noqa: F811
    """A row that cannot be read ends the predictions; a file of before stays."""
    exe = identity(np.zeros((20, 3)), np.zeros((20, 3)), "mse")
    x = np.zeros((20, 3), np.float32)
    x[17, 1] = np.nan
    np.save(tmp_path / "x.npy", x)
    (tmp_path / "p.csv").write_text("before")
    assert "row 17" in run(exe, "predict", "--data=x=x.npy", "--output=p.csv", exit=6).stderr
    assert (tmp_path / "p.csv").read_text() == "before" and len(list(tmp_path.glob("p.csv*"))) == 1


def loss_of(kind, outputs, labels):
    """Of f64: cross entropy along the last axis, squared error, or binary cross entropy."""
    z, labels = outputs.astype(np.float64), labels.reshape(-1)
    if kind.startswith("mse"):
        return np.square(z.reshape(-1) - labels).mean()
    if kind.startswith("bce"):
        z = z.reshape(-1)
        return (np.maximum(z, 0) - z * labels + np.log1p(np.exp(-np.abs(z)))).mean()
    z = z.reshape(-1, z.shape[-1])
    z = z - z.max(-1, keepdims=True)
    return -(z - np.log(np.exp(z).sum(-1, keepdims=True)))[np.arange(len(labels)), labels].mean()


def repeated(folder, rows):
    """{input or labels: so many rows of the model's data, which begin anew where they are too few}"""
    facts = json.loads((folder / "reference.json").read_text())
    files = {i["name"]: i["file"] for i in facts["inputs"]} | {"labels": facts["labels"]["file"]}
    arrays = {name: np.load(folder / file, mmap_mode="r") for name, file in files.items()}
    return {name: np.resize(a[:rows], (rows, *a.shape[1:])) for name, a in arrays.items()}


@pytest.mark.parametrize("name", reference.NAMES)
def test_the_same_as_once_eval_and_onnxruntime(run, of_trace, models, tmp_path, name):
    """Of 1, 7 and 60 rows: predict and eval; onnxruntime on the export, given the same rows at once; --once of the compiled batch."""
    exe, facts, folder = of_trace(name), reference.load(name), models / name
    batch, output = facts["traces"][0]["micro_batch"], facts["outputs"][0]["name"]
    run(exe, "--steps=0", "--export", "m.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    fed = [i.name for i in session.get_inputs()]
    for rows in (1, 7, 60):
        data = repeated(folder, rows)
        for n, a in data.items():
            np.save(tmp_path / f"{n}.npy", a)
        run(exe, "predict", *[f"--data={n}={n}.npy" for n in data], "--output=predicted/")
        predicted = reference.results(tmp_path / "predicted")[output]
        want = session.run([output], {n: data[n] for n in fed})[0]
        assert reference.relative(predicted, want) < 1e-4
        got = json.loads(run(exe, "eval", *[f"--eval-data={n}={n}.npy" for n in data], "--json").stdout)
        assert got["rows"] == rows
        assert got["metrics"]["loss"] == pytest.approx(loss_of(facts["loss"], want, data["labels"]), rel=1e-4)
    for n in fed:
        np.save(tmp_path / f"{n}.npy", np.load(tmp_path / f"{n}.npy")[:batch])
    run(exe, "--once", *[a for n in fed for a in ("--input", f"{n}={n}.npy")], "--output-dir", "once")
    assert np.array_equal(reference.results(tmp_path / "once")[output], predicted[:batch])


def test_each_binding_has_its_own_rows(run, tmp_path):
    """Of a flat output with time first the row axis goes through the rows as many times as there are steps in time."""
    nodes = [helper.make_node("Mul", ["x", "w"], ["a"]), helper.make_node("Transpose", ["a"], ["t"], perm=[1, 0, 2]), helper.make_node("Reshape", ["t", "flat"], ["y"])]
    model_of(tmp_path / "m.onnx", nodes, {"x": ["batch", "time", 2]}, {"y": ["rows", 2]}, w=np.ones(2, np.float32), flat=np.array([-1, 2]))
    run("compile", "m.onnx", "-o", "m", "--dim=batch=4", "--dim=time=3,5", "--train=w", "--loss=mse")
    for time in (3, 5):
        x = np.random.default_rng(time).standard_normal((7, time, 2)).astype(np.float32)
        np.save(tmp_path / "x.npy", x)
        predict(run, tmp_path / "m", "y.npy")
        assert np.array_equal(np.load(tmp_path / "y.npy"), x)


def test_results_that_are_nan(run, tmp_path):
    """The files have all rows, without a class where a score is NaN; the exit code says that there are such rows."""
    weight = numpy_helper.from_array(np.float32([[1, 0], [0, 1]]), "w")
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 2]) for n in "xy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Sqrt", ["h"], ["y"])], "g", [x], [y], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    run("compile", "m.onnx", "-o", "train", "--batch=2", "--loss=cross_entropy")
    np.save(tmp_path / "x.npy", np.float32([[1, 4], [-1, 4], [9, 1]]))
    for kind, rows in (("csv", ["row,class,p_0,p_1", "0,1,", "1,,nan,nan", "2,0,"]), ("jsonl", ['{"row":0,"class":1,', '{"row":1,"class":null,"probabilities":[null,null]}', '{"row":2,"class":0,'])):
        said = run(tmp_path / "train", "predict", "--data=x=x.npy", f"--output=y.{kind}", exit=8).stderr
        assert "1 of 3 rows have results that are NaN, the first is row 1" in said
        lines = (tmp_path / f"y.{kind}").read_text().splitlines()
        assert len(lines) == len(rows) and all(line.startswith(row) for line, row in zip(lines, rows))
    run(tmp_path / "train", "predict", "--data=x=x.npy", "--output=y.npy", exit=8)
    assert np.array_equal(np.isnan(np.load(tmp_path / "y.npy")).any(1), [False, True, False])
