"""NVRTC for tests: the one of the virtual environment, one that is not there, and one that compiles nothing."""
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FAKE = ROOT / "tests/codegen/fake_nvrtc.c"
SONAMES = ("libnvrtc.so.13", "libnvrtc.so.12")


def environment(folder, cache, **others):
    """Libraries from that folder first, compiled kernels kept in `cache`."""
    return dict(os.environ, LD_LIBRARY_PATH=str(folder), XDG_CACHE_HOME=str(cache), **others)


def without(folder):
    """The environment in which NVRTC is not found, wherever this machine has one: no loader takes these files."""
    folder.mkdir(exist_ok=True)
    for name in SONAMES:
        (folder / name).write_text("no library\n")
    return environment(folder, folder / "cache", CUDA_HOME=str(folder), PATH="/usr/bin:/bin")


def real():
    """The folder of the package that scripts/setup installs."""
    found = sorted(ROOT.glob(".venv/lib/python3*/site-packages/nvidia/*/lib/libnvrtc.so.13"))
    if not found:
        pytest.skip("nvidia-cuda-nvrtc is not installed: scripts/setup test")
    return found[0].parent


def fake(folder, *flags):
    """A folder with fake_nvrtc.c as a library."""
    folder.mkdir(exist_ok=True)
    subprocess.run(["cc", "-shared", "-fPIC", *flags, "-o", folder / SONAMES[0], FAKE], check=True)
    return folder


def tool(name):
    """A program of the packages that scripts/setup installs."""
    found = sorted(ROOT.glob(f".venv/lib/python3*/site-packages/nvidia/*/bin/{name}"))
    if not found:
        pytest.skip(f"{name} is not installed: scripts/setup test")
    return found[0]
