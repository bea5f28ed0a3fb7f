#!/usr/bin/env python3
"""Writes schema_list.def: what ONNX itself says of each operator of the default domain, and onnxruntime of those of its own that gradc
reads. Names of other domains stand with the domain in front.

usage: make_schema.py > schema_list.def      (needs the pinned onnx and onnxruntime packages)
"""
import onnx.defs as defs
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

LETTERS = {
    "FLOAT": "f", "INT": "i", "STRING": "s", "TENSOR": "t", "GRAPH": "g", "FLOATS": "F",
    "INTS": "I", "STRINGS": "S", "TENSORS": "T", "GRAPHS": "G", "SPARSE_TENSOR": "p",
    "SPARSE_TENSORS": "P", "TYPE_PROTO": "y", "TYPE_PROTOS": "Y",
}
ANY = 999
REDUCTION = "keepdims noop_with_empty_axes"
# Integers that say yes or no, of each operator from opset 7 on: the standard gives 0 and 1 a meaning, and readers differ
# on the rest. The package declares them as any integers; the text of the operator says it.
FLAGS = {
    "AffineGrid": "align_corners", "ArgMax": "keepdims select_last_index", "ArgMin": "keepdims select_last_index",
    "Attention": "is_causal", "AveragePool": "ceil_mode count_include_pad", "BatchNormalization": "spatial training_mode",
    "BlackmanWindow": "periodic", "Cast": "saturate", "CastLike": "saturate", "ConcatFromSequence": "new_axis",
    "CumProd": "exclusive reverse", "CumSum": "exclusive reverse", "DFT": "inverse onesided",
    "GRU": "layout linear_before_reset", "Gemm": "transA transB", "GridSample": "align_corners",
    "HammingWindow": "periodic", "HannWindow": "periodic", "IsInf": "detect_negative detect_positive",
    "LSTM": "input_forget layout", "LpPool": "ceil_mode", "MaxPool": "ceil_mode storage_order", "Mod": "fmod",
    "NonMaxSuppression": "center_point_box", "QuantizeLinear": "saturate",
    "ReduceL1": REDUCTION, "ReduceL2": REDUCTION, "ReduceLogSum": REDUCTION, "ReduceLogSumExp": REDUCTION,
    "ReduceMax": REDUCTION, "ReduceMean": REDUCTION, "ReduceMin": REDUCTION, "ReduceProd": REDUCTION,
    "ReduceSum": REDUCTION, "ReduceSumSquare": REDUCTION, "Reshape": "allowzero", "Resize": "antialias exclude_outside",
    "RNN": "layout", "RotaryEmbedding": "interleaved", "STFT": "onesided", "SplitToSequence": "keepdims",
    "StringNormalizer": "is_case_sensitive", "TopK": "largest sorted", "Trilu": "upper", "Unique": "sorted",
}

MICROSOFT = "com.microsoft"
# Operators of other domains, and the flags of each.
OTHERS = {
    ("ai.onnx.ml", "ArrayFeatureExtractor"): "",
    ("ai.onnx.ml", "LabelEncoder"): "",
    ("ai.onnx.ml", "LinearClassifier"): "",
    ("ai.onnx.ml", "LinearRegressor"): "",
    ("ai.onnx.ml", "Normalizer"): "",
    ("ai.onnx.ml", "Scaler"): "",
    ("ai.onnx.preview", "FlexAttention"): "",
    # onnxruntime writes these in the default domain, in any opset.
    ("", "LayerNormalization"): "",
    ("", "SimplifiedLayerNormalization"): "",
    (MICROSOFT, "Attention"): "unidirectional do_rotary past_present_share_buffer",
    (MICROSOFT, "BiasGelu"): "",
    (MICROSOFT, "DynamicQuantizeLSTM"): "input_forget",
    (MICROSOFT, "DynamicQuantizeMatMul"): "",
    (MICROSOFT, "EmbedLayerNormalization"): "mask_index_type",
    (MICROSOFT, "FastGelu"): "",
    (MICROSOFT, "FusedConv"): "",
    (MICROSOFT, "FusedGemm"): "transA transB",
    (MICROSOFT, "FusedMatMul"): "transA transB transBatchA transBatchB",
    (MICROSOFT, "Gelu"): "",
    (MICROSOFT, "GroupNorm"): "channels_last activation",
    (MICROSOFT, "GroupQueryAttention"): "do_rotary rotary_interleaved",
    (MICROSOFT, "MatMulIntegerToFloat"): "",
    (MICROSOFT, "MoE"): "use_sparse_mixer normalize_routing_weights",
    (MICROSOFT, "MultiHeadAttention"): "unidirectional",
    (MICROSOFT, "NhwcConv"): "",
    (MICROSOFT, "NhwcFusedConv"): "",
    (MICROSOFT, "QGemm"): "transA transB",
    (MICROSOFT, "QLinearAdd"): "",
    (MICROSOFT, "QLinearConcat"): "",
    (MICROSOFT, "QLinearConv"): "channels_last",
    (MICROSOFT, "QLinearGlobalAveragePool"): "channels_last",
    (MICROSOFT, "QLinearLeakyRelu"): "",
    (MICROSOFT, "QLinearMul"): "",
    (MICROSOFT, "QLinearSigmoid"): "",
    (MICROSOFT, "QLinearSoftmax"): "",
    (MICROSOFT, "QuickGelu"): "",
    (MICROSOFT, "RotaryEmbedding"): "interleaved is_packed_batching",
    (MICROSOFT, "SkipGroupNorm"): "channels_last activation",
    (MICROSOFT, "SkipLayerNormalization"): "",
    (MICROSOFT, "SkipSimplifiedLayerNormalization"): "",
    (MICROSOFT, "TransposeMatMul"): "transA transB",
}


def flags(schema):
    known = FLAGS.get(schema.name, "") if schema.domain == "" else ""
    return OTHERS.get((schema.domain, schema.name), known).split()


def key(schema):
    return f"{schema.domain}.{schema.name}" if schema.domain else schema.name


def attributes(schema):
    if schema.deprecated:
        return "-"
    words = []
    for name, a in sorted(schema.attributes.items()):
        kind = LETTERS[str(a.type).rsplit(".", 1)[-1]]
        if name in flags(schema):
            assert kind == "i", f"{schema.name}: {name} is no integer"
            kind = "b"
        words.append(f"{name}:{kind}{'!' if a.required else ''}")
    return " ".join(words)


def main():
    print("/* Every operator of the default domain in ONNX 1.22, and some of others: made by make_schema.py.")
    print(" * SCHEMA(name, since, min in, max in, min out, max out, required inputs, attributes);")
    print(" * rows of a name stand together, the newest first. */")
    every = defs.get_all_schemas_with_history()
    rows = [s for s in every if s.domain == ""]
    known = {(s.name, a) for s in rows for a in s.attributes}
    standard = {(s.name, s.since_version) for s in rows}
    rows += [s for s in [*every, *get_all_operator_schema()]
             if (s.domain, s.name) in OTHERS and (s.domain or (s.name, s.since_version) not in standard)]
    rows = list({(s.domain, s.name, s.since_version): s for s in reversed(rows)}.values())  # onnxruntime has ONNX's, too
    rows.sort(key=lambda s: (key(s), -s.since_version))
    for op, names in FLAGS.items():
        assert all((op, name) in known for name in names.split()), f"{op} lacks one of {names}"
    for s in rows:
        required = 0
        for i, formal in enumerate(s.inputs[:32]):
            if formal.option.name == "Single":
                required |= 1 << i
        text = (f'SCHEMA("{key(s)}", {s.since_version}, {s.min_input}, {min(s.max_input, ANY)}, '
                f'{s.min_output}, {min(s.max_output, ANY)}, 0x{required:x},')
        print(f'{text}\n       "{attributes(s)}")')


if __name__ == "__main__":
    main()
