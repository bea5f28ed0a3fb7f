"""NVRTC called from Python, in tests: a source of CUDA C becomes a cubin."""
import ctypes
from pathlib import Path

OPTIONS = (b"--fmad=false",)


def compile_source(library, source, architecture):
    """The cubin; an AssertionError with what NVRTC says."""
    nvrtc, program, size = ctypes.CDLL(str(library)), ctypes.c_void_p(), ctypes.c_size_t()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None) == 0
    options = (ctypes.c_char_p * 2)(*OPTIONS, f"--gpu-architecture={architecture}".encode())
    code = nvrtc.nvrtcCompileProgram(program, 2, options)
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    assert code == 0, log.value.decode()
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    cubin = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, cubin)
    return cubin.raw


def find(folders):
    return next(p for f in folders for p in Path(f).glob("libnvrtc.so.1[23]"))
