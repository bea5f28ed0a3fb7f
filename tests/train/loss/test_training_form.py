"""Models with batch norms or dropout in training form: what computes them so says it."""
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

BN = {"weight": np.ones(3), "bias": np.zeros(3), "mean": np.zeros(3), "var": np.ones(3)}


def save(path, norm=None, ratio=0.0, many=1):
    nodes, at = [helper.make_node("MatMul", ["x", "w"], ["h0"])], "h0"
    for i in range(many):
        out = f"h{i + 1}"
        nodes.append(helper.make_node("BatchNormalization", [at, *(f"bn{i}.{n}" for n in BN)], [out, *([f"m{i}", f"v{i}"] if norm else [])], f"norm{i}", training_mode=norm)
                     if norm is not None else helper.make_node("Identity", [at], [out]))
        at = out
    nodes.append(helper.make_node("Dropout", [at, "ratio", "training"], ["y"], "drop"))
    ports = [helper.make_tensor_value_info(n, 1, ["batch", 3]) for n in "xy"]
    weights = {"w": np.eye(3, dtype=np.float32), **{f"bn{i}.{k}": v.astype(np.float32) for k, v in BN.items() for i in range(many)}, "ratio": np.float32(ratio),
               "training": np.array(ratio > 0)}
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], [numpy_helper.from_array(np.asarray(v), n) for n, v in weights.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def warnings(done):
    return [line.split("training form, as the model is: ")[1] for line in done.stderr.splitlines() if "training form, as the model is" in line]


@pytest.mark.parametrize("options, norm, ratio, computed, exported", [
    ([], 1, 0, 'batch norm "norm0"', "1 batch norm by running statistics"),
    ([], 1, 0.5, 'batch norm "norm0", dropout "drop"', "1 batch norm by running statistics, 1 dropout off"),
    ([], None, 0.5, 'dropout "drop"', "1 dropout off"),
    ([], 0, 0, None, None),
    (["--train-mode=restore"], 0, 0, None, None),  # the file stays as it is
    (["--freeze=bn0.*"], 1, 0, None, "1 batch norm by running statistics"),  # training computes it so, too
])
def test_what_is_in_training_form(run, tmp_path, options, norm, ratio, computed, exported):
    """`gradc run` computes the file; an executable computes and exports what it evaluates."""
    save(tmp_path / "m.onnx", norm, ratio)
    np.save(tmp_path / "x.npy", np.arange(12, dtype=np.float32).reshape(4, 3))
    if "--freeze" not in str(options):  # run has no rules of who is trained
        for engine in ("compiled", "interp"):
            said = warnings(run("run", "m.onnx", "--input=x=x.npy", "--output-dir=out", f"--engine={engine}", *options))
            assert said == ([computed] if computed else [])
    run("compile", "m.onnx", "-o", "train", "--batch=4", "--loss=mse", *options)
    assert not warnings(run(tmp_path / "train", "--once", "--input=x=x.npy", "--output-dir=out"))
    train = [tmp_path / "train", "--data=x=x.npy", "--data=labels=x.npy", "--steps=1", "--export=out.onnx"]
    done = run(*train)
    assert not warnings(done)
    assert (f"wrote out.onnx (inference form: {exported})" if exported else "wrote out.onnx (inference form)") in done.stderr
    assert ("wrote out.onnx (as imported, which is training form)" if exported else "wrote out.onnx (as imported)") in run(*train, "--export-form=as-imported").stderr


def test_evaluated_as_exported_means_computed_as_exported(run, tmp_path):
    """The export is what an application computes, so it has inference form whatever --eval-mode says."""
    save(tmp_path / "m.onnx", 1, 0.5)
    np.save(tmp_path / "x.npy", np.arange(12, dtype=np.float32).reshape(4, 3))
    run("compile", "m.onnx", "-o", "train", "--batch=4", "--loss=mse", "--eval-mode=as-exported")
    assert warnings(run(tmp_path / "train", "--once", "--input=x=x.npy", "--output-dir=out")) == ['batch norm "norm0", dropout "drop"']
    done = run(tmp_path / "train", "--data=x=x.npy", "--data=labels=x.npy", "--steps=1", "--export=out.onnx")
    assert not warnings(done) and "(inference form: 1 batch norm by running statistics, 1 dropout off)" in done.stderr


def test_of_many_some_are_named(run, tmp_path):
    save(tmp_path / "m.onnx", 1, many=6)
    np.save(tmp_path / "x.npy", np.arange(12, dtype=np.float32).reshape(4, 3))
    assert warnings(run("run", "m.onnx", "--input=x=x.npy", "--output-dir=out", "--engine=interp")) == [
        'batch norm "norm0", batch norm "norm1", batch norm "norm2" and 3 others']
