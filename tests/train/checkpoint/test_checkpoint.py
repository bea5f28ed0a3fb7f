"""Checkpoints that work: what they hold, and that a resumed run continues with the same bits."""
import json
import shutil
import subprocess

import numpy as np
import pytest
import reference
from checkpoints import (Trainer, checkpoints, digits_data, read_manifest, steps_of, temporaries,
                         tensors, write_manifest)


@pytest.fixture(scope="module")
def executables(gradc, models, tmp_path_factory):
    """compile(model, *options): the executable, made once."""
    made = {}

    def compile_it(name, *options):
        if (name, options) not in made:
            made[name, options] = tmp_path_factory.mktemp("exe") / "train"
            subprocess.run([gradc, "compile", models / name / "model.onnx", "-o",
                            made[name, options], *options], check=True, capture_output=True)
        return made[name, options]

    return compile_it


@pytest.fixture
def digits(executables, models, tmp_path):
    """digits(*compile options): a trainer of mlp_digits, 16 rows a step unless --batch says more."""

    def make(*options):
        batch = [] if any(o.startswith("--batch") for o in options) else ["--batch=16"]
        return Trainer(executables("mlp_digits", *batch, *options), digits_data(models), tmp_path)

    return make


def data_of(models, name):
    known = reference.load(name)
    files = [(i["name"], i["file"]) for i in known["inputs"]] + [("labels", known["labels"]["file"])]
    return [word for n, file in files for word in ("--data", f"{n}={models}/{name}/{file}")]


RESUMED = [
    # model, compile options, train options
    ("mlp_digits", ["--batch=16"], ["--accumulate=3"]),
    ("mlp_digits", ["--batch=16", "--optimizer=momentum"], ["--keep-last", "--shuffle=off"]),
    ("mlp_digits", ["--batch=16", "--precision=f64", "--freeze=0.*"], ["--seed=4"]),
    ("mlp_digits", ["--batch=16", "--init=random"], ["--lr-schedule=cosine", "--warmup=3",
                                                     "--clip-norm=0.5"]),
    ("cnn_mnist", ["--dim=batch=4", "--train-mode=restore"], []),
    ("gpt2_mini", ["--dim=batch=2", "--dim=seq=64"], ["--accumulate=2"]),
]


@pytest.mark.parametrize("name, compiled, options", RESUMED)
def test_a_resumed_run_has_the_same_bits(executables, models, tmp_path, name, compiled, options):
    """12 steps; and 7, then 5 more."""
    try:
        exe = executables(name, *compiled)
    except subprocess.CalledProcessError as e:
        pytest.fail(e.stderr.decode())
    trainer = Trainer(exe, data_of(models, name), tmp_path)
    # The schedule's length is the whole run's: the first part is stopped at its checkpoint.
    whole = trainer.result(*options, "--steps=12", "--save=ck", "--save-every=7", name="whole")
    again = trainer.result(*options, "--steps=12", "--resume=ck/step-00000007", name="whole")
    assert again == whole
    other = trainer.result(*options, "--steps=12", "--resume=ck/step-00000007", "--lr=0.0123",
                           name="other")
    assert other[1] != whole[1], "another learning rate must give other weights"


def test_what_a_checkpoint_holds(digits, tmp_path):
    """Tensors by name, as the export has them; checksums by another implementation of XXH3."""
    import xxhash
    from onnx import load, numpy_helper
    digits("--freeze=4.*").run("--steps=3", "--save=ck", "--export=out.onnx", "--shard-bytes=30000")
    folder = tmp_path / "ck/step-00000003"
    manifest, found = read_manifest(folder), tensors(folder)
    exported = {t.name: numpy_helper.to_array(t) for t in load(tmp_path / "out.onnx").graph.initializer}
    for name in ("0.weight", "0.bias", "2.weight", "2.bias"):
        assert np.array_equal(found[name], exported[name])
    assert len(manifest["shards"]) > 1
    assert {t["name"] for t in manifest["tensors"]} == set(found)
    for entry in manifest["tensors"]:
        assert entry["checksum"] == xxhash.xxh3_64_hexdigest(found[entry["name"]].tobytes())
        assert entry["shape"] == list(found[entry["name"]].shape)
    constants = {t["name"]: t["checksum"] for t in manifest["constants"]}
    assert constants == {n: xxhash.xxh3_64_hexdigest(exported[n].tobytes())
                         for n in ("4.weight", "4.bias")}
    assert (manifest["step"], manifest["samples"], manifest["version"]) == (3, 48, 1)
    assert temporaries(tmp_path / "ck") == []


@pytest.mark.parametrize("compiled, options, moments", [
    (["--optimizer=adamw"], [], ["exp_avg", "exp_avg_sq"]),
    (["--optimizer=momentum"], [], ["momentum_buffer"]),
    (["--optimizer=nesterov", "--precision=f64"], ["--momentum=0.5"], ["momentum_buffer"])])
def test_moments_of_dead_units_become_0(digits, tmp_path, compiled, options, moments):
    """Some units of the hidden layers die early: 1300 steps later their moments are 0, none is subnormal."""
    digits(*compiled).run("--steps=1500", "--save-every=100", "--save=ck", *options)
    early, late = tensors(tmp_path / "ck/step-00000100"), tensors(tmp_path / "ck/step-00001500")
    for moment in (late[name] for name in late if name.split(".")[0] in moments):
        assert not np.any((moment != 0) & (np.abs(moment) < np.finfo(moment.dtype).tiny))
    first = [name for name in early if name.split(".")[0] == moments[0]]
    assert first and any(np.any((early[name] != 0) & (late[name] == 0)) for name in first)


def losses_of_rows(trainer, tmp_path, *options, name):
    """{samples: loss} of a run whose weights never change: what each step saw."""
    log = tmp_path / f"{name}.jsonl"
    trainer.run(*options, "--lr=0", "--weight-decay=0", "--log", log)
    return {line["samples"]: line["loss"] for line in steps_of(log)}


@pytest.mark.parametrize("compiled, options, size", [(["--batch=32"], [], 32),
                                                     ([], ["--accumulate=3"], 48),
                                                     (["--batch=8"], [], 8)])
@pytest.mark.parametrize("first", [85, 91])  # 91: one step of 16 rows is left of the epoch
def test_another_batch_goes_on_at_the_right_row(digits, tmp_path, compiled, options, size, first):
    """Losses of batches of 8 over two epochs say which rows a larger step must see."""
    small = losses_of_rows(digits("--batch=8"), tmp_path, "--epochs=2", name="small")
    digits().run(f"--steps={first}", "--lr=0", "--weight-decay=0", "--save=ck")
    manifest = read_manifest(tmp_path / f"ck/step-{first:08d}")
    rows = manifest["rows"]
    assert manifest["samples"] == first * 16
    got = losses_of_rows(digits(*compiled), tmp_path, "--resume=ck", "--epochs=2", *options,
                         name="got")
    at, ends = first * 16, []
    for _ in got:
        if rows - at % rows < size:
            at += rows - at % rows
        want = np.mean([small[s] if s in small else small[(s + rows - 1) // rows * rows]
                        for s in range(at + 8, at + size + 1, 8)])
        at += size
        end = at + (rows - at % rows if rows - at % rows < size else 0)
        assert got[end] == pytest.approx(want, rel=1e-5)
        ends.append(end)
    assert sorted(got) == ends
    assert ends[-1] == 2 * rows, "both epochs, to their end"


def test_more_epochs_go_on(digits):
    trainer = digits()
    whole = trainer.result("--epochs=2", name="whole")
    trainer.run("--epochs=1", "--save=ck", "--log=part.jsonl")
    assert trainer.result("--epochs=2", "--save=ck", "--resume=auto", name="part") == whole
    assert trainer.run("--epochs=2", "--save=ck", "--resume=auto").stdout == trainer.run(
        "--epochs=1", "--resume=ck").stdout, "nothing is left to do"


def test_resume_auto_starts_fresh_where_there_is_nothing(digits, tmp_path):
    trainer = digits()
    want = trainer.result("--steps=4", name="want")
    done = trainer.run("--steps=4", "--save=a/b", "--resume=auto", "--export=fresh.onnx")
    assert "training starts fresh" in done.stderr
    assert (tmp_path / "fresh.onnx").read_bytes() == want[1]
    assert checkpoints(tmp_path / "a/b") == [4]


def test_steps_0_exports_a_checkpoint(digits, tmp_path):
    trainer = digits()
    trainer.run("--steps=5", "--save=ck", "--export=a.onnx")
    subprocess.run([trainer.exe, "--resume=ck", "--steps=0", "--export=b.onnx"], cwd=tmp_path,
                   check=True, capture_output=True)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_the_log_continues_where_the_checkpoint_was(digits, tmp_path):
    """What a killed run wrote behind the checkpoint is dropped, and so is half a line."""
    trainer, log = digits(), tmp_path / "log.jsonl"
    want = trainer.result("--steps=9", name="want")[0]
    trainer.run("--steps=6", "--save=ck", "--save-every=4", "--keep=2", "--log", log)
    log.write_text(log.read_text() + '{"step":7,"loss":1,"lr":1}\n{"step":8,"lo')
    trainer.run("--steps=9", "--resume=ck/step-00000004", "--log", log)
    assert steps_of(log) == want
    assert [line["step"] for line in reference.log_lines(log) if "settings" in line] == [1, 5]
    trainer.run("--steps=2", "--log", log)
    assert steps_of(log) == want[:2], "without --resume the file starts again"


def test_the_log_keeps_the_evaluation_before_training(digits, models, tmp_path):
    trainer = digits()
    options = [*digits_data(models, "eval_"), "--eval-every=2"]
    want = trainer.result("--steps=6", *options, name="want")
    assert "eval_loss" in want[0][0] and want[0][0]["step"] == 0
    trainer.run("--steps=4", *options, "--save=ck", "--log=part.jsonl")
    assert trainer.result("--steps=6", *options, "--resume=ck", name="part") == want


def test_keep(digits, tmp_path):
    trainer = digits()
    trainer.run("--steps=20", "--save=all", "--save-every=3")
    assert checkpoints(tmp_path / "all") == [3, 6, 9, 12, 15, 18, 20]
    trainer.run("--steps=20", "--save=two", "--save-every=3", "--keep=2")
    assert checkpoints(tmp_path / "two") == [18, 20]
    trainer.run("--steps=26", "--save=two", "--save-every=3", "--keep=1", "--resume=auto")
    assert checkpoints(tmp_path / "two") == [26]
    assert temporaries(tmp_path / "two") == []


def test_keep_best(digits, models, tmp_path):
    """The learning rate is raised until the loss gets worse: the best one is not among the newest."""
    trainer = digits("--optimizer=sgd")
    log = tmp_path / "log.jsonl"
    common = ["--save=ck", "--save-every=5", "--keep=2", "--keep-best", "--log", log,
              *digits_data(models, "eval_")]
    trainer.run("--steps=20", "--lr=0.1", *common)
    trainer.run("--steps=50", "--lr=3", *common, "--resume=auto")
    losses = {line["step"]: line["eval_loss"] for line in reference.log_lines(log)
              if line["step"] and line["step"] % 5 == 0}
    best = min(losses, key=losses.get)
    assert best < 45
    assert checkpoints(tmp_path / "ck") == [best, 45, 50]
    assert read_manifest(tmp_path / f"ck/step-{best:08d}")["eval_loss"] == losses[best]


def test_checkpoints_of_another_run_stay(digits, tmp_path):
    """A run that starts fresh removes its own only, and `auto` continues the newest, not the longest."""
    trainer = digits()
    trainer.run("--steps=12", "--save=ck", "--save-every=6")
    trainer.run("--steps=5", "--seed=1", "--save=ck", "--save-every=1", "--keep=2")
    assert checkpoints(tmp_path / "ck") == [4, 5, 6, 12]
    assert "step-00000005: step 5" in trainer.run("--steps=5", "--seed=1", "--save=ck",
                                                  "--resume=auto").stderr


def test_a_saved_step_is_replaced(digits, tmp_path):
    trainer = digits()
    trainer.run("--steps=4", "--save=ck")
    first = read_manifest(tmp_path / "ck/step-00000004")
    trainer.run("--steps=4", "--seed=7", "--save=ck")
    second = read_manifest(tmp_path / "ck/step-00000004")
    assert first["run"] != second["run"] and second["serial"] == first["serial"] + 1
    assert temporaries(tmp_path / "ck") == []
    trainer.run("--steps=4", "--resume=ck", "--seed=7")


CHANGES = [
    (["--lr=0.1"], '"lr" was 0.001, is 0.1'), (["--seed=3"], '"seed" was 0, is 3'),
    (["--shuffle=off"], '"shuffle" was true, is false'),
    (["--weight-decay=0.5"], '"weight_decay" was 0.01'), (["--beta2=0.9"], '"beta2" was 0.999'),
    (["--clip-norm=1"], '"clip_norm" was null, is 1'), (["--keep-last"], '"keep_last" was false'),
    (["--accumulate=2"], '"rows_per_step" was 16, is 32'),
    (["--lr-schedule=cosine"], '"lr_schedule" was "constant", is "cosine"'),
]


@pytest.mark.parametrize("options, says", CHANGES)
def test_a_changed_setting_is_named_with_both_values(digits, options, says):
    trainer = digits()
    trainer.run("--steps=2", "--save=ck")
    assert "warning" not in trainer.run("--steps=3", "--resume=ck").stderr
    done = trainer.run("--steps=3", "--resume=ck", *options)
    assert done.stderr.count("warning") == 1 and says in done.stderr


FACTS = ("device", "processor", "deterministic", "threads", "cpus", "library")
MACHINES = [
    # the first run's options, the second's, what its one warning says
    (["--threads=2"], ["--threads=2"], None),
    (["--threads=2", "--deterministic"], ["--threads=1", "--deterministic"], None),
    (["--threads=2", "--libraries=off"], ["--threads=1", "--libraries=off"], None),
    (["--threads=2"], ["--threads=2", "--deterministic"], '"deterministic" was false, is true'),
    (["--threads=2", "--deterministic"], ["--threads=1"], '"deterministic" was true, is false'),
    (["--threads=2"], ["--threads=1"], '"threads" was 2, is 1'),
    (["--threads=2"], ["--threads=1", "--libraries=off"], '"library" was "oneDNN '),
]


@pytest.mark.parametrize("first, second, says", MACHINES)
def test_a_changed_machine_is_named(digits, tmp_path, first, second, says):
    """Where bits may depend on it."""
    trainer = digits()
    trainer.run("--steps=2", "--save=ck", *first)
    settings = read_manifest(tmp_path / "ck/step-00000002")["settings"]
    assert settings["threads"] == 2
    if settings["library"] is None and says and "deterministic" not in says:
        pytest.skip("oneDNN is not installed")
    stderr = trainer.run("--steps=3", "--resume=ck", *second).stderr
    assert stderr.count("warning") == (says is not None) and (says or "") in stderr


def test_another_number_of_cpus_is_named(digits, tmp_path):
    """Where the library's products may be cut by it."""
    trainer = digits()
    for options, named in ((["--threads=2"], 1), (["--threads=2", "--libraries=off"], 0),
                           (["--threads=2", "--deterministic"], 0)):
        trainer.run("--steps=2", "--save=ck", *options)
        manifest = read_manifest(tmp_path / "ck/step-00000002")
        named = named and manifest["settings"]["library"] is not None
        here = manifest["settings"]["cpus"]
        manifest["settings"]["cpus"] = here + 1
        write_manifest(tmp_path / "ck/step-00000002", manifest)
        stderr = trainer.run("--steps=3", "--resume=ck", *options).stderr
        assert stderr.count("warning") == named == stderr.count(f'"cpus" was {here + 1}, is {here}')
        shutil.rmtree(tmp_path / "ck")


def test_another_processor_is_named(digits, tmp_path):
    """Checkpoints of before say nothing of the machine, and nothing is said of them."""
    trainer = digits()
    trainer.run("--steps=2", "--save=ck", "--threads=2")
    manifest = read_manifest(tmp_path / "ck/step-00000002")
    here = manifest["settings"]["processor"]
    manifest["settings"]["processor"] = "Other CPU"
    write_manifest(tmp_path / "ck/step-00000002", manifest)
    stderr = trainer.run("--steps=3", "--resume=ck", "--threads=2").stderr
    assert f'"processor" was "Other CPU", is "{here}"' in stderr and stderr.count("warning") == 1
    for name in FACTS:
        del manifest["settings"][name]
    write_manifest(tmp_path / "ck/step-00000002", manifest)
    assert "warning" not in trainer.run("--steps=3", "--resume=ck", "--threads=1").stderr


def test_changed_data_are_named(digits, models, tmp_path):
    trainer = digits()
    trainer.run("--steps=2", "--save=ck")
    x = np.load(models / "mlp_digits/input.npy")
    for changed, says in ((x[:, ::-1], "the data differ"), (x[:-16], "rows, these have")):
        np.save(tmp_path / "x.npy", np.ascontiguousarray(changed))
        np.save(tmp_path / "y.npy", np.load(models / "mlp_digits/labels.npy")[:len(changed)])
        trainer.data = ["--data", f"input={tmp_path}/x.npy", "--data", f"labels={tmp_path}/y.npy"]
        assert says in trainer.run("--steps=3", "--resume=ck").stderr


def test_frozen_tensors_must_be_the_same(digits, tmp_path):
    from test_executable import write_safetensors
    trainer = digits("--freeze=4.*")
    new = tmp_path / "new.safetensors"
    write_safetensors(new, {"4.bias": np.arange(10, dtype=np.float32)})
    want = trainer.result("--steps=4", "--load", new, name="want")
    trainer.run("--steps=2", "--load", new, "--save=ck")
    assert trainer.result("--steps=4", "--load", new, "--resume=ck", name="again")[1] == want[1]
    done = trainer.run("--steps=4", "--resume=ck", exit=7)
    assert '"4.bias"' in done.stderr and "--load" in done.stderr


def test_a_load_that_a_checkpoint_replaces_is_told_of(digits, tmp_path):
    from test_executable import write_safetensors
    trainer = digits()
    write_safetensors(tmp_path / "new.safetensors", {"4.bias": np.arange(10, dtype=np.float32)})
    assert "changes nothing" not in trainer.run("--steps=2", "--load=new.safetensors", "--save=ck").stderr
    said = trainer.run("--steps=4", "--load=new.safetensors", "--resume=ck").stderr
    assert "new.safetensors: changes nothing: --resume's checkpoint has all that is in it" in said


def test_the_snapshot_is_planned_and_printed(digits, tmp_path):
    trainer = digits()
    info = json.loads(trainer.run("--info", "--json").stdout)
    saved = info["regions"]["snapshot"]
    assert saved >= sum(t.nbytes for t in tensors_after(trainer, tmp_path).values())
    with_save = trainer.run("--steps=1", "--save=ck", "--table=full", "--log=a.jsonl").stderr
    without = trainer.run("--steps=1", "--table=full", "--log=b.jsonl").stderr
    assert "snapshot" in with_save and "snapshot" not in without
    peaks = [reference.log_lines(tmp_path / f"{x}.jsonl")[0]["peak_bytes"] for x in "ab"]
    assert peaks[0] - peaks[1] == saved
    assert peaks[1] == info["peak_bytes"]


def tensors_after(trainer, folder):
    trainer.run("--steps=1", "--save=one")
    return tensors(folder / "one/step-00000001")
