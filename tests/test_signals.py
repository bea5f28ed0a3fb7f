"""A signal at any moment leaves no temporary file behind, and no program that gradc started."""
import contextlib
import fcntl
import os
import random
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM,
           signal.SIGXCPU, signal.SIGPIPE, signal.SIGABRT, signal.SIGSEGV, signal.SIGIO, signal.SIGPWR, signal.SIGRTMIN + 3]


def temporary_programs(folder, argument=b""):
    """Processes that run a program of that folder, with that argument."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "exe").startswith(f"{folder}/") and argument in (process / "cmdline").read_bytes():
                found.append(process)
        except OSError:
            pass  # it has ended, or is the kernel's
    return found


def interrupt(command, folder, number, wait):
    """Starts gradc with its temporary files in `folder`, sends it the signal when `wait` says so, and gives its exit status."""
    env = dict(os.environ, TMPDIR=str(folder))
    process = subprocess.Popen(list(map(str, command)), cwd=folder.parent, env=env, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))  # also under nohup
    wait(process)
    process.send_signal(number)
    return process.wait(timeout=60)


@pytest.mark.parametrize("number", SIGNALS, ids=str)
def test_a_compile_leaves_nothing(gradc, models, tmp_path, number):
    folder = tmp_path / "temporary"
    folder.mkdir()
    command = [gradc, "compile", models / "mlp_digits/model.onnx", "-o", "train", "--batch=4", "--printer=c"]
    draw = random.Random(number)

    def in_the_middle(process):  # the C compiler is at work, or not yet
        while not list(folder.iterdir()) and process.poll() is None:
            time.sleep(0.001)
        time.sleep(draw.random() * 0.3)

    for _ in range(4):
        status = interrupt(command, folder, number, in_the_middle)
        if status == 0:
            continue  # it was over before
        assert status == -number
        deadline = time.monotonic() + 10  # the compiler removes its own when it hears of it
        while list(folder.iterdir()) and time.monotonic() < deadline:
            time.sleep(0.01)
        left = list(folder.iterdir())
        assert not left and not [p for p in tmp_path.iterdir() if p.name not in ("temporary", "train")], left
    assert not (tmp_path / "train").exists() or os.access(tmp_path / "train", os.X_OK)


@pytest.fixture
def wide(tmp_path):
    """model.onnx and x.npy, and an empty folder for temporary files."""
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
                              [helper.make_tensor_value_info("x", 1, [4, 512])], [helper.make_tensor_value_info("y", 1, [4, 512])],
                              [numpy_helper.from_array(np.eye(512, dtype=np.float32), "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((4, 512)).astype(np.float32))
    (tmp_path / "temporary").mkdir()
    return tmp_path


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL], ids=str)
def test_a_check_of_gradients_stops_with_its_program(gradc, wide, number):
    folder = wide / "temporary"

    def runs(process):  # the second program, which takes long
        while process.poll() is None and not temporary_programs(folder, b"--check-gradients"):
            time.sleep(0.01)

    status = interrupt([gradc, "grad", "model.onnx", "--loss=mse", "--input=x=x.npy", "--input=labels=x.npy",
                        "--check-gradients=1000000", "--output-dir=out"], folder, number, runs)
    assert status == -number
    deadline = time.monotonic() + 10
    while temporary_programs(folder) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not temporary_programs(folder)
    assert number == signal.SIGKILL or not list(folder.iterdir())  # nobody can remove them then


def test_a_second_signal_leaves_nothing(gradc, wide):
    """Of a training that waits for who reads its log."""
    subprocess.run([gradc, "compile", "model.onnx", "-o", "train", "--loss=mse"], cwd=wide, check=True, capture_output=True)
    os.mkfifo(wide / "pipe")
    reader = os.open(wide / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
    process = subprocess.Popen([wide / "train", "--data=x=x.npy", "--data=labels=x.npy", "--steps=1000000000", "--log=pipe",
                                "--trace=trace.json"], cwd=wide, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def left():
        return [p.name for p in wide.iterdir() if p.name.startswith(".gradc-")]

    def unread():
        """Bytes in the pipe."""
        return struct.unpack("i", fcntl.ioctl(reader, termios.FIONREAD, b"1234"))[0]

    while unread() < 2048:
        time.sleep(0.01)
    time.sleep(0.2)  # it waits in the middle of a step
    assert left()
    process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM and not left()
    os.close(reader)


QUANTIZE = ["quantize", "model.onnx", "--data", "x=x.npy", "-o", "q.onnx"]


@pytest.mark.parametrize("options, status", [([], 0), (["--sensitivity"], 0), (["--algorithm=awq", "--bias-correction"], 0), (["--report=no/q.html"], 5),
                                             (["--batch=8"], 6)], ids=str)
def test_a_quantization_leaves_nothing(gradc, wide, options, status):
    done = subprocess.run([gradc, *QUANTIZE, *options], cwd=wide, env=dict(os.environ, TMPDIR=str(wide / "temporary")), capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    assert not list((wide / "temporary").iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=str)  # those that nobody starts it without
def test_a_quantization_that_is_ended_leaves_nothing(gradc, wide, number):
    folder = wide / "temporary"
    np.save(wide / "x.npy", np.zeros((100000, 512), np.float32))

    def has_results(process):
        while process.poll() is None:
            with contextlib.suppress(FileNotFoundError):  # a folder may go while it is read
                if list(folder.glob("**/[xy].npy")):
                    return
            time.sleep(0.001)

    assert interrupt([gradc, *QUANTIZE], folder, number, has_results) == -number
    deadline = time.monotonic() + 10  # its program was killed, and may take a moment to end
    while temporary_programs(folder) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not list(folder.iterdir()) and not temporary_programs(folder)
