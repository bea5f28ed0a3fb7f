"""scripts/check-ops accepts this repository, and refuses a question that is not listed."""
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def check(root):
    return subprocess.run([ROOT / "scripts/check-ops", root], text=True, capture_output=True)


def test_this_repository():
    done = check(ROOT)
    assert done.returncode == 0, done.stdout


def test_a_new_question(tmp_path):
    for folder in ("passes", "scripts"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    (tmp_path / "passes/new.c").write_text("if (n->op == OP_exp)\n")
    done = check(tmp_path)
    assert done.returncode == 1
    assert "passes/new.c: 1 questions" in done.stdout
