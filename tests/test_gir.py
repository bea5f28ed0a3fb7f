"""Runs the .gir files of tests/ir and tests/passes.

`; RUN: COMMAND` lines are run by bash with %s (the file), %t (a scratch path) and the words gradc,
FileCheck and not; each must succeed. A file without RUN lines is a list of modules split by
`; -----`: reading each must report exactly the faults that its `; ERROR: TEXT` comments name, each
with FILE:LINE of its comment.
"""
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
FILES = sorted([*HERE.glob("ir/**/*.gir"), *HERE.glob("passes/**/*.gir")])
RUN = re.compile(r"^\s*; RUN: (.*)$", re.M)
ERROR = re.compile(r"; ERROR: (.*?)\s*$")


def file_check():
    names = ["FileCheck", "FileCheck-14", "/usr/lib/llvm-14/bin/FileCheck"]
    return next((found for n in names if (found := shutil.which(n))), None)


def prelude(gradc):
    return f"""
set -o pipefail
gradc() {{ {shlex.quote(str(gradc))} "$@"; }}
FileCheck() {{ {shlex.quote(file_check() or "false")} "$@"; }}
not() {{ "$@"; local code=$?; [ $code -ne 0 ] && [ $code -lt 128 ]; }}
"""


def run_lines(gradc, path, scratch):
    for line in RUN.findall(path.read_text()):
        if "FileCheck" in line and not file_check():
            pytest.skip("FileCheck is not installed (package llvm-14-tools)")
        command = line.replace("%s", shlex.quote(str(path))).replace("%t", str(scratch / "t"))
        done = subprocess.run(["bash", "-c", prelude(gradc) + command], cwd=scratch, text=True,
                              capture_output=True, timeout=120, env={**os.environ, "LC_ALL": "C"})
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"


def expected_faults(text):
    """[(line, text)] of the ERROR comments."""
    return [(number, match[1]) for number, line in enumerate(text.splitlines(), 1)
            if (match := ERROR.search(line))]


def matches(message, path, line, text):
    if text not in message:
        return False
    place = re.search(rf"{re.escape(str(path))}:(\d+):", message)
    return bool(place) and int(place[1]) == line


def check_faults(gradc, path, scratch):
    for n, chunk in enumerate(path.read_text().split("; -----\n")):
        piece = scratch / f"piece{n}.gir"
        piece.write_text(chunk)
        want = expected_faults(chunk)
        assert want, f"module {n} expects no fault"
        done = subprocess.run([gradc, "opt", piece, "--passes="], text=True, capture_output=True,
                              timeout=60)
        said = [s for s in done.stderr.splitlines() if s.startswith("gradc: error: ")]
        assert done.returncode == 3, f"module {n}: exit {done.returncode}\n{chunk}\n{done.stderr}"
        for line, text in want:
            found = next((s for s in said if matches(s, piece, line, text)), None)
            assert found, f"module {n}, line {line}: no fault `{text}` in\n{done.stderr}"
            said.remove(found)
        assert not said, f"module {n}: unexpected faults\n" + "\n".join(said)


@pytest.mark.parametrize("path", FILES, ids=[str(p.relative_to(HERE)) for p in FILES])
def test_gir(gradc, tmp_path, path):
    if RUN.search(path.read_text()):
        run_lines(gradc, path, tmp_path)
    else:
        check_faults(gradc, path, tmp_path)
