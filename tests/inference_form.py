"""The inference form of an ONNX model, by the words of ONNX: what an export must have."""
import onnx
from onnx import numpy_helper


def nodes_of(holder):
    """All nodes of a graph or function, with those of subgraphs."""
    for n in holder.node:
        yield n
        for a in n.attribute:
            if a.HasField("g"):
                yield from nodes_of(a.g)


def constants(model):
    found = {t.name: t for t in model.graph.initializer}
    for holder in (model.graph, *model.functions):
        found.update({n.output[0]: a.t for n in nodes_of(holder) if n.op_type == "Constant" for a in n.attribute if a.name == "value"})
    return found


def training_form(model):
    """The batch norms and the active dropouts of a model that are in training form, as two lists of nodes."""
    known = constants(model)
    number = lambda name, otherwise: numpy_helper.to_array(known[name]).item() if name in known else otherwise
    norms, dropouts = [], []
    for holder in (model.graph, *model.functions):
        opset = next((o.version for o in (holder if holder is not model.graph else model).opset_import if not o.domain), 0)
        for n in nodes_of(holder):
            if n.op_type == "BatchNormalization" and (any(a.name == "training_mode" and (a.i or a.ref_attr_name) for a in n.attribute) if opset >= 14 else len(n.output) > 1):
                norms.append(n)
            elif n.op_type == "Dropout" and len(n.input) > 2 and n.input[2] and number(n.input[2], True) and number(n.input[1], 0.5):
                dropouts.append(n)
    return norms, dropouts


def inference_form(model):
    """Of a model whose batch norms' further outputs nobody reads, in place."""
    norms, dropouts = training_form(model)
    gone = set()
    for n in norms:
        gone |= set(n.output[1:])
        del n.output[1:]
        kept = [a for a in n.attribute if a.name != "training_mode"]
        del n.attribute[:]
        n.attribute.extend(kept)
    modes = {n.input[2] for n in dropouts}
    for n in dropouts:
        del n.input[2:]
    read = {name for n in nodes_of(model.graph) for name in n.input}
    gone |= {name for name in modes - read if name not in {i.name for i in model.graph.input}}
    for items, name_of in ((model.graph.initializer, lambda t: t.name), (model.graph.node, lambda n: n.output[0]), (model.graph.value_info, lambda v: v.name)):
        kept = [i for i in items if name_of(i) not in gone]
        del items[:]
        items.extend(kept)
    return model


