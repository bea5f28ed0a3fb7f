"""The runtime as a library: the example, and two models in one process on threads of their own."""
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

TWO_MODELS = r"""
#include "runtime/gradc.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
GRADC_MODEL(one);
GRADC_MODEL(two);

typedef struct { const GradcModel *model; const char *name, *export; GradcPair data[2]; double loss; } Job;

static Status
train(Job *j)
{
	GradcOptions o = gradc_default_options();
	GradcStep step = {0};
	Gradc *run;

	o.data.at = j->data;
	o.data.n = o.data.cap = 2;
	o.steps = 8;
	o.threads = 1;
	RETURN_IF_ERROR(gradc_open(j->model, &o, NULL, &run));
	Status status = gradc_bind_data(run);
	for (int i = 0; i < 8 && !status; i++)
		status = gradc_step(run, &step);
	if (!status)
		status = gradc_export(run, j->export);
	gradc_close(run);
	j->loss = step.loss;
	return status;
}

static void *
main_of(void *arg)
{
	return train(arg);
}

int
main(int argc, char **argv)
{
	Job jobs[] = {
		{&gradc_model_one, "one", "one.onnx", {{"input", argv[1]}, {"labels", argv[2]}}},
		{&gradc_model_two, "two", "two.onnx", {{"image", argv[3]}, {"labels", argv[4]}}},
	};
	pthread_t threads[2];
	int failed = 0;

	for (int i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, main_of, &jobs[i]);
	for (int i = 0; i < 2; i++) {
		void *status;
		pthread_join(threads[i], &status);
		if (status) {
			printf("%s: exit code %d: %s\n", jobs[i].name, ((Status)status)->exit_code,
			       ((Status)status)->message);
			status_free(status);
			failed = 1;
		} else {
			printf("%s: %.9g\n", jobs[i].name, jobs[i].loss);
		}
	}
	return failed;
}
"""


def call(*command, cwd, exit=0):
    done = subprocess.run([str(c) for c in command], text=True, capture_output=True, cwd=cwd, timeout=300)
    assert done.returncode == exit, done.stdout + done.stderr
    return done


def build_program(build, folder, source, *libraries):
    call("cc", "-std=c11", "-Wall", "-Werror", "-I", ROOT, source, *libraries,
         build / "lib/libgradc_rt.a", "-lm", "-lpthread", "-Wl,-rpath,.", "-o", "program", cwd=folder)
    return folder / "program"


def test_the_example(gradc, build, tmp_path):
    call(gradc, "compile", ROOT / "examples/gpt2/model.onnx", "--emit=library", "-o", "libgpt2.so",
         "--dim=batch=8", "--dim=seq=64", cwd=tmp_path)
    program = build_program(build, tmp_path, ROOT / "examples/embed/train.c", "libgpt2.so")
    texts = [ROOT / "examples/gpt2/train.txt", ROOT / "examples/gpt2/held_out.txt"]
    said = call(program, *texts, cwd=tmp_path).stdout
    assert "step 40: loss " in said and "held out: loss " in said
    assert (tmp_path / "trained.onnx").stat().st_size > 800_000
    assert list((tmp_path / "checkpoints").glob("step-*/manifest.json"))
    fault = call(program, "missing.txt", texts[1], cwd=tmp_path, exit=5)
    assert "missing.txt" in fault.stderr


@pytest.fixture(scope="module")
def two_models(gradc, build, models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("embed")
    for name, model in [("one", "mlp_digits"), ("two", "cnn_mnist")]:
        call(gradc, "compile", models / model / "model.onnx", "--emit=library", "-o", f"lib{name}.so",
             "--batch=8", cwd=folder)
    (folder / "two.c").write_text(TWO_MODELS)
    return build_program(build, folder, folder / "two.c", "libone.so", "libtwo.so")


def data_of(models):
    return [models / "mlp_digits/input.npy", models / "mlp_digits/labels.npy",
            models / "cnn_mnist/image.npy", models / "cnn_mnist/labels.npy"]


def test_two_models_on_threads(gradc, models, two_models, tmp_path):
    """Each trains as its executable does, to the bit."""
    files = data_of(models)
    said = call(two_models, *files, cwd=two_models.parent).stdout.splitlines()
    for line, model, name, data in [(said[0], "mlp_digits", "input", files[:2]),
                                    (said[1], "cnn_mnist", "image", files[2:])]:
        exe = tmp_path / model
        call(gradc, "compile", models / model / "model.onnx", "-o", exe, "--batch=8", cwd=tmp_path)
        export = tmp_path / f"{model}.onnx"
        alone = call(exe, f"--data={name}={data[0]}", f"--data=labels={data[1]}", "--steps=8",
                     "--progress=off", "--export", export, cwd=tmp_path).stdout
        assert f"loss {line.split(': ')[1]}" in alone
        own = two_models.parent / ("one.onnx" if model == "mlp_digits" else "two.onnx")
        assert own.read_bytes() == export.read_bytes()


def test_faults_are_values(models, two_models):
    """One model's bad data is its own; the other one trains."""
    files = data_of(models)
    said = call(two_models, "nothing.npy", *files[1:], cwd=two_models.parent, exit=1).stdout
    assert "one: exit code 5: " in said and "nothing.npy" in said
    assert "\ntwo: " in said and "two: exit code" not in said


def test_a_library_exports_one_symbol(two_models):
    symbols = subprocess.run(["nm", "-D", "--defined-only", two_models.parent / "libone.so"], text=True,
                             capture_output=True).stdout.split()
    assert [s for s in symbols if "gradc" in s] == ["gradc_model_one"]


FAILING_MEMORY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* The allocation number $FAIL_AT of at least 2 KiB gives nothing. Those of the loader do not count (it ends the program
 * itself, or leaves a library half loaded), nor oneDNN's own: it crashes without memory. */
static _Atomic int seen;

static int
needs_memory(void *caller)
{
	Dl_info info;

	return dladdr(caller, &info) && info.dli_fname &&
	       (strstr(info.dli_fname, "libdnnl") || strstr(info.dli_fname, "libstdc++") || strstr(info.dli_fname, "ld-linux"));
}

static int
fails(size_t bytes, void *caller)
{
	static int at = -1;

	if (at < 0)
		at = getenv("FAIL_AT") ? atoi(getenv("FAIL_AT")) : 0;
	return bytes >= 2048 && !needs_memory(caller) && atomic_fetch_add(&seen, 1) + 1 == at;
}
#define NEXT(type, name) static __typeof__(type) next; if (!next) next = (__typeof__(type))dlsym(RTLD_NEXT, name)
void *
malloc(size_t n)
{
	NEXT(void *(*)(size_t), "malloc");
	return fails(n, __builtin_return_address(0)) ? (errno = ENOMEM, NULL) : next(n);
}
void *
realloc(void *old, size_t n)
{
	NEXT(void *(*)(void *, size_t), "realloc");
	return fails(n, __builtin_return_address(0)) ? (errno = ENOMEM, NULL) : next(old, n);
}
void *
aligned_alloc(size_t a, size_t n)
{
	NEXT(void *(*)(size_t, size_t), "aligned_alloc");
	return fails(n, __builtin_return_address(0)) ? (errno = ENOMEM, NULL) : next(a, n);
}
void *__libc_calloc(size_t, size_t);
void *
calloc(size_t n, size_t size)
{
	return fails(n * size, __builtin_return_address(0)) ? (errno = ENOMEM, NULL) : __libc_calloc(n, size);
}
"""


def test_no_memory_is_a_value(build, models, two_models, tmp_path):
    """Each third allocation of a run fails once: the host program goes on and is told, or nobody needed it."""
    (tmp_path / "fail.c").write_text(FAILING_MEMORY)
    call("cc", "-shared", "-fPIC", "-O1", tmp_path / "fail.c", "-o", tmp_path / "fail.so", "-ldl", cwd=tmp_path)
    files = [str(f) for f in data_of(models)]
    told = 0
    for at in range(1, 400, 3):
        done = subprocess.run([two_models, *files], text=True, capture_output=True, cwd=two_models.parent,
                              env={"LD_PRELOAD": str(tmp_path / "fail.so"), "FAIL_AT": str(at)}, timeout=60)
        assert done.returncode in (0, 1), (at, done.returncode, done.stdout, done.stderr)
        if done.returncode == 1:
            assert "exit code 5" in done.stdout and "memory" in done.stdout, (at, done.stdout)
            assert done.stdout.count("exit code") == 1  # the other model trains
            told += 1
    assert told >= 5


MISUSE = r"""
#include "runtime/gradc.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
GRADC_MODEL(one);

static void
say(const char *call, Status status)
{
	printf("%s: %d %s\n", call, status ? status->exit_code : 0, status ? status->message : "ok");
	status_free(status);
}

int
main(int argc, char **argv)
{
	GradcPair data[] = {{"input", argv[2]}, {"labels", argv[3]}};
	GradcOptions o = gradc_default_options();
	bool bad = strcmp(argv[1], "bad data") == 0;
	GradcStep step;
	Gradc *run;

	o.data.at = data;
	o.data.n = bad ? 1 : 2;
	o.steps = 5;
	if (strcmp(argv[1], "no schedule") == 0)
		o.lr_schedule = NULL;
	if (strcmp(argv[1], "keep") == 0)
		o.save = "ck", o.keep = -1;
	if (strcmp(argv[1], "sizes") == 0)
		o.keep_data = -1, o.shard_bytes = -1;
	say("open", gradc_open(&gradc_model_one, &o, NULL, &run));
	if (strcmp(argv[1], "no bind") != 0)
		say("bind", gradc_bind_data(run));
	say("step", gradc_step(run, &step));
	say("save", gradc_save(run, NAN));
	gradc_close(run);
	return 0;
}
"""


@pytest.mark.parametrize("how, says", [("no bind", ["open: 0", "step: 2 no data are bound"]), ("bad data", ["open: 0", "bind: 2", "step: 2 no data are bound"]),
                                       ("no schedule", ["open: 0", "bind: 0", "step: 0", "save: 2"]),
                                       ("keep", ["open: 2 --keep: -1", "bind: 2 there is no run", "step: 2 there is no run"]),
                                       ("sizes", ["open: 2 --shard-bytes: -1"])])
def test_a_program_that_calls_wrongly_is_told(build, models, two_models, how, says):
    folder = two_models.parent
    if not (folder / "misuse").exists():
        (folder / "misuse.c").write_text(MISUSE)
        build_program(build, folder, folder / "misuse.c", "libone.so").rename(folder / "misuse")
        build_program(build, folder, folder / "two.c", "libone.so", "libtwo.so")
    said = call(folder / "misuse", how, *data_of(models)[:2], cwd=folder).stdout.splitlines()
    for line, want in zip(said, says):
        assert line.startswith(want), said
