"""Adam with moments of 8 bits: codes and sizes of blocks bit by bit as a C program's (adam8bit.c), bytes, small tensors, resuming."""
import json
import subprocess

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from pathlib import Path

STEPS = 20


@pytest.fixture(scope="module")
def oracle(tmp_path_factory):
    program = tmp_path_factory.mktemp("oracle") / "adam8bit"
    subprocess.run(["cc", "-O1", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-o", program, Path(__file__).parent / "adam8bit.c", "-lm"],
                   check=True)

    def call(gradients, variant, lr, decay):
        n = gradients.shape[1]
        padded = -(-n // 256) * 256
        out = subprocess.run([program, variant, str(n), str(lr), str(decay)], input=gradients.tobytes(), capture_output=True, check=True).stdout
        codes, sizes = np.frombuffer(out[:2 * padded], np.uint8), np.frombuffer(out[2 * padded:2 * padded + padded // 32], np.float32)
        return {"exp_avg.w": codes[:padded], "exp_avg_sq.w": codes[padded:], "exp_avg_absmax.w": sizes[:padded // 256],
                "exp_avg_sq_absmax.w": sizes[padded // 256:], "w": np.frombuffer(out[2 * padded + padded // 32:], np.float32)}
    call.maps = lambda: subprocess.run([program, "maps"], capture_output=True, check=True).stdout
    return call


def test_the_oracles_maps_are_bitsandbytes(oracle):
    """Bit by bit, as torch makes them (tests/references/dynamic_map.py)."""
    known = json.loads((Path(__file__).resolve().parents[2] / "references/dynamic_map.json").read_text())
    bits = np.frombuffer(oracle.maps(), np.int32).tolist()
    assert bits == known["signed"] + known["unsigned"]


def gradients_of(n):
    """Of many sizes, some 0, a block of zeros; the sign of some changes from step to step."""
    rng = np.random.default_rng(3)
    g = rng.standard_normal((STEPS, n)) * 10.0 ** rng.integers(-6, 2, n)
    g[rng.random((STEPS, n)) < 0.1] = 0
    g[:, :256] = 0
    return g.astype(np.float32)


def model(folder, n):
    """The gradient of w is x: loss = x w."""
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Squeeze", ["y"], ["loss"])], "g",
                              [helper.make_tensor_value_info("x", 1, [1, n])], [helper.make_tensor_value_info("loss", 1, [])],
                              [numpy_helper.from_array(np.zeros((n, 1), np.float32), "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "model.onnx")


def tensors(folder):
    """{name: array} of a folder's newest checkpoint."""
    found = {}
    for file in max(folder.glob("step-*")).glob("*.safetensors"):
        data = file.read_bytes()
        n = int.from_bytes(data[:8], "little")
        for name, t in json.loads(data[8:8 + n]).items():
            if name != "__metadata__" and t["dtype"] in ("U8", "F32"):
                raw = data[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]]
                found[name] = np.frombuffer(raw, {"U8": np.uint8, "F32": np.float32}[t["dtype"]])
    return found


def trained(run, folder, optimizer, g, *options):
    np.save(folder / "x.npy", g)
    model(folder, g.shape[1])
    run("compile", "model.onnx", "-o", "train", "--loss=output:loss", f"--optimizer={optimizer}")
    run(folder / "train", "--data=x=x.npy", "--shuffle=off", "--lr=0.01", f"--steps={STEPS}", "--save=saved", *options)
    return tensors(folder / "saved")


@pytest.mark.parametrize("optimizer, variant, decay, n", [
    ("adam8bit", "bnb", 0, 5000), ("adam8bit", "bnb", 0.1, 4096), ("adamw8bit", "bnb", 0.1, 8192), ("adamw8bit,torchao=true", "torchao", 0.1, 5120)])
def test_states_have_the_same_bits(run, tmp_path, oracle, optimizer, variant, decay, n):
    g = gradients_of(n)
    got, want = trained(run, tmp_path, optimizer, g, f"--weight-decay={decay}"), oracle(g, variant, 0.01, decay)
    for name, array in want.items():
        if name == "w":
            assert np.abs(got[name] - array).max() <= 1e-5 * np.abs(array).max()
        else:
            assert got[name].dtype == array.dtype and np.array_equal(got[name], array), name
    assert len(set(want["exp_avg.w"])) > 200 and len(set(want["exp_avg_sq.w"])) > 150
    assert sum(got[f"{kind}.w"].nbytes for kind in ("exp_avg", "exp_avg_sq", "exp_avg_absmax", "exp_avg_sq_absmax")) == -(-n // 256) * (512 + 8)


@pytest.mark.parametrize("optimizer, n", [("adamw8bit", 4095), ("adamw8bit,torchao=true", 5000)])
def test_small_tensors_are_as_adamw(run, tmp_path, optimizer, n):
    g = gradients_of(n)
    for name in "8bit", "adamw":
        (tmp_path / name).mkdir()
    low = trained(lambda *a, **k: run(*a, cwd=tmp_path / "8bit", **k), tmp_path / "8bit", optimizer, g)
    full = trained(lambda *a, **k: run(*a, cwd=tmp_path / "adamw", **k), tmp_path / "adamw", "adamw", g)
    assert low["exp_avg.w"].dtype == np.float32 and "exp_avg_absmax.w" not in low
    assert np.abs(low["w"] - full["w"]).max() <= 1e-5 * np.abs(full["w"]).max()


def test_resumed(run, tmp_path):
    g = gradients_of(5000)
    whole = trained(run, tmp_path, "adam8bit", g)
    for more in ["--steps=7"], ["--resume=half", f"--steps={STEPS}"]:
        run(tmp_path / "train", "--data=x=x.npy", "--shuffle=off", "--lr=0.01", "--save=half", *more)
    for name, array in tensors(tmp_path / "half").items():
        assert np.array_equal(array.view(np.uint8), whole[name].view(np.uint8)), name


def test_moments_have_their_own_types(run, tmp_path):
    model(tmp_path, 5000)
    said = run("compile", "model.onnx", "-o", "train", "--loss=output:loss", "--optimizer=adam8bit", "--moments=bf16", exit=2).stderr
    assert "adam8bit keeps its moments in types of its own" in said
