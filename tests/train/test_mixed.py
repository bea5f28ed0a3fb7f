"""bf16 and f16 with weights of f32: curves beside those of PyTorch's autocast, what is 16 bits in the module, --mixed."""
import json
import math
import re

import numpy as np
import onnx
import pytest
import reference
from onnx import helper, numpy_helper

AUTOCAST = json.loads((reference.COPIES.parent / "references/autocast.json").read_text())["losses"]
# Of autocast itself where the curve is chaotic, by CPU: with AVX2 as stored, with avx512_bf16 (AMD EPYC, torch 2.15.0) more.
AUTOCAST_DISTANCE = {("resnet_mini", "bf16"): 0.1124}
# Debian's oneDNN has no f16 on CPUs: loops run it.
CASES = [(name, "bf16") for name in AUTOCAST] + [("vit_mini", "f16"), ("bert_mini", "f16")]


def distance(losses, exact):
    """Root mean square, relative to the larger of the loss and a tenth of the first one."""
    parts = [(a - b) / max(abs(b), abs(exact[0]) / 10) for a, b in zip(losses, exact)]
    return math.sqrt(sum(x * x for x in parts) / len(parts))


@pytest.mark.parametrize("name, precision", CASES)
def test_curves_are_as_near_as_autocasts(run, models, tmp_path, name, precision):
    exact = reference.load(name)["traces"][0]["f64"]["losses"]
    options = reference.compile_options(name, "f32", drop=["--precision"])
    run("compile", models / name / "model.onnx", "-o", tmp_path / "train", *options, f"--precision={precision}")
    run(tmp_path / "train", *reference.train_options(name, "f32"), "--log", tmp_path / "log.jsonl", cwd=models / name)
    steps = [x for x in map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines()) if "lr" in x]
    losses = [s["loss"] for s in steps]
    theirs = max(distance(AUTOCAST[name][precision], exact), AUTOCAST_DISTANCE.get((name, precision), 0))
    assert len(losses) == len(exact) and distance(losses, exact) <= 2 * theirs + 1e-4
    assert not [s for s in steps if "skipped" in s]


@pytest.mark.parametrize("name", AUTOCAST)
def test_products_have_16_bits(run, models, name):
    """All of them, forward and backward; sums of many have none; what is trained is f32. A gradient is not rounded on its way."""
    options = reference.compile_options(name, "f32", drop=["--precision", "-o", "train"])
    text = run("dump", models / name / "model.onnx", *options, "--precision=bf16", "--stage=train").stdout
    accumulate = text[text.index("func @accumulate"):text.index("func @eval")]
    types = dict(re.findall(r"(%\d+) = \w+ .*? : (\w+)\[", accumulate)) | dict(re.findall(r"state (@\S+) : (\w+)\[", text))
    products = re.findall(r"%\d+ = (?:dot|conv|conv_grad_\w+) (\S+), (\S+) .*? : (\w+)\[", accumulate)
    assert len(products) > 10 and {types[x] for p in products for x in p[:2]} == {"bf16"} and {p[2] for p in products} == {"bf16", "f32"}
    assert not re.findall(r" = (?:reduce|exp|log|rsqrt|pow|pool|scatter) .*: bf16\[", accumulate)
    assert not re.findall(r" = (?:add|sub|pool_grad) .*: bf16\[.* phase backward", accumulate)
    assert set(re.findall(r"state @\S+ : (\w+)\[.*?\] (?:parameter|gradient|moment) ", text)) == {"f32"}
    casts = re.findall(r"= cast (\S+) \{to = bf16\}", accumulate)
    assert len(casts) == len(set(casts))


def test_nodes_that_stay(run, models, tmp_path):
    options = reference.compile_options("mlp_digits", "f32", drop=["--precision", "-o", "train"])
    dump = ["dump", models / "mlp_digits/model.onnx", *options, "--precision=bf16", "--stage=train"]
    all_of_them = run(*dump).stdout
    kept = run(*dump, "--mixed=/0/*=f32").stdout
    assert all_of_them.count("dot ") == kept.count("dot ")
    assert set(re.findall(r"= dot .* : (\w+)\[.*loc \"/0/", kept)) == {"f32"}
    assert set(re.findall(r"= dot .* : (\w+)\[.*loc \"/2/", kept)) == {"bf16"}


@pytest.mark.parametrize("options, said", [
    (["--precision=bf16", "--mixed=fc*"], "--mixed=fc*: need GLOB=f32"), (["--precision=bf16", "--mixed=x=bf16"], "need GLOB=f32"),
    (["--precision=bf16", "--mixed=nothing=f32"], "--mixed=nothing=f32 fits no node"), (["--precision=half"], "half"),
    (["--mixed=/0/*=f32"], "--mixed needs --precision=bf16 or f16")])
def test_faults(run, models, tmp_path, options, said):
    assert said in run("compile", models / "mlp_digits/model.onnx", "-o", tmp_path / "train", "--batch=8", *options, exit=2).stderr


def test_moments_of_16_bits(run, models, tmp_path):
    """They are BF16 in checkpoints, take half the room, and a resumed training goes on with the same bits."""
    model, options = models / "mlp_digits/model.onnx", reference.compile_options("mlp_digits", "f32", drop=["--precision", "-o", "train"])
    train = [x for x in reference.train_options("mlp_digits", "f32") if not x.startswith("--steps")]
    found = {}
    for moments in "f32", "bf16":
        folder = tmp_path / moments
        run("compile", model, "-o", folder, *options, f"--moments={moments}")
        said = json.loads(run(folder, "--info", "--json").stdout)
        saved = tmp_path / f"saved.{moments}"
        for name, more in {"whole": ["--steps=20"], "half": ["--steps=10", "--save", saved], "rest": ["--steps=20", "--resume", saved]}.items():
            run(folder, *train, *more, "--log", tmp_path / f"{moments}.{name}", cwd=models / "mlp_digits")
        losses = {n: [x["loss"] for x in map(json.loads, (tmp_path / f"{moments}.{n}").read_text().splitlines()) if "lr" in x]
                  for n in ("whole", "rest")}
        assert losses["rest"] == losses["whole"][10:]
        found[moments] = losses["whole"], {k: v["dtype"] for k, v in heads(saved).items() if k.startswith("exp_avg")}, said["regions"]["state"]
    assert set(found["bf16"][1].values()) == {"BF16"} and set(found["f32"][1].values()) == {"F32"}
    assert found["bf16"][0] == pytest.approx(found["f32"][0], rel=2e-2) and found["bf16"][0] != found["f32"][0]
    assert found["bf16"][2] < 0.8 * found["f32"][2]


@pytest.mark.parametrize("options", [["--precision=bf16"], ["--precision=f16"], ["--precision=f16", "--loss-scale=1024"],
                                     ["--precision=f16", "--loss-scale=none"]])
def test_dumped_gradients_are_unscaled(run, models, tmp_path, options):
    """Near those of f32, whatever the loss is multiplied by."""
    model, compile_options = models / "mlp_digits/model.onnx", reference.compile_options("mlp_digits", "f32", drop=["--precision", "-o", "train"])
    found = {}
    for name, more in {"f32": [], "low": options}.items():
        run("compile", model, "-o", tmp_path / name, *compile_options, *more)
        run(tmp_path / name, *reference.train_options("mlp_digits", "f32"), "--dump-gradients", tmp_path / f"{name}.grad", cwd=models / "mlp_digits")
        found[name] = reference.results(tmp_path / f"{name}.grad")
    assert set(found["f32"]) == set(found["low"]) and len(found["f32"]) > 4
    for name, want in found["f32"].items():
        assert np.linalg.norm(found["low"][name] - want) <= 0.1 * np.linalg.norm(want), name


def test_resume_says_what_differs(run, models, tmp_path):
    model, compile_options = models / "mlp_digits/model.onnx", reference.compile_options("mlp_digits", "f32", drop=["--precision", "-o", "train"])
    train = [x for x in reference.train_options("mlp_digits", "f32") if not x.startswith("--steps")]
    for name, more in {"a": ["--loss-scale=torch"], "b": ["--loss-scale=megatron", "--mixed=/0/*=f32"]}.items():
        run("compile", model, "-o", tmp_path / name, *compile_options, "--precision=f16", *more)
    run(tmp_path / "a", *train, "--steps=2", "--save", tmp_path / "saved", cwd=models / "mlp_digits")
    said = run(tmp_path / "b", *train, "--steps=4", "--resume", tmp_path / "saved", cwd=models / "mlp_digits").stderr
    assert '"loss_scale" was "torch", is "megatron"' in said and '"mixed" was "", is "/0/*=f32"' in said


@pytest.mark.parametrize("libraries", ["on", "off"])
def test_a_note_where_loops_run_products(run, models, tmp_path, libraries):
    """As on a CPU without the instructions: the losses are right, and the table says why they take longer."""
    options = reference.compile_options("gpt2_mini", "f32", drop=["--precision", "-o", "train"])
    run("compile", models / "gpt2_mini/model.onnx", "-o", tmp_path / "train", *options, "--precision=bf16")
    calls = json.loads(run(tmp_path / "train", "--info", "--json", f"--libraries={libraries}").stdout)["library_calls"]
    train = [x for x in reference.train_options("gpt2_mini", "f32") if not x.startswith("--steps")]
    said = run(tmp_path / "train", *train, "--steps=2", f"--libraries={libraries}", "--log", tmp_path / "log.jsonl", cwd=models / "gpt2_mini").stderr
    assert ("note: no library runs the products of bf16 here" in said) == ({c["implementation"] for c in calls} == {"generated"})
    assert len(calls) > 10 and (libraries == "on" or "note: no library" in said)
    losses = [x["loss"] for x in map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines()) if "lr" in x]
    assert losses == pytest.approx(reference.load("gpt2_mini")["traces"][0]["f64"]["losses"][:2], rel=1e-3)


def narrowed(t, dtype):
    """A TensorProto's numbers in another float type."""
    if t.data_type != onnx.TensorProto.FLOAT:
        return t
    return numpy_helper.from_array(numpy_helper.to_array(t).astype(dtype), t.name)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["mlp_digits", "cnn_mnist"])
def test_models_of_16_bits(run, models, tmp_path, name, kind):
    """They begin with their own values, train in f32 as those would, and are exported in their own type, rounded once."""
    import ml_dtypes
    dtype = np.float16 if kind == "float16" else ml_dtypes.bfloat16
    wide = onnx.load(models / name / "model.onnx")
    narrow = onnx.ModelProto.FromString(wide.SerializeToString())
    for model, to in (narrow, dtype), (wide, None):
        for t in model.graph.initializer:
            low = narrowed(t, dtype)
            t.CopyFrom(low if to else t if low is t else numpy_helper.from_array(numpy_helper.to_array(low).astype(np.float32), t.name))
    for v in [*narrow.graph.input, *narrow.graph.output]:
        if v.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            v.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    onnx.save(wide, tmp_path / "wide.onnx")
    onnx.save(narrow, tmp_path / "narrow.onnx")
    train, found = [x for x in reference.train_options(name, "f32") if not x.startswith("--steps")], {}
    for which in "wide", "narrow":
        run("compile", tmp_path / f"{which}.onnx", "-o", tmp_path / which, *reference.compile_options(name, "f32", drop=["--precision", "-o", "train"]))
        run(tmp_path / which, *train, "--steps=5", "--log", tmp_path / f"{which}.jsonl", "--export", tmp_path / f"{which}.out.onnx", cwd=models / name)
        losses = [x["loss"] for x in map(json.loads, (tmp_path / f"{which}.jsonl").read_text().splitlines()) if "lr" in x]
        found[which] = losses, {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / f"{which}.out.onnx").graph.initializer}
    assert found["narrow"][0] == pytest.approx(found["wide"][0], rel=1e-5)
    floats = {n for n, a in found["wide"][1].items() if a.dtype == np.float32}
    assert len(floats) > 3
    for n in floats:
        low, full = found["narrow"][1][n], found["wide"][1][n]
        assert low.dtype == dtype and np.abs(low.astype(np.float32) - full).max() <= ml_dtypes.finfo(dtype).eps * np.abs(full).max(), n


def heads(folder):
    """{tensor: dtype, shape ...} of a folder's newest checkpoint."""
    found = {}
    for file in max(folder.glob("step-*")).glob("*.safetensors"):
        data = file.read_bytes()
        found |= json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
    return found
