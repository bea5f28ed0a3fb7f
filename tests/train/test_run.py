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
    arguments = reference.first_batch(models / name, tmp_path, labels=False)
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
