"""A row that one of several ranks cannot read, and checkpoints that only rank 0 cannot write: all ranks end behind the same step, with
the checkpoint, the model and the log of the steps before."""
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(Path(__file__).parent), str(TESTS / "train")]
from checkpoints import build_faults, checkpoints, digits_data, fault, steps_of  # noqa: E402
from test_ranks import LAUNCHERS, launch, openmpi  # noqa: E402, F401  fixtures

MODES = ["ddp", "zero1", "zero2", "zero3"]
BAD, RANKS, BATCH = 1000, 2, 8


@pytest.fixture(scope="module")
def executables(gradc, models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exe")
    for name, model, options in (("all", "mlp_digits", [f"--data-parallel={','.join(MODES)}"]), ("norms", "cnn_mnist", []),
                                 ("sophia", "mlp_digits", ["--optimizer=sophia"]), ("one", "mlp_digits", ["--max-accumulate=1"])):
        subprocess.run([gradc, "compile", models / model / "model.onnx", "-o", folder / name, f"--batch={BATCH}", *options],
                       check=True, capture_output=True)
    return folder


class Run:
    """run(OPTION...) of two ranks; labels="bad": rows given to spoil() have a label outside of the classes."""

    def __init__(self, exe, data, labels, folder, launcher):
        self.exe, self.data, self.folder, self.launcher = exe, data, folder, launcher
        self.labels = np.load(labels)
        np.save(folder / "good.npy", self.labels)

    def spoil(self, bad):
        spoiled = self.labels.copy()
        spoiled[bad] = BAD
        np.save(self.folder / "bad.npy", spoiled)

    def command(self, name, *options, labels="good"):
        return self.launcher(RANKS, self.exe, f"--data={self.data.stem}={self.data}", f"--data=labels={labels}.npy", "--shuffle=off", "--threads=1",
                             "--progress=off", f"--export={name}.onnx", f"--log={name}.jsonl", *options)

    def run(self, name, *options, labels="good", exit=0, env=None):
        done = subprocess.run(self.command(name, *options, labels=labels), cwd=self.folder, capture_output=True, text=True,
                              timeout=120, env={**os.environ, **(env or {})})
        assert done.returncode == exit, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stderr

    def same(self, a, b):
        """Models and logs of the two runs."""
        assert (self.folder / f"{a}.onnx").read_bytes() == (self.folder / f"{b}.onnx").read_bytes()
        assert steps_of(self.folder / f"{a}.jsonl") == steps_of(self.folder / f"{b}.jsonl")


@pytest.fixture
def digits(executables, models, tmp_path, openmpi):  # noqa: F811
    return Run(executables / "all", models / "mlp_digits/input.npy", models / "mlp_digits/labels.npy", tmp_path, openmpi)


def first_row(step, rank, micro, accumulate):
    return ((step - 1) * RANKS * accumulate + rank * accumulate + micro) * BATCH


@pytest.mark.parametrize("mode, accumulate, rank, micro, device", [
    ("ddp", 1, 1, 0, "cpu"), ("ddp", 3, 0, 1, "async"), ("zero1", 3, 1, 2, "cpu"), ("zero2", 1, 1, 0, "async"), ("zero3", 3, 1, 0, "async")])
def test_training_ends_behind_the_steps_before(digits, tmp_path, mode, accumulate, rank, micro, device):
    """In whichever micro-batch of whichever rank: with good data it goes on to the bits of a run without a fault. Where the device
    computes apart, the next step is queued by then."""
    digits.spoil(first_row(4, rank, micro, accumulate) + 5)
    options = [f"--data-parallel={mode}", f"--accumulate={accumulate}", f"--device={device}"]
    digits.run("three", *options, "--steps=3")
    said = digits.run("bad", *options, "--steps=6", "--save=ck", labels="bad", exit=6)
    assert said.count("gradc: error: ") == 1 and str(BAD) in said and "waited" not in said
    assert checkpoints(tmp_path / "ck") == [3]
    digits.same("bad", "three")
    digits.run("whole", *options, "--steps=6")
    digits.run("again", *options, "--steps=6", "--save=ck", "--resume=auto")
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "whole.onnx").read_bytes()


def test_both_ranks_have_a_bad_row(digits, tmp_path):
    """The first one tells its own."""
    digits.spoil([first_row(2, 0, 0, 1), first_row(2, 1, 0, 1)])
    said = digits.run("bad", "--steps=4", "--save=ck", labels="bad", exit=6)
    assert said.count("gradc: error: ") == 1 and f"row {first_row(2, 0, 0, 1)}:" in said
    assert checkpoints(tmp_path / "ck") == [1]


def test_steps_of_one_micro_batch(executables, digits, tmp_path):
    """The executable cannot add up micro-batches, but the step's count is still spoiled."""
    digits.exe = executables / "one"
    digits.spoil(first_row(2, 1, 0, 1))
    said = digits.run("bad", "--steps=4", "--save=ck", labels="bad", exit=6)
    assert said.count("gradc: error: ") == 1 and checkpoints(tmp_path / "ck") == [1]


def test_the_report_has_the_fault_of_another_rank(digits, tmp_path):
    digits.spoil(first_row(3, 1, 0, 1))
    digits.run("bad", "--steps=4", "--report=r.html", labels="bad", exit=6)
    page = (tmp_path / "r.html").read_text()
    assert re.search(r'"fault": ?"rank 1: bad.npy: row \d+:', page)


def test_running_statistics_are_those_before(executables, models, tmp_path, openmpi):  # noqa: F811
    norms = Run(executables / "norms", models / "cnn_mnist/image.npy", models / "cnn_mnist/labels.npy", tmp_path, openmpi)
    norms.spoil(first_row(3, 1, 1, 2))
    norms.run("two", "--accumulate=2", "--steps=2")
    norms.run("bad", "--accumulate=2", "--steps=4", labels="bad", exit=6)
    norms.same("bad", "two")


def test_estimates_of_the_optimizer_are_those_before(executables, models, tmp_path, openmpi):  # noqa: F811
    """Sophia reads the rows of a step twice, in the first step and every tenth."""
    sophia = Run(executables / "sophia", models / "mlp_digits/input.npy", models / "mlp_digits/labels.npy", tmp_path, openmpi)
    sophia.spoil(first_row(11, 1, 0, 1))
    sophia.run("ten", "--steps=10")
    sophia.run("bad", "--steps=12", labels="bad", exit=6)
    sophia.same("bad", "ten")


def test_gradients_of_a_step_without_rows_are_not_dumped(digits, tmp_path):
    digits.spoil(first_row(1, 1, 0, 1))
    said = digits.run("bad", "--steps=2", "--dump-gradients=gradients", labels="bad", exit=6)
    assert said.count("gradc: error: ") == 1 and str(BAD) in said
    assert not list(tmp_path.glob("gradients/*"))


@pytest.mark.parametrize("mode, option", [("ddp", "--data"), ("ddp", "--eval-data"), ("zero3", "--data"), ("zero3", "--eval-data")])
def test_data_that_become_short(digits, models, tmp_path, mode, option):
    """While it trains, and ranks do not see it in the same micro-batch."""
    np.save(tmp_path / "short.npy", digits.labels)
    rows = [f"--eval-data=input={digits.data}", "--eval-data=labels=short.npy"] if option == "--eval-data" else []
    command = digits.command("bad", f"--data-parallel={mode}", "--steps=100000000", "--save=ck", *rows, *(["--eval-every=20"] if rows else []),
                             labels="good" if rows else "short")
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    log, began = tmp_path / "bad.jsonl", time.monotonic()
    while not log.exists() or log.read_text().count("\n") < 50:
        assert process.poll() is None and time.monotonic() - began < 60
        time.sleep(0.05)
    os.truncate(tmp_path / "short.npy", 1000)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 6, said
    assert said.count("gradc: error: ") == 1 and "short.npy" in said and "waited" not in said
    (step,) = checkpoints(tmp_path / "ck")
    assert step == steps_of(log)[-1]["step"] and (step % 20 == 0 or not rows) and (tmp_path / "bad.onnx").exists()


def test_checkpoints_that_rank_0_cannot_write_leave_the_exports(digits, tmp_path):
    digits.run("plain", "--steps=40")
    faults = build_faults(tmp_path)
    said = digits.run("full", "--steps=40", "--save=ck", "--save-every=2", exit=7, env=fault(faults, "write", 1, 28, times=10**6))
    assert "3 checkpoints in a row" in said and (tmp_path / "full.onnx").exists()
    steps = steps_of(tmp_path / "full.jsonl")
    assert 0 < len(steps) < 41 and steps == steps_of(tmp_path / "plain.jsonl")[: len(steps)]


RETRY = r"""
#include "runtime/gradc.h"
#include <stdio.h>
GRADC_MODEL(digits);

enum { STEPS = 6, ROW = %(row)d, LABEL = %(label)d, HEADER = 128 };

/* The label of row ROW, in a file of 64-bit labels. */
static void
repair(const char *labels)
{
	const long long label = LABEL;
	FILE *f = fopen(labels, "r+b");

	fseek(f, HEADER + 8L * ROW, SEEK_SET);
	fwrite(&label, sizeof(label), 1, f);
	fclose(f);
}

static Status
train(Gradc *run, const char *labels)
{
	GradcStep step;
	int all;

	RETURN_IF_ERROR(gradc_bind_data(run));
	for (int i = 0; i < STEPS; i++) {
		Status status = gradc_step(run, &step);
		if (!status)
			continue;
		printf("rank %%d: exit code %%d, shared %%d, %%lld steps, \"%%s\"\n", gradc_rank(run), status->exit_code, gradc_is_shared(run),
		       (long long)gradc_steps_done(run), gradc_shared_fault(run));
		status_free(status);
		if (gradc_rank(run) == 0)
			repair(labels);
		RETURN_IF_ERROR(gradc_agree(run, 0, &all)); /* all ranks: it is repaired */
		i--;
	}
	return gradc_rank(run) == 0 ? gradc_export(run, "again.onnx") : NULL;
}

int
main(int argc, char **argv)
{
	GradcPair data[] = {{"input", argv[1]}, {"labels", argv[2]}};
	GradcOptions o = gradc_default_options();
	Gradc *run;

	o.data.at = data;
	o.data.n = o.data.cap = 2;
	o.steps = STEPS;
	o.threads = 1;
	o.shuffle = false;
	o.keep_data = 0; /* rows are read when they are needed */
	o.communicator = "auto";
	Status status = gradc_open(&gradc_model_digits, &o, NULL, &run);
	if (!status)
		status = train(run, argv[2]);
	if (!status)
		status = gradc_finish(run);
	/* Ranks may still meet; the fault is that of rank 1 on all. */
	Status shared = gradc_share(run, gradc_rank(run) == 1 ? status_error(5, "told behind the end") : NULL);
	printf("rank %%d: %%d, then %%d\n", gradc_rank(run), status ? status->exit_code : 0, shared ? shared->exit_code : 0);
	status_free(status);
	status_free(shared);
	gradc_close(run);
	return 0;
}
"""


def test_a_library_tries_the_step_again(gradc, build, digits, tmp_path):
    """With the row repaired, training ends with the bits of one without a fault; and ranks may meet behind gradc_finish."""
    bad = first_row(3, 1, 0, 1) + 2
    digits.spoil(bad)
    subprocess.run([gradc, "compile", digits.data.parent / "model.onnx", "--emit=library", "-o", "libdigits.so", f"--batch={BATCH}"],
                   cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "retry.c").write_text(RETRY % {"row": bad, "label": digits.labels[bad]})
    subprocess.run(["cc", "-std=c11", "-Wall", "-Werror", "-I", TESTS.parent, "retry.c", "libdigits.so", build / "lib/libgradc_rt.a", "-lm",
                    "-lpthread", "-Wl,-rpath,.", "-o", "retry"], cwd=tmp_path, check=True)
    assert (tmp_path / "bad.npy").stat().st_size == 128 + 8 * len(digits.labels)
    done = subprocess.run(digits.launcher(RANKS, tmp_path / "retry", digits.data, "bad.npy"), cwd=tmp_path, capture_output=True, text=True,
                          timeout=120)
    lines = sorted(line for line in done.stdout.splitlines() if line.startswith("rank "))
    why = f'"rank 1: bad.npy: row {bad}: '
    assert len(lines) == 4, done.stdout + done.stderr
    for rank in range(RANKS):
        told = [line for line in lines if line.startswith(f"rank {rank}: ")]
        assert f"rank {rank}: 0, then 5" in told
        assert any(line.startswith(f"rank {rank}: exit code 6, shared 1, 2 steps, {why}") for line in told), told
    digits.run("whole", "--steps=6")
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "whole.onnx").read_bytes()
