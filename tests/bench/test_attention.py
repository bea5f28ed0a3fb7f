"""bench/attention.py without PyTorch: the step that gradc trains, what is subtracted, what is warned of."""
import json
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import attention  # noqa: E402

TOKENS = 33  # divided by no tile


def first_loss(form):
    """The step's first loss, in f64."""
    q, k, v, g = (a.astype(np.float64) for a in attention.arrays(TOKENS).values())
    if form == attention.WITHOUT:
        return (np.mean((q + k + v) * g))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(attention.WIDTH)
    if form == "causal":
        scores = np.where(np.tri(TOKENS, dtype=bool), scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return np.mean(p / p.sum(-1, keepdims=True) @ v * g)


def test_gradc_alone(gradc, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(attention, "SECONDS", 0.01)
    out = tmp_path / "results/attention.json"
    assert attention.main([f"--tokens={TOKENS}", "--contenders=gradc,again", "--rounds=2", "--threads=1", "--peak", f"--gradc={gradc}",
                           f"--out={out}"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:2] for line in lines[:3]] == [["tokens", "form"], ["33", "full"], ["33", "causal"]]
    written = json.loads(out.read_text())
    assert written["settings"]["rounds"] == 2 and {"machine", "load", "warnings"} <= set(written)
    full, causal = written["rows"]
    assert full["flops"] == 2 * causal["flops"] == 6 * 2 * 12 * 64 * 33 ** 2
    for found in full["contenders"].values():
        assert found["step_ms"]["median"] > found["without_ms"]["median"] > 0
        assert found["peak_bytes"] > 1e6 and len(found["attention_round_ms"]) == 2


@pytest.mark.parametrize("form", ["none", "full", "causal"])
def test_gradc_trains_attention(gradc, tmp_path, form):
    o = attention.options([f"--gradc={gradc}", "--threads=1"])
    np.save(tmp_path / "g.npy", attention.arrays(TOKENS)["g"])
    attention.compile_gradc(form, TOKENS, tmp_path, o)
    losses = attention.run_gradc(form, TOKENS, 5, tmp_path, o)["loss"]
    assert losses[0] == pytest.approx(first_loss(form), rel=1e-4)
    assert all(b < a for a, b in zip(losses, losses[1:]))


def run(ms, loss=(1.0, -1.0), peak=0, **more):
    return {"step_ms": [99.0] * attention.WARMUP + [ms] * 3, "loss": list(loss), "peak_bytes": peak, **more}


def runs(torch_loss=(1.0, -1.0), kernel="ScaledDotProductFlashAttentionForCpuBackward0"):
    """Processes of two rounds, with round numbers."""
    return {"none": {"gradc": [run(1, peak=10), run(2, peak=20)], "PyTorch": [run(3, peak=5), run(2, peak=5)]},
            "full": {"gradc": [run(11, peak=60), run(14, peak=50)],
                     "PyTorch": [run(23, torch_loss, 8, kernel=kernel), run(20, torch_loss, 7, kernel=kernel)]}}


def test_the_step_without_attention_is_subtracted():
    row = attention.of_form("full", 10, runs())
    gradc, torch = row["contenders"].values()
    assert (gradc["attention_ms"], gradc["attention_round_ms"], gradc["attention_bytes"]) == (10, [10, 12], 40)
    assert (torch["attention_ms"], torch["attention_round_ms"], torch["attention_bytes"]) == (18, [20, 18], 3)
    assert row["ratios"] == {"PyTorch": [2, 1.5]}
    assert gradc["gflops"] == pytest.approx(row["flops"] / 10e-3 / 1e9)


def test_warnings():
    for found, said in ((runs(), [None, None]),
                        (runs(torch_loss=(1.0, -1.0011)), ["10 tokens, full: losses differ: gradc -1, PyTorch -1.0011", None]),
                        (runs(torch_loss=(1.0009, -1.0)), [None, None]),
                        (runs(kernel="MulBackward0"), [None, "10 tokens, full: PyTorch ran MulBackward0"])):
        row = attention.of_form("full", 10, found)
        assert [attention.losses_warning(row, found["full"]), attention.kernel_warning(row)] == said


def test_what_fails_is_said(tmp_path, capsys):
    assert attention.main(["--tokens=8", "--contenders=gradc", "--gradc=/bin/false", f"--out={tmp_path / 'a.json'}"]) == 1
    assert capsys.readouterr().err.startswith("attention: error: 8 tokens: /bin/false compile")
    assert not (tmp_path / "a.json").exists()
    with pytest.raises(SystemExit):
        attention.options(["--tokens=0"])
