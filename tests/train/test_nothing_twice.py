"""Memory that training has no use for is not planned: the forward program's results, what later micro-batches would store, whole models that
ZeRO gathers at once."""
import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

WORDS, WIDTH, LENGTH, BATCH = 20000, 32, 16, 4


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A model whose logits are larger than all else, and its data."""
    folder, rng = tmp_path_factory.mktemp("words"), np.random.default_rng(1)
    weights = [numpy_helper.from_array((rng.standard_normal(s) * 0.1).astype("f"), n)
               for n, s in (("table", (WORDS, WIDTH)), ("w", (WIDTH, WIDTH)), ("head", (WIDTH, WORDS)))]
    nodes = [helper.make_node("Gather", ["table", "ids"], ["a"]), helper.make_node("MatMul", ["a", "w"], ["b"]),
             helper.make_node("Tanh", ["b"], ["c"]), helper.make_node("MatMul", ["c", "head"], ["logits"], name="head")]
    graph = helper.make_graph(nodes, "words", [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", LENGTH])],
                              [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", LENGTH, WORDS])], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "model.onnx")
    for name in ("ids", "labels"):
        np.save(folder / f"{name}.npy", rng.integers(0, WORDS, (2 * BATCH, LENGTH)))
    return folder


def compiled(run, folder, name, *options):
    run("compile", folder / "model.onnx", "-o", folder / name, f"--batch={BATCH}", "--loss=cross_entropy", *options)
    return folder / name


def regions(run, exe):
    return json.loads(run(exe, "--info", "--json").stdout)["regions"]


def peak(text):
    return json.loads([line for line in text.splitlines() if '"peak_bytes"' in line][-1])["peak_bytes"]


DATA = ["--data=ids=ids.npy", "--data=labels=labels.npy"]


def test_training_has_no_logits(run, words):
    logits = BATCH * LENGTH * WORDS * 4
    exe = compiled(run, words, "train")
    assert regions(run, exe)["io"] < 1 << 16
    run(exe, *DATA, "--steps=2", "--log=log.jsonl", cwd=words)
    training = peak((words / "log.jsonl").read_text())
    planned = sum(v for k, v in regions(run, exe).items() if k != "snapshot")
    assert 0 <= training - planned < 1 << 20  # scratch of libraries
    weights = (2 * WORDS + WIDTH) * WIDTH * 4
    assert training < 4 * weights + 2 * logits + (1 << 20)  # gradients and moments; logits of a chunk, and their gradient


def test_predictions_have_room(run, words):
    """The logits of all rows, against those of a session of their own."""
    exe = compiled(run, words, "train")
    run(exe, "predict", DATA[0], "--output=predicted.npy", cwd=words)
    run("run", words / "model.onnx", "--input=ids=ids.npy", "--output-dir=right", cwd=words)
    np.testing.assert_allclose(np.load(words / "predicted.npy"), np.load(words / "right/logits.npy"), rtol=1e-5, atol=1e-6)


def test_one_micro_batch(run, words):
    """The bits of an executable that could add up micro-batches."""
    any_number, one = (compiled(run, words, name, *options) for name, options in (("any", []), ("one", ["--max-accumulate=1"])))
    for exe in (any_number, one):
        run(exe, *DATA, "--steps=2", f"--log={exe.name}.jsonl", f"--export={exe.name}.safetensors", cwd=words)
    assert (words / "any.safetensors").read_bytes() == (words / "one.safetensors").read_bytes()
    measured = [json.loads(run(exe, "eval", "--eval-data=ids=ids.npy", "--eval-data=labels=labels.npy", "--json", cwd=words).stdout)
                for exe in (any_number, one)]
    assert measured[0]["metrics"] == measured[1]["metrics"] and measured[0]["rows"] == 2 * BATCH  # of two micro-batches
    gradient = WIDTH * WORDS * 4
    assert regions(run, one)["workspace"] <= regions(run, any_number)["workspace"] - 0.85 * gradient
    assert "when later" not in run("dump", one, "--stage=schedule").stdout


@pytest.mark.parametrize("options", [[], ["--max-accumulate=1"]])
def test_zero_modes_take_less(run, tmp_path, options):
    """Eight layers of a MB: each mode divides more than the one before."""
    rng, width, x, nodes, weights = np.random.default_rng(1), 512, "x", [], []
    for i in range(8):
        weights.append(numpy_helper.from_array((rng.standard_normal((width, width)) / 25).astype("f"), f"w{i}"))
        nodes += [helper.make_node("MatMul", [x, f"w{i}"], [f"h{i}"]), helper.make_node("Tanh", [f"h{i}"], [f"t{i}"])]
        x = f"t{i}"
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", width]) for n in ("x", x)]
    graph = helper.make_graph(nodes, "layers", ports[:1], ports[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "model.onnx")
    run("compile", tmp_path / "model.onnx", "-o", tmp_path / "train", "--batch=2", "--loss=mse", "--data-parallel=ddp,zero1,zero2,zero3", *options)
    info = json.loads(run(tmp_path / "train", "--info", "--json").stdout)
    for ranks in (2, 4, 8):
        held = [row["bytes"] for mode in ("zero1", "zero2", "zero3") for row in info["rank_bytes"] if (row["mode"], row["ranks"]) == (mode, ranks)]
        assert info["peak_bytes"] > held[0] > held[1] > held[2]
