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
CONV, CONV2, TURNED = floats(5, 3, 1), floats(3, 5, 1), floats(3, 6, 1)
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


def biases(own):
    """Of products, turned ones, convolutions both ways (one called in its parent's scope), and a norm."""
    def b(name):
        return [name] if own else []
    nodes = [("MatMul", ["x", "a.weight"], "a" if own else "h", "a"), *([("Add", ["a", "a.bias"], "h", "a")] if own else []),
             (NORM, ["h", "n.weight", *b("n.bias")], "i", "n"), ("Conv", ["i", "c.weight", *b("c.bias")], "j", "c"),
             ("Conv", ["j", "cc.weight", *b("cc.bias")], "k", "parent"), ("ConvTranspose", ["k", "t.weight", *b("t.bias")], "l", "t"),
             ("Reshape", ["l", "flat"], "m"), ("Gemm", ["m", "g.weight", *b("g.bias")], "n", "g", dict(transB=1)),
             ("Gemm", ["n", "val_9", *b("v.bias")], "o", "v"), ("Reshape", ["o", "six"], "y")]
    return (nodes, {"a.weight": W["a"], "n.weight": W["a"][0], "c.weight": CONV, "cc.weight": CONV2, "t.weight": TURNED, "g.weight": W["b"],
                    "val_9": W["c"]} | ({f"{n}.bias": np.zeros(size, np.float32) for n, size in SIZES.items()} if own else {}))


SIZES = dict(a=4, n=4, c=5, cc=3, t=6, g=4, v=4)
SHAPES = {"shape": [6, 4, 1], "back": [2, 3, 4], "flat": [-1, 4], "six": [2, 6, 4]}
LOST = {norms: ["n1.weight", "n1.bias", "n1.g"], statistics: ["fc.bias", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"],
        own_statistics: ["bn.running_mean", "bn.running_var"], scalars: ["act2.weight"], biases: [f"{n}.bias" for n in SIZES]}
PROPS = {"val_9": dict(FOLDED="['v.weight']")}


def save(path, make, own):
    nodes, tensors = make(own)
    names = [n if n != "val_9" else "v.weight" for n in tensors] + ([] if own else LOST[make])
    props = {n: PROPS.get(n, dict(KIND="BUFFER") if "running" in n else ONE) for n in tensors}
    write(path, nodes, {k: (v, props[k]) for k, v in tensors.items()}, [("BUFFER" if "running" in n else "PARAMETER", n) for n in names],
          shapes=([2, 3, 4], [2, 6 if make is biases else 3, 4]))
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


@pytest.mark.parametrize("make", LOST)
def test_as_if_the_file_had_kept_it(run, tmp_path, make):
    np.save(tmp_path / "x.npy", floats(8, 3, 4))
    np.save(tmp_path / "labels.npy", floats(8, 6 if make is biases else 3, 4))
    save(tmp_path / "model.onnx", make, True)
    losses, want = train(run, tmp_path)
    (tmp_path / "log.jsonl").unlink()
    save(tmp_path / "model.onnx", make, False)
    rows, said = check(run)
    assert {n for n in LOST[make] if "running" not in n} <= set(rows) and not said["notes"]
    got_losses, got = train(run, tmp_path)
    assert got_losses == losses and set(got) == set(want)
    assert all(np.array_equal(got[n], want[n]) for n in want)
    rows, said = check(run, "--no-repair=unmerge", "--no-repair=biases")
    assert not set(LOST[make]) & set(rows) and (said["notes"] or make is own_statistics)


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
