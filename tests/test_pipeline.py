"""The lists of passes are the pipeline: what runs, in which order, and where a stage ends."""
import json
import os
import re
import signal
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest

LOSS = "--loss=cross_entropy"


@pytest.fixture
def rows(run):
    return [json.loads(line) for line in run("passes", "--json").stdout.splitlines()]


@pytest.fixture
def passes_of(run, models):
    def passes(*options):
        """The passes that a dump ran, from what it printed after each."""
        said = run("dump", models / "mlp_digits/model.onnx", "--dump-after=all", *options)
        return re.findall(r"^; after (\w+)", said.stderr, re.M)

    return passes


ASKED = "when asked for"


@pytest.mark.parametrize("options, left_out", [
    ([LOSS], {ASKED}),
    ([], {ASKED, "with a loss", "with an optimizer"}),
])
def test_the_list_is_what_runs(rows, passes_of, options, left_out):
    assert passes_of("--after=events", *options) == [r["name"] for r in rows
                                                     if r["when"] not in left_out]


def test_passes_run_when_asked_for(rows, passes_of):
    asked = {r["name"] for r in rows if r["when"] == ASKED}
    assert "initialize" in asked
    assert passes_of("--after=events", LOSS, *(f"--enable={name}" for name in asked)) == [
        r["name"] for r in rows]
    assert passes_of("--after=events", LOSS, "--init=random") == [
        r["name"] for r in rows if r["name"] not in asked - {"initialize"}]


@pytest.mark.parametrize("stage, last", [
    ("forward", "trainable"), ("train", "simplify"), ("fused", "fuse"), ("lowered", "lower"),
    ("schedule", "schedule"), ("memory", "memory")])
def test_a_stage_ends_before_the_pass_that_takes_it(rows, passes_of, stage, last):
    ran = passes_of(f"--stage={stage}", LOSS)
    rows = [r for r in rows if r["when"] != ASKED]
    assert ran[-1] == last
    assert ran == [r["name"] for r in rows][:len(ran)]
    assert [r["takes"] for r in rows[len(ran):]][:1] in ([], [stage])


def test_a_pass_that_does_not_run_says_when_it_would(run, models):
    model = models / "mlp_digits/model.onnx"
    assert "runs with a loss" in run("dump", model, "--after=autograd", exit=2).stderr
    assert "unknown pass `autogard`" in run("dump", model, "--after=autogard", exit=2).stderr


def test_random_values_are_for_what_is_trained_and_has_no_rule(run, models, tmp_path):
    """--init=random leaves a frozen parameter its numbers, and one with a rule of its own what that says."""
    model = models / "mlp_digits/model.onnx"
    done = run("dump", model, "--init=random", "--freeze=0.weight", "--init=0.bias=ones", "--stage=forward")
    states = {line.split()[1]: line for line in done.stdout.splitlines() if line.startswith("  state ")}
    assert " init data f32[128,64] @data" in states['@"0.weight"']
    assert " init ones given" in states['@"0.bias"']
    assert " init uniform(" in states['@"2.weight"'] and " init uniform(" in states['@"2.bias"']


def test_a_reproducer_writes_over_nothing(run, models, tmp_path):
    """What another run has left stays, and the replayed file, which lies in the same folder."""
    folder = tmp_path / "d"
    failing = ["dump", models / "mlp_digits/model.onnx", LOSS, "--stage=train", f"--dump-dir={folder}", "--fail-in=autograd"]
    run(*failing, exit=3)
    kept = {f.name: f.read_bytes() for f in folder.iterdir()}
    assert {"gradc-autograd.gir", "gradc-autograd.safetensors"} <= set(kept)
    assert f"{folder}/gradc-autograd-1.gir" in run(*failing, exit=3).stderr
    run("opt", folder / "gradc-autograd.gir", "--passes=autograd", f"--dump-dir={folder}", "-o", tmp_path / "out.gir")
    assert kept.items() <= {f.name: f.read_bytes() for f in folder.iterdir()}.items()


AWKWARD = 'a,b}"c\'d\\ e\nf'


def test_a_reproducer_of_every_pass_outlives_a_crash(rows, run, models, tmp_path):
    """It lies there when the pass crashes, with its tensors; its first line is the command that replays it."""
    np.save(tmp_path / "weights.npy", np.linspace(0.5, 1.5, 10, dtype=np.float32))
    model = onnx.load(models / "mlp_digits/model.onnx")
    for node in model.graph.node:  # a name that the shell and the list of passes would read
        node.input[:] = [AWKWARD if i == "0.weight" else i for i in node.input]
    next(t for t in model.graph.initializer if t.name == "0.weight").name = AWKWARD
    onnx.save(model, tmp_path / "model.onnx")
    options = ["--loss=cross_entropy", f"--class-weight={tmp_path / 'weights.npy'}", "--init=random",
               "--freeze=" + AWKWARD.replace("\\", "?"),
               *(f"--enable={r['name']}" for r in rows if r["when"] == ASKED)]
    for name in dict.fromkeys(r["name"] for r in rows):
        folder = tmp_path / name
        run("dump", tmp_path / "model.onnx", *options, "--after=events", f"--dump-dir={folder}",
            f"--abort-in={name}", exit=-signal.SIGABRT)
        file = folder / f"gradc-{name}.gir"
        assert {f.name for f in folder.iterdir()} >= {file.name, f"gradc-{name}.safetensors"}
        first = file.read_text().splitlines()[0]
        assert first.startswith("; replay with: gradc opt ")
        command = first.removeprefix("; replay with: gradc ")
        gradc = Path(os.environ.get("GRADC_BUILD", "build")).resolve() / "gradc"
        for extra, code in ("", 0), (f" --abort-in={name}", -signal.SIGABRT):
            done = subprocess.run(["bash", "-c", f"exec {gradc} {command}{extra} -o {tmp_path / 'out.gir'}"],
                                  capture_output=True, text=True, cwd=tmp_path)
            assert done.returncode == code, f"{command}\n{done.stderr}"
        if name == "trainable":
            frozen = [line for line in (tmp_path / "out.gir").read_text().splitlines()
                      if line.startswith("  state") and "trainable" not in line]
            assert len(frozen) == 2 and any("--freeze=" in line for line in frozen)


def test_reproducers_of_passes_that_ran_are_gone(run, models, tmp_path):
    run("dump", models / "mlp_digits/model.onnx", LOSS, "--stage=memory", f"--dump-dir={tmp_path / 'd'}")
    assert {f.name for f in (tmp_path / "d").iterdir()} == {"memory.gir", "memory.safetensors"}


@pytest.mark.parametrize("name", ["here", "with 'quotes' $HOME; and\nlines"])
def test_a_pass_that_fails_leaves_a_reproducer(run, models, tmp_path, name):
    """With a folder for it or without one: the text, its tensors, and the command that replays it."""
    model = models / "mlp_digits/model.onnx"
    cwd = tmp_path / "cwd"
    cwd.mkdir()
    for where, option in (cwd, "--verify-each"), (tmp_path / name, f"--dump-dir={tmp_path / name}"):
        done = run("dump", model, LOSS, "--stage=memory", option, "--fail-in=autograd", cwd=cwd, exit=3)
        assert "pass autograd failed" in done.stderr
        assert {"gradc-autograd.gir", "gradc-autograd.safetensors"} <= {f.name for f in where.iterdir()}
        command = re.search(r"replay with: gradc (.*)", done.stderr)[1]
        gradc = Path(os.environ.get("GRADC_BUILD", "build")).resolve() / "gradc"
        replayed = subprocess.run(["bash", "-c", f"exec {gradc} {command} -o {tmp_path / 'out.gir'}"],
                                  capture_output=True, text=True, cwd=cwd)
        assert replayed.returncode == 0, command + replayed.stderr
        assert "grad" in (tmp_path / "out.gir").read_text()


def test_a_reproducer_repeats_the_settings_of_optimizers(run, models, tmp_path):
    """One for all parameters and two for some of them; the replay's moments show which one each parameter has."""
    done = run("compile", models / "mlp_digits/model.onnx", LOSS, "--batch=4", "-o", "out", "--verify-each", "--fail-in=optimizer",
               "--optimizer=momentum,lr=0.5", "--optimizer-for=*.bias=adamw,lr=0.1", "--optimizer-for=4.*=sgd", exit=3)
    command = re.search(r"replay with: gradc (.*)", done.stderr)[1]
    assert 'name="momentum,lr=0.5"' in command and "lr=0.1" in command
    gradc = Path(os.environ.get("GRADC_BUILD", "build")).resolve() / "gradc"
    subprocess.run(["bash", "-c", f"exec {gradc} {command} -o out.gir"], cwd=tmp_path, check=True)
    moments = set(re.findall(r"state @(\S+) : .* moment", (tmp_path / "out.gir").read_text()))
    assert moments == {"momentum_buffer.0.weight", "momentum_buffer.2.weight", "exp_avg.0.bias", "exp_avg_sq.0.bias", "exp_avg.2.bias",
                       "exp_avg_sq.2.bias"}


@pytest.mark.parametrize("passes, message", [
    ("inline{final=banana}", "pass inline: final=banana is not true or false"),
    ("inline{final=true", "pass inline: no `}` after option final"),
    ("inline{final=true}simplify", "passes: `simplify` where a comma must be"),
    ("inline,,simplify", "unknown pass ``"),
    ("lower{cores=wide}", "cores=wide is not a number"),
    ("legalize{cores=0}", "pass legalize: cores=0 is not in 1..4096"),
    ("legalize,fuse{cores=5000}", "pass fuse: cores=5000 is not in 1..4096"),
    ("legalize,fuse,lower{cores=-5}", "pass lower: cores=-5 is not in 1..4096"),
    ("legalize,fuse,lower{target=z80}", "pass lower: no target z80 (there are cpu-512, cpu-256, cpu-128"),
])
def test_malformed_pipelines(run, tmp_path, passes, message):
    (tmp_path / "m.gir").write_text("func @f(%x: f32[2]) -> f32[2] {\n  return %x\n}\n")
    done = run("opt", tmp_path / "m.gir", f"--passes={passes}", exit=2)
    assert message in done.stderr
