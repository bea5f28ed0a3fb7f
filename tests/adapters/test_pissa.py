"""init=pissa: adapters begin as the largest parts of their weights."""
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from test_kept import LORA, compiled, losses, model, weights  # noqa: F401

PISSA = tuple(f"{option},init=pissa" for option in LORA)


def tensors(path):
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def lone(path, node, weight, inputs, outputs):
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", *shape]) for name, shape in (("x", inputs), ("y", outputs))]
    graph = helper.make_graph([node], "g", ports[:1], ports[1:], [numpy_helper.from_array(weight, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


PLACES = {  # node, shape of the weight, its outputs' axis, shapes of x and y
    "transposed": (helper.make_node("Gemm", ["x", "w"], ["y"], transB=1), (6, 11), 0, (11,), (6,)),
    "as it is": (helper.make_node("MatMul", ["x", "w"], ["y"]), (11, 6), 1, (11,), (6,)),
    "convolution": (helper.make_node("Conv", ["x", "w"], ["y"]), (6, 3, 2, 2), 0, (3, 4, 4), (6, 3, 3)),
}


@pytest.mark.parametrize("place", PLACES)
def test_it_is_the_nearest_matrix_of_that_rank(run, tmp_path, place):
    """What the base lacks is the best approximation (Eckart and Young), as NumPy finds it, half of the root in each part."""
    node, shape, axis, inputs, outputs = PLACES[place]
    random = np.random.default_rng(0)
    weight = np.float32(random.normal(size=shape))
    lone(tmp_path / "m.onnx", node, weight, inputs, outputs)
    run("compile", "m.onnx", "-o", "t", "--dim=n=4", "--loss=mse", "--lora=w,rank=3,alpha=1.5,init=pissa", "--adapter-name=w=m")
    np.save(tmp_path / "x.npy", np.float32(random.normal(size=(4, *inputs))))
    np.save(tmp_path / "y.npy", np.float32(random.normal(size=(4, *outputs))))
    run(tmp_path / "t", "--data=x=x.npy", "--data=labels=y.npy", "--steps=0", "--export=b.onnx", "--export-merged=m2.onnx")
    matrix = np.moveaxis(np.float64(weight), axis, 0).reshape(shape[axis], -1)
    u, s, vt = np.linalg.svd(matrix, full_matrices=False)
    rest = (u[:, 3:] * s[3:]) @ vt[3:]
    found = tensors(tmp_path / "b.onnx")
    np.testing.assert_allclose(np.moveaxis(found["w"], axis, 0).reshape(shape[axis], -1), rest, atol=1e-6)
    np.testing.assert_allclose(tensors(tmp_path / "m2.onnx")["w"], weight, atol=1e-6)


@pytest.mark.parametrize("precision, near", [("f32", 1e-6), ("f64", 1e-12)])
def test_the_first_step_is_the_base_models(compiled, losses, precision, near):  # noqa: F811
    compiled("p", lora=PISSA, precision=precision)
    compiled("t", precision=precision)
    got, want = losses("p", "--steps=3"), losses("t", "--steps=3")
    np.testing.assert_allclose(got[0], want[0], rtol=near)
    assert got[1:] != want[1:]


def test_what_is_written_stands_beside_the_base(run, compiled, losses, tmp_path):  # noqa: F811
    """Of twice the rank, as PEFT converts such adapters: an executable without pissa goes on from it, as the merged model does."""
    compiled("p", lora=PISSA)
    losses("p", "--steps=4", "--lr=0.01", "--export-adapter=a", "--export-merged=m.onnx", "--export=b.onnx")
    compiled("t", lora=tuple(option.replace("rank=8,alpha=16", "rank=16,alpha=32") for option in LORA))
    beside = losses("t", "--steps=1", "--lr=0", "--load-adapter=a", "--export-merged=again.onnx")
    for name, value in weights(tmp_path / "m.onnx").items():
        np.testing.assert_allclose(weights(tmp_path / "again.onnx")[name], value, atol=2e-6, err_msg=name)
    compiled("m", source=tmp_path / "m.onnx", lora=())
    np.testing.assert_allclose(losses("m", "--steps=1", "--lr=0"), beside, rtol=1e-5)


def test_resumed_training_is_the_same(compiled, losses):  # noqa: F811
    compiled("p", lora=PISSA)
    whole = losses("p", "--steps=4")
    losses("p", "--steps=2", "--save=c")
    assert losses("p", "--steps=4", "--save=c", "--resume=auto")[-2:] == whole[2:]


def test_beside_weights_of_four_bits(compiled, losses):  # noqa: F811
    """The rest has the codes: nearer to the model than codes of all of it."""
    compiled("t")
    exact, found = losses("t", "--steps=1", "--lr=0")[0], {}
    for init in ("kaiming", "pissa"):
        compiled("q", lora=(f"--qlora=*proj.weight,rank=16,init={init}",))
        found[init] = abs(losses("q", "--steps=1", "--lr=0")[0] - exact)
    assert found["pissa"] < found["kaiming"]


@pytest.mark.parametrize("options, said", [
    (["--lora=w,rank=7,init=pissa"], '--lora=w: init=pissa of "w": rank 7 is above 6, the rank of its matrix [6,11]'),
    (["--lora=w,dora,init=pissa"], "init=pissa and dora: choose one of the two"), (["--lora=w,alpha=0,init=pissa"], "init=pissa needs alpha above 0"),
    (["--lora=w,rank=2,init=pissa", "--init=w=zeros"], '--init=w: "w" has an adapter'), (["--lora=w,init=svd"], "init=svd is not kaiming or pissa")])
def test_recipes_that_make_no_sense(run, tmp_path, options, said):
    node, shape, _, inputs, outputs = PLACES["transposed"]
    lone(tmp_path / "m.onnx", node, np.float32(np.random.default_rng(0).normal(size=shape)), inputs, outputs)
    assert said in run("compile", "m.onnx", "-o", "t", "--dim=n=4", "--loss=mse", *options, exit=2).stderr


def test_a_rank_above_the_matrix_is_noted(run, tmp_path):
    node, shape, _, inputs, outputs = PLACES["transposed"]
    lone(tmp_path / "m.onnx", node, np.float32(np.random.default_rng(0).normal(size=shape)), inputs, outputs)
    said = run("compile", "m.onnx", "-o", "t", "--dim=n=4", "--loss=mse", "--lora=w,rank=7").stderr
    assert 'rank 7 for "w": as a matrix [6,11] it has no more than 6' in said


def test_such_adapters_are_not_loaded(run, compiled, model, tmp_path):  # noqa: F811
    compiled("p", lora=PISSA)
    data = [f"--data=input_ids={model / 'input_ids.npy'}", f"--data=labels={model / 'labels.npy'}", "--steps=1"]
    stored = Path(__file__).resolve().parents[1] / "references/peft/llama_qlora/trained"
    said = run(tmp_path / "p", *data, f"--load-adapter={stored}", exit=4).stderr
    assert "compiled with init=pissa, whose weights lack the product that their adapters began with" in said


def test_without_lapack(run, tmp_path, monkeypatch):
    """A library of that name without the function stands for one that is not there."""
    (tmp_path / "empty.c").write_text("int nothing;")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "liblapack.so.3", tmp_path / "empty.c"], check=True)
    node, shape, _, inputs, outputs = PLACES["transposed"]
    lone(tmp_path / "m.onnx", node, np.float32(np.ones(shape)), inputs, outputs)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    said = run("compile", "m.onnx", "-o", "t", "--dim=n=4", "--loss=mse", "--lora=w,rank=2,init=pissa", exit=4).stderr
    assert "LAPACK's liblapack.so.3 cannot be opened" in said and "liblapack3" in said
