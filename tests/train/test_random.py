"""Random numbers of a model: the same bits however a step is divided, resumed, recomputed or compiled, and as random as
their names say."""
import json
import math
import shutil
import subprocess

import numpy as np
import onnx
import pytest
import reference
from onnx import TensorProto, helper, numpy_helper

F32, F64 = TensorProto.FLOAT, TensorProto.DOUBLE
ROWS, WIDTH = 8, 4


def save(path, nodes, inputs, outputs, initializers=(), opset=17):
    graph = helper.make_graph(
        nodes, "random", [helper.make_tensor_value_info(*i) for i in inputs],
        [helper.make_tensor_value_info(*o) for o in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in initializers])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)


def constants(ratio, training=True):
    return [("ratio", np.float32(ratio)), ("mode", np.array(training))]


def dropout_model(path, noise=False):
    """|drop(w x)|: with x a power of two for each place, the loss in f64 is the mask, bit by bit."""
    nodes = [helper.make_node("Mul", ["x", "w"], ["h"], name="/mul"),
             helper.make_node("Dropout", ["h", "ratio", "mode"], ["y"], name="/drop")]
    if noise:  # without a batch axis: one row of noise for all rows
        nodes = [nodes[0], helper.make_node("RandomUniform", [], ["u"], name="/noise", shape=[1, WIDTH]),
                 helper.make_node("Less", ["u", "ratio"], ["b"]), helper.make_node("Cast", ["b"], ["c"], to=F32),
                 helper.make_node("Mul", ["h", "c"], ["y"], name="/mask")]
    save(path, nodes, [("x", F32, ["batch", WIDTH])], [("y", F32, ["batch", WIDTH])],
         [("w", np.ones(WIDTH, np.float32)), *constants(0.5)])


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    powers = (2.0 ** np.arange(ROWS * WIDTH, dtype=np.float64)).reshape(ROWS, WIDTH).astype(np.float32)
    np.save(folder / "x.npy", np.tile(powers, (6, 1)))  # six steps
    np.save(folder / "labels.npy", np.zeros((6 * ROWS, WIDTH), np.float32))
    return ["--data", f"x={folder / 'x.npy'}", "--data", f"labels={folder / 'labels.npy'}"]


def compile_model(run, path, batch, *options):
    exe = path.with_name(f"{path.stem}-{batch}-{abs(hash(options))}")
    run("compile", path, "-o", exe, f"--batch={batch}", "--loss=l1", "--optimizer=sgd", "--precision=f64", *options)
    return exe


def losses(command, data, log, *options):
    done = subprocess.run([*map(str, command), *data, "--lr=0", "--shuffle=off", "--progress=off", "--table=off",
                           "--log", str(log), *map(str, options)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [line["loss"] for line in map(json.loads, log.read_text().splitlines()) if "lr" in line]


@pytest.fixture(params=[False, True], ids=["rows", "no-batch-axis"])
def model(request, tmp_path):
    dropout_model(tmp_path / "model.onnx", request.param)
    return tmp_path / "model.onnx"


def test_masks_do_not_depend_on_how_a_step_is_divided(run, model, data, tmp_path):
    whole = losses([compile_model(run, model, ROWS)], data, tmp_path / "a.jsonl")
    assert len(set(whole)) == 6, "every step has a mask of its own"
    half, quarter = compile_model(run, model, 4), compile_model(run, model, 2)
    assert losses([half], data, tmp_path / "b.jsonl", "--accumulate=2") == whole
    assert losses([quarter], data, tmp_path / "c.jsonl", "--accumulate=4") == whole
    if not shutil.which("mpirun.openmpi"):
        pytest.skip("mpirun.openmpi is not installed")
    mpi = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n"]
    assert losses([*mpi, "2", half], data, tmp_path / "d.jsonl") == whole
    assert losses([*mpi, "2", quarter], data, tmp_path / "e.jsonl", "--accumulate=2") == whole
    assert losses([*mpi, "4", quarter], data, tmp_path / "f.jsonl") == whole


def test_masks_after_a_resume_are_those_of_one_run(run, model, data, tmp_path):
    exe = compile_model(run, model, 4)
    whole = losses([exe], data, tmp_path / "a.jsonl", "--accumulate=2", "--seed=7")
    first = losses([exe], data, tmp_path / "b.jsonl", "--accumulate=2", "--seed=7", "--steps=2", "--save",
                   tmp_path / "save")
    again = losses([exe], data, tmp_path / "b.jsonl", "--accumulate=2", "--seed=7", "--save", tmp_path / "save",
                   "--resume=auto")
    assert first == whole[:2] and again == whole


def test_printers_and_recomputation_draw_the_same(run, model, data, tmp_path):
    want = losses([compile_model(run, model, ROWS)], data, tmp_path / "a.jsonl")
    for options in (["--printer=c"], ["--disable=rematerialize"], ["--disable=simplify"]):
        assert losses([compile_model(run, model, ROWS, *options)], data, tmp_path / "b.jsonl") == want, options


def test_all_bits_of_the_seed_count(run, model, data, tmp_path):
    exe = compile_model(run, model, ROWS)
    seeds = [0, 1, 2**53, 2**53 + 1, 2**62 + 1, 2**64 - 1]  # a double has no 2^53 + 1
    masks = [tuple(losses([exe], data, tmp_path / "a.jsonl", f"--seed={s}")) for s in seeds]
    assert len(set(masks)) == len(seeds)


def test_interpreter_and_executable_draw_the_same(run, model, tmp_path):
    x = np.arange(1, 1 + ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", np.zeros_like(x))
    found = []
    for engine in ("interp", "compiled"):
        out = tmp_path / engine
        run("run", model, "--input", f"x={tmp_path / 'x.npy'}", f"--engine={engine}", "--output-dir", out)
        run("grad", model, "--loss=l1", "--input", f"x={tmp_path / 'x.npy'}", "--input",
            f"labels={tmp_path / 'y.npy'}", f"--engine={engine}", "--output-dir", out / "grad")
        found.append({**reference.results(out), **reference.results(out / "grad")})
    for name in ("y", "w"):
        np.testing.assert_array_equal(found[0][name], found[1][name])
    assert 0 < np.count_nonzero(found[0]["y"]) < x.size


def draws(run, tmp_path, nodes, shape, dtype=F32, initializers=()):
    save(tmp_path / "draw.onnx", nodes, [], [("y", dtype, list(shape))], initializers, opset=22)
    run("run", tmp_path / "draw.onnx", "--output-dir", tmp_path / "out")
    return reference.results(tmp_path / "out")["y"]


N = 10_000_000


@pytest.mark.parametrize("operator, attributes, mean, variance, fourth", [
    ("RandomUniform", {}, 0.5, 1 / 12, 1 / 80),
    ("RandomUniform", {"low": -3.0, "high": 1.0}, -1, 16 / 12, 256 / 80),
    ("RandomNormal", {}, 0, 1, 3),
    ("RandomNormal", {"mean": 2.0, "scale": 0.5}, 2, 0.25, 3 / 16),
])
def test_statistics(run, tmp_path, operator, attributes, mean, variance, fourth):
    """Mean and variance of ten million within four standard deviations of theirs."""
    y = draws(run, tmp_path, [helper.make_node(operator, [], ["y"], name="/r", shape=[N], **attributes)],
              (N,)).astype(np.float64)
    assert abs(y.mean() - mean) <= 4 * math.sqrt(variance / N)
    assert abs(y.var() - variance) <= 4 * math.sqrt((fourth - variance**2) / N)
    if operator == "RandomUniform":
        low, high = attributes.get("low", 0), attributes.get("high", 1)
        assert low <= y.min() and y.max() <= high
    neighbours = np.corrcoef(y[:-1], y[1:])[0, 1]
    assert abs(neighbours) <= 4 / math.sqrt(N)


def test_bernoulli_and_multinomial(run, tmp_path):
    n = 1_000_000
    y = draws(run, tmp_path, [helper.make_node("Bernoulli", ["p"], ["y"], name="/b")], (n,), F32,
              [("p", np.full(n, 0.3, np.float32))])
    assert set(np.unique(y)) == {0, 1}
    assert abs(y.mean() - 0.3) <= 4 * math.sqrt(0.21 / n)
    p, samples = np.array([[0.1, 0.2, 0.7], [0.5, 0.5, 0]]), 100_000
    with np.errstate(divide="ignore"):
        logits = np.log(p).astype(np.float32) + np.float32(3)
    y = draws(run, tmp_path, [helper.make_node("Multinomial", ["p"], ["y"], name="/m", sample_size=samples)],
              (2, samples), TensorProto.INT32, [("p", logits)])
    for row, want in zip(y, p, strict=True):
        got = np.bincount(row, minlength=3) / samples
        assert np.all(np.abs(got - want) <= 4 * np.sqrt(want * (1 - want) / samples))


def test_streams_are_apart(run, tmp_path):
    """Two nodes of one operator draw other numbers; one node draws the same ones for all its readers."""
    nodes = [helper.make_node("RandomUniform", [], [f"u{i}"], name=f"/r{i}", shape=[1000]) for i in range(2)]
    nodes += [helper.make_node("Concat", ["u0", "u1", "u0"], ["y"], axis=0)]
    y = draws(run, tmp_path, nodes, (3000,)).reshape(3, 1000)
    assert np.array_equal(y[0], y[2])
    assert abs(np.corrcoef(y[0], y[1])[0, 1]) < 4 / math.sqrt(1000)


def test_train_mode_restores_dropout(run, data, tmp_path):
    """A model exported for inference trains with dropout again, is evaluated without, and is exported as it was."""
    path = tmp_path / "model.onnx"
    save(path, [helper.make_node("Mul", ["x", "w"], ["h"], name="/mul"),
                helper.make_node("Dropout", ["h", "ratio", "mode"], ["y"], name="/drop")],
         [("x", F32, ["batch", WIDTH])], [("y", F32, ["batch", WIDTH])],
         [("w", np.ones(WIDTH, np.float32)), *constants(0.5, False)])
    without = losses([compile_model(run, path, ROWS)], data, tmp_path / "a.jsonl")
    assert len(set(without)) == 1
    exe = compile_model(run, path, ROWS, "--train-mode=restore")
    eval_data = [a.replace("--data", "--eval-data") for a in data]
    log = tmp_path / "b.jsonl"
    restored = losses([exe], [*data, *eval_data], log, "--export", tmp_path / "out.onnx")
    assert len(set(restored)) == 6
    evaluated = [line["eval_loss"] for line in map(json.loads, log.read_text().splitlines()) if "eval_loss" in line]
    assert evaluated and set(evaluated) == {without[0]}
    assert onnx.load(tmp_path / "out.onnx") == onnx.load(path)
    assert "dropout" in run("check", path, "--train-mode=restore").stdout


@pytest.mark.parametrize("opset", [7, 10, 12, 13, 22])
def test_dropout_of_every_revision(run, tmp_path, opset):
    """In training form it scales what it keeps; its mask says what that was."""
    attributes = {"ratio": 0.25} if opset < 12 else {}
    inputs = ["h"] if opset < 12 else ["h", "ratio", "mode"]
    mask = F32 if opset < 10 else TensorProto.BOOL
    save(tmp_path / "m.onnx", [helper.make_node("Mul", ["x", "w"], ["h"]),
                               helper.make_node("Dropout", inputs, ["y", "mask"], name="/d", **attributes)],
         [("x", F32, [200, 50])], [("y", F32, [200, 50]), ("mask", mask, [200, 50])],
         [("w", np.ones(50, np.float32)), *(constants(0.25, False) if opset >= 12 else [])], opset)
    x = np.arange(1, 10001, dtype=np.float32).reshape(200, 50)
    np.save(tmp_path / "x.npy", x)
    run("run", tmp_path / "m.onnx", "--train-mode=restore", "--input", f"x={tmp_path / 'x.npy'}", "--output-dir",
        tmp_path / "out")
    found = reference.results(tmp_path / "out")
    kept = found["mask"].astype(bool)
    np.testing.assert_allclose(found["y"], np.where(kept, x * np.float32(1 / 0.75), 0), rtol=1e-6)
    assert abs(kept.mean() - 0.75) <= 4 * math.sqrt(0.75 * 0.25 / x.size)


def test_batch_axis_follows_reshapes_and_products(run, tmp_path):
    """Rows keep their numbers behind [batch, time] -> [batch * time], a product and a transpose."""
    w = np.eye(WIDTH, dtype=np.float32)
    nodes = [helper.make_node("Reshape", ["x", "flat"], ["f"], name="/flat"),
             helper.make_node("MatMul", ["f", "w"], ["p"], name="/fc"),
             helper.make_node("Transpose", ["p"], ["t"], perm=[1, 0], name="/t"),
             helper.make_node("Dropout", ["t", "ratio", "mode"], ["d"], name="/drop"),
             helper.make_node("Transpose", ["d"], ["u"], perm=[1, 0], name="/back"),
             helper.make_node("Reshape", ["u", "full"], ["y"], name="/full")]
    shape = ["batch", 2, WIDTH]
    save(tmp_path / "m.onnx", nodes, [("x", F32, shape)], [("y", F32, shape)],
         [("w", w), ("flat", np.array([-1, WIDTH])), ("full", np.array([-1, 2, WIDTH])), *constants(0.5)])
    np.save(tmp_path / "x.npy", (2.0 ** np.arange(32)).reshape(4, 2, WIDTH).astype(np.float32))
    np.save(tmp_path / "l.npy", np.zeros((4, 2, WIDTH), np.float32))
    data = ["--data", f"x={tmp_path / 'x.npy'}", "--data", f"labels={tmp_path / 'l.npy'}"]
    whole = losses([compile_model(run, tmp_path / "m.onnx", 4)], data, tmp_path / "a.jsonl")
    parts = losses([compile_model(run, tmp_path / "m.onnx", 1)], data, tmp_path / "b.jsonl", "--accumulate=4")
    assert whole == parts and whole[0] not in (0, 2.0**32)
