"""Threads and libraries: the same bits for any number of threads, close results with and without oneDNN, and what
--info says of both."""
import ctypes.util
import json
import os
import subprocess

import numpy as np
import onnx
import pytest
import reference
from onnx import TensorProto, helper, numpy_helper

ROWS, WIDTH, HIDDEN, HEADS = 32, 64, 128, 4


def model(path):
    """y = mean of softmax(q k) v over features of relu(x w1) w2: plain and batched products, large enough for
    several threads and for the library."""
    random = np.random.default_rng(0)

    def weight(name, *shape):
        return numpy_helper.from_array((random.standard_normal(shape) / 8).astype(np.float32), name)

    node = helper.make_node
    shape = numpy_helper.from_array(np.array([0, 0, HEADS, WIDTH // HEADS]), "heads")
    merged = numpy_helper.from_array(np.array([0, 0, WIDTH]), "merged")
    nodes = [node("MatMul", ["x", "w1"], ["h"]), node("Relu", ["h"], ["r"]),
             node("MatMul", ["r", "w2"], ["f"]), node("Reshape", ["f", "heads"], ["s"]),
             node("Transpose", ["s"], ["q"], perm=[0, 2, 1, 3]),
             node("Transpose", ["s"], ["k"], perm=[0, 2, 3, 1]),
             node("MatMul", ["q", "k"], ["scores"]), node("Softmax", ["scores"], ["p"], axis=-1),
             node("MatMul", ["p", "q"], ["m"]),
             node("Transpose", ["m"], ["t"], perm=[0, 2, 1, 3]),
             node("Reshape", ["t", "merged"], ["o"]), node("MatMul", ["o", "w3"], ["logits"])]
    graph = helper.make_graph(
        nodes, "threads",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", ROWS, WIDTH])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", ROWS, HIDDEN])],
        [weight("w1", WIDTH, HIDDEN), weight("w2", HIDDEN, WIDTH), weight("w3", WIDTH, HIDDEN),
         shape, merged])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
              path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("threads")
    random = np.random.default_rng(1)
    model(folder / "m.onnx")
    np.save(folder / "x.npy", random.standard_normal((24, ROWS, WIDTH)).astype(np.float32))
    np.save(folder / "labels.npy", random.integers(0, HIDDEN, (24, ROWS)))
    return folder


@pytest.fixture
def trained(run, folder):
    """Compiles once; losses and norms of six steps with some options."""
    exe = folder / "train"
    if not exe.exists():
        run("compile", folder / "m.onnx", "-o", exe, "--batch=8", "--loss=cross_entropy")

    def train(*options):
        log = folder / "log.jsonl"
        run(exe, "--data", f"x={folder / 'x.npy'}", "--data", f"labels={folder / 'labels.npy'}",
            "--log", log, "--progress=off", "--epochs=2", *options)
        return [(line["loss"], line["grad_norm"]) for line in reference.log_lines(log)
                if "lr" in line]

    train.info = lambda *options: json.loads(run(exe, "--info", "--json", *options).stdout)
    return train


def has_onednn(info):
    return "oneDNN " in info["device"] and "built without" not in info["device"]


def test_library_without_avx512(build, trained, monkeypatch):
    """What runs on CPUs that have no more than AVX2 is tested on all."""
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    done = subprocess.run([build / "tests/runtime_onednn_test"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    one = trained("--deterministic", "--threads=1")
    for threads in 2, 3, 4:
        assert trained("--deterministic", f"--threads={threads}") == one


@pytest.mark.parametrize("name, batch, threads", [("mlp_digits", 128, 1), ("cnn_mnist", 1, 1), ("cnn_mnist", 32, "all")])
def test_short_steps_are_one_threads(gradc, models, tmp_path, name, batch, threads):
    subprocess.run([gradc, "compile", models / name / "model.onnx", "-o", tmp_path / "train", f"--batch={batch}"],
                   check=True, capture_output=True)

    def said(*options):
        info = subprocess.run([tmp_path / "train", "--info", "--json", *options], check=True, capture_output=True).stdout
        return int(json.loads(info)["device"].split()[0])

    assert said() == (len(os.sched_getaffinity(0)) if threads == "all" else threads)
    assert said("--threads=3") == 3


def test_deterministic_for_any_number_of_threads(trained):
    one = trained("--deterministic", "--threads=1")
    assert len(one) == 6 and one[-1][0] < one[0][0]
    for threads in 2, 3, 4:
        assert trained("--deterministic", f"--threads={threads}") == one


def test_generated_code_for_any_number_of_threads(trained):
    one = trained("--libraries=off", "--threads=1")
    for threads in 2, 4:
        assert trained("--libraries=off", f"--threads={threads}") == one


def test_library_agrees_with_generated_code(trained):
    np.testing.assert_allclose(trained("--threads=2"), trained("--libraries=off"), rtol=2e-5)


def test_info_names_what_runs(trained):
    info = trained.info("--threads=2")
    assert info["device"].startswith("2 threads (")
    assert len(info["library_calls"]) >= 6
    for call in info["library_calls"]:
        assert call["call"].startswith("dot {x = f32[") and call["flops"] >= 1 << 20
        assert "ref" not in call["implementation"]
    if has_onednn(info):
        names = {call["implementation"] for call in info["library_calls"]}
        assert names != {"generated"} and info["library_bytes"] >= 0
    off = trained.info("--libraries=off", "--threads=1")
    assert off["device"].startswith("1 thread (") and off["device"].endswith("no libraries")
    assert {call["implementation"] for call in off["library_calls"]} == {"generated"}
    assert off["library_bytes"] == 0


@pytest.mark.skipif(not ctypes.util.find_library("dnnl"), reason="oneDNN is not installed")
def test_groups_are_no_products_of_patches(run, tmp_path, monkeypatch):
    """A library's gemm copies patches, and is slower for groups than the loops."""
    groups = {"wide": (32, 3, 1), "narrow": (32, 3, 8), "depthwise": (32, 7, 32)}
    make, nodes, last = helper.make_node, [], "x"
    for name, (_, size, n) in groups.items():
        nodes.append(make("Conv", [last, f"w.{name}"], [name], group=n, pads=[size // 2] * 4))
        last = name
    weights = [numpy_helper.from_array(np.full((m, 32 // n, k, k), 0.01, np.float32), f"w.{name}")
               for name, (m, k, n) in groups.items()]
    values = [helper.make_tensor_value_info(i, TensorProto.FLOAT, [4, 32, 32, 32]) for i in ("x", last)]
    graph = helper.make_graph(nodes, "groups", values[:1], values[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    run("compile", tmp_path / "m.onnx", "-o", tmp_path / "train", "--loss=mse")
    for isa in "AVX2", "ALL":
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", isa)
        calls = json.loads(run(tmp_path / "train", "--info", "--json").stdout)["library_calls"]
        assert len(calls) == 8 and not [c for c in calls if "groups" in c["call"] and "gemm" in c["implementation"]]
        assert all(c["implementation"] != "generated" for c in calls if "groups" not in c["call"])
        assert isa == "ALL" or [c for c in calls if "groups" in c["call"] and c["implementation"] == "generated"]


@pytest.mark.skipif(not ctypes.util.find_library("dnnl"), reason="oneDNN is not installed")
def test_library_is_found(trained):
    assert has_onednn(trained.info())


@pytest.mark.parametrize("name", ["cnn_mnist", "mobilenet_mini"])
def test_convolutions_agree_with_generated_code(run, of_trace, models, tmp_path, name):
    exe, log = of_trace(name), tmp_path / "log.jsonl"
    losses = []
    for options in [], ["--libraries=off"], ["--deterministic", "--threads=1"], ["--deterministic", "--threads=3"]:
        run(exe, *reference.train_options(name, "f32"), *options, "--log", log, "--progress=off",
            cwd=models / name)
        losses.append(reference.step_losses(log))
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)
    np.testing.assert_allclose(losses[2], losses[1], rtol=1e-4)
    assert losses[2] == losses[3]
    kinds = {call["call"].split()[0] for call in json.loads(run(exe, "--info", "--json").stdout)["library_calls"]}
    assert {"conv", "conv_grad_input", "conv_grad_weight"} <= kinds


def test_weights_that_threads_make(run, tmp_path):
    """As many as are worth threads, not a whole number of their parts: each is made, and the same for any number of threads."""
    shape = (511, 521)
    made = {"normal": "normal(1,2)", "uniform": "uniform(-1,3)", "ones": "ones"}
    nodes = [helper.make_node("MatMul", ["x", "normal"], ["a"]), helper.make_node("Transpose", ["uniform"], ["t"], perm=[1, 0]),
             helper.make_node("MatMul", ["a", "t"], ["b"]), helper.make_node("MatMul", ["b", "ones"], ["y"])]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, shape[0]])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, shape[1]])],
                              [numpy_helper.from_array(np.zeros(shape, np.float32), name) for name in made])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "model.onnx")
    run("compile", tmp_path / "model.onnx", "-o", tmp_path / "train", "--loss=mse",
        *[f"--init={name}={how}" for name, how in made.items()])
    found = []
    for threads in 1, 3:
        out = tmp_path / f"{threads}.onnx"
        run(tmp_path / "train", "--steps=0", f"--threads={threads}", "--export", out)
        found.append({t.name: numpy_helper.to_array(t) for t in onnx.load(out).graph.initializer})
    assert all((found[0][name] == found[1][name]).all() for name in made)
    assert (found[0]["ones"] == 1).all()
    for name, mean, deviation in (("normal", 1, 2), ("uniform", 1, 4 / 12 ** 0.5)):
        values = found[0][name]
        assert len(np.unique(values)) > 0.97 * values.size
        for part in values[:8], values[-8:], values:
            assert abs(part.mean() - mean) < 5 * deviation / part.size ** 0.5 and abs(part.std() / deviation - 1) < 0.05
