"""Models whose last product has many classes, each with a loss: what test_linear_loss.py computes in chunks of rows.

Rows and classes are prime numbers, so that no chunk divides them, and a value with all logits can be told by its shape."""
from dataclasses import dataclass, field

import numpy as np
from onnx import TensorProto, helper, numpy_helper

ROWS, TOKENS, WIDTH, CLASSES, WORDS = 3, 37, 11, 101, 103


@dataclass
class Case:
    """A model and the words of gradc's command line for its loss."""
    nodes: list                                  # (operator, inputs, output, attributes)
    words: list = field(default_factory=lambda: ["--loss=cross_entropy"])
    logits: tuple = (ROWS, TOKENS, CLASSES)      # shape of the output
    labels: str = "classes"                      # how they are drawn
    tensors: dict = field(default_factory=dict)  # trained, besides those of all models
    rows: tuple = (ROWS, TOKENS)                 # shape of the ids
    outputs: tuple = ("logits",)
    recognized: bool = True


def add(op, inputs, output, **attributes):
    return op, inputs, output, attributes


HIDDEN = [add("Gather", ["table", "ids"], "e"), add("MatMul", ["e", "hidden_weight"], "h0"), add("Tanh", ["h0"], "h")]
HEAD = [*HIDDEN, add("MatMul", ["h", "weight"], "logits")]
TIED = [*HIDDEN, add("MatMul", ["h", "back"], "h1"), add("Transpose", ["table"], "wt", perm=[1, 0]), add("MatMul", ["h1", "wt"], "logits")]
FLAT = [*HIDDEN, add("Reshape", ["h", "flat"], "hf"), add("Gemm", ["hf", "weight", "bias"], "lf"), add("Reshape", ["lf", "deep"], "logits")]
INSIDE = "--loss=output:loss"


def inside(name, *inputs, reduction="mean", **attributes):
    """A loss in the model, over logits and labels of one axis of rows."""
    return [*HIDDEN, add("Reshape", ["h", "flat"], "hf"), add("MatMul", ["hf", "weight"], "lf"),
            add("Reshape", ["labels", "minus_one"], "ll"), add(name, ["lf", "ll", *inputs], "loss", reduction=reduction, **attributes)]


CASES = {
    "plain": Case(HEAD),
    "one_row_axis": Case([*HIDDEN, add("MatMul", ["h", "weight"], "logits")], rows=(109,), logits=(109, CLASSES)),
    "one_row": Case(HEAD, rows=(1, 109), logits=(1, 109, CLASSES)),
    "tied": Case(TIED, logits=(ROWS, TOKENS, WORDS)),
    "flat_gemm": Case(FLAT),
    "bias": Case([*HIDDEN, add("MatMul", ["h", "weight"], "l0"), add("Add", ["l0", "bias"], "logits")]),
    "scaled": Case([*HIDDEN, add("MatMul", ["h", "weight"], "l0"), add("Div", ["l0", "two"], "logits")]),
    "softcap": Case([*HIDDEN, add("MatMul", ["h", "weight"], "l0"), add("Div", ["l0", "two"], "l1"), add("Tanh", ["l1"], "l2"),
                     add("Mul", ["l2", "two"], "logits")]),
    "position_bias": Case([*HIDDEN, add("MatMul", ["h", "weight"], "l0"), add("Add", ["l0", "by_place"], "logits")],
                          tensors={"by_place": (TOKENS, CLASSES)}),
    "classes_first": Case([*HIDDEN, add("MatMul", ["h", "weight"], "l0"), add("Transpose", ["l0"], "logits", perm=[0, 2, 1])],
                          ["--loss=cross_entropy,axis=1"], (ROWS, CLASSES, TOKENS)),
    "bert_head": Case([*HIDDEN, add("MatMul", ["h", "back"], "t0"), add("Erf", ["t0"], "t1"), add("Mul", ["t0", "t1"], "t2"),
                       add("LayerNormalization", ["t2", "norm"], "t"), add("Transpose", ["table"], "wt", perm=[1, 0]),
                       add("MatMul", ["t", "wt"], "l0"), add("Add", ["l0", "word_bias"], "logits")], logits=(ROWS, TOKENS, WORDS),
                      labels="ignored", tensors={"norm": (WIDTH,), "word_bias": (WORDS,)}),
    "t5_head": Case([*HIDDEN, add("Mul", ["h", "two"], "hs"), add("Transpose", ["table"], "wt", perm=[1, 0]), add("MatMul", ["hs", "wt"], "logits")],
                    logits=(ROWS, TOKENS, WORDS)),
    "smoothing": Case(HEAD, ["--loss=cross_entropy", "--label-smoothing=0.2"]),
    "class_weight": Case(HEAD, ["--loss=cross_entropy", "--class-weight=class_weight.npy"]),
    "weight_and_smoothing": Case(HEAD, ["--loss=cross_entropy", "--class-weight=class_weight.npy", "--label-smoothing=0.1"]),
    "ignored": Case(HEAD, labels="ignored"),
    "all_ignored": Case(HEAD, labels="all_ignored"),
    "nll": Case([*HEAD[:-1], add("MatMul", ["h", "weight"], "l0"), add("LogSoftmax", ["l0"], "logits", axis=-1)], ["--loss=nll"]),
    "mse": Case(HEAD, ["--loss=mse"], labels="floats"),
    "huber": Case(HEAD, ["--loss=huber"], labels="floats"),
    "bce": Case(HEAD, ["--loss=bce_with_logits"], labels="shares"),
    "inside_mean": Case(inside("SoftmaxCrossEntropyLoss"), [INSIDE], (), "ignored", outputs=("loss",)),
    "inside_sum": Case(inside("SoftmaxCrossEntropyLoss", reduction="sum", ignore_index=-100), [INSIDE], (), "ignored", outputs=("loss",)),
    "inside_weights": Case(inside("SoftmaxCrossEntropyLoss", "class_weight"), [INSIDE], (), outputs=("loss",)),
    "shifted": Case([*HIDDEN, add("MatMul", ["h", "weight"], "l0"), add("Slice", ["l0", "zero", "minus_one", "one"], "logits")],
                    logits=(ROWS, TOKENS - 1, CLASSES)),
    "two_products": Case([*HIDDEN, add("MatMul", ["h", "weight"], "l0"), add("MatMul", ["e", "weight2"], "l1"), add("Add", ["l0", "l1"], "logits")]),
    "lora": Case(HEAD, ["--loss=cross_entropy", "--lora=weight,rank=3"]),
    "few_classes": Case([*HIDDEN, add("MatMul", ["h", "narrow"], "logits")], logits=(ROWS, TOKENS, 7), tensors={"narrow": (WIDTH, 7)},
                        recognized=False),
    "logits_returned": Case(HEAD, ["--loss=cross_entropy:logits"], outputs=("logits", "h")),
}
TRAINED = {"table": (WORDS, WIDTH), "hidden_weight": (WIDTH, WIDTH), "back": (WIDTH, WIDTH), "weight": (WIDTH, CLASSES),
           "weight2": (WIDTH, CLASSES), "bias": (CLASSES,)}


def constants(case):
    flat = int(np.prod(case.rows))
    return {"flat": np.array([flat, WIDTH]), "deep": np.array([*case.rows, CLASSES]), "two": np.float32(2), "zero": np.array([0, 0]),
            "minus_one": np.array([case.rows[0], -1]) if any(n[0] == "Slice" for n in case.nodes) else np.array([-1]),
            "one": np.array([0, 1]), "class_weight": class_weight()}


def class_weight():
    return np.random.default_rng(3).uniform(0.5, 2, CLASSES).astype(np.float32)


def labels(case):
    rng = np.random.default_rng(5)
    if case.labels in ("floats", "shares"):
        x = rng.standard_normal(case.logits) if case.labels == "floats" else rng.uniform(0, 1, case.logits)
        return x.astype(np.float32)
    classes = [n for n in case.logits if n > TOKENS and n != case.rows[-1]]
    shape = tuple(n for n in case.logits if n not in classes) if case.logits else case.rows
    drawn = rng.integers(0, classes[0] if classes else min([CLASSES, *case.logits[-1:]]), shape if classes or not case.logits else case.logits[:-1])
    if case.labels == "ignored":
        drawn[rng.uniform(size=drawn.shape) < 0.3] = -100
    return np.full_like(drawn, -100) if case.labels == "all_ignored" else drawn


def model(case):
    """The model with its parameters, opset 17."""
    rng = np.random.default_rng(7)
    tensors = {name: (0.5 * rng.standard_normal(shape)).astype(np.float32) for name, shape in {**TRAINED, **case.tensors}.items()}
    tensors |= constants(case)
    used = {name for _, inputs, _, _ in case.nodes for name in inputs}
    inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, case.rows)]
    if "labels" in used:
        inputs.append(helper.make_tensor_value_info("labels", TensorProto.INT64, case.rows))
    outputs = [helper.make_tensor_value_info(o, TensorProto.FLOAT, {"logits": case.logits, "h": (*case.rows, WIDTH), "loss": ()}[o])
               for o in case.outputs]
    graph = helper.make_graph([helper.make_node(op, i, [o], name=f"/{o}", **a) for op, i, o, a in case.nodes], "g", inputs, outputs,
                              [numpy_helper.from_array(np.asarray(t), name) for name, t in tensors.items() if name in used])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def feeds(case):
    """Files that --input binds."""
    return {"ids": np.random.default_rng(11).integers(0, WORDS, case.rows), "labels": labels(case)}
