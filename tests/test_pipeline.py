"""The lists of passes are the pipeline: what runs, in which order, and where a stage ends."""
import json
import re

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
    assert passes_of("--stage=memory", *options) == [r["name"] for r in rows
                                                     if r["when"] not in left_out]


def test_passes_run_when_asked_for(rows, passes_of):
    asked = {r["name"] for r in rows if r["when"] == ASKED}
    assert "initialize" in asked
    assert passes_of("--stage=memory", LOSS, *(f"--enable={name}" for name in asked)) == [
        r["name"] for r in rows]
    assert passes_of("--stage=memory", LOSS, "--init=random") == [
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
