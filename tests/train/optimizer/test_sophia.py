"""Sophia-G: 100 steps against numpy, with the labels that are drawn from the model, by the same random numbers; resuming, ranks' parts, skips."""
import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

ROWS, WIDTH, CLASSES, STEPS, STREAM = 8, 5, 4, 100, 0x6c6162656c73
MASK = (1 << 64) - 1


def philox(key, index, step):
    """Words 0 and 1 of Philox 4x32-10 (Salmon et al. 2011)."""
    c = [index & 0xffffffff, index >> 32, step & 0xffffffff, step >> 32]
    k = [key & 0xffffffff, key >> 32]
    for _ in range(10):
        p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(q >> 32) ^ c[1] ^ k[0], q & 0xffffffff, (p >> 32) ^ c[3] ^ k[1], p & 0xffffffff]
        k = [(k[0] + 0x9E3779B9) & 0xffffffff, (k[1] + 0xBB67AE85) & 0xffffffff]
    return c[0], c[1]


def uniform(seed, index, step, precision):
    """As a program draws it: 53 bits in f64, 24 in f32."""
    a, b = philox((seed ^ STREAM) & MASK, index, step)
    return a * 2.0 ** -32 + (b & 0xfffff800) * 2.0 ** -64 if precision == "f64" else (a & 0xffffff00) * 2.0 ** -32


def softmax(z):
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def gradient(w, x, labels):
    """Of the mean cross entropy over labels that count."""
    valid = labels >= 0
    p = softmax(x @ w)
    p[np.arange(len(labels)), np.where(valid, labels, 0)] -= 1
    return x.T @ (p * valid[:, None]) / max(1, valid.sum())


def expected(w, x, labels, seed=0, lr=0.01, beta1=0.965, beta2=0.99, rho=0.04, decay=0.1, every=10, precision="f64"):
    """The weights after STEPS steps, and h."""
    m, h, n = np.zeros_like(w), np.zeros_like(w), 1
    for step in range(STEPS):
        rows = slice(step * ROWS, (step + 1) * ROWS)
        m = beta1 * m + (1 - beta1) * gradient(w, x[rows], labels[rows])
        w = w * (1 - lr * decay) - lr * np.sign(m) * np.minimum(np.abs(m) / (rho * n * h + 1e-15), 1)
        if step % every == every - 1:
            u = np.array([[uniform(seed, r * CLASSES + c, step, precision) for c in range(CLASSES)] for r in range(ROWS)])
            drawn = np.argmax(x[rows] @ w - np.log(-np.log(u)), axis=1)
            e = gradient(w, x[rows], np.where(labels[rows] >= 0, drawn, -100))
            h = beta2 * h + (1 - beta2) * e * e
            n = (labels[rows] >= 0).sum()
    return w, h


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(2)
    w = rng.standard_normal((WIDTH, CLASSES)).astype(np.float32)
    labels = rng.integers(0, CLASSES, STEPS * ROWS)
    labels[rng.random(len(labels)) < 0.2] = -100
    return w, rng.standard_normal((STEPS * ROWS, WIDTH)).astype(np.float32), labels.astype(np.int64)


def build(run, folder, data, precision, batch, optimizer="sophia", *options, bias=False):
    w, x, labels = data
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h" if bias else "y"])] + ([helper.make_node("Add", ["h", "b"], ["y"])] if bias else [])
    weights = [numpy_helper.from_array(w, "w")] + ([numpy_helper.from_array(np.zeros(CLASSES, np.float32), "b")] if bias else [])
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, [batch, WIDTH])],
                              [helper.make_tensor_value_info("y", 1, [batch, CLASSES])], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "model.onnx")
    np.save(folder / "x.npy", x)
    np.save(folder / "labels.npy", labels)
    run("compile", "model.onnx", "-o", "train", "--loss=cross_entropy", f"--precision={precision}", f"--optimizer={optimizer}", *options)


MPIRUN = [Path(shutil.which("mpirun.openmpi") or "mpirun.openmpi"), "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2"]


def train(run, folder, *options, steps=STEPS, save="saved", before=()):
    run(*before, folder / "train", "--data=x=x.npy", "--data=labels=labels.npy", "--shuffle=off", "--lr=0.01", f"--steps={steps}", f"--save={save}",
        *options)
    return saved(folder / save)


def saved(folder):
    """@w and its @hessian of the newest checkpoint."""
    found = {}
    for file in max(folder.glob("step-*")).glob("*.safetensors"):
        raw = file.read_bytes()
        n = int.from_bytes(raw[:8], "little")
        for name, t in json.loads(raw[8:8 + n]).items():
            if name in ("w", "hessian.w"):
                at = raw[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]]
                found[name] = np.frombuffer(at, {"F64": np.float64, "F32": np.float32}[t["dtype"]]).reshape(WIDTH, CLASSES).astype(np.float64)
    return found["w"], found["hessian.w"]


@pytest.mark.parametrize("precision, limit", [("f64", 1e-9), ("f32", 1e-5)])
@pytest.mark.parametrize("settings, given", [("", {}), (",every=3,rho=0.01,beta2=0.9", {"every": 3, "rho": 0.01, "beta2": 0.9})])
def test_100_steps(run, tmp_path, data, precision, limit, settings, given):
    build(run, tmp_path, data, precision, ROWS, "sophia" + settings)
    got_w, got_h = train(run, tmp_path)
    w, h = expected(data[0].astype(np.float64), data[1].astype(np.float64), data[2], precision=precision, **given)
    assert np.abs(got_h - h).max() <= limit * h.max() and h.min() > 0
    assert np.abs(got_w - w).max() <= limit * np.abs(w).max()


def test_micro_batches_and_resuming(run, tmp_path, data):
    """Two micro-batches draw what one of twice the rows does; a training in two halves has the same bits."""
    build(run, tmp_path, data, "f64", ROWS // 2)
    got_w, got_h = train(run, tmp_path, "--accumulate=2")
    w, h = expected(data[0].astype(np.float64), data[1].astype(np.float64), data[2])
    assert np.abs(got_w - w).max() <= 1e-9 * np.abs(w).max() and np.abs(got_h - h).max() <= 1e-9 * h.max()
    train(run, tmp_path, "--accumulate=2", steps=45, save="half")
    again = train(run, tmp_path, "--accumulate=2", "--resume=half", save="half")
    assert np.array_equal(again[0], got_w) and np.array_equal(again[1], got_h)


@pytest.mark.skipif(not shutil.which(MPIRUN[0]), reason="Open MPI is not installed")
def test_two_ranks(run, tmp_path, data):
    """They draw what two micro-batches do."""
    build(run, tmp_path, data, "f64", ROWS // 2)
    one, two = train(run, tmp_path, "--accumulate=2"), train(run, tmp_path, save="ranks", before=MPIRUN)
    assert np.array_equal(one[0], two[0]) and np.array_equal(one[1], two[1])


def test_estimates_are_made_at_once(run, tmp_path, data):
    with pytest.raises(AssertionError, match="every=2, and every=5 of another: they must agree"):
        build(run, tmp_path, data, "f64", ROWS, "sophia,every=5", "--optimizer-for=w=sophia,every=2")


def test_some_parameters(run, tmp_path, data):
    """Of a group; h stays 0 before the first estimate, and a step is then one of signs."""
    build(run, tmp_path, data, "f32", ROWS, "adamw", "--optimizer-for=w=sophia,lr=0.001,weight_decay=0")
    got_w, got_h = train(run, tmp_path, steps=9)
    assert np.all(got_h == 0) and np.all(np.abs(got_w - data[0]) <= 9.01e-3) and np.abs(got_w - data[0]).max() > 8.9e-3 * 0.1
    assert np.all(train(run, tmp_path, steps=10, save="ten")[1] > 0)


def test_beside_another_with_numbers(run, tmp_path, data):
    """An estimate leaves what another optimizer keeps for all its parameters: NAdam's product, of one factor for each update."""
    build(run, tmp_path, data, "f64", ROWS, "nadam", "--optimizer-for=w=sophia,every=2", bias=True)
    run(tmp_path / "train", "--data=x=x.npy", "--data=labels=labels.npy", "--shuffle=off", "--steps=6", "--save=saved")
    for file in max((tmp_path / "saved").glob("step-*")).glob("*.safetensors"):
        raw = file.read_bytes()
        n = int.from_bytes(raw[:8], "little")
        t = json.loads(raw[8:8 + n])["mu_product"]
        got = np.frombuffer(raw[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]], np.float64)[0]
    assert got == pytest.approx(np.prod([0.9 * (1 - 0.5 * 0.96 ** (i * 0.004)) for i in range(1, 7)]), rel=1e-12)


@pytest.mark.parametrize("loss", ["mse", "output:y"])
def test_other_losses_have_no_labels_to_draw(run, tmp_path, data, loss):
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("ReduceMean", ["h"], ["y"], keepdims=0)], "g",
                              [helper.make_tensor_value_info("x", 1, [ROWS, WIDTH])], [helper.make_tensor_value_info("y", 1, [])],
                              [numpy_helper.from_array(data[0], "w")])
    if loss == "mse":
        graph.node.pop()
        graph.output[0].CopyFrom(helper.make_tensor_value_info("h", 1, [ROWS, CLASSES]))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "model.onnx")
    said = run("compile", "model.onnx", "-o", "train", f"--loss={loss}", "--optimizer=sophia", exit=4).stderr
    assert "sophia draws labels from class logits" in said
