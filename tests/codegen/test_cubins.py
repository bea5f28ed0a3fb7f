"""What is known of code for GPUs without one: every kernel of the reference and bench models compiles, keeps its numbers in registers,
fits what its record says, moves 16 bytes where it can, and multiplies with tensor cores where it may."""
import json
import os
import re
import subprocess
from fnmatch import fnmatchcase
from pathlib import Path

import cubins
import nvrtc
import pytest
import schedules
import team_lines
from schedules import reference, unpack, workloads

ROOT = Path(__file__).resolve().parents[2]
ARCHITECTURE = os.environ.get("GRADC_ARCHITECTURE", "sm_90a")  # `make cubins`: the others
REGISTERS = 65536  # of a multiprocessor
OWN_SHARED = 48 * 1024

def reasons(name):
    """{pattern of an origin: why kernels from there may do it}"""
    entries = json.loads(Path(__file__).with_name(name).read_text())
    return {pattern: entry["why"] for entry in entries for pattern in entry["kernels"]}


LOCAL_MEMORY, NARROW = reasons("local_memory.json"), reasons("narrow_accesses.json")
TRAINS = ["--loss=cross_entropy", "--optimizer=adamw"]
THOROUGH = bool(os.environ.get("GRADC_THOROUGH"))
LONG = ("resnet50", "resnet18", "gpt2_10m", "bert_base", "vit_small")  # `make thorough` and `make cubins` compile them, too
MODELS = [name for name in (*workloads.MODELS, *filter(unpack.has_kernels_of_its_own, reference.NAMES)) if THOROUGH or name not in LONG]


@pytest.fixture(scope="module")
def compiled(build, gradc, models, tmp_path_factory):
    """compiled(MODEL): its launches on a GPU, by kernel, and the folder of sources, logs and cubins. Reference models are compiled
    as for the pretended GPU, whose tests find the kernels in the cache."""
    done = {}

    def compile_it(name):
        if name in done:
            return done[name]
        folder = tmp_path_factory.mktemp(name)
        target = f"cuda:{ARCHITECTURE}"
        if name in workloads.MODELS:
            model = folder / "graph.onnx"
            workloads.write_graph(name, model)
            options = ["--init=random", *TRAINS, *workloads.MODELS[name].options]
        else:
            model, target, options = models / name / "model.onnx", f"cpu,{target}", reference.compile_options(name, "f32")
        exe, sources = cubins.compile_kernels(gradc, model, folder, target, *options, cache=build / "tests/cuda/cache")
        dump = subprocess.run([gradc, "dump", exe, "--stage=schedule", "--format=json"], text=True, capture_output=True)
        assert dump.returncode == 0, dump.stderr
        on_gpu = [p for p in json.loads(dump.stdout)["programs"] if p["target"].startswith("cuda")]
        launches = {i["kernel"]: i for i in schedules.launches(on_gpu)}
        assert len(launches) >= 8
        done[name] = launches, sources
        return done[name]

    return compile_it


def is_excused(origin, patterns, used):
    found = [p for p in patterns if fnmatchcase(origin, p)]
    used.update(found)
    return bool(found)


@pytest.mark.parametrize("name", MODELS)
def test_resources(compiled, name, used=None):
    """No stack and no spills; registers fit the block; shared memory is that of the record."""
    used = set() if used is None else used
    launches, sources = compiled(name)
    facts = cubins.facts(sources)
    assert launches.keys() <= facts.keys()
    wrong = {}
    for kernel, launch in launches.items():
        f, team = facts[kernel], launch["team"]
        threads = launch["block_threads"]
        own = launch["shared_bytes"] if team > 1 and launch["shared_bytes"] <= OWN_SHARED else 0
        in_stack = (f["stack"] or f["spills"]) and not is_excused(schedules.place(launch), LOCAL_MEMORY, used)
        if in_stack or f["registers"] * threads > REGISTERS or not 0 <= own - f["shared"] < 128:
            wrong[kernel] = f"{schedules.place(launch)}: {f}, team {team}, shared {launch['shared_bytes']}"
    assert not wrong


@pytest.mark.parametrize("name", MODELS)
def test_parameters(compiled, name):
    """A pointer for each argument of the record, that of the scalars, and the range."""
    launches, sources = compiled(name)
    parameters = cubins.parameters(sources)
    for kernel, launch in launches.items():
        assert parameters[kernel] == [(8 * i, 8) for i in range(launch["arguments"] + 3)], kernel


@pytest.mark.skipif(not THOROUGH, reason="`make thorough` and `make cubins` have all models")
def test_reasons_for_local_memory_are_needed(compiled):
    used = set()
    for name in MODELS:
        test_resources(compiled, name, used)
    assert used == set(LOCAL_MEMORY)


def test_accesses_of_16_bytes(compiled):
    """What a language model moves through memory, a megabyte or more in a kernel without many operations."""
    launches, sources = compiled("gpt2_124m")
    found, used, wrong = cubins.instructions(sources), set(), {}
    for kernel, launch in launches.items():
        wide = [i for i in found[kernel] if re.match(r"(LDG|STG|LDGSTS)\b.*\.128", i)]
        large = launch["bytes"] >= 1 << 20 and launch["flops"] < 20 * launch["bytes"]
        if large and not wide and not is_excused(schedules.place(launch), NARROW, used):
            wrong[kernel] = schedules.place(launch)
    assert not wrong
    assert used == set(NARROW)


def disassembled(gradc, folder, file, architecture):
    """{kernel: what nvdisasm says of it} of a lowered module."""
    env = nvrtc.environment(nvrtc.real(), folder / "cache", CUDA_HOME=str(nvrtc.tool("nvdisasm").parent.parent))
    done = subprocess.run([gradc, "dump", ROOT / "tests/codegen" / file, "--stage=sass", f"--target=cuda:{architecture}"],
                          text=True, capture_output=True, env=env)
    assert done.returncode == 0, done.stderr
    return {re.match(r"\w+", part)[0]: part for part in re.split(r"\.section\s+\.text\.gradc_", done.stdout)[1:]}


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a", "sm_100a"])
def test_conversions(gradc, tmp_path, architecture):
    """Storage is converted by instructions: two stored numbers a F2FP, and a bf16 alone, too; a loaded f16 is a HADD2.F32, a loaded bf16 no
    conversion at all. Only f8 of sm_80 and f8e5m2, whose instruction loses infinity, are stored by operations on integers."""
    kernels = disassembled(gradc, tmp_path, "conversions.gir", architecture)
    f16, bf16 = r"F2FP\.(F16\.F32\.)?PACK_AB ", r"F2FP\.BF16\.(F32\.)?PACK_AB "
    f8 = [("F2FP.SATFINITE.E4M3.F32", 4), ("F2FP.F16.E4M3.UNPACK_B", 4)] if architecture != "sm_80" else []
    expected = {"f16": [(f16, 2), (r"HADD2\.F32 ", 4)], "rounded_f16": [(f16, 2), (r"HADD2\.F32 ", 4)],
                "bf16": [(bf16, 2), (r"HADD2\.F32 ", 0)], "rounded_bf16": [(bf16, 4)],
                "f8e5m2": [(r"HADD2\.F32 ", 4)], "f8e4m3": f8, "rounded_f8e4m3": f8}
    assert kernels.keys() == expected.keys()
    by_integers = {"f8e5m2", *(["f8e4m3", "rounded_f8e4m3"] if not f8 else [])}
    for name, instructions in expected.items():
        for instruction, count in instructions:
            assert len(re.findall(instruction, kernels[name])) == count, (name, instruction)
        assert bool(re.search(r"\bSEL ", kernels[name])) == (name in by_integers), name


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a", "sm_100a"])
def test_tensor_cores(gradc, tmp_path, architecture):
    """bf16, f16 and tf32 by tensor cores, and f32 by the others."""
    kernels = disassembled(gradc, tmp_path, "tensor_cores.gir", architecture)
    kind = {"bf16_rows": r"HMMA\.16816\.F32\.BF16", "bf16_odd": r"HMMA\.16816\.F32\.BF16", "f16_columns": r"HMMA\.16816\.F32 ",
            "tf32": r"HMMA\.1688\.F32\.TF32"}
    for name, instruction in kind.items():
        assert re.search(instruction, kernels[name]), name
    assert "HMMA" not in kernels["two_products"]
    assert re.search(r"LDSM\.16\.M(T)?88\.4", kernels["bf16_rows"]) and "LDGSTS.E.BYPASS.128" in kernels["bf16_rows"]


def test_lines_in_registers(run, gradc, tmp_path):
    """Windows and lines of many sizes: no member has an array in memory."""
    functions = [f for made in team_lines.everything().values() for f in made[::16]]
    file = team_lines.lower(run, tmp_path, "cuda-sm_90", functions)
    env = nvrtc.environment(nvrtc.real(), tmp_path / "cache", CUDA_HOME=str(nvrtc.tool("nvdisasm").parent.parent))
    done = subprocess.run([gradc, "dump", file, "--stage=sass", "--target=cuda:sm_90a"], text=True, capture_output=True, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(".section\t.text.gradc_") >= 30
    assert not re.search(r"\b(LDL|STL)\b", done.stdout)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_100a"])
def test_other_architectures(gradc, models, tmp_path, architecture):
    """Kernels of every kind that a small model has."""
    for name in ["cnn_mnist", "moe_mini"]:
        _, sources = cubins.compile_kernels(gradc, models / name / "model.onnx", tmp_path / name, f"cuda:{architecture}",
                                            *reference.compile_options(name, "f32"))
        facts = cubins.facts(sources)
        assert len(facts) > 30 and not any(f["spills"] for f in facts.values())
