"""The models that are mutated: ONNX's own backend tests, and the smaller reference models."""
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

# Operators that gradc refuses by design: no gradient is wanted, or not yet there. They are drawn now
# and then, for the refusal. A wrong entry costs nothing but the draw.
REFUSED = frozenset("""Adagrad Adam AffineGrid ArrayFeatureExtractor Attention Binarizer BitCast BitShift
    BitwiseAnd BitwiseNot BitwiseOr BitwiseXor BlackmanWindow CausalConvWithState CenterCropPad Col2Im
    Compress ConvInteger DFT DeformConv DequantizeLinear Det DynamicQuantizeLinear FlexAttention GRU
    Gradient GridSample HammingWindow HannWindow ImageDecoder LRN LSTM LabelEncoder LinearAttention Loop
    LpPool MatMulInteger MaxUnpool MelWeightMatrix Momentum NonMaxSuppression NonZero Optional
    OptionalGetElement OptionalHasElement QLinearConv QLinearMatMul QuantizeLinear RNN RegexFullMatch
    ReverseSequence RoiAlign RotaryEmbedding STFT Scan SequenceMap StringConcat StringNormalizer
    StringSplit TensorScatter TfIdfVectorizer TreeEnsemble Unique Acos Asin Atan""".split())


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


def _tensors_only(model):
    ports = [*model.graph.input, *model.graph.output]
    return all(v.type.WhichOneof("value") == "tensor_type" and
               v.type.tensor_type.elem_type not in (TensorProto.STRING, TensorProto.COMPLEX64,
                                                    TensorProto.COMPLEX128) for v in ports)


@functools.cache
def backend_tests():
    """{operator: [folders]}, by the operator of each model's first node that is not Constant."""
    found = {}
    for group in GROUPS:
        for folder in sorted((ONNX_TESTS / group).iterdir()):
            if not is_small(folder):
                continue
            model = onnx.load(folder / "model.onnx")
            if not model.graph.node or not _tensors_only(model):
                continue
            kinds = [n.op_type for n in model.graph.node if n.op_type != "Constant"] or ["Constant"]
            refused = [k for k in kinds if k in REFUSED]
            label = folder.name.removeprefix("test_").split("_")[0] if len(kinds) > 3 else kinds[0]
            found.setdefault("refused" if refused else label, []).append(folder)
    return found


def _read_tensor(path):
    t = TensorProto()
    t.ParseFromString(path.read_bytes())
    return numpy_helper.to_array(t)


def load_backend_test(folder):
    model = onnx.load(folder / "model.onnx")
    held = {t.name for t in model.graph.initializer}
    names = [i.name for i in model.graph.input if i.name not in held]
    feed = {name: _read_tensor(folder / f"test_data_set_0/input_{i}.pb")
            for i, name in enumerate(names)
            if (folder / f"test_data_set_0/input_{i}.pb").exists()}
    return Seed(folder.name, model, feed)


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
    labels = backend_tests()
    names = sorted(labels)
    label = random.choice(names)
    return load_backend_test(random.choice(labels[label]))
