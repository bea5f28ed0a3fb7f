"""The proof: each trace's own two command lines give PyTorch's losses, step by step."""
import pytest
import reference
from tolerances import limit


@pytest.mark.parametrize("name, trace, precision", reference.traces())
def test_losses_are_pytorchs(run, models, tmp_path, name, trace, precision):
    exe, log = tmp_path / "train", tmp_path / "log.jsonl"
    run("compile", "model.onnx", "-o", exe, *reference.compile_options(name, precision, trace),
        cwd=models / name)
    run(exe, *reference.train_options(name, precision, trace), "--log", log, "--progress", "off",
        cwd=models / name)
    want = reference.load(name)["traces"][trace][precision]
    losses = reference.step_losses(log)
    assert len(losses) == len(want["losses"])
    off = [abs(a - b) / abs(b) for a, b in zip(losses, want["losses"])]
    worst = max(range(len(off)), key=off.__getitem__)
    assert off[worst] <= limit(f"loss {precision}", name), (
        f"step {worst}: loss {losses[worst]!r}, PyTorch {want['losses'][worst]!r}, "
        f"relative {off[worst]:.2e}; first step {off[0]:.2e}")
