"""Malformed models: each exits with its code, one line a fault, in 1 GiB, and leaves nothing."""
import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(__file__))
from make_malformed import cases  # noqa: E402
from measure import measure  # noqa: E402

BYTES = 1 << 30
SANITIZED = bool(os.environ.get("GRADC_SANITIZED"))  # shadow memory breaks limits and times


@pytest.mark.parametrize("case", cases(), ids=lambda c: c.name)
def test_malformed(gradc, case, tmp_path):
    case.write(str(tmp_path))
    path = str(tmp_path / "model.onnx")
    before = sorted(os.listdir(tmp_path))
    code, text, size = measure([gradc, "check", path], timeout=600 if SANITIZED else 60)
    assert code in case.codes, f"exit {code}: {text[:500]}"  # text is escaped: always valid UTF-8
    assert "runtime error" not in text and "AddressSanitizer" not in text, text[:2000]
    if code:
        errors = [line for line in text.split("\n") if line.startswith("gradc: error: ")]
        assert errors, text[:500]
        assert all("model.onnx" in line for line in errors[:100]), errors[:3]
    assert not any(ord(c) < 32 and c not in "\n\t" for c in text)
    assert SANITIZED or size <= BYTES
    assert sorted(os.listdir(tmp_path)) == before
