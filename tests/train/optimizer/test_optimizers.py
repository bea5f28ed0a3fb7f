"""Every optimizer over 100 steps: f64 against numpy (optimizers.py), f32 near it; ONNX's own against its reference operators."""
import json
import re

import numpy as np
import onnx
import optimizers
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

ROWS, WIDTH, OUT, STEPS = 16, 6, 3, 100
HEAD = np.array([[1, 0.25, 0], [-0.25, 1, 0.5], [0, -0.5, 1]])
# NAME,SETTINGS of --optimizer: (the oracle, what it is given, more options of the executable)
CASES = {
    "sgd": (optimizers.sgd, {"lr": 0.05, "weight_decay": 0.01}),
    "momentum": (optimizers.momentum, {"lr": 0.02, "momentum": 0.8, "weight_decay": 0.01}),
    "momentum,dampening=0.3": (optimizers.momentum, {"lr": 0.02, "momentum": 0.8, "dampening": 0.3}),
    "nesterov": (optimizers.momentum, {"lr": 0.02, "momentum": 0.8, "nesterov": True, "weight_decay": 0.01}),
    "adam": (optimizers.adam, {"lr": 0.01, "weight_decay": 0.01}),
    "adam,amsgrad=true": (optimizers.adam, {"lr": 0.01, "amsgrad": True}),
    "adamw": (optimizers.adam, {"lr": 0.01, "weight_decay": 0.1, "decoupled": True}),
    "adamw,amsgrad": (optimizers.adam, {"lr": 0.01, "weight_decay": 0.01, "decoupled": True, "amsgrad": True}),
    "adamw,beta1=0.7,eps=0.001": (optimizers.adam, {"lr": 0.01, "weight_decay": 0.01, "decoupled": True, "beta1": 0.7, "eps": 1e-3}),
    "lion": (optimizers.lion, {"lr": 0.003, "weight_decay": 0.1}),
    "adagrad": (optimizers.adagrad, {"lr": 0.1, "weight_decay": 0.01}),
    "adagrad,lr_decay=0.01": (optimizers.adagrad, {"lr": 0.1, "lr_decay": 0.01}),
    "rmsprop": (optimizers.rmsprop, {"lr": 0.01, "weight_decay": 0.01}),
    "rmsprop,momentum=0.5": (optimizers.rmsprop, {"lr": 0.01, "momentum": 0.5}),
    "rmsprop,centered=true,alpha=0.9": (optimizers.rmsprop, {"lr": 0.01, "centered": True, "alpha": 0.9}),
    "rmsprop,centered,momentum=0.5": (optimizers.rmsprop, {"lr": 0.01, "centered": True, "momentum": 0.5}),
    "adadelta": (optimizers.adadelta, {"lr": 1.0, "weight_decay": 0.01}),
    "adadelta,rho=0.5": (optimizers.adadelta, {"lr": 1.0, "rho": 0.5}),
    "nadam": (optimizers.nadam, {"lr": 0.01, "weight_decay": 0.01}),
    "nadam,decoupled,momentum_decay=0.1": (optimizers.nadam, {"lr": 0.01, "weight_decay": 0.1, "decoupled": True, "momentum_decay": 0.1}),
    "radam": (optimizers.radam, {"lr": 0.01, "weight_decay": 0.01}),
    "lamb": (optimizers.lamb, {"lr": 0.01, "weight_decay": 0.1}),
    "adafactor": (optimizers.adafactor, {"lr": 0.02, "weight_decay": 0.01}),
    "adafactor,d=0.5,beta2_decay=-0.5": (optimizers.adafactor, {"lr": 0.05, "d": 0.5, "beta2_decay": -0.5}),
    "muon,ns_f32": (optimizers.muon, {"lr": 0.005}),
    "muon,ns_f32,match_rms,nesterov=false,momentum=0.8,ns_steps=3": (
        optimizers.muon, {"lr": 0.005, "match_rms": True, "nesterov": False, "momentum": 0.8, "steps": 3}),
    "radam,decoupled": (optimizers.radam, {"lr": 0.01, "weight_decay": 0.1, "decoupled": True, "beta2": 0.9}),
}
HYPERPARAMETERS = ("lr", "weight_decay", "beta1", "beta2", "eps", "momentum")  # options of the executable, where settings do not say them


@pytest.fixture(scope="module")
def data():
    """(w, x, y) in f64, that f32 has exactly."""
    rng = np.random.default_rng(1)
    return tuple(rng.standard_normal(s).astype(np.float32).astype(np.float64) for s in ((WIDTH, OUT), (STEPS * ROWS, WIDTH), (STEPS * ROWS, OUT)))


def gradient(w, x, y):
    """Of the mean of (x w HEAD - y)^2."""
    return 2 / y.size * x.T @ (x @ w @ HEAD - y) @ HEAD.T


def expected(data, update):
    w, x, y = data
    for t in range(STEPS):
        rows = slice(t * ROWS, (t + 1) * ROWS)
        w = update(w, gradient(w, x[rows], y[rows]), t + 1)
    return w


def model(folder, w):
    """y = x w head: w is no head, so that optimizers of hidden matrices take it."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("MatMul", ["h", "head"], ["y"])]
    weights = [numpy_helper.from_array(v.astype(np.float32), n) for n, v in (("w", w), ("head", HEAD))]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, [ROWS, WIDTH])],
                              [helper.make_tensor_value_info("y", 1, [ROWS, OUT])], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "model.onnx")


def trained(run, folder, data, precision, optimizer, *options):
    w, x, y = data
    model(folder, w)
    np.save(folder / "x.npy", x.astype(np.float32))
    np.save(folder / "y.npy", y.astype(np.float32))
    run("compile", "model.onnx", "-o", "train", "--loss=mse", "--freeze=head", f"--precision={precision}", f"--optimizer={optimizer}")
    run(folder / "train", "--data=x=x.npy", "--data=labels=y.npy", "--shuffle=off", "--save=saved", f"--steps={STEPS}", *options)
    return weights(folder / "saved" / f"step-{STEPS:08}")


def weights(folder):
    """@w of a checkpoint, in f64."""
    for file in folder.glob("*.safetensors"):
        data = file.read_bytes()
        n = int.from_bytes(data[:8], "little")
        found = json.loads(data[8:8 + n]).get("w")
        if found:
            raw = data[8 + n + found["data_offsets"][0]:8 + n + found["data_offsets"][1]]
            return np.frombuffer(raw, {"F64": np.float64, "F32": np.float32}[found["dtype"]]).astype(np.float64).reshape(WIDTH, OUT)


@pytest.mark.parametrize("precision, limit", [("f64", 1e-9), ("f32", 1e-5)])
@pytest.mark.parametrize("optimizer", CASES)
def test_100_steps(run, tmp_path, data, optimizer, precision, limit):
    oracle, given = CASES[optimizer]
    options = [f"--{k.replace('_', '-')}={v}" for k, v in given.items() if k in HYPERPARAMETERS and f",{k}=" not in optimizer]
    got, state = trained(run, tmp_path, data, precision, optimizer, *options), {}
    want = expected(data, lambda p, g, t: oracle(p, g, state, t, **given))
    assert np.abs(got - want).max() <= limit * np.abs(want).max() and np.abs(want - data[0]).max() > 0.01


@pytest.mark.parametrize("precision, limit", [("f64", 1e-9), ("f32", 1e-5)])
@pytest.mark.parametrize("settings, options, given", [
    ("", ["--lr=0.02", "--weight-decay=0.1"], {"lr": 0.02, "weight_decay": 0.1}),
    (",r=1,weight_lr_power=1,beta1=0.8", ["--lr=0.02", "--warmup=20"], {"lr": 0.02, "r": 1, "weight_lr_power": 1, "beta1": 0.8})])
def test_schedule_free(run, tmp_path, data, precision, limit, settings, options, given):
    """The weights that are saved, exported and evaluated are the average, not the point of the gradients."""
    got, state, (w, x, y) = trained(run, tmp_path, data, precision, "schedule-free" + settings, *options, "--export=out.onnx"), {}, data
    for t in range(1, STEPS + 1):
        rows = slice((t - 1) * ROWS, t * ROWS)
        lr = given["lr"] * (min(1, t / 20) if "--warmup=20" in options else 1)
        w = optimizers.schedule_free(w, lambda p: gradient(p, x[rows], y[rows]), state, t, **{**given, "lr": lr})
    assert np.abs(got - w).max() <= limit * np.abs(w).max() and np.abs(w - state["y"]).max() > 1e-3
    out = {i.name: numpy_helper.to_array(i) for i in onnx.load(tmp_path / "out.onnx").graph.initializer}
    assert np.abs(out["w"] - w).max() <= 1e-5 * np.abs(w).max()
    said = run(tmp_path / "train", "--data=x=x.npy", "--data=labels=y.npy", "--eval-data=x=x.npy", "--eval-data=labels=y.npy", "--resume=saved",
               f"--steps={STEPS}").stdout
    assert float(re.search(r"eval loss .* -> (\S+)", said)[1]) == pytest.approx(np.mean((x @ w @ HEAD - y) ** 2), rel=1e-5)


def test_schedule_free_resumes(run, tmp_path, data):
    whole = trained(run, tmp_path, data, "f32", "schedule-free")
    for more in ["--steps=30"], ["--resume=half", f"--steps={STEPS}"]:
        run(tmp_path / "train", "--data=x=x.npy", "--data=labels=y.npy", "--shuffle=off", "--save=half", *more)
    assert np.array_equal(weights(tmp_path / "half" / f"step-{STEPS:08}"), whole)


# ---- groups
def test_groups(run, tmp_path, data):
    """Another optimizer for some parameters has its own settings; its rate follows the schedule of the others."""
    w, x, y = data
    model(tmp_path, w)
    np.save(tmp_path / "x.npy", x.astype(np.float32))
    np.save(tmp_path / "y.npy", y.astype(np.float32))
    run("compile", "model.onnx", "-o", "train", "--loss=mse", "--precision=f64", "--optimizer=adamw", "--optimizer-for=w=muon,lr=0.02,momentum=0.9",
        "--optimizer-for=head=sgd,lr=0.1,weight_decay=0.01")
    run(tmp_path / "train", "--data=x=x.npy", "--data=labels=y.npy", "--shuffle=off", "--save=saved", f"--steps={STEPS}", "--lr=0.5",
        "--lr-schedule=linear", "--min-lr=0.1")
    state, head = {}, HEAD
    for t in range(1, STEPS + 1):
        rows = slice((t - 1) * ROWS, t * ROWS)
        factor = (0.1 + 0.4 * (1 - (t - 1) / STEPS)) / 0.5
        e = 2 / y[rows].size * (x[rows] @ w @ head - y[rows])
        of_w, of_head = x[rows].T @ e @ head.T, (x[rows] @ w).T @ e
        w = optimizers.muon(w, of_w, state, t, lr=0.02 * factor, momentum=0.9)
        head = optimizers.sgd(head, of_head, {}, t, lr=0.1 * factor, weight_decay=0.01)
    assert np.abs(weights(tmp_path / "saved" / f"step-{STEPS:08}") - w).max() <= 1e-9 * np.abs(w).max()


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("precision, settings, limit", [("f64", "", 1e-9), ("f32", ",ns_f32", 1e-5), ("f32", "", 0.02)])
def test_muon_of_wide_layers(run, tmp_path, turned, precision, settings, limit):
    """The step is larger by the root of outputs / inputs, however the product lays the weight; the iteration is of bf16 where nothing is said."""
    rng = np.random.default_rng(4)
    w, x = rng.standard_normal((2, 8)).astype(np.float32), rng.standard_normal((ROWS, 2)).astype(np.float32)
    nodes = [helper.make_node("Gemm", ["x", "w"], ["h"], transB=int(turned)), helper.make_node("MatMul", ["h", "head"], ["y"])]
    weights_of = [numpy_helper.from_array(v, n) for n, v in (("w", np.ascontiguousarray(w.T) if turned else w), ("head", np.eye(8, dtype=np.float32)))]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, [ROWS, 2])], [helper.make_tensor_value_info("y", 1, [ROWS, 8])],
                              weights_of)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", np.zeros((ROWS, 8), np.float32))
    run("compile", "model.onnx", "-o", "train", "--loss=mse", "--freeze=head", f"--precision={precision}", f"--optimizer=muon{settings}")
    run(tmp_path / "train", "--data=x=x.npy", "--data=labels=y.npy", "--steps=1", "--lr=0.1", "--weight-decay=0", "--export=out.onnx")
    got = {i.name: numpy_helper.to_array(i) for i in onnx.load(tmp_path / "out.onnx").graph.initializer}["w"]
    x, w = x.astype(np.float64), w.astype(np.float64)
    step = w - optimizers.muon(w, 2 / (ROWS * 8) * x.T @ (x @ w), {}, 1, lr=0.1, weight_decay=0)
    got = w - (got.T if turned else got)
    assert np.abs(got - step).max() <= max(limit, 1e-6) * np.abs(step).max() and np.linalg.norm(step, 2) > 0.15


VECTORS = {"lamb": (optimizers.lamb, {"adapts": False}), "lamb,always_adapt": (optimizers.lamb, {}), "adafactor": (optimizers.adafactor, {}),
           "muon": (optimizers.adam, {"lr": 0.001, "decoupled": True}), "muon,rest_lr=0.05": (optimizers.adam, {"lr": 0.05, "decoupled": True})}


@pytest.mark.parametrize("optimizer", VECTORS)
def test_vectors(run, tmp_path, data, optimizer):
    """A bias, which does not decay: LAMB does not adapt its step, Adafactor keeps all of its second moment, and Muon leaves it to AdamW."""
    oracle, given = VECTORS[optimizer]
    x, y = data[1], data[2]
    graph = helper.make_graph([helper.make_node("Add", ["x", "b"], ["y"])], "g", [helper.make_tensor_value_info("x", 1, [ROWS, WIDTH])],
                              [helper.make_tensor_value_info("y", 1, [ROWS, WIDTH])], [numpy_helper.from_array(np.ones(WIDTH, np.float32), "b")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", x.astype(np.float32))
    np.save(tmp_path / "y.npy", np.repeat(y, 2, axis=1).astype(np.float32))
    run("compile", "model.onnx", "-o", "train", "--loss=mse", "--precision=f64", "--no-decay=b", f"--optimizer={optimizer}")
    run(tmp_path / "train", "--data=x=x.npy", "--data=labels=y.npy", "--shuffle=off", f"--steps={STEPS}", "--lr=0.01", "--export=out.onnx")
    b, state = np.ones(WIDTH), {}
    for t in range(1, STEPS + 1):
        rows = slice((t - 1) * ROWS, t * ROWS)
        g = 2 / (ROWS * WIDTH) * np.sum(x[rows] + b - np.repeat(y[rows], 2, axis=1), axis=0)
        b = oracle(b, g, state, t, **{"lr": 0.01, **given})
    got = numpy_helper.to_array(onnx.load(tmp_path / "out.onnx").graph.initializer[0])
    assert np.abs(got - b).max() <= 1e-6 * np.abs(b).max() and np.abs(b - 1).max() > 0.01


def test_groups_stand_still_with_the_others(run, tmp_path, data):
    """--lr 0 stops groups, too; a group whose parameters all have a later one is no mistake."""
    model(tmp_path, data[0])
    np.save(tmp_path / "x.npy", data[1].astype(np.float32))
    np.save(tmp_path / "y.npy", data[2].astype(np.float32))
    run("compile", "model.onnx", "-o", "train", "--loss=mse", "--optimizer-for=*=sgd", "--optimizer-for=w=lion", "--optimizer-for=head=momentum")
    run(tmp_path / "train", "--data=x=x.npy", "--data=labels=y.npy", "--steps=3", "--lr=0", "--export=out.onnx")
    out = {i.name: numpy_helper.to_array(i) for i in onnx.load(tmp_path / "out.onnx").graph.initializer}
    assert np.array_equal(out["w"], data[0].astype(np.float32)) and np.array_equal(out["head"], HEAD.astype(np.float32))


def test_resuming_with_another_optimizer_of_some(run, tmp_path, data):
    model(tmp_path, data[0])
    np.save(tmp_path / "x.npy", data[1].astype(np.float32))
    np.save(tmp_path / "y.npy", data[2].astype(np.float32))
    for name, option in {"a": "w=momentum", "b": "w=momentum,lr=0.5", "c": "w=nesterov"}.items():
        run("compile", "model.onnx", "-o", name, "--loss=mse", f"--optimizer-for={option}", "--moments=bf16", *(["--rounding=stochastic"] if name == "b" else []))
    go = ["--data=x=x.npy", "--data=labels=y.npy"]
    run(tmp_path / "a", *go, "--steps=1", "--save=saved")
    said = run(tmp_path / "b", *go, "--steps=2", "--resume=saved").stderr
    assert '"optimizer_for_settings" was "w=momentum", is "w=momentum,lr=0.5"' in said and '"rounding" was "nearest", is "stochastic"' in said
    assert "another model or optimizer" in run(tmp_path / "c", *go, "--steps=2", "--resume=saved", exit=7).stderr


def test_muon_that_takes_nothing(run, tmp_path, data):
    model(tmp_path, data[0])
    said = run("compile", "model.onnx", "-o", "train", "--loss=mse", "--optimizer-for=head=muon").stderr
    assert "muon takes none of the parameters of --optimizer-for=head: they have adamw" in said
    assert "takes none" not in run("compile", "model.onnx", "-o", "train", "--loss=mse", "--optimizer=muon").stderr


def test_muon_leaves_heads_and_tables(run, models):
    """Embeddings, the head and vectors have AdamW; the table of gpt2_mini is its head, too."""
    text = run("dump", models / "gpt2_mini/model.onnx", "--batch=2", "--dim=seq=8", "--loss=cross_entropy", "--optimizer=muon", "--stage=train").stdout
    of = {name: kind for kind, name in re.findall(r"state @(momentum_buffer|exp_avg)\.(\S+) :", text)}
    assert {n for n, kind in of.items() if kind == "momentum_buffer"} == {n for n in of if re.search(r"\.c_(attn|proj|fc)\.weight$", n)}
    assert of["lm_head.weight"] == of["transformer.wpe.weight"] == of["transformer.ln_f.bias"] == "exp_avg"


@pytest.mark.parametrize("option, said", [
    ("w=muonn", "--optimizer-for=w=muonn: not supported"), ("w=", "--optimizer-for=w"), ("w=muon,rest_lr=-1", "--optimizer-for=w=muon"), ("muon", "need GLOB=NAME"), ("nothing*=sgd", "it fits no trained parameter"), ("w=sgd,beta1=0.5", "not one of its settings")])
def test_faults_of_groups(run, tmp_path, data, option, said):
    model(tmp_path, data[0])
    assert said in run("compile", "model.onnx", "-o", "train", "--loss=mse", f"--optimizer-for={option}", exit=2).stderr


# ---- ONNX's own
def onnx_operator(kind, n_states, **attributes):
    """Its update by the reference operator; state and gradient of one tensor."""
    names = ["r", "t", "x", "g", *(f"s{i}" for i in range(n_states))]
    node = helper.make_node(kind, names, ["x2", *(f"n{i}" for i in range(n_states))], domain="ai.onnx.preview.training", **attributes)
    values = [helper.make_tensor_value_info(n, {"t": 7}.get(n, 11), None) for n in names]
    graph = helper.make_graph([node], "g", values, [helper.make_tensor_value_info(n, 11, None) for n in node.output])
    run = ReferenceEvaluator(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.preview.training", 1)]))
    state = [np.zeros((WIDTH, OUT))] * n_states

    def update(p, g, t, lr):
        nonlocal state
        p, *state = run.run(None, {"r": np.float64(lr), "t": np.int64(t - 1), "x": p, "g": g, **{f"s{i}": s for i, s in enumerate(state)}})
        return p
    return update


# Numbers that f32, the type of attributes, has exactly.
ONNX = {
    "onnx-adam,beta1=0.75,beta2=0.875,eps=0.0009765625": (
        "Adam", 2, {"alpha": 0.75, "beta": 0.875, "epsilon": 2 ** -10, "norm_coefficient": 2 ** -7}, ["--weight-decay=0.0078125"]),
    "onnx-adam,norm_coefficient_post=0.0009765625": (
        "Adam", 2, {"alpha": 0.75, "beta": 0.875, "epsilon": 2 ** -10, "norm_coefficient_post": 2 ** -10},
        ["--beta1=0.75", "--beta2=0.875", "--eps=0.0009765625"]),
    "onnx-adagrad": ("Adagrad", 1, {"epsilon": 2 ** -10, "norm_coefficient": 2 ** -7}, ["--eps=0.0009765625", "--weight-decay=0.0078125"]),
    "onnx-adagrad,decay_factor=0.125": ("Adagrad", 1, {"epsilon": 2 ** -10, "decay_factor": 0.125}, ["--eps=0.0009765625"]),
    "onnx-momentum": ("Momentum", 1, {"alpha": 0.75, "beta": 1.0, "mode": "standard", "norm_coefficient": 2 ** -7},
                      ["--momentum=0.75", "--weight-decay=0.0078125"]),
    "onnx-momentum,beta=0.5,nesterov": ("Momentum", 1, {"alpha": 0.75, "beta": 0.5, "mode": "nesterov", "norm_coefficient": 0.0},
                                        ["--momentum=0.75"]),
}


@pytest.mark.parametrize("optimizer", ONNX)
def test_onnx_operators(run, tmp_path, data, optimizer):
    kind, n_states, attributes, options = ONNX[optimizer]
    update = onnx_operator(kind, n_states, **attributes)
    want = expected(data, lambda p, g, t: update(p, g, t, 0.01))
    got = trained(run, tmp_path, data, "f64", optimizer, "--lr=0.01", *options)
    assert np.abs(got - want).max() <= 1e-9 * np.abs(want).max()


@pytest.mark.parametrize("text, said", [
    ("adamx", "--optimizer=adamx: not supported"), ("adamw,beta3=1", "beta3=1 is not one of its settings"), ("adamw,beta1", "beta1=true is out of range"),
    ("adamw,beta1=x", "beta1=x is out of range"), ("adamw,beta1=-1", "beta1=-1 is out of range"), ("adam,beta2=1", "beta2=1 is out of range"),
    ("adam,lr=-1", "lr=-1 is out of range"), ("adadelta,rho=5", "not a number from 0 to 1"), ("momentum,dampening=-3", "not a number from 0 to 1"),
    ("adagrad,lr_decay=nan", "not a number from 0"), ("sophia,every=0", "every=0 is not a number from 1"), ("muon,ns_steps=0", "not a number from 1 to 100"),
    ("muon,ns_steps=3000", "not a number from 1 to 100"), ("schedule-free,r=1000", "not a number from 0 to 10"), ("muon,lr=0", "follow it to 0"),
    ("adamw8", "did you mean `adamw`?"), ("rmsprop,centered=2", "centered"), ("", "not supported"),
    ("rmsprop,alpha=x", "alpha"), ("sgd,momentum=0.9", "momentum=0.9 is not one of its settings")])
def test_faults(run, tmp_path, data, text, said):
    model(tmp_path, data[0])
    assert said in run("compile", "model.onnx", "-o", "train", "--loss=mse", f"--optimizer={text}", exit=2).stderr
