"""Loss scales that grow and shrink: the published rules step by step, skipped steps that change nothing, exit codes."""
import json
import re
import struct

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

ROWS, WIDTH = 4, 8
NORMAL, OVERFLOWS, NOT_A_NUMBER = 0.1, 1e4, np.inf  # labels: gradients of f16, times 2^14 and more, are finite or not

# The scale after each of 16 steps of which 3, 4 and 10 overflow, with interval 5 and 65536 at first, in units of 1024.
OVERFLOWED = (3, 4, 10)
TRACES = {
    "torch": [64, 64, 32, *5 * [16], 32, *5 * [16], 32, 32],
    "megatron": [*3 * [64], *5 * [32], *6 * [64], 128, 128],
    "deepspeed": [*3 * [64], *6 * [32], *6 * [16], 32],
}


@pytest.fixture
def model(tmp_path):
    """y = x w + b. labels(MAGNITUDE...) writes the data, rows of a step to each."""
    rng = np.random.default_rng(0)
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"])], "g", [helper.make_tensor_value_info("x", 1, [ROWS, WIDTH])],
        [helper.make_tensor_value_info("y", 1, [ROWS, 1])],
        [numpy_helper.from_array(np.zeros((WIDTH, 1), np.float32), "w"), numpy_helper.from_array(np.zeros(1, np.float32), "b")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "model.onnx")

    def labels(*magnitudes):
        np.save(tmp_path / "x.npy", rng.standard_normal((ROWS * len(magnitudes), WIDTH)).astype(np.float32))
        np.save(tmp_path / "y.npy", np.repeat(np.float32(magnitudes), ROWS)[:, None])
    return labels


def train(run, folder, *options, lr=1e-3, exit=0):
    done = run(folder / "train", "--data=x=x.npy", "--data=labels=y.npy", "--shuffle=off", f"--lr={lr}", "--log=log.jsonl", *options, exit=exit)
    return [x for x in map(json.loads, (folder / "log.jsonl").read_text().splitlines()) if "lr" in x], done.stderr


def golden(model):
    model(*(OVERFLOWS if s + 1 in OVERFLOWED else NORMAL for s in range(17)))


def tensors(file):
    """{name: bytes} of a safetensors file."""
    data = file.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + n])
    return {k: data[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]] for k, v in head.items() if k != "__metadata__"}


def saved(folder, step):
    found = {}
    for file in (folder / "saved" / f"step-{step:08}").glob("*.safetensors"):
        found |= tensors(file)
    return found


@pytest.mark.parametrize("rule", TRACES)
def test_traces(run, tmp_path, model, rule):
    golden(model)
    run("compile", "model.onnx", "-o", "train", "--loss=mse", "--precision=f16", f"--loss-scale={rule},init=65536,interval=5")
    steps, _ = train(run, tmp_path)
    assert [s["loss_scale"] / 1024 for s in steps] == [64, *TRACES[rule]]
    assert [s["step"] for s in steps if s.get("skipped") == "the gradients overflowed"] == list(OVERFLOWED)
    assert [s["overflows"] for s in steps][-1] == len(OVERFLOWED)
    assert all((s["grad_norm"] is None) == ("skipped" in s) for s in steps)


def test_a_skipped_step_changes_nothing_but_the_scale(run, tmp_path, model):
    golden(model)
    run("compile", "model.onnx", "-o", "train", "--loss=mse", "--precision=f16", "--loss-scale=torch,init=65536,interval=5")
    train(run, tmp_path, "--save=saved", "--save-every=1")
    before, after, later = (saved(tmp_path, s) for s in (2, 3, 5))
    changed = {k for k in before if before[k] != after[k]}
    assert {"w", "b"} <= set(before) and changed == {k for k in before if "loss_scale" in k or "good_steps" in k}
    assert {k for k in before if before[k] != later[k]} > changed


def test_a_resumed_training_has_the_same_scales(run, tmp_path, model):
    golden(model)
    run("compile", "model.onnx", "-o", "train", "--loss=mse", "--precision=f16", "--loss-scale=megatron,init=65536,interval=5")
    whole, _ = train(run, tmp_path)
    train(run, tmp_path, "--save=saved", "--steps=3")
    parts, _ = train(run, tmp_path, "--save=saved", "--resume=auto")
    assert [(s["loss"], s["loss_scale"]) for s in parts] == [(s["loss"], s["loss_scale"]) for s in whole] and len(parts) == 17


def test_a_loss_that_is_no_number_ends_the_training(run, tmp_path, model):
    model(NORMAL, NOT_A_NUMBER, NORMAL)
    run("compile", "model.onnx", "-o", "train", "--loss=mse", "--precision=f16")
    _, said = train(run, tmp_path, exit=8)
    assert "step 2: the loss is" in said


def test_overflow_at_the_least_scale_ends_the_training(run, tmp_path, model):
    model(OVERFLOWS * 1e4, OVERFLOWS * 1e4, OVERFLOWS * 1e4, OVERFLOWS * 1e4, OVERFLOWS * 1e4)
    run("compile", "model.onnx", "-o", "train", "--loss=mse", "--precision=f16", "--loss-scale=megatron,init=2,least=1")
    steps, said = train(run, tmp_path, exit=8)
    assert [s["loss_scale"] for s in steps][:3] == [2, 2, 1]
    assert re.search("step 3: the norm of the gradients is (inf|nan) at the least loss scale, 1;", said)


def test_a_fixed_scale_fails_at_an_overflow(run, tmp_path, model):
    model(NORMAL, OVERFLOWS)
    run("compile", "model.onnx", "-o", "train", "--loss=mse", "--precision=f16", "--loss-scale=65536")
    _, said = train(run, tmp_path, exit=8)
    assert re.search("step 2: the norm of the gradients is (inf|nan);", said)


def test_small_gradients_survive(run, tmp_path):
    """y = 1e-4 x w: the gradient of x w is near 5e-9, below half the smallest number of f16, and 2^14 as large is not."""
    rng, rows = np.random.default_rng(0), 4 * 50
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Mul", ["h", "s"], ["y"])], "g",
        [helper.make_tensor_value_info("x", 1, [ROWS, WIDTH])], [helper.make_tensor_value_info("y", 1, [ROWS, 1])],
        [numpy_helper.from_array(np.zeros((WIDTH, 1), np.float32), "w"), numpy_helper.from_array(np.float32(1e-4), "s")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", rng.standard_normal((rows, WIDTH)).astype(np.float32))
    np.save(tmp_path / "y.npy", 1e-4 * rng.standard_normal((rows, 1)).astype(np.float32))
    losses, norms = {}, {}
    for name, options in {"f32": [], "none": ["--precision=f16", "--loss-scale=none"], "scaled": ["--precision=f16", "--loss-scale=16384"]}.items():
        run("compile", "model.onnx", "-o", "train", "--loss=mse", "--optimizer=sgd", *options)
        steps, _ = train(run, tmp_path, lr=1e7)
        losses[name], norms[name] = np.mean([s["loss"] for s in steps[-10:]]), [s["grad_norm"] for s in steps]
    assert max(norms["none"]) < 0.1 * max(norms["f32"])
    assert abs(losses["scaled"] / losses["f32"] - 1) < 0.01 < abs(losses["none"] / losses["f32"] - 1)


@pytest.mark.parametrize("value, said", [
    ("apex", "must be none, torch, megatron, deepspeed or a number above 0"), ("0", "a number above 0"), ("-1", "a number above 0"),
    ("inf", "a number above 0"), ("nan", "a number above 0"), ("", "a number above 0"), ("torch,interval=0", "interval and hysteresis must be at least 1"),
    ("torch,init=-2", "init, least and backoff must be above 0"), ("torch,speed=1", "--loss-scale has no option speed"),
    ("torch,init", "init"), ("torch,init=x", "init"), ("16,init=2", "a number above 0"), ("torch,backoff=2", "backoff must be below 1"),
    ("deepspeed,interval=0", "interval and hysteresis must be at least 1"), ("torch,interval=9223372036854775807", "interval and hysteresis must be at least 1"), ("0x", "a number")])
def test_faults(run, model, tmp_path, value, said):
    model(NORMAL)
    assert said in run("compile", "model.onnx", "-o", "train", "--loss=mse", "--precision=f16", f"--loss-scale={value}", exit=2).stderr


def test_a_run_says_how_many_steps_were_left_out(run, tmp_path, model):
    model(*4 * [OVERFLOWS])
    run("compile", "model.onnx", "-o", "train", "--loss=mse", "--precision=f16", "--loss-scale=megatron")
    _, said = train(run, tmp_path)
    assert "warning: 4 of 4 steps changed nothing but the loss scale" in said
