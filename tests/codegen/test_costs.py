"""What --machine predicts: the list of a step, its JSON, and that the bench models keep a GPU busy."""
import json
import re
import subprocess

import costs
import pytest
import reference

MACHINES = {"h100": "cuda-sm_90", "h200": "cuda-sm_90", "a100": "cuda-sm_80", "b200": "cuda-sm_100", "gb200": "cuda-sm_100",
            "gb300": "cuda-sm_100", "l4": "cuda-sm_80", "rtx-4090": "cuda-sm_80"}
OF_KERNELS = {"arguments", "team", "block_threads", "shared_bytes"}
FIELDS = {"predicted_us", "roofline_us", "times", "bound", "utilization", "of_roofline", "measured"}
OF_LAUNCHES = {"op", "stream", "when", "only", "origin", "kernel", "parts", "flops", "bytes"}
# What a launch asks of any machine (Work in cost/cost.h).
WORK = {"class", "math", "call", "instructions", "matrix_flops", "steps", "blocks", "m", "n", "k", "batch", "runs", "alignment", "transposed"}
DIGITS = ("--batch=64", "--loss=cross_entropy", "--optimizer=adamw", "--stage=schedule")


@pytest.fixture(scope="module")
def found(gradc, tmp_path_factory):
    """The predictions of the bench models for an H100."""
    scratch = tmp_path_factory.mktemp("costs")
    return {name: costs.predicted(gradc, name, "h100", scratch) for name in costs.MODELS}


def step_of(said):
    step, = json.loads(said)["steps"]
    return step


def check_step(step, target):
    """Sorted, whole, and each launch by the formula."""
    launches, total = step["launches"], sum(i["total_us"] for i in step["launches"])
    assert [i["total_us"] for i in launches] == sorted((i["total_us"] for i in launches), reverse=True)
    assert sum(i["share"] for i in launches) == pytest.approx(1)
    assert sum(step["streams"].values()) == pytest.approx(total)
    assert step["step_us"] == max(step["streams"]["compute"], step["streams"]["communication"])
    assert step["step_without_overlap_us"] == step["streams"]["compute"] + step["streams"]["communication"]
    assert step["target"] == target
    for launch in launches:
        assert set(launch) - {"group", *OF_KERNELS} == OF_LAUNCHES | FIELDS | WORK | {"total_us", "share"}
        assert launch["share"] == pytest.approx(launch["total_us"] / total)
        assert launch["total_us"] == pytest.approx(launch["times"] * launch["predicted_us"])
        busy = launch["roofline_us"] / launch["of_roofline"]
        assert 0 < launch["predicted_us"] - busy < 100 and 0 < launch["of_roofline"] <= 1 and 0 < launch["utilization"] <= 1
        assert launch["bound"] in {"compute", "memory", "cache", "latency", "host", "link"}
        assert not (launch["measured"] and launch["class"] in ("convolution", "host copy", "collective"))


@pytest.mark.parametrize("machine, target", MACHINES.items())
def test_each_machine(run, models, machine, target):
    said = run("dump", models / "mlp_digits/model.onnx", *DIGITS, "--format=json", f"--machine={machine}").stdout
    root = json.loads(said)
    assert root["machine"]["name"] == machine and root["machine"]["ranks"] == 1 and root["machine"]["target"] == target
    check_step(step_of(said), target)
    loops = [x["measured"] for x in step_of(said)["launches"] if x["class"] == "loops"]
    assert loops and all(measured == (machine in ("h100", "h200")) for measured in loops)
    for program in root["programs"]:
        assert program["target"] == target
        assert all(set(i) - {"group", *OF_KERNELS} == OF_LAUNCHES | FIELDS for i in program["instructions"])


def test_instructions_add_up_to_the_step(run, models):
    """Those of accumulate and update, each as often as one micro-batch runs it."""
    root = json.loads(run("dump", models / "mlp_digits/model.onnx", *DIGITS, "--format=json", "--machine=h100").stdout)
    instructions = [i for p in root["programs"] if p["role"] in ("accumulate", "update") for i in p["instructions"]]
    assert sum(i["times"] * i["predicted_us"] for i in instructions) == pytest.approx(sum(root["steps"][0]["streams"].values()))
    assert all(i["times"] == 0 for i in instructions if i["when"] == "later" or "ranks" in i["only"])
    first = [i for i in instructions if i["when"] == "first"]
    assert first and all(i["times"] == 1 for i in first)


def test_the_list_is_that_of_the_json(run, models):
    of_model = ("dump", models / "mlp_digits/model.onnx", *DIGITS, "--machine=a100")
    step = step_of(run(*of_model, "--format=json").stdout)
    text = run(*of_model).stdout
    head = 'training step "batch=64" of 64 rows, predicted for a100: NVIDIA A100 SXM4 80 GB, 1 rank; loop kernels of target cuda-sm_80; no launch was measured\n'
    assert text.startswith(head)
    rows = re.findall(r"^ +([\d.]+) +([\d.]+)% +(\d+) +([\d.]+) +(\d+)% (\w+) +(\d+) +[\d.]+ +[\d.]+  (\S+)(?: (.*))?$", text, re.M)
    assert len(rows) == len(step["launches"])
    for row, launch in zip(rows, step["launches"]):
        assert float(row[0]) == pytest.approx(launch["total_us"], abs=0.051)
        assert float(row[1]) == pytest.approx(100 * launch["share"], abs=0.0051)
        assert (int(row[2]), row[5], int(row[6])) == (launch["times"], launch["bound"], launch["parts"])
        assert float(row[4]) == pytest.approx(100 * launch["of_roofline"], abs=0.51)
        assert row[7] == (launch["kernel"] or launch["op"])
    assert f'step: {step["step_us"] / 1e3:.3f} ms, {64e6 / step["step_us"]:.0f} rows/s\n' in text


def test_an_executable_says_the_same_of_its_own_loops(run, models, tmp_path):
    """Those for a CPU, unless they are for the machine's target."""
    model = models / "mlp_digits/model.onnx"
    run("compile", model, "-o", "cpu", *DIGITS[:-1], "--target=cpu:x86-64-v3")
    run("compile", model, "-o", "gpu", *DIGITS[:-1], "--target=cpu:x86-64-v3", "--pass-option=multiversion.targets=cpu-256+cuda-sm_90")
    for path, target in (("cpu", "cpu-256"), ("gpu", "cuda-sm_90")):
        check_step(step_of(run("dump", path, "--stage=schedule", "--format=json", "--machine=h100").stdout), target)
    of_model = run("dump", model, *DIGITS, "--machine=h100").stdout
    rows = [re.sub(r"  [a-z]\w*_\d+(_y\d)? ", " ", line, count=1) for line in of_model.splitlines()]
    assert [re.sub(r"  [a-z]\w*_\d+(_y\d)? ", " ", line, count=1) for line in run("dump", "gpu", "--machine=h100", "--stage=schedule").stdout.splitlines()] == rows


def test_a_target_that_is_given_stays(run, models):
    said = run("dump", models / "mlp_digits/model.onnx", *DIGITS, "--machine=h100", "--target=cpu:x86-64-v3").stdout
    assert "loop kernels of target cpu-256\n" in said


def test_each_binding_is_a_step(run, models):
    said = run("dump", models / "gpt2_mini/model.onnx", "--dim=batch=2", "--dim=seq=32,64", "--loss=cross_entropy",
               "--stage=schedule", "--format=json", "--machine=h100").stdout
    steps = json.loads(said)["steps"]
    assert [(s["rows"], s["tokens"]) for s in steps] == [(2, 64), (2, 128)]
    assert all(any("optimizer" in i["origin"] for i in s["launches"]) for s in steps)  # whose update is one for both


def test_without_a_loss_it_is_the_forward_pass(run, models):
    said = run("dump", models / "mlp_digits/model.onnx", "--batch=64", "--stage=schedule", "--machine=h100").stdout
    assert said.startswith("forward ")


@pytest.mark.parametrize("link, rate, hop", [("", 370e9, 3.4), (",link=400G", 50e9, 9.6)])
def test_ranks_communicate(run, models, link, rate, hop):
    """A ring of 8: 14 hops, in which 7/8 of the gradients go out twice."""
    of_model = ("dump", models / "mlp_digits/model.onnx", *DIGITS)
    step = step_of(run(*of_model, "--format=json", f"--machine=h100,ranks=8{link}").stdout)
    reduces = [i for i in step["launches"] if i["op"] == "all_reduce"]
    assert reduces and all(i["stream"] == "communication" for i in reduces)
    for i in reduces:
        assert i["predicted_us"] == pytest.approx(8.4 + 14 * hop + 1e6 * 1.75 * i["bytes"] / rate)
    assert not any("ordered" in i["only"] or "staged" in i["only"] for i in step["launches"])
    assert step["rows"] == 8 * 64
    assert "where communication is hidden" in run(*of_model, f"--machine=h100,ranks=8{link}").stdout


@pytest.mark.parametrize("options, message", [
    (("--stage=schedule", "--machine=b2000"), "--machine=b2000: no such machine\n\thint: there are h100, h200, a100, b200, gb200, gb300, l4, rtx-4090"),
    (("--machine=h100",), "--machine=h100: needs --stage=schedule"),
    (("--stage=memory", "--machine=h100"), "--machine=h100: needs --stage=schedule"),
    (("--stage=schedule", "--format=html", "--machine=h100"), "needs --format=text or --format=json"),
    (("--stage=schedule", "--machine=h100,ranks=9"), "more ranks than the machine's own link joins\n\thint: the link joins 8 GPUs; link=400G"),
    (("--stage=schedule", "--machine=h100,ranks=0"), "ranks: need a whole number from 1 to 65536"),
    (("--stage=schedule", "--machine=h100,ranks=many"), "ranks: need a whole number"),
    (("--stage=schedule", "--machine=h100,link=400"), "link: need gigabits a second, as 400G"),
    (("--stage=schedule", "--machine=h100,link=-1G"), "link: need gigabits a second"),
    (("--stage=schedule", "--machine=h100,rank=2"), "only ranks=N and link=RATE may follow the name"),
])
def test_what_is_refused(run, models, options, message):
    assert message in run("dump", models / "mlp_digits/model.onnx", "--batch=8", *options, exit=2).stderr


def test_text_has_no_tables(run, tmp_path):
    (tmp_path / "m.gir").write_text("module @m {\n}\n")
    assert "needs a model or an executable" in run("dump", "m.gir", "--stage=schedule", "--machine=h100", exit=2).stderr


# ---- parts
def test_bench_models_keep_a_gpu_busy(found):
    """`.venv/bin/python tests/codegen/costs.py` prints the same lists, to mend starved.json with."""
    for name, root in found.items():
        check_step(root["steps"][0], "cuda-sm_90")
    unexplained, useless = costs.judge({name: costs.starved(root["steps"][0]) for name, root in found.items()},
                                       json.loads(costs.STARVED.read_text()))
    assert not unexplained, f"too few parts for an H100, and no reason in {costs.STARVED.name}"
    assert not useless, f"{costs.STARVED.name} explains what does not exist"


def launch(origin, share, utilization, op="run"):
    return {"op": op, "origin": origin, "share": share, "utilization": utilization}


def test_what_is_starved():
    step = {"launches": [launch('"a_1"', 0.5, 0.5), launch('"a_2"', 0.2, 0.4), launch('"b"', 0.5, 0.6), launch('"c"', 0.0009, 0.1),
                         launch('"d"', 0.5, 0.1, "copy")]}
    assert costs.starved(step) == {'"a_#"': 0.4}


@pytest.mark.parametrize("patterns, unexplained, useless", [
    ({"m": ["a"]}, {}, []), ({"m": ["?"]}, {}, []), ({}, {"m": {"a": 0.4}}, []), ({"n": ["a"]}, {"m": {"a": 0.4}}, ["n: a"]),
    ({"m": ["*", "b"]}, {}, ["m: b"])])
def test_what_the_list_explains(patterns, unexplained, useless):
    assert costs.judge({"m": {"a": 0.4}, "n": {}}, [{"why": "", "kernels": patterns}]) == (unexplained, useless)


def test_reference_models_are_too_small(gradc, models, run):
    """To fill a GPU: what costs.py says of them. (Most of lstm_chars is launches: its loops have 40 trips.)"""
    for name in reference.NAMES:
        said = run("dump", models / name / "model.onnx", *reference.compile_options(name, "f32"), "--stage=schedule",
                   "--format=json", "--machine=h100").stdout
        assert all(step["step_us"] < 2000 for step in json.loads(said)["steps"])


def test_the_example_is_of_the_page():
    """Each line of the list in docs/cost-model.md."""
    listed = re.search(r"```\n\$ gradc dump gpt2_124m.*?\n\n(.*?)```", (costs.PAGE.parents[1] / "cost-model.md").read_text(), re.S)[1]
    lines = [line for line in listed.splitlines() if line != "..."]
    assert len(lines) == 4 and all(f"\n{line}\n" in costs.PAGE.read_text() for line in lines)


def test_the_page_is_what_is_predicted(gradc, tmp_path):
    assert costs.PAGE.read_text() == costs.page(gradc, tmp_path), "`.venv/bin/python tests/codegen/costs.py --page` writes it"


def test_what_ranks_exchange_is_hidden(gradc, tmp_path):
    """ZeRO-3 on eight ranks with 400 Gbit/s: of gpt2_124m's step nothing costs time but the gather of the first unit, its embedding,
    with what waits behind that, and the reduction of the last one with the norm. Between these, communication is under computation."""
    step = json.loads(costs.dump(gradc, "gpt2_124m", "h100,ranks=8,link=400G", tmp_path, "--data-parallel=zero3", "--precision=tf32",
                                 "--format=json"))["steps"][0]["timeline"]
    told = [c for c in step["communication"] if c["exposed_us"] > 1]
    seen = [(c["collective"] if "collective" in c else c["op"], c["begin_us"]) for c in told]
    first, last = min(c["end_us"] for c in told), max(c["begin_us"] for c in told)
    assert len(told) <= 6 and len(step["communication"]) > 35, seen
    early = [c for c in told if c["begin_us"] <= first]
    late = [c for c in told if c["begin_us"] > first]
    assert len(early) == 2 and all(c["begin_us"] > 0.9 * step["step_us"] for c in late) and last > 0.9 * step["step_us"]
    assert sum(c["exposed_us"] for c in told) < 0.09 * step["step_us"]


def resnet50(gradc, tmp_path, *options):
    return json.loads(costs.dump(gradc, "resnet50", "h100", tmp_path, "--format=json", *options))["steps"][0]


@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_passes_for_batch_norms_and_layouts_pay(gradc, tmp_path, precision):
    """resnet50 without each of them takes longer, and has more launches with separate sums."""
    step = resnet50(gradc, tmp_path, f"--precision={precision}")
    apart, moved = (resnet50(gradc, tmp_path, f"--precision={precision}", f"--disable={name}") for name in ("merge_sums", "layouts"))
    assert step["step_us"] < 0.93 * apart["step_us"] and step["step_us"] < 0.9 * moved["step_us"]
    assert sum(i["times"] for i in step["launches"]) < 0.95 * sum(i["times"] for i in apart["launches"])


def test_resnet50_in_16_bits(gradc, tmp_path):
    """A step takes less time than in tf32. At most 12 kernels move channels: copies, and kernels that read a transpose."""
    assert resnet50(gradc, tmp_path, "--precision=bf16")["step_us"] < 0.75 * resnet50(gradc, tmp_path, "--precision=tf32")["step_us"]
    words = [*costs.TRAINS, *costs.MODELS["resnet50"], "--precision=bf16", "--stage=fused", "--target=cuda:sm_90"]
    done = subprocess.run([gradc, "dump", "resnet50.onnx", *words], cwd=tmp_path, text=True, capture_output=True, check=True)
    bodies = dict(re.findall(r"^  (?:func|fused) @([\w.]+)\(.*\n((?:    .*\n)*)", done.stdout, re.M))
    calls = re.findall(r"callee = @([\w.]+)", bodies["accumulate"])
    assert len(calls) > 500
    assert sum(bool(re.search(r" = (transpose|copy) ", bodies[name])) for name in calls) <= 12
