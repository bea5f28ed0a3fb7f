"""Devices with memory of their own convert bytes of pictures themselves: the numbers are those of the host's conversion."""
import re

import numpy as np
import pytest
import reference
from pictures import BATCH, Pictures

COMPILE = ("--loss=cross_entropy", "--optimizer=sgd", f"--batch={BATCH}")
TRAIN = ("--keep-last", "--lr=0.01", "--libraries=off", "--progress=off")  # three steps an epoch
ON_CPU, ON_ASYNC = "--device=cpu", "--device=async"


def train(run, exe, folder, *options, steps=9, **more):
    """(losses of all steps, KiB of the region of tables). Without --report, for which the host waits behind each program."""
    log = folder / "log.jsonl"
    said = run(exe, *TRAIN, f"--steps={steps}", "--table=full", *options, "--log", log, **more).stderr
    tables = re.search(r"^memory: .* tables ([0-9.]+) KiB,", said, re.M)
    assert "memory: " in said
    return reference.step_losses(log), float(tables[1]) if tables else 0


@pytest.mark.parametrize("case", [{}, {"channels": "last"}, {"bytes": np.int8}, {"bytes": np.int8, "channels": None},
                                  {"both": True}], ids=str)
def test_the_bits_of_the_host(run, tmp_path, case):
    """Also in the last batch of an epoch, half of which is padding; the other input is copied as it is."""
    pictures = Pictures(tmp_path, **case)
    run("compile", "model.onnx", "-o", "train", *COMPILE)
    want, tables = train(run, tmp_path / "train", tmp_path, ON_CPU, *pictures.raw)
    assert len(set(want)) == 9 and tables == 0
    assert train(run, tmp_path / "train", tmp_path, ON_ASYNC, *pictures.raw) == (want, pictures.table_bytes / 1024)
    assert train(run, tmp_path / "train", tmp_path, ON_ASYNC, *pictures.floats) == (want, 0)


@pytest.fixture
def pictures(run, tmp_path):
    made = Pictures(tmp_path)
    run("compile", "model.onnx", "-o", "train", *COMPILE)
    return made


def test_several_micro_batches(run, pictures, tmp_path):
    """Each of the two turns of an input comes several times in a step. Poisoned memory is not read."""
    want, *found = (train(run, tmp_path / "train", tmp_path, *options, *pictures.raw, "--accumulate=3", steps=4)[0]
                    for options in ([ON_CPU], [ON_ASYNC], [ON_ASYNC, "--poison"]))
    assert found == [want, want] and len(set(want)) == 4


def test_slow_copies(run, pictures, tmp_path):
    """The step waits for the look-up, and the next rows wait until it has read the bytes."""
    want, _ = train(run, tmp_path / "train", tmp_path, ON_CPU, *pictures.raw, steps=4)
    for stream in 0, 1:
        found, _ = train(run, tmp_path / "train", tmp_path, ON_ASYNC, *pictures.raw, steps=4, env={"GRADC_ASYNC_SLOW": str(stream)})
        assert found == want


def test_evaluation(run, pictures, tmp_path):
    """Programs of three roles read bytes: training, evaluation and the forward pass of a metric."""
    data = [option.replace("--data=", "--eval-data=") for option in pictures.raw if option.startswith("--data")]
    found = {}
    for device in (ON_CPU, ON_ASYNC):
        log = tmp_path / "log.jsonl"
        run(tmp_path / "train", *TRAIN, "--table=off", "--steps=9", device, *pictures.raw, *data, "--eval-every=2", "--metric=f1", "--log", log)
        found[device] = [{k: v for k, v in line.items() if k == "loss" or k.startswith(("eval", "metric"))} for line in reference.log_lines(log)]
    assert found[ON_CPU] == found[ON_ASYNC]
    assert sum("eval_loss" in line for line in found[ON_CPU]) >= 4


def test_estimates(run, tmp_path):
    """After step 10 Sophia's estimate reads the rows of that step again. The scalars of the program behind it lie where the image
    has its first input."""
    pictures = Pictures(tmp_path)
    run("compile", "model.onnx", "-o", "train", "--optimizer=sophia", f"--batch={BATCH}")
    want, _ = train(run, tmp_path / "train", tmp_path, ON_CPU, *pictures.floats, steps=13)
    for data in pictures.floats, pictures.raw:
        assert train(run, tmp_path / "train", tmp_path, ON_ASYNC, *data, steps=13)[0] == want


def test_predictions(run, pictures, tmp_path):
    """Of all rows; and --once, for which the host converts."""
    np.save(tmp_path / "once.npy", pictures.arrays["raw"][:BATCH])
    np.save(tmp_path / "more.npy", pictures.arrays["extra"][:BATCH])
    whole = ["--input=image=once.npy", "--input=extra=more.npy", *(o for o in pictures.raw if not o.startswith("--data"))]
    rows = [option for option in pictures.raw if "labels" not in option]
    found = {}
    for device in ON_CPU, ON_ASYNC:
        run(tmp_path / "train", "predict", device, "--libraries=off", *rows, "--output=all.npy")
        run(tmp_path / "train", "--once", device, "--libraries=off", *whole, "--output-dir=once")
        found[device] = [(tmp_path / name).read_bytes() for name in ("all.npy", "once/logits.npy")]
    assert found[ON_CPU] == found[ON_ASYNC]
    assert np.array_equal(np.load(tmp_path / "all.npy")[:BATCH], np.load(tmp_path / "once/logits.npy"))


def test_the_cause_of_a_failure(run, pictures, tmp_path):
    """--find-nan does not take the bytes for numbers: 0xff four times would be NaN."""
    np.save(tmp_path / "raw.npy", np.full_like(pictures.arrays["raw"], 255))
    extra = pictures.arrays["extra"].copy()
    extra[:] = 3e38
    np.save(tmp_path / "extra.npy", extra)
    said = {}
    for device in (ON_CPU, ON_ASYNC):
        said[device] = run(tmp_path / "train", *TRAIN, "--table=off", "--steps=9", device, *pictures.raw, "--find-nan", exit=None).stderr
    assert said[ON_CPU] == said[ON_ASYNC] and "image" not in said[ON_CPU]


def test_what_the_host_converts(run, tmp_path):
    """Small inputs, and bytes that become infinite numbers."""
    small = Pictures(tmp_path, size=16)
    run("compile", "model.onnx", "-o", "train", *COMPILE)
    assert train(run, tmp_path / "train", tmp_path, ON_ASYNC, *small.raw)[1] == 0
    large = Pictures(tmp_path)
    run("compile", "model.onnx", "-o", "train", *COMPILE)
    infinite = ["--scale=image=1e38" if option.startswith("--scale") else option for option in large.raw]
    assert train(run, tmp_path / "train", tmp_path, ON_ASYNC, *infinite, exit=8)[1] == 0
