"""Each fuzzer for a few seconds over the kept corpus; $GRADC_FUZZ_SECONDS says how many."""
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.skipif(not shutil.which("clang"), reason="clang is not installed")
@pytest.mark.parametrize("target", ["onnx", "operators", "gir", "passes", "graph", "checkpoint", "weights"])
def test_fuzz(target):
    seconds = os.environ.get("GRADC_FUZZ_SECONDS", "20" if os.environ.get("GRADC_THOROUGH") else "6")
    done = subprocess.run([ROOT / "tests/fuzz/run", seconds, target], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
