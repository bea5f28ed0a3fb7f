"""Kernels as CUDA C, run on this CPU: blocks of threads are fibers (tests/codegen/cuda). The text that a GPU gets has the bits of
the other printers; under sanitizers it has no races and stays inside its buffers; and what is planted there is seen."""
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import team_lines
import unpack
from team_shapes import module_of, shapes

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/groups"))
import blocked_attention  # noqa: E402
SANITIZED = os.environ.get("GRADC_SANITIZED")
SHORT = 16  # rows and tokens: more show nothing new


@pytest.fixture
def compare(build):
    path = build / "tests/compare_kernels"
    if not path.exists():
        pytest.skip(f"{path} is not built")
    return lambda file, *edit, **variables: subprocess.run([path, file, "cuda", *edit], text=True, capture_output=True,
                                                           env=dict(os.environ, **variables))


def page_kernels():
    text = (ROOT / "docs/loop-ir.md").read_text()
    blocks = [b for b in re.findall(r"```\n(.*?)```", text, re.S) if "kernel @" in b]
    return dict(re.findall(r"(?=kernel @(\w+))(kernel @.*?\n}\n)", "".join(blocks), re.S))


@pytest.fixture
def page(tmp_path):
    """page(NAME...): a file with these kernels of docs/loop-ir.md; all of them where none is named."""
    def write(*names):
        kernels = page_kernels()
        file = tmp_path / "page.gir"
        file.write_text("module @page {\n" + "".join(kernels[n] for n in names or kernels) + "}\n")
        return file

    return write


def same(done, least):
    assert done.returncode == 0, done.stdout + done.stderr
    count, differences = map(int, re.search(r"(\d+) kernels, \d+ codes, (\d+) differences", done.stdout).groups())
    assert count >= least and differences == 0 and "SUMMARY" not in done.stderr, done.stderr


def test_page(compare, page):
    """Teams, tiles, copies, and attention by blocks."""
    same(compare(page()), 9)


def test_tensor_cores(compare):
    """bf16, f16 and tf32 from rows and columns, padded and swizzled, of sizes that no fragment divides."""
    same(compare(ROOT / "tests/codegen/tensor_cores.gir"), 5)


def test_conversions(compare):
    same(compare(ROOT / "tests/codegen/conversions.gir"), 7)


def test_fast(compare):
    """On a CPU exp_fast and tanh_fast have the bits of exp and tanh."""
    same(compare(ROOT / "tests/codegen/fast.gir"), 2)


def lower(run, models, folder, name, *dims, target="cuda-sm_90"):
    """The kernels of a model's training programs, lowered for teams of threads, or for another target."""
    loss = json.loads((models / name / "reference.json").read_text())["loss"]
    run("dump", models / name / "model.onnx", "--loss", loss, *dims, "--optimizer=adamw", "--stage=lowered",
        f"--pass-option=multiversion.targets={target}", "-o", folder / "lowered.gir")
    return folder / "lowered.gir"


NAMES = ["mlp_digits"] if SANITIZED else [n for n in unpack.names() if unpack.has_kernels_of_its_own(n)]


@pytest.mark.parametrize("name", NAMES)
def test_models(run, compare, models, tmp_path, name):
    reference = json.loads((models / name / "reference.json").read_text())
    dims = [f"--dim={k}={min(v, SHORT)}" for k, v in (reference.get("dims") or {}).items()]
    same(compare(lower(run, models, tmp_path, name, *dims)), 8)


PLAIN = pytest.mark.skipif(bool(SANITIZED), reason="many kernels: sanitizers run a fifth of the shapes, and a small model")


@PLAIN
@pytest.mark.parametrize("batch, seq", [(1, 1), (3, 13), (1, 127)])
def test_sizes(run, compare, models, tmp_path, batch, seq):
    """One, odd and prime numbers of rows and tokens."""
    same(compare(lower(run, models, tmp_path, "gpt2_mini", f"--dim=batch={batch}", f"--dim=seq={seq}")), 60)


@PLAIN
@pytest.mark.parametrize("name, dims", [("gpt2_mini", ["--dim=batch=1", "--dim=seq=67"]), ("bert_mini", ["--batch=2"])])
def test_loops_of_attention_on_cpus(run, compare, models, tmp_path, name, dims):
    """The same loops in CUDA C: kernels without a team."""
    text = lower(run, models, tmp_path, name, *dims, target="cpu-512").read_text()
    kernels = re.findall(r"^  kernel @attention.*?^  }\n", text, re.M | re.S)
    (tmp_path / "attention.gir").write_text("module @attention {\n" + "".join(kernels) + "}\n")
    same(compare(tmp_path / "attention.gir"), 2)


ATTENTION = [(130, 197, "causal", 64, 64), (67, 67, "window", 40, 8), (64, 128, "none", 128, 128), (3, 70, "bias", 13, 11), (70, 100, "causal", 256, 200),
             (20, 260, "padding", 64, 64)]


@pytest.mark.parametrize("precision", ["f32"] if SANITIZED else ["f32", "bf16", "f16"])
@pytest.mark.parametrize("queries, keys, mask, width, values", ATTENTION[:2] if SANITIZED else ATTENTION)
def test_attention_of_teams(run, compare, tmp_path, monkeypatch, queries, keys, mask, width, values, precision):
    """Blocks of queries and keys, with and without edges, in tiles of all types; the interpreter looks for races, too. The gradient of
    a bias is a kernel of its own."""
    monkeypatch.setattr(blocked_attention, "WIDTH", width)
    monkeypatch.setattr(blocked_attention, "VALUES", values)
    blocked_attention.write(tmp_path / "model.onnx", queries, keys, mask)
    run("dump", "model.onnx", "--loss=mse", "--optimizer=sgd", "--stage=lowered", f"--precision={precision}",
        "--pass-option=multiversion.targets=cuda-sm_90", "-o", "lowered.gir")
    kernels = re.findall(r"^  kernel @attention.*?^  }\n", (tmp_path / "lowered.gir").read_text(), re.M | re.S)
    (tmp_path / "attention.gir").write_text("module @attention {\n" + "".join(kernels) + "}\n")
    if width > 128 and precision == "f32":  # more than the team memory of small GPUs: nodes
        assert not kernels
        return
    assert len(kernels) == (4 if mask == "bias" else 3) and all(" mma " in k for k in kernels)
    same(compare(tmp_path / "attention.gir"), len(kernels))


def test_shapes(run, compare, tmp_path):
    """Rows, columns and axes that no team divides; the smaller ones in the interpreter, which looks for races, too."""
    (tmp_path / "shapes.gir").write_text(module_of(itertools.islice(shapes(), 0, None, 5 if SANITIZED else 1)))
    passes = ",".join(f"{p}{{target=cuda-sm_90}}" for p in ("legalize", "fuse", "lower"))
    run("opt", "shapes.gir", "--stage=train", "--verify-each", f"--passes={passes}", "-o", "lowered.gir")
    same(compare(tmp_path / "lowered.gir"), 30 if SANITIZED else 150)


@pytest.mark.parametrize("what", team_lines.everything())
def test_lines(run, compare, tmp_path, what):
    """Windows, argmax, running sums, sorting and scatters over one, odd, even, prime and no elements."""
    functions = team_lines.everything()[what][::5 if SANITIZED else 1]
    same(compare(team_lines.lower(run, tmp_path, "cuda-sm_90", functions)), len(functions) // 2)


def test_huge_strides(run, compare, tmp_path):
    """Places behind 2^31 and 2^32, of rows and of columns, and beside each other."""
    n = 2**31 + 64
    end = f"slice %x {{start = [0,{n - 96}], stop = [3,{n}], step = [1,1]}} : s8[3,96]"
    body = {"ends": (f"%0 = {end}\n    %1 = neg %0 : s8[3,96]", "s8[3,96]"),
            "turned": (f"%0 = {end}\n    %1 = transpose %0 {{order = [1,0]}} : s8[96,3]", "s8[96,3]"),
            "sums": (f"%0 = {end}\n    %2 = cast %0 {{to = f32}} : f32[3,96]\n    %1 = reduce %2 {{kind = sum, axes = [0]}} : f32[96]", "f32[96]"),
            "rows": (f"%0 = {end}\n    %2 = cast %0 {{to = f32}} : f32[3,96]\n    %1 = reduce %2 {{kind = max, axes = [1]}} : f32[3]", "f32[3]")}
    (tmp_path / "huge.gir").write_text("module @huge {\n" + "".join(
        f"  func @{name}(%x: s8[3,{n}]) -> {y} {{\n    {ops}\n    return %1\n  }}\n" for name, (ops, y) in body.items()) + "}\n")
    passes = ",".join(f"{p}{{target=cuda-sm_90}}" for p in ("legalize", "fuse", "lower"))
    run("opt", "huge.gir", "--stage=train", "--verify-each", f"--passes={passes}", "-o", "lowered.gir")
    same(compare(tmp_path / "lowered.gir", INTEGERS="100"), 4)


@PLAIN
def test_op_samples(compare, build, tmp_path):
    """Kernels of the samples of every op, and of their gradients."""
    if not (build / "tests/ops_test").exists():
        pytest.skip("tests/ops_test is not built")
    subprocess.run([build / "tests/ops_test", "cuda-sm_90", tmp_path / "samples.gir"], check=True)
    same(compare(tmp_path / "samples.gir", INTEGERS="2"), 700)


# ---- faults, planted in the text
def test_an_edit_must_change_something(compare, page):
    done = compare(page("max_sub_exp_sum_div_7"), "s/nothing like this/x/")
    assert done.returncode != 0 and "changes nothing" in done.stderr


def test_wrong_lane_mask(compare, page):
    done = compare(page("softmax"), r"s/0xffffffffu, (v[0-9]+), n/0x0fffffffu, \1, n/")
    assert done.returncode != 0 and "a shuffle from a thread that the mask lacks" in done.stderr


def test_shuffle_in_divergent_code(compare, page):
    done = compare(page("softmax"), r"s/for \(int n = [0-9]+; n > 0/if (threadIdx.x % 2) &/")
    assert done.returncode != 0 and "a warp operation for which not all threads come" in done.stderr


def test_barrier_in_divergent_code(compare, page):
    done = compare(page("transpose"), r"s/^\t__syncthreads/\tif (threadIdx.x != 7) __syncthreads/")
    assert done.returncode != 0 and "a barrier for which not all threads come" in done.stderr


def test_missing_wait(compare, page):
    """A copy that nobody waits for has not come."""
    done = compare(page("product"), r"s/gradc_copy_wait<1>\(\);//")
    assert done.returncode == 1 and "product: output 0 by cuda for harness differs" in done.stdout


@pytest.mark.parametrize("name", ["softmax", "transpose", "product", "attention"])
def test_missing_barrier(compare, page, build, name):
    if build.name != "build-tsan":
        pytest.skip("races are seen by ThreadSanitizer, which this build has not")
    done = compare(page(name), r"s/^\t+__syncthreads\(\);//")
    assert done.returncode != 0
    assert re.search(rf"SUMMARY: ThreadSanitizer: data race \S+/kernels.cpp:\d+ in gradc_{name}", done.stderr), done.stderr


def test_index_one_too_far(compare, page, build):
    if build.name != "build-asan":
        pytest.skip("bounds are seen by AddressSanitizer, which this build has not")
    done = compare(page("max_sub_exp_sum_div_7"), r"s/(y0\[)(v0 \* 256)/\1\2 + 1/")
    assert done.returncode != 0
    assert re.search(r"heap-buffer-overflow.*?#0 \S+ in gradc_max_sub_exp_sum_div_7 \S+/kernels.cpp:\d+", done.stderr, re.S), done.stderr


# ---- names of a model
@pytest.mark.parametrize("name", ["*/ int evil; /*", "a\\", "??/", '"; evil', "*/\\\\*/"])
def test_hostile_names(run, compare, tmp_path, name):
    """What a model calls its nodes stands in comments only, and ends none."""
    text = page_kernels()["max_sub_exp_sum_div_7"].replace('"/h.0/attn/Softmax"', '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"')
    file = tmp_path / "hostile.gir"
    file.write_text(f"module @hostile {{\n{text}}}\n")
    same(compare(file), 1)
