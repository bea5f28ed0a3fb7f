"""Parameters that an exporter wrote more than once, and that are one: who reads them decides, not their values alone."""
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

MATRIX = np.random.default_rng(0).standard_normal((3, 3)).astype(np.float32)
SCOPES = "pkg.torch.onnx.name_scopes"
CALLS = [
    # the nodes' names, their scopes, whether one module made both
    (("/net/u/MatMul", "/net/u_1/MatMul"), None, True),
    (("/net/u_9/MatMul", "/net/u_10/MatMul"), None, True),
    (("/net/u/MatMul", "/net/v/MatMul"), None, False),
    (("/net/layers.0/u/MatMul", "/net/layers.1/u/MatMul"), None, False),
    (("/net/u1/MatMul", "/net/u2/MatMul"), None, False),
    (("/MatMul", "/MatMul_1"), None, False),
    (("a", "b"), None, False),
    (("/1/MatMul", "/2/MatMul"), None, False),
    (("a", "b"), ("['', 'net', 'net.u', 'linear']", "['', 'net', 'net.u', 'linear_1']"), True),
    (("a", "b"), ("['', 'net', 'net.u', 'linear']", "['', 'net', 'net.v', 'linear']"), False),
    (("a", "b"), ("['', 'matmul']", "['', 'matmul_1']"), False),
    (("a", "b"), ("['', net, 'linear']", "['', net, 'linear']"), False),
    (("a", "b"), (",", ","), False),
    (("a", "b"), ("',", "',"), False),
    (("a", "b"), ("'','", "'','"), False),
]


TOKEN = np.random.default_rng(2).standard_normal((1, 1, 4)).astype(np.float32)


def write_token(path, token, name="val_7", producer="pytorch", others=()):
    """A class token in front of x, as many times as x has rows."""
    values = [numpy_helper.from_array(token, n) for n in (name, *others)]
    rows, length = len(token), 2 + len(values)
    ports = [helper.make_tensor_value_info(*p) for p in (("x", 1, [rows, 2, 4]), ("y", 1, [rows, length, 4]))]
    graph = helper.make_graph([helper.make_node("Concat", [name, *others, "x"], ["y"], "cat", axis=1)], "g", ports[:1], ports[1:], values)
    onnx.save(helper.make_model(graph, producer_name=producer, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def write(path, names, scopes=None, merged=False, second=MATRIX, B="val_7"):
    """y = (x A) B, where B is a copy of A, or an Identity of it."""
    nodes = [helper.make_node("MatMul", ["x", "A"], ["h"], names[0]), helper.make_node("MatMul", ["h", B], ["y"], names[1])]
    for node, scope in zip(nodes, scopes or ()):
        prop = node.metadata_props.add()
        prop.key, prop.value = SCOPES, scope
    weights = [numpy_helper.from_array(MATRIX, "A")]
    if merged:
        nodes.insert(0, helper.make_node("Identity", ["A"], [B], "copy"))
    else:
        weights.append(numpy_helper.from_array(second, B))
    ports = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["batch", 3]) for n in "xy"]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.mark.parametrize("names, scopes, one", CALLS)
@pytest.mark.parametrize("merged", [False, True])
def test_calls_of_one_module_share_their_matrix(run, tmp_path, names, scopes, one, merged):
    write(tmp_path / "model.onnx", names, scopes, merged)
    said = run("check", "model.onnx").stdout
    assert ('"val_7" is "A"' in said) == one
    assert ("--tie val_7=A makes them one" in said) == (not one and not merged)
    assert ("of its own again" in said) == (not one and merged)


def test_parameters_with_names_are_two(run, tmp_path):
    write(tmp_path / "model.onnx", *CALLS[0][:2], B="net.u.second")
    assert "--tie net.u.second=A makes them one" in run("check", "model.onnx").stdout


def test_another_matrix_is_another(run, tmp_path):
    write(tmp_path / "model.onnx", *CALLS[0][:2], second=MATRIX.T.copy() + 1)
    assert "repair  ties" not in run("check", "model.onnx").stdout


@pytest.mark.parametrize("merged", [False, True])
def test_a_shared_matrix_is_exported_where_it_was(run, tmp_path, merged):
    """The Identity stays, a copy stays a copy, and both hold what was trained."""
    write(tmp_path / "model.onnx", *CALLS[0][:2], merged)
    for name in "xy":
        np.save(tmp_path / f"{name}.npy", np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32))
    run("compile", "model.onnx", "-o", "train", "--batch=4", "--loss=mse", "--optimizer=sgd")
    run(tmp_path / "train", "--data", "x=x.npy", "--data", "labels=y.npy", "--steps=1", "--lr=1", "--export=out.onnx")
    before, after = (onnx.load(tmp_path / n) for n in ("model.onnx", "out.onnx"))
    assert [n.op_type for n in after.graph.node] == [n.op_type for n in before.graph.node]
    weights = {t.name: numpy_helper.to_array(t).astype(float) for t in after.graph.initializer}
    assert list(weights) == (["A"] if merged else ["A", "val_7"])
    x, y = (np.load(tmp_path / f"{n}.npy").astype(float) for n in "xy")
    m = MATRIX.astype(float)
    error = 2 * (x @ m @ m - y) / y.size
    want = m - (x.T @ error @ m.T + (x @ m).T @ error)
    for name, value in weights.items():
        assert np.allclose(value, want, atol=1e-5), name


@pytest.mark.parametrize("rows, options", [(3, []), (1, ["--repair=batch", "--batch=3"]), (2, ["--repair=batch", "--batch=3"])])
def test_an_expanded_token_is_one(run, tmp_path, rows, options):
    """Its gradient is that of all rows, and the export has them all again."""
    write_token(tmp_path / "model.onnx", np.tile(TOKEN, (rows, 1, 1)))
    x, y = (np.random.default_rng(1).standard_normal((3, n, 4)).astype(np.float32) for n in (2, 3))
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    run("compile", "model.onnx", "-o", "train", "--loss=mse", "--optimizer=sgd", *options)
    run(tmp_path / "train", "--data", "x=x.npy", "--data", "labels=y.npy", "--steps=1", "--lr=1", "--shuffle=off", "--export=out.onnx")
    want = TOKEN - (2 * (TOKEN - y[:, :1]) / y.size).sum(0, keepdims=True)
    got = numpy_helper.to_array(onnx.load(tmp_path / "out.onnx").graph.initializer[0])
    assert got.shape == (rows, 1, 4) and np.allclose(got, np.tile(want, (rows, 1, 1)), atol=1e-6)


def test_a_row_is_one_for_all_positions(run, tmp_path):
    """As the type of all tokens of a batch, which is added to them."""
    row = TOKEN[0, 0]
    table = numpy_helper.from_array(np.tile(row, (2, 3, 1)), "val_7")
    ports = [helper.make_tensor_value_info(n, 1, [2, 3, 4]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "val_7"], ["y"])], "g", ports[:1], ports[1:], [table])
    onnx.save(helper.make_model(graph, producer_name="pytorch", opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
              tmp_path / "model.onnx")
    x, y = np.random.default_rng(1).standard_normal((2, 2, 3, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    run("compile", "model.onnx", "-o", "train", "--loss=mse", "--optimizer=sgd")
    run(tmp_path / "train", "--data", "x=x.npy", "--data", "labels=y.npy", "--steps=1", "--lr=1", "--export=out.onnx")
    want = row - (2 * (x + row - y) / y.size).sum((0, 1))
    got = numpy_helper.to_array(onnx.load(tmp_path / "out.onnx").graph.initializer[0])
    assert got.shape == (2, 3, 4) and np.allclose(got, want, atol=1e-6)


@pytest.mark.parametrize("token, options, one", [
    (np.tile(TOKEN, (3, 1, 1)), {}, True), (np.tile(TOKEN, (3, 1, 1)), {"name": "tokens"}, False),
    (np.tile(TOKEN, (3, 1, 1)), {"producer": "other"}, False), (np.arange(12.0).reshape(3, 1, 4), {}, False), (TOKEN, {}, False),
])
def test_equal_rows_are_one_if_the_exporter_made_them(run, tmp_path, token, options, one):
    write_token(tmp_path / "model.onnx", token.astype(np.float32), **options)
    assert ('"val_7" repeats along axes 0 to 1' in run("check", "model.onnx").stdout) == one
    assert "repeats along" not in run("check", "model.onnx", "--no-tie", options.get("name", "val_7")).stdout


def test_rows_that_are_tied_to_others_stay_rows(run, tmp_path):
    """Two copies of all rows, said to be one: the rows are as they were in the file."""
    write_token(tmp_path / "model.onnx", np.tile(TOKEN, (3, 1, 1)), others=("val_8",))
    x, y = (np.random.default_rng(1).standard_normal((3, n, 4)).astype(np.float32) for n in (2, 4))
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    run("compile", "model.onnx", "-o", "train", "--loss=mse", "--optimizer=sgd", "--tie", "val_8=val_7")
    run(tmp_path / "train", "--data", "x=x.npy", "--data", "labels=y.npy", "--steps=1", "--lr=1", "--shuffle=off", "--export=out.onnx")
    rows = np.tile(TOKEN, (3, 1, 1))
    want = rows - (2 * (rows - y[:, :2]) / y.size).sum(1, keepdims=True)
    for tensor in onnx.load(tmp_path / "out.onnx").graph.initializer:
        assert np.allclose(numpy_helper.to_array(tensor), want, atol=1e-6), tensor.name
