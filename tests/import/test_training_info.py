"""TrainingInfoProto: a file that says its own loss, optimizer and first values trains by --loss=model as NumPy computes it."""
import json
import subprocess

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

TRAINING = "ai.onnx.preview.training"
ROWS, IN, OUT = 8, 3, 2
RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((ROWS, IN)).astype(np.float32), RNG.standard_normal((ROWS, OUT)).astype(np.float32)
W, B = RNG.standard_normal((IN, OUT)).astype(np.float32), RNG.standard_normal(OUT).astype(np.float32)


def node(op, inputs, outputs, domain="", **attributes):
    return helper.make_node(op, inputs, outputs, domain=domain, **attributes)


def tensor(name, value):
    return numpy_helper.from_array(np.asarray(value), name)


def value(name, shape, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def loss_nodes():
    return [node("Sub", ["y", "labels"], ["d"]), node("Mul", ["d", "d"], ["dd"]), node("ReduceMean", ["dd"], ["loss"], keepdims=0)]


def algorithm(nodes, initializers, outputs):
    """Loss, Gradient of w and b, and an optimizer's nodes."""
    gradient = node("Gradient", ["w", "b", "x", "labels"], ["dw", "db"], TRAINING, xs=["w", "b"], zs=["x", "labels"], y="loss")
    return helper.make_graph(loss_nodes() + [gradient] + nodes, "algorithm", [value("labels", ["rows", OUT])],
                             [value("loss", [])] + [helper.make_value_info(o, onnx.TypeProto()) for o in outputs], initializers)


def save(path, graph, updates, initialization=None, first=None):
    model = helper.make_graph([node("MatMul", ["x", "w"], ["xw"]), node("Add", ["xw", "b"], ["y"])], "model",
                              [value("x", ["rows", IN])], [value("y", ["rows", OUT])], [tensor("w", W), tensor("b", B)])
    proto = helper.make_model(model, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(TRAINING, 1)], ir_version=8)
    info = proto.training_info.add()
    info.algorithm.CopyFrom(graph)
    if initialization:
        info.initialization.CopyFrom(initialization)
    for key, to in updates.items():
        info.update_binding.add(key=key, value=to)
    for key, to in (first or {}).items():
        info.initialization_binding.add(key=key, value=to)
    onnx.save(proto, path)


def moments(kinds):
    return [tensor(k + p, np.zeros_like(v)) for k in kinds for p, v in (("w", W), ("b", B))]


def optimizer(op, kinds, **attributes):
    """One node for both parameters, the counter and its increment."""
    new = [k + p + "_new" for k in ["", *kinds] for p in "wb"]
    inputs = ["R", "T", "w", "b", "dw", "db"] + [k + p for k in kinds for p in "wb"]
    nodes = [node(op, inputs, new, TRAINING, **attributes), node("Add", ["T", "one"], ["T_new"])]
    initializers = [tensor("R", np.float32(0.125)), tensor("T", np.int64(0)), tensor("one", np.int64(1)), *moments(kinds)]
    updates = {k + p: k + p + "_new" for k in ["", *kinds] for p in "wb"}
    return algorithm(nodes, initializers, new + ["T_new"]), {**updates, "T": "T_new"}


def gradients(w, b):
    d = (X @ w + b - Y) * 2 / (ROWS * OUT)
    return X.T @ d, d.sum(0)


def adam(p, g, t, s, a=0.75, beta=0.5, eps=0.0625, norm=0.25, post=0.125):
    g = norm * p + g
    s["V"] = a * s.get("V", 0) + (1 - a) * g
    s["H"] = beta * s.get("H", 0) + (1 - beta) * g * g
    r = 0.125 * np.sqrt(1 - beta**t) / (1 - a**t) if t else 0.125
    return (1 - post) * (p - r * s["V"] / (np.sqrt(s["H"]) + eps))


def adagrad(p, g, t, s):
    s["H"] = s.get("H", 0) + g * g
    return p - 0.125 / (1 + t * 0.5) * g / (np.sqrt(s["H"]) + 0.0625)


def momentum(nesterov):
    def update(p, g, t, s):
        s["V"] = 0.75 * s.get("V", 0) + (0.5 if t else 1) * g
        return p - 0.125 * (g + 0.75 * s["V"] if nesterov else s["V"])
    return update


def descent(p, g, t, s):
    return p - 0.25 * g


def sgd():
    nodes = [n for p in "wb" for n in (node("Mul", ["R", "d" + p], ["step" + p]), node("Sub", [p, "step" + p], [p + "_new"]))]
    return algorithm(nodes, [tensor("R", np.float32(0.25))], ["w_new", "b_new"]), {"w": "w_new", "b": "b_new"}


MOMENTUM = {"alpha": 0.75, "beta": 0.5, "norm_coefficient": 0.0}
CASES = {
    "sgd": (sgd, descent),
    "adam": (lambda: optimizer("Adam", ["V", "H"], alpha=0.75, beta=0.5, epsilon=0.0625, norm_coefficient=0.25, norm_coefficient_post=0.125), adam),
    "adagrad": (lambda: optimizer("Adagrad", ["H"], epsilon=0.0625, decay_factor=0.5), adagrad),
    "momentum": (lambda: optimizer("Momentum", ["V"], mode="standard", **MOMENTUM), momentum(False)),
    "nesterov": (lambda: optimizer("Momentum", ["V"], mode="nesterov", **MOMENTUM), momentum(True)),
}


def train(run, tmp_path, steps, *options):
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "labels.npy", Y)
    run("compile", tmp_path / "m.onnx", "-o", tmp_path / "train", "--loss=model", f"--batch={ROWS}", "--precision=f64", *options)
    subprocess.run([tmp_path / "train", f"--data=x={tmp_path / 'x.npy'}", f"--data=labels={tmp_path / 'labels.npy'}",
                    f"--steps={steps}", f"--export={tmp_path / 'out.onnx'}", "--shuffle=off"], check=True, capture_output=True)
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "out.onnx").graph.initializer}


@pytest.mark.parametrize("name", CASES)
def test_trains_as_the_file_says(run, tmp_path, name):
    make, update = CASES[name]
    save(tmp_path / "m.onnx", *make())
    got = train(run, tmp_path, 4)
    w, b, states = W.astype(float), B.astype(float), ({}, {})
    for t in range(4):
        dw, db = gradients(w, b)
        w, b = update(w, dw, t, states[0]), update(b, db, t, states[1])
    np.testing.assert_allclose(got["w"], w, rtol=1e-6)
    np.testing.assert_allclose(got["b"], b, rtol=1e-6)


def test_only_what_is_updated_trains(run, tmp_path):
    graph, updates = sgd()
    save(tmp_path / "m.onnx", graph, {"w": updates["w"]})
    got = train(run, tmp_path, 2)
    np.testing.assert_array_equal(got["b"], B)
    assert (got["w"] != W).all()


def test_the_export_keeps_the_algorithm(run, tmp_path):
    save(tmp_path / "m.onnx", *sgd())
    train(run, tmp_path, 1)
    assert onnx.load(tmp_path / "out.onnx").training_info == onnx.load(tmp_path / "m.onnx").training_info


def test_options_go_before_the_file(run, tmp_path):
    save(tmp_path / "m.onnx", *sgd())
    got = train(run, tmp_path, 1, "--optimizer=sgd,lr=0.5", "--freeze=b")
    np.testing.assert_array_equal(got["b"], B)
    np.testing.assert_allclose(got["w"], W - 0.5 * gradients(W.astype(float), B.astype(float))[0], rtol=1e-6)


def test_first_values(run, tmp_path):
    graph, updates = sgd()
    first = helper.make_graph([node("RandomNormal", [], ["w0"], mean=5.0, scale=0.001, shape=[IN, OUT]),
                               node("Constant", [], ["b0"], value=tensor("", np.ones(OUT, np.float32)))],
                              "first", [], [value("w0", [IN, OUT]), value("b0", [OUT])])
    save(tmp_path / "m.onnx", graph, updates, first, {"w": "w0", "b": "b0"})
    got = train(run, tmp_path, 0)
    np.testing.assert_array_equal(got["b"], np.ones(OUT))
    assert (abs(got["w"] - 5) < 0.01).all() and len(np.unique(got["w"])) == W.size


def test_gradients_are_those_of_its_loss(run, tmp_path):
    save(tmp_path / "m.onnx", *sgd())
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "labels.npy", Y)
    done = run("grad", tmp_path / "m.onnx", "--loss=model", "--engine=interp", "--precision=f64", f"--input=x={tmp_path / 'x.npy'}",
               f"--input=labels={tmp_path / 'labels.npy'}", f"--output-dir={tmp_path}", "--json")
    assert json.loads(done.stdout)["loss"] == pytest.approx(((X @ W + B - Y) ** 2).mean(), rel=1e-6)
    np.testing.assert_allclose(np.load(tmp_path / "grad.w.npy"), gradients(W.astype(float), B.astype(float))[0], rtol=1e-6)


def broken(**how):
    graph, updates = optimizer("Adam", ["V", "H"])
    for n in graph.node:
        if n.op_type == "Gradient" and "y" in how:
            next(a for a in n.attribute if a.name == "y").s = how["y"].encode()
    for t in graph.initializer:
        if t.name in how:
            t.CopyFrom(tensor(t.name, how[t.name]))
    updates.update(how.get("updates", {}))
    return graph, updates


REFUSED = {
    "rate_changes": (broken(updates={"R": "loss"}), 4, "the learning rate \"R\" is no constant"),
    "count_begins_later": (broken(T=np.int64(3)), 4, "T of its Adam node, \"T\", does not count updates from 0"),
    "count_stays": ((lambda g, u: (g, {k: v for k, v in u.items() if k != "T"}))(*broken()), 4, "does not count updates from 0"),
    "moments_begin_elsewhere": (broken(Vw=np.ones((IN, OUT), np.float32)), 4, "\"Vw\" of its Adam node does not begin at 0"),
    "another_update": (broken(updates={"w": "dw"}), 4, "\"w\" becomes \"dw\", which is neither a result of Adam, Adagrad or Momentum nor x - r g"),
    "crossed_updates": (broken(updates={"w": "b_new"}), 4, "\"w\" becomes \"b_new\", which is not its own update"),
    "no_such_initializer": (broken(updates={"q": "w_new"}), 4, "update_binding names \"q\", which is no initializer"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(run, tmp_path, name):
    made, code, said = REFUSED[name]
    save(tmp_path / "m.onnx", *made)
    assert said in run("compile", tmp_path / "m.onnx", "-o", tmp_path / "train", "--loss=model", "--batch=8", exit=code).stderr


def test_a_file_without_it(run, tmp_path):
    save(tmp_path / "m.onnx", *sgd())
    model = onnx.load(tmp_path / "m.onnx")
    del model.training_info[:]
    onnx.save(model, tmp_path / "m.onnx")
    done = run("check", tmp_path / "m.onnx", "--loss=model", exit=2)
    assert "it has 0 TrainingInfoProto, --loss=model needs one" in done.stderr


def test_a_broken_algorithm(run, tmp_path):
    graph, updates = sgd()
    graph.node[0].input[1] = "nothing"
    save(tmp_path / "m.onnx", graph, updates)
    assert "is made by no node, input or initializer" in run("check", tmp_path / "m.onnx", "--loss=model", exit=3).stderr
