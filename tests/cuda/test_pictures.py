"""A GPU converts bytes of pictures itself, as tests/train/test_raw_inputs.py has it for the device for tests."""
import json

import numpy as np
import pytest
from checkpoints import steps_of
from pictures import BATCH, Pictures
from pretended import ARCHITECTURE, ON_GPU, Executable, openmpi

TRAIN = ("--steps=12", "--keep-last", "--lr=0.01")  # three steps an epoch
CASES = [{"both": True}, {"channels": "last"}, {"bytes": np.int8, "channels": None}]


@pytest.fixture(scope="module")
def compiled(gpu, tmp_path_factory):
    """compiled(CASE): its rows; the executable's file and its kernels."""
    def make(case):
        pictures = Pictures(tmp_path_factory.mktemp("pictures"), **case)
        options = (f"--target=cpu,cuda:{ARCHITECTURE}", "--loss=cross_entropy", "--optimizer=sgd", f"--batch={BATCH}")
        return pictures, gpu.compile_it(pictures.folder.name, options, None, pictures.folder)
    return lambda case: gpu.once(("pictures", str(case)), lambda: make(case))


def losses(gpu, made, data, folder, *options, fake=None, ranks=1):
    trainer = gpu.trainer(Executable(*made, data, list(TRAIN)), folder)
    trainer.launcher = openmpi() if ranks > 1 else []
    trainer.run(ON_GPU, *options, "--log=log.jsonl", fake=fake)
    return [step["loss"] for step in steps_of(folder / "log.jsonl")]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_bits_of_the_host(gpu, compiled, tmp_path, case):
    """The host has converted the floats. Later steps are graphs; the last batch of an epoch is half padding."""
    pictures, made = compiled(case)
    want = losses(gpu, made, pictures.floats, tmp_path)
    assert len(want) == 12 and losses(gpu, made, pictures.raw, tmp_path) == want


def test_calls(gpu, compiled, tmp_path):
    """Of one step: a launch takes the place of a copy, and the tables are copied once."""
    pictures, made = compiled({})
    calls = {}
    for name, data in ("floats", pictures.floats), ("raw", pictures.raw):
        path = tmp_path / name
        losses(gpu, made, data, tmp_path, "--steps=1", fake={"COUNT": path, "DELAY": 0})
        calls[name] = json.loads(path.read_text())
    assert calls["raw"]["cuLaunchKernel"] == calls["floats"]["cuLaunchKernel"] + 1
    assert calls["raw"]["cuMemcpyAsync"] == calls["floats"]["cuMemcpyAsync"]


def test_slow_streams(gpu, compiled, tmp_path):
    """The step waits for the look-up, and the next rows wait until it has read the bytes."""
    pictures, made = compiled({})
    want = losses(gpu, made, pictures.floats, tmp_path, "--steps=5")
    for stream in 0, 1:
        assert losses(gpu, made, pictures.raw, tmp_path, "--steps=5", fake={"SLOW": stream}) == want


def test_ranks(gpu, compiled, tmp_path):
    pictures, made = compiled({})
    want = losses(gpu, made, pictures.floats, tmp_path, ranks=2)
    assert losses(gpu, made, pictures.raw, tmp_path, ranks=2) == want
