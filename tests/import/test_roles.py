"""Verdicts that hang on the values of a tensor: tables of positions, and single numbers."""
import json

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

ANGLES = np.arange(16)[:, None] / 10000 ** (np.arange(4) / 4)
SINUSOIDAL = np.stack([np.sin(ANGLES), np.cos(ANGLES)], -1).reshape(16, 8)
PARAMETERS = np.random.default_rng(0).standard_normal((16, 8))


def verdict(run, folder, table, *options, nodes=(("Add", ["x", "table"], ["y"]),)):
    """(kind, why) of "table" in y = x + table; None where it is not listed."""
    table = numpy_helper.from_array(table, "table")
    ports = [helper.make_tensor_value_info(n, table.data_type, table.dims or [4]) for n in "xy"]
    graph = helper.make_graph([helper.make_node(*n) for n in nodes], "g", ports[:1], ports[1:], [table])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), folder / "model.onnx")
    said = json.loads(run("check", "--json", "model.onnx", *options).stdout)
    return {p["name"]: (p["kind"], p["why"]) for p in said["parameters"]}.get("table")


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("table", [
    pytest.param(np.cos(np.tile(ANGLES, 2)), id="rotary, cosines"),
    pytest.param(np.sin(np.tile(ANGLES, 2)), id="rotary, sines"),
    pytest.param(SINUSOIDAL, id="sinusoidal"),
    pytest.param(SINUSOIDAL[:, None], id="rows between"),
    pytest.param(SINUSOIDAL.T[None], id="positions last"),
    pytest.param(SINUSOIDAL[:6], id="six positions"),
])
def test_a_table_of_positions_is_frozen(run, tmp_path, table, dtype):
    table = table.astype(dtype)
    assert verdict(run, tmp_path, table) == ("frozen", "sines and cosines of positions")
    for option in "--no-repair=tables", "--train=table":
        assert verdict(run, tmp_path, table, option)[0] == "trainable"


@pytest.mark.parametrize("table", [
    pytest.param(PARAMETERS, id="random"),
    pytest.param(np.zeros((16, 8)), id="zeros"),
    pytest.param(np.ones((16, 8)), id="ones"),
    pytest.param(np.arange(16)[:, None] * np.ones(8), id="a ramp"),
    pytest.param(np.where(np.arange(8) == 5, PARAMETERS, SINUSOIDAL), id="one line is none"),
    pytest.param(np.where(np.arange(8) == 0, abs(SINUSOIDAL), SINUSOIDAL), id="one line is bent"),
    pytest.param(SINUSOIDAL[3:], id="from elsewhere"),
    pytest.param(SINUSOIDAL[:5], id="too few to tell"),
])
def test_what_only_looks_like_one_is_trained(run, tmp_path, table):
    assert verdict(run, tmp_path, table.astype(np.float32))[0] == "trainable"


@pytest.mark.parametrize("option, want", [("--train=table", "trainable"), ("--freeze=*", None), ("--train=t*", None)])
def test_one_number_is_trained_if_named(run, tmp_path, option, want):
    """exp(table) x, as a logit scale: a number that has no name for it is a constant."""
    nodes = [("Exp", ["table"], ["e"]), ("Mul", ["e", "x"], ["y"])]
    table = np.float32(2)
    if want:
        assert verdict(run, tmp_path, table, option, nodes=nodes) == (want, option)
    else:
        with pytest.raises(AssertionError, match="fits no parameter"):
            verdict(run, tmp_path, table, option, nodes=nodes)
    assert verdict(run, tmp_path, table, nodes=nodes) is None
