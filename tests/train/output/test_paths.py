"""Every option that writes beside every option that reads, and beside every other that writes: one file is never both."""
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

SAID = "it would be written over"

def help_rows(program, *words):
    """Options whose value is a path, as --help shows them."""
    said = subprocess.run([program, *words, "--help"], capture_output=True, text=True, check=True).stdout
    return {name for name, value in re.findall(r"--([a-z-]+)\[?=(\S+)", said) if re.search(r"FILE|DIR|SPEC", value)}


def save_apart(graph, path):
    """With the weights in PATH.data."""
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path, save_as_external_data=True, location=f"{path.name}.data", size_threshold=0)


@pytest.fixture(scope="module")
def place(gradc, tmp_path_factory):
    folder = tmp_path_factory.mktemp("paths")
    value = helper.make_tensor_value_info
    ones = numpy_helper.from_array(np.eye(5, dtype=np.float32), "fc.weight")
    save_apart(helper.make_graph([helper.make_node("MatMul", ["x", "fc.weight"], ["y"])], "g", [value("x", 1, [4, 5])], [value("y", 1, [4, 5])], [ones]),
               folder / "m.onnx")
    nodes = [helper.make_node("Sub", ["y", "t"], ["d"]), helper.make_node("MatMul", ["d", "w"], ["e"]), helper.make_node("ReduceMean", ["e"], ["l"], keepdims=0)]
    save_apart(helper.make_graph(nodes, "l", [value("y", 1, [4, 5]), value("t", 1, [4, 5])], [value("l", 1, [])],
                                 [numpy_helper.from_array(np.eye(5, dtype=np.float32), "w")]), folder / "loss.onnx")
    for name in "x", "y":
        np.save(folder / f"{name}.npy", np.ones((4, 5), np.float32))
    (folder / "spec.ini").write_text("weight-type = s8\nactivation-type = u8\n")
    (folder / "conf").write_text("json = off\n")

    def run(*words):
        subprocess.run(words, cwd=folder, check=True, capture_output=True, text=True)
    run(gradc, "compile", "m.onnx", "-o", "train", "--loss=mse", "--lora=fc.weight,rank=2", "--weights=w.bin", "--adapter-name=fc.weight=fc")
    run(folder / "train", "--data=x=x.npy", "--data=labels=y.npy", "--weights=w.bin", "--steps=1", "--save=ck", "--export-adapter=ad")
    run(gradc, "dump", "m.onnx", "-o", "text.gir")
    return folder


def contents(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def refused(words, folder, before, what):
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and SAID in done.stderr, (what, words, done.returncode, done.stderr)
    assert contents(folder) == before, (what, words)


# ---- an executable
# (words that read, the path that they read)
READ = [([], "train"), ([], "m.onnx"), ([], "m.onnx.data"), (["--load-adapter=ad"], "ad/adapter_config.json"),
        (["--load-adapter=ad"], "ad/adapter_model.safetensors"), (["--config=conf"], "conf"), (["--weights=x.npy"], "x.npy"),
        (["--load=x.npy"], "x.npy"), (["--mean-std=x=x.npy"], "x.npy"), (["--resume=ck"], "ck/step-00000001/shard-00000-00000.safetensors"),
        (["--resume=ck/step-00000001"], "ck/step-00000001/manifest.json")]
ONCE = [*READ, (["--input=x=x.npy"], "x.npy"), (["--input=x=[wx].npy"], "x.npy"), (["--input=a=b=x.npy"], "x.npy")]
TRAINING = [*READ, (["--save=ck"], "ck/step-00000001/manifest.json"),
            *(([f"--{option}=x={name}"], "x.npy") for option in ("data", "eval-data") for name in ("x.npy", "[wx].npy")),
            *(([f"--{option}=x.npy"], "x.npy") for option in ("tokens", "text", "eval-tokens", "eval-text"))]
WRITES = {True: ["trace", "tune", "output-dir"],
          False: ["export", "export-merged", "log", "report", "trace", "tune", "export-adapter", "save", "tensorboard", "dump-gradients", "offload-dir"]}


def writers(path, once):
    """Words that write the path, as what they name or beside it."""
    yield from (f"--{option}={path}" for option in WRITES[once])
    if not once and path.endswith(".data"):
        yield from (f"--{option}=./{path[:-5]}" for option in ("export", "export-merged"))
    if not once and "adapter_" in path:
        yield f"--export-adapter={os.path.dirname(path)}"


@pytest.mark.parametrize("once", [False, True], ids=["training", "once"])
def test_a_training_reads_or_writes(place, once):
    before = contents(place)
    for words, path in ONCE if once else TRAINING:
        for writer in writers(path, once):
            if "--save" in writer and "--save=ck" in words:
                continue
            mode = ["--once", *(["--output-dir=o"] if "output-dir" not in writer else [])] if once else []
            refused([place / "train", *mode, *words, writer], place, before, path)


def test_a_training_writes_once(place):
    """Two outputs are two files; the data beside a model are one, too."""
    before = contents(place)
    files = ["export", "export-merged", "log", "report", "trace", "tune"]
    folders = ["export-adapter", "save", "tensorboard", "dump-gradients", "offload-dir"]
    for i, one in enumerate(files):
        for two in files[i + 1:] + folders:
            refused([place / "train", f"--{one}=new", f"--{two}=./new"], place, before, one)
    for one in "export", "export-merged":
        for two in set(files + folders) - {one}:
            refused([place / "train", f"--{one}=new", f"--{two}=new.data"], place, before, one)
    for two in files:
        refused([place / "train", "--export-adapter=a", f"--{two}=a/adapter_config.json"], place, before, two)


def test_a_meeting_place_is_nobodys_file(place):
    """GRADC_RENDEZVOUS=file://: neither an input nor an output of the run, nor any other file that no meeting wrote."""
    before = contents(place)
    for name, words in ("x.npy", ["--data=x=x.npy"]), ("new", ["--log=new"]), ("y.npy", []):
        env = dict(os.environ, RANK="0", WORLD_SIZE="2", GRADC_RENDEZVOUS=f"file://{place / name}")
        done = subprocess.run([place / "train", "--weights=w.bin", *words], cwd=place, env=env, capture_output=True, text=True, timeout=20)
        assert done.returncode == 2 and SAID in done.stderr, (name, done.stderr)
        assert contents(place) == before, name


# ---- gradc

COMMANDS = {  # words, then what they read, then what may be read besides, then what writes
    "compile": (["m.onnx", "-o", "new"], ["m.onnx", "m.onnx.data"], "compile", ["-o", "--weights", "--keep-sources", "--dump-dir"]),
    "dump": (["m.onnx", "--stage=train"], ["m.onnx", "m.onnx.data"], "train", ["-o", "--dump-dir"]),
    "opt": (["text.gir", "--passes="], ["text.gir", "text.safetensors"], "", ["-o", "--dump-dir"]),
    "run": (["m.onnx", "--input=x=x.npy", "--output-dir=new"], ["m.onnx", "m.onnx.data", "x.npy"], "run", ["--output-dir", "--dump-dir", "--keep-sources"]),
    "grad": (["m.onnx", "--input=x=x.npy", "--output-dir=new"], ["m.onnx", "m.onnx.data", "x.npy"], "grad",
             ["--output-dir", "--dump-dir", "--keep-sources"]),
    "quantize": (["m.onnx", "--data=x=x.npy", "-o", "new"], ["m.onnx", "m.onnx.data", "x.npy"], "", ["-o", "--report"]),
    "check": (["m.onnx"], ["m.onnx", "m.onnx.data"], "train", ["--dump-dir"]),
}
LOSSES = [(["--loss=onnx:loss.onnx"], "loss.onnx"), (["--loss=onnx:loss.onnx"], "loss.onnx.data"), (["--loss=nll", "--class-weight=y.npy"], "y.npy")]
MORE = {"": [], "run": LOSSES[:2], "grad": LOSSES[:2]}
MORE["train"] = [*LOSSES[:2], (["--quantize=spec.ini"], "spec.ini")]
MORE["compile"] = [*MORE["train"], (["--lora=fc.weight,rank=2", "--load-adapter=a=ad"], "ad/adapter_config.json"),
                   (["--lora=fc.weight,rank=2", "--load-adapter=a=ad"], "ad/adapter_model.safetensors")]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_reads_or_writes(gradc, place, command):
    before = contents(place)
    words, read, more, writers = COMMANDS[command]
    more = [*MORE[more], (["--config=conf"], "conf")]
    for given, path in [*(([], path) for path in read), *more]:
        for writer in writers:
            written = [writer, path] if writer == "-o" else [f"{writer}={path}"]
            mine = [w for w in words if not (writer == "-o" and w in ("-o", "new")) and not w.startswith(f"{writer}=")]
            loss = ["--loss=mse"] if command in ("compile", "dump", "grad", "check") and not any("--loss" in w for w in given) else []
            refused([gradc, command, *mine, *loss, *given, *written], place, before, path)


def test_text_has_its_tensors_beside_it(gradc, place):
    """Which are an output, too."""
    (place / "beside.safetensors").write_text("json = off\n")
    before = contents(place)
    refused([gradc, "dump", "m.onnx", "--config=beside.safetensors", "-o", "beside.gir"], place, before, "dump")
    refused([gradc, "opt", "text.gir", "--passes=", "--config=beside.safetensors", "-o", "beside.gir"], place, before, "opt")


def test_a_value_that_another_replaces_is_no_path(place):
    """The line's in place of the file's."""
    (place / "config").write_text("log = x.npy\n")
    words = [place / "train", "--weights=w.bin", "--config=config", "--data=x=x.npy", "--data=labels=y.npy", "--steps=0"]
    assert subprocess.run([*words], cwd=place, capture_output=True).returncode == 2
    assert subprocess.run([*words, "--log=fine"], cwd=place, capture_output=True).returncode == 0
    for name in "config", "fine":
        (place / name).unlink()


def test_every_option_with_a_path_is_here(gradc, place):
    """A new option of that kind has to be among the pairs above."""
    tried = [word for words, _ in [*ONCE, *TRAINING, *MORE["compile"], *MORE["train"], *LOSSES] for word in words]
    tried += [word for words, _, _, writers in COMMANDS.values() for word in [*words, *writers]]
    tried = {word.split("=")[0].removeprefix("--") for word in tried} | set(WRITES[True]) | set(WRITES[False]) | {"output", "log", "classes"}
    asked = help_rows(place / "train")
    for command in [*COMMANDS, "cache", "ops", "passes"]:
        asked |= help_rows(gradc, command)
    assert asked - tried == set()
