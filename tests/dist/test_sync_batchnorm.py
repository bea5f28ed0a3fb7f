"""Batch norms by the batch of all ranks (--sync-batchnorm): W ranks are one that has all rows at once."""
import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

sys.path.insert(0, str(Path(__file__).parent))
from test_ranks import call, openmpi, train  # noqa: E402, F401  openmpi is a fixture

# With plain SGD: the gradient of a bias in front of a batch norm is rounding alone, which Adam makes as large as any other.
OPTIONS = ["--optimizer=sgd", "--data-parallel=ddp,zero1,zero3", "--unit-bytes=1"]


def compiled(gradc, models, folder, name, batch, *options):
    of = json.loads((models / name / "reference.json").read_text())
    dims = [f"--dim={k}={v}" for k, v in of["dims"].items() if k != "batch"]
    path = folder / f"{name}-{batch}{'-'.join(options)}"
    call([gradc, "compile", models / name / "model.onnx", "-o", path, f"--batch={batch}", *dims, "--loss", of["loss"], *OPTIONS, *options])
    data = [f"--data={i['name']}={models / name / i['file']}" for i in of["inputs"]]
    return path, [*data, f"--data=labels={models / name / of['labels']['file']}"]


def tensors(model):
    return {t.name: numpy_helper.to_array(t) for t in onnx.load_from_string(model).graph.initializer}


@pytest.mark.parametrize("name, ranks, options", [
    ("cnn_mnist", 1, ["--data-parallel=ddp"]), ("cnn_mnist", 2, ["--data-parallel=ddp", "--device=async"]),
    ("cnn_mnist", 4, ["--data-parallel=zero3"]), ("resnet_mini", 2, ["--data-parallel=zero1"]), ("mobilenet_mini", 4, ["--data-parallel=ddp"])])
def test_ranks_are_one_batch(openmpi, gradc, models, tmp_path, name, ranks, options):  # noqa: F811
    """Losses, weights and running statistics."""
    one, data = compiled(gradc, models, tmp_path, name, 8)
    many, _ = compiled(gradc, models, tmp_path, name, 8 // ranks, "--sync-batchnorm")
    common = ["--steps=4", "--lr=0.01"]
    alone = train([], one, data, tmp_path, "alone", *common, "--data-parallel=ddp")
    got = train(openmpi(ranks) if ranks > 1 else [], many, data, tmp_path, "together", *common, *options)
    assert got[0] == pytest.approx(alone[0], rel=2e-6)
    assert "batch statistics" not in got[2].stderr
    want, have = tensors(alone[1]), tensors(got[1])
    for tensor in want:
        scale = max(np.abs(want[tensor]).max(), 1e-3)
        assert np.abs(have[tensor] - want[tensor]).max() <= 1e-5 * scale, tensor


def test_without_it_they_are_not(openmpi, gradc, models, tmp_path):  # noqa: F811
    one, data = compiled(gradc, models, tmp_path, "cnn_mnist", 8)
    half, _ = compiled(gradc, models, tmp_path, "cnn_mnist", 4)
    alone = train([], one, data, tmp_path, "alone", "--steps=4", "--lr=0.01")
    got = train(openmpi(2), half, data, tmp_path, "together", "--steps=4", "--lr=0.01")
    assert np.abs(np.subtract(got[0], alone[0])).max() > 1e-4
    assert "batch statistics are computed in each of 2 micro-batches" in got[2].stderr


def test_statistics_that_stay_are_not_told(gradc, models, tmp_path):
    """Of frozen layers."""
    exe, data = compiled(gradc, models, tmp_path, "cnn_mnist", 4, "--freeze=*", "--train=fc*")
    done = call([exe, *data, "--steps=1", "--accumulate=2", "--progress=off"])
    assert "batch statistics" not in done.stderr


def test_accumulation_is_still_told(gradc, models, tmp_path):
    """Micro-batches of a rank follow each other: they cannot be one batch."""
    half, data = compiled(gradc, models, tmp_path, "cnn_mnist", 4, "--sync-batchnorm")
    done = train([], half, data, tmp_path, "alone", "--steps=2", "--accumulate=2")[2]
    assert "batch statistics are computed in each of 2 micro-batches" in done.stderr


def test_a_model_without_them(gradc, models, tmp_path):
    done = call([gradc, "compile", models / "mlp_digits/model.onnx", "-o", tmp_path / "exe", "--batch=4", "--sync-batchnorm"])
    assert "--sync-batchnorm: the model has no batch norm in training form" in done.stderr
