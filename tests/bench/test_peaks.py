"""bench/peaks.py without PyTorch: what counts as state, the table, what fails."""
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import peaks  # noqa: E402


def test_gradc_alone(gradc, tmp_path, capsys):
    out = tmp_path / "results/peaks.json"
    assert peaks.main(["--cases=gpt_256:1x64,gpt_256:1x128", "--contenders=gradc", "--threads=1", f"--gradc={gradc}", f"--out={out}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["workspace", "gpt_256", "gpt_256"] and lines[1].split()[1] == "1x64"
    short, long = (row["contenders"]["gradc"] for row in json.loads(out.read_text())["rows"])
    assert short["state_bytes"] == long["state_bytes"] == 5_322_240 * 16
    assert short["above_bytes"] == short["peak_bytes"] - short["state_bytes"] > 0
    assert 1.5 < long["workspace_bytes"] / short["workspace_bytes"] < 4


def test_beside_pytorch(gradc, tmp_path, monkeypatch, capsys):
    """torch.compile does not run gpt_256."""
    asked = []

    def run_torch(name, model, mode, folder, o):
        asked.append((name, model.text(), mode, o.precision))
        return {"peak_bytes": 5_322_240 * 16 + 10 ** 12, "steady_bytes": 5_322_240 * 16 + 9, "parameters": 5_322_240}

    monkeypatch.setattr(peaks.compare, "run_torch", run_torch)
    out = tmp_path / "peaks.json"
    assert peaks.main(["--cases=gpt_256:1x64", "--threads=1", f"--gradc={gradc}", f"--out={out}"]) == 0
    assert asked == [("gpt_256", "1x64", "eager", "f32")]
    found = json.loads(out.read_text())["rows"][0]["contenders"]["eager"]
    assert (found["above_bytes"], found["steady_above_bytes"]) == (10 ** 12, 9)
    words = capsys.readouterr().out.splitlines()[1].split()
    assert words[-5:] == ["1000000.0", "MB", "-", "0.00", "-"]


@pytest.mark.parametrize("text", ["gpt5", "gpt2_124m:1", "resnet18:1x2"])
def test_cases_that_are_none(text, capsys):
    with pytest.raises(SystemExit) as exit:
        peaks.options([f"--cases={text}"])
    assert exit.value.code == 2 and f"{text!r} is none of mlp, " in capsys.readouterr().err


def test_what_fails_is_said(tmp_path, capsys):
    assert peaks.main(["--cases=gpt_256:1x8", "--contenders=gradc", "--gradc=/bin/false", f"--out={tmp_path / 'a.json'}"]) == 1
    assert capsys.readouterr().err.startswith("peaks: error: gpt_256:1x8: /bin/false compile")
