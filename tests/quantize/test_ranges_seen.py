"""Ranges of activations over a training: in the log, the report, and the page of a dump."""
import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "import")]
import browser  # noqa: E402
import reference  # noqa: E402
from make_malformed import model, node, tensor, value  # noqa: E402

RANDOM = np.random.default_rng(11)
X = np.float32(RANDOM.normal(size=(256, 6)) * np.linspace(0.5, 4, 256)[:, None])
OPTIONS = ["--loss=mse", "--batch=8", "--optimizer=sgd", "--quantize=w8a8"]


@pytest.fixture
def trained(run, tmp_path):
    """A product of x, then one of tanh; trained for 200 steps."""
    weights = [tensor(n, np.float32(RANDOM.normal(size=s) / 2)) for n, s in (("a", (6, 5)), ("b", (5, 3)))]
    nodes = [node("MatMul", ["x", "a"], ["h"], name="first"), node("Tanh", ["h"], ["t</script>.y"], name="tanh"),
             node("MatMul", ["t</script>.y", "b"], name="second")]
    onnx.save(model(nodes, inputs=[value("x", ("batch", 6))], initializers=weights, opset=21, ir=10), tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "labels.npy", np.float32(RANDOM.normal(size=(256, 3))))

    def train(*compiling, steps=200):
        run("compile", "model.onnx", "-o", "train", *OPTIONS, *compiling)
        run(tmp_path / "train", "--data=x=x.npy", "--data=labels=labels.npy", f"--steps={steps}", "--lr=0.02", "--shuffle=off", "--progress=off",
            "--log=log.jsonl", "--report=report.html", "--export=out.onnx")
        return reference.log_lines(tmp_path / "log.jsonl")

    return train


def page_data(path):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.S)[1])


def initializers(path):
    return {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


@pytest.mark.parametrize("learning", [[], ["--scale-learning=lsq,zero-points=on"]])
def test_the_log_has_what_is_exported(trained, tmp_path, learning):
    lines = [line for line in trained(*learning) if "lr" in line]
    seen = [line["step"] for line in lines if "ranges" in line]
    assert seen == [1, *range(4, 201, 4)]
    low = high = None
    for line, batch in zip(lines, np.tile(X, (7, 1)).reshape(-1, 8, 6)):
        ends = np.minimum(batch.min(), 0), np.maximum(batch.max(), 0)
        part = np.float32(0 if learning else 0.01)
        low, high = ends if low is None else [old + part * (new - old) for old, new in zip((low, high), ends)]
        if "ranges" in line:
            assert line["ranges"].keys() == {"x", "t</script>.y"}
            np.testing.assert_allclose([line["ranges"]["x"]["low"], line["ranges"]["x"]["high"]], [low, high], rtol=1e-5)
    held, last = initializers(tmp_path / "out.onnx"), lines[-1]["ranges"]
    for name, r in last.items():
        assert np.float32(r["scale"]) == held[f"{name}_scale"] and r["zero_point"] == held[f"{name}_zero_point"]
    assert bool(learning) == (abs(last["x"]["scale"] - (high - low) / 255) > 1e-5 * last["x"]["scale"])


def test_pages_draw_them(run, trained, tmp_path):
    lines = trained()
    run("dump", "model.onnx", *OPTIONS, "--stage=train", "--format=html", "--log=log.jsonl", "-o", "dump.html")
    report, dump = page_data(tmp_path / "report.html"), page_data(tmp_path / "dump.html")
    of = {name: [line["ranges"][name] for line in lines if "ranges" in line] for name in ("x", "t</script>.y")}
    for name, points in of.items():
        for end in ("low", "high"):
            np.testing.assert_allclose(report["ranges"][name][end], [p[end] for p in points], rtol=1e-8)
            assert dump["ranges"][name][end] == [p[end] for p in points]
        assert dump["ranges"][name]["step"] == report["ranges"][name]["step"] == [1, *range(4, 201, 4)]
    makers = [n for f in dump["functions"] if f["name"] == "accumulate" for n in f["nodes"] if n["op"] == "fake_quantize"]
    assert {(n.get("range"), re.search(r"to = (\w+)", n["text"])[1]) for n in makers} == {(None, "s8"), ("x", "u8"), ("t</script>.y", "u8")}


@browser.needs_chromium
def test_pages_in_a_browser(run, trained, tmp_path):
    lines = trained()
    run("dump", "model.onnx", *OPTIONS, "--stage=forward", "--format=html", "--log=log.jsonl", "-o", "dump.html")
    text, tags = browser.parts(tmp_path / "dump.html", tmp_path / "profile", "#codes")
    first, last = lines[0]["ranges"]["x"], lines[-1]["ranges"]["x"]
    assert f"x: from [{first['low']:.4g}, {first['high']:.4g}] to [{last['low']:.4g}, {last['high']:.4g}]" in text["list"]
    assert f"zero point {last['zero_point']}" in text["list"] and tags["svg"] == 4 and tags["script"] == 2
    run("dump", "model.onnx", *OPTIONS, "--stage=forward", "--format=html", "-o", "dump.html")
    text, tags = browser.parts(tmp_path / "dump.html", tmp_path / "profile", "#codes")
    assert "--log=FILE draws it" in text["list"] and "svg" not in tags
    text, tags = browser.parts(tmp_path / "report.html", tmp_path / "profile")
    assert "t</script>.y" in text["ranges"] and tags["script"] == 2


@pytest.mark.parametrize("bad", [False, True])
def test_ranks_wait_alike(run, trained, tmp_path, bad):
    """On a device apart rank 0 reads ranges for its log; a step that fails then ends all ranks."""
    if not shutil.which("mpirun.openmpi"):
        pytest.skip("mpirun.openmpi is not installed")
    trained(steps=1)
    if bad:
        x = X.copy()
        x[20, 1] = np.inf
        np.save(tmp_path / "x.npy", x)
    command = [Path(shutil.which("mpirun.openmpi")), "--allow-run-as-root", "--oversubscribe", "-n", "2", tmp_path / "train", "--data=x=x.npy",
               "--data=labels=labels.npy", "--steps=5", "--lr=0.01", "--shuffle=off", "--progress=off", "--device=async", "--log=two.jsonl", "--find-nan"]
    run(*command, exit=8 if bad else 0)
    lines = [line for line in reference.log_lines(tmp_path / "two.jsonl") if "lr" in line]
    assert [("ranges" in line) for line in lines] == ([True, False] if bad else [True] * 5)


def test_a_log_without_ranges_is_told(run, trained, tmp_path):
    trained(steps=3)
    run("compile", "model.onnx", "-o", "train", "--loss=mse", "--batch=8")
    run(tmp_path / "train", "--data=x=x.npy", "--data=labels=labels.npy", "--steps=3", "--progress=off", "--log=plain.jsonl")
    assert '"ranges":' not in (tmp_path / "plain.jsonl").read_text()
    done = run("dump", "model.onnx", *OPTIONS, "--format=html", "--log=plain.jsonl", "-o", "dump.html")
    assert "plain.jsonl holds no ranges" in done.stderr


BAD = {
    "no such file": (None, [], 5, "log.jsonl: No such file"),
    "no JSON": ('{"step": 1}\nstep 2\n', [], 6, "log.jsonl:2: not a JSON object"),
    "a list": ("[1]\n", [], 6, "log.jsonl:1: not a JSON object"),
    "a device": ("", ["--format=html", "--log=/dev/zero"], 5, "/dev/zero: not a regular file"),
    "a folder": ("", ["--format=html", "--log=."], 5, "not a regular file"),
    "the page over it": ("{}\n", ["--format=html", "-o", "log.jsonl"], 2, "log.jsonl"),
    "another format": ("{}\n", ["--format=text"], 2, "--log=log.jsonl: needs --format=html"),
    "a line that is cut": ('{"step": 1}\n{"step": 2, "ran', [], 0, "log.jsonl holds no ranges"),
    "ranges that are none": ('{"ranges": [1]}\n{"ranges": {"x": 3}}\n{"step": "a", "ranges": {"x": {"low": "b", "high": [2]}}}\n', [], 0, ""),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_logs(run, trained, tmp_path, name):
    trained(steps=1)
    (tmp_path / "log.jsonl").unlink()
    text, options, code, message = BAD[name]
    if text is not None:
        (tmp_path / "log.jsonl").write_text(text)
    usual = {"--format": ["--format=html"], "--log": ["--log=log.jsonl"], "-o": ["-o", "dump.html"]}
    options = sum((words for key, words in usual.items() if not any(o.split("=")[0] == key for o in options)), list(options))
    done = run("dump", "model.onnx", *OPTIONS, *options, exit=code)
    assert message in done.stderr and (tmp_path / "dump.html").exists() == (code == 0)
    if name == "ranges that are none":
        assert page_data(tmp_path / "dump.html")["ranges"]["x"] == {"step": [None, None], "low": [None, None], "high": [None, None],
                                                                    "scale": [None, None], "zero_point": [None, None]}
