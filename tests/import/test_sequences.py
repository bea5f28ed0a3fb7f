"""Sequences and optionals through `gradc run` and `grad`: files, elements that are inputs and results of their own, what is refused."""
import json
from pathlib import Path

import numpy as np
import onnx
import onnx.backend.test
import pytest
from onnx import TensorProto, helper, numpy_helper

ENGINES = ["interp", "compiled"]
RAGGED = [np.array([1, 2, 3], np.float32), np.array([[4], [5]], np.float32), np.array([], np.float32)]


def tensor_type(shape=None):
    return helper.make_tensor_type_proto(TensorProto.FLOAT, shape)


def sequence(shape=None):
    return helper.make_sequence_type_proto(tensor_type(shape))


def save(path, nodes, inputs, outputs, opset=18):
    graph = helper.make_graph(nodes, "lists", [helper.make_value_info(n, t) for n, t in inputs.items()],
                              [helper.make_value_info(n, t) for n, t in outputs.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)


def write(path, proto):
    path.write_bytes(proto.SerializeToString())
    return path


def squares():
    body = helper.make_graph([helper.make_node("Mul", ["e", "e"], ["ee"])], "body", [helper.make_value_info("e", tensor_type())],
                             [helper.make_value_info("ee", tensor_type())])
    return helper.make_node("SequenceMap", ["xs"], ["ys"], body=body)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("elements", [RAGGED, RAGGED[:1], []], ids=len)
def test_a_sequence_comes_and_goes(run, tmp_path, engine, elements):
    save(tmp_path / "m.onnx", [squares()], {"xs": sequence()}, {"ys": sequence()})
    file = write(tmp_path / "xs.pb", numpy_helper.from_list(elements, "xs", onnx.SequenceProto.TENSOR))
    run("run", "m.onnx", f"--engine={engine}", f"--input=xs={file}", "--output-dir=pb", "--output-format=pb")
    names = json.loads((tmp_path / "pb/names.json").read_text())
    assert names == {"ys": {"kind": "sequence", "file": "ys.pb"}}
    read = onnx.SequenceProto.FromString((tmp_path / "pb/ys.pb").read_bytes())
    assert read.name == "ys" and [p.name for p in (tmp_path / "pb").iterdir() if p.suffix == ".pb"] == ["ys.pb"]
    got = numpy_helper.to_list(read)
    assert len(got) == len(elements)
    for y, x in zip(got, elements):
        np.testing.assert_array_equal(y, x * x)
    run("run", "m.onnx", f"--engine={engine}", f"--input=xs={file}", "--output-dir=npy")
    names = json.loads((tmp_path / "npy/names.json").read_text())
    assert names["ys"] == {"kind": "sequence", "elements": [f"ys[{i}]" for i in range(len(elements))]}
    for i, x in enumerate(elements):
        np.testing.assert_array_equal(np.load(tmp_path / "npy" / names[f"ys[{i}]"]["file"]), x * x)


@pytest.mark.parametrize("engine", ENGINES)
def test_gradients_of_elements(run, tmp_path, engine):
    """sum of the squares of all elements"""
    nodes = [squares(), helper.make_node("ConcatFromSequence", ["ys"], ["all"], axis=0), helper.make_node("ReduceSum", ["all"], ["loss"], keepdims=0)]
    save(tmp_path / "m.onnx", nodes, {"xs": sequence([None])}, {"loss": tensor_type([])})
    elements = [np.array([1, -2], np.float32), np.array([3], np.float32)]
    file = write(tmp_path / "xs.pb", numpy_helper.from_list(elements, "xs", onnx.SequenceProto.TENSOR))
    run("grad", "m.onnx", "--loss=output:loss", f"--engine={engine}", f"--input=xs={file}", "--wrt=xs[0]", "--wrt=xs[1]", "--output-dir=g")
    names = json.loads((tmp_path / "g/names.json").read_text())
    for i, x in enumerate(elements):
        np.testing.assert_array_equal(np.load(tmp_path / "g" / names[f"xs[{i}]"]["file"]), 2 * x)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("element", [np.arange(3, dtype=np.float32), None], ids=["something", "nothing"])
def test_an_optional(run, tmp_path, engine, element):
    nodes = [helper.make_node("Identity", ["o"], ["same"]), helper.make_node("OptionalHasElement", ["o"], ["has"])]
    optional = helper.make_optional_type_proto(tensor_type([3]))
    save(tmp_path / "m.onnx", nodes, {"o": optional}, {"same": optional, "has": helper.make_tensor_type_proto(TensorProto.BOOL, [])})
    file = write(tmp_path / "o.pb", numpy_helper.from_optional(element, "o", onnx.OptionalProto.TENSOR))
    run("run", "m.onnx", f"--engine={engine}", f"--input=o={file}", "--output-dir=out", "--output-format=pb")
    read = onnx.OptionalProto.FromString((tmp_path / "out/same.pb").read_bytes())
    assert read.HasField("tensor_value") == (element is not None)
    np.testing.assert_array_equal(numpy_helper.to_optional(read), element)
    assert numpy_helper.to_array(onnx.load_tensor(tmp_path / "out/has.pb")) == (element is not None)



@pytest.mark.parametrize("engine", ENGINES)
def test_an_optional_of_a_npy_file(run, tmp_path, engine):
    nodes = [helper.make_node("OptionalGetElement", ["o"], ["x"]), helper.make_node("Neg", ["x"], ["y"])]
    save(tmp_path / "m.onnx", nodes, {"o": helper.make_optional_type_proto(tensor_type([3]))}, {"y": tensor_type([3])})
    np.save(tmp_path / "o.npy", np.arange(3, dtype=np.float32))
    run("run", "m.onnx", f"--engine={engine}", "--input=o=o.npy", "--output-dir=out")
    np.testing.assert_array_equal(np.load(tmp_path / "out/y.npy"), [0, -1, -2])


def test_a_sequence_of_a_npy_file(run, tmp_path):
    save(tmp_path / "m.onnx", [squares()], {"xs": sequence()}, {"ys": sequence()})
    np.save(tmp_path / "xs.npy", np.zeros(3, np.float32))
    done = run("run", "m.onnx", "--engine=interp", "--input=xs=xs.npy", "--output-dir=out", exit=2)
    assert "--input xs=xs.npy: the input is a sequence: need a .pb file" in done.stderr


REFUSED = {
    "at": (helper.make_node("SequenceAt", ["xs", "seven"], ["y"]), "position 7 is outside of a sequence of 3"),
    "empty_element": (helper.make_node("OptionalGetElement", ["nothing"], ["y"]), "the optional has no element"),
    "types": (helper.make_node("SequenceInsert", ["xs", "seven"], ["y"]), "elements of f32 and s64 cannot be in one sequence"),
    "tensor_wanted": (helper.make_node("Relu", ["xs"], ["y"]), "input 0 is a sequence, need a tensor"),
    "sequence_wanted": (helper.make_node("SequenceLength", ["seven"], ["y"]), "input 0 is no sequence"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused(run, tmp_path, name):
    node, said = REFUSED[name]
    nodes = [helper.make_node("Constant", [], ["seven"], value_int=7),
             helper.make_node("Optional", [], ["nothing"], type=tensor_type([3])), node]
    save(tmp_path / "m.onnx", nodes, {"xs": sequence()}, {"y": onnx.TypeProto()})
    file = write(tmp_path / "xs.pb", numpy_helper.from_list(RAGGED, "xs", onnx.SequenceProto.TENSOR))
    assert said in run("run", "m.onnx", "--engine=interp", f"--input=xs={file}", "--output-dir=out", exit=3).stderr


def test_a_length_that_nothing_says(run, tmp_path):
    save(tmp_path / "m.onnx", [squares()], {"xs": sequence()}, {"ys": sequence()})
    done = run("check", "m.onnx", exit=4)
    assert 'input "xs" is a sequence: its elements are not known' in done.stderr


@pytest.mark.parametrize("content", [b"", b"\xff", b"\x1a\x05\x08", b"\x1a\x04\x08\x03\x10\x01"], ids=["empty", "tag", "cut", "no_numbers"])
def test_files_that_are_none(run, tmp_path, content):
    """An empty file is an empty sequence."""
    save(tmp_path / "m.onnx", [squares()], {"xs": sequence()}, {"ys": sequence()})
    (tmp_path / "xs.pb").write_bytes(content)
    done = run("run", "m.onnx", "--engine=interp", "--input=xs=xs.pb", "--output-dir=out", exit=None)
    assert done.returncode == (6 if content else 0), done.stderr


def test_a_tensor_for_an_optional_sequence(run, tmp_path):
    save(tmp_path / "m.onnx", [helper.make_node("OptionalHasElement", ["xs"], ["y"])], {"xs": helper.make_optional_type_proto(sequence())},
         {"y": helper.make_tensor_type_proto(TensorProto.BOOL, [])})
    file = write(tmp_path / "xs.pb", numpy_helper.from_optional(np.zeros(3, np.float32), "xs", onnx.OptionalProto.TENSOR))
    done = run("run", "m.onnx", "--engine=interp", f"--input=xs={file}", "--output-dir=out", exit=6)
    assert "xs.pb: holds a tensor, needs a sequence" in done.stderr


def test_elements_of_another_type(run, tmp_path):
    save(tmp_path / "m.onnx", [squares()], {"xs": sequence([2])}, {"ys": sequence()})
    file = write(tmp_path / "xs.pb", numpy_helper.from_list([np.zeros(3, np.float32)], "xs", onnx.SequenceProto.TENSOR))
    done = run("run", "m.onnx", "--engine=interp", f"--input=xs={file}", "--output-dir=out", exit=None)
    assert 'input "xs": element 0 is f32 of rank 1, not as the model declares it' in done.stderr and done.returncode


INTEGERS = helper.make_tensor_type_proto(TensorProto.INT32, [2])
OUTPUTS = {
    "type": (sequence(), 'output "ys[0]" is declared with element type 1, it is s32', "SequenceConstruct"),
    "rank": (helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.INT32, [2, 2])), "is declared with rank 2, it has rank 1",
             "SequenceConstruct"),
    "tensor": (INTEGERS, 'output "ys" is declared as a tensor, it is a sequence', "SequenceConstruct"),
    "optional": (helper.make_sequence_type_proto(INTEGERS), 'output "ys" is declared as a sequence, it is a tensor', "Optional"),
    "no_list": (helper.make_sequence_type_proto(INTEGERS), 'output "ys" is declared as a sequence, it is a tensor', "Identity"),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_output_is_as_declared(run, tmp_path, name):
    declared, said, op = OUTPUTS[name]
    save(tmp_path / "m.onnx", [helper.make_node(op, ["x"], ["ys"])], {"x": helper.make_tensor_type_proto(TensorProto.INT32, [2])},
         {"ys": declared})
    assert said in run("check", "m.onnx", exit=3).stderr


def test_a_loop_of_no_iterations_gives_the_optional_it_was_given(run, tmp_path):
    """As the sequence that it is declared to give."""
    data = Path(onnx.backend.test.__file__).parent / "data/node/test_loop16_seq_none"
    cond = write(tmp_path / "cond.pb", numpy_helper.from_array(np.array(False)))
    given = write(tmp_path / "given.pb", numpy_helper.from_optional([np.array(7, np.float32)], "given", onnx.OptionalProto.SEQUENCE))
    run("run", data / "model.onnx", "--engine=interp", f"--input=trip_count={data}/test_data_set_0/input_0.pb", f"--input=cond={cond}",
        f"--input=opt_seq={given}", "--output-dir=out", "--output-format=pb")
    assert json.loads((tmp_path / "out/names.json").read_text())["seq_res"]["kind"] == "sequence"
    read = onnx.SequenceProto.FromString((tmp_path / "out/seq_res.pb").read_bytes())
    np.testing.assert_array_equal(numpy_helper.to_list(read), [7])


def test_an_optional_sequence_that_is_nothing(run, tmp_path):
    optional = helper.make_optional_type_proto(sequence([5]))
    save(tmp_path / "m.onnx", [helper.make_node("Optional", [], ["o"], type=sequence([5]))], {}, {"o": optional})
    run("run", "m.onnx", "--engine=interp", "--output-dir=out", "--output-format=pb")
    assert numpy_helper.to_optional(onnx.OptionalProto.FromString((tmp_path / "out/o.pb").read_bytes())) is None
