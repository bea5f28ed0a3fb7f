"""What the tests on the pretended GPU share."""
import os
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "train"), str(TESTS / "codegen")]
os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # of a GPU that is none of ours
from pretended import Pretended  # noqa: E402


@pytest.fixture(scope="session")
def gpu(build, gradc, models, tmp_path_factory):
    """What compiles for the pretended GPU and runs there: pretended.py."""
    return Pretended(build, gradc, models, tmp_path_factory.mktemp("executables"))
