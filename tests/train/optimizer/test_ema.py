"""--ema: the moving average of trained weights, against numpy; what of it a checkpoint, --load and the export have."""
import shutil

import numpy as np
import onnx
import pytest
from checkpoints import tensors
from onnx import helper, numpy_helper
from regression import ROWS, WIDTH, Regression

STEPS, LR, DECAY = 12, 0.05, 0.8


def compiled(run, r, *options):
    run("compile", "model.onnx", "-o", "train", "--batch=8", "--loss=mse", "--optimizer=sgd", f"--ema={DECAY}", *options)
    return r.folder / "train"


def averages(r, steps):
    p, ema = dict(r.start), dict(r.start)
    for step in range(steps):
        g = r.gradients(p, step)
        p = {n: p[n] - LR * g[n] for n in p}
        ema = {n: DECAY * ema[n] + (1 - DECAY) * p[n] for n in p}
    return p, ema


@pytest.fixture(scope="module", params=["f64", "f32"])
def trained(request, gradc, tmp_path_factory):
    """A regression that was trained, and what runs in its folder."""
    import subprocess
    folder = tmp_path_factory.mktemp("ema")

    def run(*arguments, exit=0):
        done = subprocess.run([str(a) for a in ([gradc] if isinstance(arguments[0], str) else []) + list(arguments)], cwd=folder,
                              text=True, capture_output=True, timeout=300)
        assert done.returncode == exit, done.stdout + done.stderr
        return done

    r = Regression(folder)
    exe = compiled(run, r, f"--precision={request.param}")
    run(exe, *r.data, f"--steps={STEPS}", f"--lr={LR}", "--save=saved", "--export=ema.onnx", "--export-weights=ema")
    run(exe, *r.data, f"--steps={STEPS}", f"--lr={LR}", "--export=trained.onnx")
    return r, exe, run, 1e-12 if request.param == "f64" else 1e-5


def test_the_average_is_numpys(trained):
    r, _, _, limit = trained
    p, ema = averages(r, STEPS)
    saved = tensors(r.folder / "saved" / f"step-{STEPS:08}")
    for n in p:
        assert np.allclose(saved[n], p[n], rtol=limit, atol=limit) and np.allclose(saved[f"ema.{n}"], ema[n], rtol=limit, atol=limit)
        assert not np.allclose(p[n], ema[n], rtol=1e-2)


def test_it_is_exported_on_request(trained):
    r, *_ = trained
    p, ema = averages(r, STEPS)
    for n in p:
        assert np.allclose(r.exported("ema.onnx")[n], ema[n], rtol=1e-5, atol=1e-6)
        assert np.allclose(r.exported("trained.onnx")[n], p[n], rtol=1e-5, atol=1e-6)


def test_a_resumed_run_has_the_same_bits(trained):
    r, exe, run, _ = trained
    for part in (5, STEPS):
        run(exe, *r.data, f"--steps={part}", f"--lr={LR}", "--save=parts", "--resume=auto", f"--export=part{part}.onnx", "--export-weights=ema")
    whole, parts = (tensors(r.folder / f / f"step-{STEPS:08}") for f in ("saved", "parts"))
    assert sorted(whole) == sorted(parts) and {"ema.w", "ema.b"} <= set(whole)
    for name, value in whole.items():
        assert np.array_equal(value, parts[name]), name
    assert (r.folder / f"part{STEPS}.onnx").read_bytes() == (r.folder / "ema.onnx").read_bytes()
    run(exe, "--resume=parts", "--steps=0", "--export=later.onnx", "--export-weights=ema")
    assert (r.folder / "later.onnx").read_bytes() == (r.folder / "ema.onnx").read_bytes()


def test_other_weights_are_where_it_begins(trained):
    """--load of the trained weights: without a step, the average is these."""
    r, exe, run, _ = trained
    shard = next((r.folder / "saved" / f"step-{STEPS:08}").glob("*.safetensors"))
    shutil.copy(shard, r.folder / "w.safetensors")
    run(exe, "--load=w.safetensors", "--steps=0", "--export=loaded.onnx", "--export-weights=ema")
    assert all(np.array_equal(v, r.exported("trained.onnx")[n]) for n, v in r.exported("loaded.onnx").items())


def test_it_needs_an_average(run, tmp_path):
    r = Regression(tmp_path)
    run("compile", "model.onnx", "-o", "plain", "--batch=8", "--loss=mse")
    said = run(tmp_path / "plain", *r.data, "--steps=1", "--export=o.onnx", "--export-weights=ema", exit=2).stderr
    assert "--ema=" in said and not (tmp_path / "o.onnx").exists()
    assert "needs --export" in run(tmp_path / "plain", *r.data, "--steps=1", "--export-weights=last", exit=2).stderr


def test_a_step_that_changes_nothing_leaves_it(run, tmp_path):
    """Of three steps the second has no target that counts: two updates, and two of the average."""
    w = np.eye(WIDTH, dtype=np.float32)
    ports = [helper.make_tensor_value_info(n, 1, ["batch", WIDTH]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", ports[:1], ports[1:], [numpy_helper.from_array(w, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx")
    x = np.random.default_rng(0).standard_normal((3, ROWS, WIDTH)).astype(np.float32)
    labels = np.arange(3 * ROWS).reshape(3, ROWS) % WIDTH
    labels[1] = -100
    np.save(tmp_path / "x.npy", x.reshape(-1, WIDTH))
    np.save(tmp_path / "labels.npy", labels.reshape(-1))
    run("compile", "m.onnx", "-o", "train", f"--batch={ROWS}", "--optimizer=momentum", "--ema=0.5")
    for steps in (1, 2, 3):
        run(tmp_path / "train", "--data=x=x.npy", "--data=labels=labels.npy", "--shuffle=off", f"--steps={steps}", f"--save=s{steps}", "--lr=0.5")
    one, two, three = (tensors(tmp_path / f"s{n}" / f"step-{n:08}") for n in (1, 2, 3))
    assert np.array_equal(one["ema.w"], two["ema.w"]) and np.array_equal(one["w"], two["w"])
    assert np.allclose(one["ema.w"], (w + one["w"]) / 2, rtol=1e-6)
    assert np.allclose(three["ema.w"], (two["ema.w"] + three["w"]) / 2, rtol=1e-6)


def test_averages_lie_in_units_and_are_of_f32(run, tmp_path):
    Regression(tmp_path)
    options = ["--batch=8", "--loss=mse", "--ema=0.9", "--stage=train"]
    text = run("dump", "model.onnx", *options).stdout
    assert ".average : f32[" in text and 'state @ema.w : f32[5,3] average saved init copy of @w in @unit' in text
    text = run("dump", "model.onnx", *options, "--precision=bf16", "--master=off").stdout
    assert "state @w : bf16[5,3]" in text and "state @ema.w : f32[5,3] average" in text
    assert "average" not in run("dump", "model.onnx", *options, "--freeze=*").stdout
