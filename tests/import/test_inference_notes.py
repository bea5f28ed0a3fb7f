"""A model in inference form that is about to train: a note says what stays as it is, and which option mends it."""
import json

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

NODE = helper.make_node
RANDOM = np.random.default_rng(0)


def write(path, producer, norms=(), dropouts=(), weights=None, opset=17, training=False, ratio=0.5):
    """A chain of batch norms and dropouts, with these names."""
    held, nodes, at = {"w": RANDOM.standard_normal((3, 3))}, [NODE("MatMul", ["x", "w"], ["h"], name="/fc/MatMul")], "h"
    for i, name in enumerate(norms):
        held |= {f"{name}.weight": np.ones(3), f"{name}.bias": RANDOM.standard_normal(3), f"{name}.mean": RANDOM.standard_normal(3), f"{name}.var": np.ones(3)}
        more = [f"m{i}", f"v{i}"] if training and i == 0 else []
        nodes.append(NODE("BatchNormalization", [at, *(f"{name}.{k}" for k in ("weight", "bias", "mean", "var"))], [f"n{i}", *more], name=name, **({"training_mode": 1} if more else {})))
        at = f"n{i}"
    for i, name in enumerate(dropouts):
        nodes.append(NODE("Dropout", [at, "ratio"], [f"d{i}"], name=name) if opset >= 12 else NODE("Dropout", [at], [f"d{i}"], name=name, ratio=float(ratio)))
        at = f"d{i}"
    for name, op in (weights or {}).items():
        held[name] = RANDOM.standard_normal(3)
        nodes.append(NODE(op, [at, name], [f"{name}_y"], name=name))
        at = f"{name}_y"
    nodes.append(NODE("Identity", [at], ["y"]))
    tensors = [numpy_helper.from_array(np.asarray(v, np.float32), n) for n, v in held.items()] + [numpy_helper.from_array(np.float32(ratio), "ratio")] * (opset >= 12)
    ports = [helper.make_tensor_value_info(n, 1, ["N", 3]) for n in "xy"]
    model = helper.make_model(helper.make_graph(nodes, "g", ports[:1], ports[1:], tensors), opset_imports=[helper.make_opsetid("", opset)], ir_version=8, producer_name=producer)
    onnx.save(model, path)


def notes(run, *options):
    return [n for n in json.loads(run("check", "--json", "m.onnx", *options).stdout)["notes"]]


@pytest.mark.parametrize("producer", ["pytorch", "tf2onnx", "keras", ""])
def test_what_is_in_inference_form_is_told(run, tmp_path, producer):
    write(tmp_path / "m.onnx", producer, ["/bn1/BatchNormalization", "/bn2/BatchNormalization"], ["/drop/Dropout"])
    want = ['2 batch norms, the first one "/bn1/BatchNormalization", are in inference form: training leaves the statistics as they are; '
            "--train-mode=restore makes batch norms normalize by the batch",
            'the dropout "/drop/Dropout" is in inference form: training drops nothing; --train-mode=restore makes it drop']
    assert [n for n in notes(run) if "inference form" in n] == want
    said = run("compile", "m.onnx", "-o", "train", "--batch=4", "--loss=mse").stdout
    assert all(f"note    {n}" in said for n in want)
    for option in ("--train-mode=restore", "--train-mode=keep"):
        assert not [n for n in notes(run, option) if "inference form" in n]
    assert "note" not in run("compile", "m.onnx", "-o", "train", "--batch=4", "--loss=mse", "--train-mode=restore").stdout


@pytest.mark.parametrize("options, norms, dropouts", [
    ([], "3 batch norms", "2 dropouts"), (["--freeze=a.*"], "2 batch norms", "2 dropouts"), (["--freeze=a.*", "--freeze=b.*", "--freeze=c.*"], None, "2 dropouts"),
    (["--no-repair=batchnorm"], None, "2 dropouts"), (["--no-repair=dropout"], "3 batch norms", None)])
def test_only_what_can_be_mended(run, tmp_path, options, norms, dropouts):
    write(tmp_path / "m.onnx", "pytorch", "abc", ["d1", "d2"])
    told = " ".join(notes(run, *options))
    assert ("batch norms" in told) == bool(norms) and (norms or "") in told
    assert ("dropouts" in told) == bool(dropouts) and (dropouts or "") in told


@pytest.mark.parametrize("facts", [dict(), dict(dropouts=["d"], ratio=0), dict(dropouts=["d"], ratio=0, opset=11), dict(norms=["bn"], training=True)])
def test_no_note_where_nothing_is_gained(run, tmp_path, facts):
    write(tmp_path / "m.onnx", "pytorch", **facts)
    assert notes(run) == []


def test_dropout_before_training_mode(run, tmp_path):
    write(tmp_path / "m.onnx", "pytorch", dropouts=["d"], opset=11)
    assert "training drops nothing" in notes(run)[0]


def test_norms_that_tf2onnx_folded(run, tmp_path):
    folded = {"m/bn_1/batchnorm/mul:0": "Mul", "m/bn_1/batchnorm/sub:0": "Add", "m/bn_2/batchnorm/mul:0": "Mul"}
    write(tmp_path / "m.onnx", "tf2onnx", weights=folded)
    told = [n for n in notes(run) if "folded" in n]
    assert len(told) == 1 and told[0].startswith('2 batch norms, the first one "m/bn_1", were folded into Mul and Add')
    write(tmp_path / "m.onnx", "somebody", weights=folded)
    assert not [n for n in notes(run) if "folded" in n]
