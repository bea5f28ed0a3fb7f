"""Attention of several blocks of queries and keys, whose sizes no block divides, as an ONNX model."""
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HEADS, WIDTH, VALUES = 2, 13, 11
SIZES = [(67, 67), (130, 197), (197, 64), (3, 301)]
MASKS = ["none", "causal", "window", "padding", "bias", "places", "places_of_scores", "scales"]
TRAINED = {"bias": {"bias"}, "places": {"rows", "columns"}, "places_of_scores": {"rows", "columns"}, "scales": {"scales", "bias"}}


def columns_of(keys):
    """Keys are pixels: rows times this many columns."""
    return max(n for n in range(1, 1 + int(keys ** 0.5)) if keys % n == 0)


def write(path, queries, keys, mask):
    rng = np.random.default_rng(queries + keys)
    tensors = {"q": rng.standard_normal((2, HEADS, queries, WIDTH)), "k": rng.standard_normal((2, HEADS, keys, WIDTH)),
               "v": rng.standard_normal((2, HEADS, keys, VALUES))}
    nodes = [("Transpose", ["k"], "kt", {"perm": [0, 1, 3, 2]}), ("MatMul", ["q", "kt"], "s", {}), ("Mul", ["s", "scale"], "scaled", {})]
    logits = "scaled"
    if mask == "bias":
        tensors["bias"] = rng.standard_normal((HEADS, queries, keys))
        nodes.append(("Add", [logits, "bias"], "logits", {}))
        logits = "logits"
    elif mask.startswith("places"):  # of keys in rows and columns, from each query: before the scores as in SAM, or as in MViT v2
        across = columns_of(keys)
        split = [2, HEADS, queries, keys // across, across]
        tensors |= {"rows": rng.standard_normal((WIDTH, keys // across)), "columns": rng.standard_normal((*split[:3], 1, across)),
                    "split": np.array(split), "whole": np.array([2, HEADS, queries, keys]), "of_row": np.array([*split[:4], 1]), "tenth": 0.1}
        nodes += [("MatMul", ["q", "rows"], "row_products", {}), ("Reshape", ["row_products", "of_row"], "row_scores", {})]
        if mask == "places":
            nodes += [("Add", ["row_scores", "columns"], "sums", {}), ("Mul", ["sums", "tenth"], "places", {}),
                      ("Reshape", ["places", "whole"], "bias", {}), ("Add", [logits, "bias"], "logits", {})]
        else:
            nodes += [("Reshape", [logits, "split"], "places", {}), ("Add", ["places", "row_scores"], "of_rows", {}),
                      ("Add", ["of_rows", "columns"], "of_both", {}), ("Reshape", ["of_both", "whole"], "logits", {})]
        logits = "logits"
    elif mask == "scales":  # of each head, and a bias of a table
        tensors |= {"scales": rng.standard_normal((HEADS, 1, 1)), "bias": rng.standard_normal((HEADS, queries, keys))}
        nodes += [("Mul", [logits, "scales"], "of_heads", {}), ("Sigmoid", ["bias"], "table", {}), ("Add", ["of_heads", "table"], "logits", {})]
        logits = "logits"
    elif mask != "none":
        i, j = np.arange(queries)[:, None] * keys // queries, np.arange(keys)[None]  # every query sees a key
        seen = (j <= i) & (j > i - 40 if mask == "window" else True)
        if mask == "padding":  # the last keys are hidden from all queries
            seen = np.broadcast_to(j < keys - keys // 2, seen.shape)
        tensors["seen"] = seen
        nodes.append(("Where", ["seen", logits, "hidden"], "logits", {}))
        logits = "logits"
    nodes += [("Softmax", [logits], "p", {"axis": -1}), ("MatMul", ["p", "v"], "o", {}), ("Mul", ["o", "x"], "y", {})]
    types = {"seen": bool, "split": np.int64, "whole": np.int64, "of_row": np.int64}
    tensors = {name: np.asarray(t, types.get(name, np.float32)) for name, t in tensors.items()}
    tensors |= {"scale": np.float32(WIDTH ** -0.5), "hidden": np.float32(-np.inf)}
    used = {name for _, inputs, _, _ in nodes for name in inputs}
    graph = helper.make_graph([helper.make_node(op, i, [o], **a) for op, i, o, a in nodes], "g",
                              [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 1, 1])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, HEADS, queries, VALUES])],
                              [numpy_helper.from_array(np.asarray(t), n) for n, t in tensors.items() if n in used])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
