"""Whole trainings on the pretended GPU beside those of the CPU by the same executable: micro-batches, interruptions, checkpoints that
change devices, exports, traces, single runs, evaluation, ranks."""
import contextlib
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
import reference
from checkpoints import checkpoints, digits_data, steps_of, temporaries
from onnx import numpy_helper
from pretended import ON_CPU, ON_GPU, openmpi
from tolerances import limit

NAMES = ("mlp_digits", "gpt2_mini_fresh")
DEVICES = (ON_GPU, ON_CPU)
ENDLESS = "--steps=1000000"


@pytest.fixture(params=NAMES)
def trainer(request, gpu, tmp_path):
    return gpu.trainer(gpu.compile(request.param), tmp_path)


@pytest.fixture
def digits(gpu, tmp_path):
    return gpu.trainer(gpu.compile("mlp_digits"), tmp_path)


def check_losses(got, want):
    """Each loss that steps have, also of evaluations."""
    assert [sorted(s) for s in got] == [sorted(s) for s in want]
    for key in ("loss", "eval_loss"):
        a, b = ([s[key] for s in steps if key in s] for steps in (got, want))
        assert a == pytest.approx(b, rel=limit("devices f32"))


def weights(model):
    """{name: array} of a model as bytes."""
    return {t.name: numpy_helper.to_array(t) for t in onnx.load_from_string(model).graph.initializer}


def test_micro_batches(trainer):
    got, want = (trainer.result(device, "--steps=4", "--accumulate=2", name=device[9:])[0] for device in DEVICES)
    check_losses(got, want)
    assert got != trainer.result(ON_GPU, "--steps=4", name="plain")[0]


def test_an_export_has_the_weights_of_the_cpu(trainer):
    got, want = (weights(trainer.result(device, "--steps=4", name=device[9:])[1]) for device in DEVICES)
    assert got.keys() == want.keys()
    for name in want:
        assert reference.relative(got[name], want[name]) <= limit("devices weights f32"), name
    before = weights(trainer.result(ON_GPU, "--steps=0", name="before")[1])
    assert all(np.any(before[name] != got[name]) for name in before if before[name].dtype == np.float32 and before[name].ndim > 1)


def test_what_is_not_finite_is_found(digits):
    """The third step is queued before the second one is known to fail, which is then run once more, without recordings."""
    found = []
    for device in DEVICES:
        said = digits.run(device, "--steps=9", "--lr=1e30", "--find-nan", "--accumulate=2", "--log=found.jsonl", exit=8).stderr
        line = json.loads((digits.folder / "found.jsonl").read_text().splitlines()[-1])
        assert "is a result of" in said and line["not_finite"]["tensors"][0]["role"] == "result"
        found.append((line["step"], line["not_finite"]["nodes"], [t["name"] for t in line["not_finite"]["tensors"]]))
    assert found[0] == found[1] and found[0][0] == 2


def test_evaluation(digits, gpu):
    options = ("--steps=4", "--eval-every=2", *digits_data(gpu.models, "eval_"))
    got, want = (digits.result(device, *options, name=device[9:])[0] for device in DEVICES)
    check_losses(got, want)
    assert [s["step"] for s in got if "eval_loss" in s] == [0, 2, 4]


def test_a_single_run(trainer, gpu):
    """Outputs of the first batch."""
    model = gpu.models / trainer.exe.name.rsplit("-", 1)[0]
    inputs = reference.first_batch(model, trainer.folder, labels=False)
    trainer.data, trainer.options, found = [], [], []
    for device in DEVICES:
        trainer.run(device, "--once", *inputs, "--output-dir", device[9:])
        found.append(reference.results(trainer.folder / device[9:]))
    got, want = found
    assert got.keys() == want.keys() and got
    assert all(reference.relative(got[name], want[name]) <= limit("devices f32") for name in want)


def spans(path, thread):
    """(begin, end) of kernels and copies of a stream."""
    events = json.loads(path.read_text())["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    return [(e["ts"], e["ts"] + e["dur"]) for e in events if e.get("cat") == "kernel" and names[e["tid"]] == thread]


def test_a_trace_has_copies_beside_kernels(digits):
    """What each stream did, in its order: an image and scalars are copied for each micro-batch, before its kernels."""
    digits.run(ON_GPU, "--steps=3", "--accumulate=2", "--trace=trace.json")
    kernels, copies, out = (spans(digits.folder / "trace.json", thread) for thread in ("training", "copy_in", "copy_out"))
    assert len(kernels) > 100 and len(copies) >= 3 * (2 * 2 + 1) and len(out) >= 3
    for stream in (kernels, copies, out):
        assert all(0 <= begin <= end for begin, end in stream)
        assert all(a[1] <= b[0] + 1 for a, b in zip(stream, stream[1:])), "one after the other, to a microsecond"
    assert copies[0][1] <= kernels[0][0] + 1 and kernels[-1][1] <= out[-1][0] + 1


# ---- interruptions and checkpoints
def wait_for_checkpoint(folder, process):
    deadline = time.monotonic() + 60
    while not checkpoints(folder) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert checkpoints(folder), process.stderr.read()


@pytest.mark.parametrize("name", NAMES)
def test_killed_and_resumed(gpu, tmp_path, name):
    trainer = gpu.trainer(gpu.compile(name), tmp_path)
    process = trainer.start(ON_GPU, ENDLESS, "--save=ck", "--save-every=2", "--log=part.jsonl", "--export=part.onnx")
    wait_for_checkpoint(tmp_path / "ck", process)
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    saved = checkpoints(tmp_path / "ck")[-1]
    rest = (ON_GPU, f"--steps={saved + 3}")
    got = trainer.result(*rest, "--save=ck", "--resume=auto", name="part")
    assert got == trainer.result(*rest, name="whole")
    assert temporaries(tmp_path / "ck") == temporaries(tmp_path) == []


def test_a_signal_saves(digits, tmp_path):
    process = digits.start(ON_GPU, ENDLESS, "--save=ck", "--save-every=3", "--log=part.jsonl", "--export=part.onnx")
    wait_for_checkpoint(tmp_path / "ck", process)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 75, process.stderr.read()
    saved = checkpoints(tmp_path / "ck")[-1]
    assert steps_of(tmp_path / "part.jsonl")[-1]["step"] == saved and not (tmp_path / "part.onnx").exists()
    rest = (ON_GPU, f"--steps={saved + 2}")
    assert digits.result(*rest, "--save=ck", "--resume=auto", name="part") == digits.result(*rest, name="whole")


@pytest.mark.parametrize("first, then", [DEVICES, DEVICES[::-1]], ids=["to the cpu", "to the gpu"])
def test_a_checkpoint_changes_devices(trainer, first, then):
    """One warning, and the losses go on as if nothing had been."""
    want = trainer.result(first, "--steps=6", name="want")[0]
    trainer.run(first, "--steps=3", "--save=ck", "--log=part.jsonl")
    done = trainer.run(then, "--steps=6", "--resume=ck", "--log=part.jsonl")
    old, new = (device[9:] for device in (first, then))
    assert done.stderr.count("warning") == 1 and f'"device" was "{old}", is "{new}"' in done.stderr
    check_losses(steps_of(trainer.folder / "part.jsonl"), want)
    again = trainer.run(first, "--steps=6", "--resume=ck", "--log=again.jsonl")
    assert "warning" not in again.stderr


# ---- ranks
def test_two_ranks_are_two_micro_batches(trainer):
    """Bit for bit."""
    launcher = openmpi()
    want = trainer.result(ON_GPU, "--steps=4", "--accumulate=2", name="alone")
    trainer.launcher = launcher
    assert trainer.result(ON_GPU, "--steps=4", name="together") == want


ONE_VISIBLE, SAME, ANOTHER = {"CUDA_VISIBLE_DEVICES": "1"}, "cuda:0: 2 ranks on this machine, ", "without the number in --device each takes another one"


@pytest.mark.parametrize("device, gpus, env, says", [
    (ON_GPU, 1, {}, f"{SAME}1 GPU: start as many ranks as there are GPUs"),
    (None, 1, {}, f"{SAME}1 GPU: start"), ("--device=cuda:0", 1, {}, f"{SAME}1 GPU: start"),
    (ON_GPU, 2, ONE_VISIBLE, f"{SAME}1 GPU with CUDA_VISIBLE_DEVICES=1: start"), ("--device=cuda:0", 2, {}, f"{SAME}2 GPUs: {ANOTHER}")])
def test_two_ranks_do_not_share_a_gpu(digits, device, gpus, env, says):
    digits.launcher = openmpi()
    done = digits.run(*([device] if device else []), "--steps=4", "--log=log.jsonl", fake={"DEVICES": gpus}, env=env, exit=2)
    assert done.stderr.count("gradc: error") == 1 and f"ranks 0 and 1 have the same GPU, {says}" in done.stderr
    assert not (digits.folder / "log.jsonl").exists()


def test_a_launcher_shows_each_rank_another_gpu(digits):
    """As cuda:0, both of them."""
    *start, _, _ = openmpi()
    ranks = [["-n", "1", "env", f"CUDA_VISIBLE_DEVICES={r}", *digits.command(ON_GPU, "--steps=2")] for r in range(2)]
    done = subprocess.run([*start, *ranks[0], ":", *ranks[1]], text=True, capture_output=True, timeout=120,
                          env={**os.environ, **digits.environment, "FAKE_CUDA_DEVICES": "2"})
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("place, ordinal", [
    ({"LOCAL_RANK": 2, "LOCAL_WORLD_SIZE": 4}, 2), ({"SLURM_LOCALID": 3, "SLURM_STEP_TASKS_PER_NODE": "4(x2),3"}, 3),
    ({"SLURM_LOCALID": 1, "SLURM_STEP_TASKS_PER_NODE": "1,2(x3)", "SLURM_NODEID": 3}, 1),
    ({"SLURM_LOCALID": 2, "SLURM_NTASKS_PER_NODE": 3, "SLURM_STEP_TASKS_PER_NODE": "1,3", "SLURM_NODEID": 1}, 2),
    ({"LOCAL_RANK": 2, "LOCAL_WORLD_SIZE": 4, "TORCHELASTIC_RUN_ID": "x", "SLURM_LOCALID": 1, "SLURM_STEP_TASKS_PER_NODE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": 0,
      "OMPI_COMM_WORLD_LOCAL_SIZE": 1}, 2),
    ({"LOCAL_RANK": 2, "LOCAL_WORLD_SIZE": 4, "OMPI_COMM_WORLD_LOCAL_RANK": 1, "OMPI_COMM_WORLD_LOCAL_SIZE": 2}, 1)])
def test_a_rank_takes_the_gpu_of_its_place(digits, place, ordinal):
    done = digits.run("--info", ON_GPU, env={name: str(value) for name, value in place.items()}, fake={"DEVICES": 4})
    assert f"bus 0000:{0x1b + ordinal:02x}:00.0" in done.stdout


@pytest.mark.parametrize("rank", range(2))
@pytest.mark.parametrize("own, words", [(["CUDA_VISIBLE_DEVICES="], "CUDA: no GPU is visible"), ([], "it has --device=cpu")])
def test_a_rank_without_a_gpu_says_why(digits, rank, own, words):
    *start, _, _ = openmpi()
    one = ["-n", "1"]
    there = [*one, *digits.command("--steps=2")]
    not_there = [*one, "env", *own, *digits.command("--steps=2", *([] if own else [ON_CPU]))]
    sides = [not_there, there] if rank == 0 else [there, not_there]
    done = subprocess.run([*start, *sides[0], ":", *sides[1]], text=True, capture_output=True, timeout=120,
                          env={**os.environ, **digits.environment})
    said = [line for line in done.stderr.splitlines() if "gradc: error" in line]
    assert done.returncode == 5 and len(said) == 1 and f"rank {rank} uses no GPU, and others do: {words}" in said[0]


def processes_of(exe):
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().split(b"\0")[0] == str(exe).encode():
                found.append(int(path.parent.name))
    return sorted(found)


def test_a_suspended_rank_is_no_stuck_kernel(digits):
    """Each rank in turn stands still for longer than a kernel may take, while the other one waits for it in a stream of its GPU."""
    digits.launcher = openmpi()
    log = digits.folder / "log.jsonl"

    def lines():
        return log.read_text().count("\n") if log.exists() else 0

    def wait_for(n):
        while lines() < n:
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.05)

    process = digits.start(ON_GPU, ENDLESS, "--log=log.jsonl", env={"GRADC_DEVICE_TIMEOUT": "1"})
    try:
        wait_for(5)
        ranks = processes_of(digits.exe)
        assert len(ranks) == 2
        for rank in ranks:
            os.kill(rank, signal.SIGSTOP)
            time.sleep(3)
            os.kill(rank, signal.SIGCONT)
            wait_for(lines() + 5)
    finally:
        process.kill()
        for rank in processes_of(digits.exe):
            os.kill(rank, signal.SIGKILL)
        process.wait()


# ---- memory
def test_memory_is_the_plan(trainer):
    """A GPU that has what the log says trains, with what rounding its regions takes; one that has less does not."""
    trainer.run(ON_GPU, "--steps=1", "--log=log.jsonl")
    line = json.loads((trainer.folder / "log.jsonl").read_text().splitlines()[0])
    plan = line["gpu_peak_bytes"]
    assert 0 < plan < line["peak_bytes"]
    trainer.run(ON_GPU, "--steps=2", fake={"MEMORY": plan + 1024})
    trainer.run(ON_GPU, "--steps=2", fake={"MEMORY": plan - 1}, exit=5)
    trainer.run(ON_CPU, "--steps=1", "--log=log.jsonl")
    assert "gpu_peak_bytes" not in json.loads((trainer.folder / "log.jsonl").read_text().splitlines()[0])


def test_the_table_names_the_gpu(trainer):
    done = trainer.run(ON_GPU, "--steps=1", "--table=auto")
    assert "\ndevice: pretended GPU (compute capability 9.0, " in done.stderr
    assert re.search(r"^memory: .* peak [0-9.]+ [KM]iB, [0-9.]+ [KM]iB of it on the GPU; the GPU has [0-9.]+ [KMG]iB$", done.stderr, re.M)
