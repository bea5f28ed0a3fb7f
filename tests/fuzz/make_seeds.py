#!/usr/bin/env python3
"""Seeds for fuzz_onnx: each kind of node in the reference models as a model of its own, at most a few
kilobytes, into corpus/onnx/. Seeds for fuzz_operators: the models of ONNX's backend tests, into a folder.

usage: tests/fuzz/make_seeds.py MODELS_DIR
       tests/fuzz/make_seeds.py --operators FOLDER
"""
import hashlib
import sys
from pathlib import Path

import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference

HERE = Path(__file__).resolve().parent
SMALL = 64  # elements of a tensor that stays data; larger ones become inputs


def kind_of(node):
    return (node.op_type, node.domain, len(node.input), len(node.output),
            tuple(sorted(a.name for a in node.attribute)))


def types_of(model):
    graph = shape_inference.infer_shapes(model).graph
    return {v.name: v for v in [*graph.input, *graph.output, *graph.value_info]}


def constants_of(graph):
    found = {t.name: t for t in graph.initializer}
    for n in graph.node:
        for a in n.attribute:
            if n.op_type == "Constant" and a.name == "value":
                found[n.output[0]] = a.t
    return found


def model_of(node, types, constants, model):
    inputs, initializers = [], []
    for name in dict.fromkeys(n for n in node.input if n):
        t = constants.get(name)
        if t is not None and numpy_helper.to_array(t).size <= SMALL:
            copy = onnx.TensorProto()
            copy.CopyFrom(t)
            copy.name = name
            initializers.append(copy)
        elif t is not None:
            inputs.append(helper.make_tensor_value_info(name, t.data_type, list(t.dims)))
        elif name in types:
            inputs.append(types[name])
        else:
            return None
    outputs = [types.get(n) or helper.make_tensor_value_info(n, TensorProto.FLOAT, None)
               for n in node.output if n]
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    del copy.metadata_props[:]
    for v in [*inputs, *outputs]:
        del v.metadata_props[:]
    graph = helper.make_graph([copy], "seed", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


def copy_backend_tests(folder):
    """The models of ONNX's backend tests, each under its test's name."""
    data = Path(onnx.__file__).parent / "backend/test/data"
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(data.glob("*/*/model.onnx")):
        if path.stat().st_size <= 65536:
            (folder / f"{path.parent.name}.onnx").write_bytes(path.read_bytes())


def main():
    if sys.argv[1] == "--operators":
        copy_backend_tests(Path(sys.argv[2]))
        return
    seen, folder = set(), HERE / "corpus/onnx"
    for path in sorted(Path(sys.argv[1]).glob("*/model.onnx")):
        model = onnx.load(path)
        types, constants = types_of(model), constants_of(model.graph)
        for node in model.graph.node:
            if kind_of(node) in seen:
                continue
            seed = model_of(node, types, constants, model)
            if seed is None or seed.ByteSize() > 4096:
                continue
            seen.add(kind_of(node))
            data = seed.SerializeToString(deterministic=True)
            name = f"{node.op_type}_{hashlib.sha256(data).hexdigest()[:8]}.onnx"
            (folder / name).write_bytes(data)
    print(f"{len(seen)} seeds")


main()
