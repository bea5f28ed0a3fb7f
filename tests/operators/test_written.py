"""Every op that `dump --format=onnx` can write, with each of its samples: onnxruntime computes what the interpreter does, with
indices at and beyond both ends, too."""
import subprocess

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

# Words of a line of written_samples -> why ONNX's result may be another.
OPEN = {" nans": "ONNX says nothing of NaN in maxima and orders",
        "pow  s64": "a negative power of 0 is no whole number", "pow  u64": "onnxruntime has no powers of u64"}
# Operators of whole numbers that onnxruntime has no kernels for; onnx's own evaluator has.
BY_REFERENCE = "uint64", "NOT_IMPLEMENTED"
NEVER_WRITTEN = {"all_reduce", "bitcast", "dequantize", "fake_quantize", "lookup", "pool_gather", "quantize", "random", "scatter_sorted", "sort_runs"}


def computed(path, model, feeds):
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, feeds)
    except Exception as fault:
        if not any(words in str(fault) for words in BY_REFERENCE):
            raise
        return ReferenceEvaluator(model).run(None, feeds)


@pytest.fixture(scope="module")
def written(build, tmp_path_factory):
    """(folder, what written_samples printed)"""
    folder = tmp_path_factory.mktemp("written")
    done = subprocess.run([build / "tests/written_samples", folder], capture_output=True, text=True, check=True)
    return folder, [line.split(" ", 1) for line in done.stdout.splitlines()]


def test_what_is_written_is_what_the_interpreter_computes(written):
    folder, lines = written
    wrong, compared = [], set()
    for number, name in lines:
        if number == "-" or any(words in name for words in OPEN):
            continue
        model = onnx.load(folder / f"{number}.onnx")
        onnx.checker.check_model(model, full_check=True)
        feeds = {x.name: np.load(folder / f"{number}.{x.name}.npy") for x in model.graph.input}
        for i, got in enumerate(computed(folder / f"{number}.onnx", model, feeds)):
            want = np.load(folder / f"{number}.out.{i}.npy")
            same = got.shape == want.shape and np.allclose(got.astype(np.float64), want.astype(np.float64), rtol=1e-5, atol=1e-6, equal_nan=True)
            wrong += [] if same else [f"{number} {name}: {got.ravel()[:6]}, right {want.ravel()[:6]}"]
        compared.add(name.split()[0])
    assert not wrong, "\n".join(wrong)
    assert {"gather", "scatter", "cast", "div", "pool_grad", "conv_grad_weight", "sort"} <= compared


def test_ops_without_a_form_are_known(written):
    _, lines = written
    forms = {name.split()[0] for number, name in lines if number != "-"}
    assert {name.split()[0] for number, name in lines if number == "-"} - forms == NEVER_WRITTEN
