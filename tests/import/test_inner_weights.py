"""Weights that lie in branches of If and in bodies of loops train, and are exported where they were."""
import json

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

RANDOM = np.random.default_rng(0)
W = RANDOM.standard_normal((2, 4, 3)).astype(np.float32)
B = RANDOM.standard_normal((2, 3)).astype(np.float32)
VALUE = helper.make_tensor_value_info


def branch(i, form, names):
    """x W[i] + B[i], in Constant nodes, as initializers, in a branch of its own (one more If), or W outside."""
    w, b = names[i]
    tensors = [numpy_helper.from_array(v, n) for v, n in ((W[i], w), (B[i], b))]
    nodes, held = [], []
    if form == "constants":
        nodes = [helper.make_node("Constant", [], [t.name], value=t) for t in tensors]
    elif form == "outside":
        held = tensors[1:]
    else:
        held = tensors
    nodes.append(helper.make_node("Gemm", ["x", w, b], [f"o{i}"], f"dense{i}"))
    graph = helper.make_graph(nodes, f"g{i}", [], [VALUE(f"o{i}", 1, None)], held)
    if form != "nested":
        return graph
    outer = helper.make_node("If", ["c"], [f"p{i}"], f"inner{i}", then_branch=graph, else_branch=helper.make_graph(
        [helper.make_node("Relu", ["m"], [f"r{i}"]), helper.make_node("Expand", [f"r{i}", "shape"], [f"e{i}"])], f"h{i}", [], [VALUE(f"e{i}", 1, None)]))
    return helper.make_graph([outer], f"k{i}", [], [VALUE(f"p{i}", 1, None)])


def write(path, form, names=(("w0", "b0"), ("w1", "b1")), known=None):
    """y = x W[0] + B[0] where the mean of x is above 0, else x W[1] + B[1]."""
    nodes = [helper.make_node("ReduceMean", ["x"], ["m"], keepdims=0), helper.make_node("Greater", ["m", "zero"], ["c"]),
             helper.make_node("Not", ["c"], ["d"]), helper.make_node("Greater", ["k", "zero"], ["known"]),
             helper.make_node("If", ["c" if known is None else "known"], ["y"], "choice", then_branch=branch(0, form, names), else_branch=branch(1, form, names))]
    held = {"zero": np.float32(0), "k": np.float32(known or 0), "shape": np.array([4, 3])}
    if form == "outside":
        held |= {n: W[i] for i, (n, _) in enumerate(names)}
    if known is not None:
        nodes = nodes[3:]
    graph = helper.make_graph(nodes, "g", [VALUE("x", 1, [4, 4])], [VALUE("y", 1, [4, 3])], [numpy_helper.from_array(np.asarray(v), k) for k, v in held.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def kinds(run, *options):
    said = json.loads(run("check", "--json", "model.onnx", *options).stdout)
    return {p["name"]: p["kind"] for p in said["parameters"]}


SAME = (("w", "b"), ("w", "b"))


@pytest.mark.parametrize("form, taken, names", [
    *((form, taken, names) for form in ("constants", "initializers") for taken in (0, 1) for names in (None, SAME)),
    ("outside", 0, None), ("outside", 1, None), ("nested", 0, None), ("nested", 0, SAME)])
def test_one_step_changes_the_weights_of_the_branch_that_ran(run, tmp_path, form, taken, names):
    """Their gradients are those of the layer alone, and onnxruntime runs the exported file with the new numbers."""
    write(tmp_path / "model.onnx", form, *([names] if names else []))
    assert sorted(kinds(run).values()) == ["trainable"] * 4
    x, y = (RANDOM.standard_normal((4, n)).astype(np.float32) for n in (4, 3))
    x = abs(x) if taken == 0 else -abs(x)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    run("compile", "model.onnx", "-o", "train", "--loss=mse", "--optimizer=sgd")
    run(tmp_path / "train", "--data", "x=x.npy", "--data", "labels=y.npy", "--steps=1", "--lr=0.5", "--shuffle=off", "--export=out.onnx")
    error = 2 * (x.astype(float) @ W[taken] + B[taken] - y) / y.size
    w, b = W.astype(float), B.astype(float)
    w[taken] -= 0.5 * x.T @ error
    b[taken] -= 0.5 * error.sum(0)
    model = onnxruntime.InferenceSession(tmp_path / "out.onnx")
    for i, x in enumerate((abs(x), -abs(x))):
        if form == "nested" and i:
            continue
        assert np.allclose(model.run(None, {"x": x})[0], x @ w[i] + b[i], atol=1e-5)
    before, after = (onnx.load(tmp_path / n) for n in ("model.onnx", "out.onnx"))
    assert [len(g.graph.initializer) for g in (before, after)] == [len(before.graph.initializer)] * 2


@pytest.mark.parametrize("known, taken", [(1, 0), (-1, 1)])
@pytest.mark.parametrize("names", [(("w0", "b0"), ("w1", "b1")), SAME])
def test_a_branch_that_is_never_taken_does_not_train(run, tmp_path, known, taken, names):
    write(tmp_path / "model.onnx", "constants", names, known)
    rows = kinds(run)
    assert sorted(rows.values()) == ["frozen"] * 2 + ["trainable"] * 2
    if names != SAME:
        assert {n for n, k in rows.items() if k == "trainable"} == set(names[taken])


def test_tables_and_numbers_in_branches_stay(run, tmp_path):
    """They are judged as anywhere: a window, a number of the code, and a bias behind a product."""
    window = numpy_helper.from_array(np.hanning(25)[:-1].astype(np.float32), "window")
    half = numpy_helper.from_array(np.float32(0.5), "half")
    graphs = [helper.make_graph([helper.make_node("Mul", ["x", "window"], ["a"]), helper.make_node("Mul", ["a", "half"], ["t"])], "t", [], [VALUE("t", 1, None)], [window, half]),
              helper.make_graph([helper.make_node("Constant", [], ["b"], value=numpy_helper.from_array(np.tile(B[0], 8), "b")), helper.make_node("MatMul", ["x", "w"], ["h"]),
                                 helper.make_node("Add", ["h", "b"], ["e"])], "e", [], [VALUE("e", 1, None)])]
    nodes = [helper.make_node("If", ["c"], ["y"], "choice", then_branch=graphs[0], else_branch=graphs[1])]
    graph = helper.make_graph(nodes, "g", [VALUE("x", 1, [2, 24]), VALUE("c", TensorProto.BOOL, [])], [VALUE("y", 1, [2, 24])],
                              [numpy_helper.from_array(RANDOM.standard_normal((24, 24)).astype(np.float32), "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "model.onnx")
    assert kinds(run) == {"w": "trainable", "window": "frozen", "b": "trainable"}


@pytest.mark.parametrize("trips", [3, 8])
def test_weights_of_a_loops_body_train(run, tmp_path, trips):
    """h = tanh(h W) so many times: with few it stands there that often, with many it is one body."""
    w = (0.3 * RANDOM.standard_normal((4, 4))).astype(np.float32)
    body = helper.make_graph([helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(w, "w")), helper.make_node("MatMul", ["h", "w"], ["g"]),
                              helper.make_node("Tanh", ["g"], ["h_next"]), helper.make_node("Identity", ["go"], ["go_next"])], "body",
                             [VALUE("i", TensorProto.INT64, []), VALUE("go", TensorProto.BOOL, []), VALUE("h", 1, None)],
                             [VALUE("go_next", TensorProto.BOOL, []), VALUE("h_next", 1, None)])
    graph = helper.make_graph([helper.make_node("Loop", ["n", "", "x"], ["y"], "loop", body=body)], "g", [VALUE("x", 1, [2, 4])], [VALUE("y", 1, [2, 4])],
                              [numpy_helper.from_array(np.int64(trips), "n")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "model.onnx")
    assert kinds(run) == {"w": "trainable"}
    x, y = RANDOM.standard_normal((2, 2, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    said = run("grad", "model.onnx", "--loss=mse", "--input=x=x.npy", "--input=labels=y.npy", "--precision=f64", "--check-gradients=4").stdout
    errors = {line.split()[0]: float(line.split()[1]) for line in said.splitlines() if " at " in line}
    assert set(errors) == {"w"} and max(errors.values()) < 1e-6, said
    run("compile", "model.onnx", "-o", "train", "--loss=mse", "--optimizer=sgd")
    run(tmp_path / "train", "--data", "x=x.npy", "--data", "labels=y.npy", "--steps=1", "--lr=0.5", "--shuffle=off", "--export=out.onnx")
    states, weight = [x.astype(float)], w.astype(float)
    for _ in range(trips):
        states.append(np.tanh(states[-1] @ weight))
    up, gradient = 2 * (states[-1] - y) / y.size, 0
    for before, after in zip(states[-2::-1], states[:0:-1]):
        up = up * (1 - after ** 2)
        gradient, up = gradient + before.T @ up, up @ weight.T
    body = onnx.load(tmp_path / "out.onnx").graph.node[0].attribute[0].g
    assert np.allclose(numpy_helper.to_array(body.node[0].attribute[0].t), weight - 0.5 * gradient, atol=1e-6)
