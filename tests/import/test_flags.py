"""Attributes that say yes or no are 0 or 1: by operator, in every opset that has them. schema_list.def is what make_schema.py writes."""
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import defs, helper

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "frontend/file"))
import make_schema  # noqa: E402

SCHEMAS = {(s.name, s.since_version): s for s in defs.get_all_schemas_with_history() if s.domain == "" and not s.deprecated}
FLAGS = [(op, max(version, 7), name) for (op, version), s in sorted(SCHEMAS.items()) for name in make_schema.FLAGS.get(op, "").split()
         if name in s.attributes and defs.get_schema(op, max(version, 7)).since_version == version]
OTHERS = [("Concat", 13, "axis"), ("Cast", 13, "to"), ("RoiAlign", 16, "sampling_ratio"), ("LpPool", 18, "p")]


def said(run, folder, op, opset, name, value):
    """What check says of the operator with x as its inputs and with the attributes it needs, the flag among them."""
    schema = defs.get_schema(op, opset)
    needed = {k: {"INT": 1, "INTS": [1], "STRING": "x"}[str(a.type).rsplit(".", 1)[-1]] for k, a in schema.attributes.items() if a.required}
    node = helper.make_node(op, ["x"] * max(schema.min_input, 1), [f"y{i}" for i in range(schema.min_output)], **{**needed, name: value})
    ports = [helper.make_tensor_value_info(n, 1, [1, 1, 2, 2]) for n in ("x", "y0")]
    onnx.save(helper.make_model(helper.make_graph([node], "g", ports[:1], ports[1:]), ir_version=8,
                                opset_imports=[helper.make_opsetid("", opset)]), folder / "model.onnx")
    done = run("check", "model.onnx", exit=None)
    return done.returncode, done.stderr


@pytest.mark.parametrize("op, opset, name", FLAGS)
def test_a_flag_is_0_or_1(run, tmp_path, op, opset, name):
    code, text = said(run, tmp_path, op, opset, name, 2)
    assert code == 3 and f'attribute "{name}" is 2, not 0 or 1' in text
    assert "not 0 or 1" not in said(run, tmp_path, op, opset, name, 1)[1]


@pytest.mark.parametrize("op, opset, name", OTHERS)
def test_other_integers_are_any(run, tmp_path, op, opset, name):
    assert "not 0 or 1" not in said(run, tmp_path, op, opset, name, 2)[1]


def test_the_list_is_what_the_package_says():
    made = subprocess.run([sys.executable, ROOT / "frontend/file/make_schema.py"], capture_output=True, text=True, check=True).stdout
    assert made == (ROOT / "frontend/file/schema_list.def").read_text()
