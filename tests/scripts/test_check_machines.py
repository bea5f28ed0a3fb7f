"""scripts/check-machines accepts this repository, and refuses a machine's name under ir/."""
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def check(root):
    return subprocess.run([ROOT / "scripts/check-machines", root], text=True, capture_output=True)


def test_this_repository():
    done = check(ROOT)
    assert (done.stdout, done.returncode) == ("", 0)


def test_a_machine_in_ir(tmp_path):
    (tmp_path / "ir/ops").mkdir(parents=True)
    (tmp_path / "ir/ops/x.c").write_text("int n;\n/* as many as AVX2 has registers */\n")
    done = check(tmp_path)
    assert done.stdout.splitlines() == [
        'ir/ops/x.c:2: "AVX2": ir/ is for every machine',
        'ir/ops/x.c:2: "registers": ir/ is for every machine']
    assert done.returncode == 1


@pytest.mark.parametrize("text, found", [
    ("enum { CACHE_ELEMENTS = 16384 };", "CACHE"), ("int64_t L2_bytes;", "L2_bytes"), ("int cacheline = 64;", "cacheline"),
    ("bool has_avx512f;", "avx512f"), ("/* two zmm each */", "zmm"), ("v = zmm31;", "zmm31"), ("/* of the L1 cache */", "L1 cache"),
    ("int cache_line;", "cache_line"), ("if (cpu_is_intel())", "cpu"), ("int n_registers;", "registers"), ("sm_90a", "sm_90a")])
def test_each_way_to_say_it(tmp_path, text, found):
    (tmp_path / "ir").mkdir()
    (tmp_path / "ir/x.h").write_text(text + "\n")
    done = check(tmp_path)
    assert done.stdout.splitlines()[0] == f'ir/x.h:1: "{found}": ir/ is for every machine'
    assert done.returncode == 1


@pytest.mark.parametrize("text", ["/* intelligible, cached, a harmless line */", "int l1, line; /* l1 loss, l2 norm */", "fma3(b, x, y, z)",
                                  "/* registered */", "alarm", "/* vector lanes of a team */"])
def test_other_words(tmp_path, text):
    (tmp_path / "ir").mkdir()
    (tmp_path / "ir/x.c").write_text(text + "\n")
    assert check(tmp_path).returncode == 0
