"""Weights that are not trained, under ZeRO-3: ranks hold parts of these, too, codes of 4 bits among them, and gather them as others."""
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).resolve().parents[1] / "train")]
from test_executable import write_safetensors  # noqa: E402
from test_ranks import call, openmpi, script_of, train  # noqa: E402, F401  openmpi is a fixture
from test_shard import info, same, shard_executable  # noqa: E402

LORA = "--lora=*attn*,rank=4"


@pytest.fixture(scope="module")
def adapted(gradc, models, tmp_path_factory):
    return shard_executable(gradc, models, tmp_path_factory.mktemp("adapted"), "gpt2_mini", LORA, batch=1, modes="zero3,ddp")


@pytest.mark.parametrize("name, options", [
    ("gpt2_mini", [LORA]), ("gpt2_mini", ["--freeze=*", "--train=*mlp*"]), ("gpt2_mini", ["--qlora=*attn*,rank=4"]),
    ("gpt2_mini", ["--lora=*attn*,rank=4,dora", "--offload=params,optimizer"]), ("llama_mini", ["--qlora=*mlp*,rank=4", "--precision=bf16"])])
def test_frozen_weights_are_divided(openmpi, gradc, models, tmp_path, name, options):  # noqa: F811
    """All but vectors; the training is the same to the bit."""
    exe, data = shard_executable(gradc, models, tmp_path, name, *options, batch=1, modes="zero3,ddp")
    same(openmpi, exe, data, tmp_path, "zero3", 2, 3, "--poison")
    frozen = [s for s in info(exe)["states"] if s["lifetime"] == "constant"]
    large = [s for s in frozen if np.prod(s["shape"]) >= 4096]
    assert large and all(s["sharded"]["mode"] == "zero3" for s in large if s["kind"] == "parameter")
    assert not any("sharded" in s for s in frozen if s not in large)
    assert sum(s["bytes"] for s in large if "sharded" in s) > 0.8 * sum(s["bytes"] for s in frozen)


def test_constants_are_whole(openmpi, gradc, tmp_path):  # noqa: F811
    """Tables of the graph, and the scales of 4-bit codes: a mask of 64 x 64, a weight of 512 x 512."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    r = np.random.default_rng(0)
    held = {"w": r.normal(size=(512, 512)) / 30, "v": r.normal(size=(512, 64)) / 30, "mask": np.tril(np.ones((64, 64)))}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Tanh", ["h"], ["t"]), helper.make_node("MatMul", ["t", "v"], ["m"]),
             helper.make_node("Mul", ["m", "mask"], ["y"])]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", [64, 512]), ("y", [64, 64]))]
    graph = helper.make_graph(nodes, "masked", values[:1], values[1:], [numpy_helper.from_array(a.astype("f"), n) for n, a in held.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "masked.onnx")
    np.save(tmp_path / "x.npy", r.normal(size=(256, 512)).astype("f"))
    np.save(tmp_path / "labels.npy", r.normal(size=(256, 64)).astype("f"))
    call([gradc, "compile", tmp_path / "masked.onnx", "-o", tmp_path / "masked", "--loss=mse", "--data-parallel=zero3,ddp", "--qlora=w", "--freeze=mask"])
    data = [f"--data=x={tmp_path}/x.npy", f"--data=labels={tmp_path}/labels.npy"]
    same(openmpi, tmp_path / "masked", data, tmp_path, "zero3", 2, 2)
    constants = [s for s in info(tmp_path / "masked")["states"] if s["lifetime"] == "constant" and s["kind"] == "constant"]
    assert max(np.prod(s["shape"]) for s in constants) >= 4096 and not any("sharded" in s for s in constants)


def test_one_rank_has_them_in_the_hosts_memory(gradc, models, tmp_path):
    """--offload=params, of codes of 4 bits."""
    exe, data = shard_executable(gradc, models, tmp_path, "gpt2_mini", "--qlora=*attn*,rank=4", "--offload=params", batch=1, modes="zero3,ddp")
    same(None, exe, data, tmp_path, "zero3", 1, 3, "--poison")


def test_a_checkpoint_knows_them(openmpi, adapted, models, tmp_path):  # noqa: F811
    """By their checksums, whoever has which part: written by two ranks, read by one, and the other way round."""
    exe, data = adapted
    alone = train([], exe, data, tmp_path, "alone", "--steps=6", "--accumulate=2", "--data-parallel=ddp")[0]
    saves = ["--save", tmp_path / "ck", "--save-every=2", "--resume=auto"]
    got = train(openmpi(2), exe, data, tmp_path, "a", "--steps=2", "--data-parallel=zero3", *saves)[0]
    got += train([], exe, data, tmp_path, "b", "--steps=4", "--accumulate=2", "--data-parallel=ddp", *saves)[0]
    got += train(openmpi(2), exe, data, tmp_path, "c", "--steps=6", "--data-parallel=zero3", *saves)[0]
    assert got == alone
    other_weights(models, tmp_path)
    for command, mode in ((openmpi(2), "zero3"), ([], "ddp")):
        done = call([*command, exe, *data, "--steps=8", "--progress=off", f"--data-parallel={mode}", "--load", tmp_path / "other.safetensors",
                     "--resume", tmp_path / "ck/step-00000006"], exit=7)
        assert "frozen tensor \"transformer.h.0.mlp.c_fc.weight\" has other values than those it was trained with" in done.stderr


def other_weights(models, folder):
    import onnx
    name = "transformer.h.0.mlp.c_fc.weight"
    weight = next(i for i in onnx.load(models / "gpt2_mini/model.onnx").graph.initializer if i.name == name)
    write_safetensors(folder / "other.safetensors", {name: onnx.numpy_helper.to_array(weight) + np.float32(0.01)})


def test_other_values_are_loaded(openmpi, adapted, models, tmp_path):  # noqa: F811
    exe, data = adapted
    other_weights(models, tmp_path)
    options = ["--steps=2", "--load", tmp_path / "other.safetensors"]
    alone = train([], exe, data, tmp_path, "alone", "--accumulate=2", "--data-parallel=ddp", *options)
    assert train(openmpi(2), exe, data, tmp_path, "zero3", "--data-parallel=zero3", *options)[:2] == alone[:2]


def test_adapters_are_merged_into_parts(openmpi, adapted, tmp_path):  # noqa: F811
    exe, data = adapted
    train([], exe, data, tmp_path, "first", "--steps=3", "--export-adapter", tmp_path / "adapter")
    options = ["--steps=2", "--load-adapter", tmp_path / "adapter", "--merge"]
    alone = train([], exe, data, tmp_path, "alone", "--accumulate=2", "--data-parallel=ddp", *options)
    assert train(openmpi(2), exe, data, tmp_path, "zero3", "--data-parallel=zero3", *options)[:2] == alone[:2]


@pytest.mark.parametrize("of_one, said", [
    ("--load=other.safetensors", "rank 1 has other initial weights than rank 0: --load, by its checksum "),
    ("--load-adapter=adapter --merge", "rank 1 has other initial weights than rank 0: --merge on, not off"),
    ("--load=none.safetensors", "none.safetensors: No such file")])
def test_ranks_must_load_the_same(openmpi, adapted, models, tmp_path, of_one, said):  # noqa: F811
    """Said before any rank waits for another one's part."""
    exe, data = adapted
    other_weights(models, tmp_path)
    train([], exe, data, tmp_path, "first", "--steps=1", "--export-adapter", tmp_path / "adapter")
    both = "--load-adapter=adapter" if "--merge" in of_one else ""
    script = script_of(tmp_path, f'cd {tmp_path}; set -- "$@" {both}; [ $rank = 1 ] && set -- "$@" {of_one.removeprefix(both)}; exec {exe} "$@"')
    done = call(openmpi(2, script, *data, "--steps=2", "--data-parallel=zero3", "--progress=off"), exit=None)
    assert done.returncode in (7, 9) and done.stderr.count(said) == 1, done.stderr
