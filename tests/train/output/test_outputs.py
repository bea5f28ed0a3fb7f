"""No output is written over an input, the executable, its weights or another output, by whatever name."""
import json
import os
import signal
import subprocess
import time

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
@pytest.mark.parametrize("file, what", [("x.npy", "--data x.npy"), ("y.npy", "--data y.npy"), ("train", "the executable ?")])
def test_a_training_keeps_what_it_reads(run, trained, option, file, what, how):
    before = (trained / file).read_bytes()
    name = NAMES[how](trained / file)
    said = run(trained / "train", "--data=x=x.npy", "--data=labels=y.npy", f"{option}={name}", exit=2).stderr
    what = what.replace("?", str(trained / "train"))  # as it was called
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


DATA = ["--data=x=x.npy", "--data=labels=y.npy"]


def started(folder, *options):
    """A training that has taken its first step and goes on."""
    process = subprocess.Popen([folder / "train", *DATA, "--steps=1000000000", "--progress=plain", *options], cwd=folder,
                               stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    for line in process.stderr:
        if "step 1/" in line:
            return process
    raise AssertionError(f"no step; exit {process.wait()}")


def put_something(path, what):
    if what == "a file":
        path.write_text("mine")
    elif what == "a folder":
        path.mkdir()
        (path / "notes.txt").write_text("mine")
    else:
        (path.parent / "elsewhere").mkdir(exist_ok=True)
        (path.parent / "elsewhere/manifest.json").write_text("mine")
        path.symlink_to("elsewhere")


def state_of(path):
    """All that lies there, of links what they lead to."""
    return path.is_symlink(), path.read_text() if path.is_file() else {p.name: p.read_text() for p in path.iterdir()}


@pytest.mark.parametrize("what", ["a file", "a folder", "a link"])
@pytest.mark.parametrize("step, options", [(6, []), (2, ["--save-every=2"]), (4, ["--save-every=2", "--keep=1"])])
def test_names_of_coming_checkpoints_are_looked_at_before_training(run, trained, what, step, options):
    path = trained / f"ck/step-{step:08d}"
    path.parent.mkdir()
    put_something(path, what)
    before = state_of(path)
    said = run(trained / "train", *DATA, "--steps=6", "--save=ck", "--progress=plain", *options, exit=7).stderr
    assert f"ck/step-{step:08d}: not a checkpoint, but this run would save step" in said and "move it away" in said and "step 1/" not in said
    assert state_of(path) == before
    run(trained / "train", *DATA, "--steps=5", "--save=ck", "--save-every=5")  # nothing of these steps is in the way
    assert state_of(path) == before


@pytest.mark.parametrize("what", ["a file", "a folder", "a link"])
def test_a_step_that_nobody_foresaw_is_saved_beside(run, trained, what):
    """Under a name with one more zero, which resumes, rotates and is refused like others."""
    taken = [trained / f"ck/step-{step:08d}" for step in range(1, 100)]
    (trained / "ck").mkdir()
    for path in taken:
        put_something(path, what)
    before = [state_of(path) for path in taken]
    for name in "x", "y":
        np.save(trained / f"{name}.npy", np.random.default_rng(0).standard_normal((80000, 5)).astype(np.float32))
    options = ["--save=ck", "--accumulate=20000"]  # long steps
    process = started(trained, *options)
    process.send_signal(signal.SIGTERM)
    said = process.stderr.read()
    assert process.wait(60) == 75 and "its usual name is taken by something that is not a checkpoint" in said
    assert [state_of(path) for path in taken] == before
    saved, = (trained / "ck").glob("step-0????????")
    step = int(saved.name[5:])
    assert "stopped by signal 15" in said and f"after step {step};" in said and (saved / "manifest.json").exists()
    on = [trained / "train", *DATA, *options, "--resume=auto", f"--steps={step + 1}", "--keep=1"]
    run(*on, exit=7)
    for path in taken:
        path.rename(trained / f"ck/mine-{path.name[5:]}")
    assert f"resumed from ck/{saved.name}: step {step}" in run(*on).stderr
    assert sorted(p.name for p in (trained / "ck").glob("step-*")) == [f"step-{step + 1:08d}"]


@pytest.mark.parametrize("option", ["--export", "--log", "--report", "--trace", "--tensorboard", "--dump-gradients"])
@pytest.mark.parametrize("name", ["ck/step-00000003", "./ck/../ck/step-00000003", "ck/step-00000003/file"])
def test_names_of_checkpoints_are_no_outputs(run, trained, option, name):
    said = run(trained / "train", *DATA, "--steps=3", "--save=ck", f"{option}={name}", exit=2).stderr
    assert f"{option} {name} has the name of a checkpoint of --save ck: it would be written over" in said
    assert not (trained / "ck").exists()
    run(trained / "train", *DATA, "--steps=3", "--save=ck", f"{option}=ck/step-3")


@pytest.mark.parametrize("option", ["--export", "--log", "--report", "--trace", "--tensorboard", "--dump-gradients"])
def test_outputs_may_lie_in_a_folder_of_outputs(run, trained, option):
    """Though it is not there yet."""
    run(trained / "train", *DATA, "--steps=3", "--save=new/ck", f"{option}=new/ck/folder/name")
    assert (trained / "new/ck/folder/name").exists() and (trained / "new/ck/step-00000003").is_dir()


@pytest.mark.parametrize("option", ["--log", "--export", "--report", "--trace"])
def test_two_runs_do_not_write_one_output(run, trained, option):
    process = started(trained, f"{option}=out")
    (trained / "link").symlink_to("out")
    before = (trained / "out").stat().st_size if option == "--log" else 0
    for name in "out", "folder/../out", "link":
        done = run(trained / "train", *DATA, "--steps=1", "--progress=plain", f"{option}={name}", exit=5, timeout=20)
        assert f"{option} {name}: another run is writing it" in done.stderr and "step 1/" not in done.stderr
    assert option != "--log" or (trained / "out").stat().st_size >= before > 0  # not cut
    process.kill()
    process.wait()  # and what it held is free
    run(trained / "train", *DATA, "--steps=1", f"{option}=out")
    assert not list(trained.glob(".gradc-*.lock"))


@pytest.mark.parametrize("target", ["real", "folder/real", "nowhere yet"])
@pytest.mark.parametrize("option", ["--export", "--report", "--trace"])
def test_outputs_go_where_a_link_leads(run, trained, option, target):
    if target != "nowhere yet":
        (trained / target).write_text("old")
    (trained / "link").symlink_to(target)
    run(trained / "train", *DATA, "--steps=1", f"{option}=link")
    assert os.readlink(trained / "link") == target and len((trained / target).read_text(errors="ignore")) > 100
    assert not [p for p in [*trained.iterdir(), *(trained / "folder").iterdir()] if p.name.startswith(".gradc")]


def test_a_link_that_leads_to_itself_is_refused(run, trained):
    (trained / "link").symlink_to("link")
    assert "link: Too many levels" in run(trained / "train", *DATA, "--steps=1", "--export=link", exit=5).stderr
    assert (trained / "link").is_symlink()


def test_exported_data_lie_beside_what_a_link_leads_to(run, trained):
    model = onnx.load(trained / "model.onnx")
    onnx.save(model, trained / "apart.onnx", save_as_external_data=True, location="apart.data", size_threshold=0)
    run("compile", "apart.onnx", "-o", "train", "--loss=mse")
    (trained / "link.onnx").symlink_to("folder/real.onnx")
    run(trained / "train", *DATA, "--steps=1", "--export=link.onnx")
    assert sorted(p.name for p in (trained / "folder").iterdir()) == ["real.onnx", "real.onnx.data"]
    assert numpy_helper.to_array(onnx.load(trained / "folder/real.onnx").graph.initializer[0]).shape == (5, 5)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_has_its_own_name(run, trained):
    (trained / "folder").chmod(0o500)
    said = run(trained / "train", *DATA, "--steps=1", "--save=folder/new", exit=5).stderr
    assert "--save: folder/new: no file can be made there: Permission denied" in said


def test_a_folder_on_a_file_system_without_writes_has_its_own_name(run, trained):
    said = run(trained / "train", *DATA, "--steps=1", "--save=/proc/new", exit=5).stderr
    assert "--save: /proc/new: no file can be made there" in said and ".gradc" not in said


def test_no_step_has_no_loss(run, trained):
    assert run(trained / "train", *DATA, "--steps=0").stdout == "steps 0\n"
    said = json.loads(run(trained / "train", *DATA, "--steps=0", "--json").stdout)
    assert (said["steps"], said["loss"]) == (0, None)


def test_nan_has_no_sign(run, trained):
    np.save(trained / "y.npy", np.full((4, 5), np.inf, np.float32))
    np.save(trained / "x.npy", np.full((4, 5), np.inf, np.float32))
    said = run(trained / "train", *DATA, "--steps=1", "--progress=plain", exit=8).stderr
    assert "the loss is nan;" in said and "-nan" not in said


@pytest.mark.parametrize("option, says", [("--lr-scale=w", "--lr-scale w: the value is missing: need GLOB=X"),
                                          ("--init=w=", "--init w: the value is missing: need GLOB=HOW")])
def test_rules_without_a_value_say_what_is_missing(run, trained, option, says):
    assert says in run("compile", "model.onnx", "-o", "new", "--loss=mse", option, exit=2).stderr


def test_a_model_that_does_not_learn_is_told_of(run, trained):
    for arguments in (["compile", "-o", "new"], ["grad", "--input=x=x.npy", "--input=labels=y.npy", "--check-gradients=3"]):
        said = run(arguments[0], "model.onnx", "--loss=mse", "--freeze=*", *arguments[1:], exit=None).stderr
        assert "nothing is trained: no parameter is trainable" in said
    assert "nothing is trained" not in run("compile", "model.onnx", "-o", "new", "--loss=mse", "--freeze=*", "--train=w").stderr


@pytest.mark.parametrize("name", ["manifest.json", "shard-00000-00000.safetensors"])
@pytest.mark.parametrize("kind", ["folder", "link"])
def test_a_checkpoint_has_files_only(run, trained, name, kind):
    """What bears their names is somebody's where it is a folder or a link."""
    own = trained / "ck/step-00000004"
    own.mkdir(parents=True)
    if kind == "folder":
        (own / name).mkdir()
        (own / name / "mine.txt").write_text("mine")
    else:
        os.symlink("../../x.npy", own / name)
    said = run(trained / "train", *DATA, "--steps=4", "--save=ck", exit=7).stderr
    assert "ck/step-00000004: not a checkpoint, but this run would save step" in said
    assert (own / name / "mine.txt").exists() if kind == "folder" else (own / name).is_symlink()


def test_checkpoints_of_another_model_are_not_replaced(run, trained):
    run(trained / "train", *DATA, "--steps=4", "--save=ck")
    before = (trained / "ck/step-00000004/manifest.json").read_bytes()
    run("compile", "model.onnx", "-o", "other", "--loss=mse", "--optimizer=sgd", "--freeze=nothing", exit=2)
    run("compile", "model.onnx", "-o", "other", "--loss=l1", "--optimizer=sgd")
    said = run(trained / "other", *DATA, "--steps=4", "--save=ck", exit=7).stderr
    assert "ck/step-00000004: a checkpoint of another model, but this run would save step 4 under this name" in said
    assert (trained / "ck/step-00000004/manifest.json").read_bytes() == before
    run(trained / "other", *DATA, "--steps=3", "--save=ck")


def test_checkpoints_of_another_training_are_replaced_with_a_word(run, trained):
    assert "another training" not in run(trained / "train", *DATA, "--steps=4", "--save=ck").stderr
    said = run(trained / "train", *DATA, "--steps=4", "--save=ck", "--lr=0.5").stderr
    assert "warning: ck: 1 checkpoint of another training of this model will be replaced when this run saves the same steps" in said
    assert "another training" not in run(trained / "train", *DATA, "--steps=6", "--save=ck", "--resume=auto").stderr


def test_a_result_without_training_is_told_of(run, trained):
    said = run(trained / "train", "--steps=0", "--resume=auto", "--save=nosuch", "--export=e.onnx").stderr
    assert "warning: no step was trained: e.onnx has the initial weights" in said
    run(trained / "train", *DATA, "--steps=4", "--save=ck")
    said = run(trained / "train", *DATA, "--steps=3", "--save=ck", "--resume=auto").stderr
    assert "the checkpoint is of step 4, after --steps 3: nothing was trained" in said
    assert "warning" not in run(trained / "train", "--steps=0", "--resume=ck", "--export=f.onnx").stderr


def test_gradc_writes_over_no_output_of_a_training(run, trained):
    for name in "x", "y":
        np.save(trained / f"{name}.npy", np.random.default_rng(0).standard_normal((40000, 5)).astype(np.float32))
    training = subprocess.Popen([trained / "train", *DATA, "--epochs=1000", "--log=log", "--progress=off"], cwd=trained,
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (trained / "log").exists():
        time.sleep(0.01)
    said = run("compile", "model.onnx", "-o", "log", "--loss=mse", exit=5).stderr
    training.send_signal(signal.SIGTERM)
    training.wait()
    assert "-o log: another run is writing it" in said and (trained / "log").read_bytes()[:1] == b"{"
    assert not list(trained.glob(".gradc-*"))
    run("compile", "model.onnx", "-o", "log", "--loss=mse")
