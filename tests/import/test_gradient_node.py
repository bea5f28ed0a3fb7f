"""The operator Gradient of ai.onnx.preview.training: gradients in the graph, of gradients, elsewhere, and trained through."""
import json

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

TRAINING = "ai.onnx.preview.training"
ENGINES = ["interp", "compiled"]
RNG = np.random.default_rng(0)
N = helper.make_node


def gradient(inputs, outputs, **names):
    return N("Gradient", inputs, outputs, domain=TRAINING, **names)


def save(path, nodes, inputs, outputs, constants=None):
    infos = [helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for k, v in inputs.items()]
    graph = helper.make_graph(nodes, "gradients", infos, [helper.make_value_info(o, onnx.TypeProto()) for o in outputs],
                              [numpy_helper.from_array(v, k) for k, v in (constants or {}).items()])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(TRAINING, 1)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), path)
    words = []
    for name, x in inputs.items():
        np.save(path.parent / f"{name}.npy", x)
        words.append(f"--input={name}={name}.npy")
    return words


def results(folder):
    names = json.loads((folder / "names.json").read_text())
    return {name: np.load(folder / entry["file"]) for name, entry in names.items()}


X, Z, ELSEWHERE = (RNG.standard_normal(5) for _ in range(3))
CUBE = [N("Mul", ["x", "x"], ["xx"]), N("Mul", ["xx", "x"], ["xxx"]), N("Mul", ["xxx", "z"], ["p"]), N("ReduceSum", ["p"], ["y"], keepdims=0)]


@pytest.mark.parametrize("engine", ENGINES)
def test_gradients(run, tmp_path, engine):
    """y = sum x^3 z; `xx` as a variable of its own beside x"""
    nodes = CUBE + [gradient(["x", "z"], ["dx"], xs=["x"], zs=["z"], y="y"), gradient(["x", "z"], ["ddx"], xs=["x"], zs=["z"], y="dx"),
                    gradient(["e", "z"], ["dx_e", "dz_e"], xs=["x", "z"], y="y"), gradient(["x", "xx"], ["a", "b"], xs=["x", "xx"], y="xxx"),
                    gradient(["x", "z", "e"], ["", "dz", "none"], xs=["x", "z", "e"], y="y")]
    words = save(tmp_path / "m.onnx", nodes, {"x": X, "z": Z, "e": ELSEWHERE}, ["dx", "ddx", "dx_e", "dz_e", "a", "b", "dz", "none"])
    run("run", "m.onnx", f"--engine={engine}", "--precision=f64", *words, "--output-dir=out")
    got = results(tmp_path / "out")
    want = {"dx": 3 * X * X * Z, "ddx": 6 * X * Z, "dx_e": 3 * ELSEWHERE**2 * Z, "dz_e": ELSEWHERE**3, "a": X * X, "b": X, "dz": X**3,
            "none": np.zeros(5)}
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-12, err_msg=name)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_penalty_on_a_gradient(run, tmp_path, engine):
    """loss = sum (dy/dx)^2 = sum 9 x^4 z^2"""
    nodes = CUBE + [gradient(["x", "z"], ["dx"], xs=["x"], zs=["z"], y="y"), N("ReduceSumSquare", ["dx"], ["loss"], keepdims=0)]
    words = save(tmp_path / "m.onnx", nodes, {"x": X, "z": Z}, ["loss"])
    run("grad", "m.onnx", "--loss=output:loss", f"--engine={engine}", "--precision=f64", *words, "--wrt=x", "--wrt=z", "--output-dir=out")
    got = results(tmp_path / "out")
    np.testing.assert_allclose(got["x"], 36 * X**3 * Z**2, rtol=1e-12)
    np.testing.assert_allclose(got["z"], 18 * X**4 * Z, rtol=1e-12)


def f32(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


LAYERS = {
    "gemm": ([N("Gemm", ["x", "w"], ["h"], transB=1), N("Tanh", ["h"], ["t"]), N("Softmax", ["t"], ["s"]), N("ReduceMax", ["s"], ["y"], keepdims=0)],
             {"x": f32(2, 3)}, {"w": f32(4, 3)}, "w", ["x"]),
    "conv": ([N("Conv", ["x", "w", "b"], ["h"], strides=[2, 2], pads=[1, 1, 1, 1]), N("Sigmoid", ["h"], ["s"]),
              N("AveragePool", ["s"], ["p"], kernel_shape=[2, 2]), N("MaxPool", ["s"], ["m"], kernel_shape=[2, 2]), N("Add", ["p", "m"], ["r"]),
              N("Exp", ["r"], ["e"]), N("ReduceSum", ["e"], ["y"], keepdims=0)],
             {"x": f32(2, 3, 6, 6)}, {"w": f32(4, 3, 3, 3), "b": f32(4)}, "x", ["w", "b"]),
    "embedding": ([N("Gather", ["w", "x"], ["g"]), N("LayerNormalization", ["g", "scale"], ["l"]), N("Mul", ["l", "l"], ["ll"]),
                   N("Mul", ["ll", "l"], ["lll"]), N("ReduceSum", ["lll"], ["y"], keepdims=0)],
                  {"x": np.array([1, 3, 3, 6])}, {"w": f32(7, 4), "scale": f32(4)}, "w", ["x", "scale"]),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", LAYERS)
def test_second_order_by_differences(run, tmp_path, engine, name):
    layers, inputs, weights, by, fixed = LAYERS[name]
    nodes = layers + [gradient([by, *fixed], ["d"], xs=[by], zs=fixed, y="y"), N("ReduceSumSquare", ["d"], ["q"], keepdims=0)]
    words = save(tmp_path / "m.onnx", nodes, inputs, ["q"], weights)
    done = run("grad", "m.onnx", "--loss=output:q", "--train=*", "--check-gradients=10", f"--engine={engine}", *words, "--output-dir=o", "--json")
    checked = json.loads(done.stdout)["parameters"]
    assert checked and all(c["error"] < 1e-6 for c in checked), checked


REFUSED = {
    "unknown_y": (gradient(["x"], ["dx"], xs=["x"], y="q"), '"q" is not a value before this node'),
    "unknown_x": (gradient(["x"], ["dx"], xs=["q"], y="xx"), '"q" is not a value before this node'),
    "one_name": (gradient(["x", "x"], ["dx"], xs=["x"], y="xx"), "2 inputs and 1 outputs do not fit xs with 1 names and zs with 0"),
    "no_names": (gradient(["x"], ["dx"], y="xx"), "1 inputs and 1 outputs do not fit xs with 0 names and zs with 0"),
    "integer": (gradient(["i"], ["dx"], xs=["i"], y="xx"), "input 0 is s64: it has no gradient"),
    "integer_y": (gradient(["x"], ["dx"], xs=["x"], y="i"), "y is s64: it has no gradient"),
    "another_shape": (gradient(["z4"], ["dx"], xs=["x"], y="xx"), "input 0 has another type or shape than the value that it replaces"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused(run, tmp_path, name):
    node, said = REFUSED[name]
    words = save(tmp_path / "m.onnx", [N("Mul", ["x", "x"], ["xx"]), node], {"x": X, "z4": X[:4], "i": np.arange(3)}, ["dx"])
    assert said in run("run", "m.onnx", "--engine=interp", *words, "--output-dir=out", exit=3).stderr
