"""One output that cannot be written, or one row that cannot be read, costs nothing else: what can be written is, then the exit code."""
import json
import os
import shutil
import signal
import socket
import subprocess
import time

import numpy as np
import pytest
from checkpoints import Trainer, build_faults, checkpoints, digits_data, fault, steps_of

FULL = "No space left on device"


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    return build_faults(tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def executables(gradc, models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exe")
    for name, options in {"plain": [], "lora": ["--lora=*.weight,rank=2"]}.items():
        subprocess.run([gradc, "compile", models / "mlp_digits/model.onnx", "-o", folder / name, "--batch=16", *options], check=True, capture_output=True)
    return folder


@pytest.fixture
def digits(executables, models, tmp_path):
    return Trainer(executables / "plain", digits_data(models), tmp_path)


SIDES = {"log": ("--log=s/l.jsonl", [1, 3]), "tensorboard": ("--tensorboard=s", [2, 4]), "report": ("--report=s/r.html", [1]),
         "trace": ("--trace=s/t.json", [1]), "dump": ("--dump-gradients=s", [1])}


@pytest.mark.parametrize("side, at", [(side, at) for side in SIDES for at in SIDES[side][1]])
def test_an_output_besides_fails_alone(digits, faults, tmp_path, side, at):
    """From its `at`-th write on. All steps are computed, saved, exported and shown elsewhere."""
    options = ["--steps=6", "--save=ck", "--save-every=4", "--log=good.jsonl", *digits_data_eval(digits)]
    if side == "log":
        options.remove("--log=good.jsonl")
    digits.run("--steps=6", "--export=want.onnx")
    (tmp_path / "s").mkdir()
    done = digits.run(*options, "--export=got.onnx", SIDES[side][0], exit=5, env=fault(faults, "write", at, 28, times=10**6, path="/s/"))
    assert done.stderr.count("gradc: error: ") == 1 and FULL in done.stderr
    assert checkpoints(tmp_path / "ck") == [4, 6] and "steps 6, loss" in done.stdout
    assert (tmp_path / "got.onnx").read_bytes() == (tmp_path / "want.onnx").read_bytes()
    assert side == "log" or [line["step"] for line in steps_of(tmp_path / "good.jsonl")] == [0, 1, 2, 3, 4, 5, 6]
    if side == "log":
        assert [line["step"] for line in steps_of(tmp_path / "s/l.jsonl")] == list(range(at - 1))


def digits_data_eval(trainer):
    return [word.replace("--data", "--eval-data").replace("mlp_digits/", "mlp_digits/eval_") for word in trainer.data]


EXPORTS = {"export": "x.onnx", "export-merged": "m.onnx", "export-adapter": "adapter_model.safetensors"}


@pytest.mark.parametrize("failing", EXPORTS)
def test_an_export_fails_alone(executables, models, faults, tmp_path, failing):
    trainer = Trainer(executables / "lora", digits_data(models), tmp_path)
    folders = {option: "s" if option == failing else "good" for option in EXPORTS}
    words = [f"--{option}={folders[option]}/{name}" if name.endswith("onnx") else f"--{option}={folders[option]}" for option, name in EXPORTS.items()]
    for name in "s", "good":
        (tmp_path / name).mkdir()
    done = trainer.run("--steps=2", "--save=ck", *words, exit=5, env=fault(faults, "write", 1, 28, times=10**6, path="/s/"))
    assert done.stderr.count("gradc: error: ") == 1 and FULL in done.stderr and checkpoints(tmp_path / "ck") == [2]
    for option, name in EXPORTS.items():
        assert (tmp_path / folders[option] / name).exists() == (option != failing), option


def test_checkpoints_that_cannot_be_written_leave_the_exports(digits, faults, tmp_path):
    done = digits.run("--steps=20", "--save=ck", "--save-every=2", "--export=x.onnx", exit=7, env=fault(faults, "write", 1, 28, times=10**6))
    assert "3 checkpoints in a row" in done.stderr and (tmp_path / "x.onnx").exists()


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("save", [True, False])
def test_a_bad_row_ends_training_behind_the_steps_before(digits, models, tmp_path, accumulate, save):
    """In whichever micro-batch of step 4: checkpoint, model and log are those of step 3, and with good data it goes on to the same bits."""
    labels = np.load(models / "mlp_digits/labels.npy")
    bad = labels.copy()
    bad[3 * 16 * accumulate + 16 * (accumulate - 1) + 5] = 1000
    for name, rows in ("labels", labels), ("bad", bad):
        np.save(tmp_path / f"{name}.npy", rows)
    options = ["--shuffle=off", f"--accumulate={accumulate}"]
    data = digits.data[:2]

    def trained(name, labels, *more):
        return Trainer(digits.exe, [*data, "--data", f"labels={labels}.npy"], tmp_path).run(*options, f"--export={name}.onnx", f"--log={name}.jsonl", *more[1:], exit=more[0])
    trained("three", "labels", 0, "--steps=3")
    said = trained("bad", "bad", 6, "--steps=6", *(["--save=ck"] if save else [])).stderr
    assert said.count("gradc: error: ") == 1 and "1000" in said
    assert (tmp_path / "bad.onnx").read_bytes() == (tmp_path / "three.onnx").read_bytes()
    assert steps_of(tmp_path / "bad.jsonl") == steps_of(tmp_path / "three.jsonl")
    if save:
        assert checkpoints(tmp_path / "ck") == [3] and "saved step 3" not in said  # --progress=off
        trained("whole", "labels", 0, "--steps=6")
        trained("again", "labels", 0, "--steps=6", "--save=ck", "--resume=auto")
        assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "whole.onnx").read_bytes()


def test_a_signal_is_worth_more_than_a_log(digits, faults, tmp_path):
    (tmp_path / "s").mkdir()
    process = digits.start("--steps=1000000000", "--save=ck", "--log=s/l", "--progress=plain", env=fault(faults, "write", 2, 28, times=10**6, path="/s/"))
    while FULL not in (line := process.stderr.readline()):
        assert line
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 75 and len(checkpoints(tmp_path / "ck")) == 1


# ---- signals

def evaluation(folder, rows):
    """Words for so many rows, which are holes of a file."""
    for name, dtype, shape in ("input", "<f4", (rows, 64)), ("labels", "<i8", (rows,)):
        with open(folder / f"{name}.npy", "wb") as f:
            np.lib.format.write_array_header_1_0(f, {"descr": dtype, "fortran_order": False, "shape": shape})
            f.truncate(f.tell() + int(np.prod(shape)) * int(dtype[-1]))
    return [word for name in ("input", "labels") for word in ("--eval-data", f"{name}={folder / name}.npy")]


def check_stopped(digits, process, after, step):
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 75 and time.monotonic() - began < after, said
    assert f"after step {step}; saved in ck" in said and checkpoints(digits.folder / "ck") == [step]
    digits.run("--steps=3", "--export=whole.onnx")
    digits.run("--steps=3", "--save=ck", "--resume=auto", "--export=again.onnx")
    assert (digits.folder / "again.onnx").read_bytes() == (digits.folder / "whole.onnx").read_bytes()


def test_a_signal_ends_an_evaluation_before_training(digits, tmp_path):
    """Of a minute or so: at once, and what goes on from there ends as if nothing had been."""
    process = digits.start("--steps=5", "--save=ck", *evaluation(tmp_path, 50_000_000))
    time.sleep(1)
    check_stopped(digits, process, after=30, step=0)


def test_a_signal_ends_an_evaluation_behind_a_step(digits, tmp_path):
    began = time.monotonic()
    process = digits.start("--steps=1", "--save=ck", "--progress=plain", "--log=l", *evaluation(tmp_path, 1_000_000))
    while "before training" not in process.stderr.readline():
        pass
    took = time.monotonic() - began
    time.sleep(took / 10)
    check_stopped(digits, process, after=60, step=1)
    assert [("step" in line, "eval_loss" in line) for line in map(json.loads, open(tmp_path / "l"))] == [(True, True), (True, False)]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("place", ["port", "file"])
def test_a_signal_ends_waiting_for_ranks(digits, tmp_path, rank, number, place):
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    where = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)} if place == "port" else {"GRADC_RENDEZVOUS": f"file://{tmp_path}/meet"}
    process = digits.start("--steps=5", "--save=ck", env={"RANK": str(rank), "WORLD_SIZE": "2", **where})
    if rank == 0 and place == "file":
        while not (tmp_path / "meet").exists():
            time.sleep(0.01)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(number)
    assert process.wait(30) == 128 + number  # without a signal it waits for minutes
    assert os.listdir(tmp_path) == []
