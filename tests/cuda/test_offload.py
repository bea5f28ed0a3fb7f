"""--offload on pretended GPUs: the host's cores update what lies in the host's memory, and losses are those of a GPU that has all."""
import json

import pytest
from pretended import ON_GPU, openmpi


@pytest.fixture(scope="module")
def exe(gpu):
    return gpu.compile("gpt2_mini", "f32", 0, "--data-parallel=ddp,zero3", "--unit-bytes=1", "--offload=optimizer,params")


@pytest.fixture(scope="module")
def optimizer_alone(gpu):
    return gpu.compile("gpt2_mini", "f32", 0, "--data-parallel=ddp,zero2", "--unit-bytes=1", "--offload=optimizer")


@pytest.mark.parametrize("accumulate", [1, 2])
def test_one_gpu(gpu, exe, tmp_path, accumulate):
    options = ["--steps=3", "--clip-norm=1", f"--accumulate={accumulate}"]
    want = gpu.trainer(exe, tmp_path).losses(ON_GPU, "--data-parallel=ddp", *options, name="alone")
    assert gpu.trainer(exe, tmp_path).losses(ON_GPU, *options, "--data-parallel=zero3", name="offloaded") == pytest.approx(want, rel=1e-6)


def test_its_optimizer(gpu, optimizer_alone, tmp_path):
    options = ["--steps=3", "--clip-norm=1"]
    want = gpu.trainer(optimizer_alone, tmp_path).losses(ON_GPU, "--data-parallel=ddp", *options, name="alone")
    got = gpu.trainer(optimizer_alone, tmp_path).losses(ON_GPU, *options, "--data-parallel=zero2", name="offloaded")
    assert got == pytest.approx(want, rel=1e-6)


def test_moments_in_a_file(gpu, exe, tmp_path):
    """Weights and gradients, which the GPU copies in their turn, stay in memory; steps are recorded, and counted as before."""
    options = ["--steps=6", "--clip-norm=1"]
    want = gpu.trainer(exe, tmp_path).losses(ON_GPU, "--data-parallel=ddp", *options, name="alone")
    trainer = gpu.trainer(exe, tmp_path)
    got = trainer.losses(ON_GPU, *options, "--data-parallel=zero3", "--offload-dir=.", "--save=ck", "--save-every=3", name="filed")
    assert got == pytest.approx(want, rel=1e-6)
    lines = [json.loads(line) for line in (tmp_path / "filed.jsonl").read_text().splitlines()]
    copied = {(line["offload_in_bytes"], line["offload_out_bytes"]) for line in lines if "loss" in line}
    assert len(copied) == 1 and min(min(copied)) > 0
    rest = trainer.losses(ON_GPU, "--steps=6", "--clip-norm=1", "--data-parallel=ddp", "--resume=ck/step-00000003", name="rest")
    assert rest == pytest.approx(want[3:], rel=1e-6)


def test_activations(gpu, tmp_path):
    """Graphs have their copies."""
    exe = gpu.compile("gpt2_mini", "f32", 0, "--offload=activations")
    want = gpu.trainer(gpu.compile("gpt2_mini"), tmp_path).losses(ON_GPU, "--steps=5", "--accumulate=2", name="alone")
    assert gpu.trainer(exe, tmp_path).losses(ON_GPU, "--steps=5", "--accumulate=2", name="offloaded") == want


def test_two_gpus(gpu, exe, tmp_path):
    want = gpu.trainer(exe, tmp_path).losses(ON_GPU, "--data-parallel=ddp", "--accumulate=2", "--steps=2", "--clip-norm=1", name="alone")
    ranks = gpu.trainer(exe, tmp_path)
    ranks.launcher = openmpi()
    got = ranks.losses(ON_GPU, "--data-parallel=zero3", "--steps=2", "--clip-norm=1", name="ranks")
    assert got == pytest.approx(want, rel=1e-6)


def test_an_optimizer_with_estimates(gpu, tmp_path):
    """Sophia's second program of the host reads what a micro-batch has."""
    exe = gpu.compile("mlp_digits", "f32", 0, "--optimizer=sophia", "--offload=optimizer", "--data-parallel=ddp,zero2")
    options, exe.options = ["--steps=24", "--lr=0.001"], []
    want = gpu.trainer(exe, tmp_path).losses(ON_GPU, "--data-parallel=ddp", *options, name="alone")
    assert gpu.trainer(exe, tmp_path).losses(ON_GPU, "--data-parallel=zero2", *options, name="offloaded") == pytest.approx(want, rel=1e-6)
