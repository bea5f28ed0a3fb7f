"""scripts/check-ops accepts this repository, and refuses a question that is not listed."""
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def check(root):
    return subprocess.run([ROOT / "scripts/check-ops", root], text=True, capture_output=True)


def test_this_repository():
    done = check(ROOT)
    assert done.returncode == 0, done.stdout


def test_a_folder_whose_files_may_ask(tmp_path):
    """A new recognizer needs no row."""
    for folder in ("ir", "codegen", "passes", "frontend", "driver", "tools", "scripts"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    (tmp_path / "ir/groups/new.c").write_text("if (n->op == OP_exp)\n")
    assert check(tmp_path).returncode == 0
    rows = tmp_path / "scripts/op-questions.txt"
    rows.write_text("\n".join(row for row in rows.read_text().splitlines() if not row.startswith("ir/groups/")))
    assert "ir/groups/new.c: 1 questions" in check(tmp_path).stdout


@pytest.mark.parametrize("code, n", [
    ("if (n->op == OP_exp)", 1),
    ("case OP_exp: return", 1),
    ("static const OpKind set[] = {OP_exp, OP_log};", 2),
    ("static const struct { OpKind op; bool wide; } rows[] = {\n\t{OP_exp, true},\n\t{OP_log, false}};", 2),
    ("static const OpKind op_of[] = {[SUM] = OP_add, [PRODUCT] = OP_mul};", 2),
    ("static const bool is[] = {[OP_exp] = true};", 1),
    ("return row == op_table[OP_exp];", 1),
    # no questions: nodes that are built, and a row about one op
    ("Value *x[] = {y, b_unary(b, OP_exp, b_unary(b, OP_log, y))};", 0),
    ("static Value *f(Builder *b, Value *x) { return b_unary(b, OP_exp, x); }", 0),
    ("const Strategy s = {.op = OP_exp, .takes = takes};", 0),
])
def test_a_new_question(tmp_path, code, n):
    for folder in ("passes", "scripts"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    (tmp_path / "passes/new.c").write_text(code + "\n")
    done = check(tmp_path)
    assert ("passes/new.c" in done.stdout) == (n > 0)
    assert not n or f"passes/new.c: {n} questions" in done.stdout
