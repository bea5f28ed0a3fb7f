"""How q, k and v come in and how the output leaves: layouts, groups of heads that share keys and values."""
from typing import NamedTuple

import numpy as np


class Heads(NamedTuple):
    """A tensor with heads. `order` says its axes, b batch, h heads, t tokens, d numbers of a head, e = h d, m = b h: bhtd, bthd, bte, mtd, tbe or td."""
    name: str
    order: str
    batch: int
    heads: int
    tokens: int
    size: int


def arranged(x, order):
    """x [B, H, T, D] with its axes in another order."""
    b, h, t, d = x.shape
    return {
        "bhtd": lambda: x,
        "bthd": lambda: x.transpose(0, 2, 1, 3),
        "bte": lambda: x.transpose(0, 2, 1, 3).reshape(b, t, h * d),
        "mtd": lambda: x.reshape(b * h, t, d),
        "tbe": lambda: x.transpose(2, 0, 1, 3).reshape(t, b, h * d),
        "td": lambda: x.reshape(t, d),
    }[order]()


def to_bhtd(s, x):
    b, h, t, d = x[2:]
    if x.order == "bte":
        x = Heads(s.reshape(x.name, (b, t, h, d), kept=2), "bthd", *x[2:])
    if x.order == "tbe":
        return s.transpose(s.reshape(x.name, (t, b, h, d), kept=2), 1, 2, 0, 3)
    if x.order == "mtd":
        return s.op("Reshape", x.name, s.ints(b, h, t, d))
    if x.order == "td":
        return s.unsqueeze(x.name, 0, 1)
    return x.name if x.order == "bhtd" else s.transpose(x.name, 0, 2, 1, 3)


def to_order(s, x, order):
    """x in another order, by the nodes that exporters write."""
    if x.order == order:
        return x
    b, h, t, d = x[2:]
    if (x.order, order) == ("bte", "bthd"):
        name = s.reshape(x.name, (b, t, h, d), kept=2)
    elif (x.order, order) == ("tbe", "mtd"):
        name = s.transpose(s.reshape(x.name, (t, b * h, d)), 1, 0, 2)
    elif (x.order, order) == ("mtd", "tbe"):
        name = s.reshape(s.transpose(x.name, 1, 0, 2), (t, b, h * d))
    else:
        name = to_bhtd(s, x)
        if order == "mtd":
            name = s.op("Reshape", name, s.ints(b * h, t, d))
        elif order == "td":
            name = s.squeeze(name, 0, 1)
        elif order == "tbe":
            name = s.reshape(s.transpose(name, 2, 0, 1, 3), (t, b, h * d), kept=2)
        elif order != "bhtd":
            name = s.transpose(name, 0, 2, 1, 3)
            name = s.reshape(name, (b, t, h * d), kept=2) if order == "bte" else name
    return Heads(name, order, b, h, t, d)


def dims(s, part):
    """(batch, heads, tokens, size) of q, k or v."""
    z = s.sizes
    return {"q": (z.batch, z.heads, z.queries, z.size), "k": (z.batch, z.kv_heads, z.keys, z.size),
            "v": (z.batch, z.kv_heads, z.keys, z.v_size)}[part]


# ---- layouts: each gives (q, k, v) as Heads, and a function from arrays q, k, v [B, H, T, D] to {input name: array}
def separate(order):
    def layout(s, q, k, v):
        arrays = dict(zip("qkv", (q, k, v)))
        names = {part: s.feed(part, arranged(x, order)) for part, x in arrays.items()}
        heads = [Heads(names[part], order, *dims(s, part)) for part in "qkv"]
        return heads, lambda *of: {names[part]: arranged(x, order) for part, x in zip("qkv", of)}
    return layout


def packed(divide):
    """One input [B, T, (H + 2 KV) D]; divide(s, x, lengths) gives its parts."""
    def layout(s, q, k, v):
        def pack(*of):
            return np.concatenate([arranged(x, "bte") for x in of], 2)
        name = s.feed("qkv", pack(q, k, v))
        lengths = [x.shape[1] * x.shape[3] for x in (q, k, v)]
        parts = divide(s, name, lengths)
        return [Heads(x, "bte", *dims(s, part)) for part, x in zip("qkv", parts)], lambda *of: {name: pack(*of)}
    return layout


def by_split(s, x, lengths):
    return s.split(x, 2, lengths)


def by_slices(s, x, lengths):
    ends = np.cumsum([0, *lengths]).tolist()
    return [s.slice(x, 2, start, end) for start, end in zip(ends, ends[1:])]


def by_axis(s, q, k, v):
    """[B, T, 3 H D] becomes [3, B, H, T, D], and an index along the first axis gives q, k and v."""
    def pack(*of):
        return np.concatenate([arranged(x, "bte") for x in of], 2)
    name, (b, h, t, d) = s.feed("qkv", pack(q, k, v)), dims(s, "q")
    turned = s.transpose(s.reshape(name, (b, t, 3, h, d), kept=2), 2, 0, 3, 1, 4)
    if s.count % 2:
        parts = [s.op("Gather", turned, s.int_scalar(i), axis=0) for i in range(3)]
    else:
        parts = [s.squeeze(part, 0) for part in s.split(turned, 0, [1, 1, 1])]
    return [Heads(x, "bhtd", b, h, t, d) for x in parts], lambda *of: {name: pack(*of)}


def packed_kv(s, q, k, v):
    """q [B, Tq, H D], and k and v in one input [B, Tk, KV (D + Dv)]."""
    def pack(k, v):
        return np.concatenate([arranged(k, "bte"), arranged(v, "bte")], 2)
    names = s.feed("q", arranged(q, "bte")), s.feed("kv", pack(k, v))
    parts = [names[0], *s.split(names[1], 2, [x.shape[1] * x.shape[3] for x in (k, v)])]
    heads = [Heads(x, "bte", *dims(s, part)) for part, x in zip("qkv", parts)]
    return heads, lambda q, k, v: {names[0]: arranged(q, "bte"), names[1]: pack(k, v)}


LAYOUTS = {
    "heads_first": separate("bhtd"),
    "tokens_first": separate("bthd"),
    "flat": separate("bte"),
    "merged": separate("mtd"),
    "time_first": separate("tbe"),
    "matrix": separate("td"),
    "packed_split": packed(by_split),
    "packed_slices": packed(by_slices),
    "packed_axis": by_axis,
    "packed_kv": packed_kv,
}


# ---- keys and values for all heads of q
def repeated(write):
    """[B, KV, T, D] becomes [B, H, T, D]; write(s, x, shape) adds the nodes."""
    def repeat(s, x):
        if s.sizes.group == 1:
            return x
        x = to_order(s, x, "bhtd")
        return Heads(write(s, x), "bhtd", x.batch, s.sizes.heads, x.tokens, x.size)
    return repeat


def by_expand(s, x):
    b, kv, t, d = x[2:]
    wide = s.op("Expand", s.unsqueeze(x.name, 2), s.ints(b, kv, s.sizes.group, t, d))
    return s.reshape(wide, (b, kv * s.sizes.group, t, d))


def by_tile(s, x):
    b, kv, t, d = x[2:]
    wide = s.op("Tile", s.unsqueeze(x.name, 2), s.ints(1, 1, s.sizes.group, 1, 1))
    return s.reshape(wide, (b, kv * s.sizes.group, t, d))


def by_gather(s, x):
    return s.op("Gather", x.name, s.ints(*np.repeat(np.arange(x.heads), s.sizes.group).tolist()), axis=1)


def as_is(s, x):
    return x


REPEATS = {
    "same": as_is,
    "expand": repeated(by_expand),
    "tile": repeated(by_tile),
    "gather": repeated(by_gather),
    "one": as_is,        # one head, which MatMul broadcasts
    "five_axes": as_is,  # q is [B, KV, H / KV, T, D] in the products
}
