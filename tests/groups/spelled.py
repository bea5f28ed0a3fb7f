"""Writes one spelling of attention as ONNX nodes. The names of its nodes, inputs and initializers begin with the spelling's name."""
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from onnx import TensorProto, helper, numpy_helper

STORED = {"f32": (TensorProto.FLOAT, np.float32), "f16": (TensorProto.FLOAT16, np.float16), "bf16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16)}


@dataclass
class Sizes:
    """What spellings call B, H, KV, Tq, Tk, D and Dv."""
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    size: int      # of a head of q and k
    v_size: int    # of a head of v

    @property
    def group(self):
        return self.heads // self.kv_heads

    @property
    def past(self):
        """How many keys precede the first query's own key."""
        return max(0, self.keys - self.queries)


class Spelled:
    """Nodes, inputs and initializers of one spelling. Methods add nodes and return the names of their results; a shape given to a method is a
    tuple of numbers."""

    def __init__(self, name, choices, sizes, rng):
        self.name, self.choices, self.sizes, self.rng = name, choices, sizes, rng
        self.opset, self.dtype = choices["opset"], choices.get("cast", "f32")
        self.nodes, self.inputs, self.initializers = [], [], []
        self.feeds = {}    # input name -> array; floats are float64
        self.trained = {}  # initializer name -> float64 array
        self.count = 0

    @property
    def matrix(self):
        """Are q, k, v and the scores matrices, without axes for samples and heads?"""
        return self.choices["layout"] == "matrix"

    @property
    def kind(self):
        """ONNX's number of the type of floats."""
        return STORED[self.dtype][0]

    def label(self, what):
        self.count += 1
        return f"{self.name}/{what}_{self.count}"

    # ---- tensors
    def rounded(self, x):
        """The numbers of x as the file stores them, in float64."""
        return np.asarray(x).astype(STORED[self.dtype][1]).astype(np.float64)

    def feed(self, what, x):
        """An input of the model; floats have the spelling's type."""
        name = f"{self.name}/{what}"
        x = np.asarray(x)
        kind = self.kind if x.dtype == np.float64 else helper.np_dtype_to_tensor_dtype(x.dtype)
        self.inputs.append(helper.make_tensor_value_info(name, kind, x.shape))
        self.feeds[name] = np.asarray(x, order="C")
        return name

    def store(self, what, x):
        """An initializer; floats have the spelling's type."""
        x, name = np.asarray(x), self.label(what)
        self.initializers.append(numpy_helper.from_array(x.astype(STORED[self.dtype][1]) if x.dtype == np.float64 else x, name))
        return name

    def train(self, what, x):
        """An initializer that tests train, and its numbers as stored."""
        name, x = self.store(f"trained_{what}", np.asarray(x, np.float64)), self.rounded(x)
        self.trained[name] = x
        return name, x

    def ints(self, *x):
        return self.store("ints", np.array(x, np.int64))

    def int_scalar(self, x):
        return self.store("int", np.array(x, np.int64))

    def number(self, x, shape=()):
        return self.store("number", np.full(shape, x, np.float64))

    def constant(self, x):
        """The output of a Constant node, a scalar."""
        value = numpy_helper.from_array(np.array(x).astype(STORED[self.dtype][1]))
        return self.op("Constant", value=value)

    def fill(self):
        """What a hidden score becomes, a scalar."""
        lowest = float(ml_dtypes.finfo(STORED[self.dtype][1]).min)
        x = {"minus_inf": -np.inf, "lowest": lowest, "minus_1e9": -1e9, "minus_1e4": -1e4}[self.choices["fill"]]
        return self.constant(x) if self.count % 2 else self.number(x)

    # ---- nodes
    def op(self, kind, *inputs, outputs=1, domain="", **attrs):
        name = self.label(kind)
        results = [name] if outputs == 1 else [f"{name}.{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), results, name=name, domain=domain, **attrs))
        return results[0] if outputs == 1 else results

    def cast(self, x, to):
        return self.op("Cast", x, to=to)

    def cast_to_float(self, x):
        return self.cast(x, self.kind)

    def transpose(self, x, *order):
        return self.op("Transpose", x, perm=order)

    def unsqueeze(self, x, *axes):
        return self.op("Unsqueeze", x, self.ints(*axes))

    def squeeze(self, x, *axes):
        return self.op("Squeeze", x, self.ints(*axes))

    def slice(self, x, axis, start, end):
        return self.op("Slice", x, self.ints(start), self.ints(end), self.ints(axis))

    def split(self, x, axis, parts):
        """Parts of these lengths along an axis."""
        even = len(set(parts)) == 1
        if self.opset >= 18 and even and self.count % 2:
            return self.op("Split", x, outputs=len(parts), axis=axis, num_outputs=len(parts))
        return self.op("Split", x, self.ints(*parts), outputs=len(parts), axis=axis)

    def dim(self, x, axis):
        """s64[], a dimension of x."""
        return self.op("Gather", self.op("Shape", x), self.int_scalar(axis), axis=0)

    def reshape(self, x, shape, kept=1):
        """The first `kept` dimensions of x stay. How the shape is written is a choice."""
        style = self.choices.get("reshapes", "stored")
        if style == "inferred":
            at = max(range(kept, len(shape)), key=lambda i: shape[i])
            return self.op("Reshape", x, self.ints(*(0 if i < kept else -1 if i == at else d for i, d in enumerate(shape))))
        if style == "computed":
            dims = [self.op("Unsqueeze", self.dim(x, i), self.ints(0)) for i in range(kept)] + [self.ints(d) for d in shape[kept:]]
            return self.op("Reshape", x, self.op("Concat", *dims, axis=0))
        return self.op("Reshape", x, self.ints(*shape))

    def reduce(self, kind, x, axis):
        """Along one axis, which stays with length 1."""
        if kind == "ReduceSum" or self.opset >= 18:
            return self.op(kind, x, self.ints(axis), keepdims=1)
        return self.op(kind, x, axes=[axis], keepdims=1)

    def range(self, count):
        """s64[count], 0 to count - 1; count is a number, or the name of an s64[]."""
        limit = self.int_scalar(count) if isinstance(count, int) else count
        return self.op("Range", self.int_scalar(0), limit, self.int_scalar(1))
