"""The words eval and predict on several ranks: the numbers and the bytes of one rank, in every mode; faults of one rank."""
import json
import signal
import subprocess
import time

import numpy as np
import pytest
from test_ranks import call, launch, openmpi  # noqa: F401  fixtures

ROWS = 61


@pytest.fixture(scope="module")
def digits(gradc, models, tmp_path_factory):
    """(executable with batches of 8, {input: file}): so many rows that the last round has a rank with few rows and ranks without any."""
    folder, model = tmp_path_factory.mktemp("digits"), models / "mlp_digits"
    call([gradc, "compile", model / "model.onnx", "-o", folder / "train", "--batch=8", "--data-parallel=ddp,zero3"])
    files = {}
    for name in ("input", "labels"):
        files[name] = folder / f"{name}.npy"
        np.save(files[name], np.load(model / f"eval_{name}.npy")[:ROWS])
    return folder / "train", files


def evaluate(command, exe, files, *options):
    done = call([*command, exe, "eval", *[f"--eval-data={n}={f}" for n, f in files.items()], "--json", *options])
    result = json.loads(done.stdout)
    del result["seconds"]
    return result


@pytest.mark.parametrize("ranks", [2, 3])
def test_eval_gives_the_same_bits(openmpi, digits, ranks):  # noqa: F811
    alone = evaluate([], *digits)
    assert alone["rows"] == ROWS and {"accuracy", "auc", "f1"} < set(alone["metrics"])
    for mode in ("ddp", "zero3"):
        assert evaluate(openmpi(ranks), *digits, "--data-parallel", mode) == alone


def test_sums_of_numbers_have_the_same_bits(openmpi, gradc, models, tmp_path):  # noqa: F811
    """They depend on the order in which rows are added."""
    model = models / "mlp_diabetes"
    call([gradc, "compile", model / "model.onnx", "-o", tmp_path / "train", "--batch=3", "--loss=mse"])
    random = np.random.default_rng(3)
    files = {"x": tmp_path / "x.npy", "labels": tmp_path / "labels.npy"}
    np.save(files["x"], random.standard_normal((4000, 10), dtype=np.float32))
    np.save(files["labels"], random.lognormal(0, 5, (4000, 1)).astype(np.float32))
    alone = evaluate([], tmp_path / "train", files)
    assert set(alone["metrics"]) == {"loss", "r2", "mae", "rmse"}
    assert evaluate(openmpi(3), tmp_path / "train", files) == alone


@pytest.mark.parametrize("ranks", [2, 3])
def test_predict_gives_the_same_bytes(launch, digits, tmp_path, ranks):  # noqa: F811
    exe, files = digits
    data = f"--data=input={files['input']}"
    for ending in ("npy", "jsonl"):
        call([exe, "predict", data, "--output", tmp_path / f"alone.{ending}"])
        for mode in ("ddp", "zero3"):
            path = tmp_path / f"{mode}.{ending}"
            done = call(launch(ranks, exe, "predict", data, "--output", path, "--data-parallel", mode))
            assert path.read_bytes() == (tmp_path / f"alone.{ending}").read_bytes()
            assert done.stdout == ""


def test_a_row_that_one_rank_cannot_read(openmpi, digits, tmp_path):  # noqa: F811
    exe, files = digits
    rows = np.load(files["input"])
    rows[19, 3] = np.nan    # of the third micro-batch: rank 2's
    np.save(tmp_path / "bad.npy", rows)
    done = call(openmpi(3, exe, "predict", f"--data=input={tmp_path / 'bad.npy'}", "--output", tmp_path / "p.npy"), exit=6)
    assert done.stderr.count("row 19") == 1
    assert not (tmp_path / "p.npy").exists()


def test_an_output_that_rank_0_cannot_write(openmpi, digits):  # noqa: F811
    exe, files = digits
    done = call(openmpi(2, exe, "predict", f"--data=input={files['input']}", "--output=/dev/full"), exit=5)
    assert "No space left on device" in done.stderr


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_signal_ends_it_and_leaves_no_file(openmpi, digits, tmp_path, ranks):  # noqa: F811
    exe, _ = digits
    rows = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (5_000_000, 64))    # sparse: a run of many seconds
    del rows
    command = [exe, "predict", f"--data=input={tmp_path / 'x.npy'}", "--output", tmp_path / "p.npy"]
    running = subprocess.Popen([str(c) for c in (command if ranks == 1 else openmpi(ranks, *command))], stderr=subprocess.PIPE, text=True)
    while len(list(tmp_path.iterdir())) < 2:    # the file has another name until it is complete
        time.sleep(0.02)
    time.sleep(0.3)
    running.send_signal(signal.SIGTERM)
    said = running.communicate(timeout=30)[1]
    assert running.returncode != 0
    if ranks == 1:
        assert running.returncode == 128 + signal.SIGTERM and "stopped by signal 15" in said
        assert [p.name for p in tmp_path.iterdir()] == ["x.npy"]
    assert not (tmp_path / "p.npy").exists()    # the launcher may kill the ranks before they have removed what they began
