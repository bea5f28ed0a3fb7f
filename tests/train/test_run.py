"""`gradc run`, both engines, against onnxruntime in f32 and onnx's reference evaluator in f64."""
import numpy as np
import onnx
import pytest
import reference
import widened
from tolerances import limit


def feed_of(arguments):
    return {name: np.load(file) for name, file in
            (a.split("=", 1) for a in arguments if a != "--input")}


def furthest(got, want):
    """Largest difference relative to the largest value, over all outputs."""
    assert sorted(got) == sorted(want)
    return max(float(np.max(np.abs(got[k] - want[k])) / max(np.max(np.abs(want[k])), 1e-300))
               for k in want)


@pytest.mark.parametrize("engine", ["interp", "compiled"])
@pytest.mark.parametrize("precision", reference.PRECISIONS)
@pytest.mark.parametrize("name", reference.NAMES)
def test_forward(run, models, tmp_path, name, precision, engine):
    path = models / name / "model.onnx"
    few = 3 if engine == "interp" else None  # it takes seconds a row
    arguments = reference.first_batch(models / name, tmp_path, labels=False, most=few)
    run("run", path, f"--engine={engine}", f"--precision={precision}", *arguments,
        "--output-dir", tmp_path / "out")
    got = reference.results(tmp_path / "out")
    if precision == "f32":
        want = widened.onnxruntime_results(path, feed_of(arguments))
    else:
        want = widened.evaluate(onnx.load(path), feed_of(arguments))
        assert all(got[k].dtype == np.float64 for k in got if want[k].dtype == np.float64)
    off = furthest(got, want)
    assert off <= limit(f"forward {precision}", name), f"relative {off:.2e}"


@pytest.mark.parametrize("engine", ["interp", "compiled"])
@pytest.mark.parametrize("precision", ["f32", "f64"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_results_have_the_declared_type(run, tmp_path, dtype, precision, engine):
    """f64 programs give f64."""
    random = np.random.default_rng(0)
    x, w = (random.standard_normal(shape).astype(dtype) for shape in ((2, 4), (4, 3)))
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"], name="matmul")], "product",
        [onnx.helper.make_tensor_value_info("x", kind, [2, 4])],
        [onnx.helper.make_tensor_value_info("y", kind, [2, 3])],
        [onnx.numpy_helper.from_array(w, "w")])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)],
                                     ir_version=8), tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", x)
    run("run", tmp_path / "model.onnx", f"--engine={engine}", f"--precision={precision}", "--input",
        f"x={tmp_path / 'x.npy'}", "--output-dir", tmp_path / "out")
    y = reference.results(tmp_path / "out")["y"]
    assert y.dtype == (np.float64 if precision == "f64" else dtype)
    want = x.astype(np.float64) @ w.astype(np.float64)
    np.testing.assert_allclose(y, want, rtol=2 * float(np.finfo(dtype).eps), atol=1e-3 * (
        dtype == np.float16))
