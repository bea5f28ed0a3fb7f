"""Checkpoints of ranks that hold parts of states: each writes its own shards, any mode and number of ranks reads them, and no
fault of one rank costs more than the checkpoint that is being written."""
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(Path(__file__).parent), str(TESTS / "train")]
from checkpoints import (build_faults, checkpoints, copy, fault, pieces_of, read_manifest, read_shard, temporaries,  # noqa: E402
                         tensors, vouch_for, write_manifest, write_shard)
from test_ranks import LAUNCHERS, errors_of, launch, losses, openmpi, script_of  # noqa: E402, F401  fixtures
from test_shard import regions, shard_executable  # noqa: E402

MODES = ["zero1", "zero2", "zero3"]
KILLS = int(os.environ.get("GRADC_KILLS", "4"))


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    return build_faults(tmp_path_factory.mktemp("faults"))


class Ranks:
    """An executable with its data. run(RANKS, OPTION...) gives the finished process; exit codes are checked."""

    def __init__(self, executable, folder, launcher):
        self.exe, self.data = executable
        self.folder, self.launcher = folder, launcher

    def run(self, ranks, *options, exit=0, env=None, rank=None):
        """rank: the one that has env; None: all have. Later options of a name take the place of earlier ones."""
        last = {str(o).split("=")[0]: o for o in options}
        command = [self.exe, *self.data, "--progress=off", "--threads=1",
                   *[o for o in options if not str(o).startswith("--") or last[str(o).split("=")[0]] is o or "data=" in str(o)]]
        if rank is not None:
            for_one = "; ".join(f"export {k}='{v}'" for k, v in env.items())
            command[0] = script_of(self.folder, f'if [ "$rank" = {rank} ]; then {for_one}; fi; exec {self.exe} "$@"')
            env = None
        command = self.launcher(ranks, *command) if ranks > 1 else [str(c) for c in command]
        done = subprocess.run(command, cwd=self.folder, text=True, capture_output=True, timeout=120, env={**os.environ, **(env or {})})
        assert exit is None or done.returncode == exit, f"exit {done.returncode}: {command}\n{done.stdout}\n{done.stderr}"
        return done

    def losses(self, ranks, *options, name, **more):
        self.run(ranks, *options, "--log", self.folder / f"{name}.jsonl", **more)
        return losses(self.folder / f"{name}.jsonl")

    def state(self, checkpoint, ranks=1, mode="ddp", accumulate=12):
        """Tensors of a checkpoint, read and written again by ranks that do not train."""
        step = int(Path(checkpoint).name[5:])
        subprocess.run(["rm", "-rf", self.folder / "again"], check=True)
        self.run(ranks, f"--resume={checkpoint}", f"--data-parallel={mode}", "--save=again", f"--steps={step}", f"--accumulate={accumulate}")
        return tensors(self.folder / "again" / Path(checkpoint).name)


def on_openmpi():
    """For fixtures of the module, as `openmpi` is for tests."""
    command = LAUNCHERS["openmpi"]
    if not shutil.which(command[0]):
        pytest.skip(f"{command[0]} is not installed")
    return lambda ranks, *arguments: [*command, "-n", str(ranks), *map(str, arguments)]


def same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype and a[name].tobytes() == b[name].tobytes(), name


@pytest.fixture(scope="module")
def gpt2_executable(gradc, models, tmp_path_factory):
    return shard_executable(gradc, models, tmp_path_factory.mktemp("gpt2"), "gpt2_mini", batch=1)


@pytest.fixture(scope="module")
def digits_executable(gradc, models, tmp_path_factory):
    return shard_executable(gradc, models, tmp_path_factory.mktemp("digits"), "mlp_digits")


@pytest.fixture
def gpt2(gpt2_executable, openmpi, tmp_path):  # noqa: F811
    return Ranks(gpt2_executable, tmp_path, openmpi)


@pytest.fixture
def digits(digits_executable, openmpi, tmp_path):  # noqa: F811
    return Ranks(digits_executable, tmp_path, openmpi)


# ---- what is written, and by whom

def test_a_training_moves_between_modes_and_worlds(gpt2, tmp_path):
    """12 micro-batches a step, whoever computes them. Each reads what the one before wrote, to the bit."""
    alone = gpt2.losses(1, "--steps=6", "--accumulate=12", "--data-parallel=ddp", name="alone")
    got = []
    for steps, ranks, each, mode in [(2, 4, 3, "zero3"), (4, 1, 12, "ddp"), (6, 3, 4, "zero2")]:
        if got:
            before = tmp_path / f"ck/step-{steps - 2:08d}"
            same(tensors(before), gpt2.state(before, ranks, mode, each))
        got += gpt2.losses(ranks, f"--steps={steps}", f"--accumulate={each}", f"--data-parallel={mode}", "--save=ck", "--resume=auto",
                           name=mode)
    assert got == pytest.approx(alone, rel=1e-6)
    assert checkpoints(tmp_path / "ck") == [2, 4, 6] and temporaries(tmp_path / "ck") == []


@pytest.mark.parametrize("mode, device", [("zero1", "cpu"), ("zero2", "async"), ("zero3", "cpu"), ("zero3", "async")])
def test_each_mode_reads_each(gpt2, tmp_path, mode, device):
    """And small shards: a tensor of one rank, and one of several, in files of a few tensors."""
    gpt2.run(4, "--steps=1", f"--data-parallel={mode}", f"--device={device}", "--save=ck", "--shard-bytes=100000")
    saved = tmp_path / "ck/step-00000001"
    want = tensors(saved)
    assert all(np.isfinite(x).all() for x in want.values())
    for ranks, other in [(1, "ddp"), (2, "ddp"), (1, "zero3"), (3, "zero1"), (2, "zero2"), (4, "zero3")]:
        same(want, gpt2.state(saved, ranks, other, 12 // ranks))


@pytest.mark.parametrize("mode", MODES)
def test_each_rank_writes_what_it_holds(gpt2, tmp_path, mode):
    gpt2.run(4, "--steps=1", f"--data-parallel={mode}", "--save=ck", "--shard-bytes=100000")
    manifest = read_manifest(tmp_path / "ck/step-00000001")
    files = [s["file"] for s in manifest["shards"]]
    assert (manifest["version"], manifest["world"]) == (2, 4)
    assert sorted(files) == sorted(p.name for p in (tmp_path / "ck/step-00000001").glob("shard-*"))
    of_rank = [[f for f in files if f.startswith(f"shard-{r:05d}-")] for r in range(4)]
    assert all(len(names) >= 2 for names in of_rank) and sum(map(len, of_rank)) == len(files)
    divided = [t for t in manifest["tensors"] if "pieces" in t]
    assert divided and not any("shard" in t or "checksum" in t for t in divided)
    for tensor in manifest["tensors"]:
        end = 0
        for piece in pieces_of(tensor):
            assert piece["first"] == end
            end += piece["count"]
        assert end == np.prod(tensor["shape"])
    for tensor in divided:
        ranks = [int(files[p["shard"]][6:11]) for p in tensor["pieces"]]
        assert ranks == sorted(set(ranks)) and len(ranks) > 1
    sizes = [sum((tmp_path / "ck/step-00000001" / f).stat().st_size for f in names) for names in of_rank]
    if mode == "zero3":
        assert max(sizes) < 0.5 * sum(sizes)


def test_what_ranks_hold_alike_is_rank_0s(gpt2, tmp_path):
    """As one process writes it."""
    for name, ranks, mode in [("one", 1, "zero3"), ("ddp", 2, "ddp")]:
        gpt2.run(ranks, "--steps=1", f"--data-parallel={mode}", f"--save={name}", f"--accumulate={2 // ranks}")
        manifest = read_manifest(tmp_path / name / "step-00000001")
        assert manifest["version"] == 1 and not any("pieces" in t for t in manifest["tensors"])
        assert [s["file"] for s in manifest["shards"]] == ["shard-00000-00000.safetensors"]
    same(tensors(tmp_path / "one/step-00000001"), tensors(tmp_path / "ddp/step-00000001"))


def test_a_snapshot_is_as_large_as_what_a_rank_holds(gpt2):
    sizes = {n: regions(gpt2.run(n, "--steps=1", "--data-parallel=zero3", "--save=ck"))["snapshot"] for n in (1, 4)}
    assert sizes[4] < 0.4 * sizes[1]


def test_keep_and_keep_best(digits, models, tmp_path):
    folder = models / "mlp_digits"
    evaluation = [f"--eval-data=input={folder}/eval_input.npy", f"--eval-data=labels={folder}/eval_labels.npy"]
    options = ["--data-parallel=zero3", "--save-every=2", "--save=ck"]
    digits.run(2, *options, "--steps=8", "--keep=2")
    assert checkpoints(tmp_path / "ck") == [6, 8]
    digits.run(2, *options, "--steps=12", "--keep=1", "--keep-best", "--resume=auto", *evaluation)
    kept = checkpoints(tmp_path / "ck")
    assert 12 in kept and len(kept) <= 2 and temporaries(tmp_path / "ck") == []


def test_a_name_comes_after_what_all_ranks_wrote(digits, faults, tmp_path):
    """What a power cut leaves is what was synced: every byte and name of all ranks' shards before the checkpoint's own name."""
    log, unsynced, named = tmp_path / "calls", set(), 0
    digits.run(3, "--data-parallel=zero3", "--steps=4", "--save-every=2", "--save=counted", "--shard-bytes=20000",
               env=fault(faults, "any", 0, "", path="counted", log=log))
    for line in log.read_text().splitlines():
        what, at = line.split(" ", 1)
        path = tmp_path / at
        if what == "fsync":
            unsynced.discard(path)
        elif what == "write":
            unsynced.add(path)
        elif what in ("open", "mkdir"):
            unsynced |= {path, path.parent}
        elif what == "rename":
            assert not [x for x in unsynced if x == path or x.parent == path], path
            named += 1
    assert named == 2


# ---- damage: a line that names the file and what of the tensor lies there

@pytest.fixture(scope="module")
def saved(gpt2_executable, tmp_path_factory):
    """ck/ with steps 1 and 2 of 4 ranks, zero3."""
    folder = tmp_path_factory.mktemp("saved")
    Ranks(gpt2_executable, folder, on_openmpi()).run(4, "--data-parallel=zero3", "--steps=2", "--save=ck", "--save-every=1")
    return folder / "ck"


def edit_pieces(change):
    """change(pieces) of the first tensor that has several gives those that are written."""
    def how(folder):
        manifest = read_manifest(folder)
        tensor = next(t for t in manifest["tensors"] if "pieces" in t)
        tensor["pieces"] = change(tensor["pieces"])
        write_manifest(folder, manifest)
    return how


def edit_piece(index, **changes):
    def change(pieces):
        pieces[index] = {**pieces[index], **{k: v(pieces[index][k]) if callable(v) else v for k, v in changes.items()}}
        return pieces
    return edit_pieces(change)


def edit_tensor(**changes):
    def how(folder):
        manifest = read_manifest(folder)
        next(t for t in manifest["tensors"] if "pieces" in t).update(changes)
        write_manifest(folder, manifest)
    return how


def in_one_shard(folder):
    """Two pieces where there is one tensor of their name."""
    manifest = read_manifest(folder)
    pieces = next(t for t in manifest["tensors"] if len(t.get("pieces", [])) > 1)["pieces"]
    pieces[1]["shard"] = pieces[0]["shard"]
    write_manifest(folder, manifest)


def shape_of_a_whole(folder):
    """A piece that the shard says is a matrix."""
    manifest = read_manifest(folder)
    tensor = next(t for t in manifest["tensors"] if "pieces" in t)
    path = folder / manifest["shards"][tensor["pieces"][0]["shard"]]["file"]
    header, data = read_shard(path)
    header[tensor["name"]]["shape"] = [1, *header[tensor["name"]]["shape"]]
    write_shard(path, header, data)
    vouch_for(folder)


def flipped(file):
    def how(folder):
        raw = bytearray((folder / file).read_bytes())
        raw[-1] ^= 1
        (folder / file).write_bytes(raw)
    return how


def one_shard_more(folder):
    manifest = read_manifest(folder)
    manifest["shards"].append(manifest["shards"][1])
    write_manifest(folder, manifest)


DAMAGE = [
    ("a bit of a piece", flipped("shard-00001-00000.safetensors"), ["shard-00001-00000.safetensors", 'tensor "', "is damaged"]),
    ("a shard missing", lambda f: (f / "shard-00002-00000.safetensors").unlink(), ["shard-00002-00000", "No such file", 'tensor "']),
    ("shards exchanged", lambda f: ((f / "shard-00001-00000.safetensors").rename(f / "x"),
                                    (f / "shard-00002-00000.safetensors").rename(f / "shard-00001-00000.safetensors"),
                                    (f / "x").rename(f / "shard-00002-00000.safetensors")), ["safetensors", 'tensor "']),
    ("a hole", edit_piece(1, first=lambda n: n + 1), ["manifest.json", "piece 1 begins at element", "not at"]),
    ("an overlap", edit_piece(1, first=lambda n: n - 1), ["manifest.json", "piece 1 begins at element", "not at"]),
    ("a piece missing", edit_pieces(lambda p: p[1:]), ["manifest.json", 'tensor "']),
    ("the last piece missing", edit_pieces(lambda p: p[:1] + [{**p[1], "count": 1}]), ["manifest.json", 'its pieces have']),
    ("a piece twice", edit_pieces(lambda p: [p[0], *p]), ["manifest.json", "piece 1 begins at element 0"]),
    ("pieces in another order", edit_pieces(lambda p: p[::-1]), ["manifest.json", "piece 0 begins at element"]),
    ("a piece too long", edit_pieces(lambda p: [*p[:-1], {**p[-1], "count": p[-1]["count"] + 1}]), ["manifest.json", "are left"]),
    ("a piece of none", edit_piece(0, count=0), ["manifest.json", '"count" is 0']),
    ("a piece of 2^62", edit_piece(0, count=2**62), ["manifest.json", '"count" is 4611686018427387904']),
    ("a first below 0", edit_piece(0, first=-1), ["manifest.json", '"first" is -1']),
    ("no such shard", edit_piece(0, shard=99), ["manifest.json", '"shard" is 99']),
    ("another checksum", edit_piece(1, checksum="0" * 16), ["safetensors", "elements [", "0" * 16]),
    ("no checksum", edit_piece(1, checksum=None), ["manifest.json", '"checksum"']),
    ("one piece", edit_pieces(lambda p: [{**p[0], "count": sum(x["count"] for x in p)}]), ["manifest.json", "not a list of two or more"]),
    ("pieces are a number", edit_tensor(pieces=3), ["manifest.json", "not a list of two or more"]),
    ("a piece is a number", edit_pieces(lambda p: [7, *p]), ["manifest.json", '"shard"']),
    ("a shard and pieces", edit_tensor(shard=0), ["manifest.json", 'has a "shard" and "pieces"']),
    ("two pieces in a shard", in_one_shard, ["safetensors", "has another type"]),
    ("a piece of another shape", shape_of_a_whole, ["shard-0000", "elements [", "has another type"]),
    ("a shard of no tensor", one_shard_more, ["shard-00001-00000", "the manifest has 0 of this file"]),
    ("a newer format", lambda f: write_manifest(f, {**read_manifest(f), "version": 3}), ["manifest.json", "format version 3", "newer gradc"]),
]


@pytest.mark.parametrize("how, says", [d[1:] for d in DAMAGE], ids=[d[0] for d in DAMAGE])
def test_damage_is_refused(gpt2, saved, tmp_path, how, says):
    """By one rank that holds all, with one line; `auto` takes the checkpoint before it."""
    copy(saved, tmp_path / "ck")
    how(tmp_path / "ck/step-00000002")
    done = gpt2.run(1, "--steps=3", "--resume=ck/step-00000002", exit=7)
    line, = errors_of(done)
    assert len(line) < 1000 and "resumed" not in done.stderr
    for text in ["step-00000002", *says]:
        assert text in line
    done = gpt2.run(1, "--steps=2", "--resume=auto", "--save=ck")
    assert "left out" in done.stderr and "resumed from ck/step-00000001: step 1" in done.stderr


@pytest.mark.parametrize("victim", range(4))
def test_damage_is_found_by_ranks(gpt2, saved, tmp_path, victim):
    """Told once, whichever ranks would read the damaged piece."""
    copy(saved, tmp_path / "ck")
    flipped(f"shard-{victim:05d}-00000.safetensors")(tmp_path / "ck/step-00000002")
    done = gpt2.run(3, "--data-parallel=zero3", "--steps=3", "--resume=ck/step-00000002", exit=7)
    assert len(errors_of(done)) == 1 and f"shard-{victim:05d}-00000.safetensors" in errors_of(done)[0]
    done = gpt2.run(3, "--data-parallel=zero2", "--steps=3", "--resume=auto", "--save=ck")
    assert done.stderr.count("left out") == 1 and "resumed from ck/step-00000001" in done.stderr


@pytest.mark.parametrize("victim, file", [(0, "shard-00001"), (2, "shard-00003")])
def test_a_disk_that_one_rank_cannot_read(gpt2, saved, faults, tmp_path, victim, file):
    copy(saved, tmp_path / "ck")
    done = gpt2.run(3, "--data-parallel=zero3", "--steps=3", "--resume=ck/step-00000002", exit=7, rank=victim,
                    env=fault(faults, "pread", 1, 5, times=10**6, path=file))
    assert len(errors_of(done)) == 1 and "Input/output error" in errors_of(done)[0]


def test_a_rank_reads_what_it_holds(gpt2, saved, faults, tmp_path):
    """The last of 3 ranks: of 4 shards the first, for what is whole, and those that overlap its third."""
    copy(saved, tmp_path / "ck")
    gpt2.run(3, "--data-parallel=zero3", "--steps=2", "--resume=ck/step-00000002", rank=2,
             env=fault(faults, "pread", 0, "", path="shard-", log=tmp_path / "calls"))
    read = {Path(line.split(" ", 1)[1]).name[:11] for line in (tmp_path / "calls").read_text().splitlines()}
    assert read == {"shard-00000", "shard-00002", "shard-00003"}


# ---- faults of one rank's disk

TRAINING = ["--data-parallel=zero3", "--steps=9", "--save-every=3", "--save=ck", "--shard-bytes=50000"]


@pytest.mark.parametrize("what, how, says, rank", [("write", 28, "No space left on device", 2), ("fsync", 5, "Input/output error", 0),
                                                   ("open", 13, "Permission denied", 1), ("pread", 5, "Input/output error", 2),
                                                   ("write", "flip", "are not what was written", 1)])
def test_a_failed_save_is_a_warning(digits, faults, tmp_path, what, how, says, rank):
    """The second of three checkpoints fails, for one rank's disk; the training does not notice."""
    want = digits.losses(4, *TRAINING, name="want")
    subprocess.run(["rm", "-rf", tmp_path / "ck"], check=True)
    digits.run(4, *TRAINING, "--steps=3")
    done = digits.run(4, *TRAINING, "--resume=auto", "--log=got.jsonl", rank=rank, env=fault(faults, what, 1, how))
    got = losses(tmp_path / "got.jsonl")
    assert done.stderr.count("gradc: warning") == 1
    assert re.search(rf"the checkpoint of step 6 could not be written \(1 of 3 .*\): rank {rank}: .*shard-0000{rank}-.*{says}", done.stderr)
    assert checkpoints(tmp_path / "ck") == [3, 9] and temporaries(tmp_path / "ck") == []
    assert got == want[3:]


@pytest.mark.parametrize("what, path", [("rename", ".gradc-checkpoint"), ("write", "manifest"), ("mkdir", ".gradc-checkpoint")])
def test_a_manifest_that_cannot_be_written(digits, faults, tmp_path, what, path):
    done = digits.run(3, *TRAINING, rank=0, env=fault(faults, what, 1, 28, path=path))
    assert done.stderr.count("gradc: warning") == 1 and "the checkpoint of step 3 could not be written (1 of 3" in done.stderr
    assert checkpoints(tmp_path / "ck") == [6, 9] and temporaries(tmp_path / "ck") == []


def test_three_failures_in_a_row_end_training(launch, digits, faults, tmp_path):  # noqa: F811
    digits.launcher = launch
    digits.run(3, *TRAINING, "--steps=3")
    done = digits.run(3, *TRAINING, "--steps=90", "--resume=auto", exit=7, rank=1, env=fault(faults, "write", 1, 28, times=10**6))
    assert done.stderr.count("gradc: warning") == 2
    line, = errors_of(done)
    assert "3 checkpoints in a row could not be written, the last one of step 12: rank 1: " in line
    assert checkpoints(tmp_path / "ck") == [3] and temporaries(tmp_path / "ck") == []
    digits.run(3, *TRAINING, "--steps=4", "--resume=auto")


def test_a_slow_disk_of_one_rank_is_waited_for(digits, faults, tmp_path, monkeypatch):
    """Training goes on until the next save; then the others wait for that rank's disk, and one of them says so."""
    want = digits.losses(3, *TRAINING, name="want")
    subprocess.run(["rm", "-rf", tmp_path / "ck"], check=True)
    monkeypatch.setenv("GRADC_COMM_TIMEOUT", "1")
    done = digits.run(3, *TRAINING, "--log=slow.jsonl", rank=2, env={**fault(faults, "fsync", 1, "slow"), "FAULT_MS": "3500"})
    assert losses(tmp_path / "slow.jsonl") == want
    said = re.findall(r"warning: rank (\d): has waited (\d) s in all_gather \d+ of the control connections for (.*)", done.stderr)
    assert said and {what for *_, what in said} == {"rank 2 (saving a checkpoint), which answers"}, done.stderr
    assert "could not be written" not in done.stderr and checkpoints(tmp_path / "ck") == [3, 6, 9]


def test_a_hanging_disk_of_one_rank_holds_up_no_step(digits, faults, tmp_path):
    """While it hangs the others and itself train on: until the next save, which is far."""
    log = tmp_path / "log.jsonl"
    script = script_of(tmp_path, f'[ "$rank" = 1 ] && export LD_PRELOAD={faults}; exec {digits.exe} "$@"')
    command = digits.launcher(3, script, *digits.data, "--data-parallel=zero3", "--progress=off", "--threads=1", "--epochs=100000000",
                              "--save=ck", "--save-every=40", "--log", log)
    hang = {k: v for k, v in fault(faults, "fsync", 1, "hang").items() if k != "LD_PRELOAD"}
    process = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, **hang}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               start_new_session=True)
    try:
        end = time.monotonic() + 60
        while not (log.exists() and len(losses(log)) >= 79):
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.1)
    finally:
        os.killpg(process.pid, 9)
        process.wait(60)
    assert checkpoints(tmp_path / "ck") == []


def test_ranks_that_see_other_folders(digits, tmp_path):
    """As on machines without a shared file system: each rank's disk is fine, and there is no checkpoint."""
    (tmp_path / "elsewhere/ck").mkdir(parents=True)
    there = tmp_path / "elsewhere"
    digits.exe = script_of(tmp_path, f'[ "$rank" = 1 ] && cd {there}; exec {digits.exe} "$@"')
    done = digits.run(2, *TRAINING, exit=7)
    assert temporaries(tmp_path / "ck") == temporaries(there / "ck") == []
    assert "do all ranks see the same folder there?" in errors_of(done)[0]
    assert "shard-00001-00000.safetensors" in errors_of(done)[0] and checkpoints(tmp_path / "ck") == []


# ---- ends of a training while a checkpoint is under way

def test_a_signal_saves_on_all_ranks(launch, digits, tmp_path):  # noqa: F811
    log = tmp_path / "log.jsonl"
    script = script_of(tmp_path, f'[ "$rank" = 2 ] && echo $$ > {tmp_path}/pid; exec {digits.exe} "$@"')
    process = subprocess.Popen(launch(3, script, *digits.data, "--data-parallel=zero3", "--epochs=100000000", "--threads=1", "--save=ck",
                                      "--log", log, "--progress=off"), cwd=tmp_path, text=True, stderr=subprocess.PIPE, start_new_session=True)
    end = time.monotonic() + 60
    while not (log.exists() and len(losses(log)) > 3):
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.02)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGUSR1)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 75 and "saved in ck" in said
    assert checkpoints(tmp_path / "ck") == [len(losses(log))] and temporaries(tmp_path / "ck") == []
    digits.run(2, "--steps=0", "--resume=ck", "--data-parallel=zero1")


def test_a_step_that_fails_everywhere_loses_no_checkpoint(digits, faults, tmp_path):
    """All ranks come to that fault: they complete what they began, however slow a disk is."""
    done = digits.run(3, *TRAINING, "--save-every=1", "--lr=1e30", exit=8, rank=2, env={**fault(faults, "fsync", 1, "slow"), "FAULT_MS": "1500"})
    assert len(errors_of(done)) == 1 and "could not be written" not in done.stderr
    assert checkpoints(tmp_path / "ck") and temporaries(tmp_path / "ck") == []
    digits.run(1, "--steps=0", "--resume=ck")


@pytest.mark.parametrize("victim", [0, 1])
def test_a_fault_of_one_rank_waits_for_no_shard(digits, models, faults, tmp_path, victim):
    """Its data are damaged in a step after a save, and another's disk is slow: nobody waits for a rank that has left."""
    x = np.load(models / "mlp_digits/input.npy")
    rows = 4 * 2
    x[4 * rows + 4 * victim, 0] = np.nan
    np.save(tmp_path / "x.npy", x)
    digits.data = [f"--data=input={tmp_path}/x.npy", *digits.data[1:]]
    began = time.monotonic()
    done = digits.run(2, *TRAINING, "--shuffle=off", "--save-every=2", exit=6, rank=1 - victim,
                      env={**fault(faults, "fsync", 1, "slow", times=10**6), "FAULT_MS": "300"})
    assert time.monotonic() - began < 30
    assert len(errors_of(done)) == 1 and "is nan" in errors_of(done)[0]
    assert 2 in checkpoints(tmp_path / "ck")
    digits.data[0] = f"--data=input={models}/mlp_digits/input.npy"
    digits.run(2, *TRAINING, "--shuffle=off", "--save-every=2", "--resume=auto")
    assert temporaries(tmp_path / "ck") == []


# ---- kills

@pytest.fixture(scope="module")
def undisturbed(gpt2_executable, faults, tmp_path_factory):
    """(losses of a training on 4 ranks that saves; how many calls each rank makes for it)"""
    folder = tmp_path_factory.mktemp("undisturbed")
    ranks = Ranks(gpt2_executable, folder, on_openmpi())
    calls = []
    for rank in range(4):
        want = ranks.losses(4, *TRAINING, "--keep=2", name=f"want{rank}", rank=rank,
                            env=fault(faults, "any", 0, "", path="ck", log=folder / f"calls{rank}"))
        calls.append(len((folder / f"calls{rank}").read_text().splitlines()))
        subprocess.run(["rm", "-rf", folder / "ck"], check=True)
    return want, calls


@pytest.mark.parametrize("seed", range(KILLS))
def test_killed_while_saving(gpt2, faults, undisturbed, tmp_path, seed):
    """One of 4 ranks at a random call that writes a checkpoint. Whatever has a checkpoint's name is one, and who goes on from it
    has the losses of a training that nobody disturbed."""
    want, calls = undisturbed
    rng = random.Random(seed)
    rank = rng.randrange(4)
    at = rng.randint(1, calls[rank])
    done = gpt2.run(4, *TRAINING, "--keep=2", "--log=run.jsonl", exit=None, rank=rank, env=fault(faults, "any", at, "kill", path="ck"))
    print(f"rank {rank}, call {at} of {calls[rank]}: exit {done.returncode}, left {checkpoints(tmp_path / 'ck')}, "
          f"{temporaries(tmp_path / 'ck')}")
    assert done.returncode != 0
    for step in checkpoints(tmp_path / "ck"):
        gpt2.run(1, "--steps=0", f"--resume=ck/step-{step:08d}")
    gpt2.run(4, *TRAINING, "--keep=2", "--resume=auto", "--log=run.jsonl")
    assert losses(tmp_path / "run.jsonl") == want
    assert checkpoints(tmp_path / "ck") == [6, 9] and temporaries(tmp_path / "ck") == []
