"""Several ranks: the bits of as many accumulation steps, and no rank outlives another."""
import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

TESTS = Path(__file__).resolve().parents[1]
LAUNCHERS = {
    "openmpi": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"],
    "mpich": ["mpirun.mpich"],
}


@pytest.fixture(params=sorted(LAUNCHERS))
def launch(request):
    """launch(ranks, ARGUMENT...): the command that starts so many."""
    command = LAUNCHERS[request.param]
    if not shutil.which(command[0]):
        pytest.skip(f"{command[0]} is not installed")
    return lambda ranks, *arguments: [*command, "-n", str(ranks), *map(str, arguments)]


@pytest.fixture
def openmpi():
    command = LAUNCHERS["openmpi"]
    if not shutil.which(command[0]):
        pytest.skip(f"{command[0]} is not installed")
    return lambda ranks, *arguments: [*command, "-n", str(ranks), *map(str, arguments)]


def call(command, exit=0, env=None, timeout=60):
    done = subprocess.run([str(c) for c in command], text=True, capture_output=True, timeout=timeout,
                          env=dict(os.environ, **(env or {})))
    assert exit is None or done.returncode == exit, (
        f"exit {done.returncode}: {command}\n{done.stdout}\n{done.stderr}")
    return done


def executable(gradc, models, folder, name, batch):
    """(path, its data options)"""
    reference = json.loads((models / name / "reference.json").read_text())
    dims = [f"--dim={k}={v}" for k, v in reference["dims"].items() if k != "batch"]
    call([gradc, "compile", models / name / "model.onnx", "-o", folder / name, f"--batch={batch}", *dims,
          "--loss", reference["loss"]])
    data = [f"--data={i['name']}={models / name / i['file']}" for i in reference["inputs"]]
    return folder / name, [*data, f"--data=labels={models / name / reference['labels']['file']}"]


@pytest.fixture(scope="module")
def digits(gradc, models, tmp_path_factory):
    return executable(gradc, models, tmp_path_factory.mktemp("digits"), "mlp_digits", 8)


def losses(path):
    return [line["loss"] for line in map(json.loads, path.read_text().splitlines()) if "loss" in line]


def train(command, exe, data, folder, name, *options):
    log, export = folder / f"{name}.jsonl", folder / f"{name}.onnx"
    done = call([*command, exe, *data, "--log", log, "--export", export, "--progress=off", *options])
    return losses(log), export.read_bytes(), done


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_conformance(launch, build, ranks):
    """Under TSan, too. That fails on its own over locks of Open MPI and over UCX's wrappers of madvise."""
    path = build / "tests/runtime_comm_test"
    if not path.exists():
        pytest.skip(f"{path} is not built")
    done = call(launch(ranks, path), env={"TSAN_OPTIONS": "detect_deadlocks=0", "UCX_MEM_EVENTS": "n"})
    assert done.stderr.count("[  PASSED  ]") + done.stdout.count("[  PASSED  ]") == ranks


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("option", [None, "--threads=1", "--deterministic"])
@pytest.mark.parametrize("name, steps", [("mlp_digits", 30), ("gpt2_mini", 4)])
def test_ranks_are_accumulation(launch, gradc, models, tmp_path, name, steps, option, ranks):
    """Bit for bit: every loss, and every byte of the trained model. A rank has fewer threads than a process alone."""
    exe, data = executable(gradc, models, tmp_path, name, 4)
    options = [f"--steps={steps}", *([option] if option else [])]
    alone = train([], exe, data, tmp_path, "alone", *options, f"--accumulate={ranks}")
    together = train(launch(ranks), exe, data, tmp_path, "together", *options)
    assert together[:2] == alone[:2]
    assert len(together[0]) == steps


@pytest.mark.parametrize("name, steps", [("mlp_digits", 30), ("gpt2_mini", 4)])
def test_sums_of_the_library(launch, gradc, models, tmp_path, name, steps):
    """As many bytes, the same training but for rounding; the first lines and the log say which it was."""
    exe, data = executable(gradc, models, tmp_path, name, 4)
    alone = train([], exe, data, tmp_path, "alone", f"--steps={steps}", "--accumulate=2")[0]
    for how, means in (("ordered", "in their order"), ("fast", "as the library adds")):
        got, _, done = train(launch(2), exe, data, tmp_path, how, f"--steps={steps}", f"--reduce={how}")
        assert got == pytest.approx(alone, rel=1e-4 if how == "fast" else 0)
        assert f"ranks: 2, sums over them {means} (--reduce={how})" in done.stderr
        first = json.loads((tmp_path / f"{how}.jsonl").read_text().splitlines()[0])
        assert first["settings"]["reduce"] == how


def test_many_ranks_leave_sums_to_the_library(openmpi, digits):
    exe, data = digits
    for ranks, how in ((8, "ordered"), (9, "fast")):
        done = call(openmpi(ranks, exe, *data, "--steps=2", "--progress=off", "--threads=1"))
        assert f"ranks: {ranks}, sums over them" in done.stderr and f"(--reduce={how})" in done.stderr


def test_batch_statistics_are_averaged(openmpi, gradc, models, tmp_path):
    exe, data = executable(gradc, models, tmp_path, "cnn_mnist", 8)
    alone = train([], exe, data, tmp_path, "alone", "--steps=10", "--accumulate=2")[0]
    together = train(openmpi(2), exe, data, tmp_path, "together", "--steps=10")
    assert together[0] == pytest.approx(alone, rel=1e-5)
    assert together[2].stderr.count("batch statistics") == 1  # rank 0 warns, the other is silent


def test_evaluation_is_shared(openmpi, digits, models, tmp_path):
    exe, data = digits
    folder = models / "mlp_digits"
    evaluation = [f"--eval-data=input={folder / 'eval_input.npy'}",
                  f"--eval-data=labels={folder / 'eval_labels.npy'}", "--steps=5", "--json"]
    alone = json.loads(call([exe, *data, *evaluation, "--accumulate=3", "--progress=off"]).stdout)
    together = json.loads(call(openmpi(3, exe, *data, *evaluation, "--progress=off")).stdout)
    assert together["eval_rows"] == alone["eval_rows"]
    assert together["eval_accuracy"] == alone["eval_accuracy"]
    assert together["eval_loss"] == alone["eval_loss"]


@pytest.mark.parametrize("device", ["cpu", "async"])
@pytest.mark.parametrize("option", ["--backward", "--check-gradients=20"])
def test_a_rank_computes_once_by_itself(openmpi, digits, models, tmp_path, device, option):
    """Gradients of one batch, or their check, are rank 0's alone, which waits for nobody."""
    exe, _ = digits
    inputs = []
    for name, file in [("input", "input"), ("labels", "labels")]:
        np.save(tmp_path / f"{name}.npy", np.load(models / f"mlp_digits/{file}.npy")[:8])
        inputs.append(f"--input={name}={tmp_path / name}.npy")
    once = [exe, "--once", option, *inputs, f"--device={device}"]
    alone = call([*once, f"--output-dir={tmp_path / 'alone'}"])
    together = call(openmpi(2, *once, f"--output-dir={tmp_path / 'together'}"))
    assert together.stdout.replace("together", "alone") == alone.stdout
    files = sorted(f.name for f in (tmp_path / "alone").glob("*"))
    assert files == sorted(f.name for f in (tmp_path / "together").glob("*")) and (files or option != "--backward")
    for file in files:
        assert (tmp_path / "alone" / file).read_bytes() == (tmp_path / "together" / file).read_bytes()


def test_transfers_overlap_the_backward_pass(openmpi, gradc, models, tmp_path):
    """In some steps of one run in three, at least: when the cores are busy elsewhere, a transfer may begin late."""
    exe, data = executable(gradc, models, tmp_path, "gpt2_mini", 4)
    for _ in range(3):
        call(openmpi(2, exe, *data, "--steps=10", "--threads=1", "--trace", tmp_path / "t.json", "--progress=off"))
        events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
        backward = [e for e in events if e.get("name") == "backward"]
        sums = [e for e in events if e.get("name") == "all_to_all"]
        inside = [s for s in sums for b in backward if b["ts"] <= s["ts"] < b["ts"] + b["dur"]]
        assert len(backward) == 10 and len(sums) % 10 == 0
        if inside:
            break
    assert inside  # a bucket is on its way before the pass is over
    assert {s["tid"] for s in sums}.isdisjoint({b["tid"] for b in backward})


def test_a_trace_has_each_sum(openmpi, digits, tmp_path):
    """Of four ranks one sum has the first two, and a loop adds the others: each is a bar of its own."""
    exe, data = digits
    call(openmpi(4, exe, *data, "--steps=3", "--threads=1", "--trace", tmp_path / "t.json", "--progress=off"))
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    sums = [e for e in events if e.get("args", {}).get("kernel") == "sum_f32"]
    assert len(sums) == 3 * 3 and len({e["ts"] for e in sums}) == len(sums)


def ranks_of(parent):
    """Processes of the executable below a launcher, by rank. parent: a path, for others may run this test, too."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            text = path.read_bytes()
            mine = f"TEST_RUN={parent}".encode() in text.split(b"\0")
            name = (path.parent / "comm").read_text().strip()
        except OSError:
            continue
        rank = re.search(rb"(?:OMPI_COMM_WORLD_RANK|PMI_RANK)=(\d+)", text)
        if mine and rank and name == "mlp_digits":
            found[int(rank[1])] = int(path.parent.name)
    return found


def start_and_wait(command, log, mark):
    env = dict(os.environ, TEST_RUN=mark, GRADC_COMM_TIMEOUT="4")
    process = subprocess.Popen([str(c) for c in command], env=env, text=True, stderr=subprocess.PIPE,
                               stdout=subprocess.PIPE, start_new_session=True)
    while not (log.exists() and log.read_text().count("\n") > 3):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    return process


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV])
@pytest.mark.parametrize("victim", [0, 2])
def test_no_rank_outlives_another(launch, digits, tmp_path, number, victim):
    exe, data = digits
    log = tmp_path / "log.jsonl"
    process = start_and_wait(launch(3, exe, *data, "--epochs=100000000", "--log", log, "--progress=off"),
                             log, str(tmp_path))
    ranks = ranks_of(str(tmp_path))
    assert sorted(ranks) == [0, 1, 2]
    began = time.monotonic()
    os.kill(ranks[victim], number)
    try:
        said = process.communicate(timeout=30)[1]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert time.monotonic() - began < 30 and process.returncode != 0
    deadline = time.monotonic() + 10
    while ranks_of(str(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not ranks_of(str(tmp_path)), "orphans"
    if number == signal.SIGSEGV:
        assert "libucs" not in said  # whose handler may hang
    if number == signal.SIGSTOP:
        assert re.search(rf"gradc: error: .*rank \d: .*waited 4 s (for|to send to) rank .*{victim}", said), said


def test_a_slow_disk_is_waited_for(launch, digits, tmp_path):
    """Rank 0 waits for its disk three times as long as a silent rank has; the others ask it, and say so once each time."""
    exe, data = digits
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", TESTS / "train/checkpoint/faults.c", "-o", tmp_path / "faults.so", "-ldl"],
                   check=True)
    slow = {"LD_PRELOAD": str(tmp_path / "faults.so"), "FAULT_PATH": "ck", "FAULT_CALL": "fsync", "FAULT_HOW": "slow",
            "FAULT_MS": "6000", "FAULT_AT": "1", "GRADC_COMM_TIMEOUT": "2"}
    options = ["--steps=6", "--save-every=2", "--progress=off", "--log"]
    call(launch(3, exe, *data, *options, tmp_path / "fast.jsonl", "--save", tmp_path / "fast"))
    done = call(launch(3, exe, *data, *options, tmp_path / "slow.jsonl", "--save", tmp_path / "ck"), env=slow)
    assert losses(tmp_path / "slow.jsonl") == losses(tmp_path / "fast.jsonl")
    said = re.findall(r"warning: rank (\d): has waited (\d) s in all_gather \d+ of the control connections for (.*)", done.stderr)
    assert {who for who, *_ in said} == {"1"}, done.stderr  # one of the two that wait
    assert {what for *_, what in said} == {"rank 0 (saving a checkpoint), which answers"}
    assert [int(seconds) for _, seconds, _ in said][:2] == [2, 4]


@pytest.mark.parametrize("device", ["cpu", "async"])
def test_a_step_that_fails_ends_all_ranks_alike(openmpi, digits, tmp_path, device):
    """Whoever sees it sooner: no rank waits for one that has left."""
    exe, data = digits
    done = call(openmpi(2, exe, *data, "--steps=30", "--lr=1e30", f"--device={device}", "--progress=off", "--log",
                        tmp_path / "log.jsonl"), exit=8)
    assert done.stderr.count("the parameters are those before the step") == 1, done.stderr
    assert json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])["step"] < 30


def test_a_suspended_job_goes_on(launch, digits, tmp_path):
    """As a scheduler does it, for longer than a silent rank has."""
    exe, data = digits
    log = tmp_path / "log.jsonl"
    process = start_and_wait(launch(3, exe, *data, "--epochs=100000000", "--log", log, "--progress=off"),
                             log, str(tmp_path))
    ranks = ranks_of(str(tmp_path)).values()
    for number, seconds in ((signal.SIGSTOP, 5), (signal.SIGCONT, 2)):
        for rank in ranks:
            os.kill(rank, number)
        time.sleep(seconds)
        if number == signal.SIGSTOP:
            before = log.read_text().count("\n")
    assert process.poll() is None and log.read_text().count("\n") > before + 3
    os.kill(ranks_of(str(tmp_path))[0], signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM


def script_of(folder, text):
    path = folder / "rank.sh"
    path.write_text(f"#!/bin/sh\nrank=${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}}\n{text}\n")
    path.chmod(0o755)
    return path


def errors_of(done):
    return re.findall(r"gradc: error: .*", done.stderr)


def test_a_fault_of_one_rank_ends_all(launch, digits, tmp_path):
    """It says what happened, once, and the others take its exit code."""
    exe, data = digits
    script = script_of(tmp_path, f"""
[ "$rank" = 1 ] && exec {exe} --data=input=/nonexistent.npy "$@"
exec {exe} {data[0]} "$@" """)
    done = call(launch(3, script, *data[1:], "--steps=5", "--progress=off"), exit=5)
    assert len(errors_of(done)) == 1 and "/nonexistent.npy" in errors_of(done)[0]


def test_a_fault_of_all_is_told_once(launch, digits, tmp_path):
    exe, data = digits
    done = call(launch(3, exe, *data, "--steps=5", "--progress=off", "--lr=1e38"), exit=8)
    assert len(errors_of(done)) == 1


@pytest.mark.parametrize("option, other", [
    ("--seed=$rank", "options than rank 0: --seed 1, not 0"),
    ("--lr=0.$((rank + 1))", "options than rank 0: lr 0.2, not 0.1"),
    ("--reduce=$([ $rank = 0 ] && echo fast || echo ordered)", "options than rank 0: --reduce ordered, not fast"),
    ("$([ $rank = 0 ] && echo --save=c)", "options than rank 0: --save off, not on"),
    ("--save=c $([ $rank = 0 ] && echo --resume=auto)", "options than rank 0: --resume off, not on"),
    ("--save=c --save-every=$((rank + 1))", "options than rank 0: --save-every 2, not 1"),
    ("{eval} --eval-every=$((rank + 2))", "options than rank 0: --eval-every 3, not 2"),
    ("$([ $rank = 0 ] && echo {eval})", "options than rank 0: evaluation data off, not on"),
    ("--data=input=changed$rank.npy", "data than rank 0: checksum "),
    ("$([ $rank = 1 ] && echo --load=w.safetensors)", "initial weights than rank 0: --load, by its checksum ")])
def test_ranks_must_agree(launch, digits, models, tmp_path, option, other):
    """In all that decides what they compute, and when they meet."""
    exe, data = digits
    folder = models / "mlp_digits"
    x = np.load(folder / "input.npy")
    np.save(tmp_path / "changed0.npy", x)
    x[0, 0] += 1
    np.save(tmp_path / "changed1.npy", x)
    if "load" in option:
        subprocess.run([exe, *data, "--steps=1", "--progress=off", "--save=other"], check=True, cwd=tmp_path, capture_output=True)
        shutil.copy(next((tmp_path / "other").glob("step-*/*.safetensors")), tmp_path / "w.safetensors")
    evaluation = f"--eval-data=input={folder}/eval_input.npy --eval-data=labels={folder}/eval_labels.npy"
    own = data[1:] if "input" in option else data
    script = script_of(tmp_path, f'cd {tmp_path}; exec {exe} "$@" {option.format(eval=evaluation)}')
    done = call(launch(2, script, *own, "--steps=5", "--progress=off"), exit=None)
    assert done.returncode == 9 and f"rank 1 has other {other}" in done.stderr
    assert len(errors_of(done)) == 1


def test_ranks_have_one_executable(launch, gradc, models, digits, tmp_path):
    exe, data = digits
    other, _ = executable(gradc, models, tmp_path, "mlp_digits", 4)
    script = script_of(tmp_path, f'[ $rank = 0 ] && exec {exe} "$@"; exec {other} "$@"')
    done = call(launch(2, script, *data, "--steps=5", "--progress=off"), exit=9)
    assert re.search("rank 1 has another executable than rank 0: (bytes of its tables|their checksum) ", done.stderr)
    assert len(errors_of(done)) == 1


def test_a_batch_too_small_for_the_ranks(launch, digits, models, tmp_path):
    exe, data = digits
    for name in "input", "labels":
        np.save(tmp_path / f"{name}.npy", np.load(models / f"mlp_digits/{name}.npy")[:20])
    few = [f"--data={name}={tmp_path / name}.npy" for name in ("input", "labels")]
    done = call(launch(4, exe, *few, "--steps=5", "--progress=off"), exit=6)
    assert "20 samples are less than the 32 of a step (8 in a micro-batch, --accumulate 1, 4 ranks)" in done.stderr
    assert len(errors_of(done)) == 1


def test_the_launcher_is_the_librarys(openmpi, digits):
    """Ranks that do not know each other would all train alone."""
    exe, data = digits
    done = call([exe, *data, "--steps=2"], env={"SLURM_STEP_NUM_TASKS": "3"}, exit=9)
    assert "variables say 3 ranks, its MPI library knows 1" in done.stderr


def test_a_late_start_is_told(openmpi, digits, tmp_path):
    """In MPI_Init nobody knows who is missing."""
    exe, data = digits
    script = script_of(tmp_path, f'[ "$rank" = 1 ] && sleep 3; exec {exe} "$@"')
    done = call(openmpi(2, script, *data, "--steps=2", "--progress=off"), env={"GRADC_COMM_TIMEOUT": "1"})
    assert re.search(r"warning: has waited [12] s in MPI_Init for the other ranks to start", done.stderr)


@pytest.mark.parametrize("device", ["cpu", "async"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_step_before_a_fault_is_in_the_log(openmpi, digits, models, tmp_path, device, ranks):
    """It was queued when the next one's data turned out to be wrong; where it failed itself, that comes first."""
    exe, data = digits
    x = np.load(models / "mlp_digits/input.npy")
    rows = 8 * ranks
    x[4 * rows + 1, 0] = np.nan
    for said, code in [("is nan", 6), ("step 4: the ", 8)]:
        if code == 8:
            x[3 * rows:4 * rows] = 3e38
        np.save(tmp_path / "x.npy", x)
        log = tmp_path / f"{code}.jsonl"
        command = [exe, f"--data=input={tmp_path / 'x.npy'}", data[1], "--shuffle=off", "--steps=6", "--progress=off",
                   f"--device={device}", "--log", log]
        done = call(openmpi(ranks, *command) if ranks > 1 else command, exit=code)
        assert said in done.stderr
        steps = [line["step"] for line in map(json.loads, log.read_text().splitlines()) if "lr" in line]
        assert steps == [1, 2, 3, 4]


def test_ranks_take_the_same_kernels(launch, gradc, models, tmp_path):
    """The best that every rank runs; each may run another set of those compiled in."""
    folder = models / "mlp_digits"
    call([gradc, "compile", folder / "model.onnx", "-o", tmp_path / "e", "--batch=8",
          "--target=cpu:x86-64-v2,cpu:x86-64-v3"])
    data = [f"--data={name}={folder / name}.npy" for name in ("input", "labels")]
    rank = [tmp_path / "e", *data, "--steps=3", "--progress=off"]
    free, asked = [*rank, f"--save={tmp_path / 'c'}"], [*rank, "--target=cpu:x86-64-v2"]
    if "x86-64-v3 (" in call([tmp_path / "e", "--info"]).stdout:
        pytest.skip("this CPU runs one level only")
    call(launch(1, *free, ":", "-n", 1, *asked, f"--save={tmp_path / 'c'}"))
    [manifest] = (tmp_path / "c").glob("*/manifest.json")
    assert json.loads(manifest.read_text())["settings"]["cpu"] == "x86-64-v2"
    done = call(launch(1, *asked, ":", "-n", 1, *rank, "--target=cpu:x86-64-v3"), exit=None)
    assert done.returncode != 0 and done.stderr.count("no kernels are left that the devices and the --target of all ranks allow") == 1


def test_without_the_library(digits, tmp_path):
    """A launcher's environment where the loader finds no MPI; and none, where nobody looks for it."""
    exe, data = digits
    (tmp_path / "none.c").write_text("""#include <stddef.h>
void *dlopen(const char *name, int how) { (void)name; (void)how; return NULL; }
""")
    call(["cc", "-shared", "-fPIC", tmp_path / "none.c", "-o", tmp_path / "none.so"])
    preload = {"LD_PRELOAD": str(tmp_path / "none.so")}
    call([exe, *data, "--steps=1"], env=preload)
    done = call([exe, *data, "--steps=1"], env=preload | {"OMPI_COMM_WORLD_SIZE": "2"}, exit=9)
    assert "libmpi.so.40 cannot be opened: install libopenmpi3" in done.stderr


@pytest.mark.parametrize("first, second", [(4, 1), (1, 4), (2, 4)])
def test_a_checkpoint_resumes_on_other_ranks(openmpi, digits, tmp_path, first, second):
    """Saved by some ranks, continued by others: the state is the same to the bit, and goes on so."""
    exe, data = digits

    def on(ranks, *options):
        return [*(openmpi(ranks) if ranks > 1 else []), exe, *data, "--progress=off",
                f"--accumulate={4 // ranks}", *options]

    folder = tmp_path / "checkpoints"
    call(on(first, "--steps=6", "--save", folder))
    call(on(first, "--steps=6", "--resume", folder, "--export", tmp_path / "first.onnx"))
    call(on(second, "--steps=6", "--resume", folder, "--export", tmp_path / "second.onnx"))
    assert (tmp_path / "first.onnx").read_bytes() == (tmp_path / "second.onnx").read_bytes()
    if 2 in (first, second):
        return  # two ranks add in pairs: the same only to rounding
    call(on(4, "--steps=10", "--export", tmp_path / "whole.onnx"))
    done = call(on(second, "--steps=10", "--resume=auto", "--save", folder, "--export",
                   tmp_path / "resumed.onnx"))
    assert (tmp_path / "whole.onnx").read_bytes() == (tmp_path / "resumed.onnx").read_bytes()
    assert done.stderr.count("resumed from") == 1


def test_a_signal_saves_on_all_ranks(launch, digits, tmp_path):
    exe, data = digits
    log, folder = tmp_path / "log.jsonl", tmp_path / "checkpoints"
    process = start_and_wait(launch(2, exe, *data, "--epochs=100000000", "--log", log, "--save", folder,
                                    "--progress=off"), log, str(tmp_path))
    os.kill(ranks_of(str(tmp_path))[1], signal.SIGUSR1)
    said = process.communicate(timeout=30)[1]
    assert process.returncode == 75, said
    assert list(folder.glob("step-*/manifest.json"))


def test_evaluations_have_the_bits_of_one_rank(openmpi, digits, models, tmp_path):
    """What schedules and --keep-best decide by: the same of any number of ranks, also of more than there are micro-batches."""
    exe, data = digits
    found = {}
    for rows in 333, 20:
        words = []
        for name in "input", "labels":
            np.save(tmp_path / f"{name}.npy", np.load(models / f"mlp_digits/{name}.npy")[:rows])
            words.append(f"--eval-data={name}={tmp_path / name}.npy")
        for ranks in 1, 2, 3, 4:
            call(openmpi(ranks, exe, *data, *words, "--steps=1", "--lr=0", f"--log={tmp_path / 'log'}"))
            first = json.loads((tmp_path / "log").read_text().splitlines()[0])
            found[rows, ranks] = [first[key] for key in ("eval_loss", "eval_accuracy", "eval_rows")]
        assert all(found[rows, ranks] == found[rows, 1] for ranks in (2, 3, 4)), found


def test_a_signal_ends_an_evaluation_of_ranks(openmpi, digits, tmp_path):
    exe, data = digits
    words = []
    for name, dtype, shape in ("input", "<f4", (50_000_000, 64)), ("labels", "<i8", (50_000_000,)):  # holes of a file; a minute or so
        with open(tmp_path / f"{name}.npy", "wb") as f:
            np.lib.format.write_array_header_1_0(f, {"descr": dtype, "fortran_order": False, "shape": shape})
            f.truncate(f.tell() + int(np.prod(shape)) * int(dtype[-1]))
        words.append(f"--eval-data={name}={tmp_path / name}.npy")
    process = subprocess.Popen(list(map(str, openmpi(2, exe, *data, *words, "--steps=5", f"--save={tmp_path / 'ck'}"))), stderr=subprocess.PIPE, text=True,
                               env=dict(os.environ, TEST_RUN=str(tmp_path)))
    while "binding: batch=8" not in process.stderr.readline():
        pass
    time.sleep(1)
    os.kill(ranks_of(tmp_path)[1], signal.SIGTERM)  # it is enough that one rank hears of it
    said = process.communicate(timeout=15)[1]
    assert process.returncode == 75 and "after step 0; saved in" in said and (tmp_path / "ck/step-00000000/manifest.json").exists()
