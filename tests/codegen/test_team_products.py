"""Products of teams of threads: blocks in the team's memory, whatever sizes, layouts and types are. Each sum is that of NumPy; CUDA
C, on this CPU, C and the interpreter make the same bits."""
import json
import random
import re
import subprocess

import numpy as np
import pytest
from tolerances import limit

TARGET = "cuda-sm_90"
SIZES = [1, 7, 13, 64, 129, 257]


def dot(m, k, n, x="f32", y=None, z=None, across="", batch=()):
    """A function's parameters and body: x[batch,m,k] times y[batch,k,n], either with its last two axes the other way round."""
    y, z = y or x, z or x
    shapes = [[*batch, *((k, m) if "x" in across else (m, k))], [*batch, *((n, k) if "y" in across else (k, n))]]
    axes = list(range(len(batch)))
    inner = [len(batch) + (0 if "x" in across else 1), len(batch) + (1 if "y" in across else 0)]
    attributes = f"x_contract = [{inner[0]}], y_contract = [{inner[1]}], dtype = {z}"
    if batch:
        attributes = f"x_batch = {axes}, y_batch = {axes}, " + attributes
    a, b = (f"{t}[{','.join(map(str, s))}]" for t, s in zip((x, y), shapes))
    result = ",".join(map(str, [*batch, m, n]))
    return f"(%a: {a}, %b: {b})", [f"%0 = dot %a, %b {{{attributes}}} : {z}[{result}]"], "%0"


def views(m, k, n):
    """Rows of two axes in another order, a slice of columns, a number added to each column, and casts from 16 bits."""
    return [
        (f"(%a: f32[4,{m},3,{k}], %b: f32[{k},{n + 8}], %c: f32[{n}])",
         [f"%0 = transpose %a {{order = [0,2,1,3]}} : f32[4,3,{m},{k}]",
          f"%1 = reshape %0 {{shape = [{12 * m},{k}]}} : f32[{12 * m},{k}]",
          f"%2 = slice %b {{start = [0,4], stop = [{k},{n + 4}], step = [1,1]}} : f32[{k},{n}]",
          f"%3 = dot %1, %2 {{x_contract = [1], y_contract = [0]}} : f32[{12 * m},{n}]",
          f"%4 = broadcast %c {{shape = [{12 * m},{n}], axes = [1]}} : f32[{12 * m},{n}]",
          f"%5 = add %3, %4 : f32[{12 * m},{n}]"], "%5"),
        (f"(%a: bf16[{m},{k}], %b: f32[{k},{n}])",
         [f"%0 = cast %a {{to = f32}} : f32[{m},{k}]",
          f"%1 = dot %0, %b {{x_contract = [1], y_contract = [0]}} : f32[{m},{n}]"], "%1"),
    ]


def lowered(run, folder, functions, target=TARGET):
    """The kernels of these functions, by number, and the file that has them."""
    text = "module @products {\n"
    for i, (parameters, body, result) in enumerate(functions):
        text += f"func @p{i}{parameters} {{\n" + "".join(f"  {s}\n" for s in body) + f"  return {result}\n}}\n"
    (folder / "products.gir").write_text(text + "}\n")
    passes = ",".join(f"{p}{{target={target}}}" for p in ("legalize", "fuse", "lower"))
    run("opt", folder / "products.gir", f"--passes={passes}", "-o", folder / "lowered.gir")
    text = (folder / "lowered.gir").read_text()
    kernels = dict(re.findall(r"^  kernel @(\w+)(\(.*?\n  })$", text, re.M | re.S))
    return kernels, folder / "lowered.gir"


def same_bits(build, file, kernels, least_blocks):
    tool = build / "tests/compare_kernels"
    if not tool.exists():
        pytest.skip(f"{tool} is not built")
    done = subprocess.run([tool, file, "cuda"], text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(kernels)} kernels, 3 codes, 0 differences" in done.stdout
    assert sum("mma sum" in k for k in kernels.values()) >= least_blocks


TYPES = {"f32": ["f32"], "f64": ["f64"], "16 bits": ["bf16", "f16"]}


@pytest.mark.parametrize("across", ["", "x", "y", "xy"])
@pytest.mark.parametrize("types", TYPES)
def test_sizes(run, build, tmp_path, types, across):
    """What blocks divide and what they do not, in each direction."""
    order = random.Random(f"{types} {across}")
    functions = [dot(*(order.choice(SIZES) for _ in range(3)), x=order.choice(TYPES[types]), across=across,
                     batch=order.choice([(), (), (3,), (2, 3)]), z="f64" if types == "f64" else "f32") for _ in range(6)]
    functions += [dot(64, 96, 128, x=TYPES[types][0], across=across), dot(40, 70, 36, x=TYPES[types][-1], across=across)]
    kernels, file = lowered(run, tmp_path, functions)
    same_bits(build, file, kernels, 4)


def test_views(run, build, tmp_path):
    functions = views(5, 48, 20) + views(7, 33, 19) + [
        dot(65, 50, 34, x="f32", z="f64"), dot(65, 50, 34, x="bf16", y="f32", z="f32"), dot(33, 20, 40, x="bf16", z="bf16")]
    kernels, file = lowered(run, tmp_path, functions)
    same_bits(build, file, kernels, len(functions))


def test_splits(run, build, tmp_path):
    """Long sums of few results: a kernel leaves those of parts of k, another one adds them in order."""
    bias = (f"(%a: f32[3136,24], %b: f32[3136,40], %c: f32[40])",
            ["%0 = dot %a, %b {x_contract = [0], y_contract = [0]} : f32[24,40]",
             "%1 = broadcast %c {shape = [24,40], axes = [1]} : f32[24,40]", "%2 = add %0, %1 : f32[24,40]"], "%2")
    kernels, file = lowered(run, tmp_path, [
        bias, dot(64, 4096, 64, x="bf16", z="bf16", across="x"), dot(17, 8192, 300, x="f64"), dot(30, 4095, 30)])
    same_bits(build, file, kernels, 4)
    assert sum("serves @" in k for k in kernels.values()) == 3 # 4095 numbers have no whole blocks of 16


def test_targets_split_alike(run, tmp_path):
    """Blocks are each target's own; into how many parts k is split, that is the same on all, since sums get other bits by it."""
    order = random.Random(1)
    shapes = [(order.choice([64, 96, 256, 512]), order.choice([1024, 2048, 4096, 12288]), order.choice([64, 128, 320])) for _ in range(24)]
    blocks, sizes = [], []
    for target in "cuda-sm_80", "cuda-sm_90", "cuda-sm_100":
        kernels, _ = lowered(run, tmp_path, [dot(*s) for s in shapes], target)
        products = [k for k in kernels.values() if "mma sum" in k]
        blocks.append([re.search(r"tile sum\d+ : f32(\[[\d,]+\])", k)[1] for k in products])
        sizes.append([re.search(r"out f32\[([\d,]+)\]", k)[1] for k in products])
    assert sizes[0] == sizes[1] == sizes[2] and len(set(sizes[0])) > 8
    assert blocks[0] != blocks[1] and blocks[1] != blocks[2]


def test_integers_have_columns(run, build, tmp_path):
    """No matrix unit adds them in their type."""
    kernels, file = lowered(run, tmp_path, [dot(40, 20, 40, x="s8", z="s32")])
    same_bits(build, file, kernels, 0)
    assert not any("mma" in k for k in kernels.values())


def numbers(generator, dtype, shape):
    """As memory has them, and in f64."""
    x = generator.standard_normal(shape).astype(np.float32)
    if dtype == "bf16":
        bits = (x.view(np.uint32) >> 16).astype(np.uint16)
        return bits, (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    x = x.astype({"f32": np.float32, "f64": np.float64, "f16": np.float16}[dtype])
    return x, x.astype(np.float64)


# Of numbers of about 1 added up in the type of the sum, in the order of k: half a last place for each, and it seldom adds up.
OFF = {"f32": 2 ** -24, "f64": 2 ** -53}


@pytest.mark.parametrize("m, k, n, x, z, across", [
    (300, 77, 130, "f32", "f32", ""), (129, 1000, 65, "f32", "f32", "y"), (64, 5, 257, "f32", "f32", "x"),
    (257, 33, 70, "f64", "f64", "xy"), (130, 119, 64, "bf16", "f32", ""), (96, 72, 40, "f16", "f32", "y"),
    (2000, 40, 2000, "f32", "f32", "x"), (64, 12544, 72, "f32", "f32", "xy"),
    (500, 48, 9, "f32", "f32", ""), (33000, 20, 16, "f32", "f32", ""),
    (33000, 64, 16, "bf16", "f32", "y"),
     (9, 300, 70, "f32", "f32", "xy")])
def test_sums(run, build, tmp_path, m, k, n, x, z, across):
    """Against NumPy in f64."""
    tool = build / "tests/run_kernel"
    if not tool.exists():
        pytest.skip(f"{tool} is not built")
    kernels, lowered_file = lowered(run, tmp_path, [dot(m, k, n, x=x, z=z, across=across)])
    assert any("mma sum" in k for k in kernels.values())
    generator = np.random.default_rng(m)
    a, b = (numbers(generator, x, s) for s in (((k, m) if "x" in across else (m, k)), ((n, k) if "y" in across else (k, n))))
    arguments = [tmp_path / "a", tmp_path / "b"]
    for value, file in zip((a, b), arguments):
        file.write_bytes(np.ascontiguousarray(value[0]).tobytes())
    for name in sorted(kernels, key=lambda k: "serves @" not in kernels[k]):
        run(tool, lowered_file, name, "c", *arguments, tmp_path / name)
        arguments.append(tmp_path / name) # which the kernel that it serves reads
    got = np.frombuffer(arguments[-1].read_bytes(), {"f32": np.float32, "f64": np.float64}[z]).reshape(m, n)
    want = (a[1].T if "x" in across else a[1]) @ (b[1].T if "y" in across else b[1])
    assert np.abs(got - want).max() <= 16 * OFF[z] * k


@pytest.mark.parametrize("name", ["mlp_digits", "cnn_mnist", "gpt2_mini"])
def test_gradients(run, models, tmp_path, name):
    """The interpreter runs the loops of all kernels: gradients are those of the tensors' program."""
    reference = json.loads((models / name / "reference.json").read_text())
    options = [models / name / "model.onnx", "--loss", reference["loss"], "--engine=interp"]
    for key, file in [*((i["name"], i["file"]) for i in reference["inputs"]), ("labels", reference["labels"]["file"])]:
        rows = np.load(models / name / file)[:2]
        np.save(tmp_path / file, rows[:, :12] if "seq" in reference["dims"] else rows)
        options += ["--input", f"{key}={tmp_path / file}"]
    ways = {"tensors": [], "loops": ["--stage=lowered", f"--pass-option=multiversion.targets={TARGET}"]}
    for folder, how in ways.items():
        run("grad", *options, "--output-dir", tmp_path / folder, *how)
    tensors, loops = ({p.name: np.load(p) for p in (tmp_path / folder).glob("*.npy")} for folder in ways)
    assert tensors.keys() == loops.keys() and len(tensors) > 6
    most = max(np.abs(g).max() for key, g in tensors.items() if key.startswith("grad."))
    for key, g in tensors.items():
        np.testing.assert_allclose(loops[key], g, rtol=limit("grad f32"), atol=2e-6 * most, err_msg=key)
