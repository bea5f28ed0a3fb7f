"""An ONNX graph computing in f64, and onnx's reference evaluator made exact enough for it."""
import copy
import math

import numpy as np
import onnx
import onnx.reference.ops.op_erf as op_erf
import onnx.reference.ops.op_gather_elements as op_gather_elements
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

FLOAT, DOUBLE = TensorProto.FLOAT, TensorProto.DOUBLE


def _widen_tensor(t):
    if t.data_type == FLOAT:
        t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(t).astype(np.float64), t.name))


def _widen_attribute(node, a):
    if a.type == a.TENSOR:
        _widen_tensor(a.t)
    elif a.type == a.GRAPH:
        _widen_graph(a.g)
    elif a.name in ("to", "dtype") and a.i == FLOAT:
        a.i = DOUBLE
    elif node.op_type == "Constant" and a.name in ("value_float", "value_floats"):
        value = a.f if a.name == "value_float" else list(a.floats)
        wide = numpy_helper.from_array(np.array(value, np.float32).astype(np.float64))
        a.CopyFrom(onnx.helper.make_attribute("value", wide))


def _widen_nodes(nodes):
    for n in nodes:
        if n.op_type == "ConstantOfShape" and not n.attribute:
            zero = numpy_helper.from_array(np.zeros(1))
            n.attribute.append(onnx.helper.make_attribute("value", zero))
        for a in n.attribute:
            _widen_attribute(n, a)


def _widen_graph(g):
    for t in g.initializer:
        _widen_tensor(t)
    for v in [*g.input, *g.output]:
        if v.type.tensor_type.elem_type == FLOAT:
            v.type.tensor_type.elem_type = DOUBLE
    del g.value_info[:]
    _widen_nodes(g.node)


def widened(model):
    m = copy.deepcopy(model)
    _widen_graph(m.graph)
    for f in m.functions:
        _widen_nodes(f.node)
    return m


def _erf(self, x):
    """The package's rounds to f32."""
    return (np.vectorize(math.erf, otypes=[x.dtype])(x),)


def _gather_elements(self, data, index, axis=None):
    """The package's wants data and index of equal shape off the axis."""
    own = tuple(slice(None) if d == axis % data.ndim else slice(n)
                for d, n in enumerate(index.shape))
    return (np.take_along_axis(data[own], index, axis),)


def mend_evaluator():
    """What the package's evaluator gets wrong."""
    op_erf.Erf._run = _erf
    op_gather_elements.GatherElements._run = _gather_elements


def evaluate(model, feed):
    """{output: array} of the widened graph by onnx's reference evaluator."""
    mend_evaluator()
    names = [o.name for o in model.graph.output]
    feed = {k: v.astype(np.float64) if v.dtype == np.float32 else v for k, v in feed.items()}
    evaluator = ReferenceEvaluator(widened(model))
    return dict(zip(names, evaluator.run(names, feed)))


def onnxruntime_results(path, feed):
    """{output: array} by onnxruntime, one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, feed)))
