"""200 spellings of attention: results and gradients by formula, with groups and without; how many spellings are recognized.

All spellings of one opset are one model, so that one run of gradc answers for all of them."""
import re
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import by_nodes  # noqa: E402
import tolerances  # noqa: E402  tests/tolerances.py
from by_operators import OPERATORS  # noqa: E402
from draw import NOTHING, counted  # noqa: E402
from running import differing, forward, gradients, need_recognize, written  # noqa: E402
from spellings import COUNT, all_spellings, model  # noqa: E402

OPSETS = range(13, 24)
WITHOUT = "--disable=recognize"

# Spellings that are not recognized as attention: name -> reason.
MISSES = {}
MOST_MISSES = 5


@pytest.fixture(scope="module")
def spellings():
    return all_spellings()


def of_opset(spellings, opset):
    return [s for s in spellings if s.opset == opset]


def test_the_spellings_are_different_and_cover_every_choice(spellings):
    assert len(spellings) == COUNT == len({s.name for s in spellings})
    # without the names, each file is another one
    assert len({model([s]).SerializeToString(deterministic=True).replace(s.name.encode(), b"") for s in spellings}) == COUNT
    of_nodes = [s.choices for s in spellings if "operator" not in s.choices]
    for axis in by_nodes.AXES:
        rare = {v: n for v, n in counted(of_nodes, axis.name).items() if n < 10}
        assert not rare and set(axis.weights) <= set(counted(of_nodes, axis.name)), axis.name
    for operator, (axes, count, _) in OPERATORS.items():
        of_operator = [s.choices for s in spellings if s.choices.get("operator") == operator]
        assert len(of_operator) == count >= 10
        for axis in axes[2:]:
            assert set(axis.weights) <= set(counted(of_operator, axis.name)) - {NOTHING}, (operator, axis.name)


def test_the_spellings_are_valid_onnx(spellings):
    for spelling in spellings:
        onnx.checker.check_model(model([spelling]), full_check=True)
        read = {name for node in spelling.spelled.nodes for name in node.input}
        assert read >= {x.name for x in [*spelling.spelled.inputs, *spelling.spelled.initializers]}, spelling.name


@pytest.mark.parametrize("engine, precision", [("interp", "f64"), ("compiled", "f32")])
@pytest.mark.parametrize("opset", OPSETS)
def test_results_are_the_formulas(run, tmp_path, spellings, opset, engine, precision):
    group = of_opset(spellings, opset)
    words = written(tmp_path, group, floats={"f32": np.float32, "f64": np.float64}[precision])
    results = forward(run, tmp_path, words, f"--engine={engine}", f"--precision={precision}")
    assert not differing({s.name: (results[s.output], s.wanted()[0]) for s in group}, tolerances.limit(f"attention {precision}"))


def compared(found, wanted, limit):
    """Compares two {spelling's name: {name: gradient}}."""
    assert not differing({name: (found[of][name], x) for of, xs in wanted.items() for name, x in xs.items()}, limit)


@pytest.mark.parametrize("opset", OPSETS)
def test_compiled_gradients_are_the_formulas(run, tmp_path, spellings, opset):
    group = of_opset(spellings, opset)
    loss, found = gradients(run, tmp_path, group, written(tmp_path, group, losses=True), "--engine=compiled")
    limit = tolerances.limit("attention f64")
    total = sum(np.vdot(s.cotangent(), s.formula(s.cotangent())[0]) for s in group)
    assert abs(loss - total) <= limit * max(abs(total), 1)
    compared(found, {s.name: s.wanted()[1] for s in group}, limit)


@pytest.mark.parametrize("opset", OPSETS)
def test_gradients_with_groups_are_those_without(run, tmp_path, spellings, opset):
    need_recognize(run)
    group = of_opset(spellings, opset)
    words = written(tmp_path, group, losses=True)
    loss, found = gradients(run, tmp_path, group, words, "--engine=interp")
    plain_loss, plain = gradients(run, tmp_path, group, words, "--engine=interp", WITHOUT)
    assert abs(loss - plain_loss) <= tolerances.limit("groups f64") * abs(plain_loss)
    compared(found, plain, tolerances.limit("groups f64"))


def recognized_in(dump, spellings):
    """Names of the spellings whose nodes are a call of an attention; the call's location says which spelling it was."""
    groups = re.findall(r"^  group attention @([\w.]+)", dump, re.M)
    calls = re.findall(r"^.* = call .*callee = @([\w.]+).* loc \"([^\"]*)\"", dump, re.M)
    places = [where for callee, where in calls if callee in groups]
    return {s.name for s in spellings if any(where.startswith(s.name[:5]) for where in places)}


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_spellings_are_recognized(run, tmp_path, spellings, precision):
    """Of casts, which bf16 has, too. What is not recognized is said once."""
    need_recognize(run)
    missed, unsaid = set(), []
    for opset in OPSETS:
        group = of_opset(spellings, opset)
        written(tmp_path, group)
        done = run("dump", "model.onnx", "--after=recognize", f"--precision={precision}")
        lost = {s.name for s in group} - recognized_in(done.stdout, group)
        missed |= lost
        for s in group:
            notes = [line for line in done.stderr.splitlines() if line.startswith("gradc: note: ") and s.name[:5] in line and "attention" in line]
            if len(notes) != (s.name in lost):
                unsaid.append((s.name, notes))
    assert sorted(missed) == sorted(MISSES) and len(MISSES) <= MOST_MISSES
    assert all(MISSES.values()) and not unsaid
