"""What is rare in files and names, and right all the same, or refused with a sentence: empty axes, names that formats or terminals
give a meaning, branches of different shapes, variables of launchers without sense, training that is stopped."""
import json
import os
import re
import shlex
import signal
import subprocess

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from checkpoints import read_manifest, write_manifest

RANDOM = np.random.default_rng(0)


def floats(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def save(path, nodes, inputs, outputs, weights):
    """inputs and outputs: {name: shape}, of f32 unless the shape is a tensor's description."""
    ports = [[s if hasattr(s, "type") else helper.make_tensor_value_info(n, 1, s) for n, s in p.items()] for p in (inputs, outputs)]
    graph = helper.make_graph([helper.make_node(op, i, o, name=o[0], **a) for op, i, o, a in nodes], "g", *ports,
                              [numpy_helper.from_array(v, k) for k, v in weights.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def data(folder, rows=8):
    np.save(folder / "x.npy", floats(rows, 4))
    np.save(folder / "y.npy", floats(rows, 3))


# ---- axes without elements
@pytest.mark.parametrize("shape, width", [([0, 4], 3), ([4, 4], 0)])
@pytest.mark.parametrize("loss", ["mse", "cross_entropy", "bce_with_logits"])
def test_a_loss_over_nothing_is_refused(run, tmp_path, shape, width, loss):
    save(tmp_path / "m.onnx", [("MatMul", ["x", "w"], ["y"], {})], {"x": shape}, {"y": [shape[0], width]}, {"w": floats(4, width)})
    said = run("compile", "m.onnx", "-o", "train", f"--loss={loss}", exit=2).stderr
    assert 'output "y" has no elements: there is nothing to learn from' in said and not (tmp_path / "train").exists()


def test_empty_axes_inside_train(run, tmp_path):
    """A product over nothing is zero; only the bias learns."""
    save(tmp_path / "m.onnx", [("MatMul", ["x", "w"], ["h"], {}), ("Add", ["h", "b"], ["y"], {})], {"x": ["n", 0]}, {"y": ["n", 3]},
         {"w": floats(0, 3), "b": floats(3)})
    data(tmp_path)
    np.save(tmp_path / "x.npy", floats(8, 0))
    run("compile", "m.onnx", "-o", "train", "--loss=mse", "--batch=4", "--optimizer=sgd")
    run(tmp_path / "train", "--data=x=x.npy", "--data=labels=y.npy", "--steps=3", "--lr=0.1", "--export=out.onnx")
    weights = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "out.onnx").graph.initializer}
    assert weights["w"].shape == (0, 3) and np.isfinite(weights["b"]).all()


# ---- outputs
@pytest.mark.parametrize("output", ["o", "f"])
def test_an_output_may_be_a_frozen_weight(run, tmp_path, output):
    """As it is, or through an Identity."""
    nodes = [("MatMul", ["x", "w"], ["h"], {}), ("MatMul", ["h", "f"], ["y"], {})] + [("Identity", ["f"], ["o"], {})] * (output == "o")
    weight = floats(5, 3)
    save(tmp_path / "m.onnx", nodes, {"x": ["n", 4]}, {"y": ["n", 3], output: [5, 3]}, {"w": floats(4, 5), "f": weight})
    data(tmp_path)
    run("compile", "m.onnx", "-o", "train", "--loss=mse", "--batch=8", "--freeze=f", "--data-parallel=zero3,ddp")
    run(tmp_path / "train", "--data=x=x.npy", "--data=labels=y.npy", "--steps=2")
    run(tmp_path / "train", "--input=x=x.npy", "--once", "--output-dir=out")
    assert (np.load(tmp_path / "out" / f"{output}.npy") == weight).all()


# ---- names
LONG = "n" * 300
NAMES = {
    "the key that safetensors keeps": ("__metadata__", "__metadata__'"),
    "two of 300 bytes": ("w" + LONG + "1", "w" + LONG + "2"),
    "with commas": ("w,1", "w,target=x"),
    "that colour a terminal": ("w\x1b[31mred", "b\x07\x9b"),
}


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_names_survive(run, tmp_path, names):
    weight, bias = names
    out = f"out {weight}"
    save(tmp_path / "m.onnx", [("MatMul", ["x", weight], ["h"], {}), ("Add", ["h", bias], [out], {})], {"x": ["n", 4]}, {out: ["n", 3]},
         {weight: floats(4, 3), bias: floats(3)})
    data(tmp_path)
    said = [run("compile", "m.onnx", "-o", "train", f"--loss=mse:{out}", "--batch=4"), run("check", "m.onnx", "--table=full"),
            run("dump", "m.onnx", f"--loss=mse:{out}", "--stage=train", "-o", "m.gir"), run("opt", "m.gir", "--passes=simplify", "-o", "n.gir")]
    train = ["--data=x=x.npy", "--data=labels=y.npy", "--steps=4", "--shuffle=off"]
    for options in (["--save=ck", "--export=whole.onnx", "--dump-gradients=grads", "--table=full", "--progress=plain"], ["--info"]):
        said.append(run(tmp_path / "train", *train, *options))
    assert not [c for done in said for c in done.stdout + done.stderr if ord(c) < 32 and c not in "\n\t" or 127 <= ord(c) < 160]
    files = {k: v["file"] for k, v in json.loads((tmp_path / "grads/names.json").read_text()).items()}
    assert len(set(files.values())) == len(files) >= 2 and all((tmp_path / "grads" / f).exists() for f in files.values())
    # What was saved resumes and loads.
    run(tmp_path / "train", *[o.replace("4", "2") if "steps" in o else o for o in train], "--save=half", "--lr=0")
    run(tmp_path / "train", *train, "--resume=ck", "--export=again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "whole.onnx").read_bytes()
    shard = next((tmp_path / "ck").glob("step-*/*.safetensors"))
    loaded = run(tmp_path / "train", *[o for o in train if "steps" not in o], "--steps=0", "--load", shard, "--export=loaded.onnx").stderr
    assert "left out" not in "\n".join(line for line in loaded.splitlines() if "exp_avg" not in line)
    result = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "whole.onnx").graph.initializer}
    again = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "loaded.onnx").graph.initializer}
    for name in names:
        assert np.array_equal(result[name], again[name])


def test_losses_of_outputs_with_commas(run, tmp_path):
    save(tmp_path / "m.onnx", [("MatMul", ["x,1", "w"], ["y,target=x"], {}), ("ReduceMean", ["y,target=x"], ["l,oss"], dict(keepdims=0)),
                               ("Constant", [], ["c,nt"], dict(value_float=2.0))],
         {"x,1": [4, 4]}, {"y,target=x": [4, 4], "l,oss": [], "c,nt": []}, {"w": floats(4, 4)})
    for loss in "mse:y,target=x", "mse:y,target=x,target=x,1", "output:l,oss", "output:l,oss,count=c,nt":
        run("compile", "m.onnx", "-o", "train", f"--loss={loss}")
    save(tmp_path / "ends.onnx", [("MatMul", ["x", "w"], [",y:,"], {})], {"x": [4, 4]}, {",y:,": [4, 4]}, {"w": floats(4, 4)})
    run("compile", "ends.onnx", "-o", "train", "--loss=mse:,y:,")
    assert "there is no text behind a comma" in run("compile", "ends.onnx", "-o", "train", "--loss=mse:,y:,,", exit=2).stderr
    os.rename(tmp_path / "m.onnx", tmp_path / "m,n.onnx")
    np.save(tmp_path / "x.npy", floats(4, 4))
    run("run", "m,n.onnx", "--input=x,1=x.npy", "--output-dir=out")
    assert set(json.loads((tmp_path / "out/names.json").read_text())) == {"y,target=x", "l,oss", "c,nt"}


def test_escapes_in_paths_and_words_stay_out_of_messages(run, tmp_path):
    word = "a\x1b[31mred\x07"
    for command in (["check", word], [word], ["check", f"--{word}"], ["compile", word, "-o", word], ["check", "m", f"--batch={word}"],
                    ["check", "m", f"--config={word}"], ["dump", word]):
        done = run(*command, exit=None)
        assert done.returncode in (2, 5) and "\x1b" not in done.stderr + done.stdout and "\\x1B" in done.stderr


# ---- branches
def branch(name, width):
    return helper.make_graph([helper.make_node("MatMul", ["x", "w" + name], [name])], name, [],
                             [helper.make_tensor_value_info(name, 1, [4, width])], [numpy_helper.from_array(floats(4, width), "w" + name)])


@pytest.mark.parametrize("taken", [True, False])
def test_branches_of_different_shapes(run, tmp_path, taken):
    nodes = [("If", ["c"], ["y"], dict(then_branch=branch("then", 3), else_branch=branch("else", 5)))]
    save(tmp_path / "known.onnx", nodes, {"x": [4, 4]}, {"y": [4, "k"]}, {"c": np.array(taken)})
    said = run("check", "known.onnx").stdout
    assert f"f32[4,{3 if taken else 5} k]" in said and f"32 parameters, {12 if taken else 20} trainable" in said
    np.save(tmp_path / "x.npy", floats(4, 4))
    run("run", "known.onnx", "--input=x=x.npy", "--output-dir=out")
    assert np.load(tmp_path / "out/y.npy").shape == (4, 3 if taken else 5)
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    save(tmp_path / "open.onnx", nodes, {"x": [4, 4], "c": condition}, {"y": [4, "k"]}, {})
    assert 'node "y" (If, opset 17): output "then" is f32[4,3] in one branch and f32[4,5] in the other' in run("check", "open.onnx", exit=4).stderr


# ---- what the environment says
@pytest.fixture(scope="module")
def small(gradc, tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    save(folder / "m.onnx", [("MatMul", ["x", "w"], ["y"], {})], {"x": ["n", 4]}, {"y": ["n", 3]}, {"w": floats(4, 3)})
    data(folder)
    subprocess.run([gradc, "compile", "m.onnx", "-o", "train", "--loss=mse", "--batch=4"], cwd=folder, check=True, capture_output=True)
    return folder


DATA = ["--data=x=x.npy", "--data=labels=y.npy", "--table=off"]


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"])
@pytest.mark.parametrize("value", ["banana", "-3", "", "99999999999999999999"])
def test_launchers_without_sense_are_named(small, name, value):
    done = subprocess.run([small / "train", *DATA, "--steps=1"], cwd=small, capture_output=True, text=True, env={**os.environ, name: value})
    assert done.returncode == 2 and f"{name}={value}: no number of ranks" in done.stderr


@pytest.mark.parametrize("variable, value, says", [("TMPDIR", "/nosuch", "TMPDIR"), ("CC", "/nosuch/cc", "/nosuch/cc")])
def test_variables_of_a_compile_are_named(gradc, small, variable, value, says):
    done = subprocess.run([gradc, "compile", "m.onnx", "-o", "other", "--loss=mse", "--batch=4"], cwd=small, capture_output=True, text=True,
                          env={**os.environ, variable: value})
    assert done.returncode == 5 and says in done.stderr and not (small / "other").exists()


# ---- stopped, and going on
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_a_stopped_training_says_how_it_goes_on(small, tmp_path, number):
    folder = tmp_path / "check points"
    process = subprocess.Popen(["./train", *DATA, "--steps=100000000", "--save", str(folder), "--progress=plain"], cwd=small,
                               stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))
    line = process.stderr.readline()
    process.send_signal(number)
    said = process.stderr.read()
    assert process.wait(60) == 75 and "step 1/" in line
    step, where, command = re.search(r"after step (\d+); saved in (.*); to continue:\n  (.*)\n", said).groups()
    assert where == str(folder) and (folder / f"step-{int(step):08d}").is_dir()
    words = shlex.split(command)
    assert words[0] == "./train" and words[-1] == "--resume=auto"
    shorter = [f"--steps={int(step) + 5}" if w.startswith("--steps") else w for w in words]
    done = subprocess.run(shorter, cwd=small, capture_output=True, text=True)
    assert done.returncode == 0 and f": step {step}\n" in done.stderr and f"steps {int(step) + 5}," in done.stdout


@pytest.mark.parametrize("json_too", [[], ["--json"]])
def test_a_stopped_training_has_no_last_evaluation(small, json_too):
    """The one before it began is not shown as the one at its end."""
    process = subprocess.Popen(["./train", *DATA, "--eval-data=x=x.npy", "--eval-data=labels=y.npy", "--steps=100000000", "--progress=plain",
                                *json_too], cwd=small, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    while "step 1/" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert "eval" not in said and "loss" in said


@pytest.mark.parametrize("value", ["abc", "-1", "0", "inf", ""])
def test_a_patience_without_sense_is_named(small, value):
    done = subprocess.run([small / "train", *DATA, "--steps=1"], cwd=small, capture_output=True, text=True,
                          env={**os.environ, "GRADC_COMM_TIMEOUT": value})
    assert done.returncode == 2 and f"GRADC_COMM_TIMEOUT={value}: need seconds above 0" in done.stderr


def test_without_a_folder_it_says_that_nothing_is_saved(small):
    process = subprocess.Popen(["./train", *DATA, "--steps=100000000", "--progress=plain"], cwd=small, stderr=subprocess.PIPE,
                               stdout=subprocess.DEVNULL, text=True)
    process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    assert "nothing is saved without --save" in process.stderr.read() and process.wait(60) == 128 + signal.SIGTERM


def test_a_resumed_run_shows_its_own_speed(small, tmp_path):
    """Steps of an earlier process took none of this one's time."""
    common = ["./train", *DATA, "--save", str(tmp_path / "ck"), "--progress=plain"]
    subprocess.run([*common, "--steps=200000"], cwd=small, check=True, capture_output=True)
    done = subprocess.run([*common, "--steps=200010", "--resume=auto"], cwd=small, capture_output=True, text=True, check=True)
    first = re.search(r"step 200001/200010 .* ([0-9.e+]+) step/s", done.stderr)
    assert first and float(first[1]) < 1e5, done.stderr


def test_settings_that_a_manifest_lacks_are_told_of(small, tmp_path):
    subprocess.run(["./train", *DATA, "--save", str(tmp_path / "ck"), "--steps=2"], cwd=small, check=True, capture_output=True)
    folder = tmp_path / "ck/step-00000002"
    manifest = read_manifest(folder)
    write_manifest(folder, {**manifest, "settings": {}})
    done = subprocess.run(["./train", *DATA, "--resume", str(folder), "--steps=3"], cwd=small, capture_output=True, text=True)
    assert done.returncode == 0 and "its manifest has no settings" in done.stderr
    write_manifest(folder, manifest)
    done = subprocess.run(["./train", *DATA, "--resume", str(folder), "--steps=3"], cwd=small, capture_output=True, text=True)
    assert "does not say" not in done.stderr


def test_a_second_run_ends_at_once(small, tmp_path):
    """Before it reads its data or evaluates."""
    first = subprocess.Popen(["./train", *DATA, "--steps=1000000000", "--save", str(tmp_path / "ck"), "--progress=plain"], cwd=small,
                             stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    first.stderr.readline()
    try:
        second = subprocess.run(["./train", *DATA, "--steps=1000000000", "--save", str(tmp_path / "ck"), "--progress=plain",
                                 "--log", str(tmp_path / "log")], cwd=small, capture_output=True, text=True, timeout=60)
    finally:
        first.kill()
        first.wait()
    assert second.returncode == 7 and "another run is saving there" in second.stderr and "step 1/" not in second.stderr
    assert not (tmp_path / "log").exists()
