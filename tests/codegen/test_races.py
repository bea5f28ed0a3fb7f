"""The schedule of every model, proven free of races: in each kind of run no two streams, nor the host, touch the same bytes
without an event between, one of them writing. And every WAIT is needed in some run."""
import itertools
import re

import pytest
import reference
import unpack
from tables import KIND, Tables

RUNS = [(memory, ranks, reduce, accumulate)
        for memory, (ranks, reduce), accumulate in itertools.product(
            ("together", "apart", "direct"), ((1, "ordered"), (3, "ordered"), (2, "fast")), (1, 3))]


def find(run, build, executable, how, *more):
    return run(build / "tests/find_races", executable, *map(str, how), *more, exit=None).stdout.splitlines()


@pytest.mark.parametrize("name", [*filter(unpack.has_kernels_of_its_own, reference.NAMES)])
def test_no_schedule_races(run, build, of_trace, name):
    for how in RUNS:
        assert find(run, build, of_trace(name), how) == ["no race"], how


SHARED = [("zero1", []), ("zero2", []), ("zero3", []), ("zero2", ["--offload=optimizer"]), ("zero3", ["--offload=optimizer,params"]),
          ("zero3", ["--offload=params"]), ("ddp", ["--offload=activations"]), ("zero3", ["--offload=optimizer,params,activations"])]


@pytest.mark.parametrize("mode, offload", SHARED)
def test_no_schedule_of_parts_races(run, build, models, tmp_path, mode, offload):
    options = reference.compile_options("gpt2_mini", "f32", 0, ["-o"])
    run("compile", models / "gpt2_mini/model.onnx", "-o", tmp_path / "exe", *options, f"--data-parallel={mode}", "--unit-bytes=1", *offload)
    for how in RUNS:
        assert find(run, build, tmp_path / "exe", how, mode) == ["no race"], how


@pytest.mark.parametrize("name", ["mlp_digits", "cnn_mnist"])
def test_every_wait_is_needed(run, build, of_trace, name):
    """In some run: with one micro-batch a step others of them are than with three, and with ranks than alone."""
    exe = of_trace(name)
    tables = Tables(exe)
    trained = re.findall(r"program (\w+)[^:]*: (\d+) instructions",
                         run("dump", exe, "--stage=schedule").stdout)
    at, waits = 0, set()
    for role, n in trained:
        if role in ("accumulate", "update"):
            waits |= {i for i in range(at, at + int(n)) if tables[i]["kind"] == KIND["WAIT"]}
        at += int(n)
    assert len(waits) >= 6
    for how in RUNS:
        lines = find(run, build, exe, how, "every")
        assert lines[0] == "no race"
        idle = {int(line.split()[-1]) for line in lines[1:]}
        due = {i for i in waits if runs(tables[i]["only"], how)}
        waits -= due - idle
    assert not waits


def runs(only, how):
    memory, ranks, reduce, _ = how
    holds = 1 * (memory != "together") | (2 | (8 if reduce == "ordered" else 16) | 4 * (memory == "apart")) * (ranks > 1)
    return not only & ~holds
