"""Every reference model is compiled and trained for two steps: for the build with sanitizers, which sees more than
wrong numbers. `build` compares the losses of all steps (test_reference.py)."""
import math

import pytest
import reference
import unpack


@pytest.mark.parametrize("name", [*filter(unpack.has_kernels_of_its_own, reference.NAMES)])
def test_two_steps(run, of_trace, models, tmp_path, name):
    folder = models / name
    options = [o for o in reference.train_options(name, "f32") if not o.startswith("--steps")]
    run(of_trace(name), *options, "--steps=2", "--log", tmp_path / "log.jsonl", "--progress=off", "--export", tmp_path / "out.onnx",
        "--save", tmp_path / "ck", cwd=folder)
    losses = reference.step_losses(tmp_path / "log.jsonl")
    assert len(losses) == 2 and all(map(math.isfinite, losses))
    run("dump", of_trace(name), "--stage=schedule")
