"""--quantize: what training computed is what onnxruntime computes of the exported codes; ranges, scales and gradients against NumPy;
and settings that are wrong."""
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / folder) for folder in ("import", "train")]
import reference  # noqa: E402
from checkpoints import checkpoints, read_shard  # noqa: E402
from make_malformed import model, node, tensor, value  # noqa: E402


def session(path):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def loss_of(y, labels):
    if labels.dtype.kind != "i":
        return np.mean((y - labels) ** 2)
    y = y - y.max(-1, keepdims=True)
    y = y - np.log(np.exp(y).sum(-1, keepdims=True))
    kept = labels != -100
    return -np.take_along_axis(y, np.where(kept, labels, 0)[..., None], -1)[..., 0][kept].mean()


def tensors(path):
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


MODELS = [("mlp_digits", "w8a8"), ("gpt2_mini_external", "w8a8-tensor"), ("mlp_digits", "w8a8-tensor"), ("mlp_digits", "w4a8-g16-token --opset=21"),
          ("mlp_digits", "w8a8 --precision=f64"), ("gpt2_mini", "w8a8"), ("gpt2_mini_fresh", "w4a8-g16-token --opset=21"),
          ("gpt2_mini_opset14", "w4a8 --opset=21 --scale-learning=lsq"), ("bert_mini", "w8a8-token --opset=21"),
          ("bert_mini", "w8 --scale-learning=torch"), ("llama_mini", "w2a8 --opset=25"), ("vit_mini", "w8a8"), ("unet_mini", "w8a8"),
          ("resnet_mini", "w8a16 --opset=21"), ("moe_mini", "w8a8"),
          ("mlp_digits", "w8a8 --scale-learning=lsq,zero-points=on"), ("unet_mini", "w8a8 --scale-learning=torch,zero-points=on")]


@pytest.mark.parametrize("name, options", MODELS)
def test_onnxruntime_has_the_loss(run, models, tmp_path, name, options):
    """Trained a few steps and evaluated on its first batch. Batch norms in training form have other sums in onnxruntime."""
    known = reference.load(name)
    drop = ["--precision"] if "--precision" in options else []
    run("compile", models / name / "model.onnx", "-o", tmp_path / "train", "--quantize", *options.split(),
        *reference.compile_options(name, "f32", drop=drop))
    files = [(i["name"], i["file"]) for i in known["inputs"]] + [("labels", known["labels"]["file"])]
    for _, file in files:
        np.save(tmp_path / file, np.load(models / name / file)[:known["traces"][0]["micro_batch"]])
    data = [a for x, file in files for a in ("--data", f"{x}={models / name / file}", "--eval-data", f"{x}={file}")]
    words = [w for w in reference.train_options(name, "f32") if w.startswith("--") and "=" in w and "-data" not in w and "--steps" not in w]
    run(tmp_path / "train", *data, *words, "--steps=4", "--eval-every=4", "--export=out.onnx", "--log=log.jsonl", "--progress=off")
    onnx.checker.check_model(str(tmp_path / "out.onnx"))
    lines = reference.log_lines(tmp_path / "log.jsonl")
    theirs = session(tmp_path / "out.onnx")
    feeds = {x: np.load(tmp_path / file) for x, file in files[:-1]}
    y = theirs.run(None, {i.name: feeds[i.name] for i in theirs.get_inputs()})[0].astype(float)
    got = [line["eval_loss"] for line in lines if "eval_loss" in line][-1]
    np.testing.assert_allclose(got, loss_of(y, np.load(tmp_path / files[-1][1])), rtol=1e-4 if name == "resnet_mini" else 2e-5)
    want = known["traces"][0]["f32"]["losses"][:4]  # of floats: not far away
    np.testing.assert_allclose(reference.step_losses(tmp_path / "log.jsonl"), want, rtol=0.35 if name in ("unet_mini", "resnet_mini") else 0.05)
    kinds = {t.data_type for t in onnx.load(tmp_path / "out.onnx").graph.initializer}
    assert kinds & {onnx.TensorProto.INT8, onnx.TensorProto.INT4, onnx.TensorProto.INT2}


# ---- one layer
RANDOM = np.random.default_rng(11)
ROWS, INPUTS, OUTPUTS, BATCH = 64, 12, 5, 8
W = np.float32(RANDOM.normal(size=(INPUTS, OUTPUTS)))
LABELS = np.float32(RANDOM.normal(size=(ROWS, OUTPUTS)))
X = np.float32(RANDOM.normal(size=(ROWS, INPUTS)) * np.linspace(0.5, 3, ROWS)[:, None])


@pytest.fixture
def layer(tmp_path):
    onnx.save(model([node("MatMul", ["x", "w"], name="product")], inputs=[value("x", ("batch", INPUTS))],
                    initializers=[tensor("w", W)], opset=21, ir=10), tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "labels.npy", LABELS)
    return tmp_path


def train(run, folder, spec, *options, compile_options=(), name="out", batch=BATCH):
    run("compile", "model.onnx", "-o", "train", "--loss=mse", f"--batch={batch}", "--optimizer=sgd", f"--quantize={spec}", *compile_options)
    run(folder / "train", "--data=x=x.npy", "--data=labels=labels.npy", f"--export={name}.onnx", f"--log={name}.jsonl", "--progress=off",
        "--shuffle=off", *options)
    return tensors(folder / f"{name}.onnx")


def weight_of(folder):
    """That of the last checkpoint."""
    header, data = read_shard(next((folder / f"step-{checkpoints(folder)[-1]:08d}").glob("*.safetensors")))
    first, last = header["w"]["data_offsets"]
    return np.frombuffer(data[first:last], np.float32).reshape(INPUTS, OUTPUTS)


def quantized(w, scale, least, most):
    return np.clip(np.rint(w / scale), least, most)


@pytest.mark.parametrize("spec, groups, least, most", [
    ("w8", (1, OUTPUTS), -128, 127), ("w8-tensor", (1, 1), -128, 127), ("w4-g4", (3, OUTPUTS), -8, 7), ("w4", (1, OUTPUTS), -8, 7)])
def test_codes_of_weights(run, layer, spec, groups, least, most):
    """Scales and codes of the last weights, to the bit."""
    after = train(run, layer, spec, "--steps=20", "--lr=0.05", "--save=ck")
    weight = weight_of(layer / "ck")
    blocks = weight.reshape(groups[0], INPUTS // groups[0], groups[1], OUTPUTS // groups[1])
    size = np.abs(blocks).max((1, 3))
    scale = np.float32(2) * size / np.float32(254 if most == 127 else 15)
    assert after["w_scale"].ravel().tolist() == scale.ravel().tolist()
    codes = quantized(blocks, scale[:, None, :, None], least, most).reshape(weight.shape)
    np.testing.assert_array_equal(after["w_quantized"].astype(int), codes)
    assert not after["w_zero_point"].astype(int).any()


@pytest.mark.parametrize("averaging, freeze, steps", [(0.01, 0, 1), (0.01, 0, 7), (0.25, 0, 7), (0.25, 3, 7), (1, 2, 5)])
def test_running_ranges(run, layer, averaging, freeze, steps):
    """PyTorch's moving average of the smallest and largest element, 0 among them; it stays after so many steps."""
    lines = [f"averaging = {averaging}", "weight-type = s8", *([f"freeze-after = {freeze}"] if freeze else [])]
    (layer / "q.ini").write_text("\n".join(lines) + "\n")
    after = train(run, layer, "q.ini", f"--steps={steps}", "--lr=0.01")
    low = high = None
    for batch in X.reshape(-1, BATCH, INPUTS)[:min(steps, freeze or steps)]:
        ends = np.minimum(batch.min(), 0), np.maximum(batch.max(), 0)
        low, high = ends if low is None else [old + np.float32(averaging) * (new - old) for old, new in zip((low, high), ends)]
    step = float(high - low) / 255
    np.testing.assert_allclose(after["x_scale"], step, rtol=1e-6)
    assert after["x_zero_point"] == np.rint(-float(low) / step) and after["x_zero_point"].dtype == np.uint8


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranges_over_parts_of_a_step(run, layer, ranks):
    """Of two micro-batches: both move the range that the step began with, one after the other. Of two ranks: the mean of both. A step's
    first range is that of its first micro-batch, of ranks their mean."""
    if ranks > 1 and not shutil.which("mpirun.openmpi"):
        pytest.skip("mpirun.openmpi is not installed")
    (layer / "q.ini").write_text("averaging = 0.25\nweight-type = s8\n")
    run("compile", "model.onnx", "-o", "train", "--loss=mse", f"--batch={BATCH}", "--optimizer=sgd", "--quantize=q.ini")
    words = [layer / "train", "--data=x=x.npy", "--data=labels=labels.npy", "--export=out.onnx", "--progress=off", "--shuffle=off", "--steps=3",
             "--lr=0.01", "--log=out.jsonl", "--accumulate=2" if ranks == 1 else "--accumulate=1"]
    if ranks > 1:
        words = [Path(shutil.which("mpirun.openmpi")), "--allow-run-as-root", "--oversubscribe", "-n", "2", *words]
    run(*words)
    after, ends = tensors(layer / "out.onnx"), None
    for pair in X.reshape(-1, 2, BATCH, INPUTS)[:3]:
        seen = [np.float64([min(part.min(), 0), max(part.max(), 0)]) for part in pair]
        if ranks > 1:
            moved = [part if ends is None else ends + 0.25 * (part - ends) for part in seen]
            ends = np.mean(moved, 0)
        else:
            for part in seen:
                ends = part if ends is None else ends + 0.25 * (part - ends)
    np.testing.assert_allclose(after["x_scale"], (ends[1] - ends[0]) / 255, rtol=1e-6)
    line = [one for one in reference.log_lines(layer / "out.jsonl") if "ranges" in one][-1]
    np.testing.assert_allclose([line["ranges"]["x"][end] for end in ("low", "high")], ends, rtol=1e-6)


def test_gradients_pass_straight(run, layer):
    """d loss / d w of the products of codes, as if rounding were the identity."""
    for file in ("x", "labels"):
        np.save(layer / f"{file}.npy", np.load(layer / f"{file}.npy")[:BATCH])
    run("grad", "model.onnx", "--loss=mse", f"--batch={BATCH}", "--quantize=w4a8", "--input=x=x.npy", "--input=labels=labels.npy",
        "--wrt=x", "--output-dir=out", "--precision=f64")
    x, labels = X[:BATCH].astype(float), np.load(layer / "labels.npy").astype(float)
    step = (max(x.max(), 0) - min(x.min(), 0)) / 255
    zero = np.rint(-min(x.min(), 0) / step)
    xq = (np.clip(np.rint(x / step) + zero, 0, 255) - zero) * step
    scale = 2 * np.abs(W.astype(float)).max(0) / 15
    wq = quantized(W, scale, -8, 7) * scale
    dy = 2 * (xq @ wq - labels) / labels.size
    inside = (np.rint(W / scale) >= -8) & (np.rint(W / scale) <= 7)
    np.testing.assert_allclose(np.load(layer / "out/grad.w.npy"), (xq.T @ dy) * inside, rtol=1e-9)
    np.testing.assert_allclose(np.load(layer / "out/grad.x.npy"), dy @ wq.T, rtol=1e-9)


def test_learned_scales_begin_as_in_the_paper(run, layer):
    """2 mean(|w|) / sqrt(Q) of each group (arXiv:1902.08153)."""
    after = train(run, layer, "w4", "--steps=0", compile_options=["--scale-learning=lsq"])
    np.testing.assert_allclose(after["w_scale"], 2 * np.abs(W).mean(0) / np.sqrt(7), rtol=1e-6)
    trained = train(run, layer, "w4", "--steps=10", "--lr=0.05", compile_options=["--scale-learning=lsq"])
    assert (trained["w_scale"] != after["w_scale"]).all()
    kept = train(run, layer, "w4", "--steps=10", "--lr=0.05", compile_options=["--scale-learning=lsq", "--freeze=w_scale"])
    assert kept["w_scale"].tolist() == after["w_scale"].tolist()


def state_of(folder, name):
    """Of the last checkpoint, as f64 holds it."""
    header, data = read_shard(next((folder / f"step-{checkpoints(folder)[-1]:08d}").glob("*.safetensors")))
    first, last = header[name]["data_offsets"]
    return np.frombuffer(data[first:last], np.float64)


@pytest.mark.parametrize("mode, rule, lr", [("lsq", "lsq", 5e-5), ("torch", "lsq", 5e-5), ("lsq", "inv_n", 1e-5), ("torch", "none", 1e-6), ("lsq", "lsq", 1e-3)])
def test_learned_scale_and_zero_point_of_an_activation(run, layer, mode, rule, lr):
    """Beyond those of the first batch, by gradient descent, beside NumPy; most later rows are too large for that batch's range. With the
    last rate the scale comes to its bound of 2^-23, and goes on from there."""
    steps, bounded = 5, False
    after = train(run, layer, "w8a8-tensor", f"--steps={steps}", f"--lr={lr}", "--save=ck", compile_options=[
        f"--scale-learning={mode},scale-grad={rule},zero-points=on", "--precision=f64", "--freeze=w", "--freeze=w_scale"])
    start = np.float32(2 * np.abs(W).mean() / np.sqrt(np.float64(127)))
    wq = quantized(W.astype(float), float(start), -128, 127) * float(start)
    labels, shift, moves, first = np.load(layer / "labels.npy").astype(float), 0.0, 0.0, None
    for x, y in zip(X.astype(float).reshape(-1, BATCH, INPUTS), labels.reshape(-1, BATCH, OUTPUTS)):
        if first is None:
            step = (max(x.max(), 0) - min(x.min(), 0)) / 255
            first = step, np.rint(-min(x.min(), 0) / step)
        scale, zero = max(first[0] + shift, 2**-23), np.clip(np.rint(first[1] + moves), 0, 255)
        bounded |= scale == 2**-23
        code = np.clip(np.rint(x / scale) + zero, 0, 255)
        xq = (code - zero) * scale
        at = (x / scale if mode == "lsq" else np.rint(x / scale)) + zero
        inside = (at >= 0) & (at <= 255)
        dx = 2 * (xq @ wq - y) / y.size @ wq.T
        factor = {"lsq": 1 / np.sqrt(INPUTS * 255), "inv_n": 1 / INPUTS, "none": 1}[rule]
        shift -= lr * factor * (dx * (xq - inside * x) / scale).sum()
        moves -= lr * factor * (dx * -scale * ~inside).sum()
        steps -= 1
        if not steps:
            break
    np.testing.assert_allclose(state_of(layer / "ck", "x.scale_shift"), shift, rtol=1e-6)
    np.testing.assert_allclose(state_of(layer / "ck", "x.zero_shift"), moves, rtol=1e-6)
    np.testing.assert_allclose(after["x_scale"], max(first[0] + shift, 2**-23), rtol=1e-6)
    assert bounded == (lr == 1e-3)
    assert after["x_zero_point"] == np.rint(first[1] + moves) and abs(shift) > 1e-4 and abs(moves) > 1e-9


@pytest.mark.parametrize("rate, ends", [(3e4, range(1, 255)), (1e9, (0, 255))])
def test_learned_zero_points_move(run, layer, rate, ends):
    """They are written as the nearest code, those beyond the codes as the last; the loss is that of the file."""
    seen = []
    for export, compiling in (("first", ["--freeze=x.zero_shift"]), ("last", [f"--lr-scale=x.zero_shift={rate}"])):
        after = train(run, layer, "w8a8", "--steps=4", "--lr=0.01", "--eval-data=x=x.npy", "--eval-data=labels=labels.npy", "--eval-every=4",
                      name=export, compile_options=["--scale-learning=lsq,zero-points=on", "--freeze=x.scale_shift", *compiling])
        seen.append(after["x_zero_point"])
        evaluated = [line["eval_loss"] for line in reference.log_lines(layer / f"{export}.jsonl") if "eval_loss" in line][-1]
        got = loss_of(session(layer / f"{export}.onnx").run(None, {"x": X})[0], np.load(layer / "labels.npy"))
        assert abs(got / evaluated - 1) < 2e-5
    assert seen[0] != seen[1] and seen[1] in ends and seen[1].dtype == np.uint8


def test_an_export_without_a_step_is_told(run, layer):
    run("compile", "model.onnx", "-o", "train", "--loss=mse", "--batch=8", "--quantize=w8a8")
    done = run(layer / "train", "--data=x=x.npy", "--data=labels=labels.npy", "--export=out.onnx", "--steps=0")
    assert 'training has seen no values for the range of "x.low": its codes have scale 1' in done.stderr


def test_a_weight_that_is_read_twice_stays_one(run, models, tmp_path):
    """gpt2's embedding and its last product: one parameter, written as floats and as codes."""
    run("compile", models / "gpt2_mini/model.onnx", "-o", tmp_path / "train", "--quantize=w8a8", *reference.compile_options("gpt2_mini", "f32"))
    known = reference.load("gpt2_mini")
    data = [a for i in known["inputs"] for a in ("--data", f"{i['name']}={models / 'gpt2_mini' / i['file']}")]
    run(tmp_path / "train", *data, "--data", f"labels={models / 'gpt2_mini' / known['labels']['file']}", "--steps=2", "--export=out.onnx")
    after = tensors(tmp_path / "out.onnx")
    found = 0
    for name in {n.removesuffix("_quantized") for n in after if n.endswith("_quantized")} & after.keys():
        scale, codes = after[f"{name}_scale"], after[f"{name}_quantized"]
        axis = next(n for n in onnx.load(tmp_path / "out.onnx").graph.node if n.input and n.input[0] == f"{name}_quantized").attribute[0].i
        shape = [-1 if i == axis else 1 for i in range(codes.ndim)]
        assert np.abs(codes * scale.reshape(shape) - after[name]).max() <= 0.5001 * scale.max()
        found += 1
    assert found == 1


def test_folded_batch_norms(run, models, tmp_path):
    """A model in training form: what is exported is in inference form, and onnxruntime has its loss."""
    folder = models / "cnn_mnist"
    (tmp_path / "q.ini").write_text("per-channel = on\nfold-batch-norms = on\n")
    run("compile", folder / "model.onnx", "-o", "train", "--batch=32", "--loss=cross_entropy", "--quantize=q.ini")
    data = [a for name in ("image", "labels") for a in ("--data", f"{name}={folder / name}.npy", "--eval-data", f"{name}={folder / name}.npy")]
    run(tmp_path / "train", *data, "--steps=40", "--eval-every=40", "--export=out.onnx", "--log=log.jsonl", "--progress=off")
    got = [line["eval_loss"] for line in reference.log_lines(tmp_path / "log.jsonl") if "eval_loss" in line][-1]
    y = session(tmp_path / "out.onnx").run(None, {"image": np.load(folder / "image.npy")})[0].astype(float)
    np.testing.assert_allclose(got, loss_of(y, np.load(folder / "labels.npy")), rtol=2e-5)
    assert {"BatchNormalization", "Dropout"}.isdisjoint(n.op_type for n in onnx.load(tmp_path / "out.onnx").graph.node)
    assert got < 2.2


# ---- with what else training does
def losses(folder, name):
    return reference.step_losses(folder / f"{name}.jsonl")


LEARNED = ["--scale-learning=lsq,zero-points=on"]


@pytest.mark.parametrize("spec, options", [("w8a8", []), ("w4a8-g4-token", []), ("w4a8", LEARNED)])
def test_resumed_training_is_the_same(run, layer, spec, options):
    whole = train(run, layer, spec, "--steps=6", name="whole", compile_options=options)
    train(run, layer, spec, "--steps=3", "--save=ck", name="first", compile_options=options)
    rest = train(run, layer, spec, "--steps=6", "--save=ck", "--resume=auto", name="rest", compile_options=options)
    assert losses(layer, "first") + losses(layer, "rest") == losses(layer, "whole")
    assert all(whole[n].tobytes() == rest[n].tobytes() for n in whole)


@pytest.mark.parametrize("spec, options", [("w8", []), ("w4a8-g4-token", []), ("w4", ["--scale-learning=lsq"])])
def test_micro_batches_are_one_batch(run, layer, spec, options):
    """Where no range runs: two micro-batches of 4 rows give the losses of one of 8, but for the order of sums."""
    train(run, layer, spec, "--steps=5", "--lr=0.01", name="one", compile_options=options)
    train(run, layer, spec, "--steps=5", "--lr=0.01", "--accumulate=2", name="two", compile_options=options, batch=4)
    np.testing.assert_allclose(losses(layer, "two"), losses(layer, "one"), rtol=1e-5)
    assert len(losses(layer, "two")) == 5


@pytest.mark.parametrize("spec, rtol", [("w4a8-g4-token", 0), ("w8", 0), ("w8a8", 0.05)])
def test_ranks_are_micro_batches(run, layer, spec, rtol):
    """To the bit where ranges are those of rows; running ones are means over ranks, and one after the other over micro-batches."""
    if not shutil.which("mpirun.openmpi"):
        pytest.skip("mpirun.openmpi is not installed")
    np.save(layer / "x.npy", np.float32(np.random.default_rng(5).normal(size=X.shape)))
    train(run, layer, spec, "--steps=4", "--accumulate=2", "--lr=0.01", name="one")
    run(Path(shutil.which("mpirun.openmpi")), "--allow-run-as-root", "--oversubscribe", "-n", "2", layer / "train", "--data=x=x.npy",
        "--data=labels=labels.npy", "--log=two.jsonl", "--progress=off", "--shuffle=off", "--steps=4", "--lr=0.01")
    np.testing.assert_allclose(losses(layer, "two"), losses(layer, "one"), rtol=rtol)


def test_recomputed_values_are_the_same(run, models, tmp_path):
    known = reference.load("vit_mini")
    found = []
    for name, options in (("kept", []), ("again", ["--disable=rematerialize"])):
        run("compile", models / "vit_mini/model.onnx", "-o", tmp_path / "train", "--quantize=w8a8", *options, *reference.compile_options("vit_mini", "f32"))
        data = [a for i in known["inputs"] for a in ("--data", f"{i['name']}={models / 'vit_mini' / i['file']}")]
        run(tmp_path / "train", *data, "--data", f"labels={models / 'vit_mini' / known['labels']['file']}", "--steps=3", f"--log={name}.jsonl", "--progress=off")
        found.append(losses(tmp_path, name))
    assert found[0] == found[1]


def test_products_of_codes_in_bf16(run, layer):
    """Scales stay f32; numbers of 8-bit codes are rounded to bf16 in the product."""
    train(run, layer, "w8a8", "--steps=6", name="f32")
    train(run, layer, "w8a8", "--steps=6", compile_options=["--precision=bf16"], name="bf16")
    np.testing.assert_allclose(losses(layer, "bf16"), losses(layer, "f32"), rtol=0.02)
    assert losses(layer, "bf16") != losses(layer, "f32")


def test_who_learns_more_loses_less(run, tmp_path):
    """Weights of 4 bits, a scale for each matrix, in a perceptron, five seeds: learned scales < ranges < rounding after training."""
    for seed in range(5):
        random = np.random.default_rng(seed)
        x = np.float32(random.normal(size=(512, 16)))
        hidden = np.tanh(x @ random.normal(size=(16, 24)) / 4)
        np.save(tmp_path / "x.npy", x)
        np.save(tmp_path / "labels.npy", np.float32(hidden @ random.normal(size=(24, 4))))
        weights = [tensor(n, np.float32(random.normal(size=s) / np.sqrt(s[0]))) for n, s in (("a", (16, 64)), ("b", (64, 4)))]
        onnx.save(model([node("MatMul", ["x", "a"], ["h"], name="first"), node("Tanh", ["h"], ["t"], name="tanh"),
                         node("MatMul", ["t", "b"], name="second")], inputs=[value("x", ("batch", 16))], initializers=weights,
                        opset=21, ir=10), tmp_path / "model.onnx")
        files = ["--data=x=x.npy", "--data=labels=labels.npy", "--eval-data=x=x.npy", "--eval-data=labels=labels.npy"]

        def end(source, *options, steps=1500, export="out.onnx", lr=0.003):
            run("compile", source, "-o", "train", "--loss=mse", "--batch=32", "--optimizer=adam", *options)
            run(tmp_path / "train", *files, f"--steps={steps}", f"--lr={lr}", "--lr-schedule=cosine", "--log=log.jsonl", "--progress=off",
                f"--eval-every={steps}", f"--export={export}")
            return [line["eval_loss"] for line in reference.log_lines(tmp_path / "log.jsonl") if "eval_loss" in line][-1]

        end("model.onnx", steps=800, export="floats.onnx", lr=0.01)
        run("quantize", "floats.onnx", "--data=x=x.npy", "--weight-type=s4", "-o", "q.onnx")
        rounded = loss_of(session(tmp_path / "q.onnx").run(None, {"x": x})[0], np.load(tmp_path / "labels.npy"))
        ranges = end("floats.onnx", "--quantize=w4a8-tensor")
        learned = end("floats.onnx", "--quantize=w4a8-tensor", "--scale-learning=lsq")
        assert learned < ranges < rounded, seed


# ---- seen, and refused
def test_the_table_says_how(run, layer):
    shown = run("check", "model.onnx", "--quantize=w4a8-g4").stdout
    assert "weight      s4   w " in shown and "activation  u8   x                                 running" in shown
    assert "weights and biases: 240 bytes become 98" in shown
    entries = json.loads(run("check", "model.onnx", "--quantize=w8a8-token", "--json").stdout)["quantized"]
    assert {t["name"]: (t["kind"], t["type"], t.get("scales"), len(t.get("scale", []))) for t in entries} == {
        "w": ("weight", "s8", None, 5), "x": ("activation", "u8", "token", 0)}


BAD = {
    "no spec": ("w8b8", "", 2, "--quantize=w8b8: need wN[aN]"),
    "a word twice": ("w8w8", "", 2, "need wN[aN]"),
    "both groupings": ("w8-g4-tensor", "", 2, "need wN[aN]"),
    "rows and the tensor": ("w8a8-token-dynamic", "", 2, "need wN[aN]"),
    "rows of 16 bits": ("w8a16-token", "", 2, "need wN[aN]"),
    "rows of floats": ("w8-token", "", 2, "need wN[aN]"),
    "no such type": ("w5a8", "", 2, "--weight-type=s5: need one of s8|s4|s2"),
    "a block that does not divide": ("w4a8-g5", "", 2, 'node "product": blocks of 5 do not divide axis 0 of weight "w", of 12 elements'),
    "no such file": ("none.ini", "", 5, "none.ini"),
    "a key": ("q.ini", "wieght-type = s4", 2, "q.ini: wieght-type: no such option"),
    "a line": ("q.ini", "weight-type", 2, "q.ini:1: not `name = value`"),
    "a glob": ("q.ini", "only = prduct", 2, 'the nearest names are "product"'),
    "averaging": ("q.ini", "averaging = 2", 2, "averaging is above 1"),
    "two groupings": ("q.ini", "per-channel = on\nblock-size = 4", 2, "per-channel and block-size: one of them"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_settings(run, layer, name):
    spec, text, code, message = BAD[name]
    if text:
        (layer / "q.ini").write_text(text + "\n")
    done = run("compile", "model.onnx", "-o", "train", "--loss=mse", f"--quantize={spec}", exit=code)
    assert message in done.stderr
    assert not (layer / "train").exists()


@pytest.mark.parametrize("options, message", [
    ([], "zero-points=on: needs --quantize"), (["--quantize=w8a8-token"], "activations with running ranges"),
    (["--quantize=w8"], "activations with running ranges")])
def test_zero_points_are_learned_of_ranges(run, layer, options, message):
    done = run("compile", "model.onnx", "-o", "train", "--loss=mse", "--scale-learning=lsq,zero-points=on", *options, exit=2)
    assert message in done.stderr


def test_a_spec_is_no_file_of_its_name(run, layer):
    for _ in range(2):
        run("compile", "model.onnx", "-o", "w8a8", "--loss=mse", "--batch=8", "--quantize=w8a8")


def test_scales_do_not_begin_from_other_weights(run, layer):
    for init in ("random:1", "w=normal(0,100)"):
        done = run("compile", "model.onnx", "-o", "train", "--loss=mse", "--batch=8", "--quantize=w4", "--scale-learning=lsq", f"--init={init}", exit=2)
        assert "scales begin from the weights of the file" in done.stderr


def test_weights_may_be_drawn_anew(run, layer):
    """--init=random needs no numbers in the file, for codes neither; those of the export are of the weights that trained."""
    proto = onnx.load(layer / "model.onnx")
    proto.graph.initializer[0].ClearField("raw_data")
    onnx.save(proto, layer / "model.onnx")
    done = run("compile", "model.onnx", "-o", "train", "--loss=mse", "--quantize=w8a8", exit=3)
    assert 'tensor "w" has no data' in done.stderr
    after = train(run, layer, "w8a8", "--steps=3", "--lr=0.05", "--save=ck", compile_options=["--init=random:3"])
    trained = weight_of(layer / "ck")
    scale = np.float32(2) * np.abs(trained).max(0) / np.float32(254)
    assert after["w_scale"].tolist() == scale.tolist() and len(set(scale)) == OUTPUTS
    np.testing.assert_array_equal(after["w_quantized"], quantized(trained, scale, -128, 127))


@pytest.mark.parametrize("shape, spec", [((1,) * 14 + (4, 3), "w8"), ((1,) * 7 + (4, 3), "w4-g2")])
def test_weights_of_many_axes(run, tmp_path, shape, spec):
    w = np.float32(np.random.default_rng(6).normal(size=shape))
    y = (*shape[:-2], 2, 3)
    onnx.save(model([node("MatMul", ["x", "w"], name="product")], inputs=[value("x", (2, 4))], outputs=[value("y", y)],
                    initializers=[tensor("w", w)], opset=21, ir=10), tmp_path / "model.onnx")
    shown = json.loads(run("check", "model.onnx", "--loss=mse", f"--quantize={spec}", "--json").stdout)
    assert len(shown["quantized"][0]["scale"]) == (3 if spec == "w8" else 6)


def test_a_weight_behind_an_identity(run, layer):
    """Training sees the codes that the export holds. 12 has blocks of 4."""
    onnx.save(model([node("Identity", ["w"], ["v"], name="same"), node("MatMul", ["x", "v"], name="product")],
                    inputs=[value("x", ("batch", INPUTS))], initializers=[tensor("w", W)], opset=21, ir=10), layer / "model.onnx")
    train(run, layer, "w4-g4", "--steps=3", "--eval-every=3", "--eval-data=x=x.npy", "--eval-data=labels=labels.npy")
    got = [line["eval_loss"] for line in reference.log_lines(layer / "out.jsonl") if "eval_loss" in line][-1]
    np.testing.assert_allclose(got, loss_of(session(layer / "out.onnx").run(None, {"x": X})[0].astype(float), LABELS), rtol=1e-6)


def test_an_empty_weight_stays(run, tmp_path):
    onnx.save(model([node("MatMul", ["x", "w"], ["h"], name="none"), node("MatMul", ["h", "v"], name="product")], inputs=[value("x", (2, 0))],
                    outputs=[value("y", (2, 3))], initializers=[tensor("w", np.ones((0, 4), np.float32)), tensor("v", np.ones((4, 3), np.float32))]),
              tmp_path / "model.onnx")
    shown = json.loads(run("check", "model.onnx", "--loss=mse", "--quantize=w8a8", "--json").stdout)
    assert "w" not in {t["name"] for t in shown["quantized"]}


def test_rows_of_two_activations_have_one_scale(run, tmp_path):
    """A block of the training's length would fit no other."""
    onnx.save(model([node("MatMul", ["x", "w"], ["k"], name="keys"), node("Transpose", ["k"], ["t"], name="turn", perm=[0, 2, 1]),
                     node("MatMul", ["x", "w"], ["q"], name="queries"), node("MatMul", ["q", "t"], name="scores")], inputs=[value("x", (2, "seq", 4))], outputs=[value("y", (2, "seq", "seq"))],
                    initializers=[tensor("w", np.float32(np.random.default_rng(7).normal(size=(4, 4))))], opset=21, ir=10), tmp_path / "model.onnx")
    shown = json.loads(run("check", "model.onnx", "--loss=mse", "--dim=seq=6", "--quantize=w8a8-token", "--json").stdout)
    assert {t["name"]: t.get("scales") for t in shown["quantized"] if t["kind"] == "activation"} == {"x": "token", "q": "dynamic", "t": "dynamic"}


def test_an_old_opset_is_named(run, layer):
    proto = onnx.load(layer / "model.onnx")
    proto.opset_import[0].version = 17
    onnx.save(proto, layer / "model.onnx")
    done = run("compile", "model.onnx", "-o", "train", "--loss=mse", "--quantize=w8a8-token", exit=4)
    assert "opset 17 has no DequantizeLinear with blocks, a scale for each row" in done.stderr and "--opset=21" in done.stderr
    assert "--opset: needs --quantize" in run("compile", "model.onnx", "-o", "train", "--loss=mse", "--opset=21", exit=2).stderr


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_are_finite(run, layer, bad):
    w = W.copy()
    w[1, 1] = bad
    onnx.save(model([node("MatMul", ["x", "w"], name="product")], inputs=[value("x", ("batch", INPUTS))], initializers=[tensor("w", w)]),
              layer / "model.onnx")
    assert "w of node product has numbers that are not finite" in run(
        "compile", "model.onnx", "-o", "train", "--loss=mse", "--quantize=w8a8", exit=3).stderr


def test_the_walk_through(build, tmp_path):
    """examples/quantize/run: four files, and in onnxruntime no more than a few patches are told worse."""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([root / "examples/quantize/run", tmp_path / "out"], text=True, capture_output=True, timeout=300,
                          env={**os.environ, "GRADC": str(build / "gradc"), "PYTHON": sys.executable})
    assert done.returncode == 0, done.stderr
    lines = [re.fullmatch(r"(\S+) +(\d+) bytes  loss \S+  accuracy (\S+)", line) for line in done.stdout.splitlines()[-4:]]
    assert [line[1] for line in lines] == ["floats.onnx", "w8a8.onnx", "w8a8-trained.onnx", "w4a8-trained.onnx"]
    assert all(float(line[3]) >= 0.85 for line in lines)
    assert int(lines[1][2]) < 0.4 * int(lines[0][2]) and int(lines[3][2]) < 0.25 * int(lines[0][2])
