"""Adapters beside PEFT's: its curves in f64 step by step, its files read and written; what `make references` stored."""
import json
import os
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import reference
from onnx import numpy_helper

STORED = Path(__file__).resolve().parents[1] / "references/peft"
CASES = {
    "gpt2_lora": ["--lora=*c_attn.weight,rank=4,alpha=8", "--lora=*c_fc.weight,rank=4,alpha=8"],
    "gpt2_rslora": ["--lora=*c_attn.weight,alpha=4,rslora", "--lora=*c_proj.weight,alpha=4,rslora", "--lora=*c_fc.weight,rank=3,alpha=4,rslora",
                    "--lora=*mlp.c_proj.weight,alpha=16,rslora"],
    "llama_lora": ["--train=lm_head.*", "--lora=*.q_proj.weight,alpha=16", "--lora=*.v_proj.weight,alpha=16"],
    "gpt2_dora": ["--lora=*c_attn.weight,rank=4,alpha=8,dora", "--lora=*c_fc.weight,rank=4,alpha=8,dora"],
    "llama_dora": [f"--lora=*.{name}_proj.weight,rank=8,alpha=4,rslora,dora" for name in ("o", "down", "v")],
    "llama_qlora": ["--qlora=*proj.weight,alpha=16"],
    "gpt2_qlora": [f"--qlora=*{name}.weight,bits=fp4,double=off,rank=4,alpha=8" for name in ("c_attn", "c_proj", "c_fc")],
    "llama_rslora": ["--lora=*proj.weight,rank=4,alpha=6,rslora", "--lora=*embed_tokens*,rank=4,alpha=6,rslora"],
}


QLORA = [case for case in CASES if "qlora" in case]  # the base is what its codes stand for


def tensors(folder):
    """{name: array} of an adapter_model.safetensors."""
    raw = (folder / "adapter_model.safetensors").read_bytes()
    n = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + n])
    header.pop("__metadata__", None)
    types = {"F32": np.float32, "F64": np.float64}
    return {name: np.frombuffer(raw[8 + n:][slice(*t["data_offsets"])], types[t["dtype"]]).reshape(t["shape"]) for name, t in header.items()}


def settings(folder):
    return json.loads((folder / "adapter_config.json").read_text())


def data(folder):
    return [f"--data=input_ids={folder / 'input_ids.npy'}", f"--data=labels={folder / 'labels.npy'}", "--table=off", "--progress=off", "--shuffle=off"]


@pytest.fixture(scope="module")
def trained(gradc, models, tmp_path_factory):
    """trained(CASE): a folder with log.jsonl, adapter/, merged.onnx and branches.onnx after PEFT's twenty steps in f64, and `train`."""
    import subprocess
    made = {}

    def train(case):
        if case in made:
            return made[case]
        folder, model = tmp_path_factory.mktemp(case), models / json.loads((STORED / case / "curve.json").read_text())["model"]
        lines = [[gradc, "compile", model / "model.onnx", "-o", folder / "train", "--precision=f64", "--dim=batch=8", "--dim=seq=64",
                  "--loss=cross_entropy:logits", *CASES[case]],
                 [folder / "train", *data(model), "--steps=20", "--lr=0.003", "--weight-decay=0.01", f"--load-adapter={STORED / case / 'start'}",
                  f"--log={folder / 'log.jsonl'}", f"--export-adapter={folder / 'adapter'}", f"--export-merged={folder / 'merged.onnx'}",
                  f"--export={folder / 'branches.onnx'}"]]
        for line in lines:
            done = subprocess.run([str(word) for word in line], text=True, capture_output=True)
            assert done.returncode == 0, done.stderr
            assert "warning" not in done.stderr, done.stderr
        made[case] = folder, model
        return made[case]

    return train


@pytest.mark.parametrize("case", CASES)
def test_losses_are_pefts(trained, case):
    want = json.loads((STORED / case / "curve.json").read_text())["losses"]
    got = reference.step_losses(trained(case)[0] / "log.jsonl")
    assert len(got) == len(want) == 20
    np.testing.assert_allclose(got, want, rtol=1e-7)


@pytest.mark.parametrize("case", CASES)
def test_the_files_are_pefts(trained, case):
    """The same tensors after training. PEFT names targets by their endings, and writes a table that has an adapter, too."""
    folder, stored = trained(case)[0] / "adapter", STORED / case / "trained"
    got, want = tensors(folder), {name: t for name, t in tensors(stored).items() if "base_layer" not in name}
    assert got.keys() == want.keys()
    for name in want:
        assert got[name].shape == want[name].shape
        np.testing.assert_allclose(got[name], want[name], atol=1e-5, err_msg=name)
    ours, theirs = settings(folder), settings(stored)
    patterns = ("target_modules", "rank_pattern", "alpha_pattern")
    assert {k: v for k, v in ours.items() if k not in (*patterns, "auto_mapping")} == {k: theirs[k] for k in ours if k not in (*patterns, "auto_mapping")}
    modules = {name.removeprefix("base_model.model.").rsplit(".lora_", 1)[0] for name in want if ".lora_" in name}
    assert set(ours["target_modules"]) == modules

    def of(config, module, pattern, default):
        return next((v for key, v in config[pattern].items() if module == key or module.endswith("." + key)), config[default])

    for module in modules:
        for pattern, default in (("rank_pattern", "r"), ("alpha_pattern", "lora_alpha")):
            assert of(ours, module, pattern, default) == of(theirs, module, pattern, default), (module, pattern)


def run_onnx(path, ids):
    return onnxruntime.InferenceSession(path).run(None, {"input_ids": ids})[0]


@pytest.mark.parametrize("case", CASES)
def test_merged_and_with_branches_they_compute_the_same(trained, case):
    """In onnxruntime; with branches the base is untouched, and what onnx calls valid."""
    folder, model = trained(case)
    ids = np.load(model / "input_ids.npy")[:8]
    merged, branches, base = (run_onnx(path, ids) for path in (folder / "merged.onnx", folder / "branches.onnx", model / "model.onnx"))
    assert np.abs(merged - base).max() > 0.5
    assert np.abs(merged - branches).max() < 1e-5 * np.abs(merged).max()
    before = {t.name: t for t in onnx.load(model / "model.onnx").graph.initializer}
    graph = onnx.load(folder / "branches.onnx")
    onnx.checker.check_model(graph, full_check=True)
    after = {t.name: t for t in graph.graph.initializer}
    changed = [name for name, t in before.items() if numpy_helper.to_array(t).tobytes() != numpy_helper.to_array(after[name]).tobytes()]
    whole = ["val_879"] if case == "llama_lora" else []  # lm_head, trained as a whole
    adapted = [name for name in before if "c_" in name and name.endswith(".weight") or case == "llama_qlora" and name.startswith("val_") and name != "val_879"]
    near = {name: np.abs(numpy_helper.to_array(before[name]) - numpy_helper.to_array(after[name])) for name in changed}
    if case in QLORA:  # these are what their codes stand for: within half the widest step of the largest size
        assert changed and set(changed) <= set(adapted) and all(d.max() <= 0.17 * np.abs(numpy_helper.to_array(before[n])).max() for n, d in near.items())
    else:
        assert changed == whole
    assert {n.op_type for n in graph.graph.node} == {n.op_type for n in onnx.load(model / "model.onnx").graph.node} | {"MatMul", "Mul", "Add"}
    assert [n.name for n in onnx.load(folder / "merged.onnx").graph.node] == [n.name for n in onnx.load(model / "model.onnx").graph.node]


@pytest.mark.parametrize("case", ["gpt2_rslora", "llama_rslora"])
def test_what_was_written_is_read(trained, run, case, tmp_path):
    folder, model = trained(case)
    run(folder / "train", *data(model), "--steps=0", f"--load-adapter={folder / 'adapter'}", "--export-merged=m.onnx", "--export-adapter=a")
    assert (tmp_path / "m.onnx").read_bytes() == (folder / "merged.onnx").read_bytes()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (folder / "adapter" / name).read_bytes()


def test_a_lower_rank_and_another_scale_compute_the_same(trained, run, gradc, tmp_path):
    """An adapter of rank 4 in an executable of rank 6: zeros more; its scale goes into the second part, and a warning says so."""
    folder, model = trained("gpt2_lora")
    run("compile", model / "model.onnx", "-o", "wide", "--precision=f64", "--dim=batch=8", "--dim=seq=64", "--loss=cross_entropy:logits",
        "--lora=*c_attn.weight,rank=6,alpha=3", "--lora=*c_fc.weight,rank=5,alpha=10")
    said = run(tmp_path / "wide", *data(model), "--steps=0", f"--load-adapter={folder / 'adapter'}", "--export-merged=m.onnx").stderr
    assert said.count('has scale 2, in this executable 0.5: the second matrix of its adapter is multiplied by the quotient') == 4
    for a, b in zip(onnx.load(tmp_path / "m.onnx").graph.initializer, onnx.load(folder / "merged.onnx").graph.initializer):
        np.testing.assert_allclose(numpy_helper.to_array(a), numpy_helper.to_array(b), rtol=1e-6, atol=1e-7)


def copy_of(stored, target, edit=None, **settings_to_set):
    """An adapter with other settings; edit(header, bytes): other tensors."""
    target.mkdir()
    config = json.loads((stored / "adapter_config.json").read_text())
    (target / "adapter_config.json").write_text(json.dumps({**config, **settings_to_set}))
    raw = (stored / "adapter_model.safetensors").read_bytes()
    n = int.from_bytes(raw[:8], "little")
    header, body = json.loads(raw[8:8 + n]), raw[8 + n:]
    if edit:
        header = edit(header)
    text = json.dumps(header).encode()
    (target / "adapter_model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + body)
    return target


FIRST = "base_model.model.transformer.h.0.attn.c_attn.lora_A.weight"


def renamed(header):
    return {("base_model.model.transformer.h.9.attn.c_attn.lora_A.weight" if k == FIRST else k): v for k, v in header.items()}


def reshaped(header):
    return {k: {**v, "shape": v["shape"][::-1]} if k == FIRST else v for k, v in header.items()}


@pytest.mark.parametrize("edit, options, said", [
    (renamed, {}, f'no "{FIRST}"'),
    (reshaped, {}, "has shape [64,4], this executable's adapter [64,4], the other way round"),
    (None, {"peft_type": "IA3"}, 'is not LoRA: peft_type is not "LORA"'),
    (None, {"use_dora": True}, "use_dora is set, but this executable has no dora: compile with dora"),
    (None, {"lora_alpha": "eight"}, "lora_alpha is not a number"),
    (None, {"alpha_pattern": {"(": 2}}, '"(" is not a regular expression'),
    (None, {"alpha_pattern": {r"h\.\d\.attn": 2}}, "write [0-9] for \\d"),
    (None, {"alpha_pattern": {"c_attn": "x"}}, 'alpha_pattern: "c_attn" is not a number'),
])
def test_files_that_do_not_fit(trained, run, tmp_path, edit, options, said):
    folder, model = trained("gpt2_lora")
    copy_of(folder / "adapter", tmp_path / "a", edit, **options)
    done = run(folder / "train", *data(model), "--steps=0", "--load-adapter=a", "--export-merged=m.onnx", exit=7)
    assert said in done.stderr, done.stderr
    assert not (tmp_path / "m.onnx").exists()


def test_files_that_are_no_adapters(trained, run, tmp_path):
    folder, model = trained("gpt2_lora")
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").mkdir()
    (tmp_path / "text/adapter_config.json").write_text("{")
    for name, said in (("empty", "adapter_config.json"), ("text", "adapter_config.json: line 1:"), ("none", "none/adapter_config.json")):
        assert said in run(folder / "train", *data(model), "--steps=0", f"--load-adapter={name}", exit=7).stderr


def test_a_tied_weight_has_one_adapter(run, models, tmp_path):
    """It is written for both of its modules, and read where both are the same."""
    folder = models / "gpt2_mini"
    run("compile", folder / "model.onnx", "-o", "t", "--dim=batch=8", "--dim=seq=64", "--loss=cross_entropy", "--lora=lm_head*,rank=4")
    run(tmp_path / "t", *data(folder), "--steps=3", "--lr=0.01", "--export-adapter=a", "--export-merged=m.onnx")
    found = tensors(tmp_path / "a")
    head, table = "base_model.model.lm_head.lora_", "base_model.model.transformer.wte.lora_embedding_"
    assert found.keys() == {f"{head}A.weight", f"{head}B.weight", f"{table}A", f"{table}B"}
    np.testing.assert_array_equal(found[f"{table}A"], found[f"{head}B.weight"].T)
    np.testing.assert_array_equal(found[f"{table}B"], found[f"{head}A.weight"].T)
    run(tmp_path / "t", *data(folder), "--steps=0", "--load-adapter=a", "--export-merged=again.onnx")
    assert (tmp_path / "m.onnx").read_bytes() == (tmp_path / "again.onnx").read_bytes()

    def swapped(header):  # the table's first part is another tensor of that size
        at = header[f"{head}B.weight"]["data_offsets"], header[f"{table}A"]["data_offsets"]
        return {**header, f"{table}A": {**header[f"{table}A"], "data_offsets": at[0]}, f"{head}B.weight": {**header[f"{head}B.weight"], "data_offsets": at[1]}}

    copy_of(tmp_path / "a", tmp_path / "other", swapped)
    said = run(tmp_path / "t", *data(folder), "--steps=0", "--load-adapter=other", exit=7).stderr
    assert '"lm_head" and "transformer.wte" have adapters of their own, this executable one for both: compile with --no-tie' in said
    copy_of(tmp_path / "a", tmp_path / "half", lambda header: {k.replace("wte", "wtf"): v for k, v in header.items()})
    said = run(tmp_path / "t", *data(folder), "--steps=0", "--load-adapter=half", exit=7).stderr
    assert 'an adapter for "lm_head" and none for "transformer.wte"' in said


def test_dora_goes_with_the_weight_that_was_compiled(trained, run):
    """--load of another one is refused: the sizes would be those of the first."""
    folder, model = trained("gpt2_dora")
    header = {"transformer.h.0.attn.c_attn.weight": {"dtype": "F32", "shape": [64, 192], "data_offsets": [0, 4 * 64 * 192]}}
    text = json.dumps(header).encode()
    (folder / "w.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + np.ones(64 * 192, np.float32).tobytes())
    said = run(folder / "train", *data(model), "--steps=0", f"--load={folder / 'w.safetensors'}", exit=2).stderr
    assert '"transformer.h.0.attn.c_attn.weight" has an adapter with dora' in said


@pytest.mark.parametrize("change, said", [
    ({"r": 8}, "r or rank_pattern give \"transformer.h.0.attn.c_attn\" another rank than its tensors have, 4"), ({"r": None}, "another rank than"),
    ({"r": "4"}, "another rank than"), ({"rank_pattern": {"c_attn": 8}}, "another rank than"), ({"rank_pattern": {"c_attn": "x"}}, "another rank than"),
    ({"use_rslora": 1}, "use_rslora is not true or false"), ({"use_dora": "yes"}, "use_dora is not true or false"),
    ({"layer_replication": [[0, 4]]}, "layer_replication: not supported"), ({"bias": "all"}, 'bias is not "none"'),
    *(({"init_lora_weights": v}, f'init_lora_weights is "{v}": PEFT changes the base') for v in ("pissa", "pissa_niter_16", "OLORA", "new")),
    ({"init_lora_weights": ["pissa"]}, 'init_lora_weights is "no word"'),
    ({"lora_bias": True}, "lora_bias: not supported"), ({"lora_alpha": 1e42}, "not all numbers are finite, as they are multiplied"),
    ({"alpha_pattern": {"a{1000}{1000}": 2}}, "with {, )* or )+, is not read"), ({"alpha_pattern": {"(a)*" * 20: 2}}, "is not read"),
    ({"alpha_pattern": {"(" * 5000 + "a" + ")" * 5000: 2}}, "a pattern of more than 256 bytes")])
def test_settings_that_contradict(trained, run, tmp_path, change, said):
    """Each would compute something else than PEFT does, or take all time and memory."""
    folder, model = trained("gpt2_lora")
    shutil.copytree(STORED / "gpt2_lora/trained", tmp_path / "a")
    config = json.loads((tmp_path / "a/adapter_config.json").read_text()) | change
    (tmp_path / "a/adapter_config.json").write_text(json.dumps(config))
    precision = "f32" if "lora_alpha" in change else "f64"
    run("compile", model / "model.onnx", "-o", "t", f"--precision={precision}", "--dim=batch=8", "--dim=seq=64", "--loss=cross_entropy:logits", *CASES["gpt2_lora"])
    assert said in run(tmp_path / "t", *data(model), "--steps=1", "--load-adapter=a", exit=7).stderr


def test_pipes_are_no_adapters(trained, run, tmp_path):
    folder, model = trained("gpt2_lora")
    shutil.copytree(STORED / "gpt2_lora/trained", tmp_path / "a")
    (tmp_path / "a/adapter_config.json").unlink()
    os.mkfifo(tmp_path / "a/adapter_config.json")
    assert "not a regular file" in run(folder / "train", *data(model), "--steps=1", "--load-adapter=a", exit=7, timeout=60).stderr
    said = run("compile", model / "model.onnx", "-o", "t", "--dim=batch=8", "--dim=seq=64", "--loss=cross_entropy:logits", *CASES["gpt2_lora"],
               "--load-adapter=p=a", exit=7, timeout=60).stderr
    assert "not a regular file" in said
