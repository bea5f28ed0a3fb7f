"""NVRTC for tests: the one of the virtual environment, one that is not there, and one that compiles nothing."""
import ctypes
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FAKE = ROOT / "tests/codegen/programs/fake_nvrtc.c"
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


def cubin(source, architecture):
    """Of a text; an AssertionError with what NVRTC says. Not in a process that finds a pretended driver, which NVRTC calls."""
    library = ctypes.CDLL(str(real() / SONAMES[0]))
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    assert library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None) == 0
    options = (ctypes.c_char_p * 2)(b"--fmad=false", f"--gpu-architecture={architecture}".encode())
    code = library.nvrtcCompileProgram(program, 2, options)
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    assert code == 0, log.value.decode()
    library.nvrtcGetCUBINSize(program, ctypes.byref(size))
    code = ctypes.create_string_buffer(size.value)
    library.nvrtcGetCUBIN(program, code)
    return code.raw
