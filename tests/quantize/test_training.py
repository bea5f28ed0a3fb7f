"""Models that hold codes are trained as they stand: floats behind the codes, which are quantized wherever they are read and written as
codes again."""
import json
import os
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, numpy_helper

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "import"))
from make_malformed import model, node, tensor, value  # noqa: E402

MICROSOFT = "com.microsoft"
ROWS = 32


def held(**arrays):
    return [tensor(name, a) for name, a in arrays.items()]


def codes(random, kind, *shape):
    info = np.iinfo(kind)
    return random.integers(info.min, info.max + 1, shape).astype(kind)


def pair(name, source, into, **attributes):
    names = [f"{name}s", f"{name}z"]
    return [node("QuantizeLinear", [source, *names], [f"{name}q"], name=f"{name}q", **attributes),
            node("DequantizeLinear", [f"{name}q", *names], [into], name=into, **attributes)]


def pairs(random):
    """As quantize_static writes it: a weight per channel, a bias of s32."""
    scales = np.float32(random.uniform(0.005, 0.02, 5))
    weights = held(xs=np.float32(0.03), xz=np.uint8(120), w=codes(random, "i1", 5, 12), ws=scales, wz=np.zeros(5, "i1"),
                   b=random.integers(-3000, 3000, 5).astype(np.int32), bs=np.float32(0.03) * scales, bz=np.zeros(5, np.int32))
    nodes = [*pair("x", "x", "a"), node("DequantizeLinear", ["w", "ws", "wz"], ["v"], name="v", axis=0),
             node("DequantizeLinear", ["b", "bs", "bz"], ["c"], name="c", axis=0),
             node("Gemm", ["a", "v", "c"], name="gemm", transB=1)]
    return nodes, weights, (12,), ("w", "b")


def blocks(random):
    """Codes of 4 bits with a scale and a zero point a block, the last one shorter."""
    four = onnx.helper.make_tensor("w", TensorProto.INT4, (10, 5), random.integers(-8, 8, 50))
    zeros = onnx.helper.make_tensor("z", TensorProto.INT4, (3, 5), random.integers(-2, 3, 15))
    weights = [four, zeros, *held(s=np.float32(random.uniform(0.02, 0.2, (3, 5))))]
    nodes = [node("DequantizeLinear", ["w", "s", "z"], ["v"], name="v", axis=0, block_size=4),
             node("MatMul", ["x", "v"], name="product")]
    return nodes, weights, (10,), ("w",)


def qlinear(random):
    """Layers that take and give codes, of weights with a zero point."""
    weights = held(xs=np.float32(0.02), xz=np.uint8(128), w=codes(random, "u1", 4, 2, 3, 3), ws=np.float32(0.004),
                   wz=np.uint8(130), ys=np.float32(0.05), yz=np.uint8(100), flat=np.array([-1, 36]),
                   m=codes(random, "i1", 36, 5), ms=np.float32(0.01), mz=np.int8(0), zs=np.float32(0.5), zz=np.uint8(128))
    layer = ["q", "xs", "xz", "w", "ws", "wz", "ys", "yz"]
    nodes = [node("QuantizeLinear", ["x", "xs", "xz"], ["q"], name="q"),
             node("QLinearConv", layer, ["c"], name="c", pads=[1, 1, 1, 1]),
             node("MaxPool", ["c"], ["p"], name="p", kernel_shape=[2, 2], strides=[2, 2]),
             node("Reshape", ["p", "flat"], ["f"], name="f"),
             node("QLinearMatMul", ["f", "ys", "yz", "m", "ms", "mz", "zs", "zz"], ["g"], name="g"),
             node("DequantizeLinear", ["g", "zs", "zz"], name="d")]
    return nodes, weights, (2, 6, 6), ("w", "m")


def nbits(random):
    weights = held(w=codes(random, "u1", 5, 3, 16), s=np.float32(random.uniform(0.02, 0.1, (5, 3))), z=codes(random, "u1", 5, 2))
    step = node("MatMulNBits", ["x", "w", "s", "z"], domain=MICROSOFT, N=5, K=80, bits=4, block_size=32)
    return [step], weights, (80,), ("w",)


def dynamic(random):
    """As quantize_dynamic writes it with reduce_range: on a CPU without VNNI onnxruntime's sum of two u8 times s8 saturates at 16 bits."""
    weights = held(w=random.integers(-40, 40, (12, 5)).astype("i1"), wz=np.int8(0), ws=np.float32(0.08))
    nodes = [node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], name="q"),
             node("MatMulInteger", ["q", "w", "z", "wz"], ["i"], name="i"),
             node("Cast", ["i"], ["f"], name="f", to=TensorProto.FLOAT),
             node("Mul", ["s", "ws"], ["both"], name="both"), node("Mul", ["f", "both"])]
    return nodes, weights, (12,), ("w",)


MODELS = [pairs, blocks, qlinear, nbits, dynamic]


@pytest.fixture(scope="module", params=MODELS, ids=lambda m: m.__name__)
def case(request, gradc, tmp_path_factory):
    """A folder with the model, its data and an executable; and the names of its weights in codes."""
    folder = tmp_path_factory.mktemp(request.param.__name__)
    random = np.random.default_rng(3)
    nodes, weights, shape, names = request.param(random)
    proto = model(nodes, inputs=[value("x", (8, *shape))], outputs=[value("y", (8, 5))], initializers=weights, opset=21,
                  ir=10, imports=[onnx.helper.make_opsetid(MICROSOFT, 1)])
    onnx.save(proto, folder / "model.onnx")
    np.save(folder / "x.npy", np.float32(random.normal(size=(ROWS, *shape))))
    np.save(folder / "labels.npy", np.float32(random.normal(size=(ROWS, 5))))
    return folder, names


@pytest.fixture
def train(run, case):
    """train(OPTION...): the exported model's initializers by name, and the lines of the log."""
    folder, _ = case

    def train_it(*options, compile_options=()):
        run("compile", "model.onnx", "-o", "train", "--loss=mse", *(compile_options or ["--optimizer=sgd"]), cwd=folder)
        run(folder / "train", "--data=x=x.npy", "--data=labels=labels.npy", "--eval-data=x=x.npy",
            "--eval-data=labels=labels.npy", "--export=out.onnx", "--log=log.jsonl", "--progress=off", *options, cwd=folder)
        lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        return {t.name: t for t in onnx.load(folder / "out.onnx").graph.initializer}, lines

    return train_it


def run_trained(folder, lines):
    """In onnxruntime the exported model has the loss that the executable evaluated."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(folder / "out.onnx", options, providers=["CPUExecutionProvider"])
    x, labels = np.load(folder / "x.npy"), np.load(folder / "labels.npy")
    y = np.concatenate([session.run(["y"], {"x": x[i:i + 8]})[0] for i in range(0, ROWS, 8)])
    evaluated = [line["eval_loss"] for line in lines if "eval_loss" in line][-1]
    np.testing.assert_allclose(np.mean((y - labels) ** 2), evaluated, rtol=1e-4)


@pytest.mark.parametrize("learning", [[], ["--scale-learning=lsq"]], ids=["fixed", "learned"])
@pytest.mark.parametrize("make", MODELS, ids=lambda m: m.__name__)
def test_codes_in_constant_nodes(run, tmp_path, make, learning):
    """They train as initializers do, and are written into their nodes again."""
    random = np.random.default_rng(3)
    nodes, weights, shape, names = make(random)
    np.save(tmp_path / "x.npy", np.float32(random.normal(size=(ROWS, *shape))))
    np.save(tmp_path / "labels.npy", np.float32(random.normal(size=(ROWS, 5))))
    constants = [node("Constant", [], [w.name], name=f"make_{w.name}", value=w) for w in weights]
    found = {}
    for kind, (steps, kept, options) in {"initializers": (nodes, weights, learning), "nodes": (constants + nodes, [], learning)}.items():
        proto = model(steps, inputs=[value("x", (8, *shape))], outputs=[value("y", (8, 5))], initializers=kept, opset=21, ir=10,
                      imports=[onnx.helper.make_opsetid(MICROSOFT, 1)])
        onnx.save(proto, tmp_path / "model.onnx")
        run("compile", "model.onnx", "-o", "train", "--loss=mse", "--optimizer=sgd", *options)
        run(tmp_path / "train", "--data=x=x.npy", "--data=labels=labels.npy", "--steps=5", "--lr=0.1", "--export=out.onnx", "--log=log.jsonl", "--progress=off")
        graph = onnx.load(tmp_path / "out.onnx").graph
        assert sum(n.op_type == "Constant" for n in graph.node) == (len(weights) if kind == "nodes" else 0)
        held = {t.name: t for t in graph.initializer} | {n.output[0]: n.attribute[0].t for n in graph.node if n.op_type == "Constant"}
        losses = [line["loss"] for line in map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines()) if "lr" in line]
        found[kind] = losses, {n: numpy_helper.to_array(t).tobytes() for n, t in held.items()}
    assert found["nodes"] == found["initializers"] and len(set(found["nodes"][0])) == 5
    before = {t.name: numpy_helper.to_array(t).tobytes() for t in weights}
    assert any(found["nodes"][1][n] != before[n] for n in names)


def test_untrained_codes_are_those_of_the_file(case, train):
    """The way to floats and back."""
    folder, _ = case
    after, _ = train("--steps=0")
    for before in onnx.load(folder / "model.onnx").graph.initializer:
        assert numpy_helper.to_array(before).tobytes() == numpy_helper.to_array(after[before.name]).tobytes(), before.name


def test_trained_codes_are_what_training_computed_with(case, train):
    """In onnxruntime the exported model has the loss that the executable evaluated."""
    folder, names = case
    after, lines = train("--steps=40", "--lr=0.02", "--eval-every=40")
    before = {t.name: t for t in onnx.load(folder / "model.onnx").graph.initializer}
    for name, t in before.items():
        same = numpy_helper.to_array(t).tobytes() == numpy_helper.to_array(after[name]).tobytes()
        assert same == (name not in names), name
        assert (t.data_type, list(t.dims)) == (after[name].data_type, list(after[name].dims))
    run_trained(folder, lines)
    losses = [line["loss"] for line in lines if "loss" in line]
    assert np.mean(losses[-4:]) < 0.9 * np.mean(losses[:4])


@pytest.mark.parametrize("case", [pairs, blocks, qlinear, nbits], indirect=True, ids=lambda m: m.__name__)
def test_learned_scales_are_written(case, train):
    """They train with the weights; onnxruntime has the executable's loss."""
    folder, names = case
    fixed, _ = train("--steps=60", "--lr=0.001", compile_options=["--optimizer=adam"])
    after, lines = train("--steps=60", "--lr=0.001", "--eval-every=60", compile_options=["--scale-learning=lsq", "--optimizer=adam"])
    before = {t.name: t for t in onnx.load(folder / "model.onnx").graph.initializer}
    for name in {"xs", "ws", "ms", "s"} & before.keys():
        assert numpy_helper.to_array(before[name]).tobytes() != numpy_helper.to_array(after[name]).tobytes(), name
        assert numpy_helper.to_array(before[name]).tobytes() == numpy_helper.to_array(fixed[name]).tobytes(), name
    run_trained(folder, lines)


@pytest.mark.parametrize("least", [-0.01, 1e-9])
def test_scales_below_the_bound_stay(run, tmp_path, least):
    """They would be read as 2^-23: the model computes what the file does, and says why they are not learned."""
    codes, scale = np.random.default_rng(4).integers(-8, 8, (3, 2)).astype(np.int8), np.float32([0.02, least])
    onnx.save(model([node("DequantizeLinear", ["c", "s"], ["w"], name="dq", axis=1), node("MatMul", ["x", "w"], name="p")], inputs=[value("x", (4, 3))],
                    outputs=[value("y", (4, 2))], initializers=[tensor("c", codes), tensor("s", scale)], opset=21, ir=10), tmp_path / "model.onnx")
    x, labels = np.ones((4, 3), np.float32), np.zeros((4, 2), np.float32)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "labels.npy", labels)
    done = run("compile", "model.onnx", "-o", "train", "--loss=mse", "--optimizer=sgd", "--scale-learning=lsq")
    assert '--scale-learning: "s" stays as it is: it holds a scale below 2^-23' in done.stderr
    run(tmp_path / "train", "--data=x=x.npy", "--data=labels=labels.npy", "--steps=1", "--lr=0.001", "--log=log.jsonl", "--export=out.onnx", "--progress=off")
    loss = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[0])["loss"]
    np.testing.assert_allclose(loss, np.square(x @ (codes * scale)).mean(), rtol=1e-5)
    held = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "out.onnx").graph.initializer}
    assert held["s"].tobytes() == scale.tobytes()


def test_no_scale_to_learn(run, tmp_path):
    onnx.save(model([node("MatMul", ["x", "w"])], initializers=[tensor("w", np.ones((3, 2), np.float32))]), tmp_path / "model.onnx")
    done = run("compile", "model.onnx", "-o", "train", "--loss=mse", "--scale-learning=lsq", exit=2)
    assert "--scale-learning: the model holds no scale of codes" in done.stderr
    for bad in ("pact", "lsq,scale-grad=big", "lsq,gradient=none"):
        assert "--scale-learning" in run("compile", "model.onnx", "-o", "train", f"--scale-learning={bad}", exit=2).stderr


def test_frozen_codes_stay(case, train):
    """The one named, and no other."""
    folder, names = case
    if len(names) == 1:
        pytest.skip("has one weight: nothing would be trained")
    after, _ = train("--steps=10", "--lr=0.05", compile_options=[f"--freeze={names[0]}", "--optimizer=sgd"])
    before = {t.name: t for t in onnx.load(folder / "model.onnx").graph.initializer}
    same = [numpy_helper.to_array(before[n]).tobytes() == numpy_helper.to_array(after[n]).tobytes() for n in names]
    assert same == [True, False]


# ---- odd files
def save(folder, nodes, weights, shape, outputs=5, opset=21):
    onnx.save(model(nodes, inputs=[value("x", shape)], outputs=[value("y", (shape[0], outputs))], initializers=weights, opset=opset,
                    ir=10, imports=[onnx.helper.make_opsetid(MICROSOFT, 1)]), folder / "model.onnx")
    random = np.random.default_rng(1)
    np.save(folder / "x.npy", np.float32(random.normal(size=shape)))
    np.save(folder / "labels.npy", np.float32(random.normal(size=(shape[0], outputs))))


def train_once(run, folder, *options, compile_options=()):
    run("compile", "model.onnx", "-o", "train", "--loss=mse", *compile_options)
    run(folder / "train", "--data=x=x.npy", "--data=labels=labels.npy", "--export=out.onnx", "--log=log.jsonl", "--progress=off", *options)
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(folder / "out.onnx").graph.initializer}


def test_codes_that_would_not_come_back_stay(run, tmp_path):
    """By a scale of 0 all of them are 0; f32 has 24 bits."""
    random = np.random.default_rng(2)
    weights = held(w=codes(random, "i1", 12, 5), s=np.float32([0.01, 0, 0.02, 0.01, 0.02]), b=np.int32([2**30 + 1, 1, 2, 3, 4]),
                   t=np.float32(1e-9), z=np.int32(0), v=np.ones(5, np.float32))
    save(tmp_path, [node("DequantizeLinear", ["w", "s"], ["d"], name="d", axis=1), node("DequantizeLinear", ["b", "t", "z"], ["c"], name="c"),
                    node("Gemm", ["x", "d", "c"], ["g"], name="g"), node("Mul", ["g", "v"], name="m")], weights, (8, 12))
    after = train_once(run, tmp_path, "--steps=3")
    before = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "model.onnx").graph.initializer}
    assert [n for n in before if before[n].tobytes() != after[n].tobytes()] == ["v"]
    losses = [json.loads(line)["loss"] for line in (tmp_path / "log.jsonl").read_text().splitlines() if '"loss"' in line]
    assert np.isfinite(losses).all()


def one_layer(folder):
    random = np.random.default_rng(2)
    weights = held(w=codes(random, "i1", 12, 5), ws=np.float32(random.uniform(0.01, 0.02, 5)), xs=np.float32(0.02), xz=np.uint8(128))
    save(folder, [*pair("x", "x", "a"), node("DequantizeLinear", ["w", "ws"], ["v"], name="v", axis=1), node("MatMul", ["a", "v"], name="m")],
         weights, (8, 12))


@pytest.mark.parametrize("options, changed", [
    (["--scale-learning=lsq"], {"w", "ws", "xs"}), (["--scale-learning=lsq", "--freeze=ws"], {"w", "xs"}),
    (["--scale-learning=lsq", "--freeze=w"], {"xs"}), (["--scale-learning=torch", "--freeze=*", "--train=xs"], {"xs"}),
    (["--train=ws", "--freeze=w"], {"ws"}), (["--train=ws"], {"w", "ws"}), ([], {"w"})])
def test_who_is_trained(run, tmp_path, options, changed):
    """Rules over names hold for scales; a weight in codes that is frozen keeps them."""
    one_layer(tmp_path)
    after = train_once(run, tmp_path, "--steps=5", "--lr=0.001", compile_options=[*options, "--optimizer=adam"])
    before = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "model.onnx").graph.initializer}
    differ = {n for n in before if before[n].tobytes() != after[n].tobytes()}
    assert differ - {"w"} == changed - {"w"} and ("w" in changed or "w" not in differ)


@pytest.mark.parametrize("kind", ["lsq", "torch"])
def test_scales_stay_positive(run, tmp_path, kind):
    """By a decay of 1.5 times themselves scales and weights change their signs; PyTorch's least scale is kept, and codes are by it."""
    one_layer(tmp_path)
    before = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "model.onnx").graph.initializer}
    options = [f"--scale-learning={kind}", "--optimizer=adamw", "--decay=*"]
    after = train_once(run, tmp_path, "--steps=1", "--lr=1e-7", "--weight-decay=1.5e7", compile_options=options)
    assert after["ws"].tolist() == [2**-23] * 5 and after["xs"] == 2**-23
    np.testing.assert_array_equal(after["w"], np.where(before["w"] > 0, -128, np.where(before["w"] < 0, 127, 0)))


def test_codes_without_an_axis_are_trained(run, tmp_path):
    """A bias with one scale: the default axis does not exist there."""
    random = np.random.default_rng(2)
    weights = held(w=np.float32(random.normal(size=(12, 5))), b=np.int32([100, 200, 300, 400, 500]), s=np.float32(0.001), z=np.int32(0))
    save(tmp_path, [node("DequantizeLinear", ["b", "s", "z"], ["c"], name="c"), node("Gemm", ["x", "w", "c"], name="m")], weights, (8, 12))
    shown = json.loads(run("check", "model.onnx", "--json").stdout)
    assert {p["name"]: p["kind"] for p in shown["parameters"]}["b"] == "trainable"
    assert train_once(run, tmp_path, "--steps=2", "--lr=0.1")["b"].tolist() != [100, 200, 300, 400, 500]


def test_the_middle_code_is_zero(run, tmp_path):
    """MatMulNBits of 8 bits without zero points: code 128 is 0, which weight decay keeps."""
    weights = held(w=np.full((5, 1, 32), 128, np.uint8), s=np.full((5, 1), 0.5, np.float32))
    save(tmp_path, [node("MatMulNBits", ["x", "w", "s"], domain=MICROSOFT, N=5, K=32, bits=8, block_size=32)], weights, (8, 32))
    np.save(tmp_path / "x.npy", np.zeros((8, 32), np.float32))
    after = train_once(run, tmp_path, "--steps=20", "--lr=0.1", "--weight-decay=0.5", compile_options=["--optimizer=adamw"])
    assert (after["w"] == 128).all()


@pytest.mark.parametrize("options", [[], ["--precision=bf16", "--master=off"]])
def test_averages_are_written_with_their_scale(run, tmp_path, options):
    random = np.random.default_rng(2)
    weights = held(w=codes(random, "i1", 12, 5), s=np.float32(0.01), z=np.int8(0))
    save(tmp_path, [node("DequantizeLinear", ["w", "s", "z"], ["v"], name="v"), node("MatMul", ["x", "v"], name="m")], weights, (8, 12))
    options = ["--ema=0.99", "--optimizer=adam", *options, *([] if options else ["--scale-learning=lsq"])]
    before = numpy_helper.to_array(onnx.load(tmp_path / "model.onnx").graph.initializer[0])
    after = train_once(run, tmp_path, "--steps=3", "--lr=0.0001", "--export-weights=ema", compile_options=options)
    numbers = after["w"].astype(float) * after["s"]
    assert np.abs(numbers - before * 0.01).max() < 0.006  # half a code, and three small steps


def test_a_negative_scale(run, tmp_path):
    """As good as a positive one, by the formula."""
    random = np.random.default_rng(2)
    weights = held(w=codes(random, "i1", 12, 5), s=np.float32([0.01, -0.01, 0.02, -0.02, 0.01]))
    save(tmp_path, [node("DequantizeLinear", ["w", "s"], ["v"], name="v", axis=1), node("MatMul", ["x", "v"], name="m")], weights, (8, 12))
    before = numpy_helper.to_array(onnx.load(tmp_path / "model.onnx").graph.initializer[0])
    assert train_once(run, tmp_path, "--steps=0")["w"].tolist() == before.tolist()


@pytest.mark.parametrize("shape", [(0, 12), (3, 0)])
def test_empty_tensors(run, tmp_path, shape):
    names = ["xs", "xz"]
    nodes = [node("QuantizeLinear", ["x", *names], ["q"], name="q"), node("DequantizeLinear", ["q", *names], ["d"], name="d"),
             node("DynamicQuantizeLinear", ["d"], ["y", "ys", "yz"], name="e")]
    onnx.save(model(nodes, inputs=[value("x", shape)], outputs=[value("y", shape, TensorProto.UINT8)],
                    initializers=held(xs=np.float32(0.1), xz=np.uint8(3)), opset=13), tmp_path / "model.onnx")
    run("check", "model.onnx")


def test_refusals(run, tmp_path):
    """A rank that leaves no axis for blocks, and tied codes."""
    deep = onnx.helper.make_tensor("w", TensorProto.INT8, [1] * 15 + [8], [1] * 8)
    save(tmp_path, [node("DequantizeLinear", ["w", "s"], name="v", axis=15, block_size=4)], [deep, *held(s=np.ones([1] * 15 + [2], np.float32))],
         (8, 12))
    assert run("check", "model.onnx", exit=None).returncode in (3, 4)
    save(tmp_path, [node("DequantizeLinear", ["a", "s"], ["c"], name="c"), node("DequantizeLinear", ["b", "s"], ["d"], name="d"),
                    node("MatMul", ["x", "c"], ["m"], name="m"), node("MatMul", ["x", "d"], ["n"], name="n"), node("Add", ["m", "n"], name="y")],
         held(a=np.ones((12, 5), np.int8), b=np.ones((12, 5), np.int8), s=np.float32(1)), (8, 12))
    done = run("compile", "model.onnx", "-o", "train", "--loss=mse", "--tie", "a=b", exit=2)
    assert "weights in codes train by themselves" in done.stderr
