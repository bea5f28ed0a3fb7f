"""Where rows come from: read ahead of the step, from slow, huge, shrinking and many files."""
import json
import os
import subprocess
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
import reference
from onnx import TensorProto, helper, numpy_helper

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def slow_reads(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shim")
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", TESTS / "slow_reads.c", "-o",
                    folder / "slow.so", "-ldl"], check=True)
    return folder / "slow.so"


def compile_gpt(gradc, models, folder, batch):
    subprocess.run([gradc, "compile", models / "gpt2_mini/model.onnx", "-o", folder / "train",
                    f"--dim=batch={batch}", "--dim=seq=64"], check=True, capture_output=True)
    return folder / "train"


@pytest.fixture(scope="module")
def gpt(gradc, models, tmp_path_factory):
    return compile_gpt(gradc, models, tmp_path_factory.mktemp("gpt"), 8)


@pytest.fixture(scope="module")
def large_gpt(gradc, models, tmp_path_factory):
    """A step of it takes much longer than 5 ms."""
    return compile_gpt(gradc, models, tmp_path_factory.mktemp("large"), 128)


def write_tokens(path, n, dtype="<u2"):
    (np.arange(n, dtype=np.int64) * 7919 % 251).astype(dtype).tofile(path)


@pytest.mark.skipif("GRADC_SANITIZED" in os.environ, reason="the shim and the sanitizer do not mix")
def test_a_slow_file_is_read_while_steps_are_computed(run, large_gpt, slow_reads, tmp_path):
    """Rows in their order: one read a micro-batch, of a file too large to be kept. Steps wait for the first one, and
    hardly again."""
    logs = {}
    for name in ("slow", "fast"):
        write_tokens(tmp_path / f"{name}.bin", 64 * 128 * 15 + 1)
        os.truncate(tmp_path / f"{name}.bin", 80 << 20)
        log = tmp_path / f"{name}.jsonl"
        run(large_gpt, "--tokens", tmp_path / f"{name}.bin", "--steps=12", "--shuffle=off", "--log", log,
            "--progress=off", env=dict(os.environ, LD_PRELOAD=str(slow_reads)))
        logs[name] = reference.log_lines(log)
    assert [x["loss"] for x in logs["slow"]] == [x["loss"] for x in logs["fast"]]
    assert logs["slow"][0]["data_waits"] == 1 and logs["slow"][0]["data_ms"] > 5
    waited = sum(x["data_waits"] for x in logs["slow"][1:])
    assert waited <= 2, [x["data_ms"] for x in logs["slow"]]


def test_a_file_that_shrinks_is_no_crash(gpt, tmp_path):
    path, log = tmp_path / "tokens.bin", tmp_path / "log.jsonl"
    write_tokens(path, 64 * 8 * 40 + 1)
    with subprocess.Popen([gpt, "--tokens", path, "--epochs=100000", "--log", log,
                           "--progress=off"], stderr=subprocess.PIPE, text=True) as process:
        while not (log.exists() and log.read_text().count("\n") > 2):
            assert process.poll() is None
            time.sleep(0.01)
        os.truncate(path, 1000)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 6, said
    errors = [line for line in said.splitlines() if line.startswith("gradc: error: ")]
    assert len(errors) == 1 and "tokens.bin: row " in errors[0], said
    assert "has shrunk to 1000 bytes" in errors[0]


@pytest.mark.parametrize("end, dtype", [("bin", "<u2"), ("u32.bin", "<u4")])
def test_a_token_file_of_any_size(run, gpt, tmp_path, end, dtype):
    """20 GB, sparse: the windows lie all over it, and reading them needs no memory of its size."""
    path, log = tmp_path / f"huge.{end}", tmp_path / "log.jsonl"
    write_tokens(path, 64 * 100, dtype)
    os.truncate(path, 20 << 30)
    run(gpt, "--tokens", path, "--steps=3", "--log", log, "--progress=off")
    lines = reference.log_lines(log)
    assert len(lines) == 3 and all(np.isfinite(x["loss"]) for x in lines)
    assert lines[-1]["rss_bytes"] < 1 << 30
    write_tokens(tmp_path / "zeros.bin", 0)
    os.truncate(tmp_path / "zeros.bin", 2 * (64 * 100 + 1))
    run(gpt, "--tokens", tmp_path / "zeros.bin", "--steps=3", "--log", log, "--progress=off")
    assert [x["loss"] for x in lines] == reference.step_losses(log)  # shuffled: zeros, all of them


def test_patterns(run, gradc, models, tmp_path):
    exe = tmp_path / "train"
    run("compile", models / "mlp_digits/model.onnx", "-o", exe, "--dim=batch=10")
    x, y = (np.load(models / f"mlp_digits/{n}.npy")[:40] for n in ("input", "labels"))
    for name in ("part-b.npy", "part-a.npy", "part-[1].npy"):
        part = {"a": slice(10, 20), "b": slice(20, 40), "[1]": slice(0, 10)}[name[5:-4]]
        np.save(tmp_path / name, x[part])
    np.save(tmp_path / "labels.npy", y)
    np.save(tmp_path / "whole.npy", x)
    losses = {}
    for pattern in ("part-*.npy", "whole.npy"):
        run(exe, "--data", f"input={tmp_path}/{pattern}", "--data",
            f"labels={tmp_path}/labels.npy", "--shuffle=off", "--log", tmp_path / "log.jsonl",
            "--progress=off")
        losses[pattern] = reference.step_losses(tmp_path / "log.jsonl")
    assert losses["part-*.npy"] == losses["whole.npy"] and len(losses["whole.npy"]) == 4
    said = run(exe, "--data", f"input={tmp_path}/none-*.npy", "--data",
               f"labels={tmp_path}/labels.npy", exit=5).stderr
    assert "none-*.npy: no file matches" in said
    said = run(exe, "--data", f"input={tmp_path}/part-[1].npy", "--data",
               f"labels={tmp_path}/labels.npy", "--progress=off", exit=6).stderr
    assert "part-[1].npy has 10 samples" in said  # a file of this name is no pattern


@pytest.mark.parametrize("layout", ["first", "last"])
def test_images_of_bytes(run, models, tmp_path, layout):
    """u8 images give the bits of floats that NumPy has scaled in double."""
    shape = [2, 3, 4, 4] if layout == "first" else [2, 4, 4, 3]
    random = np.random.default_rng(0)
    weight = random.standard_normal((48, 5)).astype(np.float32) / 8
    graph = helper.make_graph(
        [helper.make_node("Flatten", ["image"], ["flat"], name="/Flatten"),
         helper.make_node("MatMul", ["flat", "w"], ["logits"], name="/MatMul")], "images",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [2, 5])],
        [onnx.numpy_helper.from_array(weight, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
              tmp_path / "m.onnx")
    run("compile", tmp_path / "m.onnx", "-o", tmp_path / "train")
    raw = random.integers(0, 256, [12, *shape[1:]], dtype=np.uint8)
    table = np.array([[0.4, 0.5, 0.6], [0.2, 0.25, 0.3]], np.float32)
    mean, std = (t.astype(np.float64).reshape([3, 1, 1] if layout == "first" else [3])
                 for t in table)
    floats = (((raw * (1 / 255)) + 0.125 - mean) / std).astype(np.float32)
    for name, array in (("raw", raw), ("floats", floats), ("table", table),
                        ("labels", random.integers(0, 5, 12))):
        np.save(tmp_path / f"{name}.npy", array)
    found = []
    for image, *more in (("floats",), ("raw", "--scale", f"image={1 / 255!r},0.125", "--mean-std",
                                       f"image={tmp_path}/table.npy")):
        run(tmp_path / "train", "--data", f"image={tmp_path}/{image}.npy", "--data",
            f"labels={tmp_path}/labels.npy", "--epochs=3", *more, "--log", tmp_path / "log.jsonl",
            "--progress=off")
        found.append(reference.step_losses(tmp_path / "log.jsonl"))
    assert len(found[0]) == 18 and found[0] == found[1]


@pytest.mark.parametrize("leading", [4, "entries"])
def test_an_input_of_as_many_rows_is_no_data_of_rows(run, tmp_path, leading):
    """Where the number of rows is open, an input with a fixed leading dimension, or one of another symbol, is whole,
    though the numbers may be equal."""
    rng = np.random.default_rng(0)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "table"], ["mixed"], name="/Mix"),
         helper.make_node("MatMul", ["mixed", "w"], ["y"], name="/MatMul")], "rows",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4]),
         helper.make_tensor_value_info("table", TensorProto.FLOAT, [leading, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 2])],
        [numpy_helper.from_array(rng.normal(size=(3, 2)).astype(np.float32), "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
              tmp_path / "rows.onnx")
    data = {"x": (12, 4), "table": (4, 3), "labels": (12, 2)}
    arguments = []
    for name, shape in data.items():
        np.save(tmp_path / f"{name}.npy", rng.normal(size=shape).astype(np.float32))
        arguments += ["--data", f"{name}={name}.npy"]
    losses = []
    for batch in (4, 3):  # four rows, as the table has, and three
        run("compile", tmp_path / "rows.onnx", "-o", f"train{batch}", f"--dim=batch={batch}",
            *(["--dim=entries=4"] if leading == "entries" else []), "--loss=mse", "--optimizer=sgd")
        log = tmp_path / f"{batch}.jsonl"
        run(tmp_path / f"train{batch}", *arguments, "--lr=0", "--epochs=1", "--shuffle=off", "--log", log,
            "--progress=off")
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        losses.append(np.mean([line["loss"] for line in lines if "lr" in line]))
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)
