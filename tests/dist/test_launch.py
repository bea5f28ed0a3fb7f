"""scripts/launch/mpirun and srun: after a loss training goes on from the last checkpoint, on as many ranks or on fewer."""
import json
import os
import re
import shutil
import signal
import subprocess
import time

import pytest

from test_ranks import LAUNCHERS, TESTS, call, digits, losses, ranks_of  # noqa: F401

LAUNCH = TESTS.parent / "scripts/launch/mpirun"
SRUN = TESTS.parent / "scripts/launch/srun"


@pytest.fixture(params=sorted(LAUNCHERS))
def mpirun(request):
    command = LAUNCHERS[request.param]
    if not shutil.which(command[0]):
        pytest.skip(f"{command[0]} is not installed")
    return " ".join(command)


@pytest.fixture
def start(tmp_path):
    """start(ARGUMENT...): the launcher in the background, in a group of its own."""
    started = []

    def begin(*arguments, script=LAUNCH, **more):
        env = dict(os.environ, TEST_RUN=str(tmp_path), GRADC_COMM_TIMEOUT="4", **more)
        process = subprocess.Popen([script, *map(str, arguments)], env=env, text=True, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, start_new_session=True)
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def training(digits, folder, *options):
    exe, data = digits
    return [exe, *data, "--global-batch=32", "--save", folder / "saved", "--log", folder / "log.jsonl", "--export",
            folder / "out.onnx", "--threads=1", "--progress=off", *options]


def wait_for_checkpoint(process, folder):
    deadline = time.monotonic() + 60
    while not list((folder / "saved").glob("step-*/manifest.json")):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.02)


def resumed_lines(folder):
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, len(lines) + 1))
    return [line["resumed"] for line in lines if "resumed" in line]


def test_a_killed_rank_costs_the_steps_behind_the_checkpoint(mpirun, start, digits, tmp_path):
    whole = tmp_path / "whole"
    whole.mkdir()
    call([*mpirun.split(), "-n", "4", *training(digits, whole, "--steps=800", "--save-every=200")])
    process = start("-n", 4, "--mpirun", mpirun, *training(digits, tmp_path, "--steps=800", "--save-every=200"))
    wait_for_checkpoint(process, tmp_path)
    os.kill(ranks_of(str(tmp_path))[2], signal.SIGKILL)
    said = process.communicate(timeout=90)[1]
    assert process.returncode == 0, said
    assert "restart 1 of 10, with 4 ranks" in said
    assert (tmp_path / "out.onnx").read_bytes() == (whole / "out.onnx").read_bytes()
    resumed, = resumed_lines(tmp_path)
    assert resumed["step"] >= 200 and resumed["step"] % 200 == 0 and resumed["checkpoint_age_s"] >= 0
    assert resumed["lost_steps"] >= 0 and (resumed["lost_ms"] > 0) == (resumed["lost_steps"] > 0)
    if resumed["lost_steps"]:
        assert re.search(rf"{resumed['lost_steps']} steps? after the checkpoint, .* computed again", said)


def test_with_fewer_a_step_keeps_its_rows(mpirun, start, digits, tmp_path):
    """Four are started once; then, as when a host is gone, the launcher has no four any more."""
    wrapper = tmp_path / "mpirun"
    wrapper.write_text(f"#!/bin/sh\n[ $2 = 2 ] || [ ! -e {tmp_path}/gone ] || exit 1\nexec {mpirun} \"$@\"\n")
    wrapper.chmod(0o755)
    whole = tmp_path / "whole"
    whole.mkdir()
    options = ["--steps=600", "--save-every=200"]
    call([*mpirun.split(), "-n", "4", *training(digits, whole, *options)])
    process = start("-n", "4,2", "--mpirun", wrapper, *training(digits, tmp_path, *options))
    wait_for_checkpoint(process, tmp_path)
    (tmp_path / "gone").touch()
    os.kill(ranks_of(str(tmp_path))[3], signal.SIGKILL)
    said = process.communicate(timeout=90)[1]
    assert process.returncode == 0, said
    assert "with 2 ranks" in said and "rows_per_step" not in said
    assert losses(tmp_path / "log.jsonl") == pytest.approx(losses(whole / "log.jsonl"), rel=1e-4)
    assert len(resumed_lines(tmp_path)) == 1


def test_a_signal_ends_it(mpirun, start, digits, tmp_path):
    process = start("-n", 2, "--mpirun", mpirun, *training(digits, tmp_path, "--epochs=1000000", "--save-every=100"))
    wait_for_checkpoint(process, tmp_path)
    process.terminate()
    said = process.communicate(timeout=30)[1]
    assert process.returncode == 75, said
    assert "restart" not in said and not ranks_of(str(tmp_path))


def test_ranks_that_do_not_divide_a_step(mpirun, digits, tmp_path):
    done = call([LAUNCH, "-n", "3", "--mpirun", mpirun, *training(digits, tmp_path, "--steps=1")], exit=2)
    assert "no multiple of 8 rows of a micro-batch times 3 ranks, 24; it fits with this many ranks: 1, 2, 4" in done.stderr
    assert "restart" not in done.stderr


@pytest.mark.parametrize("code, restarts", [(3, 0), (6, 0), (75, 0), (9, 1), (137, 1)])
def test_what_would_happen_again_is_not_tried_again(tmp_path, code, restarts):
    """Without a new checkpoint a number of ranks is tried twice."""
    command = f"{tmp_path}/fails"
    (tmp_path / "fails").write_text(f"#!/bin/sh\necho started >> {tmp_path}/starts\nexit {code}\n")
    (tmp_path / "fails").chmod(0o755)
    call([LAUNCH, "-n", "4", "--mpirun", command, "exe", "--save", tmp_path / "s", "--global-batch", "8"], exit=code)
    assert (tmp_path / "starts").read_text().count("started") == 1 + restarts


def test_an_abort_behind_a_checkpoint_is_a_loss(tmp_path):
    """MPICH ends with the signal's number, which of SIGABRT is the exit code of faults in data."""
    (tmp_path / "fails").write_text(f"#!/bin/sh\necho started >> {tmp_path}/starts\nmkdir -p {tmp_path}/s/step-1\n"
                                    f"touch {tmp_path}/s/step-1/manifest.json\nexit 6\n")
    (tmp_path / "fails").chmod(0o755)
    call([LAUNCH, "-n", "4", "--mpirun", tmp_path / "fails", "exe", "--save", tmp_path / "s", "--global-batch", "8"], exit=6)
    assert (tmp_path / "starts").read_text().count("started") == 2


def test_restarts_are_counted(tmp_path):
    (tmp_path / "fails").write_text("#!/bin/sh\nexit 9\n")
    (tmp_path / "fails").chmod(0o755)
    done = call([LAUNCH, "-n", "4,3,2,1", "--restarts", "3", "--mpirun", tmp_path / "fails", "exe", "--save=s", "--global-batch=8"], exit=9)
    assert re.findall(r"with (\d) ranks", done.stderr) == ["4", "3", "3"]


@pytest.mark.parametrize("arguments, said", [
    ([], "-n: how many ranks?"), (["-n"], "-n: a value is missing"), (["-n", "4,x", "exe"], '"x" is no number of ranks'),
    (["-n", "2,", "exe"], "-n 2,: a number of ranks is missing"), (["-n", "0", "exe"], '"0" is no number of ranks'), (["-n", "2"], "no executable"),
    (["-n", "2", "--restarts", "-1", "exe"], "--restarts -1"), (["-n", "2", "--other", "exe"], "--other: no such option"),
    (["-n", "2", "exe", "--global-batch=8"], "--save DIR is missing"), (["-n", "2", "exe", "--save=s"], "--global-batch ROWS is missing"),
    (["-n", "2", "exe", "--save=s", "--global-batch=8", "--resume=auto"], "--resume=auto is added"),
])
def test_usage(arguments, said):
    assert said in call([LAUNCH, *arguments], exit=2).stderr


# ---- srun
# What Slurm sets for a task. Processors of ranks exchange data by MPI, so mpirun starts the tasks here, in place of Slurm's PMIx; like
# `srun --kill-on-bad-exit` it ends all when one ends badly.
FAKE_SRUN = """#!/usr/bin/env bash
[ "$1" = --kill-on-bad-exit=1 ] && shift
[ "$1" = -n ] || exit 1
echo "$2" >> {folder}/started
[ "$2" -le "$(cat {folder}/tasks)" ] || {{ echo "srun: error: Unable to create step: More processors requested than permitted" >&2; exit 1; }}
export SLURM_JOB_ID=7 SLURM_STEP_ID=$(($(wc -l < {folder}/started) - 1)) SLURM_STEP_NUM_TASKS=$2 SLURM_NTASKS=$2 SLURM_STEP_NODELIST=localhost
exec {mpirun} -n "$2" {folder}/task "${{@:3}}"
"""
FAKE_TASK = """#!/bin/sh
SLURM_PROCID=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}
SLURM_LOCALID=$SLURM_PROCID
export SLURM_PROCID SLURM_LOCALID
exec "$@"
"""


@pytest.fixture
def slurm(mpirun, tmp_path):
    """slurm(TASKS): the allocation has room for so many from now on. A folder with srun."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    for name, text in ("srun", FAKE_SRUN.format(folder=folder, mpirun=mpirun)), ("task", FAKE_TASK):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)

    def room(tasks):
        (folder / "tasks").write_text(str(tasks))
        return folder

    return room


def test_srun_goes_on_with_fewer_tasks(slurm, mpirun, start, digits, tmp_path):
    """A task is killed, and then the allocation has room for two."""
    folder = slurm(4)
    whole = tmp_path / "whole"
    whole.mkdir()
    options = ["--steps=600", "--save-every=200"]
    call([*mpirun.split(), "-n", "4", *training(digits, whole, *options)])
    process = start("-n", "4,2", *training(digits, tmp_path, *options), script=SRUN, PATH=f"{folder}:{os.environ['PATH']}")
    wait_for_checkpoint(process, tmp_path)
    slurm(2)
    os.kill(ranks_of(str(tmp_path))[3], signal.SIGKILL)
    said = process.communicate(timeout=90)[1]
    assert process.returncode == 0, said
    assert "More processors requested than permitted" in said and "with 2 ranks" in said
    assert re.fullmatch(r"4\n(4\n)+2\n", (folder / "started").read_text())
    assert losses(tmp_path / "log.jsonl") == pytest.approx(losses(whole / "log.jsonl"), rel=1e-4)
    assert len(resumed_lines(tmp_path)) == 1


def test_srun_takes_the_allocations_tasks(slurm, start, digits, tmp_path):
    """And is told to end by a signal, as Slurm does before the time is up."""
    folder = slurm(2)
    process = start("--srun", folder / "srun", *training(digits, tmp_path, "--epochs=1000000", "--save-every=100"), script=SRUN, SLURM_NTASKS="2")
    wait_for_checkpoint(process, tmp_path)
    assert len(ranks_of(str(tmp_path))) == 2
    process.terminate()
    said = process.communicate(timeout=30)[1]
    assert process.returncode == 75 and "restart" not in said and not ranks_of(str(tmp_path))


@pytest.mark.parametrize("tasks, arguments, said", [
    (None, ["exe"], "-n: how many ranks?"), ("x", ["exe"], '-n x: "x" is no number of ranks'), ("2", [], "no executable"),
    ("2", ["--mpirun", "m", "exe"], "--mpirun: no such option"), ("2", ["exe", "--save=s"], "--global-batch ROWS is missing")])
def test_usage_of_srun(tasks, arguments, said, monkeypatch):
    monkeypatch.delenv("SLURM_NTASKS", raising=False)
    done = call([SRUN, *arguments], exit=2, env={"SLURM_NTASKS": tasks} if tasks else {})
    assert said in done.stderr and "usage: scripts/launch/srun" in done.stderr
