"""Limits on memory, stack and file size, full and closed streams: a message and exit 5, or success; nothing half-written."""
import json
import resource
import subprocess

import numpy as np
import onnx
import pytest
import tables
from onnx import helper, numpy_helper


@pytest.fixture(scope="module")
def folder(gradc, tmp_path_factory):
    """model.onnx, its executable `train` and data."""
    folder = tmp_path_factory.mktemp("limits")
    draw = np.random.default_rng(0)
    names = ["w1", "w2", "w3"]
    nodes = [helper.make_node("MatMul", ["x", "w1"], ["h1"]), helper.make_node("Tanh", ["h1"], ["t1"]),
             helper.make_node("MatMul", ["t1", "w2"], ["h2"]), helper.make_node("Softmax", ["h2"], ["t2"]),
             helper.make_node("MatMul", ["t2", "w3"], ["y"])]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, [8, 64])],
                              [helper.make_tensor_value_info("y", 1, [8, 64])],
                              [numpy_helper.from_array(draw.standard_normal((64, 64)).astype(np.float32), n) for n in names])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "model.onnx")
    np.save(folder / "x.npy", draw.standard_normal((64, 64)).astype(np.float32))
    subprocess.run([gradc, "compile", "model.onnx", "-o", "train", "--loss=mse"], cwd=folder, check=True, capture_output=True)
    return folder


def limited(command, folder, kind, bytes):
    """Exit code and messages under a limit that holds from exec on."""
    done = subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True, timeout=120,
                          preexec_fn=lambda: resource.setrlimit(kind, (bytes, bytes)))
    return done.returncode, done.stderr


def check_limited(command, folder, kind, sizes, made):
    """With every limit success, or exit 5 with gradc's own message and nothing half-written; some are too small. Where the system's loader
    has no room for the libraries, nothing of ours has run yet."""
    failed = 0
    for bytes in sizes:
        before = {p.name for p in folder.iterdir()}
        code, said = limited(command, folder, kind, bytes)
        new = {p.name for p in folder.iterdir()} - before
        if "error while loading shared libraries" in said or (code == -11 and not said and bytes < 1 << 16):
            continue
        assert code in (0, 5), (bytes, code, said)
        if code == 5:
            failed += 1
            assert "gradc: error: " in said and new <= {"new.json"}, (bytes, said, new)
            if new:  # a trace is completed by a run that fails
                json.loads((folder / "new.json").read_text())
        else:
            assert new <= made
        for name in new:
            (folder / name).unlink()
    assert failed


COMPILE = ["compile", "model.onnx", "-o", "new", "--loss=mse"]
TRAIN = ["--data=x=x.npy", "--data=labels=x.npy", "--steps=8", "--export=new.onnx", "--trace=new.json"]


def test_memory(gradc, build, folder):
    if "san" in build.name:
        pytest.skip("sanitizers reserve terabytes of address space")
    check_limited([gradc, *COMPILE], folder, resource.RLIMIT_AS, range(196 << 20, 256 << 20, 6 << 20), {"new"})
    check_limited([folder / "train", *TRAIN], folder, resource.RLIMIT_AS, range(8 << 20, 80 << 20, 3 << 20),
                  {"new.onnx", "new.json"})


@pytest.fixture(scope="module")
def chain(folder):
    """A chain of 300 elementwise nodes, one kernel whose elements are computed from each other: compiling it takes a deep stack."""
    nodes = [helper.make_node("Sin", [f"t{i}" if i else "x"], [f"t{i + 1}"]) for i in range(300)]
    graph = helper.make_graph([*nodes, helper.make_node("MatMul", ["t300", "w"], ["y"])], "g",
                              [helper.make_tensor_value_info("x", 1, [8, 64])], [helper.make_tensor_value_info("y", 1, [8, 64])],
                              [numpy_helper.from_array(np.ones((64, 64), np.float32), "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "chain.onnx")
    return "chain.onnx"


def test_stack(gradc, build, folder, chain):
    if "san" in build.name:
        pytest.skip("frames are larger")
    sizes = [64 << 10, 96 << 10, 128 << 10, 192 << 10, 8 << 20]
    check_limited([gradc, "compile", chain, "-o", "new", "--loss=mse"], folder, resource.RLIMIT_STACK, sizes, {"new"})
    assert limited([folder / "train", *TRAIN], folder, resource.RLIMIT_STACK, 1 << 20)[0] == 0
    code, said = limited([folder / "train", *TRAIN], folder, resource.RLIMIT_STACK, 64 << 10)
    assert code in (0, 5) and (code == 0 or "the stack is full" in said), said


def test_file_size(gradc, folder):
    check_limited([gradc, *COMPILE], folder, resource.RLIMIT_FSIZE, [0, 100, 10000, 100000, 1 << 30], {"new"})
    for name in "new.onnx", "new.json":
        (folder / name).unlink(missing_ok=True)
    check_limited([folder / "train", *TRAIN], folder, resource.RLIMIT_FSIZE, [0, 100, 10000, 1 << 30], {"new.onnx", "new.json"})


@pytest.mark.parametrize("command", [["check", "model.onnx"], ["check", "model.onnx", "--json"], ["dump", "model.onnx"], ["ops"], ["passes"],
                                     ["dump", "model.onnx", "--format=html"], ["compile", "--help"], ["--help"], ["--version"],
                                     ["dump", "train"], ["train", "--info"], ["train", "--info", "--json"], ["train", "--help"], ["train", *TRAIN[:3]]])
@pytest.mark.parametrize("stream", ["full", "closed"])
def test_lost_output_is_a_fault(gradc, folder, command, stream):
    program = [folder / "train", *command[1:]] if command[0] == "train" else [gradc, *command]
    line = " ".join(f"'{word}'" for word in program) + (" >/dev/full" if stream == "full" else " >&-")
    done = subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 5 and "standard output: " in done.stderr


def test_closed_streams_are_no_outputs(gradc, folder):
    """A file that is opened does not get the number of a closed stream, and with it what is printed."""
    line = f"'{gradc}' compile model.onnx -o closed --loss=mse >&- 2>&- <&-"
    assert subprocess.run(["bash", "-c", line], cwd=folder).returncode == 5
    fresh = subprocess.run([folder / "closed", "--info"], capture_output=True, text=True)
    assert fresh.returncode == 0 and "model.onnx" in fresh.stdout
    line = "./train --data=x=x.npy --data=labels=x.npy --log=log.jsonl >&- 2>&- <&-"
    assert subprocess.run(["bash", "-c", line], cwd=folder).returncode == 5
    lines = (folder / "log.jsonl").read_text().splitlines()
    assert len(lines) == 8 and all(line.startswith("{") for line in lines)


JUNK = 16 << 20


def dump_of(gradc, folder, content):
    """Exit code and CPU seconds of a dump."""
    (folder / "junk").write_bytes(content)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([gradc, "dump", "junk", "-o", "out"], cwd=folder, capture_output=True, text=True, timeout=120)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode in (0, 3, 5), done.stderr
    assert done.returncode == 0 or "gradc: error: " in done.stderr
    return done.returncode, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_junk_is_refused_soon(gradc, folder, tmp_path):
    noise = np.random.default_rng(0).bytes(JUNK)
    whole = (folder / "train").read_bytes()
    behind = tables.only_tables(tables.blown_up(folder / "train", "SECTION_SLOTS", 0)[:400] + noise)
    for content in noise, bytes(JUNK), noise + whole[-40:], behind:
        code, seconds = dump_of(gradc, tmp_path, content)
        assert code and seconds < 2


@pytest.mark.parametrize("section", tables.SECTIONS)
def test_tables_of_many_records_are_read_soon(gradc, folder, tmp_path, section):
    """In time that grows with the bytes: 100 MB take six times as long."""
    content = tables.blown_up(folder / "train", section, JUNK)
    assert content is None or dump_of(gradc, tmp_path, content)[1] < 2


@pytest.mark.parametrize("kernels, programs, binding, says", [(3000, 3000, "binding {}", None), (0, 20000, "binding {}", None), (0, 20000, "", "two programs")])
def test_texts_of_many_programs_are_read_soon(gradc, build, tmp_path, kernels, programs, binding, says):
    """In time and memory that grow with the text, not with its square."""
    limit = "" if "san" in build.name else "-v 600000"  # sanitizers reserve terabytes of address space
    text = ["module @m programs sums {"]
    text += [f"  kernel @k{i}(y0: out f32[1]) flops 0 {{\n    v0 = const 1 : f32\n    store y0[0] = v0\n  }}" for i in range(kernels)]
    text += [f"  program update {binding.format(i)} {{\n  }}" for i in range(programs)]
    (tmp_path / "m.gir").write_text("\n".join([*text, "}", ""]))
    done = subprocess.run(["bash", "-c", f'ulimit -t {4 if limit else 40} {limit}; exec "$0" opt m.gir --passes= -o out.gir', gradc], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == (3 if says else 0), done.stderr[-500:]
    assert not says or says in done.stderr
