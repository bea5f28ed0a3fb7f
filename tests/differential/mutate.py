"""Changes to a model that mostly keep it valid, and always keep it plausible.

A mutation takes a Case and its random numbers, changes the case in place, and gives one line that says
what it did, or None where it found nothing to change. make_case(number) is a pure function: the same
number is the same model, input by input.
"""
import copy
import random
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import seeds

OPSETS = range(1, 27)  # what both sides read; onnxruntime has few operators of those before 6
MAX_ELEMENTS = 300_000  # of any one tensor
FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)
INTEGERS = (TensorProto.INT64, TensorProto.INT32, TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16,
            TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64)
EDGES = (0.0, -0.0, np.inf, -np.inf, np.nan, 1e30, -1e30, 1e-30, 5e-324, 1e-40, 65504.0, 1.0, -1.0, 0.5,
         1.5, 2.5, -0.5)
CHOICES = {
    "auto_pad": ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"),
    "mode": ("constant", "reflect", "edge", "wrap", "nearest", "linear", "cubic", "DCR", "CRD"),
    "coordinate_transformation_mode": ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel",
                                       "align_corners", "asymmetric", "tf_crop_and_resize"),
    "nearest_mode": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
    "keep_aspect_ratio_policy": ("stretch", "not_larger", "not_smaller"),
    "reduction": ("none", "mean", "sum", "add", "mul", "max", "min"),
    "approximate": ("none", "tanh"),
    "round_mode": ("up", "down", "nearest"),
}
FLAGS = frozenset("""keepdims noop_with_empty_axes ceil_mode count_include_pad storage_order transA transB
    exclusive reverse select_last_index largest sorted fmod antialias exclude_outside upper
    allowzero saturate training_mode detect_negative detect_positive spatial""".split())
NUMBERS = (0.0, 1.0, -1.0, 0.5, 1e-5, 1e-3, 2.0, 100.0, -0.25, 0.1)


@dataclass
class Case:
    number: int
    seed: str
    model: onnx.ModelProto
    feed: dict
    notes: list = field(default_factory=list)


# ---- what a model holds
def graph_of(case):
    return case.model.graph


def opset_of(model):
    return next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)


def initializer(graph, name):
    return next((t for t in graph.initializer if t.name == name), None)


def constant_node(graph, name):
    return next((n for n in graph.node if n.op_type == "Constant" and n.output[0] == name and
                 n.attribute and n.attribute[0].name == "value"), None)


def names_of(graph):
    names = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    return names | {o for n in seeds.nodes_of(graph) for o in n.output}


def fresh(graph, stem):
    names = names_of(graph)
    return next(f"{stem}_{i}" for i in range(10_000) if f"{stem}_{i}" not in names)


def inferred(model):
    """{tensor: (element type, shape or None)}, by onnx's shape inference; {} where it refuses."""
    try:
        graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except Exception:
        return {}
    types = {}
    for v in [*graph.input, *graph.value_info, *graph.output]:
        t = v.type.tensor_type
        if not t.elem_type:
            continue
        known = t.HasField("shape") and all(d.HasField("dim_value") for d in t.shape.dim)
        types[v.name] = (t.elem_type, [d.dim_value for d in t.shape.dim] if known else None)
    for t in graph.initializer:
        types[t.name] = (t.data_type, list(t.dims))
    return types


def contiguous(array):
    """In C order; numpy.ascontiguousarray() makes vectors of scalars."""
    return np.asarray(array, order="C")


def set_initializer(graph, name, array):
    t = numpy_helper.from_array(contiguous(array), name)
    old = initializer(graph, name)
    if old is None:
        graph.initializer.append(t)
    else:
        old.CopyFrom(t)


def values_of(case, name):
    """The array that a name stands for: fed, or held by the file; None where it is computed."""
    if name in case.feed:
        return case.feed[name]
    t = initializer(graph_of(case), name)
    if t is not None:
        return numpy_helper.to_array(t)
    n = constant_node(graph_of(case), name)
    return numpy_helper.to_array(n.attribute[0].t) if n else None


def set_values(case, name, array):
    graph = graph_of(case)
    if initializer(graph, name) is not None:
        set_initializer(graph, name, array)
    elif constant_node(graph, name):
        constant_node(graph, name).attribute[0].t.CopyFrom(numpy_helper.from_array(contiguous(array)))
    if name in case.feed:
        case.feed[name] = array
    declare_inputs(case)


def declare_inputs(case):
    """Inputs have the types and shapes of what is fed, or of their defaults."""
    for v in graph_of(case).input:
        a = values_of(case, v.name)
        if isinstance(a, np.ndarray) and v.type.WhichOneof("value") in (None, "tensor_type"):
            v.CopyFrom(helper.make_tensor_value_info(
                v.name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape))


def fed_tensors(case):
    """Names of the inputs that are neither sequences nor optionals."""
    lists = {v.name for v in graph_of(case).input if v.type.WhichOneof("value") not in (None, "tensor_type")}
    return sorted(n for n in case.feed if n not in lists)


def holders(case):
    """Names of tensors whose values are known."""
    graph = graph_of(case)
    names = [*fed_tensors(case), *(t.name for t in graph.initializer),
             *(n.output[0] for n in graph.node if constant_node(graph, n.output[0]))]
    return sorted(set(names))


def own_nodes(graph):
    return [n for n in graph.node if n.op_type != "Constant"]


def resized(array, shape, r):
    """The same values again and again, floats moved a little: indices stay in range."""
    a = np.resize(array, shape) if array.size else np.zeros(shape, array.dtype)
    if a.dtype.kind == "f" and a.size:
        noise = np.random.default_rng(r.randrange(1 << 30)).standard_normal(shape)
        a = (a + 0.1 * noise).astype(array.dtype)
    return a


# ---- mutations: attributes
def _int_value(r, name, old, rank):
    if name in ("axis", "batch_axis", "batch_dims"):
        return r.choice([*range(-rank - 1, rank + 2)])
    if name in FLAGS or name.startswith("keep"):
        return r.choice([0, 1, 0, 1, 0, 1, 2, -1])
    if name in ("to", "dtype"):
        return r.choice([*FLOATS, *INTEGERS, TensorProto.BOOL])
    return old + r.choice([-1, 1, 1, 2, -old, old])


def _ints_value(r, name, old, rank):
    old = list(old)
    if name == "axes" or (name == "perm" and not old):
        axes = r.sample(range(max(rank, 1)), r.randint(0, max(rank, 1)))
        return [a - rank if r.random() < 0.3 else a for a in axes] + ([rank] if r.random() < 0.03 else [])
    if name == "perm":
        r.shuffle(old)
        return old
    low = {"pads": (0, 0, 1, 1, 2, 3, -1), "strides": (1, 2, 3), "dilations": (1, 2, 3),
           "kernel_shape": (1, 2, 3, 4), "output_padding": (0, 1)}.get(name)
    if low:
        spatial = len(old) or max(rank - 2, 1) * (2 if name == "pads" else 1)
        if old and r.random() < 0.6:
            old[r.randrange(len(old))] = r.choice(low)
            return old
        return [r.choice(low) for _ in range(spatial)]
    if not old:
        return [r.randint(0, 3)]
    old[r.randrange(len(old))] += r.choice([-1, 1, 2])
    return old


def _attribute_value(r, node, schema, old, rank):
    kind = schema.type
    if kind == onnx.defs.OpSchema.AttrType.INT:
        return _int_value(r, schema.name, old if old is not None else 1, rank)
    if kind == onnx.defs.OpSchema.AttrType.INTS:
        return _ints_value(r, schema.name, old or [], rank)
    if kind == onnx.defs.OpSchema.AttrType.FLOAT:
        return r.choice(NUMBERS)
    if kind == onnx.defs.OpSchema.AttrType.STRING and schema.name in CHOICES:
        return r.choice(CHOICES[schema.name])
    return None


def attribute(case, r):
    """Gives an attribute another value, adds it, or drops it."""
    nodes = [n for n in own_nodes(graph_of(case)) if n.domain == ""]
    r.shuffle(nodes)
    for node in nodes:
        schema = onnx.defs.get_schema(node.op_type, opset_of(case.model), node.domain)
        rows = sorted(schema.attributes.values(), key=lambda a: a.name)
        rows = [a for a in rows if a.type != onnx.defs.OpSchema.AttrType.GRAPH]
        if not rows:
            continue
        row = r.choice(rows)
        held = next((a for a in node.attribute if a.name == row.name), None)
        if held is not None and r.random() < 0.15:
            node.attribute.remove(held)
            return f"{node.op_type}: attribute {row.name} dropped"
        source = next((v for v in (values_of(case, i) for i in node.input) if v is not None), None)
        rank = source.ndim if source is not None else 3
        value = _attribute_value(r, node, row, helper.get_attribute_value(held) if held else None, rank)
        if value is None:
            continue
        if held is not None:
            node.attribute.remove(held)
        node.attribute.append(helper.make_attribute(row.name, value, attr_type=int(row.type)))
        return f"{node.op_type}: {row.name} = {value}"
    return None


# ---- mutations: values, shapes, types
def _is_settings(array):
    return array.dtype.kind in "iu" and array.ndim <= 1 and array.size <= 8


def edge_values(case, r):
    """Some numbers of an input become edge values."""
    names = [n for n in holders(case) if values_of(case, n).size and
             not (_is_settings(values_of(case, n)) and n not in case.feed)]
    names = [n for n in names if values_of(case, n).dtype.kind in "fiu"]
    if not names:
        return None
    name = r.choice(names)
    a = values_of(case, name).copy()
    flat = a.reshape(-1)
    if a.dtype.kind == "f":
        pool = EDGES[:2] if r.random() < 0.2 else EDGES
    else:
        info = np.iinfo(a.dtype)
        pool = (info.min, info.max, 0, 1, info.max - 1)
    for _ in range(r.choice([1, 1, 2, 4])):
        with np.errstate(over="ignore"):
            flat[r.randrange(flat.size)] = np.array(r.choice(pool)).astype(a.dtype)
    set_values(case, name, a)
    return f"{name}: edge values"


def settings(case, r):
    """A small integer constant (axes, pads, a shape) is changed."""
    names = [n for n in holders(case) if _is_settings(values_of(case, n))]
    if not names:
        return None
    name = r.choice(names)
    a = values_of(case, name).copy()
    flat = a.reshape(-1)
    how = r.randrange(5)
    if how == 0 and a.ndim == 1 and a.size:
        a = np.delete(a, r.randrange(a.size))
    elif how == 1 and a.ndim == 1:
        a = np.append(a, np.array(r.choice([0, 1, 2]), a.dtype))
    elif flat.size:
        i = r.randrange(flat.size)
        old = int(flat[i])
        new = r.choice([old + 1, old - 1, -old, 0, 1, -1, 2, old * 2, 1 << 40 if r.random() < .1 else 3])
        info = np.iinfo(a.dtype)
        flat[i] = max(min(new, info.max), info.min)
    set_values(case, name, a)
    return f"{name} = {a.tolist()}"


def values(case, r):
    """Other numbers for an input or a constant."""
    names = [n for n in holders(case) if values_of(case, n).dtype.kind in "fiub" and values_of(case, n).size]
    if not names:
        return None
    name = r.choice(names)
    a = values_of(case, name)
    g = np.random.default_rng(r.randrange(1 << 30))
    if a.dtype.kind == "f":
        scale = r.choice([1e-6, 0.1, 1, 10, 1000, 1e4])
        a = (g.standard_normal(a.shape) * scale).astype(a.dtype)
    elif a.dtype.kind == "b":
        a = g.random(a.shape) < r.choice([0, 0.5, 1])
    else:
        a = g.permutation(a.reshape(-1)).reshape(a.shape)
    set_values(case, name, np.asarray(a))
    return f"{name}: other values"


def dimension(case, r):
    """One dimension gets another size: everywhere, or in one tensor."""
    names = [n for n in holders(case) if values_of(case, n).ndim]
    if not names:
        return None
    name = r.choice(names)
    a = values_of(case, name)
    axis = r.randrange(a.ndim)
    old = a.shape[axis]
    new = r.choice([1, 1, old + 1, old * 2, old * 2 + 1, 3, 5, 7, 16, max(old - 1, 0), 0 if r.random() < .5
                    else 2])
    everywhere = r.random() < 0.7
    touched = names if everywhere else [name]
    for other in touched:
        b = values_of(case, other)
        if everywhere and _is_settings(b) and other not in case.feed:
            continue
        shape = tuple(new if (s == old and (everywhere or i == axis)) else s for i, s in enumerate(b.shape))
        if np.prod(shape, dtype=float) > MAX_ELEMENTS:
            return None
        set_values(case, other, resized(b, shape, r))
    return f"{'every' if everywhere else name + ', axis ' + str(axis)}: dimension {old} is {new}"


def rank(case, r):
    """A tensor gains or loses a leading dimension of one, or becomes a scalar."""
    names = holders(case)
    if not names:
        return None
    name = r.choice(names)
    a = values_of(case, name)
    how = r.randrange(4)
    if how == 0:
        b = a.reshape((1, *a.shape))
    elif how == 1 and a.ndim:
        b = a[0] if a.shape[0] else a.reshape(a.shape[1:]) if a.size else a
    elif how == 2 and a.size:
        b = a.reshape(-1)[:1].reshape(())
    else:
        b = a.reshape((*a.shape, 1))
    if b.shape == a.shape:
        return None
    set_values(case, name, np.array(b))
    return f"{name}: shape {list(a.shape)} is {list(b.shape)}"


def _recast(array, to):
    with np.errstate(all="ignore"):
        return array.astype(to)


def element_type(case, r):
    """One element type becomes another one everywhere in the model."""
    graph = graph_of(case)
    kinds = sorted({helper.np_dtype_to_tensor_dtype(values_of(case, n).dtype) for n in fed_tensors(case)})
    if not kinds:
        return None
    old = r.choice(kinds)
    new = r.choice([t for t in ([*FLOATS] if r.random() < 0.6 else [*FLOATS, *INTEGERS, TensorProto.BOOL])
                    if t != old])
    to = helper.tensor_dtype_to_np_dtype(new)
    for name in holders(case):
        a = values_of(case, name)
        if helper.np_dtype_to_tensor_dtype(a.dtype) == old and (
                name in case.feed or not _is_settings(a)):
            set_values(case, name, _recast(a, to))
    for node in seeds.nodes_of(graph):
        for at in node.attribute:
            if at.name in ("to", "dtype") and at.i == old and r.random() < 0.8:
                at.i = new
    for v in graph.output:
        tensor = seeds.tensor_type_in(v.type)
        if tensor and tensor.elem_type == old:
            tensor.elem_type = new
    return f"element type {TensorProto.DataType.Name(old)} is {TensorProto.DataType.Name(new)}"


# ---- mutations: where values come from
def to_initializer(case, r):
    """An input becomes a constant of the file."""
    names = fed_tensors(case)
    if not names:
        return None
    name = r.choice(names)
    make_initializer(case, name)
    return f"input {name} is an initializer"


def make_initializer(case, name):
    graph = graph_of(case)
    kept = [v for v in graph.input if v.name != name]
    del graph.input[:]
    graph.input.extend(kept)
    set_initializer(graph, name, case.feed.pop(name))


def to_input(case, r):
    """A constant of the file becomes an input; at times one with a default."""
    graph = graph_of(case)
    names = sorted(t.name for t in graph.initializer)
    names = [n for n in names if n not in {v.name for v in graph.input}]
    if not names:
        return None
    name = r.choice(names)
    t = initializer(graph, name)
    a = numpy_helper.to_array(t)
    graph.input.append(helper.make_tensor_value_info(name, t.data_type, t.dims))
    if r.random() < 0.25:
        if r.random() < 0.5:
            case.feed[name] = a.copy()
        return f"initializer {name} is an input with a default"
    graph.initializer.remove(t)
    case.feed[name] = a.copy()
    return f"initializer {name} is an input"


def to_constant(case, r):
    """An initializer becomes a Constant node, or the other way."""
    graph = graph_of(case)
    nodes = [n for n in graph.node if constant_node(graph, n.output[0])]
    if nodes and r.random() < 0.5:
        node = r.choice(nodes)
        set_initializer(graph, node.output[0], numpy_helper.to_array(node.attribute[0].t))
        graph.node.remove(node)
        return f"Constant {node.output[0]} is an initializer"
    names = sorted({t.name for t in graph.initializer} - {v.name for v in graph.input})
    if not names:
        return None
    name = r.choice(names)
    t = initializer(graph, name)
    value = TensorProto()
    value.CopyFrom(t)
    value.name = ""
    graph.initializer.remove(t)
    graph.node.insert(0, helper.make_node("Constant", [], [name], value=value))
    return f"initializer {name} is a Constant"


def drop_input(case, r):
    """An optional input of a node is left out."""
    nodes = [n for n in own_nodes(graph_of(case)) if len(n.input) > 1 and n.domain == ""]
    r.shuffle(nodes)
    for node in nodes:
        schema = onnx.defs.get_schema(node.op_type, opset_of(case.model), node.domain)
        optional = [i for i in range(len(node.input)) if node.input[i] and i < len(schema.inputs) and
                    schema.inputs[i].option == onnx.defs.OpSchema.FormalParameterOption.Optional]
        if not optional:
            continue
        i = r.choice(optional)
        node.input[i] = ""
        while node.input and not node.input[-1]:
            node.input.pop()
        return f"{node.op_type}: input {i} left out"
    return None


def drop_output(case, r):
    """An output of the graph or of a node is left out, if others remain."""
    graph = graph_of(case)
    if len(graph.output) < 2:
        return None
    gone = r.choice(list(graph.output))
    graph.output.remove(gone)
    if r.random() < 0.5:
        for node in graph.node:
            for i, name in enumerate(node.output):
                if name == gone.name and i:
                    node.output[i] = ""
    return f"output {gone.name} left out"


# ---- mutations: nodes
def _edges(graph):
    """(index of node, index of input) of all that nodes read."""
    return [(k, i) for k, n in enumerate(graph.node) for i, name in enumerate(n.input) if name]


def _known_edge(case, r):
    """An edge whose tensor has a known type and shape: (node index, input, name, element type, shape)."""
    graph, types = graph_of(case), inferred(case.model)
    edges = [(k, i) for k, i in _edges(graph) if types.get(graph.node[k].input[i], (0, None))[1] is not None]
    if not edges:
        return None
    k, i = r.choice(edges)
    name = graph.node[k].input[i]
    return k, i, name, *types[name]


def _chain(graph, k, i, name, steps):
    """Puts nodes of one input between a tensor and input i of node k."""
    target = graph.node[k]
    for op, constants, attributes in steps:
        inputs = [name]
        for c in constants:
            held = fresh(graph, "held")
            set_initializer(graph, held, c)
            inputs.append(held)
        name = fresh(graph, op.lower())
        graph.node.insert(k, helper.make_node(op, inputs, [name], **attributes))
        k += 1
    target = graph.node[k]
    target.input[i] = name


def _identities(r, element, shape, opset):
    """Chains of nodes that give back what they get."""
    n = len(shape)
    order = list(range(n))
    r.shuffle(order)
    back = [order.index(d) for d in range(n)]
    as_shape = np.array(shape, np.int64)
    chains = [
        [("Identity", (), {})],
        [("Reshape", (np.array([-1], np.int64),), {}), ("Reshape", (as_shape,), {})],
        [("Concat", (), {"axis": r.choice([0, -1])})] if n else [("Identity", (), {})],
        [("Cast", (), {"to": element})],
        [("Dropout", (), {})],
    ]
    if n:
        chains.append([("Transpose", (), {"perm": order}), ("Transpose", (), {"perm": back})])
        axis = r.randrange(n)
        chains.append([("Split", (), {"axis": axis, **({"num_outputs": 1} if opset >= 18 else {})})])
    if opset >= 8:
        chains.append([("Expand", (as_shape,), {})])
    if opset >= 10 and n:
        ints = (np.zeros(n, np.int64), as_shape + r.choice([0, 0, 5]))
        chains.append([("Slice", ints, {})])
        whole = (np.full(n, -1, np.int64), np.full(n, np.iinfo(np.int64).min // r.choice([1, 2]), np.int64),
                 np.arange(n), np.full(n, -1, np.int64))
        chains.append([("Slice", whole, {})] * 2)
    if opset >= 13:
        axes = (np.array([r.randint(-n - 1, n)], np.int64),)
        chains.append([("Unsqueeze", axes, {}), ("Squeeze", axes, {})])
    if opset >= 11 and n:
        chains.append([("Pad", (np.zeros(2 * n, np.int64),), {})])
    if element in FLOATS:
        chains += [[("Neg", (), {}), ("Neg", (), {})],
                   [("Cast", (), {"to": TensorProto.DOUBLE}), ("Cast", (), {"to": element})],
                   [("Sum", (), {})], [("Max", (), {})], [("Mean", (), {})]]
    if element in (TensorProto.INT32, TensorProto.BOOL, TensorProto.INT8, TensorProto.UINT8):
        chains.append([("Cast", (), {"to": TensorProto.INT64}), ("Cast", (), {"to": element})])
    return chains


def insert_identity(case, r):
    """Nodes that change nothing, between a tensor and its reader."""
    edge = _known_edge(case, r)
    if not edge:
        return None
    k, i, name, element, shape = edge
    steps = r.choice(_identities(r, element, shape, opset_of(case.model)))
    _chain(graph_of(case), k, i, name, steps)
    return f"{' and '.join(s[0] for s in steps)} before input {i} of {graph_of(case).node[k + len(steps)].op_type}"


UNARY = {"f": ("Neg", "Abs", "Relu", "Tanh", "Exp", "Sqrt", "Reciprocal", "Floor", "Ceil", "Round", "Sign",
               "Sigmoid", "Log", "Erf", "Softplus", "Sin", "Cos"),
         "i": ("Neg", "Abs", "Sign"), "b": ("Not",)}
CASTS = (TensorProto.FLOAT16, TensorProto.INT32, TensorProto.INT64, TensorProto.UINT8, TensorProto.INT8,
         TensorProto.BOOL, TensorProto.DOUBLE, TensorProto.FLOAT)


def insert_node(case, r):
    """A node that changes values, but neither type nor shape, before a reader."""
    edge = _known_edge(case, r)
    if not edge:
        return None
    k, i, name, element, shape = edge
    graph = graph_of(case)
    kind = helper.tensor_dtype_to_np_dtype(element).kind
    if kind == "V" or element == TensorProto.BFLOAT16:
        return None
    how = r.randrange(4)
    if how == 0 and kind in "fiu":
        other = r.choice(CASTS)
        steps = [("Cast", (), {"to": other}), ("Cast", (), {"to": element})]
    elif how == 1 and kind in "fiu":
        value = np.array(r.choice([2, 3, 1, 0])).astype(helper.tensor_dtype_to_np_dtype(element))
        steps = [(r.choice(["Add", "Mul", "Sub", "Div", "Pow"]),
                  (np.full(shape if r.random() < .3 else [1] * len(shape), value),), {})]
    elif how == 2 and kind == "f" and shape:
        steps = [(r.choice(["Softmax", "LogSoftmax", "Hardmax"]), (), {"axis": r.randrange(-len(shape), len(shape))})]
    else:
        steps = [(r.choice(UNARY["i" if kind in "iu" else kind]), (), {})]
    _chain(graph, k, i, name, steps)
    return f"{' and '.join(s[0] for s in steps)} before input {i} of {graph.node[k + len(steps)].op_type}"


def _tensors_before(case, k):
    graph = graph_of(case)
    names = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    return sorted(names | {o for n in graph.node[:k] for o in n.output if o})


def rewire(case, r):
    """An input of a node reads another tensor of the same element type."""
    graph, types = graph_of(case), inferred(case.model)
    edges = _edges(graph)
    if not edges:
        return None
    k, i = r.choice(edges)
    name = graph.node[k].input[i]
    element, shape = types.get(name, (0, None))
    others = [o for o in _tensors_before(case, k) if o != name and types.get(o, (1, 0))[0] == element]
    same = [o for o in others if types[o][1] == shape]
    pool = same if same and r.random() < 0.7 else others
    if not pool:
        return None
    graph.node[k].input[i] = r.choice(pool)
    return f"input {i} of {graph.node[k].op_type} reads {graph.node[k].input[i]} instead of {name}"


def more_outputs(case, r):
    """A tensor inside becomes an output too."""
    graph, types = graph_of(case), inferred(case.model)
    outputs = {v.name for v in graph.output}
    names = [n for n in _tensors_before(case, len(graph.node)) if n not in outputs and n in types]
    if r.random() < 0.8:
        computed = {o for n in graph.node for o in n.output}
        names = [n for n in names if n in computed]
    if not names:
        return None
    name = r.choice(names)
    graph.output.append(helper.make_tensor_value_info(name, types[name][0], types[name][1]))
    return f"{name} is an output"


def twice(case, r):
    """A node's copy follows it: in a row, or beside it with an output of its own."""
    graph, types = graph_of(case), inferred(case.model)
    nodes = [k for k, n in enumerate(graph.node) if n.input and n.input[0] and n.output[0] in types]
    if not nodes:
        return None
    k = r.choice(nodes)
    node = graph.node[k]
    double = copy.deepcopy(node)
    double.name = ""
    for i, o in enumerate(node.output):
        if o:
            double.output[i] = fresh(graph, f"twice{i}")
    in_a_row = r.random() < 0.6
    if in_a_row:
        double.input[0] = node.output[0]
    graph.node.insert(k + 1, double)
    if in_a_row:
        for n in graph.node[k + 2:]:
            for i, name in enumerate(n.input):
                if name == node.output[0]:
                    n.input[i] = double.output[0]
    element = types[node.output[0]][0]
    graph.output.append(helper.make_tensor_value_info(double.output[0], element, None))
    return f"{node.op_type} twice, {'in a row' if in_a_row else 'side by side'}"


def splice(case, r):
    """A node of another seed reads a tensor of this one, gathered into the shape that it wants."""
    graph, types = graph_of(case), inferred(case.model)
    version = opset_of(case.model)
    other = seeds.draw(r)
    wanted = own_nodes(other.model.graph)
    if not wanted or len(wanted) > 3 or other.model.functions:
        return None
    if not other.feed or not all(isinstance(a, np.ndarray) for a in other.feed.values()):
        return None
    first = next((v.name for v in other.model.graph.input if v.name in other.feed and
                  other.feed[v.name].dtype.kind == "f"), None) or min(other.feed)
    goal = other.feed[first]
    element = helper.np_dtype_to_tensor_dtype(goal.dtype)
    sources = [n for n in _tensors_before(case, len(graph.node)) if n in types and types[n][0] == element
               and types[n][1] is not None and 0 < np.prod(types[n][1]) < 1e5]
    if not sources or not goal.size:
        return None
    for n in wanted:
        have = onnx.defs.get_schema(n.op_type, opset_of(other.model), n.domain)
        if onnx.defs.get_schema(n.op_type, version, n.domain).since_version != have.since_version:
            return None
    source = r.choice(sources)
    size = int(np.prod(types[source][1]))
    rename = {}
    for node in other.model.graph.node:
        for o in node.output:
            rename.setdefault(o, fresh(graph, f"other_{o}"))
    for t in other.model.graph.initializer:
        rename[t.name] = fresh(graph, f"other_{t.name}")
        set_initializer(graph, rename[t.name], numpy_helper.to_array(t))
    for name in sorted(other.feed):
        rename[name] = fresh(graph, f"other_{name}")
        if name == first:
            continue
        if r.random() < 0.3 and not _is_settings(other.feed[name]):
            case.feed[rename[name]] = other.feed[name]
            graph.input.append(helper.make_tensor_value_info(
                rename[name], helper.np_dtype_to_tensor_dtype(other.feed[name].dtype), other.feed[name].shape))
        else:
            set_initializer(graph, rename[name], other.feed[name])
    shape, flat = list(goal.shape), fresh(graph, "flat")
    set_initializer(graph, fresh(graph, "all"), np.array([-1], np.int64))
    graph.node.append(helper.make_node("Reshape", [source, graph.initializer[-1].name], [flat]))
    places = (np.arange(goal.size) * r.choice([1, 1, 3]) % size).astype(np.int64).reshape(shape)
    set_initializer(graph, fresh(graph, "places"), places)
    graph.node.append(helper.make_node("Gather", [flat, graph.initializer[-1].name], [rename[first]]))
    for node in other.model.graph.node:
        n = copy.deepcopy(node)
        n.name = ""
        n.input[:] = [rename.get(i, i) for i in n.input]
        n.output[:] = [rename.get(o, o) if o else "" for o in n.output]
        graph.node.append(n)
    for v in other.model.graph.output:
        if v.name in rename:
            graph.output.append(helper.make_tensor_value_info(
                rename[v.name], v.type.tensor_type.elem_type, None))
    return f"{', '.join(n.op_type for n in wanted)} of {other.name} reads {source}"


# ---- mutations: the file
def _same_operators(model, a, b):
    for n in seeds.nodes_of(model.graph):
        if n.domain not in ("", "ai.onnx"):
            continue
        try:
            if onnx.defs.get_schema(n.op_type, a, "").since_version != \
                    onnx.defs.get_schema(n.op_type, b, "").since_version:
                return False
        except onnx.defs.SchemaError:
            return False
    return True


def set_opset(model, version):
    for o in model.opset_import:
        if o.domain in ("", "ai.onnx"):
            o.version = version
    for f in model.functions:
        for o in f.opset_import:
            if o.domain in ("", "ai.onnx"):
                o.version = version


def opset(case, r):
    """Another opset version: mostly one where the operators are the same."""
    now = opset_of(case.model)
    versions = [v for v in OPSETS if v != now and _same_operators(case.model, now, v)]
    if r.random() < 0.4 or not versions:
        versions = [v for v in OPSETS if v != now]
    version = r.choice(versions)
    set_opset(case.model, version)
    return f"opset {now} is {version}"


def function(case, r):
    """A node becomes the body of a function of the model."""
    graph = graph_of(case)
    nodes = [k for k, n in enumerate(graph.node) if n.domain == "" and n.input and
             not any(a.type == a.GRAPH for a in n.attribute)]
    if not nodes or case.model.ir_version < 8:
        case.model.ir_version = max(case.model.ir_version, 8)
        if not nodes:
            return None
    k = r.choice(nodes)
    node = graph.node[k]
    inputs = [f"i{i}" if name else "" for i, name in enumerate(node.input)]
    outputs = [f"o{i}" if name else "" for i, name in enumerate(node.output)]
    body = copy.deepcopy(node)
    body.input[:], body.output[:], body.name = inputs, outputs, ""
    domain = "local"
    name = f"f{len(case.model.functions)}"
    case.model.functions.append(helper.make_function(
        domain, name, [i for i in inputs if i], [o for o in outputs if o], [body],
        [helper.make_opsetid("", opset_of(case.model))]))
    if domain not in {o.domain for o in case.model.opset_import}:
        case.model.opset_import.append(helper.make_opsetid(domain, 1))
    op_type = node.op_type
    graph.node[k].CopyFrom(helper.make_node(name, [i for i in node.input if i],
                                            [o for o in node.output if o], domain=domain))
    return f"{op_type} is a function"


def branch(case, r):
    """A node becomes a branch of If, with a constant condition or one that is fed."""
    graph, types = graph_of(case), inferred(case.model)
    nodes = [k for k, n in enumerate(graph.node) if n.op_type not in ("Constant", "If") and
             all(o in types for o in n.output)]
    if not nodes or opset_of(case.model) < 11:
        return None
    k = r.choice(nodes)
    node = graph.node[k]
    bodies = []
    for which in ("then", "else"):
        inner = copy.deepcopy(node)
        inner.name = ""
        inner.output[:] = [fresh(graph, f"{which}{i}") for i, _ in enumerate(node.output)]
        bodies.append(helper.make_graph([inner], which, [], [
            helper.make_tensor_value_info(n, types[o][0], None) for n, o in zip(inner.output, node.output)]))
    condition = fresh(graph, "condition")
    value = np.array(r.random() < 0.5)
    if r.random() < 0.7:
        set_initializer(graph, condition, value)
    else:
        case.feed[condition] = value
        graph.input.append(helper.make_tensor_value_info(condition, TensorProto.BOOL, []))
    op_type = node.op_type
    graph.node[k].CopyFrom(helper.make_node("If", [condition], list(node.output), then_branch=bodies[0],
                                            else_branch=bodies[1]))
    return f"{op_type} is a branch"


MUTATIONS = ((attribute, 6), (settings, 4), (edge_values, 5), (values, 3), (dimension, 5), (rank, 2),
             (element_type, 2), (to_initializer, 2), (to_input, 2), (to_constant, 1), (drop_input, 1),
             (drop_output, 1), (insert_identity, 4), (insert_node, 5), (rewire, 3), (more_outputs, 1), (twice, 2),
             (splice, 5), (opset, 2), (function, 1), (branch, 1))


# ---- cases
def is_valid(model):
    """Whether onnx's checker and its strict inference accept it."""
    try:
        onnx.checker.check_model(model)
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    except Exception:
        return False
    return True


def is_small(case):
    shapes = [s for _, s in inferred(case.model).values() if s is not None]
    sizes = [float(np.prod(s, dtype=float)) for s in shapes]
    return max(sizes, default=0) <= MAX_ELEMENTS and sum(sizes) <= 10 * MAX_ELEMENTS


def forget_shapes(model, r):
    """Mutations leave stale shapes: outputs have none, or what inference says."""
    del model.graph.value_info[:]
    tensors = [v for v in model.graph.output if v.type.WhichOneof("value") in (None, "tensor_type")]
    for v in tensors:
        v.type.tensor_type.ClearField("shape")
    types = inferred(model)
    declared = r.random() < 0.5
    for v in tensors:
        element, shape = types.get(v.name, (0, None))
        if element:
            v.type.tensor_type.elem_type = element
        elif not v.type.tensor_type.elem_type:
            v.ClearField("type")  # of another domain's operator
        if declared and shape is not None:
            v.CopyFrom(helper.make_tensor_value_info(v.name, v.type.tensor_type.elem_type, shape))


def plausible_start(seed, number, r):
    """The seed in an opset that both sides read, its settings mostly constants."""
    model = copy.deepcopy(seed.model)
    case = Case(number, seed.name, model, dict(seed.feed))
    now = opset_of(model)
    versions = [v for v in OPSETS if _same_operators(model, now, v)]
    if versions and (now not in OPSETS or r.random() < 0.3):
        set_opset(model, r.choice(versions))
    model.ir_version = max(model.ir_version, 4)
    for name in fed_tensors(case):
        if r.random() < (0.9 if _is_settings(case.feed[name]) else 0.12):
            make_initializer(case, name)
    declare_inputs(case)
    forget_shapes(model, r)
    return case


def mutate_once(case, r):
    """The case with one more change; one that makes it invalid is mostly taken back."""
    mutation = r.choices([m for m, _ in MUTATIONS], [w for _, w in MUTATIONS])[0]
    new = copy.deepcopy(case)
    note = mutation(new, r)
    if note is None:
        return case
    forget_shapes(new.model, r)
    keep_invalid = r.random() < 0.25
    if not is_small(new) or (not keep_invalid and not is_valid(new.model)):
        return case
    new.notes.append(note)
    return new


def make_case(number):
    """The case of that number."""
    r = random.Random(f"gradc {number}")
    case = plausible_start(seeds.draw(r), number, r)
    wanted = r.choices([0, 1, 2, 3, 4, 6], [2, 30, 30, 20, 12, 6])[0]
    for _ in range(wanted * 4):
        if len(case.notes) == wanted:
            break
        try:
            case = mutate_once(case, r)
        except (onnx.defs.SchemaError, ValueError, OverflowError, TypeError, IndexError, KeyError):
            continue  # this change does not fit this model
    return case
