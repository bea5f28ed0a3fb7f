"""What the pretended GPU finds: driver_probe asks it for right and wrong things, through the runtime's table of the driver's functions."""
import os
import subprocess
from pathlib import Path

import nvrtc
import pytest
from pretended import ARCHITECTURE, tiny_text

TINY = tiny_text()


@pytest.fixture(scope="module")
def module(gpu, tmp_path_factory):
    """(tiny.cu compiled, its kernels as a library)"""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / f"kernels_{ARCHITECTURE}.cu").write_text(TINY)
    cubin = folder / "cubin"
    cubin.write_bytes(nvrtc.cubin(TINY, ARCHITECTURE))
    return cubin, gpu.kernels(folder)


@pytest.fixture(scope="module")
def probe(gpu, build, module):
    """probe(NAME, ARGUMENT..., fake={SETTING: VALUE}): what the driver complained about; all of it was as the probe expects."""
    program = build / "tests/driver_probe"
    if not program.exists():
        pytest.skip(f"{program} is not built")

    def run(*arguments, fake=None, complains=""):
        done = subprocess.run([program, *map(str, arguments)], text=True, capture_output=True, timeout=120,
                              env={**os.environ, **gpu.environment(module[1], fake)})
        assert done.returncode == 0, done.stderr
        assert complains in done.stderr if complains else done.stderr == ""

    return run


@pytest.mark.parametrize("seed", range(3))
def test_kernel(probe, module, seed):
    probe("kernel", module[0], fake={"SEED": seed})


def test_launch_limits(probe, module):
    probe("limits", module[0], complains="a block of 129 threads, at most 128")


def test_writes_behind(probe, module):
    probe("behind", module[0], complains="gradc_k_add_one has written behind parameter 1")


def test_memory_of_the_host(probe, module):
    probe("parameter", module[0], complains="parameter 0 is 0x")


def test_kernel_without_a_text(gpu, build, module, tmp_path):
    """The library must have it: nothing passes for having run."""
    done = subprocess.run([build / "tests/driver_probe", "kernel", module[0]], text=True, capture_output=True,
                          env={**os.environ, **gpu.environment("")})
    assert done.returncode == 1 and "gradc_k_add_one is in no library of FAKE_CUDA_KERNELS" in done.stderr


def test_no_module(probe, tmp_path):
    elf, text = tmp_path / "elf", tmp_path / "text"
    elf.write_bytes(Path("/proc/self/exe").read_bytes())
    text.write_bytes(b"hello\0")
    probe("module", elf, 200, complains="no code of a GPU")
    probe("module", text, 200, complains="neither a cubin nor PTX")


def test_module_of_another_gpu(probe, module):
    probe("module", module[0], 209, fake={"CAPABILITY": "8.0"}, complains="is not for capability 8.0")


def test_unreadable_memory(probe):
    probe("unreadable")


def test_thread_without_a_context(probe):
    probe("context", complains="cuStreamCreate by a thread without a context")


def test_a_wait_orders(probe):
    for seed in range(4):
        probe("order", fake={"SEED": seed, "SLOW": 0})


def test_a_lost_wait_shows(probe):
    probe("order", 1, fake={"SLOW": 0})


@pytest.mark.parametrize("seed", range(4))
def test_capture(probe, seed):
    """Replays follow the edges, and a stream that was forked must be joined."""
    probe("capture", fake={"SEED": seed}, complains="error 904")


def test_what_captures_forbid(probe):
    probe("forbidden", complains="error 900")
