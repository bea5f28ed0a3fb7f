"""How gradc and what it compiles are linked, read from the ELF files: position-independent, with nothing that the loader
resolves writable afterwards, with checked libc calls and guarded stacks.

Kernels have no guard: they are loops over what the tables say, without arrays of their own on the stack."""
import re
import subprocess

import pytest


def readelf(*arguments):
    return subprocess.run(["readelf", "-W", *arguments], check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def files(gradc, models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("elf")
    made = {"gradc": gradc}
    for name, options in [("executable", []), ("by-cc", ["--keep-sources"]), ("library.so", ["--emit=library"])]:
        made[name] = folder / name
        subprocess.run([gradc, "compile", models / "mlp_digits/model.onnx", "--batch=8", "-o", made[name], *options],
                       check=True, capture_output=True)
    return made


@pytest.mark.parametrize("name", ["gradc", "executable", "by-cc", "library.so"])
def test_relocations_are_read_only(files, name):
    segments, dynamic = readelf("-l", files[name]), readelf("-d", files[name])
    assert "GNU_RELRO" in segments
    assert re.search(r"\(FLAGS_1\) .*\bNOW\b", dynamic)
    assert not re.search(r"GNU_STACK .* RWE ", segments)
    assert "(TEXTREL)" not in dynamic
    assert re.search(r"Type: +DYN", readelf("-h", files[name]))
    if name != "library.so":
        assert re.search(r"\(FLAGS_1\) .*\bPIE\b", dynamic)


@pytest.mark.parametrize("name", ["gradc", "executable"])
def test_libc_calls_are_checked(files, name):
    symbols = readelf("--dyn-syms", files[name])
    assert "__stack_chk_fail" in symbols
    for call in ("__vsnprintf_chk", "__memcpy_chk", "__snprintf_chk"):
        assert call in symbols
