"""The man page and the shell completion know every option that the programs know."""
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OPTION = re.compile(r"--[a-z][a-z0-9-]*")


def man_page():
    return (ROOT / "docs/gradc.1").read_text().replace("\\-", "-")


def man_options(first, last):
    """The options that the paragraphs between two sections are about: those of their tags."""
    text = man_page()
    text = text[text.index(f".SH {first}"):text.index(f".SH {last}")]
    return {o for tag in re.findall(r"^\.TP\n(.*)$", text, re.M) for o in OPTION.findall(tag)}


def help_options(text):
    return set(OPTION.findall("\n".join(re.findall(r"^  (?:-., )?--[a-z][a-z0-9-]*", text, re.M))))


def test_the_man_page_has_gradcs_options(run):
    assert man_options("OPTIONS", "THE TRAINING") == help_options(run("compile", "--help").stdout)


def test_the_man_page_has_the_executables_options(run, models, tmp_path):
    exe = tmp_path / "train"
    run("compile", models / "lr_iris_ml/model.onnx", "-o", exe, "--dim=batch=1",
        "--loss=bce_with_logits")
    assert man_options("THE TRAINING", "FILES") == help_options(run(exe, "--help").stdout)


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
    line = re.search(rf"^ +--{kind}=(\S+)", run("compile", "--help").stdout, re.M)
    assert [v for v in line[1].split("|") if ":" not in v] == row_names(kind)
    assert not [name for name in row_names(kind) if name not in man_page()]


@pytest.mark.parametrize("words, want", [
    (["gradc", "ch"], {"check"}),
    (["gradc", "compile", "--optim"], {"--optimizer="}),
    (["gradc", "compile", "--optimizer", "=", "ne"], {"nesterov"}),
    (["gradc", "compile", "--loss", "cr"], {"cross_entropy"}),
    (["gradc", "compile", "--loss", "o"], {"onnx:", "output:"}),
    (["gradc", "compile", "--init", "r"], {"random"}),
    (["gradc", "compile", "--train", "=", "ke"], set()),
    (["gradc", "compile", "--train-mode", "=", "ke"], {"keep"}),
    (["gradc", "check", "--table", "f"], {"full"}),
    (["gradc", "dump", "--after", "tr"], {"trainable"}),
    (["gradc", "dump", "--dump-after", "al"], {"all"}),
    (["gradc", "dump", "--stage", "lo"], {"lowered"}),
])
def test_completion(build, words, want):
    done = subprocess.run(["bash", "-c", COMPLETE, "_", ROOT / "scripts/completion/gradc", *words],
                          env={"PATH": f"{build}:/usr/bin:/bin"}, capture_output=True, text=True)
    assert set(done.stdout.split()) == want


def test_the_ops_page_is_that_of_the_rows(build):
    """`make docs` writes it."""
    page = subprocess.run([build / "tests/ops_page"], check=True, capture_output=True, text=True)
    assert page.stdout == (ROOT / "docs/ops.md").read_text()
