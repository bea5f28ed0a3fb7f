"""What recipes of 16 and 8 bits keep: bytes a parameter, as the table says, as the plan has them and as the process needs them;
weights of 16 bits alone, rounded to nearest or by chance; working weights."""
import json
import re
import subprocess
import sys

import numpy as np
import onnx
import pytest
import reference
from onnx import helper, numpy_helper

NARROW = ["--precision=bf16", "--max-accumulate=1", "--gradients=bf16"]
ALONE = ["--precision=bf16", "--master=off", "--rounding=stochastic"]
# Bytes of weights, working weights, gradients and moments.
RECIPES = {
    "f32": ([], (4, 0, 4, 8)),
    "bf16": (["--precision=bf16"], (4, 2, 4, 8)),
    "f16": (["--precision=f16"], (4, 2, 4, 8)),
    "bf16, gradients of bf16": (NARROW, (4, 2, 2, 8)),
    "bf16, 8-bit Adam": ([*NARROW, "--optimizer=adam8bit"], (4, 2, 2, 2.03125)),
    "bf16, Lion": ([*NARROW, "--optimizer=lion"], (4, 2, 2, 4)),
    "bf16, Muon": ([*NARROW, "--optimizer=muon"], (4, 2, 2, 4)),
    "bf16 alone, moments of bf16": ([*ALONE, *NARROW, "--moments=bf16"], (2, 0, 2, 4)),
    "bf16 alone, 8-bit Adam": ([*ALONE, *NARROW, "--optimizer=adam8bit"], (2, 0, 2, 2.03125)),
    "bf16 alone, 8-bit Adam, gradients of f32": ([*ALONE, "--optimizer=adam8bit"], (2, 0, 4, 2.03125)),
}
WIDTH = 1024


def mlp(folder, layers):
    """Square layers without bias, WIDTH wide, and a head."""
    names = [f"w{i}" for i in range(layers)] + ["head"]
    nodes = [helper.make_node("MatMul", [f"x{i}" if i else "x", n], [f"x{i + 1}"]) for i, n in enumerate(names)]
    weights = [numpy_helper.from_array(np.zeros((WIDTH, 8 if n == "head" else WIDTH), np.float32), n) for n in names]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, [4, WIDTH])],
                              [helper.make_tensor_value_info(f"x{layers + 1}", 1, [4, 8])], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "model.onnx")
    np.save(folder / "x.npy", np.ones((4, WIDTH), np.float32))
    np.save(folder / "y.npy", np.ones((4, 8), np.float32))


# A process starts with the peak of the one that it was forked from: a small one.
LAUNCHER = "import os, sys; p = os.spawnv(os.P_NOWAIT, sys.argv[1], sys.argv[1:]); _, status, usage = os.wait4(p, 0); print(usage.ru_maxrss if status == 0 else 'failed')"


def resident(folder, *command):
    """Most bytes that a process had in memory, and what it said."""
    done = subprocess.run([sys.executable, "-S", "-c", LAUNCHER, *command], cwd=folder, capture_output=True, text=True, check=True)
    return 1024 * int(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.parametrize("recipe", RECIPES)
def test_bytes_a_parameter(run, tmp_path, recipe):
    options, want = RECIPES[recipe]
    sizes, elements = [], []
    for layers in 2, 6:
        mlp(tmp_path, layers)
        run("compile", "model.onnx", "-o", "train", "--init=random", "--loss=mse", "--freeze=head", *options)
        said = json.loads(run(tmp_path / "train", "--info", "--json").stdout)
        got = said["bytes_per_parameter"]
        assert [got[k] for k in ("weights", "working", "gradients", "moments", "total")] == [*want, sum(want)]
        most, table = resident(tmp_path, "./train", "--data=x=x.npy", "--data=labels=y.npy", "--steps=2", "--threads=1")
        assert f"bytes a parameter: {sum(want):.2f} (" in table
        n = layers * WIDTH * WIDTH
        assert n * sum(want) <= said["regions"]["state"] <= n * sum(want) + WIDTH * 16 * 4 + 65536
        sizes.append(most)
        elements.append(n)
    grown = (sizes[1] - sizes[0]) / (elements[1] - elements[0])
    assert sum(want) - 0.3 <= grown <= sum(want) + 1.5


# ---- weights of bf16 alone
def ones(folder, n=2000):
    """loss = x w, so that the gradient of w, ones, is x, ones."""
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Squeeze", ["y"], ["loss"])], "g",
                              [helper.make_tensor_value_info("x", 1, [1, n])], [helper.make_tensor_value_info("loss", 1, [])],
                              [numpy_helper.from_array(np.ones((n, 1), np.float32), "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "model.onnx")
    np.save(folder / "x.npy", np.ones((1, n), np.float32))


def exported(path):
    return {i.name: numpy_helper.to_array(i) for i in onnx.load(path).graph.initializer}


@pytest.mark.parametrize("options, low, high", [([], 0.98999, 0.99001), (["--master=off"], 1, 1),
                                                (["--master=off", "--rounding=stochastic"], 0.989, 0.991)])
def test_small_updates(run, tmp_path, options, low, high):
    """A hundred updates of a ten thousandth: lost when rounded to the nearest bf16, right on average when rounded by chance."""
    ones(tmp_path)
    run("compile", "model.onnx", "-o", "train", "--loss=output:loss", "--optimizer=sgd", "--precision=bf16", *options)
    run(tmp_path / "train", "--data=x=x.npy", "--steps=100", "--lr=1e-4", "--export=out.onnx")
    w = exported(tmp_path / "out.onnx")["w"]
    assert low <= w.mean() <= high
    if "--rounding=stochastic" in options:
        assert len(np.unique(w)) > 2 and np.array_equal(w.view(np.uint32) & 0xffff, np.zeros(w.shape))


def losses(run, models, folder, name, options, *more):
    """Those of a reference's steps, in bf16; the log's."""
    run("compile", models / name / "model.onnx", "-o", folder / "train", *reference.compile_options(name, "f32", drop=["--precision", "-o", "train"]),
        "--precision=bf16", *options)
    run(folder / "train", *reference.train_options(name, "f32"), *more, "--log", folder / "log.jsonl", cwd=models / name)
    return [x["loss"] for x in map(json.loads, (folder / "log.jsonl").read_text().splitlines()) if "lr" in x]


def distance(name, got):
    """Root mean square to the curve of f64, as docs/precision.md has it."""
    want = np.array(reference.load(name)["traces"][0]["f64"]["losses"][:len(got)])
    return np.sqrt(np.mean(((np.array(got) - want) / np.maximum(np.abs(want), abs(want[0]) / 10)) ** 2))


@pytest.mark.parametrize("name", ["gpt2_mini", "llama_mini"])
def test_curves_without_master_weights(run, models, tmp_path, name):
    """By chance near f32's, to the nearest not."""
    nearest = distance(name, losses(run, models, tmp_path, name, ["--master=off"]))
    chance = distance(name, losses(run, models, tmp_path, name, ["--master=off", "--rounding=stochastic", "--moments=bf16"]))
    assert chance < 1.5e-3 < nearest < 0.05


def test_dumped_types(run, models):
    """Weights are bf16, their gradients f32 and not rounded on the way; updates are computed in f32."""
    options = reference.compile_options("gpt2_mini", "f32", drop=["--precision", "-o", "train"])
    text = run("dump", models / "gpt2_mini/model.onnx", *options, *ALONE, "--stage=train").stdout
    types = {kind: set(re.findall(rf"state @\S+ : (\w+)\[.*?\] {kind} ", text)) for kind in ("parameter", "gradient", "moment", "working")}
    assert types == {"parameter": {"bf16"}, "gradient": {"f32"}, "moment": {"f32"}, "working": set()}
    update = text[text.index("func @update"):]
    assert {t for op, t in re.findall(r" = (mul|add|sub|div|sqrt) .*? : (\w+)\[", update) if op != "mul"} <= {"f32", "f64", "s64"}
    assert update.count("round = stochastic") == 1  # all weights are one run


@pytest.mark.parametrize("options", [["--optimizer=lamb"], ["--optimizer=adamw", "--lr-scale=0.*=0.5"], ["--optimizer=adafactor"]])
def test_what_is_updated_apart_draws_other_numbers(run, models, options):
    text = run("dump", models / "mlp_digits/model.onnx", "--batch=32", "--loss=cross_entropy", *ALONE, *options, "--stage=train").stdout
    streams = re.findall(r"round = stochastic, stream = (-?\d+)", text)
    assert len(streams) == len(set(streams)) > 1


@pytest.mark.parametrize("options", [[*ALONE[1:], "--moments=bf16"], []])
def test_resumed_has_the_same_bits(run, models, tmp_path, options):
    """Random numbers are of steps, and working weights are made anew."""
    train = [x for x in reference.train_options("mlp_digits", "f32") if not x.startswith("--steps")]
    run("compile", models / "mlp_digits/model.onnx", "-o", tmp_path / "train",
        *reference.compile_options("mlp_digits", "f32", drop=["--precision", "-o", "train"]), "--precision=bf16", *options)
    for name, more in {"whole": ["--steps=20"], "half": ["--steps=9"], "rest": ["--steps=20", "--resume", tmp_path / "half"]}.items():
        run(tmp_path / "train", *train, *more, "--save", tmp_path / ("whole" if name == "whole" else "half"), "--export", tmp_path / f"{name}.onnx",
            cwd=models / "mlp_digits")
    whole, rest = (exported(tmp_path / f"{name}.onnx") for name in ("whole", "rest"))
    assert len(whole) > 3 and all(np.array_equal(whole[n], rest[n]) for n in whole)


def test_loaded_weights_are_rounded(run, models, tmp_path):
    """Those that --load takes from f32, too; what works with a copy makes it anew."""
    options = reference.compile_options("mlp_digits", "f32", drop=["--precision", "-o", "train"])
    train = [x for x in reference.train_options("mlp_digits", "f32") if not x.startswith("--steps")]
    for name, more in {"f32": [], "alone": ["--precision=bf16", "--master=off"], "working": ["--precision=bf16"], "cast": ["--precision=bf16", "--disable=working"]}.items():
        run("compile", models / "mlp_digits/model.onnx", "-o", tmp_path / name, *options, *more)
    run(tmp_path / "f32", *train, "--steps=5", "--save", tmp_path / "saved", cwd=models / "mlp_digits")
    file = next((tmp_path / "saved").glob("step-*/*.safetensors"))
    found = {}
    for name in "alone", "working", "cast":
        run(tmp_path / name, *train, "--steps=3", "--load", file, "--log", tmp_path / f"{name}.jsonl", cwd=models / "mlp_digits")
        found[name] = [x["loss"] for x in map(json.loads, (tmp_path / f"{name}.jsonl").read_text().splitlines()) if "lr" in x]
    assert found["working"] == found["cast"]
    assert found["alone"][0] == pytest.approx(found["cast"][0], rel=5e-3)


def small(folder):
    """y = (x + pos) w, z = x other: a weight that is read as a whole, and one that the loss of y does not reach."""
    rng = np.random.default_rng(5)
    arrays = {"pos": (4, 16), "w": (16, 8), "other": (16, 8)}
    nodes = [helper.make_node("Add", ["x", "pos"], ["h"]), helper.make_node("MatMul", ["h", "w"], ["y"]), helper.make_node("MatMul", ["x", "other"], ["z"])]
    outputs = [helper.make_tensor_value_info(n, 1, [4, 8]) for n in ("y", "z")]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, [4, 16])], outputs,
                              [numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), n) for n, shape in arrays.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "model.onnx")
    np.save(folder / "x.npy", np.ones((4, 16), np.float32))
    np.save(folder / "labels.npy", np.ones((4, 8), np.float32))


def test_what_is_not_trained_keeps_its_digits(run, tmp_path):
    """Also where the loss does not reach it; and a weight that is read as a whole has no copy."""
    small(tmp_path)
    run("compile", "model.onnx", "-o", "train", "--loss=mse:y", *ALONE, "--ema=0.9")
    run(tmp_path / "train", "--data=x=x.npy", "--data=labels=labels.npy", "--steps=3", "--export=out.onnx")
    before, after = exported(tmp_path / "model.onnx"), exported(tmp_path / "out.onnx")
    assert np.array_equal(before["other"], after["other"]) and not np.array_equal(before["w"], after["w"])
    said = json.loads(run(tmp_path / "train", "--info", "--json").stdout)
    assert said["bytes_per_parameter"] == {"weights": 2, "working": 0, "gradients": 4, "moments": 8, "averages": 4, "total": 18}
    assert {s["dtype"] for s in said["states"] if s["name"] in ("w", "pos")} == {"bf16"}


@pytest.mark.parametrize("options, said", [
    (["--gradients=bf16", "--max-accumulate=1", "--precision=f64"], "--gradients=bf16 cannot be combined with --precision=f64"),
    (["--rounding=stochastic", "--moments=bf16", "--optimizer=sgd"], "no weights or moments of 16 bits are kept"),
    (["--master=off"], "--master=off needs --precision=bf16"), (["--master=off", "--precision=f16"], "weights of f16 alone do not train"),
    (["--rounding=stochastic", "--precision=bf16"], "no weights or moments of 16 bits are kept"),
    (["--gradients=bf16"], "--gradients=bf16 needs --max-accumulate=1"), (["--gradients=bf16", "--max-accumulate=2"], "needs --max-accumulate=1")])
def test_faults(run, models, tmp_path, options, said):
    assert said in run("compile", models / "mlp_digits/model.onnx", "-o", tmp_path / "train", "--batch=8", *options, exit=2).stderr
