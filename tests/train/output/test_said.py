"""What a training says before, during and after its steps, and in the first line of its log."""
import json
import os
import re
import shlex
import subprocess

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper


@pytest.fixture(scope="module")
def digits(gradc, models, tmp_path_factory):
    exe = tmp_path_factory.mktemp("lines") / "train"
    subprocess.run([gradc, "compile", models / "mlp_digits/model.onnx", "-o", exe, "--batch=32", "--freeze=0.*"], check=True,
                   capture_output=True)
    return exe


@pytest.fixture
def data(models):
    return [f"--data={name}={models}/mlp_digits/{name}.npy" for name in ("input", "labels")]


def bytes_of(number, unit):
    return float(number) * 1024 ** " KMG".index(unit[0])


def test_before_the_first_step(run, digits, data):
    said = run(digits, *data, "--split=0.2", "--epochs=2", "--accumulate=3").stderr
    info = json.loads(run(digits, "--info", "--json").stdout)
    assert re.search(r"^device: .+, \d+ threads? \(.*\), .+ \(the executable has no code for GPUs\)$", said, re.M)
    assert re.search(r"^precision: f32(, native|; no product goes)", said, re.M)
    sizes = [int(np.prod(s["shape"])) for s in info["states"] if s["kind"] == "parameter"]
    trained = [int(np.prod(s["shape"])) for s in info["states"] if s["kind"] == "parameter" and s["trainable"]]
    counts = re.search(r", ([0-9.]+k?) of ([0-9.]+k?) are trained$", said, re.M)
    assert [float(x.replace("k", "e3")) for x in counts.groups()] == pytest.approx([sum(trained), sum(sizes)], rel=0.01)
    of = re.search(r"^memory: .* peak ([0-9.]+) ([KM])iB; the machine has ([0-9.]+) (G)iB$", said, re.M)
    assert bytes_of(of[3], of[4]) == pytest.approx(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE"), rel=0.01)
    programs = {p["role"]: p["flops"] for p in info["programs"]}
    flops = 3 * programs["accumulate"] + programs["update"]
    step = re.search(r"^a step: ([0-9.]+)([kM]) FLOPs, [0-9.]+ MiB of memory traffic, some [0-9.e-]+ ms \(predicted\)$", said, re.M)
    assert float(step[1]) * {"k": 1e3, "M": 1e6}[step[2]] == pytest.approx(flops, rel=0.01)
    rows = len(np.load(data[0].split("=")[-1]))
    held, step = round(rows / 5), 96
    each = (rows - held) // step
    assert f"data: {rows - held} rows, {held} for evaluation (held out); {step} rows a step, {each} steps an epoch, {2 * each} in all\n" in said


def test_after_the_last_step(run, digits, data, tmp_path):
    """The command that goes on can be run as it is."""
    files = [f"--save={tmp_path}/a folder", f"--log={tmp_path}/log", f"--report={tmp_path}/page.html"]
    said = run(digits, *data, "--steps", 20, *files, "--json")
    results = json.loads(said.stdout)
    assert re.search(r"^peak memory: [0-9.]+ [KM]iB planned, [0-9.]+ [MG]iB of the process$", said.stderr, re.M)
    assert results["peak_bytes"] < results["rss_bytes"] < 1 << 30
    assert f"\nwrote step 20 in {tmp_path}/a folder, {tmp_path}/log, {tmp_path}/page.html\n" in said.stderr
    command = shlex.split(re.search(r"^to continue training: (.*)$", said.stderr, re.M)[1])
    again = subprocess.run(command, check=True, capture_output=True, text=True)
    assert json.loads(again.stdout)["steps"] == 40 and "step 20\n" in again.stderr


def test_nothing_was_written(run, digits, data, tmp_path):
    assert "the trained weights were not written: --export FILE.onnx" in run(digits, *data, "--steps=3").stderr
    for option in f"--export={tmp_path}/o.onnx", f"--save={tmp_path}/saved":
        assert "not written" not in run(digits, *data, "--steps=3", option).stderr
    assert run(digits, *data, "--steps=3", "--progress=off", "--table=off").stderr == ""


def test_the_log_begins_with_what_was_run(run, digits, data, tmp_path):
    run(digits, *data, "--steps=20", f"--log={tmp_path}/log", f"--save={tmp_path}/saved", "--split=0.5")
    first, *rest = map(json.loads, (tmp_path / "log").read_text().splitlines())
    assert shlex.split(first["command"])[1:] == [*data, "--steps=20", f"--log={tmp_path}/log", f"--save={tmp_path}/saved", "--split=0.5"]
    manifest = next((tmp_path / "saved").rglob("manifest.json")).read_text()
    manifest = json.loads(manifest[manifest.index("{"):]) if not manifest.startswith("{") else json.loads(manifest)
    assert first["fingerprints"] == {"model": manifest["model"], "data": manifest["data"]}
    assert first["gradc"] == manifest["gradc"] and first["settings"] == manifest["settings"]
    machine = first["machine"]
    assert machine["cpus"] == os.cpu_count() and machine["ranks"] == 1 and machine["device"] and machine["processor"]
    assert machine["peak_flops"] is None and machine["peak_source"]
    assert all("command" not in line for line in rest)


@pytest.fixture(scope="module")
def large(gradc, tmp_path_factory):
    """A product of 512 MFLOP and its gradient: a thousand steps have more than 1e12 FLOPs."""
    folder = tmp_path_factory.mktemp("large")
    weight = numpy_helper.from_array(np.zeros((1024, 1024), np.float32), "w")
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [256, 1024]) for n in "xy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "m.onnx")
    subprocess.run([gradc, "compile", folder / "m.onnx", "-o", folder / "train", "--loss=mse", "--optimizer=sgd"], check=True,
                   capture_output=True)
    np.save(folder / "x.npy", np.ones((512, 1024), np.float32))
    return folder


def test_model_flops_utilization(run, large, tmp_path):
    """FLOPs of a step / (seconds x peak), where the peak is measured: on the CPU by a library's product."""
    train = [large / "train", f"--data=x={large}/x.npy", f"--data=labels={large}/x.npy", f"--log={tmp_path}/log"]
    info = json.loads(run(large / "train", "--info", "--json").stdout)
    # A long plan, so that the peak is measured; without progress it ends after six steps.
    run(*train, "--steps=5000", "--lr=0", f"--eval-data=x={large}/x.npy", f"--eval-data=labels={large}/x.npy", "--eval-every=3", "--early-stop=1")
    first, *steps = map(json.loads, (tmp_path / "log").read_text().splitlines())
    assert [line["step"] for line in steps] == list(range(1, 7))
    peak = first["machine"]["peak_flops"]
    if info["peak_flops"] is None:
        assert peak is None and steps[0]["mfu"] is None and info["peak_source"]
        pytest.skip("no library measures the peak here")
    flops = sum(p["flops"] for p in info["programs"] if p["role"] in ("accumulate", "update"))
    for line in steps:
        assert line["mfu"] == pytest.approx(flops / (1e-3 * line["step_ms"] * peak), rel=1e-9)


def test_the_loss_is_smoothed(run, digits, data, tmp_path):
    """A mean of the first ten losses, then a tenth of each new one."""
    said = run(digits, *data, "--steps=30", "--progress=plain", f"--log={tmp_path}/log").stderr
    mean = 0
    for i, line in enumerate(map(json.loads, (tmp_path / "log").read_text().splitlines())):
        mean += (line["loss"] - mean) / min(i + 1, 10)
    assert float(re.search(r"step 30/30  loss ([0-9.]+)", said)[1]) == pytest.approx(mean, abs=1e-4)
