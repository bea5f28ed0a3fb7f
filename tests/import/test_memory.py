"""Embedded weights are in memory once: reading a model peaks at about the size of its file."""
import os
import subprocess
import sys

import numpy as np
import onnx
import pytest

sys.path.insert(0, os.path.dirname(__file__))
from make_malformed import model, node, tensor, value  # noqa: E402
from measure import measure  # noqa: E402

WIDTH, LAYERS = 1024, 16  # 64 MiB of weights
SANITIZED = bool(os.environ.get("GRADC_SANITIZED"))


def weights():
    rng = np.random.default_rng(7)
    return [rng.standard_normal((WIDTH, WIDTH), dtype=np.float32) for _ in range(LAYERS)]


def write_layers(path):
    names = ["x"] + [f"h{i}" for i in range(LAYERS - 1)] + ["y"]
    nodes = [node("MatMul", [names[i], f"w{i}"], [names[i + 1]], f"n{i}") for i in range(LAYERS)]
    onnx.save(model(nodes, [value("x", (1, WIDTH))],
                    initializers=[tensor(f"w{i}", w) for i, w in enumerate(weights())]), path)


@pytest.mark.skipif(SANITIZED, reason="shadow memory")
@pytest.mark.parametrize("command", ["check", "compile"])
def test_weights_are_in_memory_once(gradc, tmp_path, command):
    path = tmp_path / "model.onnx"
    write_layers(path)
    more = ["--loss", "mse", "-o", tmp_path / "train"] if command == "compile" else []
    empty = measure([gradc, "ops"])[2]  # what the program's libraries take
    generator = (24 << 20) if command == "compile" else 0  # what LLVM needs for the kernels
    code, text, size = measure([gradc, command, path, *more])
    assert code == 0, text
    assert size - empty - generator < 1.15 * path.stat().st_size


def test_nested_tensors_are_read(run, tmp_path):
    """Large raw_data in a Constant node, and in both branches of an If, is not lost."""
    w = [np.random.default_rng(i).standard_normal((128, 64), dtype=np.float32) for i in range(3)]

    def branch(name, array):
        return onnx.helper.make_graph([node("MatMul", ["h", name + "w"], [name])], name, [],
                                      [value(name, (2, 64))], [tensor(name + "w", array)])
    x = np.random.default_rng(9).standard_normal((2, 64), dtype=np.float32)
    np.save(tmp_path / "x.npy", x)
    for chosen in (True, False):
        m = model([node("Constant", [], ["k"], value=tensor("", w[0].T.copy())),
                   node("MatMul", ["x", "k"], ["h"]),
                   node("If", ["c"], then_branch=branch("t", w[1]), else_branch=branch("e", w[2]))],
                  [value("x", (2, 64))], [value("y", (2, 64))], [tensor("c", np.array(chosen))])
        onnx.save(m, tmp_path / "model.onnx")
        run("run", "model.onnx", "--engine=interp", "--input", "x=x.npy", "--output-dir", "out")
        expected = x @ w[0].T @ (w[1] if chosen else w[2])
        np.testing.assert_allclose(np.load(tmp_path / "out" / "y.npy"), expected, rtol=1e-4,
                                   atol=1e-3)


def test_file_that_shrinks(gradc, tmp_path):
    """Cut off while it is read: an error or a clean read, never a signal."""
    path = tmp_path / "model.onnx"
    for delay in range(6):
        write_layers(path)
        child = subprocess.Popen([gradc, "check", path], stdout=subprocess.DEVNULL,
                                 stderr=subprocess.PIPE)
        try:
            child.wait(0.01 * delay)
        except subprocess.TimeoutExpired:
            pass
        os.truncate(path, 1 << 20)
        _, text = child.communicate()
        assert child.returncode in (0, 3, 5), (child.returncode, text)
