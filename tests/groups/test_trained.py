"""What is trained besides q, k and v: tables, scales, in shapes that reshapes and transposes change. Gradients with groups and without, in f64."""
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from running import same_gradients

WIDTH = 6
B, H, Q, K = 2, 3, 40, 72
SQUARES = [("Sqrt", f"x{i}", f"x{i + 1}") if i % 2 else ("Mul", f"x{i} x{i}", f"x{i + 1}") for i in range(24)]
# name: [B, H, Q, K], nodes from the scores s to the weights w, what is trained and its shape, constants
CASES = {
    "two_tables": ((B, H, Q, K), [("Add", "s a", "t"), ("Add", "t b", "l"), ("Softmax", "l", "w")], {"a": (H, Q, K), "b": (H, Q, K)}, {}),
    "two_rows": ((B, H, Q, K), [("Add", "s a", "t"), ("Add", "t b", "l"), ("Softmax", "l", "w")], {"a": (H, 1, K), "b": (H, 1, K)}, {}),
    "three_of_all": ((B, H, Q, K), [("Add", "a b", "c"), ("Add", "s c", "t"), ("Add", "t d", "l"), ("Softmax", "l", "w")],
                     {"a": (B, H, Q, K), "b": (B, H, Q, K), "d": (B, H, Q, K)}, {}),
    "scale_and_tables": ((B, H, Q, K), [("Mul", "s c", "t"), ("Add", "t a", "u"), ("Add", "u b", "l"), ("Softmax", "l", "w")],
                         {"c": (H, 1, 1), "a": (H, Q, K), "b": (H, Q, K)}, {}),
    "scale_of_samples": ((B, H, Q, K), [("Mul", "s c", "l"), ("Softmax", "l", "w")], {"c": (B, 1, 1, 1)}, {}),
    "scale_of_queries": ((B, H, Q, K), [("Mul", "s c", "l"), ("Softmax", "l", "w")], {"c": (1, 1, Q, 1)}, {}),
    "scale_of_keys": ((B, H, Q, K), [("Mul", "s c", "l"), ("Softmax", "l", "w")], {"c": (K,)}, {}),
    "behind": ((B, H, Q, K), [("Softmax", "s", "p"), ("Mul", "p c", "w")], {"c": (H, 1, 1)}, {}),
    "before_and_behind": ((B, H, Q, K), [("Mul", "s c", "l"), ("Softmax", "l", "p"), ("Mul", "p c", "w")], {"c": (H, 1, 1)}, {}),
    "table_behind": ((B, H, Q, K), [("Softmax", "s", "p"), ("Mul", "p c", "w")], {"c": (H, Q, K)}, {}),
    "regrouped": ((6, 4, Q, K), [("Expand", "a wide", "t"), ("Reshape", "t whole", "u"), ("Add", "s u", "l"), ("Softmax", "l", "w")],
                  {"a": (6, Q, K)}, {"wide": (4, 6, Q, K), "whole": (6, 4, Q, K)}),
    "regrouped_rows": ((6, 4, Q, K), [("Expand", "a wide", "t"), ("Reshape", "t whole", "u"), ("Mul", "s u", "l"), ("Softmax", "l", "w")],
                       {"a": (6, Q, 1)}, {"wide": (4, 6, Q, K), "whole": (6, 4, Q, K)}),
    "turned": ((B, H, Q, Q), [("Expand", "a whole", "t"), ("Transpose", "t", "u"), ("Add", "s u", "l"), ("Softmax", "l", "w")],
               {"a": (H, Q, Q)}, {"whole": (B, H, Q, Q)}),
    "squares": ((B, H, Q, K), [("Expand", "a whole", "x0"), *SQUARES, ("Reshape", "x24 flat", "z"), ("Reshape", "z whole", "u"),
                              ("Add", "s u", "l"), ("Softmax", "l", "w")],
                {"a": (H, Q, 1)}, {"whole": (B, H, Q, K), "flat": (B * H, Q, K)}),
}
NOT_TAKEN = {"regrouped", "regrouped_rows", "turned"}  # the gradient stays nodes: sums along axes that no loop has


def write(path, name):
    (b, h, q, k), middle, trained, constants = CASES[name]
    rng = np.random.default_rng(len(name))
    tensors = {"q": rng.standard_normal((b, h, q, WIDTH)), "kt": rng.standard_normal((b, h, WIDTH, k)), "v": rng.standard_normal((b, h, k, WIDTH)),
               **{n: 0.9 + 0.1 * rng.standard_normal(shape) for n, shape in trained.items()}}
    nodes = [("MatMul", "q kt", "s"), *middle, ("MatMul", "w v", "o"), ("Mul", "o x", "y")]
    attributes = {"Softmax": {"axis": -1}, "Transpose": {"perm": [0, 1, 3, 2]}}
    graph = helper.make_graph([helper.make_node(op, i.split(), [o], **attributes.get(op, {})) for op, i, o in nodes], "g",
                              [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 1, 1])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, [b, h, q, WIDTH])],
                              [numpy_helper.from_array(t.astype(np.float32), n) for n, t in tensors.items()]
                              + [numpy_helper.from_array(np.array(t, np.int64), n) for n, t in constants.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    np.save(path.parent / "x.npy", np.ones((1, 1, 1, 1), np.float32))
    np.save(path.parent / "labels.npy", rng.standard_normal((b, h, q, WIDTH)).astype(np.float32))


@pytest.mark.parametrize("engine", ["interp", "compiled"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_of_trained_values(run, tmp_path, name, engine):
    write(tmp_path / "model.onnx", name)
    same_gradients(run, tmp_path, {"q", "kt", "v", *CASES[name][2]}, engine)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_kernels(run, tmp_path, name):
    write(tmp_path / "model.onnx", name)
    text = run("dump", "model.onnx", "--loss=mse", "--optimizer=sgd", "--train=*", "--stage=memory").stdout
    assert "kernel @attention_" in text and ("kernel @attention_grad" in text) == (name not in NOT_TAKEN)
    assert len(text) < 300_000


SHARED = {"keys_of_all": ((WIDTH, K), (B, H, K, WIDTH)), "values_of_all": ((B, H, WIDTH, K), (K, WIDTH)), "both_of_all": ((WIDTH, K), (K, WIDTH)),
          "values_of_a_head": ((B, H, WIDTH, K), (H, K, WIDTH)), "keys_of_a_head": ((H, WIDTH, K), (B, H, K, WIDTH)),
          "values_of_a_query": ((B, H, WIDTH, K), (B, H, Q, K, WIDTH))}


@pytest.mark.parametrize("name", SHARED)
def test_keys_and_values_with_other_axes(run, tmp_path, name):
    """k or v without the axis of samples or heads; v with the axis of queries, as where each query has values of its own."""
    rng = np.random.default_rng(3)
    of_k, of_v = SHARED[name]
    tensors = {"q": rng.standard_normal((B, H, Q, WIDTH)), "kt": rng.standard_normal(of_k), "v": rng.standard_normal(of_v)}
    nodes = [("MatMul", "q kt", "s"), ("Softmax", "s", "w"), ("MatMul", "w v", "o"), ("Mul", "o x", "y")]
    if len(of_v) == 5:
        nodes[2:] = [("Reshape", "w row", "r"), ("MatMul", "r v", "p"), ("Reshape", "p whole", "o"), ("Mul", "o x", "y")]
    shapes = {"row": (B, H, Q, 1, K), "whole": (B, H, Q, WIDTH)}
    used = {i for _, inputs, _ in nodes for i in inputs.split()}
    graph = helper.make_graph([helper.make_node(op, i.split(), [o], **({"axis": -1} if op == "Softmax" else {})) for op, i, o in nodes], "g",
                              [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 1, 1])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, [B, H, Q, WIDTH])],
                              [numpy_helper.from_array(t.astype(np.float32), n) for n, t in tensors.items()]
                              + [numpy_helper.from_array(np.array(t, np.int64), n) for n, t in shapes.items() if n in used])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", np.ones((1, 1, 1, 1), np.float32))
    np.save(tmp_path / "labels.npy", rng.standard_normal((B, H, Q, WIDTH)).astype(np.float32))
    same_gradients(run, tmp_path, {"q", "kt", "v"})
