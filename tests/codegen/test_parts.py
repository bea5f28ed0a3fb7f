"""How many parts the launches of a schedule have: what is large has four for each of the cores that loops are cut for."""
import json

import numpy as np
import onnx
import pytest
import schedules
from onnx import TensorProto, helper, numpy_helper

# At least so much of the roofline time of a step lies in launches of 256 parts; schedules.py prints what lacks. Heads of
# attention have fewer: 24 in gpt2_124m, 48 in the others.
LEAST_SHARE = {"gpt2_124m": 0.97, "bert_base": 0.98, "vit_small": 0.92, "resnet18": 0.97, "resnet50": 0.98}


def parts(run, folder, nodes, shapes, *options, tensors=()):
    """By launch: (parts, element operations) of the forward program; shapes are those of x and y."""
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in zip("xy", shapes)]
    graph = helper.make_graph([helper.make_node(op, i, o, **a) for op, i, o, a in nodes], "g", ports[:1], ports[1:],
                              [numpy_helper.from_array(np.asarray(v), k) for k, v in dict(tensors).items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "m.onnx")
    said = run("dump", "m.onnx", "--stage=schedule", "--format=json", *options).stdout
    program, = (p for p in json.loads(said)["programs"] if p["role"] == "forward")
    assert set(program) == {"role", "binding", "stage", "mode", "target", "instructions"}
    return [(i["parts"], i["flops"] or i["bytes"] // 8) for i in program["instructions"] if i["op"] == "run"]


LARGE = {
    "softmax": ([("Softmax", ["x"], ["y"], {})], [[2, 12, 256, 256]] * 2),
    "a prime number of elements": ([("Exp", ["x"], ["y"], {})], [[123457]] * 2),
    "rows of 7": ([("Exp", ["x"], ["y"], {})], [[3, 99991, 7]] * 2),
    "transposed": ([("Transpose", ["x"], ["y"], {"perm": [0, 2, 1]})], [[2, 300, 500], [2, 500, 300]]),
    "sum of columns": ([("ReduceSum", ["x", "axes"], ["y"], {"keepdims": 0})], [[16384, 768], [768]]),
    "sum of columns, prime": ([("ReduceSum", ["x", "axes"], ["y"], {"keepdims": 0})], [[16381, 769], [769]]),
    "sum to one number": ([("ReduceSum", ["x", "axes"], ["y"], {"keepdims": 0})], [[2000003], []]),
    "few columns": ([("ReduceSum", ["x", "axes"], ["y"], {"keepdims": 0})], [[100003, 4], [4]]),
    "long rows, read again": ([("Softmax", ["x"], ["y"], {})], [[64, 16384]] * 2),
    "normalized, few rows": ([("InstanceNormalization", ["x", "weight", "weight"], ["y"], {})], [[2, 40, 123, 128]] * 2),
    "a convolution's adjoint": ([("ConvTranspose", ["x", "w"], ["y"], {"strides": [2, 2], "output_padding": [1, 1]})],
                                [[8, 64, 28, 28], [8, 64, 56, 56]]),
    "a long sum of products": ([("Einsum", ["x", "v"], ["y"], {"equation": "abi,abj->ij"})], [[4, 3136, 64], [64, 32]]),
    "running sums of long lines": ([("CumSum", ["x", "axis"], ["y"], {})], [[3, 100003]] * 2),
    "the largest of long lines": ([("ArgMax", ["x"], ["i"], {"axis": 1}), ("Cast", ["i"], ["y"], {"to": TensorProto.FLOAT})],
                                  [[3, 100003], [3, 1]]),
    "a long line in order": ([("TopK", ["x", "k"], ["y", "i"], {})], [[100003], [5000]]),
    "padded along the first axis": ([("Pad", ["x", "pads"], ["y"], {})], [[77, 1000], [512, 1000]]),
    "padded, few rows": ([("Pad", ["x", "around"], ["y"], {})], [[3, 77, 500], [3, 185, 500]]),
    "joined along the first axis": ([("Concat", ["x", "x", "x"], ["y"], {"axis": 0})], [[101, 1003], [303, 1003]]),
    "joined, few rows": ([("Concat", ["x", "x"], ["y"], {"axis": 1})], [[3, 77, 500], [3, 154, 500]]),
    "joined, one axis": ([("Concat", ["x", "x"], ["y"], {"axis": 0})], [[100003], [200006]]),
    "joined": ([("Concat", ["x", "x"], ["y"], {"axis": 2})], [[4, 64, 1000], [4, 64, 2000]]),
}


TENSORS = {"axes": np.array([0]), "pads": np.array([100, 0, 335, 0]), "around": np.array([0, 8, 0, 0, 100, 0]), "k": np.array([5000]), "axis": np.array(1), "weight": np.ones(40, np.float32), "w": np.ones((64, 64, 1, 1), np.float32),
           "v": np.ones((4, 3136, 32), np.float32)}


@pytest.mark.parametrize("name", LARGE)
def test_what_is_large_has_parts(run, tmp_path, name):
    nodes, shapes = LARGE[name]
    launches = parts(run, tmp_path, nodes, shapes, tensors=TENSORS)
    most = max(operations for _, operations in launches)  # what adds partial results has a hundredth of that
    large = [p for p, operations in launches if operations >= max(65536, most / 50)]
    assert large and min(large) >= 256, launches


def test_small_kernels_are_left_alone(run, tmp_path):
    (n, _), = parts(run, tmp_path, [("Exp", ["x"], ["y"], {})], [[1021]] * 2)
    assert n == 1


@pytest.mark.parametrize("cores, least, most", [(1, 4, 256), (64, 256, 511), (512, 1500, 8000)])
def test_cores_say_how_many(run, tmp_path, cores, least, most):
    """A million elements, in blocks of 4096 at most and of 64 at least."""
    (n, _), = parts(run, tmp_path, [("Exp", ["x"], ["y"], {})], [[1000003]] * 2, f"--cores={cores}")
    assert least <= n <= most


def test_an_executable_says_the_same(run, tmp_path):
    nodes, shapes = LARGE["softmax"]
    parts(run, tmp_path, nodes, shapes)
    run("compile", "m.onnx", "-o", "e", "--loss=mse")
    programs = json.loads(run("dump", "e", "--stage=schedule", "--format=json").stdout)["programs"]
    of_model = json.loads(run("dump", "m.onnx", "--loss=mse", "--optimizer=adamw", "--stage=schedule", "--format=json").stdout)["programs"]
    assert programs == of_model


@pytest.mark.parametrize("shape, axis", [((101, 1003), 0), ((3, 77, 500), 1), ((70003,), 0), ((5, 300, 7, 11), 1)])
def test_joined_values(run, tmp_path, shape, axis):
    """Blocks of parts that differ in length, the last of each shorter."""
    x, y = np.random.default_rng(0).standard_normal((2, *shape)).astype(np.float32)
    y = np.take(y, range(shape[axis] // 3), axis)
    want = np.concatenate([x, y, np.exp(x)], axis)
    parts(run, tmp_path, [("Exp", ["x"], ["e"], {}), ("Concat", ["x", "w", "e"], ["y"], {"axis": axis})],
          [list(shape), list(want.shape)], tensors={"w": y})
    np.save(tmp_path / "x.npy", x)
    run("run", "m.onnx", "--input=x=x.npy", "--output-dir=out")
    np.testing.assert_allclose(np.load(tmp_path / "out/y.npy"), want, rtol=1e-6)


@pytest.mark.parametrize("shape, pads", [((77, 1000), [100, 0, 335, 0]), ((300, 301), [0, 1, 0, 2]), ((3, 77, 500), [0, -7, 9, 0, 100, 1]),
                                         ((70003,), [-5, 40000]), ((5, 300, 7, 11), [1, 0, 2, 3, 1, -40, 0, 1]), ((256, 300), [-256, 0, 3, 0]),
                                         ((1, 1), [300, 0, 0, 300])])
def test_padded_values(run, tmp_path, shape, pads):
    """Blocks of what is padded and of what is put around it, which negative pads cut."""
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    low, high = pads[:len(shape)], pads[len(shape):]
    want = np.pad(x, [(max(a, 0), max(b, 0)) for a, b in zip(low, high)], constant_values=3)
    want = want[tuple(slice(max(-a, 0), n - max(-b, 0)) for a, b, n in zip(low, high, want.shape))]
    parts(run, tmp_path, [("Pad", ["x", "pads", "value"], ["y"], {})], [list(shape), list(want.shape)],
          tensors={"pads": np.array(pads), "value": np.float32(3)})
    np.save(tmp_path / "x.npy", x)
    run("run", "m.onnx", "--input=x=x.npy", "--output-dir=out", "--engine=compiled")
    np.testing.assert_array_equal(np.load(tmp_path / "out/y.npy"), want)


@pytest.mark.parametrize("shape, axes", [((16381, 769), 0), ((100003, 4), 0), ((8, 100003), 1), ((70003,), 0), ((9, 1000, 11), (0, 1)),
                                         ((3, 40009, 5), (0, 2))])
@pytest.mark.parametrize("kind, numpy_kind", [("ReduceSum", np.sum), ("ReduceMax", np.max)])
def test_reductions_in_chunks(run, tmp_path, shape, axes, kind, numpy_kind):
    """Whatever divides their axes."""
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    want = numpy_kind(x.astype(np.float64), axes)
    axes = [axes] if isinstance(axes, int) else list(axes)
    attributes = {"keepdims": 0} | ({"axes": axes} if kind == "ReduceMax" else {})
    parts(run, tmp_path, [(kind, ["x"] + ["axes"] * (kind == "ReduceSum"), ["y"], attributes)], [list(shape), list(want.shape)],
          tensors={"axes": np.array(axes)} if kind == "ReduceSum" else {})
    np.save(tmp_path / "x.npy", x)
    run("run", "m.onnx", "--input=x=x.npy", "--output-dir=out")
    np.testing.assert_allclose(np.load(tmp_path / "out/y.npy"), want, rtol=1e-5, atol=2e-3)


@pytest.fixture(scope="module")
def found(gradc, models, tmp_path_factory):
    """The schedules of all reference and bench models."""
    return schedules.schedules(gradc, models, tmp_path_factory.mktemp("schedules"))


def test_large_launches_with_few_parts_have_a_reason(found):
    """`.venv/bin/python tests/codegen/schedules.py` prints the same lists, to mend few_parts.json with."""
    unexplained, useless, loose = schedules.judge(schedules.few_parts(found), json.loads(schedules.FEW.read_text()))
    assert not unexplained, f"few parts, and no reason in {schedules.FEW.name}"
    assert not useless, f"{schedules.FEW.name} explains what does not exist"
    assert not loose, f"more parts than {schedules.FEW.name} says"


def launch(origin, parts, flops=100000, bytes=800, when="always"):
    return {"op": "run", "origin": origin, "parts": parts, "flops": flops, "bytes": bytes, "when": when}


def program(*instructions, role="accumulate"):
    return {"role": role, "instructions": list(instructions)}


def test_what_is_no_launch_with_few_parts():
    large = launch('"a_12"', 30), launch('"a_3"', 20), launch('"b"', 7, flops=0, bytes=8 * 65536)
    other = launch('"c"', 256), launch('"d"', 1, flops=65535), {**launch('"e"', 1), "op": "copy"}
    assert schedules.few_parts({"m": [program(*large, *other)]}) == {'"a_#"': [(20, 100000), (30, 100000)], '"b"': [(7, 0)]}


@pytest.mark.parametrize("patterns, unexplained, useless, loose", [
    ({'"a_#"': 20, '"b"': 7}, {}, [], {}), ({'"?*"': 7}, {}, [], {}), ({'"a_#"': 20}, {'"b"': 7}, [], {}),
    ({'"a_#"': 21, '"b"': 7}, {'"a_#"': 20}, [], {}), ({'"*"': 1, "x": 1}, {}, ["x"], {'"*"': 7}),
    ({'"a_#"': 19, '"b"': 7}, {}, [], {'"a_#"': 20})])
def test_what_the_list_explains(patterns, unexplained, useless, loose):
    few = {'"a_#"': [(20, 100000), (30, 100000)], '"b"': [(7, 0)]}
    assert schedules.judge(few, [{"why": "", "kernels": patterns}]) == (unexplained, useless, loose)


@pytest.mark.parametrize("part_flops, patterns, unexplained, loose", [
    (5000, {}, {}, {}), (4000, {}, {"a": 20}, {}), (4000, {"a": 20}, {}, {}), (3000, {"a": 20}, {}, {}), (5000, {"a": 20}, {}, {})])
def test_small_parts_explain(part_flops, patterns, unexplained, loose):
    """20 and 30 parts of 100000 FLOPs."""
    reasons = [{"why": "", "part_flops": part_flops, "kernels": ["a"]}, {"why": "", "kernels": patterns}]
    found = schedules.judge({"a": [(20, 100000), (30, 100000)]}, reasons)
    assert found == (unexplained, list(patterns) if part_flops == 5000 else [], loose)


def test_the_share_in_parts():
    """Of roofline times of 1 ms by operations, 2 ms by bytes, and 1 ms that has few parts."""
    step = (launch("a", 256, schedules.FLOPS / 1e3, 0), launch("b", 4096, 5, schedules.BYTES / 500),
            launch("c", 255, 0, schedules.BYTES / 1e3), launch("d", 1, 1e15, when="later"))
    programs = [program(*step), program(launch("e", 1, 1e15), role="eval")]
    assert schedules.share_in_parts(programs) == pytest.approx(0.75)
    assert schedules.shares_of_few(programs) == [(pytest.approx(0.25), "c")]


@pytest.mark.parametrize("name", LEAST_SHARE)
def test_most_of_a_step_has_parts(found, name):
    assert schedules.share_in_parts(found[name]) >= LEAST_SHARE[name]
