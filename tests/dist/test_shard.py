"""Ranks that hold parts of states (--data-parallel zero1, zero2, zero3): the bits of one that holds all."""
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from test_ranks import LAUNCHERS, call, losses, openmpi, train  # noqa: E402, F401  openmpi is a fixture

MODES = ["zero1", "zero2", "zero3"]
WITHOUT_STATISTICS = ["mlp_digits", "mlp_diabetes", "lr_iris_ml", "gpt2_mini", "llama_mini", "bert_mini", "vit_mini", "moe_mini", "unet_mini"]


def shard_executable(gradc, models, folder, name, *options, batch=4):
    """(path, its data options); units are as small as layer blocks are."""
    of = json.loads((models / name / "reference.json").read_text())
    dims = [f"--dim={k}={v}" for k, v in of["dims"].items() if k != "batch"]
    call([gradc, "compile", models / name / "model.onnx", "-o", folder / name, f"--batch={batch}", *dims, "--loss", of["loss"],
          "--data-parallel=ddp,zero1,zero2,zero3", "--unit-bytes=1", *options], timeout=120)
    data = [f"--data={i['name']}={models / name / i['file']}" for i in of["inputs"]]
    return folder / name, [*data, f"--data=labels={models / name / of['labels']['file']}"]


@pytest.fixture(scope="module")
def gpt2(gradc, models, tmp_path_factory):
    return shard_executable(gradc, models, tmp_path_factory.mktemp("gpt2"), "gpt2_mini", batch=1)


def same(openmpi, exe, data, folder, mode, ranks, steps, *options):  # noqa: F811
    """Bit for bit what as many accumulation steps of one rank give: every loss, and every byte of the trained model."""
    options = ["--clip-norm=1", *options]
    alone = train([], exe, data, folder, "alone", f"--steps={steps}", f"--accumulate={ranks}", "--data-parallel=ddp", *options)
    got = train(openmpi(ranks) if ranks > 1 else [], exe, data, folder, mode, f"--steps={steps}", f"--data-parallel={mode}", *options)
    assert got[:2] == alone[:2]
    assert len(got[0]) == steps
    return got


@pytest.mark.parametrize("name", [n for n in WITHOUT_STATISTICS if n != "gpt2_mini"])
def test_zero3_of_each_model(openmpi, gradc, models, tmp_path, name):  # noqa: F811
    if not (models / name / "reference.json").exists():
        pytest.skip(f"{name} is not among the models here")
    exe, data = shard_executable(gradc, models, tmp_path, name)
    same(openmpi, exe, data, tmp_path, "zero3", 2, 5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ranks, options", [(1, []), (2, []), (3, ["--threads=1"]), (4, []), (2, ["--device=async"]), (2, ["--deterministic"])])
def test_modes_are_accumulation(openmpi, gpt2, tmp_path, mode, ranks, options):  # noqa: F811
    same(openmpi, *gpt2, tmp_path, mode, ranks, 5, *options)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("device", ["cpu", "async"])
def test_sums_of_the_library(openmpi, gpt2, tmp_path, mode, device):  # noqa: F811
    exe, data = gpt2
    alone = train([], exe, data, tmp_path, "alone", "--steps=4", "--accumulate=6", "--data-parallel=ddp")
    got = train(openmpi(3), exe, data, tmp_path, mode, "--steps=4", "--accumulate=2", f"--data-parallel={mode}", "--reduce=fast",
                f"--device={device}")
    assert got[0] == pytest.approx(alone[0], rel=1e-6)


RECIPES = {
    "bf16": ["--precision=bf16"], "f16": ["--precision=f16"], "weights of bf16": ["--precision=bf16", "--master=off", "--rounding=stochastic"],
    "ema": ["--ema=0.9"], "sophia": ["--optimizer=sophia"], "muon": ["--optimizer=muon"], "lamb": ["--optimizer=lamb"],
    "adafactor": ["--optimizer=adafactor"], "adamw8bit": ["--optimizer=adamw8bit"], "lora": ["--lora=*attn*.weight"],
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes(openmpi, gradc, models, tmp_path, recipe, mode):  # noqa: F811
    exe, data = shard_executable(gradc, models, tmp_path, "gpt2_mini", *RECIPES[recipe], batch=1)
    same(openmpi, exe, data, tmp_path, mode, 2, 3)


def test_states_of_another_mode_and_world(openmpi, gpt2, tmp_path):  # noqa: F811
    """12 micro-batches a step, whoever computes them: a checkpoint has whole tensors."""
    exe, data = gpt2
    alone = train([], exe, data, tmp_path, "alone", "--steps=6", "--accumulate=12", "--data-parallel=ddp")
    got = []
    for steps, ranks, each, mode in [(2, 4, 3, "zero3"), (4, 1, 12, "ddp"), (6, 3, 4, "zero2")]:
        got += train(openmpi(ranks) if ranks > 1 else [], exe, data, tmp_path, mode, f"--steps={steps}", f"--accumulate={each}",
                     f"--data-parallel={mode}", "--save", tmp_path / "ck", "--save-every=2", "--resume=auto")[0]
    assert got == pytest.approx(alone[0], rel=1e-6)


def regions(done):
    """Bytes of a rank's regions, as the first lines say them."""
    line = next(line for line in done.stderr.splitlines() if line.startswith("memory: "))
    units = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    return {name: float(n) * units[unit] for name, n, unit in (part.rsplit(" ", 2) for part in line[8:].split(";")[0].split(", "))}


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_what_a_rank_holds(openmpi, gpt2, tmp_path, ranks):  # noqa: F811
    """The more is divided the less is whole, and parts are a share of it."""
    exe, data = gpt2
    held = {}
    for mode in ["ddp", *MODES]:
        done = train(openmpi(ranks) if ranks > 1 else [], exe, data, tmp_path, mode, "--steps=1", f"--data-parallel={mode}")[2]
        held[mode] = regions(done)
    whole = held["ddp"]["state"]
    assert "shard" not in held["ddp"]
    for mode, parts in zip(MODES, (2, 3, 4)):  # of four states of a size: moments; gradients; weights
        assert held[mode]["state"] == pytest.approx(whole * (4 - parts) / 4, rel=0.02, abs=4096)
        assert held[mode]["shard"] == pytest.approx(whole * parts / 4 / ranks, rel=0.35)


def test_a_mode_that_is_not_there(gradc, models, tmp_path):
    call([gradc, "compile", models / "mlp_digits/model.onnx", "-o", tmp_path / "exe", "--batch=4", "--data-parallel=zero1"])
    done = call([tmp_path / "exe", "--data-parallel=zero3", "--steps=1"], exit=2)
    assert "--data-parallel=zero3: compiled with --data-parallel=zero1" in done.stderr
