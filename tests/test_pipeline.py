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


@pytest.mark.parametrize("options, left_out", [
    ([LOSS, "--enable=initialize"], set()),
    ([LOSS, "--init=random"], set()),
    ([LOSS], {"when asked for"}),
    ([], {"when asked for", "with a loss", "with an optimizer"}),
])
def test_the_list_is_what_runs(rows, passes_of, options, left_out):
    assert passes_of("--stage=memory", *options) == [r["name"] for r in rows
                                                     if r["when"] not in left_out]


@pytest.mark.parametrize("stage, last", [
    ("forward", "initialize"), ("train", "simplify"), ("fused", "fuse"), ("lowered", "lower"),
    ("schedule", "schedule"), ("memory", "memory")])
def test_a_stage_ends_before_the_pass_that_takes_it(rows, passes_of, stage, last):
    ran = passes_of(f"--stage={stage}", LOSS, "--init=random")
    assert ran[-1] == last
    names = [r["name"] for r in rows]
    assert ran == names[:len(ran)]
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
