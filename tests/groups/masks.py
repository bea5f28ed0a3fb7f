"""Where masks come from, and how scores are masked."""
from typing import NamedTuple

import numpy as np
from onnx import TensorProto, numpy_helper

BOOL = TensorProto.BOOL
STORED = 16  # rows and columns of a stored causal mask
WINDOW = 3   # keys that a query sees in a sliding window


class Mask(NamedTuple):
    """Booleans that broadcast to the scores: which keys are seen, or with `hides` which are hidden."""
    name: str
    rank: int
    seen: np.ndarray
    hides: bool = False


def places(s):
    """Arrays of the queries' and the keys' positions, [Tq, 1] and [1, Tk]."""
    return np.arange(s.sizes.queries)[:, None] + s.sizes.past, np.arange(s.sizes.keys)[None]


def causal(s):
    row, column = places(s)
    return column <= row


def without_hidden_rows(seen):
    """Every row sees the key below its own position, so that no row is hidden."""
    row = np.arange(seen.shape[-2])[:, None]
    return seen | (np.arange(seen.shape[-1])[None] == row % seen.shape[-1])


# ---- sources: each gives the masks that are applied, in order
def drawn(s):
    """Booleans of one of the shapes that broadcast."""
    z = s.sizes
    shapes = [(z.batch, 1, z.queries, z.keys), (z.batch, z.heads, z.queries, z.keys), (1, 1, z.queries, z.keys), (z.queries, z.keys)]
    shape = shapes[-1] if s.matrix else shapes[s.rng.integers(len(shapes))]
    return without_hidden_rows(s.rng.random(shape) < 0.6)


def from_input(s):
    """A mask of booleans, or of ones and zeros."""
    seen = drawn(s)
    if s.count % 2:
        return [Mask(s.feed("mask", seen), seen.ndim, seen)]
    return [Mask(s.cast(s.feed("mask", seen.astype(np.int64)), BOOL), seen.ndim, seen)]


def from_float_input(s):
    """added_as_input() makes the input."""
    seen = drawn(s)
    return [Mask("", seen.ndim, seen)]


def padding_values(s):
    """[B, Tk]: ones, then zeros; the first key is there."""
    z = s.sizes
    return (np.arange(z.keys) < s.rng.integers(1, z.keys + 1, z.batch)[:, None]).astype(np.int64)


def from_padding(s):
    ones = padding_values(s)
    name = s.feed("padding", ones)
    wide = s.unsqueeze(name, 1, 2) if s.count % 2 else s.unsqueeze(s.unsqueeze(name, 1), 2)
    seen = ones.astype(bool)[:, None, None]
    if s.choices["apply"] == "where_hidden":
        return [Mask(s.op("Equal", wide, s.int_scalar(0)), 4, seen, True)]
    return [Mask(s.cast(wide, BOOL), 4, seen)]


def from_tril(s):
    """A stored triangle, of which a part is taken."""
    z, hides = s.sizes, s.choices["apply"] == "where_hidden"
    table = np.tril(np.ones((STORED, STORED), bool))[None, None]
    part = s.slice(s.store("tril", ~table if hides else table), 2, z.past, z.past + z.queries)
    return [Mask(s.slice(part, 3, 0, z.keys), 4, causal(s), hides)]


def from_trilu(s):
    z, hides, flat = s.sizes, s.choices["apply"] == "where_hidden", s.count % 2
    if flat:
        ones = s.op("ConstantOfShape", s.ints(z.queries, z.keys), value=one_of(np.float32))
    else:
        ones = s.op("Expand", s.store("one", np.float32(1)), s.ints(1, 1, z.queries, z.keys))
    part = s.op("Trilu", ones, s.int_scalar(z.past + hides), upper=int(hides))
    return [Mask(s.cast(part, BOOL), 2 if flat else 4, causal(s), hides)]


def one_of(kind):
    return numpy_helper.from_array(np.ones(1, kind))


def positions(s):
    """Names of the queries' and the keys' positions, s64[Tq, 1] and s64[1, Tk], by Range."""
    row, column = s.range(s.sizes.queries), s.range(s.sizes.keys)
    if s.sizes.past:
        row = s.op("Add", row, s.int_scalar(s.sizes.past))
    return s.unsqueeze(row, 1), s.unsqueeze(column, 0)


def compared(s, row, column, rank):
    """Keys up to the query's position."""
    if s.choices["apply"] == "where_hidden":
        return Mask(s.op("Greater", column, row), rank, causal(s), True)
    if s.count % 2:
        return Mask(s.op("GreaterOrEqual", row, column), rank, causal(s))
    return Mask(s.op("LessOrEqual", column, row), rank, causal(s))


def from_range(s):
    row, column = positions(s)
    if s.matrix or s.count % 2:
        return [compared(s, row, column, 2)]
    return [compared(s, s.unsqueeze(row, 0, 1), s.unsqueeze(column, 0, 1), 4)]


def from_cumsum(s):
    """Positions are sums of ones."""
    z = s.sizes
    ones = s.op("ConstantOfShape", s.ints(1, max(z.keys, z.past + z.queries)), value=one_of(np.int64))
    place = s.op("Sub", s.op("CumSum", ones, s.int_scalar(1)), s.int_scalar(1))
    row = s.unsqueeze(s.slice(place, 1, z.past, z.past + z.queries), 1, 3)
    return [compared(s, row, s.unsqueeze(s.slice(place, 1, 0, z.keys), 1, 2), 4)]


def from_documents(s):
    """Several texts one after the other: an input says where each begins, and queries see keys of their own text up to their position."""
    z = s.sizes
    starts = (s.rng.random((z.batch, z.keys)) < 0.3).astype(np.int64)
    text = s.op("CumSum", s.feed("starts", starts), s.int_scalar(1))
    same = s.op("Equal", s.unsqueeze(text, 1, 3), s.unsqueeze(text, 1, 2))
    number = starts.cumsum(1)[:, None]
    seen = (number[..., None] == number[..., None, :]) & causal(s)
    row, column = positions(s)
    return [Mask(s.op("And", same, s.op("LessOrEqual", column, row)), 4, seen)]


def from_padding_and_range(s):
    ones = padding_values(s)
    keys = s.cast(s.unsqueeze(s.feed("padding", ones), 1, 2), BOOL)
    row, column = positions(s)
    return [Mask(s.op("And", s.op("LessOrEqual", column, row), keys), 4, ones.astype(bool)[:, None, None] & causal(s))]


def from_padding_then_tril(s):
    """Two masks, one after the other."""
    return from_padding(s) + from_tril(s)


def from_gather(s):
    """As transformers writes masks through PyTorch's exporter: GatherND takes the padding by indices of samples and keys."""
    z = s.sizes
    ones = padding_values(s)
    flags = s.cast(s.feed("padding", ones), BOOL)
    row, column = positions(s)
    shape = s.ints(z.batch, 1, 1, z.keys)
    sample = s.op("Expand", s.unsqueeze(s.range(z.batch), 1, 2, 3), shape)
    key = s.op("Expand", s.unsqueeze(column, 0, 1), shape)
    index = s.op("Concat", s.unsqueeze(sample, -1), s.unsqueeze(key, -1), axis=-1)
    seen = s.op("And", s.op("LessOrEqual", column, row), s.op("GatherND", flags, index, batch_dims=0))
    if s.count % 2:
        seen = s.op("Expand", seen, s.ints(z.batch, 1, z.queries, z.keys))
    return [Mask(seen, 4, ones.astype(bool)[:, None, None] & causal(s))]


def from_window(s):
    """The last keys up to the query's position."""
    row, column = places(s)
    seen = causal(s) & (row - column < WINDOW)
    row, column = positions(s)
    near = s.op("Less", s.op("Sub", row, column), s.int_scalar(WINDOW))
    return [Mask(s.op("And", s.op("LessOrEqual", column, row), near), 2, seen)]


def from_band(s):
    """Keys near the query on both sides, stored or computed."""
    row, column = places(s)
    seen = abs(row - column) < WINDOW
    if s.count % 2:
        return [Mask(s.store("band", seen[None, None]), 4, seen)]
    return [Mask(s.op("Less", s.op("Abs", s.op("Sub", *positions(s))), s.int_scalar(WINDOW)), 2, seen)]


def nothing(s):
    return []


SOURCES = {
    "none": nothing, "input": from_input, "float_input": from_float_input, "padding": from_padding, "tril": from_tril,
    "trilu": from_trilu, "range": from_range, "cumsum": from_cumsum, "documents": from_documents, "padding_and_range": from_padding_and_range,
    "padding_then_tril": from_padding_then_tril, "gather": from_gather, "window": from_window, "band": from_band,
}


# ---- how scores are masked
def fitted(s, name, rank):
    """A tensor that broadcasts to the scores, without the axes that scores of a matrix lack."""
    return s.squeeze(name, 0, 1) if s.matrix and rank == 4 else name


def select_seen(s, mask, seen, hidden):
    return s.op("Where", mask.name, hidden, seen) if mask.hides else s.op("Where", mask.name, seen, hidden)


def added_by_where(s, mask):
    return select_seen(s, mask, s.number(0.0), s.fill())


def added_by_mul(s, mask):
    """(1 - mask) * a large negative number, as old BERTs have it."""
    numbers = s.cast_to_float(mask.name)
    return s.op("Mul", numbers if mask.hides else s.op("Sub", s.number(1.0), numbers), s.fill())


def added_as_input(s, mask):
    """A float input with 0 or the fill."""
    low = {"minus_inf": -np.inf, "lowest": -65504.0, "minus_1e9": -1e9, "minus_1e4": -1e4}[s.choices["fill"]]
    return s.feed("float_mask", np.where(mask.seen, 0.0, low))


ADDS = {"add": added_by_where, "mul_add": added_by_mul, "add_input": added_as_input}


def mask_once(s, x, mask, bias):
    """Scores x with one mask; a bias, which is a name or None, is added to an added mask first."""
    write = ADDS.get(s.choices["apply"])
    if write:
        added = fitted(s, write(s, mask), mask.rank)
        return s.op("Add", x, s.op("Add", bias, added) if bias else added)
    mask = mask._replace(name=fitted(s, mask.name, mask.rank))
    if s.choices["apply"] == "where_hidden" and not mask.hides:
        mask = mask._replace(name=s.op("Not", mask.name), hides=True)
    return select_seen(s, mask, x, s.fill())


def masked(s, x, masks, bias):
    """Scores x with the bias (a name, or None) and with the masks."""
    join = s.choices["join"] if masks else "bias_first"
    if bias and join == "bias_first":
        x = s.op("Add", x, bias)
    for i, mask in enumerate(masks):
        x = mask_once(s, x, mask, bias if join == "summed" and i == 0 else None)
    return s.op("Add", x, bias) if bias and join == "mask_first" else x
