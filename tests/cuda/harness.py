"""Kernels that an executable was compiled with, as a library for the pretended GPU: $FAKE_CUDA_KERNELS names it."""
import hashlib
import os
import re
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BLOCK = ROOT / "tests/codegen/cuda/block.cpp"
INCLUDED = [ROOT / "tests/codegen/cuda/device.h", ROOT / "tests/cuda/fake/entry.h", ROOT / "tests/cuda/fake/harness_kernel.h"]
# -O3 and this CPU's fma: 2.5 times as fast as -O2 without it, with the same bits.
COMPILER = ["g++", "-O3", "-march=native", "-ffp-contract=off", "-fwrapv", "-fPIC", "-fno-gnu-unique", "-w", f"-I{ROOT}"]
PROCESSES = 2


def unit(text):
    """A source as C++, with an entry for each kernel."""
    names = re.findall(r'^extern "C" __global__ void [^\n]*\n(\w+)\(', text, re.M)
    entries = "".join(f"HARNESS_ENTRY({name})\n" for name in names)
    return f'#include "tests/codegen/cuda/device.h"\n{text}\n#include "tests/cuda/fake/entry.h"\n{entries}'


def compile_unit(path):
    subprocess.run([*COMPILER, "-c", "-o", path.with_suffix(".o"), path], check=True)


def cpu():
    """What -march=native depends on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def build_kernels(sources, arch, cache):
    """The library for the sources that `gradc compile --keep-sources` wrote into a folder for an architecture such as sm_90a."""
    texts = [unit(path.read_text()) for path in sorted(Path(sources).glob(f"*_{arch}.cu"))]
    assert texts, f"{sources} has no kernels for {arch}"
    key = hashlib.sha256("\0".join([*texts, *(p.read_text() for p in [BLOCK, *INCLUDED]), *COMPILER, cpu()]).encode()).hexdigest()
    cache = Path(cache)
    cache.mkdir(parents=True, exist_ok=True)
    library = cache / f"kernels-{key[:32]}.so"
    if library.exists():
        return library
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        folder = Path(folder)
        units = [folder / f"kernels{i}.cpp" for i in range(len(texts))] + [folder / "block.cpp"]
        for path, text in zip(units, [*texts, BLOCK.read_text()]):
            path.write_text(text)
        with ThreadPoolExecutor(PROCESSES) as pool:
            list(pool.map(compile_unit, units))
        made = folder / library.name
        subprocess.run(["g++", "-shared", "-Wl,-z,defs", "-o", made, *(p.with_suffix(".o") for p in units)], check=True)
        os.replace(made, library)
    return library
