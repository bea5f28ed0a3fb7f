"""The last product and its loss, in chunks of rows: losses and gradients as without chunks, and no buffer of all logits."""
import re

import losses
import numpy as np
import onnx
import pytest
import reference
import tolerances
from running import differing
from test_stored_scores import values

CASES = [name for name, case in losses.CASES.items() if case.recognized]
OFF = "--disable=recognize_backward"
ROWS = (1, 16, 37, 50)  # of a chunk: one, some of a sample's, a sample's, and more


def write(folder, case):
    """The model and its data, and gradc's words for both."""
    onnx.save(losses.model(case), folder / "model.onnx")
    np.save(folder / "class_weight.npy", losses.class_weight())
    for name, x in losses.feeds(case).items():
        np.save(folder / f"{name}.npy", x)
    return ["model.onnx", *case.words]


def gradients(run, folder, words, *options):
    run("grad", *words, "--input=ids=ids.npy", "--input=labels=labels.npy", *options, "--output-dir=out")
    return {**reference.results(folder / "out"), "loss": np.load(folder / "out/loss.npy")}


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", CASES)
def test_chunks_change_nothing(run, tmp_path, name, rows):
    case = losses.CASES[name]
    words = write(tmp_path, case)
    options = ["--precision=f64", "--engine=interp" if rows == 16 else "--engine=compiled"]
    want = gradients(run, tmp_path, words, *options, OFF)
    got = gradients(run, tmp_path, words, *options, f"--pass-option=ungroup.loss_rows={rows}")
    assert set(got) == set(want) and len(want) >= 4
    assert not differing({k: (got[k], want[k]) for k in want}, tolerances.limit("groups f64"))


def large(text, program, elements):
    """How many values have at least so many elements."""
    return sum(int(np.prod(shape)) >= elements for of, shape in values(text) if of == program)


@pytest.mark.parametrize("name", losses.CASES)
def test_no_logits_are_stored(run, tmp_path, name):
    """In training and evaluation, but for models of few classes. Targets of a squared error are as large as the logits: if no chunk divides
    the rows, they are copied."""
    case = losses.CASES[name]
    words = write(tmp_path, case)
    shown = ["dump", *words, "--optimizer=adamw", "--stage=memory", "--target=cpu:x86-64-v4"]
    text = run(*shown, "--pass-option=ungroup.loss_rows=16").stdout
    logits = int(np.prod(case.rows)) * (case.logits[-1] if not case.recognized else losses.CLASSES)
    assert large(run(*shown, OFF).stdout, "accumulate", logits / 2)
    if case.recognized:
        assert "loop" in text
        for program in ("accumulate", "eval"):
            assert large(text, program, logits / 2) <= (case.labels in ("floats", "shares")), program


@pytest.mark.parametrize("precision", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("name", ["plain", "tied", "weight_and_smoothing", "nll", "softcap"])
def test_errors_are_no_larger(run, tmp_path, name, precision):
    """At most twice the error of one chunk in the same precision, against f64 without rounding."""
    case = losses.CASES[name]
    words = write(tmp_path, case)
    exact = gradients(run, tmp_path, words, "--precision=f64", OFF)
    whole = gradients(run, tmp_path, words, f"--precision={precision}", OFF)
    chunks = gradients(run, tmp_path, words, f"--precision={precision}", "--pass-option=ungroup.loss_rows=16")
    for k in exact:
        scale = np.linalg.norm(exact[k])
        error = [np.linalg.norm(x[k].astype(np.float64) - exact[k]) / scale for x in (whole, chunks)]
        assert error[1] <= max(2 * error[0], 5e-7), (k, error)


def test_sums_of_one_chunk_go_to_the_gradient(run, tmp_path):
    """The gradient of the weight is added up where the step keeps it: no other value has its size."""
    words = write(tmp_path, losses.CASES["tied"])
    text = run("dump", *words, "--optimizer=adamw", "--stage=memory", "--target=cpu:x86-64-v4", "--pass-option=ungroup.loss_rows=16").stdout
    accumulate = text[text.index("func @accumulate"):text.index("func @eval")]
    places = re.findall(r"(launch|loop) .*?f32\[103,11\].*?(?:when (\w+) )?at (state|workspace)", accumulate)
    assert places and all(where == "state" or when == "later" for _, when, where in places), places
