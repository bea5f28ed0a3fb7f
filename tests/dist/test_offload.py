"""--offload: what lies in the host's memory, streamed through the device; the bits of a training that keeps all on the device."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from test_ranks import call, openmpi, train  # noqa: E402, F401  openmpi is a fixture
from test_shard import RECIPES, info, regions, same, shard_executable  # noqa: E402

BOTH, OPTIMIZER, PARAMS = ("optimizer,params", "zero3"), ("optimizer", "zero2"), ("params", "zero3")


def offloaded(gradc, models, folder, name, how, *options, batch=4):
    what, mode = how
    return shard_executable(gradc, models, folder, name, f"--offload={what}", *options, batch=batch, modes=f"ddp,{mode}")


@pytest.fixture(scope="module", params=[BOTH, OPTIMIZER], ids=lambda how: how[0])
def gpt2(request, gradc, models, tmp_path_factory):
    """(executable, its data options), mode"""
    folder = tmp_path_factory.mktemp("gpt2")
    return offloaded(gradc, models, folder, "gpt2_mini", request.param, batch=1), request.param[1]


@pytest.mark.parametrize("ranks, options", [(1, []), (1, ["--device=async"]), (2, []), (3, ["--threads=1"]), (2, ["--device=async"])])
def test_nothing_else_changes(openmpi, gpt2, tmp_path, ranks, options):  # noqa: F811
    (exe, data), mode = gpt2
    same(openmpi, exe, data, tmp_path, mode, ranks, 4, *options)


def test_micro_batches_of_one_rank(gpt2, tmp_path):
    """What later ones add to comes from the host's memory and goes back."""
    (exe, data), mode = gpt2
    options = ["--steps=3", "--accumulate=3", "--clip-norm=1"]
    alone = train([], exe, data, tmp_path, "alone", "--data-parallel=ddp", *options)
    for device in ("cpu", "async"):
        got = train([], exe, data, tmp_path, device, f"--data-parallel={mode}", f"--device={device}", *options)
        assert got[:2] == alone[:2]


@pytest.mark.parametrize("how", ["fast", "ordered"])
def test_micro_batches_of_ranks(openmpi, gpt2, tmp_path, how):  # noqa: F811
    (exe, data), mode = gpt2
    alone = train([], exe, data, tmp_path, "alone", "--steps=4", "--accumulate=6", "--data-parallel=ddp")
    got = train(openmpi(3), exe, data, tmp_path, mode, "--steps=4", "--accumulate=2", f"--data-parallel={mode}", f"--reduce={how}",
                "--device=async")
    assert got[0] == pytest.approx(alone[0], rel=1e-6)


OFTEN = {"bf16", "adamw8bit", "muon", "lora", "ema"}


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes(openmpi, gradc, models, tmp_path, recipe):  # noqa: F811
    if recipe not in OFTEN and not os.environ.get("GRADC_THOROUGH"):
        pytest.skip("others like it run: `make thorough`")
    how = PARAMS if recipe == "lora" else BOTH if recipe in ("bf16", "ema") else OPTIMIZER
    exe, data = offloaded(gradc, models, tmp_path, "gpt2_mini", how, *RECIPES[recipe], batch=1)
    same(openmpi, exe, data, tmp_path, how[1], 2, 3)


def test_optimizer_of_zero3(openmpi, gradc, models, tmp_path):  # noqa: F811
    """Weights are on the device, a part of them on each rank: they are copied for the update."""
    exe, data = offloaded(gradc, models, tmp_path, "gpt2_mini", ("optimizer", "zero3"), batch=1)
    same(openmpi, exe, data, tmp_path, "zero3", 2, 3, "--device=async")


@pytest.mark.parametrize("ranks", [1, 2])
def test_weights_alone(openmpi, gradc, models, tmp_path, ranks):  # noqa: F811
    """They are copied to the device for the update, too, which is the device's."""
    exe, data = offloaded(gradc, models, tmp_path, "gpt2_mini", PARAMS, batch=1)
    same(openmpi, exe, data, tmp_path, "zero3", ranks, 3, "--device=async")
    of = info(exe)
    held = next(b for b in of["rank_bytes"] if b["ranks"] == 1)
    assert held["host"] == held["parts"] // 4


@pytest.mark.parametrize("name", ["mlp_digits", "resnet_mini", "moe_mini"])
def test_models_of_other_kinds(openmpi, gradc, models, tmp_path, name):  # noqa: F811
    exe, data = offloaded(gradc, models, tmp_path, name, BOTH)
    same(openmpi, exe, data, tmp_path, "zero3", 1, 3)


def last_line(folder, name):
    return json.loads((folder / f"{name}.jsonl").read_text().splitlines()[-1])


def test_what_the_device_holds(gpt2, tmp_path):
    """At most four of the largest unit besides activations: two that are gathered, two of gradients; with accumulation a sum, too. The
    rest lies in the host's memory: 16 bytes a parameter."""
    (exe, data), mode = gpt2
    of = info(exe)
    held = next(b for b in of["rank_bytes"] if b["ranks"] == 1)
    units = [s["bytes"] for s in of["states"] if s["kind"] == "gradient" and s.get("sharded", {}).get("block")]
    tied = max(units)  # an embedding that is a head, too, stays
    assert len(units) >= 2 and held["gathered"] <= 5 * max(units) + tied
    assert held["host"] == held["shard"] == held["parts"] == 4 * sum(units)
    assert held["whole"] <= (4096 if mode == "zero3" else sum(units) + 4096)
    done = train([], exe, data, tmp_path, "one", "--steps=2", f"--data-parallel={mode}")[2]
    assert regions(done)["offload"] + regions(done)["optimizer"] == pytest.approx(held["host"], rel=0.02)


def test_copies_are_counted(gpt2, tmp_path):
    """Gradients leave once a step; weights arrive when they are updated, or before each pass but the last unit of the forward pass, which stays."""
    (exe, data), mode = gpt2
    of = info(exe)
    train([], exe, data, tmp_path, "one", "--steps=3", f"--data-parallel={mode}")
    line, units = last_line(tmp_path, "one"), [s["bytes"] for s in of["states"] if s["kind"] == "gradient" and s.get("sharded", {}).get("block")]
    weights, small = sum(units), 4096
    assert weights <= line["offload_out_bytes"] <= weights + small
    most = 2 * weights if mode == "zero3" else weights
    least = 2 * weights - max(units) - small if mode == "zero3" else weights - small
    assert least <= line["offload_in_bytes"] <= most + small


def test_copies_lie_beside_computation(gpt2, tmp_path):
    """On a device whose streams run by themselves."""
    (exe, data), mode = gpt2
    train([], exe, data, tmp_path, "one", "--steps=8", f"--data-parallel={mode}", "--device=async", "--trace", tmp_path / "t.json")
    events = [e for e in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if "dur" in e]
    names = {e["args"]["name"]: e["tid"] for e in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if e.get("name") == "thread_name"}
    computed = [e for e in events if e.get("args", {}).get("kernel")]
    copies = [e for e in events if e["tid"] in {names.get("copy in"), names.get("copy out"), names.get("communication")}]
    beside = [e for e in copies for c in computed if c["ts"] < e["ts"] + e["dur"] and e["ts"] < c["ts"] + c["dur"]]
    assert copies and beside


@pytest.mark.parametrize("first, then", [("offloaded", "ddp"), ("ddp", "offloaded")])
def test_checkpoints_know_nothing_of_it(openmpi, gpt2, tmp_path, first, then):  # noqa: F811
    (exe, data), mode = gpt2
    modes = {"offloaded": f"--data-parallel={mode}", "ddp": "--data-parallel=ddp"}
    whole = train([], exe, data, tmp_path, "whole", "--steps=4", "--data-parallel=ddp")
    save = ["--save", tmp_path / "ck", "--save-every=2"]
    one = train([], exe, data, tmp_path, "first", "--steps=2", modes[first], *save)
    two = train([], exe, data, tmp_path, "second", "--steps=4", modes[then], "--resume=auto", *save)
    assert one[0] + two[0] == whole[0] and two[1] == whole[1]


# ---- activations
@pytest.mark.parametrize("name", ["gpt2_mini", "llama_mini", "resnet_mini", "vit_mini", "unet_mini"])
@pytest.mark.parametrize("device", ["cpu", "async"])
def test_activations_change_nothing(gradc, models, tmp_path, name, device):
    (tmp_path / "plain").mkdir()
    plain, data = shard_executable(gradc, models, tmp_path / "plain", name, modes="ddp")
    exe, _ = shard_executable(gradc, models, tmp_path, name, "--offload=activations", modes="ddp")
    options = ["--steps=3", "--accumulate=2", "--clip-norm=1", f"--device={device}"]
    want = train([], plain, data, tmp_path, "plain", *options)
    got = train([], exe, data, tmp_path, "offloaded", *options)
    assert got[:2] == want[:2]
    line = last_line(tmp_path, "offloaded")
    assert line["offload_in_bytes"] == line["offload_out_bytes"] > 0
    of, held = info(plain)["regions"], info(exe)["regions"]
    assert held["workspace"] < of["workspace"] and held["host"] > 0


def test_activations_too_small_to_move(gradc, models, tmp_path):
    options = ["--batch=4", "--loss=cross_entropy", "--offload=activations"]
    done = call([gradc, "compile", models / "mlp_digits/model.onnx", "-o", tmp_path / "exe", *options])
    assert "warning: --offload=activations changes nothing: no activation of 65536 bytes or more waits long enough for the backward pass" in done.stderr


def test_cpus_save_nothing(gradc, models, tmp_path):
    done = call([gradc, "compile", models / "gpt2_mini/model.onnx", "-o", tmp_path / "exe", "--dim=batch=4", "--dim=seq=64", "--offload=activations"])
    assert "warning: --offload=activations takes time and saves no memory here: no target is a GPU" in done.stderr


def test_all_of_it_together(openmpi, gradc, models, tmp_path):  # noqa: F811
    exe, data = offloaded(gradc, models, tmp_path, "gpt2_mini", ("optimizer,params,activations", "zero3"), batch=1)
    same(openmpi, exe, data, tmp_path, "zero3", 2, 3, "--device=async")


def layers(folder, n, width=256, rows=64):
    """A model of n layers, and what trains it."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    r, nodes, weights, x = np.random.default_rng(n), [], [], "x"
    for i in range(n):
        weights.append(numpy_helper.from_array((r.normal(size=(width, width)) / width**0.5).astype("f"), f"w{i}"))
        nodes += [helper.make_node("MatMul", [x, f"w{i}"], [f"h{i}"]), helper.make_node("Tanh", [f"h{i}"], [f"t{i}"])]
        x = f"t{i}"
    graph = helper.make_graph(nodes, "layers", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", width])],
                              [helper.make_tensor_value_info(x, TensorProto.FLOAT, ["batch", width])], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / f"layers{n}.onnx")
    return folder / f"layers{n}.onnx", [f"--batch={rows}", "--loss=mse"]


def test_memory_of_activations_does_not_grow_with_depth(gradc, tmp_path):
    """Of twice as many layers the device has as much as of half of them, but for a part of one layer's; what waits is the host's."""
    def workspace(n, *more):
        model, options = layers(tmp_path, n)
        call([gradc, "compile", model, "-o", tmp_path / "exe", *options, *more])
        return info(tmp_path / "exe")["regions"]

    layer = 64 * 256 * 4
    plain = [workspace(n)["workspace"] for n in (24, 48)]
    moved = [workspace(n, "--offload=activations") for n in (24, 48)]
    assert plain[1] - plain[0] >= 20 * layer
    assert moved[1]["workspace"] - moved[0]["workspace"] <= layer
    assert moved[1]["host"] - moved[0]["host"] >= 20 * layer


# ---- in a file
def test_in_a_file(openmpi, gpt2, tmp_path):  # noqa: F811
    (exe, data), mode = gpt2
    (tmp_path / "disk").mkdir()
    same(openmpi, exe, data, tmp_path, mode, 2, 3)
    alone = train([], exe, data, tmp_path, "alone", "--steps=3", "--accumulate=2", "--data-parallel=ddp")
    got = train(openmpi(2), exe, data, tmp_path, "file", "--steps=3", f"--data-parallel={mode}", f"--offload-dir={tmp_path}/disk",
                "--save", tmp_path / "ck", "--save-every=1")
    assert got[:2] == alone[:2] and not list((tmp_path / "disk").iterdir())
    assert re.search(r"memory: .* offload [\d.]+ [KM]iB in a file, optimizer [\d.]+ [KM]iB in a file,", got[2].stderr)


def wait_for(path, n, process):
    for _ in range(600):
        if path.exists() and path.read_text().count("\n") >= n:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    raise AssertionError(f"{path} has no {n} lines")


@pytest.mark.parametrize("lines", [2, 5])
def test_a_killed_training_leaves_no_file_and_goes_on(gpt2, tmp_path, lines):
    (exe, data), mode = gpt2
    (tmp_path / "disk").mkdir()
    options = [f"--data-parallel={mode}", "--steps=400", f"--offload-dir={tmp_path}/disk", "--save", str(tmp_path / "ck"), "--save-every=2"]
    process = subprocess.Popen([str(x) for x in [exe, *data, *options, "--log", tmp_path / "log.jsonl", "--progress=off"]],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(tmp_path / "log.jsonl", lines, process)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL and not list((tmp_path / "disk").iterdir())
    whole = train([], exe, data, tmp_path, "whole", "--steps=8", f"--data-parallel={mode}")
    saved = max((int(p.name.split("-")[1]) for p in (tmp_path / "ck").glob("step-*")), default=0)
    steps = max(8, saved + 2)
    if steps > 8:
        whole = train([], exe, data, tmp_path, "whole", f"--steps={steps}", f"--data-parallel={mode}")
    got = train([], exe, data, tmp_path, "again", f"--steps={steps}", *[o for o in options if not o.startswith("--steps")], "--resume=auto")
    assert got[0] == whole[0][saved:] and got[1] == whole[1]


def test_a_disk_without_room(gpt2, tmp_path):
    (exe, data), mode = gpt2
    small = tmp_path / "small"
    small.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", small]).returncode:
        pytest.skip("only root mounts a small disk")
    try:
        done = call([exe, *data, "--steps=1", f"--data-parallel={mode}", f"--offload-dir={small}", "--progress=off"], exit=5)
    finally:
        subprocess.run(["umount", small], check=True)
    assert re.search(r"--offload-dir=.*small: a file of [\d.]+ [KM]iB: No space left on device", done.stderr)


def test_no_folder(gpt2, tmp_path):
    (exe, data), mode = gpt2
    done = call([exe, *data, "--steps=1", f"--data-parallel={mode}", f"--offload-dir={tmp_path}/none", "--progress=off"], exit=5)
    assert f"--offload-dir={tmp_path}/none: No such file or directory" in done.stderr


# ---- what makes no sense
@pytest.mark.parametrize("options, said", [
    (["--offload=optimizer", "--data-parallel=zero1"], "need zero2 or zero3, in which ranks have parts of gradients"),
    (["--offload=params", "--data-parallel=zero2"], "need zero3, in which weights are gathered"),
    (["--offload=optimizer", "--data-parallel=ddp"], "ddp keeps everything on the device"),
    (["--offload=moments"], "--offload=moments: need some of optimizer, params, activations"),
    (["--offload=optimizer", "--target=cuda:sm_90a"], "the host's CPU computes the optimizer's updates, so --target needs a CPU, too"),
])
def test_compiling_what_makes_no_sense(gradc, models, tmp_path, options, said):
    done = call([gradc, "compile", models / "mlp_digits/model.onnx", "-o", tmp_path / "exe", "--batch=4", *options], exit=2)
    assert said in done.stderr and not (tmp_path / "exe").exists()


@pytest.mark.parametrize("options, said", [
    (["--offload=params"], "--offload=params: compiled with --offload=optimizer"),
    (["--offload=optimizer,moments"], "--offload=optimizer,moments: compiled with --offload=optimizer"),
    (["--offload=optimizer", "--data-parallel=ddp"], "with --data-parallel=ddp all lies on the device"),
    (["--offload-dir=/tmp", "--data-parallel=ddp"], "--offload-dir: with --data-parallel=ddp all lies on the device"),
])
def test_running_what_makes_no_sense(gradc, models, tmp_path_factory, options, said):
    exe, data = offloaded(gradc, models, tmp_path_factory.mktemp("exe"), "mlp_digits", OPTIMIZER)
    done = call([exe, *data, "--steps=1", *(options if "ddp" in str(options) else [*options, "--data-parallel=zero2"])], exit=2)
    assert said in done.stderr


def test_what_was_not_compiled(gradc, models, tmp_path):
    call([gradc, "compile", models / "mlp_digits/model.onnx", "-o", tmp_path / "exe", "--batch=4"])
    assert "--offload=optimizer: compiled without --offload" in call([tmp_path / "exe", "--steps=1", "--offload=optimizer"], exit=2).stderr


def test_the_mode_that_it_needs_is_taken(gradc, models, tmp_path):
    for what, mode in (("optimizer", "zero2"), ("params", "zero3"), ("optimizer,params", "zero3")):
        call([gradc, "compile", models / "mlp_digits/model.onnx", "-o", tmp_path / "exe", "--batch=4", f"--offload={what}"])
        assert {b["mode"] for b in info(tmp_path / "exe")["rank_bytes"]} == {mode}
