"""What a training run means: losses against formulas, accumulation, shuffling, schedules, groups,
evaluation, and what happens with bad data."""
import math
import subprocess

import numpy as np
import onnx
import pytest
import reference
from onnx import TensorProto, helper, numpy_helper
from tolerances import limit

ROWS, WIDTH, CLASSES = 12, 5, 3


def linear_model(path, outputs=CLASSES, log_softmax=False, shape=("batch",)):
    """logits = x W + b, x f32[batch, 5]."""
    random = np.random.default_rng(0)
    w = random.standard_normal((WIDTH, outputs)).astype(np.float32)
    b = random.standard_normal(outputs).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "fc.weight"], ["h"], name="matmul"),
             helper.make_node("Add", ["h", "fc.bias"], ["z" if log_softmax else "logits"], name="add")]
    if log_softmax:
        nodes.append(helper.make_node("LogSoftmax", ["z"], ["logits"], name="log", axis=-1))
    graph = helper.make_graph(
        nodes, "linear", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [*shape, WIDTH])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [*shape, outputs])],
        [numpy_helper.from_array(w, "fc.weight"), numpy_helper.from_array(b, "fc.bias")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
              path)
    return w.astype(np.float64), b.astype(np.float64)


@pytest.fixture
def linear(tmp_path):
    """The model, its weights, and ROWS rows of data with labels, some of them ignored."""
    w, b = linear_model(tmp_path / "linear.onnx")
    random = np.random.default_rng(1)
    x = random.standard_normal((ROWS, WIDTH)).astype(np.float32)
    labels = random.integers(0, CLASSES, ROWS)
    labels[[1, 7]] = -100
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "labels.npy", labels)
    return tmp_path / "linear.onnx", w, b, x.astype(np.float64), labels


def trained(run, folder, compile_options, train_options, data=("x", "labels"), exit=0):
    """Compiles linear.onnx of a folder in f64 and trains; the log's lines."""
    exe, log = folder / "train", folder / "log.jsonl"
    run("compile", folder / "linear.onnx", "-o", exe, "--precision=f64", *compile_options)
    files = [a for n in data for a in ("--data", f"{n}={folder / n}.npy")]
    done = run(exe, *files, "--log", log, "--progress=off", *train_options, exit=exit)
    return [line for line in reference.log_lines(log) if "lr" in line] if exit == 0 else done


# ---- losses: sum of w * l and of w over the batch

def log_softmax(z):
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def cross_entropy(z, labels, smoothing=0.0, weight=None):
    """As torch.nn.functional.cross_entropy with reduction="mean"."""
    logp, valid = log_softmax(z), labels != -100
    weight = np.ones(z.shape[-1]) if weight is None else weight
    at = np.where(valid, labels, 0)
    w = weight[at] * valid
    nll = -np.take_along_axis(logp, at[:, None], 1)[:, 0] * w
    smooth = -(logp * weight).sum(-1) * valid
    return ((1 - smoothing) * nll.sum() + smoothing / z.shape[-1] * smooth.sum()) / w.sum()


ELEMENTWISE = {
    "mse": lambda z, y: (z - y) ** 2,
    "l1": lambda z, y: np.abs(z - y),
    "huber": lambda z, y: np.where(np.abs(z - y) <= 1, 0.5 * (z - y) ** 2, np.abs(z - y) - 0.5),
    "bce_with_logits": lambda z, y: np.maximum(z, 0) - z * y + np.log1p(np.exp(-np.abs(z))),
}


def numeric_gradient(loss, w):
    grad = np.zeros_like(w)
    for i in np.ndindex(w.shape):
        at, h = w[i], 1e-5
        w[i] = at + h
        up = loss()
        w[i] = at - h
        grad[i] = (up - loss()) / (2 * h)
        w[i] = at
    return grad


def check_loss(run, folder, options, loss, w, labels="labels.npy", engine="interp"):
    run("grad", folder / "linear.onnx", f"--engine={engine}", "--precision=f64", *options,
        "--input", f"x={folder}/x.npy", "--input", f"labels={folder}/{labels}",
        "--output-dir", folder / "out")
    got = float(np.load(folder / "out/loss.npy"))
    assert got == pytest.approx(loss(), rel=limit("formula f64"))
    grads = {k.removeprefix("grad."): v for k, v in reference.results(folder / "out").items()}
    assert np.allclose(grads["fc.weight"], numeric_gradient(loss, w), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("engine", ["interp", "compiled"])
@pytest.mark.parametrize("kind", ELEMENTWISE)
def test_losses_of_elements(run, linear, tmp_path, kind, engine):
    _, w, b, x, _ = linear
    y = np.random.default_rng(2).standard_normal((ROWS, CLASSES)).astype(np.float32)
    if kind == "bce_with_logits":
        y = (y > 0).astype(np.float32)
    np.save(tmp_path / "labels.npy", y)
    check_loss(run, tmp_path, [f"--loss={kind}"],
               lambda: ELEMENTWISE[kind](x @ w + b, y.astype(np.float64)).mean(), w, engine=engine)


@pytest.mark.parametrize("engine", ["interp", "compiled"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy(run, linear, tmp_path, smoothing, weighted, engine):
    _, w, b, x, labels = linear
    weight = np.array([0.5, 2.0, 1.25], np.float32) if weighted else None
    options = ["--loss=cross_entropy", f"--label-smoothing={smoothing}"]
    if weighted:
        np.save(tmp_path / "weight.npy", weight)
        options += ["--class-weight", tmp_path / "weight.npy"]
    check_loss(run, tmp_path, options,
               lambda: cross_entropy(x @ w + b, labels, smoothing, weight), w, engine=engine)


def test_nll_takes_log_probabilities(run, linear, tmp_path):
    _, _, _, x, labels = linear
    w, b = linear_model(tmp_path / "linear.onnx", log_softmax=True)
    check_loss(run, tmp_path, ["--loss=nll"], lambda: cross_entropy(x @ w + b, labels), w)


def test_labels_may_be_s32(run, linear, tmp_path):
    _, w, b, x, labels = linear
    np.save(tmp_path / "short.npy", labels.astype(np.int32))
    check_loss(run, tmp_path, ["--loss=cross_entropy"],
               lambda: cross_entropy(x @ w + b, labels), w, labels="short.npy")


def test_the_graph_may_compute_its_own_loss(run, linear, tmp_path):
    path, w, b, x, _ = linear
    model = onnx.load(path)
    model.graph.node.extend([
        helper.make_node("Mul", ["logits", "logits"], ["squares"], name="square"),
        helper.make_node("ReduceMean", ["squares"], ["own"], name="mean", keepdims=0)])
    model.graph.output.append(helper.make_tensor_value_info("own", TensorProto.FLOAT, []))
    onnx.save(model, path)
    run("grad", path, "--engine=interp", "--precision=f64", "--loss=output:own", "--input",
        f"x={tmp_path}/x.npy", "--output-dir", tmp_path / "out")
    assert float(np.load(tmp_path / "out/loss.npy")) == pytest.approx(((x @ w + b) ** 2).mean(),
                                                                    rel=1e-12)


def test_a_loss_graph_joins_by_name(run, linear, tmp_path):
    path, w, b, x, _ = linear
    target = np.random.default_rng(3).standard_normal((ROWS, CLASSES)).astype(np.float32)
    np.save(tmp_path / "target.npy", target)
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", CLASSES])
             for n in ("logits", "target")]
    graph = helper.make_graph(
        [helper.make_node("Sub", ["logits", "target"], ["d"], name="sub"),
         helper.make_node("Abs", ["d"], ["a"], name="abs"),
         helper.make_node("ReduceMean", ["a"], ["loss"], name="mean", keepdims=0)], "loss", ports,
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
              tmp_path / "loss.onnx")
    run("grad", path, "--engine=interp", "--precision=f64", f"--loss=onnx:{tmp_path}/loss.onnx",
        "--input", f"x={tmp_path}/x.npy", "--input", f"target={tmp_path}/target.npy",
        "--output-dir", tmp_path / "out")
    want = np.abs(x @ w + b - target).mean()
    assert float(np.load(tmp_path / "out/loss.npy")) == pytest.approx(want, rel=1e-12)


# ---- accumulation, order, rows

def losses(lines):
    return [line["loss"] for line in lines]


@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_accumulation_equals_one_batch(run, linear, tmp_path, loss):
    """The ignored labels lie unevenly over the micro-batches: the mean is over the whole step."""
    if loss == "mse":
        np.save(tmp_path / "labels.npy", np.ones((ROWS, CLASSES), np.float32))
    options = ["--steps=6", "--lr=0.1", "--shuffle=on", "--clip-norm=0.5"]
    one = trained(run, tmp_path, [f"--loss={loss}", "--dim=batch=6"], options)
    three = trained(run, tmp_path, [f"--loss={loss}", "--dim=batch=2"],
                    [*options, "--accumulate=3"])
    assert losses(three) == pytest.approx(losses(one), rel=limit("accumulate f64"))
    assert [s["grad_norm"] for s in three] == pytest.approx([s["grad_norm"] for s in one], rel=1e-11)


def test_accumulation_equals_one_batch_on_gpt2(run, models, tmp_path):
    """The same trace, as one batch of 8 and as two of 4: to 1e-12."""
    found = []
    for i, batch in enumerate((8, 4)):
        exe, log = tmp_path / f"train{i}", tmp_path / f"log{i}.jsonl"
        run("compile", models / "gpt2_mini/model.onnx", "-o", exe, "--precision=f64",
            f"--dim=batch={batch}", "--dim=seq=64")
        run(exe, "--data", f"input_ids={models}/gpt2_mini/input_ids.npy", "--data",
            f"labels={models}/gpt2_mini/labels.npy", "--steps=5", f"--accumulate={i + 1}",
            "--shuffle=off", "--log", log, "--progress=off")
        found.append(reference.step_losses(log))
    assert found[1] == pytest.approx(found[0], rel=limit("accumulate f64"))


def test_shuffling_depends_on_the_seed_alone(run, linear, tmp_path):
    compiled = ["--loss=cross_entropy", "--dim=batch=3", "--optimizer=sgd"]
    options = ["--epochs=3", "--lr=0.01"]
    first = losses(trained(run, tmp_path, compiled, options))
    assert losses(trained(run, tmp_path, compiled, options)) == first
    assert losses(trained(run, tmp_path, compiled, [*options, "--seed=1"])) != first
    assert losses(trained(run, tmp_path, compiled, [*options, "--shuffle=off"])) != first


def test_an_epoch_visits_every_row_once_in_a_new_order(run, linear, tmp_path):
    """With rate 0 the loss of a one-row batch names the row."""
    np.save(tmp_path / "labels.npy", np.zeros((ROWS, CLASSES), np.float32))
    _, w, b, x, _ = linear
    of_row = [((x[i] @ w + b) ** 2).mean() for i in range(ROWS)]
    lines = losses(trained(run, tmp_path, ["--loss=mse", "--dim=batch=1", "--optimizer=sgd"],
                           ["--epochs=3", "--lr=0"]))
    rows = [int(np.argmin(np.abs(np.array(of_row) - loss))) for loss in lines]
    epochs = [rows[i * ROWS:(i + 1) * ROWS] for i in range(3)]
    assert all(sorted(e) == list(range(ROWS)) for e in epochs)
    assert epochs[0] != epochs[1] != epochs[2] and epochs[0] != list(range(ROWS))


def test_the_last_partial_batch(run, linear, tmp_path):
    """12 rows in batches of 5: dropped, or padded with rows of weight 0."""
    _, w, b, x, labels = linear
    compiled = ["--loss=cross_entropy", "--dim=batch=5", "--optimizer=sgd"]
    options = ["--epochs=1", "--lr=0", "--shuffle=off"]
    assert len(trained(run, tmp_path, compiled, options)) == 2
    lines = losses(trained(run, tmp_path, compiled, [*options, "--keep-last"]))
    want = [cross_entropy(x[i:i + 5] @ w + b, labels[i:i + 5]) for i in (0, 5, 10)]
    assert lines == pytest.approx(want, rel=1e-12)


def test_evaluation_covers_every_row(run, linear, tmp_path):
    _, w, b, x, labels = linear
    exe = tmp_path / "train"
    run("compile", tmp_path / "linear.onnx", "-o", exe, "--precision=f64", "--dim=batch=5")
    files = [a for n in ("x", "labels") for k in ("--data", "--eval-data")
             for a in (k, f"{n}={tmp_path}/{n}.npy")]
    log = tmp_path / "log.jsonl"
    run(exe, *files, "--steps=1", "--lr=0", "--log", log, "--progress=off")
    evals = [line for line in reference.log_lines(log) if "eval_loss" in line]
    z, valid = x @ w + b, labels != -100
    assert evals[0]["eval_loss"] == pytest.approx(cross_entropy(z, labels), rel=1e-12)
    assert evals[0]["eval_accuracy"] == pytest.approx((z.argmax(1) == labels)[valid].mean())


def evaluated_traces():
    return [(name, i, p) for name, i, p in reference.traces()
            if "eval" in reference.load(name)["traces"][i][p]]


@pytest.mark.parametrize("name, trace, precision", evaluated_traces())
def test_evaluation_is_pytorchs(run, of_trace, models, tmp_path, name, trace, precision):
    meta = reference.load(name)
    files = meta["eval"]["files"]
    exe, log = of_trace(name, trace, precision), tmp_path / "log.jsonl"
    run(exe, *reference.train_options(name, precision, trace), "--log", log, "--progress=off",
        "--eval-data", f"{meta['inputs'][0]['name']}={files[0]}", "--eval-data",
        f"labels={files[1]}", cwd=models / name)
    want = meta["traces"][trace][precision]["eval"]
    last = [line for line in reference.log_lines(log) if "eval_loss" in line][-1]
    assert last["eval_loss"] == pytest.approx(want["loss"], rel=limit(f"eval {precision}", name))
    assert last["eval_accuracy"] == pytest.approx(want["accuracy"], abs=1e-3)


# ---- hyperparameters

def rate(kind, step, steps, lr, low, warmup):
    if step < warmup:
        return lr * (step + 1) / warmup
    r = (step - warmup) / (steps - warmup)
    if kind == "cosine":
        return low + (lr - low) * (1 + math.cos(math.pi * r)) / 2
    if kind == "linear":
        return lr + (low - lr) * r
    if kind == "wsd":
        decay = warmup + 0.9 * (steps - warmup)
        return lr if step < decay else lr + (low - lr) * (step - decay) / (steps - decay)
    if kind == "polynomial,power=2":
        return low + (lr - low) * (1 - r) ** 2
    if kind == "step,size=5,gamma=0.5":
        return lr * 0.5 ** ((step - warmup) // 5)
    return lr


@pytest.mark.parametrize("warmup", [0, 4])
@pytest.mark.parametrize("kind", ["constant", "linear", "cosine", "wsd", "polynomial,power=2", "step,size=5,gamma=0.5"])
def test_learning_rates(run, linear, tmp_path, kind, warmup):
    lines = trained(run, tmp_path, ["--dim=batch=3"], [
        "--steps=24", "--lr=0.02", "--min-lr=0.003", f"--warmup={warmup}", f"--lr-schedule={kind}"])
    want = [rate(kind, s, 24, 0.02, 0.003, warmup) for s in range(24)]
    assert [line["lr"] for line in lines] == pytest.approx(want, rel=1e-12)


def exported_weights(run, folder, compile_options, train_options):
    trained(run, folder, compile_options, [*train_options, "--export", folder / "out.onnx"])
    model = onnx.load(folder / "out.onnx")
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def test_frozen_parameters_keep_every_bit(run, linear, tmp_path):
    path, *_ = linear
    old = {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    steps = ["--steps=5", "--lr=0.1"]
    new = exported_weights(run, tmp_path, ["--dim=batch=3", "--freeze=*weight"], steps)
    assert np.array_equal(new["fc.weight"], old["fc.weight"])
    assert not np.array_equal(new["fc.bias"], old["fc.bias"])
    # Later rules win.
    new = exported_weights(run, tmp_path, ["--dim=batch=3", "--freeze=*", "--train=*bias"], steps)
    assert np.array_equal(new["fc.weight"], old["fc.weight"])
    assert not np.array_equal(new["fc.bias"], old["fc.bias"])


def test_decay_and_rate_groups(run, linear, tmp_path):
    """SGD by hand: p - lr scale (g + decay p)."""
    _, w, b, x, labels = linear
    new = exported_weights(run, tmp_path, [
        "--dim=batch=12", "--optimizer=sgd", "--no-decay=*bias", "--lr-scale=*bias=0.5"],
        ["--steps=1", "--lr=0.1", "--weight-decay=0.3", "--shuffle=off"])
    gw = numeric_gradient(lambda: cross_entropy(x @ w + b, labels), w)
    gb = numeric_gradient(lambda: cross_entropy(x @ w + b, labels), b)
    assert np.allclose(new["fc.weight"], w - 0.1 * (gw + 0.3 * w), rtol=1e-6, atol=1e-7)
    assert np.allclose(new["fc.bias"], b - 0.05 * gb, rtol=1e-6, atol=1e-7)


def test_global_norm_is_clipped(run, linear, tmp_path):
    _, w, b, x, labels = linear
    new = exported_weights(run, tmp_path, ["--dim=batch=12", "--optimizer=sgd"],
                           ["--steps=1", "--lr=1", "--clip-norm=0.01", "--shuffle=off"])
    moved = math.sqrt(((new["fc.weight"] - w) ** 2).sum() + ((new["fc.bias"] - b) ** 2).sum())
    assert moved == pytest.approx(0.01, rel=1e-3)


# ---- bad data: exit 6, naming file, row and value

@pytest.fixture
def executable(run, linear, tmp_path):
    run("compile", tmp_path / "linear.onnx", "-o", tmp_path / "train", "--dim=batch=3")
    return tmp_path / "train"


def refuse(run, exe, folder, words, exit=6, **files):
    names = {"x": "x.npy", "labels": "labels.npy", **files}
    data = [a for n, f in names.items() if f for a in ("--data", f"{n}={folder / f}")]
    said = run(exe, *data, "--steps=4", "--shuffle=off", "--progress=off", exit=exit).stderr
    errors = [line for line in said.splitlines() if line.startswith("gradc: error: ")]
    assert errors and all(w in errors[0] for w in words), said


def test_bad_data_is_refused(run, executable, tmp_path):
    def write(name, array):
        np.save(tmp_path / name, array)
        return name

    x, labels = np.load(tmp_path / "x.npy"), np.load(tmp_path / "labels.npy")
    beyond, negative, nan = labels.copy(), labels.copy(), x.copy()
    beyond[5], negative[4], nan[8, 2] = CLASSES, -1, np.nan
    whole = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "cut.npy").write_bytes(whole[:-7])
    (tmp_path / "text.npy").write_text("1 2 3\n")

    refuse(run, executable, tmp_path, ["type.npy"], x=write("type.npy", x.astype(np.int64)))
    refuse(run, executable, tmp_path, ["shape.npy"], x=write("shape.npy", x[:, :4]))
    refuse(run, executable, tmp_path, ["cut.npy"], x="cut.npy")
    refuse(run, executable, tmp_path, ["text.npy"], x="text.npy")
    refuse(run, executable, tmp_path, ["beyond.npy", "5", "3"], labels=write("beyond.npy", beyond))
    refuse(run, executable, tmp_path, ["negative.npy", "4", "-1"],
           labels=write("negative.npy", negative))
    refuse(run, executable, tmp_path, ["nan.npy", "8"], x=write("nan.npy", nan))
    refuse(run, executable, tmp_path, ["floats.npy"],
           labels=write("floats.npy", labels.astype(np.float32)))
    refuse(run, executable, tmp_path, ["few.npy", "9"], x=write("few.npy", x[:9]))
    refuse(run, executable, tmp_path, [], exit=5, x="absent.npy")


def test_a_token_beyond_the_vocabulary_is_refused(run, models, tmp_path):
    path = models / "gpt2_mini/model.onnx"
    exe = tmp_path / "train"
    run("compile", path, "-o", exe, "--dim=batch=2", "--dim=seq=16")
    tokens = np.arange(400, dtype=np.uint16) % 250
    tokens[77] = 999
    tokens.tofile(tmp_path / "tokens.bin")
    said = run(exe, "--tokens", tmp_path / "tokens.bin", "--steps=4", "--shuffle=off",
               "--progress=off", exit=6).stderr
    assert "tokens.bin" in said and "999" in said


def test_a_loss_that_is_not_finite_stops_the_run(run, linear, tmp_path):
    log = tmp_path / "log.jsonl"
    run("compile", tmp_path / "linear.onnx", "-o", tmp_path / "train", "--dim=batch=3",
        "--optimizer=sgd", "--loss=mse")
    np.save(tmp_path / "labels.npy", np.zeros((ROWS, CLASSES), np.float32))
    run(tmp_path / "train", "--data", f"x={tmp_path}/x.npy", "--data",
        f"labels={tmp_path}/labels.npy", "--steps=40", "--lr=1e18", "--log", log,
        "--progress=off", exit=8)
    assert reference.log_lines(log)[-1]["loss"] is None or \
        reference.log_lines(log)[-1]["grad_norm"] is None


def test_compile_lists_open_dimensions(run, linear, tmp_path):
    said = run("compile", tmp_path / "linear.onnx", "-o", tmp_path / "train", exit=2).stderr
    assert "batch" in said
    run("compile", tmp_path / "linear.onnx", "--dim=batch=2", exit=2)  # no -o
    run("compile", tmp_path / "absent.onnx", "-o", tmp_path / "train", "--dim=batch=2", exit=5)
    run("compile", tmp_path / "linear.onnx", "-o", tmp_path / "t", "--dim=batch=2",
        "--precision=mxfp8", exit=2)
    run("compile", tmp_path / "linear.onnx", "-o", tmp_path / "t", "--dim=batch=2",
        "--optimizer=magic", exit=2)


# ---- several bindings of open dimensions in one executable

def sequence_data(folder, length):
    """x.npy [6, length, 5] and labels.npy [6, length] in their own folder."""
    here = folder / f"t{length}"
    here.mkdir()
    random = np.random.default_rng(length)
    np.save(here / "x.npy", random.standard_normal((6, length, WIDTH)).astype(np.float32))
    np.save(here / "labels.npy", random.integers(0, CLASSES, (6, length)))
    return ["--data", f"x={here / 'x.npy'}", "--data", f"labels={here / 'labels.npy'}"]


def test_data_pick_the_binding(run, tmp_path):
    linear_model(tmp_path / "linear.onnx", shape=("batch", "seq"))
    losses = {}

    def train(exe, length, exit=0):
        log = tmp_path / "log.jsonl"
        done = run(exe, *data[length], "--log", log, "--progress=off", "--epochs=2",
                   "--lr=0.1", exit=exit)
        return reference.step_losses(log) if exit == 0 else done

    data = {t: sequence_data(tmp_path, t) for t in (2, 4, 7)}
    for name, seq in (("two", "2"), ("four", "4"), ("both", "2,4")):
        exe = tmp_path / name
        run("compile", tmp_path / "linear.onnx", "-o", exe, "--precision=f64", "--dim", "batch=3",
            f"--dim=seq={seq}")
        for t in (2, 4):
            if str(t) in seq:
                losses[name, t] = train(exe, t)
    assert losses["both", 2] == losses["two", 2]
    # gradients are seeded with the first binding's target count: the last bit may differ
    np.testing.assert_allclose(losses["both", 4], losses["four", 4], rtol=limit("accumulate f64"))
    done = train(tmp_path / "both", 7, exit=6)
    assert "batch=3 seq=2" in done.stderr and "batch=3 seq=4" in done.stderr


def test_every_combination_of_bindings(run, tmp_path):
    linear_model(tmp_path / "linear.onnx", shape=("batch", "seq"))
    run("compile", tmp_path / "linear.onnx", "-o", tmp_path / "train", "--dim=batch=1,3",
        "--dim=seq=2,4")
    info = run(tmp_path / "train", "--info").stdout
    for binding in ("batch=1 seq=2", "batch=1 seq=4", "batch=3 seq=2", "batch=3 seq=4"):
        assert f"program accumulate {binding}:" in info
    assert info.count("program update") == 1


SIZES = [  # words, rows of the data; rows of a micro-batch, and the words that make the same step with it alone
    ([], 12, 5, []), (["--micro-batch=2"], 12, 2, []), (["--micro-batch=3", "--accumulate=2"], 12, 3, ["--accumulate=2"]),
    (["--global-batch=6"], 12, 3, ["--accumulate=2"]), (["--global-batch=10", "--accumulate=5"], 12, 2, ["--accumulate=5"]),
    (["--accumulate=4"], 12, 3, ["--accumulate=4"]), ([], 3, 3, []), ([], 4, 3, []), (["--accumulate=2"], 4, 2, ["--accumulate=2"]),
]


@pytest.fixture(scope="module")
def sizes(gradc, tmp_path_factory):
    """Executables of one model for 2, 3 and 5 rows, and for each of them; rows of data."""
    folder = tmp_path_factory.mktemp("sizes")
    linear_model(folder / "linear.onnx")
    for name in "2,3,5", "2", "3", "5":
        subprocess.run([gradc, "compile", folder / "linear.onnx", "-o", folder / name, "--precision=f64", f"--dim=batch={name}"], check=True, capture_output=True)
    return folder


@pytest.mark.parametrize("words, rows, size, same", SIZES)
def test_rows_pick_the_binding(run, sizes, tmp_path, words, rows, size, same):
    """As --micro-batch and --global-batch say it, else the most that a step has data for; the numbers are those of an executable of that size."""
    random = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", random.standard_normal((rows, WIDTH)).astype(np.float32))
    np.save(tmp_path / "labels.npy", random.integers(0, CLASSES, rows))
    data = [a for n in ("x", "labels") for a in ("--data", f"{n}={tmp_path / n}.npy", "--eval-data", f"{n}={tmp_path / n}.npy")]
    lines = {}
    for name, more in ("2,3,5", words), (str(size), same):
        done = run(sizes / name, *data, *more, "--steps=3", "--lr=0.1", "--eval-every=1", "--log", tmp_path / "log")
        lines[name] = reference.log_lines(tmp_path / "log")
        assert f"binding: batch={size}" in done.stderr
    both, alone = lines.values()
    assert [line.get("samples") for line in both] == [line.get("samples") for line in alone]
    for key in "loss", "eval_loss", "grad_norm":
        np.testing.assert_allclose([line.get(key, 0) for line in both], [line.get(key, 0) for line in alone], rtol=limit("accumulate f64"))


def test_rows_that_no_binding_has_are_refused(run, sizes, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((12, WIDTH), np.float32))
    np.save(tmp_path / "labels.npy", np.zeros(12, np.int64))
    data = [a for n in ("x", "labels") for a in ("--data", f"{n}={tmp_path / n}.npy")]
    assert "--micro-batch=4: 2, 3, 5 rows are compiled in" in run(sizes / "2,3,5", *data, "--micro-batch=4", exit=2).stderr


@pytest.mark.parametrize("rows", [2, 3, 5, 4])
def test_one_run_takes_the_binding_of_its_inputs(run, sizes, tmp_path, rows):
    x = np.random.default_rng(rows).standard_normal((rows, WIDTH)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    done = run(sizes / "2,3,5", "--once", f"--input=x={tmp_path / 'x.npy'}", "--output-dir", tmp_path / "o", exit=6 if rows == 4 else 0)
    if rows == 4:
        assert 'no binding has the shapes of the files: there are "batch=2", "batch=3", "batch=5"' in done.stderr
        return
    model = onnx.load(sizes / "linear.onnx")
    w, b = (numpy_helper.to_array(t).astype(np.float64) for t in model.graph.initializer)
    np.testing.assert_allclose(np.load(tmp_path / "o/logits.npy"), x.astype(np.float64) @ w + b, rtol=1e-12)


def test_a_token_stream_picks_the_longest_binding(run, models, tmp_path):
    text = tmp_path / "text.txt"
    text.write_bytes(bytes(range(256)) * 8)
    run("compile", models / "gpt2_mini/model.onnx", "-o", tmp_path / "train", "--dim=batch=2",
        "--dim=seq=8,16,4")
    log = tmp_path / "log.jsonl"
    run(tmp_path / "train", "--text", text, "--steps=1", "--log", log, "--progress=off")
    assert [line["tokens"] for line in reference.log_lines(log) if "lr" in line] == [2 * 16]


@pytest.mark.parametrize("option, message", [
    ("--dim=sek=2", "no input of"), ("--dim=seq=2,2", "2 is given twice"),
    ("--dim=seq=2,x", "need NAME=N"), ("--dim=seq=", "need NAME=N"), ("--dim=seq", "need NAME=VALUE"),
    ("--dim=seq=" + ",".join(map(str, range(1, 67))), "more than 64 combinations")])
def test_wrong_bindings_are_refused(run, tmp_path, option, message):
    linear_model(tmp_path / "linear.onnx", shape=("batch", "seq"))
    done = run("compile", tmp_path / "linear.onnx", "-o", tmp_path / "train", "--dim=batch=2", option,
               exit=2)
    assert message in done.stderr


def test_one_set_of_inputs_takes_one_binding(run, tmp_path):
    linear_model(tmp_path / "linear.onnx", shape=("batch", "seq"))
    np.save(tmp_path / "x.npy", np.zeros((1, 2, WIDTH), np.float32))
    done = run("run", tmp_path / "linear.onnx", "--input", f"x={tmp_path / 'x.npy'}", "--output-dir",
               tmp_path / "out", "--dim=seq=2,4", exit=2)
    assert "one value each" in done.stderr


# ---- options that would do nothing are refused

def test_evaluation_every_n_steps_needs_data(run, linear, tmp_path):
    done = trained(run, tmp_path, [f"--batch={ROWS}"], ["--steps=1", "--eval-every=1"], exit=2)
    assert "--eval-every" in done.stderr and "--eval-data" in done.stderr


def test_untying_needs_a_parameter(run, linear, tmp_path):
    done = run("check", linear[0], "--no-tie=fc.wait", exit=2)
    assert "--no-tie fc.wait" in done.stderr
    run("check", linear[0], "--no-tie=fc.weight")


@pytest.mark.parametrize("form", [[], ["--json"], ["--output-format=pb"]])
def test_both_engines_print_the_loss(run, linear, tmp_path, form):
    said = [run("grad", linear[0], "--precision=f64", f"--engine={engine}", "--input",
                f"x={tmp_path / 'x.npy'}", "--input", f"labels={tmp_path / 'labels.npy'}",
                "--output-dir", tmp_path / engine, *form).stdout for engine in ("interp", "compiled")]
    losses = [float(text.replace("}", "").split("loss")[1].strip('": \n')) for text in said]
    assert abs(losses[0] - losses[1]) < 1e-12 * losses[0]
