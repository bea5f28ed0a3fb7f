"""Differences that are no fault of gradc: which, when, why, and where that is written.

Three kinds of entries: VALUES (both sides give outputs and they differ), ONNXRUNTIME_REFUSES and
GRADC_REFUSES. An entry holds for the first node that differs, or for what the refusal says; its condition
is checked on that node's own inputs, so an entry never covers an operator at large. REASONS is the table
that the README counts.
"""
import re
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import seeds

NARROW = (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E4M3FNUZ,
          TensorProto.FLOAT8E5M2, TensorProto.FLOAT8E5M2FNUZ)
RANDOM = frozenset(("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
                    "RandomUniformLike", "Dropout"))
ORDER = frozenset(("ReduceMin", "ReduceMax", "ArgMax", "ArgMin", "TopK", "Min", "Max", "Clip", "MaxPool",
                   "GlobalMaxPool", "Relu", "Hardmax", "Softmax", "LogSoftmax", "ReduceLogSumExp",
                   "ScatterND", "ScatterElements", "HardSigmoid"))
SUMS = frozenset(("ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum",
                  "ReduceLogSumExp", "ReduceProd", "MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum",
                  "LayerNormalization", "RMSNormalization", "InstanceNormalization", "GroupNormalization",
                  "BatchNormalization", "MeanVarianceNormalization", "LpNormalization", "CumSum", "CumProd",
                  "AveragePool", "GlobalAveragePool", "Mean", "Sum", "Resize", "Upsample"))


@dataclass(frozen=True)
class Reason:
    where: str   # operators and condition
    reason: str
    source: str


REASONS = {
    "random": Reason("operators that draw random numbers",
                     "the numbers are the implementation's; shapes and types are compared",
                     "onnx: RandomNormal, Bernoulli: \"seed: if not specified we will auto generate one\""),
    "float to integer": Reason(
        "Cast, CastLike of NaN or of a number outside the integer's range",
        "undefined by the standard", "onnx: Cast: \"undefined if OOR\" of fixed point"),
    "narrow floats": Reason(
        "models with f16, bf16 or f8 tensors, within those types' rounding, or above their largest number",
        "gradc computes 16- and 8-bit floats in f32, and rounds results as declared",
        "gradc: passes/precision.c, `--precision f32`"),
    "NaN in an order": Reason(
        "operators that compare, with NaN among the operands",
        "the standard does not order NaN: gradc carries it as NumPy does, or counts it as smallest",
        "onnx: ReduceMax, ArgMax, TopK say nothing of NaN"),
    "overflow of a sum": Reason(
        "sums and products of numbers above 1e15, or of infinities",
        "gradc's interpreter sums in f64 and rounds once; the order of a sum is free",
        "onnx: no order of summation; gradc: docs/ir.md"),
    "conditioning": Reason(
        "any; onnxruntime's own outputs move as far when inputs move by three units in the last place",
        "rounding before a jump or a cancellation", "measured for each case, judge.sensitivity"),
}


# ---- facts of a node
def kinds(node, model):
    """The operators of a node: of its body, where it is a function or has branches."""
    found = {node.op_type}
    for f in model.functions:
        if f.name == node.op_type and f.domain == node.domain:
            found = set().union(*(kinds(n, model) for n in f.node))
    for a in node.attribute:
        if a.type == a.GRAPH:
            found |= set().union(*(kinds(n, model) for n in a.g.node))
    return found


def all_kinds(model):
    return set().union(*(kinds(n, model) for n in model.graph.node))


def element_types_of(model):
    try:
        graph = onnx.shape_inference.infer_shapes(model).graph
    except Exception:
        graph = model.graph
    types = {v.type.tensor_type.elem_type for v in [*graph.input, *graph.value_info, *graph.output]}
    return types | {t.data_type for t in graph.initializer}


def arrays(inputs):
    return [a for a in inputs if isinstance(a, np.ndarray)]


def floats(inputs):
    return [a.astype(np.float64) for a in arrays(inputs) if a.dtype.kind == "f"]


def has_nan(inputs):
    return any(np.isnan(a).any() for a in floats(inputs))


def has_large(inputs, limit):
    with np.errstate(all="ignore"):
        return any((np.abs(a) > limit).any() for a in floats(inputs))


# ---- both sides give outputs, and they differ
def _is_about_values(found):
    return not any(d.startswith(("shape", "type", "outputs", "a sequence")) for d in found.values())


def _random(case, place, found):
    # What a random node feeds may have a random shape only by operators that gradc refuses.
    return _is_about_values(found) and bool(all_kinds(case.model) & RANDOM)


def _float_to_integer(case, place, found):
    if not place or not kinds(place.node, case.model) & {"Cast", "CastLike"} or place.want.dtype.kind not in "iu":
        return False
    info = np.iinfo(place.want.dtype)
    with np.errstate(all="ignore"):
        x = floats(place.inputs[:1])
        return bool(x) and bool((~(x[0] > info.min - 1.0) | ~(x[0] < info.max + 1.0))[place.off].all())


def _narrow(case, place, found):
    if not place or not _is_about_values(found):
        return False
    types = {t for t in element_types_of(case.model) if t in NARROW}
    if not types:
        return False
    if has_large(place.inputs, 60000) or not np.isfinite(place.want.astype(np.float64)).all():
        return True
    return place.within(3e-1 if types & set(NARROW[2:]) else 1e-2)


def _nan_in_an_order(case, place, found):
    return bool(place and kinds(place.node, case.model) & ORDER and has_nan(place.inputs))


def _overflow(case, place, found):
    return bool(place and kinds(place.node, case.model) & SUMS and has_large(place.inputs, 1e15))


VALUES = (("random", _random), ("float to integer", _float_to_integer), ("narrow floats", _narrow),
          ("NaN in an order", _nan_in_an_order), ("overflow of a sum", _overflow))


def of_values(case, place, found):
    """place: judge.Place or None."""
    return next((key for key, holds in VALUES if holds(case, place, found)), None)


# ---- one side refuses
ONNXRUNTIME_REFUSES = ()
GRADC_REFUSES = ()


def _by_text(table, case, message):
    return next((key for key, pattern, holds in table
                 if re.search(pattern, message) and holds(case)), None)


def of_onnxruntime(case, message):
    return _by_text(ONNXRUNTIME_REFUSES, case, message)


def of_gradc(case, message):
    return _by_text(GRADC_REFUSES, case, message)
