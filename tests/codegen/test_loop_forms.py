"""Forms of loop IR that `lower` does not make, or not always: the same bits from the interpreter and every printer."""
import subprocess

import pytest


@pytest.fixture
def compare(build, tmp_path):
    """Compares kernels given as text; returns the line of counts."""
    path = build / "tests/compare_kernels"
    if not path.exists():
        pytest.skip(f"{path} is not built")

    def run(kernels):
        (tmp_path / "m.gir").write_text(f'module @"m" {{\n{kernels}}}\n')
        done = subprocess.run([path, tmp_path / "m.gir"], text=True, capture_output=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()[-1]

    return run


LANES = """
  kernel @lanesN(x0: in f32[3,70], y0: out f32[3,2]) flops 0 {
    parallel v0 < 3 {
      vector v1 < 70 (v2: add f32 lanes N, v3: max f32 lanes N) {
        v4 = load x0[70*v0 + v1] : f32
        accumulate v4, v2
        accumulate v4, v3
      }
      vector v5 < min(70, 20*v0 + 7) (v6: mul f32 lanes N) {
        v7 = load x0[70*v0 + v5] : f32
        accumulate v7, v6
      }
      v8 = add v3, v6 : f32
      store y0[2*v0] = v2
      store y0[2*v0 + 1] = v8
    }
  }
"""


def test_fewer_lanes(compare):
    counts = compare("".join(LANES.replace("N", str(n)) for n in (1, 2, 4, 8, 16)))
    assert counts.startswith("5 kernels")


NESTED = """
  kernel @nested(x0: in f32[5,70], y0: out f32[2]) flops 0 {
    for v0 < 5 (v1: add f32) {
      vector v2 < 70 {
        v3 = load x0[70*v0 + v2] : f32
        accumulate v3, v1
      }
      for v4 < min(3, v0) {
        v5 = load x0[70*v0 + v4] : f32
        accumulate v5, v1
      }
    }
    for v6 < 5 (v7: add f32) {
      vector v8 < min(70, 20*v6 + -3) (v9: max f32 lanes 16) {
        v10 = load x0[70*v6 + v8] : f32
        accumulate v10, v7
        accumulate v10, v9
      }
      accumulate v9, v7
    }
    store y0[0] = v1
    store y0[1] = v7
  }
"""


def test_an_outer_accumulator_takes_lanes_in_order(compare):
    assert compare(NESTED).startswith("1 kernels")
