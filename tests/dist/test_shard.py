"""Ranks that hold parts of states (--data-parallel zero1, zero2, zero3): the bits of one that holds all."""
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from test_ranks import LAUNCHERS, call, losses, openmpi, script_of, train  # noqa: E402, F401  openmpi is a fixture

MODES = ["zero1", "zero2", "zero3"]
WITHOUT_STATISTICS = ["mlp_digits", "mlp_diabetes", "lr_iris_ml", "gpt2_mini", "llama_mini", "bert_mini", "vit_mini", "moe_mini", "unet_mini"]


def shard_executable(gradc, models, folder, name, *options, batch=4, modes="ddp,zero1,zero2,zero3"):
    """(path, its data options); units are as small as layer blocks are."""
    of = json.loads((models / name / "reference.json").read_text())
    dims = [f"--dim={k}={v}" for k, v in of["dims"].items() if k != "batch"]
    call([gradc, "compile", models / name / "model.onnx", "-o", folder / name, f"--batch={batch}", *dims, "--loss", of["loss"],
          f"--data-parallel={modes}", "--unit-bytes=1", *options], timeout=120)
    data = [f"--data={i['name']}={models / name / i['file']}" for i in of["inputs"]]
    return folder / name, [*data, f"--data=labels={models / name / of['labels']['file']}"]


@pytest.fixture(scope="module")
def gpt2(gradc, models, tmp_path_factory):
    return shard_executable(gradc, models, tmp_path_factory.mktemp("gpt2"), "gpt2_mini", batch=1)


def same(openmpi, exe, data, folder, mode, ranks, steps, *options):  # noqa: F811
    """Bit for bit what as many accumulation steps of one rank give: every loss, and every byte of the trained model."""
    options = ["--clip-norm=1", *options]
    alone = train([], exe, data, folder, "alone", f"--steps={steps}", f"--accumulate={ranks}", "--data-parallel=ddp", *options)
    got = train(openmpi(ranks) if ranks > 1 else [], exe, data, folder, mode, f"--steps={steps}", f"--data-parallel={mode}", *options)
    assert got[:2] == alone[:2]
    assert len(got[0]) == steps
    return got


@pytest.mark.parametrize("name", [n for n in WITHOUT_STATISTICS if n != "gpt2_mini"])
def test_zero3_of_each_model(openmpi, gradc, models, tmp_path, name):  # noqa: F811
    if not (models / name / "reference.json").exists():
        pytest.skip(f"{name} is not among the models here")
    exe, data = shard_executable(gradc, models, tmp_path, name)
    same(openmpi, exe, data, tmp_path, "zero3", 2, 5, "--threads=1")  # convolutions have the bits of their threads


@pytest.mark.parametrize("mode", ["zero1", "zero2"])
@pytest.mark.parametrize("name", ["mlp_digits", "llama_mini", "vit_mini"])
def test_less_than_zero3_on_four_ranks(openmpi, gradc, models, tmp_path, name, mode):  # noqa: F811
    exe, data = shard_executable(gradc, models, tmp_path, name)
    same(openmpi, exe, data, tmp_path, mode, 4, 5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ranks, options", [(1, []), (2, []), (3, ["--threads=1"]), (4, []), (2, ["--device=async"]), (2, ["--deterministic"])])
def test_modes_are_accumulation(openmpi, gpt2, tmp_path, mode, ranks, options):  # noqa: F811
    same(openmpi, *gpt2, tmp_path, mode, ranks, 5, *options)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("device", ["cpu", "async"])
def test_sums_of_the_library(openmpi, gpt2, tmp_path, mode, device):  # noqa: F811
    exe, data = gpt2
    alone = train([], exe, data, tmp_path, "alone", "--steps=4", "--accumulate=6", "--data-parallel=ddp")
    got = train(openmpi(3), exe, data, tmp_path, mode, "--steps=4", "--accumulate=2", f"--data-parallel={mode}", "--reduce=fast",
                f"--device={device}")
    assert got[0] == pytest.approx(alone[0], rel=1e-6)


def test_a_weight_that_is_an_output(openmpi, gradc, models, tmp_path):  # noqa: F811
    """As of CLIP, whose scale is one: the ranks have parts of it, and whoever reads the output has all."""
    import onnx
    folder = tmp_path / "mlp_digits"
    shutil.copytree(models / "mlp_digits", folder)
    model = onnx.load(folder / "model.onnx")
    weight = next(i for i in model.graph.initializer if i.name == "2.weight")
    model.graph.node.append(onnx.helper.make_node("Identity", [weight.name], ["w_out"]))
    model.graph.output.append(onnx.helper.make_tensor_value_info("w_out", onnx.TensorProto.FLOAT, list(weight.dims)))
    onnx.save(model, folder / "model.onnx")
    (tmp_path / "exe").mkdir()
    exe, data = shard_executable(gradc, tmp_path, tmp_path / "exe", "mlp_digits")
    same(openmpi, exe, data, tmp_path, "zero3", 2, 3)
    np.save(tmp_path / "input.npy", np.load(folder / "input.npy")[:4])
    call([exe, "--once", f"--input=input={tmp_path}/input.npy", f"--output-dir={tmp_path}/once"])
    assert np.array_equal(np.load(tmp_path / "once/w_out.npy"), onnx.numpy_helper.to_array(weight))


RECIPES = {
    "bf16": ["--precision=bf16"], "f16": ["--precision=f16"], "bf16-alone": ["--precision=bf16", "--master=off", "--rounding=stochastic"],
    "ema": ["--ema=0.9"], "sophia": ["--optimizer=sophia"], "muon": ["--optimizer=muon"], "lamb": ["--optimizer=lamb"],
    "adafactor": ["--optimizer=adafactor"], "adamw8bit": ["--optimizer=adamw8bit"], "lora": ["--lora=*attn*.weight"],
}


OFTEN = {("bf16", "zero3"), ("muon", "zero3"), ("adamw8bit", "zero3"), ("lora", "zero3"), ("lamb", "zero2")}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes(openmpi, gradc, models, tmp_path, recipe, mode):  # noqa: F811
    if (recipe, mode) not in OFTEN and not os.environ.get("GRADC_THOROUGH"):
        pytest.skip("others like it run: `make thorough`")
    exe, data = shard_executable(gradc, models, tmp_path, "gpt2_mini", *RECIPES[recipe], batch=1)
    same(openmpi, exe, data, tmp_path, mode, 2, 3)


def test_states_of_another_mode_and_world(openmpi, gpt2, tmp_path):  # noqa: F811
    """12 micro-batches a step, whoever computes them: a checkpoint has whole tensors."""
    exe, data = gpt2
    alone = train([], exe, data, tmp_path, "alone", "--steps=6", "--accumulate=12", "--data-parallel=ddp")
    got = []
    for steps, ranks, each, mode in [(2, 4, 3, "zero3"), (4, 1, 12, "ddp"), (6, 3, 4, "zero2")]:
        got += train(openmpi(ranks) if ranks > 1 else [], exe, data, tmp_path, mode, f"--steps={steps}", f"--accumulate={each}",
                     f"--data-parallel={mode}", "--save", tmp_path / "ck", "--save-every=2", "--resume=auto")[0]
    assert got == pytest.approx(alone[0], rel=1e-6)


def test_ranks_with_another_shard_size(openmpi, gpt2, tmp_path):  # noqa: F811
    exe, data = gpt2
    script = script_of(tmp_path, f'[ $rank -lt 2 ] && size=--shard-size=2; exec {exe} "$@" $size')
    done = call(openmpi(4, script, *data, "--steps=2", "--data-parallel=zero3", "--progress=off"), exit=9)
    assert "rank 2 has other options than rank 0: --shard-size 0, not 2" in done.stderr


def test_ranks_with_another_mode(openmpi, gradc, models, tmp_path):  # noqa: F811
    """Told before one of them makes its copies of 16 bits, for which it asks the others for their parts."""
    exe, data = shard_executable(gradc, models, tmp_path, "mlp_digits", "--precision=bf16")
    script = script_of(tmp_path, f'[ $rank = 1 ] && mode=--data-parallel=zero1; exec {exe} "$@" $mode')
    done = call(openmpi(2, script, *data, "--steps=2", "--progress=off"), exit=9)
    assert "rank 1 has other options than rank 0: --data-parallel zero1, not ddp" in done.stderr


@pytest.mark.parametrize("rows", [1, 6, 8, 10])
def test_evaluations_of_uneven_shares(openmpi, gradc, models, tmp_path, rows):  # noqa: F811
    """Batches of 4: a rank that has fewer rows than others takes part in the weights' exchange all the same."""
    exe, data = shard_executable(gradc, models, tmp_path, "mlp_digits")
    for name in ("input", "labels"):
        np.save(tmp_path / f"{name}.npy", np.load(models / f"mlp_digits/eval_{name}.npy")[:rows])
    options = [*[f"--eval-data={name}={tmp_path / name}.npy" for name in ("input", "labels")], "--steps=2", "--eval-every=1", "--json",
               "--progress=off"]
    alone = json.loads(call([exe, *data, *options, "--accumulate=3", "--data-parallel=ddp"]).stdout)
    for mode in MODES:
        got = json.loads(call(openmpi(3, exe, *data, *options, f"--data-parallel={mode}")).stdout)
        assert got["eval_rows"] == alone["eval_rows"] == rows and got["eval_accuracy"] == alone["eval_accuracy"]
        assert got["eval_loss"] == alone["eval_loss"]


def regions(done):
    """Bytes of a rank's regions, as the first lines say them."""
    line = next(line for line in done.stderr.splitlines() if line.startswith("memory: "))
    units = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    return {name: float(n) * units[unit] for name, n, unit in (part.rsplit(" ", 2) for part in line[8:].split(";")[0].split(", "))}


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_what_a_rank_holds(openmpi, gpt2, tmp_path, ranks):  # noqa: F811
    """The more is divided the less is whole, and parts are a share of it."""
    exe, data = gpt2
    held = {}
    for mode in ["ddp", *MODES]:
        done = train(openmpi(ranks) if ranks > 1 else [], exe, data, tmp_path, mode, "--steps=1", f"--data-parallel={mode}")[2]
        held[mode] = regions(done)
    whole = held["ddp"]["state"]
    assert "shard" not in held["ddp"]
    for mode, parts in zip(MODES, (2, 3, 4)):  # of four states of a size: moments; gradients; weights
        assert held[mode]["state"] == pytest.approx(whole * (4 - parts) / 4, rel=0.02, abs=4096)
        assert held[mode]["shard"] == pytest.approx(whole * parts / 4 / ranks, rel=0.35)


def test_a_mode_that_is_not_there(gradc, models, tmp_path):
    call([gradc, "compile", models / "mlp_digits/model.onnx", "-o", tmp_path / "exe", "--batch=4", "--data-parallel=zero1"])
    done = call([tmp_path / "exe", "--data-parallel=zero3", "--steps=1"], exit=2)
    assert "--data-parallel=zero3: compiled with --data-parallel=zero1" in done.stderr


def info(exe):
    return json.loads(call([exe, "--info", "--json"]).stdout)


def units(of, kind):
    """Bytes of what is divided, by state."""
    return [s["bytes"] for s in of["states"] if s["kind"] == kind and s.get("sharded", {}).get("block")]


@pytest.mark.parametrize("mode", MODES)
def test_collectives_are_counted(openmpi, gpt2, tmp_path, mode):  # noqa: F811
    """Of a step: L weights are gathered for the forward pass and all but the one that is kept for the backward pass, L gradients
    reduced; up to ZeRO-2 the L weights that were updated are gathered once."""
    exe, data = gpt2
    steps = 3
    train(openmpi(2), exe, data, tmp_path, mode, f"--steps={steps}", f"--data-parallel={mode}", "--reduce=fast", "--trace", tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    moved = {}
    for e in events:
        if e.get("cat") == "communication":
            moved.setdefault(e["name"], []).append(e["args"]["bytes"])
    weights, gradients = units(info(exe), "unit"), units(info(exe), "gradient")
    assert len(weights) == len(gradients) >= 2 and sum(weights) == sum(gradients)
    assert sorted(moved["reduce_scatter"]) == sorted(gradients * steps)
    gathered = moved["all_gather"]
    if mode != "zero3":
        assert sorted(gathered) == sorted(weights * steps)
    else:
        assert len(gathered) == (2 * len(weights) - 1) * steps
        kept = 2 * sum(weights) - sum(gathered) // steps
        assert sum(gathered) % steps == 0 and kept in weights
    partial = sum(weights) // 4096  # of the norm: sums of 4,096 elements, plain and clipped; besides the loss's sums
    assert moved["all_reduce"].count(partial) == 2 * steps and max(moved["all_reduce"]) <= 4096


@pytest.mark.parametrize("mode", MODES)
def test_a_trace_shows_them_beside_computation(openmpi, gpt2, tmp_path, mode):  # noqa: F811
    """On a device whose streams run by themselves: weights arrive while layers before are computed, gradients leave while layers behind are."""
    exe, data = gpt2
    train(openmpi(2), exe, data, tmp_path, mode, "--steps=48", f"--data-parallel={mode}", "--device=async", "--reduce=fast", "--trace",
          tmp_path / "t.json")
    events = [e for e in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if "dur" in e]
    computed = [e for e in events if e.get("args", {}).get("kernel", "").startswith("dot")]
    beside = {e["name"] for e in events if e.get("cat") == "communication"
              for c in computed if c["ts"] < e["ts"] + e["dur"] and e["ts"] < c["ts"] + c["dur"]}
    assert beside >= {"zero1": {"reduce_scatter"}, "zero2": {"reduce_scatter"}, "zero3": {"all_gather", "reduce_scatter"}}[mode]


@pytest.mark.parametrize("mode", MODES)
def test_memory_that_holds_nothing_is_poisoned(openmpi, gpt2, tmp_path, mode):  # noqa: F811
    """NaN where a unit is not gathered yet, or no more."""
    same(openmpi, *gpt2, tmp_path, mode, 2, 2, "--poison")


def rooms(of, mode, ranks):
    """A rank's parts: rooms for the largest of each, from whole blocks, at multiples of 64 bytes."""
    total = 0
    for s in of["states"]:
        block = s.get("sharded", {}).get("block", 0)
        if not block or s["sharded"]["mode"] > mode:
            continue
        elements = int(np.prod(s["shape"]))
        each = -(-(elements // block) // ranks) * block * s["bytes"] // elements
        total += -(-each // 64) * 64
    return total


# Bytes of a weight: as products read it, its f32 master beside that, its gradient, its moments. What no product reads is f32 alone.
RECIPE_BYTES = {
    "f32": ([], (4, 0, 4, 8)),
    "bf16, gradients of bf16": (["--precision=bf16", "--gradients=bf16", "--max-accumulate=1"], (2, 4, 2, 8)),
    "bf16": (["--precision=bf16"], (2, 4, 4, 8)),
    "bf16 alone": (["--precision=bf16", "--master=off", "--moments=bf16", "--gradients=bf16", "--max-accumulate=1"], (2, 0, 2, 4)),
    "lion": (["--optimizer=lion"], (4, 0, 4, 4)),
}
# Of the ZeRO paper's table and Megatron-LM's distributed optimizer: whole, and what is divided by the ranks.
PUBLISHED = {"bf16, gradients of bf16": {"zero1": (4, 12), "zero2": (2, 14), "zero3": (0, 16)}, "bf16": {"zero1": (6, 12)},
             "f32": {"zero1": (8, 8)}}


def whole_and_parts(mode, weight, master, gradient, moments):
    whole = {"zero1": weight + gradient, "zero2": weight, "zero3": 0}[mode]
    return whole, weight + master + gradient + moments - whole


def elements(states):
    return sum(int(np.prod(s["shape"])) for s in states)


@pytest.mark.parametrize("recipe", RECIPE_BYTES)
def test_bytes_of_a_rank(gradc, models, tmp_path, recipe):
    """What --info says is what its formula gives; of padded units, whose padding is below 4,096 elements a layer block."""
    options, each = RECIPE_BYTES[recipe]
    exe, _ = shard_executable(gradc, models, tmp_path, "gpt2_mini", *options)
    of = info(exe)
    divided = {s["name"]: s for s in of["states"] if s.get("sharded", {}).get("block")}
    weights = [s for s in divided.values() if s["kind"] == "unit"]
    assert 0 <= elements(weights) - int(of["trainable_elements"]) < 4096 * len(weights)
    small = min(b["whole"] for b in of["rank_bytes"] if b["mode"] == "zero3")
    assert small < 4096  # loss, counts
    for b in of["rank_bytes"]:
        whole = parts = 0
        for s in weights:  # an embedding that a product reads, too, is read in both types
            is_low = s["name"].replace("parameter", "working") in divided or s["dtype"] == "bf16" or each[0] == 4
            is_master = s["sharded"]["mode"] == "zero1"
            own = each if is_low and (is_master or each[1] == 0) else (6 if is_low else 4, 0, *each[2:])
            of_unit = whole_and_parts(b["mode"], *own)
            assert own != each or of_unit == PUBLISHED.get(recipe, {}).get(b["mode"], of_unit)
            whole += of_unit[0] * elements([s])
            parts += of_unit[1] * elements([s])
        assert (b["whole"] - small, b["parts"]) == (whole, parts)
        assert b["shard"] == rooms(of, b["mode"], b["ranks"]) == b["parts"] // b["ranks"] + b["padding"]


@pytest.mark.parametrize("batch", [4, 64])
def test_four_units_are_gathered(gradc, tmp_path, batch):
    """Two of weights and two of gradients, of layers whose biases' gradients are there before those of the layer behind: nine
    units of about 1.9 MiB."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    sizes = [64] + [700] * 9 + [10]
    nodes, weights, x = [], [], "x"
    for i, shape in enumerate(zip(sizes, sizes[1:])):
        weights += [numpy_helper.from_array(np.zeros(shape, "f"), f"w{i}"), numpy_helper.from_array(np.zeros(shape[1], "f"), f"b{i}")]
        nodes += [helper.make_node("Gemm", [x, f"w{i}", f"b{i}"], [f"h{i}"]), helper.make_node("Relu", [f"h{i}"], [f"r{i}"])]
        x = f"r{i}"
    graph = helper.make_graph(nodes, "deep", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 64])],
                              [helper.make_tensor_value_info(x, TensorProto.FLOAT, ["batch", 10])], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "deep.onnx")
    call([gradc, "compile", tmp_path / "deep.onnx", "-o", tmp_path / "deep", f"--batch={batch}", "--loss=cross_entropy", "--unit-bytes=1",
          "--data-parallel=zero3"])
    of = info(tmp_path / "deep")
    assert len(units(of, "unit")) == 8
    gathered = {b["ranks"]: b["gathered"] for b in of["rank_bytes"]}
    assert gathered[64] <= 4 * max(units(of, "unit"))
    assert gathered[2] <= 5 * max(units(of, "unit"))  # beside them everybody's version of a part, added in the order of ranks


def test_sizes_that_do_not_divide(openmpi, gradc, tmp_path):  # noqa: F811
    """Weights of 13 x 7 and 7 x 1 elements on four ranks: one has a block, the others room for one."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    r = np.random.default_rng(0)
    weights = [numpy_helper.from_array(r.normal(size=s).astype("f"), n) for n, s in (("a", (13, 7)), ("b", (7,)), ("c", (7, 1)), ("d", (1,)))]
    nodes = [helper.make_node("Gemm", ["x", "a", "b"], ["h"]), helper.make_node("Tanh", ["h"], ["t"]),
             helper.make_node("Gemm", ["t", "c", "d"], ["y"])]
    graph = helper.make_graph(nodes, "odd", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 13])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 1])], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "odd.onnx")
    np.save(tmp_path / "x.npy", r.normal(size=(64, 13)).astype("f"))
    np.save(tmp_path / "labels.npy", r.normal(size=(64, 1)).astype("f"))
    call([gradc, "compile", tmp_path / "odd.onnx", "-o", tmp_path / "odd", "--batch=4", "--loss=mse", "--data-parallel=ddp,zero1,zero2,zero3"])
    data = [f"--data=x={tmp_path}/x.npy", f"--data=labels={tmp_path}/labels.npy"]
    for mode in MODES:
        same(openmpi, tmp_path / "odd", data, tmp_path, mode, 4, 3)
    for b in info(tmp_path / "odd")["rank_bytes"]:
        assert b["shard"] == b["parts"] == 4096 * 4 * (2, 3, 4)[MODES.index(b["mode"])]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("device, how", [("cpu", "ordered"), ("async", "fast")])
def test_groups_that_hold_copies(openmpi, gpt2, tmp_path, mode, device, how):  # noqa: F811
    """--shard-size: two groups of two ranks; a rank has what it has of two ranks, and the sums are those of four."""
    exe, data = gpt2
    alone = train([], exe, data, tmp_path, "alone", "--steps=4", "--accumulate=8", "--data-parallel=ddp")
    options = ["--steps=4", "--accumulate=2", f"--data-parallel={mode}", "--shard-size=2", f"--reduce={how}", f"--device={device}"]
    got = train(openmpi(4), exe, data, tmp_path, mode, *options)
    assert got[0] == pytest.approx(alone[0], rel=1e-6)
    assert "/ 2 ranks + " in got[2].stderr
    other = train(openmpi(4), exe, data, tmp_path, "again", *options, "--save", tmp_path / "ck", "--save-every=2")
    assert other[:2] == got[:2]
    resumed = train(openmpi(2), exe, data, tmp_path, "resumed", "--steps=4", "--accumulate=4", "--data-parallel=zero3", "--resume",
                    tmp_path / "ck/step-00000002")
    assert resumed[0] == pytest.approx(alone[0][2:], rel=1e-6)


@pytest.mark.parametrize("ranks, options, said", [
    (4, ["--data-parallel=zero3", "--shard-size=3"], "--shard-size=3: 4 ranks cannot be divided into groups of this size"),
    (2, ["--data-parallel=ddp", "--shard-size=2"], "--shard-size=2: with --data-parallel=ddp every rank holds all"),
    (2, ["--data-parallel=zero1", "--shard-size=1"], "--data-parallel=ddp is without parts"),
    (2, ["--data-parallel=zero1", "--shard-size=4"], "2 ranks cannot be divided into groups of this size"),
    (2, ["--data-parallel=zero3", "--find-nan"], "--find-nan: not with --data-parallel=zero3"),
    (2, ["--data-parallel=zero2", "--dump-gradients=grads"], "--dump-gradients: not possible if ranks hold parts of gradients"),
])
def test_worlds_that_cannot_be(openmpi, gpt2, ranks, options, said):  # noqa: F811
    """Before the first step, on every rank."""
    exe, data = gpt2
    done = call(openmpi(ranks, exe, *data, "--steps=1", "--progress=off", *options), exit=2)
    assert done.stderr.count(said) == 1, done.stderr


def test_learned_scales(openmpi, gradc, models, tmp_path):  # noqa: F811
    """The log has the ranges of activations and the scales that are learned, which ranks hold parts of."""
    exe, data = shard_executable(gradc, models, tmp_path, "mlp_digits", "--quantize=w8a8-tensor", "--scale-learning=lsq")
    seen = {}
    for mode in ("ddp", "zero3"):
        train(openmpi(2), exe, data, tmp_path, mode, "--steps=4", f"--data-parallel={mode}")
        seen[mode] = [json.loads(line) for line in (tmp_path / f"{mode}.jsonl").read_text().splitlines()]
    assert len(seen["ddp"]) == len(seen["zero3"]) == 4
    for one, other in zip(seen["ddp"], seen["zero3"]):
        assert (one["ranges"], one["loss"]) == (other["ranges"], other["loss"])
