"""gradc dump --format=html: what the page holds, and what a browser makes of it."""
import json
import re

import browser
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

HOSTILE = "</script><img src=x onerror=alert(1)>'\"&\\ \u202e"


@pytest.fixture
def layers(tmp_path):
    """Two layers in scopes of their own; one node's name looks like markup, another is no UTF-8."""
    random = np.random.default_rng(0)
    weights = {n: random.standard_normal(s).astype(np.float32) / 4
               for n, s in (("a.weight", (6, 8)), ("b.weight", (8, 3)))}
    nodes = [helper.make_node("MatMul", ["x", "a.weight"], ["h"], name="/net/a/MatMul"),
             helper.make_node("Tanh", ["h"], ["t"], name="/net/a/Tanh" + HOSTILE),
             helper.make_node("MatMul", ["t", "b.weight"], ["y"], name="/net/b/MatMul")]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 3])],
        [numpy_helper.from_array(w, n) for n, w in weights.items()])
    path = tmp_path / "layers.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
              path)
    return path


def dump(run, tmp_path, *arguments):
    """(path of the page, its data)"""
    page = tmp_path / "page.html"
    run("dump", *arguments, "--format=html", "-o", page)
    text = page.read_text()
    assert not re.search(r"(?:src|href)=[\"']|@import|url\(", text.split('<script type="app')[0])
    held = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    return page, json.loads(held[1])


def test_page_holds_the_module(run, layers, tmp_path):
    _, data = dump(run, tmp_path, layers, "--loss=cross_entropy")
    text = run("dump", layers, "--loss=cross_entropy", "--stage=fused").stdout
    lines = [line.strip() for line in text.splitlines()]
    shown = [n["text"] for f in data["functions"] for n in f["nodes"]]
    assert shown and not [line for line in shown if line not in lines]
    assert len(shown) == sum(bool(re.match(r"(%\d+.* = |store |return )", x)) for x in lines)
    assert [(o["name"], o["op"]) for o in data["onnx"]][::2] == \
        [("/net/a/MatMul", "MatMul"), ("/net/b/MatMul", "MatMul")]
    names = {(n, g) for f in data["functions"] for x in f["nodes"] for n, g in x["names"]}
    for o in data["onnx"]:
        assert (o["name"], False) in names and (o["name"], True) in names


def test_kernels_have_members(run, layers, tmp_path):
    """What calls a kernel-to-be in one dump launches that kernel in the other."""
    _, data = dump(run, tmp_path, layers, "--loss=cross_entropy")
    functions = {f["name"]: f for f in data["functions"]}
    kernels = [k for k in data["kernels"] if not k["name"].startswith("sum_")]  # which add what ranks send
    assert set(data["members"]) == {k["name"] for k in kernels}
    for k in kernels:
        assert k["code"].lstrip().startswith(f"kernel @{k['name']}(")
        for member in data["members"][k["name"]]:
            assert functions[member]["fused"]
            assert k["loc"] in {functions[m]["loc"] for m in data["members"][k["name"]]}
    tanh = next(k for k in data["kernels"] if "tanh" in k["code"])
    ops = {n["op"] for m in data["members"][tanh["name"]] for n in functions[m]["nodes"]}
    assert "tanh" in ops


def check_plan(memory):
    """No two values are alive in the same bytes at the same time, but where a kernel writes one over the other, whole;
    all lie in their region, which is as large as training needs."""
    n = 0
    for program in memory["programs"]:
        for region in ("workspace", "io"):
            slots = [s for s in program["slots"] if s["region"] == region and s["bytes"]]
            n += len(slots)
            for i, a in enumerate(slots):
                assert a["offset"] + a["bytes"] <= memory[region] or program["name"] == "forward"
                assert 0 <= a["first"] <= a["last"] < len(program["steps"])
                for b in slots[:i]:
                    place = [(x["offset"], x["bytes"]) for x in (a, b)]
                    over = place[0] == place[1] and (a["last"] == b["first"] or b["last"] == a["first"])
                    apart = over or a["last"] < b["first"] or b["last"] < a["first"] or \
                        a["offset"] + a["bytes"] <= b["offset"] or \
                        b["offset"] + b["bytes"] <= a["offset"]
                    assert apart, (program["name"], a, b)
    return n


@pytest.mark.parametrize("model", ["gpt2_mini", "resnet_mini"])
def test_memory_over_time(run, models, tmp_path, model):
    path = models / model / "model.onnx"
    dims = ["--batch=2"] if model == "resnet_mini" else ["--dim=batch=2", "--dim=seq=8"]
    _, data = dump(run, tmp_path, path, *dims, "--loss=cross_entropy")
    assert check_plan(data["memory"]) > 50
    printed = run("dump", path, *dims, "--loss=cross_entropy", "--stage=memory").stdout
    regions = re.search(r"regions state (\d+) workspace (\d+) io (\d+)", printed)
    assert [data["memory"][r] for r in ("state", "workspace", "io")] == \
        [int(x) for x in regions.groups()]
    steps = [s["text"] for p in data["memory"]["programs"] for s in p["steps"]]
    for line in printed.splitlines():
        if re.match(r"\s+%\d+.* = launch ", line):
            assert line.strip() in steps


def test_stages(run, layers, tmp_path):
    _, data = dump(run, tmp_path, layers, "--stage=import")
    assert [f["name"] for f in data["functions"]] == ["forward"] and not data["kernels"]
    assert data["memory"] is None
    _, data = dump(run, tmp_path, layers, "--loss=mse", "--after=autograd")
    assert any(n["phase"] == 2 for f in data["functions"] for n in f["nodes"])
    _, data = dump(run, tmp_path, layers, "--stage=lowered")
    assert data["kernels"] and data["memory"] is None
    run("dump", layers, "--stage=memory", "-o", tmp_path / "m.gir")
    _, data = dump(run, tmp_path, tmp_path / "m.gir")
    assert data["kernels"] and data["memory"]["programs"] and not data["onnx"]
    run("compile", layers, "-o", tmp_path / "exe")
    assert "--format=html" in run("dump", tmp_path / "exe", "--format=html", exit=2).stderr


@browser.needs_chromium
def test_page_in_a_browser(run, layers, tmp_path):
    page, data = dump(run, tmp_path, layers, "--loss=cross_entropy")
    profile = tmp_path / "profile"
    text, tags = browser.parts(page, profile)
    assert "layers.onnx" in text["title"] and "3 ONNX nodes" in text["summary"]
    assert all(x in text["list"] for x in ("@accumulate", "@update", "backward", "net"))
    assert "Memory" in text["tabs"] and tags["details"] > 4
    text, tags = browser.parts(page, profile, "#memory")
    slots = [s for p in data["memory"]["programs"] for s in p["slots"]
             if s["region"] == "workspace" and s["bytes"]]
    assert tags["rect"] == len(slots) and tags["svg"] == sum(
        any(s["region"] == "workspace" and s["bytes"] for s in p["slots"])
        for p in data["memory"]["programs"])
    assert "workspace" in text["regions"]
    text, _ = browser.parts(page, profile, "#onnx=/net/b/MatMul")
    became, gradient = text["detail"].split("its gradient")
    assert text["onnx"] == "/net/b/MatMul" and "MatMul in net.b" in became
    assert "@forward" in became and "@accumulate" in gradient
    first = data["kernels"][0]["name"]
    text, _ = browser.parts(page, profile, f"#kernel={first}")
    assert first.startswith("dot_") and text["kernel"] == f"kernel {first}" and "members of @" in text["detail"]
    assert "parallel" in text["detail"] or "for" in text["detail"]
    text, _ = browser.parts(page, profile, "#find=tanh")
    assert "ONNX  /net/a/Tanh" in text["list"] and "hits" in text["found"]
    for tab in ("graph", "kernels", "memory"):
        assert browser.screenshot(page, profile, tmp_path / "page.png", hash="#" + tab) > 10


@pytest.fixture
def attention(tmp_path):
    """softmax(q k) v, with weights of their own for q, k and v."""
    make, random = helper.make_node, np.random.default_rng(0)
    nodes = [*(make("MatMul", ["x", w], [y], name=f"/net/{y}") for w, y in zip("abc", "qkv")),
             make("Transpose", ["k"], ["t"], perm=[0, 2, 1]), make("MatMul", ["q", "t"], ["s"], name="/net/s"),
             make("Softmax", ["s"], ["p"]), make("MatMul", ["p", "v"], ["y"], name="/net/o")]
    weights = [numpy_helper.from_array(random.standard_normal((8, 8)).astype(np.float32), w) for w in "abc"]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 6, 8]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "a.onnx")
    return tmp_path / "a.onnx"


def test_groups_by_name(run, attention, tmp_path):
    """Bodies while they are called, and the functions and kernels that they become."""
    _, data = dump(run, tmp_path, attention, "--loss=mse", "--after=autograd")
    groups = {f["name"]: f["group"] for f in data["functions"] if "group" in f}
    assert groups == {"attention": "attention", "attention_grad": "attention_grad"}
    assert not any(f["fused"] for f in data["functions"])
    _, data = dump(run, tmp_path, attention, "--loss=mse")
    groups = {f["name"]: f["group"] for f in data["functions"] if "group" in f}
    assert sorted(groups.values()) == ["attention", "attention_grad"]
    kernels = {k for k, members in data["members"].items() if members.keys() & groups.keys()}
    assert {re.sub(r"_\d+$", "", k) for k in kernels} == set(groups.values())


@browser.needs_chromium
def test_groups_in_a_browser(run, attention, tmp_path):
    page, _ = dump(run, tmp_path, attention, "--loss=mse", "--after=autograd")
    text, _ = browser.parts(page, tmp_path / "profile")
    assert "group attention @attention" in text["list"] and "2 groups" in text["summary"]
    page, data = dump(run, tmp_path, attention, "--loss=mse")
    kernel = next(k["name"] for k in data["kernels"] if k["name"].startswith("attention_grad_"))
    text, _ = browser.parts(page, tmp_path / "profile", f"#kernel={kernel}")
    assert "members of attention_grad @accumulate.k" in text["detail"]


@browser.needs_chromium
def test_names_stay_text(run, layers, tmp_path):
    page, _ = dump(run, tmp_path, layers, "--loss=cross_entropy")
    for tab in ("", "#kernels", "#memory", "#find=tanh", "#onnx=/net/a/Tanh" + HOSTILE):
        text, tags = browser.parts(page, tmp_path / "profile", tab)
        assert "img" not in tags and tags["script"] == 2, tab
    assert text["onnx"] == "/net/a/Tanh" + HOSTILE


CLICKS = """
<script>
for (const d of document.querySelectorAll("details")) d.open = true;
const texts = [];
setTimeout(() => {
	for (const row of document.querySelectorAll("#list .row")) {
		row.click();
		texts.push(detail.textContent);
		for (const go of detail.querySelectorAll(".link, .row")) { go.click(); texts.push(detail.textContent); }
	}
	for (const tab of tabs.querySelectorAll("button")) tab.click();
	for (const slot of document.querySelectorAll(".slot")) { slot.dispatchEvent(new Event("click")); texts.push(detail.textContent); }
	search.value = "matmul net/a";
	search.dispatchEvent(new Event("input"));
	const log = document.body.appendChild(document.createElement("pre"));
	log.id = "log";
	log.textContent = JSON.stringify(texts);
}, 100);
</script>
</body>"""


@browser.needs_chromium
def test_clicking_through_the_page(run, layers, tmp_path):
    """Every row, link and box: none fails, and a node leads to its ONNX node and its gradient."""
    page, data = dump(run, tmp_path, layers, "--loss=cross_entropy")
    page.write_text(page.read_text().replace("</body>", CLICKS))
    text, _ = browser.parts(page, tmp_path / "profile")
    seen = json.loads(text["log"])
    assert len(seen) > 100 and all(seen)
    assert any(re.match(r"call in @accumulate.*comes from/net/a/MatMul \(MatMul\)its gradient", x,
                        re.DOTALL) for x in seen)
    assert any("is the gradient of/net/b/MatMul (MatMul)whose forward is" in x for x in seen)
    assert any(re.match(r"kernel \w+_\d+.*members of @.*as loops.*runs in@accumulate, step", x,
                        re.DOTALL) for x in seen)
    assert any("alive from step" in x and "made by" in x for x in seen)
    assert "ONNX  /net/a/MatMul (MatMul)" in text["list"] and "/net/b" not in text["list"]
