"""The man page and the shell completion know every option that the programs know."""
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OPTION = re.compile(r"^ +(--[a-z0-9-]+)(.*)$", re.M)


def man_page():
    return (ROOT / "docs/gradc.1").read_text().replace("\\-", "-")


def options(text):
    return {name for name, rest in OPTION.findall(text)
            if not rest.endswith(("not in this build", "accepted"))}


def test_the_man_page_has_gradcs_options(run):
    page = man_page()
    missing = {o for o in options(run("compile", "--help").stdout) if o not in page}
    # Only their default is accepted.
    assert missing <= {"--target", "--data-parallel"}


def test_the_man_page_has_the_executables_options(run, models, tmp_path):
    exe = tmp_path / "train"
    run("compile", models / "lr_iris_ml/model.onnx", "-o", exe, "--dim=batch=1",
        "--loss=bce_with_logits")
    page = man_page()
    known = {"--device", "--threads", "--deterministic", "--help"}  # one value only, as yet
    assert {o for o in options(run(exe, "--help").stdout) if o not in page} <= known


def test_the_man_page_is_clean_troff():
    done = subprocess.run(["groff", "-t", "-man", "-ww", "-Tutf8", ROOT / "docs/gradc.1"],
                          capture_output=True, text=True) if subprocess.run(
        ["which", "groff"], capture_output=True).returncode == 0 else pytest.skip("no groff")
    assert not done.stderr


COMPLETE = r"""
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _gradc 2>/dev/null; printf '%s\n' "${COMPREPLY[@]}"
"""


def row_names(kind):
    lines = (ROOT / f"passes/{'losses' if kind == 'loss' else 'optimizers'}/{kind}_list.def")
    return re.findall(rf"^{kind.upper()}\((\w+)\)", lines.read_text(), re.M)


@pytest.mark.parametrize("kind", ["loss", "optimizer"])
def test_help_and_man_page_have_every_row(run, kind):
    line = re.search(rf"^ +--{kind}=\w+ +(.*?):", run("compile", "--help").stdout, re.M)
    assert line[1].split() == row_names(kind)
    assert not [name for name in row_names(kind) if name not in man_page()]


@pytest.mark.parametrize("words, want", [
    (["gradc", "ch"], {"check"}),
    (["gradc", "compile", "--optim"], {"--optimizer="}),
    (["gradc", "compile", "--optimizer", "=", "ne"], {"nesterov"}),
    (["gradc", "compile", "--loss", "cr"], {"cross_entropy"}),
    (["gradc", "compile", "--loss", "o"], {"onnx:", "output:"}),
    (["gradc", "dump", "--stage", "lo"], {"lowered"}),
])
def test_completion(build, words, want):
    done = subprocess.run(["bash", "-c", COMPLETE, "_", ROOT / "scripts/completion/gradc", *words],
                          env={"PATH": f"{build}:/usr/bin:/bin"}, capture_output=True, text=True)
    assert set(done.stdout.split()) == want
