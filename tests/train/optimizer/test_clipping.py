"""--clip-value and --clip-norm against torch.nn.utils' clip_grad_value_, then clip_grad_norm_, in numpy and f64."""
import numpy as np
import pytest
from checkpoints import tensors
from regression import Regression

STEPS, LR = 6, 0.05


def norm(g):
    return np.sqrt(sum((v ** 2).sum() for v in g.values()))


def expected(r, value, limit):
    """Weights after the steps, and the norms before clipping."""
    p, norms = dict(r.start), []
    for step in range(STEPS):
        g = r.gradients(p, step)
        norms.append(norm(g))
        g = {n: np.clip(v, -value, value) for n, v in g.items()}
        ratio = min(1, limit / (norm(g) + 1e-6))
        p = {n: p[n] - LR * ratio * g[n] for n in p}
    return p, norms


@pytest.mark.parametrize("value, limit", [(0.3, np.inf), (0.3, 0.5), (np.inf, 0.5), (1e9, np.inf), (np.inf, np.inf)])
def test_values_are_clamped_and_then_the_norm(run, tmp_path, value, limit):
    r = Regression(tmp_path)
    run("compile", "model.onnx", "-o", "train", "--batch=8", "--loss=mse", "--precision=f64", "--optimizer=sgd")
    options = [f"--clip-value={value}"] * (value < np.inf) + [f"--clip-norm={limit}"] * (limit < np.inf)
    run(tmp_path / "train", *r.data, f"--steps={STEPS}", f"--lr={LR}", "--log=log.jsonl", "--save=saved", *options)
    want, norms = expected(r, value, limit)
    got = tensors(tmp_path / "saved" / f"step-{STEPS:08}")
    for name in want:
        assert np.allclose(got[name], want[name], rtol=1e-12, atol=0), name
    assert [line["grad_norm"] for line in r.log()] == pytest.approx(norms, rel=1e-12)
    if 0.3 in (value, limit):  # they do clip
        assert not np.allclose(want["w"], expected(r, np.inf, np.inf)[0]["w"], rtol=1e-3)


def test_a_clamp_hides_no_gradient_that_is_not_finite(run, tmp_path):
    """Of 1e200 squared the gradient is finite, and the norm is not; the update is not made."""
    r = Regression(tmp_path)
    np.save(tmp_path / "y.npy", np.full((8, 3), 1e200))
    run("compile", "model.onnx", "-o", "train", "--batch=8", "--loss=l1", "--precision=f64", "--optimizer=sgd")
    np.save(tmp_path / "x.npy", np.full((8, 5), 1e200))
    said = run(tmp_path / "train", *r.data, "--steps=1", "--clip-value=1", "--save=saved", exit=8).stderr
    assert "the norm of the gradients is inf" in said or "the loss is" in said


def test_a_checkpoint_says_the_limit(run, tmp_path):
    r = Regression(tmp_path)
    run("compile", "model.onnx", "-o", "train", "--batch=8", "--loss=mse")
    run(tmp_path / "train", *r.data, "--steps=1", "--save=saved", "--clip-value=2")
    said = run(tmp_path / "train", *r.data, "--steps=2", "--resume=saved", "--clip-value=1").stderr
    assert '"clip_value" was 2, is 1' in said.replace("2.0", "2").replace("1.0", "1")
