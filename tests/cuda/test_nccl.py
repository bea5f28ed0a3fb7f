"""Ranks on pretended GPUs of their own: NCCL carries their sums, with the bits of sums on the host, also where a step is recorded; and
whoever is lost, late or wrong is named, and holds nobody up.

GRADC_NCCL_FULL=1 (make nccl-full): all models that tests/dist has, in all modes.
"""
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from checkpoints import build_faults, checkpoints, fault, temporaries
from pretended import ON_GPU, openmpi

FULL = bool(os.environ.get("GRADC_NCCL_FULL"))
ENDLESS = "--steps=1000000"
MODES = ["ddp", "zero1", "zero2", "zero3"]
PARTS = ("--data-parallel=ddp,zero1,zero2,zero3", "--unit-bytes=1")
GPUS = {"DEVICES": 4}


def together(gpu, exe, folder, ranks=2):
    """A trainer whose runs are of so many ranks, each with a GPU of its own."""
    trainer = gpu.trainer(exe, folder)
    *start, _ = openmpi()
    trainer.launcher = [*start, str(ranks)]
    return trainer


def counts(folder):
    """How often the first rank called each function of NCCL."""
    return json.loads((folder / "nccl.json.0").read_text())


@pytest.fixture
def digits(gpu, tmp_path):
    return together(gpu, gpu.compile("mlp_digits", "f32", 0, *PARTS), tmp_path)


@pytest.fixture
def train(gpu, tmp_path):
    """train(NAME, RANKS, OPTION...): losses over NCCL, and by as many accumulation steps alone, or by the host's sums."""

    def both(name, ranks, *options, against="alone"):
        exe = gpu.compile(name, "f32", 0, *PARTS)
        ranked = together(gpu, exe, tmp_path, ranks)
        got = ranked.losses(ON_GPU, *options, "--collectives=nccl", fake=GPUS, name="nccl", env={"FAKE_NCCL_COUNT": "nccl.json"})
        if against == "host":
            return got, ranked.losses(ON_GPU, *options, "--collectives=host", fake=GPUS, name="host")
        plain = [o for o in options if not o.startswith(("--data-parallel", "--reduce"))]
        return got, gpu.trainer(exe, tmp_path).losses(ON_GPU, *plain, "--data-parallel=ddp", f"--accumulate={ranks}", name="alone")

    return both


# ---- what it is for
@pytest.mark.parametrize("ranks, how, mode", [*((2, "ordered", mode) for mode in MODES), (4, "ordered", "ddp"), (4, "ordered", "zero3"),
                                              (2, "fast", "zero1"), (3, "fast", "zero3")])
def test_sums_are_those_of_accumulation(train, ranks, how, mode):
    """Bit for bit where they are in order; steps are walked, recorded and launched again."""
    got, want = train("mlp_digits", ranks, "--steps=8", f"--data-parallel={mode}", f"--reduce={how}")
    assert got == (want if how == "ordered" else pytest.approx(want, rel=1e-6))


@pytest.mark.parametrize("mode", ["ddp", "zero3"])
def test_steps_are_recorded(digits, tmp_path, mode):
    """More of them are no more calls of NCCL; where a rank is observed none is recorded, and each is called."""
    found = []
    for steps, *options in ([8], [16], [16, "--trace=t.json"]):
        digits.run(ON_GPU, f"--steps={steps}", f"--data-parallel={mode}", *options, fake=GPUS, env={"FAKE_NCCL_COUNT": "nccl.json"})
        found.append({name: n for name, n in counts(tmp_path).items() if name != "ncclCommGetAsyncError"})
    assert found[0] == found[1]
    assert found[0]["ncclRecv"] > 0 and found[2]["ncclRecv"] == 4 * found[0]["ncclRecv"]
    assert found[0]["ncclCommInitRankConfig"] == found[0]["ncclCommDestroy"] == 1 and found[0]["ncclCommAbort"] == 0
    assert found[0]["ncclCommRegister"] == found[0]["ncclCommDeregister"] > 0


@pytest.mark.parametrize("name, mode, how", [("gpt2_mini", "zero3", "ordered"), ("cnn_mnist", "ddp", "ordered")])
def test_models(train, name, mode, how):
    got, want = train(name, 2, "--steps=3", f"--data-parallel={mode}", f"--reduce={how}", "--clip-norm=1", against="host")
    assert got == (want if how == "ordered" else pytest.approx(want, rel=1e-6))


@pytest.mark.skipif(not FULL, reason="make nccl-full")
@pytest.mark.parametrize("how", ["ordered", "fast"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["mlp_diabetes", "lr_iris_ml", "gpt2_mini", "llama_mini", "bert_mini", "vit_mini", "moe_mini", "unet_mini"])
def test_all_models(train, name, mode, how):
    got, want = train(name, 4, "--steps=6", f"--data-parallel={mode}", f"--reduce={how}", "--clip-norm=1", against="host")
    assert got == (want if how == "ordered" else pytest.approx(want, rel=1e-6))


def test_groups_of_ranks_that_hold_copies(train):
    got, want = train("mlp_digits", 4, "--steps=6", "--data-parallel=zero3", "--shard-size=2", "--reduce=ordered", against="host")
    assert got == want


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_conformance(gpu, build, ranks):
    """Under sanitizers, too; as test_ranks.py has it."""
    program = build / "tests/runtime_comm_test"
    if not program.exists():
        pytest.skip(f"{program} is not built")
    *start, _ = openmpi()
    env = {**os.environ, **gpu.environment("", {**GPUS, "DELAY": 0}), "FAKE_NCCL_DELAY": "20", "TSAN_OPTIONS": "detect_deadlocks=0",
           "UCX_MEM_EVENTS": "n"}
    done = subprocess.run([*start, str(ranks), program, "nccl"], text=True, capture_output=True, timeout=120, env=env)
    assert (done.stderr + done.stdout).count("[  PASSED  ]") == ranks, done.stderr


@pytest.mark.parametrize("case, says", [
    ("right", ""), ("counts", "rank 0 calls ncclAllReduce 0 of 99999 elements|rank 1 calls ncclAllReduce 0 of 100000"),
    ("types", "type 7|of 100, 7,"), ("kinds", "ncclAllGather"), ("roots", "ncclBroadcast"), ("too_soon", "before the last call is over"),
    ("not_finalized", "ncclCommDestroy before ncclCommFinalize"), ("no_sums", "type 1")])
def test_the_pretended_nccl_finds_misuse(gpu, build, case, says):
    program = build / "tests/nccl_probe"
    if not program.exists():
        pytest.skip(f"{program} is not built")
    done = subprocess.run([program, case], text=True, capture_output=True, timeout=60, env={**os.environ, **gpu.environment("")})
    assert done.returncode == 0, done.stderr
    assert re.search(says, done.stderr) if says else done.stderr == ""


# ---- what carries collectives
@pytest.mark.parametrize("options, fake, env, says", [
    ([], GPUS, {}, "collectives: NCCL 2.27.5"),
    (["--collectives=host"], GPUS, {}, r"collectives: mpi, through the host's memory, without NCCL \(rank 0: it has --collectives=host\)"),
    ([], GPUS, {"FAKE_NCCL_VERSION": "21304"}, r"\(rank 0: .* NCCL 2.13.4 is too old: 2.14.0 or newer is needed\)")])
def test_who_carries_them_is_said(digits, options, fake, env, says):
    done = digits.run(ON_GPU, "--steps=1", "--table=auto", *options, fake=fake, env=env)
    assert re.search(f"^{says}$" if says.startswith("coll") else says, done.stderr, re.M), done.stderr


def without_nccl(digits):
    """The same libraries, but for NCCL."""
    folder = digits.folder / "libraries"
    folder.mkdir()
    for library in Path(digits.environment["LD_LIBRARY_PATH"]).glob("lib*.so*"):
        (folder / library.name).symlink_to(library)
    (folder / "libnccl.so.2").unlink()
    (folder / "libnccl.so.2").write_text("no library\n")  # and no loader looks for the machine's own
    return {"LD_LIBRARY_PATH": str(folder), "CUDA_HOME": str(folder)}


def test_without_the_library(digits):
    env = without_nccl(digits)
    done = digits.run(ON_GPU, "--steps=1", "--table=auto", fake=GPUS, env=env)
    assert "without NCCL (rank 0: it has no NCCL that is new enough: libnccl.so.2 is not found: " in done.stderr
    done = digits.run(ON_GPU, "--steps=1", "--collectives=nccl", fake=GPUS, env=env, exit=9)
    assert done.stderr.count("gradc: error: --collectives=nccl: rank 0: it has no NCCL") == 1


# What torchrun does: it starts a process for each rank, tells each its place by variables, and ends with a code that is not 0 if one does.
TORCHRUN = """import os, subprocess, sys
n, port, *command = sys.argv[1:]
ranks = [subprocess.Popen(command, env={**os.environ, "RANK": str(r), "LOCAL_RANK": str(r), "WORLD_SIZE": n, "LOCAL_WORLD_SIZE": n,
                                        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": port})
         for r in range(int(n))]
sys.exit(max(r.wait() % 256 for r in ranks))
"""


@pytest.fixture
def without_mpi(digits):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    script = digits.folder / "torchrun.py"
    script.write_text(TORCHRUN)
    digits.launcher = [sys.executable, str(script), "2", str(port)]
    return digits


@pytest.mark.parametrize("mode", ["ddp", "zero3"])
def test_ranks_that_torchrun_starts(gpu, without_mpi, tmp_path, mode):
    """Control over TCP, data over NCCL."""
    options = ["--steps=6", "--data-parallel=ddp", "--accumulate=2"]
    want = gpu.trainer(gpu.compile("mlp_digits", "f32", 0, *PARTS), tmp_path).losses(ON_GPU, *options, name="alone")
    got = without_mpi.losses(ON_GPU, "--steps=6", f"--data-parallel={mode}", "--save=ck", "--save-every=3", fake=GPUS, name="torchrun")
    assert got == want and checkpoints(tmp_path / "ck") == [3, 6]


def test_a_stopped_rank_of_torchruns(without_mpi):
    """The others say which, and are gone within seconds."""
    process = without_mpi.start(ON_GPU, ENDLESS, "--log=log.jsonl", fake=GPUS, env={"GRADC_COMM_TIMEOUT": "2"})
    ranks = []
    try:
        deadline = time.monotonic() + 60
        while not ((without_mpi.folder / "log.jsonl").exists() and (without_mpi.folder / "log.jsonl").read_text()) and time.monotonic() < deadline:
            time.sleep(0.02)
        ranks = ranks_of(without_mpi.exe, rb"(?:^|\0)RANK=(\d+)")
        os.kill(ranks[1], signal.SIGSTOP)
        deadline = time.monotonic() + 30
        while Path(f"/proc/{ranks[0]}/status").exists() and "zombie" not in Path(f"/proc/{ranks[0]}/status").read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(ranks[1], signal.SIGKILL)
        said = process.communicate(timeout=30)[1]
    finally:
        for rank in ranks_of(without_mpi.exe, rb"(?:^|\0)RANK=(\d+)").values():
            os.kill(rank, signal.SIGKILL)
        process.kill()
        process.communicate()
    assert re.search(r"gradc: error: rank 0: waited 2 s for rank 1 in \w+ \d+ of (group data|the control connections), without an answer: stopped or hanging", said), said


def test_no_gpus_and_no_mpi(without_mpi):
    done = without_mpi.run("--device=cpu", "--steps=1", exit=9)
    assert done.stderr.count("gradc: error: 2 ranks without MPI need --device=cuda and NCCL: rank 0: it uses no NVIDIA GPU") == 1


def test_a_trace_has_collectives(digits):
    digits.run(ON_GPU, "--steps=4", "--trace=t.json", fake=GPUS)
    events = json.loads((digits.folder / "t.json").read_text())["traceEvents"]
    found = [e for e in events if e.get("cat") == "communication"]
    assert {e["name"] for e in found} == {"all_to_all", "all_gather"} and len(found) % 4 == 0
    assert all(e["dur"] >= 0 and e["args"]["bytes"] > 0 for e in found)


# ---- faults
def ranks_of(exe, variable=rb"OMPI_COMM_WORLD_RANK=(\d+)"):
    """{rank: process} of an executable."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().split(b"\0")[0] == str(exe).encode():
                found[int(re.search(variable, (path.parent / "environ").read_bytes())[1])] = int(path.parent.name)
    return found


@contextlib.contextmanager
def running(digits, *options, **env):
    """An endless training that has saved something."""
    process = digits.start(ON_GPU, ENDLESS, "--save=ck", "--save-every=5", "--keep=3", *options, fake=GPUS,
                           env={"GRADC_COMM_TIMEOUT": "2", **env})
    try:
        deadline = time.monotonic() + 60
        while len(checkpoints(digits.folder / "ck")) < 3 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        assert process.poll() is None, process.communicate()[1]
        yield process
    finally:
        for rank in ranks_of(digits.exe).values():
            with contextlib.suppress(OSError):
                os.kill(rank, signal.SIGKILL)
        process.kill()
        process.communicate()


def check_end(digits, process, code):
    """All ranks are gone within 30 s, and the newest checkpoint goes on. What was said."""
    said = process.communicate(timeout=30)[1]
    assert process.returncode == code, said
    deadline = time.monotonic() + 10
    while ranks_of(digits.exe) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not ranks_of(digits.exe), "orphans"
    newest = checkpoints(digits.folder / "ck")[-1]
    digits.run(ON_GPU, f"--steps={newest + 2}", "--save=ck", "--resume=auto", "--log=rest.jsonl", fake=GPUS)
    lines = [json.loads(line) for line in (digits.folder / "rest.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line and "step" in line] == [newest + 1, newest + 2]
    assert temporaries(digits.folder / "ck") == []
    return said


@pytest.mark.parametrize("victim", [0, 1])
def test_a_stopped_rank_is_named(digits, victim):
    with running(digits, "--data-parallel=zero2") as process:
        os.kill(ranks_of(digits.exe)[victim], signal.SIGSTOP)
        said = check_end(digits, process, 10)
    assert re.search(rf"gradc: error: rank {1 - victim}: waited 2 s for rank {victim} in \w+ \d+ of (group shard|group data|the control connections), "
                     "without an answer: stopped or hanging", said), said


def test_a_killed_rank_ends_all(digits):
    with running(digits) as process:
        os.kill(ranks_of(digits.exe)[1], signal.SIGKILL)
        check_end(digits, process, 128 + signal.SIGKILL)


def test_a_suspended_rank_is_waited_for(digits):
    """For longer than a kernel may take, and less than a silent rank has."""
    with running(digits, "--log=log.jsonl", GRADC_COMM_TIMEOUT="20", GRADC_DEVICE_TIMEOUT="0.5") as process:
        rank = ranks_of(digits.exe)[1]
        os.kill(rank, signal.SIGSTOP)
        time.sleep(2)
        os.kill(rank, signal.SIGCONT)
        before = (digits.folder / "log.jsonl").read_text().count("\n")
        deadline = time.monotonic() + 30
        while (digits.folder / "log.jsonl").read_text().count("\n") < before + 5:
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()[1]
            time.sleep(0.05)


def test_a_slow_rank_is_named_and_waited_for(gpu, digits, tmp_path):
    """In the middle of a step rank 1 waits for its disk, twice as long as a silent rank has, and longer than a kernel may take. The data is too large to be
    kept: 66 reads check it, then each micro-batch is one."""
    rows = (80 << 20) // 256
    np.save(tmp_path / "input.npy", np.resize(np.load(gpu.models / "mlp_digits/input.npy"), (rows, 64)))
    np.save(tmp_path / "labels.npy", np.resize(np.load(gpu.models / "mlp_digits/labels.npy"), rows))
    digits.data = ["--data", "input=input.npy", "--data", "labels=labels.npy"]
    options = (ON_GPU, "--steps=10", "--accumulate=8", "--data-parallel=zero3", "--log=log.jsonl")
    slow = [f"{name}={value}" for name, value in fault(build_faults(tmp_path), "pread", 94, "slow", path="input.npy").items()]
    *start, _, _ = digits.launcher
    digits.launcher = []
    one = digits.command(*options)
    env = {**os.environ, **digits.environment, "FAKE_CUDA_DEVICES": "2", "GRADC_COMM_TIMEOUT": "2", "GRADC_DEVICE_TIMEOUT": "1",
           "FAULT_MS": "5000"}
    done = subprocess.run([*start, "-n", "1", *one, ":", "-n", "1", "env", *slow, *one], cwd=tmp_path, env=env, text=True,
                          capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"warning: rank 0: has waited (\d) s in \w+ \d+ of group shard for (.*)", done.stderr)
    assert [int(seconds) for seconds, _ in found] == [2, 4] and {who for _, who in found} == {"rank 1 (computing a step), which answers"}, done.stderr
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) >= 10


def test_a_stuck_kernel_ends_all(digits):
    """The other rank has everything that it waits for from this one's host."""
    done = digits.run(ON_GPU, ENDLESS, "--save=ck", fake={**GPUS, "STUCK": "sum_f32"}, exit=10,
                      env={"GRADC_COMM_TIMEOUT": "2", "GRADC_DEVICE_TIMEOUT": "2"})
    assert "has finished nothing for 2 seconds" in done.stderr and not checkpoints(digits.folder / "ck")


@pytest.mark.parametrize("planned, says", [
    ("ncclBroadcast@1:3~6", r"rank 1: NCCL, (up to )?all_\w+ \d+ of group data: remote process exited"),
    ("ncclSend@0:3=3", r"rank 0: NCCL, all_to_all \d+ of group data: internal error"),
    ("ncclCommInitRankConfig@1:1=2", "rank 1: NCCL, start of group world: unhandled system error"),
    ("ncclGetUniqueId:1=2", "rank 0: NCCL, ncclGetUniqueId: unhandled system error")])
def test_a_fault_of_nccl_ends_all(digits, planned, says):
    done = digits.run(ON_GPU, ENDLESS, "--save=ck", fake=GPUS, env={"FAKE_NCCL_FAIL": planned}, exit=9)
    assert re.search(f"gradc: error: {says}", done.stderr), done.stderr
    assert not ranks_of(digits.exe) and not checkpoints(digits.folder / "ck")


def test_a_lost_gpu_ends_all(digits):
    """Its rank leaves the others, which wait for it in NCCL."""
    done = digits.run(ON_GPU, ENDLESS, fake={**GPUS, "FAIL": "cuMemcpyAsync:20~719"}, exit=None)
    assert done.returncode == 5 and "a kernel failed" in done.stderr
    assert not ranks_of(digits.exe)
