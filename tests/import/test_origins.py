"""What torch's dynamo exporter says of where tensors come from decides who trains; where no file says it, `check` tells
the reasons for and against."""
import json

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
FOLDED = "pkg.onnxscript.optimizer.folded_from"
SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
SCOPES = "pkg.torch.onnx.name_scopes"
RANDOM = np.random.default_rng(0)
ROWS = RANDOM.standard_normal((1, 4)).astype(np.float32)


def tag(message, **props):
    for key, value in props.items():
        prop = message.metadata_props.add()
        prop.key, prop.value = globals()[key], value


def write(path, nodes, tensors, signature=(), shapes=([2, 3, 4], [2, 3, 4]), producer="pytorch", opset=17):
    """tensors: name -> (array, metadata); signature: (kind, target); nodes: (op, inputs, output, path of its module, attributes)."""
    ports = [helper.make_tensor_value_info(n, 1, s) for n, s in zip("xy", shapes)]
    infos, values = [], []
    for name, (array, props) in tensors.items():
        values.append(numpy_helper.from_array(np.asarray(array, np.float32), name))
        infos.append(helper.make_tensor_value_info(name, 1, np.shape(array)))
        tag(infos[-1], **props)
    made = []
    for op, inputs, output, *rest in nodes:
        made.append(helper.make_node(op, inputs, [output], f"node_{output}", **(rest[1] if len(rest) > 1 else {})))
        if rest and rest[0]:
            tag(made[-1], SCOPES=str(["", rest[0], "call"]))
    graph = helper.make_graph(made, "g", ports[:1], ports[1:], values, value_info=infos)
    if signature:
        lines = "".join(f"p_{i}: {kind} target={target!r}\n" for i, (kind, target) in enumerate(signature))
        tag(graph, SIGNATURE=f"\n# inputs\n{lines}x: USER_INPUT\n\n# outputs\ny: USER_OUTPUT\n")
    onnx.save(helper.make_model(graph, producer_name=producer, opset_imports=[helper.make_opsetid("", opset)], ir_version=9), path)


def check(run, *options):
    said = json.loads(run("check", "--json", "model.onnx", *options).stdout)
    return {p["name"]: p for p in said["parameters"]}, said


ONE = dict(KIND="PARAMETER")
PARAMETER = [("PARAMETER", "w"), ("PARAMETER", "v"), ("BUFFER", "table"), ("CONSTANT_TENSOR", "lifted_0")]


@pytest.mark.parametrize("array, props, want", [
    pytest.param(ROWS, dict(FOLDED="['w']"), "computed from w when exported", id="transposed"),
    pytest.param(ROWS, dict(FOLDED="['val_1', 'v', 'norm', \"w\"]"), "computed from v, w when exported: trains as one", id="weight_norm"),
    pytest.param(np.ones((3, 4)), dict(FOLDED="['w', 'exp', 'neg']"), "computed from w when exported: trains as one", id="of one value"),
    pytest.param(ROWS, dict(FOLDED="['arange', 'val_3', 'lifted_0']"), None, id="slopes"),
    pytest.param(ROWS, dict(FOLDED="['table', 'val_1']"), None, id="of a buffer"),
    pytest.param(np.ones((3, 4)), dict(FOLDED="['ones', 'val_1']"), None, id="a mask of ones"),
    pytest.param(ROWS, dict(KIND="BUFFER"), None, id="a buffer"),
    pytest.param([3.1], dict(KIND="BUFFER"), None, id="a buffer of one number"),
    pytest.param([3.1], dict(KIND="CONSTANT_TENSOR"), None, id="a constant of one number"),
    pytest.param(ROWS, {}, None, id="not told of"),
])
@pytest.mark.parametrize("op", ["Add", "Mul"])
def test_metadata_say_who_trains(run, tmp_path, op, array, props, want):
    write(tmp_path / "model.onnx", [(op, ["x", "val_1"], "h"), ("Add", ["h", "val_2"], "y")],
          {"val_1": (array, props), "val_2": (ROWS, dict(FOLDED="['w']"))}, PARAMETER)
    rows, _ = check(run)
    assert rows["val_2"]["kind"] == "trainable"
    if want:
        assert rows["val_1"]["kind"] == "trainable" and rows["val_1"]["why"].startswith(want)
    else:
        assert rows["val_1"]["kind"] == "frozen"


@pytest.mark.parametrize("others, want", [({}, "trainable"), ({"w": (ROWS, ONE)}, None), ({"val_2": (ROWS, dict(FOLDED="['w']"))}, None)])
def test_a_number_of_a_parameter_is_its_value_or_its_size(run, tmp_path, others, want):
    """exp(logit_scale) is learned; 1 / sqrt(d) of a weight that is in the file is its size."""
    nodes = [("Mul", ["x", "exp"], "h"), *(("Add", ["h", n], "y") for n in others)] or []
    nodes = nodes if others else [("Mul", ["x", "exp"], "y")]
    write(tmp_path / "model.onnx", nodes, {"exp": (2.7, dict(FOLDED="['w']")), **others}, PARAMETER)
    rows, said = check(run)
    assert (rows.get("exp") or {"kind": None})["kind"] == want
    assert [d["name"] for d in said["doubtful"]] == ([] if want else ["exp"])


@pytest.mark.parametrize("value", [0.0, 1.0, None])
@pytest.mark.parametrize("shape, axis", [((2, 1, 4), 0), ((1, 2, 4), 1), ((3, 2, 4), 1)])
def test_what_was_expanded_over_the_rows_is_one(run, tmp_path, value, shape, axis):
    """A class token, a first state of layers: one parameter, whatever it began as, and the export has its copies."""
    one = [n if i != axis else 1 for i, n in enumerate(shape)]
    token = np.full(one, value) if value is not None else RANDOM.standard_normal(one)
    token = np.broadcast_to(token, shape).astype(np.float32)
    write(tmp_path / "model.onnx", [("Transpose", ["x"], "t", "", dict(perm=[1, 0, 2] if axis == 1 else [0, 1, 2])), ("Add", ["t", "expand"], "y")],
          {"expand": (token, dict(FOLDED="['cls_token', 'val_3']"))}, [("PARAMETER", "cls_token")],
          ([2, shape[0] if axis else 1, 4], shape))
    rows, said = check(run)
    assert rows["expand"]["kind"] == "trainable" and rows["expand"]["shape"] == one and said["doubtful"] == []
    shape_x = [2, shape[0] if axis else 1, 4]
    x, y = (RANDOM.standard_normal(s).astype(np.float32) for s in (shape_x, shape))
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    run("compile", "model.onnx", "-o", "train", "--loss=mse", "--optimizer=sgd")
    options = ["--data", "labels=y.npy"] if shape[0] == 2 else []
    if not options:
        return
    run(tmp_path / "train", "--data", "x=x.npy", *options, "--steps=1", "--lr=1", "--shuffle=off", "--export=out.onnx")
    t = x.transpose(1, 0, 2) if axis == 1 else x
    want = token - (2 * (t + token - y) / y.size).sum(axis, keepdims=True)
    got = numpy_helper.to_array(onnx.load(tmp_path / "out.onnx").graph.initializer[0])
    assert np.allclose(got, want, atol=1e-6)


def test_layers_keep_their_first_states_when_exported(run, tmp_path):
    """Copies along a middle axis are written between the layers' elements."""
    state = np.broadcast_to(RANDOM.standard_normal((3, 1, 4)), (3, 2, 4)).astype(np.float32)
    write(tmp_path / "model.onnx", [("Transpose", ["s"], "t", "", dict(perm=[1, 0, 2])), ("Add", ["x", "t"], "y")],
          {"s": (state, dict(FOLDED="['h0', 'expand']"))}, [("PARAMETER", "h0")])
    x, y = RANDOM.standard_normal((2, 2, 3, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    run("compile", "model.onnx", "-o", "train", "--loss=mse", "--optimizer=sgd")
    run(tmp_path / "train", "--data", "x=x.npy", "--data", "labels=y.npy", "--steps=1", "--lr=1", "--shuffle=off", "--export=out.onnx")
    want = state - (2 * (x + state.transpose(1, 0, 2) - y) / y.size).sum(0)[:, None]
    assert np.allclose(numpy_helper.to_array(onnx.load(tmp_path / "out.onnx").graph.initializer[0]), want, atol=1e-6)


def test_equal_rows_of_a_parameter_stay_rows(run, tmp_path):
    """-exp(A_log) of a state-space model begins with equal rows, and nothing repeated it."""
    rows = np.tile(-np.arange(1.0, 5), (2, 1))
    for props, signature in (dict(FOLDED="['A_log', 'exp', 'neg']"), [("PARAMETER", "A_log")]), (ONE, ()), ({}, ()):
        write(tmp_path / "model.onnx", [("Mul", ["x", "neg_1"], "y")], {"neg_1": (rows, props)}, signature,
              ([3, 2, 4], [3, 2, 4]))
        row = check(run)[0]["neg_1"]
        assert row["kind"] == "trainable" and row["shape"] == [2, 4], props


@pytest.mark.parametrize("name", ["cls_token", "mask_token", "vit.dist_token"])
@pytest.mark.parametrize("nodes", [[("Concat", ["x", "?"], "y", "", dict(axis=1))], [("Add", ["x", "?"], "y")], [("Expand", ["?", "shape"], "e"), ("Concat", ["x", "e"], "y", "", dict(axis=1))]])
def test_a_named_tensor_of_zeros_trains(run, tmp_path, name, nodes):
    nodes = [(op, [name if i == "?" else i for i in inputs], *rest) for op, inputs, *rest in nodes]
    write(tmp_path / "model.onnx", nodes, {name: (np.zeros((1, 1, 4)), {})}, shapes=([1, 3, 4], [1, 3 + (nodes[-1][0] == "Concat"), 4]))
    if nodes[0][0] == "Expand":
        model = onnx.load(tmp_path / "model.onnx")
        model.graph.initializer.append(numpy_helper.from_array(np.array([1, 1, 4]), "shape"))
        onnx.save(model, tmp_path / "model.onnx")
    assert check(run)[0][name]["kind"] == "trainable"


@pytest.mark.parametrize("op, attributes", [("Einsum", dict(equation="bij,ij->bij")), ("Where", {})])
def test_ones_that_mask_nothing_are_frozen(run, tmp_path, op, attributes):
    inputs = ["x", "onnx::Where_7"] if op == "Einsum" else ["c", "x", "onnx::Where_7"]
    nodes = [("IsNaN", ["x"], "c")] * (op == "Where") + [(op, inputs, "y", "", attributes)]
    write(tmp_path / "model.onnx", nodes, {"onnx::Where_7": (np.ones((3, 4)), {})})
    assert check(run)[0]["onnx::Where_7"]["kind"] == "frozen"


@pytest.mark.parametrize("names, want", [
    (("m.weight_orig", "m.weight_u"), "a buffer of spectral_norm"), (("m.weight_g", "m.weight_v"), None),
    (("m.parametrizations.weight.original", "m.parametrizations.weight.0._v"), "a buffer of spectral_norm"),
])
@pytest.mark.parametrize("n", [1, 4])
def test_spectral_norms_vectors_are_no_parameters(run, tmp_path, names, want, n):
    write(tmp_path / "model.onnx", [("Mul", ["x", names[0]], "h"), ("Mul", ["h", names[1]], "y")],
          {names[0]: (ROWS, {}), names[1]: (RANDOM.standard_normal(n), {})})
    row = check(run)[0].get(names[1])
    if want:
        assert (row["kind"], row["why"]) == ("frozen", want)
    else:
        assert row["kind"] == "trainable" or n == 1


@pytest.mark.parametrize("name, producer, array, nodes, kind, option", [
    ("onnx::Add_7", "pytorch", ROWS, None, "trainable", "--freeze=onnx::Add_7"),
    ("onnx::Add_7", "pytorch", 2.7, None, "constant", "--train=onnx::Add_7"),
    ("logit_scale", "pytorch", 2.7, None, "trainable", "--freeze=logit_scale"),
    ("a", "pytorch", 2.7, None, "constant", "--train=a"),
    ("it's.table", "other", np.sin(np.arange(16)[:, None] / 10 ** np.arange(4)), None, "frozen", "--train='it'\\''s.table'"),
])
def test_doubts_are_told_and_settled(run, tmp_path, name, producer, array, nodes, kind, option):
    shapes = ([2, 16, 4],) * 2
    write(tmp_path / "model.onnx", [("Add", ["x", name], "y")], {name: (array, {})}, producer=producer, shapes=shapes)
    said = check(run)[1]["doubtful"]
    assert [(d["name"], d["kind"], d["option"]) for d in said] == [(name, kind, option)]
    assert said[0]["for"] and said[0]["against"]
    text = run("check", "model.onnx").stdout
    assert f"doubtful: the file does not say whether these are parameters\n    {name}" in text
    assert f"  for a parameter: {said[0]['for']}; against: {said[0]['against']}; to {option[2:].split('=')[0]} it: {option}\n" in text
    for settled in "--train=" + name, *(["--freeze=" + name] if kind != "constant" else []):
        assert check(run, settled)[1]["doubtful"] == []


@pytest.mark.parametrize("name, value, doubted", [
    ("gate", 0.1, True), ("gate", 1.0, True), ("gate", 0.0, True), ("model/mix", 0.5, True), ("eps", 1e-6, True),
    ("embed_scale", 0.5, False), ("sqrt_dim", 8.0, False), ("onnx::Mul_7", 2.7, False), ("/m/Constant_output_0", 2.7, False),
    ("m/mul/y:0", 2.7, False)])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_number_that_is_a_constant_is_found(run, tmp_path, name, value, doubted, shape):
    """In the whole table, by --match, and in doubt where somebody named it; --train makes it a parameter."""
    write(tmp_path / "model.onnx", [("Mul", ["x", name], "h"), ("Add", ["h", "b.weight"], "y")],
          {name: (np.full(shape, value), {}), "b.weight": (ROWS, {})}, producer="")
    rows, said = check(run)
    assert name not in rows and [(c["name"], c["kind"], c["option"]) for c in said["constants"]] == [(name, "constant", f"--train={name}")]
    assert [(d["name"], d["kind"], d["option"]) for d in said["doubtful"]] == [(name, "constant", f"--train={name}")] * doubted
    end = f"  constant   one number; to train it: --train={name}\n"
    assert end in run("check", "model.onnx", "--table=full").stdout and end not in run("check", "model.onnx").stdout
    text = run("check", "model.onnx", "--match", name).stdout
    assert end in text and f"match {name}, and 1 constant, which only --train=NAME makes a parameter\n" in text
    assert check(run, "--match", "b.*")[1]["constants"] == [] and len(check(run, "--match", name)[1]["constants"]) == 1
    rows, said = check(run, f"--train={name}")
    assert rows[name]["kind"] == "trainable" and said["constants"] == said["doubtful"] == []


@pytest.mark.parametrize("shape, before, want", [((1,), "MatMul", "trainable"), ((1, 1), "MatMul", "trainable"), ((), "MatMul", None), ((1,), "Mul", None)])
def test_one_number_behind_a_matrix_is_a_bias(run, tmp_path, shape, before, want):
    """That of a layer with one output; any other number is one of the code."""
    weight = RANDOM.standard_normal((4, 1)) if before == "MatMul" else ROWS
    write(tmp_path / "model.onnx", [(before, ["x", "fc.weight"], "h"), ("Add", ["h", "b"], "y")], {"fc.weight": (weight, {}), "b": (np.full(shape, 0.3), {})},
          shapes=([2, 3, 4], [2, 3, 1 if before == "MatMul" else 4]), producer="")
    assert check(run)[0].get("b", {"kind": None})["kind"] == want


@pytest.mark.parametrize("option", ["--freeze=gate", "--freeze=g?te", "--train=gat*", "--decay=gate", "--lr-scale=gate=2", "--init=gat*=ones"])
def test_a_rule_that_takes_a_constant_only_says_so(run, tmp_path, option):
    write(tmp_path / "model.onnx", [("Mul", ["x", "gate"], "h"), ("Add", ["h", "b.weight"], "y")], {"gate": (0.5, {}), "b.weight": (ROWS, {})}, producer="")
    said = run("check", "model.onnx", option, exit=2).stderr
    glob = option.split("=")[1]
    assert f'={glob} fits no parameter: "gate" is a constant\n' in said and "--train=gate makes it a parameter\n" in said
    assert check(run, "--train=gate", option)[0]["gate"]["kind"] == ("frozen" if "freeze" in option else "trainable")


def test_a_number_asked_for_is_trained(run, tmp_path):
    write(tmp_path / "model.onnx", [("Mul", ["x", "gate"], "y")], {"gate": (0.5, {})}, producer="")
    x, y = RANDOM.standard_normal((2, 2, 3, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    run("compile", "model.onnx", "-o", "train", "--loss=mse", "--optimizer=sgd", "--train=gate")
    run(tmp_path / "train", "--data", "x=x.npy", "--data", "labels=y.npy", "--steps=1", "--lr=1", "--shuffle=off", "--export=out.onnx")
    want = 0.5 - (2 * (0.5 * x - y) * x / y.size).sum()
    assert np.allclose(numpy_helper.to_array(onnx.load(tmp_path / "out.onnx").graph.initializer[0]), want, atol=1e-6)


def test_what_nothing_reads_is_shown_without_an_option(run, tmp_path):
    write(tmp_path / "model.onnx", [("Add", ["x", "b.weight"], "y")], {"left": (ROWS, {}), "b.weight": (ROWS, {})})
    assert [(c["name"], c["why"], c.get("option")) for c in check(run)[1]["constants"]] == [("left", "not read", None)]
    assert "not read\n" in run("check", "model.onnx", "--match=left").stdout


@pytest.mark.parametrize("name", ["/Expand_output_0", "/vit/Expand_1_output_0", "cls_expanded"])
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("producer", ["", "pytorch"])
def test_a_token_of_zeros_that_was_repeated_is_in_doubt(run, tmp_path, name, rows, producer):
    """The file does not say whether the zeros were a parameter before; asked for, copies over the batch are one row."""
    write(tmp_path / "model.onnx", [("Concat", [name, "x"], "y", "", dict(axis=1))], {name: (np.zeros((rows, 1, 4)), {})},
          shapes=([rows, 3, 4], [rows, 4, 4]), producer=producer)
    known = producer == "pytorch" and name == "cls_expanded"
    kept, said = check(run)
    assert kept[name]["kind"] == ("trainable" if known else "frozen")
    assert [(d["name"], d["option"]) for d in said["doubtful"]] == [(name, f"--{'freeze' if known else 'train'}={name}")]
    row = check(run, f"--train={name}")[0][name]
    assert (row["kind"], row["shape"]) == ("trainable", [rows if known else 1, 1, 4])
    assert check(run, f"--train={name}", f"--no-tie={name}")[0][name]["shape"] == [rows, 1, 4]


@pytest.mark.parametrize("name, value", [("/ConstantOfShape_output_0", 0), ("zeros_3", 0), ("/Expand_output_0", 1), ("/Expand_output_0", -1e9)])
def test_values_that_no_token_begins_with_are_in_no_doubt(run, tmp_path, name, value):
    write(tmp_path / "model.onnx", [("Concat", [name, "x"], "y", "", dict(axis=1))], {name: (np.full((1, 1, 4), value), {})},
          shapes=([1, 3, 4], [1, 4, 4]), producer="")
    rows, said = check(run)
    assert rows[name]["kind"] == "frozen" and said["doubtful"] == []


def in_constant_node(path, name):
    model = onnx.load(path)
    value = next(t for t in model.graph.initializer if t.name == name)
    model.graph.node.insert(0, helper.make_node("Constant", [], [name], value=value))
    model.graph.initializer.remove(value)
    onnx.save(model, path)


@pytest.mark.parametrize("op, array, kind, doubted", [
    ("MatMul", np.eye(4) + ROWS, "trainable", True), ("Add", ROWS, "frozen", True), ("Add", np.full((1, 4), 2.0), "frozen", False)])
def test_what_stands_in_a_constant_node_is_in_doubt(run, tmp_path, op, array, kind, doubted):
    """PyTorch's exporters write numbers of the code so: in a weight's place it trains, one value is no table."""
    write(tmp_path / "model.onnx", [(op, ["x", "k_output_0"], "h"), ("Add", ["h", "b.weight"], "y")],
          {"k_output_0": (array, {}), "b.weight": (ROWS, {})})
    in_constant_node(tmp_path / "model.onnx", "k_output_0")
    rows, said = check(run)
    option = "--freeze=" if kind == "trainable" else "--train="
    assert rows["k_output_0"]["kind"] == kind and [d["option"] for d in said["doubtful"]] == [option + "k_output_0"] * doubted


def test_no_doubt_where_metadata_say_it(run, tmp_path):
    write(tmp_path / "model.onnx", [("Add", ["x", "val_1"], "h"), ("Mul", ["h", "b"], "y")],
          {"val_1": (ROWS, dict(FOLDED="['w']")), "b": ([2.7], dict(KIND="BUFFER"))}, PARAMETER)
    assert check(run)[1]["doubtful"] == []


def test_lost_parameters_are_told(run, tmp_path):
    """Merged tensors, dropped biases and folded norms, by the signature of the module and the nodes' scopes."""
    signature = [("PARAMETER", f"{m}.{n}") for m in ("a", "b", "fc", "bn", "unused") for n in ("weight", "bias")]
    write(tmp_path / "model.onnx",
          [("LayerNormalization", ["x", "a.weight", "a.bias"], "h", "a"), ("LayerNormalization", ["h", "a.weight", "a.bias"], "i", "b"),
           ("Conv", ["i", "val_3"], "y", "fc")],
          {"a.weight": (np.ones(4), ONE), "a.bias": (np.zeros(4), ONE),
           "val_3": (RANDOM.standard_normal((3, 3, 1)), dict(FOLDED="['fc.weight']"))},
          [*signature, ("BUFFER", "bn.running_mean")])
    told = check(run)[1]["notes"]
    notes = check(run, "--no-repair=unmerge", "--no-repair=biases")[1]["notes"]
    assert told == notes[1:]
    assert [n.split(" (")[0] for n in notes] == [
        'parameters merged with others: "b.weight" with "a.weight", "b.bias" with "a.bias"',
        'batch norms folded into the layers before them: "bn.weight", "bn.bias"',
        'biases left out: "fc.bias"',
        'parameters left out: "unused.weight", "unused.bias"']
    assert f"  note    {notes[1]}\n" in run("check", "model.onnx").stdout


@pytest.mark.parametrize("mode", [True, False])
def test_batch_norms_of_inference_in_a_model_for_training_are_told(run, tmp_path, mode):
    ones = {f"bn.{n}": (np.ones(3), ONE) for n in ("weight", "bias", "mean", "var")}
    write(tmp_path / "model.onnx", [("BatchNormalization", ["x", *ones], "h"), ("Dropout", ["h", "ratio", "mode"], "y")], ones)
    model = onnx.load(tmp_path / "model.onnx")
    model.graph.initializer.append(numpy_helper.from_array(np.float32(0.5), "ratio"))
    model.graph.initializer.append(numpy_helper.from_array(np.array(mode), "mode"))
    onnx.save(model, tmp_path / "model.onnx")
    assert [n for n in check(run)[1]["notes"] if "1 BatchNormalization" in n and '"node_h"' in n] or not mode
    assert bool([n for n in check(run)[1]["notes"] if "exported for training" in n]) == mode
    assert check(run, "--train-mode=restore")[1]["notes"] == []


@pytest.mark.parametrize("output", ["BUFFER_MUTATION target='bn.running_mean'", "BUFFER_MUTATION target='cache'", "USER_OUTPUT"])
def test_a_signature_says_that_batch_norms_were_training(run, tmp_path, output):
    """A module in training moves its running statistics, and the nodes are those of inference all the same."""
    bn = {f"bn.{n}": (np.ones(3), ONE) for n in ("weight", "bias", "running_mean", "running_var")}
    write(tmp_path / "model.onnx", [("BatchNormalization", ["x", *bn], "y")], bn, PARAMETER)
    model = onnx.load(tmp_path / "model.onnx")
    model.graph.metadata_props[0].value += f"getitem_3: {output}\ny: USER_OUTPUT\nz: BUFFER target='running_mean'\n"
    onnx.save(model, tmp_path / "model.onnx")
    told = [n for n in check(run)[1]["notes"] if "in a model exported for training" in n]
    assert len(told) == ("bn." in output)


@pytest.mark.parametrize("reader, want", [("Add", ["onnx::Add_7"]), ("Shape", [])])
def test_what_no_gradient_reaches_is_in_no_doubt(run, tmp_path, reader, want):
    """--freeze would change nothing."""
    nodes = [("Neg", ["onnx::Add_7"], "n"), ("Shape", ["n"], "s"), ("Reshape", ["x", "s"], "r"), ("Add", ["r", "b.weight"], "h")]
    nodes += [("Add", ["h", "onnx::Add_7"], "y")] if reader == "Add" else [("Identity", ["h"], "y")]
    write(tmp_path / "model.onnx", nodes, {"onnx::Add_7": (RANDOM.standard_normal((2, 3, 4)), {}), "b.weight": (ROWS, {})})
    assert [d["name"] for d in check(run)[1]["doubtful"]] == want


@pytest.mark.parametrize("name, value, want", [("final_logits_bias", 0, True), ("m.cls_token", 1, True), ("m.cls_token", None, False),
                                               ("norm.weight", 1, False), ("onnx::Add_7", 0, True)])
def test_one_value_everywhere_may_be_a_buffer(run, tmp_path, name, value, want):
    """TorchScript's exporter names both in the same way: trained, and told."""
    array = RANDOM.standard_normal((1, 3, 4)) if value is None else np.full((1, 3, 4), value)
    write(tmp_path / "model.onnx", [("Add", ["x", name], "y")], {name: (array, {})})
    rows, said = check(run)
    assert rows[name]["kind"] == "trainable" and [d["name"] for d in said["doubtful"]] == [name] * want


@pytest.mark.parametrize("props", [ONE, dict(FOLDED="['w', 'slice_1']")])
@pytest.mark.parametrize("begins, want", [(0, "frozen"), (3, "trainable")])
def test_sines_that_metadata_call_a_parameter_are_kept_and_in_doubt(run, tmp_path, props, begins, want):
    """Modules hold such tables as parameters without a gradient, which no file says."""
    angles = (begins + np.arange(12))[:, None] / 100 ** (np.arange(4) / 4)
    table = np.concatenate([np.sin(angles), np.cos(angles)], 1)
    write(tmp_path / "model.onnx", [("Add", ["x", "w_1"], "y")], {"w_1": (table, props)}, PARAMETER, shapes=([2, 12, 8],) * 2)
    rows, said = check(run)
    assert rows["w_1"]["kind"] == want and [d["option"] for d in said["doubtful"]] == ["--train=w_1"] * (want == "frozen")
    assert all(d["for"] == "its metadata call it one" for d in said["doubtful"])
    assert check(run, "--train=w_1")[0]["w_1"]["kind"] == "trainable"


RAMPS = -np.arange(12) * 2.0 ** -np.arange(1, 4)[:, None, None]


@pytest.mark.parametrize("op, array, without", [
    pytest.param("Mul", np.eye(3, 4), "frozen", id="a mask"), pytest.param("Add", RAMPS, "frozen", id="ramps"),
    pytest.param("Pow", [2.0, 3.0, 1.0, 2.0], "frozen", id="exponents"), pytest.param("Pow", 3.0, None, id="an exponent"),
    pytest.param("Concat", np.zeros((2, 1, 4)), "frozen", id="a token of zeros"), pytest.param("Mul", 0.5, None, id="a gate"),
    pytest.param("Sub", np.ones(4), "frozen", id="taken from an input")])
def test_what_metadata_call_a_parameter_trains_whatever_it_looks_like(run, tmp_path, op, array, without):
    n = 12 if array is RAMPS else 4
    for props, want in (ONE, "trainable"), ({}, without):
        write(tmp_path / "model.onnx", [(op, ["x", "g"], "y", "", dict(axis=1) if op == "Concat" else {})], {"g": (array, props)},
              shapes=([2, 3, n] if array is not RAMPS else [3, 5, n], [2, 3 + (op == "Concat"), n] if array is not RAMPS else [3, 5, n]), producer="")
        rows, said = check(run)
        assert rows.get("g", {"kind": None})["kind"] == want, props
        assert not props or said["doubtful"] == []


@pytest.mark.parametrize("name, props, want", [("onnx::Conv_7", {}, True), ("fc.weight", {}, False), ("val_7", dict(FOLDED="['w']"), False)])
def test_convolutions_with_nameless_weights_are_told(run, tmp_path, name, props, want):
    """TorchScript's exporter has folded something into them."""
    write(tmp_path / "model.onnx", [("Conv", ["x", name], "y")], {name: (RANDOM.standard_normal((3, 3, 1)), props)})
    notes = check(run)[1]["notes"]
    assert [n for n in notes if '"node_y"' in n and "computed when exported" in n] if want else notes == []


@pytest.mark.parametrize("props", [ONE, dict(FOLDED="['w', 'unsqueeze']")])
@pytest.mark.parametrize("between, other, want", [("Identity", "Cos", "frozen"), ("Add", "Cos", "trainable"), ("Identity", "Sin", "trainable")])
def test_frequencies_that_metadata_call_a_parameter_are_kept_and_in_doubt(run, tmp_path, props, between, other, want):
    """Random ones of a time, of which sine and cosine are taken; those with a phase behind are learned, or under a sine alone."""
    nodes = [("Log", ["x"], "l"), ("Mul", ["l", "w_1"], "h"), (between, ["h", "w_2"][:1 + (between == "Add")], "i"),
             ("Sin", ["i"], "s"), (other, ["i"], "c"), ("Add", ["s", "c"], "y")]
    write(tmp_path / "model.onnx", nodes, {"w_1": (ROWS, props), "w_2": (ROWS, ONE)}, PARAMETER)
    rows, said = check(run)
    assert rows["w_1"]["kind"] == want and [d["option"] for d in said["doubtful"]] == ["--train=w_1"] * (want == "frozen")


@pytest.mark.parametrize("made, want", [("embedding", [1, 1, 4]), ("mul", [2, 3, 4])])
def test_one_row_that_was_looked_up_everywhere_is_one(run, tmp_path, made, want):
    """Types of tokens are all 0 where no input says them."""
    write(tmp_path / "model.onnx", [("Add", ["x", "t"], "y")],
          {"t": (np.broadcast_to(ROWS, (2, 3, 4)), dict(FOLDED=f"['w', 'zeros', '{made}']"))}, PARAMETER)
    assert check(run)[0]["t"]["shape"] == want


def test_a_weight_that_is_a_statistic_too_is_told(run, tmp_path):
    tensors = {"a.weight": (np.ones(3), ONE), "a.bias": (np.zeros(3), ONE), "bn.weight": (RANDOM.standard_normal(3), ONE)}
    write(tmp_path / "model.onnx", [("BatchNormalization", ["x", "bn.weight", "a.bias", "a.bias", "a.weight"], "h"),
                                    ("LayerNormalization", ["h", "a.weight"], "y")], tensors, shapes=([2, 3, 3],) * 2)
    done = run("check", "model.onnx")
    assert '"a.weight" holds running statistics of BatchNormalization, and other nodes read it, too' in done.stderr
    assert "optimize=False" in done.stderr and '"bn.weight" holds' not in done.stderr


@pytest.mark.parametrize("text", ["", "[", "['", "'w", "[w]", "['w', 'v", "\n\n::\n: PARAMETER target=\n: PARAMETER target='\n", "x" * 100000])
def test_broken_metadata_say_nothing(run, tmp_path, text):
    write(tmp_path / "model.onnx", [("MatMul", ["x", "val_1"], "y")], {"val_1": (np.eye(4) + ROWS, dict(FOLDED=text, KIND=text))})
    model = onnx.load(tmp_path / "model.onnx")
    tag(model.graph, SIGNATURE=text)
    onnx.save(model, tmp_path / "model.onnx")
    run("check", "model.onnx")


def write_paths(path):
    """TorchScript's names: the weight's is made up, the nodes' tell the module."""
    nodes = [helper.make_node("MatMul", ["x", "onnx::MatMul_403"], ["h"], "/blocks.0/qkv/MatMul"),
             helper.make_node("Add", ["blocks.0.qkv.bias", "h"], ["i"], "/blocks.0/qkv/Add"),
             helper.make_node("MatMul", ["i", "onnx::MatMul_404"], ["y"], "/blocks.1/qkv_1/MatMul")]
    weights = [numpy_helper.from_array(RANDOM.standard_normal(s).astype(np.float32), n)
               for n, s in (("onnx::MatMul_403", (4, 4)), ("blocks.0.qkv.bias", 4), ("onnx::MatMul_404", (4, 4)))]
    ports = [helper.make_tensor_value_info(n, 1, ["batch", 4]) for n in "xy"]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], weights)
    onnx.save(helper.make_model(graph, producer_name="pytorch", opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


@pytest.mark.parametrize("glob, want", [
    ("blocks.0/qkv", ["onnx::MatMul_403", "blocks.0.qkv.bias"]), ("blocks.1/*", ["onnx::MatMul_404"]), ("onnx::MatMul_403", ["onnx::MatMul_403"]),
    ("blocks.0.*", ["blocks.0.qkv.bias"]), ("*qkv*", ["onnx::MatMul_403", "blocks.0.qkv.bias", "onnx::MatMul_404"]),
])
def test_globs_take_either_name(run, tmp_path, glob, want):
    write_paths(tmp_path / "model.onnx")
    names = ["onnx::MatMul_403", "blocks.0.qkv.bias", "onnx::MatMul_404"]
    rows, _ = check(run, "--match", glob)
    assert list(rows) == want
    text = run("check", "model.onnx", "--match", glob).stdout
    assert text.count("\n") == len(want) + 1 and f"match{'es' if len(want) == 1 else ''} {glob}\n" in text
    rows, _ = check(run, f"--freeze={glob}")
    assert [n for n in names if rows[n]["kind"] == "frozen"] == want
    rows, _ = check(run, "--freeze=*", f"--train={glob}")
    assert [n for n in names if rows[n]["kind"] == "trainable"] == want
    dump = run("dump", "model.onnx", f"--init={glob}=zeros", f"--lr-scale={glob}=0.5", f"--no-decay={glob}", "--stage=forward").stdout
    for name in names:
        line = next(li for li in dump.splitlines() if li.startswith("  state ") and f"{name}" in li)
        assert ("lr_scale 0.5" in line and "init zeros given" in line and " decay" not in line) == (name in want)


def test_the_table_shows_paths(run, tmp_path):
    write_paths(tmp_path / "model.onnx")
    rows, _ = check(run)
    assert [rows[n]["path"] for n in rows] == ["blocks.0/qkv", "blocks.0/qkv", "blocks.1/qkv"]
    assert "  onnx::MatMul_403 (blocks.0/qkv)  " in run("check", "model.onnx").stdout
    run("compile", "model.onnx", "-o", "train", "--loss=mse", "--batch=2")
    states = {s["name"]: s for s in json.loads(run(tmp_path / "train", "--info", "--json").stdout)["states"]}
    assert states["onnx::MatMul_404"]["path"] == "blocks.1/qkv"
    np.save(tmp_path / "x.npy", np.repeat(ROWS, 2, 0))
    said = run(tmp_path / "train", "--data=x=x.npy", "--data=labels=x.npy", "--steps=1", "--table=full").stderr
    assert '"onnx::MatMul_403 (blocks.0/qkv)"' in said and '"blocks.0.qkv.bias (blocks.0/qkv)"' in said


@pytest.mark.parametrize("option", ["--freeze=", "--train=", "--decay=", "--no-decay=", "--lr-scale=0.5@", "--init=ones@", "--match="])
def test_a_glob_that_fits_nothing_names_the_nearest(run, tmp_path, option):
    write_paths(tmp_path / "model.onnx")
    glob = "*block.1/qkv"
    option = option.replace("=", f"={glob}=").replace("@", "") if "@" in option else option + glob
    option = option if "=0.5" not in option and "=ones" not in option else option.split("=")[0] + f"={glob}={option.split('=')[-1]}"
    said = run("check", "model.onnx", option, exit=2).stderr
    assert f"={glob} fits no parameter" in said and "the nearest names are onnx::MatMul_404 (blocks.1/qkv)" in said


def test_the_parameter_that_a_tensor_was_computed_from_is_its_path(run, tmp_path):
    write(tmp_path / "model.onnx", [("MatMul", ["x", "val_0"], "y", "blocks.0.fc")], {"val_0": (np.eye(4) + ROWS, dict(FOLDED="['w']"))}, PARAMETER)
    assert check(run, "--match=w")[0]["val_0"]["path"] == "w"


LAYER = [("MatMul", ["x", "val_1"], "h"), ("Add", ["h", "fc.bias"], "i"), ("Mul", ["i", "ln.weight"], "y")]
MATRIX = RANDOM.standard_normal((4, 4)).astype(np.float32)


@pytest.mark.parametrize("source, kept, want", [
    ("fc.weight", {}, "trainable"), ("fc.weight", ONE, "trainable"), ("w", {}, "trainable"), ("val_0', 'fc.weight", {}, "trainable"),
    ("rope.inv_freq", ONE, "trainable")])
def test_metadata_of_some_tensors_say_nothing_of_others(run, tmp_path, source, kept, want):
    """Tools that copy a graph keep folded_from, and lose the signature and what initializers were: a product's weight and bias train."""
    write(tmp_path / "model.onnx", LAYER, {"val_1": (MATRIX, dict(FOLDED=f"['{source}']")), "fc.bias": (ROWS[0], {}), "ln.weight": (ROWS[0], kept)})
    rows, said = check(run)
    assert {n: r["kind"] for n, r in rows.items()} == {"val_1": want, "fc.bias": "trainable", "ln.weight": "trainable"}
    assert rows["val_1"]["path"] == (source.split("'")[-1] if "." in source and "inv" not in source else "node_h")
    assert said["doubtful"] == []


@pytest.mark.parametrize("source, kind, doubted", [("fc.weight", "trainable", True), ("pos", "frozen", True), ("rope.inv_freq", "frozen", True), ("val_3", "frozen", False)])
def test_where_no_product_reads_it_what_is_left_is_a_name(run, tmp_path, source, kind, doubted):
    write(tmp_path / "model.onnx", [("Add", ["x", "val_1"], "h"), ("Mul", ["h", "ln.weight"], "y")],
          {"val_1": (ROWS, dict(FOLDED=f"['{source}']")), "ln.weight": (ROWS, {})})
    rows, said = check(run)
    assert rows["val_1"]["kind"] == kind and [d["name"] for d in said["doubtful"]] == ["val_1"] * doubted


def test_the_signature_holds_where_a_tensors_own_metadata_are_lost(run, tmp_path):
    write(tmp_path / "model.onnx", [("Add", ["x", "table"], "h"), ("Mul", ["h", "w"], "i"), ("Add", ["i", "fc.bias"], "y")],
          {"table": (ROWS, {}), "w": (ROWS, {}), "fc.bias": (ROWS, dict(FOLDED="['v']"))}, PARAMETER)
    rows, said = check(run)
    assert {n: (r["kind"], r["why"].split(" when")[0]) for n, r in rows.items()} == {
        "table": ("frozen", "a buffer, says its metadata"), "w": ("trainable", "a parameter, says its metadata"), "fc.bias": ("trainable", "computed from v")}
    assert said["doubtful"] == []


@pytest.mark.parametrize("name, want", [("stft.forward_basis_buffer", True), ("1.melW", True), ("rope.inv_freq_0", True), ("vad.window", True),
                                        ("fc.weight", False), ("window_attention.weight", False)])
def test_the_name_of_a_table_is_a_reason_to_doubt(run, tmp_path, name, want):
    write(tmp_path / "model.onnx", [("MatMul", ["x", name], "y")], {name: (MATRIX, {})})
    rows, said = check(run)
    assert rows[name]["kind"] == "trainable" and [d["option"] for d in said["doubtful"]] == [f"--freeze={name}"] * want


def test_a_file_that_the_optimizer_left_alone_is_not_told_to_leave_it_out(run, models):
    """gpt2_mini_raw was exported with optimize=False; its head is tied to its embedding in the module."""
    done = run("check", models / "gpt2_mini_raw/model.onnx")
    assert "lm_head.weight" in done.stdout and "tied in the module" in done.stdout
    assert "export with optimize=False" not in done.stdout + done.stderr
