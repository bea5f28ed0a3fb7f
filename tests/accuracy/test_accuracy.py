"""The scalar functions keep what docs/accuracy.md promises, and printers agree in every bit. `make accuracy`
tries all of f32; here every 1021st."""
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def promised():
    """{(function, type): ulp} as the page has them."""
    rows = re.findall(r"^\| (\w+) \| ([0-9.]+) \| ([0-9.]+) \|", (ROOT / "docs/accuracy.md").read_text(),
                      re.M)
    return {(name, t): float(u) for name, *ulps in rows for t, u in zip(["f32", "f64"], ulps)}


@pytest.fixture(scope="module")
def measured(build):
    """{(function, type): (ulp, promised ulp, bits that differ)}"""
    program = build / "tests/accuracy"
    if not program.exists():
        pytest.skip(f"{program} is not built")
    done = subprocess.run([program, "1021"], text=True, capture_output=True)
    rows = re.findall(r"^(\w+) +(f\d\d) +([0-9.inf]+) ulp at \S+ +promised ([0-9.]+), (\d+) bits",
                      done.stdout, re.M)
    assert rows, done.stderr
    return {(name, t): (float(u), float(p), int(d)) for name, t, u, p, d in rows}


@pytest.mark.parametrize("name, dtype", sorted(promised()))
def test_promise_is_kept(measured, name, dtype):
    ulp, bound, different = measured[name, dtype]
    assert ulp <= bound == promised()[name, dtype] and different == 0


def test_every_function_is_promised(measured):
    assert set(measured) == set(promised())
