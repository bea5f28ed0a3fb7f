"""Numbers that are added to scores: trained tables, T5's buckets, Swin's tables, ALiBi's slopes, an input."""
from typing import Callable, NamedTuple

import numpy as np
from masks import fitted, places, positions


class Bias(NamedTuple):
    """`values` broadcast to [B, H, Tq, Tk]; gradients(ds) gives {name: gradient} of what is trained or fed, ds [B, H, Tq, Tk] being that to the scores."""
    name: str
    rank: int
    values: np.ndarray
    gradients: Callable = lambda ds: {}


def nothing(s):
    return Bias(None, 0, np.zeros(()))


def trained(s):
    """[H, Tq, Tk], or with a batch axis of 1"""
    z = s.sizes
    lead = (1,) if s.count % 2 else ()
    name, x = s.train("bias", s.rng.normal(size=(*lead, z.heads, z.queries, z.keys)))
    return Bias(name, x.ndim, x.reshape(1, z.heads, z.queries, z.keys), lambda ds: {name: ds.sum(0).reshape(x.shape)})


def from_input(s):
    z = s.sizes
    x = s.rng.normal(size=(z.batch if s.count % 2 else 1, z.heads, z.queries, z.keys))
    name = s.feed("bias", x)
    return Bias(name, 4, x, lambda ds: {name: ds.sum(0, keepdims=True) if len(x) < len(ds) else ds})


def of_table(s, buckets, index, rows):
    """Rows of a trained table [rows, H] by `buckets`, an array [Tq, Tk] whose name is `index`."""
    z = s.sizes
    name, table = s.train("table", s.rng.normal(size=(rows, z.heads)))
    picked = s.op("Gather", name, index, axis=0)
    if s.choices["bias"] == "swin":
        picked = s.op("Reshape", picked, s.ints(z.queries, z.keys, z.heads))
    turned = s.unsqueeze(s.transpose(picked, 2, 0, 1), 0)

    def gradients(ds):
        total = np.zeros_like(table)
        np.add.at(total, buckets, ds.sum(0).transpose(1, 2, 0))
        return {name: total}
    return Bias(turned, 4, table[buckets].transpose(2, 0, 1)[None], gradients)


T5_SMALL, T5_BUCKETS, T5_FAR = 2, 6, 12


def t5_buckets(distance):
    """Of T5's decoder: each small distance has a bucket, larger ones share buckets by their logarithm."""
    n = np.maximum(distance, 0)
    log = np.log(np.maximum(n, 1) / T5_SMALL) / np.log(T5_FAR / T5_SMALL) * (T5_BUCKETS - T5_SMALL)
    return np.where(n < T5_SMALL, n, np.minimum(T5_SMALL + log.astype(np.int64), T5_BUCKETS - 1))


def t5_stored(s):
    row, column = places(s)
    buckets = t5_buckets(row - column)
    return of_table(s, buckets, s.store("buckets", buckets), T5_BUCKETS)


def t5_computed(s):
    """The buckets by nodes, as exporters write them."""
    row, column = places(s)
    n = s.op("Max", s.op("Sub", *positions(s)), s.int_scalar(0))
    number = s.cast_to_float(s.op("Max", n, s.int_scalar(1)))
    log = s.op("Log", s.op("Div", number, s.number(float(T5_SMALL))))
    steps = s.op("Mul", s.op("Div", log, s.number(np.log(T5_FAR / T5_SMALL))), s.number(float(T5_BUCKETS - T5_SMALL)))
    large = s.op("Add", s.cast(steps, 7), s.int_scalar(T5_SMALL))
    large = s.op("Min", large, s.int_scalar(T5_BUCKETS - 1))
    index = s.op("Where", s.op("Less", n, s.int_scalar(T5_SMALL)), n, large)
    return of_table(s, t5_buckets(row - column), index, T5_BUCKETS)


def swin(s):
    """A row of the table for each difference of positions, by a stored list."""
    row, column = places(s)
    buckets = row - column + s.sizes.keys - 1
    return of_table(s, buckets, s.store("index", buckets.reshape(-1)), int(buckets.max()) + 1)


def slopes(s):
    return s.rounded(2.0 ** -np.arange(1, s.sizes.heads + 1))[:, None, None]


def alibi(s):
    """A slope per head times the distance, or as BLOOM has it times the key's position."""
    of_heads, (row, column) = slopes(s), places(s)
    if s.count % 2:
        distance = s.cast_to_float(s.op("Sub", *positions(s)[::-1]))
        values = of_heads * (column - row)
    else:
        distance, values = s.cast_to_float(positions(s)[1]), of_heads * column
    return Bias(s.unsqueeze(s.op("Mul", s.store("slopes", of_heads), distance), 0), 4, values[None])


def alibi_stored(s):
    row, column = places(s)
    values = s.rounded(slopes(s) * (column - row))[None]
    return Bias(s.store("alibi", values), 4, values)


BIASES = {"none": nothing, "trained": trained, "input": from_input, "t5": t5_stored, "t5_computed": t5_computed, "swin": swin, "alibi": alibi,
          "alibi_stored": alibi_stored}


def bias_of(s):
    """The spelling's bias, its name of the rank of the scores; the name is None where there is no bias."""
    bias = BIASES[s.choices["bias"]](s)
    if s.matrix and bias.rank == 3:
        return bias._replace(name=s.squeeze(bias.name, 0))
    return bias._replace(name=fitted(s, bias.name, bias.rank)) if bias.name else bias
