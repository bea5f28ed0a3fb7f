"""Softmax and its relatives, and the losses."""
import numpy as np
from case import Case, numbers


def functional():
    import torch.nn.functional as F
    return F


def over_rest(f):
    """Before 13 all axes from `axis` on are one."""
    return lambda x: f(x.flatten(1)).reshape(x.shape)


LABELS = np.array([2, 0, 1, 2], np.int64)
PLANE = np.array([[[2, 0], [1, 1], [0, 2]], [[1, 2], [2, 0], [0, 1]]], np.int64)
WEIGHT = np.array([0.5, 2.0, 1.25])


def nll(name, shape, labels, reduction="mean", weight=None, ignore=None, opset=22):
    attrs = {"reduction": reduction, **({} if ignore is None else {"ignore_index": ignore})}
    return Case(f"NegativeLogLikelihoodLoss_{name}", "NegativeLogLikelihoodLoss", {"x": numbers(*shape), "labels": labels, "weight": weight},
                lambda x, labels, weight=None: functional().nll_loss(x, labels, weight, ignore_index=-100 if ignore is None else ignore, reduction=reduction),
                attrs, opset=opset, constants=("weight",))


def cross_entropy(name, shape, labels, reduction="mean", weight=None, ignore=None, outputs=1):
    attrs = {"reduction": reduction, **({} if ignore is None else {"ignore_index": ignore})}

    def run(x, labels, weight=None):
        F = functional()
        loss = F.cross_entropy(x, labels, weight, ignore_index=-100 if ignore is None else ignore, reduction=reduction)
        return (loss, F.log_softmax(x, 1)) if outputs == 2 else loss
    return Case(f"SoftmaxCrossEntropyLoss_{name}", "SoftmaxCrossEntropyLoss", {"x": numbers(*shape), "labels": labels, "weight": weight}, run, attrs, outputs,
                opset=13, constants=("weight",))


CASES = [
    *(Case(f"{op}_{name}", op, {"x": numbers(*shape)}, lambda x, f=f, axis=axis: getattr(functional(), f)(x, axis), {"axis": axis})
      for op, f in (("Softmax", "softmax"), ("LogSoftmax", "log_softmax"))
      for name, shape, axis in (("last", (3, 5), -1), ("first", (3, 5), 0), ("middle", (2, 3, 4), 1), ("one", (2, 1), 1), ("none", (0, 3), 1))),
    *(Case(f"{op}_11", op, {"x": numbers(2, 3, 4)}, over_rest(lambda x, f=f: getattr(functional(), f)(x, 1)), opset=11)
      for op, f in (("Softmax", "softmax"), ("LogSoftmax", "log_softmax"))),
    Case("Hardmax", "Hardmax", {"x": numbers(3, 5)}, lambda x: functional().one_hot(x.argmax(1), 5) + 0 * x, differences=False),
    nll("mean", (4, 3), LABELS), nll("sum", (4, 3), LABELS, "sum"), nll("none", (4, 3), LABELS, "none"), nll("weight", (4, 3), LABELS, weight=WEIGHT),
    nll("ignored", (4, 3), LABELS, ignore=2), nll("plane", (2, 3, 3, 2), PLANE, weight=WEIGHT, ignore=0), nll("12", (4, 3), LABELS, opset=12),
    cross_entropy("mean", (4, 3), LABELS), cross_entropy("sum", (4, 3), LABELS, "sum"), cross_entropy("none", (4, 3), LABELS, "none", WEIGHT),
    cross_entropy("plane", (2, 3, 3, 2), PLANE, weight=WEIGHT, ignore=0), cross_entropy("two", (4, 3), LABELS, outputs=2),
]
