"""--lora: what is frozen, what is computed, and where it can stand."""
import json
import re

import numpy as np
import onnx
import onnxruntime
import pytest
import reference
from onnx import helper, numpy_helper

RANDOM = np.random.default_rng(0)
QUIET = ("--table=off", "--progress=off", "--shuffle=off")


def save(path, nodes, inputs, outputs, weights, opset=17, **more):
    ports = [[helper.make_tensor_value_info(n, t, s) for n, (t, s) in side.items()] for side in (inputs, outputs)]
    graph = helper.make_graph(nodes, "g", *ports, [numpy_helper.from_array(np.asarray(v), n) for n, v in weights.items()], **more)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)


def floats(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


# name: (nodes, {input: shape or a table's size}, {weight: shape}, outputs' axis of w, output shape)
PLACES = {
    "gemm": ([("Gemm", ["x", "w", "b"], {})], {"x": (6, 5)}, {"w": (5, 7), "b": (7,)}, 1, (6, 7)),
    "gemm_transposed": ([("Gemm", ["x", "w", "b"], {"transB": 1, "alpha": 0.5})], {"x": (6, 5)}, {"w": (7, 5), "b": (7,)}, 0, (6, 7)),
    "gemm_from_the_left": ([("Gemm", ["w", "x"], {"transA": 1, "transB": 1}), ("Transpose", ["_0"], {})], {"x": (6, 5)}, {"w": (5, 7)}, 1, (6, 7)),
    "matmul": ([("MatMul", ["x", "w"], {})], {"x": (6, 3, 5)}, {"w": (5, 7)}, 1, (6, 3, 7)),
    "matmul_from_the_left": ([("MatMul", ["w", "x"], {})], {"x": (6, 5, 3)}, {"w": (7, 5)}, 0, (6, 7, 3)),
    "matmul_behind_transpose": ([("Transpose", ["w"], {}), ("MatMul", ["x", "_0"], {})], {"x": (6, 3, 5)}, {"w": (7, 5)}, 0, (6, 3, 7)),
    "conv": ([("Conv", ["x", "w", "b"], {"strides": [2, 1], "pads": [1, 0, 1, 2], "dilations": [1, 2]})], {"x": (6, 4, 9, 8)},
             {"w": (7, 4, 3, 2), "b": (7,)}, 0, (6, 7, 5, 8)),
    "conv_1d": ([("Conv", ["x", "w"], {})], {"x": (6, 4, 9)}, {"w": (7, 4, 3)}, 0, (6, 7, 7)),
    "conv_transpose": ([("ConvTranspose", ["x", "w"], {"strides": [2]})], {"x": (6, 4, 9)}, {"w": (4, 7, 3)}, 1, (6, 7, 19)),
    "gather": ([("Gather", ["w", "x"], {})], {"x": 11}, {"w": (11, 7)}, 1, (6, 3, 7)),
    "tied": ([("Gather", ["w", "x"], {}), ("Transpose", ["w"], {}), ("MatMul", ["_0", "_1"], {})], {"x": 11}, {"w": (11, 7)}, 0, (6, 3, 11)),
}


@pytest.fixture
def place(run, tmp_path):
    """place(NAME): its model in m.onnx, x.npy and labels.npy; gives w, and the node list's answer for another w by onnxruntime."""

    def make(name):
        rows, (x_name, x_shape), weights, axis, y = PLACES[name][0], *PLACES[name][1].items(), *PLACES[name][2:]
        nodes = [helper.make_node(op, inputs, [f"_{i}" if i + 1 < len(rows) else "y"], f"n{i}", **attributes)
                 for i, (op, inputs, attributes) in enumerate(rows)]
        x = RANDOM.integers(0, x_shape, (6, 3)) if isinstance(x_shape, int) else floats(*x_shape)
        values = {n: floats(*s) for n, s in weights.items()}
        save(tmp_path / "m.onnx", nodes, {x_name: (7 if x.dtype == np.int64 else 1, x.shape)}, {"y": (1, y)}, values)
        np.save(tmp_path / "x.npy", x)
        np.save(tmp_path / "labels.npy", floats(*y))
        return values["w"], axis, x

    return make


def delta(a, b, axis, scale):
    """scale times the product of the states a and b, in the weight's shape."""
    return scale * np.moveaxis(np.tensordot(np.asarray(b, np.float64), np.moveaxis(np.asarray(a, np.float64), axis, 0), 1), 0, axis)


def states(folder, names):
    """The arrays of the newest checkpoint below a folder."""
    files = sorted(folder.rglob("shard-*.safetensors"))
    out = {}
    for path in files:
        raw = path.read_bytes()
        n = int.from_bytes(raw[:8], "little")
        for name, t in json.loads(raw[8:8 + n]).items():
            if name in names:
                out[name] = np.frombuffer(raw[8 + n:][slice(*t["data_offsets"])], {"F32": np.float32, "F64": np.float64}[t["dtype"]]).reshape(t["shape"])
    return out


def answer(path, x):
    return onnxruntime.InferenceSession(path).run(None, {"x": x})[0]


@pytest.mark.parametrize("name, dora", [(name, dora) for name in PLACES for dora in (False, True) if name != "tied" or not dora])
def test_a_product_beside_each_weight(run, place, tmp_path, name, dora):
    """What is trained is the weight plus the product, with dora each output's part of that scaled to a learned size: merged, and with branches,
    onnxruntime computes what the executable does."""
    w, axis, x = place(name)
    run("compile", "m.onnx", "-o", "t", "--loss=mse", "--optimizer=sgd", "--lora=w,rank=3,alpha=6" + ",dora" * dora)
    parts = ["w.lora_embedding_A", "w.lora_embedding_B"] if name == "gather" else ["w.lora_A.weight", "w.lora_B.weight"]
    parts += ["w.lora_magnitude_vector"] * dora
    run(tmp_path / "t", "--data=x=x.npy", "--data=labels=labels.npy", *QUIET, "--epochs=4", "--lr=1", "--clip-norm=0.5", "--save=c", "--export=b.onnx",
        "--export-merged=m2.onnx")
    saved = states(tmp_path / "c", parts)
    a, b = (saved[p] for p in parts[:2])
    assert a.shape[axis] == 3 and b.shape == (w.shape[axis], 3)
    assert np.abs(delta(a, b, axis, 2)).max() > 1e-2
    merged = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "m2.onnx").graph.initializer}
    want, others = w + delta(a, b, axis, 2), tuple(i for i in range(w.ndim) if i != axis)
    if dora:
        size = np.expand_dims(saved[parts[2]], others)
        assert np.abs(size / np.sqrt(np.square(w).sum(others, keepdims=True)) - 1).max() > 1e-2
        want = want * size / np.sqrt(np.square(want).sum(others, keepdims=True))
    np.testing.assert_allclose(merged["w"], want, rtol=1e-6, atol=1e-6)
    want = answer(tmp_path / "m2.onnx", x)
    assert np.abs(want - answer(tmp_path / "m.onnx", x)).max() > 1e-2
    np.testing.assert_allclose(answer(tmp_path / "b.onnx", x), want, rtol=1e-5, atol=1e-5)
    run(tmp_path / "t", "--once", "--resume=c", "--input=x=x.npy", "--output-dir=out")
    np.testing.assert_allclose(np.load(tmp_path / "out/y.npy"), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", PLACES)
def test_gradients_by_the_chain_rule(run, place, tmp_path, name):
    """Of the two parts from that of the weight, in f64: dA = s B' dW, dB = s dW A'. A's gradient is not 0 once B is not."""
    w, axis, x = place(name)
    init = ["--init=*lora_*=normal(0,1)", "--precision=f64", "--loss=mse", "--input=x=x.npy", "--input=labels=labels.npy"]
    run("compile", "m.onnx", "-o", "t", "--lora=w,rank=3,alpha=6,rslora", "--optimizer=sgd", *init[:3])
    run(tmp_path / "t", "--data=x=x.npy", "--data=labels=labels.npy", *QUIET, "--steps=1", "--lr=0", "--save=c", "--dump-gradients=g", "--export-merged=m2.onnx")
    got = {n.removeprefix("grad."): g for n, g in reference.results(tmp_path / "g").items() if n != "loss"}
    saved = states(tmp_path / "c", got)
    assert got.keys() == saved.keys() and len(got) == 2
    a, b = (next(n for n in got if f"_{k}" in n) for k in "AB")
    scale = 6 / 3 ** 0.5
    # the gradient of a weight that is the sum, and that all readers share
    model = onnx.load(tmp_path / "m.onnx")
    whole = w + delta(saved[a], saved[b], axis, scale)
    for t in model.graph.initializer:
        if t.name == "w":
            t.CopyFrom(numpy_helper.from_array(whole, "w"))
        else:
            t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(t).astype(np.float64), t.name))
    for port in (*model.graph.input, *model.graph.output):
        if port.type.tensor_type.elem_type == 1:
            port.type.tensor_type.elem_type = 11
    onnx.save(model, tmp_path / "sum.onnx")
    for file in ("x", "labels"):
        value = np.load(tmp_path / f"{file}.npy")
        np.save(tmp_path / f"{file}.npy", value.astype(np.float64) if value.dtype == np.float32 else value)
    run("grad", "sum.onnx", *init[1:], "--output-dir=dense")
    dense = np.moveaxis(np.load(tmp_path / "dense/grad.w.npy"), axis, 0)
    first = np.moveaxis(saved[a], axis, 0)
    want = {a: np.moveaxis(scale * np.tensordot(saved[b].T, dense, 1), 0, axis),
            b: scale * dense.reshape(len(dense), -1) @ first.reshape(3, -1).T}
    for part in (a, b):
        assert np.abs(want[part]).max() > 1e-3
        np.testing.assert_allclose(got[part], want[part], rtol=1e-8, atol=1e-10, err_msg=part)


def batch(models, name):
    folder = models / name
    return [f"--data=input_ids={folder / 'input_ids.npy'}", f"--data=labels={folder / 'labels.npy'}", *QUIET]


@pytest.mark.parametrize("name, choice", [("gpt2_mini", "*"), ("gpt2_mini", "*.c_*.weight,dora"), ("cnn_mnist", "*"), ("cnn_mnist", "*.weight,rank=2,dora")])
def test_the_first_step_is_the_base_models(run, models, tmp_path, name, choice):
    """To the bit: its loss; and after steps the frozen weights are what they were. Layers that normalize by the batch do so when they are
    frozen, too, if --statistics=update asks for it."""
    options = [o for o in reference.compile_options(name, "f32")]
    for exe, more in (("base", []), ("lora", [f"--lora={choice}", "--statistics=update"])):
        run("compile", models / name / "model.onnx", "-o", exe, *options, *more)
    given = [o for o in reference.train_options(name, "f32") if not o.startswith(("--steps", "--log"))]
    losses = []
    for exe in ("base", "lora"):
        run(tmp_path / exe, *given, "--steps=3", f"--log={tmp_path / exe}.jsonl", *QUIET[:2], f"--export={tmp_path / exe}.onnx", cwd=models / name)
        losses.append(reference.step_losses(tmp_path / f"{exe}.jsonl"))
    assert losses[0][0] == losses[1][0] and losses[0][1:] != losses[1][1:]
    before, after = ({t.name: numpy_helper.to_array(t).tobytes() for t in onnx.load(p).graph.initializer}
                     for p in (models / name / "model.onnx", tmp_path / "lora.onnx"))
    moved = [n for n in before if before[n] != after[n]]
    assert all("running" in n for n in moved), moved


def test_only_adapters_have_gradients_and_moments(run, models, tmp_path):
    """Of the plan: no gradient and no moment of a frozen weight, and no room for one."""
    options = ["--dim=batch=8", "--dim=seq=64", "--loss=cross_entropy", "--lora=*c_attn.weight,rank=4"]
    elements = 4 * (64 * 4 + 192 * 4)
    run("compile", models / "gpt2_mini/model.onnx", "-o", "t", *options)
    assert int(json.loads(run(tmp_path / "t", "--info", "--json").stdout)["trainable_elements"]) == elements
    states = [line for line in run("dump", models / "gpt2_mini/model.onnx", "--stage=train", *options).stdout.splitlines()
              if line.startswith("  state ") and re.search(r"\] (moment|gradient) ", line)]
    units, own = ([line for line in states if line.startswith("  state @unit") == is_unit] for is_unit in (True, False))
    assert own and all(re.search(r" of @transformer\.h\.\d\.attn\.c_attn\.lora_[AB]\.weight ", line) for line in own)
    for lines in (units, own):
        assert sum(int(np.prod(json.loads(re.search(r"f32(\[[\d,]+\])", line).group(1)))) for line in lines) == 3 * elements


@pytest.mark.parametrize("adapted, kept", [(["2.weight"], 2), (["0.weight", "4.weight"], 4), ([], 0)])
def test_only_what_adapters_multiply_waits_for_the_backward(run, models, adapted, kept):
    """Of the values of the forward pass products of the backward read x and A x of adapted layers alone: the gradient in x needs the
    weight, not x."""
    options = [f"--lora={name}" for name in adapted] or ["--freeze=*.weight"]
    text = run("dump", models / "mlp_digits/model.onnx", "--after=autograd", "--batch=4", "--loss=cross_entropy", *options).stdout
    body = text.split("func @accumulate", 1)[1].split("\n  }", 1)[0]
    nodes = re.findall(r"^    %(\d+) = (\w+) (.*?)(?: \{.*?\})? : .* phase (\w+)", body, re.M)
    phase = {f"%{n}": p for n, _, _, p in nodes}
    forward = [operands.split(", ") for _, op, operands, p in nodes if op == "dot" and p == "forward"]
    read = {x for _, op, operands, p in nodes if op == "dot" and p == "backward" for x in operands.split(", ") if phase.get(x) == "forward"}
    # what waits, itself or transposed
    source = {f"%{n}": operands for n, op, operands, _ in nodes if op in ("transpose", "reshape")}
    read = {source.get(x, x) for x in read} | {x for _, op, operands, p in nodes if op == "dot" and p == "backward"
                                               for x in operands.split(", ") if x == "%input"}
    ours = {x for x, w in forward if w.startswith("@") and "lora_" in w}
    assert len(forward) == 3 + 2 * len(adapted)
    assert read == ours and len(read) == kept, (read, ours)


def test_globs_and_ranks(run, models):
    """Later choices win; the table says adapter, rank and what is frozen; --train takes more, wherever it stands."""
    rows = json.loads(run("check", models / "gpt2_mini/model.onnx", "--json", "--train=*ln_f*", "--lora=*attn*,rank=4", "--lora=*c_proj*,rank=2,alpha=1",
                          "--freeze=*ln_f.bias").stdout)["parameters"]
    rank = {r["name"]: r["shape"][1] for r in rows if r["kind"] == "adapter" and "lora_B" in r["name"]}
    assert rank == {f"transformer.h.{i}.{m}.lora_B.weight": n for i in range(4) for m, n in (("attn.c_attn", 4), ("attn.c_proj", 2), ("mlp.c_proj", 2))}
    assert [r["name"] for r in rows if r["kind"] == "trainable"] == ["transformer.ln_f.weight"]
    assert all(r["rank"] in (2, 4) and r["bytes"] == 4 * int(np.prod(r["shape"])) for r in rows if "lora" in r["name"])
    said = run("check", models / "gpt2_mini/model.onnx", "--lora=*attn*,rank=4", "--table=full").stdout
    line = next(line for line in said.splitlines() if line.startswith("  transformer.h.0.attn.c_attn.lora_A.weight"))
    assert "f32[64,4]" in line and "adapter" in line and line.endswith("--lora=*attn*: rank 4, times 2")
    bias = next(line for line in said.splitlines() if line.startswith("  transformer.h.0.attn.c_attn.bias"))
    assert "frozen" in bias and bias.endswith("--lora: not adapted: op broadcast reads it")


def test_rules_reach_the_parts(run, models):
    """--lr-scale, --no-decay and --freeze by the names of the parts, as LoRA+ wants it."""
    rows = json.loads(run("check", models / "gpt2_mini/model.onnx", "--json", "--loss=cross_entropy", "--lora=*c_attn.weight", "--lr-scale=*lora_B*=16",
                          "--freeze=*h.0*lora_A*").stdout)["parameters"]
    scale = {r["name"]: r.get("lr_scale") for r in rows if "lora" in r["name"]}
    assert scale["transformer.h.0.attn.c_attn.lora_A.weight"] is None
    assert scale["transformer.h.1.attn.c_attn.lora_A.weight"] == 1 and scale["transformer.h.1.attn.c_attn.lora_B.weight"] == 16


@pytest.mark.parametrize("options, said", [
    (["--lora=nothing*"], "--lora=nothing* fits no parameter"),
    (["--lora=*bias"], "--lora=*bias: no parameter that it names can be adapted"),
    (["--lora=*attn*", "--lora=*c_attn.weight"], None),
    (["--lora=*c_attn.weight", "--lora=*attn*"], '--lora=*c_attn.weight: no parameter that it names can be adapted\n\thint: "transformer.h.0.attn.c_attn.weight": '
                                                 "--lora=*attn*"),
    (["--lora=*,rank=0"], "--lora=*: rank=0 is not a number from 1 to"),
    (["--lora=*,rank=x"], "rank=x is not a number"),
    (["--lora=*,alpha=nan"], "alpha=nan is not"),
    (["--lora=*,ranks=3"], "--lora=* has no option ranks"),
    (["--lora=,rank=3"], "need GLOB[,rank=N]"),
    (["--lora=*,foo"], "--lora=* has no option foo"),
    (["--lora=*,dora=2"], "dora=2 is not true or false"),
    (["--lora=lm_head*,dora"], '"lm_head.weight": --lora: not adapted: dora: it is a table and the last product'),
    (["--lora=*c_attn.weight,dora", "--quantize=w8"], "not adapted: dora: its codes are read"),
])
def test_recipes_that_make_no_sense(run, models, options, said):
    done = run("check", models / "gpt2_mini/model.onnx", *options, exit=2 if said else 0)
    assert said is None or said in done.stderr, done.stderr


def test_the_matrix_of_an_autoencoder_is_no_table(run, tmp_path):
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]), helper.make_node("MatMul", ["h", "t"], ["y"])]
    save(tmp_path / "m.onnx", nodes, {"x": (1, (2, 6))}, {"y": (1, (2, 6))}, {"w": floats(6, 3)})
    assert "dora: products read it as it is and transposed, with outputs along both axes" in run("check", "m.onnx", "--lora=w,rank=2,dora", exit=2).stderr


def test_what_cannot_have_one(run, tmp_path):
    """A grouped convolution and a batch of products stay frozen, and say why; a glob of these alone is a fault."""
    nodes = [helper.make_node("Conv", ["x", "depthwise"], ["a"], group=4), helper.make_node("Conv", ["a", "plain"], ["b"]),
             helper.make_node("MatMul", ["b", "batched"], ["y"])]
    save(tmp_path / "m.onnx", nodes, {"x": (1, (2, 4, 8))}, {"y": (1, (2, 6, 5))},
         {"depthwise": floats(4, 1, 3), "plain": floats(6, 4, 1), "batched": floats(2, 6, 5)})
    rows = {r["name"]: r for r in json.loads(run("check", "m.onnx", "--lora=*", "--json").stdout)["parameters"]}
    assert set(rows) == {"depthwise", "plain", "batched", "plain.lora_A.weight", "plain.lora_B.weight"}
    for name in ("depthwise", "batched"):
        assert rows[name]["kind"] == "frozen" and rows[name]["why"] == "--lora: not adapted: groups or batches have a part of it each"
    assert "groups or batches" in run("check", "m.onnx", "--lora=depthwise", exit=2).stderr


def test_a_reader_without_a_branch(run, tmp_path):
    """Einsum is a product, too: what is merged is right, and --export says before training that it has no branch."""
    save(tmp_path / "m.onnx", [helper.make_node("Einsum", ["x", "w"], ["y"], "sum", equation="bi,oi->bo")], {"x": (1, (4, 5))}, {"y": (1, (4, 3))},
         {"w": floats(3, 5)})
    np.save(tmp_path / "x.npy", floats(4, 5))
    np.save(tmp_path / "y.npy", floats(4, 3))
    run("compile", "m.onnx", "-o", "t", "--loss=mse", "--lora=w,rank=2")
    given = [tmp_path / "t", "--data=x=x.npy", "--data=labels=y.npy", *QUIET, "--epochs=3", "--lr=0.1"]
    said = run(*given, "--export=b.onnx", exit=4).stderr
    assert 'node "sum" (Einsum) reads a weight that has an adapter, and can have no branch: --export-merged' in said
    assert not (tmp_path / "b.onnx").exists()
    run(*given, "--export-merged=m2.onnx")
    assert not np.array_equal(numpy_helper.to_array(onnx.load(tmp_path / "m2.onnx").graph.initializer[0]),
                              numpy_helper.to_array(onnx.load(tmp_path / "m.onnx").graph.initializer[0]))
    said = run(*given, "--export-adapter=a", exit=2).stderr
    assert '--export-adapter: the file does not say which parameters of a module these are: "w"; compile with --adapter-name PARAM=PATH' in said


def test_without_adapters(run, of_trace, models, tmp_path):
    given = [of_trace("mlp_digits"), *reference.train_options("mlp_digits", "f32"), *QUIET[:2]]
    for option in ("--export-merged=m.onnx", "--export-adapter=a", "--load-adapter=a"):
        said = run(*given, option, exit=2, cwd=models / "mlp_digits").stderr
        assert f"{option.split('=')[0]}: this executable has no adapters: compile with --lora" in said


def both(run, tmp_path, x, *options, lr=0.5):
    """The answers in onnxruntime of m.onnx trained and merged, and with branches; they must be one."""
    run("compile", "m.onnx", "-o", "t", "--loss=mse", "--optimizer=sgd", *options)
    run(tmp_path / "t", "--data=x=x.npy", "--data=labels=labels.npy", *QUIET, "--epochs=3", f"--lr={lr}", "--clip-norm=1", "--export=b.onnx",
        "--export-merged=m2.onnx")
    onnx.checker.check_model(onnx.load(tmp_path / "b.onnx"), full_check=True)
    merged, branches = answer(tmp_path / "m2.onnx", x), answer(tmp_path / "b.onnx", x)
    assert np.abs(merged.astype(np.float64) - answer(tmp_path / "m.onnx", x)).max() > 1e-3
    return merged, branches


@pytest.mark.parametrize("adapted", [["w"], ["v"], ["w", "v"]])
def test_weights_that_the_exporter_merged(run, tmp_path, adapted):
    """v has the numbers of w when exported, and is an Identity of it in the file: with --no-tie each has an adapter of its own, or none."""
    w = floats(5, 5)
    nodes = [helper.make_node("Identity", ["w"], ["v"]), helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Tanh", ["h"], ["t"]),
             helper.make_node("MatMul", ["t", "v"], ["y"])]
    save(tmp_path / "m.onnx", nodes, {"x": (1, (6, 5))}, {"y": (1, (6, 5))}, {"w": w})
    x = floats(6, 5)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "labels.npy", floats(6, 5))
    rows = json.loads(run("check", "m.onnx", "--json", "--no-tie=v", *(f"--lora={n},rank=2" for n in adapted)).stdout)["parameters"]
    assert sum(r["kind"] == "adapter" for r in rows) == 2 * len(adapted)
    merged, branches = both(run, tmp_path, x, "--no-tie=v", *(f"--lora={n},rank=2" for n in adapted))
    np.testing.assert_allclose(branches, merged, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("stored, used", [(np.float32, np.float16), (np.float16, np.float32), (np.float16, np.float16)])
def test_weights_of_16_bits(run, tmp_path, stored, used):
    """The adapter has the type in which the weight is multiplied."""
    kinds = {np.float32: 1, np.float16: 10}
    nodes = [helper.make_node("Cast", ["w"], ["c"], to=kinds[used]), helper.make_node("MatMul", ["a", "c"], ["h"]),
             helper.make_node("Cast", ["h"], ["y"], to=1), helper.make_node("Cast", ["x"], ["a"], to=kinds[used])]
    save(tmp_path / "m.onnx", [nodes[3], *nodes[:3]], {"x": (1, (6, 5))}, {"y": (1, (6, 4))}, {"w": floats(5, 4).astype(stored)})
    x = floats(6, 5)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "labels.npy", floats(6, 4))
    merged, branches = both(run, tmp_path, x, "--lora=w,rank=2,alpha=4")
    np.testing.assert_allclose(branches, merged, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("attributes, bias", [({"beta": 0.5, "alpha": 2.0}, (7,)), ({"transB": 1}, (6, 7)), ({"beta": 2.0}, (1, 7))])
@pytest.mark.parametrize("opset, more", [(9, ""), (17, ""), (17, ",dora")])
def test_gemm_in_all_its_forms(run, tmp_path, attributes, bias, opset, more):
    w = floats(7, 5) if attributes.get("transB") else floats(5, 7)
    save(tmp_path / "m.onnx", [helper.make_node("Gemm", ["x", "w", "b"], ["y"], **attributes)], {"x": (1, (6, 5))}, {"y": (1, (6, 7))},
         {"w": w, "b": floats(*bias)}, opset=opset)
    x = floats(6, 5)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "labels.npy", floats(6, 7))
    merged, branches = both(run, tmp_path, x, f"--lora=w,rank=2{more}")
    np.testing.assert_allclose(branches, merged, rtol=1e-5, atol=1e-5)


def test_products_of_weights_have_none(run, tmp_path):
    nodes = [helper.make_node("MatMul", ["u", "v"], ["w"]), helper.make_node("MatMul", ["x", "w"], ["y"])]
    save(tmp_path / "m.onnx", nodes, {"x": (1, (6, 5))}, {"y": (1, (6, 4))}, {"u": floats(5, 3), "v": floats(3, 4)})
    said = run("check", "m.onnx", "--lora=u", "--lora=v,dropout=0.1", exit=2).stderr
    assert '"u": --lora: not adapted: it multiplies another weight' in said


def test_a_weight_with_an_adapter_is_not_trained_besides(run, models):
    model = models / "mlp_digits/model.onnx"
    for rule in ("--train=2.weight", "--train=*"):
        said = run("check", model, "--loss=cross_entropy", "--lora=2.weight", rule, exit=2).stderr
        assert f'{rule}: "2.weight" has an adapter (--lora=2.weight): choose one of the two options' in said
    run("check", model, "--lora=2.weight", "--init=2.weight=normal(0,1)")
    assert "has an adapter" in run("check", model, "--lora=2.weight,dora", "--init=2.weight=normal(0,1)", exit=2).stderr


def test_buffers_are_no_parameters(run, models):
    rows = json.loads(run("check", models / "llama_mini/model.onnx", "--json", "--lora=*").stdout)["parameters"]
    assert {r["kind"] for r in rows} == {"frozen", "adapter"}
    table = next(r for r in rows if r["name"] == "model.rotary_emb.inv_freq")
    assert table["kind"] == "frozen" and "not adapted: no parameter: a buffer" in table["why"]


def test_several_bindings_share_adapters(run, models, tmp_path):
    """Two lengths of a text, one adapter."""
    folder = models / "gpt2_mini"
    for name in ("input_ids", "labels"):
        np.save(tmp_path / f"{name}.npy", np.load(folder / f"{name}.npy")[:, :32])
    run("compile", folder / "model.onnx", "-o", "t", "--dim=batch=4", "--dim=seq=32,64", "--loss=cross_entropy", "--lora=*attn*weight,dropout=0.1")
    losses = {}
    for seq, source in ((32, tmp_path), (64, folder)):
        run(tmp_path / "t", f"--data=input_ids={source / 'input_ids.npy'}", f"--data=labels={source / 'labels.npy'}", *QUIET, "--steps=6", "--lr=0.01",
            f"--log={seq}.jsonl", f"--export-adapter=a{seq}")
        losses[seq] = reference.step_losses(tmp_path / f"{seq}.jsonl")
    assert all(np.mean(found[-2:]) < found[0] for found in losses.values()) and losses[32] != losses[64]


def test_outputs_are_kept_apart(run, models, tmp_path):
    """Files that would be written over each other, or over data, are named before training."""
    folder = models / "mlp_digits"
    for name in ("input", "labels"):
        np.save(tmp_path / f"{name}.npy", np.load(folder / f"{name}.npy"))
    run("compile", folder / "model.onnx", "-o", "t", "--batch=64", "--loss=cross_entropy", "--lora=*.weight,rank=2", "--ema=0.5")
    given = [tmp_path / "t", "--data=input=input.npy", "--data=labels=labels.npy", *QUIET, "--steps=2", "--lr=0.01"]
    run(*given, "--export-adapter=a")
    for options in (["--export-merged=labels.npy"], ["--export=m.onnx", "--export-merged=m.onnx"], ["--load-adapter=a", "--export-adapter=a"]):
        assert run(*given, *options, exit=2).stderr.startswith("gradc: error: "), options
    assert "--find-lr and --export-merged: one of them" in run(*given, "--find-lr=1e-5,1", "--export-merged=m.onnx", exit=2).stderr
    run(*given, "--export-weights=ema", "--export-adapter=e", "--export-merged=e.onnx")
    run(*given[:-2], "--steps=0", "--load-adapter=e", "--export-merged=again.onnx")
    for a, b in zip(onnx.load(tmp_path / "e.onnx").graph.initializer, onnx.load(tmp_path / "again.onnx").graph.initializer):
        assert numpy_helper.to_array(a).tobytes() == numpy_helper.to_array(b).tobytes()
    assert (tmp_path / "a/adapter_model.safetensors").read_bytes() != (tmp_path / "e/adapter_model.safetensors").read_bytes()
    with_dora = run("compile", folder / "model.onnx", "-o", "d", "--batch=64", "--loss=cross_entropy", "--lora=2.weight,rank=2,dora")
    assert with_dora.returncode == 0


def test_ranks_end_alike_where_adapters_cannot_be_named(run, tmp_path):
    import shutil
    from pathlib import Path
    if not shutil.which("mpirun.openmpi"):
        pytest.skip("mpirun.openmpi is not installed")
    save(tmp_path / "m.onnx", [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": (1, (4, 5))}, {"y": (1, (4, 3))}, {"w": floats(5, 3)})
    np.save(tmp_path / "x.npy", floats(16, 5))
    np.save(tmp_path / "y.npy", floats(16, 3))
    run("compile", "m.onnx", "-o", "t", "--loss=mse", "--lora=w,rank=2", "--batch=4")
    done = run(Path(shutil.which("mpirun.openmpi")), "--allow-run-as-root", "--oversubscribe", "-n", "2", tmp_path / "t", "--data=x=x.npy", "--data=labels=y.npy",
               *QUIET, "--steps=2", "--export-adapter=a", exit=None, timeout=60)
    assert done.returncode == 2 and done.stderr.count("the file does not say which parameters of a module") == 1


def test_names_that_are_given(run, tmp_path):
    """--adapter-name, where the file says nothing: the weight's module; two weights cannot have the same."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("MatMul", ["h", "v"], ["y"])]
    save(tmp_path / "m.onnx", nodes, {"x": (1, (4, 5))}, {"y": (1, (4, 3))}, {"w": floats(5, 6), "v": floats(6, 3)})
    np.save(tmp_path / "x.npy", floats(8, 5))
    np.save(tmp_path / "y.npy", floats(8, 3))
    given = [tmp_path / "t", "--data=x=x.npy", "--data=labels=y.npy", *QUIET, "--steps=1", "--export-adapter=a"]
    for names, said in ((["w=enc.fc", "v=enc.fc"], 'module "enc.fc" would have two adapters, of "w" and "v"'), (["w=enc.fc.weight"], '"v"'), (["w=enc.fc", "v=dec"], None)):
        run("compile", "m.onnx", "-o", "t", "--loss=mse", "--lora=*,rank=2", *(f"--adapter-name={n}" for n in names))
        done = run(*given, exit=2 if said else 0)
        assert said is None or said in done.stderr
    header = (tmp_path / "a/adapter_model.safetensors").read_bytes()
    names = json.loads(header[8:8 + int.from_bytes(header[:8], "little")])
    assert {n for n in names if n != "__metadata__"} == {f"base_model.model.{m}.lora_{p}.weight" for m in ("enc.fc", "dec") for p in "AB"}


def test_names_that_are_given_by_a_glob(run, tmp_path):
    """A star in the replacement is what the glob's star took, of the name or of the path."""
    nodes = [helper.make_node("MatMul", ["x", "onnx::MatMul_1"], ["h"]), helper.make_node("MatMul", ["h", "onnx::MatMul_2"], ["g"]), helper.make_node("MatMul", ["g", "head"], ["y"])]
    save(tmp_path / "m.onnx", nodes, {"x": (1, (4, 5))}, {"y": (1, (4, 3))}, {"onnx::MatMul_1": floats(5, 6), "onnx::MatMul_2": floats(6, 6), "head": floats(6, 3)})
    np.save(tmp_path / "x.npy", floats(8, 5))
    np.save(tmp_path / "y.npy", floats(8, 3))
    compiled = ["compile", "m.onnx", "-o", "t", "--loss=mse", "--lora=onnx*,rank=2"]
    run(*compiled, "--adapter-name=onnx::MatMul_*=base.layers.*.q_proj", "--adapter-name=head=head.weight")
    run(tmp_path / "t", "--data=x=x.npy", "--data=labels=y.npy", *QUIET, "--steps=1", "--export-adapter=a")
    header = (tmp_path / "a/adapter_model.safetensors").read_bytes()
    names = {n for n in json.loads(header[8:8 + int.from_bytes(header[:8], "little")]) if n.endswith("lora_A.weight")}
    assert names == {f"base_model.model.base.layers.{i}.q_proj.lora_A.weight" for i in (1, 2)}
    for given, said in (("onnx::MatMul_*=same", '"onnx::MatMul_1" and "onnx::MatMul_2" would both be "same"'), ("*MatMul_*=*.*.*", "the path has 3 stars"),
                        ("MatMul_*=a.*", '"MatMul_*" fits no parameter with an adapter'), ("onnx::*=", "need PARAM=PATH"), ("*" * 9 + "=a", "9 stars, 8 are the most")):
        assert said in run(*compiled, f"--adapter-name={given}", exit=2).stderr


def test_a_matrix_that_torchscript_turned_is_turned_back(run, tmp_path):
    """torch.onnx.export(dynamo=False) writes Linear's weight as its transpose, under the name of the product."""
    nodes = [helper.make_node("MatMul", ["x", "onnx::MatMul_7"], ["h"]), helper.make_node("MatMul", ["h", "onnx::MatMul_9"], ["y"])]
    head = floats(6, 3)
    save(tmp_path / "m.onnx", nodes, {"x": (1, (4, 5))}, {"y": (1, (4, 3))}, {"onnx::MatMul_7": floats(5, 6), "onnx::MatMul_9": head})
    np.save(tmp_path / "x.npy", floats(8, 5))
    np.save(tmp_path / "y.npy", floats(8, 3))
    run("compile", "m.onnx", "-o", "t", "--loss=mse", "--lora=onnx::MatMul_7,rank=2", "--train=onnx::MatMul_9", "--adapter-name=onnx::MatMul_7=fc",
        "--adapter-name=onnx::MatMul_9=head.weight")
    run(tmp_path / "t", "--data=x=x.npy", "--data=labels=y.npy", *QUIET, "--steps=0", "--export-adapter=a")
    raw = (tmp_path / "a/adapter_model.safetensors").read_bytes()
    n = int.from_bytes(raw[:8], "little")
    t = json.loads(raw[8:8 + n])["base_model.model.head.weight"]
    assert t["shape"] == [3, 6]
    np.testing.assert_array_equal(np.frombuffer(raw[8 + n:][slice(*t["data_offsets"])], np.float32).reshape(3, 6), head.T)
    config = json.loads((tmp_path / "a/adapter_config.json").read_text())
    assert config["modules_to_save"] == ["head"] and config["target_modules"] == ["fc"] and config["fan_in_fan_out"] is False


@pytest.mark.parametrize("weight, options, said", [
    (np.zeros((0, 3), np.float32), "w", 'it has no elements'),
    (np.full((4, 3), 1e20, np.float32), "w,dora", "dora: the square of a norm of it is not finite")])
def test_weights_that_are_empty_or_huge(run, tmp_path, weight, options, said):
    save(tmp_path / "m.onnx", [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": (1, (2, weight.shape[0]))}, {"y": (1, (2, 3))}, {"w": weight})
    assert said in run("compile", "m.onnx", "-o", "t", "--loss=mse", f"--lora={options}", exit=2).stderr
