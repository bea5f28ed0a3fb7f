"""A sample of tests/differential, so that the tool does not rot: it finds nothing here, and it would."""
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent / "differential"))
import explained  # noqa: E402
import judge  # noqa: E402

FUZZ = Path(__file__).resolve().parent / "differential/fuzz.py"


def fuzz(gradc, *options):
    done = subprocess.run([sys.executable, FUZZ, "--gradc", gradc, *options], text=True, timeout=300,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout


def test_sample_has_no_findings(gradc):
    code, text = fuzz(gradc, "--first", "200000", "--count", "160", "--compiled-every", "20")
    assert code == 0, text
    assert text.splitlines()[-1].startswith("160 cases, 1"), text  # most of them compared
    assert " 0 findings" in text.splitlines()[-1], text


def test_wrong_type_is_found(gradc, tmp_path):
    wrong = tmp_path / "gradc"
    wrong.write_text(f'#!/bin/sh\nexec {gradc} "$@" --precision=f64\n')
    wrong.chmod(0o755)
    code, text = fuzz(wrong, "--count", "12", "--compiled-every", "0")
    assert code == 1, text
    assert "type float64, expected float32" in text


def test_a_number_is_a_case(gradc, tmp_path):
    """Twice the same number: the same model, byte for byte."""
    models = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        code, text = fuzz(gradc, "--only", "6", "--keep", folder)
        assert code == 0, text
        models.append((folder / "6/model.onnx").read_bytes())
    assert models[0] == models[1]


NAN = np.float32(np.nan)
ROWS = {  # operator, attributes, inputs, what gradc gives, what is right; the row that explains it
    "log of zero": ("Log", {}, [np.float32([1e-8, 2])], np.float32([NAN, 0.693147]), np.float32([-18.42, 0.693147]), "cancellation"),
    "log": ("Log", {}, [np.float32([3, 2])], np.float32([1, 2]), np.float32([1.0986123, 0.693147]), None),
    "log of another": ("Log", {}, [np.float32([1e-8, 2])], np.float32([NAN, 2]), np.float32([-18.42, 0.693147]), None),
    "bits": ("BitCast", {}, [np.float32([NAN, 1])], np.int32([-1, 5]), np.int32([-1, 6]), None),
    "no batch": ("GRU", {}, [np.zeros((3, 0, 2), np.float32)], np.float32([1]), np.float32([2]), None),
    "no steps": ("GRU", {}, [np.zeros((0, 3, 2), np.float32)], np.float32([1]), np.float32([2]), "recurrence of nothing"),
    "within the windows": ("ConvTranspose", {"output_shape": [3]}, [np.ones((1, 1, 2), np.float32)] * 2, np.ones((1, 1, 3), np.float32),
                           np.zeros((1, 1, 3), np.float32), None),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_explain_no_other_fault(name):
    op, attributes, inputs, got, want, row = ROWS[name]
    model = onnx.helper.make_model(onnx.helper.make_graph([onnx.helper.make_node(op, ["x"], ["y"], **attributes)], "g", [], []))
    place = judge.Place(model.graph.node[0], "", inputs, got, want, False)
    assert explained.of_values(SimpleNamespace(model=model, feed={}), place, {"y": "1 of 2 differ"}) == row
