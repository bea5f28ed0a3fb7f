"""bench/paired.py: which files and options it takes, what it counts, and a whole comparison of this build with itself."""
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tests/models")]
import paired  # noqa: E402
import unpack  # noqa: E402


@pytest.mark.parametrize("name", unpack.names() + ["bert_base", "gpt_256:1x64"])
def test_a_case_has_its_files(tmp_path, name):
    case = paired.case(name, tmp_path / "case")
    files = [word.split("=", 1)[1] for word in case.train if word != "--data"]
    assert case.onnx.is_file() and len(files) >= 2 and all(Path(f).is_file() for f in files)
    assert any(o.startswith("--loss=") for o in case.compile) and "-o" not in case.compile


def rounds(monkeypatch, old, new, runs):
    """What one_round makes of runs that take so long, and the order of these."""
    times, order = {"old": iter(old), "new": iter(new)}, []
    monkeypatch.setattr(paired, "train", lambda exe, *_: order.append(exe) or next(times[exe]))
    monkeypatch.setattr(paired, "lines_at", lambda exe, model, steps, o: [len(exe) * steps])
    o = paired.options(["old", "new", f"--runs={runs}"])
    return paired.one_round({"old": "old", "new": "new"}, None, 100, o), order


def test_the_fastest_run_counts(monkeypatch):
    """Disturbances only ever add."""
    (best, noise), order = rounds(monkeypatch, [3, 3.015, 5], [2, 2, 9], 3)
    assert best == {"old": (3, 3), "new": (2, 3)} and noise == pytest.approx(0.005)
    assert order == ["new", "old", "old", "new", "new", "old"]


def test_more_runs_until_two_agree(monkeypatch):
    (best, noise), order = rounds(monkeypatch, [4, 3, 3, 2], [2] * 9, 2)
    assert (best["old"][0], noise, len(order)) == (3, 0, 6)
    ever_faster = [0.5 ** n for n in range(99)]
    (_, noise), order = rounds(monkeypatch, ever_faster, [2] * 99, 2)
    assert (noise, len(order)) == (1, 2 * 2 * paired.MOST)


def test_a_step_is_a_fast_one_of_the_usual():
    """Of 52 steps the first 10 are left out, and the last, whose line comes with the one before; of ten windows of four steps
    one is faster and does not count, two are."""
    usual, fast = [2.0] * 4, [0.5] * 4
    for windows, ms in [([usual] * 9 + [fast], 2000), ([usual] * 8 + [fast] * 2, 500)]:
        gaps = [1.0] * 10 + sum(windows, []) + [0.001]
        assert paired.fast_step([sum(gaps[:i]) for i in range(len(gaps) + 1)]) == pytest.approx(ms)
    assert paired.fast_step([0.5, 1.0, 1.25, 1.25]) == 250


def test_slower_is_what_is_slower_in_every_round():
    results = {"a": {"ratios": [2.0, 1.04], "compile": 1.0}, "b": {"ratios": [0.5, 1.05], "compile": 4.0},
               "c": {"ratios": [1.06, 1.07], "compile": 2.0}}
    for r, first in zip(results.values(), (0.5, 1, 2)):
        r["old"], r["new"] = (1, 1), (1, 1.5 * first)
    said = paired.summary(results)
    assert "by round: 1.020 1.053 " in said[0]
    assert "worst in every round: c, 1.060 " in said[1]
    assert "first step: 1.500 " in said[2]
    assert "compiling: 2.000 " in said[3]


def test_a_build_with_itself(gradc, monkeypatch, capsys):
    monkeypatch.setattr(paired, "SECONDS", 0.1)
    assert paired.main([str(gradc), str(gradc), "--models=mlp_digits,mlp_diabetes", "--runs=2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["model", "mlp_digits", "mlp_diabetes", "geometric", "worst",
                                                   "geometric", "geometric"]
    assert all(0.2 < float(r) < 5 for line in lines[1:3] for r in line.split()[5:7])
    assert all(line.split()[7].endswith("%") for line in lines[1:3])


def test_several_ranks(gradc, monkeypatch, capsys):
    launcher = paired.options(["a", "b"]).launcher
    if not shutil.which(launcher.split()[0]):
        pytest.skip(f"{launcher.split()[0]} is not installed")
    monkeypatch.setattr(paired, "SECONDS", 0.1)
    assert paired.main([str(gradc), str(gradc), "--models=mlp_digits", "--runs=2", "--ranks=2"]) == 0
    monkeypatch.setattr(paired.executable, "log_lines", lambda command: pytest.fail(" ".join(map(str, command))))
    with pytest.raises(pytest.fail.Exception, match=f"{launcher} 2 exe .*--threads=3 "):
        paired.train("exe", paired.Case("m", None, [], []), 50, paired.options(["a", "b", "--ranks=2", "--threads=3"]))


def test_what_fails_is_said(gradc, capsys):
    assert paired.main([str(gradc), "/bin/false", "--models=mlp_digits"]) == 1
    assert capsys.readouterr().err.startswith("paired: error: mlp_digits: /bin/false compile")
    with pytest.raises(SystemExit):
        paired.options(["old", "new", "--models=gpt5"])
    assert "'gpt5' is none of bert_mini, " in capsys.readouterr().err
