"""The patches that docs/extending.md explains: each applies to this tree, builds, and works by the
command line. All are applied to one copy of the sources, built once."""
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import pytest

ROOT = Path(__file__).resolve().parents[2]
PATCHES = sorted(Path(__file__).parent.glob("*.patch"))
SKIP = re.compile(r"tests/models/(?!mlp_digits/model\.onnx$).*(?<!\.py)$|tests/fuzz/corpus/|examples/|docs/pictures/")


def execute(*command, **options):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=300,
                          **options)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def copy_sources(target):
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT,
                           check=True, capture_output=True, text=True).stdout.split("\0")
    for name in names:
        if name and not SKIP.match(name) and (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def schema(build):
    """onnx.proto as the build under test found it."""
    given = re.search(r"^ONNX_PROTO:\w+=(.+)$", (build / "CMakeCache.txt").read_text(), re.M)
    found = sorted(ROOT.glob(".venv/lib/python3*/site-packages/onnx/onnx.proto"))
    return given[1] if given else found[0]


@pytest.fixture(scope="module")
def tree(build, tmp_path_factory):
    """The patched copy, built: asserts on, the verifier after every pass."""
    root = tmp_path_factory.mktemp("extended")
    copy_sources(root)
    for patch in PATCHES:
        execute("git", "apply", patch, cwd=root)
    execute("cmake", "-G", "Ninja", "-B", "build", "-DCMAKE_BUILD_TYPE=Debug",
            f"-DONNX_PROTO={schema(build)}", cwd=root)
    execute("cmake", "--build", "build", "--target", "gradc", "accuracy", "executable_help",
            "ops_page", "runtime_device_test", "compare_kernels", "ops_test", cwd=root)
    return root


@pytest.fixture(scope="module")
def extended(tree):
    return tree / "build/gradc"


def files_of(patch):
    return re.findall(r"^\+\+\+ b/(\S+)", patch.read_text(), re.M)


@pytest.mark.parametrize("patch", PATCHES, ids=[p.stem for p in PATCHES])
def test_the_page_counts_the_files(patch):
    """Its table says which files a patch touches: what is added, what gets a line."""
    row = re.search(rf"^\| `{patch.name}` \|(.*)\|$", (ROOT / "docs/extending.md").read_text(), re.M)
    assert sorted(re.findall(r"`(\S+/\S+)`", row[1])) == sorted(files_of(patch))
    assert len(files_of(patch)) == {"op_asinh": 5, "group_silu": 4}.get(patch.stem, 2)


@pytest.mark.parametrize("script", ["check-folders", "check-ops", "check-machines"])
def test_the_rules_of_the_house_hold(tree, script):
    execute(sys.executable, tree / "scripts" / script, tree)


def folded(extended, path, op, value):
    path.write_text("func @forward() -> f64[2] {\n"
                    f"  %0 = constant {{value = f64[2] [{value}, 3]}} : f64[2]\n"
                    f"  %1 = {op} %0 : f64[2]\n"
                    "  return %1\n"
                    "}\n")
    return execute(extended, "opt", path, "--passes=simplify")


def test_op(extended, tmp_path):
    assert "f64[2] [-8.0, 27.0]" in folded(extended, tmp_path / "a.gir", "cube", -2)
    assert "f64[2] [-0.881373587019543, " in folded(extended, tmp_path / "a.gir", "asinh", -1)


@pytest.mark.parametrize("op", ["cube", "asinh"])
def test_the_tests_of_an_op(tree, op):
    """Its text, its gradient against differences, its kernel and its C against its eval, its facts."""
    said = execute(tree / "scripts/test-op", op, cwd=tree)
    assert "samples: " in said and "failed" not in said


def pytest_in(tree, models, *arguments):
    return execute(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments, cwd=tree,
                   env={**os.environ, "GRADC_BUILD": "build", "GRADC_MODELS": str(models)})


def test_accuracy_of_a_scalar_function(tree, models):
    assert " passed" in pytest_in(tree, models, "tests/accuracy", "-k", "asinh or promised")


def test_the_tests_of_the_command_line_take_what_is_added(tree, models):
    """Nothing is listed in a test that a further row breaks; `make docs` writes the pages anew."""
    (tree / "docs/ops.md").write_text(execute(tree / "build/tests/ops_page"))
    (tree / "docs/gradc.1").write_text(execute(sys.executable, tree / "scripts/man-page",
                                               tree / "build"))
    execute(sys.executable, tree / "scripts/page-tables", tree / "build")
    # Who adds a row writes its line in the room's README and in the pages, and values of a new option in test_cli; the copy lacks pictures and examples.
    by_hand = ["tables_have_every_option", "readme_of_a_room", "table_of_", "picture_of", "lead_somewhere"]
    pytest_in(tree, models, "tests/test_pipeline.py", "tests/test_cli.py", "tests/test_docs.py", "-k", " and ".join(f"not {name}" for name in by_hand))


def test_pass(extended, models, tmp_path):
    text = tmp_path / "twins.gir"
    text.write_text("func @twins(%x: f32[4], %y: f32[4]) -> f32[4] {\n"
                    "  %0 = add %x, %y : f32[4]\n"
                    "  %1 = add %y, %x : f32[4]\n"
                    "  %2 = div %0, %1 : f32[4]\n"
                    "  return %2\n"
                    "}\n")
    lines = [line.split()[0] for line in execute(extended, "passes").splitlines()]
    assert lines[lines.index("commute") + 2] == "simplify"  # its option stands between
    oldest, newest = "%1 = add %x, %y", "%0 = add %y, %x"
    assert oldest not in execute(extended, "opt", text, "--passes=")
    assert oldest in execute(extended, "opt", text, "--passes=commute")
    assert newest in execute(extended, "opt", text, "--passes=commute{newest-first}")
    dump = [extended, "dump", models / "mlp_digits/model.onnx", "--loss=cross_entropy",
            "--dump-after=commute"]
    assert "; after commute" not in execute(*dump)
    oldest = execute(*dump, "--enable=commute", "--after=simplify")
    newest = execute(*dump, "--enable=commute", "--after=simplify",
                     "--pass-option=commute.newest-first=true")
    assert "; after commute" in oldest and "; after commute" in newest and oldest != newest
    # Its option of the command line asks for it.
    assert execute(*dump, "--newest-first=on", "--after=simplify") == newest
    assert execute(*dump, "--newest-first=off", "--after=simplify") == oldest


def test_onnx_operator(extended, tmp_path):
    """Its facts are read: a single number that is a weight is trained, whatever its name."""
    shape = [2, 1]
    ports = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in ("x", "y")]
    node = onnx.helper.make_node("BiasAdd", ["x", "b", "x"], ["y"], domain="com.microsoft")
    bias = onnx.numpy_helper.from_array(np.float32([1]), "b")
    graph = onnx.helper.make_graph([node], "g", ports[:1], ports[1:], [bias])
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in [("", 17), ("com.microsoft", 1)]]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    assert re.search(r"^com\.microsoft\.BiasAdd +1 -", execute(extended, "ops"), re.M)
    said = json.loads(execute(extended, "check", tmp_path / "m.onnx", "--json"))
    assert [(p["name"], p["kind"]) for p in said["parameters"]] == [("b", "trainable")]
    assert len(re.findall(" = add ", execute(extended, "dump", tmp_path / "m.onnx", "--stage=import"))) == 2


def test_recipe(extended, models):
    """Convolutions stay f32, matrix products are bf16."""
    assert re.search(r"--precision=\S*\bdots\b", execute(extended, "compile", "--help"))
    said = execute(extended, "dump", models / "cnn_mnist/model.onnx", "--loss=cross_entropy", "--batch=4", "--precision=dots", "--stage=train")
    types = {op: set(re.findall(rf" = {op} .*? : (\w+)\[", said)) for op in ("conv", "conv_grad_weight", "dot")}
    assert types["conv"] == types["conv_grad_weight"] == {"f32"} and "bf16" in types["dot"]


def test_state_kind(extended, models, tmp_path):
    (tmp_path / "m.gir").write_text("state @n : s32[] averages saved\n")
    done = subprocess.run([extended, "opt", tmp_path / "m.gir", "--passes="], capture_output=True, text=True)
    assert done.returncode == 3 and "is of kind averages, which has the type s64[]" in done.stderr
    folder, exe = models / "mlp_digits", tmp_path / "train"
    execute(extended, "compile", folder / "model.onnx", "-o", exe, "--batch=32", "--ema=0.9")
    states = json.loads(execute(exe, "--info", "--json"))["states"]
    assert [(s["dtype"], s["shape"]) for s in states if s["kind"] == "averages"] == [("s64", [])]


def train(extended, models, tmp_path, *options):
    """(first, last) evaluation loss of a short training, on the device of the patch."""
    folder, exe = models / "mlp_digits", tmp_path / "train"
    execute(extended, "compile", folder / "model.onnx", "-o", exe, "--batch=32", *options)
    data = [f"{name}={folder}/{name}.npy" for name in ("input", "labels")]
    said = execute(exe, *[w for d in data for w in ("--data", d, "--eval-data", d)], "--epochs=2",
                   "--device=guard", "--progress=plain", "--lr=0.001")
    return tuple(map(float, re.search(r"eval loss (\S+) -> ([0-9.]+)", said).groups()))


def test_optimizer_loss_and_device(tree, extended, models, tmp_path):
    said = execute(extended, "compile", "--help")
    losses = re.sub(r"\s+", "", said[said.index("--loss="):said.index("--label-smoothing")])
    assert re.search(r"\bfocal\b", losses) and "gamma=" in said
    assert re.search(r"^  signum ", said, re.M)
    entropy, none, some, default = (
        train(extended, models, tmp_path, f"--loss={loss}", "--optimizer=signum")
        for loss in ("cross_entropy", "focal,gamma=0", "focal,gamma=0.5", "focal"))
    assert none == pytest.approx(entropy, rel=1e-4)
    assert default[0] < some[0] < none[0]
    for first, last in (none, some, default):
        assert last < 0.5 * first
    assert "guard" in execute(tree / "build/tests/runtime_device_test")


def test_hyperparameter(extended, models, tmp_path):
    """An option of the executable with a range, a setting when the model is compiled, and what a resumed run is told."""
    folder, exe = models / "mlp_digits", tmp_path / "train"
    run = [exe, *(f"--data={name}={folder}/{name}.npy" for name in ("input", "labels")), "--steps=1"]

    def weight(optimizer, *options, lr=0.5):
        execute(extended, "compile", folder / "model.onnx", "-o", exe, "--batch=32", f"--optimizer={optimizer}")
        execute(*run, f"--export={tmp_path}/out.onnx", f"--save={tmp_path}/{optimizer}", f"--lr={lr}", *options)
        model = onnx.load(tmp_path / "out.onnx").graph.initializer
        return next(onnx.numpy_helper.to_array(t) for t in model if t.name == "0.weight").astype(float)

    # In the first step m = (1 - momentum) g, so that the step is (1 - nu momentum) times that of gradient descent.
    still, plain = weight("qhm,nu=0.5", lr=0), weight("sgd")
    for nu, *options in (0, "--nu=0"), (0.25, "--nu=0.25"), (0.5,):
        assert np.allclose(weight("qhm,nu=0.5", *options) - still, (1 - 0.9 * nu) * (plain - still), atol=1e-7, rtol=1e-5)
    assert '"nu"' in next((tmp_path / "qhm,nu=0.5").rglob("*.json")).read_text()
    refused = subprocess.run([*run, "--nu=1"], capture_output=True, text=True)
    assert refused.returncode == 2 and "--nu=1" in refused.stderr


def test_a_loss_with_an_option_in_text(extended, tmp_path):
    """As the options of the pass, which replays and reproducers write."""
    (tmp_path / "f.gir").write_text("func @forward(%x: f32[4,3] is input 0) -> f32[4,3] "
                                    "role forward {\n  return %x\n}\n")
    said = execute(extended, "opt", tmp_path / "f.gir", "--passes=loss{kind=focal,settings=gamma=0.25}")
    assert "0.25" in said


@pytest.mark.parametrize("op", ["dot", "conv_grad_input", "reduce", "reverse", "concat", "pad", "gather", "scatter"])
def test_kernels_for_every_target(tree, op):
    """Against the op's eval, gradients as well. The interpreter ends a kernel in which two members of a team meet."""
    said = execute(tree / "build/tests/ops_test", env={**os.environ, "OP": op})
    assert "[  PASSED  ] 7 test(s)" in said and "FAILED" not in said


def test_members_share_no_byte(extended, tmp_path):
    """Elements of 4 bits lie two in a byte: one member stores them all."""
    (tmp_path / "b.gir").write_text("func @f(%x: s4[3]) -> s4[12,3] {\n"
                                    "  %0 = broadcast %x {shape = [12,3], axes = [1]} : s4[12,3]\n"
                                    "  return %0\n"
                                    "}\n")
    passes = ",".join(f"{p}{{target=quad}}" for p in ("legalize", "fuse", "lower"))
    said = execute(extended, "opt", tmp_path / "b.gir", f"--passes={passes}", "--verify-each")
    assert "kernel @broadcast_0" in said and "team" not in said
    wide = (tmp_path / "b.gir").read_text().replace("s4", "s8")
    (tmp_path / "b.gir").write_text(wide)
    said = execute(extended, "opt", tmp_path / "b.gir", f"--passes={passes}", "--verify-each")
    assert re.search(r"team (v\d+) < 8 {\s+for (v\d+) < 2 {\s+for v\d+ < min\(1, -8\*\2 \+ -1\*\1 \+ 12\) {\s+for v\d+ < 3 {", said)


def few_rows(models, name, folder):
    """Options of `gradc grad` for two rows of a model's data, of 12 tokens where rows are tokens."""
    reference = json.loads((models / name / "reference.json").read_text())
    inputs = [(i["name"], i["file"]) for i in reference["inputs"]]
    options = ["--loss", reference["loss"]]
    for key, file in [*inputs, ("labels", reference["labels"]["file"])]:
        rows = np.load(models / name / file)[:2]
        np.save(folder / file, rows[:, :12] if "seq" in reference["dims"] else rows)
        options += ["--input", f"{key}={folder / file}"]
    return options


@pytest.mark.parametrize("name, reduces", [("mlp_digits", "max f32 team 8"), ("gpt2_mini", "add f32 team 8"),
                                           ("cnn_mnist", "add f32 team 8")])
def test_target(tree, extended, models, tmp_path, name, reduces):
    """A model's kernels have teams; the interpreter, C and LLVM make the same bits of them; the gradients of what the loops
    compute are those of the model."""
    options = [models / name / "model.onnx", *few_rows(models, name, tmp_path)]
    loss = options[1:3]
    dims = {"gpt2_mini": ["--dim=batch=2", "--dim=seq=12"]}.get(name, ["--batch=2"])
    execute(extended, "dump", options[0], *loss, *dims, "--stage=train", "-o", tmp_path / "train.gir")
    passes = ",".join(f"{p}{{target=quad}}" for p in ("ungroup", "legalize", "fuse", "lower"))
    execute(extended, "opt", tmp_path / "train.gir", "--stage=train", f"--passes={passes}", "-o", tmp_path / "m.gir")
    kernels = re.findall(r"^  kernel (.*?)^  }", (tmp_path / "m.gir").read_text(), re.M | re.S)
    teams = [k for k in kernels if re.search(r" team (8|2x4) .*team v\d+ < [248] [({]", k, re.S)]
    assert len(teams) >= 0.85 * len(kernels)
    assert any(reduces in k for k in kernels)
    said = execute(tree / "build/tests/compare_kernels", tmp_path / "m.gir")
    assert re.search(rf"^{len(kernels)} kernels, \d+ codes, 0 differences", said, re.M), said
    ways = {"tensors": [], "loops": ["--stage=lowered", "--pass-option=multiversion.targets=quad"]}
    for folder, how in ways.items():
        execute(extended, "grad", *options, "--engine=interp", "--output-dir", tmp_path / folder, *how)
    gradients = [{p.name: np.load(p) for p in (tmp_path / folder).glob("*.npy")} for folder in ways]
    assert gradients[0].keys() == gradients[1].keys() and len(gradients[0]) > 6
    most = max(np.abs(g).max() for key, g in gradients[0].items() if key.startswith("grad."))
    for key, g in gradients[0].items():
        np.testing.assert_allclose(gradients[1][key], g, rtol=2e-4, atol=2e-6 * most, err_msg=key)


@pytest.fixture
def silu(tmp_path):
    """A model with x sigmoid(x) and x / (1 + exp(-x)), and its data as options."""
    random, make = np.random.default_rng(0), onnx.helper.make_node
    nodes = [make("MatMul", ["x", "a"], ["b"]), make("Sigmoid", ["b"], ["c"]), make("Mul", ["c", "b"], ["d"], "act1"),
             make("MatMul", ["d", "e"], ["f"]), make("Neg", ["f"], ["g"]), make("Exp", ["g"], ["h"]),
             make("Add", ["one", "h"], ["i"]), make("Div", ["f", "i"], ["j"], "act2"), make("MatMul", ["j", "k"], ["y"])]
    weights = {name: random.standard_normal(shape).astype(np.float32) / 4
               for name, shape in {"a": (20, 67), "e": (67, 45), "k": (45, 5)}.items()}
    weights["one"] = np.float32(1)
    ports = [onnx.helper.make_tensor_value_info(*port) for port in (("x", 1, ["batch", 20]), ("y", 1, ["batch", 5]))]
    graph = onnx.helper.make_graph(nodes, "g", ports[:1], ports[1:],
                                   [onnx.numpy_helper.from_array(w, name) for name, w in weights.items()])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8),
              tmp_path / "silu.onnx")
    np.save(tmp_path / "x.npy", random.standard_normal((32, 20), np.float32))
    np.save(tmp_path / "labels.npy", random.integers(0, 5, 32))
    return tmp_path / "silu.onnx", [f"{name}={tmp_path / name}.npy" for name in ("x", "labels")]


def test_a_group_is_one_kernel(extended, silu):
    """Both spellings, by name in every dump; a target without a strategy has the nodes instead."""
    dump = [extended, "dump", silu[0], "--loss=cross_entropy", "--batch=8"]
    assert re.search(r"^    silu +x sigmoid\(x\)$", execute(extended, "passes"), re.M)
    said = execute(*dump, "--after=recognize")
    assert re.findall(r"call %\d+ \{callee = @(\S+)\}.* loc (\S+)", said.split("func @forward")[1].split("return")[0]) == [
        ("silu", '"act1"'), ("silu.2", '"act2"')]
    assert len(re.findall(r"^  group silu @silu(?:\.2)?\(%x", said, re.M)) == 2
    assert re.search(r"^  fused silu @\S+\(", execute(*dump, "--stage=fused"), re.M)
    kernels = re.findall(r"^  kernel @(\w+?)_\d+\(", execute(*dump, "--stage=lowered"), re.M)
    assert kernels.count("silu") == 2
    opened = execute(*dump, "--stage=lowered", "--pass-option=multiversion.targets=quad")
    assert "@silu" not in opened and "sigmoid_mul" in opened


@pytest.mark.parametrize("engine", ["interp", "compiled"])
def test_the_gradient_of_a_group_is_that_of_its_body(extended, silu, tmp_path, engine):
    results = []
    for how in [], ["--disable=recognize"]:
        execute(extended, "grad", silu[0], "--loss=cross_entropy", "--batch=32", "--precision=f64", f"--engine={engine}",
                *(f"--input={d}" for d in silu[1]), "--output-dir", tmp_path / "out", *how)
        results.append({p.name: np.load(p) for p in (tmp_path / "out").glob("*.npy")})
    assert results[0].keys() == results[1].keys() and len(results[0]) == 4
    for key, g in results[1].items():
        np.testing.assert_allclose(results[0][key], g, rtol=0, atol=1e-12, err_msg=key)
        assert key == "loss.npy" or np.abs(g).max() > 1e-3


def test_a_group_trains_as_its_nodes(extended, silu, tmp_path):
    losses = []
    for how in [], ["--disable=recognize"]:
        execute(extended, "compile", silu[0], "-o", tmp_path / "train", "--loss=cross_entropy", "--batch=16", *how)
        execute(tmp_path / "train", *(f"--data={d}" for d in silu[1]), "--epochs=20", "--lr=0.01", "--log", tmp_path / "log",
                "--progress=plain")
        losses.append([json.loads(line)["loss"] for line in (tmp_path / "log").read_text().splitlines()])
    assert len(losses[0]) == 40 and losses[0][-1] < 0.5 * losses[0][0]
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_a_program_of_the_target_trains(extended, models, tmp_path):
    """C and LLVM run the members in order: an executable computes with the target's kernels on this machine."""
    quad, own = (train(extended, models, tmp_path, *options)
                 for options in (["--pass-option=multiversion.targets=quad"], []))
    assert quad == pytest.approx(own, rel=1e-3) and quad[1] < 0.5 * quad[0]
    said = execute(tmp_path / "train", "--info")
    assert "cpu-" in said


def test_an_op_without_a_strategy_is_named(tree, tmp_path):
    """Before anything is compiled: the row of a kind that the op has none for."""
    source = tree / "codegen/kernels/sort.c"
    text = source.read_text()
    assert ".kinds = ON_EVERY_KIND" in text
    try:
        source.write_text(text.replace(".kinds = ON_EVERY_KIND", ".kinds = ON(CPU)"))
        execute("cmake", "--build", "build", "--target", "gradc", cwd=tree)
        done = subprocess.run([tree / "build/gradc", "ops"], capture_output=True, text=True)
        assert done.returncode != 0 and 'op "sort": no strategy takes every node for target cuda-sm_80' in done.stderr
    finally:
        source.write_text(text)
        execute("cmake", "--build", "build", "--target", "gradc", cwd=tree)
