"""The patches that docs/extending.md explains: each applies to this tree, builds, and works by the
command line. All are applied to one copy of the sources, built once."""
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATCHES = sorted(Path(__file__).parent.glob("*.patch"))
SKIP = ("tests/models/", "tests/fuzz/corpus/", "examples/", "docs/")


def execute(*command, **options):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=300,
                          **options)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def copy_sources(target):
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT,
                           check=True, capture_output=True, text=True).stdout.split("\0")
    for name in names:
        if name and not name.startswith(SKIP) and (ROOT / name).is_file():
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
    execute("cmake", "--build", "build", "--target", "gradc", "ops_test", "samples_test",
            "partition_test", "cost_test", "facts_test",
            "runtime_device_test", cwd=root)
    return root


@pytest.fixture(scope="module")
def extended(tree):
    return tree / "build/gradc"


@pytest.mark.parametrize("patch", PATCHES, ids=[p.stem for p in PATCHES])
def test_the_page_shows_the_patch(patch):
    assert patch.name in (ROOT / "docs/extending.md").read_text()


@pytest.mark.parametrize("script", ["check-folders", "check-ops"])
def test_the_rules_of_the_house_hold(tree, script):
    execute(sys.executable, tree / "scripts" / script, tree)


def test_op(tree, extended, tmp_path):
    text = tmp_path / "cube.gir"
    text.write_text("func @forward() -> f64[2] {\n"
                    "  %0 = constant {value = f64[2] [-2, 3]} : f64[2]\n"
                    "  %1 = cube %0 : f64[2]\n"
                    "  return %1\n"
                    "}\n")
    assert "f64[2] [-8.0, 27.0]" in execute(extended, "opt", text, "--passes=simplify")
    # Its text, its gradient against differences, its kernel and its C against its eval.
    # Its facts against what is evaluated.
    for test in ["ops_test", "samples_test", "partition_test", "cost_test", "facts_test"]:
        assert "FAILED" not in execute(tree / f"build/tests/{test}")


def test_pass(extended, models, tmp_path):
    text = tmp_path / "twins.gir"
    text.write_text("func @twins(%x: f32[4], %y: f32[4]) -> f32[4] {\n"
                    "  %0 = add %x, %y : f32[4]\n"
                    "  %1 = add %y, %x : f32[4]\n"
                    "  %2 = div %0, %1 : f32[4]\n"
                    "  return %2\n"
                    "}\n")
    lines = [line.split()[0] for line in execute(extended, "passes").splitlines()]
    assert lines[lines.index("commute") + 1] == "simplify"
    assert "%1 = add %y, %x" in execute(extended, "opt", text, "--passes=")
    assert "%1 = add %x, %y" in execute(extended, "opt", text, "--passes=commute")
    dump = [extended, "dump", models / "mlp_digits/model.onnx", "--dump-after=commute"]
    assert "; after commute" in execute(*dump)
    assert "; after commute" not in execute(*dump, "--disable=commute")


def test_optimizer_loss_and_device(tree, extended, models, tmp_path):
    said = execute(extended, "compile", "--help")
    assert re.search(r"^ +--loss=.*\blog_cosh\b", said, re.M)
    assert re.search(r"^ +--optimizer=.*\bsign_sgd\b", said, re.M)
    folder, exe = models / "mlp_diabetes", tmp_path / "train"
    execute(extended, "compile", folder / "model.onnx", "-o", exe, "--dim=batch=26",
            "--loss=log_cosh:prediction", "--optimizer=sign_sgd")
    said = execute(exe, "--data", f"x={folder}/x.npy", "--data", f"labels={folder}/labels.npy",
                   "--eval-data", f"x={folder}/x.npy", "--eval-data",
                   f"labels={folder}/labels.npy", "--epochs=3", "--device=guard",
                   "--progress=plain")
    before, after = map(float, re.search(r"eval loss (\S+) -> ([0-9.]+)", said).groups())
    assert after < 0.9 * before, said
    assert "guard" in execute(tree / "build/tests/runtime_device_test")
