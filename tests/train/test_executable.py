"""The training executable's other options: gradients, weights, tokens, one run, what it says."""
import json
import struct
import subprocess
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
import reference
from onnx import numpy_helper


@pytest.fixture(scope="module")
def digits(gradc, models, tmp_path_factory):
    """compile(OPTION...): an executable of mlp_digits in f64 with batch 10."""
    made = {}

    def compile_it(*options):
        if options not in made:
            made[options] = tmp_path_factory.mktemp("digits") / "train"
            subprocess.run([gradc, "compile", models / "mlp_digits/model.onnx", "-o",
                            made[options], "--precision=f64", "--dim=batch=10", *options],
                           check=True, capture_output=True)
        return made[options]

    return compile_it


def data(models):
    return ["--data", f"input={models}/mlp_digits/input.npy", "--data",
            f"labels={models}/mlp_digits/labels.npy", "--progress=off"]


def write_safetensors(path, tensors):
    header, blob = {}, b""
    for name, a in tensors.items():
        header[name] = {"dtype": {"f4": "F32", "f8": "F64"}[a.dtype.str[1:]],
                        "shape": list(a.shape), "data_offsets": [len(blob), len(blob) + a.nbytes]}
        blob += a.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + blob)


def weights_of(path):
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def test_gradients_of_the_first_step(run, digits, models, tmp_path):
    """Accumulated over three micro-batches: those of `gradc grad` over all thirty rows."""
    exe = digits()
    run(exe, *data(models), "--steps=1", "--accumulate=3", "--shuffle=off", "--clip-norm=1e-3",
        "--dump-gradients", tmp_path / "train")
    arguments = []
    for name in ("input", "labels"):
        np.save(tmp_path / f"{name}.npy", np.load(models / f"mlp_digits/{name}.npy")[:30])
        arguments += ["--input", f"{name}={tmp_path}/{name}.npy"]
    run("grad", models / "mlp_digits/model.onnx", "--precision=f64", *arguments, "--output-dir",
        tmp_path / "grad")
    got, want = reference.results(tmp_path / "train"), reference.results(tmp_path / "grad")
    assert sorted(got) == sorted(want)
    for name in want:
        assert reference.relative(got[name], want[name]) < 1e-12, name


def test_steps_0_exports_the_weights_as_they_are(run, digits, models, tmp_path):
    run(digits(), "--steps=0", "--export", tmp_path / "same.onnx")
    old, new = weights_of(models / "mlp_digits/model.onnx"), weights_of(tmp_path / "same.onnx")
    assert all(np.array_equal(old[k], new[k]) for k in old)


def test_load_takes_weights_by_name(run, digits, models, tmp_path):
    bias = np.arange(10, dtype=np.float32) / 8
    write_safetensors(tmp_path / "new.safetensors", {"4.bias": bias})
    run(digits(), "--steps=0", "--load", tmp_path / "new.safetensors", "--export",
        tmp_path / "out.onnx")
    old, new = weights_of(models / "mlp_digits/model.onnx"), weights_of(tmp_path / "out.onnx")
    assert np.array_equal(new["4.bias"], bias)
    assert np.array_equal(new["4.weight"], old["4.weight"])
    write_safetensors(tmp_path / "bad.safetensors", {"4.bias": bias[:9]})
    run(digits(), "--steps=0", "--load", tmp_path / "bad.safetensors", exit=7)


def test_weights_beside_the_executable(run, digits, models, tmp_path):
    exe = digits(f"--weights={tmp_path}/weights")
    run(exe, "--steps=0", "--weights", tmp_path / "weights", "--export", tmp_path / "out.onnx")
    old, new = weights_of(models / "mlp_digits/model.onnx"), weights_of(tmp_path / "out.onnx")
    assert all(np.array_equal(old[k], new[k]) for k in old)


def test_initial_values_by_rule(run, digits, tmp_path):
    exe = digits("--init", "*weight=uniform(-0.5,0.25)", "--init", "*bias=ones", "--init",
                 "4.bias=zeros")
    run(exe, "--steps=0", "--export", tmp_path / "a.onnx")
    run(exe, "--steps=0", "--export", tmp_path / "b.onnx")
    run(exe, "--steps=0", "--seed=1", "--export", tmp_path / "c.onnx")
    a, b, c = (weights_of(tmp_path / f"{x}.onnx") for x in "abc")
    assert np.all(a["0.bias"] == 1) and np.all(a["4.bias"] == 0)
    assert a["0.weight"].min() >= -0.5 and a["0.weight"].max() < 0.25
    assert a["0.weight"].mean() == pytest.approx(-0.125, abs=0.02)
    assert np.array_equal(a["0.weight"], b["0.weight"])
    assert not np.array_equal(a["0.weight"], c["0.weight"])
    assert not np.array_equal(a["0.weight"].ravel()[:100], a["2.weight"].ravel()[:100])


def test_tokens_and_text_are_the_windows_of_a_stream(run, models, tmp_path):
    """Sample i is tokens [iT, iT + T), labels one further."""
    stream = np.random.default_rng(0).integers(0, 256, 16 * 9 + 1).astype(np.uint8)
    (tmp_path / "t.txt").write_bytes(stream.tobytes())
    stream.astype("<u2").tofile(tmp_path / "t.bin")
    stream.astype("<u4").tofile(tmp_path / "t.u32.bin")
    np.save(tmp_path / "t.npy", stream.astype(np.int64))
    np.save(tmp_path / "ids.npy", stream[:-1].reshape(9, 16).astype(np.int64))
    np.save(tmp_path / "labels.npy", stream[1:].reshape(9, 16).astype(np.int64))
    exe = tmp_path / "train"
    run("compile", models / "gpt2_mini/model.onnx", "-o", exe, "--dim=batch=3", "--dim=seq=16")
    found = []
    for source in (["--data", f"input_ids={tmp_path}/ids.npy", "--data",
                    f"labels={tmp_path}/labels.npy"],
                   ["--text", tmp_path / "t.txt"], ["--tokens", tmp_path / "t.bin"],
                   ["--tokens", tmp_path / "t.u32.bin"], ["--tokens", tmp_path / "t.npy"]):
        run(exe, *source, "--steps=3", "--log", tmp_path / "log.jsonl", "--progress=off")
        found.append(reference.step_losses(tmp_path / "log.jsonl"))
    assert len(found[0]) == 3 and all(f == found[0] for f in found)


def test_several_files_are_one(run, digits, models, tmp_path):
    exe, found = digits(), []
    x, y = (np.load(models / f"mlp_digits/{n}.npy")[:40] for n in ("input", "labels"))
    np.save(tmp_path / "labels.npy", y)
    np.save(tmp_path / "whole.npy", x)
    for i in range(4):
        np.save(tmp_path / f"part{i}.npy", x[i * 7:(i + 1) * 7 if i < 3 else 40])
    for source in ("whole.npy", "part*.npy"):
        run(exe, "--data", f"input={tmp_path}/{source}", "--data", f"labels={tmp_path}/labels.npy",
            "--epochs=2", "--log", tmp_path / "log.jsonl", "--progress=off")
        found.append(reference.step_losses(tmp_path / "log.jsonl"))
    assert len(found[0]) == 8 and found[0] == found[1]


def test_info_says_what_is_compiled_in(run, digits):
    said = json.loads(run(digits(), "--info", "--json").stdout)
    text = json.dumps(said)
    assert "f64" in text and "adamw" in text and "4.bias" in text
    assert "mlp_digits" in run(digits(), "--info").stdout or "model" in text


def test_the_log_has_what_it_promises(run, digits, models, tmp_path):
    run(digits(), *data(models), "--steps=3", "--accumulate=2", "--log", tmp_path / "log.jsonl")
    lines = reference.log_lines(tmp_path / "log.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert [line["samples"] for line in lines] == [20, 40, 60]
    for line in lines:
        assert {"loss", "lr", "grad_norm", "tokens", "step_ms", "tokens_per_s", "mfu",
                "peak_bytes"} <= set(line)
        assert line["step_ms"] > 0 and line["peak_bytes"] > 0
    settings = lines[0]["settings"]
    assert settings["optimizer"] == "adamw" and settings["rows_per_step"] == 20 and settings["threads"] >= 1
    assert {"lr", "processor", "cpu", "library", "deterministic"} <= set(settings)
    assert all("settings" not in line for line in lines[1:])


def test_dumps_of_an_executable(run, digits):
    exe = digits()
    for stage in ("schedule", "memory"):
        assert run("dump", exe, f"--stage={stage}").stdout
    run("dump", exe, "--stage=train", exit=2)


def test_a_stripped_executable_is_refused(run, digits, tmp_path):
    """Without the tail that holds its weights it stops with a message; so does `dump`."""
    whole = digits().read_bytes()
    cut = tmp_path / "cut"
    cut.write_bytes(whole[:-64])
    cut.chmod(0o755)
    said = run(cut, "--steps=0", "--export", tmp_path / "x.onnx", exit=5).stderr
    assert "--weights" in said


def test_options_of_later_versions_say_so(run, models, tmp_path):
    for option in ("--mesh=tensor=2", "--target=hip", "--precision=mxfp8"):
        said = run("compile", models / "mlp_digits/model.onnx", "-o", tmp_path / "t",
                   "--dim=batch=2", option, exit=2).stderr
        assert "not supported in this build" in said, said
    for command in ("plan",):
        assert "not supported in this build" in run(command, "m.onnx", exit=2).stderr


def test_weights_are_mapped_as_they_are(run, tmp_path):
    """Large ones, trained and frozen, with odd sizes between: a step without learning leaves every bit, one with
    it changes what is trained, and never the executable."""
    random = np.random.default_rng(0)
    shapes = {"a": (601, 700), "b": (3,), "c": (700, 601), "d": (601,), "e": (601, 5)}
    weights = {n: random.standard_normal(s).astype(np.float32) / 20 for n, s in shapes.items()}
    node = onnx.helper.make_node
    nodes = [node("MatMul", ["x", "a"], ["h"]), node("MatMul", ["h", "c"], ["g"]), node("Add", ["g", "d"], ["k"]),
             node("Slice", ["k", "from", "to", "axes"], ["s"]), node("Mul", ["s", "b"], ["t"]),
             node("MatMul", ["k", "e"], ["m"]), node("Concat", ["t", "m"], ["y"], axis=1)]
    places = {"from": [0], "to": [3], "axes": [1]}
    tensors = [numpy_helper.from_array(w, n) for n, w in weights.items()]
    tensors += [numpy_helper.from_array(np.array(v), n) for n, v in places.items()]
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(nodes, "large", [value("x", 1, ["n", 601])], [value("y", 1, ["n", 8])], tensors)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8),
              tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", random.standard_normal((8, 601)).astype(np.float32))
    np.save(tmp_path / "t.npy", random.integers(0, 8, 8))
    exe = tmp_path / "train"
    run("compile", tmp_path / "m.onnx", "-o", exe, "--batch=4", "--loss=cross_entropy", "--freeze=c")
    before = exe.read_bytes()
    train = [exe, "--data", f"x={tmp_path}/x.npy", "--data", f"labels={tmp_path}/t.npy", "--progress=off",
             "--export", tmp_path / "out.onnx"]
    run(*train, "--steps=2", "--lr=0", "--weight-decay=0")
    same = weights_of(tmp_path / "out.onnx")
    assert all(np.array_equal(same[n], w) for n, w in weights.items())
    run(*train, "--steps=2", "--lr=0.01")
    changed = weights_of(tmp_path / "out.onnx")
    assert [n for n, w in weights.items() if np.array_equal(changed[n], w)] == ["c"]
    assert exe.read_bytes() == before
    log = tmp_path / "log.jsonl"
    with subprocess.Popen([*train[:-2], "--epochs=1000000", "--log", log], stdout=subprocess.DEVNULL) as process:
        while not (log.exists() and log.read_text().count("\n") > 2):
            assert process.poll() is None
            time.sleep(0.01)
        maps = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
        process.kill()
    pages = [[int(x, 16) for x in line.split()[0].split("-")] for line in maps
             if line.endswith(str(exe)) and "rw-p" in line]
    assert sum(end - begin >= 1 << 20 for begin, end in pages) == 1  # the frozen one stays the file's
