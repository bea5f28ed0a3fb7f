"""200 spellings of attention: ONNX models of different nodes that all compute softmax(f(q k')) v, each with its output and its gradients by formula.

SPELLINGS is made from one seed and is the same on every machine."""
from dataclasses import dataclass
from typing import Callable

import by_nodes
import numpy as np
from by_operators import OPERATORS
from draw import NOTHING, Drawer
from heads import arranged
from onnx import TensorProto, helper, numpy_helper
from spelled import Spelled

SEED, COUNT = 20, 200
IR_VERSION = 10


@dataclass
class Spelling:
    name: str
    choices: dict       # axis -> value
    spelled: Spelled    # nodes, inputs, initializers, what is fed and trained
    output: str         # in f32
    order: str          # of the output's axes, see heads.Heads
    formula: Callable   # cotangent [B, H, Tq, Dv] -> (output [B, H, Tq, Dv], {name: gradient})

    @property
    def opset(self):
        return self.choices["opset"]

    def cotangent(self):
        """[B, H, Tq, Dv]: what multiplies the output's elements in the loss."""
        z = self.spelled.sizes
        shape = z.batch, z.heads, z.queries, z.v_size
        return np.cos(np.arange(int(np.prod(shape))) * 1.7 + 0.3).reshape(shape)

    def wanted(self):
        """(the output, {name: gradient of the loss}) by formula; the loss is the sum of the output times the cotangent."""
        y, gradients = self.formula(self.cotangent())
        return arranged(y, self.order), gradients


def named(number, choices):
    """s042-flat-permute-…: the values of its choices, without usual ones"""
    words = [f"{axis}_{value}" if axis in by_nodes.SAID else str(value)
             for axis, value in choices.items() if value != NOTHING and by_nodes.USUAL.get(axis) != value]
    return f"s{number:03d}-" + "-".join(words)


def spelling(number, choices, build):
    """The spelling of these choices; `build` adds its nodes, see by_nodes.build()."""
    rng = np.random.default_rng((SEED, number))
    spelled = Spelled(named(number, choices), choices, by_nodes.sizes_of(choices, rng), rng)
    output, order, formula = build(spelled)
    output = spelled.cast(output, TensorProto.FLOAT) if spelled.dtype != "f32" else output
    return Spelling(spelled.name, choices, spelled, output, order, formula)


def drawn(axes, count):
    drawer = Drawer(axes, SEED)
    return [drawer.draw() for _ in range(count)]


def all_spellings():
    of_operators = [(choices, build) for axes, count, build in OPERATORS.values() for choices in drawn(axes, count)]
    of_nodes = [(choices, by_nodes.build) for choices in drawn(by_nodes.AXES, COUNT - len(of_operators))]
    return [spelling(number, *both) for number, both in enumerate(of_nodes + of_operators)]


def model(spellings, losses=False):
    """One model of spellings with one opset; with `losses` its last output `total` is the sum of all their losses."""
    nodes, initializers, outputs, terms = [], [], [], []
    for s in spellings:
        nodes += s.spelled.nodes
        initializers += s.spelled.initializers
        outputs.append(helper.make_tensor_value_info(s.output, TensorProto.FLOAT, arranged(s.cotangent(), s.order).shape))
        if losses:
            terms.append(_loss(s, nodes, initializers))
    if losses:
        nodes.append(helper.make_node("Sum", terms, ["total"], name="total"))
        outputs.append(helper.make_tensor_value_info("total", TensorProto.DOUBLE, ()))
    opset, = {s.opset for s in spellings}
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    inputs = [i for s in spellings for i in s.spelled.inputs]
    graph = helper.make_graph(nodes, "spellings", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)


def _loss(s, nodes, initializers):
    """Adds the nodes of one spelling's loss; its name."""
    name = f"{s.name}/loss"
    initializers.append(numpy_helper.from_array(np.ascontiguousarray(arranged(s.cotangent(), s.order)), f"{name}.weights"))
    nodes += [helper.make_node("Cast", [s.output], [f"{name}.wide"], name=f"{name}.wide", to=TensorProto.DOUBLE),
              helper.make_node("Mul", [f"{name}.wide", f"{name}.weights"], [f"{name}.weighted"], name=f"{name}.weighted"),
              helper.make_node("ReduceSum", [f"{name}.weighted"], [name], name=name, keepdims=0)]
    return name
