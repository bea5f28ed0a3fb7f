"""Products too large for the interpreter, as loops: the library has none in f64. Their blocks end in all places."""
import numpy as np
import onnx
import pytest

# m, k, n: as many rows as fit a chunk, fewer, a prime number; one block of k, several, a short one; panels that are groups,
# all of one width or not, and a group that is not full.
SIZES = [(64, 1600, 528), (64, 1601, 530), (1537, 130, 70), (1031, 257, 48), (512, 300, 1040), (48, 2048, 272), (9, 5000, 33)]


def cpu_has(flag):
    with open("/proc/cpuinfo") as file:
        return any(line.startswith("flags") and flag in line.split() for line in file)


@pytest.mark.parametrize("target", ["cpu:x86-64-v2", "cpu:x86-64-v3", "cpu:x86-64-v4"])
@pytest.mark.parametrize("across", ["", "a", "b"])
@pytest.mark.parametrize("m, k, n", SIZES)
def test_product(run, tmp_path, m, k, n, across, target):
    if target == "cpu:x86-64-v4" and not cpu_has("avx512f"):
        pytest.skip("this CPU has no AVX-512")
    random = np.random.default_rng(m)
    x, y = random.standard_normal((m, k)), random.standard_normal((k, n))
    feed = {"x": x.T if "a" in across else x, "y": y.T if "b" in across else y}
    arguments = []
    for name, value in feed.items():
        np.save(tmp_path / f"{name}.npy", np.ascontiguousarray(value))
        arguments += ["--input", f"{name}={tmp_path / name}.npy"]
    double = onnx.TensorProto.DOUBLE
    node = onnx.helper.make_node("Gemm", ["x", "y"], ["z"], transA="a" in across, transB="b" in across)
    graph = onnx.helper.make_graph(
        [node], "product", [onnx.helper.make_tensor_value_info(i, double, feed[i].shape) for i in feed],
        [onnx.helper.make_tensor_value_info("z", double, [m, n])])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8),
              tmp_path / "model.onnx")
    run("run", tmp_path / "model.onnx", "--engine=compiled", "--precision=f64", f"--target={target}", *arguments,
        "--output-dir", tmp_path)
    off = np.abs(np.load(tmp_path / "z.npy") - x @ y).max()
    assert off < 1e-11 * np.sqrt(k), off
