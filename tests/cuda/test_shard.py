"""Ranks on pretended GPUs that hold parts of states: what travels goes through the host's memory, and losses are those of one GPU."""
import pytest
from pretended import ON_GPU, openmpi


@pytest.mark.parametrize("mode, how", [("zero1", "fast"), ("zero2", "ordered"), ("zero3", "ordered")])
def test_parts_on_gpus(gpu, tmp_path, mode, how):
    exe = gpu.compile("gpt2_mini", "f32", 0, "--data-parallel=ddp,zero1,zero2,zero3", "--unit-bytes=1")
    alone = gpu.trainer(exe, tmp_path)
    want = alone.losses(ON_GPU, "--data-parallel=ddp", "--accumulate=2", "--steps=2", "--clip-norm=1", name="alone")
    ranks = gpu.trainer(exe, tmp_path)
    ranks.launcher = openmpi()
    got = ranks.losses(ON_GPU, f"--data-parallel={mode}", "--steps=2", "--clip-norm=1", f"--reduce={how}", "--collectives=host", name="ranks")
    assert got == (want if how == "ordered" else pytest.approx(want, rel=1e-6))
