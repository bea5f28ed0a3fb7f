"""Checkpoints that are damaged, foreign, newer or hostile: the cases K1 to K3. Each is exit 7 with one
line that names the file and, where there is one, the tensor; `--resume auto` warns and takes the one
before."""
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import time

import numpy as np
import onnx
import pytest
from checkpoints import (Trainer, checkpoints, copy, digits_data, read_manifest, read_shard, vouch_for,
                         write_manifest, write_shard)
from onnx import numpy_helper

SHARD = "shard-00000-00001.safetensors"  # of several


@pytest.fixture(scope="module")
def saved(gradc, models, tmp_path_factory):
    """A trainer with checkpoints of steps 3 and 6 in ck/."""
    folder = tmp_path_factory.mktemp("damage")
    subprocess.run([gradc, "compile", models / "mlp_digits/model.onnx", "-o", folder / "train",
                    "--batch=16"], check=True, capture_output=True)
    trainer = Trainer(folder / "train", digits_data(models), folder)
    trainer.run("--steps=6", "--save=ck", "--save-every=3", "--shard-bytes=40000")
    return trainer


@pytest.fixture
def damaged(saved):
    """damaged(how): that newest checkpoint after how(its folder) is refused; gives the message."""

    def check(how, resume="bad"):
        copy(saved.folder / "ck", saved.folder / "bad")
        how(saved.folder / "bad/step-00000006")
        started = time.monotonic()
        done = saved.run("--steps=7", f"--resume={resume}", exit=7)
        assert time.monotonic() - started < 5
        assert done.stdout == "" and done.stderr.count("gradc: error: ") == 1
        assert "resumed" not in done.stderr and len(done.stderr) < 1000
        line, = [x for x in done.stderr.splitlines() if "gradc: error: " in x]
        return line

    return check


def edit(**changes):
    def how(folder):
        write_manifest(folder, {**read_manifest(folder), **changes})
    return how


def edit_tensor(index, list_="tensors", **changes):
    def how(folder):
        manifest = read_manifest(folder)
        manifest[list_][index].update(changes)
        write_manifest(folder, manifest)
    return how


def edit_text(change):
    def how(folder):
        text = (folder / "manifest.json").read_text()
        write_manifest(folder, None, change(text[text.index('",') + 2:]))
    return how


def edit_shard(change):
    """change(header, data) gives those that are written, with a manifest that vouches for them."""
    def how(folder):
        header, data = read_shard(folder / SHARD)
        out = change(header, data)
        write_shard(folder / SHARD, *out) if isinstance(out, tuple) else write_shard(
            folder / SHARD, None, data, text=out)
        vouch_for(folder)
    return how


def truncate(name, n):
    def how(folder):
        raw = (folder / name).read_bytes()
        (folder / name).write_bytes(raw[:n])
    return how


def append(name, more=b"\0"):
    def how(folder):
        with open(folder / name, "ab") as f:
            f.write(more)
    return how


def replace(name, with_what):
    def how(folder):
        (folder / name).unlink()
        with_what(folder / name)
    return how


def shift(header, by, names=1):
    """The first tensors' places moved: a hole or an overlap."""
    header = json.loads(json.dumps(header))
    for name in sorted(header, key=lambda k: header[k]["data_offsets"])[names:]:
        header[name]["data_offsets"] = [x + by for x in header[name]["data_offsets"]]
    return header


def from_other_step(folder):
    shutil.copy(folder.parent / "step-00000003" / SHARD, folder / SHARD)


def swapped(folder):
    a, b = folder / "shard-00000-00000.safetensors", folder / SHARD
    a.rename(folder / "x")
    b.rename(a)
    (folder / "x").rename(b)


def renamed(header, data):
    """A tensor of another name in place of the one that belongs there."""
    first = next(iter(header))
    return {("other" if k == first else k): v for k, v in header.items()}, data


def reordered(folder):
    """The same tensors and the same size, in other bytes."""
    header, data = read_shard(folder / SHARD)
    raw = (folder / SHARD).read_bytes()
    n = int.from_bytes(raw[:8], "little")
    text = json.dumps({k: dict(reversed(v.items())) for k, v in header.items()}, separators=(",", ":"))
    write_shard(folder / SHARD, None, data, text=text.ljust(n))
    assert (folder / SHARD).stat().st_size == len(raw)


def retyped(header, data):
    first = next(k for k, v in header.items() if v.get("dtype") == "F32")
    header[first]["dtype"] = "I32"
    return header, data


def doubled(header, data):
    text = json.dumps(header)
    first = next(iter(header))
    return text[:-1] + "," + json.dumps(first) + ":" + json.dumps(header[first]) + "}"


K = [
    # K1: damage
    ("manifest missing", lambda f: (f / "manifest.json").unlink(), ["step-00000006", "manifest.json"]),
    ("manifest empty", truncate("manifest.json", 0), ["manifest.json", "damaged"]),
    ("manifest truncated", truncate("manifest.json", 700), ["manifest.json", "damaged"]),
    ("manifest with bytes behind it", append("manifest.json"), ["manifest.json", "damaged"]),
    ("manifest is a folder", replace("manifest.json", lambda p: p.mkdir()), ["manifest.json"]),
    ("manifest: a key twice", edit_text(lambda t: t.replace('"step": 6,', '"step": 6, "step": 6,')),
     ["manifest.json", "malformed", "step"]),
    ("manifest: a tensor twice", lambda f: edit(tensors=read_manifest(f)["tensors"] * 2)(f),
     ["manifest.json", '"0.weight" is there twice']),
    ("manifest: a tensor missing", lambda f: edit(tensors=read_manifest(f)["tensors"][1:])(f),
     ["manifest.json", '"0.weight" is missing']),
    ("manifest: a field missing", edit(samples=None), ["manifest.json", '"samples"']),
    ("manifest: a step below zero", edit(step=-1), ["manifest.json", '"step" is -1']),
    ("manifest: samples too large", edit(samples=2**62), ["manifest.json", '"samples"']),
    ("manifest: a shard outside of the folder",
     edit(shards=[{"file": "shard-../../x.safetensors", "bytes": 1, "header": "0" * 16}] * 3),
     ["manifest.json", "shard-../../x"]),
    ("manifest: no such shard", edit_tensor(0, shard=99), ["manifest.json", '"shard" is 99']),
    ("manifest: another checksum", edit_tensor(0, checksum="0" * 16), ["0.weight", "0" * 16]),
    ("manifest: no checksum", edit_tensor(0, checksum="x" * 16), ["manifest.json", '"checksum"']),
    ("manifest: rank 17", edit_tensor(0, shape=[1] * 17), ["manifest.json", '"0.weight"']),
    ("shard missing", lambda f: (f / SHARD).unlink(), [SHARD, "No such file", 'tensor "']),
    ("shard empty", truncate(SHARD, 0), [SHARD, 'tensor "']),
    ("shard truncated", truncate(SHARD, 20000), [SHARD, 'tensor "']),
    ("shard with bytes behind it", append(SHARD), [SHARD, 'tensor "']),
    ("shard is a folder", replace(SHARD, lambda p: p.mkdir()), [SHARD, "not a regular file", 'tensor "']),
    ("shard of another step", from_other_step, [SHARD, "tensor"]),
    ("shards swapped", swapped, ["safetensors", "tensor"]),
    ("shard: another header of the same tensors", reordered, [SHARD, "header is damaged", 'tensor "']),
    ("shard: a hole", edit_shard(lambda h, d: (shift(h, 64), d + bytes(64))), [SHARD, "hole"]),
    ("shard: an overlap", edit_shard(lambda h, d: (shift(h, -4), d)), [SHARD, "overlap"]),
    ("shard: a key twice", edit_shard(doubled), [SHARD, "malformed"]),
    ("shard: another tensor", edit_shard(renamed), [SHARD, "is missing"]),
    ("shard: another type", edit_shard(retyped), [SHARD, "has another type"]),
    ("shard: a tensor more",
     edit_shard(lambda h, d: ({**h, "more": {"dtype": "U8", "shape": [1], "data_offsets": [
         len(d), len(d) + 1]}}, d + b"x")), [SHARD, "tensors, the manifest has"]),
    # K2: others
    ("a newer format", edit(version=3), ["manifest.json", "format version 3", "newer gradc"]),
    ("another format", edit(format="torch"), ["manifest.json", "not a manifest"]),
    ("another model", edit(model="0" * 16), ["manifest.json", "another model"]),
    ("another tensor", edit_tensor(0, name="conv.weight"), ["manifest.json", '"conv.weight"']),
    ("another dtype", edit_tensor(0, dtype="f64"), ["manifest.json", '"0.weight" is f64[128,64]']),
    ("an unknown dtype", edit_tensor(0, dtype="f99"), ["manifest.json", '"f99"']),
    ("another shape", edit_tensor(0, shape=[64, 128]), ["manifest.json", "f32[64,128]", "f32[128,64]"]),
    ("no ranks", edit(world=0), ["manifest.json", '"world" is 0']),
    ("10^9 ranks", edit(world=10**9), ["manifest.json", '"world" is 1000000000']),
    # K3: hostile sizes
    ("10^7 tensors", edit_text(lambda t: t.replace('"tensors": [', '"tensors": [' + "{}," * 10**7)),
     ["manifest.json", "more than"]),
    ("nested 10^5", edit_text(lambda t: t.replace('"step": 6', '"step": ' + "[" * 10**5)),
     ["manifest.json", "malformed"]),
    ("1 GiB of manifest", lambda f: open(f / "manifest.json", "r+b").truncate(2**30),
     ["manifest.json", "bytes"]),
    ("1 GiB of shard header", lambda f: open(f / SHARD, "r+b").write((2**30).to_bytes(8, "little")),
     [SHARD, "tensor"]),
    ("a shape of 2^64", edit_tensor(0, shape=[2**40, 2**40]), ["manifest.json", '"0.weight"']),
]


@pytest.mark.parametrize("how, says", [k[1:] for k in K], ids=[k[0] for k in K])
def test_refused(saved, damaged, how, says):
    line = damaged(how)
    for text in says:
        assert text in line
    # `auto` falls back to step 3, says so, and ends where an undisturbed run ends; what somebody else put there stays.
    if any(text in line for text in ("not a regular file", "its fingerprint")):
        taken = saved.run("--steps=6", "--save=bad", "--resume=auto", exit=7).stderr
        assert "bad/step-00000006: " in taken and "move it away" in taken
        (saved.folder / "bad/step-00000006").rename(saved.folder / "bad/away")
        done = saved.run("--steps=6", "--save=bad", "--resume=auto", "--export=bad.onnx")
        assert "resumed from bad/step-00000003: step 3" in done.stderr
        return
    done = saved.run("--steps=6", "--save=bad", "--resume=auto", "--export=bad.onnx")
    assert "left out" in done.stderr and "resumed from bad/step-00000003: step 3" in done.stderr
    saved.run("--steps=6", "--export=good.onnx")
    assert (saved.folder / "bad.onnx").read_bytes() == (saved.folder / "good.onnx").read_bytes()


def test_bytes_of_the_headers_count(saved, tmp_path):
    """Every 29th byte of the manifest and of the shards' headers, one bit flipped."""
    good = saved.folder / "ck/step-00000006"
    bad = copy(good, saved.folder / "flipped/step-00000006")
    for file in sorted(good.iterdir()):
        raw = bytearray(file.read_bytes())
        n = len(raw) if file.suffix == ".json" else 8 + int.from_bytes(raw[:8], "little")
        for at in range(0, n, 1 if n < 100 else 7 if os.environ.get("GRADC_THOROUGH") else 29):
            raw[at] ^= 1 << at % 8
            (bad / file.name).write_bytes(raw)
            raw[at] ^= 1 << at % 8
            done = subprocess.run([saved.exe, "--steps=0", "--resume=flipped/step-00000006"],
                                  cwd=saved.folder, capture_output=True, text=True)
            assert done.returncode == 7 and file.name in done.stderr, f"{file.name}, byte {at}"
        (bad / file.name).write_bytes(raw)
    subprocess.run([saved.exe, "--steps=0", "--resume=flipped/step-00000006"], cwd=saved.folder,
                   check=True, capture_output=True)


def test_every_flipped_bit_of_a_tensor_is_found_and_named(saved):
    """200 random ones; the message names the tensor in which it lies."""
    rng = random.Random(0)
    bad = copy(saved.folder / "ck/step-00000006", saved.folder / "flipped/step-00000006")
    for _ in range(200):
        file = rng.choice(sorted(bad.glob("shard-*")))
        raw = bytearray(file.read_bytes())
        header, _ = read_shard(file)
        start = 8 + int.from_bytes(raw[:8], "little")
        at = rng.randrange(start, len(raw))
        name, = [n for n, t in header.items()
                 if t["data_offsets"][0] <= at - start < t["data_offsets"][1]]
        raw[at] ^= 1 << rng.randrange(8)
        file.write_bytes(raw)
        done = subprocess.run([saved.exe, "--steps=0", "--resume=flipped/step-00000006"],
                              cwd=saved.folder, capture_output=True, text=True)
        raw_again = (saved.folder / "ck/step-00000006" / file.name).read_bytes()
        file.write_bytes(raw_again)
        assert done.returncode == 7
        assert f'{file.name}: tensor "{name}" is damaged' in done.stderr


def test_truncated_anywhere(saved):
    rng = random.Random(1)
    good = saved.folder / "ck/step-00000006"
    bad = copy(good, saved.folder / "cut/step-00000006")
    for _ in range(100):
        file = rng.choice(sorted(good.iterdir()))
        raw = file.read_bytes()
        (bad / file.name).write_bytes(raw[:rng.randrange(len(raw))])
        done = subprocess.run([saved.exe, "--steps=0", "--resume=cut"], cwd=saved.folder,
                              capture_output=True, text=True)
        (bad / file.name).write_bytes(raw)
        assert done.returncode == 7 and file.name in done.stderr


@pytest.mark.parametrize("name, options", [("mlp_digits", ["--batch=16", "--optimizer=sgd"]),
                                           ("mlp_digits", ["--batch=16", "--precision=f64"]),
                                           ("mlp_digits", ["--batch=16", "--freeze=0.*"]),
                                           ("cnn_mnist", ["--dim=batch=4"])])
def test_checkpoints_of_other_executables(saved, run, models, tmp_path, name, options):
    exe = tmp_path / "other"
    run("compile", models / name / "model.onnx", "-o", exe, *options)
    done = run(exe, "--steps=0", "--resume", saved.folder / "ck", exit=7)
    assert "another model" in done.stderr and "step-00000006/manifest.json" in done.stderr


def test_nothing_to_resume(saved, tmp_path):
    for path in (tmp_path, tmp_path / "missing", saved.folder / "train"):
        done = saved.run("--steps=7", f"--resume={path}", exit=7)
        assert str(path) in done.stderr


def test_auto_starts_fresh_when_none_verifies(saved):
    bad = copy(saved.folder / "ck", saved.folder / "none")
    for step in checkpoints(bad):
        append(SHARD)(bad / f"step-{step:08d}")
    done = saved.run("--steps=2", "--save=none", "--resume=auto", "--export=fresh.onnx")
    assert done.stderr.count("left out") == 2 and "training starts fresh" in done.stderr
    saved.run("--steps=2", "--export=want.onnx")
    assert (saved.folder / "fresh.onnx").read_bytes() == (saved.folder / "want.onnx").read_bytes()


@pytest.mark.skipif("GRADC_SANITIZED" in os.environ, reason="sanitizers need address space")
def test_hostile_sizes_need_no_memory(saved):
    """K3 within an address space that holds the model and little more."""
    bad = copy(saved.folder / "ck/step-00000006", saved.folder / "huge/step-00000006")
    edit(shards=[{"file": SHARD, "bytes": 2**60, "header": "0" * 16}] * 20)(bad)
    with open(bad / SHARD, "r+b") as f:
        f.truncate(2**40)
    done = subprocess.run([saved.exe, "--steps=0", "--resume=huge"], cwd=saved.folder,
                          capture_output=True, text=True,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2**29, 2**29)))
    assert done.returncode == 7 and "safetensors" in done.stderr


def test_tensors_are_what_numpy_reads(saved):
    """The format is plain safetensors: a shard's tensors are all finite, and of the manifest's shapes."""
    from checkpoints import tensors
    found = tensors(saved.folder / "ck/step-00000006")
    for entry in read_manifest(saved.folder / "ck/step-00000006")["tensors"]:
        assert list(found[entry["name"]].shape) == entry["shape"]
        assert np.isfinite(found[entry["name"]]).all()


# ---- what this run cannot go on from is neither replaced nor removed

def kept(folder):
    """Every file of the checkpoints."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.glob("step-*/*")}


@pytest.fixture(scope="module")
def frozen(gradc, models, tmp_path_factory):
    """Two trainers of one model whose frozen tensor has other numbers."""
    folder = tmp_path_factory.mktemp("frozen")
    model = onnx.load(models / "mlp_digits/model.onnx")
    trainers = []
    for name in "one", "two":
        for t in model.graph.initializer:
            if t.name == "0.weight":
                t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(t) * 1.5, t.name))
        onnx.save(model, folder / f"{name}.onnx")
        subprocess.run([gradc, "compile", folder / f"{name}.onnx", "-o", folder / name, "--batch=16", "--freeze=0.weight"],
                       check=True, capture_output=True)
        trainers.append(Trainer(folder / name, digits_data(models), folder))
    trainers[0].run("--steps=6", "--save=ck", "--save-every=3")
    return trainers


@pytest.mark.parametrize("steps", [6, 100], ids=["same names", "other names"])
def test_auto_does_not_begin_beside_another_training(frozen, steps):
    _, two = frozen
    before = kept(two.folder / "ck")
    said = two.run(f"--steps={steps}", "--save=ck", "--save-every=3", "--keep=1", "--resume=auto", exit=7).stderr
    assert said.count('frozen tensor "0.weight" has other values') == 2
    assert "--resume=auto: ck has checkpoints, and none that this run can go on from" in said
    assert kept(two.folder / "ck") == before


@pytest.mark.parametrize("how", ["newer", "model"])
def test_auto_does_not_begin_beside_what_it_cannot_read(saved, how):
    folder = copy(saved.folder / "ck", saved.folder / "foreign")
    for step in 3, 6:
        edit(**{"newer": {"version": 99}, "model": {"model": "0" * 16}}[how])(folder / f"step-{step:08d}")
    before = kept(folder)
    said = saved.run("--steps=100", "--save=foreign", "--save-every=3", "--keep=1", "--resume=auto", exit=7).stderr
    assert "none that this run can go on from" in said and said.count("left out") == 2 and kept(folder) == before


def test_frozen_values_tell_trainings_apart_without_resuming(frozen):
    one, two = frozen
    before = kept(two.folder / "ck")
    said = two.run("--steps=6", "--save=ck", exit=7).stderr
    assert "ck/step-00000006: a checkpoint with other frozen values, but this run would save step 6 under this name" in said
    assert kept(two.folder / "ck") == before
    copy(two.folder / "ck", two.folder / "mine")
    assert "2 checkpoints of another training" in one.run("--steps=6", "--save=mine", "--save-every=3", "--lr=0.1").stderr


def test_an_unforeseen_step_is_saved_beside_another_training(frozen):
    """A signal comes at any step."""
    _, two = frozen
    folder = copy(two.folder / "ck", two.folder / "all")
    for step in range(1, 2000):
        if step % 3 or step > 6:
            shutil.copytree(folder / "step-00000003", folder / f"step-{step:08d}", copy_function=os.link)
    before = kept(folder)
    process = two.start("--steps=1000000", "--save=all", "--progress=plain")
    for line in process.stderr:
        if "step 1/" in line:
            process.send_signal(signal.SIGTERM)
            break
    said = process.stderr.read()
    assert process.wait(60) == 75 and "by a checkpoint that this run cannot continue from" in said
    saved_at, = folder.glob("step-0????????")
    assert (saved_at / "manifest.json").exists()
    after = kept(folder)
    assert {k: v for k, v in after.items() if not k.startswith(saved_at.name)} == before


@pytest.mark.parametrize("how", [append(SHARD), truncate("manifest.json", 100)], ids=["shard", "manifest"])
def test_a_damaged_checkpoint_is_none_of_those_kept(saved, how):
    """The one before it is not the one too many, and the damaged one stays."""
    folder = copy(saved.folder / "ck", saved.folder / "few")
    how(folder / "step-00000006")
    before = kept(folder)
    go_on = ["--save=few", "--keep=1", "--resume=auto", "--shard-bytes=40000"]
    assert "resumed from few/step-00000003" in saved.run("--steps=3", *go_on).stderr and kept(folder) == before
    saved.run("--steps=6", *go_on)
    assert sorted(p.name for p in folder.glob("step-*")) == ["step-000000006", "step-00000006"]
    assert {k: v for k, v in kept(folder).items() if k.startswith("step-00000006/")} == {
        k: v for k, v in before.items() if k.startswith("step-00000006/")}


def test_a_named_checkpoint_is_there_until_a_newer_one_is(saved):
    """Whether those behind it are sound nobody has looked."""
    folder = copy(saved.folder / "ck", saved.folder / "named")
    before = kept(folder)
    saved.run("--steps=3", "--save=named", "--keep=1", "--resume=named/step-00000003")
    assert kept(folder) == before
