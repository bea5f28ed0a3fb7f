"""--export-preprocessing: what --scale and --mean-std compute is part of the exported model, whose input takes the data files' values."""
import numpy as np
import onnx
import onnxruntime
import pytest
import reference
from onnx import helper, numpy_helper

VALUE, NODE = helper.make_tensor_value_info, helper.make_node
ROWS = 20


def save(path, shape, name="image", inner=False, last=False, opset=17, extra=False):
    """Means of a picture's channels through a linear layer. inner: a branch reads the input, too; extra: a second input of floats."""
    random = np.random.default_rng(0)
    channels, axes = (shape[-1], [1, 2]) if last else (shape[0], list(range(2, len(shape) + 1)))
    weights = {"w": random.normal(size=(channels, 4)).astype(np.float32), "yes": np.array(True)}
    nodes = [NODE("ReduceMean", [name], ["m"], axes=axes, keepdims=0) if axes else NODE("Identity", [name], ["m"])]
    at = "m"
    if inner:
        branch = lambda op, y: helper.make_graph([NODE("Sign", [name], [f"{y}_s"]), NODE(op, [f"{y}_s"], [f"{y}_t"]), NODE("ReduceMean", [f"{y}_t"], [f"{y}_m"], axes=axes, keepdims=0),
                                                  NODE("Add", ["m", f"{y}_m"], [y])], y, [], [VALUE(y, 1, None)])
        nodes.append(NODE("If", ["yes"], ["n"], then_branch=branch("Neg", "a"), else_branch=branch("Abs", "b")))
        at = "n"
    nodes += [NODE("MatMul", [at, "w"], ["h"]), NODE("Dropout", ["h"], ["d"])]
    inputs = [VALUE(name, 1, ["N", *shape])]
    if extra:
        inputs.append(VALUE("more", 1, ["N", 4]))
        nodes.append(NODE("Add", ["d", "more"], ["y"]))
    else:
        nodes.append(NODE("Identity", ["d"], ["y"]))
    graph = helper.make_graph(nodes, "g", inputs, [VALUE("y", 1, ["N", 4])], [numpy_helper.from_array(v, n) for n, v in weights.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)


def write_data(folder, shape, dtype):
    random = np.random.default_rng(1)
    low, high = (0, 256) if dtype == np.uint8 else (-100, 100)
    x = random.integers(low, high, (ROWS, *shape)).astype(dtype)
    np.save(folder / "x.npy", x)
    np.save(folder / "labels.npy", random.integers(0, 4, ROWS))
    channels = shape[0]
    np.save(folder / "ms.npy", np.stack([random.uniform(0.2, 0.6, channels), random.uniform(0.1, 0.3, channels)]).astype(np.float32))
    return x


def results(path, feed, rows):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, {n: v[i:i + rows] for n, v in feed.items()})[0] for i in range(0, ROWS, rows)])


@pytest.mark.parametrize("shape, name, dtype, options, ops, more", [
    ((3, 5, 6), "image", np.uint8, ["--scale=image=0.0039215686"], ["Cast", "Mul", "Cast"], {}),
    ((3, 5, 6), "image", np.uint8, ["--scale=image=0.01,-1.5"], ["Cast", "Mul", "Add", "Cast"], {"inner": True}),
    ((3, 5, 6), "image", np.uint8, ["--scale=image=0.0039215686", "--mean-std=image=ms.npy"], ["Cast", "Mul", "Sub", "Div", "Cast"], {"inner": True}),
    ((3, 5, 6), "x", np.uint8, ["--mean-std=x=ms.npy"], ["Cast", "Sub", "Div", "Cast"], {}),
    ((5, 6, 3), "im_f", np.int16, ["--scale=im_f=0.01,0.5", "--mean-std=im_f=ms.npy"], ["Cast", "Mul", "Add", "Sub", "Div", "Cast"], {"last": True}),
    ((7,), "é", np.float64, ["--mean-std=é=ms.npy"], None, {}),
    ((7,), "features", np.uint8, ["--mean-std=features=ms.npy"], ["Cast", "Sub", "Div", "Cast"], {}),
    ((1, 5, 6), "image", np.uint8, ["--scale=image=0.5"], ["Cast", "Mul", "Cast"], {"extra": True}),
])
def test_the_export_takes_what_the_data_files_hold(run, tmp_path, shape, name, dtype, options, ops, more):
    save(tmp_path / "m.onnx", shape, name, **more)
    x = write_data(tmp_path, shape if not more.get("last") else shape[::-1], dtype)
    if more.get("last"):
        x = np.ascontiguousarray(np.moveaxis(x, 1, 3).reshape(ROWS, *shape))
        np.save(tmp_path / "x.npy", x)
    feed, extra = {name: x}, []
    if more.get("extra"):
        feed["more"] = np.random.default_rng(3).normal(size=(ROWS, 4)).astype(np.float32)
        np.save(tmp_path / "more.npy", feed["more"])
        extra = ["--data=more=more.npy"]
    run("compile", "m.onnx", "-o", "train", f"--batch={ROWS}", "--loss=cross_entropy", "--optimizer=sgd")
    data = [f"--data={name}=x.npy", *extra, "--data=labels=labels.npy", *options, "--progress=off", "--table=off"]
    command = [tmp_path / "train", *data, "--steps=2", "--export=out.onnx", "--save=saved", "--export-preprocessing=on"]
    if ops is None:
        said = run(*command, exit=4).stderr
        assert "no other name of this length is free" in said and not (tmp_path / "out.onnx").exists()
        return
    run(*command)
    out, before = onnx.load(tmp_path / "out.onnx"), onnx.load(tmp_path / "m.onnx")
    onnx.checker.check_model(out, full_check=True)
    assert [i.name for i in out.graph.input] == [i.name for i in before.graph.input]
    assert out.graph.input[0].type.tensor_type.elem_type == helper.np_dtype_to_tensor_dtype(np.dtype(dtype)) and list(out.graph.input[1:]) == list(before.graph.input[1:])
    assert [n.op_type for n in out.graph.node] == ops + [n.op_type for n in before.graph.node]
    inputs = [f"--input={n}={'x' if n == name else n}.npy" for n in feed]
    run(tmp_path / "train", "--resume=saved", "--once", *inputs, *options, "--output-dir=once")
    want = reference.results(tmp_path / "once")["y"]
    for rows in (1, 7, ROWS):
        assert np.max(np.abs(results(tmp_path / "out.onnx", feed, rows) - want)) <= 1e-6 * np.max(np.abs(want))
    # The floats that the first node reads are those of training, to the bit.
    floats = next(n.output[0] for n in out.graph.node[::-1] if n.op_type == "Cast")
    out.graph.output.append(VALUE(floats, 1, None))
    session = onnxruntime.InferenceSession(out.SerializeToString(), providers=["CPUExecutionProvider"])
    double = x.astype(np.float64)
    for o in options:
        option, value = o.split("=")[0], o.split("=")[-1]
        if option == "--scale":
            mul, _, add = value.partition(",")
            double = double * float(mul) + float(add or 0)
        else:
            mean, std = np.load(tmp_path / value).astype(np.float64).reshape(2, *([1] * (len(shape) - 1) + [-1] if more.get("last") else [-1] + [1] * (len(shape) - 1)))
            double = (double - mean) / std
    assert np.array_equal(session.run([floats], feed)[0], double.astype(np.float32))

    # Off, and without data for the type: bytes.
    run(tmp_path / "train", "--resume=saved", "--steps=0", "--export=plain.onnx", *options)
    plain = onnx.load(tmp_path / "plain.onnx")
    assert plain.graph.input == before.graph.input and plain.graph.node == before.graph.node
    run(tmp_path / "train", "--resume=saved", "--steps=0", "--export=bytes.onnx", *options, "--export-preprocessing=on")
    if dtype == np.uint8:
        assert (tmp_path / "bytes.onnx").read_bytes() == (tmp_path / "out.onnx").read_bytes()
    # What goes out comes in again: its data need no option.
    run("compile", "out.onnx", "-o", "again", f"--batch={ROWS}", "--loss=cross_entropy")
    run(tmp_path / "again", "--once", *inputs, "--output-dir=again-once")
    assert np.max(np.abs(reference.results(tmp_path / "again-once")["y"] - want)) <= 1e-6 * np.max(np.abs(want))


@pytest.mark.parametrize("options, exit, text", [
    ([], 2, "no input is preprocessed: give --scale NAME=MUL[,ADD] or --mean-std NAME=FILE"),
    (["--scale=image=0.1", "--export-preprocessing=perhaps"], 2, "--export-preprocessing"),
    (["--scale=image=x"], 2, "is not MUL or MUL,ADD"),
])
def test_bad_preprocessing(run, tmp_path, options, exit, text):
    save(tmp_path / "m.onnx", (3, 5, 6))
    write_data(tmp_path, (3, 5, 6), np.uint8)
    run("compile", "m.onnx", "-o", "train", f"--batch={ROWS}", "--loss=cross_entropy")
    preprocessing = [] if any("--export-preprocessing" in o for o in options) else ["--export-preprocessing=on"]
    said = run(tmp_path / "train", "--steps=0", "--export=out.onnx", *preprocessing, *options, exit=exit).stderr
    assert text in said and not (tmp_path / "out.onnx").exists()


def test_preprocessing_needs_an_export(run, tmp_path):
    save(tmp_path / "m.onnx", (3, 5, 6))
    run("compile", "m.onnx", "-o", "train", f"--batch={ROWS}", "--loss=cross_entropy")
    said = run(tmp_path / "train", "--steps=0", "--export-preprocessing=on", "--scale=image=0.1", exit=2).stderr
    assert "--export-preprocessing needs --export FILE.onnx" in said


def test_an_input_that_is_an_output(run, tmp_path):
    save(tmp_path / "m.onnx", (3, 5, 6))
    model = onnx.load(tmp_path / "m.onnx")
    model.graph.output.append(model.graph.input[0])
    onnx.save(model, tmp_path / "m.onnx")
    run("compile", "m.onnx", "-o", "train", f"--batch={ROWS}", "--loss=cross_entropy:y")
    said = run(tmp_path / "train", "--steps=0", "--export=out.onnx", "--export-preprocessing=on", "--scale=image=0.1", exit=4).stderr
    assert 'nodes for input "image" cannot be added to the exported model: "image": it is an output, too' in said
