"""The last product and its loss, in chunks of rows: losses and gradients as without chunks, and no buffer of all logits."""
import lzma
import re
from pathlib import Path

import losses
import numpy as np
import onnx
import pytest
import reference
import tolerances
from running import differing
from test_stored_scores import values

ROOT = Path(__file__).resolve().parents[2]
CASES = [name for name, case in losses.CASES.items() if case.recognized]
OFF = "--pass-option=ungroup.loss_rows=1000000000"
ROWS = {1: ["plain", "position_bias", "one_row"], 16: CASES, 37: ["plain", "tied", "classes_first"], 50: CASES}  # of a chunk; a sample has 37


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


@pytest.mark.parametrize("rows, name", [(rows, name) for rows, names in ROWS.items() for name in names])
def test_chunks_change_nothing(run, tmp_path, name, rows):
    case = losses.CASES[name]
    words = write(tmp_path, case)
    options = ["--precision=f64", "--engine=compiled"]  # the interpreter runs the graph before `ungroup`, where no chunks exist
    want = gradients(run, tmp_path, words, *options, OFF)
    got = gradients(run, tmp_path, words, *options, f"--pass-option=ungroup.loss_rows={rows}")
    assert set(got) == set(want) and len(want) >= 3
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


@pytest.mark.parametrize("name, precision", [("plain", "f32"), ("plain", "bf16"), ("tied", "f16"), ("weight_and_smoothing", "bf16"),
                                             ("nll", "f16"), ("softcap", "bf16")])
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


@pytest.mark.parametrize("name", ["tied", "weight_and_smoothing", "classes_first"])
def test_training_is_the_same(run, tmp_path, name):
    """Over several micro-batches, with rows that evaluation pads."""
    case = losses.CASES[name]
    words = write(tmp_path, case)
    for x in ("ids", "labels"):
        rows = np.load(tmp_path / f"{x}.npy")
        np.save(tmp_path / f"{x}.npy", np.concatenate([rows] * 7)[:19])
    found = []
    for options in ([OFF], ["--pass-option=ungroup.loss_rows=16"]):
        run("compile", *words, "-o", "train", "--precision=f64", *options)
        run(tmp_path / "train", "--data=ids=ids.npy", "--data=labels=labels.npy", "--eval-data=ids=ids.npy", "--eval-data=labels=labels.npy",
            "--eval-every=1", "--accumulate=3", "--steps=4", "--log=log.jsonl", "--progress=off")
        lines = reference.log_lines(tmp_path / "log.jsonl")
        found.append([line[k] for line in lines for k in ("loss", "grad_norm", "eval_loss", "eval_accuracy") if k in line])
        (tmp_path / "log.jsonl").unlink()
    assert len(found[0]) >= 12 and found[1] == pytest.approx(found[0], rel=1e-11)


@pytest.mark.parametrize("name", ["gpt2_124m", "llama_100m"])
def test_no_logits_of_language_models(run, tmp_path, name):
    """As users compile them, with the sizes of chunks that the target's table says."""
    packed = ROOT / f"bench/graphs/{name}.onnx.xz"
    (tmp_path / "model.onnx").write_bytes(lzma.decompress(packed.read_bytes()))
    shown = run("dump", "model.onnx", "--dim=batch=2", "--dim=seq=257", "--loss=cross_entropy", "--optimizer=adamw", "--init=random",
                "--stage=memory", "--target=cpu:x86-64-v4").stdout
    classes, width = {"gpt2_124m": (50257, 768), "llama_100m": (32000, 640)}[name]
    for program in ("accumulate", "eval"):
        assert not [shape for of, shape in values(shown) if of == program and classes in shape and width not in shape and np.prod(shape) > 300 * classes]


def test_sums_of_one_chunk_go_to_the_gradient(run, tmp_path):
    """The gradient of the weight is added up where the step keeps it: no other value has its size."""
    words = write(tmp_path, losses.CASES["tied"])
    text = run("dump", *words, "--optimizer=adamw", "--stage=memory", "--target=cpu:x86-64-v4", "--pass-option=ungroup.loss_rows=16").stdout
    accumulate = text[text.index("func @accumulate"):text.index("func @eval")]
    places = re.findall(r"(launch|loop) .*?f32\[103,11\].*?(?:when (\w+) )?at (state|workspace)", accumulate)
    assert places and all(where == "state" or when == "later" for _, when, where in places), places
