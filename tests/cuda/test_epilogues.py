"""What cuBLASLt does as it stores a product, in runs on the pretended GPU."""
import json

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
