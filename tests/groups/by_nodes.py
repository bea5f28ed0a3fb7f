"""The axes of attention that is written out in nodes, and how such a spelling is built."""
import numpy as np
from biases import BIASES, bias_of
from draw import Axis
from formula import attend
from heads import LAYOUTS, REPEATS, dims, to_order
from masks import ADDS, SOURCES, masked
from products import CAP, DROPOUTS, PLACES, PRODUCTS, SOFTMAXES, WEIGHS, probabilities, scale_part, scale_scores, scores_of, softcapped, weighed
from spelled import Sizes

PRIMES = (2, 3, 5, 7, 11, 13)
SELF_ONLY = {"packed_split", "packed_slices", "packed_axis"}


def ones(values, **heavier):
    return {**dict.fromkeys(values, 1), **heavier}


def fits_heads(c, v):
    """Do the layout and the lengths leave room for heads of k and v that are fewer than q's?"""
    return v == "same" or c["layout"] not in ("matrix", "packed_axis")


def fits_product(c, v):
    matrix, heads = c["layout"] == "matrix", c["kv"]
    if matrix or v == "gemm":
        return matrix and v in ("gemm", "transpose")
    if heads == "five_axes" or v == "five_axes":
        return heads == v
    return heads != "one" or v in ("transpose", "permute", "rank_3")


def fits_place(c, v):
    return v != "both_turned" or c["product"] in ("transpose", "permute", "rank_3")


def fits_mask(c, v):
    if v == "documents":
        return c["lengths"] == "self"
    return v not in ("window", "band") or c["lengths"] != "fewer_keys"


def fits_apply(c, v):
    return (v == "add_input") == (c["mask"] == "float_input")


def fits_fill(c, v):
    return not (v == "minus_inf" and c["apply"] == "mul_add")


def fits_join(c, v):
    return v != "summed" or c["apply"] in ADDS


def fits_cast(c, v):
    return {"f16": c["fill"] != "minus_1e9", "bf16": not c["product"].startswith("einsum")}.get(v, True)


def fits_weigh(c, v):
    if c["layout"] == "matrix" or v == "gemm":
        return c["layout"] == "matrix" and v in ("gemm", "matmul")
    if c["kv"] == "five_axes" or v == "five_axes":
        return c["kv"] == v
    if c["product"] == "matrices" and v == "matrices":
        return True
    return (c["kv"] != "one" or v in ("matmul", "turned")) and not (c["cast"] == "bf16" and v.startswith("einsum"))


def fits_output(c, v):
    return (v == "td") == (c["layout"] == "matrix")


def fits_opset(c, v):
    return v >= (16 if c["cast"] == "bf16" else 14 if c["mask"] == "trilu" else 13)


AXES = [
    Axis("layout", ones(LAYOUTS, heads_first=2, flat=2, matrix=1.3)),
    Axis("lengths", {"self": 4, "fewer_keys": 1, "more_keys": 1, "one_query": 1}, fits=lambda c, v: v == "self" or c["layout"] not in SELF_ONLY),
    Axis("v_size", {"same": 3, "other": 1}, fits=lambda c, v: v == "same" or c["layout"] != "packed_axis"),
    Axis("kv", ones(REPEATS, same=4), fits=fits_heads),
    Axis("reshapes", ones(("stored", "inferred", "computed"))),
    Axis("product", ones(PRODUCTS, transpose=3, rank_3=2, gemm=3), fits=fits_product),
    Axis("place", ones(PLACES, both_turned=2), fits=fits_place),
    Axis("number", ones(("scalar", "vector", "constant", "computed")), applies=lambda c: c["place"] != "none"),
    Axis("cap", {"none": 4, "by_div": 1, "by_mul": 1}),
    Axis("bias", ones(BIASES, none=6)),
    Axis("mask", ones(SOURCES, none=2), fits=fits_mask),
    Axis("apply", ones(("where", "where_hidden", *ADDS)), applies=lambda c: c["mask"] != "none", fits=fits_apply),
    Axis("fill", ones(("minus_inf", "lowest", "minus_1e9", "minus_1e4")), applies=lambda c: c["mask"] != "none", fits=fits_fill),
    Axis("join", ones(("bias_first", "mask_first", "summed")), applies=lambda c: "none" not in (c["bias"], c["mask"]), fits=fits_join),
    Axis("cast", {"f32": 4, "f16": 1, "bf16": 1}, fits=fits_cast),
    Axis("softmax", ones(SOFTMAXES, last=3)),
    Axis("guard", {"none": 2, "is_nan": 1}),
    Axis("dropout", {"none": 4, **ones(DROPOUTS)}),
    Axis("weigh", ones(WEIGHS, matmul=3), fits=fits_weigh),
    Axis("output", ones(("bhtd", "bthd", "bte", "mtd", "tbe", "td"), bte=2), fits=fits_output),
    Axis("opset", ones(range(13, 24)), fits=fits_opset),
]

# Values that names of spellings leave out, and axes that names say before the value.
USUAL = {"lengths": "self", "v_size": "same", "kv": "same", "reshapes": "stored", "cap": "none", "bias": "none", "mask": "none", "join": "bias_first",
         "cast": "f32", "softmax": "last", "guard": "none", "dropout": "none", "projected": "no", "precision": "default"}
SAID = {"lengths", "v_size", "opset", "kv", "cap", "place", "number", "bias", "mask", "fill", "softmax", "weigh", "output", "join", "projected", "precision"}


def sizes_of(c, rng):
    """Lengths are primes, and the numbers of a head differ from them."""
    def draw(*values):
        return int(values[rng.integers(len(values))])
    queries = draw(*PRIMES[1:5])
    keys = queries
    if c["lengths"] == "more_keys":
        keys = draw(*(p for p in PRIMES if p > queries))
    elif c["lengths"] == "fewer_keys":
        keys = draw(*(p for p in PRIMES if p < queries))
    elif c["lengths"] == "one_query":
        queries = 1
    size = draw(*(d for d in (2, 3, 4, 5, 7, 8) if d not in (queries, keys)))
    v_size = draw(*(d for d in (1, 2, 3, 5, 6) if d != size)) if c["v_size"] == "other" else size
    heads, kv = (1, 1) if c["layout"] == "matrix" else (draw(2, 3), 0)
    if c["kv"] == "one":
        kv = 1
    elif c["kv"] != "same":
        heads, kv = 4, 2
    return Sizes(1 if c["layout"] == "matrix" else draw(1, 2, 3), heads, kv or heads, queries, keys, size, v_size)


def build(s):
    """Adds the nodes; gives the name and the order of the output, and formula(cotangent [B, H, Tq, Dv]) -> (output [B, H, Tq, Dv], {name: gradient})."""
    z, c = s.sizes, s.choices
    arrays = [s.rng.normal(size=dims(s, part)) for part in "qkv"]
    (q, k, v), pack = LAYOUTS[c["layout"]](s, *arrays)
    q, early = scale_part(s, "early", q)
    k, v = (REPEATS[c["kv"]](s, x) for x in (k, v))
    x, scale = scores_of(s, q, k)
    x, behind = scale_scores(s, x)
    x = softcapped(s, x)
    bias, masks = bias_of(s), SOURCES[c["mask"]](s)
    merged = c["product"] == "matrices"
    if merged and (bias.name or masks):
        x = s.op("Reshape", x, s.ints(z.batch, z.heads, z.queries, z.keys))
        merged = False
    p = probabilities(s, masked(s, x, masks, bias.name), 2 if s.matrix else 3 if merged else 4)
    if merged != (c["weigh"] == "matrices"):
        lead = (z.batch, z.heads) if merged else (z.batch * z.heads,)
        p = s.op("Reshape", p, s.ints(*lead, z.queries, z.keys))
    out = to_order(s, weighed(s, p, v), c["output"]).name
    seen = np.array(True)
    for mask in masks:
        seen = seen & mask.seen

    def formula(cotangent):
        result = attend(*arrays, scale * early * behind, bias.values, seen, 0.0 if c["cap"] == "none" else CAP, cotangent)
        return result.output, {**pack(result.dq, result.dk, result.dv), **bias.gradients(result.dscores)}
    return out, c["output"], formula
