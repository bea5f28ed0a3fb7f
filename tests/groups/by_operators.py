"""Attention as one node: ONNX's operator of opset 23, and onnxruntime's."""
import numpy as np
from draw import Axis
from formula import attend
from heads import arranged, dims
from masks import causal, padding_values, without_hidden_rows

MICROSOFT = "com.microsoft"


def ones(*values, **heavier):
    return {**dict.fromkeys(values, 1), **heavier}


def yes_no(name, **of):
    return Axis(name, ones("no", "yes"), **of)


def flat_gradients(names, orders):
    """dq, dk, dv to {input name: gradient}"""
    return lambda *of: {name: arranged(x, order) for name, order, x in zip(names, orders, of)}


# ---- Attention of opset 23
ATTENTION = [
    Axis("operator", ones("Attention")),
    Axis("opset", {23: 1}),
    Axis("layout", ones("bhtd", "bte")),
    Axis("lengths", {"self": 2, "fewer_keys": 1, "more_keys": 1}),
    Axis("v_size", ones("same", "other")),
    Axis("kv", ones("same", "groups", "one")),
    Axis("mask", {"none": 1, "booleans": 2, "numbers": 2, "causal": 2}),
    Axis("place", ones("default", "attribute")),
    yes_no("cap"),
    Axis("precision", ones("default", "float")),
]


def attention_mask(s):
    """(name or "", seen, numbers to add, is the mask's gradient wanted)"""
    z, kind = s.sizes, s.choices["mask"]
    if kind == "causal":
        return "", np.tril(np.ones((z.queries, z.keys), bool)), 0.0
    if kind == "none":
        return "", np.array(True), 0.0
    shapes = [(z.queries, z.keys), (1, z.queries, z.keys), (z.batch, 1, z.queries, z.keys), (z.batch, z.heads, z.queries, z.keys)]
    shape = shapes[s.rng.integers(len(shapes))]
    seen = without_hidden_rows(s.rng.random(shape) < 0.7)
    if kind == "booleans":
        return s.feed("mask", seen), seen, 0.0
    numbers = s.rng.normal(size=shape)
    return s.feed("mask", np.where(seen, numbers, -np.inf)), seen, numbers


def summed_to(x, shape):
    """The sum of x over the axes along which an array of this shape broadcasts."""
    lead = x.ndim - len(shape)
    x = x.sum(tuple(range(lead)))
    return x.sum(tuple(i for i, d in enumerate(shape) if d == 1 and x.shape[i] > 1), keepdims=True)


def build_attention(s):
    c, z = s.choices, s.sizes
    arrays = [s.rng.normal(size=dims(s, part)) for part in "qkv"]
    names = [s.feed(part, arranged(x, c["layout"])) for part, x in zip("qkv", arrays)]
    mask, seen, numbers = attention_mask(s)
    attrs = {"q_num_heads": z.heads, "kv_num_heads": z.kv_heads} if c["layout"] == "bte" else {}
    scale = float(np.float32(0.375)) if c["place"] == "attribute" else z.size ** -0.5
    if c["place"] == "attribute":
        attrs["scale"] = scale
    if c["cap"] == "yes":
        attrs["softcap"] = 0.75
    if c["mask"] == "causal":
        attrs["is_causal"] = 1
    if c["precision"] == "float":
        attrs["softmax_precision"] = 1
    out = s.op("Attention", *names, *([mask] if mask else []), **attrs)
    pack = flat_gradients(names, [c["layout"]] * 3)

    def formula(cotangent):
        r = attend(*arrays, scale, numbers, seen, attrs.get("softcap", 0.0), cotangent)
        of_mask = {mask: summed_to(r.dscores, numbers.shape)} if c["mask"] == "numbers" else {}
        return r.output, {**pack(r.dq, r.dk, r.dv), **of_mask}
    return out, c["layout"], formula


# ---- onnxruntime's MultiHeadAttention
MULTI = [
    Axis("operator", ones("MultiHeadAttention")),
    Axis("opset", ones(*range(13, 24))),
    Axis("layout", ones("separate", "packed", "packed_kv", "heads_kv", separate=3)),
    Axis("lengths", {"self": 2, "fewer_keys": 1, "more_keys": 1}, fits=lambda c, v: v == "self" or c["layout"] != "packed"),
    Axis("v_size", ones("same", "other"), fits=lambda c, v: v == "same" or not c["layout"].startswith("packed")),
    Axis("kv", ones("same")),
    Axis("mask", ones("none", "keys", "lengths", "rows", "causal"), fits=lambda c, v: v != "causal" or c["lengths"] == "self"),
    Axis("place", ones("default", "attribute")),
    yes_no("projected", fits=lambda c, v: v == "no" or c["layout"] == "separate"),
    yes_no("bias"),
]


def multi_inputs(s, arrays):
    """(the operator's first three inputs, the function from dq, dk, dv to gradients)"""
    z, kind = s.sizes, s.choices["layout"]
    q, k, v = arrays
    if kind == "packed":
        def pack(*of):
            return np.stack([arranged(x, "bthd") for x in of], 3)
        name = s.feed("qkv", pack(q, k, v))
        return [name, "", ""], lambda *of: {name: pack(*of)}
    if kind == "packed_kv":
        def pack_kv(*of):
            return np.stack([arranged(x, "bthd") for x in of], 3)
        names = s.feed("q", arranged(q, "bte")), s.feed("kv", pack_kv(k, v))
        return [*names, ""], lambda dq, dk, dv: {names[0]: arranged(dq, "bte"), names[1]: pack_kv(dk, dv)}
    orders = ["bte", *["bhtd" if kind == "heads_kv" else "bte"] * 2]
    names = [s.feed(part, arranged(x, order)) for part, x, order in zip("qkv", arrays, orders)]
    return names, flat_gradients(names, orders)


def multi_mask(s):
    """(name or "", seen)"""
    z, kind = s.sizes, s.choices["mask"]
    if kind in ("none", "causal"):
        return "", causal(s) if kind == "causal" else np.array(True)
    keys = padding_values(s)
    seen = keys.astype(bool)[:, None, None]
    if kind == "lengths":
        return s.feed("mask", keys.sum(1).astype(np.int32)), seen
    if kind == "keys":
        return s.feed("mask", keys.astype(np.int32)), seen
    seen = without_hidden_rows(s.rng.random((z.batch, z.queries, z.keys)) < 0.7)
    return s.feed("mask", seen.astype(np.int32)), seen[:, None]


def with_projection(s, arrays):
    """(q, k and v plus a trained vector, the vector's name or "", its gradient from dq, dk, dv)"""
    if s.choices["projected"] == "no":
        return arrays, "", lambda *of: {}
    name, vector = s.train("bias", s.rng.normal(size=sum(x.shape[1] * x.shape[3] for x in arrays)))
    ends = np.cumsum([x.shape[1] * x.shape[3] for x in arrays])[:-1]
    parts = [v.reshape(1, x.shape[1], 1, x.shape[3]) for x, v in zip(arrays, np.split(vector, ends))]
    return ([x + part for x, part in zip(arrays, parts)], name,
            lambda *of: {name: np.concatenate([x.sum((0, 2)).reshape(-1) for x in of])})


def build_multi(s):
    c, z = s.choices, s.sizes
    arrays = [s.rng.normal(size=dims(s, part)) for part in "qkv"]
    inputs, pack = multi_inputs(s, arrays)
    arrays, vector, vector_gradient = with_projection(s, arrays)
    mask, seen = multi_mask(s)
    added, values = "", np.zeros(())
    if c["bias"] == "yes":
        values = s.rng.normal(size=((z.batch, 1)[s.rng.integers(2)], (z.heads, 1)[s.rng.integers(2)], z.queries, z.keys))
        added = s.feed("bias", values)
    scale = 0.375 if c["place"] == "attribute" else z.size ** -0.5
    attrs = {"scale": scale} if c["place"] == "attribute" else {}
    if c["mask"] == "causal":
        attrs["unidirectional"] = 1
    names = [*inputs, vector, mask, added]
    while not names[-1]:
        names.pop()
    out = s.op("MultiHeadAttention", *names, domain=MICROSOFT, num_heads=z.heads, **attrs)

    def formula(cotangent):
        r = attend(*arrays, scale, values, seen, 0.0, cotangent)
        grads = {**pack(r.dq, r.dk, r.dv), **vector_gradient(r.dq, r.dk, r.dv)}
        if added:
            grads[added] = summed_to(r.dscores, values.shape)
        return r.output, grads
    return out, "bte", formula


# ---- onnxruntime's GroupQueryAttention, which is causal
GROUP = [
    Axis("operator", ones("GroupQueryAttention")),
    Axis("opset", ones(*range(13, 24))),
    Axis("layout", ones("separate", "packed")),
    Axis("lengths", ones("self")),
    Axis("v_size", ones("same")),
    Axis("kv", ones("same", "groups", "one")),
    Axis("mask", ones("causal", "window")),
    Axis("place", ones("default", "attribute")),
    yes_no("cap"),
    yes_no("bias"),
]


def build_group(s):
    c, z = s.choices, s.sizes
    arrays = [s.rng.normal(size=dims(s, part)) for part in "qkv"]
    if c["layout"] == "packed":
        def pack(*of):
            return {name: np.concatenate([arranged(x, "bte") for x in of], 2)}
        name = f"{s.name}/qkv"
        s.feed("qkv", pack(*arrays)[name])
        inputs = [name, "", ""]
    else:
        inputs = [s.feed(part, arranged(x, "bte")) for part, x in zip("qkv", arrays)]
        pack = flat_gradients(inputs, ["bte"] * 3)
    attrs, scale = {"num_heads": z.heads, "kv_num_heads": z.kv_heads}, z.size ** -0.5
    if c["place"] == "attribute":
        attrs["scale"] = scale = 0.375
    if c["cap"] == "yes":
        attrs["softcap"] = 0.75
    row, column = np.arange(z.queries)[:, None], np.arange(z.keys)
    seen = column <= row
    if c["mask"] == "window":
        attrs["local_window_size"] = 2
        seen = seen & (row - column < 2)
    names = [*inputs, "", "", s.store("lengths", np.full(z.batch, z.keys - 1, np.int32)), s.store("total", np.array(z.keys, np.int32))]
    added, values = "", np.zeros(())
    if c["bias"] == "yes":
        values = s.rng.normal(size=((z.batch, 1)[s.rng.integers(2)], (z.heads, 1)[s.rng.integers(2)], z.queries, z.keys))
        added = s.feed("bias", values)
        names += ["", "", "", added]
    out = s.op("GroupQueryAttention", *names, outputs=3, domain=MICROSOFT, **attrs)[0]

    def formula(cotangent):
        r = attend(*arrays, scale, values, seen, attrs.get("softcap", 0.0), cotangent)
        return r.output, {**pack(r.dq, r.dk, r.dv), **({added: summed_to(r.dscores, values.shape)} if added else {})}
    return out, "bte", formula


# ---- onnxruntime's Attention, with the weights of q, k and v
PROJECTING = [
    Axis("operator", ones("MicrosoftAttention")),
    Axis("opset", ones(*range(13, 24))),
    Axis("layout", ones("projected")),
    Axis("lengths", ones("self")),
    Axis("v_size", ones("same", "other")),
    Axis("kv", ones("same")),
    Axis("mask", ones("none", "keys", "lengths", "rows", "causal")),
    Axis("place", ones("default", "attribute")),
    yes_no("bias"),
]


def build_projecting(s):
    c, z = s.choices, s.sizes
    x = s.rng.normal(size=(z.batch, z.queries, 3))
    lengths = [z.heads * z.size] * 2 + [z.heads * z.v_size]
    x_name, (w_name, w), (b_name, b) = s.feed("x", x), s.train("weight", s.rng.normal(size=(3, sum(lengths)))), s.train("bias", s.rng.normal(size=sum(lengths)))
    flat = np.split(x @ w + b, np.cumsum(lengths)[:-1], 2)
    arrays = [t.reshape(z.batch, z.queries, z.heads, -1).transpose(0, 2, 1, 3) for t in flat]
    mask, seen = multi_mask(s)
    added, values = "", np.zeros(())
    if c["bias"] == "yes":
        values = s.rng.normal(size=(z.batch, z.heads, z.queries, z.keys))
        added = s.feed("bias", values)
    names = [x_name, w_name, b_name, mask, "", added]
    while not names[-1]:
        names.pop()
    scale = 0.375 if c["place"] == "attribute" else z.size ** -0.5
    attrs = {"scale": scale} if c["place"] == "attribute" else {}
    if c["mask"] == "causal":
        attrs["unidirectional"] = 1
    if z.size != z.v_size:
        attrs["qkv_hidden_sizes"] = lengths
    out = s.op("Attention", *names, domain=MICROSOFT, num_heads=z.heads, **attrs)

    def formula(cotangent):
        r = attend(*arrays, scale, values, seen, 0.0, cotangent)
        d = np.concatenate([arranged(t, "bte") for t in (r.dq, r.dk, r.dv)], 2)
        grads = {x_name: d @ w.T, w_name: np.einsum("bti,bto->io", x, d), b_name: d.sum((0, 1))}
        return r.output, {**grads, **({added: r.dscores} if added else {})}
    return out, "bte", formula


# operator: (axes, how many spellings, its nodes)
OPERATORS = {
    "Attention": (ATTENTION, 11, build_attention),
    "MultiHeadAttention": (MULTI, 10, build_multi),
    "GroupQueryAttention": (GROUP, 10, build_group),
    "MicrosoftAttention": (PROJECTING, 10, build_projecting),
}
