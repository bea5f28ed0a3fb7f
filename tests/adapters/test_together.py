"""Adapters with everything else that a training has: the same losses, to the bit where that is promised."""
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
import reference

LORA = ("--lora=*attn*weight,rank=4,alpha=8", "--lora=*c_fc*,rank=2")
QLORA = tuple(option.replace("--lora", "--qlora") for option in LORA)
EACH = pytest.mark.parametrize("lora", [LORA, QLORA], ids=["lora", "qlora"])
OPTIONS = ("--dim=seq=64", "--loss=cross_entropy")


@pytest.fixture
def train(run, models, tmp_path):
    """train(NAME, ARGUMENT..., compiled=(), rows=8, command=()): losses of the log; NAME.onnx is the merged model."""
    def train_it(name, *arguments, compiled=(), rows=8, command=(), lr=0.01, model="gpt2_mini", lora=LORA):
        folder = models / model
        run("compile", folder / "model.onnx", "-o", "t", f"--dim=batch={rows}", *OPTIONS, *lora, *compiled)
        run(*command, tmp_path / "t", f"--data=input_ids={folder / 'input_ids.npy'}", f"--data=labels={folder / 'labels.npy'}", "--table=off",
            "--progress=off", "--shuffle=off", f"--lr={lr}", f"--log={name}.jsonl", f"--export-merged={name}.onnx", *arguments)
        return reference.step_losses(tmp_path / f"{name}.jsonl")

    return train_it


def same_models(folder, a, b):
    return (folder / f"{a}.onnx").read_bytes() == (folder / f"{b}.onnx").read_bytes()


@EACH
def test_resumed_training_is_the_same(train, tmp_path, lora):
    whole = train("whole", "--steps=6", lora=lora)
    first = train("first", "--steps=3", "--save=c", lora=lora)
    rest = train("rest", "--steps=6", "--save=c", "--resume=auto", lora=lora)
    assert first + rest == whole and same_models(tmp_path, "rest", "whole")


@EACH
def test_micro_batches_are_one_batch(train, lora):
    np.testing.assert_allclose(train("two", "--steps=5", "--accumulate=2", rows=4, lora=lora), train("one", "--steps=5", lora=lora), rtol=1e-5)


@pytest.mark.parametrize("lora, compiled", [(LORA, ()), (LORA, ("--quantize=w8a8-token", "--opset=21")), (LORA, ("--precision=bf16",)), (QLORA, ()),
                                            (QLORA, ("--precision=bf16",))])
def test_ranks_are_micro_batches(train, tmp_path, lora, compiled):
    """To the bit."""
    if not shutil.which("mpirun.openmpi"):
        pytest.skip("mpirun.openmpi is not installed")
    one = train("one", "--steps=4", "--accumulate=2", rows=4, compiled=compiled, lora=lora)
    ranks = (Path(shutil.which("mpirun.openmpi")), "--allow-run-as-root", "--oversubscribe", "-n", "2")
    assert train("ranks", "--steps=4", rows=4, command=ranks, compiled=compiled, lora=lora) == one
    assert same_models(tmp_path, "ranks", "one")


@EACH
def test_recomputed_values_are_the_same(train, tmp_path, lora):
    assert train("again", "--steps=3", lora=lora) == train("kept", "--steps=3", compiled=["--disable=rematerialize"], lora=lora)
    assert same_models(tmp_path, "again", "kept")


@EACH
def test_gradients_in_the_workspace_are_the_same(train, tmp_path, lora):
    assert train("one", "--steps=3", compiled=["--max-accumulate=1"], lora=lora) == train("any", "--steps=3", lora=lora)
    assert same_models(tmp_path, "one", "any")


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "nesterov", "adam", "adamw8bit", "lion", "adafactor", "muon", "sophia", "lamb", "rmsprop"])
def test_every_optimizer_trains_them(train, optimizer):
    """And what they are merged into has lost what the log says."""
    lr = {"sgd": 1, "momentum": 0.3, "nesterov": 0.3, "lion": 0.002, "adafactor": 1}.get(optimizer, 0.01)
    got = train("o", "--steps=30", compiled=[f"--optimizer={optimizer}"], lr=lr, model="gpt2_mini_fresh")
    assert np.mean(got[-5:]) < got[0] - 0.1, got


@pytest.mark.parametrize("optimizer", ["sgd", "adamw8bit", "muon"])
def test_optimizers_train_them_beside_weights_of_four_bits(train, optimizer):
    got = train("o", "--steps=30", compiled=[f"--optimizer={optimizer}"], lr={"sgd": 1}.get(optimizer, 0.01), model="gpt2_mini_fresh", lora=QLORA)
    assert np.mean(got[-5:]) < got[0] - 0.1, got


def test_in_bf16(train, run, models, tmp_path):
    """The products of the branches, too, are of 16 bits."""
    f32, bf16 = train("f32", "--steps=8"), train("bf16", "--steps=8", compiled=["--precision=bf16"])
    np.testing.assert_allclose(bf16, f32, rtol=2e-2)
    assert bf16 != f32
    text = run("dump", models / "gpt2_mini/model.onnx", "--after=mixed", "--dim=batch=8", *OPTIONS, *LORA, "--precision=bf16").stdout
    branches = [line for line in text.splitlines() if " = dot " in line and 'loc lora("' in line]
    assert len(branches) >= 2 * 3 * 4 and all("bf16[" in line for line in branches)


@pytest.mark.parametrize("spec", ["w8a8", "w4a8-g32", "w8"])
def test_with_quantize(train, run, models, tmp_path, spec):
    """The frozen base as codes, branches beside them; resumed to the bit. With branches the exported model is what was trained; merged, the
    sum becomes codes again."""
    import onnxruntime
    known, compiled = models / "gpt2_mini", [f"--quantize={spec}", "--opset=21"]
    whole = train("whole", "--steps=6", compiled=compiled)
    train("first", "--steps=3", "--save=c", compiled=compiled)
    evaluate = [f"--eval-data=input_ids={known / 'input_ids.npy'}", f"--eval-data=labels={known / 'labels.npy'}"]
    rest = train("rest", "--steps=6", "--save=c", "--resume=auto", "--export=b.onnx", *evaluate, compiled=compiled)
    assert rest == whole[3:]
    ids, labels = np.load(known / "input_ids.npy")[:192], np.load(known / "labels.npy")[:192]

    def loss(path):
        settings = onnxruntime.SessionOptions()
        settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(path, settings)
        found = []
        for at in range(0, len(ids), 8):
            logits = np.float64(session.run(None, {"input_ids": ids[at:at + 8]})[0])
            logits -= logits.max(-1, keepdims=True)
            logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
            found.append(-np.take_along_axis(logits, labels[at:at + 8, :, None].astype(np.int64), -1).mean())
        return np.mean(found)

    said = [line["eval_loss"] for line in reference.log_lines(tmp_path / "rest.jsonl") if "eval_loss" in line][-1]
    assert {"QuantizeLinear", "DequantizeLinear"} & {n.op_type for n in onnx.load(tmp_path / "b.onnx").graph.node}
    assert abs(loss(tmp_path / "b.onnx") - said) < 2e-2 * said
    assert abs(loss(tmp_path / "rest.onnx") - said) < 6e-2 * said


def test_dropout(train, tmp_path, models):
    """Of what the first part multiplies, by the place of a row in the step: micro-batches, ranks and a resumed run draw what one batch does.
    Evaluation drops nothing, whatever the model."""
    folder = models / "gpt2_mini"
    evaluate = [f"--eval-data=input_ids={folder / 'input_ids.npy'}", f"--eval-data=labels={folder / 'labels.npy'}"]
    noisy = ["--lora=*attn*weight,rank=4,alpha=8,dropout=0.3", "--lora=*c_fc*,rank=2,dropout=0.5", "--init=*lora_B*=normal(0,0.05)"]
    plain = [o.replace(",dropout=0.3", "").replace(",dropout=0.5", "") for o in noisy]
    one = train("one", "--steps=4", *evaluate, lora=noisy)
    still = train("still", "--steps=4", *evaluate, lora=plain)
    before = [next(line["eval_loss"] for line in reference.log_lines(tmp_path / f"{name}.jsonl") if "eval_loss" in line) for name in ("one", "still")]
    assert before[0] == before[1]
    assert all(2e-4 < abs(a - b) / b < 0.1 for a, b in zip(one, still)), (one, still)
    two = train("two", "--steps=4", "--accumulate=2", rows=4, lora=noisy)
    np.testing.assert_allclose(two, one, rtol=1e-5)
    if shutil.which("mpirun.openmpi"):
        ranks = (Path(shutil.which("mpirun.openmpi")), "--allow-run-as-root", "--oversubscribe", "-n", "2")
        assert train("ranks", "--steps=4", rows=4, command=ranks, lora=noisy) == two
    first = train("first", "--steps=2", "--save=c", lora=noisy)
    assert first + train("rest", "--steps=4", "--resume=auto", "--save=c", lora=noisy) == one


def test_dropped_are_as_many_as_asked(run, tmp_path):
    """y = s B A drop(x) with A, B and x of ones: each element of x is gone with that probability, and the others are larger by as much."""
    from onnx import helper, numpy_helper
    ports = [helper.make_tensor_value_info("x", 1, [512, 64]), helper.make_tensor_value_info("y", 1, [512, 1])]
    onnx.save(helper.make_model(helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", ports[:1], ports[1:],
                                                  [numpy_helper.from_array(np.zeros((64, 1), np.float32), "w")]),
                                opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.ones((512, 64), np.float32))
    np.save(tmp_path / "labels.npy", np.zeros((512, 1), np.float32))
    p = 0.25
    run("compile", "m.onnx", "-o", "t", "--loss=mse", "--optimizer=sgd", f"--lora=w,rank=1,alpha=1,dropout={p}", "--init=*lora_*=ones")
    run(tmp_path / "t", "--data=x=x.npy", "--data=labels=labels.npy", "--steps=8", "--lr=0", "--log=l.jsonl", "--table=off", "--progress=off")
    losses = reference.step_losses(tmp_path / "l.jsonl")
    assert len(set(losses)) == 8
    # the mean square of a sum of 64 numbers that are 1 / (1 - p) or 0
    np.testing.assert_allclose(np.mean(losses), 64 ** 2 + 64 * p / (1 - p), rtol=5e-3)
