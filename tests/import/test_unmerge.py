"""What dynamo's exporter merged or dropped comes back by the signature and the scopes, and trains as if the file had kept it."""
import json

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from test_origins import ONE, RANDOM, check, write

ONES, ZEROS = np.ones(4, np.float32), np.zeros(4, np.float32)


def floats(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


W = {n: floats(4, 4) for n in "abc"}
NORM = "LayerNormalization"


def norms(own):
    """Two norms and a scale of ones; the second norm is called twice."""
    n1, b1, g = ("n1.weight", "n1.bias", "n1.g") if own else ("n0.weight", "n0.bias", "n0.weight")
    return ([(NORM, ["x", "n0.weight", "n0.bias"], "h", "n0"), ("MatMul", ["h", "fc.weight"], "i", "fc"), (NORM, ["i", n1, b1], "j", "n1"),
             ("MatMul", ["j", "fc.weight"], "k", "fc"), (NORM, ["k", n1, b1], "l", "n1"), ("Mul", ["l", g], "y", "n1")],
            {"n0.weight": ONES, "n0.bias": ZEROS, "fc.weight": W["a"]} | ({"n1.weight": ONES, "n1.bias": ZEROS, "n1.g": ONES} if own else {}))


def statistics(own):
    """The bias of a layer, and a batch norm's bias and running mean, all zeros; its weight and variance."""
    bn = ["bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"] if own else ["n0.weight", "n0.bias", "n0.bias", "n0.weight"]
    fc = "fc.bias" if own else "n0.bias"
    return ([(NORM, ["x", "n0.weight", "n0.bias"], "h", "n0"), ("MatMul", ["h", "fc.weight"], "i", "fc"), ("Add", ["i", fc], "j", "fc"),
             ("Reshape", ["j", "shape"], "k"), ("BatchNormalization", ["k", *bn], "l", "bn"), ("Reshape", ["l", "back"], "y")],
            {"n0.weight": ONES, "n0.bias": ZEROS, "fc.weight": W["a"]} |
            ({"fc.bias": ZEROS, "bn.weight": ONES, "bn.bias": ZEROS, "bn.running_mean": ZEROS, "bn.running_var": ONES} if own else {}))


def own_statistics(own):
    """A batch norm's statistics have the numbers of its own weight and bias."""
    statistics = ["bn.running_mean", "bn.running_var"] if own else ["bn.bias", "bn.weight"]
    return ([("Reshape", ["x", "shape"], "k"), ("BatchNormalization", ["k", "bn.weight", "bn.bias", *statistics], "l", "bn"),
             ("Reshape", ["l", "back"], "m"), ("MatMul", ["m", "fc.weight"], "y", "fc")],
            {"bn.weight": ONES, "bn.bias": ZEROS, "fc.weight": W["a"]} | ({"bn.running_mean": ZEROS, "bn.running_var": ONES} if own else {}))


def scalars(own):
    """Slopes of PReLU are one number each; of the root module there is no path."""
    return ([("PRelu", ["x", "act.weight"], "h", "act"), ("MatMul", ["h", "fc.weight"], "i", "fc"),
             ("PRelu", ["i", "act2.weight" if own else "act.weight"], "y", "act2")],
            {"act.weight": np.float32([0.25]), "fc.weight": W["a"]} | ({"act2.weight": np.float32([0.25])} if own else {}))


CONVS = {"c.weight": floats(5, 3, 1), "d.weight": floats(5, 5, 1), "t.weight": floats(5, 2, 1)}


def biases(own):
    """Of convolutions both ways, one with groups, one called twice, and of Gemm both ways."""
    def b(name):
        return [name] if own else []
    nodes = [("Conv", ["x", "c.weight", *b("c.bias")], "h", "c"), ("Conv", ["h", "d.weight", *b("d.bias")], "i", "d"),
             ("Conv", ["i", "d.weight", *b("d.bias")], "j", "d"), ("ConvTranspose", ["j", "t.weight", *b("t.bias")], "k", "t", dict(group=5)),
             ("Reshape", ["k", "flat"], "l"), ("Gemm", ["l", "g.weight", *b("g.bias")], "m", "g", dict(transB=1)),
             ("Gemm", ["m", "v.weight", *b("v.bias")], "n", "v"), ("Reshape", ["n", "ten"], "y")]
    return (nodes, CONVS | {"g.weight": W["b"], "v.weight": W["c"]} |
            ({f"{n}.bias": np.zeros(size, np.float32) for n, size in SIZES.items()} if own else {}))


def called_around(own):
    """The module around reads F.linear(x, self.b.weight, self.b.bias)."""
    return ([("MatMul", ["x", "m.a.weight"], "h", "m.a"), ("Add", ["h", "m.a.bias"], "i", "m.a"), ("MatMul", ["i", "m.b.weight"], "j", "m"),
             ("Add", ["j", "m.b.bias" if own else "m.a.bias"], "y", "m")],
            {"m.a.weight": W["a"], "m.a.bias": ZEROS, "m.b.weight": W["b"]} | ({"m.b.bias": ZEROS} if own else {}))


def attention(own):
    """torch.nn.MultiheadAttention reads its out_proj itself."""
    nodes = [("MatMul", ["x", "m.in_proj_weight"], "h", "m"), ("Add", ["h", "m.in_proj_bias"], "i", "m"), ("Reshape", ["i", "flat"], "j"),
             ("Gemm", ["j", "m.out_proj.weight", *(["m.out_proj.bias"] if own else [])], "k", "m", dict(transB=1)), ("Reshape", ["k", "three"], "y")]
    return (nodes, {"m.in_proj_weight": W["a"], "m.in_proj_bias": W["b"][0], "m.out_proj.weight": W["c"]} | ({"m.out_proj.bias": ZEROS} if own else {}))


SIZES = dict(c=5, d=5, t=10, g=4, v=4)
SHAPES = {"shape": [6, 4, 1], "back": [2, 3, 4], "flat": [-1, 4], "ten": [2, 10, 4], "three": [2, 3, 4]}
LOST = {norms: ["n1.weight", "n1.bias", "n1.g"], statistics: ["fc.bias", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"],
        own_statistics: ["bn.running_mean", "bn.running_var"], scalars: ["act2.weight"], biases: [f"{n}.bias" for n in SIZES],
        called_around: ["m.b.bias"], attention: ["m.out_proj.bias"]}


def save(path, make, own):
    nodes, tensors = make(own)
    names = [*tensors] + ([] if own else LOST[make])
    props = {n: dict(KIND="BUFFER") if "running" in n else ONE for n in tensors}
    write(path, nodes, {k: (v, props[k]) for k, v in tensors.items()}, [("BUFFER" if "running" in n else "PARAMETER", n) for n in names],
          shapes=([2, 3, 4], [2, 10 if make is biases else 3, 4]))
    model = onnx.load(path)
    used = {i for n in model.graph.node for i in n.input}
    model.graph.initializer.extend(numpy_helper.from_array(np.array(v), k) for k, v in SHAPES.items() if k in used)
    onnx.save(model, path)


def train(run, folder):
    """The loss of each step, and what the export has."""
    run("compile", "model.onnx", "-o", "train", "--loss=mse", "--optimizer=adamw", "--train-mode=restore")
    run(folder / "train", "--data=x=x.npy", "--data=labels=labels.npy", "--steps=4", "--lr=0.05", "--shuffle=off", "--log=log.jsonl",
        "--export=out.onnx")
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    onnx.checker.check_model(str(folder / "out.onnx"))
    return ([line["loss"] for line in log if "lr" in line],
            {i.name: numpy_helper.to_array(i) for i in onnx.load(folder / "out.onnx").graph.initializer})


def unrelated(notes):
    """Without those about batch norms in inference form."""
    return [note for note in notes if "in inference form" not in note]


@pytest.mark.parametrize("make", LOST)
def test_as_if_the_file_had_kept_it(run, tmp_path, make):
    np.save(tmp_path / "x.npy", floats(8, 3, 4))
    np.save(tmp_path / "labels.npy", floats(8, 10 if make is biases else 3, 4))
    save(tmp_path / "model.onnx", make, True)
    losses, want = train(run, tmp_path)
    (tmp_path / "log.jsonl").unlink()
    save(tmp_path / "model.onnx", make, False)
    rows, said = check(run)
    assert {n for n in LOST[make] if "running" not in n} <= set(rows) and not unrelated(said["notes"])
    got_losses, got = train(run, tmp_path)
    assert got_losses == losses and set(got) == set(want)
    assert all(np.array_equal(got[n], want[n]) for n in want)
    rows, said = check(run, "--no-repair=unmerge", "--no-repair=biases")
    assert not set(LOST[make]) & set(rows) and (unrelated(said["notes"]) or make is own_statistics)


def norm(own):
    """The weight of norm n0, and of norm n1 whatever `own` is."""
    return [(NORM, ["x", "n0.weight", "n0.bias"], "h", "n0"), (NORM, ["h", own, "n0.bias"], "i", "n1")]


SQUARE, SQUARE2 = floats(3, 3, 1), floats(3, 3, 1)
FRESH = {"n0.weight": ONES, "n0.bias": ZEROS}
GRN = [("Mul", ["i", "n0.weight"], "j", "grn"), ("Add", ["j", "n0.bias"], "y", "grn")]
LIKE = [(NORM, ["x", "n0.weight", "n0.bias"], "h", "n0")]
STAY = {
    "tied": (LIKE + [(NORM, ["h", "n0.weight", "n0.bias"], "y", "n1")], FRESH, ["n1.weight", "n0.weight", "n0.bias"]),
    "which of two": (norm("n0.weight") + GRN, FRESH, ["n0.weight", "n0.bias", "n1.weight", "n1.bias", "grn.gamma", "grn.beta"]),
    "its own module has another": ([(NORM, ["x", "a.weight", "a.bias"], "h", "n1"), (NORM, ["h", "a.weight", "a.bias"], "y", "n2")],
                                   {"a.weight": ONES, "a.bias": ZEROS}, ["a.weight", "a.bias", "n1.weight", "n2.weight"]),
    "an unused one": (LIKE + [("Mul", ["h", "n0.weight"], "i", "m"), ("Add", ["i", "n0.weight"], "y", "m")], FRESH,
                      ["n0.weight", "n0.bias", "m.unused"]),
    "a product's bias": ([("MatMul", ["x", "a.weight"], "y", "a")], {"a.weight": W["a"]}, ["a.weight", "a.bias"]),
    "a norm's bias": ([(NORM, ["x", "n0.weight"], "y", "n0")], {"n0.weight": W["a"][0]}, ["n0.weight", "n0.bias"]),
    "read by the module around": ([("Conv", ["x", "m.c.weight"], "y", "m")], {"m.c.weight": CONVS["c.weight"]}, ["m.c.weight", "m.c.bias"]),
    "one read, two names": (LIKE + [("Mul", ["h", "n0.weight"], "y", "m")], FRESH, ["n0.weight", "n0.bias", "m.s", "m.t"]),
    "one of two calls has a bias": ([("Conv", ["x", "d.weight", "e.bias"], "h", "d"), ("Conv", ["h", "d.weight"], "i", "d"),
                                     ("Conv", ["i", "e.weight", "e.bias"], "y", "e")],
                                    {"d.weight": SQUARE, "e.weight": SQUARE2, "e.bias": SQUARE[0, :, 0]}, ["d.weight", "d.bias", "e.weight", "e.bias"]),
    "two modules read the weight": ([("Conv", ["x", "d.weight"], "h", "d"), ("Conv", ["h", "d.weight"], "y", "e")], {"d.weight": SQUARE}, ["d.weight", "d.bias"]),
    "not optimized": ([("Conv", ["x", "c.weight"], "h", "c"), ("Conv", ["h", "d.weight", "d.bias"], "y", "d")],
                      CONVS | {"d.bias": np.zeros(5, np.float32)}, ["c.weight", "c.bias", "d.weight", "d.bias"]),
    "folded": ([("Conv", ["x", "val_1"], "y", "c")], {"val_1": CONVS["c.weight"]}, ["c.weight", "c.bias"]),
}


@pytest.mark.parametrize("nodes, tensors, signature", STAY.values(), ids=STAY)
def test_what_is_not_told_stays(run, tmp_path, nodes, tensors, signature):
    used = {i for n in nodes for i in n[1]}
    props = {"val_1": dict(FOLDED="['c.weight']")}
    last = tensors[nodes[-1][1][1]] if nodes[-1][0] == "Conv" else ZEROS
    write(tmp_path / "model.onnx", nodes, {k: (v, props.get(k, ONE)) for k, v in tensors.items() if k in used}, [("PARAMETER", n) for n in signature],
          shapes=([2, 3, 4], [2, len(last) if last.ndim == 3 else 3, 4]))
    rows, said = check(run)
    lost = {n for n in signature if n not in tensors}
    if nodes[-1] is GRN[-1]:
        lost -= {"n1.weight", "n1.bias"}
    assert not lost & set(rows) and said["notes"]


def test_a_computed_bias_of_zeros_is_no_sign(run, tmp_path):
    """Of a norm that was folded; the optimizer dropped the other layer's."""
    write(tmp_path / "model.onnx", [("Conv", ["x", "c.weight"], "h", "c"), ("Conv", ["h", "d.weight", "d.weight_bias"], "y", "d")],
          {"c.weight": (CONVS["c.weight"], ONE), "d.weight": (CONVS["d.weight"], ONE), "d.weight_bias": (np.zeros(5), {})},
          [("PARAMETER", n) for n in ("c.weight", "c.bias", "d.weight")], shapes=([2, 3, 4], [2, 5, 4]))
    assert "c.bias" in check(run)[0]


def test_a_copy_of_what_was_computed_was_computed(run, tmp_path):
    """exp(b.weight) and exp(a.weight), both ones, became one tensor."""
    write(tmp_path / "model.onnx", [("Mul", ["x", "val_1"], "h", "a"), ("Mul", ["h", "val_1"], "y", "b")],
          {"val_1": (ONES, dict(FOLDED="['a.weight', 'exp']"))}, [("PARAMETER", "a.weight"), ("PARAMETER", "b.weight")])
    rows, said = check(run)
    assert [rows[n]["why"].split(" when")[0] for n in ("val_1", "val_1_1")] == ["computed from a.weight", "computed from b.weight"]


def test_names_that_the_graph_has_are_kept(run, tmp_path):
    write(tmp_path / "model.onnx", [(NORM, ["x", "n0.weight", "n0.bias"], "n1.weight", "n0"), (NORM, ["n1.weight", "n0.weight", "n0.bias"], "y", "n1")],
          {k: (v, ONE) for k, v in FRESH.items()}, [("PARAMETER", f"{m}.{n}") for m in ("n0", "n1") for n in ("weight", "bias")])
    rows, said = check(run)
    assert {"n1.weight_1", "n1.bias"} <= set(rows) and not unrelated(said["notes"])


@pytest.mark.parametrize("line, told", [("p_a: PARAMETER target='it's.weight'", ["it's.weight"]), ('p_a: PARAMETER target="it\'s.weight"', ["it's.weight"]),
                                        ("p_a: PARAMETER target=''", []), ("b_a: BUFFER target='a.mean' persistent=True", []),
                                        ("p_a: PARAMETER target='", []), ("p_a: PARAMETER target=", [])])
def test_names_of_all_sorts(run, tmp_path, line, told):
    write(tmp_path / "model.onnx", norm("n0.weight")[:1] + [("Identity", ["h"], "y")], {k: (v, ONE) for k, v in FRESH.items()},
          [("PARAMETER", "n0.weight"), ("PARAMETER", "n0.bias")])
    model = onnx.load(tmp_path / "model.onnx")
    for prop in model.graph.metadata_props:
        prop.value += line + "\n"
    onnx.save(model, tmp_path / "model.onnx")
    notes = check(run)[1]["notes"]
    assert len(notes) == len(told) and all(f'left out: "{n}"' in notes[0] for n in told)


def test_calls_of_functions_stay(run, tmp_path):
    """Their bodies are inlined: what would read the copy isn't the call."""
    write(tmp_path / "model.onnx", LIKE + [("Scale", ["h", "n0.weight"], "y", "m", dict(domain="own"))], {k: (v, ONE) for k, v in FRESH.items()},
          [("PARAMETER", n) for n in ("n0.weight", "n0.bias", "m.weight")])
    model = onnx.load(tmp_path / "model.onnx")
    body = [onnx.helper.make_node("Mul", ["a", "b"], ["c"])]
    model.functions.append(onnx.helper.make_function("own", "Scale", ["a", "b"], ["c"], body, [onnx.helper.make_opsetid("", 17)]))
    model.opset_import.append(onnx.helper.make_opsetid("own", 1))
    onnx.save(model, tmp_path / "model.onnx")
    assert set(check(run)[0]) == {"n0.weight", "n0.bias"}


@pytest.mark.parametrize("there", [True, False])
def test_without_numbers(run, tmp_path, there):
    """--init=random takes a file without its data; of what it lacks nobody knows whether it was fresh."""
    save(tmp_path / "model.onnx", norms, False)
    onnx.save_model(onnx.load(tmp_path / "model.onnx"), tmp_path / "model.onnx", save_as_external_data=True, location="data.bin", size_threshold=0)
    if not there:
        (tmp_path / "data.bin").unlink()
    done = run("compile", "model.onnx", "-o", "train", "--loss=mse", "--init=random")
    assert ('"n1.weight" is a parameter of its own again' in done.stdout + done.stderr) == there


def test_equal_matrices_stay_one(run, tmp_path):
    """The module has both names of a tied weight; so has the signature."""
    write(tmp_path / "model.onnx", [("MatMul", ["x", "a.weight"], "h", "a"), ("MatMul", ["h", "a.weight"], "y", "b")],
          {"a.weight": (W["a"], ONE)}, [("PARAMETER", "a.weight"), ("PARAMETER", "b.weight")])
    rows, said = check(run)
    assert list(rows) == ["a.weight"] and 'merged with others: "b.weight" with "a.weight"' in said["notes"][0]


def test_numbers_of_code_stay(run, tmp_path):
    """A tensor that no parameter was is nobody's weight, though a module that lost one reads it."""
    write(tmp_path / "model.onnx", [("Mul", ["x", "ones"], "h", "a"), ("MatMul", ["h", "w"], "y", "b")],
          {"ones": (ONES, {}), "w": (W["a"], ONE)}, [("PARAMETER", "a.weight"), ("PARAMETER", "w")])
    rows, said = check(run)
    assert "a.weight" not in rows and 'left out: "a.weight"' in said["notes"][0]
