"""Models of scikit-learn: its neural networks, which it trains by SGD itself, and linear models, whose operators gradc does
not read."""
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper
from skl2onnx import to_onnx
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression, SGDRegressor
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

import case_files
from case_files import floats, integers

LEARNING_RATE, FEATURES = 0.05, 8
SETTINGS = dict(solver="sgd", momentum=0, nesterovs_momentum=False, alpha=0, shuffle=False, random_state=0)


@dataclass
class Row:
    name: str
    model: object
    labels: object
    rows: int = 8
    is_moved: bool = True
    options: list = field(default_factory=list)
    exporter: str = "skl2onnx"
    form: str = "inference"


def regressor(**kw):
    """Its loss is half of the mean of squares."""
    return MLPRegressor(**SETTINGS, learning_rate_init=2 * LEARNING_RATE, **kw)


def classifier(**kw):
    return MLPClassifier(**SETTINGS, learning_rate_init=LEARNING_RATE, **kw)


MODELS = [
    Row("mlp_regressor_relu", regressor(hidden_layer_sizes=(16, 16)), floats(1), options=["--loss=mse:variable"]),
    Row("mlp_regressor_tanh_fresh", regressor(hidden_layer_sizes=(16,), activation="tanh"), floats(1), is_moved=False,
        options=["--loss=mse:variable"]),
    Row("mlp_regressor_logistic", regressor(hidden_layer_sizes=(12, 8, 4), activation="logistic"), floats(1), options=["--loss=mse:variable"]),
    Row("mlp_classifier", classifier(hidden_layer_sizes=(16,)), integers(3), options=["--loss=onnx:loss.onnx"]),
    Row("scaler_and_mlp", make_pipeline(StandardScaler(), regressor(hidden_layer_sizes=(16,))), floats(1), options=["--loss=mse:variable"]),
    Row("pca_and_mlp", make_pipeline(PCA(4), regressor(hidden_layer_sizes=(16,))), floats(1), options=["--loss=mse:variable"]),
    Row("logistic_regression", LogisticRegression(), integers(3), options=["--loss=onnx:loss.onnx"]),
    Row("sgd_regressor", SGDRegressor(max_iter=1, tol=None), floats(1), options=["--loss=mse:variable"]),
]


def write_loss(path, classes):
    """Classifiers give probabilities."""
    ports = [helper.make_tensor_value_info("probabilities", 1, ["rows", classes]), helper.make_tensor_value_info("labels", 7, ["rows"])]
    nodes = [helper.make_node("Log", ["probabilities"], ["log"]),
             helper.make_node("NegativeLogLikelihoodLoss", ["log", "labels"], ["loss"])]
    graph = helper.make_graph(nodes, "loss", ports, [helper.make_tensor_value_info("loss", 1, [])])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def parameters(net):
    named = {f"coefficients.{i}": a for i, a in enumerate(net.coefs_)} | {f"intercepts.{i}": a for i, a in enumerate(net.intercepts_)}
    return {k: np.array(v, np.float32) for k, v in named.items()}


def make(row, folder):
    arrays = case_files.draw({"X": floats(FEATURES), "labels": row.labels}, row.rows)
    x, y = arrays["X"], arrays["labels"]
    target = y[:, 0] if y.ndim == 2 else y
    classes = len(np.unique(y)) if y.ndim == 1 else 0
    every = dict(classes=np.arange(classes)) if classes else {}
    steps, net = (row.model[:-1], row.model[-1]) if isinstance(row.model, Pipeline) else (None, row.model)
    fed = steps.fit(x).transform(x) if steps else x
    before, after, losses, is_net = {}, {}, [], isinstance(net, (MLPClassifier, MLPRegressor))
    if is_net:
        net.partial_fit(fed[:row.rows], target[:row.rows], **every)  # makes the arrays
        rng = case_files.random(7)
        for a in (*net.coefs_, *net.intercepts_) if row.is_moved else ():
            a[...] = case_files.moved(a, rng)
        before = parameters(net)
    else:
        net.fit(fed, target)
    onnx.save(to_onnx(row.model, x[:1], options=None if y.ndim == 2 else {"zipmap": False}), folder / "model.onnx")
    if classes:
        write_loss(folder / "loss.onnx", classes)
    if is_net:
        for batch in case_files.batches({"x": fed, "y": target}, row.rows):
            net.partial_fit(batch["x"], batch["y"], **every)
            losses.append(float(net.loss_) * (1 if classes else 2))
        after = parameters(net)
    case_files.write(folder, arrays, before, after, [], losses, {}, exporter=row.exporter, form=row.form, is_moved=row.is_moved,
                     lr=LEARNING_RATE, options=[*row.options, "--batch", str(row.rows)])


if __name__ == "__main__":
    case_files.main("sklearn", MODELS, make, ["scikit-learn", "skl2onnx", "onnx"])
