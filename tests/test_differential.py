"""A sample of tests/differential, so that the tool does not rot: it finds nothing here, and it would."""
import subprocess
import sys
from pathlib import Path

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


def test_rows_explain_no_other_fault():
    """In a process of its own: modules of tests/differential have names that others have too."""
    done = subprocess.run([sys.executable, FUZZ.parent / "rows.py"], text=True, capture_output=True)
    assert done.returncode == 0 and done.stdout.endswith(" rows, 0 wrong\n"), done.stdout + done.stderr
