"""Every name in the lists of tests that are left out, or that `make check` takes, is that of a test."""
import os
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
import conftest  # noqa: E402

RUN = SourceFileLoader("run_tests", str(ROOT / "scripts/test")).load_module()


@pytest.fixture(scope="module")
def names():
    """Of all tests: `test_file.py::test[case]`. Folders whose files share names are collected one by one, as they are run."""
    apart = ["tests/dist", "tests/cuda", "tests/quantize"]
    found = set()
    for what in (["tests", *(f"--ignore={part}" for part in apart)], *([part] for part in apart)):
        said = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only", *what], cwd=ROOT,
                              env={**os.environ, "GRADC_KILLS": "4"}, check=True, capture_output=True, text=True).stdout
        found |= {line.rsplit("/", 1)[-1] if "[" not in line else line[:line.index("[")].rsplit("/", 1)[-1] + line[line.index("["):]
                  for line in said.splitlines() if "::" in line}
    return found


def test_what_is_left_out_is_there(names):
    lists = conftest.THOROUGH + conftest.THOROUGH_SANITIZED
    assert [entry for entry in lists if not any(conftest.is_among(name, [entry]) for name in names)] == []


def test_what_is_run_by_name_is_there(names):
    files = [entry.split("::") for part in [*RUN.CHECKED, *RUN.PARTS, *(both[1] for both in RUN.SANITIZED.values()), RUN.ON_PRETENDED_GPU]
             for entry in ([part] if isinstance(part, str) else part) if entry.startswith("tests/")]
    for path, *test in files:
        assert (ROOT / path).exists(), path
        assert not test or any(name.startswith(f"{Path(path).name}::{test[0]}") for name in names), (path, test)
    units = {source.stem for source in (ROOT / "tests/unit").rglob("*_test.c")}
    assert {*RUN.SLOW, "conversions_test", "dtypes_test"} <= units
