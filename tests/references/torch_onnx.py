"""Runs an ONNX graph by PyTorch's own functions, so that autograd and autocast see what they would of the model that was exported.
For the operators of the reference models (opset 20), in their forms there."""
import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import numpy_helper


def ints(t):
    return [int(x) for x in t]


def cast(x, a):
    return x.to({1: torch.float32, 6: torch.int32, 7: torch.int64, 9: torch.bool, 11: torch.float64}[a["to"]])


def conv(x, w, b, a):
    pads = a.get("pads", [0] * 4)
    assert pads[:2] == pads[2:]
    return F.conv2d(x, w, b, a.get("strides", 1), pads[:2], a.get("dilations", 1), a.get("group", 1))


def gather_nd(x, at):
    return x[tuple(at[..., i] for i in range(at.shape[-1]))]


def gemm(x, w, b, a):
    assert a.get("alpha", 1.0) == 1 == a.get("beta", 1.0) and not a.get("transA", 0)
    return F.linear(x, w if a.get("transB", 0) else w.t(), b)


def reduce_mean(x, axes, a):
    return x.mean(ints(axes) if axes is not None else a["axes"], keepdim=bool(a.get("keepdims", 1)))


def reshape(x, shape):
    return x.reshape([x.shape[i] if n == 0 else n for i, n in enumerate(ints(shape))])


def slices(x, starts, ends, axes=None, steps=None):
    at = [slice(None)] * x.dim()
    for i, axis in enumerate(ints(axes) if axes is not None else range(len(starts))):
        assert steps is None or steps[i] == 1
        at[axis] = slice(int(starts[i]), int(ends[i]))
    return x[tuple(at)]


OPS = {
    "Add": lambda a, x, y: x + y, "And": lambda a, x, y: x & y, "Cast": lambda a, x: cast(x, a), "Concat": lambda a, *x: torch.cat(x, a["axis"]),
    "Conv": lambda a, x, w, b=None: conv(x, w, b, a), "Cos": lambda a, x: x.cos(), "CumSum": lambda a, x, axis: x.cumsum(int(axis)),
    "Equal": lambda a, x, y: x == y, "Expand": lambda a, x, shape: x.expand(torch.broadcast_shapes(x.shape, ints(shape))),
    "Gather": lambda a, x, i: F.embedding(i, x) if x.dim() == 2 and a.get("axis", 0) == 0 else x.select(a.get("axis", 0), int(i)),
    "GatherND": lambda a, x, i: gather_nd(x, i), "Gelu": lambda a, x: F.gelu(x, approximate=a.get("approximate", b"none").decode()),
    "Gemm": lambda a, x, w, b=None: gemm(x, w, b, a), "IsNaN": lambda a, x: x.isnan(),
    "LayerNormalization": lambda a, x, w, b=None: F.layer_norm(x, w.shape, w, b, a.get("epsilon", 1e-5)),
    "LessOrEqual": lambda a, x, y: x <= y, "MatMul": lambda a, x, y: x @ y, "Max": lambda a, *x: torch.maximum(*x) if len(x) > 1 else x[0],
    "Mul": lambda a, x, y: x * y, "Neg": lambda a, x: -x, "Not": lambda a, x: ~x, "Pow": lambda a, x, y: x ** y,
    "Range": lambda a, first, end, step: torch.arange(int(first), int(end), int(step)), "Reciprocal": lambda a, x: x.reciprocal(),
    "ReduceMean": lambda a, x, axes=None: reduce_mean(x, axes, a), "Relu": lambda a, x: x.relu(), "Reshape": lambda a, x, shape: reshape(x, shape),
    "Shape": lambda a, x: torch.tensor(x.shape[a.get("start", 0):a.get("end", x.dim())]), "Sigmoid": lambda a, x: x.sigmoid(),
    "Sin": lambda a, x: x.sin(), "Slice": lambda a, *x: slices(*x), "Softmax": lambda a, x: x.softmax(a.get("axis", -1)),
    "Split": lambda a, x, sizes=None: x.split(ints(sizes), a.get("axis", 0)) if sizes is not None else x.chunk(a["num_outputs"], a.get("axis", 0)), "Sqrt": lambda a, x: x.sqrt(),
    "Squeeze": lambda a, x, axes=None: x.squeeze(tuple(ints(axes))) if axes is not None else x.squeeze(), "Sub": lambda a, x, y: x - y,
    "Tanh": lambda a, x: x.tanh(), "Transpose": lambda a, x: x.permute(a["perm"]),
    "Unsqueeze": lambda a, x, axes: unsqueeze(x, ints(axes)), "Where": lambda a, c, x, y: torch.where(c, x, y),
}


def unsqueeze(x, axes):
    for axis in sorted(i % (x.dim() + len(axes)) for i in axes):
        x = x.unsqueeze(axis)
    return x


class Graph:
    """values: {name: tensor} of the initializers, which the caller may train."""

    def __init__(self, path):
        self.graph = onnx.load(path).graph
        self.values = {i.name: torch.from_numpy(np.array(numpy_helper.to_array(i))) for i in self.graph.initializer}
        self.nodes = [(n, {a.name: onnx.helper.get_attribute_value(a) for a in n.attribute}) for n in self.graph.node]

    def __call__(self, inputs):
        """The graph's first output."""
        values = {**self.values, **inputs}
        for node, attributes in self.nodes:
            if node.op_type == "Constant":
                found = torch.from_numpy(np.array(numpy_helper.to_array(attributes["value"])))
            else:
                found = OPS[node.op_type](attributes, *(values[name] if name else None for name in node.input))
            values.update(zip(node.output, found if isinstance(found, (tuple, list)) else [found]))
        return values[self.graph.output[0].name]
