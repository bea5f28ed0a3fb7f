"""The models that are mutated: ONNX's own backend tests, the cases of tests/operators, and the smaller reference models."""
import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx.backend.test
from onnx import TensorProto, numpy_helper

ONNX_TESTS = Path(onnx.backend.test.__file__).parent / "data"
TESTS = Path(__file__).resolve().parents[1]
REFERENCE = ("lr_iris_ml", "mlp_digits", "mlp_diabetes", "mobilenet_mini", "cnn_mnist")
GROUPS = ("node", "simple", "pytorch-operator", "pytorch-converted")
LARGEST = 100_000  # bytes of a seed and its data

# Operators that gradc refuses by design. They are drawn now and then, for the refusal.
REFUSED = frozenset("""ArrayFeatureExtractor Binarizer ImageDecoder LabelEncoder RegexFullMatch StringConcat
    StringNormalizer StringSplit TreeEnsemble""".split())


@dataclass
class Seed:
    name: str
    model: onnx.ModelProto
    feed: dict  # input name: array


def nodes_of(graph):
    """All nodes, those of subgraphs too."""
    for node in graph.node:
        yield node
        for a in node.attribute:
            if a.type == a.GRAPH:
                yield from nodes_of(a.g)


def is_small(folder):
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) <= LARGEST


def tensor_type_in(kind):
    """The type of the tensors in a TypeProto: its own, or that of what a sequence or an optional holds."""
    while (which := kind.WhichOneof("value")) in ("sequence_type", "optional_type"):
        kind = getattr(kind, which).elem_type
    return kind.tensor_type if which == "tensor_type" else None


def _readable(model):
    types = [tensor_type_in(v.type) for v in [*model.graph.input, *model.graph.output]]
    return all(t and t.elem_type not in (TensorProto.STRING, TensorProto.COMPLEX64, TensorProto.COMPLEX128)
               for t in types)


@functools.cache
def backend_tests():
    """{operator: [folders]}, by the operator of each model's first node that is not Constant."""
    found = {}
    for group in GROUPS:
        for folder in sorted((ONNX_TESTS / group).iterdir()):
            if not is_small(folder):
                continue
            model = onnx.load(folder / "model.onnx")
            if not model.graph.node or not _readable(model):
                continue
            kinds = [n.op_type for n in model.graph.node if n.op_type != "Constant"] or ["Constant"]
            refused = [k for k in kinds if k in REFUSED]
            ports = [*model.graph.input, *model.graph.output]
            if refused:
                label = "refused"
            elif any(v.type.WhichOneof("value") != "tensor_type" for v in ports):
                label = f"list {kinds[0]}"
            else:
                label = folder.name.removeprefix("test_").split("_")[0] if len(kinds) > 3 else kinds[0]
            found.setdefault(label, []).append(folder)
    return found


def read_value(path, kind):
    """An array; of a sequence a list of arrays; of an optional either of them, or None."""
    return read_message(path, {"sequence_type": onnx.SequenceProto, "optional_type": onnx.OptionalProto}.get(
        kind.WhichOneof("value"), TensorProto))


def read_message(path, proto):
    message = proto.FromString(path.read_bytes())
    if isinstance(message, TensorProto):
        return numpy_helper.to_array(message)
    if isinstance(message, onnx.SequenceProto):
        return numpy_helper.to_list(message)
    return numpy_helper.to_optional(message)


def load_backend_test(folder):
    model = onnx.load(folder / "model.onnx")
    held = {t.name for t in model.graph.initializer}
    inputs = [i for i in model.graph.input if i.name not in held]
    feed = {v.name: read_value(folder / f"test_data_set_0/input_{i}.pb", v.type)
            for i, v in enumerate(inputs)
            if (folder / f"test_data_set_0/input_{i}.pb").exists()}
    return Seed(folder.name, model, feed)


@functools.cache
def operator_cases():
    """{operator: [(tables, case)]} of tests/operators, which has what ONNX's tests do not: onnxruntime's operators, old opsets."""
    import sys

    sys.path.insert(0, str(TESTS / "operators"))
    import case as tables

    found = {}
    for family in tables.families():
        for group in tables.cases(family).values():
            for case in group:
                found.setdefault((case.domain, case.op), []).append((tables, case))
    return found


def load_operator_case(tables, case):
    def narrow(x):
        return x.astype(np.float32) if x is not None and x.dtype == np.float64 else x

    if case.op != "BitCast" and not any(isinstance(a, onnx.GraphProto) for a in case.attrs.values()):
        case = tables.Case(**{**vars(case), "inputs": {name: narrow(x) for name, x in case.inputs.items()}})
    parts = tables.model([case])
    return Seed(f"tests/operators {case.name}", tables.with_total(parts, {}, case.opset, case.domain), dict(parts.feeds))


@functools.cache
def _reference_folder():
    """Where the reference models lie, unpacked once for a run."""
    import sys
    import tempfile

    beside = TESTS.parents[1] / "shared/models"
    if all((beside / name / "model.onnx").exists() for name in REFERENCE):
        return beside
    sys.path.insert(0, str(TESTS / "models"))
    import unpack

    kept = tempfile.TemporaryDirectory(prefix="gradc-models-")
    for name in REFERENCE:
        unpack.unpack(name, Path(kept.name) / name)
    _reference_folder.kept = kept
    return Path(kept.name)


def load_reference(name):
    import json

    folder = _reference_folder() / name
    reference = json.loads((folder / "reference.json").read_text())
    feed = {i["name"]: np.load(folder / i["file"])[:2] for i in reference["inputs"]}
    return Seed(name, onnx.load(folder / "model.onnx"), feed)


def draw(random):
    """A seed: each label of the backend tests equally often."""
    if random.random() < 0.03:
        return load_reference(random.choice(REFERENCE))
    if random.random() < 0.25:
        found = operator_cases()
        return load_operator_case(*random.choice(found[random.choice(sorted(found))]))
    labels = backend_tests()
    names = sorted(labels)
    label = random.choice(names)
    return load_backend_test(random.choice(labels[label]))
