#!/usr/bin/env python3
"""Writes models that must be refused (or read) in a known way, one folder per case.

usage: make_malformed.py FOLDER

Case names follow the table of malformed inputs: W wire format, M model, G graph, T tensors, E external
data, S shapes, A attention and fused operators, C names. `cases()` yields (name, write, codes): write(folder) makes
folder/model.onnx and what lies beside it, codes are the allowed exit codes of `gradc check`.
"""
import hashlib
import os
import sys

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

OK, INVALID, UNSUPPORTED, SYSTEM = 0, 3, 4, 5
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


# ---- building blocks
def tensor(name, array):
    return numpy_helper.from_array(np.asarray(array), name)


def value(name, shape=(2, 3), kind=FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes, inputs=None, outputs=None, initializers=(), opset=17, ir=8, functions=(), **more):
    inputs = [value("x")] if inputs is None else inputs
    outputs = [value("y", None)] if outputs is None else outputs
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(initializers))
    imports = [helper.make_opsetid("", opset)] if opset is not None else []
    imports += more.pop("imports", [])
    return helper.make_model(graph, opset_imports=imports, ir_version=ir,
                             functions=list(functions), **more)


def node(op, inputs=("x",), outputs=("y",), name="n", **attributes):
    return helper.make_node(op, list(inputs), list(outputs), name=name, **attributes)


def simple():
    w = tensor("w", np.arange(6, dtype=np.float32).reshape(3, 2) / 7)
    return model([node("MatMul", ["x", "w"])], initializers=[w])


def varint(v):
    out = b""
    while True:
        out += bytes([(v & 0x7F) | (0x80 if v > 0x7F else 0)])
        v >>= 7
        if not v:
            return out


def field(number, wire, content=b""):
    head = varint(number << 3 | wire)
    return head + (varint(len(content)) + content if wire == 2 else content)


def nested(number_path, depth, core=b""):
    for i in range(depth):
        core = field(number_path[i % len(number_path)], 2, core)
    return core


class Case:
    all = []

    def __init__(self, name, codes, write):
        self.name, self.codes, self.write = name, codes, write
        Case.all.append(self)


def raw(name, codes, content):
    def write(folder):
        with open(os.path.join(folder, "model.onnx"), "wb") as f:
            f.write(content() if callable(content) else content)
    Case(name, codes, write)


def proto(name, codes, make):
    raw(name, codes, lambda: make().SerializeToString())


def edited(name, codes, edit, base=simple):
    def make():
        m = base()
        edit(m)
        return m
    proto(name, codes, make)


def replaced(name, codes, old, new):
    """The simple model with some bytes of equal length replaced."""
    assert len(old) == len(new)
    raw(name, codes, lambda: simple().SerializeToString().replace(old, new))


# ---- W: the wire format
def wire_cases():
    good = simple().SerializeToString()
    bad = {INVALID}
    raw("W1-empty", bad, b"")
    raw("W2-one-byte", bad, b"\x08")
    raw("W3-text", bad, b"hello, this is a text file\n")
    raw("W3-gzip", bad, b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03" + bytes(40))
    raw("W3-zip", bad, b"PK\x03\x04\x14\x00\x00\x00\x08\x00" + bytes(40))
    raw("W3-elf", bad, b"\x7fELF\x02\x01\x01" + bytes(57))
    raw("W3-png", bad, b"\x89PNG\r\n\x1a\n" + bytes(40))
    for n in range(1, len(good), 7):
        raw(f"W4-prefix-{n}", bad, good[:n])
    for i in range(0, len(good), 11):
        flipped = bytearray(good)
        flipped[i] ^= 0x41
        raw(f"W5-flip-{i}", {OK, INVALID, UNSUPPORTED, SYSTEM}, bytes(flipped))
    raw("W6-length-beyond-parent", bad, good + b"\x3a\xff\xff\x03abc")
    raw("W6-length-2g", bad, b"\x3a\xff\xff\xff\xff\x07abc")
    raw("W7-varint-11-bytes", bad, b"\x08" + b"\xff" * 10 + b"\x01")
    raw("W7-varint-70-bits", bad, b"\x08" + b"\xff" * 9 + b"\x7f")
    raw("W8-tag-0", bad, good + b"\x00\x01")
    for wire in (3, 4, 6, 7):
        raw(f"W8-wire-{wire}", bad, good + bytes([29 << 3 & 0x78 | wire]) + bytes(8))
    raw("W8-graph-as-varint", bad, b"\x08\x08" + field(7, 0, varint(5)))
    raw("W8-dims-as-float", bad, field(7, 2, field(5, 2, field(1, 5, bytes(4)))))
    for depth in (101, 5000, 20000):
        body = nested((6, 5, 1), depth)  # attribute.g, node.attribute, graph.node
        raw(f"W9-if-{depth}", bad, lambda body=body: field(7, 2, body))
        kinds = nested((4, 1), depth)    # type.sequence_type, sequence.elem_type
        raw(f"W9-sequence-{depth}", bad, lambda kinds=kinds: field(7, 2, field(11, 2, field(2, 2, kinds))))
    many = {OK, INVALID, UNSUPPORTED}
    raw("W10-nodes", many, lambda: field(7, 2, field(1, 2) * 2_000_000))
    raw("W10-initializers", many, lambda: field(7, 2, field(5, 2) * 2_000_000))
    raw("W10-inputs", many, lambda: field(7, 2, field(11, 2) * 2_000_000))
    raw("W10-unknown", many, lambda: good + field(99, 0, b"\x01") * 2_000_000)
    raw("W10-dims", many, lambda: field(7, 2, field(5, 2, field(1, 0, b"\x01") * 2_000_000)))

    def sparse(folder):
        with open(os.path.join(folder, "model.onnx"), "wb") as f:
            f.write(good)
            f.truncate(2**31)
    Case("W11-2-gib", bad, sparse)
    raw("W12-two-graphs", bad, good + field(7, 2, simple().graph.SerializeToString()))
    raw("W12-two-ir-versions", bad, good + b"\x08\x08")
    replaced("W13-nul-in-name", bad, b"MatMul", b"Mat\0ul")
    replaced("W13-invalid-utf8", bad, b"MatMul", b"Mat\xfful")
    proto("W13-name-1-mib", bad, lambda: model([node("Relu", name="n" * (1 << 20))]))
    proto("W13-escapes", {UNSUPPORTED},
          lambda: model([node("Nope", name="\x1b[31mred\u202e\n\"")]))

    def special(kind):
        def write(folder):
            path = os.path.join(folder, "model.onnx")
            if kind == "fifo":
                os.mkfifo(path)
            elif kind == "directory":
                os.mkdir(path)
            elif kind == "zero":
                os.symlink("/dev/zero", path)
            else:
                os.symlink("nowhere.onnx", path)
        Case(f"W14-{kind}", {SYSTEM}, write)
    for kind in ("fifo", "directory", "zero", "dangling"):
        special(kind)


# ---- M: the model
def model_cases():
    bad = {INVALID}
    edited("M1-no-graph", bad, lambda m: m.ClearField("graph"))
    edited("M2-no-ir-version", bad, lambda m: m.ClearField("ir_version"))
    for v in (0, -1, 999):
        edited(f"M2-ir-{v}", bad, lambda m, v=v: setattr(m, "ir_version", v))
    edited("M2-ir-2", {UNSUPPORTED}, lambda m: setattr(m, "ir_version", 2))
    edited("M2-ir-14", {UNSUPPORTED}, lambda m: setattr(m, "ir_version", 14))
    proto("M3-no-opset", bad, lambda: model([node("Relu")], opset=None))
    proto("M3-domain-twice", bad,
          lambda: model([node("Relu")], imports=[helper.make_opsetid("", 18)]))
    proto("M3-domain-twice-alike", {OK}, lambda: model([node("Relu")], imports=[helper.make_opsetid("ai.onnx", 17)]))
    proto("M3-domain-twice-alias", bad,
          lambda: model([node("Relu")], imports=[helper.make_opsetid("ai.onnx", 18)]))
    for v in (0, -1):
        proto(f"M3-opset-{v}", bad, lambda v=v: model([node("Relu")], opset=v))
    for v in (1, 5):
        proto(f"M3-opset-{v}", {OK}, lambda v=v: model([node("Relu")], opset=v))
    for v in (28, 9999):
        proto(f"M3-opset-{v}", {INVALID, UNSUPPORTED}, lambda v=v: model([node("Relu")], opset=v))
    lacks = {UNSUPPORTED}
    proto("M4-unknown-op", lacks, lambda: model([node("Nope")]))
    proto("M4-two-unknown-ops", lacks, lambda: model([
        node("Nope", outputs=["t"], name="first"), node("Never", ["t"], name="second")]))
    proto("M4-unknown-domain", lacks, lambda: model(
        [node("Frobnicate", domain="acme")], imports=[helper.make_opsetid("acme", 1)]))
    proto("M4-unimported-domain", {INVALID, UNSUPPORTED},
          lambda: model([node("Frobnicate", domain="acme")]))
    proto("M4-deprecated", lacks, lambda: model([node("Upsample", ["x", "s"])], opset=17,
                                                initializers=[tensor("s", np.float32([1, 2]))]))
    proto("M4-not-yet", lacks, lambda: model([node("Gelu")], opset=17))


# ---- G: the graph
def subgraph(nodes, outputs, name="sub"):
    return helper.make_graph(nodes, name, [], outputs)


def branches(then, other):
    cond = tensor("c", np.array(True))
    return model([node("If", ["c"], then_branch=then, else_branch=other)], initializers=[cond])


def function(name, nodes, inputs=("a",), outputs=("b",), attributes=()):
    return helper.make_function("f", name, list(inputs), list(outputs), nodes,
                                [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)],
                                list(attributes))


def calling(name, functions):
    return model([node(name, domain="f")], functions=functions,
                 imports=[helper.make_opsetid("f", 1)])


def call(name, inputs=("a",), outputs=("b",)):
    return node(name, inputs, outputs, domain="f")


def graph_cases():
    bad = {INVALID}
    proto("G1-never-produced", bad, lambda: model([node("Relu", ["q"])]))
    proto("G1-not-sorted", bad, lambda: model([node("Relu", ["t"]), node("Abs", ["x"], ["t"])]))
    proto("G1-self-loop", bad, lambda: model([node("Relu", ["y"])]))
    proto("G1-cycle", bad, lambda: model([node("Add", ["x", "u"], ["t"]),
                                          node("Relu", ["t"], ["u"]), node("Abs", ["u"])]))
    proto("G2-output-twice", bad, lambda: model([node("Relu"), node("Abs")]))
    proto("G2-input-twice", bad, lambda: model([node("Relu")], inputs=[value("x"), value("x")]))
    proto("G2-output-is-input", bad, lambda: model([node("Relu", ["x"], ["x"]), node("Abs")]))
    y = [value("r", None)]
    proto("G2-shadowed", bad, lambda: branches(
        subgraph([node("Relu", ["x"], ["x"])], [value("x", None)]),
        subgraph([node("Relu", ["x"], ["r"])], y)))
    proto("G3-output-missing", bad, lambda: model([node("Relu", outputs=["t"])]))
    proto("G3-no-outputs", bad, lambda: model([node("Relu")], outputs=[]))
    proto("G4-nothing", bad, lambda: model([node("Relu"), node("Relu", [], [])]))
    proto("G4-no-op-type", bad, lambda: model([node("")]))
    edited("G5-initializer-unnamed", bad,
           lambda m: m.graph.initializer.append(tensor("", np.float32([1]))))
    edited("G5-initializer-twice", bad,
           lambda m: m.graph.initializer.append(m.graph.initializer[0]))
    proto("G6-too-many-inputs", bad, lambda: model([node("Relu", ["x", "x"])]))
    proto("G6-too-few-inputs", bad, lambda: model([node("Add", ["x"])]))
    proto("G6-too-many-outputs", bad, lambda: model([node("Relu", outputs=["y", "z"])]))
    proto("G6-required-left-out", bad, lambda: model([node("Add", ["", "x"])]))
    proto("G6-no-inputs", bad, lambda: model([node("Concat", [], axis=0)]))

    def attribute(edit, op="Softmax", **attributes):
        def make():
            n = node(op, **attributes)
            edit(n)
            return model([n])
        return make
    proto("G7-twice", bad, attribute(lambda n: n.attribute.append(n.attribute[0]), axis=1))
    proto("G7-wrong-type", bad, attribute(lambda n: None, axis=1.5))
    proto("G7-type-unlike-data", bad,
          attribute(lambda n: setattr(n.attribute[0], "type", AttributeProto.FLOAT), axis=1))
    proto("G7-two-kinds-of-data", bad, attribute(lambda n: setattr(n.attribute[0], "f", 2), axis=1))
    proto("G7-no-type", bad, attribute(lambda n: n.attribute[0].ClearField("type"), axis=1))
    proto("G7-unknown", bad, attribute(lambda n: None, nonsense=1))
    proto("G7-missing", bad, lambda: model([node("Concat", ["x"])]))

    def reference(n):
        n.attribute[0].ref_attr_name = "k"
        n.attribute[0].ClearField("i")
    proto("G7-reference-outside", bad, attribute(reference, axis=1))
    proto("G8-unknown-capture", bad, lambda: branches(
        subgraph([node("Relu", ["nowhere"], ["r"])], y),
        subgraph([node("Relu", ["x"], ["s"])], [value("s", None)])))
    proto("G8-branch-types", bad, lambda: branches(
        subgraph([node("Relu", ["x"], ["r"])], [value("r", (2, 3))]),
        subgraph([node("Shape", ["x"], ["s"])], [value("s", (2,), INT64)])))
    proto("G8-branch-outputs", bad, lambda: branches(
        subgraph([node("Relu", ["x"], ["r"])], y),
        subgraph([node("Relu", ["x"], ["s"]), node("Abs", ["x"], ["t"])],
                 [value("s", None), value("t", None)])))
    proto("G9-self", bad, lambda: calling("A", [function("A", [call("A")])]))
    proto("G9-cycle", bad, lambda: calling("A", [
        function("A", [call("B")]), function("B", [call("A")])]))

    def chain(n):
        last = [function(f"F{n - 1}", [node("Relu", ["a"], ["b"])])]
        return [function(f"F{i}", [call(f"F{i + 1}")]) for i in range(n - 1)] + last
    proto("G9-chain-101", bad, lambda: calling("F0", chain(101)))
    proto("G9-chain-20", {OK}, lambda: calling("F0", chain(20)))
    proto("G9-10001-functions", bad, lambda: calling("F0", [
        function(f"F{i}", [node("Relu", ["a"], ["b"])]) for i in range(10001)]))

    def explosion():
        names = ["a"] + [f"t{i}" for i in range(9)] + ["b"]
        levels = [function(f"F{k}", [call(f"F{k + 1}", [names[i]], [names[i + 1]])
                                     for i in range(10)]) for k in range(20)]
        return levels + [function("F20", [node("Relu", ["a"], ["b"])])]
    proto("G9-explosion", bad, lambda: calling("F0", explosion()))
    proto("G9-too-many-arguments", bad, lambda: model(
        [node("A", ["x", "x"], domain="f")], functions=[function("A", [node("Relu", ["a"], ["b"])])],
        imports=[helper.make_opsetid("f", 1)]))


def with_branches(edit):
    """A function with an If, one of whose branches is edited."""
    def make():
        body = [node("If", ["c"], ["b"],
                     then_branch=subgraph([node("Neg", ["a"], ["q"])], [value("q", None)]),
                     else_branch=subgraph([node("Abs", ["a"], ["r"])], [value("r", None)]))]
        m = model([node("F", ["x", "k"], domain="f")], imports=[helper.make_opsetid("f", 1)],
                  functions=[function("F", body, inputs=("a", "c"))],
                  initializers=[tensor("k", np.array(True))])
        edit(m.functions[0].node[0].attribute[0].g)
        return m
    return make


def function_subgraph_cases():
    bad = {INVALID}
    proto("G11-fine", {OK}, with_branches(lambda g: None))
    proto("G11-output-unnamed", bad, with_branches(lambda g: g.output[0].ClearField("name")))
    proto("G11-input-unnamed", bad, with_branches(lambda g: g.input.add()))
    proto("G11-initializer-unnamed", bad, with_branches(
        lambda g: g.initializer.append(tensor("", np.float32([1])))))
    proto("G11-no-outputs", bad, with_branches(lambda g: g.ClearField("output")))
    proto("G11-empty", bad, with_branches(lambda g: g.Clear()))

    def explosion():
        """Functions that call themselves twice a level, hidden in subgraphs."""
        def level(k):
            inner = [subgraph([call(f"F{k + 1}", ["a"], [f"{s}{i}"]) for i in range(10)],
                              [value(f"{s}9", None)]) for s in "qr"]
            return function(f"F{k}", [
                node("Constant", [], ["c"], value=tensor("", np.array(True))),
                node("If", ["c"], ["b"], then_branch=inner[0], else_branch=inner[1])])
        last = function("F20", [node("Relu", ["a"], ["b"])])
        return calling("F0", [level(k) for k in range(20)] + [last])
    proto("G11-explosion", bad, explosion)


# ---- T: tensors
def with_tensor(edit, kind=FLOAT, dims=(2, 3)):
    def make():
        t = TensorProto(name="w", data_type=kind, dims=dims)
        edit(t)
        return model([node("Cast", ["w"], to=FLOAT)], initializers=[t])
    return make


def fill(**fields):
    def edit(t):
        for key, v in fields.items():
            if key == "raw_data":
                t.raw_data = v
            else:
                getattr(t, key).extend(v)
    return edit


def sparse(indices, dims=(4,), values=(1.0, 2.0)):
    def make():
        m = model([node("Relu")])
        s = m.graph.sparse_initializer.add()
        s.values.CopyFrom(tensor("s", np.float32(values)))
        s.indices.CopyFrom(tensor("i", np.int64(indices)))
        s.dims.extend(dims)
        return m
    return make


def tensor_cases():
    bad = {INVALID}
    proto("T1-type-0", bad, with_tensor(fill(float_data=[0] * 6), kind=0))
    proto("T1-type-999", bad, with_tensor(fill(float_data=[0] * 6), kind=999))
    proto("T1-type-newer", {UNSUPPORTED}, with_tensor(fill(raw_data=bytes(6)), kind=27))
    proto("T1-string", {UNSUPPORTED}, with_tensor(fill(string_data=[b"a"] * 6), kind=8))
    proto("T1-complex", {UNSUPPORTED}, with_tensor(fill(float_data=[0] * 12), kind=14))
    proto("T2-negative-dim", bad, with_tensor(fill(float_data=[]), dims=(-1, 3)))
    proto("T2-overflow", bad, with_tensor(fill(raw_data=b""), dims=(2**32, 2**32)))
    proto("T2-overflow-bytes", bad, with_tensor(fill(raw_data=b""), dims=(2**61, 1)))
    proto("T2-rank-1025", bad, with_tensor(fill(float_data=[0]), dims=(1,) * 1025))
    proto("T3-no-data", bad, with_tensor(fill(), dims=(2**40,)))
    proto("T3-much-data", bad, with_tensor(fill(raw_data=bytes(4000)), dims=(2,)))
    proto("T3-zero-with-data", bad, with_tensor(fill(raw_data=bytes(4)), dims=(0,)))
    proto("T4-ragged", bad, with_tensor(fill(raw_data=bytes(23))))
    proto("T4-two-fields", bad, with_tensor(fill(raw_data=bytes(24), float_data=[0] * 6)))
    proto("T4-none", bad, with_tensor(fill()))
    families = {"float_data": 1, "int32_data": 6, "int64_data": 7, "double_data": 11,
                "uint64_data": 13}
    for name, kind in families.items():
        proto(f"T5-short-{name}", bad, with_tensor(fill(**{name: [0] * 5}), kind=kind))
        proto(f"T5-long-{name}", bad, with_tensor(fill(**{name: [0] * 7}), kind=kind))
        proto(f"T5-wrong-{name}", bad,
              with_tensor(fill(**{name: [0] * 6}), kind=10 if name != "int32_data" else 1))
    proto("T5-short-strings", bad, with_tensor(fill(string_data=[b"a"]), kind=8))
    proto("T5-strings-in-raw", bad, with_tensor(fill(raw_data=bytes(6)), kind=8))
    for kind in (21, 22, 23):
        proto(f"T6-4-bit-{kind}", bad, with_tensor(fill(raw_data=bytes(5)), kind=kind, dims=(7,)))
        proto(f"T6-4-bit-odd-{kind}", {OK, UNSUPPORTED},
              with_tensor(fill(raw_data=bytes(4)), kind=kind, dims=(7,)))
    proto("T6-2-bit", bad, with_tensor(fill(raw_data=bytes(1)), kind=25, dims=(5,)))
    for kind, out in ((3, 128), (2, 256), (2, -1), (10, 65536), (9, 2), (5, 40000)):
        proto(f"T7-{kind}-{out}", bad, with_tensor(fill(int32_data=[out] * 6), kind=kind))
    proto("T7-raw-bool", bad, with_tensor(fill(raw_data=b"\x02" * 6), kind=9))
    proto("T7-uint32", bad, with_tensor(fill(uint64_data=[2**32] * 6), kind=12))
    for name, indices, dims in (("unsorted", [2, 1], (4,)), ("duplicate", [1, 1], (4,)),
                                ("outside", [1, 4], (4,)), ("negative", [-1, 1], (4,)),
                                ("too-few", [1], (4,)), ("rank-0", [0, 1], ())):
        proto(f"T8-{name}", bad, sparse(indices, dims))
    nan = np.float32([[np.nan, 1], [np.inf, 2], [0, 1]])
    proto("T9-nan", {OK}, lambda: model([node("MatMul", ["x", "w"])], initializers=[tensor("w", nan)]))

    def segment(t):
        t.raw_data = bytes(24)
        t.segment.begin, t.segment.end = 0, 6
    proto("T10-segment", {UNSUPPORTED}, with_tensor(segment))


# ---- E: external data
def external(name, codes, keys, prepare=None, shape=(2, 3), extra=None):
    def write(folder):
        t = TensorProto(name="w", data_type=FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
        for k, v in keys:
            t.external_data.add(key=k, value=v)
        if extra:
            extra(t)
        with open(os.path.join(folder, "w.bin"), "wb") as f:
            f.write(np.arange(6, dtype=np.float32).tobytes())
        if prepare:
            prepare(folder)
        m = model([node("Add", ["x", "w"])], initializers=[t])
        with open(os.path.join(folder, "model.onnx"), "wb") as f:
            f.write(m.SerializeToString())
    Case(name, codes, write)


def link(kind):
    def prepare(folder):
        path = os.path.join(folder, "l")
        if kind == "final":
            os.symlink("w.bin", path)
        elif kind == "out":
            os.symlink("/etc/passwd", path)
        elif kind == "out-parent":
            os.symlink("/etc", path)
        elif kind == "loop":
            os.symlink("l", path)
        elif kind == "gone":
            os.symlink("gone.bin", path)
        elif kind == "parent":
            os.mkdir(os.path.join(folder, "real"))
            os.rename(os.path.join(folder, "w.bin"), os.path.join(folder, "real", "w.bin"))
            os.symlink("real", path)
        elif kind == "hard":
            os.link(os.path.join(folder, "w.bin"), path)
        elif kind == "fifo":
            os.mkfifo(path)
        else:
            os.mkdir(path)
    return prepare


def external_cases():
    bad = {INVALID}
    location = [("location", "w.bin")]
    external("E0-good", {OK}, location + [("offset", "0"), ("length", "24")])
    content = np.arange(6, dtype=np.float32).tobytes()
    external("E0-sha1", {OK}, location + [("checksum", hashlib.sha1(content).hexdigest())])
    for i, path in enumerate(["../w.bin", "a/../../w.bin", "/etc/passwd", "", ".", "w.bin/",
                              "a//w.bin", "x" * 5000, "a\\w.bin", "C:w.bin", "./", "./.", "./../w.bin"]):
        external(f"E1-{i}", bad, [("location", path)])
    for path in ("./w.bin", "././w.bin"):
        external(f"E1-{path.replace('/', '-')}", {OK}, [("location", path)])
    external("E2-final-link", {OK}, [("location", "l")], link("final"))
    external("E2-parent-link", {OK}, [("location", "./l/./w.bin")], link("parent"))
    external("E2-link-out", bad, [("location", "l")], link("out"))
    external("E2-parent-link-out", bad, [("location", "l/passwd")], link("out-parent"))
    external("E2-link-loop", bad, [("location", "l")], link("loop"))
    external("E2-link-gone", {SYSTEM}, [("location", "l")], link("gone"))
    external("E2-hard-link", bad, [("location", "l")], link("hard"))
    external("E2-fifo", bad, [("location", "l")], link("fifo"))
    external("E2-directory", bad, [("location", "l")], link("directory"))
    for text in ("-1", "abc", "99999", " 1", "1e3", "9" * 30, ""):
        external(f"E3-offset-{text[:5].strip() or 'empty'}", bad, location + [("offset", text)])
    for text in ("-1", "1000000000000000", "9223372036854775807", "23", "0x18"):
        external(f"E3-length-{text[:6]}", bad, location + [("length", text)])
    external("E3-overflow", bad, location + [("offset", "9223372036854775800"), ("length", "24")])
    external("E4-key-twice", bad, location + location)
    external("E4-passed-over", {OK}, location + [("prepacked_0", "MatMul+0;0;16"), ("prepacked_1", "x"), ("basepath", "/gone")])
    external("E4-unknown-key", bad, location + [("__class__", "x")])
    external("E4-no-location", bad, [("offset", "0")])
    external("E4-raw-too", bad, location, extra=lambda t: setattr(t, "raw_data", bytes(24)))
    external("E5-missing", {SYSTEM}, [("location", "gone.bin")])
    external("E5-truncated", {SYSTEM}, location,
             lambda folder: os.truncate(os.path.join(folder, "w.bin"), 20))
    external("E6-checksum", bad, location + [("checksum", "0" * 40)])

    def overlapping(folder):
        tensors = []
        for name, offset in (("a", 0), ("b", 4)):
            t = TensorProto(name=name, data_type=FLOAT, dims=(5,),
                            data_location=TensorProto.EXTERNAL)
            t.external_data.add(key="location", value="w.bin")
            t.external_data.add(key="offset", value=str(offset))
            tensors.append(t)
        with open(os.path.join(folder, "w.bin"), "wb") as f:
            f.write(np.arange(6, dtype=np.float32).tobytes())
        m = model([node("Add", ["a", "b"])], inputs=[], initializers=tensors)
        with open(os.path.join(folder, "model.onnx"), "wb") as f:
            f.write(m.SerializeToString())
    Case("E7-overlap", {OK}, overlapping)


# ---- S: shapes
def branch(declared):
    """A graph whose result is x, whatever it declares."""
    return helper.make_graph([node("Identity", ["x"], ["z"])], "b", [], [value("z", (2, 3), declared)])


def top_k(k, largest):
    return model([node("TopK", ["a", "k"], ["y", "z"], largest=largest)], inputs=[value("a", (2, 3))], outputs=[value("y", (2, k))],
                 initializers=[tensor("k", np.array([k], np.int64))])


def one(op, shapes, constants=(), opset=17, kinds=None, **attributes):
    """A node with inputs a, b, ... of these shapes and constant inputs behind them."""
    def make():
        names = [chr(97 + i) for i in range(len(shapes))]
        inputs = [value(n, s, (kinds or {}).get(n, FLOAT)) for n, s in zip(names, shapes)]
        inits = [tensor(f"k{i}", c) for i, c in enumerate(constants) if c is not None]
        more = ["" if c is None else f"k{i}" for i, c in enumerate(constants)]
        return model([node(op, names + more, **attributes)], inputs=inputs, initializers=inits,
                     opset=opset)
    return make


def growing():
    """A loop that never ends, whose sequence gets one element more each time."""
    kept = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, None))
    body = helper.make_graph([node("Identity", ["go"], ["on"]), node("SequenceInsert", ["xs", "a"], ["ys"])], "body",
                             [value("i", [], INT64), value("go", [], TensorProto.BOOL), helper.make_value_info("xs", kept)],
                             [value("on", [], TensorProto.BOOL), helper.make_value_info("ys", kept)])
    return model([node("SequenceEmpty", [], ["none"]), node("Loop", ["trips", "", "none"], ["all"], body=body),
                  node("ConcatFromSequence", ["all"], ["y"], axis=0)], inputs=[value("a", [1])],
                 initializers=[tensor("trips", np.int64(2**62))], opset=17)


def i64(*v):
    return np.int64(v)


def shape_cases():
    bad = {INVALID}
    image = (1, 4, 8, 8)
    for name, shapes, attributes in (
            ("rank", [image, (4, 4, 3)], {}), ("dilations", [image, (4, 4, 3, 3)], {"dilations": [1]}),
            ("strides", [image, (4, 4, 3, 3)], {"strides": [1, 1, 1]}),
            ("pads", [image, (4, 4, 3, 3)], {"pads": [1, 1]}),
            ("group-0", [image, (4, 4, 3, 3)], {"group": 0}),
            ("group-3", [image, (4, 4, 3, 3)], {"group": 3}),
            ("channels", [image, (4, 3, 3, 3)], {}), ("kernel", [image, (4, 4, 9, 9)], {}),
            ("stride-0", [image, (4, 4, 3, 3)], {"strides": [0, 1]}),
            ("kernel-shape", [image, (4, 4, 3, 3)], {"kernel_shape": [5, 5]}),
            ("bias", [image, (4, 4, 3, 3), (5,)], {})):
        proto(f"S1-conv-{name}", bad, one("Conv", shapes, **attributes))
    proto("S1-pool-kernel", bad, one("MaxPool", [image], kernel_shape=[9, 9]))
    proto("S1-pool-rank", bad, one("MaxPool", [(4, 8)], kernel_shape=[2]))
    proto("S1-pool-zero", bad, one("MaxPool", [image], kernel_shape=[0, 2]))
    long = (1, 1, 2**31 - 1)
    proto("S1-pool-windows", {UNSUPPORTED}, one("AveragePool", [long], kernel_shape=[3]))
    proto("S1-pool-taps", {OK}, one("AveragePool", [(1, 1, 2**21)], kernel_shape=[2**20]))
    proto("S1-transpose-channels", bad, one("ConvTranspose", [image, (3, 4, 3, 3)]))
    proto("S2-gemm-scalar", bad, one("Gemm", [(), (2, 3)]))
    proto("S2-matmul-scalar", bad, one("MatMul", [(), (2, 3)]))
    proto("S2-matmul-inner", bad, one("MatMul", [(2, 3), (4, 5)]))
    proto("S2-gemm-inner", bad, one("Gemm", [(2, 3), (4, 5)]))
    for i, text in enumerate(["ij,jk->ik,", "i!j->ij", "ij->ijk", "ijk->i", "ij->ii", "...i...->i",
                              ",->", "->", "ij,kl,mn->ij"]):
        proto(f"S2-einsum-{i}", bad, one("Einsum", [(2, 3)], equation=text))
    proto("S2-add", bad, one("Add", [(2, 3), (2, 4)]))
    proto("S3-reshape-two-open", bad, one("Reshape", [(2, 3)], [i64(-1, -1)]))
    proto("S3-reshape-product", bad, one("Reshape", [(2, 3)], [i64(2, 4)]))
    proto("S3-reshape-zero", bad, one("Reshape", [(2, 3)], [i64(2, 3, 0)]))
    proto("S3-reshape-below", bad, one("Reshape", [(2, 3)], [i64(-2, 3)]))
    proto("S3-reshape-divide", bad, one("Reshape", [(2, 3)], [i64(-1, 0, 0)]))
    proto("S3-reshape-overflow", bad, one("Reshape", [(2, 3)], [i64(2**62, 4)]))
    proto("S3-expand", bad, one("Expand", [(1, 3)], [i64(2**40, 2**40, 3)]))
    proto("S3-tile", bad, one("Tile", [(2, 3)], [i64(2**40, 2**40)]))
    proto("S3-slice-step-0", bad, one("Slice", [(2, 3)], [i64(0), i64(2), i64(0), i64(0)]))
    proto("S3-slice-extremes", {OK}, one("Slice", [(2, 3)], [
        i64(2**63 - 1), i64(-2**63), i64(0), i64(-2**63)]))
    proto("S3-split-0", bad, one("Split", [(2, 3)], [i64(0)], opset=13))
    proto("S3-split-twice", bad, one("Split", [(2, 3)], [i64(2)], opset=18, num_outputs=1))
    proto("S3-axis-of-old-add", bad, one("Add", [(2, 3), (3,)], opset=6, broadcast=1, axis=-2**63))
    proto("S3-reverse-axes", bad, one("ReverseSequence", [(2, 3)], [i64(1, 1, 1)], time_axis=1, batch_axis=2**63 - 1))
    proto("S3-resize-policy", bad, one("Resize", [(1, 1, 4, 4)], [np.float32([]), np.float32([1, 1, 2, 2])], opset=19,
                                       keep_aspect_ratio_policy="not_larger"))
    proto("S3-pad-negative", bad, one("Pad", [(2, 3)], [i64(-5, 0, 0, 0)]))
    proto("S3-pad-extreme", bad, one("Pad", [(2, 3)], [i64(-2**63, 0, 2**63 - 1, 0)]))
    proto("S3-pad-huge", bad, one("Pad", [(2, 3)], [i64(2**62, 0, 2**62, 0)]))
    proto("S3-gather-axis", bad, one("Gather", [(2, 3)], [i64(0)], axis=2))
    proto("S3-gather-index", bad, one("Gather", [(2, 3)], [i64(2)], axis=0))
    proto("S3-topk", bad, one("TopK", [(2, 3)], [i64(4)]))
    for name, places, want in (("fine", [1, -3], {OK}), ("above", [0, 3], bad), ("below", [-3, 0], bad), ("extreme", [2 ** 63 - 1, 0], bad),
                               ("least", [0, -2 ** 63], bad)):
        at = tensor("k", np.array([[0, 0], places], np.int64))
        proto(f"S3-gathernd-{name}", want, lambda at=at: model([node("GatherND", ["a", "k"])], inputs=[value("a", (2, 3))],
                                                               outputs=[value("y", (2,))], initializers=[at]))
        rows = tensor("u", np.zeros(2, np.float32))
        proto(f"S3-scatternd-{name}", want, lambda at=at, rows=rows: model(
            [node("ScatterND", ["a", "k", "u"])], inputs=[value("a", (2, 3))], initializers=[at, rows]))
    proto("S3-topk-fine", {OK}, lambda: top_k(3, 0))
    proto("S3-topk-above", bad, lambda: top_k(4, 0))
    for largest in (2, -1, 2 ** 63 - 1):
        proto(f"S3-topk-largest-{largest}", bad, lambda largest=largest: top_k(3, largest))
    for flag, op in (("keepdims", "ReduceMax"), ("transA", "Gemm")):
        inputs = ["x", "x"] if op == "Gemm" else ["x"]
        proto(f"S3-flag-{flag}", bad, lambda op=op, flag=flag, inputs=inputs: model(
            [node(op, inputs, **{flag: 2})], inputs=[value("x", (2, 2))]))
    proto("S3-word", bad, lambda: model([node("DepthToSpace", blocksize=1, mode="other")],
                                        inputs=[value("x", (1, 1, 2, 2))]))
    proto("S3-stash-type", bad, lambda: model(
        [node("LayerNormalization", ["x", "x"], stash_type=TensorProto.UINT8)]))
    proto("S3-labels-of-floats", bad, lambda: model(
        [node("NegativeLogLikelihoodLoss", ["x", "t"])], inputs=[value("x"), value("t", (2,))]))
    proto("S3-batch-norm-outputs", bad, lambda: model(
        [node("BatchNormalization", ["x", "s", "s", "s", "s"], ["y", "m", "v"])],
        inputs=[value("x"), value("s", (3,))]))
    proto("S3-older-than-the-operator", {UNSUPPORTED}, lambda: model([node("Round")], opset=10))
    proto("S3-output-without-name", bad, lambda: model(
        [node("TopK", ["x", "k"], ["y", ""])], initializers=[tensor("k", np.array([1]))]))
    proto("S3-root-of-integers", {OK}, lambda: model(
        [node("ReduceL2")], inputs=[value("x", kind=INT64)], outputs=[value("y", None, INT64)]))
    proto("S3-split-of-rank-2", bad, lambda: model(
        [node("SplitToSequence", ["x", "p"], ["s"]), node("SequenceLength", ["s"])],
        outputs=[value("y", (), INT64)], initializers=[tensor("p", np.array([[1], [1]]))]))
    proto("S3-statistic-of-rank-0", bad, lambda: model(
        [node("BatchNormalization", ["x", "s", "s", "s", "v"], ["y", "m", "w"], training_mode=1)],
        inputs=[value("x"), value("s", (3,))], initializers=[tensor("v", np.float32(1))]))
    proto("S3-slope-of-larger-rank", bad, lambda: model(
        [node("PRelu", ["x", "s"])], inputs=[value("x"), value("s", (1, 2, 3))]))
    proto("S3-branch-type", bad, lambda: model(
        [node("If", ["c"], then_branch=branch(INT64), else_branch=branch(INT64))],
        initializers=[tensor("c", np.array(False))]))
    window = {"kernel_shape": [2, 2]}
    places = i64(0, 1, 2, 9).reshape(1, 1, 2, 2)
    for name, want, op, shapes, constants, opset, attributes in (
            ("lppool-p", bad, "LpPool", [(1, 1, 4, 4)], [], 18, {**window, "p": 0}),
            ("lppool-dilation", bad, "LpPool", [(1, 1, 4, 4)], [], 18, {**window, "dilations": [2**40, 1]}),
            ("lrn-size", bad, "LRN", [(1, 3, 4, 4)], [], 13, {"size": 0}),
            ("lrn-huge", bad, "LRN", [(1, 3, 4, 4)], [], 13, {"size": 2**62}),
            ("unpool-place", bad, "MaxUnpool", [(1, 1, 2, 2)], [i64(0, 1, 2, 16).reshape(1, 1, 2, 2)], 11, {**window, "strides": [2, 2]}),
            ("unpool-shape", bad, "MaxUnpool", [(1, 1, 2, 2)], [places, i64(1, 1, 4, 3)], 11, {**window, "strides": [2, 2]}),
            ("unpool-huge", bad, "MaxUnpool", [(1, 1, 2, 2)], [places, i64(1, 1, 2**62, 2**62)], 11, {**window, "strides": [2, 2]}),
            ("transposed-shape", bad, "ConvTranspose", [(1, 1, 2, 2), (1, 1, 2, 2)], [], 11, {"output_shape": [2**62, 2**62]}),
            ("roi-columns", bad, "RoiAlign", [(1, 1, 4, 4), (2, 5)], [i64(0, 0)], 16, {}),
            ("roi-batch", bad, "RoiAlign", [(1, 1, 4, 4), (2, 4)], [i64(0, 1)], 16, {}),
            ("roi-samples", bad, "RoiAlign", [(1, 1, 4, 4), (2, 4)], [i64(0, 0)], 16, {"sampling_ratio": 2**40}),
            ("roi-pooled", bad, "MaxRoiPool", [(1, 1, 4, 4), (2, 5)], [], 13, {"pooled_shape": [0, 2]}),
            ("col2im-blocks", bad, "Col2Im", [(1, 4, 8)], [i64(4, 4), i64(2, 2)], 18, {}),
            ("col2im-huge", bad, "Col2Im", [(1, 4, 9)], [i64(2**62, 2**62), i64(2, 2)], 18, {}),
            ("center-size", bad, "CenterCropPad", [(2, 3)], [i64(2**62, 2**62)], 18, {}),
            ("center-axes", bad, "CenterCropPad", [(2, 3)], [i64(1, 1)], 18, {"axes": [0, 0]}),
            ("reverse-length", bad, "ReverseSequence", [(2, 3)], [i64(1, 2, 3)], 17, {}),
            ("reverse-axes", bad, "ReverseSequence", [(2, 2)], [i64(1, 2)], 17, {"time_axis": 1}),
            ("affine-size", bad, "AffineGrid", [(2, 2, 3)], [i64(3, 1, 4, 4)], 20, {}),
            ("affine-huge", bad, "AffineGrid", [(1, 2, 3)], [i64(1, 1, 2**62, 2**62)], 20, {}),
            ("grid-coordinates", bad, "GridSample", [(1, 1, 4, 4), (1, 2, 2, 3)], [], 20, {}),
            ("grid-mode", bad, "GridSample", [(1, 1, 4, 4), (1, 2, 2, 2)], [], 20, {"mode": "bilinear"}),
            ("deform-offset", bad, "DeformConv", [(1, 1, 4, 4), (1, 1, 2, 2), (1, 8, 3, 2)], [], 19, {}),
            ("deform-groups", bad, "DeformConv", [(1, 1, 4, 4), (1, 1, 2, 2), (1, 8, 3, 3)], [], 19, {"offset_group": 3}),
            ("det-square", bad, "Det", [(2, 3)], [], 17, {}),
            ("dft-axis", bad, "DFT", [(1, 8, 1)], [], 17, {"axis": 2}),
            ("dft-length", bad, "DFT", [(1, 8, 1)], [np.int64(2**62)], 17, {}),
            ("dft-onesided", bad, "DFT", [(1, 8, 2)], [], 17, {"onesided": 1}),
            ("stft-frames", bad, "STFT", [(1, 8, 1)], [np.int64(1), np.float32(range(9))], 17, {}),
            ("stft-step", bad, "STFT", [(1, 8, 1)], [np.int64(0), np.float32(range(4))], 17, {}),
            ("resize-scale", bad, "Resize", [(4, 4)], [np.float32([]), np.float32([np.inf, 1])], 13, {}),
            ("resize-antialias", {UNSUPPORTED}, "Resize", [(2**20, 1)], [np.float32([]), np.float32([0.4, 1])], 18, {"mode": "linear", "antialias": 1})):
        proto(f"S3-{name}", want, one(op, shapes, constants, opset=opset, **attributes))
    for name, size in (("negative", -1), ("huge", 2**62)):
        proto(f"S3-window-{name}", bad, one("HannWindow", [], [np.int64(size)]))
    for name, numbers in (("bands", (0, 32, 8000, 0, 4000)), ("edge", (4, 32, 8000, 0, 7000)), ("huge", (2**40, 2**40, 8000, 0, 4000))):
        proto(f"S3-mel-{name}", bad, one("MelWeightMatrix", [], [np.int64(n) for n in numbers[:3]] + [np.float32(n) for n in numbers[3:]]))
    proto("S3-onehot", bad, one("OneHot", [(2, 3)], [np.int64(2**62), np.float32([0, 1])],
                                kinds={"a": INT64}))
    proto("S3-transpose", bad, one("Transpose", [(2, 3)], perm=[0, 0]))
    proto("S3-squeeze", bad, one("Squeeze", [(2, 3)], [i64(0)]))
    proto("S3-unsqueeze", bad, one("Unsqueeze", [(2, 3)], [i64(0, 0)]))
    proto("S3-concat", bad, one("Concat", [(2, 3), (2, 4)], axis=0))
    proto("S3-constant-of-shape", bad, one("ConstantOfShape", [], [i64(2**40, 2**40)]))
    proto("S3-depth", bad, one("DepthToSpace", [(1, 3, 2, 2)], blocksize=2**31))
    proto("S4-rank", {INVALID, UNSUPPORTED}, one("ConstantOfShape", [], [np.ones(10**6, np.int64)]))
    for op in ("Div", "Mod"):
        for a, b in ((1, 0), (-2**63, -1)):
            def folded(op=op, a=a, b=b):
                return model([node(op, ["p", "q"], ["r"]), node("Reshape", ["x", "r"])],
                             initializers=[tensor("p", i64(a)), tensor("q", i64(b))])
            proto(f"S5-{op}-{a}-{b}", {INVALID}, folded)
    proto("S6-sequence", {UNSUPPORTED}, growing)
    proto("S6-range-stash", bad, one("Range", [], [np.float16(0), np.float16(4), np.float16(1)], opset=27, stash_type=2))
    proto("S6-range", {INVALID, UNSUPPORTED}, one("Range", [], [
        np.int64(0), np.int64(10**18), np.int64(1)]))
    proto("S6-range-step-0", {INVALID, UNSUPPORTED}, one("Range", [], [
        np.int64(0), np.int64(10), np.int64(0)]))

    def loop():
        body = helper.make_graph([node("Identity", ["ci"], ["co"])], "body",
                                 [value("i", (), INT64), value("ci", (), TensorProto.BOOL)],
                                 [value("co", (), TensorProto.BOOL)])
        return model([node("Loop", ["t", "c"], ["y"], body=body)], initializers=[
            tensor("t", np.int64(2**63 - 1)), tensor("c", np.array(True))])
    proto("S6-loop", {INVALID, UNSUPPORTED}, loop)
    for name, trips in (("unrolled", 2), ("looped", 1000)):
        def carried(trips=trips):
            """A value whose body declares it with another element type."""
            body = helper.make_graph([node("Identity", ["ci"], ["co"]), node("Relu", ["v"], ["w"])], "body",
                                     [value("i", (), INT64), value("ci", (), TensorProto.BOOL), value("v", (2, 3), TensorProto.DOUBLE)],
                                     [value("co", (), TensorProto.BOOL), value("w", (2, 3))])
            return model([node("Loop", ["t", "c", "x"], body=body)], initializers=[tensor("t", np.int64(trips)), tensor("c", np.array(True))])
        proto(f"S6-loop-type-{name}", bad, carried)

    def scanned():
        body = helper.make_graph([node("Relu", ["v"], ["w"])], "body", [value("v", (3,), INT64)], [value("w", (3,))])
        return model([node("Scan", body=body, num_scan_inputs=1)])
    proto("S6-scan-type", bad, scanned)
    for port, kinds in (("input", (INT64, FLOAT)), ("output", (FLOAT, INT64))):
        def mapped(kinds=kinds):
            body = helper.make_graph([node("Relu", ["v"], ["w"])], "body", [value("v", (2, 3), kinds[0])], [value("w", (2, 3), kinds[1])])
            return model([node("SequenceConstruct", ["x"], ["xs"]), node("SequenceMap", ["xs"], ["ys"], body=body), node("SequenceAt", ["ys", "t"])],
                         initializers=[tensor("t", np.int64(0))], opset=17)
        proto(f"S6-map-type-{port}", bad, mapped)

    def branches(**changes):
        def make():
            own = [node("Add", ["x", "k"], ["a"])]
            then, other = (helper.make_graph(own if "k" in str(c) else [node("Neg", [c.get("reads", "x")], ["a"])], "b", c.get("inputs", []),
                                             [value("a", None)], c.get("initializers", [])) for c in (changes, {}))
            for s in changes.get("sparse", []):
                then.sparse_initializer.append(s)
            return model([node("If", ["c"], then_branch=then, else_branch=other)], initializers=[tensor("c", np.array(True))])
        return make
    spread = helper.make_sparse_tensor(tensor("k", np.float32([5])), tensor("at", np.array([1])), [3])
    proto("S6-branch-sparse", {UNSUPPORTED}, branches(sparse=[spread]))
    proto("S6-branch-input", bad, branches(inputs=[value("q")], reads="q"))

    def bodies(kind_in=None, held=()):
        """SequenceMap with a body whose input is declared otherwise, or has an initializer's name."""
        def make():
            body = helper.make_graph([node("Neg", ["v"], ["w"])], "body", [kind_in or value("v")], [value("w")], list(held))
            return model([node("SequenceConstruct", ["x"], ["xs"]), node("SequenceMap", ["xs"], ["ys"], body=body), node("SequenceAt", ["ys", "t"])],
                         initializers=[tensor("t", np.int64(0))], opset=17)
        return make
    listed = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, None))
    proto("S6-map-input-held", bad, bodies(held=[tensor("v", np.ones((2, 3), np.float32))]))
    proto("S6-map-input-sequence", bad, bodies(helper.make_value_info("v", listed)))
    proto("S6-map-input-map", bad, bodies(helper.make_value_info("v", helper.make_map_type_proto(INT64, listed))))

    def carried_list():
        """A sequence of f32 whose body declares one of f64."""
        doubles = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.DOUBLE, None))
        body = helper.make_graph([node("Identity", ["ci"], ["co"]), node("Identity", ["v"], ["w"])], "body",
                                 [value("i", (), INT64), value("ci", (), TensorProto.BOOL), helper.make_value_info("v", doubles)],
                                 [value("co", (), TensorProto.BOOL), helper.make_value_info("w", doubles)])
        return model([node("SequenceConstruct", ["x"], ["xs"]), node("Loop", ["t", "", "xs"], ["ys"], body=body), node("SequenceAt", ["ys", "z"])],
                     initializers=[tensor("t", np.int64(1)), tensor("z", np.int64(0))])
    proto("S6-loop-list-type", bad, carried_list)
    proto("S7-output-nothing", bad, lambda: model([node("Optional", [], type=helper.make_tensor_type_proto(FLOAT, None))], opset=18))
    for op, dtype in (("QuantizeLinear", FLOAT), ("DequantizeLinear", TensorProto.UINT8)):
        proto(f"S3-{op}-zero-points", bad, one(op, [(2, 3)], [np.float32(1), np.uint8([])], opset=21, kinds={"a": dtype}))
    proto("S7-output-dim", bad, lambda: model([node("Relu")], outputs=[value("y", (2, 4))]))
    proto("S7-output-type", bad, lambda: model([node("Relu")], outputs=[value("y", (2, 3), INT64)]))
    proto("S8-types", bad, lambda: model(
        [node("Add", ["x", "i"])], inputs=[value("x"), value("i", (2, 3), INT64)]))


# ---- C: names
def attended(op, shapes, constants=(), domain="", opset=24, kinds=None, outputs=1, **attributes):
    """As one(), in any domain; shapes may be None where an input is left out."""
    def make():
        names = ["" if s is None else chr(97 + i) for i, s in enumerate(shapes)]
        inputs = [value(n, s, (kinds or {}).get(n, FLOAT)) for n, s in zip(names, shapes) if n]
        inits = [tensor(f"k{i}", c) for i, c in enumerate(constants)]
        one_node = node(op, names + [i.name for i in inits], [f"y{i}" if i else "y" for i in range(outputs)], domain=domain, **attributes)
        return model([one_node], inputs=inputs, initializers=inits, opset=opset, imports=[helper.make_opsetid(domain, 1)] if domain else [])
    return make


def attention_cases():
    bad, refused, microsoft, preview = {INVALID}, {UNSUPPORTED}, "com.microsoft", "ai.onnx.preview"
    heads, flat, linear = [(2, 4, 3, 8)] * 3, [(2, 3, 8)] * 3, {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "linear"}
    two = {"q_num_heads": 2, "kv_num_heads": 2}
    for name, want, op, shapes, attributes in (
            ("rank", bad, "Attention", [(2, 4, 3)] + heads[1:], {}), ("no-heads", bad, "Attention", flat, {}),
            ("heads-3", bad, "Attention", flat, {"q_num_heads": 3, "kv_num_heads": 2}), ("groups", bad, "Attention", [(2, 3, 3, 8)] + [(2, 2, 3, 8)] * 2, {}),
            ("heads-huge", bad, "Attention", flat, {"q_num_heads": 2**62, "kv_num_heads": 2**62}), ("mode", bad, "Attention", heads, {"qk_matmul_output_mode": 4}),
            ("sizes", bad, "Attention", [(2, 4, 3, 8), (2, 4, 3, 6), (2, 4, 3, 8)], {}), ("tokens", bad, "Attention", [(2, 4, 3, 8), (2, 4, 3, 8), (2, 4, 5, 8)], {}),
            ("mask", bad, "Attention", heads + [(3, 4)], {}), ("mask-rank", bad, "Attention", heads + [(1, 2, 4, 3, 3)], {}),
            ("past-alone", bad, "Attention", heads + [None, (2, 4, 3, 8)], {}), ("past", bad, "Attention", heads + [None, (2, 4, 3, 7), (2, 4, 3, 8)], {}),
            ("precision", bad, "Attention", heads, {"softmax_precision": 7}), ("causal", bad, "Attention", heads, {"is_causal": 2}),
            ("attribute-heads", bad, "Attention", heads, {"q_num_heads": 3, "kv_num_heads": 3}),
            ("rotary-rank", bad, "RotaryEmbedding", [(2, 3), (2, 3, 4), (2, 3, 4)], {}), ("rotary-odd", bad, "RotaryEmbedding", [(2, 2, 3, 5), (2, 3, 2), (2, 3, 2)], {}),
            ("rotary-size", bad, "RotaryEmbedding", [(2, 2, 3, 4), (2, 3, 4), (2, 3, 4)], {"rotary_embedding_dim": 8}),
            ("rotary-cache", bad, "RotaryEmbedding", [(2, 2, 3, 4), (2, 3, 3), (2, 3, 2)], {}), ("rotary-tokens", bad, "RotaryEmbedding", [(2, 2, 3, 4), (2, 4, 2), (2, 4, 2)], {}),
            ("rotary-heads", bad, "RotaryEmbedding", [(2, 3, 8), (2, 3, 2), (2, 3, 2)], {"num_heads": 3}),
            ("cache-axis", bad, "TensorScatter", [(2, 5, 3), (2, 2, 3)], {"axis": 0}), ("cache-longer", bad, "TensorScatter", [(2, 5, 3), (2, 6, 3)], {}),
            ("cache-shape", bad, "TensorScatter", [(2, 5, 3), (2, 2, 4)], {}), ("cache-mode", bad, "TensorScatter", [(2, 5, 3), (2, 2, 3)], {"mode": "spiral"})):
        proto(f"A1-{name}", want, attended(op, shapes, **attributes))
    proto("A1-mask-integers", refused, attended("Attention", heads + [(3, 3)], kinds={"d": INT64}))
    proto("A1-cache-place", bad, attended("TensorScatter", [(2, 5, 3), (2, 2, 3)], [i64(0, 4)]))
    proto("A1-rotary-tables", bad, attended("RotaryEmbedding", [(2, 2, 3, 4), (6, 2), (7, 2)], [i64(0, 1, 5, 0, 1, 2).reshape(2, 3)]))
    proto("A1-rotary-positions", bad, attended("RotaryEmbedding", [(2, 2, 3, 4), (6, 2), (6, 2)], [i64(0, 1, 5, 0, 1, 2).reshape(3, 2)]))
    proto("A1-rotary-place", bad, attended("RotaryEmbedding", [(2, 2, 3, 4), (6, 2), (6, 2)], [i64(0, 1, 6, 0, 1, 2).reshape(2, 3)]))
    for name, op, shapes, attributes in (
            ("chunk", "LinearAttention", flat, {**linear, "chunk_size": 0}), ("rule", "LinearAttention", flat, {**two, "update_rule": "cubic"}), ("beta", "LinearAttention", flat, {**two, "update_rule": "delta"}),
            ("decay", "LinearAttention", flat + [None, (2, 3, 2)], linear), ("decay-size", "LinearAttention", flat + [None, (2, 3, 6)], {**two, "update_rule": "gated"}),
            ("state", "LinearAttention", flat + [(2, 2, 4, 5)], linear), ("heads", "LinearAttention", flat, {**linear, "q_num_heads": 3}),
            ("tokens", "LinearAttention", [(2, 4, 8)] + flat[1:], linear), ("conv-state", "CausalConvWithState", [(2, 3, 5), (3, 1, 4), None, (2, 3, 4)], {}),
            ("conv-channels", "CausalConvWithState", [(2, 3, 5), (4, 1, 4)], {}), ("conv-activation", "CausalConvWithState", [(2, 3, 5), (3, 1, 4)], {"activation": "relu"})):
        proto(f"A2-{name}", bad, attended(op, shapes, opset=27, outputs=2, **attributes))
    proto("A3-flex-rank", bad, attended("FlexAttention", flat, domain=preview, opset=26))
    ports = [helper.make_tensor_value_info(p, FLOAT, None) for p in ("s", "t")]
    for name, nodes, inputs in (("shape", [helper.make_node("ReduceSum", ["s"], ["t"])], ports[:1]), ("inputs", [helper.make_node("Identity", ["s"], ["t"])], [])):
        proto(f"A3-flex-{name}", bad, attended("FlexAttention", heads, domain=preview, opset=26, score_mod=helper.make_graph(nodes, "m", inputs, ports[1:])))
    group = {"num_heads": 4, "kv_num_heads": 2}
    lengths = [np.int32([2, 2]), np.int32(3)]
    for name, want, op, shapes, constants, attributes in (
            ("attribute", bad, "Gelu", [(2, 3)], [], {"alpha": 1.0}), ("attribute-type", bad, "QuickGelu", [(2, 3)], [], {"alpha": 1}), ("arity", bad, "BiasGelu", [(2, 3)], [], {}),
            ("bias", bad, "BiasGelu", [(2, 3), (2,)], [], {}), ("bias-scalar", bad, "BiasGelu", [(), (1,)], [], {}), ("skip", bad, "SkipLayerNormalization", [(2, 3, 4), (2, 3, 5), (4,)], [], {}),
            ("skip-of-one", bad, "SkipLayerNormalization", [(2, 3, 4), (2, 3, 1), (4,)], [], {}), ("gamma", bad, "SkipLayerNormalization", [(2, 3, 4), (2, 3, 4), (3,)], [], {}), ("groups", bad, "GroupNorm", [(2, 3, 3, 4), (4,), (4,)], [], {"groups": 3, "activation": 0}),
            ("groups-0", bad, "GroupNorm", [(2, 3, 3, 4), (4,), (4,)], [], {"groups": 0, "activation": 0}), ("channels", bad, "GroupNorm", [(2, 3, 3, 4), (3,), (4,)], [], {"groups": 2, "activation": 0}),
            ("product", bad, "FusedMatMul", [(2, 3), (4, 2)], [], {}), ("activation", refused, "FusedGemm", [(2, 3), (3, 2)], [], {"activation": "Cosine"}),
            ("conv-numbers", bad, "FusedConv", [(1, 2, 4, 4), (2, 2, 3, 3)], [], {"activation": "Clip", "activation_params": [1.0] * 9}),
            ("conv-sum", bad, "FusedConv", [(1, 2, 4, 4), (2, 2, 3, 3), None, (1, 2, 4, 4)], [], {}),
            ("experts", bad, "MoE", [(5, 3), (5, 4), (3, 2, 3), None, (4, 3, 2)], [], {"k": 2}), ("experts-k", bad, "MoE", [(5, 3), (5, 4), (4, 2, 3), None, (4, 3, 2)], [], {"k": 5}),
            ("experts-router", bad, "MoE", [(5, 3), (6, 4), (4, 2, 3), None, (4, 3, 2)], [], {"k": 2}),
            ("experts-swiglu", bad, "MoE", [(5, 3), (5, 4), (4, 2, 3), None, (4, 3, 2)], [], {"k": 2, "activation_type": "swiglu"}),
            ("experts-mixer", refused, "MoE", [(5, 3), (5, 4), (4, 2, 3), None, (4, 3, 2)], [], {"k": 2, "use_sparse_mixer": 1}),
            ("weights", bad, "Attention", [(2, 3, 5), (5, 10)], [], {"num_heads": 2}), ("heads", bad, "Attention", [(2, 3, 5), (5, 12)], [], {"num_heads": 3}),
            ("heads-0", bad, "Attention", [(2, 3, 5), (5, 12)], [], {"num_heads": 0}), ("hidden", bad, "Attention", [(2, 3, 5), (5, 12)], [], {"num_heads": 2, "qkv_hidden_sizes": [2**62, 2**62, 2**63 - 1]}),
            ("past", bad, "Attention", [(2, 3, 5), (5, 12), None, None, (2, 2, 2, 3, 3)], [], {"num_heads": 2}), ("shared", refused, "Attention", [(2, 3, 5), (5, 12)], [], {"num_heads": 2, "past_present_share_buffer": 1}),
            ("mask", refused, "MultiHeadAttention", flat + [None], [np.int32([1, 2, 3, 4, 5, 6, 7, 8])], {"num_heads": 2}), ("mask-floats", bad, "MultiHeadAttention", flat + [None, (2, 3)], [], {"num_heads": 2}),
            ("value-alone", bad, "MultiHeadAttention", [(2, 3, 8), None, (2, 3, 8)], [], {"num_heads": 2}), ("packed", bad, "MultiHeadAttention", [(2, 3, 3, 2, 4)], [], {"num_heads": 2}),
            ("query-heads", bad, "MultiHeadAttention", heads, [], {"num_heads": 4}), ("cache", bad, "MultiHeadAttention", flat + [None, None, None, (2, 2, 3, 3), (2, 2, 3, 4)], [], {"num_heads": 2}),
            ("groups-total", bad, "GroupQueryAttention", [(2, 3, 32), (2, 3, 16), (2, 3, 16), None, None], [np.int32([2, 2]), np.int32(2)], group),
            ("groups-lengths", bad, "GroupQueryAttention", [(2, 3, 32), (2, 3, 16), (2, 3, 16), None, None], [np.int32([2]), np.int32(3)], group),
            ("groups-past", bad, "GroupQueryAttention", [(2, 3, 32), (2, 3, 16), (2, 3, 16), None, None], [np.int32([2, 2]), np.int32(5)], group),
            ("groups-packed", bad, "GroupQueryAttention", [(2, 3, 33), None, None, None, None], lengths, group), ("groups-huge", bad, "GroupQueryAttention", [(2, 3, 32), None, None, None, None], lengths, {"num_heads": 2**62, "kv_num_heads": 2**61}),
            ("groups-codes", refused, "GroupQueryAttention", [(2, 3, 32), (2, 3, 16), (2, 3, 16), None, None], lengths, {**group, "k_quant_type": "PER_TENSOR"}),
            ("groups-window", bad, "GroupQueryAttention", [(2, 3, 32), (2, 3, 16), (2, 3, 16), None, None], lengths, {**group, "local_window_size": 0}),
            ("groups-rotary", bad, "GroupQueryAttention", [(2, 3, 32), (2, 3, 16), (2, 3, 16), None, None], lengths, {**group, "do_rotary": 1})):
        proto(f"A4-{name}", want, attended(op, shapes, constants, domain=microsoft, opset=17, **attributes))
    proto("A4-lengths-unknown", refused, attended("GroupQueryAttention", [(2, 3, 32), (2, 3, 16), (2, 3, 16), None, None, (2,), ()], domain=microsoft, opset=17,
                                                  kinds={"f": TensorProto.INT32, "g": TensorProto.INT32}, **group))
    proto("A4-order-of-one-machine", refused, attended("Conv", [(1, 8, 4, 4), (8, 8, 3, 3)], domain="com.microsoft.nchwc", opset=17))


def name_cases():
    fine = {OK}
    for i, name in enumerate(['"; system("touch hacked"); "', "*/ int x; /*", "a\nb", "%n%n%s",
                              "\u202eevil", "n" * 65000, "\\", "'", "$(id)"]):
        proto(f"C1-{i}", fine, lambda name=name: model(
            [node("Relu", outputs=[name], name=name), node("Abs", [name], name=name + "2")]))
    for name in ("int", "main", "dot_0", "gradc_abi_5", "__global__", "@x", "%0"):
        proto(f"C2-{file_name(name)}", fine, lambda name=name: model(
            [node("MatMul", ["x", name])], initializers=[tensor(name, np.eye(3, dtype=np.float32))]))
    w = np.arange(9, dtype=np.float32).reshape(3, 3)
    proto("C2-mangled-alike", fine, lambda: model(
        [node("MatMul", ["x", "a.b"], ["t"]), node("MatMul", ["t", "a/b"])],
        initializers=[tensor("a.b", w), tensor("a/b", w + 1)]))


def file_name(text):
    return "".join(c if c.isalnum() else "_" for c in text)


def long_chain(n, op=b"Relu"):
    """n nodes one behind the other, by bytes: the package's own builder would take minutes."""
    def name(i):
        return b"x" if i == 0 else b"y" if i == n else b"t%d" % i
    nodes = b"".join(
        field(1, 2, field(1, 2, name(i)) + field(2, 2, name(i + 1)) + field(4, 2, op))
        for i in range(n))
    rest = model([node("Relu")]).graph
    rest.ClearField("node")
    return (field(1, 0, varint(8)) + field(8, 2, field(2, 0, varint(17))) +
            field(7, 2, nodes + rest.SerializeToString()))


def inlined():
    """131 200 nodes, but only after functions are inlined."""
    names = ["a"] + [f"t{i}" for i in range(399)] + ["b"]
    body = [node("Relu", [names[i]], [names[i + 1]]) for i in range(400)]
    chain = ["x"] + [f"c{i}" for i in range(327)] + ["y"]
    calls = [call("F", [chain[i]], [chain[i + 1]]) for i in range(328)]
    return model(calls, functions=[function("F", body)],
                 imports=[helper.make_opsetid("f", 1)]).SerializeToString()


def cases():
    if not Case.all:
        wire_cases()
        model_cases()
        graph_cases()
        function_subgraph_cases()
        tensor_cases()
        external_cases()
        shape_cases()
        attention_cases()
        name_cases()
        raw("G10-chain-100000", {OK}, lambda: long_chain(100_000))
        raw("G10-chain-budget", {OK}, lambda: long_chain(1 << 17))
        raw("G10-chain-over-budget", {UNSUPPORTED}, lambda: long_chain((1 << 17) + 1))
        raw("G10-chain-1000000", {UNSUPPORTED}, lambda: long_chain(1_000_000))
        raw("G10-chain-of-many-primitives", {UNSUPPORTED}, lambda: long_chain(100_000, b"Selu"))
        raw("G10-inlined", {UNSUPPORTED}, inlined)
    return Case.all


def main():
    for case in cases():
        folder = os.path.join(sys.argv[1], case.name)
        os.makedirs(folder, exist_ok=True)
        case.write(folder)


if __name__ == "__main__":
    main()
