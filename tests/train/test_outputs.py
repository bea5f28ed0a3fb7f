"""No output is written over an input, the executable, its weights or another output, by whatever name."""
import os
import subprocess

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper


@pytest.fixture
def trained(run, tmp_path):
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
                              [helper.make_tensor_value_info("x", 1, [4, 5])], [helper.make_tensor_value_info("y", 1, [4, 5])],
                              [numpy_helper.from_array(np.eye(5, dtype=np.float32), "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "model.onnx")
    for name in "x", "y":
        np.save(tmp_path / f"{name}.npy", np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32))
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


@pytest.mark.parametrize("how", NAMES)
def test_what_is_read_in_a_folder_of_outputs_stays(run, trained, how):
    """Files of a folder get their names late: what this run reads is not written over there, either."""
    (trained / "y/folder").mkdir(parents=True)
    path = trained / "y/y.npy"
    os.rename(trained / "x.npy", path)
    before = path.read_bytes()
    name = NAMES[how](path)
    for engine in "compiled", "interp":
        said = run("run", "model.onnx", "--input", f"x=y/{name}", "--output-dir=y", f"--engine={engine}", exit=2).stderr
        assert "y/y.npy is also --input y/" in said and path.read_bytes() == before
    said = run(trained / "train", "--once", "--input", f"x=y/{name}", "--output-dir=y", exit=2).stderr
    assert "it would be written over" in said and path.read_bytes() == before
    run("run", "model.onnx", "--input", f"x=y/{name}", "--output-dir=.")


def test_config_text_and_sources_stay(run, trained):
    (trained / "options.ini").write_text("loss = mse\n")
    said = run("compile", "model.onnx", "-o", "options.ini", "--config=options.ini", exit=2).stderr
    assert "-o options.ini is also --config options.ini" in said
    said = run(trained / "train", "--config=train.ini", "--log=train.ini", exit=5).stderr
    (trained / "train.ini").write_text("data = x=x.npy\n")
    said = run(trained / "train", "--config=train.ini", "--log=train.ini", exit=2).stderr
    assert "--log train.ini is also --config train.ini" in said and (trained / "train.ini").read_text() == "data = x=x.npy\n"
    run("dump", "model.onnx", "--loss=mse", "--stage=train", "-o", "folder/a.gir")
    for name in "folder/a.gir", "folder/a.safetensors":
        before = (trained / name).read_bytes()
        said = run("opt", "folder/a.gir", "--passes=simplify", "-o", name, exit=2).stderr
        assert f"{name} is also" in said and (trained / name).read_bytes() == before
    (trained / "sources").mkdir()
    os.rename(trained / "model.onnx", trained / "sources/table.c")
    before = (trained / "sources/table.c").read_bytes()
    said = run("compile", "sources/table.c", "-o", "new", "--loss=mse", "--keep-sources=sources", exit=2).stderr
    assert "sources/table.c is also the model sources/table.c" in said
    assert (trained / "sources/table.c").read_bytes() == before and not (trained / "new").exists()


def test_data_beside_text_have_its_name(run, trained):
    """With a dot in the folder only, or none."""
    (trained / "a.b").mkdir()
    run("dump", "model.onnx", "-o", "a.b/text")
    assert sorted(p.name for p in (trained / "a.b").iterdir()) == ["text", "text.safetensors"]
    run("dump", "model.onnx", "--format=dot", "-o", "a.b/graph.dot")
    assert not (trained / "a.b/graph.safetensors").exists()


PLACES = {"--export": "no/e.onnx", "--log": "no/log", "--report": "no/r.html", "--trace": "no/t.json", "--tensorboard": "x.npy/tb",
          "--save": "x.npy/ck", "--dump-gradients": "x.npy/g"}


@pytest.mark.parametrize("option", PLACES)
def test_places_of_outputs_are_tried_before_training(run, trained, option):
    done = run(trained / "train", "--data=x=x.npy", "--data=labels=y.npy", f"{option}={PLACES[option]}", "--progress=plain", exit=5)
    assert PLACES[option] in done.stderr and "step" not in done.stderr + done.stdout
    assert sorted(p.name for p in trained.iterdir()) == ["folder", "model.onnx", "train", "x.npy", "y.npy"]


def test_trying_truncates_nothing(run, trained):
    (trained / "log").write_text("what was there\n")
    (trained / "e.onnx").write_text("what was there\n")
    run(trained / "train", "--data=x=x.npy", "--data=labels=y.npy", "--log=log", "--export=e.onnx", "--report=no/r.html", exit=5)
    assert (trained / "log").read_text() == (trained / "e.onnx").read_text() == "what was there\n"
    run(trained / "train", "--data=x=x.npy", "--data=labels=y.npy", "--log=/dev/null", "--tensorboard=a/b/c")


@pytest.mark.parametrize("arguments", [["compile", "model.onnx", "-o", "no/train", "--loss=mse"],
                                       ["compile", "model.onnx", "-o", "new", "--weights=no/w", "--loss=mse"],
                                       ["dump", "model.onnx", "-o", "no/a.gir"], ["run", "model.onnx", "--input=x=x.npy", "--output-dir=x.npy/a"]])
def test_gradc_tries_places_first(run, trained, arguments):
    said = run(*arguments, exit=5).stderr
    assert "no" in said or "x.npy" in said
    assert sorted(p.name for p in trained.iterdir()) == ["folder", "model.onnx", "train", "x.npy", "y.npy"]


@pytest.mark.parametrize("arguments", [["check", "pipe"], ["dump", "pipe"], ["compile", "pipe", "-o", "new"], ["opt", "pipe.gir"], ["dump", "pipe.gir"],
                                       ["compile", "model.onnx", "-o", "new", "--loss=onnx:pipe"], ["check", "model.onnx", "--config=pipe"],
                                       ["run", "model.onnx", "--input=x=pipe", "--output-dir=out"],
                                       ["compile", "model.onnx", "-o", "new", "--loss=nll", "--class-weight=pipe"]])
def test_pipes_as_inputs_are_refused(run, trained, arguments):
    for name in "pipe", "pipe.gir":
        os.mkfifo(trained / name)
    said = run(*arguments, exit=6 if any("x=pipe" in a or "weight" in a for a in arguments) else 5, timeout=20).stderr
    assert "not a regular file" in said


@pytest.mark.parametrize("option", ["--data=x=pipe", "--tokens=pipe.bin", "--text=pipe", "--load=pipe", "--weights=pipe", "--config=pipe",
                                    "--eval-data=x=pipe", "--mean-std=x=pipe", "--resume=pipe"])
def test_pipes_as_data_are_refused(run, trained, option):
    for name in "pipe", "pipe.bin":
        os.mkfifo(trained / name)
    done = run(trained / "train", "--data=x=x.npy", "--data=labels=y.npy", option, exit=None, timeout=20)
    assert done.returncode in (2, 5, 6, 7) and "pipe" in done.stderr


def test_a_log_that_nobody_reads(run, trained):
    os.mkfifo(trained / "pipe")
    said = run(trained / "train", "--data=x=x.npy", "--data=labels=y.npy", "--log=pipe", exit=5, timeout=20).stderr
    assert "pipe: a FIFO that nobody reads" in said
    reader = subprocess.Popen(["cat", "pipe"], cwd=trained, stdout=subprocess.PIPE, text=True)
    while True:  # until cat has opened it
        done = run(trained / "train", "--data=x=x.npy", "--data=labels=y.npy", "--log=pipe", exit=None, timeout=20)
        if done.returncode == 0:
            break
    assert reader.communicate(timeout=20)[0].count("\n") == 1


@pytest.mark.parametrize("option", ["--save", "--tensorboard", "--dump-gradients"])
def test_folders_are_no_files_of_this_run(run, trained, option):
    for also in [], ["--export=new"], ["--log=new"]:
        path = "new" if also else "x.npy"
        said = run(trained / "train", "--data=x=x.npy", "--data=labels=y.npy", *also, f"{option}={path}", exit=2).stderr
        assert f"{option} {path}" in said and "it would be written over" in said
    run(trained / "train", "--data=x=x.npy", "--data=labels=y.npy", "--save=new", "--tensorboard=new", "--dump-gradients=new")


@pytest.mark.parametrize("option", ["--log", "--report", "--trace", "--export"])
@pytest.mark.parametrize("go_on", [["--resume=ck"], ["--resume=ck/step-00000003"], ["--save=ck", "--resume=auto"], ["--save=ck"]])
def test_checkpoints_are_inputs(run, trained, option, go_on):
    data = ["--data=x=x.npy", "--data=labels=y.npy"]
    run(trained / "train", *data, "--steps=3", "--save=ck")
    files = list((trained / "ck/step-00000003").iterdir())
    before = {f: f.read_bytes() for f in files}
    for file in files:
        said = run(trained / "train", *data, "--steps=5", *go_on, f"{option}={file.relative_to(trained)}", exit=2).stderr
        assert "it would be written over" in said and {f: f.read_bytes() for f in files} == before
    run(trained / "train", *data, "--steps=5", *go_on, f"{option}=ck/mine")
    run(trained / "train", *data, "--steps=7", *go_on, f"{option}=ck/mine")


@pytest.mark.parametrize("option", ["--log", "--report", "--trace", "--export"])
def test_the_model_that_was_compiled_is_an_input(run, trained, option):
    before = (trained / "model.onnx").read_bytes()
    done = run(trained / "train", "--data=x=x.npy", "--data=labels=y.npy", "--steps=3", "--progress=plain", f"{option}=model.onnx", exit=2)
    assert "is also the model that was compiled" in done.stderr and "step 1/" not in done.stderr
    assert (trained / "model.onnx").read_bytes() == before


@pytest.mark.parametrize("engine", ["compiled", "interp"])
def test_results_spare_the_model_and_its_data(run, trained, engine):
    (trained / "r").mkdir()
    os.rename(trained / "model.onnx", trained / "r/y.npy")
    model = onnx.load(trained / "r/y.npy")
    onnx.save(model, trained / "other.onnx", save_as_external_data=True, location="y.npy", size_threshold=0)
    (trained / "y.npy").rename(trained / "kept")
    (trained / "kept").rename(trained / "y.npy")
    for path, folder, kept in ("r/y.npy", "r", "r/y.npy"), ("other.onnx", ".", "y.npy"):
        before = (trained / kept).read_bytes()
        said = run("run", path, "--input=x=x.npy", f"--output-dir={folder}", f"--engine={engine}", exit=2).stderr
        assert "it would be written over" in said and (trained / kept).read_bytes() == before


def test_a_dump_that_cannot_be_written_fails(run, trained):
    (trained / "d").mkdir()
    os.rename(trained / "model.onnx", trained / "d/00-precision.gir")
    before = (trained / "d/00-precision.gir").read_bytes()
    run("compile", "d/00-precision.gir", "-o", "new", "--loss=mse", "--dump-dir=d", "--dump-after=all", exit=2)
    assert (trained / "d/00-precision.gir").read_bytes() == before and not (trained / "new").exists()
