"""Scatter by segments: what the updates of each index add up to, whatever the indices and shapes are, and however loops are cut."""
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

RNG = np.random.default_rng(1)
SHAPES = {  # data, axis, number of updates
    "rows": ((1500, 24), 0, 700),
    "wide rows": ((90, 2500), 0, 300),
    "numbers": ((70001,), 0, 5000),
    "columns": ((40, 1300), 1, 900),
    "more updates than rows": ((7, 33), 0, 5000),
    "inner axis": ((6, 600, 30), 1, 500),
}


def model(folder, data, axis, updates, reduction):
    """data with `updates` at the input's indices along the axis, as ScatterElements has them."""
    full = list(data.shape)
    full[axis] = updates.shape[axis]
    behind = [1] * len(full)
    behind[axis] = full[axis]
    nodes = [helper.make_node("Reshape", ["indices", "behind"], ["i"]),
             helper.make_node("Expand", ["i", "full"], ["all"]),
             helper.make_node("ScatterElements", ["data", "all", "updates"], ["y"], axis=axis, reduction=reduction)]
    ports = [helper.make_tensor_value_info("indices", TensorProto.INT64, [full[axis]]),
             helper.make_tensor_value_info("updates", TensorProto.FLOAT, full)]
    tensors = {"data": data, "behind": np.array(behind), "full": np.array(full)}
    graph = helper.make_graph(nodes, "g", ports, [helper.make_tensor_value_info("y", TensorProto.FLOAT, data.shape)],
                              [numpy_helper.from_array(v, k) for k, v in tensors.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), folder / "m.onnx")


def expected(data, axis, indices, updates, combine):
    y = np.moveaxis(data.astype(np.float64), axis, 0).copy()
    u = np.moveaxis(updates, axis, 0)
    for i, place in enumerate(indices):
        y[place] = combine(y[place], u[i])
    return np.moveaxis(y, 0, axis)


@pytest.mark.parametrize("reduction, combine", [("add", np.add), ("max", np.maximum), ("none", lambda x, y: y)])
@pytest.mark.parametrize("name", SHAPES)
def test_updates(run, tmp_path, name, reduction, combine):
    shape, axis, n = SHAPES[name]
    data = RNG.standard_normal(shape).astype(np.float32)
    updates = RNG.standard_normal([n if i == axis else d for i, d in enumerate(shape)]).astype(np.float32)
    indices = RNG.integers(0, shape[axis], n)
    indices[: n // 3] = indices[0]  # a long segment
    model(tmp_path, data, axis, updates, reduction)
    np.save(tmp_path / "i.npy", indices)
    np.save(tmp_path / "u.npy", updates)
    results = []
    for cores in (1, 64):
        run("run", "m.onnx", "--engine=compiled", "--input=indices=i.npy", "--input=updates=u.npy",
            f"--cores={cores}", f"--output-dir=out{cores}")
        results.append(np.load(tmp_path / f"out{cores}/y.npy"))
    assert np.array_equal(results[0], results[1])
    np.testing.assert_allclose(results[0], expected(data, axis, indices, updates, combine), rtol=2e-5, atol=2e-4)
