"""Verdicts that hang on the values of a tensor: tables of positions, and single numbers."""
import functools
import json

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

ANGLES = np.arange(16)[:, None] / 10000 ** (np.arange(4) / 4)
SINUSOIDAL = np.stack([np.sin(ANGLES), np.cos(ANGLES)], -1).reshape(16, 8)
PARAMETERS = np.random.default_rng(0).standard_normal((16, 8))


def verdict(run, folder, table, *options, nodes=(("Add", ["x", "table"], ["y"]),), producer="", name="table",
            others=None, value_info=()):
    """(kind, why) of "table" in y = x + table; None where it is not listed."""
    table = numpy_helper.from_array(table, name)
    ports = [helper.make_tensor_value_info(n, table.data_type, table.dims or [4]) for n in "xy"]
    graph = helper.make_graph([helper.make_node(*n[:3], **dict(*n[3:])) for n in nodes], "g", ports[:1], ports[1:], [
        table, *(numpy_helper.from_array(v, k) for k, v in (others or {}).items())], value_info=value_info)
    onnx.save(helper.make_model(graph, producer_name=producer, opset_imports=[helper.make_opsetid("", 17)]),
              folder / "model.onnx")
    said = json.loads(run("check", "--json", "model.onnx", *options).stdout)
    return {p["name"]: (p["kind"], p["why"]) for p in said["parameters"]}.get(name)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("table", [
    pytest.param(np.cos(np.tile(ANGLES, 2)), id="rotary, cosines"),
    pytest.param(np.sin(np.tile(ANGLES, 2)), id="rotary, sines"),
    pytest.param(SINUSOIDAL, id="sinusoidal"),
    pytest.param(SINUSOIDAL[:, None], id="rows between"),
    pytest.param(SINUSOIDAL.T[None], id="positions last"),
    pytest.param(SINUSOIDAL[:6], id="six positions"),
])
def test_a_table_of_positions_is_frozen(run, tmp_path, table, dtype):
    table = table.astype(dtype)
    assert verdict(run, tmp_path, table) == ("frozen", "sines and cosines of positions")
    for option in "--no-repair=tables", "--train=table":
        assert verdict(run, tmp_path, table, option)[0] == "trainable"


@pytest.mark.parametrize("table", [
    pytest.param(PARAMETERS, id="random"),
    pytest.param(np.zeros((16, 8)), id="zeros"),
    pytest.param(np.ones((16, 8)), id="ones"),
    pytest.param(np.arange(16)[:, None] * np.ones(8), id="a ramp"),
    pytest.param(np.where(np.arange(8) == 5, PARAMETERS, SINUSOIDAL), id="one line is none"),
    pytest.param(np.where(np.arange(8) == 0, abs(SINUSOIDAL), SINUSOIDAL), id="one line is bent"),
    pytest.param(SINUSOIDAL[3:], id="from elsewhere"),
    pytest.param(SINUSOIDAL[:5], id="too few to tell"),
])
def test_what_only_looks_like_one_is_trained(run, tmp_path, table):
    assert verdict(run, tmp_path, table.astype(np.float32))[0] == "trainable"


PLAIN, FILLS = "ones and zeros of a plain normalization", "one value that fills"
FOLDED = [
    ("LayerNormalization", ["h", "?"], np.ones(8), PLAIN),
    ("LayerNormalization", ["h", "h", "?"], np.zeros(8), PLAIN),
    ("Mul", ["h", "?"], np.ones((2, 3)), FILLS),
    ("Div", ["h", "?"], np.full((2, 1, 3), 0.5), FILLS),
    ("Add", ["h", "?"], np.zeros((2, 1, 3, 3)), FILLS),
    ("Sub", ["h", "?"], np.zeros((2, 1, 1, 3)), FILLS),
    ("MatMul", ["?", "h"], np.zeros((3, 3)), FILLS),
]


@pytest.mark.parametrize("op, inputs, table, why", FOLDED)
@pytest.mark.parametrize("name, producer, want", [("val_7", "pytorch", "frozen"), ("val_7", "other", "trainable"),
                                                  ("pos", "pytorch", "trainable")])
def test_what_the_exporter_made_up_is_frozen(run, tmp_path, op, inputs, table, why, name, producer, want):
    nodes = [("Relu", ["x"], ["h"]), (op, [name if i == "?" else i for i in inputs], ["y"])]
    said = verdict(run, tmp_path, table.astype(np.float32), nodes=nodes, name=name, producer=producer)
    assert said[0] == want and (want == "trainable" or said[1] == why)


@pytest.mark.parametrize("table", [
    pytest.param(np.zeros((2, 3)), id="zeros"), pytest.param(np.zeros((1, 4, 3, 3)), id="zeros of each head"),
    pytest.param(SINUSOIDAL[3:], id="positions from 3 on")])
@pytest.mark.parametrize("name, want", [("k", "frozen"), ("linear_0.b_0", "trainable")])
@pytest.mark.parametrize("producer", ["pytorch", "other"])
def test_tables_of_constant_nodes_are_frozen(run, tmp_path, table, producer, name, want):
    """What stands in a Constant node needs a name or a weight's place."""
    value = numpy_helper.from_array(table.astype(np.float32))
    nodes = [helper.make_node("Constant", [], [name], value=value), helper.make_node("Add", ["x", name], ["y"])]
    ports = [helper.make_tensor_value_info(n, value.data_type, table.shape) for n in "xy"]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:])
    onnx.save(helper.make_model(graph, producer_name=producer, opset_imports=[helper.make_opsetid("", 17)]),
              tmp_path / "model.onnx")
    said = json.loads(run("check", "--json", "model.onnx").stdout)["parameters"]
    if producer == "other" or name == "k":
        assert [(p["name"], p["kind"]) for p in said] == [(name, want)]


@pytest.mark.parametrize("op, inputs, table, why", FOLDED)
def test_metadata_tell_what_the_exporter_made_up(run, tmp_path, op, inputs, table, why):
    """Where parameters are said to be some, the rest is none, whatever its name."""
    nodes = [("Relu", ["x"], ["h"]), (op, ["where" if i == "?" else i for i in inputs], ["i"]), ("Add", ["i", "b"], ["y"])]
    parameter = helper.make_tensor_value_info("b", onnx.TensorProto.FLOAT, [1])
    prop = parameter.metadata_props.add()
    prop.key, prop.value = "pkg.torch.export.graph_signature.InputSpec.kind", "PARAMETER"
    def said(table, nodes, name="where"):
        nodes = [(o, [name if i == "where" else i for i in i_], o_) for o, i_, o_ in nodes]
        return verdict(run, tmp_path, table.astype(np.float32), nodes=nodes, name=name, producer="pytorch",
                       others={"b": np.ones(1, np.float32)}, value_info=[parameter])
    assert said(table, nodes) == ("frozen", why)
    assert said(np.zeros((1, 4, 3, 3)), [("Add", ["x", "where"], ["i"]), nodes[-1]])[0] == "trainable"
    for name in "zeros", "new_full_3":
        assert said(np.zeros((1, 4, 3, 3)), [("Add", ["x", "where"], ["i"]), nodes[-1]], name) == ("frozen", FILLS)
    assert said(np.zeros((1, 4, 3, 3)), [("Add", ["x", "where"], ["i"]), nodes[-1]], "zeros_of")[0] == "trainable"
    assert said(np.float32(2), [("Mul", ["x", "where"], ["i"]), nodes[-1]]) is None


@pytest.mark.parametrize("op, inputs, table", [
    pytest.param("LayerNormalization", ["x", "val_7"], np.zeros(8), id="a scale of zeros"),
    pytest.param("LayerNormalization", ["x", "x", "val_7"], np.ones(8), id="a bias of ones"),
    pytest.param("Mul", ["x", "val_7"], np.ones((1, 3, 1, 1)), id="a scale of each channel"),
    pytest.param("Add", ["x", "val_7"], np.zeros((1, 2, 3, 3)), id="a bias of each head"),
    pytest.param("Add", ["x", "val_7"], np.ones((2, 1, 3, 3)), id="no zeros are added"),
    pytest.param("MatMul", ["x", "val_7"], np.zeros((3, 3)), id="a matrix of zeros"),
])
def test_a_parameter_as_it_began_is_trained(run, tmp_path, op, inputs, table):
    nodes = [(op, inputs, ["y"])]
    assert verdict(run, tmp_path, table.astype(np.float32), nodes=nodes, name="val_7",
                   producer="pytorch")[0] == "trainable"


RAMPS = -np.arange(12) * 2.0 ** -np.arange(1, 5)[:, None, None]


@pytest.mark.parametrize("op, table, want", [
    pytest.param("Add", RAMPS, "ramps along positions", id="ALiBi"),
    pytest.param("Sub", -RAMPS[None], "ramps along positions", id="ALiBi of a batch"),
    pytest.param("Mul", RAMPS, None, id="factors"),
    pytest.param("Add", RAMPS[:, 0], None, id="a matrix"),
    pytest.param("Add", RAMPS * np.where(np.arange(12) == 5, 1.1, 1), None, id="one is off"),
    pytest.param("Mul", np.eye(4), "a mask", id="ones and zeros"),
    pytest.param("MatMul", np.eye(4), None, id="a matrix that began as the identity"),
    pytest.param("Mul", np.eye(4)[1], None, id="a vector of ones and zeros"),
])
def test_ramps_and_masks(run, tmp_path, op, table, want):
    kind, why = verdict(run, tmp_path, table.astype(np.float32), nodes=[("Relu", ["x"], ["h"]), (op, ["h", "table"], ["y"])])
    assert (kind, why) == ("frozen", want) if want else kind == "trainable"


@pytest.mark.parametrize("option, want", [("--train=table", "trainable"), ("--freeze=*", None), ("--train=t*", None)])
def test_one_number_is_trained_if_named(run, tmp_path, option, want):
    """exp(table) x, as a logit scale: a number that has no name for it is a constant."""
    nodes = [("Exp", ["table"], ["e"]), ("Mul", ["e", "x"], ["y"])]
    table = np.float32(2)
    if want:
        assert verdict(run, tmp_path, table, option, nodes=nodes) == (want, option)
    else:
        with pytest.raises(AssertionError, match="fits no parameter"):
            verdict(run, tmp_path, table, option, nodes=nodes)
    assert verdict(run, tmp_path, table, nodes=nodes) is None


ROOT = np.float32(8 ** -0.5)


@pytest.mark.parametrize("name, value, want", [
    ("logit_scale", 2.6592, "trainable"), ("act.alpha", 0.25, "trainable"), ("block.scale", 1.0, "trainable"),
    ("block.temperature", 0.07, "trainable"),
    ("logit_scale", 2.4603067e-05, "trainable"), ("logit_scale", 300.7, "trainable"),
    ("scaled_0.w_0", 1.3, "trainable"), ("scaled_0.x_0", 1.3, None), ("w_0", 1.3, None),
    ("embed_scale", 3.1, None), ("dpa_scale_0", 0.3, None), ("scale", ROOT, None), ("m.scale", 1 / ROOT, None),
    ("norm.eps", 0.2, None), ("fc.bias", 0.0, "trainable"), ("onnx::Add_7", 2.3, None), ("12", 2.3, None), ("m._scale", 2.3, None),
])
@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("producer", ["pytorch", "tf2onnx"])
def test_a_number_trains_if_it_is_called_so(run, tmp_path, name, value, want, shape, producer):
    """Roots of sizes and numbers that code names are none of those that are learned."""
    nodes = [("Mul", ["x", name], ["y"])]
    said = verdict(run, tmp_path, np.full(shape, value, np.float32), nodes=nodes, producer=producer, name=name)
    assert (said and said[0]) == want


@pytest.mark.parametrize("op, want", [("Mul", "frozen"), ("MatMul", "trainable"), ("Add", "trainable")])
@pytest.mark.parametrize("way", ["Identity", "Transpose"])
def test_frequencies_meet_positions_one_by_one(run, tmp_path, op, want, way):
    """sin(x table): a float input of coordinates or times; the matrix of a layer is no table."""
    nodes = [("Identity", ["x"], ["i"]), (way, ["table"], ["t"]), (op, ["i", "t"], ["a"]), ("Sin", ["a"], ["y"])]
    table = (2.0 ** np.arange(4)).astype(np.float32)
    table = np.diag(table) if op == "MatMul" else table
    assert verdict(run, tmp_path, table, nodes=nodes)[0] == want


def test_paths_to_a_sine_are_not_counted(run, tmp_path):
    """Joined with itself eight times, ten times over, a table has 8**10 ways to a sine, and so have positions to a table."""
    table, chain = PARAMETERS[:2, :1].astype(np.float32), range(10)
    joined = [("Concat", [f"h{i}" if i else "table"] * 8, [f"h{i + 1}"], {"axis": 1}) for i in chain]
    places = [("Concat", [f"h{i}"] * 8, [f"h{i + 1}"], {"axis": 0}) for i in chain]
    shape = [("Shape", ["x"], ["s"]), ("Cast", ["s"], ["h0"], {"to": onnx.TensorProto.FLOAT})]
    end = [("Sin", ["a"], ["b"]), ("ReduceMean", ["b"], ["y"], {"axes": [1]})]
    for nodes in ([*joined, ("Mul", ["x", "h10"], ["a"])], [*shape, *places, ("Mul", ["table", "h10"], ["a"])]):
        said = verdict(functools.partial(run, timeout=10), tmp_path, table, nodes=[*nodes, *end])
        assert said == ("frozen", "frequencies: meets positions, then Sin and Cos")


@pytest.mark.parametrize("name, want", [("transform_matrix", "frozen"), ("coefficient1", "trainable"), ("coef", "trainable"), ("intercepts1", "trainable"),
                                        ("classes", "frozen")])
@pytest.mark.parametrize("producer", ["skl2onnx", "other"])
def test_of_scikit_learn_coefficients_train(run, tmp_path, name, want, producer):
    """A principal component is no layer, and its matrix is read like one."""
    kind, _ = verdict(run, tmp_path, PARAMETERS[:8].astype(np.float32), nodes=[("MatMul", ["x", name], ["y"])], name=name, producer=producer)
    assert kind == (want if producer == "skl2onnx" else "trainable")


@pytest.mark.parametrize("value, want", [(1.5094833, True), (2.6592600, True), (1.0, True), (0.0, False), (1e-6, False), (0.5, False),
                                         (1 / 6, False), (0.044715, False), (ROOT, False), (1.702, False)])
@pytest.mark.parametrize("name, known", [("const_36", False), ("k", True)])
def test_a_number_is_in_doubt_unless_it_is_nameless_and_code_writes_such(run, tmp_path, value, want, name, known):
    assert verdict(run, tmp_path, np.float32(value), nodes=[("Mul", ["x", name], ["y"])], name=name, producer="jax2onnx") is None
    doubtful = json.loads(run("check", "--json", "model.onnx").stdout)["doubtful"]
    assert [d["option"] for d in doubtful] == ([f"--train={name}"] if want or known else [])


def test_bounds_are_in_no_doubt(run, tmp_path):
    """`lo` is a name of its own, but all it does is steer a Clip."""
    verdict(run, tmp_path, np.float32(0.37), nodes=[("Clip", ["x", "lo"], ["y"])], name="lo")
    assert json.loads(run("check", "--json", "model.onnx").stdout)["doubtful"] == []


def test_a_tensor_of_no_elements_is_no_number(run, tmp_path):
    verdict(run, tmp_path, np.zeros((4, 0), np.float32), nodes=[("Concat", ["x", "gate"], ["y"], {"axis": 1})], name="gate")
    assert "gate" not in [d["name"] for d in json.loads(run("check", "--json", "model.onnx").stdout)["doubtful"]]
    assert "holds no numbers" in run("check", "model.onnx", "--table=full").stdout


def test_the_last_of_many_readers_counts(run, tmp_path):
    """Eighty Concats and a MatMul: a weight, and not what fills."""
    nodes = [("Concat", ["x", "w"], [f"c{i}"], {"axis": 0}) for i in range(80)] + [("MatMul", ["x", "w"], ["y"])]
    assert verdict(run, tmp_path, np.zeros((8, 8), np.float32), nodes=nodes, name="w")[0] == "trainable"


def test_readers_are_found_behind_many_views(run, tmp_path):
    """Thirty views in a row, and a Pow at their end."""
    nodes = [("Identity" if i else "Transpose", [f"v{i}" if i else "table"], [f"v{i + 1}"]) for i in range(30)]
    nodes = [(op, *names, {"perm": [0]} if op == "Transpose" else {}) for op, *names in nodes] + [("Pow", ["x", "v30"], ["y"])]
    assert verdict(run, tmp_path, PARAMETERS[0].astype(np.float32), nodes=nodes) == ("frozen", "steers an operator")


def test_two_branches_may_use_names_in_opposite_directions(run, tmp_path):
    """v is a view of w in one branch, and w of v in the other: names alone form a cycle."""
    def branch(made, view):
        nodes = [helper.make_node("Mul", ["x", "table"], [made]), helper.make_node("Identity", [made], [view]),
                 helper.make_node("Neg", [view], ["o" + made])]
        return helper.make_graph(nodes, made, [], [helper.make_tensor_value_info("o" + made, 1, [8])])

    nodes = [("If", ["yes"], ["y"], {"then_branch": branch("w", "v"), "else_branch": branch("v", "w")})]
    assert verdict(run, tmp_path, PARAMETERS[0].astype(np.float32), nodes=nodes, others={"yes": np.array(True)})[0] == "trainable"


def tensorflow(run, folder, nodes, tensors):
    """What check says of a file of tf2onnx: nodes are (op, name, inputs, output)."""
    ports = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [4, 8]) for n in "xy"]
    made = [helper.make_node(op, inputs, [output], name) for op, name, inputs, output in nodes]
    graph = helper.make_graph(made, "g", ports[:1], ports[1:],
                              [numpy_helper.from_array(np.asarray(v, np.float32), k) for k, v in tensors.items()])
    onnx.save(helper.make_model(graph, producer_name="tf2onnx", opset_imports=[helper.make_opsetid("", 17)]), folder / "model.onnx")
    said = json.loads(run("check", "--json", "model.onnx").stdout)
    return {p["name"]: p["kind"] for p in said["parameters"]}, [d["name"] for d in said["doubtful"]], said["notes"]


@pytest.mark.parametrize("name, want", [("m/attention/Mul/ReadVariableOp:0", "trainable"), ("m/norm/mul/ReadVariableOp_1:0", "trainable"),
                                        ("m/norm/add/y:0", None), ("const_fold_opt__9", None)])
def test_a_number_of_tensorflow_trains_if_it_is_a_variable(run, tmp_path, name, want):
    kinds, doubtful, _ = tensorflow(run, tmp_path, [("Mul", "m/mul", ["x", name], "y")], {name: 0.001})
    assert kinds.get(name) == want and doubtful == []


@pytest.mark.parametrize("name, want", [("m/batchnorm/mul:0", True), ("const_fold_opt__7", True), ("m/p_re_lu/Neg_1:0", True),
                                        ("m/conv/Squeeze:0", False), ("m/dense/BiasAdd/ReadVariableOp:0", False)])
@pytest.mark.parametrize("op", ["Mul", "MatMul"])
def test_what_tensorflow_computed_is_in_doubt(run, tmp_path, name, want, op):
    """A matrix with a number for a name was only transposed."""
    table = PARAMETERS[0] if op == "Mul" else PARAMETERS[:8]
    kinds, doubtful, _ = tensorflow(run, tmp_path, [(op, "m/mul", ["x", name], "y")], {name: table})
    assert kinds[name] == "trainable" and doubtful == [name] * (want and (op, name[:5]) != ("MatMul", "const"))


@pytest.mark.parametrize("behind, want", [("Relu", True), ("Add", False), ("Mul", False)])
def test_layers_of_tensorflow_without_a_bias_are_told(run, tmp_path, behind, want):
    """An addition of zeros is gone; what a batch norm follows has none."""
    inputs, path = {"Relu": (["h"], "m/dense/Relu"), "Add": (["h", "b/ReadVariableOp:0"], "m/dense/BiasAdd"),
                    "Mul": (["h", "b/ReadVariableOp:0"], "m/norm/batchnorm/mul")}[behind]
    _, _, notes = tensorflow(run, tmp_path, [("MatMul", "m/dense/MatMul", ["x", "m/dense/ReadVariableOp:0"], "h"), (behind, path, inputs, "y")],
                             {"m/dense/ReadVariableOp:0": PARAMETERS[:8], "b/ReadVariableOp:0": PARAMETERS[0]})
    assert [n for n in notes if '"m/dense"' in n] if want else notes == []


@pytest.mark.parametrize("nodes, want", [
    ([("MatMul", ["k", "fc.weight"], ["h"]), ("MatMul", ["x", "h"], ["y"])], "frozen"),
    ([("Transpose", ["fc.weight"], ["t"]), ("MatMul", ["k", "t"], ["h"]), ("MatMul", ["x", "h"], ["y"])], "frozen"),
    ([("MatMul", ["x", "fc.weight"], ["h"]), ("MatMul", ["h", "k"], ["y"])], "trainable"),
    ([("MatMul", ["k", "x"], ["h"]), ("MatMul", ["h", "fc.weight"], ["y"])], "trainable"),
])
def test_a_table_of_the_code_that_a_layer_takes_is_no_weight(run, tmp_path, nodes, want):
    """Coordinates of relative positions go through layers of their own."""
    table, weight = (numpy_helper.from_array(PARAMETERS[i:i + 8].astype(np.float32), n) for i, n in [(0, ""), (8, "fc.weight")])
    ports = [helper.make_tensor_value_info(n, table.data_type, [8, 8]) for n in "xy"]
    nodes = [helper.make_node("Constant", [], ["k"], value=table), *(helper.make_node(*n) for n in nodes)]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", ports[:1], ports[1:], [weight]), producer_name="pytorch",
                                opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "model.onnx")
    kinds = {p["name"]: p["kind"] for p in json.loads(run("check", "--json", "model.onnx").stdout)["parameters"]}
    assert kinds == {"k": want, "fc.weight": "trainable"}


def test_what_stands_before_a_scatter_by_max_is_trained(run, tmp_path):
    """The largest of what is scattered to one place, as graph attention's softmax asks for."""
    index = numpy_helper.from_array(np.zeros((2, 4), np.int64), "index")
    tensors = [numpy_helper.from_array(PARAMETERS[i:i + 4, :4].astype(np.float32), n) for i, n in ((0, "a.weight"), (4, "b.weight"))] + [index]
    nodes = [helper.make_node("MatMul", ["x", "a.weight"], ["h"]), helper.make_node("ScatterElements", ["h", "index", "h"], ["m"], reduction="max"),
             helper.make_node("MatMul", ["m", "b.weight"], ["y"])]
    ports = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2, 4]) for n in "xy"]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", ports[:1], ports[1:], tensors), opset_imports=[helper.make_opsetid("", 18)]),
              tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4))
    said = run("grad", "model.onnx", "--loss=mse", "--input=x=x.npy", "--input=labels=x.npy", "--precision=f64", "--check-gradients=4").stdout
    errors = {line.split()[0]: float(line.split()[1]) for line in said.splitlines() if " at " in line}
    assert set(errors) == {"a.weight", "b.weight"} and max(errors.values()) < 1e-6, said


@pytest.mark.parametrize("op, inputs", [("Pow", ["x", "table"]), ("Max", ["x", "table"]), ("Min", ["table", "x"])])
def test_what_steers_an_operator_is_frozen(run, tmp_path, op, inputs):
    table = PARAMETERS[0].astype(np.float32)
    assert verdict(run, tmp_path, table, nodes=[(op, inputs, ["y"])]) == ("frozen", "steers an operator")
    nodes = [(op, inputs, ["h"]), ("Mul", ["h", "table"], ["y"])]
    assert verdict(run, tmp_path, table, nodes=nodes)[0] == "trainable"


@pytest.mark.parametrize("op, inputs, way, want", [("Sub", ["i", "table"], "Transpose", "frozen"), ("Div", ["i", "table"], "Mul", "frozen"),
                                                   ("Sub", ["table", "i"], "Transpose", "trainable"), ("Sub", ["i", "table"], "Relu", "trainable"),
                                                   ("Add", ["i", "table"], "Transpose", "trainable")])
def test_means_and_deviations_of_an_input_are_frozen(run, tmp_path, op, inputs, way, want):
    """Those of what a layer made are learned."""
    nodes = [("Mul", ["x", "by"], ["i"]) if way == "Mul" else (way, ["x"], ["i"]), (op, inputs, ["y"])]
    said = verdict(run, tmp_path, PARAMETERS[0].astype(np.float32), nodes=nodes, others={"by": np.float32(0.5)} if way == "Mul" else {})
    assert said[0] == want and (want == "trainable" or said[1] == "normalizes an input")


def test_without_the_repair_a_transposed_copy_is_frozen(run, tmp_path):
    said = lambda name, *options: verdict(run, tmp_path, PARAMETERS[:8].astype(np.float32), *options, nodes=[("MatMul", ["x", name], ["y"])], name=name)  # noqa: E731
    assert said("onnx::MatMul_7", "--no-repair=transposes") == ("frozen", "--no-repair=transposes")
    assert said("onnx::MatMul_7")[0] == said("fc.weight", "--no-repair=transposes")[0] == "trainable"
