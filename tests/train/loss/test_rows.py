"""Which axis of inputs, outputs and targets counts the rows of a batch, which one the classes, and rows that see each other.
Right values are numpy's in f64."""
import json
import re

import numpy as np
import onnx
import pytest
import reference
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64
B, T, F, V = 4, 6, 3, 5
RANDOM = np.random.default_rng(0)
W = RANDOM.standard_normal((F, V)).astype(np.float32)
X = RANDOM.standard_normal((12, T, F)).astype(np.float32)  # rows first
LABELS = RANDOM.integers(0, V, (12, T))


def printed(done, name="loss"):
    """The number behind the last NAME that a run printed at its end."""
    return float(re.findall(rf"(?<!eval ){name} (?:[\d.]+ -> )?([\d.]+)", done.stdout)[-1])


def node(op, inputs, output, **attributes):
    return helper.make_node(op, inputs.split(), output.split(), **attributes)


def save(path, nodes, inputs, outputs, **weights):
    ports = [[helper.make_tensor_value_info(n, t, s) for n, t, s in l] for l in (inputs, outputs)]
    graph = helper.make_graph(nodes, "g", *ports, [numpy_helper.from_array(np.asarray(v), n) for n, v in weights.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def cross_entropy(z, labels):
    z = z - z.max(-1, keepdims=True)
    logp = z - np.log(np.exp(z).sum(-1, keepdims=True))
    return -np.take_along_axis(logp, labels[..., None], -1).mean()


def right(x=X[:B], labels=LABELS[:B]):
    return cross_entropy(x.astype(float) @ W.astype(float), labels)


# ---- layouts: rows of x [batch, time, F] come out along another axis, or several to a row

PRODUCT = node("MatMul", "x w", "z")
LAYOUTS = {  # nodes behind z [batch, time, V], shape of the output, shape that the program takes labels in
    "rows first": ([node("Identity", "z", "y")], ["batch", "time", V], [B, T]),
    "time first": ([node("Transpose", "z", "y", perm=[1, 0, 2])], ["time", "batch", V], [T, B]),
    "classes first": ([node("Transpose", "z", "y", perm=[0, 2, 1])], ["batch", V, "time"], [B, T]),
    "flat": ([node("Reshape", "z flat", "y")], ["rows", V], [B, T]),
    "flat time first": ([node("Transpose", "z", "t", perm=[1, 0, 2]), node("Reshape", "t flat", "y")], ["rows", V], [T, B]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(run, tmp_path, layout):
    nodes, shape, taken = LAYOUTS[layout]
    save(tmp_path / "m.onnx", [PRODUCT, *nodes], [("x", FLOAT, ["batch", "time", F])], [("y", FLOAT, shape)], w=W, flat=[-1, V])
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "labels.npy", LABELS)
    axis = ",axis=1" if layout == "classes first" else ""
    said = run("compile", "m.onnx", "-o", "train", "--dim=time=6", "--batch=4", f"--loss=cross_entropy:y{axis}", "--precision=f64").stdout
    assert f"labels: s64[{taken[0]},{taken[1]}]" in said
    data = ["--data=x=x.npy", "--data=labels=labels.npy", "--shuffle=off", "--lr=0", "--progress=off", "--table=off", "--log=log.jsonl"]
    done = run(tmp_path / "train", *data, "--eval-data=x=x.npy", "--eval-data=labels=labels.npy", "--epochs=1")
    losses = [line["loss"] for line in reference.log_lines(tmp_path / "log.jsonl") if "lr" in line]
    assert np.allclose(losses, [right(X[i:i + B], LABELS[i:i + B]) for i in (0, 4, 8)], rtol=1e-12)
    assert np.isclose(printed(done, "eval loss"), right(X, LABELS), rtol=1e-8)
    if layout == "flat":  # all labels in one list are the same numbers in the same order
        np.save(tmp_path / "labels.npy", LABELS.reshape(-1))
        done = run(tmp_path / "train", *data, "--steps=1")
        assert np.isclose(printed(done), right(), rtol=1e-8)
        np.save(tmp_path / "labels.npy", LABELS.reshape(-1)[:-1])
        assert "takes any number of samples of [6]" in run(tmp_path / "train", *data, exit=6).stderr


def test_padding_of_flat_and_time_first_rows(run, tmp_path):
    """Seven rows in batches of four: the last one has three, the weights of whose targets are 1."""
    np.save(tmp_path / "x.npy", X[:7])
    np.save(tmp_path / "labels.npy", LABELS[:7])
    for layout in ("flat", "flat time first"):
        nodes, shape, _ = LAYOUTS[layout]
        save(tmp_path / "m.onnx", [PRODUCT, *nodes], [("x", FLOAT, ["batch", "time", F])], [("y", FLOAT, shape)], w=W, flat=[-1, V])
        run("compile", "m.onnx", "-o", "train", "--dim=time=6", "--batch=4", "--precision=f64")
        run(tmp_path / "train", "--data=x=x.npy", "--data=labels=labels.npy", "--keep-last", "--shuffle=off", "--lr=0", "--progress=off",
            "--epochs=1", "--log=log.jsonl")
        losses = [line["loss"] for line in reference.log_lines(tmp_path / "log.jsonl") if "lr" in line]
        assert np.allclose(losses, [right(), right(X[4:7], LABELS[4:7])], rtol=1e-12)


TARGETS = {  # how a target that is an input of the model lies, beside which output
    "flat beside flat": ("flat", [B * T], lambda l: l.reshape(-1)),
    "rows beside flat": ("flat", ["batch", "time"], lambda l: l),
    "rows beside time first": ("time first", ["batch", "time"], lambda l: l),
    "time first beside time first": ("time first", ["time", "batch"], lambda l: l.T.copy()),
}


@pytest.mark.parametrize("case", TARGETS)
@pytest.mark.parametrize("time", [T, B])  # as many as rows: shapes do not tell
def test_targets_among_the_inputs(run, tmp_path, case, time):
    layout, shape, lay = TARGETS[case]
    shape = [B * time] if shape == [B * T] else shape
    nodes, out, _ = LAYOUTS[layout]
    save(tmp_path / "m.onnx", [PRODUCT, *nodes, node("Identity", "l", "seen")],
         [("x", FLOAT, ["batch", "time", F]), ("l", INT, shape)], [("y", FLOAT, out), ("seen", INT, shape)], w=W, flat=[-1, V])
    x, labels = X[:B, :time], LABELS[:B, :time]
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "l.npy", lay(labels))
    options = ["m.onnx", f"--dim=time={time}", "--batch=4", "--loss=cross_entropy:y,target=l", "--precision=f64"]
    run("grad", *options, "--engine=interp", "--input=x=x.npy", "--input=l=l.npy", "--output-dir=out")
    assert np.isclose(np.load(tmp_path / "out/loss.npy"), right(x, labels), rtol=1e-12)
    run("compile", *options, "-o", "train")
    np.save(tmp_path / "l.npy", labels)  # of a training: rows first
    done = run(tmp_path / "train", "--data=x=x.npy", "--data=l=l.npy", "--steps=1", "--shuffle=off", "--progress=off")
    assert np.isclose(printed(done), right(x, labels), rtol=1e-8)


def test_several_numbers_to_a_row(run, tmp_path):
    """x [batch, 2, F] as [2 batch, F], compared with numbers in one list or in pairs."""
    save(tmp_path / "m.onnx", [node("Reshape", "x s", "r"), node("MatMul", "r w", "y")], [("x", FLOAT, ["batch", 2, F])],
         [("y", FLOAT, ["rows", V])], w=W, s=[-1, F])
    x, y = X[:8, :2], RANDOM.standard_normal((8, 2, V)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    run("compile", "m.onnx", "-o", "train", "--batch=4", "--loss=mse", "--precision=f64")
    want = ((x[:4].astype(float) @ W - y[:4]) ** 2).mean()
    for shape in ((8, 2, V), (16, V)):
        np.save(tmp_path / "labels.npy", y.reshape(shape))
        done = run(tmp_path / "train", "--data=x=x.npy", "--data=labels=labels.npy", "--steps=1", "--shuffle=off", "--progress=off")
        assert np.isclose(printed(done), want, rtol=1e-8)


# ---- inputs whose rows are not axis 0

def recurrent(path, dims, last, bidirectional=False):
    """A default nn.LSTM's layout: x [time, batch, F]; its last step, or all, to V classes."""
    r = np.random.default_rng(1)
    shape = [("time" if d == "time" else d) for d in dims]
    weights = {"W": r.standard_normal((1, 4 * 2, F)), "R": r.standard_normal((1, 4 * 2, 2)), "v": r.standard_normal((2, V))}
    nodes = [node("LSTM", "x W R", "h3", hidden_size=2), node("Squeeze", "h3 one", "h")]
    nodes += [node("Gather", "h minus", "g", axis=0)] if last else [node("Identity", "h", "g")]
    nodes.append(node("MatMul", "g v", "y"))
    save(path, nodes, [("x", FLOAT, [*shape, F])], [("y", FLOAT, [shape[1], V] if last else [*shape, V])],
         one=np.array([1]), minus=np.array(-1), **{k: v.astype(np.float32) for k, v in weights.items()})
    return {k: v.astype(np.float32).astype(float) for k, v in weights.items()}


def lstm(w, x):
    """y [rows, time, V] of x [rows, time, F]; gates i, o, f, c."""
    def sigmoid(a):
        return 1 / (1 + np.exp(-a))
    h, c, out = np.zeros((len(x), 2)), np.zeros((len(x), 2)), []
    for t in range(x.shape[1]):
        i, o, f, g = np.split(x[:, t] @ w["W"][0].T + h @ w["R"][0].T, 4, axis=1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        out.append(h @ w["v"])
    return np.stack(out, 1)


@pytest.mark.parametrize("dims, options", [
    (["time", "batch"], ["--dim=time=4", "--batch=4"]), (["seq_len", "N"], ["--dim=seq_len=4", "--dim=N=4"]),
    ([4, "batch_size"], ["--batch=4"]), ([4, 4], ["--batch-axis=x=1"])])
@pytest.mark.parametrize("last", [True, False])
def test_time_first(run, tmp_path, dims, options, last):
    """With as many steps as rows: only names, or the option, tell them apart."""
    w = recurrent(tmp_path / "m.onnx", dims, last)
    x, labels = X[:7, :4], LABELS[:7, 0] if last else LABELS[:7, :4]
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "labels.npy", labels)
    run("compile", "m.onnx", "-o", "train", *options, "--precision=f64")
    z = lstm(w, x.astype(float))
    z = z[:, -1] if last else z
    done = run(tmp_path / "train", "--data=x=x.npy", "--data=labels=labels.npy", "--keep-last", "--shuffle=off", "--lr=0", "--epochs=1",
               "--progress=off", "--log=log.jsonl", "--eval-data=x=x.npy", "--eval-data=labels=labels.npy")
    losses = [line["loss"] for line in reference.log_lines(tmp_path / "log.jsonl") if "lr" in line]
    assert np.allclose(losses, [cross_entropy(z[:4], labels[:4]), cross_entropy(z[4:], labels[4:])], rtol=1e-10)
    assert np.isclose(printed(done, "eval loss"), cross_entropy(z, labels), rtol=1e-8)


def test_time_first_that_nothing_names(run, tmp_path):
    """Rows along axis 0 see each other, or are gone: the option that helps is named."""
    recurrent(tmp_path / "m.onnx", [4, 4], last=True)
    refused = run("compile", "m.onnx", "-o", "train", exit=2).stderr
    assert 'output "y" [4,5] has no axis that counts the 4 rows' in refused and "--batch-axis x=1" in refused
    save(tmp_path / "all.onnx", [node("Softmax", "x", "s", axis=0), node("MatMul", "s w", "y")], [("x", FLOAT, ["s0", "s1", F])],
         [("y", FLOAT, ["s0", "s1", V])], w=W)
    options = ["all.onnx", "-o", "train", "--dim=s0=4", "--dim=s1=4", "--loss=cross_entropy"]
    refused = run("compile", *options, exit=2).stderr
    assert 'rows along the first axis of input "x" depend on each other' in refused and "--batch-axis x=1: " in refused and "--batch-axis x=0: " in refused
    for axis, mix in ((0, "1"), (1, "0")):
        assert run("compile", *options, f"--batch-axis=x={axis}").stderr == ""
        assert re.search(r'rows_mix +"(.)"', run(tmp_path / "train", "--info").stdout).group(1) == mix
    refused = run("compile", "m.onnx", "-o", "train", "--batch-axis=x=5", exit=2).stderr
    assert "--batch-axis x=5: the input has rank 3" in refused
    assert "no such input" in run("compile", "m.onnx", "-o", "train", "--batch-axis=z=1", exit=2).stderr
    assert "INPUT=AXIS or INPUT=none" in run("compile", "m.onnx", "-o", "train", "--batch-axis=x=one", exit=2).stderr


def test_states_are_one_array(run, tmp_path):
    """h [1, batch, F] has its rows behind another axis: one array for every step, unless --batch-axis says otherwise."""
    save(tmp_path / "m.onnx", [node("Squeeze", "h zero", "s"), node("Add", "x s", "a"), node("MatMul", "a w", "y")],
         [("x", FLOAT, ["batch", F]), ("h", FLOAT, [1, "batch", F])], [("y", FLOAT, ["batch", V])], w=W, zero=np.array([0]))
    x, labels, h = X[:8, 0], LABELS[:8, 0], X[:8, 1]
    for name, value in (("x", x), ("labels", labels), ("h", h[None, :4]), ("each", h[:, None])):
        np.save(tmp_path / f"{name}.npy", value)
    data = ["--data=x=x.npy", "--data=labels=labels.npy", "--shuffle=off", "--lr=0", "--epochs=1", "--progress=off", "--log=log.jsonl"]

    def losses(h):
        run(tmp_path / "train", *data, f"--data=h={h}.npy")
        return [line["loss"] for line in reference.log_lines(tmp_path / "log.jsonl") if "lr" in line]

    def want(i, h):
        return cross_entropy((x[i:i + 4].astype(float) + h) @ W, labels[i:i + 4])

    said = run("compile", "m.onnx", "-o", "train", "--batch=4", "--precision=f64").stdout
    assert "  input   h: f32[1,4 batch,3], one array for every step\n" in said and "  input   x: f32[4 batch,3]\n" in said
    assert np.allclose(losses("h"), [want(i, h[:4]) for i in (0, 4)], rtol=1e-12)
    refused = run(tmp_path / "train", *data, "--data=h=each.npy", exit=6).stderr
    assert '"h" takes one array [1,4,3] for every step' in refused and "--batch-axis h=N" in refused
    said = run("compile", "m.onnx", "-o", "train", "--batch=4", "--precision=f64", "--batch-axis=h=1").stdout
    assert "  input   h: f32[1,4 batch,3], rows along axis 1\n" in said
    assert np.allclose(losses("each"), [want(i, h[i:i + 4]) for i in (0, 4)], rtol=1e-12)


# ---- outputs without rows

@pytest.mark.parametrize("nodes, shape, said", [
    ([node("ReduceMean", "a", "y", axes=[0], keepdims=1)], [1, V], "has no axis that counts the 4 rows"),
    ([node("Transpose", "a", "t", perm=[1, 0]), node("MatMul", "t a", "y")], [V, V], "has no axis that counts the 4 rows"),
])
def test_outputs_of_all_rows_together(run, tmp_path, nodes, shape, said):
    save(tmp_path / "m.onnx", [node("MatMul", "x w", "a"), *nodes], [("x", FLOAT, ["batch", F])], [("y", FLOAT, shape)], w=W)
    refused = run("compile", "m.onnx", "-o", "train", "--batch=4", "--loss=mse", exit=2).stderr
    assert said in refused and "hint: " in refused and "--loss=output:NAME" in refused
    if shape[0] == 1:  # of one row each, each output is that row's
        np.save(tmp_path / "x.npy", X[:2, 0])
        np.save(tmp_path / "labels.npy", np.zeros((2, V), np.float32))
        run("compile", "m.onnx", "-o", "train", "--batch=1", "--loss=mse", "--precision=f64")
        done = run(tmp_path / "train", "--data=x=x.npy", "--data=labels=labels.npy", "--steps=1", "--shuffle=off", "--progress=off")
        assert np.isclose(printed(done), ((X[0, 0].astype(float) @ W) ** 2).mean(), rtol=1e-8)


# ---- the class axis, where shapes leave it open

@pytest.mark.parametrize("lead, classes, axes, axis", [
    ([10], 10, None, None),            # as many rows as classes
    ([3, 7], 7, None, None),           # [B,T,V]: the last
    ([7, 7], 7, None, None),
    ([10], 10, [1, 0], None),          # rows are the last axis
    ([3, 7], 7, [0, 2, 1], 1),         # said
    ([3, 7], 7, [0, 2, 1], -2),
    ([2, 5, 5], 5, None, -1),          # [N,H,W,C]
    ([2, 5, 5], 5, [0, 3, 1, 2], None),  # [N,C,H,W]: 1
    ([2, 3, 5], 5, [0, 3, 1, 2], None),
])
def test_class_axis(run, tmp_path, lead, classes, axes, axis):
    r = np.random.default_rng(0)
    w, x = r.standard_normal((F, classes)).astype(np.float32), r.standard_normal((*lead, F)).astype(np.float32)
    labels = r.integers(0, classes, lead)
    shape = [*lead, classes]
    nodes = [node("MatMul", "x w", "z"), node("Transpose", "z", "y", perm=axes or list(range(len(shape)))), node("Identity", "l", "seen")]
    save(tmp_path / "m.onnx", nodes, [("x", FLOAT, [*lead, F]), ("l", INT, lead)],
         [("y", FLOAT, [shape[i] for i in axes] if axes else shape), ("seen", INT, lead)], w=w)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "l.npy", labels)
    run("grad", "m.onnx", "--engine=interp", "--precision=f64", "--input=x=x.npy", "--input=l=l.npy", "--output-dir=out",
        f"--loss=cross_entropy:y,target=l{f',axis={axis}' if axis else ''}")
    assert np.isclose(np.load(tmp_path / "out/loss.npy"), cross_entropy(x.astype(float) @ w, labels), rtol=1e-12)


@pytest.mark.parametrize("shape", [[2, 3, 5, 5], [2, 4, 4, 4, 4]])
def test_class_axis_that_no_rule_decides(run, tmp_path, shape):
    save(tmp_path / "m.onnx", [node("Mul", "x w", "y"), node("Identity", "l", "seen")], [("x", FLOAT, shape), ("l", INT, shape[:-1])],
         [("y", FLOAT, shape), ("seen", INT, shape[:-1])], w=np.ones(shape[1:], np.float32))
    refused = run("compile", "m.onnx", "-o", "train", "--loss=cross_entropy:y,target=l", exit=2).stderr
    assert "may be along axis " in refused and "choose with ,axis=N" in refused
    run("compile", "m.onnx", "-o", "train", "--loss=cross_entropy:y,target=l,axis=3")
    assert "axis 0 of the output holds the rows" in run("compile", "m.onnx", "-o", "train", "--loss=cross_entropy:y,target=l,axis=0",
                                                        exit=2).stderr


# ---- rows that see each other are never padded

def softmax(a, axis):
    e = np.exp(a - a.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def normalized(a):
    return (a - a.mean(0)) / np.sqrt(a.var(0) + 1e-5)


BN = ["BatchNormalization", "a s b mu va"]
SEEN = {  # nodes from a [batch, V] to n, options, what n is; NumPy's
    "mean": ([node("ReduceMean", "a", "m", axes=[0], keepdims=1), node("Sub", "a m", "n")], [], lambda a: a - a.mean(0)),
    "softmax": ([node("Softmax", "a", "n", axis=0)], [], lambda a: softmax(a, 0)),
    "each with each": ([node("Transpose", "a", "at", perm=[1, 0]), node("MatMul", "a at", "k"), node("Softmax", "k", "p", axis=1),
                        node("MatMul", "p a", "n")], [], lambda a: softmax(a @ a.T, 1) @ a),
    "batch norm": ([node(*BN, "n m2 v2", training_mode=1)], ["--eval-mode=as-exported"], normalized),
    "running sum": ([node("CumSum", "a zero", "n")], [], lambda a: a.cumsum(0)),
}


@pytest.mark.parametrize("case", SEEN)
def test_rows_that_see_each_other(run, tmp_path, case):
    nodes, options, f = SEEN[case]
    v = np.linspace(-1, 1, V * 2).reshape(V, 2).astype(np.float32)
    norm = {"s": np.ones(V), "b": np.zeros(V), "mu": np.zeros(V), "va": np.ones(V)} if case == "batch norm" else {}
    save(tmp_path / "m.onnx", [node("MatMul", "x w", "a"), *nodes, node("MatMul", "n v", "y")], [("x", FLOAT, ["batch", F])],
         [("y", FLOAT, ["batch", 2])], w=W, v=v, zero=np.array(0), **{k: a.astype(np.float32) for k, a in norm.items()})
    x, y = X[:, 0], X[:, 1, :2]
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "labels.npy", y)
    run("compile", "m.onnx", "-o", "train", "--batch=8", "--loss=mse", "--precision=f64", *options)
    data = ["--data=x=x.npy", "--data=labels=labels.npy", "--progress=off"]
    refused = run(tmp_path / "train", *data, "--keep-last", "--epochs=1", exit=2).stderr
    assert "--keep-last: " in refused and ("see each other" in refused or "batch statistics" in refused)
    done = run(tmp_path / "train", *data, "--steps=0", "--eval-data=x=x.npy", "--eval-data=labels=labels.npy")
    want = ((f(x[:8].astype(float) @ W) @ v.astype(float) - y[:8]) ** 2).mean()
    assert np.isclose(printed(done, "eval loss"), want, rtol=1e-8) and ", 8 of 12 rows (a row's result depends on the other rows of its batch)\n" in done.stdout
    for name, array in (("x", x[:7]), ("labels", y[:7])):
        np.save(tmp_path / f"few_{name}.npy", array)
    few = run(tmp_path / "train", *data, "--steps=0", "--eval-data=x=few_x.npy", "--eval-data=labels=few_labels.npy", exit=6).stderr
    assert "7 rows do not fill a batch of 8, and the batch cannot be padded: a row's result depends on the other rows" in few


# Places of a [batch, V] taken flat: row * V + what k [batch, 1], an input, says. With the numbers of k that are tried.
FLAT_PLACES = [node("Shape", "x", "sh"), node("Gather", "sh zero", "rows", axis=0), node("Range", "zero rows one", "i"),
               node("Mul", "i five", "at"), node("Unsqueeze", "at last", "col"), node("Reshape", "a flat", "f")]
TAKEN = [node("Add", "col j", "p"), node("Gather", "f p", "n", axis=0)]
BY_DATA = {  # nodes, numbers of k, the j that they are, whether rows see each other
    "as it is": ([node("Identity", "k", "j"), *TAKEN], [-5, 0, 5, 2], lambda k: k, True),
    "rows further": ([node("Mul", "k five", "j"), *TAKEN], [-1, 0, 1, 0], lambda k: 5 * k, True),
    "the rest": ([node("Mod", "k five", "j"), *TAKEN], [-6, 0, 13, 4], lambda k: k % 5, False),
    "within bounds": ([node("Max", "k zero", "k0"), node("Min", "k0 four", "j"), *TAKEN], [-3, 0, 9, 2], lambda k: k.clip(0, 4), False),
    "GatherND": ([node("Unsqueeze", "i last", "c"), node("Concat", "c k", "t", axis=1), node("GatherND", "a t", "g"), node("Unsqueeze", "g last", "n")],
                 [-5, 0, 4, 2], lambda k: k % 5, False),
    "GatherElements": ([node("GatherElements", "a k", "n", axis=1)], [-5, 0, 4, 2], lambda k: k % 5, False),
}


@pytest.mark.parametrize("case", BY_DATA)
def test_places_that_data_say(run, tmp_path, case):
    """Only where they stay in their row, whatever the data are, is the last batch padded."""
    nodes, numbers, j, mixes = BY_DATA[case]
    constants = {"zero": 0, "one": 1, "four": 4, "five": V, "last": [1], "flat": [-1]}
    save(tmp_path / "m.onnx", [node("MatMul", "x w", "a"), *FLAT_PLACES, *nodes, node("MatMul", "n v", "y")],
         [("x", FLOAT, ["batch", F]), ("k", INT, ["batch", 1])], [("y", FLOAT, ["batch", 2])], w=W, v=np.ones((1, 2), np.float32),
         **{name: np.array(c) for name, c in constants.items()})
    k = np.resize(numbers, (12, 1))
    x, y = X[:, 0], X[:, 1, :2]
    for name, array in (("x", x), ("k", k), ("labels", y)):
        np.save(tmp_path / f"{name}.npy", array)
    run("compile", "m.onnx", "-o", "train", "--batch=8", "--loss=mse", "--precision=f64")
    files = [f"{name}={name}.npy" for name in ("x", "k", "labels")]
    done = run(tmp_path / "train", "--steps=0", "--progress=off", *[f"--data={f}" for f in files], *[f"--eval-data={f}" for f in files])
    rows = 8 if mixes else 12
    a = (x[:rows].astype(float) @ W).ravel()
    at = np.arange(rows)[:, None] * V + j(k[:rows])
    want = ((np.where((at >= -len(a)) & (at < len(a)), a[np.clip(at, -len(a), len(a) - 1)], 0) - y[:rows]) ** 2).mean()
    assert np.isclose(printed(done, "eval loss"), want, rtol=1e-6) and (f", {rows} of 12 rows (a row's result depends on the other rows of its batch)\n" in done.stdout) == mixes


def test_an_index_outside_of_its_axis_is_no_place_of_another_row(run, tmp_path):
    """It reads 0 and writes nothing, as Gather and Scatter do along one axis."""
    k = np.array([[V], [-V - 1], [1], [-1]])
    nodes = [node("GatherElements", "x k", "taken", axis=1), node("ScatterElements", "x k u", "put", axis=1),
             node("Concat", "c k", "t", axis=1), node("GatherND", "x t", "tuples")]
    x, u = RANDOM.standard_normal((4, V)).astype(np.float32), np.full((4, 1), 7, np.float32)
    save(tmp_path / "m.onnx", nodes, [("x", FLOAT, [4, V]), ("k", INT, [4, 1]), ("u", FLOAT, [4, 1])],
         [("taken", FLOAT, [4, 1]), ("put", FLOAT, [4, V]), ("tuples", FLOAT, [4])], c=np.arange(4)[:, None])
    for name, array in (("x", x), ("k", k), ("u", u)):
        np.save(tmp_path / f"{name}.npy", array)
    run("run", "m.onnx", *[f"--input={name}={name}.npy" for name in "xku"], "--output-dir=out")
    files = json.loads((tmp_path / "out/names.json").read_text())
    taken, put, tuples = (np.load(tmp_path / "out" / files[name]["file"]) for name in ("taken", "put", "tuples"))
    want = np.array([0, 0, x[2, 1], x[3, -1]], np.float32)
    changed = x.copy()
    changed[2, 1] = changed[3, -1] = 7
    assert (taken[:, 0] == want).all() and (tuples == want).all() and (put == changed).all()


def test_rows_that_the_graph_does_not_tell(run, tmp_path):
    """[batch, F] turned upside down is followed no further: rows=1 says where they are in [V, batch, 1]."""
    nodes = [node("Slice", "x last first axes back", "r"), node("MatMul", "r w", "a"), node("Transpose", "a", "t", perm=[1, 0]),
             node("Unsqueeze", "t end", "y")]
    save(tmp_path / "m.onnx", nodes, [("x", FLOAT, ["batch", F])], [("y", FLOAT, [V, "batch", 1])], w=W, last=np.array([-1]),
         first=np.array([-99]), axes=np.array([0]), back=np.array([-1]), end=np.array([2]))
    np.save(tmp_path / "x.npy", X[:8, 0])
    np.save(tmp_path / "labels.npy", RANDOM.standard_normal((8, V, 1)).astype(np.float32))
    refused = run("compile", "m.onnx", "-o", "train", "--batch=4", "--loss=mse", exit=2).stderr
    assert "has no axis that counts the 4 rows" in refused and "rows=N" in refused
    for wrong, says in (("0", 'rows=0: output "y" is [5,4,1]'), ("3", 'rows=3: output "y" is [5,4,1]'), ("-1", 'rows=-1: output "y" is [5,4,1]'),
                        ("-4", "rows=-4: axis -4 of a rank-3 output")):
        assert says in run("compile", "m.onnx", "-o", "train", "--batch=4", f"--loss=mse:y,rows={wrong}", exit=2).stderr
    z = X[3::-1, 0].astype(float) @ W
    for rows in (1, -2):
        run("compile", "m.onnx", "-o", "train", "--batch=4", f"--loss=mse:y,rows={rows}", "--precision=f64")
        done = run(tmp_path / "train", "--data=x=x.npy", "--data=labels=labels.npy", "--steps=1", "--shuffle=off", "--progress=off")
        assert np.isclose(printed(done), ((z - np.load(tmp_path / "labels.npy")[:4, :, 0]) ** 2).mean(), rtol=1e-8)


def test_messages_show_the_axis_that_was_given(run, tmp_path):
    save(tmp_path / "m.onnx", [node("MatMul", "x w", "axis=1")], [("x", FLOAT, ["batch", F])], [("axis=1", FLOAT, ["batch", V])], w=W)
    for loss, says in (("mse,rows=-1", 'rows=-1: output "axis=1" [5,5] has its rows along axis 0'), ("cross_entropy,axis=-2", "axis -2 of the output holds the rows"),
                       ("cross_entropy:axis=1,axis=1", 'hint: the model has an output "axis=1": names of outputs take precedence over options')):
        assert says in run("compile", "m.onnx", "-o", "train", "--batch=5", f"--loss={loss}", exit=2).stderr
    run("compile", "m.onnx", "-o", "train", "--batch=5", "--loss=cross_entropy:axis=1,axis=-1")


@pytest.mark.parametrize("said", ["", ",rows=0"])
def test_rows_that_repeat(run, tmp_path, said):
    """y [8, V] is x w and x v below it: sample i has elements i and 4 + i, whether or not rows= says what the graph tells."""
    v = RANDOM.standard_normal((F, V)).astype(np.float32)
    save(tmp_path / "m.onnx", [node("MatMul", "x w", "a"), node("MatMul", "x v", "b"), node("Concat", "a b", "y", axis=0)],
         [("x", FLOAT, ["batch", F])], [("y", FLOAT, ["rows", V])], w=W, v=v)
    x, labels = X[:8, 0], RANDOM.standard_normal((8, 2, V)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "labels.npy", labels)
    assert "labels: f64[2,4,5]" in run("compile", "m.onnx", "-o", "train", "--batch=4", f"--loss=mse:y{said}", "--precision=f64").stdout
    done = run(tmp_path / "train", "--data=x=x.npy", "--data=labels=labels.npy", "--steps=1", "--shuffle=off", "--progress=off")
    y = np.stack([x.astype(float) @ W, x.astype(float) @ v], 1)
    assert np.isclose(printed(done), ((y - labels)[:4] ** 2).mean(), rtol=1e-8)


def test_rows_that_contradict_the_graph(run, tmp_path):
    """y [4, 4] with independent rows along axis 0 refuses rows=1; where rows see each other, either axis may count them."""
    w = RANDOM.standard_normal((F, B)).astype(np.float32)
    x, labels = X[:8, 0], RANDOM.standard_normal((8, B)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "labels.npy", labels)
    ports = [("x", FLOAT, ["batch", F])], [("y", FLOAT, ["batch", B])]
    save(tmp_path / "own.onnx", [node("MatMul", "x w", "y")], *ports, w=w)
    refused = run("compile", "own.onnx", "-o", "train", "--batch=4", "--loss=mse:y,rows=1", exit=2).stderr
    assert 'rows=1: output "y" [4,4] has its rows along axis 0' in refused and "--batch-axis INPUT=N" in refused
    run("compile", "own.onnx", "-o", "train", "--batch=1", "--loss=mse:y,rows=1")  # a single row has all elements
    save(tmp_path / "each.onnx", [node("MatMul", "x w", "a"), node("Transpose", "a", "t", perm=[1, 0]), node("Sub", "a t", "y")], *ports, w=w)
    a = x[:4].astype(float) @ w
    for axis, of_sample in ((0, a - a.T), (1, a.T - a)):
        run("compile", "each.onnx", "-o", "train", "--batch=4", f"--loss=mse:y,rows={axis}", "--precision=f64")
        done = run(tmp_path / "train", "--data=x=x.npy", "--data=labels=labels.npy", "--steps=1", "--shuffle=off", "--progress=off")
        assert np.isclose(printed(done), ((of_sample - labels[:4]) ** 2).mean(), rtol=1e-8)


@pytest.mark.parametrize("layout, shape", [("rows first", ["n", "t"]), ("time first", ["t", "n"])])
@pytest.mark.parametrize("time", [T, B])
def test_targets_of_a_loss_graph(run, tmp_path, layout, shape, time):
    """loss.onnx: a mean over y [.., .., V] and lab, whose axes go by the names that y has in it."""
    nodes, out, _ = LAYOUTS[layout]
    save(tmp_path / "m.onnx", [PRODUCT, *nodes], [("x", FLOAT, ["batch", "time", F])], [("y", FLOAT, out)], w=W)
    save(tmp_path / "loss.onnx", [node("Transpose", "y", "z", perm=[0, 2, 1]), node("SoftmaxCrossEntropyLoss", "z lab", "loss")],
         [("y", FLOAT, [*shape, V]), ("lab", INT, shape)], [("loss", FLOAT, [])])
    np.save(tmp_path / "x.npy", X[:B, :time])
    np.save(tmp_path / "lab.npy", LABELS[:B, :time])
    run("compile", "m.onnx", "-o", "train", f"--dim=time={time}", "--batch=4", "--loss=onnx:loss.onnx", "--precision=f64")
    done = run(tmp_path / "train", "--data=x=x.npy", "--data=lab=lab.npy", "--steps=1", "--shuffle=off", "--progress=off")
    assert np.isclose(printed(done), right(X[:B, :time], LABELS[:B, :time]), rtol=1e-8)


def test_pairs_of_rows(run, tmp_path):
    """Rows in pairs, [2, 2, V] of [4, V], are followed no further. Four of [4, V] are the rows; of [4, 4] either axis may be."""
    nodes = [node("MatMul", "x w", "a"), node("Reshape", "a pairs", "p"), node("ReduceSum", "p one", "s", keepdims=1), node("Sub", "p s", "d"),
             node("Reshape", "d rows", "y")]
    x, y = X[:6, 0], X[:6, 1]
    np.save(tmp_path / "x.npy", x)
    for width in (F, B):
        w = RANDOM.standard_normal((F, width)).astype(np.float32)
        save(tmp_path / "m.onnx", nodes, [("x", FLOAT, ["batch", F])], [("y", FLOAT, ["batch", width])], w=w, pairs=[-1, 2, width], one=[1],
             rows=[-1, width])
        options = ["m.onnx", "-o", "train", "--batch=4", "--precision=f64"]
        if width == B:
            assert "has no axis that counts the 4 rows" in run("compile", *options, "--loss=mse", exit=2).stderr
        np.save(tmp_path / "labels.npy", np.zeros((6, width), np.float32))
        run("compile", *options, "--loss=mse:y,rows=0" if width == B else "--loss=mse")
        done = run(tmp_path / "train", "--data=x=x.npy", "--data=labels=labels.npy", "--steps=1", "--shuffle=off", "--progress=off",
                   "--eval-data=x=x.npy", "--eval-data=labels=labels.npy")
        a = x[:4].astype(float) @ w
        want = ((a - np.repeat(a.reshape(2, 2, width).sum(1), 2, 0)) ** 2).mean()
        assert np.isclose(printed(done), want, rtol=1e-8) and ", 4 of 6 rows (a row's result depends on the other rows of its batch)\n" in done.stdout


@pytest.mark.parametrize("layout", ["flat", "flat time first", "time first"])
def test_each_binding_has_its_own(run, tmp_path, layout):
    """With one step a row repeats once: labels are [4], along axis 0."""
    nodes, shape, _ = LAYOUTS[layout]
    save(tmp_path / "m.onnx", [PRODUCT, *nodes], [("x", FLOAT, ["batch", "time", F])], [("y", FLOAT, shape)], w=W, flat=[-1, V])
    run("compile", "m.onnx", "-o", "train", "--dim=time=6,1", "--batch=4", "--precision=f64")
    for time in (T, 1):
        np.save(tmp_path / "x.npy", X[:B, :time])
        np.save(tmp_path / "labels.npy", LABELS[:B, 0] if time == 1 and "flat" in layout else LABELS[:B, :time])
        done = run(tmp_path / "train", "--data=x=x.npy", "--data=labels=labels.npy", "--steps=1", "--shuffle=off", "--progress=off")
        assert np.isclose(printed(done), right(X[:B, :time], LABELS[:B, :time]), rtol=1e-8)
