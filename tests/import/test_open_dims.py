"""Open dimensions: bound by symbol, by INPUT[AXIS] where they have none, and by the files of inputs."""
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper


@pytest.fixture
def model(tmp_path):
    """y = x + z; x f32[?, ?, 3], z f32[rows, ?, 3]."""
    ports = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, None, 3]),
             helper.make_tensor_value_info("z", TensorProto.FLOAT, ["rows", None, 3]),
             helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, None, 3])]
    graph = helper.make_graph([helper.make_node("Add", ["x", "z"], ["y"], name="add")], "open",
                              ports[:2], ports[2:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
              tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


@pytest.mark.parametrize("form", ["npy", "pb"])
@pytest.mark.parametrize("engine", ["interp", "compiled"])
def test_files_bind_open_dimensions(run, model, tmp_path, engine, form):
    random = np.random.default_rng(0)
    values = {n: random.standard_normal((2, 5, 3)).astype(np.float32) for n in "xz"}
    inputs = []
    for name, a in values.items():
        path = tmp_path / f"{name}.{form}"
        if form == "npy":
            np.save(path, a)
        else:
            path.write_bytes(numpy_helper.from_array(a, name).SerializeToString())
        inputs += ["--input", f"{name}={path}"]
    run("run", model, f"--engine={engine}", *inputs, "--output-dir", tmp_path / "out")
    np.testing.assert_array_equal(np.load(tmp_path / "out/y.npy"), values["x"] + values["z"])


def test_compile_binds_by_input_and_axis(run, model, tmp_path):
    done = run("dump", model, "--stage=import", "--dim=x[0]=2", "--dim=rows=2", "--dim=x[1]=7",
               "--dim=z[1]=7")
    assert "func @forward(%x: f32[2,7,3] is input 0 rows, %z: f32[2,7,3] is input 1 rows)" in done.stdout


def test_what_is_open_is_listed(run, model, tmp_path):
    done = run("compile", model, "-o", tmp_path / "train", "--loss=mse", exit=2)
    for text in ('x[0] of input "x" (axis 0)', 'x[1] of input "x" (axis 1)',
                 'rows of input "z" (axis 0)', 'z[1] of input "z" (axis 1)'):
        assert text in done.stderr
    done = run("check", model, "--dim=x[2]=3", exit=2)
    assert "its open dimensions: x[0], x[1], rows, z[1]" in done.stderr


def write(path, nodes, inputs, outputs, tensors=()):
    made = [helper.make_node(op, i, o, **attributes) for op, i, o, attributes in nodes]
    graph = helper.make_graph(made, "open", [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
                              [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs.items()],
                              [numpy_helper.from_array(np.asarray(v), k) for k, v in dict(tensors).items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


KERNEL = np.ones((1, 1, 3, 3), np.float32)
DOWN = {"kernel_shape": [2, 2], "strides": [2, 2]}
UP = ("Resize", ["d2", "", "twice"], ["u"], {})
SIZED = {
    "each its own": ([("Conv", ["x", "k"], ["c"], {}), ("MaxPool", ["c"], ["y"], {"kernel_shape": [3, 2]})], {"x": ["n", 1, "h", "w"]}, "h=5 w=4"),
    "a multiple": ([("MaxPool", ["x"], ["d"], DOWN), ("MaxPool", ["d"], ["d2"], DOWN), UP, ("Concat", ["u", "d"], ["y"], {"axis": 1})],
                   {"x": ["n", 1, "h", "w"]}, "h=4 w=4"),
    "without names": ([("MaxPool", ["x"], ["y"], DOWN)], {"x": [None, 1, None, None]}, "x[2]=2 x[3]=2"),
    "a long window": ([("Conv", ["x", "long"], ["y"], {})], {"x": ["n", 1, "samples"]}, "samples=400"),
    "two that must agree": ([("MaxPool", ["x"], ["p"], {"kernel_shape": [3]}), ("MaxPool", ["z"], ["q"], {"kernel_shape": [3]}), ("Concat", ["p", "q"], ["y"], {"axis": 1})],
                            {"x": ["n", 1, "a"], "z": ["m", 1, "b"]}, "a=3 b=3"),
    "rows, too": ([("Transpose", ["x"], ["t"], {"perm": [1, 0]}), ("Reshape", ["t", "rows"], ["y"], {})], {"x": ["n", 3]}, "n=4"),
}


@pytest.mark.parametrize("case", SIZED)
def test_check_takes_the_smallest_sizes_that_work(run, tmp_path, case):
    nodes, inputs, want = SIZED[case]
    tensors = {"k": KERNEL, "long": np.ones((1, 1, 400), np.float32), "twice": np.array([1, 1, 2, 2], np.float32), "rows": np.array([2, 2, 3])}
    write(tmp_path / "m.onnx", nodes, inputs, {"y": None}, tensors)
    done = run("check", tmp_path / "m.onnx")
    assert f"open dimensions are taken as {want}, the smallest that work, and 1; --dim NAME=N and --batch N bind them\n" in done.stdout
    dims = [f"--dim={d}" for d in want.split()]
    assert "the smallest that work" not in run("check", tmp_path / "m.onnx", *dims).stdout
    for i, dim in enumerate(want.split()):
        smaller = f"--dim={dim.split('=')[0]}={int(dim.split('=')[1]) - 1}"
        assert run("check", tmp_path / "m.onnx", *dims[:i], smaller, *dims[i + 1:], exit=None).returncode in (2, 3, 4)


def test_a_size_that_nothing_finds_is_asked_for(run, tmp_path):
    """Rows of 37, 74 ... by a reshape: exit 2 names what to bind; a fault that hangs on no size stays as it is."""
    write(tmp_path / "m.onnx", [("Reshape", ["x", "s"], ["y"], {})], {"x": ["n", "odd"]}, {"y": None}, {"s": np.array([97, 89])})
    done = run("check", tmp_path / "m.onnx", exit=2)
    assert "its open dimensions cannot all be 1" in done.stderr and "work: n, odd" in done.stderr and "--dim NAME=N binds them" in done.stderr
    run("check", tmp_path / "m.onnx", "--dim=n=97", "--dim=odd=89")
    write(tmp_path / "m.onnx", [("Frobnicate", ["x"], ["y"], {})], {"x": ["n", "odd"]}, {"y": None})
    done = run("check", tmp_path / "m.onnx", exit=None)
    assert done.returncode in (3, 4) and done.stderr.count("error") == 1 and "open dimensions" not in done.stderr


@pytest.mark.parametrize("n, found", [(1000, True), (50000, False)])
def test_how_long_sizes_are_looked_for_hangs_on_the_file_alone(run, tmp_path, n, found):
    """The search has a number of steps, not of seconds: for n nodes in a row 1000000 / n imports, on any machine. 400 is found behind the 34th."""
    nodes = [("Conv", ["x", "long"], ["h0"], {}), *(("Relu", [f"h{i}"], [f"h{i + 1}" if i + 1 < n else "y"], {}) for i in range(n))]
    write(tmp_path / "m.onnx", nodes, {"x": ["n", 1, "samples"]}, {"y": None}, {"long": np.ones((1, 1, 400), np.float32)})
    done = run("check", tmp_path / "m.onnx", exit=0 if found else 2)
    assert ("open dimensions are taken as samples=400" in done.stdout) == found
    assert ("no other sizes were found to work: n, samples" in done.stderr) == (not found)


def test_a_file_that_is_missing_is_told_once(run, tmp_path):
    """It hangs on no size, and is not looked for again."""
    write(tmp_path / "m.onnx", [("MatMul", ["x", "w"], ["y"], {})], {"x": ["n", 400]}, {"y": None}, {"w": np.ones((400, 3), np.float32)})
    model = onnx.load(tmp_path / "m.onnx")
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    (tmp_path / "m.data").unlink()
    done = run("check", tmp_path / "m.onnx", exit=5)
    assert done.stderr.count("error") == 1 and 'external data "m.data"' in done.stderr


def test_many_faults_are_counted(run, tmp_path):
    """A hundred are shown, and how many more there are."""
    nodes = [("Reshape", ["x", "s"], [f"y{i}"], {}) for i in range(120)]
    write(tmp_path / "m.onnx", nodes, {"x": ["n", 3]}, {f"y{i}": None for i in range(120)}, {"s": np.array([97, 89])})
    done = run("check", tmp_path / "m.onnx", exit=2)
    assert done.stderr.count("error: ") == 102 and done.stderr.count("20 more errors, not shown") == 1


def test_warnings_of_the_sizes_that_work_are_told_once(run, tmp_path):
    write(tmp_path / "m.onnx", [("MaxPool", ["x"], ["p"], DOWN), ("Mul", ["p", "bad"], ["y"], {})], {"x": ["n", 1, "h", "w"]}, {"y": None}, {"bad": np.float32(np.nan)})
    assert run("check", tmp_path / "m.onnx").stderr.count("NaN or infinite") == 1


@pytest.mark.parametrize("name", ["?", "*", "-1", "None"])
def test_unknown_sizes_are_independent(run, tmp_path, name):
    """Exporters call sizes that they do not know `?`; two of them are two."""
    write(tmp_path / "m.onnx", [("Transpose", ["x"], ["y"], {"perm": [1, 0]})], {"x": [name, name]}, {"y": [name, name]})
    assert "x: f32[2 (open),5 (open)]" in run("check", tmp_path / "m.onnx", "--dim=x[0]=2", "--dim=x[1]=5").stdout
    assert "x: f32[4 (open),1 (open)]" in run("check", tmp_path / "m.onnx", "--batch=4").stdout
    np.save(tmp_path / "x.npy", np.ones((2, 5), np.float32))
    run("run", tmp_path / "m.onnx", f"--input=x={tmp_path / 'x.npy'}", "--output-dir", tmp_path / "out")
    assert np.load(tmp_path / "out/y.npy").shape == (5, 2)


def test_an_output_of_another_rank_than_declared_is_a_warning(run, tmp_path):
    """onnxruntime runs it, too; one of another size is a fault."""
    write(tmp_path / "m.onnx", [("MatMul", ["x", "w"], ["y"], {})], {"x": ["n", 2, 4]}, {"y": ["n", "seq"]}, {"w": np.ones((4, 3), np.float32)})
    done = run("check", tmp_path / "m.onnx", "--dim=n=1,2,3")
    assert done.stderr.count('warning: ' + str(tmp_path / "m.onnx") + ': output "y" is declared with rank 2, it has rank 3') == 1
    np.save(tmp_path / "x.npy", np.ones((1, 2, 4), np.float32))
    run("run", tmp_path / "m.onnx", f"--input=x={tmp_path / 'x.npy'}", "--output-dir", tmp_path / "out")
    assert np.load(tmp_path / "out/y.npy").shape == (1, 2, 3)
    np.save(tmp_path / "t.npy", np.ones((3, 2, 3), np.float32))
    np.save(tmp_path / "xs.npy", np.ones((3, 2, 4), np.float32))
    run("compile", tmp_path / "m.onnx", "-o", tmp_path / "train", "--batch=3", "--loss=mse")
    run(tmp_path / "train", f"--data=x={tmp_path / 'xs.npy'}", f"--data=labels={tmp_path / 't.npy'}", "--steps=1")
    write(tmp_path / "m.onnx", [("MatMul", ["x", "w"], ["y"], {})], {"x": ["n", 2, 4]}, {"y": ["n", 2, 5]}, {"w": np.ones((4, 3), np.float32)})
    assert "is declared with 5 elements along axis 2" in run("check", tmp_path / "m.onnx", exit=3).stderr
