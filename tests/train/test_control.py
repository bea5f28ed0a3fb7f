"""Training through a loop that ends by its data and a branch that is chosen by them, against PyTorch; and loops of 10 and 1,000 steps."""
import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
import while_model
from onnx import TensorProto, helper, numpy_helper

REFERENCE = json.loads((Path(__file__).parents[1] / "references/while_losses.json").read_text())
MODES = "ddp,zero1,zero2,zero3"


@pytest.fixture(scope="module")
def executables(gradc, tmp_path_factory):
    """precision -> folder with `train` and the data"""
    import subprocess
    folder = tmp_path_factory.mktemp("while")
    onnx.save(while_model.model(), folder / "model.onnx")
    for name in ("x", "y"):
        np.save(folder / f"{name}.npy", while_model.data()[name])
    for precision in ("f64", "f32"):
        subprocess.run([gradc, "compile", "model.onnx", "-o", f"train.{precision}", f"--batch={while_model.BATCH}", "--loss=mse", "--optimizer=sgd",
                        f"--precision={precision}", f"--data-parallel={MODES}", "--max-accumulate=2"], cwd=folder, check=True, capture_output=True)
    return folder


def losses(run, folder, exe, log, *options):
    run(folder / exe, "--data=x=x.npy", "--data=labels=y.npy", "--shuffle=off", f"--steps={while_model.STEPS}", f"--lr={while_model.LR}",
        "--progress=off", "--table=off", "--log", log, *options, cwd=folder)
    return [step["loss"] for step in map(json.loads, log.read_text().splitlines()) if "loss" in step and "step" in step][:while_model.STEPS]


def test_the_reference_takes_all_ways():
    assert len(set(REFERENCE["trips"])) > 3 and set(REFERENCE["branches"]) == {True, False}


@pytest.mark.parametrize("precision, tolerance", [("f64", 1e-12), ("f32", 2e-6)])
@pytest.mark.parametrize("options", [[], ["--device=async"], ["--poison"], ["--data-parallel=zero3"], ["--data-parallel=zero3", "--poison"]], ids=" ".join)
def test_losses_are_pytorchs(run, executables, tmp_path, precision, tolerance, options):
    found = losses(run, executables, f"train.{precision}", tmp_path / "log", *options)
    np.testing.assert_allclose(found, REFERENCE["losses"], rtol=tolerance)


def test_text_of_all_stages(run, executables, tmp_path):
    """What dump prints of a loop is read again, and is the same."""
    for stage in ("import", "train", "fused", "lowered", "schedule", "memory"):
        run("dump", executables / "model.onnx", "--batch=8", "--loss=mse", "--optimizer=sgd", f"--stage={stage}", "--dump-dir=.", "-o", f"{stage}.gir")
        run("opt", f"{stage}.gir", "--passes=", "-o", "again.gir")
        assert (tmp_path / "again.gir").read_text() == (tmp_path / f"{stage}.gir").read_text()


def scan_of(steps):
    """s' = tanh(s W + a) over rows a, the sum of all s'"""
    f, value = TensorProto.FLOAT, helper.make_tensor_value_info
    body = helper.make_graph([helper.make_node("MatMul", ["s", "W"], ["p"]), helper.make_node("Add", ["p", "part"], ["q"]),
                              helper.make_node("Tanh", ["q"], ["next"]), helper.make_node("Identity", ["next"], ["row"])], "step",
                             [value("s", f, (2, 8)), value("part", f, (2, 8))], [value("next", f, (2, 8)), value("row", f, (2, 8))])
    main = helper.make_graph([helper.make_node("Scan", ["s0", "a"], ["last", "rows"], body=body, num_scan_inputs=1, name="scan"),
                              helper.make_node("ReduceSum", ["rows"], ["total"], keepdims=0)], "g", [value("a", f, (steps, 2, 8))], [value("total", f, ())],
                             [numpy_helper.from_array(np.linspace(-0.4, 0.4, 64, dtype=np.float32).reshape(8, 8), "W"),
                              numpy_helper.from_array(np.zeros((2, 8), np.float32), "s0")])
    return helper.make_model(main, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def test_a_thousand_steps_have_the_code_of_ten(run, tmp_path):
    """The same instructions and kernels, and a workspace that has stacks of a thousand rows but the values of one step."""
    found = {}
    for steps in (10, 1000):
        onnx.save(scan_of(steps), tmp_path / "model.onnx")
        run("compile", "model.onnx", "-o", "train", "--loss=output:total", "--optimizer=sgd")
        programs = json.loads(run("dump", "train", "--stage=schedule", "--format=json").stdout)["programs"]
        kinds = [n["op"] for p in programs if p["role"] == "accumulate" for n in p["instructions"]]
        head = re.search(r"program accumulate: .* workspace (\d+) bytes", run("dump", "train", "--stage=schedule").stdout)
        found[steps] = kinds, int(head[1])
    assert found[10][0] == found[1000][0] and "loop" in found[10][0]
    row = 2 * 8 * 4
    assert found[1000][1] - found[10][1] <= 990 * row * 4, "stacks of s, of rows, and of two cotangents"


def test_a_thousand_steps_differentiate(run, tmp_path):
    onnx.save(scan_of(1000), tmp_path / "model.onnx")
    np.save(tmp_path / "a.npy", np.sin(np.arange(16000, dtype=np.float32)).reshape(1000, 2, 8))
    said = run("grad", "model.onnx", "--loss=output:total", "--precision=f64", "--input=a=a.npy", "--train=s0", "--check-gradients=4").stdout
    errors = [float(line.split()[1]) for line in said.splitlines() if " at " in line]
    assert len(errors) == 2 and max(errors) <= 1e-8, said
