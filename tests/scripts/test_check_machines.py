"""scripts/check-machines accepts this repository, and refuses a machine's name under ir/."""
import subprocess
from pathlib import Path

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
