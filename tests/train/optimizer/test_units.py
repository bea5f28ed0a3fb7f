"""Units are a matter of memory alone: how they are cut changes no bit, and checkpoints do not know of them."""
import numpy as np
import onnx
import pytest
import reference
from checkpoints import read_manifest
from onnx import helper, numpy_helper

WIDTH, ROWS = 256, 8
DATA = ["--data=x=x.npy", "--data=labels=labels.npy", "--shuffle=off", "--progress=off", "--lr=0.01"]
CLIP = "--clip-norm=0.5"  # what clips depends on the last bits of the norm


@pytest.fixture
def deep(tmp_path):
    """Four products of 256 x 256 with biases, which are as many layer blocks."""
    random = np.random.default_rng(0)
    nodes, weights, x = [], [], "x"
    for i in range(4):
        weights.append(numpy_helper.from_array((random.standard_normal((WIDTH, WIDTH)) / 16).astype(np.float32), f"fc{i}.weight"))
        weights.append(numpy_helper.from_array(random.standard_normal(WIDTH).astype(np.float32), f"fc{i}.bias"))
        nodes += [helper.make_node("MatMul", [x, f"fc{i}.weight"], [f"p{i}"]), helper.make_node("Add", [f"p{i}", f"fc{i}.bias"], [f"h{i}"]),
                  helper.make_node("Tanh", [f"h{i}"], [f"y{i}"])]
        x = f"y{i}"
    ports = [helper.make_tensor_value_info(n, 1, ["batch", WIDTH]) for n in ("x", x)]
    graph = helper.make_graph(nodes, "deep", ports[:1], ports[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "model.onnx")
    for name in ("x", "labels"):
        np.save(tmp_path / f"{name}.npy", random.standard_normal((4 * ROWS, WIDTH)).astype(np.float32))
    return tmp_path


CUTS = [["--unit-bytes=1"], ["--unit-bytes=600K"], ["--unit-bytes=32M"]]


MODEL = ["model.onnx", f"--batch={ROWS}", "--loss=mse", "--no-decay=*.bias"]


def compiled(run, name, *options):
    run("compile", *MODEL, "-o", name, *options)


def trained(run, folder, name, *options):
    """(the log's steps, the exported bytes)"""
    run(folder / name, *DATA, f"--export={name}.onnx", f"--log={name}.jsonl", *options)
    steps = [{k: line[k] for k in ("step", "loss", "grad_norm")} for line in reference.log_lines(folder / f"{name}.jsonl") if "lr" in line]
    return steps, (folder / f"{name}.onnx").read_bytes()


def test_cuts_change_no_bit(run, deep):
    results, units = [], []
    for i, cut in enumerate(CUTS):
        compiled(run, f"train{i}", *cut)
        text = run("dump", *MODEL, "--stage=train", *cut).stdout
        units.append(sum(" unit saved" in line and "state @unit" in line for line in text.splitlines()))
        results.append(trained(run, deep, f"train{i}", CLIP))
    assert units == [8, 3, 2]  # with decay, and without
    assert results[0] == results[1] == results[2]
    assert len(results[0][0]) == 4 and all(s["grad_norm"] > 0.5 for s in results[0][0])


@pytest.mark.parametrize("first, second", [(0, 2), (2, 0), (1, 0)])
def test_a_checkpoint_fits_another_cut(run, deep, first, second):
    compiled(run, "first", *CUTS[first])
    compiled(run, "second", *CUTS[second])
    whole = trained(run, deep, "first", CLIP)
    run(deep / "first", *DATA, CLIP, "--steps=2", "--save=ck")
    names = [t["name"] for t in read_manifest(deep / "ck/step-00000002")["tensors"]]
    assert not [n for n in names if "unit" in n or "run" in n]
    assert sorted(names) == sorted([f"{m}fc{i}.{p}" for m in ("", "exp_avg.", "exp_avg_sq.") for p in ("weight", "bias") for i in range(4)] + ["updates", "loss_scale"])
    rest = trained(run, deep, "second", CLIP, "--resume=ck")
    assert (whole[0][2:], whole[1]) == rest


def test_without_units_each_parameter_has_its_own_update(run, deep):
    """Its norm is added up in another order: without clipping nothing depends on that."""
    text = run("dump", *MODEL, "--stage=train", "--disable=units").stdout
    assert "@unit" not in text and text.count("state = @exp_avg.") == 8
    compiled(run, "with")
    compiled(run, "without", "--disable=units")
    assert trained(run, deep, "with")[1] == trained(run, deep, "without")[1]
