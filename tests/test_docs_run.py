"""The command lines of README.md, docs/ and examples/ run and print what the pages say (`scripts/docs-run`, the fast ones; all: `make docs-run`)."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").glob("*/README.md"))]


@pytest.fixture
def docs_run(build):
    def run_it(*arguments, exit=0):
        done = subprocess.run([sys.executable, ROOT / "scripts/docs-run", *arguments], env=os.environ | {"GRADC_BUILD": str(build)},
                              capture_output=True, text=True, timeout=600)
        assert done.returncode == exit, done.stdout + done.stderr
        return done.stdout

    return run_it


@pytest.mark.parametrize("page", [p for p in PAGES if "```" in p.read_text()], ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_print_what_the_page_says(docs_run, page):
    print(docs_run("--fast", page))


TRAINING = """
<!-- docs-run: model: mlp_digits -->
```
$ gradc compile model.onnx -o train --batch 32 --loss cross_entropy
...
  30 kernels; 2.766 MFLOP a micro-batch, forward and backward
...
$ ./train --data input=input.npy --data labels=labels.npy --steps 20 --table off
step 1/20  loss 2.2975  lr 0.001  1.0k rows/s  9.9 step/s  1.1 MiB  left 1:07
step 20/20  loss ...
steps 20, loss 2.157138
...
```
"""


@pytest.fixture
def page(docs_run, tmp_path):
    """page(TEXT, exit): what docs-run prints of a page."""
    def run_it(text, exit=1):
        (tmp_path / "page.md").write_text(text)
        return docs_run(tmp_path / "page.md", exit=exit)

    return run_it


def test_a_page_that_is_right(page):
    """Rates, times and a run's memory are others each time."""
    assert page(TRAINING, exit=0) == "2 commands ran, 0 faults\n"


@pytest.mark.parametrize("right, wrong", [("loss 2.157138", "loss 2.137138"), ("loss 2.2975", "loss 2.3075"), ("30 kernels", "31 kernels"),
                                          ("step 20/20", "step 19/20"), ("...\n  30 kernels", "  30 kernels")])
def test_what_is_printed_otherwise_is_a_fault(page, right, wrong):
    assert right in TRAINING
    said = page(TRAINING.replace(right, wrong))
    assert "prints something else" in said and ", 1 faults" in said


def test_lines_behind_the_last_one_are_a_fault(page):
    assert "(the end)" in page("```\n$ printf 'one\\ntwo\\n'\none\n```\n")
    assert page("```\n$ printf 'one\\ntwo\\n'\none\n...\n```\n", exit=0)


@pytest.mark.parametrize("text, said", [
    ("```\n$ gradc check no.onnx\n```\n", "exit code 5, expected 0"),
    ("<!-- docs-run: exit: 5 -->\n```\n$ true\n```\n", "exit code 0, expected 5"),
    ("<!-- docs-run: before: false -->\n```\n$ true\n```\n", "before: false"),
    ("```\ngradc check model.onnx\n```\n", "a command without `$ `"),
    ("```\nand then\n$ true\n```\n", "does not begin with `$ `"),
    ("By hand:\n\n    gradc check model.onnx\n", "outside of a fenced block"),
    ("<!-- docs-run: skip -->\n```\n$ false\n```\n", "says nothing behind its colon"),
    ("<!-- docs-run: skipped: later -->\n```\n$ false\n```\n", "is not a mark"),
    ("<!-- docs-run: slow -->\n\nText.\n\n```\n$ true\n```\n", "a mark that no block follows"),
    ("<!-- docs-run: slow -->\n```\nno command\n```\n", "a mark before a block without commands"),
    ("<!-- docs-run: slow -->\n", "a mark that no block follows"),
])
def test_a_fault_is_named(page, text, said):
    assert said in page(text)


def test_what_does_not_run_is_counted_with_its_reason(page, docs_run, tmp_path):
    text = "<!-- docs-run: skip: needs a GPU -->\n```\n$ false\n$ false\n```\n\n<!-- docs-run: slow -->\n```\n$ false\n```\n"
    said = page(text)
    assert "page.md:3: not run: needs a GPU" in said and "1 commands ran, 1 faults; 2 not run: needs a GPU" in said
    assert "0 commands ran, 0 faults; 2 not run: needs a GPU; 1 not run: slow" in docs_run("--fast", tmp_path / "page.md")
    assert "0 commands ran, 0 faults; 2 not run: later" in page("<!-- docs-run: skip: later -->\n```\nmake demo\nmake test\n```\n", exit=0)


def test_marks_in_several_lines_and_files_that_pages_show(page):
    text = "<!-- docs-run\nbefore: echo 1 > a\nexit: 3\n-->\n```\n$ cat a && exit 3\n1\n```\n\n<!-- docs-run: writes: b -->\n```\n$ cat b\ntwo\n$ wc -l \\\n  b\n1 b\n```\n"
    assert page(text, exit=0) == "3 commands ran, 0 faults\n"
