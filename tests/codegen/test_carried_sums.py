"""A loop's carried value to which a product is added: in the value's place, unless the product reads the value."""
import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

SIZE, TRIPS = 64, 40
PRODUCTS = {
    "reads_nothing_carried": [("MatMul", ["V", "W"], "d", {})],
    "left": [("MatMul", ["h", "W"], "d", {})],
    "right": [("MatMul", ["W", "h"], "d", {})],
    "transposed": [("Transpose", ["h"], "t", {"perm": [1, 0]}), ("MatMul", ["t", "W"], "d", {})],
    "both": [("MatMul", ["h", "h"], "dd", {}), ("Mul", ["dd", "small"], "d", {})],
}


@pytest.mark.parametrize("first", ["h", "d"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_sum_that_the_product_reads(run, tmp_path, name, first):
    random = np.random.default_rng(0)
    nodes = [*PRODUCTS[name], ("Add", ["h", "d"] if first == "h" else ["d", "h"], "next", {}), ("Identity", ["go"], "on", {})]
    shape = [SIZE, SIZE]
    body = helper.make_graph([helper.make_node(op, i, [o], **a) for op, i, o, a in nodes], "body",
                             [helper.make_tensor_value_info("i", TensorProto.INT64, []), helper.make_tensor_value_info("go", TensorProto.BOOL, []),
                              helper.make_tensor_value_info("h", TensorProto.FLOAT, shape)],
                             [helper.make_tensor_value_info("on", TensorProto.BOOL, []), helper.make_tensor_value_info("next", TensorProto.FLOAT, shape)])
    tensors = {"trips": np.array(TRIPS), "true": np.array(True), "small": np.float32(1e-4), "V": 0.02 * random.standard_normal(shape), "W": 0.02 * random.standard_normal(shape)}
    graph = helper.make_graph([helper.make_node("Loop", ["trips", "true", "x"], ["y"], body=body)], "g",
                              [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)], [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
                              [numpy_helper.from_array(np.asarray(t, np.float32) if np.asarray(t).dtype == np.float64 else np.asarray(t), n) for n, t in tensors.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", random.standard_normal(shape).astype(np.float32))
    found = []
    for engine in ("compiled", "interp"):
        run("run", "m.onnx", "--input=x=x.npy", f"--engine={engine}", f"--output-dir={engine}")
        files = json.loads((tmp_path / engine / "names.json").read_text())
        found.append(np.load(tmp_path / engine / files["y"]["file"]).astype(np.float64))
    assert np.abs(found[0] - found[1]).max() <= 1e-5 * np.abs(found[1]).max()
