"""`gradc grad --check-gradients` runs compiled: the same gradients and differences as the interpreter's."""
import json

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

RANDOM = np.random.default_rng(0)


def write(folder, nodes, weights):
    ports = [helper.make_tensor_value_info(n, 1, [4, 3]) for n in "xy"]
    graph = helper.make_graph([helper.make_node(op, i, o, o[0], **a) for op, i, o, a in nodes], "g", ports[:1], ports[1:],
                              [numpy_helper.from_array(np.asarray(v), k) for k, v in weights.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "model.onnx")
    for name in "x", "y":
        np.save(folder / f"{name}.npy", RANDOM.standard_normal((4, 3)).astype(np.float32))


W = {n: RANDOM.standard_normal((3, 3)).astype(np.float32) for n in ("a", "b")}
BN = {n: (1 + RANDOM.random(3)).astype(np.float32) for n in ("bn.weight", "bn.bias", "bn.mean", "bn.var")}
MODELS = {
    "tanh": ([("MatMul", ["x", "a"], ["h"], {}), ("Tanh", ["h"], ["t"], {}), ("MatMul", ["t", "b"], ["y"], {})], W),
    "batch statistics": ([("MatMul", ["x", "a"], ["h"], {}), ("BatchNormalization", ["h", *BN], ["n", "m", "v"], dict(training_mode=1)),
                          ("MatMul", ["n", "b"], ["y"], {})], {**W, **BN}),
    "dropout": ([("MatMul", ["x", "a"], ["h"], {}), ("Dropout", ["h", "ratio", "mode"], ["d"], {}), ("MatMul", ["d", "b"], ["y"], {})],
                {**W, "ratio": np.float32(0.5), "mode": np.array(True)}),
}
INPUTS = ["--loss=mse", "--input", "x=x.npy", "--input", "labels=y.npy"]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("precision", ["f64", "f32"])
def test_compiled_checks_are_the_interpreters(run, tmp_path, model, precision):
    write(tmp_path, *MODELS[model])
    found = []
    for engine in "compiled", "interp":
        done = run("grad", "model.onnx", *INPUTS, "--check-gradients=100", f"--engine={engine}", f"--precision={precision}", "--json")
        found.append({p["name"]: p for p in json.loads(done.stdout)["parameters"]})
    assert set(found[0]) == set(found[1]) == set(MODELS[model][1]) - {"ratio", "mode", "bn.mean", "bn.var"}
    for name, p in found[0].items():
        assert p["error"] < (1e-5 if precision == "f64" else 0.05), p
        if precision == "f64":
            assert found[1][name]["error"] < 1e-5


KINKS = {
    "relu": [("MatMul", ["x", "a"], ["h"], {}), ("Relu", ["h"], ["y"], {})],
    "max_pool": [("MatMul", ["x", "a"], ["h"], {}), ("Neg", ["h"], ["n"], {}), ("Reshape", ["h", "s"], ["h3"], {}), ("Reshape", ["n", "s"], ["n3"], {}),
                 ("Concat", ["h3", "n3"], ["c"], {"axis": 2}), ("MaxPool", ["c"], ["p"], {"kernel_shape": [2]}), ("Reshape", ["p", "t"], ["y"], {})],
}


@pytest.mark.parametrize("engine", ["compiled", "interp"])
@pytest.mark.parametrize("model", KINKS)
def test_kinks_beside_an_entry_are_stepped_over_and_kinks_at_it_named(run, tmp_path, model, engine):
    """The first step of a difference is 6e-6: it crosses the kink at 0 from 1e-6. From 0 every step does, and
    the slopes to both sides stay apart."""
    a = np.array([[1e-6, 2e-8, 0.0], [0.5, -0.25, 1], [0.25, 2, -1]], np.float32)
    write(tmp_path, KINKS[model], {"a": a, "s": np.array([4, 3, 1]), "t": np.array([4, 3])})
    np.save(tmp_path / "x.npy", np.eye(4, 3, dtype=np.float32))
    words = ["grad", "model.onnx", *INPUTS, "--check-gradients=9", f"--engine={engine}"]
    found = {p["name"]: p for p in json.loads(run(*words, "--json").stdout)["parameters"]}["a"]
    assert found["error"] < 1e-5 and found["kinks"] == 1 and found["checked"] == 9, found
    assert "(without 1 at kinks)" in run(*words).stdout


@pytest.mark.parametrize("engine", ["compiled", "interp"])
def test_all_entries_at_kinks(run, tmp_path, engine):
    write(tmp_path, KINKS["relu"], {"a": np.zeros((3, 3), np.float32)})
    said = run("grad", "model.onnx", *INPUTS, "--check-gradients=9", f"--engine={engine}").stdout
    assert "9 of 9 entries at kinks of the loss, which have no slope" in said


@pytest.mark.parametrize("engine", ["compiled", "interp"])
def test_a_gradient_that_is_not_the_slope_is_found_whatever_the_step(run, tmp_path, engine):
    """Through codes: the loss has steps, the gradient passes straight through."""
    nodes = [("MatMul", ["x", "a"], ["h"], {}), ("QuantizeLinear", ["h", "scale", "zero"], ["q"], {}), ("DequantizeLinear", ["q", "scale", "zero"], ["y"], {})]
    write(tmp_path, nodes, {"a": W["a"], "scale": np.float32(0.1), "zero": np.int8(0)})
    found = json.loads(run("grad", "model.onnx", *INPUTS, "--check-gradients=9", f"--engine={engine}", "--json").stdout)["parameters"]
    found = {p["name"]: p for p in found}["a"]
    assert found["error"] > 0.5 and found["kinks"] == 0, found


def test_the_check_writes_gradients_too(run, tmp_path):
    write(tmp_path, *MODELS["tanh"])
    said = run("grad", "model.onnx", *INPUTS, "--check-gradients=2", "--output-dir=out").stdout
    assert said.startswith("gradients against central differences, worst of 2 entries each\n") and said.count(" difference ") == 2
    assert np.load(tmp_path / "out/grad.a.npy").shape == (3, 3)


def test_inputs_that_do_not_fit_are_told(run, tmp_path):
    write(tmp_path, *MODELS["tanh"])
    np.save(tmp_path / "y.npy", np.zeros((5, 3), np.float32))
    assert "y.npy" in run("grad", "model.onnx", *INPUTS, "--check-gradients=2", exit=6).stderr


@pytest.mark.parametrize("engine", ["compiled", "interp"])
@pytest.mark.parametrize("json_too", [[], ["--json"]])
def test_what_is_not_finite_proves_nothing(run, tmp_path, engine, json_too):
    write(tmp_path, *MODELS["tanh"])
    x = np.load(tmp_path / "x.npy")
    x[0, 0] = np.nan
    np.save(tmp_path / "x.npy", x)
    said = run("grad", "model.onnx", *INPUTS, "--check-gradients=3", f"--engine={engine}", *json_too, exit=8).stderr
    assert "is not finite" in said
