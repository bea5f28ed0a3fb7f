"""Every kernel of every model has the same bits from every printer of loop IR, on this machine's CPU and
on the CPUs by name that it can stand for."""
import json
import re
import subprocess

import numpy as np
import onnx
import pytest
import unpack
from onnx import TensorProto, helper

SHORT = 16  # rows and tokens: more show nothing new


def lower(run, models, name, precision, path):
    """Writes the lowered module of a model's training programs."""
    reference = json.loads((models / name / "reference.json").read_text())
    dims = [f"--dim={k}={min(v, SHORT)}" for k, v in (reference.get("dims") or {}).items()]
    run("dump", models / name / "model.onnx", "--loss", reference["loss"], *dims,
        "--optimizer=adamw", f"--precision={precision}", "--stage=lowered", "-o", path)


CASES = [(name, "f32") for name in unpack.names() if unpack.has_kernels_of_its_own(name)]
CASES += [(name, "f64") for name in ["cnn_mnist", "gpt2_mini", "mlp_digits"]]
OPTIMIZED = [("cnn_mnist", "f32"), ("gpt2_mini", "f32"), ("mlp_digits", "f64")]  # by the compiler of C, whose time that is


@pytest.fixture
def compare(build):
    path = build / "tests/compare_kernels"
    if not path.exists():
        pytest.skip(f"{path} is not built")
    return lambda *arguments: subprocess.run([path, *arguments], text=True, capture_output=True)


@pytest.mark.parametrize("name, precision", CASES)
def test_same_bits(run, compare, models, tmp_path, name, precision):
    lower(run, models, name, precision, tmp_path / "lowered.gir")
    done = compare(tmp_path / "lowered.gir", *([] if (name, precision) in OPTIMIZED else ["plain"]))
    assert done.returncode == 0, done.stdout + done.stderr
    kernels, codes = map(int, re.match(r"(\d+) kernels, (\d+) codes, 0", done.stdout).groups())
    assert kernels >= 8 and codes >= 2


def test_one_bit_is_seen(run, compare, models, tmp_path):
    lower(run, models, "lr_iris_ml", "f32", tmp_path / "lowered.gir")
    done = compare(tmp_path / "lowered.gir", "flip")
    assert done.returncode == 1 and "differs" in done.stdout


@pytest.fixture
def digits(models):
    return models / "mlp_digits/model.onnx"


LEVELS = {"x86-64-v2": "cpu-128", "x86-64-v3": "cpu-256", "x86-64-v4": "cpu-512"}


@pytest.fixture
def levels(run, digits, tmp_path):
    """The levels that this CPU runs, the least first."""
    run("compile", digits, "-o", tmp_path / "e", "--batch=8", "--target=" + ",".join(f"cpu:{x}" for x in LEVELS))
    info = json.loads(run(tmp_path / "e", "--info", "--json").stdout)
    found = [v["cpu"] for v in info["variants"] if v["runs_here"]]
    if len(found) < 2:
        pytest.skip("this CPU runs one level only")
    return found


@pytest.mark.parametrize("printer", ["llvm", "c"])
def test_several_targets(run, digits, levels, tmp_path, printer):
    """One executable has programs for every CPU that it is compiled for. Each gives the same bits as in an executable of its
    own, and the one that may use most runs where none is asked for."""
    data = [f"--data={name}={digits.parent / name}.npy" for name in ["input", "labels"]]
    if f"--printer={printer}" not in run("compile", "--help").stdout and printer == "llvm":
        pytest.skip("built without LLVM")

    def train(exe, folder, *options):
        run(exe, *data, "--steps=5", "--progress=off", f"--save={tmp_path / folder}", *options)
        [state] = (tmp_path / folder).glob("**/*.safetensors")
        return state.read_bytes()

    def compile(name, cpus):
        target = ",".join(f"cpu:{x}" for x in cpus)
        run("compile", digits, "-o", tmp_path / name, "--batch=8", f"--target={target}", f"--printer={printer}")
        return tmp_path / name

    both = compile("both", levels)
    alone = {cpu: train(compile(cpu, [cpu]), f"alone.{cpu}") for cpu in levels}
    for cpu in levels:
        assert train(both, f"both.{cpu}", f"--target=cpu:{cpu}") == alone[cpu], cpu
    assert train(both, "best") == alone[levels[-1]]
    info = json.loads(run(both, "--info", "--json").stdout)
    assert [(v["cpu"], v["target"]) for v in info["variants"]] == [(x, LEVELS[x]) for x in levels]
    assert "avx2" in info["variants"][1]["features"].split()
    schedule = json.loads(run("dump", both, "--stage=schedule", "--format=json").stdout)["programs"]
    for programs in info["programs"], schedule:
        assert [(p["target"], p["role"]) for p in programs] == [
            (LEVELS[x], role) for x in levels for role in ("forward", "eval", "accumulate", "update")]
    refused = run(both, *data, "--steps=1", "--target=cpu:pentium", exit=2).stderr
    assert "--target=cpu:pentium: the model is compiled for cpu:x86-64-v2" in refused


def test_targets_share_what_is_equal(run, digits, tmp_path):
    """CPUs with vectors of one width have one set of programs; others share the kernels that come out the same."""
    def dump(*cpus):
        target = ",".join(f"cpu:{x}" for x in cpus)
        return run("dump", digits, "--batch=8", "--loss=cross_entropy", "--optimizer=adamw", "--stage=lowered",
                   f"--target={target}", "-o", tmp_path / "m.gir") and (tmp_path / "m.gir").read_text()

    wide, narrow, both = dump("x86-64-v4"), dump("x86-64-v2"), dump("x86-64-v4", "x86-64-v2")
    counts = [text.count("  kernel @") for text in (wide, narrow, both)]
    assert max(counts[:2]) < counts[2] < counts[0] + counts[1]
    assert both.count("  func @") == 2 * wide.count("  func @")
    assert 'role update target "cpu-128"' in both and "func @update.cpu-128(" in both
    assert dump("x86-64-v4", "x86-64-v4").count("  func @") == wide.count("  func @")
    relaunched = run("dump", digits, "--batch=8", "--loss=cross_entropy", "--optimizer=adamw", "--stage=c",
                     "--target=cpu:x86-64-v2,cpu:x86-64-v4").stdout
    assert len(re.findall(r"\ngradc_\w+_\d+\(void", relaunched)) == counts[1]  # of the first CPU alone


def test_loops_are_interpreted(run, digits, tmp_path):
    """`grad --engine=interp --stage=lowered` runs the kernels' loops, hyperparameters among what they read."""
    options = [digits, "--loss=cross_entropy", "--engine=interp"]
    for name in "input", "labels":
        np.save(tmp_path / f"{name}.npy", np.load(digits.parent / f"{name}.npy")[:4])
        options.append(f"--input={name}={tmp_path / name}.npy")
    run("grad", *options, f"--output-dir={tmp_path / 'tensors'}")
    run("grad", *options, f"--output-dir={tmp_path / 'loops'}", "--stage=lowered")
    written = [p.name for p in (tmp_path / "tensors").glob("grad.*.npy")]
    assert len(written) == 6
    for name in written:
        tensors, loops = (np.load(tmp_path / way / name) for way in ("tensors", "loops"))
        np.testing.assert_allclose(loops, tensors, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("stage, text", [("llvm", "define hidden void @"), ("asm", ".cfi_startproc"),
                                         ("c", "gradc_dot_0(void *const *buffers")])
def test_code_is_shown(run, digits, stage, text):
    assert text in run("dump", digits, f"--stage={stage}").stdout


def test_lanes_beyond_a_row_are_0(run, tmp_path):
    """What lies behind a local row of 50 may be subnormal, and made a softmax three times as slow: the last vector of it
    has zeros there."""
    graph = helper.make_graph([helper.make_node("Softmax", ["x"], ["y"])], "softmax",
                              [helper.make_tensor_value_info("x", TensorProto.FLOAT, [64, 50])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, [64, 50])])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    text = run("dump", tmp_path / "m.onnx", "--stage=llvm").stdout
    loads = re.findall(r"(%\S+) = load <16 x float>, ptr %\S+, align 4\n  (.*)", text)
    zeroed = [x for x, then in loads if "select <16 x i1> <i1 true, i1 true, i1 false" in then and
              then.endswith(f"<16 x float> {x}, <16 x float> zeroinitializer")]
    assert len(zeroed) == 1, text


def conv_model(path, strides, pad):
    """Two of them, so that one has a gradient of its input."""
    def weight(name, *shape):
        return onnx.numpy_helper.from_array(np.ones(shape, np.float32), name)

    graph = helper.make_graph([helper.make_node("Conv", ["x", "v"], ["h"]),
                               helper.make_node("Conv", ["h", "w"], ["y"], pads=[pad] * 4, strides=strides)], "conv",
                              [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 20, 20])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 8, "h", "w"])],
                              [weight("v", 4, 3, 1, 1), weight("w", 8, 4, 3, 3)])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.mark.parametrize("stride, pad, level, compares, gathers", [
    (1, 1, 4, True, False), (1, 1, 3, True, False), (1, 1, 2, True, True), (1, 0, 4, False, False),
    (2, 1, 4, True, True)])
def test_patches_are_loaded_under_a_mask(run, tmp_path, stride, pad, level, compares, gathers):
    """An image's edge costs a comparison of 16 places, and a gather only where lanes are apart or the CPU has no masks."""
    conv_model(tmp_path / "m.onnx", [stride, stride], pad)
    text = run("dump", tmp_path / "m.onnx", "--stage=llvm", f"--target=cpu:x86-64-v{level}").stdout
    masks = re.findall(r"(%\S+) = icmp ult <16 x i64>", text)
    assert bool(masks) == compares and ("llvm.masked.gather" in text) == gathers, text


@pytest.mark.parametrize("strides", [[2, 1], [1, 2], [1, 1]])
def test_patches_have_the_same_bits(run, compare, tmp_path, strides):
    """Stride 2 along the rows: lanes are neighbours, and a row counts only where the division is exact."""
    conv_model(tmp_path / "m.onnx", strides, 1)
    run("dump", tmp_path / "m.onnx", "--loss=mse", "--stage=lowered", "-o", tmp_path / "lowered.gir")
    done = compare(tmp_path / "lowered.gir", "plain")
    assert done.returncode == 0, done.stdout + done.stderr


MANY = """module @many {
  func @f(%x: f32[6,40,33], %y: f32[33]) -> (TYPES) {
BODY
    return RESULTS
  }
}
"""


@pytest.mark.parametrize("axes, rest, n", [("[2]", "f32[6,40]", 80), ("[0]", "f32[40,33]", 80), ("[0,1,2]", "f32[]", 9),
                                           ("[1,2]", "f32[6]", 70)])
@pytest.mark.parametrize("of_rows", [False, True])
def test_many_reductions(run, compare, tmp_path, axes, rest, n, of_rows):
    """Of one value, each a little different, in one kernel; and sums of the row values that come of them."""
    lines, results = [], []
    for i in range(n):
        kind = ["sum", "max", "min", "prod"][i % 4]
        lines += [f"%c{i} = constant {{value = f32[] [{1 + i / 64}]}} : f32[]",
                  f"%b{i} = broadcast %c{i} {{shape = [6,40,33]}} : f32[6,40,33]",
                  f"%m{i} = mul %x, %b{i} : f32[6,40,33]",
                  f"%r{i} = reduce %m{i} {{kind = {kind}, axes = {axes}}} : {rest}"]
        last = f"%r{i}"
        if of_rows and rest == "f32[6,40]":
            lines += [f"%s{i} = reduce {last} {{kind = sum, axes = [0,1]}} : f32[]"]
            last = f"%s{i}"
        results.append(last)
    type_ = "f32[]" if of_rows and rest == "f32[6,40]" else rest
    text = MANY.replace("BODY", "\n".join("    " + line for line in lines))
    text = text.replace("RESULTS", ", ".join(results)).replace("TYPES", ", ".join([type_] * n))
    (tmp_path / "many.gir").write_text(text)
    for passes in ("fuse,lower", "legalize,fuse,lower"):
        run("opt", tmp_path / "many.gir", f"--passes={passes}", "--verify-each", "-o", tmp_path / "lowered.gir")
        done = compare(tmp_path / "lowered.gir", "plain")
        assert done.returncode == 0, done.stdout + done.stderr


def test_small_dtypes(run, compare, tmp_path):
    """Loads, stores and casts of every format, in vectors of any machine: lanes that are neighbours, apart, and random."""
    floats = ["f16", "bf16", "f8e4m3", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz", "f4e2m1", "e8m0"]
    integers = ["s16", "s8", "s4", "s2", "u16", "u8", "u4", "u2"]
    functions = []
    for d in floats + integers:
        ways = [f"{{to = {d}}}"]
        if d in floats:
            ways += [f"{{to = {d}, round = toward_zero, overflow = special}}", f"{{to = {d}, round = away}}"]
        lines = [f"  %{i} = cast %x {way} : {d}[33,70]" for i, way in enumerate(ways)]
        n = len(lines)
        lines += [f"  %{n} = transpose %y {{order = [1,0]}} : {d}[70,33]",
                  f"  %{n + 1} = gather %y, %i {{axis = 1}} : {d}[33,50]"]
        results = ["%" + str(i) for i in range(len(lines))]
        types = [f"{d}[33,70]"] * n + [f"{d}[70,33]", f"{d}[33,50]"]
        functions.append(f"func @{d}(%x: f32[33,70], %y: {d}[33,70], %i: s64[50]) -> ({', '.join(types)}) {{\n" +
                         "\n".join(lines) + f"\n  return {', '.join(results)}\n}}\n")
        if d in floats:
            functions.append(f"func @{d}.random(%x: f32[33,70], %s: u64[]) -> {d}[33,70] {{\n"
                             f"  %0 = cast %x, %s, %s, %s {{to = {d}, round = stochastic, stream = 1, axis = 1, rows = 70}} : {d}[33,70]\n"
                             "  return %0\n}\n")
    (tmp_path / "formats.gir").write_text("".join(functions))
    run("opt", tmp_path / "formats.gir", "--passes=legalize,fuse,lower", "-o", tmp_path / "lowered.gir")
    done = compare(tmp_path / "lowered.gir")
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[0]) >= 40


# Loops that end before their extent does: with lanes that add up, apart, in a byte, in a local, and none at all.
RAGGED = """module @"ragged" {
  kernel @blocks(x0: in f32[1000], y0: out f32[1000]) flops 0 {
    parallel v0 < 16 {
      vector v1 < min(64, -64*v0 + 1000) {
        v2 = load x0[64*v0 + v1] : f32
        store y0[64*v0 + v1] = v2
      }
    }
  }
  kernel @sums(x0: in f32[3,70], y0: out f32[3,4]) flops 0 {
    parallel v0 < 3 {
      parallel v1 < 4 {
        vector v2 < min(20, -20*v1 + 70) (v3: add f32 lanes 16, v4: max f32 lanes 16) {
          v5 = load x0[70*v0 + 20*v1 + v2] : f32
          accumulate v5, v3
          accumulate v5, v4
        }
        v6 = mul v3, v4 : f32
        store y0[4*v0 + v1] = v6
      }
    }
  }
  kernel @apart(x0: in f32[5,30], y0: out f32[30,5]) flops 0 {
    parallel v0 < 5 {
      for v1 < 2 {
        vector v2 < min(18, -18*v1 + 30) {
          v3 = load x0[30*v0 + 18*v1 + v2] : f32
          store y0[90*v1 + 5*v2 + v0] = v3
        }
      }
    }
  }
  kernel @turned(x0: in f32[30,5], y0: out f32[5,30]) flops 0 {
    parallel v0 < 5 {
      for v1 < 2 {
        vector v2 < min(18, -18*v1 + 30) {
          v3 = load x0[90*v1 + 5*v2 + v0] : f32
          store y0[30*v0 + 18*v1 + v2] = v3
        }
      }
    }
  }
  kernel @packed(x0: in s4[70], y0: out s4[70]) flops 0 {
    parallel v0 < 3 {
      vector v1 < min(32, -32*v0 + 70) {
        v2 = load x0[32*v0 + v1] : s32
        v3 = const 1 : s32
        v4 = add v2, v3 : s32
        v5 = cast v4 to s4 : s32
        store y0[32*v0 + v1] = v5
      }
    }
  }
  kernel @rows(x0: in f32[9,7], y0: out f32[9,7]) flops 0 {
    local local2 : f32[40]
    parallel v0 < 9 {
      vector v1 < 40 {
        v2 = const 2.0 : f32
        store local2[v1] = v2
      }
      for v3 < min(7, v0 + -2) {
        v4 = const 3.0 : f32
        store local2[v3] = v4
      }
      vector v5 < min(7, v0) {
        v6 = load x0[7*v0 + v5] : f32
        store local2[v5 + 3] = v6
      }
      vector v7 < 7 {
        v8 = load local2[v7] : f32
        v9 = load local2[v7 + 5] : f32
        v10 = add v8, v9 : f32
        store y0[7*v0 + v7] = v10
      }
    }
  }
}
"""


def test_loops_that_end_before_their_extent(compare, tmp_path):
    (tmp_path / "ragged.gir").write_text(RAGGED)
    done = compare(tmp_path / "ragged.gir")
    assert done.returncode == 0 and done.stdout.startswith("6 kernels"), done.stdout + done.stderr


def test_kernels_are_named_after_nodes(run, digits, tmp_path):
    """What a profiler reads: symbols with the ONNX name."""
    run("compile", digits, "-o", tmp_path / "e", "--batch=8")
    symbols = subprocess.run(["nm", tmp_path / "e"], text=True, capture_output=True).stdout
    assert re.search(r"gradc_dot_\w*\d+:/0/Gemm", symbols)


@pytest.mark.parametrize("target", ["hip", "cpu:pentium", "x86-64-v3", "cpu:native,"])
def test_unknown_target(run, digits, tmp_path, target):
    fault = target != "cpu:native,"
    done = run("compile", digits, "-o", tmp_path / "e", "--batch=8", f"--target={target}",
               exit=2 if fault else 0)
    assert not fault or "not supported in this build" in done.stderr


def test_a_cpu_without_a_program(run, digits, tmp_path):
    """Of several targets each CPU has its own; it is never given those of another."""
    targets = "--pass-option=multiversion.targets=cpu-512+cpu-256"
    done = run("compile", digits, "-o", tmp_path / "e", "--batch=8", "--target=cpu:x86-64-v2", targets, exit=2)
    assert "--target=cpu:x86-64-v2 is target cpu-128, but the programs are for other targets" in done.stderr
    assert not (tmp_path / "e").exists()
    run("compile", digits, "-o", tmp_path / "e", "--batch=8", "--target=cpu:x86-64-v2,cpu:x86-64-v3",
        targets.replace("512", "128"))
