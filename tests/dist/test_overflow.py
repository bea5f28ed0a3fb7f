"""Gradients that overflow on one rank: all ranks leave the step out, and go on with the same smaller scale."""
import json
import shutil
import subprocess

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

ROWS, STEPS, OVERFLOWS = 4, 6, 1e4
MPIRUN = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2"]


def test_one_rank_overflows(gradc, tmp_path):
    if not shutil.which(MPIRUN[0]):
        pytest.skip(f"{MPIRUN[0]} is not installed")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [helper.make_tensor_value_info("x", 1, [ROWS, 8])],
                              [helper.make_tensor_value_info("y", 1, [ROWS, 1])],
                              [numpy_helper.from_array(np.zeros((8, 1), np.float32), "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "model.onnx")
    labels = np.full((2 * ROWS * STEPS, 1), 0.1, np.float32)
    labels[2 * ROWS * 2 + ROWS:2 * ROWS * 3] = OVERFLOWS  # the second half of step 3
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((len(labels), 8)).astype(np.float32))
    np.save(tmp_path / "y.npy", labels)
    subprocess.run([gradc, "compile", "model.onnx", "-o", "train", "--loss=mse", "--precision=f16"], cwd=tmp_path, check=True)
    found = {}
    for name, command in {"ranks": [*MPIRUN, "./train"], "parts": ["./train", "--accumulate=2"]}.items():
        subprocess.run([*command, "--data=x=x.npy", "--data=labels=y.npy", "--shuffle=off", f"--log={name}.jsonl", f"--export={name}.onnx",
                        "--reduce=ordered"], cwd=tmp_path, check=True, timeout=120)
        steps = [x for x in map(json.loads, (tmp_path / f"{name}.jsonl").read_text().splitlines()) if "lr" in x]
        assert [s["loss_scale"] for s in steps] == [65536] * 3 + [32768] * 3
        assert [s["step"] for s in steps if "skipped" in s] == [3]
        weights = onnx.load(tmp_path / f"{name}.onnx").graph.initializer
        found[name] = [s["loss"] for s in steps], numpy_helper.to_array(weights[0]).tobytes()
    assert found["ranks"] == found["parts"]
