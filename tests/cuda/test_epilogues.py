"""What cuBLASLt does as it stores a product, and which of its algorithms a product takes: in runs on the pretended GPU."""
import json
import os

import pytest
import reference
from pretended import ON_GPU
from tolerances import limit

LIBRARIES, STEPS, NAME = "--libraries=on", 2, "gpt2_mini_fresh"


@pytest.fixture
def trainer(gpu, tmp_path):
    return lambda *options: gpu.trainer(gpu.compile(NAME, "f32", 0, *options, target="cuda:sm_90a"), tmp_path)


def products(trainer, *options, **env):
    """[(the call, what runs it)]"""
    info = json.loads(trainer.run(ON_GPU, LIBRARIES, "--info", "--json", *options, env=env).stdout)
    return [(c["call"], c["implementation"]) for c in info["library_calls"]]


def found(trainer, word, **env):
    """What runs the products that the word stands in, without the algorithm."""
    return {runs.removeprefix("cuBLASLt algo 7 tile 20 stages 4").strip() for call, runs in products(trainer, **env) if word in call}


def losses(trainer, *options, name="losses", **env):
    return trainer.losses(ON_GPU, LIBRARIES, f"--steps={STEPS}", *options, name=name, env=env, timeout=1200)


def distance(got, want):
    assert len(got) == len(want) == STEPS
    return max(abs(a - b) / abs(b) for a, b in zip(got, want))


@pytest.mark.parametrize("precision", ["f32", "tf32"])
def test_gelu_stays_with_the_loops(trainer, precision):
    """The library's tanh has too few bits for f32; in tf32 it is slower (codegen/target/cuda.c)."""
    assert not [call for call, _ in products(trainer(f"--precision={precision}")) if "gelu" in call]


@pytest.mark.parametrize("precision", ["bf16", "f16"])
def test_16_bits(trainer, precision):
    """The library's products and the loops'; PyTorch's losses, the same bits in each run."""
    t = trainer(f"--precision={precision}")
    calls = products(t)
    assert len(calls) > 20 and all(f"x = {precision}[" in call and "cuBLASLt" in runs for call, runs in calls)
    got = losses(t)
    assert distance(got, reference.load(NAME)["traces"][0]["f32"]["losses"][:STEPS]) < limit(f"loss {precision}", NAME)
    assert losses(t, name="again") == got
    assert distance(got, t.losses(ON_GPU, f"--steps={STEPS}", name="loops", timeout=1200)) < limit(f"loss {precision}", NAME)


@pytest.mark.parametrize("precision", ["f32", "tf32"])
def test_gradients_add_up_in_the_library(trainer, precision):
    t = trainer(f"--precision={precision}")
    assert found(t, "beta = 1") == {"beta 1"}
    got, without = losses(t, "--accumulate=2"), t.losses(ON_GPU, f"--steps={STEPS}", "--accumulate=2", name="loops")
    assert distance(got, without) < (1e-5 if precision == "f32" else limit("loss tf32", NAME))


def test_autotune(trainer, tmp_path):
    """The slow algorithm is not taken, by the next run either, nor by one that may not try; a run without the file takes it."""
    t, slow, file = trainer(), {"FAKE_CUBLASLT_SLOW": "20:60000"}, tmp_path / "tuned.txt"
    plain = losses(t)
    assert losses(t, f"--autotune={file}", name="tuned", **slow) == plain
    first, *lines = file.read_text().splitlines()
    assert first == "gradc autotune 1" and len(lines) == len({call for call, _ in products(t)}) > 10
    assert all(line.startswith("pretended GPU, cuBLASLt 13.1.0, f32, at most ") for line in lines), lines[0]
    assert not [runs for _, runs in products(t, f"--autotune={file}") if "tile 20" in runs]
    assert {runs.removesuffix(" beta 1") for _, runs in products(t)} == {"cuBLASLt algo 7 tile 20 stages 4"}
    losses(t, f"--autotune={file}", name="again")
    assert file.read_text().splitlines() == [first, *lines]


def test_autotune_says_what_it_does_not_do(trainer, tmp_path):
    t, file = trainer(), tmp_path / "other.txt"
    said = t.run(ON_GPU, LIBRARIES, "--steps=1", f"--autotune={file}", "--deterministic").stderr
    assert f"--autotune: {file} does not exist: a run of one rank without --deterministic writes it" in said
    said = t.run(ON_GPU, "--steps=1", f"--autotune={file}").stderr  # --libraries=off
    assert "--autotune is only for libraries on a GPU" in said and not file.exists()


@pytest.mark.parametrize("what, says", [("no/file", "no/file: No such file or directory"), ("a folder", "a folder: Is a directory"),
                                        ("a model", "a model exists and is not a file of --autotune"), ("a pipe", "a pipe is not a regular file")])
def test_autotune_refuses(trainer, tmp_path, what, says):
    """Nothing is written to what is not its own."""
    (tmp_path / "a folder").mkdir()
    (tmp_path / "a model").write_bytes(b"gradc autotune 2\n")
    os.mkfifo(tmp_path / "a pipe")
    said = trainer().run(ON_GPU, LIBRARIES, "--steps=1", f"--autotune={tmp_path}/{what}", exit=5).stderr
    assert f"--autotune: {tmp_path}/{says}" in said
    assert (tmp_path / "a model").read_bytes() == b"gradc autotune 2\n"
