"""Ops along an axis whose lines are too long for the interpreter: in blocks, whose results are put together."""
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

# Whole blocks, one element more or less, blocks of several lengths; enough lines to stay whole; the first axis.
SHAPES = [((65536,), 0), ((65537,), 0), ((3, 30001), 1), ((30001, 3), 0), ((2, 5000, 5), 1), ((300, 257), 1), ((1, 2100001), 1)]


def call(run, folder, op, x, *tensors, results=("y",), precision="f64", **attributes):
    """What the compiled node gives for x."""
    dtype = helper.np_dtype_to_tensor_dtype(x.dtype)
    inputs = [numpy_helper.from_array(np.asarray(t), f"t{i}") for i, t in enumerate(tensors)]
    node = helper.make_node(op, ["x", *(t.name for t in inputs)], results, **attributes)
    types = [dtype if op != "ArgMax" and i == 0 else onnx.TensorProto.INT64 for i in range(len(results))]
    graph = helper.make_graph([node], "lines", [helper.make_tensor_value_info("x", dtype, x.shape)],
                              [helper.make_tensor_value_info(r, t, None) for r, t in zip(results, types)], inputs)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "m.onnx")
    np.save(folder / "x.npy", x)
    run("run", "m.onnx", "--engine=compiled", f"--precision={precision}", "--input=x=x.npy", "--output-dir=out")
    return [np.load(folder / f"out/{r}.npy") for r in results]


@pytest.mark.parametrize("reverse, exclusive", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("shape, axis", SHAPES)
def test_running_sums(run, tmp_path, shape, axis, reverse, exclusive):
    x = np.random.default_rng(0).integers(-1000, 1000, shape).astype(np.float64)  # sums are exact
    y, = call(run, tmp_path, "CumSum", x, np.array(axis), reverse=reverse, exclusive=exclusive)
    x = np.flip(x, axis) if reverse else x
    want = np.cumsum(x, axis) - (x if exclusive else 0)
    np.testing.assert_array_equal(y, np.flip(want, axis) if reverse else want)


def test_running_sums_of_probabilities_do_not_fall(run, tmp_path):
    """Not from one block to the next either: who samples searches in them."""
    x = np.sort(np.random.default_rng(0).dirichlet(np.full(50257, 0.05)))[::-1].astype(np.float32)
    y, = call(run, tmp_path, "CumSum", x, np.array(0), precision="f32")
    assert (np.diff(y) >= 0).all()
    np.testing.assert_allclose(y, np.cumsum(x, dtype=np.float64), rtol=1e-6)


def test_running_sums_overflow_only_where_they_do_in_order(run, tmp_path):
    x = np.where(np.arange(70000) % 2, -3e38, 3e38).astype(np.float32)
    y, = call(run, tmp_path, "CumSum", x, np.array(0), precision="f32")
    np.testing.assert_array_equal(y, np.cumsum(x))


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("shape, axis", SHAPES)
def test_argmax_of_ties(run, tmp_path, shape, axis, last):
    x = np.random.default_rng(0).integers(0, 50, shape).astype(np.float64)
    y, = call(run, tmp_path, "ArgMax", x, axis=axis, keepdims=0, select_last_index=last)
    want = shape[axis] - 1 - np.argmax(np.flip(x, axis), axis) if last else np.argmax(x, axis)
    np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("x, want", [
    (np.full(70001, np.nan), 0),
    (np.where(np.arange(70001) == 69999, -np.inf, np.nan), 69999),
    (np.where(np.arange(70001) == 300, 1, np.nan), 300),
    (np.full(70001, -np.inf), 0)], ids=["nan", "infinity among nan", "one among nan", "infinity"])
def test_argmax_of_what_is_no_number(run, tmp_path, x, want):
    y, = call(run, tmp_path, "ArgMax", x, axis=0, keepdims=0)
    assert y == want


@pytest.mark.parametrize("shape", [(100000,), (2, 50000)])
def test_argmax_of_integers(run, tmp_path, shape):
    x = np.random.default_rng(0).integers(-2**63, -1, shape)
    y, = call(run, tmp_path, "ArgMax", x, axis=-1, keepdims=0)
    np.testing.assert_array_equal(y, np.argmax(x, -1))


def sorted_places(x, axis, descending):
    """Where the elements in order come from, the first of equal ones first; NaN is larger than all."""
    if not descending:
        return np.argsort(x, axis, kind="stable")
    reversed_order = np.argsort(np.flip(x, axis), axis, kind="stable")
    return np.flip(x.shape[axis] - 1 - reversed_order, axis)


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("values", ["ties", "nan", "integers"])
@pytest.mark.parametrize("shape, axis", [((512,), 0), ((513,), 0), ((1024,), 0), ((1025,), 0), ((65537,), 0), ((3, 30001), 1),
                                         ((3001, 3), 0), ((2, 700, 5), 1), ((40, 1000), 1), ((2, 0), 1), ((3, 1), 1)])
def test_sorted_lines(run, tmp_path, shape, axis, values, largest):
    random = np.random.default_rng(0)
    x = random.integers(-100, 100, shape)
    if values != "integers":
        x = x / 4
    if values == "nan":
        x[random.random(shape) < 0.3] = np.nan
    y, places = call(run, tmp_path, "TopK", x, np.array([shape[axis]]), results=("y", "i"), axis=axis, largest=largest)
    want = sorted_places(x, axis, largest)
    np.testing.assert_array_equal(places, want)
    np.testing.assert_array_equal(y, np.take_along_axis(x, want, axis))


def test_the_largest_of_a_long_line(run, tmp_path):
    x = np.random.default_rng(0).standard_normal((2, 100003))
    y, places = call(run, tmp_path, "TopK", x, np.array([7]), results=("y", "i"))
    want = sorted_places(x, 1, True)[:, :7]
    np.testing.assert_array_equal(places, want)
    np.testing.assert_array_equal(y, np.take_along_axis(x, want, 1))
