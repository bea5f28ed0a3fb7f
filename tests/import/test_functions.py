"""Model-local functions and subgraphs inside each other, against NumPy: the reference evaluator of the
package does not know functions inside subgraphs."""
import os
import sys

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, helper

sys.path.insert(0, os.path.dirname(__file__))
from make_malformed import call, function, model, node, subgraph, tensor, value  # noqa: E402


def refer(n, name, to):
    """The node with an attribute that stands for the function's attribute `to`."""
    n.attribute.append(AttributeProto(name=name, ref_attr_name=to, type=AttributeProto.INT))
    return n


def imports():
    return [helper.make_opsetid("f", 1)]


def softmax():
    return function("Softmax2", [refer(node("Softmax", ["a"], ["b"]), "axis", "k")],
                    attributes=["k"])


def branch(nodes, out, initializers=()):
    g = subgraph(nodes, [value(out, None)])
    g.initializer.extend(initializers)
    return g


W = np.float32([[1, 2, 3], [4, 5, 6]])


def np_softmax(x, axis):
    e = np.exp(x)
    return e / e.sum(axis=axis, keepdims=True)


def flag(name, on):
    return tensor(name, np.array(on))


def call_in_branch(on):
    """Both branches call the function, with another axis."""
    def side(axis, out):
        return branch([node("Softmax2", ["h"], [out], domain="f", k=axis)], out)
    return model([node("Neg", ["x"], ["h"]),
                  node("If", ["c"], then_branch=side(0, "t"), else_branch=side(1, "e"))],
                 initializers=[flag("c", on)], functions=[softmax()], imports=imports())


def branch_in_function(on):
    """Branches with names and initializers of their own, in a function called twice."""
    body = [node("Constant", [], ["c"], value=flag("", on)),
            node("Exp", ["a"], ["h"]),
            node("If", ["c"], ["g"],
                 then_branch=branch([node("Mul", ["h", "w"], ["q"])], "q", [tensor("w", W)]),
                 else_branch=branch([node("Add", ["a", "w"], ["q"])], "q", [tensor("w", -W)])),
            node("Tanh", ["g"], ["b"])]
    return model([call("F", ["x"], ["t"]), call("F", ["t"], ["y"])],
                 functions=[function("F", body)], imports=imports())


def reference_in_branch(on):
    """An attribute reference inside a branch, a call inside that branch, and a nested If."""
    inner = branch([refer(node("Softmax2", ["a"], ["s"], domain="f"), "k", "k")], "s")
    outer = branch([node("If", ["c"], ["t"], then_branch=inner,
                         else_branch=branch([node("Abs", ["a"], ["u"])], "u"))], "t")
    body = [node("If", ["d"], ["b"], then_branch=outer,
                 else_branch=branch([node("Identity", ["a"], ["v"])], "v"))]
    f = function("G", body, inputs=("a", "c", "d"), attributes=["k"])
    return model([node("G", ["x", "p", "q"], domain="f", k=0)], functions=[f, softmax()],
                 imports=imports(), initializers=[flag("p", on), flag("q", True)])


def expected_branch_in_function(x, on):
    for _ in range(2):
        x = np.tanh(np.exp(x) * W if on else x - W)
    return x


CASES = {
    call_in_branch: lambda x, on: np_softmax(-x, 0 if on else 1),
    branch_in_function: expected_branch_in_function,
    reference_in_branch: lambda x, on: np_softmax(x, 0) if on else np.abs(x),
}


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("make", CASES)
def test_against_numpy(run, tmp_path, make, on):
    x = np.random.default_rng(3).standard_normal((2, 3), dtype=np.float32)
    onnx.save(make(on), tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", x)
    run("run", "model.onnx", "--engine=interp", "--input", "x=x.npy", "--output-dir", "out")
    np.testing.assert_allclose(np.load(tmp_path / "out" / "y.npy"), CASES[make](x, on), rtol=1e-5,
                               atol=1e-6)


@pytest.mark.parametrize("change, said", [
    (lambda g: g.ClearField("output"), "the subgraph has no outputs"),
    (lambda g: g.initializer.extend([flag("b", True), flag("b", True)]), 'initializer "b" stands twice'),
    (lambda g: g.node.extend([node("Neg", ["x"], ["b"])]), 'output "b" is defined twice'),
    (lambda g: g.output.extend([value("other", None)]), 'subgraph output "other" is made by no node'),
], ids=["outputs", "initializers", "names", "unmade"])
def test_faults_of_a_subgraph_name_its_node(run, tmp_path, change, said):
    then, other = (branch([node("Neg", ["x"], [out])], out) for out in ("b", "c"))
    change(then)
    proto = model([node("If", ["on"], ["y"], name="choice", then_branch=then, else_branch=other)], initializers=[flag("on", True)])
    onnx.save(proto, tmp_path / "m.onnx")
    assert f'node "choice" (If, opset 17): {said}' in run("check", "m.onnx", exit=3).stderr
