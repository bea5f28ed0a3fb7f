"""Recipes of 16 and 8 bits, and optimizers with programs of their own, on the pretended GPU beside the CPU."""
import pytest
from pretended import ON_CPU, ON_GPU

STEPS = 12  # with an estimate after the tenth
ALONE = ["--precision=bf16", "--master=off", "--rounding=stochastic", "--moments=bf16"]
# Options of the compiler; how far losses of bf16 and of f32 may be apart.
RECIPES = {"bf16 alone": (ALONE, 2e-2),
           "optimizers": (["--optimizer=sophia", "--optimizer-for=0.weight=adamw8bit", "--optimizer-for=2.weight=muon,ns_f32,lr=0.02", "--ema=0.9"], 1e-4)}


@pytest.mark.parametrize("recipe", RECIPES)
def test_losses(gpu, tmp_path, recipe):
    options, limit = RECIPES[recipe]
    trainer = gpu.trainer(gpu.compile("mlp_digits", "f32", 0, *options), tmp_path)
    trainer.options = ["--shuffle=off", "--lr=0.003"]
    got, again, want = (trainer.losses(device, f"--steps={STEPS}", name=name)
                        for device, name in ((ON_GPU, "gpu"), (ON_GPU, "again"), (ON_CPU, "cpu")))
    assert len(got) == STEPS and got == again and got != want[:1] * STEPS
    assert max(abs(a - b) / b for a, b in zip(got, want)) <= limit and want[-1] < 0.98 * want[0]
