"""Rank 0 writes the outputs: what another rank was told to write is refused or said, and never dropped in silence."""
import shutil
import subprocess

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

MPIRUN = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]


@pytest.fixture
def command(run, tmp_path):
    """command(options of rank 0, options of rank 1, exit=0): what both ranks printed on stderr."""
    if not shutil.which(MPIRUN[0]):
        pytest.skip(f"{MPIRUN[0]} is not installed")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [helper.make_tensor_value_info("x", 1, [4, 8])],
                              [helper.make_tensor_value_info("y", 1, [4, 1])], [numpy_helper.from_array(np.ones((8, 1), np.float32), "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", np.ones((16, 8), np.float32))
    np.save(tmp_path / "y.npy", np.ones((16, 1), np.float32))
    run("compile", "model.onnx", "-o", "train", "--loss=mse")
    both = ["-n", "1", "./train", "--data=x=x.npy", "--data=labels=y.npy", "--steps=2", "--progress=off"]

    def launch(first, second, exit=0):
        done = subprocess.run([*MPIRUN, *both, *first, ":", *both, *second], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == exit, done.stderr
        return done.stderr

    return launch


@pytest.mark.parametrize("option", ["--export=out.onnx", "--log=log.jsonl", "--report=report.html", "--trace=trace.json"])
def test_an_output_of_another_rank_only(command, tmp_path, option):
    said = command([], [option], exit=9)
    assert f"rank 1 has other options than rank 0: {option.split('=')[0]} is given there only" in said
    assert not (tmp_path / option.split("=")[1]).exists()


def test_another_path(command, tmp_path):
    said = command(["--export=out.onnx"], ["--export=other.onnx"])
    assert said.count("rank 1: --export=other.onnx: not used: rank 0 writes this output") == 1
    assert (tmp_path / "out.onnx").exists() and not (tmp_path / "other.onnx").exists()


@pytest.mark.parametrize("second", [[], ["--export=out.onnx"]])
def test_rank_0_alone_or_both(command, tmp_path, second):
    said = command(["--export=out.onnx"], second)
    assert said.count("wrote out.onnx (inference form)") == 1 and "not used" not in said
    assert (tmp_path / "out.onnx").exists()
