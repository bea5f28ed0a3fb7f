"""Kernels for GPUs: what NVRTC makes of them, what executables carry, and what happens where it fails."""
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
import nvrtc  # noqa: E402

LOSS = ("--batch=8", "--loss=cross_entropy")
CUDA = 190  # e_machine of ELF
BY_DEFAULT = ["sm_80", "sm_90a", "sm_100a", "compute_100"]


@pytest.fixture
def digits(models):
    return models / "mlp_digits/model.onnx"


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    return nvrtc.fake(tmp_path_factory.mktemp("nvrtc") / "lib")


@pytest.fixture
def fake(library, tmp_path):
    """The environment with the library that compiles nothing."""
    return nvrtc.environment(library, tmp_path / "cache", TMPDIR=str(tmp_path / "tmp"))


@pytest.fixture(autouse=True)
def temporary(tmp_path):
    (tmp_path / "tmp").mkdir()
    return tmp_path / "tmp"


# ---- without it
def test_without_nvrtc(run, digits, tmp_path):
    environment = nvrtc.without(tmp_path / "none")
    for command in (["compile", digits, *LOSS, "-o", "e", "--target=cpu,cuda:sm_90a"],
                    ["dump", digits, *LOSS, "--stage=ptx"], ["dump", digits, *LOSS, "--stage=sass"]):
        said = run(*command, exit=5, env=environment).stderr
        assert "NVRTC, which compiles kernels for CUDA, is not found (libnvrtc.so.13, libnvrtc.so.12)" in said
        assert "pip install nvidia-cuda-nvrtc==13.0.88" in said and "LD_LIBRARY_PATH" in said
    assert not (tmp_path / "e").exists()
    text = run("dump", digits, *LOSS, "--stage=cuda", env=environment).stdout
    assert "__global__" in text and "gradc_dot_0(" in text
    run("compile", digits, *LOSS, "-o", "e", "--target=cpu", env=environment)


def test_a_library_that_lacks_something(run, digits, tmp_path):
    folder = nvrtc.fake(tmp_path / "lacking", "-DnvrtcGetCUBIN=nvrtcOther")
    environment = nvrtc.environment(folder, tmp_path / "cache", CUDA_HOME=str(tmp_path))
    (folder / nvrtc.SONAMES[1]).write_text("no library\n")
    said = run("dump", digits, *LOSS, "--stage=ptx", exit=5, env=environment).stderr
    assert "NVRTC lacks nvrtcGetCUBIN: a newer one is needed" in said


def test_found_in_a_toolkit(run, digits, tmp_path):
    environment = nvrtc.without(tmp_path / "none")
    nvrtc.fake(tmp_path / "none/lib64")
    assert "--gpu-architecture=compute_90a" in run("dump", digits, *LOSS, "--stage=ptx", env=environment).stdout


def test_versions_for_targets_have_one_table(run, digits, fake):
    """The labels are printed once, not once for each target."""
    tables = [run("compile", digits, *LOSS, "-o", "e", f"--target={target}", env=fake).stdout.splitlines() for target in ("cpu", "cpu,cuda:sm_90a")]
    labels = [[line for line in table if line.startswith("  target ")] for table in tables]
    assert len(labels[0]) == 1 and labels[1] == labels[0]


def test_an_old_one(run, digits, fake):
    said = run("compile", digits, *LOSS, "-o", "e", "--target=cuda", exit=5, env=dict(fake, FAKE_NVRTC_OLD="1")).stderr
    assert re.search(r"NVRTC 13\.0 \(.*libnvrtc\.so\.13\) does not know (sm_100a|compute_100), only sm_80, sm_90", said)


# ---- where it fails
def test_an_error_in_our_source(run, digits, fake, tmp_path, temporary):
    broken = dict(fake, FAKE_NVRTC="error")
    said = run("compile", digits, *LOSS, "-o", "e", "--target=cpu,cuda:sm_90a", exit=5, env=broken).stderr
    assert re.search(r"NVRTC 13\.0 rejects gradc's source of kernels \w+_\d+, .* for sm_90a", said)
    assert 'identifier "floaty" is undefined' in said and "NVRTC_ERROR_COMPILATION" in said
    [kept] = temporary.iterdir()  # and nothing else
    assert f"the source is kept: {kept}" in said and "__global__" in kept.read_text()
    said = run("compile", digits, *LOSS, "-o", "e", "--target=cpu,cuda:sm_90a", "--keep-sources=src", exit=5,
               env=broken).stderr
    assert re.search(r"the source is kept: src/kernels\d_sm_90a\.cu", said)
    assert not (tmp_path / "e").exists() and not (tmp_path / "cache").exists()


def test_no_code(run, digits, fake):
    said = run("dump", digits, *LOSS, "--stage=sass", exit=5, env=dict(fake, FAKE_NVRTC="empty")).stderr
    assert "NVRTC gives no code" in said


def test_a_library_that_ends_its_process(run, digits, fake, temporary):
    """With 0, as if all were done."""
    said = run("dump", digits, *LOSS, "--stage=ptx", exit=5, env=dict(fake, FAKE_NVRTC="exit")).stderr
    assert re.search(r"NVRTC 13\.0 \(.*\) ended with exit code 0 at kernels \w+_\d+, .* for compute_90a", said)


def test_a_crash(run, digits, fake, temporary):
    said = run("dump", digits, *LOSS, "--stage=ptx", exit=5, env=dict(fake, FAKE_NVRTC="crash")).stderr
    assert re.search(r"NVRTC 13\.0 \(.*\) ended with signal 6 \(Aborted\) at kernels \w+_\d+, .* for compute_90a", said)
    assert "fake NVRTC: assertion failed" in said[said.index("gradc: error"):]
    [kept] = temporary.iterdir()
    assert f"the source is kept: {kept}" in said


@pytest.fixture
def first_kernels(run, digits, fake, tmp_path):
    """Kernels of the first two sources that are compiled, the longest ones."""
    compile_with(run, digits, fake, "whole", "cuda:sm_90a", "--keep-sources=whole.d")
    sources = sorted((p.read_text() for p in (tmp_path / "whole.d").glob("*.cu")), key=len, reverse=True)
    assert len(sources) > 2 and len(sources[0]) > len(sources[1]) > len(sources[2])
    shutil.rmtree(tmp_path / "cache")
    return [re.search(r"^gradc_(\w+_\d+)\(", s, re.M)[1] for s in sources[:2]]


@pytest.mark.skipif(os.cpu_count() < 2, reason="one process compiles one source after the other")
@pytest.mark.parametrize("modes, reported, words", [
    (("crash", "slow"), 0, "ended with signal 6"), (("later", "crash"), 0, "rejects gradc's source"), (("later", "error"), 0, "rejects gradc's source"),
    (("", "crash"), 1, "ended with signal 6"), (("error", "slow"), 0, "rejects gradc's source")])
def test_the_first_fault_ends_all(run, digits, fake, first_kernels, modes, reported, words):
    """Processes at later sources are stopped, one that sleeps for ever; those at earlier ones go on, and their faults are said."""
    broken = dict(fake, FAKE_NVRTC=",".join(f"{k}={m}" for k, m in zip(first_kernels, modes)))
    said = run("compile", digits, *LOSS, "-o", "e", "--target=cuda:sm_90a", exit=5, env=broken).stderr
    assert re.search(rf"{words}.* kernels {first_kernels[reported]}, ", said)


@pytest.mark.skipif(os.cpu_count() < 2, reason="one process compiles one source after the other")
def test_one_source_is_kept(run, digits, fake, first_kernels, temporary):
    """That of the fault which is said, though a later source had its fault before."""
    broken = dict(fake, FAKE_NVRTC=",".join(f"{k}={m}" for k, m in zip(first_kernels, ("dies", "crash"))))
    said = run("compile", digits, *LOSS, "-o", "e", "--target=cuda:sm_90a", exit=5, env=broken).stderr
    [kept] = temporary.iterdir()
    assert f"kernels {first_kernels[0]}, " in said and f"the source is kept: {kept}" in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal(gradc, digits, fake, tmp_path, temporary, number):
    """Nothing goes on, and nothing is left where gradc can clean up."""
    calls = tmp_path / "calls"
    environment = dict(fake, FAKE_NVRTC="slow", FAKE_NVRTC_CALLS=str(calls))
    ours = subprocess.Popen([gradc, "dump", digits, *LOSS, "--stage=ptx"], env=environment, stdout=subprocess.PIPE)
    while not calls.exists():
        time.sleep(0.01)
    ours.send_signal(number)
    assert ours.wait() == -number
    ours.stdout.read()  # ends when the last process that could write there has ended
    if number != signal.SIGKILL:
        assert not list(temporary.iterdir())


@pytest.mark.parametrize("kernel, edits, why", [
    ("product", {"team 4x8": "team 2x8", "team v10 < 4": "team v10 < 2"}, "a tile is spread over whole warps of 32 members"),
    ("attention", {" row 8 ": " row 4 "}, "rows of a tile are reduced in eight partials or more")])
def test_tiles_that_are_refused(run, fake, tmp_path, kernel, edits, why):
    page = (nvrtc.ROOT / "docs/loop-ir.md").read_text()
    text = re.search(rf"kernel @{kernel}\(.*?\n}}\n", page, re.S)[0]
    for was, now in edits.items():
        assert was in text
        text = text.replace(was, now)
    (tmp_path / "tiles.gir").write_text(f"module @page {{\n{text}}}\n")
    for stage in "cuda", "sass":
        said = run("dump", "tiles.gir", f"--stage={stage}", exit=4, env=fake).stderr
        assert f"kernel @{kernel}: CUDA C lacks a form for it: {why}" in said


def test_shared_memory_of_an_architecture(run, fake, tmp_path):
    """200 KiB: more than a block of sm_80 may have, less than one of sm_90."""
    (tmp_path / "large.gir").write_text("""module @large {
kernel @turn(x0: in f32[51200], y0: out f32[51200]) team 128 flops 0 {
  local rows2 : f32[51200]
  team v0 < 128 {
    for v1 < 400 {
      v2 = load x0[400*v0 + v1] : f32
      store rows2[400*v0 + v1] = v2
    }
  }
  barrier
  team v3 < 128 {
    for v4 < 400 {
      v5 = load rows2[400*v3 + v4] : f32
      store y0[-400*v3 + -1*v4 + 51199] = v5
    }
  }
}
}
""")
    said = run("dump", "large.gir", "--stage=cuda", "--target=cuda:sm_80", exit=4, env=fake).stderr
    assert "kernel @turn: CUDA C lacks a form for it: its arrays are more than the shared memory that a block of the target may" in said
    for architecture in "sm_90a", "sm_100a":
        assert "gradc_shared" in run("dump", "large.gir", "--stage=cuda", f"--target=cuda:{architecture}", env=fake).stdout


# ---- what it makes
@pytest.fixture(scope="session")
def cubins(gradc, models, tmp_path_factory):
    """The folder of sources, code and logs of mlp_digits for what `cuda` alone means."""
    folder = tmp_path_factory.mktemp("cubins")
    environment = nvrtc.environment(nvrtc.real(), folder / "cache")
    subprocess.run([gradc, "compile", models / "mlp_digits/model.onnx", *LOSS, "-o", folder / "e", "--target=cuda",
                    f"--keep-sources={folder / 'src'}"], env=environment, check=True, capture_output=True)
    return folder / "src"


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a", "sm_100a"])
def test_cubins_are_of_their_architecture(cubins, architecture):
    found = sorted(cubins.glob(f"*_{architecture}.cubin"))
    assert found
    for path in found:
        code = path.read_bytes()
        assert code[:4] == b"\x7fELF" and struct.unpack_from("<H", code, 18)[0] == CUDA
        flags = struct.unpack_from("<I", code, 48)[0]
        assert flags >> 8 & 0xff == int(architecture.strip("sma_"))
        kernels = re.findall(r"^gradc_(\w+_\d+)\(", path.with_suffix(".cu").read_text(), re.M)
        assert kernels and all(f".text.gradc_{k}\0".encode() in code for k in kernels)
        log = path.with_suffix(".log").read_text()
        assert all(f"Compiling entry function 'gradc_{k}' for '{architecture}'" in log for k in kernels)
        assert "warning" not in log


def test_ptx_is_for_later_architectures(cubins):
    found = sorted(cubins.glob("*_compute_100.ptx"))
    assert found
    for path in found:
        code = path.read_bytes().rstrip(b"\0").decode()
        assert ".version 9.0\n" in code and ".target sm_100\n" in code


def test_every_kernel_is_somewhere_once(cubins, run):
    for architecture in BY_DEFAULT:
        sources = [p.read_text() for p in cubins.glob(f"*_{architecture}.cu")]
        kernels = [k for s in sources for k in re.findall(r"^gradc_(\w+_\d+)\(", s, re.M)]
        assert len(kernels) == len(set(kernels)) >= 8


def test_stages(run, digits, tmp_path):
    environment = nvrtc.environment(nvrtc.real(), tmp_path / "cache", CUDA_HOME=str(tmp_path))

    def dump(*options, exit=0, **others):
        return run("dump", digits, *LOSS, *options, exit=exit, env=dict(environment, **others))

    assert ".target sm_90a" in dump("--stage=ptx").stdout
    assert ".target sm_80" in dump("--stage=ptx", "--target=cpu,cuda:sm_80,sm_90a").stdout
    sass = dump("--stage=sass", "--target=cuda:sm_80")
    assert ".text.gradc_dot_0" in sass.stdout and re.search(r"\bEXIT\b", sass.stdout)
    said = dump("--stage=sass", "--target=cuda:compute_100", exit=2).stderr
    assert "compute_100 is PTX" in said
    said = dump("--stage=c", "--target=cuda:sm_80", exit=2).stderr
    assert "--stage=c shows code for CPUs, but --target=cuda:sm_80 names no CPU" in said


def test_without_nvdisasm(run, digits, fake, tmp_path):
    environment = dict(fake, PATH="/usr/bin:/bin", CUDA_HOME=str(tmp_path))
    said = run("dump", digits, *LOSS, "--stage=sass", exit=5, env=environment).stderr
    assert "nvdisasm" in said and "pip install nvidia-cuda-nvdisasm" in said


# ---- what executables carry
def compile_with(run, digits, environment, name, target, *options):
    return run("compile", digits, *LOSS, "-o", name, f"--target={target}", *options, env=environment).stdout


def variants(run, exe):
    return json.loads(run(exe, "--info", "--json").stdout)["variants"]


TARGETS = {  # spelling -> CPUs, GPUs
    "cuda": ([], BY_DEFAULT),
    "cpu,cuda": (["native"], BY_DEFAULT),
    "auto,cuda:sm_90": (["native"], ["sm_90"]),
    "cuda:sm_90a,sm_80": ([], ["sm_90a", "sm_80"]),
    "cuda:sm_100,cpu:x86-64-v2,x86-64-v3": (["x86-64-v2", "x86-64-v3"], ["sm_100"]),
    "cuda,sm_90,cpu": (["native"], [*BY_DEFAULT, "sm_90"]),
    "cuda:sm_90a,cuda:sm_90a,cpu,cpu": (["native"], ["sm_90a"]),
}


@pytest.mark.parametrize("target", TARGETS)
def test_spellings(run, digits, fake, tmp_path, target):
    cpus, gpus = TARGETS[target]
    said = compile_with(run, digits, fake, "e", target)
    assert f"kernels for cuda:{','.join(gpus)}: " in said
    images = variants(run, tmp_path / "e")
    assert [v["cpu"] for v in images if "cpu" in v] == cpus
    assert [v["cuda"] for v in images if "cuda" in v] == gpus
    for v in images[len(cpus):]:
        row = re.match(r"(sm|compute)_(\d+)", v["cuda"])[2]
        assert v["target"] == f"cuda-sm_{row}" and v["code"] == "verified" and not v["runs_here"]
        assert v["modules"] >= 1


@pytest.mark.parametrize("target", ["cuda:sm_91", "cuda:", "sm_90a", "cpu,sm_90a", "cuda,x86-64-v3", "cuda:native", "cuda:sm_90a,,x",
                                    "gpu", "cuda:cpu", "cpu:sm_90a"])
def test_what_no_target_is(run, digits, fake, target):
    said = run("compile", digits, *LOSS, "-o", "e", f"--target={target}", exit=2, env=fake).stderr
    assert f"--target={target}: not supported in this build" in said
    assert "cuda, cuda:sm_80, sm_90, sm_90a, sm_100, sm_100a, compute_100" in said


def test_a_target_that_no_program_is_for(run, digits, fake):
    said = run("compile", digits, *LOSS, "-o", "e", "--target=cpu,cuda:sm_90a",
               "--pass-option=multiversion.targets=cpu-512", exit=2, env=fake).stderr
    assert "--target=cuda:sm_90a is target cuda-sm_90, but the programs are for other targets" in said


@pytest.mark.parametrize("printer", ["llvm", "c"])
def test_results_are_those_without(run, digits, fake, tmp_path, printer):
    if f"--printer={printer}" not in run("compile", "--help").stdout and printer == "llvm":
        pytest.skip("built without LLVM")
    data = [f"--data={name}={digits.parent / name}.npy" for name in ["input", "labels"]]

    def train(name, target):
        compile_with(run, digits, fake, name, target, f"--printer={printer}")
        run(tmp_path / name, *data, "--steps=5", "--progress=off", f"--save={name}.d")
        [state] = (tmp_path / f"{name}.d").glob("**/*.safetensors")
        return state.read_bytes()

    assert train("with", "cpu,cuda") == train("without", "cpu")
    programs = json.loads(run(tmp_path / "with", "--info", "--json").stdout)["programs"]
    assert {p["target"] for p in programs} > {"cuda-sm_80", "cuda-sm_90", "cuda-sm_100"}
    assert "kernels for cuda:sm_90a" in run(tmp_path / "with", "--info").stdout
    assert [v["code"] for v in variants(run, tmp_path / "with") if "cuda" in v] == ["verified"] * len(BY_DEFAULT)
    code = (tmp_path / "with").read_bytes()
    assert all(f"--gpu-architecture={a}\n".encode() in code for a in BY_DEFAULT)


def test_programs_for_gpus_alone_do_not_start_without_one(run, digits, fake, tmp_path):
    compile_with(run, digits, fake, "e", "cuda:sm_90a")
    no_driver = dict(os.environ, LD_LIBRARY_PATH="", CUDA_VISIBLE_DEVICES="")
    said = run(tmp_path / "e", "--steps=1", exit=5, env=no_driver).stderr
    assert "libcuda.so.1 cannot be opened" in said or "no GPU is visible" in said
    said = run(tmp_path / "e", "--steps=1", "--device=cpu", exit=5).stderr
    assert "compiled for cuda:sm_90a only" in said and "--target=cpu,cuda" in said
    assert [v["cuda"] for v in variants(run, tmp_path / "e")] == ["sm_90a"]


def test_a_library_carries_them_too(run, digits, fake, tmp_path):
    compile_with(run, digits, fake, "libdigits.so", "cpu,cuda:sm_90a", "--emit=library")
    assert b"--gpu-architecture=sm_90a" in (tmp_path / "libdigits.so").read_bytes()
