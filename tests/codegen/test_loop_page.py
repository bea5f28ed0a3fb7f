"""Every kernel that docs/loop-ir.md shows: the checker accepts it, the interpreter runs it with the results that numpy has,
and C (and LLVM, where it prints the kernel) have the interpreter's bits."""
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs/loop-ir.md"
KERNELS = "".join(block for block in re.findall(r"```\n(.*?)```", PAGE.read_text(), re.S) if "kernel @" in block)


@pytest.fixture
def kernel(build, tmp_path):
    """kernel(NAME, INPUT..., drop=LINE): what a kernel of the page makes of its inputs, without lines like that."""
    program = build / "tests/run_kernel"
    if not program.exists():
        pytest.skip(f"{program} is not built")
    params = {name: re.findall(r"(\w+): (in|out) f32\[([\d,]+)\]", line)
              for name, line in re.findall(r"kernel @(\w+)(\(.*)", KERNELS)}

    def run_by(how, name, inputs):
        files, outputs = [], []
        given = iter(inputs)
        for buffer, kind, dims in params[name]:
            files.append(tmp_path / f"{buffer}.bin")
            shape = [int(n) for n in dims.split(",")]
            if kind == "in":
                np.ascontiguousarray(next(given), np.float32).reshape(shape).tofile(files[-1])
            else:
                outputs.append((files[-1], shape))
        done = subprocess.run([program, tmp_path / "page.gir", name, how, *files], text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
        return [np.fromfile(file, np.float32).reshape(shape) for file, shape in outputs]

    def run(name, *inputs, drop=""):
        text = re.search(rf"kernel @{name}\(.*?\n}}\n", KERNELS, re.S)[0]
        text = "".join(line + "\n" for line in text.splitlines() if not drop or line.strip() != drop)
        (tmp_path / "page.gir").write_text(f"module @page {{\n{text}}}\n")
        results = run_by("interpreter", name, inputs)
        for printer in ["c"] if re.search(r"\b(tile|copy)\b", text) else ["c", "llvm"]:
            for got, want in zip(run_by(printer, name, inputs), results):
                np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32), f"{name} by {printer}")
        return results if len(results) > 1 else results[0]

    return run


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def close(got, want, tolerance=2e-6):
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


def test_all_are_tested():
    named = set(re.findall(r'kernel\("(\w+)"', Path(__file__).read_text()))
    assert named == set(re.findall(r"kernel @(\w+)", KERNELS))


def test_softmax(kernel):
    x = random(512, 256)
    close(kernel("max_sub_exp_sum_div_7", x), softmax(x))
    close(kernel("softmax", x[:8]), softmax(x[:8]))


def test_column_sum(kernel):
    x = random(512, 96)
    partials = kernel("column_chunks", x)
    close(partials, x.reshape(8, 64, 96).sum(1), 2e-5)
    close(kernel("column_sum", partials), x.sum(0), 2e-5)


def test_transpose(kernel):
    x = random(64, 96)
    np.testing.assert_array_equal(kernel("transpose", x), x.T)


def test_the_race_that_the_page_names(kernel):
    words = re.search(r"`(place \d+ of .*?)`", PAGE.read_text().replace("\n", " "))[1]
    with pytest.raises(AssertionError, match=words):
        kernel("transpose", random(64, 96), drop="barrier")


def test_product(kernel):
    a, b = random(64, 96), random(96, 64, seed=1)
    close(kernel("product", a, b), a.astype(np.float64) @ b, 2e-5)


def test_attention(kernel):
    """Causal, two heads of 64 rows, against the formulas in f64."""
    q, k, v, do = (random(2, 64, 16, seed=i) for i in range(4))
    q64, k64, v64, do64 = (x.astype(np.float64) for x in (q, k, v, do))
    scores = q64 @ k64.transpose(0, 2, 1) / 4
    scores[:, np.triu(np.ones((64, 64), bool), 1)] = -np.inf
    p = softmax(scores)
    o, lse = kernel("attention", q, k, v)
    close(o, p @ v64)
    close(lse, np.log(np.exp(scores).sum(-1)))

    inner = (p @ v64 * do64).sum(-1)
    ds = p * (do64 @ v64.transpose(0, 2, 1) - inner[..., None]) / 4
    dq, got_inner = kernel("attention_dq", q, k, v, o, do, lse)
    close(got_inner, inner, 1e-5)
    close(dq, ds @ k64, 1e-5)
    dk, dv = kernel("attention_dkv", q, k, v, do, lse, got_inner)
    close(dk, ds.transpose(0, 2, 1) @ q64, 1e-5)
    close(dv, p.transpose(0, 2, 1) @ do64, 1e-5)
