"""Differences that are no fault of gradc: which, when, why, and where that is written.

VALUES: both sides give outputs and they differ; a condition looks at the first node that differs and at the
node's own inputs, so that no row covers an operator at large. The tables of refusals go by what is said of
the model: by onnxruntime, by onnx's checker, by gradc. REASONS says why, and where that is written.
"""
import re
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto

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
                  "AveragePool", "GlobalAveragePool", "Mean", "Sum", "Resize", "Upsample", "DFT", "STFT",
                  "Attention", "LinearAttention", "Det", "LpPool", "GlobalLpPool", "LRN", "GridSample",
                  "DeformConv", "RoiAlign", "Col2Im", "CausalConvWithState"))
QUANTIZERS = frozenset(("DynamicQuantizeLinear", "QuantizeLinear"))
WINDOWS = frozenset(("BlackmanWindow", "HammingWindow", "HannWindow"))
RECURRENT = frozenset(("RNN", "GRU", "LSTM"))


@dataclass(frozen=True)
class Reason:
    where: str   # operators and condition
    reason: str
    source: str


REASONS = {
    "random": Reason("operators that draw random numbers",
                     "the numbers are the implementation's; shapes and types are compared",
                     "onnx: Bernoulli: \"may not produce the same values in different implementations "
                     "(even if a seed is specified)\""),
    "float to integer": Reason(
        "Cast, CastLike, Pow of integers: NaN or a number outside the integer's range; quantization of NaN, infinities, and of quotients "
        "above 1e18",
        "undefined by the standard", "onnx: Cast: \"fixed point: undefined if OOR\"; onnxruntime issue 25207"),
    "narrow floats": Reason(
        "models with f16, bf16 or f8 tensors, within those types' rounding, or above their largest number",
        "gradc computes 16- and 8-bit floats in f32, and rounds results as declared",
        "gradc: passes/recipes/precision.c, `--precision f32`"),
    "NaN in an order": Reason(
        "operators that compare, recurrent ones with clip among them, with NaN among the operands",
        "the standard does not order NaN: gradc carries it as NumPy does, or counts it as smallest",
        "onnx: ReduceMax, ArgMax, TopK say nothing of NaN; onnxruntime issues 10514, 21455"),
    "overflow of a sum": Reason(
        "sums and products of numbers above 1e15, or of infinities",
        "gradc's interpreter sums in f64 and rounds once; the order of a sum is free",
        "onnx: no order of summation; gradc: docs/ir.md"),
    "onnx's evaluator": Reason(
        "any; onnx.reference.ReferenceEvaluator gives what gradc gives, onnxruntime something else",
        "the standard's own implementation of the operators sides with gradc: Squeeze by an empty list, reductions of "
        "empty tensors, normalizations of constants",
        "measured for each case; onnxruntime pull request 12649 on Squeeze"),
    "integer overflow": Reason(
        "sums and products of integers whose result the type cannot hold",
        "gradc keeps the low bits, as NumPy; onnxruntime goes through floats and saturates",
        "onnx says nothing; gradc: docs/accuracy.md, \"modulo 2^width\""),
    "softmax before 13": Reason(
        "Softmax, LogSoftmax, Hardmax before opset 13, where onnxruntime has no kernel",
        "onnx's evaluator takes one axis, as from 13 on; until 12 all axes from `axis` on count as one",
        "onnx: Softmax-11: \"does not need to explicitly be a 2D vector; rather, it will be coerced into one\""),
    "negative axes before 11": Reason(
        "negative axes in opsets before 11", "gradc takes them as opset 11 does; the meaning is plain",
        "onnx: Flatten-9, Unsqueeze-1 \"non-negative\""),
    "insert of onnx's evaluator": Reason(
        "SequenceInsert at the end of a sequence, where onnxruntime refuses the types",
        "onnx's evaluator inserts at position modulo length: the end is the beginning",
        "onnx: reference/ops/op_sequence_insert.py"),
    "empty axes": Reason(
        "Squeeze with the attribute axes = []", "gradc takes an empty list as it stands, and drops no axis",
        "onnx: Squeeze-11: \"If `axes` is not provided, all the single dimensions will be removed\""),
    "NonZero of a scalar": Reason(
        "NonZero of a tensor of rank 0", "onnxruntime takes it for a list of one",
        "onnx: NonZero: \"for scalar input, NonZero produces output shape (0, N) instead of (1, N)\""),
    "window of one": Reason(
        "BlackmanWindow, HammingWindow, HannWindow of one number, symmetric",
        "the formula divides by size - 1, which is 0: NaN; gradc gives 1, the middle, as NumPy and PyTorch do",
        "numpy: hanning: \"appears only if the number of samples is odd\", and [1.] for one"),
    "length of nothing": Reason(
        "RNN, GRU, LSTM, ReverseSequence with sequence_lens of 0",
        "gradc hands on the first state, and copies all; onnxruntime gives states of 0 and does not write what it "
        "does not reverse",
        "onnx: ReverseSequence: \"have original values copied for the other elements\"; RNN says nothing of 0"),
    "layout of onnx's evaluator": Reason(
        "RNN, GRU, LSTM with layout 1, or that have two directions, GRU and LSTM with activations, where onnxruntime has no kernel",
        "onnx's evaluator gives Y_h the shape of the sequence, or mixes batch and time, or computes its own activations",
        "onnx: GRU: Y_h with layout 1 \"[batch_size, num_directions, hidden_size]\"; onnxruntime: \"layout == 1 ... "
        "not supported\""),
    "type of onnx's evaluator": Reason(
        "numbers of the type that onnx's schema gives the output, where onnxruntime has no kernel",
        "onnx's evaluator gives the type that NumPy computes in", "onnx: AffineGrid: T1 of theta and grid; Adam: T3 of X and its result"),
    "norm of onnx's evaluator": Reason(
        "LpNormalization with p = 1, where onnxruntime has no kernel",
        "onnx's evaluator sums numbers, not their absolute values", "onnx: reference/ops/op_lp_normalization.py"),
    "scan of onnx's evaluator": Reason(
        "Loop that stacks numbers, where onnxruntime refuses the model",
        "onnx's evaluator makes [n, 1] of n scalars", "onnx: Loop: scan_outputs are \"stacked\": [n]; reference/ops/op_loop.py"),
    "mask of onnx's evaluator": Reason(
        "Attention of opset 23 with a mask of one column, where onnxruntime refuses it",
        "onnx's evaluator pads the column with -infinity, as opset 24 says; gradc broadcasts it",
        "onnx: Attention-23: \"Shape must be broadcastable to\" the scores'"),
    "negative scale": Reason(
        "Attention whose scale is not positive", "onnx's evaluator multiplies by the square root of it twice, onnxruntime refuses",
        "onnx: Attention: \"Scaling factor applied to $Q*K^T$\", its root only \"to prevent numerical overflow\""),
    "channels before 7": Reason(
        "PRelu before opset 7", "slopes are one number for each channel; onnx's evaluator broadcasts as opset 7 does",
        "onnx: PRelu-6: \"If `Slope` is of size 1, the value is shared across different channels\", Caffe2's PRelu"),
    "onnxruntime's own": Reason(
        "operators of onnxruntime without a domain of their own", "onnx does not know them, so its checker refuses",
        "onnxruntime: docs/ContribOperators.md, SimplifiedLayerNormalization"),
    "ellipsis": Reason(
        "Einsum whose ellipses stand for a dimension and for one of 1", "it is broadcast, as NumPy does; onnx's inference refuses",
        "onnx: Einsum: \"ellipsis to enable broadcasting\""),
    "sum of onnx's evaluator": Reason(
        "sums of 8- and 16-bit integers, which the schema does not list", "NumPy's sum widens the type",
        "numpy.sum, on dtype"),
    "split without sizes": Reason(
        "Split from opset 18 on with neither split nor num_outputs", "gradc splits equally, as until 17",
        "onnx: Split-18: \"either input 'split' or the attribute 'num_outputs' should be specified\""),
    "pool of onnx's evaluator": Reason(
        "GlobalMaxPool of other ranks than 4, AveragePool before opset 7 or of NaN, where onnxruntime has no kernel",
        "onnx's evaluator reduces two axes, whatever the rank; it counts padding; its padding is NaN, which it leaves out",
        "onnx: reference/ops/op_global_max_pool.py; AveragePool-1: \"divided by the number of elements exclude pad\""),
    "order of TopK": Reason("TopK with sorted = 0", "any order is right", "onnx: TopK.sorted"),
    "cancellation": Reason(
        "sums and differences that are off by less than eight units in the last place of the largest operand",
        "what was rounded before is all that is left", "floating point; the order and the rounding of operands are free"),
    "expm1": Reason(
        "Elu, Selu, Celu of small negative numbers, within 1e-6 absolute",
        "onnxruntime computes exp(x) - 1, which cancels; gradc expm1(x)", "onnxruntime: element_wise_ops, Eigen exp"),
    "OneHot of floats": Reason(
        "OneHot with indices that are no integers",
        "gradc casts to int64 before anything else; onnxruntime adds the depth to negative ones first",
        "onnx: OneHot: \"values will be casted to int64 before use\""),
    "labels": Reason(
        "losses whose labels lie outside the classes",
        "the data is invalid; gradc's loss of such a row is 0, onnxruntime refuses or counts from the end",
        "onnx: NegativeLogLikelihoodLoss: \"Target element value shall be in range of [0, C)\""),
    "index out of range": Reason(
        "Gather and Scatter operators, positions and lengths, with computed indices that lie outside the axis",
        "the data is invalid, not the model: gradc reads 0 and writes nothing there; checked are constant indices, "
        "and inputs that Gather looks up in a parameter",
        "gradc: ir/ops/gather.c; onnx: \"error if any of the index values are out of bounds\""),
    "types beyond the schema": Reason(
        "operators on element types that their opset's schema does not list",
        "gradc takes what its own operator is defined for: models that frameworks export with a type of a later "
        "opset work; outputs are compared with onnx's evaluator where that runs",
        "gradc: frontend/import/README.md"),
    "split of nothing": Reason(
        "Split of an empty axis", "every part is empty; onnxruntime refuses, onnx's evaluator divides by zero",
        "onnx: Split: \"If the tensor is not evenly splittable into num_outputs, the last chunk will be smaller\""),
    "maximum of nothing": Reason(
        "GlobalMaxPool over an empty axis", "gradc gives -infinity, as ReduceMax of an empty set; onnxruntime refuses",
        "onnx: ReduceMax: \"reduction over an empty set of values yields minus infinity\""),
    "recurrence of nothing": Reason(
        "RNN, GRU, LSTM of no steps", "the last state is the first one; onnxruntime gives 0 or crashes, onnx's evaluator divides by zero",
        "onnx: GRU: \"initial_h: Optional initial value of the hidden\""),
    "iterations of nothing": Reason(
        "Scan and Loop of no iterations with stacked results", "they have no rows; onnxruntime and onnx's evaluator refuse",
        "onnx: Loop: \"Loop-carried dependencies\", scan_outputs: \"the trip count\" is their first dimension"),
    "pool of nothing": Reason(
        "pools, GlobalAveragePool and TfIdfVectorizer over an empty axis", "a mean of nothing is NaN, a count 0; onnxruntime refuses",
        "numpy.mean of an empty array"),
    "edge of nothing": Reason(
        "Pad in mode edge whose negative pads leave none of an axis", "gradc repeats the edge that was cut off; onnxruntime refuses",
        "onnx: Pad says nothing of the order of cutting and padding"),
    "even size of LRN": Reason(
        "LRN with an even size, or of another rank than 4",
        "the formula has it: more channels above than below; onnxruntime refuses, onnx's evaluator takes rank 4 alone",
        "onnx: LRN: \"max(0, c - floor((size - 1) / 2)) <= i <= min(C - 1, c + ceil((size - 1) / 2))\""),
    "beyond the windows": Reason(
        "ConvTranspose whose output_shape is more than its windows reach",
        "what no window reaches is the bias; onnxruntime places the windows by the longer size",
        "onnx: ConvTranspose: the text under auto_pad; torch.nn.functional.conv_transpose2d"),
    "Upsample downwards": Reason(
        "Upsample with scales below 1", "the same places as Resize 10's; onnxruntime refuses, onnx's evaluator does not know them",
        "onnx: Upsample: \"It takes value greater than or equal to 1\""),
    "saturate of other types": Reason(
        "Cast and CastLike with saturate = 0 to a type that is no float of 8 bits", "it says nothing then; onnxruntime refuses",
        "onnx: Cast: \"It only applies for float 8 conversion\""),
    "bits of NaN": Reason(
        "BitCast of NaN", "NaN has many codes; which one a function gives is the library's choice", "IEEE 754-2019, 6.2.1"),
    "one number for a list of one": Reason(
        "axes, shapes, k as a scalar", "unambiguous; onnxruntime takes it for some operators only",
        "onnx: Reshape, Slice, TopK: \"1-D tensor\""),
    "rank of a list": Reason(
        "axes, shapes, k given as a tensor of rank 2; values per channel of another rank or length",
        "the operator's text fixes the rank and the length, onnx's checker does not check it, "
        "onnxruntime reads the first elements",
        "onnx: ConstantOfShape \"1D tensor\", Conv \"1D bias\", GroupNormalization \"of shape (C)\""),
    "axis named twice": Reason(
        "reductions, Squeeze with an axis twice",
        "NumPy refuses it, and so does onnx's evaluator; onnxruntime reduces once",
        "numpy: \"duplicate value in 'axis'\""),
    "flag": Reason(
        "an attribute of yes or no that is neither 0 nor 1", "the standard gives only these a meaning",
        "onnx: Mod: \"fmod ... must be 0 (default), or 1\"; ReduceMax: \"if keepdims equals 1\", \"equals 0\""),
    "word": Reason(
        "an attribute with a word that is none of the operator's", "the operator's text lists them",
        "onnx: NegativeLogLikelihoodLoss.reduction, ScatterElements.reduction ..."),
    "range": Reason(
        "ratios, counts, axes, sizes and tuple lengths outside what the operator's text allows",
        "onnxruntime does not check them, and reads what is there: Compress by a condition longer than the axis, Col2Im of "
        "another number of blocks, LSTM with a hidden_size that is not W's",
        "onnx: Dropout \"with value in [0, 1)\", GatherND \"indices_shape\", Resize \"roi\", Split \"num_outputs\""),
    "pads and auto_pad": Reason(
        "Conv and pools with both attributes",
        "the operator's text forbids both; gradc refuses where they differ in size",
        "onnx: AveragePool.pads: \"cannot be used simultaneously with auto_pad\""),
    "shape by inference": Reason(
        "outputs declared as onnx's inference says, where a shape went through Cast to a narrower type, and of STFT",
        "onnx's data propagation ignores what Cast does to a number, its inference of STFT takes onesided for 0 where it "
        "is absent, so the declared shape is wrong; onnxruntime only warns",
        "onnx: Cast, PartialDataPropagationFunction; STFT: \"onesided (default is 1)\""),
    "body of a function": Reason(
        "MeanVarianceNormalization of f64",
        "allowed by its types; the function body that onnx and onnxruntime expand adds an f32 constant, or one without a value",
        "onnx: MeanVarianceNormalization-13, FunctionBody"),
    "shapes declared in a body": Reason(
        "Loop, Scan: a value of another shape than the body's input declares; a sequence without elements of another type",
        "element types are held to the declaration; shapes are taken as given, for a carried value's may change from one iteration to "
        "the next; a sequence without elements has no type",
        "onnx: defs/controlflow/utils.cc, LoopInferenceFunction: \"shape may change across iterations so ignore\""),
    "outputs of training": Reason(
        "BatchNormalization in training mode with one output", "its other outputs are optional, and nobody reads them",
        "onnx: BatchNormalization: outputs 1 and 2 are \"optional\""),
    "pads beyond the kernel": Reason(
        "MaxUnpool with pads of the kernel's size or more", "its pads only give the result's size; onnxruntime refuses",
        "onnx: MaxUnpool: \"pads ... the padding for the beginning and ending along each spatial axis\""),
    "rows of codes": Reason(
        "QLinearMatMul with a zero point a row of the left matrix",
        "onnxruntime has them for columns alone, onnx's evaluator multiplies by columns",
        "onnx: QLinearMatMul: \"per row\" of the left matrix"),
    "unique of onnx's evaluator": Reason(
        "Unique along another axis than 0, not sorted", "onnx's evaluator takes the rows of axis 0 then",
        "onnx: reference/ops/op_unique.py: `np.take(x, indices, axis=0)`"),
    "one-way broadcast": Reason(
        "PRelu, LayerNormalization, Expand-like operands larger than the first input",
        "the operator's text allows one direction, onnxruntime and the evaluator both",
        "onnx: PRelu: \"slope should be unidirectional broadcastable to input tensor X\""),
    "concatenation of nothing": Reason(
        "Concat of an empty tensor whose other dimensions differ",
        "onnxruntime leaves empty tensors out before it compares shapes",
        "onnx: Concat: \"the same shape, except for the dimension size of the axis\""),
    "window": Reason(
        "pools whose window is larger than the padded input",
        "no output element exists; onnxruntime's size rounds towards zero and it reads outside",
        "onnx: MaxPool: output_shape; onnx's evaluator refuses"),
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


def _version(case):
    return next((o.version for o in case.model.opset_import if o.domain in ("", "ai.onnx")), 1)


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


def _is_integer(dtype):
    return dtype.kind in "iu" or "int" in dtype.name  # int4 and its like are NumPy's kind V


def _float_to_integer(case, place, found):
    if not place:  # of floats of 8 bits: no tensor that onnxruntime gives
        return bool(all_kinds(case.model) & {"CastLike", "Cast"} and
                    element_types_of(case.model) & set(NARROW[2:]) and _is_about_values(found))
    if place and kinds(place.node, case.model) & QUANTIZERS and (has_large(place.inputs, 3e38) or has_nan(place.inputs)):
        return True
    if place and place.by_evaluator and place.node.op_type == "QuantizeLinear" and len(floats(place.inputs[:2])) == 2:
        x, scale = floats(place.inputs[:2])
        with np.errstate(all="ignore"):
            return scale.size == 1 and x.shape == place.off.shape and bool((np.abs(x / scale.reshape(())) > 1e18)[place.off].all())
    if not place or not kinds(place.node, case.model) & {"Cast", "CastLike"} or not _is_integer(place.want.dtype):
        return False
    info = ml_dtypes.iinfo(place.want.dtype)
    with np.errstate(all="ignore"):
        inputs = [x for x in floats(place.inputs) if x.shape == place.off.shape]
        return any((~(x > int(info.min) - 1.0) | ~(x < int(info.max) + 1.0))[place.off].all() for x in inputs)


def _narrow(case, place, found):
    if not place or not _is_about_values(found):
        return False
    types = {t for t in element_types_of(case.model) if t in NARROW}
    if not types:
        return False
    if has_large(place.inputs, 60000) or not np.isfinite(place.want.astype(np.float64)).all():
        return True
    with np.errstate(all="ignore"):
        if (np.abs(place.got.astype(float) - place.want.astype(float)) < 2.4e-7).all():  # steps of f16's smallest
            return True
    return place.within(3e-1 if types & set(NARROW[2:]) else 1e-2)


def _power(case, place, found):
    if not place or place.node.op_type != "Pow" or not _is_integer(place.want.dtype) or len(arrays(place.inputs)) < 2:
        return False
    with np.errstate(all="ignore"):
        x, y = (a.astype(np.float64) for a in arrays(place.inputs)[:2])
        return bool((~(np.abs(np.power(x, y)) < np.iinfo(place.want.dtype).max))[place.off].all())


def _old_softmax(case, place, found):
    version = _version(case)
    return bool(place and place.by_evaluator and version < 13 and
                kinds(place.node, case.model) & {"Softmax", "LogSoftmax", "Hardmax"})


def _nan_in_an_order(case, place, found):
    if place and kinds(place.node, case.model) & RECURRENT and _attribute(place.node, "clip", 0):
        return not all(np.isfinite(a).all() for a in floats(place.inputs))
    return bool(place and kinds(place.node, case.model) & ORDER and has_nan(place.inputs))


def _overflow(case, place, found):
    return bool(place and kinds(place.node, case.model) & SUMS and has_large(place.inputs, 1e15))


def _bits_of_nan(case, place, found):
    x = place.inputs[0] if place and place.node.op_type == "BitCast" else None
    return x is not None and x.shape == place.off.shape and x.dtype.kind == "f" and bool(np.isnan(x)[place.off].all())


def _cancellation(case, place, found):
    if not place or place.got.shape != place.want.shape or place.want.dtype.kind != "f":
        return False
    if place.node.op_type in ("Log", "Sqrt"):  # of what should be 0
        nan = np.isnan(place.got) != np.isnan(place.want)
        rest = np.where(nan, place.want, place.got)
        return bool(nan.any() and (np.abs(place.inputs[0][nan]) < 1e-6).all() and np.allclose(rest, place.want, rtol=1e-4, equal_nan=True))
    if not kinds(place.node, case.model) & (SUMS | WINDOWS | {"Add", "Sub"}):
        return False
    if kinds(place.node, case.model) & WINDOWS:
        return bool((np.abs(place.got.astype(np.float64) - place.want.astype(np.float64)) < 1e-6).all())
    if "MeanVarianceNormalization" in kinds(place.node, case.model) and np.isnan(place.want[place.off]).all():
        return not has_nan(place.inputs)  # the root of a difference of squares
    with np.errstate(all="ignore"):
        largest = max((np.max(np.abs(a[np.isfinite(a)]), initial=0) for a in floats(place.inputs)), default=0)
        off = np.abs(place.got.astype(np.float64) - place.want.astype(np.float64))
    return bool((off <= 8 * float(np.finfo(place.want.dtype).eps) * largest).all())


def _expm1(case, place, found):
    if not place or not kinds(place.node, case.model) & {"Elu", "Selu", "Celu"} or place.want.dtype.kind != "f":
        return False
    with np.errstate(all="ignore"):
        return bool((np.abs(place.got.astype(float) - place.want.astype(float)) < 1e-6).all())


def _one_hot(case, place, found):
    return bool(place and "OneHot" in kinds(place.node, case.model) and
                any((a != np.trunc(a)).any() for a in floats(place.inputs[:1])))


def _labels(case, place, found):
    if not place or not kinds(place.node, case.model) & LOSSES or len(arrays(place.inputs)) < 2:
        return False
    scores, labels = arrays(place.inputs)[:2]
    return bool(((labels < 0) | (labels >= scores.shape[1])).any())


def _integer_overflow(case, place, found):
    if not place or not kinds(place.node, case.model) & SUMS or place.want.dtype.kind not in "iu":
        return False
    with np.errstate(all="ignore"):
        sizes = [float(np.sum(np.abs(a.astype(np.float64)) ** 2)) for a in arrays(place.inputs) if a.size]
    return max(sizes, default=0) > np.iinfo(place.want.dtype).max


def _unsorted(case, place, found):
    return bool(place and any(n.op_type == "TopK" and any(a.name == "sorted" and a.i == 0 for a in n.attribute)
                              for n in seeds.nodes_of(case.model.graph)))


def _evaluators_sum(case, place, found):
    if not place or not place.by_evaluator or not kinds(place.node, case.model) & SUMS:
        return False
    got, want = place.got, place.want
    return got.dtype.kind in "iu" and want.dtype.kind in "iu" and np.array_equal(want.astype(got.dtype), got)


def _evaluators_insert(case, place, found):
    return bool(place and place.by_evaluator and "SequenceInsert" in all_kinds(case.model) and
                kinds(place.node, case.model) & {"SequenceAt", "ConcatFromSequence", "SequenceLength"})


def _empty_axes(case, place, found):
    return bool(place and place.node.op_type == "Squeeze" and
                any(a.name == "axes" and not a.ints for a in place.node.attribute))


def _evaluators_pool(case, place, found):
    if place and place.by_evaluator and "AveragePool" in kinds(place.node, case.model) and _version(case) < 7:
        return True
    if place and place.by_evaluator and "AveragePool" in kinds(place.node, case.model) and has_nan(place.inputs):
        return True
    return bool(place and place.by_evaluator and "GlobalMaxPool" in kinds(place.node, case.model) and
                any(a.ndim != 4 for a in arrays(place.inputs)))


def _attribute(node, name, otherwise):
    return next((onnx.helper.get_attribute_value(a) for a in node.attribute if a.name == name), otherwise)


def _non_zero(case, place, found):
    return bool(place and place.node.op_type == "NonZero" and place.inputs[0] is not None and place.inputs[0].ndim == 0)


def _window_of_one(case, place, found):
    return bool(place and kinds(place.node, case.model) & WINDOWS and place.want.size == 1)


def _no_steps(case, place, found):
    if not place or place.node.op_type not in RECURRENT or place.inputs[0] is None:
        return False
    return place.inputs[0].shape[1 if _attribute(place.node, "layout", 0) else 0] == 0


def _unpooled_outside(case, place, found):
    if not place or "MaxUnpool" not in kinds(place.node, case.model) or len(arrays(place.inputs)) < 3:
        return False
    x, indices = arrays(place.inputs)[:2]
    inside = [n for f in case.model.functions if f.name == place.node.op_type for n in f.node]
    node = next(n for n in (place.node, *inside) if n.op_type == "MaxUnpool")
    kernel = _attribute(node, "kernel_shape", [])
    stride = _attribute(node, "strides", [1] * len(kernel))
    reach = [s * (n - 1) + k for n, s, k in zip(x.shape[2:], stride, kernel)]
    return bool((indices >= np.prod(x.shape[:2]) * np.prod(reach)).any())


def _beyond_the_windows(case, place, found):
    if not place or place.node.op_type != "ConvTranspose" or place.by_evaluator:
        return False
    x, w = arrays(place.inputs)[:2]
    axes = range(x.ndim - 2)
    strides, dilations = (_attribute(place.node, name, [1] * len(axes)) for name in ("strides", "dilations"))
    extra = _attribute(place.node, "output_padding", [0] * len(axes))
    reach = [strides[i] * (x.shape[i + 2] - 1) + dilations[i] * (w.shape[i + 2] - 1) + 1 + extra[i] for i in axes]
    return any(size > most for size, most in zip(place.want.shape[2:], reach))


def _no_length(case, place, found):
    return bool(place and kinds(place.node, case.model) & (RECURRENT | {"ReverseSequence"}) and
                any(a.dtype.kind == "i" and a.ndim == 1 and (a == 0).any() for a in arrays(place.inputs)))


def _evaluators_layout(case, place, found):
    return bool(place and place.by_evaluator and any(
        n.op_type in RECURRENT and (_attribute(n, "layout", 0) == 1 or _attribute(n, "direction", b"") == b"bidirectional" or
                                    (n.op_type != "RNN" and _attribute(n, "activations", [])))
        for n in seeds.nodes_of(case.model.graph)) and kinds(place.node, case.model) & RECURRENT)


def _evaluators_unique(case, place, found):
    return bool(place and place.by_evaluator and place.node.op_type == "Unique" and _attribute(place.node, "sorted", 1) == 0 and
                _attribute(place.node, "axis", 0) != 0)


def _evaluators_scan(case, place, found):
    return bool(place and place.by_evaluator and place.node.op_type == "Loop" and
                place.want.shape == (*place.got.shape, 1))


def _evaluators_type(case, place, found):
    return bool(place and place.by_evaluator and all(d.startswith("type ") for d in found.values()))


def _evaluators_norm(case, place, found):
    return bool(place and place.by_evaluator and any(n.op_type == "LpNormalization" and _attribute(n, "p", 2) == 1
                                                     for n in seeds.nodes_of(case.model.graph)) and
                "LpNormalization" in kinds(place.node, case.model))


def _evaluators_mask(case, place, found):
    if not place or not place.by_evaluator or place.node.op_type != "Attention" or len(place.inputs) < 4:
        return False
    mask = place.inputs[3]
    return _version(case) == 23 and mask is not None and mask.ndim > 0 and mask.shape[-1] == 1


def _negative_scale(case, place, found):
    return bool(place and place.node.op_type == "Attention" and _attribute(place.node, "scale", 1.0) <= 0)


VALUES = (
    ("empty axes", _empty_axes), ("NonZero of a scalar", _non_zero), ("window of one", _window_of_one), ("length of nothing", _no_length),
    ("recurrence of nothing", _no_steps), ("index out of range", _unpooled_outside), ("beyond the windows", _beyond_the_windows),
    ("layout of onnx's evaluator", _evaluators_layout), ("scan of onnx's evaluator", _evaluators_scan),
    ("unique of onnx's evaluator", _evaluators_unique),
    ("type of onnx's evaluator", _evaluators_type), ("norm of onnx's evaluator", _evaluators_norm),
    ("mask of onnx's evaluator", _evaluators_mask), ("negative scale", _negative_scale),
    ("float to integer", _power), ("softmax before 13", _old_softmax),
    ("pool of onnx's evaluator", _evaluators_pool), ("insert of onnx's evaluator", _evaluators_insert),
    ("sum of onnx's evaluator", _evaluators_sum), ("order of TopK", _unsorted),
    ("integer overflow", _integer_overflow), ("random", _random), ("float to integer", _float_to_integer),
    ("narrow floats", _narrow), ("NaN in an order", _nan_in_an_order), ("overflow of a sum", _overflow),
    ("cancellation", _cancellation), ("bits of NaN", _bits_of_nan), ("expm1", _expm1), ("OneHot of floats", _one_hot), ("labels", _labels),
)


def of_values(case, place, found):
    """place: judge.Place or None."""
    return next((key for key, holds in VALUES if holds(case, place, found)), None)


# ---- one side refuses
LOSSES = {"NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"}
POOLS = {"MaxPool", "AveragePool", "LpPool", "GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool"}
GATHERS = {"Gather", "GatherElements", "GatherND", "Scatter", "ScatterElements", "ScatterND", "MaxUnpool"}


def _has(*names):
    return lambda case: bool(all_kinds(case.model) & set().union(*names))


def _always(case):
    return True


def _has_negative_axes(case):
    version = _version(case)
    return version < 11 and any(a.name in ("axis", "axes") and min([a.i, *a.ints]) < 0
                                for n in seeds.nodes_of(case.model.graph) for a in n.attribute)


def _has_nothing(names):
    """One of these operators, and an input or initializer without elements."""
    def holds(case):
        given = [a for v in case.feed.values() for a in (v if isinstance(v, list) else [v]) if a is not None]
        return _has(names)(case) and (any(a.size == 0 for a in given) or any(0 in t.dims for t in case.model.graph.initializer))
    return holds


def _has_both_pads(case):
    return any({"pads", "auto_pad"} <= {a.name for a in n.attribute} for n in seeds.nodes_of(case.model.graph))


ONNXRUNTIME_REFUSES = (
    ("channels before 7", r"for PRelu\(6\)", _has({"PRelu"})),
    ("index out of range", r"is out of range", _has({"RotaryEmbedding", "GroupQueryAttention"})),
    ("labels", r"out of data bounds|out of bounds|invalid ind|GatherElements", _has(LOSSES)),
    ("index out of range",
     r"out of (data )?bounds|invalid ind(ex|ice) found|gather_elements", _has(GATHERS)),
    ("random", r"RandomUniformLike|Bernoulli|Multinomial", _has(RANDOM)),
    ("split of nothing", r"Invalid num_outputs value", _has({"Split"})),
    ("maximum of nothing", r"GlobalMaxPool node.*SetOutputSize", _has({"GlobalMaxPool"})),
    ("one number for a list of one",
     r"squeeze.h.*axes_tens|slice.h.*(shape mismatch|1-D array)|reshape.h.*shapeTens|quantize_linear.cc.*PrepareForQDQ|"
     r"Must have a valid input shape",
     _has({"Squeeze", "Unsqueeze", "ConstantOfShape", "Reshape", "Slice", "QuantizeLinear", "DequantizeLinear"})),
    ("recurrence of nothing", r"^crashed", _has_nothing(RECURRENT)),
    ("pads and auto_pad", r"conv_attributes.h.*auto_pad", _has_both_pads),
    ("rows of codes", r"quantize_linear_matmul.cc.*IsScalarOr1ElementVector", _has({"QLinearMatMul"})),
    ("pads beyond the kernel", r"unpool.h.*pads_", _has({"MaxUnpool"})),
    ("pool of nothing", r"^crashed", _has_nothing(POOLS)),
    ("pool of nothing", r"pool_attributes.h.*Only N can be zero", _has(POOLS)),
    ("pool of nothing", r"dimensions with B > 0", _has({"TfIdfVectorizer"})),
    ("iterations of nothing", r"ort_value_tensor_slicer", _has({"Scan"})),
    ("edge of nothing", r"zero effective input extent", _has({"Pad"})),
    ("even size of LRN", r"size_ % 2 == 1|lrn.cc.*X_shape.NumD", _has({"LRN"})),
    ("Upsample downwards", r"Scale value should be greater than or equal to 1", _has({"Upsample"})),
    ("saturate of other types", r"saturate is only used for cast to float 8", _has({"Cast", "CastLike"})),
)
# What onnx's checker or schemas say of a model that gradc runs.
STANDARD_REFUSES = (
    ("onnxruntime's own", r"No Op registered for SimplifiedLayerNormalization", _always),
    ("ellipsis", r"Ellipsis represents incompatible dimensions", _has({"Einsum"})),
    ("negative axes before 11", r".", _has_negative_axes),
    ("types beyond the schema",
     r"has unsupported type|must have float element type|expected to have the same elem type|"
     r"input \d+ is tensor\(\w+\)$", _always),
    ("split without sizes", r"Neither 'split' input nor 'num_outputs'", _always),
    ("body of a function", r"MeanVarianceNormalization.*(inconsistent type|One and only one)", _always),
    ("shapes declared in a body", r"Inferred shape and existing shape differ in (rank|dimension)", _has({"Loop", "Scan"})),
    ("pads and auto_pad", r"pads attribute cannot be used simultaneously", _has({"ConvTranspose"})),
    ("outputs of training", r"number of op outputs should be 3", _has({"BatchNormalization"})),
    ("shapes declared in a body", r"Inferred elem type differs", _has({"SequenceEmpty"})),
    ("one number for a list of one",
     r"should be scalars|must be (a )?(1D|one-dimensional)|must be 1-?D|must be (a )?scalar|should be 1-?D|1D tensor", _always),
)
GRADC_REFUSES = (
    ("axis named twice", r"is named twice", _always),
    ("rank of a list",
     r"must be a list of integers, it is \w+ of rank|split is of rank|a value per channel has|"
     r"needs one$|numbers, needs one", _always),
    ("flag", r"not 0 or 1", _always),
    ("word", r"unknown reduction|is (none|not one) of", _always),
    ("range",
     r"needs one from 0 to below 1|tuples of 0 indices|num_outputs is|is not a data type|in steps of|"
     r"alpha is 0|stash_type is|hidden_size is \d+, but W has|kv_num_heads is|columns of \[|Pad, .*a size of -|the condition is bool|"
     r"[(](RNN|GRU|LSTM), .*need (f|[[]steps)|no block of \d+ fits into an image|0 bands|softmax_precision is|q_num_heads is|"
     r"groups do not fit 0 output|labels have \d+ elements|"
     r"batch.axis|\(Resize, .*input 1 is missing|axis of a rank-", _always),
    ("window", r"a window over", _always),
    ("concatenation of nothing", r"Concat, .*does not fit operand", _has({"Concat"})),
    ("one-way broadcast", r"operand is larger than the result's|the operand has rank", _always),
    ("pads and auto_pad", r"output \S+ is declared with (rank|\d+ elements)", _has_both_pads),
    ("shape by inference", r"output \S+ is declared with (rank|\d+ elements)", _has({"Cast", "STFT"})),
)


def _by_text(table, case, message):
    return next((key for key, pattern, holds in table
                 if re.search(pattern, message) and holds(case)), None)


def of_onnxruntime(case, message):
    return _by_text(ONNXRUNTIME_REFUSES, case, message)


def of_standard(case, message):
    return _by_text(STANDARD_REFUSES, case, message)


def of_gradc(case, message):
    return _by_text(GRADC_REFUSES, case, message)


def lacks(message):
    """onnxruntime has no kernel, knows no such opset, or has no type of NumPy to be asked with."""
    return bool(re.search(r"NOT_IMPLEMENTED|No Op registered for|is not a registered function/op|only supports|"
                          r"not implemented|not supported|not currently supported|op_kernel_context|of input parameter .* is invalid|"
                          r"attention_helper|attention_parameters|scale must be greater", message))


def evaluator_lacks(message):
    """onnx's evaluator has no such operator, attribute or element type: gaps of it, not of the model."""
    return bool(re.match(r"RuntimeContextError|RuntimeImplementationError|TypeError: Issues with|"
                         r"NotImplementedError|RuntimeError: (Mismatch lengths|No implementation for operator|"
                         r"Unable to find output name|Scan is not implemented)|"
                         r"TypeError: One of the results returned by|"
                         r"ValueError: (cannot convert float (NaN|infinity)|p < 0, p > 1|zero-size array to reduction|"
                         r"non-broadcastable output operand|need at least one array to concatenate)", message))
