"""--layer-decay: which layer a parameter is of, in models of several families; and that the scale is that of updates."""
import json
import re

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

X = 0.5  # exact powers
# Globs of names or paths: layers before the head, which has 0. BEiT's get_num_layer_for_vit, where a model has what it names.
GPT2 = {r"transformer\.w[tp]e|lm_head": 5, **{rf"transformer\.h\.{i}\.": 4 - i for i in range(4)}, r"transformer\.ln_f": 0}
BERT = {r"bert\.embeddings": 3, r"bert\.encoder\.layer\.0\.": 2, r"bert\.encoder\.layer\.1\.": 1, r"bert\.pooler|classifier": 0}
VIT = {r"vit\.embeddings": 4, **{rf"vit\.layers\.{i}\.": 3 - i for i in range(3)}, r"vit\.layernorm|classifier": 0}
LLAMA = {r"model\.embed_tokens": 5, **{rf"model\.layers\.{i}\.": 4 - i for i in range(4)}, r"model\.norm|lm_head": 0}
MLP = {r"0\.(weight|bias)": 2, r"2\.(weight|bias)": 1, r"4\.(weight|bias)": 0}
RESNET = {r"conv\.weight": 4, r"layers\.0\.": 3, r"layers\.1\.": 2, r"layers\.2\.": 1, r"fc\.": 0}
MODELS = {"gpt2_mini": GPT2, "bert_mini": BERT, "vit_mini": VIT, "llama_mini": LLAMA, "mlp_digits": MLP, "resnet_mini": RESNET}


@pytest.mark.parametrize("name", MODELS)
def test_layers_are_those_that_people_count(run, models, name):
    table = run("check", models / name / "model.onnx", "--loss=cross_entropy", f"--layer-decay={X}", "--json").stdout
    rows = [p for p in json.loads(table)["parameters"] if p["kind"] == "trainable"]
    seen = set()
    for p in rows:
        # Names that an optimizer of ONNX graphs made stand for nothing; their paths do.
        text = p["path"] if p["path"] else p["name"]
        fits = [n for glob, n in MODELS[name].items() if re.match(glob, text) or re.match(glob, p["name"])]
        assert fits, (p["name"], p["path"])
        assert p["lr_scale"] == X ** fits[0], (p["name"], p["path"])
        seen.add(fits[0])
    assert seen == set(MODELS[name].values())


def test_the_table_shows_it_and_rules_multiply(run, models):
    said = run("check", models / "mlp_digits/model.onnx", "--layer-decay=0.5", "--lr-scale=0.weight=3").stdout
    for name, remark in (("0.weight", "learning rate times 0.75"), ("2.bias", "learning rate times 0.5")):
        assert remark in next(line for line in said.splitlines() if line.startswith(f"  {name} "))
    assert "learning rate" not in next(line for line in said.splitlines() if line.startswith("  4.weight "))
    plain = run("dump", models / "mlp_digits/model.onnx", "--stage=forward").stdout
    assert plain == run("dump", models / "mlp_digits/model.onnx", "--stage=forward", "--layer-decay=1").stdout


def test_updates_have_the_scale(run, tmp_path):
    """One step of SGD, y = ((x a) b) c: each weight moves by X^n of what it moves without."""
    random = np.random.default_rng(0)
    w = {n: random.standard_normal(s).astype(np.float32) for n, s in (("a", (4, 5)), ("b", (5, 6)), ("c", (6, 3)))}
    nodes = [helper.make_node("MatMul", ["x", "a"], ["p"]), helper.make_node("MatMul", ["p", "b"], ["q"]), helper.make_node("MatMul", ["q", "c"], ["y"])]
    ports = [helper.make_tensor_value_info("x", 1, [8, 4]), helper.make_tensor_value_info("y", 1, [8, 3])]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], [numpy_helper.from_array(v, n) for n, v in w.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", random.standard_normal((8, 4)).astype(np.float32))
    np.save(tmp_path / "y.npy", random.standard_normal((8, 3)).astype(np.float32))
    moved = {}
    for decay in (1, 0.1):
        run("compile", "m.onnx", "-o", "train", "--loss=mse", "--optimizer=sgd", f"--layer-decay={decay}")
        run(tmp_path / "train", "--data=x=x.npy", "--data=labels=y.npy", "--steps=1", "--lr=0.1", "--export=o.onnx")
        new = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "o.onnx").graph.initializer}
        moved[decay] = {n: new[n].astype(np.float64) - w[n] for n in w}
    for n, scale in (("a", 0.01), ("b", 0.1), ("c", 1)):
        assert np.linalg.norm(moved[0.1][n]) == pytest.approx(scale * np.linalg.norm(moved[1][n]), rel=1e-4)
