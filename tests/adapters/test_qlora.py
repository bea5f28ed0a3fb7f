"""Weights kept in 4 bits beside adapters: bitsandbytes' numbers to the bit, never whole in memory, and trained as PEFT trains them."""
import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import reference
from onnx import TensorProto, helper, numpy_helper

REFERENCES = Path(__file__).resolve().parents[1] / "references"
STORED = REFERENCES / "four_bit"
KINDS = {"nf4": "nf4_nested", "nf4,double=off": "nf4", "fp4": "fp4_nested", "fp4,double=off": "fp4"}


def save(path, node, weight, inputs, outputs):
    """y = node(x, w), x of as many rows as are bound."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", *inputs])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", *outputs])
    graph = helper.make_graph([node], "g", [x], [y], [numpy_helper.from_array(weight, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


PLACES = {  # node, how it holds [outputs, inputs]; shapes of x and y
    "transposed": (helper.make_node("Gemm", ["x", "w"], ["y"], transB=1), lambda w: w, (117,), (149,)),
    "as it is": (helper.make_node("MatMul", ["x", "w"], ["y"]), lambda w: w.T.copy(), (117,), (149,)),
    "convolution": (helper.make_node("Conv", ["x", "w"], ["y"]), lambda w: w.reshape(149, 13, 3, 3), (13, 5, 5), (149, 3, 3)),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_numbers_are_bitsandbytes(run, tmp_path, place, kind):
    """Before the first step the merged model has them, in the weight's own order."""
    node, layout, inputs, outputs = PLACES[place]
    save(tmp_path / "m.onnx", node, layout(np.load(STORED / "x.npy")), inputs, outputs)
    run("compile", "m.onnx", "-o", "t", "--dim=n=4", "--loss=mse", f"--qlora=w,bits={kind}")
    random = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", np.float32(random.normal(size=(4, *inputs))))
    np.save(tmp_path / "y.npy", np.float32(random.normal(size=(4, *outputs))))
    run(tmp_path / "t", "--data=x=x.npy", "--data=labels=y.npy", "--steps=1", "--lr=0", "--weight-decay=0",
        "--export-merged=a.onnx", "--export=b.onnx")
    want = layout(np.load(STORED / f"{KINDS[kind]}_numbers.npy"))
    for file in ("a.onnx", "b.onnx"):
        got = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / file).graph.initializer}["w"]
        assert got.shape == want.shape and got.tobytes() == want.tobytes()


@pytest.mark.parametrize("options", [[], ["--precision=bf16"]])
def test_a_step_is_that_of_the_numbers(run, models, tmp_path, options):
    """A model whose weights are what the codes stand for trains with --lora as the other does: the same products of the same numbers."""
    known, common = models / "llama_mini", ["--dim=batch=4", "--dim=seq=64", "--loss=cross_entropy"]
    train = ["--data", f"input_ids={known / 'input_ids.npy'}", "--data", f"labels={known / 'labels.npy'}", "--table=off", "--progress=off"]
    run("compile", known / "model.onnx", "-o", "q", *common, "--qlora=*proj.weight,rank=4", *options)
    run(tmp_path / "q", *train, "--steps=0", "--export-merged=m.onnx")
    run("compile", "m.onnx", "-o", "l", *common, "--lora=*proj.weight,rank=4", *options)
    for name in "ql":
        run(tmp_path / name, *train, "--steps=6", f"--log={name}.jsonl")
    got, want = (reference.step_losses(tmp_path / f"{name}.jsonl") for name in "ql")
    np.testing.assert_allclose(got, want, rtol=2e-2 if options else 1e-5)


@pytest.mark.parametrize("case, options", [("llama_qlora", ["--qlora=*proj.weight,alpha=16"]),
                                           ("gpt2_qlora", ["--qlora=*c_*.weight,bits=fp4,double=off,rank=4,alpha=8"])])
def test_curves_in_bf16_are_as_near_as_the_recipes(run, models, tmp_path, case, options):
    """bf16 products over weights of 4 bits: at most twice as far from f64 as PEFT's under autocast, plus 1e-4."""
    stored = REFERENCES / "peft" / case
    curve = json.loads((stored / "curve.json").read_text())
    known = models / curve["model"]
    run("compile", known / "model.onnx", "-o", "t", "--dim=batch=8", "--dim=seq=64", "--loss=cross_entropy:logits", "--precision=bf16", *options)
    run(tmp_path / "t", f"--data=input_ids={known / 'input_ids.npy'}", f"--data=labels={known / 'labels.npy'}", "--table=off", "--progress=off",
        "--shuffle=off", "--steps=20", "--lr=0.003", "--weight-decay=0.01", f"--load-adapter={stored / 'start'}", "--log=log.jsonl")
    exact = np.array(curve["losses"])

    def distance(losses):
        return np.sqrt(np.mean(((np.array(losses) - exact) / np.maximum(exact, exact[0] / 10)) ** 2))

    assert distance(reference.step_losses(tmp_path / "log.jsonl")) <= 2 * distance(curve["autocast"]) + 1e-4


def kernels(text):
    """{name: text} of a module's dump."""
    return {part.split("(")[0]: part for part in re.split(r"^  kernel @", text, flags=re.M)[1:]}


def elements(shape):
    return int(np.prod([int(d) for d in shape.split(",") if d] or [1]))


@pytest.fixture
def large(tmp_path):
    """x v w: elements of w [512,768], with which nothing else compares. v is small, and a gradient goes through w to its adapter."""
    random = np.random.default_rng(0)
    nodes = [helper.make_node("MatMul", ["x", "v"], ["h"]), helper.make_node("MatMul", ["h", "w"], ["y"])]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size]) for name, size in (("x", 4), ("y", 768))]
    weights = {"v": random.normal(size=(4, 512)), "w": random.normal(size=(512, 768)) / 16}
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], [numpy_helper.from_array(np.float32(w), name) for name, w in weights.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx")
    return 512 * 768


@pytest.mark.parametrize("target, precision", [("cpu", "f32"), ("cpu", "bf16"), ("cuda:sm_90a", "bf16")])
def test_no_weight_is_whole_in_memory(run, large, target, precision):
    """Of what reads its codes, nothing has a sixteenth of its numbers, in memory or in arrays of a part; forward and backward. Sums have 31 rows."""
    text = run("dump", "m.onnx", "--dim=n=31", "--loss=mse", "--qlora=w,rank=4", "--lora=v", "--stage=memory", f"--target={target}", f"--precision={precision}").stdout
    readers = {name: k for name, k in kernels(text).items() if f"u8[{large // 2}]" in k.split("{")[0]}
    assert len(readers) >= 2
    for name, kernel in readers.items():
        assert "dequantize_dot" in name
        stored = re.findall(r"out \w+\[([\d,]*)\]", kernel.split("{")[0])
        arrays = re.findall(r"^    (?:local|shared|private) \w+ : \w+\[([\d,]*)\]", kernel, re.M)
        assert all(elements(shape) <= large // 16 for shape in arrays), (name, arrays)
        assert all(elements(shape) % 31 == 0 for shape in stored), (name, stored)
    for shape in re.findall(r" : (?:f32|bf16)\[([\d,]*)\]", text):
        assert elements(shape) <= large // 16 or elements(shape) % 31 == 0


def test_bits_of_a_weight(run, large, tmp_path):
    """4.127 in the executable's states, with what belongs to the codes; and it is named as what it stands for."""
    run("compile", "m.onnx", "-o", "t", "--dim=n=24", "--loss=mse", "--qlora=w,rank=4")
    states = {s["name"]: s for s in json.loads(run(tmp_path / "t", "--info", "--json").stdout)["states"]}
    names = ["w", "w.absmax", "w.nested_absmax", "w.nested_offset"]
    assert 4.125 < 8 * sum(states[name]["bytes"] for name in names) / large < 4.13
    assert states["w"]["holds"] == {"format": "nf4", "dtype": "f32", "shape": [512, 768]}
    assert "u8[196608] \"w\" nf4 of f32[512,768]" in run(tmp_path / "t", "--info").stdout


def layers(path, count):
    """`count` square products, one after the other."""
    random, size = np.random.default_rng(0), 256
    nodes = [helper.make_node("MatMul", [f"h{i}", f"w{i}"], [f"h{i + 1}"]) for i in range(count)]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size]) for name in ("h0", f"h{count}")]
    weights = [numpy_helper.from_array(np.float32(random.normal(size=(size, size)) / 16), f"w{i}") for i in range(count)]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", ports[:1], ports[1:], weights), opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def test_sizes_of_blocks_are_made_for_one_product_at_a_time(run, tmp_path):
    """Of a plan of many layers: as numbers they take no more than as codes, of which they are made beside each product."""
    layers(tmp_path / "m.onnx", 12)
    total = {}
    for double in ("on", "off"):
        text = run("compile", "m.onnx", "-o", "t", "--dim=n=4", "--loss=mse", f"--qlora=*,rank=1,double={double}", "--json").stdout
        total[double] = json.loads(text)["memory"]
    assert total["on"]["workspace"] <= total["off"]["workspace"] + 2 * 4 * 256 * 256 // 64
    assert total["off"]["state"] - total["on"]["state"] > 12 * 2.7 * 256 * 256 // 64


def test_weights_of_convolutions_are_not_whole_either(run, tmp_path):
    """Transposed ones, too, whose outputs are the second axis."""
    for op, shape, inner in (("Conv", (96, 80, 3, 3), 80), ("ConvTranspose", (96, 80, 3, 3), 96)):
        random = np.random.default_rng(0)
        nodes = [helper.make_node("Conv", ["x", "v"], ["h"]), helper.make_node(op, ["h", "w"], ["y"], pads=[1, 1, 1, 1])]
        ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size, 7, 7]) for name, size in (("x", 2), ("y", 96 + 80 - inner))]
        weights = [numpy_helper.from_array(np.float32(random.normal(size=s) / 9), n) for n, s in (("v", (inner, 2, 1, 1)), ("w", shape))]
        onnx.save(helper.make_model(helper.make_graph(nodes, "g", ports[:1], ports[1:], weights), opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx")
        text = run("dump", "m.onnx", "--dim=n=3", "--loss=mse", "--qlora=w,rank=4", "--lora=v", "--stage=memory").stdout
        whole = int(np.prod(shape))
        assert f"u8[{whole // 2}]" in text and not re.search(r"f32\[(96,80,3,3|80,96,3,3|%d)\]" % whole, text.split("kernel @", 1)[1]), op


def test_dora(run, models, tmp_path):
    """Sizes of outputs are those of the numbers: the first loss is without them, and what is merged computes what trained."""
    known = models / "gpt2_mini"
    losses = []
    for more in ("", ",dora"):
        run("compile", known / "model.onnx", "-o", "t", "--dim=batch=8", "--dim=seq=64", "--loss=cross_entropy", f"--qlora=*c_*.weight,rank=4{more}")
        train = [tmp_path / "t", f"--data=input_ids={known / 'input_ids.npy'}", f"--data=labels={known / 'labels.npy'}", "--table=off", "--progress=off",
                 "--shuffle=off", "--lr=0.01"]
        run(*train, "--steps=4", "--export-merged=m.onnx", "--export=b.onnx")
        run(*train, "--steps=5", "--log=log.jsonl")
        losses.append(reference.step_losses(tmp_path / "log.jsonl"))
    ids = np.load(known / "input_ids.npy")[:8]
    merged, branches = (onnxruntime.InferenceSession(tmp_path / f).run(None, {"input_ids": ids})[0] for f in ("m.onnx", "b.onnx"))
    assert losses[0][0] == losses[1][0] and losses[0][1:] != losses[1][1:]
    assert np.abs(merged - branches).max() < 1e-5 * np.abs(merged).max()
    run("compile", "m.onnx", "-o", "m", "--dim=batch=8", "--dim=seq=64", "--loss=cross_entropy")
    for name in ("input_ids", "labels"):
        np.save(tmp_path / f"{name}.npy", np.load(known / f"{name}.npy")[32:40])
    run(tmp_path / "m", "--data=input_ids=input_ids.npy", "--data=labels=labels.npy", "--steps=1", "--lr=0", "--table=off", "--log=after.jsonl")
    np.testing.assert_allclose(reference.step_losses(tmp_path / "after.jsonl")[0], losses[1][4], rtol=1e-6)


@pytest.mark.parametrize("options, said", [
    (["--qlora=w,bits=int3"], "--qlora=w: bits=int3 is not nf4 or fp4"),
    (["--qlora=w,double=maybe"], "--qlora=w: double=maybe is not true or false"),
    (["--lora=w,bits=nf4"], "--lora=w has no option bits"),
    (["--qlora=weight"], "--qlora=weight fits no parameter"),
    (["--qlora="], "--qlora=: need GLOB[,bits=nf4|fp4][,double=on|off]"),
    (["--qlora=w", "--init=w=zeros"], '--init=w: "w" has an adapter (--qlora=w): choose one of the two options'),
    (["--qlora=w", "--train=*"], '--train=*: "w" has an adapter (--qlora=w): choose one of the two options'),
    (["--qlora=w", "--disable=lora"], "--disable=lora: another option asks for that pass"),
    (["--qlora=w,rank=2,rank=3"], "--qlora=w: rank is given twice"),
    (["--qlora=w", "--adapter-name=w="], "--adapter-name=w=: need PARAM=PATH"),
    (["--qlora=w,init=gauss"], "--qlora=w: init=gauss is not kaiming or pissa"),
    (["--qlora=w", "--quantize=w8", "--opset=21"], "qlora: other codes of it are read (--quantize)"),
])
def test_recipes_that_make_no_sense(run, large, options, said):
    assert said in run("compile", "m.onnx", "-o", "t", "--dim=n=24", "--loss=mse", *options, exit=2).stderr


def test_numbers_that_have_no_code(run, tmp_path):
    weight = np.float32(np.ones((8, 8)))
    weight[2, 3] = np.inf
    save(tmp_path / "m.onnx", PLACES["as it is"][0], weight, (8,), (8,))
    said = run("compile", "m.onnx", "-o", "t", "--dim=n=4", "--loss=mse", "--qlora=w", exit=2).stderr
    assert '"w": --qlora: not adapted: one of its numbers is not finite' in said


def test_a_base_that_pefts_file_has_is_left_out(run, models, tmp_path):
    """PEFT writes a table that has an adapter, too: here it is what its codes stand for."""
    known = models / "llama_mini"
    run("compile", known / "model.onnx", "-o", "t", "--dim=batch=8", "--dim=seq=64", "--loss=cross_entropy", "--qlora=*proj.weight,rank=4,alpha=6,rslora",
        "--qlora=*embed_tokens*,rank=4,alpha=6,rslora")
    done = run(tmp_path / "t", f"--data=input_ids={known / 'input_ids.npy'}", f"--data=labels={known / 'labels.npy'}", "--steps=1", "--table=off",
               f"--load-adapter={REFERENCES / 'peft/llama_rslora/trained'}")
    assert 'embed_tokens.base_layer.weight" is left out: the weight keeps the 4-bit codes that were compiled' in done.stderr


def test_other_weights_need_another_executable(run, large, tmp_path):
    run("compile", "m.onnx", "-o", "t", "--dim=n=24", "--loss=mse", "--qlora=w")
    raw, header = np.ones((512, 768), np.float32).tobytes(), {"w": {"dtype": "F32", "shape": [512, 768], "data_offsets": [0, 4 * large]}}
    text = json.dumps(header).encode()
    (tmp_path / "w.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + raw)
    np.save(tmp_path / "x.npy", np.ones((24, 4), np.float32))
    np.save(tmp_path / "y.npy", np.ones((24, 768), np.float32))
    said = run(tmp_path / "t", "--data=x=x.npy", "--data=labels=y.npy", "--steps=1", "--load=w.safetensors", exit=2).stderr
    assert '"w" is kept in 4 bits: compile the model that has the other weights' in said


def test_the_example(tmp_path):
    """examples/qlora/run, shorter: it ends with lines of both models, which differ."""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([root / "examples/qlora/run", tmp_path / "out"], text=True, capture_output=True, timeout=300, env={**os.environ, "STEPS": "20"})
    assert done.returncode == 0, done.stderr
    base, merged = re.findall(r"^\S+\.onnx:\nAnd the (.*?)\n\n", done.stdout, re.M | re.S)
    assert len(base) > 200 and base != merged
    assert (tmp_path / "out/adapter/adapter_model.safetensors").exists()
