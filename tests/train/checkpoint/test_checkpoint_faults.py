"""Kills, failing disks and signals at any moment: nothing that was saved is lost, and the run that
resumes ends with the bits of one that was never disturbed. Seeds are fixed; a failure prints what was
killed where."""
import os
import random
import re
import resource
import signal
import statistics
import subprocess
import time

import pytest
import reference
from checkpoints import (SIGNALS, Trainer, build_faults, checkpoints, digits_data, fault, read_manifest,
                         steps_of, temporaries)


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    return build_faults(tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def executable(gradc, models, tmp_path_factory):
    exe = tmp_path_factory.mktemp("exe") / "train"
    subprocess.run([gradc, "compile", models / "mlp_digits/model.onnx", "-o", exe, "--batch=16"],
                   check=True, capture_output=True)
    return exe


@pytest.fixture
def digits(executable, models, tmp_path):
    return Trainer(executable, digits_data(models), tmp_path)


RUN = ["--steps=120", "--save=ck", "--save-every=15", "--keep=2", "--shard-bytes=60000"]


@pytest.fixture(scope="module")
def undisturbed(executable, models, tmp_path_factory):
    """(steps, exported bytes) of RUN."""
    return Trainer(executable, digits_data(models), tmp_path_factory.mktemp("undisturbed")).result(
        *RUN, name="run")


def logged_calls(trainer, faults, options, call):
    """Name and path of each call on the folder `counted`, in order."""
    file = trainer.folder / "calls"
    file.unlink(missing_ok=True)
    trainer.run(*options, "--save=counted", env=fault(faults, call, 0, "", path="counted", log=file))
    return [line.split(" ", 1) for line in file.read_text().splitlines()]


def count_calls(trainer, faults, options, call):
    return len(logged_calls(trainer, faults, options, call))


def check_all(trainer):
    """Whatever has the name of a checkpoint is one, to its last byte."""
    for step in checkpoints(trainer.folder / "ck"):
        subprocess.run([trainer.exe, "--steps=0", f"--resume=ck/step-{step:08d}"], cwd=trainer.folder,
                       check=True, capture_output=True)


def finish(trainer, options):
    """The run that picks up what is there: its result, and nothing is left of what was killed."""
    result = trainer.result(*options, "--resume=auto", name="run")
    assert temporaries(trainer.folder / "ck") == []
    return result


KILLED = {-signal.SIGKILL, 0}  # 0: the run was faster


@pytest.mark.parametrize("seed", range(25))
def test_killed_while_saving(digits, faults, undisturbed, seed):
    """At a random call that writes a checkpoint, once or twice, then finished."""
    rng = random.Random(seed)
    calls = count_calls(digits, faults, RUN, "any")
    killed = 0
    for _ in range(rng.randint(1, 2)):
        at = rng.randint(1, calls)
        done = subprocess.run(
            digits.command(*RUN, "--resume=auto", "--log=run.jsonl", "--export=run.onnx"),
            cwd=digits.folder, capture_output=True, text=True,
            env={**os.environ, **fault(faults, "any", at, "kill", path="ck")})
        print(f"call {at} of {calls}: exit {done.returncode}, left {checkpoints(digits.folder / 'ck')}, "
              f"{temporaries(digits.folder / 'ck')}")
        assert done.returncode in KILLED, done.stderr
        check_all(digits)
        killed += done.returncode != 0
    assert killed >= 1
    assert finish(digits, RUN) == undisturbed


@pytest.mark.parametrize("seed", range(25))
def test_killed_at_any_time(digits, undisturbed, seed):
    rng = random.Random(seed)
    started = time.monotonic()
    digits.run(*RUN, "--save=timed")
    whole = time.monotonic() - started
    process = digits.start(*RUN, "--log=run.jsonl", "--export=run.onnx")
    time.sleep(rng.uniform(0, whole))
    process.kill()
    assert process.wait(60) in KILLED, process.stderr.read()
    check_all(digits)
    print(f"left {checkpoints(digits.folder / 'ck')}, {temporaries(digits.folder / 'ck')}")
    assert finish(digits, RUN) == undisturbed


def test_killed_at_every_call_of_two_saves(digits, faults, tmp_path):
    options = ["--steps=6", "--save=ck", "--save-every=3", "--keep=1"]
    want = digits.result(*options, name="want")
    calls = count_calls(digits, faults, options, "any")
    assert calls > 20
    for at in range(1, calls + 1):
        subprocess.run(["rm", "-rf", tmp_path / "ck"], check=True)
        digits.run(*options, "--log=run.jsonl", exit=-signal.SIGKILL,
                   env=fault(faults, "any", at, "kill", path="ck"))
        before = checkpoints(tmp_path / "ck")
        check_all(digits)
        assert finish(digits, options) == want, f"killed at call {at}, left {before}"
        assert checkpoints(tmp_path / "ck") == [6]


def test_a_name_comes_after_what_it_names(digits, faults, tmp_path):
    """What a power cut leaves is what was synced: every byte and name of a checkpoint before its own name, and that
    before an older one goes."""
    root, named, dropped = tmp_path / "counted", 0, 0
    unsynced = set()     # files whose bytes, folders whose names a disk may not have
    for call, at in logged_calls(digits, faults, ["--steps=12", "--save-every=3", "--keep=1"], "any"):
        path = tmp_path / at
        if call == "fsync":
            unsynced.discard(path)
        elif call == "write":
            unsynced.add(path)
        elif call in ("open", "mkdir"):
            unsynced |= {path, path.parent}
        elif call == "rename" and path.name.startswith("step-"):
            assert root not in unsynced
            dropped += 1
        elif call == "rename":
            assert not [x for x in unsynced if x == path or x.parent == path], path
            unsynced.add(root)
            named += 1
    assert (named, dropped) == (4, 3) and root not in unsynced


DISK = [
    # call, how it fails, what the message says
    ("write", 28, "No space left on device"), ("write", 5, "Input/output error"),
    ("fsync", 5, "Input/output error"), ("mkdir", 30, "Read-only file system"),
    ("open", 13, "Permission denied"), ("rename", 30, "Read-only file system"),
    ("pread", 5, "Input/output error"), ("pread", "short", "truncated"),
]


@pytest.mark.parametrize("call, how, says", DISK)
def test_a_failed_save_is_a_warning(digits, faults, call, how, says, tmp_path):
    """The first checkpoint is good, the second fails, the third and the training do not. A short direct read is tried
    again."""
    options = ["--steps=9", "--save=ck", "--save-every=3"]
    want = digits.result(*options, name="want")
    subprocess.run(["rm", "-rf", tmp_path / "ck"], check=True)
    digits.run("--steps=3", "--save=ck")
    done = digits.run(*options, "--resume=auto", "--export=got.onnx",
                      env=fault(faults, call, 1, how, times=2 if how == "short" else 1))
    assert done.stderr.count("warning") == 1
    assert "the checkpoint of step 6 could not be written (1 of 3" in done.stderr and says in done.stderr
    assert checkpoints(tmp_path / "ck") == [3, 9]
    assert temporaries(tmp_path / "ck") == []
    assert (tmp_path / "got.onnx").read_bytes() == want[1]


@pytest.mark.parametrize("file", ["shard-", "manifest"])
def test_a_disk_that_loses_a_bit(digits, faults, tmp_path, file):
    """Found when what was written is read again, before the checkpoint has its name."""
    done = digits.run("--steps=9", "--save=ck", "--save-every=3", env=fault(faults, "write", 1, "flip", path=file))
    assert re.search(rf"checkpoint of step 3 could not be written .*{file}.* bytes \d+ to \d+ are not what was written", done.stderr)
    assert checkpoints(tmp_path / "ck") == [6, 9]
    check_all(digits)


def can_be_direct(folder):
    file = folder / "direct"
    try:
        os.close(os.open(file, os.O_CREAT | os.O_WRONLY | os.O_DIRECT))
    except OSError:
        return False
    finally:
        file.unlink(missing_ok=True)
    return True


@pytest.mark.parametrize("call, at, how", [("write", 1, 22), ("write", 1, "short"), ("pread", 1, "short")])
def test_a_disk_that_refuses_direct_access(digits, faults, tmp_path, call, at, how):
    """Or that takes a part of it, which is then no whole number of blocks: the rest goes through the cache."""
    if not can_be_direct(tmp_path):
        pytest.skip("the temporary folder's file system has no O_DIRECT")
    digits.run("--steps=1", "--save=want")
    done = digits.run("--steps=1", "--save=ck", env=fault(faults, call, at, how, path="shard-"))
    assert done.stderr == "" and checkpoints(tmp_path / "ck") == [1]
    name = "step-00000001/shard-00000-00000.safetensors"
    assert (tmp_path / "ck" / name).read_bytes() == (tmp_path / "want" / name).read_bytes()


@pytest.mark.parametrize("call, how, says", DISK)
def test_three_failures_in_a_row_end_training(digits, faults, call, how, says, tmp_path):
    digits.run("--steps=3", "--save=ck")
    kept = (tmp_path / "ck/step-00000003/manifest.json").read_bytes()
    done = digits.run("--steps=90", "--save=ck", "--save-every=3", "--resume=auto", exit=7,
                      env=fault(faults, call, 1, how, times=10**6))
    assert done.stderr.count("warning") == 2
    assert re.search(r"gradc: error: 3 checkpoints in a row .* of step 12: ", done.stderr)
    assert says in done.stderr
    assert checkpoints(tmp_path / "ck") == [3] and temporaries(tmp_path / "ck") == []
    assert (tmp_path / "ck/step-00000003/manifest.json").read_bytes() == kept
    digits.run("--steps=4", "--save=ck", "--resume=auto")


def test_the_last_save_is_tried_again(digits, faults, tmp_path):
    done = digits.run("--steps=3", "--save=ck", env=fault(faults, "fsync", 1, 5, times=1))
    assert done.stderr.count("warning") == 1 and checkpoints(tmp_path / "ck") == [3]
    digits.run("--steps=3", "--save=ck2", exit=7, env=fault(faults, "fsync", 1, 5, times=100))


def test_a_full_disk(digits, tmp_path):
    """A limit on the size of files, as a disk has: the log and the training do not need it."""
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000))

    done = subprocess.run(digits.command("--steps=9", "--save=ck", "--save-every=4", "--log=run.jsonl"),
                          cwd=tmp_path, capture_output=True, text=True, preexec_fn=limit)
    assert done.returncode == 7 and done.stderr.count("warning: the checkpoint") == 2
    assert "File too large" in done.stderr
    assert len(steps_of(tmp_path / "run.jsonl")) == 9
    assert checkpoints(tmp_path / "ck") == [] and temporaries(tmp_path / "ck") == []


def test_a_folder_that_is_a_file(digits, tmp_path):
    (tmp_path / "ck").write_text("mine")
    done = digits.run("--steps=2", "--save=ck", exit=5)
    assert "not a directory" in done.stderr.lower() and (tmp_path / "ck").read_text() == "mine"


def test_one_run_saves_in_a_folder(digits, tmp_path):
    process = digits.start("--steps=1000000000", "--save=ck", "--save-every=50", "--keep=1")
    wait_for(lambda: checkpoints(tmp_path / "ck"))
    done = digits.run("--steps=4", "--save=ck", exit=7)
    assert "ck: another run is saving there" in done.stderr
    process.kill()
    process.wait(60)
    digits.run("--steps=4", "--save=ck", "--resume=auto")


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.005)


def test_leftovers_go_and_nothing_else(digits, tmp_path):
    ck = tmp_path / "ck"
    for name in (".gradc-checkpoint-7-0.tmp", ".gradc-checkpoint-8-0.tmp", ".gradc-mine", "step-x"):
        (ck / name).mkdir(parents=True)
        (ck / name / "manifest.json").write_text("{")
    (ck / ".gradc-checkpoint-7-0.tmp/shard-00000-00000.safetensors").write_text("half")
    (ck / ".gradc-checkpoint-8-0.tmp/mine.txt").write_text("mine")
    digits.run("--steps=1", "--save=ck")
    assert sorted(p.name for p in ck.iterdir()) == [".gradc-checkpoint-8-0.tmp", ".gradc-mine",
                                                    "step-00000001", "step-x"]
    assert [p.name for p in (ck / ".gradc-checkpoint-8-0.tmp").iterdir()] == ["mine.txt"]
    assert (ck / ".gradc-mine/manifest.json").exists()


def test_what_somebody_put_there_is_never_moved(digits, tmp_path):
    """A folder that is called like a checkpoint, and a file beside one's own."""
    ck = tmp_path / "ck"
    (ck / "step-00000002/mine").mkdir(parents=True)
    (ck / "step-00000002/mine/notes.txt").write_text("mine")
    done = digits.run("--steps=4", "--save=ck", "--save-every=1", "--keep=2", exit=7)
    assert "step-00000002: not a checkpoint, but this run would save step" in done.stderr
    assert (ck / "step-00000002/mine/notes.txt").read_text() == "mine" and len(list(ck.iterdir())) == 1
    (ck / "step-00000002").rename(ck / "step-00000009")
    digits.run("--steps=4", "--save=ck", "--save-every=1", "--keep=2")
    assert (ck / "step-00000009/mine/notes.txt").read_text() == "mine"
    assert sorted(p.name for p in ck.iterdir()) == ["step-00000003", "step-00000004", "step-00000009"]
    (ck / "step-00000003/mine.txt").write_text("mine")
    digits.run("--steps=8", "--save=ck", "--save-every=1", "--keep=2", "--resume=auto")
    assert [p.name for p in (ck / "step-00000003").iterdir()] == ["mine.txt"]
    assert sorted(p.name for p in ck.iterdir()) == ["step-00000003", "step-00000007", "step-00000008", "step-00000009"]


ENDLESS = ["--steps=1000000000", "--log=run.jsonl"]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_saves_and_exits_75(digits, number, tmp_path):
    process = digits.start(*ENDLESS, "--save=ck", "--export=no.onnx")
    wait_for(lambda: (tmp_path / "run.jsonl").exists() and (tmp_path / "run.jsonl").stat().st_size)
    process.send_signal(number)
    assert process.wait(60) == 75, process.stderr.read()
    last = steps_of(tmp_path / "run.jsonl")[-1]["step"]
    assert checkpoints(tmp_path / "ck") == [last]
    assert not (tmp_path / "no.onnx").exists()
    want = digits.result(f"--steps={last + 5}", name="want")
    assert digits.result(f"--steps={last + 5}", "--save=ck", "--resume=auto", name="run") == want


def test_a_signal_without_save(digits, tmp_path):
    process = digits.start(*ENDLESS)
    wait_for(lambda: (tmp_path / "run.jsonl").exists() and (tmp_path / "run.jsonl").stat().st_size)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM


def test_a_hangup_that_is_ignored_stays_so(digits, tmp_path):
    """As under nohup."""
    process = digits.start(*ENDLESS, "--save=ck", hangup=signal.SIG_IGN)
    wait_for(lambda: (tmp_path / "run.jsonl").exists() and (tmp_path / "run.jsonl").stat().st_size)
    process.send_signal(signal.SIGHUP)
    time.sleep(0.2)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 75


def test_a_signal_while_saving(digits, faults, tmp_path):
    """Many saves: wherever it comes, the checkpoint of the last step is there."""
    for i in range(8):
        process = digits.start(*ENDLESS, "--save=ck", "--save-every=1", "--keep=2", "--resume=auto")
        before = checkpoints(tmp_path / "ck")
        wait_for(lambda: checkpoints(tmp_path / "ck")[-1:] > before[-1:])
        time.sleep(0.003 * i)
        process.send_signal(SIGNALS[i % 4])
        assert process.wait(60) == 75, process.stderr.read()
        last = checkpoints(tmp_path / "ck")[-1]
        assert steps_of(tmp_path / "run.jsonl")[-1]["step"] == last
        assert read_manifest(tmp_path / f"ck/step-{last:08d}")["step"] == last


def test_a_second_signal_leaves_at_once(digits, faults, tmp_path):
    """The disk hangs: the first signal waits for it, the second one does not."""
    process = subprocess.Popen(
        digits.command(*ENDLESS, "--save=ck", "--save-every=5"), cwd=tmp_path,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        env={**os.environ, **fault(faults, "fsync", 3, "hang")})
    wait_for(lambda: temporaries(tmp_path / "ck"))
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 128 + signal.SIGTERM
    digits.run("--steps=20", "--save=ck", "--resume=auto")
    assert temporaries(tmp_path / "ck") == []


def test_training_goes_on_while_a_disk_hangs(digits, faults, tmp_path):
    """Up to the next save: that waits for the one before."""
    process = subprocess.Popen(
        digits.command(*ENDLESS, "--save=ck", "--save-every=20"), cwd=tmp_path,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, **fault(faults, "fsync", 1, "hang")})
    try:
        wait_for(lambda: (tmp_path / "run.jsonl").exists() and
                 (tmp_path / "run.jsonl").read_text().count("\n") >= 40)
        time.sleep(0.2)
        assert len(steps_of(tmp_path / "run.jsonl")) == 40
    finally:
        process.kill()
        process.wait(60)
    assert checkpoints(tmp_path / "ck") == [] and len(temporaries(tmp_path / "ck")) == 1


def test_a_slow_disk_is_seen(digits, faults, tmp_path):
    """Training waits for the save before: log and warning say so, and the steps' own time has none of it."""
    slow = fault(faults, "fsync", 1, "slow", times=1000, path="ck")
    done = digits.run("--steps=100", "--save=ck", "--save-every=20", "--log=run.jsonl", env=slow)
    waited = re.search(r"warning: training waited ([0-9.]+) s of ([0-9.]+) s for checkpoints: 20 steps take "
                       r"([0-9.]+) ms, less than writing a checkpoint\n\thint: with --save-every=(\d+) it need not wait",
                       done.stderr)
    assert waited, done.stderr
    lines = {x["step"]: x for x in reference.log_lines(tmp_path / "run.jsonl")}
    waits = {step: x["save_ms"] for step, x in lines.items() if x["save_ms"] > 0}
    assert sorted(waits) == [21, 41, 61, 81]
    assert min(waits[s] for s in (41, 61, 81)) > statistics.median(x["step_ms"] for x in lines.values())
    assert float(waited[1]) == pytest.approx(sum(waits.values()) / 1e3, rel=0.01)
    assert int(waited[4]) > 100
    assert checkpoints(tmp_path / "ck") == [20, 40, 60, 80, 100]
    assert "waited" not in digits.run("--steps=100", "--save=fast", "--save-every=100").stderr
