"""Sizes that data decide: `--bound` pads, outputs are cut to what there is; who may read a padded value, and who may not. Inputs
have more than 64 KiB here: smaller ones are known when the model is read, and need no bound."""
import json

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

ENGINES = ["interp", "compiled"]
RNG = np.random.default_rng(0)
X = ((RNG.random((100, 200)) < 0.01) * RNG.standard_normal((100, 200))).astype(np.float32)
N = helper.make_node


def save(path, nodes, x, outputs, constants=None):
    inputs = [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)]
    graph = helper.make_graph(nodes, "sizes", inputs, [helper.make_value_info(o, onnx.TypeProto()) for o in outputs],
                              [numpy_helper.from_array(np.asarray(v), k) for k, v in (constants or {}).items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)
    np.save(path.parent / "x.npy", x)


def results(folder):
    names = json.loads((folder / "names.json").read_text())
    return {name: np.load(folder / entry["file"]) for name, entry in names.items()}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("form", ["npy", "pb"])
def test_readers(run, tmp_path, engine, form):
    nodes = [N("NonZero", ["x"], ["at"]), N("Transpose", ["at"], ["rows"], perm=[1, 0]), N("GatherND", ["x", "rows"], ["v"]),
             N("Mul", ["v", "v"], ["v2"]), N("ReduceSum", ["v2"], ["sum"], keepdims=0), N("ReduceMean", ["v"], ["mean"], keepdims=0),
             N("ReduceMax", ["v"], ["max"], keepdims=0), N("ReduceMin", ["rows"], ["least"], keepdims=1), N("Shape", ["v"], ["shape"]),
             N("Size", ["rows"], ["size"]), N("ScatterND", ["zeros", "rows", "v2"], ["back"]), N("Unsqueeze", ["v", "axes"], ["v3"]),
             N("Gather", ["table", "at"], ["taken"]), N("ReduceProd", ["v3", "first"], ["each"], keepdims=0)]
    outputs = ["at", "v", "sum", "mean", "max", "least", "shape", "size", "back", "v3", "taken", "each"]
    save(tmp_path / "m.onnx", nodes, X, outputs, {"zeros": np.zeros_like(X), "axes": np.array([0, 2]), "first": np.array([0]), "table": np.arange(200.0)})
    run("run", "m.onnx", f"--engine={engine}", "--input=x=x.npy", "--bound=at=400", "--output-dir=out", f"--output-format={form}")
    names = json.loads((tmp_path / "out/names.json").read_text())
    assert set(names) == set(outputs)
    v, at = X[X.nonzero()], np.stack(X.nonzero())
    want = {"at": at, "v": v, "sum": (v * v).sum(), "mean": v.mean(), "max": v.max(), "least": [[0]], "shape": [v.size], "size": 2 * v.size,
            "back": X * X, "v3": v[None, :, None], "taken": at, "each": v[:, None]}
    for name, value in want.items():
        file = tmp_path / "out" / names[name]["file"]
        got = np.load(file) if form == "npy" else numpy_helper.to_array(onnx.load_tensor(file))
        assert names[name]["shape"] == list(got.shape) == list(np.shape(value)), name
        np.testing.assert_allclose(got, value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("engine", ENGINES)
def test_reductions_leave_the_padding_out(run, tmp_path, engine):
    """Of numbers that are all above or all below zero, so that a padding of zeros would be seen."""
    found = np.abs(X[X.nonzero()])
    reductions = {"ReduceMax": lambda v: (-v).max(), "ReduceMin": np.min, "ReduceProd": lambda v: np.exp(v / 16).prod(), "ReduceL2": np.linalg.norm,
                  "ReduceL1": np.sum, "ReduceSumSquare": lambda v: (v * v).sum(), "ReduceLogSum": lambda v: np.log(v.sum()), "ReduceSum": np.sum,
                  "ReduceLogSumExp": lambda v: np.log(np.exp(-v).sum()), "ReduceMean": np.mean}
    reads = {"ReduceMax": "below", "ReduceLogSumExp": "below", "ReduceProd": "grown"}
    nodes = [N("NonZero", ["x"], ["at"]), N("Transpose", ["at"], ["rows"], perm=[1, 0]), N("GatherND", ["x", "rows"], ["v"]), N("Abs", ["v"], ["above"]),
             N("Neg", ["above"], ["below"]), N("Div", ["above", "part"], ["small"]), N("Exp", ["small"], ["grown"]),
             *(N(op, [reads.get(op, "above")], [op], keepdims=0) for op in reductions)]
    save(tmp_path / "m.onnx", nodes, X, list(reductions), {"part": np.float32(16)})
    run("run", "m.onnx", f"--engine={engine}", "--input=x=x.npy", "--bound=at=400", "--output-dir=out")
    for op, got in results(tmp_path / "out").items():
        np.testing.assert_allclose(got, reductions[op](found.astype(np.float64)), rtol=1e-5, err_msg=op)


# ---- loops whose trips the data say
def loop_to(limit):
    """h' = 1.5 h, and its rows, as often as x has nonzero numbers, and while h' is below the limit."""
    f, value = onnx.TensorProto.FLOAT, helper.make_tensor_value_info
    body = helper.make_graph([N("Mul", ["h", "rate"], ["next"]), N("Identity", ["next"], ["row"]), N("Less", ["next", "limit"], ["again"])], "body",
                             [value("i", onnx.TensorProto.INT64, ()), value("go", onnx.TensorProto.BOOL, ()), value("h", f, ())],
                             [value("again", onnx.TensorProto.BOOL, ()), value("next", f, ()), value("row", f, ())])
    nodes = [N("Sign", ["x"], ["signs"]), N("ReduceSum", ["signs"], ["sum"], keepdims=0), N("Cast", ["sum"], ["trips"], to=onnx.TensorProto.INT64),
             N("Loop", ["trips", "", "first"], ["h", "rows"], body=body)]
    return nodes, {"first": np.float32(1), "rate": np.float32(1.5), "limit": np.float32(limit)}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("trips, limit", [(7, 1e9), (30, 20), (1, 20), (1, 0), (0, 1e9), (32, 1e9)])
def test_loops_end_by_count_or_condition(run, tmp_path, engine, trips, limit):
    x = np.zeros(20000, np.float32)
    x[:trips] = 3
    nodes, constants = loop_to(limit)
    save(tmp_path / "m.onnx", nodes, x, ["h", "rows"], constants)
    run("run", "m.onnx", f"--engine={engine}", "--input=x=x.npy", "--bound=h=32", "--output-dir=out")
    rows = []
    while len(rows) < trips and (not rows or rows[-1] < limit):
        rows.append(1.5 ** (len(rows) + 1))
    got = results(tmp_path / "out")
    np.testing.assert_allclose(got["rows"], rows, rtol=1e-6)
    np.testing.assert_allclose(got["h"], [1, *rows][-1], rtol=1e-6)


def test_more_trips_than_there_may_be_are_counted(run, tmp_path):
    """They are constant and no condition ends them: nothing depends on data, and --bound would not help."""
    f, value = onnx.TensorProto.FLOAT, helper.make_tensor_value_info
    body = helper.make_graph([N("Mul", ["h", "rate"], ["next"]), N("Identity", ["go"], ["again"])], "body",
                             [value("i", onnx.TensorProto.INT64, ()), value("go", onnx.TensorProto.BOOL, ()), value("h", f, ())],
                             [value("again", onnx.TensorProto.BOOL, ()), value("next", f, ())])
    nodes = [N("ReduceSum", ["x"], ["first"], keepdims=0), N("Loop", ["trips", "", "first"], ["h"], body=body)]
    for trips, said in ((1048577, "it runs 1048577 times, at most 1048576 are supported"), (1048576, None)):
        save(tmp_path / "m.onnx", nodes, np.ones(4, np.float32), ["h"], {"rate": np.float32(1), "trips": np.int64(trips)})
        assert not said or said in run("check", "m.onnx", exit=4).stderr
    run("check", "m.onnx")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("ordered", [0, 1])
def test_unique(run, tmp_path, engine, ordered):
    x = RNG.integers(-20, 20, 20000).astype(np.float32)
    x[::50] = np.nan
    save(tmp_path / "m.onnx", [N("Unique", ["x"], ["y", "first", "group", "count"], sorted=ordered)], x, ["y", "first", "group", "count"])
    run("run", "m.onnx", f"--engine={engine}", "--input=x=x.npy", "--bound=y=64", "--output-dir=out")
    got = results(tmp_path / "out")
    y, first, group, count = np.unique(x, return_index=True, return_inverse=True, return_counts=True)
    order = np.arange(len(y)) if ordered else np.argsort(first)
    for name, want in {"y": y[order], "first": first[order], "group": np.argsort(order)[group], "count": count[order]}.items():
        np.testing.assert_array_equal(got[name], want, err_msg=name)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("ordered", [0, 1])
def test_unique_slices(run, tmp_path, engine, axis, ordered):
    """Of few numbers, so that slices are equal, and agree in their first numbers."""
    x = np.moveaxis(RNG.integers(0, 2, (40, 3, 1)).astype(np.float64) + np.zeros(200), 0, axis)
    x[x == 0] = np.nan
    save(tmp_path / "m.onnx", [N("Unique", ["x"], ["y", "first", "group", "count"], sorted=ordered, axis=axis)], x, ["y", "first", "group", "count"])
    run("run", "m.onnx", f"--engine={engine}", "--input=x=x.npy", "--bound=y=20", "--output-dir=out")
    got = results(tmp_path / "out")
    rows = np.nan_to_num(np.moveaxis(x, axis, 0).reshape(40, -1), nan=9)
    y, first, group, count = np.unique(rows, axis=0, return_index=True, return_inverse=True, return_counts=True)
    order = np.arange(len(y)) if ordered else np.argsort(first)
    for name, want in {"y": np.take(x, first[order], axis), "first": first[order], "group": np.argsort(order)[group.ravel()],
                       "count": count[order]}.items():
        np.testing.assert_array_equal(got[name], want, err_msg=name)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("center, least", [(0, None), (1, 0.99)])
def test_non_max_suppression(run, tmp_path, engine, center, least):
    """By a loop; against ONNX's reference. Of equal scores the first box goes first."""
    boxes = RNG.random((2, 3000, 4)).astype(np.float32)
    scores = np.round(RNG.random((2, 3, 3000)), 3).astype(np.float32)
    if center:
        boxes[..., 2:] *= 0.3
    constants = {"most": np.array([9]), "overlap": np.array([0.3], np.float32), **({} if least is None else {"least": np.array([least], np.float32)})}
    node = N("NonMaxSuppression", ["x", "scores", *constants], ["at"], center_point_box=center)
    save(tmp_path / "m.onnx", [node], boxes, ["at"], constants)
    model = onnx.load(tmp_path / "m.onnx")
    model.graph.input.append(helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, scores.shape))
    onnx.save(model, tmp_path / "m.onnx")
    np.save(tmp_path / "scores.npy", scores)
    run("run", "m.onnx", f"--engine={engine}", "--input=x=x.npy", "--input=scores=scores.npy", "--bound=at=60", "--output-dir=out")
    want = ReferenceEvaluator(model).run(None, {"x": boxes, "scores": scores})[0]
    np.testing.assert_array_equal(results(tmp_path / "out")["at"], want)


@pytest.mark.parametrize("engine", ENGINES)
def test_gradients_pass(run, tmp_path, engine):
    """Of the squares of what is above a half."""
    x = RNG.standard_normal(20000)
    nodes = [N("Greater", ["x", "half"], ["c"]), N("Compress", ["x", "c"], ["y"], axis=0), N("Mul", ["y", "y"], ["yy"]),
             N("ReduceMean", ["yy"], ["loss"], keepdims=0)]
    save(tmp_path / "m.onnx", nodes, x, ["loss"], {"half": 0.5})
    run("grad", "m.onnx", "--loss=output:loss", "--precision=f64", f"--engine={engine}", "--input=x=x.npy", "--bound=y=15000", "--wrt=x",
        "--output-dir=out")
    np.testing.assert_allclose(results(tmp_path / "out")["x"], np.where(x > 0.5, 2 * x / (x > 0.5).sum(), 0), rtol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_padding_is_harmless(run, tmp_path, engine):
    """Of the logarithms of what is above a half, times a number; what is not has none."""
    x = RNG.standard_normal(20000)
    x[0] = -3
    nodes = [N("Greater", ["x", "half"], ["c"]), N("Compress", ["x", "c"], ["y"], axis=0), N("Mul", ["y", "w"], ["yw"]), N("Log", ["yw"], ["l"]),
             N("ReduceSum", ["l"], ["loss"], keepdims=0)]
    save(tmp_path / "m.onnx", nodes, x, ["loss"], {"half": 0.5, "w": np.array([2.0])})
    run("grad", "m.onnx", "--loss=output:loss", "--precision=f64", f"--engine={engine}", "--input=x=x.npy", "--bound=y=15000", "--wrt=x",
        "--train=w", "--output-dir=out")
    got, above = results(tmp_path / "out"), x > 0.5
    np.testing.assert_allclose(got["x"], np.where(above, 1 / x, 0), rtol=1e-12)
    np.testing.assert_allclose(got["w"], [above.sum() / 2], rtol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_more_than_the_bound(run, tmp_path, engine):
    save(tmp_path / "m.onnx", [N("NonZero", ["x"], ["at"])], X, ["at"])
    done = run("run", "m.onnx", f"--engine={engine}", "--input=x=x.npy", "--bound=at=4", "--output-dir=out", exit=2)
    assert f'output "at" has {np.count_nonzero(X)} elements along axis 1, --bound allows 4' in done.stderr


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("bounds", [["--bound=a=400", "--bound=b=300"], ["--bound=*=400"], ["--bound=?=4", "--bound=b=300", "--bound=a=400"]])
def test_parts_that_data_size_are_joined(run, tmp_path, engine, bounds):
    """Behind each other without the padding, also beside a part of a known size; beside each other if they have one size. A glob is for all nodes
    that no other bound names."""
    nodes = [N("NonZero", ["x"], ["a"]), N("Abs", ["x"], ["p"]), N("Greater", ["p", "one"], ["g"]), N("NonZero", ["g"], ["b"]),
             N("Concat", ["a", "known", "b", "a"], ["y"], axis=1), N("Concat", ["a", "a"], ["z"], axis=-2), N("Shape", ["y"], ["shape"]),
             N("Transpose", ["y"], ["rows"], perm=[1, 0]), N("GatherND", ["x", "rows"], ["v"]), N("ReduceSum", ["v"], ["sum"], keepdims=0)]
    outputs = ["y", "z", "shape", "v", "sum"]
    save(tmp_path / "m.onnx", nodes, X, outputs, {"one": np.float32(1), "known": np.array([[1, 2], [3, 4]])})
    run("run", "m.onnx", f"--engine={engine}", "--input=x=x.npy", *bounds, "--output-dir=out")
    a, b = np.stack(X.nonzero()), np.stack((abs(X) > 1).nonzero())
    y = np.concatenate([a, [[1, 2], [3, 4]], b, a], 1)
    want = {"y": y, "z": np.concatenate([a, a]), "shape": y.shape, "v": X[tuple(y)], "sum": X[tuple(y)].sum()}
    for name, got in results(tmp_path / "out").items():
        np.testing.assert_allclose(got, want[name], rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("engine", ENGINES)
def test_gradients_pass_through_joined_parts(run, tmp_path, engine):
    """The mean of squares of what is above a half and of twice what is below minus one."""
    x = RNG.standard_normal(20000)
    nodes = [N("Greater", ["x", "half"], ["c"]), N("Compress", ["x", "c"], ["a"], axis=0), N("Less", ["x", "low"], ["d"]), N("Compress", ["x", "d"], ["e"], axis=0),
             N("Add", ["e", "e"], ["b"]), N("Concat", ["a", "b"], ["y"], axis=0), N("Mul", ["y", "y"], ["yy"]), N("ReduceMean", ["yy"], ["loss"], keepdims=0)]
    save(tmp_path / "m.onnx", nodes, x, ["loss"], {"half": 0.5, "low": -1.0})
    run("grad", "m.onnx", "--loss=output:loss", "--precision=f64", f"--engine={engine}", "--input=x=x.npy", "--bound=*=15000", "--wrt=x", "--output-dir=out")
    count = (x > 0.5).sum() + (x < -1).sum()
    np.testing.assert_allclose(results(tmp_path / "out")["x"], np.where(x > 0.5, 2 * x, np.where(x < -1, 8 * x, 0)) / count, rtol=1e-12)


def test_a_number_that_an_input_decides_is_asked_for(run, tmp_path):
    """TopK's k from a scalar input: --fill, or the file that run has."""
    nodes = [N("Reshape", ["k", "first"], ["k1"]), N("TopK", ["x", "k1"], ["y", "i"])]
    save(tmp_path / "m.onnx", nodes, X[:4], ["y"], {"first": np.array([1])})
    model = onnx.load(tmp_path / "m.onnx")
    model.graph.input.append(helper.make_tensor_value_info("k", onnx.TensorProto.INT64, ()))
    onnx.save(model, tmp_path / "m.onnx")
    assert "--fill k=N gives a number to the input that decides the value" in run("check", "m.onnx", exit=4).stderr
    assert "f32[4 (open),3 (open)]" in run("check", "m.onnx", "--fill=k=3").stdout
    np.save(tmp_path / "k.npy", np.int64(3))
    run("run", "m.onnx", "--input=x=x.npy", "--input=k=k.npy", "--output-dir=out")
    np.testing.assert_array_equal(results(tmp_path / "out")["y"], -np.sort(-X[:4])[:, :3])


REFUSED = {
    "no_bound": ([N("NonZero", ["x"], ["at"])], [], 4, "the size of its result depends on data"),
    "beside": ([N("NonZero", ["x"], ["at"]), N("Concat", ["at", "many"], ["y"], axis=0)], ["at=400"], 4, "another input has a different size there"),
    "beside_another": ([N("NonZero", ["x"], ["at"]), N("Neg", ["x"], ["m"]), N("NonZero", ["m"], ["as"]), N("Concat", ["at", "as"], ["y"], axis=0)], ["a?=400"], 4,
                       "another input has a different size there"),
    "reader": ([N("NonZero", ["x"], ["at"]), N("Softmax", ["at"], ["y"], axis=0)], ["at=400"], 4,
               'input 0, "at", has a size along axis 1 that depends on data, at most 400: this operator does not support such an input'),
    "two_sizes": ([N("NonZero", ["x"], ["at"]), N("NonZero", ["at"], ["as"]), N("Add", ["at", "as"], ["y"])], ["at=400", "as=400"], 4,
                  "this operator does not support such an input"),
    "mixed": ([N("NonZero", ["x"], ["at"]), N("Add", ["at", "many"], ["y"])], ["at=400"], 4, "another input has a different size there"),
    "along": ([N("NonZero", ["x"], ["at"]), N("Gather", ["at", "zero"], ["y"], axis=1)], ["at=400"], 4, "the operator does not support it for this input"),
    "number": ([N("NonZero", ["x"], ["at"])], ["at=many"], 2, "--bound at=many: need NAME=N"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(run, tmp_path, name):
    nodes, bounds, code, said = REFUSED[name]
    save(tmp_path / "m.onnx", nodes, X, [nodes[-1].output[0]], {"many": np.arange(400)[None], "zero": np.int64(0)})
    words = [f"--bound={b}" for b in bounds]
    assert said in run("run", "m.onnx", "--engine=interp", "--input=x=x.npy", *words, "--output-dir=out", exit=code).stderr


def test_a_body_gives_one(run, tmp_path):
    """An element of a sequence has no count."""
    body = helper.make_graph([N("NonZero", ["e"], ["f"])], "body", [helper.make_tensor_value_info("e", onnx.TensorProto.FLOAT, None)],
                             [helper.make_tensor_value_info("f", onnx.TensorProto.INT64, None)])
    nodes = [N("SequenceConstruct", ["x"], ["s"]), N("SequenceMap", ["s"], ["t"], body=body, name="map"), N("SequenceAt", ["t", "zero"], ["y"])]
    save(tmp_path / "m.onnx", nodes, X, ["y"], {"zero": np.int64(0)})
    said = run("run", "m.onnx", "--engine=interp", "--input=x=x.npy", "--bound=f=400", "--output-dir=out", exit=4).stderr
    assert 'node "map" (SequenceMap, opset 18): output "f" of its graph has a size that depends on data' in said


def test_a_bound_of_nothing(run, tmp_path):
    save(tmp_path / "m.onnx", [N("Relu", ["x"], ["y"])], X, ["y"])
    done = run("run", "m.onnx", "--engine=interp", "--input=x=x.npy", "--bound=y=3", "--output-dir=out")
    assert "--bound y=3: no result of this name has a size that depends on data" in done.stderr


def test_training_through_one(run, tmp_path):
    """Rows whose label is above 0 count: four steps of descent, as NumPy computes them; the executable writes the count beside what is padded."""
    w, labels, x = (RNG.standard_normal(s).astype(np.float32) for s in ((4, 1), (16, 1), (16, 4)))
    nodes = [N("MatMul", ["x", "w"], ["p"]), N("Greater", ["labels", "zero"], ["above"]), N("Reshape", ["above", "flat"], ["c"]),
             N("Sub", ["p", "labels"], ["d"]), N("Compress", ["d", "c"], ["k"], axis=0), N("Mul", ["k", "k"], ["kk"]),
             N("ReduceMean", ["kk"], ["loss"], keepdims=0)]
    save(tmp_path / "m.onnx", nodes, x[:8], ["loss", "k"], {"w": w, "zero": np.float32(0), "flat": np.array([-1])})
    model = onnx.load(tmp_path / "m.onnx")
    model.graph.input.append(helper.make_tensor_value_info("labels", onnx.TensorProto.FLOAT, (8, 1)))
    onnx.save(model, tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "labels.npy", labels)
    run("compile", "m.onnx", "-o", "train", "--bound=k=8", "--loss=output:loss", "--optimizer=sgd,lr=0.1")
    run(tmp_path / "train", "--data=x=x.npy", "--data=labels=labels.npy", "--steps=4", "--shuffle=off", "--export=out.onnx")
    want = w.astype(float)
    for step in range(4):
        rows = slice(step % 2 * 8, step % 2 * 8 + 8)
        kept = labels[rows, 0] > 0
        d = (x[rows].astype(float) @ want - labels[rows])[kept]
        want = want - 0.1 * 2 * x[rows][kept].T @ d / kept.sum()
    got = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "out.onnx").graph.initializer}["w"]
    np.testing.assert_allclose(got, want, rtol=1e-5)
    np.save(tmp_path / "x.npy", x[:8])
    np.save(tmp_path / "labels.npy", labels[:8])
    run(tmp_path / "train", "--once", "--input=x=x.npy", "--input=labels=labels.npy", "--output-dir=once")
    written = results(tmp_path / "once")
    assert written["k"].shape == (8, 1) and written["k.count"] == (labels[:8] > 0).sum()


def test_a_size_that_is_computed_of_itself_is_computed_once(run, tmp_path):
    """Each of 40 sums reads the one before it twice: a size has 2**40 paths to the numbers that it is made of."""
    sums = [helper.make_node("Add", [f"p{i}"] * 2, [f"p{i + 1}"]) for i in range(40)]
    nodes = [helper.make_node("Range", ["one", "three", "one"], ["p0"]), *sums, helper.make_node("Mul", ["p40", "zeros"], ["q"]),
             helper.make_node("Add", ["q", "sizes"], ["shape"]), helper.make_node("Expand", ["x", "shape"], ["y"])]
    values = {"one": 1, "three": 3, "zeros": [0, 0], "sizes": [2, 4]}
    ports = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, d) for n, d in (("x", [1, 4]), ("y", [2, 4]))]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], [onnx.numpy_helper.from_array(np.array(v), k) for k, v in values.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx")
    assert "y: f32[2,4]" in run("check", "m.onnx", timeout=10).stdout
