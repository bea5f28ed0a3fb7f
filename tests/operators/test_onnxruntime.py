"""onnxruntime's own operators: results of both engines in f32 against its CPU kernels, case by case, where it has one."""
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import case as tables  # noqa: E402
from test_operators import feed, saved  # noqa: E402

CASES = [case for group in tables.cases("microsoft").values() for case in group if not case.torch]


def narrow(x):
    return x.astype(np.float32) if x is not None and x.dtype == np.float64 else x


def narrowed(case):
    """The case with floats of 32 bits, which the kernels have."""
    return tables.Case(**{**vars(case), "inputs": {name: narrow(x) for name, x in case.inputs.items()}})


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(run, tmp_path, case):
    parts = tables.model([narrowed(case)])
    model = tables.with_total(parts, {}, case.opset, case.domain)
    for output in model.graph.output:  # onnxruntime cannot tell the type of scores
        if output.name.endswith(".y3"):
            output.CopyFrom(onnx.helper.make_tensor_value_info(output.name, onnx.TensorProto.FLOAT, None))
    onnx.save(model, tmp_path / "model.onnx")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    wanted = session.run(None, parts.feeds)
    words = feed(tmp_path, parts.feeds)
    for engine in ("interp", "compiled"):
        run("run", "model.onnx", f"--engine={engine}", *words, "--output-dir=out")
        results = saved(tmp_path / "out")
        for output, want in zip(session.get_outputs(), wanted):
            got = results[output.name]
            assert got.shape == want.shape, output.name
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6, err_msg=output.name)
