"""What the tables of this folder are made of: a Case is one node of an operator with its inputs, and what computes the same in PyTorch.

Cases of one opset are put side by side into one model, so that one run of gradc answers for all of them. Its scalar output `total` is
the sum of all float results, each weighted by fixed numbers, so that its gradients see every element.
"""
import importlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, NamedTuple, Optional

import numpy as np
import onnx
from onnx import helper, numpy_helper

HERE = Path(__file__).parent
NEWEST = 26  # the opset of cases that say none


@dataclass
class Case:
    name: str                 # unique in its file; letters, digits and _
    op: str
    inputs: dict              # name -> array, in the node's order; floats are float64; a value None: an input that is left out
    torch: Optional[Callable] = None  # (tensors in the order of inputs, None where left out) -> tensor or tuple; None: PyTorch has none
    attrs: dict = field(default_factory=dict)
    outputs: int = 1
    constants: tuple = ()     # names of inputs that are initializers; integers and booleans always are, unless in `fed`
    fed: tuple = ()           # names of integer or boolean inputs that the model gets when it runs
    captures: tuple = ()      # names of inputs that the node does not have: graphs among its attributes read CASE.NAME
    opset: int = NEWEST
    domain: str = ""
    differences: bool = True  # False: its gradient is one by definition, not the slope
    gradient: bool = True     # False: only the results are compared

    def is_fed(self, name):
        x = self.inputs[name]
        return x is not None and name not in self.constants and (x.dtype.kind == "f" or name in self.fed)

    def differentiable(self):
        """Names of the inputs whose gradients are compared."""
        return [n for n in self.inputs if self.gradient and self.is_fed(n) and self.inputs[n].dtype == np.float64]


def numbers(*shape, seed=0, low=-1.0, high=1.0):
    """float64 without ties: a permutation of evenly spaced numbers, none of them a round one."""
    n = int(np.prod(shape))
    return (low + (high - low) * (np.random.default_rng(seed).permutation(n) + 0.4871) / max(n, 1)).reshape(shape)


def weights(shape):
    """What multiplies a result's elements in `total`."""
    return np.cos(np.arange(int(np.prod(shape)), dtype=np.float64) * 1.7 + 0.3).reshape(shape)


def families():
    """The tables: every other module of this folder that has CASES."""
    names = sorted(p.stem for p in HERE.glob("*.py") if p.stem != "case" and not p.stem.startswith("test_"))
    return [n for n in names if hasattr(importlib.import_module(n), "CASES")]


def cases(family):
    """Those of a family by (opset, domain)."""
    groups = {}
    for case in importlib.import_module(family).CASES:
        groups.setdefault((case.opset, case.domain), []).append(case)
    return groups


def port(case, name):
    return f"{case.name}.{name}"


class Parts(NamedTuple):
    """Of the graph of some cases; what it is fed: name -> array; the names of results that weigh in its total."""
    nodes: list
    inputs: list
    outputs: list
    initializers: list
    feeds: dict
    terms: list


def model(group, as_parameters=False):
    """The parts of these cases' graph; as_parameters: float inputs are initializers, which gradc may train."""
    nodes, inputs, outputs, initializers, feeds, terms = parts = Parts([], [], [], [], {}, [])
    for case in group:
        names = []
        for name, x in case.inputs.items():
            if name not in case.captures:
                names.append("" if x is None else port(case, name))
            if x is None:
                continue
            if case.is_fed(name) and not (as_parameters and x.dtype.kind == "f"):
                inputs.append(helper.make_tensor_value_info(port(case, name), helper.np_dtype_to_tensor_dtype(x.dtype), x.shape))
                feeds[port(case, name)] = x
            else:
                initializers.append(numpy_helper.from_array(x, port(case, name)))
        while names and not names[-1]:
            names.pop()
        results = [port(case, f"y{i}") for i in range(case.outputs)]
        nodes.append(helper.make_node(case.op, names, results, name=case.name, domain=case.domain, **case.attrs))
        outputs.extend(onnx.ValueInfoProto(name=r) for r in results)
        terms.extend(results if case.gradient else [])
    return parts


def with_total(parts, shapes, opset, domain):
    """The model, its `total` over the results in `shapes`: name -> shape."""
    nodes, initializers, outputs, sums = list(parts.nodes), list(parts.initializers), list(parts.outputs), []
    for name, shape in shapes.items():
        initializers += [numpy_helper.from_array(weights(shape), f"{name}.weight")]
        nodes += [helper.make_node("Mul", [name, f"{name}.weight"], [f"{name}.weighted"], name=f"{name}.weighted"),
                  helper.make_node("ReduceSum", [f"{name}.weighted"], [f"{name}.sum"], name=f"{name}.sum", keepdims=0)]
        sums.append(f"{name}.sum")
    if sums:
        nodes.append(helper.make_node("Sum", sums, ["total"], name="total"))
        outputs.append(helper.make_tensor_value_info("total", onnx.TensorProto.DOUBLE, ()))
    imports = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    graph = helper.make_graph(nodes, "cases", parts.inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=imports, ir_version=10)
