"""Adapters that go along in the executable, and sums with adapters at the start."""
import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
import reference
from onnx import numpy_helper

STORED = Path(__file__).resolve().parents[1] / "references/peft"
LORA = ("--lora=*proj.weight,rank=8,alpha=16",)
ADAPTERS = {"first": STORED / "llama_qlora/trained", "second": STORED / "llama_qlora/start", "third": STORED / "llama_lora/trained"}


@pytest.fixture
def model(models):
    return models / "llama_mini"


@pytest.fixture
def compiled(run, model):
    def compile_it(name, *options, source=None, precision="f32", lora=LORA):
        run("compile", source or model / "model.onnx", "-o", name, "--dim=batch=8", "--dim=seq=64", "--loss=cross_entropy", f"--precision={precision}", *lora, *options)
    return compile_it


@pytest.fixture
def losses(run, model, tmp_path):
    def losses_of(exe, *options, **more):
        run(tmp_path / exe, f"--data=input_ids={model / 'input_ids.npy'}", f"--data=labels={model / 'labels.npy'}", "--table=off", "--progress=off",
            "--shuffle=off", "--weight-decay=0", "--log=log.jsonl", *options, **more)
        return reference.step_losses(tmp_path / "log.jsonl")
    return losses_of


def weights(path):
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def test_one_of_several_is_chosen_at_run_time(run, compiled, losses, tmp_path):
    """The same losses as from their folders, which the executable does not need: of another rank, too."""
    along = [name for name in ADAPTERS if name != "third"]
    for name in along:
        shutil.copytree(ADAPTERS[name], tmp_path / name)
    compiled("t", *(f"--load-adapter={name}={tmp_path / name}" for name in along))
    for name in along:
        shutil.rmtree(tmp_path / name)
    found = [losses("t", "--steps=3", f"--adapter={name}") for name in along]
    assert found[0][0] != found[1][0]
    for name, got in zip(along, found):
        assert got == losses("t", "--steps=3", f"--load-adapter={ADAPTERS[name]}")
    assert losses("t", "--steps=3")[0] not in (found[0][0],)
    assert "first, second" in run(tmp_path / "t", "--info").stdout


def test_of_another_rank_and_scale(run, compiled, losses, tmp_path):
    compiled("t", f"--load-adapter=wide={ADAPTERS['first']}", lora=("--lora=*proj.weight,rank=11,alpha=4",))
    got = losses("t", "--steps=1", "--lr=0", "--adapter=wide")
    compiled("u")
    np.testing.assert_allclose(got, losses("u", "--steps=1", "--lr=0", f"--load-adapter={ADAPTERS['first']}"), rtol=1e-6)


def test_what_cannot_be_chosen(run, compiled, losses, tmp_path, model):
    compiled("t", f"--load-adapter=first={ADAPTERS['first']}", f"--load-adapter=other={ADAPTERS['third']}")
    data = [f"--data=input_ids={model / 'input_ids.npy'}", f"--data=labels={model / 'labels.npy'}", "--steps=1"]
    assert '--adapter=no: this executable has "first", "other"' in run(tmp_path / "t", *data, "--adapter=no", exit=2).stderr
    said = run(tmp_path / "t", *data, "--adapter=first", f"--load-adapter={ADAPTERS['first']}", exit=2).stderr
    assert "--adapter and --load-adapter: only one of them" in said
    said = run(tmp_path / "t", *data, "--adapter=other", exit=7).stderr  # a head that is trained whole has no place here
    assert "--adapter=other: adapter_model.safetensors: " in said and "compile with --lora for its module" in said
    compiled("n")
    assert "this executable has none: compile with --load-adapter NAME=DIR" in run(tmp_path / "n", *data, "--adapter=first", exit=2).stderr


@pytest.mark.parametrize("file, content, said", [
    ("adapter_config.json", None, "adapter_config.json"), ("adapter_config.json", b'{"r": 8', "line 1"), ("adapter_model.safetensors", b"\x08\0\0", "only 3 bytes"),
    ("adapter_model.safetensors", None, "adapter_model.safetensors")])
def test_files_that_cannot_go_along(run, model, tmp_path, file, content, said):
    shutil.copytree(ADAPTERS["first"], tmp_path / "a")
    (tmp_path / "a" / file).unlink()
    if content is not None:
        (tmp_path / "a" / file).write_bytes(content)
    done = run("compile", model / "model.onnx", "-o", "t", "--dim=batch=8", "--dim=seq=64", "--loss=cross_entropy", *LORA, f"--load-adapter=bad={tmp_path / 'a'}",
               exit=7)
    assert "--load-adapter=bad" in done.stderr and said in done.stderr and not (tmp_path / "t").exists()


def test_merged_at_the_start(compiled, losses, tmp_path):
    """The weights are those of --export-merged, to the bit; new adapters begin beside them."""
    compiled("t")
    first = losses("t", "--steps=1", "--lr=0", f"--load-adapter={ADAPTERS['first']}", "--export-merged=m.onnx")
    merged = losses("t", "--steps=3", f"--load-adapter={ADAPTERS['first']}", "--merge", "--export=b.onnx")
    want, got = weights(tmp_path / "m.onnx"), weights(tmp_path / "b.onnx")
    assert all(got[name].tobytes() == value.tobytes() for name, value in want.items())
    np.testing.assert_allclose(merged[0], first[0], rtol=1e-5)
    compiled("u", source=tmp_path / "m.onnx")
    assert losses("u", "--steps=3") == merged


@pytest.mark.parametrize("precision, near", [("f32", 1e-6), ("f64", 1e-12)])
def test_unmerged_at_the_start(compiled, losses, tmp_path, model, precision, near):
    """Of a model that holds the sum: the base again, and the adapter beside it."""
    compiled("t", precision=precision)
    want = losses("t", "--steps=3", f"--load-adapter={ADAPTERS['first']}")
    losses("t", "--steps=0", f"--load-adapter={ADAPTERS['first']}", "--export-merged=m.onnx")
    compiled("u", source=tmp_path / "m.onnx", precision=precision)
    got = losses("u", "--steps=3", f"--load-adapter={ADAPTERS['first']}", "--unmerge", "--export=b.onnx")
    np.testing.assert_allclose(got, want, rtol=1e-5)
    base, found = weights(model / "model.onnx"), weights(tmp_path / "b.onnx")
    for name, value in base.items():
        np.testing.assert_allclose(found[name], value, atol=2e-7, err_msg=name)


def test_sums_that_are_refused(run, compiled, model, tmp_path):
    data = [f"--data=input_ids={model / 'input_ids.npy'}", f"--data=labels={model / 'labels.npy'}", "--steps=1"]
    load = f"--load-adapter={ADAPTERS['first']}"
    compiled("t")
    assert "--merge and --unmerge: only one of them" in run(tmp_path / "t", *data, load, "--merge", "--unmerge", exit=2).stderr
    assert "--merge needs --load-adapter DIR or --adapter NAME" in run(tmp_path / "t", *data, "--merge", exit=2).stderr
    compiled("q", lora=("--qlora=*proj.weight,rank=8,alpha=16",))
    assert "is kept in 4 bits: --export-merged writes the sum" in run(tmp_path / "q", *data, load, "--merge", exit=4).stderr
    compiled("d", lora=tuple(f"--lora=*.{name}_proj.weight,rank=8,alpha=4,rslora,dora" for name in ("o", "down", "v")))
    said = run(tmp_path / "d", *data, f"--load-adapter={STORED / 'llama_dora/trained'}", "--unmerge", exit=4).stderr
    assert "has dora, whose magnitudes are those of the weight that was compiled" in said


def test_a_resumed_run_needs_the_same_base(run, compiled, losses, tmp_path, model):
    compiled("t", f"--load-adapter=first={ADAPTERS['first']}")
    losses("t", "--steps=2", "--adapter=first", "--merge", "--save=c")
    whole = losses("t", "--steps=4", "--adapter=first", "--merge")
    assert losses("t", "--steps=4", "--adapter=first", "--merge", "--save=c", "--resume=auto")[-2:] == whole[2:]
    data = [f"--data=input_ids={model / 'input_ids.npy'}", f"--data=labels={model / 'labels.npy'}", "--steps=5", "--save=c"]
    said = run(tmp_path / "t", *data, "--resume=c/step-00000004", "--adapter=first", exit=7).stderr
    assert "has other values than those it was trained with: give the same --load, --weights or --merge" in said


def test_an_adapter_of_another_base_is_refused(run, compiled, losses, model, tmp_path):
    """By the hash that --export-adapter writes: of the weights as the file has them, so that --qlora and f64 know the same base. PEFT's files have none."""
    graph = onnx.load(model / "model.onnx")
    changed = next(t for t in graph.graph.initializer if t.name == "val_152")
    changed.raw_data = (numpy_helper.to_array(changed) * np.float32(1.5)).tobytes()
    onnx.save(graph, tmp_path / "other.onnx")
    compiled("t")
    losses("t", "--steps=2", "--export-adapter=a")
    raw = (tmp_path / "a/adapter_model.safetensors").read_bytes()
    metadata = json.loads(raw[8:8 + int.from_bytes(raw[:8], "little")])["__metadata__"]
    assert metadata.keys() == {f"gradc.base.model.layers.{i}.{part}_proj" for i in range(4) for part in
                               ("self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down")}
    for name, precision, lora in (("q", "f32", ("--qlora=*proj.weight,rank=8,alpha=16",)), ("d", "f64", LORA)):
        compiled(name, lora=lora, precision=precision)
        losses(name, "--steps=1", "--load-adapter=a")
    compiled("o", source=tmp_path / "other.onnx")
    data = [f"--data=input_ids={model / 'input_ids.npy'}", f"--data=labels={model / 'labels.npy'}", "--steps=1"]
    said = run(tmp_path / "o", *data, "--load-adapter=a", exit=7).stderr
    assert '"model.layers.0.self_attn.q_proj" was trained with other weights' in said and "compile that model" in said
    losses("o", "--steps=1", f"--load-adapter={ADAPTERS['first']}")
