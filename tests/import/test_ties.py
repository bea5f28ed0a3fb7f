"""Parameters that an exporter wrote more than once, and that are one: no training leaves two matrices equal, but layers may begin as copies."""
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

MATRIX = np.random.default_rng(0).standard_normal((3, 3)).astype(np.float32)
SCOPES = "pkg.torch.onnx.name_scopes"
CALLS = [
    # the nodes' names, their scopes
    (("/net/u/MatMul", "/net/u_1/MatMul"), None),
    (("/net/u/MatMul", "/net/v/MatMul"), None),
    (("/net/layers.0/u/MatMul", "/net/layers.1/u/MatMul"), None),
    (("/MatMul", "/MatMul_1"), None),
    (("a", "b"), None),
    (("a", "b"), ("['', 'net', 'net.u', 'linear']", "['', 'net', 'net.u', 'linear_1']")),
    (("a", "b"), ("['', net, 'linear']", "['', net, 'linear']")),
    (("a", "b"), ("',", "',")),
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


@pytest.mark.parametrize("names, scopes", CALLS)
@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("B", ["val_7", "net.u.second"])
def test_equal_matrices_are_one(run, tmp_path, names, scopes, merged, B):
    write(tmp_path / "model.onnx", names, scopes, merged, B=B)
    assert f'"{B}" is "A"; --no-tie={B} makes them two' in run("check", "model.onnx").stdout
    apart = run("check", "model.onnx", f"--no-tie={B}").stdout
    assert "18 trainable" in apart and ("of its own again" in apart) == merged


@pytest.mark.parametrize("value, one", [(MATRIX[0], True), (np.ones(3, np.float32), False)])
def test_vectors_are_one_if_an_identity_says_so(run, tmp_path, value, one):
    """Two separate ones may be equal by chance of a start, and ones and zeros are how many begin."""
    for merged in False, True:
        nodes = [helper.make_node("Mul", ["x", "A"], ["h"]), helper.make_node("Mul", ["h", "B.weight"], ["y"])]
        tensors = [numpy_helper.from_array(value, n) for n in (["A"] if merged else ["A", "B.weight"])]
        nodes[:0] = [helper.make_node("Identity", ["A"], ["B.weight"])] * merged
        ports = [helper.make_tensor_value_info(n, 1, [2, 3]) for n in "xy"]
        onnx.save(helper.make_model(helper.make_graph(nodes, "g", ports[:1], ports[1:], tensors), opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "model.onnx")
        assert f"{3 if one and merged else 6} trainable" in run("check", "model.onnx").stdout


def write_stack(path, norms, generated=False, merged=False, prefix="net.layers."):
    """Two layers x W + b, times the norm's weight; all but that are equal."""
    bias = np.random.default_rng(3).standard_normal(3).astype(np.float32)
    nodes, tensors, x = [], {}, "x"
    for i in range(2):
        names = [f"{prefix}{i}.{n}" for n in ("fc.weight", "fc.bias", "norm.weight")]
        matrix = f"onnx::MatMul_{i}" if generated else names[0]
        made = dict(zip([matrix, *names[1:]], [MATRIX, bias, norms[i]]))
        for name, value in made.items():
            first = next((n for n, v in tensors.items() if np.array_equal(v, value)), None)
            if merged and first:
                nodes.append(helper.make_node("Identity", [first], [name]))
            else:
                tensors[name] = value
        path_of = "/" + f"{prefix}{i}".replace("net.", "net/")
        for op, w, part in zip(("MatMul", "Add", "Mul"), made, ("fc/MatMul", "fc/Add", "norm/Mul")):
            nodes.append(helper.make_node(op, [x, w], [f"{i}{op}"], f"{path_of}/{part}"))
            x = f"{i}{op}"
    nodes.append(helper.make_node("Relu", [x], ["y"]))
    ports = [helper.make_tensor_value_info(n, 1, ["batch", 3]) for n in "xy"]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], [numpy_helper.from_array(v, k) for k, v in tensors.items()])
    onnx.save(helper.make_model(graph, producer_name="pytorch", opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


ONES, LEARNED = np.ones((2, 3), np.float32), np.random.default_rng(4).standard_normal((2, 3)).astype(np.float32)


@pytest.mark.parametrize("norms, generated, merged, prefix, n", [
    (ONES, False, False, "net.layers.", 30), (ONES, False, True, "net.layers.", 30), (ONES, True, False, "net.layers.", 30),
    (ONES, False, False, "", 30), (np.stack([ONES[0], LEARNED[1]]), False, False, "net.layers.", 21), (LEARNED, False, False, "net.layers.", 21), (LEARNED, False, True, "net.layers.", 18),
    (np.stack([LEARNED[0]] * 2), False, True, "net.layers.", 15), (ONES, False, False, "net.layer", 30)])
def test_layers_that_began_as_copies_are_several(run, tmp_path, norms, generated, merged, prefix, n):
    """A stack of deep copies, not trained yet: its norms are ones. Where these have learned, equal matrices are one."""
    write_stack(tmp_path / "model.onnx", norms, generated, merged, prefix)
    said = run("check", "model.onnx").stdout
    assert f"{n} trainable" in said, said
    if n == 30 and not merged:
        names = [f"onnx::MatMul_{i}" if generated else f"{prefix}{i}.fc.weight" for i in range(2)]
        assert f"--tie {names[1]}={names[0]} makes them one" in said
        assert "21 trainable" in run("check", "model.onnx", "--tie", f"{names[1]}={names[0]}").stdout


def test_a_name_that_is_tied_is_told(run, tmp_path):
    """By the name of what it is; whoever asks for both by name has two."""
    write(tmp_path / "model.onnx", *CALLS[0][:2], B="net.u.second")
    said = run("check", "model.onnx", "--freeze=net.u.second", exit=2).stderr
    assert '--freeze=net.u.second: "net.u.second" shares the state of "A": use that name' in said and "--no-tie=net.u.second makes them two" in said
    assert "9 trainable" in run("check", "model.onnx", "--train=A").stdout
    assert "18 trainable" in run("check", "model.onnx", "--train=A", "--train=net.u.second").stdout
    assert "9 trainable" in run("check", "model.onnx", "--no-tie=net.u.second", "--freeze=net.u.second").stdout


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


@pytest.mark.parametrize("paths, own", [(["/embed/Gather", "/lm_head/Transpose", "/lm_head/MatMul"], "lm_head.weight"),
                                        (["", "", ""], "embed.weight_untied")])
def test_one_initializer_becomes_two(run, tmp_path, paths, own):
    """A table that its head reads, too, in one tensor: --no-tie gives the head its own, which trains and is exported."""
    table = np.random.default_rng(5).standard_normal((7, 3)).astype(np.float32)
    nodes = [helper.make_node("Gather", ["embed.weight", "ids"], ["e"], paths[0]), helper.make_node("Transpose", ["embed.weight"], ["t"], paths[1]),
             helper.make_node("MatMul", ["e", "t"], ["y"], paths[2])]
    ports = [helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, ["batch"]), helper.make_tensor_value_info("y", 1, ["batch", 7])]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", ports[:1], ports[1:], [numpy_helper.from_array(table, "embed.weight")]),
                                opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "model.onnx")
    assert "21 trainable" in run("check", "model.onnx").stdout
    told = run("check", "model.onnx", "--no-tie=embed.weight").stdout
    assert "42 trainable" in told and f'"{own}" begins as "embed.weight" and trains apart' in told
    np.save(tmp_path / "ids.npy", np.arange(4))
    np.save(tmp_path / "labels.npy", np.arange(4))
    run("compile", "model.onnx", "-o", "train", "--loss=cross_entropy", "--optimizer=sgd", "--batch=4", "--no-tie=embed.weight")
    run(tmp_path / "train", "--data=ids=ids.npy", "--data=labels=labels.npy", "--steps=1", "--lr=1", "--export=out.onnx")
    out = {i.name: numpy_helper.to_array(i) for i in onnx.load(tmp_path / "out.onnx").graph.initializer}
    assert set(out) == {"embed.weight", own} and not np.array_equal(out["embed.weight"], out[own])
    assert np.array_equal(out["embed.weight"][4:], table[4:]) and not np.array_equal(out[own][4:], table[4:])


def write_many(path, weights):
    """y = x, times each matrix and each vector of ones, plus each other vector; weights: name -> its value and its node's name."""
    nodes, x = [], "x"
    for i, (name, (value, node)) in enumerate(weights.items()):
        op = "MatMul" if value.ndim == 2 else "Mul" if (value == 1).all() else "Add"
        nodes.append(helper.make_node(op, [x, name], [f"h{i}"], node))
        x = f"h{i}"
    nodes.append(helper.make_node("Relu", [x], ["y"]))
    ports = [helper.make_tensor_value_info(n, 1, ["batch", 3]) for n in "xy"]
    tensors = [numpy_helper.from_array(value, name) for name, (value, _) in weights.items()]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", ports[:1], ports[1:], tensors), producer_name="pytorch", opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def test_one_note_lists_all_copies_of_a_matrix(run, tmp_path):
    weights = {f"{c}.weight": (MATRIX.T.copy() if c > "i" else MATRIX, f"/{c}/MatMul") for c in "abcdefghijk"}
    write_many(tmp_path / "model.onnx", weights)
    said = run("check", "model.onnx").stdout
    assert "9 trainable" in said and said.count("ties: ") == 2
    assert 'ties: "b.weight", "c.weight", "d.weight", "e.weight", "f.weight", "g.weight" and 2 more are "a.weight"; --no-tie=NAME makes NAME a parameter of its own\n' in said
    assert 'ties: "j.weight", "k.weight" are transposes of "a.weight"; --no-tie=NAME' in said


@pytest.mark.parametrize("n", [10, 3000])
def test_one_note_lists_all_layers_that_began_as_copies(run, tmp_path, n):
    """Comparing all pairs of 3000 layers would take an hour."""
    weights = {}
    for i in range(n):
        weights |= {f"net.layers.{i}.fc.weight": (MATRIX, f"/net/layers.{i}/fc/MatMul"), f"net.layers.{i}.norm.weight": (ONES[0], f"/net/layers.{i}/norm/Mul"),
                    f"net.layers.{i}.fc.bias": (MATRIX[0], f"/net/layers.{i}/fc/Add")}
    write_many(tmp_path / "model.onnx", weights)
    said = run("check", "model.onnx", timeout=60).stdout
    names = ", ".join(f'"net.layers.{i}.fc.weight"' for i in range(1, 7))
    assert f"{15 * n} trainable" in said and said.count("ties: ") == 1
    assert f'{names} and {n - 7} more equal "net.layers.0.fc.weight": --tie NAME=net.layers.0.fc.weight makes NAME and this weight one\n' in said


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("options", [[], ["--tie=A=B", "--tie=B=A", "--tie=B=E"], ["--tie=A=B", "--tie=B=E", "--tie=E=A"],
                                     ["--tie=A=B", "--tie=B=E", "--no-repair=ties"]], ids=" ".join)
def test_copies_follow_a_home_that_becomes_a_copy(run, tmp_path, turned, options):
    """B is A, and then A is E, the table that Gather reads: all three are E, and none becomes a constant."""
    weights = {"A": MATRIX.T if turned else MATRIX, "B": MATRIX, "E": MATRIX}
    nodes = [helper.make_node("MatMul", ["x", "A"], ["h"]), helper.make_node("MatMul", ["h", "B"], ["g"]),
             helper.make_node("Gather", ["E", "ids"], ["e"]), helper.make_node("Add", ["g", "e"], ["y"])]
    ports = [helper.make_tensor_value_info("x", 1, [2, 3]), helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, [2]), helper.make_tensor_value_info("y", 1, [2, 3])]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", ports[:2], ports[2:], [numpy_helper.from_array(np.ascontiguousarray(v), n) for n, v in weights.items()]),
                                opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "model.onnx")
    assert "9 trainable" in run("check", "model.onnx", *options).stdout
    told = run("dump", "model.onnx", "--stage=import", *options).stdout
    assert told.count("state @") == 1 and "= constant" not in told and told.count("transpose") == turned
    x = np.float32(np.random.default_rng(1).standard_normal((2, 3)))
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "ids.npy", np.array([2, 0]))
    run("run", "model.onnx", "--input=x=x.npy", "--input=ids=ids.npy", "--output-dir=out")
    np.testing.assert_allclose(np.load(tmp_path / "out/y.npy"), x @ weights["A"] @ MATRIX + MATRIX[[2, 0]], rtol=1e-5)


def test_a_copy_of_one_layers_matrix_is_found_among_copied_layers(run, tmp_path):
    """The second call of layer 2 reads a copy of its matrix, which equals that of each layer."""
    weights = {}
    for i in range(3):
        weights |= {f"net.layers.{i}.fc.weight": (MATRIX, f"/net/layers.{i}/fc/MatMul"), f"net.layers.{i}.norm.weight": (ONES[0], f"/net/layers.{i}/norm/Mul"),
                    f"net.layers.{i}.fc.bias": (MATRIX[0], f"/net/layers.{i}/fc/Add")}
    write_many(tmp_path / "model.onnx", weights | {"onnx::MatMul_9": (MATRIX, "/net/layers.2/fc_1/MatMul")})
    said = run("check", "model.onnx").stdout
    assert "45 trainable" in said and '"onnx::MatMul_9" is "net.layers.2.fc.weight"; --no-tie' in said


def test_many_equal_vectors_are_read_soon(run, tmp_path):
    write_many(tmp_path / "model.onnx", {f"val_{i}": (MATRIX[0], f"/a{i}/Add") for i in range(20000)})
    assert "60000 trainable" in run("check", "model.onnx", timeout=30).stdout


def test_no_tie_of_what_is_not_tied_is_told(run, tmp_path):
    write_rows(tmp_path / "model.onnx")
    assert "--no-tie w: nothing shares that parameter" in run("check", "model.onnx", "--no-tie=w").stderr


def write_shared(path, *nodes):
    ports = [helper.make_tensor_value_info(n, 1, ["batch", 3]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["a"], "/a/MatMul"), *nodes], "g", ports[:1], ports[1:],
                              [numpy_helper.from_array(MATRIX, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def test_copies_of_one_initializer_are_not_one_again(run, tmp_path):
    """Three modules; whoever asks for the shape alone is none."""
    write_shared(tmp_path / "model.onnx", helper.make_node("MatMul", ["a", "w"], ["b"], "/b/MatMul"), helper.make_node("MatMul", ["b", "w"], ["c"], "/c/MatMul"),
                 helper.make_node("Shape", ["w"], ["s"], "/d/Shape"), helper.make_node("Expand", ["c", "s"], ["y"]))
    said = run("check", "model.onnx", "--no-tie=w")
    assert "27 trainable" in said.stdout and said.stderr == ""
    assert "18 trainable" in run("check", "model.onnx", "--no-tie=w", "--tie=b.weight=c.weight").stdout
    done = run("check", "model.onnx", "--no-tie=w", "--tie=b.weight=w", exit=2)
    assert "--tie b.weight=w: --no-tie keeps w apart" in done.stderr


def test_readers_in_branches_stay(run, tmp_path):
    branches = [helper.make_graph([helper.make_node(op, ["a", "w"], ["r"])], op, [], [helper.make_tensor_value_info("r", 1, ["batch", 3])])
                for op in ("MatMul", "Add")]
    branches[1].node[0].input[1] = "a"
    write_shared(tmp_path / "model.onnx", helper.make_node("Constant", [], ["yes"], value=numpy_helper.from_array(np.array(True))),
                 helper.make_node("If", ["yes"], ["y"], "if", then_branch=branches[0], else_branch=branches[1]))
    assert "--no-tie w: its readers stay together" in run("check", "model.onnx", "--no-tie=w").stderr


def write_rows(path):
    ports = [helper.make_tensor_value_info(n, 1, ["batch", 3]) for n in "xy"]
    w = numpy_helper.from_array(np.arange(9, dtype=np.float32).reshape(3, 3) ** 1.1, "w")
    onnx.save(helper.make_model(helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", ports[:1], ports[1:], [w]),
                                opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
