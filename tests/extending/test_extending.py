"""The patches that docs/extending.md explains: each applies to this tree, builds, and works by the
command line. All are applied to one copy of the sources, built once."""
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATCHES = sorted(Path(__file__).parent.glob("*.patch"))
SKIP = re.compile(r"tests/models/.*(?<!\.py)$|tests/fuzz/corpus/|examples/|docs/pictures/")


def execute(*command, **options):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=300,
                          **options)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def copy_sources(target):
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT,
                           check=True, capture_output=True, text=True).stdout.split("\0")
    for name in names:
        if name and not SKIP.match(name) and (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def schema(build):
    """onnx.proto as the build under test found it."""
    given = re.search(r"^ONNX_PROTO:\w+=(.+)$", (build / "CMakeCache.txt").read_text(), re.M)
    found = sorted(ROOT.glob(".venv/lib/python3*/site-packages/onnx/onnx.proto"))
    return given[1] if given else found[0]


@pytest.fixture(scope="module")
def tree(build, tmp_path_factory):
    """The patched copy, built: asserts on, the verifier after every pass."""
    root = tmp_path_factory.mktemp("extended")
    copy_sources(root)
    for patch in PATCHES:
        execute("git", "apply", patch, cwd=root)
    execute("cmake", "-G", "Ninja", "-B", "build", "-DCMAKE_BUILD_TYPE=Debug",
            f"-DONNX_PROTO={schema(build)}", cwd=root)
    execute("cmake", "--build", "build", "--target", "gradc", "accuracy", "executable_help",
            "ops_page", "runtime_device_test", cwd=root)
    return root


@pytest.fixture(scope="module")
def extended(tree):
    return tree / "build/gradc"


def files_of(patch):
    return re.findall(r"^\+\+\+ b/(\S+)", patch.read_text(), re.M)


@pytest.mark.parametrize("patch", PATCHES, ids=[p.stem for p in PATCHES])
def test_the_page_counts_the_files(patch):
    """Its table says which files a patch touches: what is added, what gets a line."""
    row = re.search(rf"^\| `{patch.name}` \|(.*)\|$", (ROOT / "docs/extending.md").read_text(), re.M)
    assert sorted(re.findall(r"`(\S+/\S+)`", row[1])) == sorted(files_of(patch))
    assert len(files_of(patch)) == (5 if patch.stem == "op_atan" else 2)


@pytest.mark.parametrize("script", ["check-folders", "check-ops", "check-machines"])
def test_the_rules_of_the_house_hold(tree, script):
    execute(sys.executable, tree / "scripts" / script, tree)


def folded(extended, path, op, value):
    path.write_text("func @forward() -> f64[2] {\n"
                    f"  %0 = constant {{value = f64[2] [{value}, 3]}} : f64[2]\n"
                    f"  %1 = {op} %0 : f64[2]\n"
                    "  return %1\n"
                    "}\n")
    return execute(extended, "opt", path, "--passes=simplify")


def test_op(extended, tmp_path):
    assert "f64[2] [-8.0, 27.0]" in folded(extended, tmp_path / "a.gir", "cube", -2)
    assert "f64[2] [-0.7853981633974483, " in folded(extended, tmp_path / "a.gir", "atan", -1)


@pytest.mark.parametrize("op", ["cube", "atan"])
def test_the_tests_of_an_op(tree, op):
    """Its text, its gradient against differences, its kernel and its C against its eval, its facts."""
    said = execute(tree / "scripts/test-op", op, cwd=tree)
    assert "samples: " in said and "failed" not in said


def pytest_in(tree, models, *arguments):
    return execute(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments, cwd=tree,
                   env={**os.environ, "GRADC_BUILD": "build", "GRADC_MODELS": str(models)})


def test_accuracy_of_a_scalar_function(tree, models):
    assert " passed" in pytest_in(tree, models, "tests/accuracy", "-k", "atan or promised")


def test_the_tests_of_the_command_line_take_what_is_added(tree, models):
    """Nothing is listed in a test that a further row breaks; `make docs` writes the pages anew."""
    (tree / "docs/ops.md").write_text(execute(tree / "build/tests/ops_page"))
    (tree / "docs/gradc.1").write_text(execute(sys.executable, tree / "scripts/man-page",
                                               tree / "build"))
    pytest_in(tree, models, "tests/test_pipeline.py", "tests/test_cli.py", "tests/test_docs.py")


def test_pass(extended, models, tmp_path):
    text = tmp_path / "twins.gir"
    text.write_text("func @twins(%x: f32[4], %y: f32[4]) -> f32[4] {\n"
                    "  %0 = add %x, %y : f32[4]\n"
                    "  %1 = add %y, %x : f32[4]\n"
                    "  %2 = div %0, %1 : f32[4]\n"
                    "  return %2\n"
                    "}\n")
    lines = [line.split()[0] for line in execute(extended, "passes").splitlines()]
    assert lines[lines.index("commute") + 2] == "simplify"  # its option stands between
    oldest, newest = "%1 = add %x, %y", "%0 = add %y, %x"
    assert oldest not in execute(extended, "opt", text, "--passes=")
    assert oldest in execute(extended, "opt", text, "--passes=commute")
    assert newest in execute(extended, "opt", text, "--passes=commute{newest-first}")
    dump = [extended, "dump", models / "mlp_digits/model.onnx", "--loss=cross_entropy",
            "--dump-after=commute"]
    assert "; after commute" not in execute(*dump)
    oldest = execute(*dump, "--enable=commute", "--after=simplify")
    newest = execute(*dump, "--enable=commute", "--after=simplify",
                     "--pass-option=commute.newest-first=true")
    assert "; after commute" in oldest and "; after commute" in newest and oldest != newest


def train(extended, models, tmp_path, *options):
    """(first, last) evaluation loss of a short training, on the device of the patch."""
    folder, exe = models / "mlp_digits", tmp_path / "train"
    execute(extended, "compile", folder / "model.onnx", "-o", exe, "--batch=32", *options)
    data = [f"{name}={folder}/{name}.npy" for name in ("input", "labels")]
    said = execute(exe, *[w for d in data for w in ("--data", d, "--eval-data", d)], "--epochs=2",
                   "--device=guard", "--progress=plain", "--lr=0.001")
    return tuple(map(float, re.search(r"eval loss (\S+) -> ([0-9.]+)", said).groups()))


def test_optimizer_loss_and_device(tree, extended, models, tmp_path):
    said = execute(extended, "compile", "--help")
    assert re.search(r"^ +--loss=.*\bfocal\b", said, re.M) and ",gamma=" in said
    assert re.search(r"^ +--optimizer=.*\blion\b", said, re.M)
    entropy, none, some, default = (
        train(extended, models, tmp_path, f"--loss={loss}", "--optimizer=lion")
        for loss in ("cross_entropy", "focal,gamma=0", "focal,gamma=0.5", "focal"))
    assert none == pytest.approx(entropy, rel=1e-4)
    assert default[0] < some[0] < none[0]
    for first, last in (none, some, default):
        assert last < 0.5 * first
    assert "guard" in execute(tree / "build/tests/runtime_device_test")


def test_a_loss_with_an_option_in_text(extended, tmp_path):
    """As the options of the pass, which replays and reproducers write."""
    (tmp_path / "f.gir").write_text("func @forward(%x: f32[4,3] is input 0) -> f32[4,3] "
                                    "role forward {\n  return %x\n}\n")
    said = execute(extended, "opt", tmp_path / "f.gir", "--passes=loss{kind=focal,settings=gamma=0.25}")
    assert "0.25" in said
