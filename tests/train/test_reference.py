"""The proof: each trace's own two command lines give PyTorch's losses, step by step; and on two threads three runs
are one."""
import pytest
import reference
import unpack
from checkpoints import steps_of
from tolerances import limit


@pytest.mark.parametrize("name, trace, precision", reference.traces())
def test_losses_are_pytorchs(run, of_trace, models, tmp_path, name, trace, precision):
    log = tmp_path / "log.jsonl"
    run(of_trace(name, trace, precision), *reference.train_options(name, precision, trace),
        "--log", log, "--progress", "off", cwd=models / name)
    want = reference.load(name)["traces"][trace][precision]
    losses = reference.step_losses(log)
    assert len(losses) == len(want["losses"])
    off = [abs(a - b) / abs(b) for a, b in zip(losses, want["losses"])]
    worst = max(range(len(off)), key=off.__getitem__)
    assert off[worst] <= limit(f"loss {precision}", name), (
        f"step {worst}: loss {losses[worst]!r}, PyTorch {want['losses'][worst]!r}, "
        f"relative {off[worst]:.2e}; first step {off[0]:.2e}")


@pytest.mark.parametrize("name", [*filter(unpack.has_kernels_of_its_own, reference.NAMES)])
def test_three_runs_are_identical(run, of_trace, models, tmp_path, name):
    """Steps, losses, learning rates, norms, samples and final weights, on two threads with shuffled data."""
    options = [o for o in reference.train_options(name, "f32")
               if not o.startswith(("--shuffle", "--steps"))]
    results = []
    for i in range(3):
        log, model = tmp_path / f"{i}.jsonl", tmp_path / f"{i}" / "model.onnx"
        model.parent.mkdir()
        run(of_trace(name), *options, "--steps=6", "--threads=2", "--log", log, "--export",
            model, "--progress=off", "--table=off", cwd=models / name)
        files = {f.name: f.read_bytes() for f in model.parent.iterdir()}
        results.append((steps_of(log), files))
    steps, files = results[0]
    assert [s["step"] for s in steps] == [1, 2, 3, 4, 5, 6]
    assert {"loss", "lr", "grad_norm", "samples"} <= steps[0].keys()
    assert len({s["loss"] for s in steps}) > 1, "nothing was trained"
    for other_steps, other_files in results[1:]:
        assert other_steps == steps
        assert other_files == files
