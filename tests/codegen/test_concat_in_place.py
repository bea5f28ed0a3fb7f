"""Products that write side by side, where a concat would copy them to: the results are NumPy's."""
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save_model


def product(name, axis):
    """The two operands of a product, and its result."""
    rng = np.random.default_rng(len(name))
    shapes = {1: [(400, 512), (512, 256 if name == "a" else 384)], 0: [(400 if name == "a" else 240, 512), (512, 256)]}[axis]
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    return x, w, x.astype(np.float64) @ w


@pytest.mark.parametrize("axis", [0, 1])
def test_products_side_by_side(run, tmp_path, monkeypatch, axis):
    monkeypatch.chdir(tmp_path)
    both = {name: product(name, axis) for name in ("a", "bb")}
    graph = helper.make_graph(
        [*(helper.make_node("MatMul", [f"x{n}", f"w{n}"], [n]) for n in both), helper.make_node("Concat", list(both), ["c"], axis=axis),
         helper.make_node("Identity", ["c"], ["y"])], "g",
        [helper.make_tensor_value_info(f"x{n}", TensorProto.FLOAT, x.shape) for n, (x, _, _) in both.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], [numpy_helper.from_array(w, f"w{n}") for n, (_, w, _) in both.items()])
    save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), "m.onnx")
    for n, (x, _, _) in both.items():
        np.save(f"x{n}.npy", x)
    assert "_concat" in run("dump", "m.onnx", "--after=lower", "--target=cpu").stdout
    run("run", "m.onnx", *(f"--input=x{n}=x{n}.npy" for n in both), "--engine=compiled", "--output-dir=out")
    right = np.concatenate([y for _, _, y in both.values()], axis)
    assert np.abs(np.load("out/y.npy") - right).max() <= 1e-6 * np.abs(right).max()
