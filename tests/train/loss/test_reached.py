"""What the loss does not reach stays as it is: no gradient, no decay, no state of the optimizer."""
import json

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

RANDOM = np.random.default_rng(0)


def write(path, nodes, weights, outputs=("y", "z")):
    ports = [helper.make_tensor_value_info(n, 1, ["batch", 4]) for n in ("x", *outputs)]
    graph = helper.make_graph([helper.make_node(op, i, [o], o) for op, i, o in nodes], "g", ports[:1], ports[1:],
                              [numpy_helper.from_array(RANDOM.standard_normal((4, 4)).astype(np.float32), n) for n in weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    for name in "x", "y":
        np.save(path.parent / f"{name}.npy", RANDOM.standard_normal((8, 4)).astype(np.float32))


HEADS = [("MatMul", ["x", "body"], "h"), ("MatMul", ["h", "head"], "y"), ("MatMul", ["h", "other"], "z")]
BEHIND = [("MatMul", ["x", "body"], "h"), ("MatMul", ["h", "head"], "y"), ("MatMul", ["h", "other"], "o"), ("Sign", ["o"], "s"),
          ("Floor", ["s"], "z")]


@pytest.mark.parametrize("nodes, always", [(HEADS, False), (BEHIND, True)])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "momentum"])
def test_an_unused_head_keeps_its_weights(run, tmp_path, nodes, always, optimizer):
    write(tmp_path / "model.onnx", nodes, ["body", "head", "other"])
    said = json.loads(run("compile", "model.onnx", "-o", "train", "--batch=4", "--loss=mse:y", f"--optimizer={optimizer}", "--json").stdout)
    rows = {p["name"]: (p["kind"], p["why"]) for p in said["parameters"]}
    assert rows["other"] == ("frozen", "the loss does not reach it")
    assert rows["body"][0] == rows["head"][0] == "trainable"
    run(tmp_path / "train", "--data", "x=x.npy", "--data", "labels=y.npy", "--steps=4", "--lr=0.1", "--weight-decay=0.5",
        "--export=out.onnx", "--save=saved", "--dump-gradients=gradients")
    before, after = ({t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / f).graph.initializer} for f in ("model.onnx", "out.onnx"))
    assert np.array_equal(before["other"], after["other"])
    assert not np.array_equal(before["body"], after["body"]) and not np.array_equal(before["head"], after["head"])
    assert sorted(p.name for p in (tmp_path / "gradients").glob("grad.*")) == ["grad.body.npy", "grad.head.npy"]
    manifest = "".join(p.read_text() for p in (tmp_path / "saved").rglob("*.json"))
    assert ("head" in manifest) and not any(f'"{m}other"' in manifest for m in ("exp_avg.", "exp_avg_sq.", "momentum.", "grad."))


@pytest.mark.parametrize("options, frozen", [([], []), (["--loss=mse:y"], ["other"]), (["--loss=mse:z"], ["head"])])
def test_check_tells_what_a_loss_does_not_reach(run, tmp_path, options, frozen):
    write(tmp_path / "model.onnx", HEADS, ["body", "head", "other"])
    said = json.loads(run("check", "model.onnx", "--json", *options).stdout)["parameters"]
    assert [p["name"] for p in said if p["kind"] == "frozen"] == frozen


def test_check_tells_what_no_gradient_reaches(run, tmp_path):
    write(tmp_path / "model.onnx", BEHIND, ["body", "head", "other"])
    said = json.loads(run("check", "model.onnx", "--json").stdout)["parameters"]
    assert [(p["name"], p["why"]) for p in said if p["kind"] == "frozen"] == [("other", "no gradient reaches it")]


def test_grad_writes_what_the_loss_reaches(run, tmp_path):
    write(tmp_path / "model.onnx", HEADS, ["body", "head", "other"])
    run("grad", "model.onnx", "--loss=mse:y", "--input", "x=x.npy", "--input", "labels=y.npy", "--output-dir=out")
    assert sorted(p.name for p in (tmp_path / "out").glob("grad.*")) == ["grad.body.npy", "grad.head.npy"]
    run("grad", "model.onnx", "--loss=mse:y", "--freeze=body", "--wrt=x", "--input", "x=x.npy", "--input", "labels=y.npy", "--output-dir=wrt")
    assert sorted(p.name for p in (tmp_path / "wrt").glob("grad.*")) == ["grad.head.npy", "grad.x.npy"]


@pytest.mark.parametrize("engine", ["compiled", "interp"])
def test_the_gradient_of_an_input_that_the_loss_does_not_reach_is_zero(run, tmp_path, engine):
    """Its zeros stand before the stores, as every node does."""
    write(tmp_path / "model.onnx", [("MatMul", ["body", "head"], "y"), ("MatMul", ["x", "other"], "z")], ["body", "head", "other"],
          ("z",))
    model = onnx.load(tmp_path / "model.onnx")
    model.graph.output.append(helper.make_tensor_value_info("y", 1, [4, 4]))
    onnx.save(model, tmp_path / "model.onnx")
    np.save(tmp_path / "labels.npy", np.ones((4, 4), np.float32))
    run("grad", "model.onnx", "--loss=mse:y,rows=0", "--wrt=x", "--batch=4", f"--engine={engine}", "--verify-each", "--input", "x=labels.npy",
        "--input", "labels=labels.npy", "--output-dir=out")
    assert not np.load(tmp_path / "out/grad.x.npy").any()
    assert np.load(tmp_path / "out/grad.head.npy").any()


def test_a_parameter_of_one_binding_trains_in_all(run, tmp_path):
    """--dim gives two programs; what one of them reaches has a state for both."""
    write(tmp_path / "model.onnx", HEADS, ["body", "head", "other"])
    run("compile", "model.onnx", "-o", "train", "--dim", "batch=2,4", "--loss=mse:z")
    said = json.loads(run(tmp_path / "train", "--info", "--json").stdout)
    assert said["trainable_elements"] in (32, "32")
