"""How the scores and the output are computed: the scale, the two products, the softmax and what stands behind it."""
import math

import numpy as np
from heads import Heads, to_order
from onnx import TensorProto


# ---- scale: each number is written in one of these ways; all give (name, value)
def written(s, value):
    kind = s.choices["number"]
    name = s.constant(value) if kind == "constant" else s.number(value, (1,) if kind == "vector" else ())
    return name, float(s.rounded(value))


def divisor(s, size):
    """sqrt(D); size() adds the nodes of an s64[] with D, for the computed form."""
    if s.choices["number"] != "computed":
        return written(s, math.sqrt(s.sizes.size))
    return s.op("Sqrt", s.cast_to_float(size())), math.sqrt(s.sizes.size)


def factor(s, size):
    """1 / sqrt(D)"""
    if s.choices["number"] != "computed":
        return written(s, 1 / math.sqrt(s.sizes.size))
    name, value = divisor(s, size)
    if s.count % 2:
        return s.op("Reciprocal", name), 1 / value
    return s.op("Div", s.number(1.0), name), 1 / value


def root(s, size):
    """1 / sqrt(sqrt(D))"""
    if s.choices["number"] != "computed":
        return written(s, s.sizes.size ** -0.25)
    name, value = factor(s, size)
    return s.op("Sqrt", name), math.sqrt(value)


def times(s, kind, x, number):
    """x by a number; either operand may stand first in a Mul."""
    return s.op(kind, number, x) if kind == "Mul" and s.count % 3 == 0 else s.op(kind, x, number)


def scaled(s, x, make, kind="Mul"):
    """Heads x by the number that make() gives, and its value."""
    def size():
        return s.dim(x.name, 3) if x.order in ("bhtd", "bthd") else s.int_scalar(s.sizes.size)
    name, value = make(s, size)
    return x._replace(name=times(s, kind, x.name, name)), value


# place: what is scaled (q, k, scores), how, and by which number
PLACES = {
    "none": (),
    "q": (("q", "Mul", factor),),
    "k": (("k", "Mul", factor),),
    "both": (("q", "Mul", root), ("k", "Mul", root)),
    "both_turned": (("q", "Mul", root), ("turned_k", "Mul", root)),
    "q_early": (("early", "Mul", factor),),
    "q_div": (("q", "Div", divisor),),
    "after_mul": (("scores", "Mul", factor),),
    "after_div": (("scores", "Div", divisor),),
}


def scale_part(s, part, x):
    """x by the number that the spelling's place has for this part; its factor."""
    total = 1.0
    for where, kind, make in PLACES[s.choices["place"]]:
        if where == part:
            x, value = scaled(s, x, make, kind)
            total *= 1 / value if kind == "Div" else value
    return x, total


# ---- q k': each gives the scores' name and the factor that it applied. Scores are [B, H, Tq, Tk], from `matrices` [B H, Tq, Tk], of a matrix [Tq, Tk]
def by_turned_k(s, q, k, turned):
    """PyTorch's exporter scales k when it is transposed."""
    k, of_k = scale_part(s, "turned_k", k._replace(name=turned, order="bhdt"))
    return s.op("MatMul", q.name, k.name), of_k


def by_transpose(s, q, k):
    if q.order == "td":
        return by_turned_k(s, q, k, s.transpose(k.name, 1, 0))
    return by_turned_k(s, q, k, s.transpose(k.name, 0, 1, 3, 2))


def by_permute(s, q, k):
    """One Transpose from [B, T, H, D]."""
    return by_turned_k(s, q, k, s.transpose(k.name, 0, 2, 3, 1))


def by_rank_3(s, q, k):
    """k is a matrix per head while it is transposed, as PyTorch's exporter writes it."""
    b, h, t, d = k[2:]
    turned = s.transpose(s.op("Reshape", k.name, s.ints(-1, t, d)), 0, 2, 1)
    return by_turned_k(s, q, k, s.op("Reshape", turned, s.ints(b, h, d, t)))


def by_einsum(s, q, k):
    return s.op("Einsum", q.name, k.name, equation="bhqd,bhkd->bhqk"), 1.0


def by_einsum_tokens(s, q, k):
    return s.op("Einsum", q.name, k.name, equation="bqhd,bkhd->bhqk"), 1.0


def by_matrices(s, q, k):
    return s.op("MatMul", q.name, s.transpose(k.name, 0, 2, 1)), 1.0


def by_turned(s, q, k):
    """k q', transposed"""
    return s.transpose(s.op("MatMul", k.name, s.transpose(q.name, 0, 1, 3, 2)), 0, 1, 3, 2), 1.0


def by_gemm(s, q, k):
    return s.op("Gemm", q.name, k.name, transB=1), 1.0


def by_fused(s, q, k):
    """onnxruntime's product; it has the scale where the spelling has none elsewhere."""
    alpha = 0.75 if s.choices["place"] == "none" else 1.0
    return s.op("FusedMatMul", q.name, k.name, domain="com.microsoft", transB=1, alpha=alpha), alpha


def by_five_axes(s, q, k):
    """The query heads of one head of k have an axis of their own."""
    z = s.sizes
    wide = s.reshape(q.name, (z.batch, z.kv_heads, z.group, z.queries, z.size))
    x = s.op("MatMul", wide, s.transpose(s.unsqueeze(k.name, 2), 0, 1, 2, 4, 3))
    return s.reshape(x, (z.batch, z.heads, z.queries, z.keys)), 1.0


# product: (order of q and k that it takes, its nodes)
PRODUCTS = {
    "transpose": ("bhtd", by_transpose),
    "permute": ("bhtd", by_permute),
    "rank_3": ("bhtd", by_rank_3),
    "einsum": ("bhtd", by_einsum),
    "einsum_tokens": ("bthd", by_einsum_tokens),
    "matrices": ("mtd", by_matrices),
    "turned": ("bhtd", by_turned),
    "gemm": ("td", by_gemm),
    "fused_matmul": ("bhtd", by_fused),
    "five_axes": ("bhtd", by_five_axes),
}


def scores_of(s, q, k):
    """Their name, and the factor by which they are scaled so far."""
    order, write = PRODUCTS[s.choices["product"]]
    order = "td" if q.order == "td" else order
    k_order = "bthd" if s.choices["product"] == "permute" else order
    q, of_q = scale_part(s, "q", to_order(s, q, order))
    k, of_k = scale_part(s, "k", to_order(s, k, k_order))
    name, of_product = write(s, q, k)
    return name, of_q * of_k * of_product


def scale_scores(s, x):
    """The scores times the scale that stands behind the product, and its value."""
    total = 1.0
    for where, kind, make in PLACES[s.choices["place"]]:
        if where == "scores":
            name, value = make(s, lambda: s.int_scalar(s.sizes.size))
            x = times(s, kind, x, name)
            total *= 1 / value if kind == "Div" else value
    return x, total


CAP = 2.0  # its reciprocal is a number of every float type


def softcapped(s, x):
    """tanh(x / c) c"""
    if s.choices["cap"] == "none":
        return x
    down = s.op("Mul", x, s.number(1 / CAP)) if s.choices["cap"] == "by_mul" else s.op("Div", x, s.number(CAP))
    return s.op("Mul", s.op("Tanh", down), s.number(CAP))


# ---- softmax of x with `rank` axes along the last
def softmax_last(s, x, rank):
    return s.op("Softmax", x, axis=-1)


def softmax_numbered(s, x, rank):
    return s.op("Softmax", x, axis=rank - 1)


def shares(s, e, axis):
    return s.op("Div", e, s.reduce("ReduceSum", e, axis))


def softmax_of_exp(s, x, rank):
    return shares(s, s.op("Exp", x), -1)


def softmax_shifted(s, x, rank):
    return shares(s, s.op("Exp", s.op("Sub", x, s.reduce("ReduceMax", x, -1))), rank - 1)


def softmax_of_log(s, x, rank):
    return s.op("Exp", s.op("LogSoftmax", x, axis=-1))


SOFTMAXES = {"last": softmax_last, "numbered": softmax_numbered, "exp": softmax_of_exp, "shifted": softmax_shifted, "log": softmax_of_log}


def probabilities(s, x, rank):
    """Behind a softmax stand a cast, a guard against NaN and a dropout that drops nothing, where the spelling has them."""
    wide = s.choices["cast"] != "f32"
    if wide:
        x = s.cast(x, TensorProto.FLOAT)
    p = SOFTMAXES[s.choices["softmax"]](s, x, rank)
    p = s.cast_to_float(p) if wide else p
    if s.choices["guard"] != "none":
        p = s.op("Where", s.op("IsNaN", p), s.number(0.0), p)
    if s.choices["dropout"] != "none":
        p = DROPOUTS[s.choices["dropout"]](s, p)
    return p


def dropped(s, p, ratio, *flag):
    return s.op("Dropout", p, s.store("ratio", np.float32(ratio)), *(s.store("flag", np.array(x)) for x in flag))


DROPOUTS = {
    "inference": lambda s, p: dropped(s, p, 0.25),
    "not_training": lambda s, p: dropped(s, p, 0.25, False),
    "ratio_0": lambda s, p: dropped(s, p, 0.0, True),
}


# ---- p v: each gives the output's name
def weigh_matmul(s, p, v):
    return s.op("MatMul", p, v.name)


def weigh_einsum(s, p, v):
    return s.op("Einsum", p, v.name, equation="bhqk,bhkd->bhqd")


def weigh_einsum_tokens(s, p, v):
    return s.op("Einsum", p, v.name, equation="bhqk,bkhd->bqhd")


def weigh_turned(s, p, v):
    """v' p', transposed"""
    x = s.op("MatMul", s.transpose(v.name, 0, 1, 3, 2), s.transpose(p, 0, 1, 3, 2))
    return s.transpose(x, 0, 1, 3, 2)


def weigh_gemm(s, p, v):
    return s.op("Gemm", p, v.name)


def weigh_five_axes(s, p, v):
    z = s.sizes
    x = s.op("MatMul", s.reshape(p, (z.batch, z.kv_heads, z.group, z.queries, z.keys)), s.unsqueeze(v.name, 2))
    return s.reshape(x, (z.batch, z.heads, z.queries, z.v_size))


# product: (order of v, order of the result, its nodes)
WEIGHS = {
    "matmul": ("bhtd", "bhtd", weigh_matmul),
    "einsum": ("bhtd", "bhtd", weigh_einsum),
    "einsum_tokens": ("bthd", "bthd", weigh_einsum_tokens),
    "matrices": ("mtd", "mtd", weigh_matmul),
    "turned": ("bhtd", "bhtd", weigh_turned),
    "gemm": ("td", "td", weigh_gemm),
    "five_axes": ("bhtd", "bhtd", weigh_five_axes),
}


def weighed(s, p, v):
    """p v as Heads"""
    v_order, order, write = WEIGHS[s.choices["weigh"]]
    if v.order == "td":
        v_order = order = "td"
    z = s.sizes
    return Heads(write(s, p, to_order(s, v, v_order)), order, z.batch, z.heads, z.queries, z.v_size)
