"""scikit-learn's metrics of made-up outputs and labels: what the metrics of an evaluation are held against.

    python3 metrics.py         writes tests/references/metrics.json

Needs numpy and scikit-learn. A case has the outputs of rows, their labels, and scikit-learn's values. Rows are drawn from a few, so that scores of
different rows tie exactly; some scores of a row tie, too. Classes are missing in labels, in predictions, and in both. The label -100 is ignored.
"""
import json
from pathlib import Path

import numpy as np
import sklearn
from sklearn import metrics as M

HERE = Path(__file__).resolve().parent


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def of_classes(scores, labels, probabilities, auc):
    """scores, probabilities: [targets, classes]; labels: [targets], with -100."""
    counted = labels != -100
    z, t, p = scores[counted], labels[counted], probabilities[counted]
    best, n = z.argmax(-1), z.shape[-1]
    macro = {"average": "macro", "zero_division": 0}
    values = {"loss": M.log_loss(t, p, labels=range(n)), "accuracy": M.accuracy_score(t, best), "precision": M.precision_score(t, best, **macro),
              "recall": M.recall_score(t, best, **macro), "f1": M.f1_score(t, best, **macro)}
    if n > 5:
        values["top5"] = M.top_k_accuracy_score(t, z, k=5, labels=range(n))
    if auc and n == 2:
        values["auc"] = M.roc_auc_score(t, p[:, 1])
    elif auc:    # scikit-learn's one-vs-rest gives NaN if a class has no label: the mean is over the others
        values["auc"] = np.mean([M.roc_auc_score(t == c, p[:, c]) for c in np.unique(t)])
    by_class = M.precision_recall_fscore_support(t, best, labels=range(n), zero_division=0)
    return values, by_class, M.confusion_matrix(t, best, labels=range(n))


def class_case(random, rows, shape, classes, axis, *, missing=(), ignored=0, log=False):
    """shape: of a row's labels; axis: of the classes in a row's output."""
    pool = random.standard_normal((7, *shape, classes)).astype(np.float32)
    pool[::2] = np.round(pool[::2])
    pool[..., 1] -= 30 * (classes > 3)    # never predicted
    scores = pool[random.integers(0, len(pool), rows)].astype(np.float64)
    probabilities = softmax(scores)
    if log:
        scores = np.log(probabilities).astype(np.float32).astype(np.float64)
        probabilities = np.exp(scores)
    labels = random.choice([c for c in range(classes) if c not in missing], (rows, *shape))
    hit = random.random(labels.shape) < 0.4
    labels[hit & ~np.isin(scores.argmax(-1), missing)] = scores.argmax(-1)[hit & ~np.isin(scores.argmax(-1), missing)]
    labels[random.random(labels.shape) < ignored] = -100
    found = of_classes(scores.reshape(-1, classes), labels.reshape(-1), probabilities.reshape(-1, classes), not shape)
    if shape:
        found[0]["perplexity"] = np.exp(found[0]["loss"])
    return "nll" if log else "cross_entropy", np.moveaxis(scores, -1, axis + 1), labels, *found


def binary_case(random, rows, columns):
    z = random.standard_normal((9, columns)).astype(np.float32)[random.integers(0, 9, rows)].astype(np.float64)
    t = (random.random(z.shape) < 1 / (1 + np.exp(-2 * z))).astype(np.float64)
    p, best = 1 / (1 + np.exp(-z)), z > 0
    loss = M.log_loss(t.reshape(-1), p.reshape(-1))
    if columns == 1:
        found = of_classes(np.hstack([0 * z, z]), t[:, 0].astype(int), np.hstack([1 - p, p]), True)
        return "bce_with_logits", z, t, {**found[0], "loss": loss}, *found[1:]
    macro = {"average": "macro", "zero_division": 0}
    values = {"loss": loss, "accuracy": M.accuracy_score(t, best), "precision": M.precision_score(t, best, **macro),
              "recall": M.recall_score(t, best, **macro), "f1": M.f1_score(t, best, **macro), "auc": M.roc_auc_score(t, p)}
    return "bce_with_logits", z, t, values, M.precision_recall_fscore_support(t, best, zero_division=0), None


def number_case(random, rows, shape, loss):
    y = (1000 + 3 * random.standard_normal((rows, *shape))).astype(np.float32).astype(np.float64)
    x = (y + random.standard_normal(y.shape)).astype(np.float32).astype(np.float64)
    if len(shape) == 1 and shape[0] > 2:
        y[:, 1] = 8    # no variance
    a, b = (v.reshape(rows, -1) if len(shape) == 1 else v.reshape(-1, 1) for v in (y, x))
    values = {"r2": M.r2_score(a, b), "mae": M.mean_absolute_error(a, b), "rmse": M.root_mean_squared_error(a, b),
              "loss": (M.mean_squared_error if loss == "mse" else M.mean_absolute_error)(a, b)}
    return loss, x, y, values, None, None


def cases(random):
    yield "ten classes", class_case(random, 61, (), 10, 0, missing=(4,), ignored=0.1)
    yield "two classes", class_case(random, 40, (), 2, 0)
    yield "log-probabilities", class_case(random, 33, (), 4, 0, log=True)
    yield "one class", class_case(random, 9, (), 3, 0, missing=(0, 2))
    yield "sequence", class_case(random, 19, (4,), 6, 1, missing=(2,), ignored=0.3)
    yield "image", class_case(random, 11, (2, 3), 5, 0, ignored=0.1)
    yield "binary", binary_case(random, 50, 1)
    yield "multi-label", binary_case(random, 37, 4)
    yield "number", number_case(random, 29, (1,), "mse")
    yield "vector", number_case(random, 29, (3,), "l1")
    yield "matrix", number_case(random, 13, (2, 2), "mse")


def main():
    all_cases = []
    for name, (loss, outputs, labels, values, by_class, confusion) in cases(np.random.default_rng(5)):
        case = {"name": name, "loss": loss, "outputs": outputs.tolist(), "labels": labels.tolist(), "metrics": {k: float(v) for k, v in values.items()}}
        if name == "one class":
            del case["metrics"]["auc"]    # no pairs to compare
        if by_class:
            case["classes"] = {k: np.asarray(v).tolist() for k, v in zip(("precision", "recall", "f1", "support"), by_class)}
        if confusion is not None:
            case["confusion"] = confusion.tolist()
        all_cases.append(case)
    text = json.dumps({"scikit_learn": sklearn.__version__, "cases": all_cases})
    (HERE / "metrics.json").write_text(text.replace('{"name"', '\n{"name"') + "\n")


if __name__ == "__main__":
    main()
