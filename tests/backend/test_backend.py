"""ONNX's own backend tests through `gradc run`: manifest.txt says of each how it ends in both engines, and is right."""
from pathlib import Path

import onnx.backend.test
import pytest

DATA = Path(onnx.backend.test.__file__).parent / "data"
GROUPS = ("node", "simple", "pytorch-operator", "pytorch-converted")
MANIFEST = Path(__file__).parent / "manifest.txt"
ENGINES = ("interp", "compiled")


def entries():
    lines = [line.split() for line in MANIFEST.read_text().splitlines() if not line.startswith("#")]
    return {name: dict(zip(ENGINES, ends)) for name, *ends in lines}


def test_all_are_named():
    there = {f"{group}/{folder.name}" for group in GROUPS for folder in (DATA / group).iterdir() if (folder / "model.onnx").exists()}
    assert entries().keys() == there and len(there) == 1905


@pytest.mark.parametrize("engine", ENGINES)
def test_each_ends_as_the_manifest_says(run, build, tmp_path, engine):
    done = run(build / "tests/backend", DATA, MANIFEST, engine, tmp_path, exit=None)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "1905 of 1905 as the manifest says\n"


@pytest.mark.parametrize("said", ["refused", "fails", "differs"])
def test_another_end_is_told(run, build, tmp_path, said):
    (tmp_path / "manifest.txt").write_text(f"node/test_add {said} pass\nnode/test_relu pass pass\n")
    done = run(build / "tests/backend", DATA, tmp_path / "manifest.txt", "interp", tmp_path, exit=1)
    assert done.stdout == f"node/test_add interp: pass, the manifest says {said}: \n1 of 2 as the manifest says\n"


def test_engines_agree():
    """What one of them computes, the other one does."""
    assert not {name: ends for name, ends in entries().items() if (ends["interp"] == "pass") != (ends["compiled"] == "pass")}
