"""What people see of a training: trace, event file, report, the live line."""
import json
import os
import re
import shutil
import subprocess
import time

import browser
import jsonschema
import numpy as np
import onnx
import pytest
import reference
from onnx import helper, numpy_helper
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

# The events we write, of the Trace Event Format; Perfetto's importer wants these fields.
TRACE_SCHEMA = {
    "type": "object",
    "required": ["traceEvents"],
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "traceEvents": {"type": "array", "minItems": 1, "items": {"oneOf": [
            {"type": "object", "additionalProperties": False,
             "required": ["name", "cat", "ph", "ts", "dur", "pid", "tid"],
             "properties": {"name": {"type": "string", "minLength": 1}, "cat": {"type": "string"},
                            "ph": {"const": "X"}, "ts": {"type": "number", "minimum": 0},
                            "dur": {"type": "number", "minimum": 0}, "pid": {"type": "integer"},
                            "tid": {"type": "integer"}, "args": {"type": "object"}}},
            {"type": "object", "additionalProperties": False,
             "required": ["name", "ph", "pid", "tid", "args"],
             "properties": {"name": {"enum": ["process_name", "thread_name"]},
                            "ph": {"const": "M"}, "pid": {"type": "integer"},
                            "tid": {"type": "integer"},
                            "args": {"type": "object", "required": ["name"], "properties": {
                                "name": {"type": "string"}}}}}]}}}}

HOSTILE = "</script><img src=x onerror=alert(1)>'\"&\\ \u202e"


@pytest.fixture(scope="module")
def digits(gradc, models, tmp_path_factory):
    exe = tmp_path_factory.mktemp("digits") / "train"
    subprocess.run([gradc, "compile", models / "mlp_digits/model.onnx", "-o", exe,
                    "--dim=batch=10"], check=True, capture_output=True)
    return exe


def data(models):
    files = {n: models / f"mlp_digits/{n}.npy" for n in ("input", "labels")}
    return [a for k in ("--data", "--eval-data") for n, f in files.items() for a in (k, f"{n}={f}")]


# ---- trace

def tracks(path):
    """{track: its spans by time} of a trace that is valid."""
    trace = json.loads(path.read_text())
    jsonschema.validate(trace, TRACE_SCHEMA)
    events = trace["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    found = {name: [] for name in names.values()}
    for e in events:
        if e["ph"] == "X":
            found[names[e["tid"]]].append(e)
    return {name: sorted(spans, key=lambda e: (e["ts"], -e["dur"])) for name, spans in found.items()}


def check_nesting(spans):
    """Spans of one track lie within one another or apart, to the nanosecond."""
    ends = []
    for e in spans:
        while ends and ends[-1] <= e["ts"] + 0.0015:
            ends.pop()
        assert not ends or e["ts"] + e["dur"] <= ends[-1] + 0.0015, e
        ends.append(e["ts"] + e["dur"])


def test_trace(run, digits, models, tmp_path):
    run(digits, *data(models), "--steps=3", "--accumulate=2", "--eval-every=2", "--trace",
        tmp_path / "t.json", "--progress=off")
    found = tracks(tmp_path / "t.json")
    training, reading = found["training"], found["reading ahead"]
    counts = {}
    for e in training:
        counts[e["name"]] = counts.get(e["name"], 0) + 1
    assert counts["step"] == 3 and counts["micro-batch"] == 6 and counts["evaluation"] == 3
    assert counts["forward"] >= 6 and counts["backward"] >= 6 and counts["update"] >= 3
    assert counts.get("data", 0) + counts.get("data (waited)", 0) == 6
    kernels = [e for e in training if e["cat"] == "kernel"]
    assert any("/0/Gemm" in e["args"].get("from", "") for e in kernels)
    assert any(e["name"].startswith("/0/Gemm") for e in kernels)
    assert len([e for e in kernels if e["args"]["kernel"] == kernels[0]["args"]["kernel"]]) == 6
    assert [e["args"]["number"] for e in training if e["name"] == "step"] == [1, 2, 3]
    assert sum(e["args"]["rows"] for e in reading) >= 3 * 2 * 10
    for spans in found.values():
        check_nesting(spans)


def test_trace_of_saves(run, digits, models, tmp_path):
    """What training waits for, and what is written meanwhile: also by a save that ends with the training."""
    run(digits, *data(models), "--steps=6", "--save", tmp_path / "ck", "--save-every=2", "--trace",
        tmp_path / "t.json", "--progress=off")
    found = tracks(tmp_path / "t.json")
    saves = [e for e in found["training"] if e["name"] in ("save", "save (waited)")]
    assert len(saves) == 3 and saves[0]["name"] == "save"
    written = found["saving"]
    assert [(e["name"], e["args"]["step"]) for e in written] == [("checkpoint", s) for s in (2, 4, 6)]
    for save, checkpoint in zip(saves, written):
        assert save["ts"] <= checkpoint["ts"] <= save["ts"] + save["dur"] + 1e6
    for spans in found.values():
        check_nesting(spans)


def test_trace_changes_nothing_and_survives_a_fault(run, digits, models, tmp_path):
    losses = []
    for more in ([], ["--trace", tmp_path / "t.json", "--report", tmp_path / "r.html"]):
        run(digits, *data(models), "--steps=5", "--log", tmp_path / "log.jsonl", "--progress=off",
            *more)
        losses.append(reference.step_losses(tmp_path / "log.jsonl"))
    assert losses[0] == losses[1]
    labels = np.load(models / "mlp_digits/labels.npy").copy()
    labels[25] = 10
    np.save(tmp_path / "labels.npy", labels)
    run(digits, "--data", f"input={models}/mlp_digits/input.npy", "--data",
        f"labels={tmp_path}/labels.npy", "--shuffle=off", "--trace", tmp_path / "f.json",
        "--progress=off", exit=6)
    assert len([e for e in tracks(tmp_path / "f.json")["training"] if e["name"] == "step"]) == 2
    said = run(digits, *data(models), "--trace", tmp_path / "no/folder/t.json", exit=5).stderr
    assert "no/folder/t.json" in said


# ---- TensorBoard

def test_tensorboard_reads_the_log_back(run, digits, models, tmp_path):
    run(digits, *data(models), "--steps=20", "--eval-every=10", "--tensorboard", tmp_path / "tb",
        "--log", tmp_path / "log.jsonl", "--progress=off")
    events = EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    lines = reference.log_lines(tmp_path / "log.jsonl")
    steps = [x for x in lines if "loss" in x]
    for tag, key in (("loss", "loss"), ("lr", "lr"), ("grad_norm", "grad_norm")):
        scalars = events.Scalars(tag)
        assert [s.step for s in scalars] == [x["step"] for x in steps]
        assert [s.value for s in scalars] == [np.float32(x[key]) for x in steps]
        assert all(abs(s.wall_time - time.time()) < 600 for s in scalars)
    evals = [x for x in lines if "eval_loss" in x]
    assert [(s.step, s.value) for s in events.Scalars("eval/loss")] == \
        [(x["step"], np.float32(x["eval_loss"])) for x in evals]
    assert [s.step for s in events.Scalars("eval/accuracy")] == [0, 10, 20]


def test_event_file_has_checksums(run, digits, models, tmp_path):
    """The package checks each record: a flipped byte ends the file there."""
    run(digits, *data(models), "--steps=5", "--tensorboard", tmp_path / "tb", "--progress=off")
    (path,) = (tmp_path / "tb").iterdir()
    assert path.name.startswith("events.out.tfevents.")
    whole = len(list(EventFileLoader(str(path)).Load()))
    assert whole == 1 + 1 + 5
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    assert len(list(EventFileLoader(str(path)).Load())) < whole


# ---- report

def page_data(page):
    text = page.read_text()
    assert not re.search(r"(src|href)=|https?://(?!www\.w3\.org/2000/svg)|@import|url\(", text), \
        "the page needs something besides itself"
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text,
                                re.DOTALL)[1])


def test_report_holds_the_training(run, digits, models, tmp_path):
    run(digits, *data(models), "--steps=40", "--eval-every=20", "--lr=0.01", "--report",
        tmp_path / "r.html", "--log", tmp_path / "log.jsonl", "--progress=off", "--save", tmp_path / "ck",
        "--save-every=10")
    held = page_data(tmp_path / "r.html")
    lines = [x for x in reference.log_lines(tmp_path / "log.jsonl") if "loss" in x]
    assert held["curve"]["step"] == list(range(1, 41))
    np.testing.assert_allclose(held["curve"]["loss"], [x["loss"] for x in lines], rtol=1e-8)
    np.testing.assert_allclose(held["curve"]["save_ms"], [x["save_ms"] for x in lines], rtol=1e-8)
    assert held["phases"]["saving"] == pytest.approx(sum(x["save_ms"] for x in lines) / 40) and lines[10]["save_ms"] > 0
    assert held["eval"]["step"] == [0, 20, 40]
    assert held["settings"]["lr"] == 0.01 and held["settings"]["steps"] == 40
    assert sum(held["memory"].values()) == held["peak_bytes"] == lines[0]["peak_bytes"]
    profile = held["profile"]
    assert profile["steps"][0] == 2 and 1 < len(profile["steps"]) <= 12
    assert {"/0/Gemm", "/1/Relu", "/4/Gemm", "loss", "optimizer"} <= \
        {n["name"] for n in profile["nodes"]}
    by_kernel = sum(k["ms"] for k in profile["kernels"])
    by_node = sum(n["forward"] + n["backward"] + n["update"] for n in profile["nodes"])
    assert by_kernel == pytest.approx(by_node, rel=1e-6) and by_kernel > 0
    gemm = next(n for n in profile["nodes"] if n["name"] == "/0/Gemm")
    assert gemm["forward"] > 0 and gemm["backward"] > 0 and gemm["update"] == 0


def test_report_of_a_long_training_stays_small(run, digits, models, tmp_path):
    run(digits, *data(models), "--steps=5000", "--report", tmp_path / "r.html", "--progress=off")
    held = page_data(tmp_path / "r.html")
    steps = held["curve"]["step"]
    assert 1000 <= len(steps) <= 2000 and held["stride"] == 4
    assert steps == list(range(4, 5001, 4))


@browser.needs_chromium
def test_report_in_a_browser(run, digits, models, tmp_path):
    run(digits, *data(models), "--steps=30", "--report", tmp_path / "r.html", "--progress=off")
    text, tags = browser.parts(tmp_path / "r.html", tmp_path / "profile")
    assert "30 of 30" in text["summary"] and "last loss" in text["summary"]
    assert "norm of the gradients" in text["curves"] and tags["svg"] >= 5 and tags["path"] >= 5
    assert "forward" in text["phases"] and "workspace" in text["memory"]
    assert "/0/Gemm" in text["nodes"] and "fused(" in text["kernels"]
    assert "in steps 2, " in text["sampled"] and "fault" not in text
    assert "steps" in text["settings"] and "optimizer" in text["info"]
    assert browser.screenshot(tmp_path / "r.html", tmp_path / "profile",
                              tmp_path / "r.png") > 20


@browser.needs_chromium
def test_report_of_a_training_that_failed(run, digits, models, tmp_path):
    """Names that look like markup stay text; the fault stands in the page."""
    path = tmp_path / (HOSTILE.replace("/", "") + ".npy")
    bad = np.load(models / "mlp_digits/input.npy").copy()
    bad[35] = np.nan
    np.save(path, bad)
    run(digits, "--data", f"input={path}", "--data", f"labels={models}/mlp_digits/labels.npy",
        "--shuffle=off", "--report", tmp_path / "r.html", "--progress=off", exit=6)
    text, tags = browser.parts(tmp_path / "r.html", tmp_path / "profile")
    assert "row 35" in text["fault"] and "<img src=x" in text["fault"]
    assert "img" not in tags and tags["script"] == 2
    assert "3 of " in text["summary"]


# ---- the live line

GREEN = "\x1b[32m"


def watch(exe, arguments, width, tmp_path, found, **environment):
    """The lines of a terminal of that width, with colours, once one of them matches `found`."""
    server = ["tmux", "-S", str(tmp_path / "tmux"), "-f", "/dev/null"]
    env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "TMUX")}
    line = " ".join(map(str, [exe, *arguments]))
    subprocess.run([*server, "new-session", "-d", "-x", str(width), "-y", "30", f"exec {line}"],
                   check=True, env={**env, "TERM": "xterm-256color", **environment})
    try:
        for _ in range(600):
            shown = subprocess.run([*server, "capture-pane", "-p", "-e"], capture_output=True,
                                   text=True).stdout
            if any(re.search(found, plain(x)) for x in shown.splitlines()):
                return [x for x in shown.splitlines() if x]
            time.sleep(0.05)
        raise AssertionError(shown)
    finally:
        subprocess.run([*server, "kill-server"], capture_output=True)


def plain(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.fixture(scope="module")
def long_run(digits, models):
    return [digits, [*data(models), "--steps=10000000", "--lr=1e-6", "--table=off"]]


needs_tmux = pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not installed")
LIVE = r"^\d+/10000000 .*loss \d+\.\d+  .*left \d+:"


@needs_tmux
@pytest.mark.parametrize("width, has", [
    (40, []), (80, ["rows/s", "iB", "-----"]),
    (200, ["rows/s", "iB", "step/s", "lr 1e-06", "-" * 35])])
def test_live_line(long_run, tmp_path, width, has):
    """One line that fits: loss and time left always, then the rate, memory, a bar, the rest."""
    lines = watch(*long_run, width, tmp_path, LIVE)
    assert "before training: eval loss" in plain("".join(lines))
    live = [x for x in lines if re.search(LIVE, plain(x))]
    assert len(live) == 1 and live[0] == lines[-1] and len(plain(live[0])) < width
    assert all(word in plain(live[0]) for word in has)
    assert (GREEN in live[0]) == (width >= 80)
    assert width < 80 or len(plain(live[0])) > 60


@needs_tmux
def test_live_line_without_colour(long_run, tmp_path):
    (live,) = [x for x in watch(*long_run, 80, tmp_path, LIVE, NO_COLOR="1")
               if re.search(LIVE, plain(x))]
    assert "\x1b" not in live and "-----" in live


@pytest.mark.parametrize("kind", ["auto", "bar", "plain"])
def test_no_escape_codes_in_a_pipe(run, digits, models, kind):
    said = run(digits, *data(models), "--steps=300", f"--progress={kind}").stderr
    assert "\x1b" not in said and "300/300" in said
    assert kind == "bar" or "\r" not in said


def node(op, inputs, outputs, name, **attributes):
    return helper.make_node(op, inputs, outputs, name, **attributes)


def test_layers_that_share_a_kernel_have_times_of_their_own(run, tmp_path):
    """Four equal layers: one kernel, four nodes in the report, the trace and --info; statistics are stored by their norm."""
    names = [f"layer{i}" for i in range(4)]
    nodes = [node("BatchNormalization", ["x", "s", "b", "m", "v"], ["h0", "mo", "vo"], "norm", training_mode=1)]
    weights = {"s": np.ones(8), "b": np.zeros(8), "m": np.zeros(8), "v": np.ones(8)}
    for i, name in enumerate(names):
        nodes.append(node("MatMul", [f"h{i}", f"w{i}"], [f"h{i + 1}" if i < 3 else "y"], name))
        weights[f"w{i}"] = np.random.default_rng(i).standard_normal((8, 8))
    ports = [helper.make_tensor_value_info(n, 1, [4, 8]) for n in "xy"]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], [numpy_helper.from_array(v.astype(np.float32), k) for k, v in weights.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "model.onnx")
    for name in "x", "y":
        np.save(tmp_path / f"{name}.npy", np.random.default_rng(9).standard_normal((8, 8)).astype(np.float32))
    run("compile", "model.onnx", "-o", "train", "--loss=mse")
    run(tmp_path / "train", "--data", "x=x.npy", "--data", "labels=y.npy", "--steps=4", "--trace=t.json", "--report=r.html", "--progress=off")
    shared = {}
    for e in tracks(tmp_path / "t.json")["training"]:
        if e["cat"] == "kernel" and re.fullmatch(r"\w+_\d+", e["args"]["kernel"]):
            shared.setdefault(e["args"]["kernel"], set()).add(e["name"])
    assert max(len({n.split(" + ")[0] for n in found} & set(names)) for found in shared.values()) >= 2, shared
    text = (tmp_path / "r.html").read_text()
    for name in names:
        assert f'"name": "{name}"' in text or f'"name":"{name}"' in text
    info = run(tmp_path / "train", "--info").stdout
    assert any(sum(f'"{n}"' in line for n in names) >= 2 and ";" in line for line in info.splitlines() if re.match(r"  \w+_\d+ ", line))
    dump = run("dump", "model.onnx", "--stage=schedule", "--loss=mse").stdout
    copies = [line for line in dump.splitlines() if " copy" in line and any(f"@{s}" in line or f'"{s}"' in line for s in "mv")]
    assert all('"norm"' in line for line in copies)
