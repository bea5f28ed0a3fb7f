"""Every optimizer over 100 steps: f64 against numpy (optimizers.py), f32 near it; ONNX's own against its reference operators."""
import json

import numpy as np
import onnx
import optimizers
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

ROWS, WIDTH, OUT, STEPS = 16, 6, 3, 100
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
    "radam,decoupled": (optimizers.radam, {"lr": 0.01, "weight_decay": 0.1, "decoupled": True, "beta2": 0.9}),
}
HYPERPARAMETERS = ("lr", "weight_decay", "beta1", "beta2", "eps", "momentum")  # options of the executable, where settings do not say them


@pytest.fixture(scope="module")
def data():
    """(w, x, y) in f64, that f32 has exactly."""
    rng = np.random.default_rng(1)
    return tuple(rng.standard_normal(s).astype(np.float32).astype(np.float64) for s in ((WIDTH, OUT), (STEPS * ROWS, WIDTH), (STEPS * ROWS, OUT)))


def gradient(w, x, y):
    """Of the mean of (x w - y)^2."""
    return 2 / y.size * x.T @ (x @ w - y)


def expected(data, update):
    w, x, y = data
    for t in range(STEPS):
        rows = slice(t * ROWS, (t + 1) * ROWS)
        w = update(w, gradient(w, x[rows], y[rows]), t + 1)
    return w


def trained(run, folder, data, precision, optimizer, *options):
    w, x, y = data
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [helper.make_tensor_value_info("x", 1, [ROWS, WIDTH])],
                              [helper.make_tensor_value_info("y", 1, [ROWS, OUT])], [numpy_helper.from_array(w.astype(np.float32), "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "model.onnx")
    np.save(folder / "x.npy", x.astype(np.float32))
    np.save(folder / "y.npy", y.astype(np.float32))
    run("compile", "model.onnx", "-o", "train", "--loss=mse", f"--precision={precision}", f"--optimizer={optimizer}")
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
    ("adamx", "--optimizer=adamx: not supported"), ("adamw,beta3=1", "beta3=1 is none of its settings"), ("adamw,beta1", "beta1=true is out of range"),
    ("adamw,beta1=x", "beta1=x is out of range"), ("adamw,beta1=-1", "beta1=-1 is out of range"), ("adam,beta2=1", "beta2=1 is out of range"),
    ("adam,lr=-1", "lr=-1 is out of range"), ("adadelta,rho=5", "not a number from 0 to 1"), ("momentum,dampening=-3", "not a number from 0 to 1"),
    ("adagrad,lr_decay=nan", "not a number from 0"), ("rmsprop,centered=2", "centered"), ("", "not supported"),
    ("rmsprop,alpha=x", "alpha"), ("sgd,momentum=0.9", "momentum=0.9 is none of its settings")])
def test_faults(run, tmp_path, data, text, said):
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [helper.make_tensor_value_info("x", 1, [ROWS, WIDTH])],
                              [helper.make_tensor_value_info("y", 1, [ROWS, OUT])], [numpy_helper.from_array(data[0].astype(np.float32), "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "model.onnx")
    assert said in run("compile", "model.onnx", "-o", "train", "--loss=mse", f"--optimizer={text}", exit=2).stderr
