"""Attention that has no kernel: each query needs scores of several heads, of two products, or of positions. As ONNX models."""
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

BATCH, HEADS, LENGTH, WIDTH = 2, 3, 37, 5
POSITIONS = 11  # of distances
WHOLE = [BATCH, HEADS, LENGTH, LENGTH]


class Model:
    """Nodes by text: op("Add", "a b") is the name of the sum."""

    def __init__(self, seed=0):
        self.rng, self.nodes, self.tensors, self.trained = np.random.default_rng(seed), [], {}, set()

    def op(self, kind, inputs, **attributes):
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs.split(), [name], **attributes))
        return name

    def ints(self, *values):
        return self.constant(np.array(values, np.int64))

    def constant(self, values):
        name = f"c{len(self.tensors)}"
        self.tensors[name] = np.asarray(values)
        return name

    def train(self, name, *shape):
        self.tensors[name] = self.rng.standard_normal(shape).astype(np.float32)
        self.trained.add(name)
        return name

    def save(self, path, *outputs):
        x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, None if n == "y" else [1, 1, 1, 1]) for n in "xy")
        more = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
        graph = helper.make_graph(self.nodes, "g", [x], [y, *more], [numpy_helper.from_array(t, n) for n, t in self.tensors.items()])
        onnx.save(onnx.shape_inference.infer_shapes(
            helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)), path)


def scores(m, q="q", k="k"):
    for name in q, k:
        m.train(name, BATCH, HEADS, LENGTH, WIDTH)
    turned = m.op("Transpose", k, perm=[0, 1, 3, 2])
    return m.op("MatMul", f"{q} {turned}")


def mixed(m, s, name):
    """The heads' scores, mixed by a trained matrix."""
    last = m.op("Transpose", s, perm=[0, 2, 3, 1])
    product = m.op("MatMul", f"{last} {m.train(name, HEADS, HEADS)}")
    biased = m.op("Add", f"{product} {m.train(name + '_bias', HEADS)}")
    return m.op("Transpose", biased, perm=[0, 3, 1, 2])


def heads_mixed(m):
    """CaiT"""
    p = m.op("Softmax", mixed(m, scores(m), "before"), axis=-1)
    return mixed(m, p, "behind")


def heads_mixed_masked(m):
    """Causal, by a comparison of positions."""
    i, j = (m.op("Unsqueeze", f"{of_range(m)} {m.ints(axis)}") for axis in (1, 0))
    hidden = m.op("Less", f"{i} {j}")
    masked = m.op("Where", f"{hidden} {m.constant(np.float32(-1e9))} {mixed(m, scores(m), 'before')}")
    return mixed(m, m.op("Softmax", masked, axis=-1), "behind")


def heads_mixed_padded(m):
    """A mask of floats that is read along queries and along keys."""
    seen = m.constant(np.float32([[1] * LENGTH, [1] * (LENGTH - 7) + [0] * 7]))
    i, j = (m.op("Unsqueeze", f"{seen} {m.ints(1, axis)}") for axis in (3, 2))
    both = m.op("Mul", f"{i} {j}")
    hidden = m.op("Mul", f"{m.op('Sub', f'{both} {m.constant(np.float32(1))}')} {m.constant(np.float32(1e4))}")
    p = m.op("Softmax", m.op("Add", f"{mixed(m, scores(m), 'before')} {hidden}"), axis=-1)
    return mixed(m, p, "behind")


def after_many(m):
    """Two softmaxes, one of them of logits that 60 nodes make of the scores."""
    s = scores(m)
    for _ in range(60):
        s = m.op("Tanh", s)
    both = m.op("Add", f"{m.op('Softmax', s, axis=-1)} {m.op('Softmax', scores(m, 'q2', 'k2'), axis=-1)}")
    return m.op("Mul", f"{both} {m.train('share', HEADS, 1, 1)}")


def positions_mixed(m):
    """ConViT: the softmax of positions, and rows whose sum is 1 again."""
    p = m.op("Softmax", scores(m), axis=-1)
    places = m.constant(m.rng.standard_normal((LENGTH, LENGTH, 3)).astype(np.float32))
    product = m.op("MatMul", f"{m.op('Expand', f'{places} {m.ints(BATCH, LENGTH, LENGTH, 3)}')} {m.train('places', 3, HEADS)}")
    of_places = m.op("Softmax", m.op("Transpose", product, perm=[0, 3, 1, 2]), axis=-1)
    gate = m.op("Sigmoid", m.train("gate", 1, HEADS, 1, 1))
    rest = m.op("Sub", f"{m.constant(np.float32(1))} {gate}")
    both = m.op("Add", f"{m.op('Mul', f'{rest} {p}')} {m.op('Mul', f'{gate} {of_places}')}")
    return m.op("Div", f"{both} {m.op('ReduceSum', f'{both} {m.ints(-1)}')}")


def two_softmaxes(m):
    """Differential attention"""
    p = m.op("Softmax", scores(m), axis=-1)
    q = m.op("Softmax", scores(m, "q2", "k2"), axis=-1)
    return m.op("Sub", f"{p} {m.op('Mul', f'{q} ' + m.train('share', HEADS, 1, 1))}")


def two_products(m):
    """Scores that are a sum of two products, of which a softcap is taken."""
    s = m.op("Add", f"{scores(m)} {scores(m, 'q2', 'k2')}")
    return m.op("Softmax", m.op("Tanh", s), axis=-1)


def of_range(m):
    return m.op("Range", " ".join(m.constant(np.int64(n)) for n in (0, LENGTH, 1)))


def relative_shift(m):
    """XLNet"""
    s = scores(m)
    product = m.op("MatMul", f"q {m.train('distances', HEADS, WIDTH, 2 * LENGTH)}")
    turned = m.op("Reshape", f"{product} {m.ints(BATCH, HEADS, 2 * LENGTH, LENGTH)}")
    later = m.op("Slice", " ".join([turned, m.ints(1), m.ints(2 * LENGTH), m.ints(2)]))
    back = m.op("Reshape", f"{later} {m.ints(BATCH, HEADS, LENGTH, 2 * LENGTH - 1)}")
    shifted = m.op("Slice", " ".join([back, m.ints(0), m.ints(LENGTH), m.ints(3)]))
    return m.op("Softmax", m.op("Add", f"{s} {shifted}"), axis=-1)


def places_of(m, distance):
    """The column of POSITIONS for each pair of positions, for all samples and heads."""
    shifted = m.op("Add", f"{distance} {m.ints(POSITIONS // 2)}")
    near = m.op("Min", f"{m.op('Max', f'{shifted} {m.ints(0)}')} {m.ints(POSITIONS - 1)}")
    return m.op("Expand", f"{near} {m.ints(*WHOLE)}")


def disentangled(m):
    """DeBERTa: products of queries with positions, and of positions with keys. One list of positions, and one matrix of distances, have the
    queries along either axis."""
    s, places = scores(m), of_range(m)
    i, j = (m.op("Unsqueeze", f"{places} {m.ints(axis)}") for axis in (1, 0))
    distance = m.op("Sub", f"{i} {j}")
    of_queries = m.op("MatMul", f"q {m.train('key_positions', HEADS, WIDTH, POSITIONS)}")
    of_keys = m.op("MatMul", f"k {m.train('query_positions', HEADS, WIDTH, POSITIONS)}")
    seen = m.op("GatherElements", f"{of_queries} {places_of(m, distance)}", axis=-1)
    from_keys = m.op("GatherElements", f"{of_keys} {places_of(m, m.op('Neg', distance))}", axis=-1)
    turned = m.op("Transpose", from_keys, perm=[0, 1, 3, 2])
    return m.op("Softmax", m.op("Add", f"{s} {m.op('Add', f'{seen} {turned}')}"), axis=-1)


CASES = {f.__name__: f for f in (heads_mixed, heads_mixed_masked, heads_mixed_padded, after_many, positions_mixed, two_softmaxes, two_products, relative_shift, disentangled)}


def write(folder, name, *, stores_weights=False, cancels=False):
    """The model and its data; cancels: sums over the first and over the last queries have opposite signs, and v is a product, whose gradient
    has 16 bits. Returns the names of what is trained."""
    m = Model(len(name))
    weights = CASES[name](m)
    v = m.train("v", BATCH, HEADS, LENGTH, WIDTH)
    if cancels:
        v = m.op("MatMul", f"{v} {m.train('projection', WIDTH, WIDTH)}")
    o = m.op("MatMul", f"{weights} {v}")
    m.nodes.append(helper.make_node("Mul", [o, "x"], ["y"]))
    m.save(folder / "model.onnx", *[weights] * stores_weights)
    np.save(folder / "x.npy", np.ones((1, 1, 1, 1), np.float32))
    labels = m.rng.standard_normal((BATCH, HEADS, LENGTH, WIDTH)).astype(np.float32)
    if cancels:
        first = LENGTH // 2
        labels[:, :, :first], labels[:, :, first:] = 32, -32 * first / (LENGTH - first)
        for q in m.trained & {"q", "q2"}:  # so each query sees all keys alike
            m.tensors[q] *= 0.02
    np.save(folder / "labels.npy", labels)
    return m.trained
