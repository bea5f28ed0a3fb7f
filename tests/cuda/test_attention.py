"""Attention of teams in 16 bits, on the pretended GPU beside the CPU: heads that share keys, causal masks, several blocks."""
import pytest
from pretended import ON_CPU, ON_GPU

STEPS = 2
MODELS = ["gpt2_mini", "llama_mini"]


@pytest.mark.parametrize("name", MODELS)
def test_losses_in_16_bits(gpu, tmp_path, name):
    """As far apart as sums of 16 bits in two orders."""
    exe = gpu.compile(name, "f32", 0, "--precision=bf16")
    trainer = gpu.trainer(exe, tmp_path)
    got, want = (trainer.losses(device, f"--steps={STEPS}", name=run, timeout=1200) for device, run in ((ON_GPU, "gpu"), (ON_CPU, "cpu")))
    assert len(got) == STEPS
    assert max(abs(a - b) / abs(b) for a, b in zip(got, want)) <= 5e-3
