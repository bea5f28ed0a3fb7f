"""Malformed models: each exits with its code, one line a fault, in 2 s and 1 GiB, and leaves nothing."""
import os
import resource
import subprocess
import sys
import time

import pytest

sys.path.insert(0, os.path.dirname(__file__))
from make_malformed import cases  # noqa: E402

SECONDS, BYTES = 2.0, 1 << 30
SANITIZED = bool(os.environ.get("GRADC_SANITIZED"))  # shadow memory breaks limits and times
SLOW = {"G10-long-chain": 60.0}  # valid, and a million nodes: bounded, not fast


def limit():
    if not SANITIZED:
        resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))


@pytest.mark.parametrize("case", cases(), ids=lambda c: c.name)
def test_malformed(gradc, case, tmp_path):
    case.write(str(tmp_path))
    path = str(tmp_path / "model.onnx")
    before = sorted(os.listdir(tmp_path))
    slow = case.name in SLOW
    start = time.monotonic()
    done = subprocess.run([gradc, "check", path], capture_output=True, timeout=60,
                          preexec_fn=None if slow else limit)
    seconds = time.monotonic() - start
    text = done.stderr.decode()  # escaped, so always valid UTF-8
    assert done.returncode in case.codes, f"exit {done.returncode}: {text[:500]}"
    assert "runtime error" not in text and "AddressSanitizer" not in text, text[:2000]
    if done.returncode:
        errors = [line for line in text.split("\n") if line.startswith("gradc: error: ")]
        assert errors, text[:500]
        assert all("model.onnx" in line for line in errors[:100]), errors[:3]
    assert not any(ord(c) < 32 and c not in "\n\t" for c in text)
    assert SANITIZED or seconds <= SLOW.get(case.name, SECONDS)
    assert sorted(os.listdir(tmp_path)) == before
