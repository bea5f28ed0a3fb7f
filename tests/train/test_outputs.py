"""No output is written over an input, the executable, its weights or another output, by whatever name."""
import os

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper


@pytest.fixture
def trained(run, tmp_path):
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
                              [helper.make_tensor_value_info("x", 1, [4, 3])], [helper.make_tensor_value_info("y", 1, [4, 3])],
                              [numpy_helper.from_array(np.eye(3, dtype=np.float32), "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "model.onnx")
    for name in "x", "y":
        np.save(tmp_path / f"{name}.npy", np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32))
    run("compile", "model.onnx", "-o", "train", "--loss=mse")
    (tmp_path / "folder").mkdir()
    return tmp_path


NAMES = {
    "itself": lambda path: path.name,
    "a path": lambda path: f"folder/../{path.name}",
    "a link": lambda path: (os.symlink(path.name, path.parent / "link"), "link")[1],
    "a hard link": lambda path: (os.link(path, path.parent / "hard"), "hard")[1],
    "a link of a folder": lambda path: (os.symlink(".", path.parent / "here"), f"here/{path.name}")[1],
}


@pytest.mark.parametrize("how", NAMES)
@pytest.mark.parametrize("file, options", [
    ("model.onnx", ["compile", "model.onnx", "-o", "?"]), ("model.onnx", ["compile", "model.onnx", "-o", "new", "--weights", "?"]),
    ("model.onnx", ["dump", "model.onnx", "-o", "?"]),
])
def test_gradc_keeps_what_it_reads(run, trained, file, options, how):
    before = (trained / file).read_bytes()
    name = NAMES[how](trained / file)
    said = run(*[name if o == "?" else o for o in options], exit=2).stderr
    assert f"{name} is also the model model.onnx: it would be written over" in said
    assert (trained / file).read_bytes() == before and not (trained / "new").exists()


@pytest.mark.parametrize("how", NAMES)
@pytest.mark.parametrize("option", ["--log", "--export", "--trace", "--report"])
@pytest.mark.parametrize("file, what", [("x.npy", "--data x.npy"), ("y.npy", "--data y.npy"), ("train", "the executable /proc/self/exe")])
def test_a_training_keeps_what_it_reads(run, trained, option, file, what, how):
    before = (trained / file).read_bytes()
    name = NAMES[how](trained / file)
    said = run(trained / "train", "--data=x=x.npy", "--data=labels=y.npy", f"{option}={name}", exit=2).stderr
    assert f"{option} {name} is also {what}: it would be written over" in said
    assert (trained / file).read_bytes() == before


@pytest.mark.parametrize("how", ["itself", "a path", "a link of a folder"])
@pytest.mark.parametrize("one, two", [("--log", "--report"), ("--export", "--trace"), ("--trace", "--log")])
def test_outputs_are_two(run, trained, one, two, how):
    name = NAMES[how](trained / "new")
    said = run(trained / "train", "--data=x=x.npy", "--data=labels=y.npy", f"{one}=new", f"{two}={name}", exit=2).stderr
    assert "it would be written over" in said and one in said and two in said
    assert not (trained / "new").exists()
    os.symlink("new", trained / "dangling")
    said = run(trained / "train", "--data=x=x.npy", "--data=labels=y.npy", f"{one}=new", f"{two}=dangling", exit=2).stderr
    assert "it would be written over" in said


def test_weights_and_executable_are_two(run, trained):
    said = run("compile", "model.onnx", "-o", "new", "--weights=./new", exit=2).stderr
    assert "--weights ./new is also -o new" in said and not (trained / "new").exists()


def test_a_run_goes_on_where_it_saved(run, trained):
    run(trained / "train", "--data=x=x.npy", "--data=labels=y.npy", "--steps=1", "--save=ck")
    run(trained / "train", "--data=x=x.npy", "--data=labels=y.npy", "--steps=2", "--save=ck", "--resume=ck")
