"""Operators of ai.onnx.ml that are arithmetic: results beside onnxruntime's, of the first case of each operator by both engines; gradients beside
differences."""
import json

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

RANDOM = np.random.default_rng(5)
F = np.float32


def floats(*shape):
    return RANDOM.standard_normal(shape).astype(F)


def numbers(*shape):
    return RANDOM.standard_normal(shape).astype(F).ravel().tolist()


X = floats(6, 3)
ROWS = np.array([[1, -3, 2], [0, 0, 0], [-1, -2, -3], [0, -1, 0]], F)
LINEAR = {f"{op} {how} {classes} {len(labels)}": (op, [X], dict(coefficients=numbers(classes, 3), intercepts=numbers(classes), post_transform=how, **(
              {"classlabels_ints": labels} if op == "LinearClassifier" else {"targets": classes})))
          for op in ("LinearClassifier", "LinearRegressor") for how in ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")
          for classes, labels in ((1, [3, 7]), (1, [5]), (2, [-4, 9]), (4, [1, 2, 3, 5])) if op == "LinearClassifier" or labels != [5]}
KEYS = dict(keys_int64s=[7, 3, 7, -2], values_floats=[0.5, 1.5, 2.5, -3.0])
CASES = LINEAR | {
    "Scaler": ("Scaler", [X], dict(scale=numbers(3), offset=numbers(3))), "Scaler one": ("Scaler", [floats(2, 3, 4)], dict(scale=[2.5], offset=[0.5])),
    "Scaler vector": ("Scaler", [floats(3)], dict(scale=numbers(3), offset=numbers(3))),
    "Scaler integers": ("Scaler", [RANDOM.integers(-9, 9, (4, 3))], dict(scale=numbers(3), offset=numbers(3))),
    "Scaler f64": ("Scaler", [RANDOM.standard_normal((4, 3))], dict(scale=numbers(3), offset=numbers(3))),
    "Scaler rank 3": ("Scaler", [floats(2, 3, 4)], dict(scale=numbers(3), offset=numbers(3))),
    **{f"Normalizer {norm}": ("Normalizer", [ROWS], dict(norm=norm)) for norm in ("MAX", "L1", "L2")},
    "Normalizer": ("Normalizer", [X], {}), "Normalizer vector": ("Normalizer", [floats(5)], dict(norm="L2")),
    "Normalizer integers": ("Normalizer", [RANDOM.integers(-9, 9, (4, 3))], dict(norm="L1")),
    "LinearClassifier vector": ("LinearClassifier", [floats(3)], dict(coefficients=numbers(4, 3), intercepts=numbers(4), classlabels_ints=[1, 2, 3, 5])),
    "LinearClassifier integers": ("LinearClassifier", [RANDOM.integers(-9, 9, (4, 3))], dict(coefficients=numbers(4, 3), intercepts=numbers(4), classlabels_ints=[1, 2, 3, 5])),
    "LinearRegressor without": ("LinearRegressor", [X], dict(coefficients=numbers(2, 3), targets=2)),
    "LabelEncoder": ("LabelEncoder", [np.array([[7, 3, 1], [-2, 0, 7]])], KEYS | dict(default_float=9.0)),
    "LabelEncoder default": ("LabelEncoder", [np.array([7, 3, 1, -2])], KEYS),
    "LabelEncoder floats": ("LabelEncoder", [np.array([1.5, 2.25, 8, -0.0], F)], dict(keys_floats=[2.25, 1.5, 0.0], values_int64s=[2 ** 60 + 1, -3, 4], default_int64=2 ** 60 + 3)),
    "LabelEncoder numbers": ("LabelEncoder", [np.array([5, 6, 7])], dict(keys_int64s=[5, 7], values_int64s=[50, 70])),
    "LabelEncoder tensors": ("LabelEncoder", [np.array([5, 6, 7])], dict(keys_tensor=numpy_helper.from_array(np.array([5, 7])), values_tensor=numpy_helper.from_array(np.array([0.25, 0.5], F)),
                                                                         default_tensor=numpy_helper.from_array(np.array([0.125], F)))),
    "ArrayFeatureExtractor": ("ArrayFeatureExtractor", [X, np.array([[2, 0]])], {}), "ArrayFeatureExtractor vector": ("ArrayFeatureExtractor", [floats(4), np.array([3, 1, 1])], {}),
    "ArrayFeatureExtractor rank 3": ("ArrayFeatureExtractor", [floats(2, 3, 4), np.array([3, 1])], {}),
}


def write(path, op, inputs, attributes, open_rows=False):
    outputs = {"LinearClassifier": (7, 1), "ArrayFeatureExtractor": (helper.np_dtype_to_tensor_dtype(inputs[0].dtype),)}.get(op, (1,))
    if op == "LabelEncoder" and "values_int64s" in attributes:
        outputs = (7,)
    names = [f"x{i}" for i in range(len(inputs))]
    node = helper.make_node(op, names, ["y", "z"][:len(outputs)], "n", domain="ai.onnx.ml", **attributes)
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), (["n"] if open_rows else [x.shape[0]]) + list(x.shape[1:]))
                                            for n, x in zip(names, inputs)], [helper.make_tensor_value_info(o, t, None) for o, t in zip("yz", outputs)])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 4)], ir_version=8), path)
    return dict(zip(names, inputs))


@pytest.mark.parametrize("case", CASES)
def test_results_are_onnxruntimes(run, tmp_path, case):
    feeds = write(tmp_path / "model.onnx", *CASES[case])
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    words = []
    for name, x in feeds.items():
        np.save(tmp_path / f"{name}.npy", x)
        words.append(f"--input={name}={name}.npy")
    first = next(c for c in CASES if CASES[c][0] == CASES[case][0])
    for engine in ("interp", "compiled")[:1 + (case == first)]:
        run("run", "model.onnx", f"--engine={engine}", *words, "--output-dir=out")
        files = json.loads((tmp_path / "out/names.json").read_text())
        for output, want in zip(session.get_outputs(), session.run(None, feeds)):
            got = np.load(tmp_path / "out" / files[output.name]["file"])
            assert (got.dtype, got.shape) == (want.dtype, want.shape), output.name
            if want.dtype == F:
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6, err_msg=output.name)
            else:
                np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("case", ["Scaler", "Normalizer L1", "Normalizer L2", "Normalizer MAX", "LinearRegressor SOFTMAX 4 4", "LinearClassifier LOGISTIC 1 2", "LinearClassifier SOFTMAX_ZERO 4 4"])
def test_a_layer_before_them_trains(run, tmp_path, case):
    """Gradients reach a weight before the operator, whose own numbers are attributes and stay."""
    op, inputs, attributes = CASES[case]
    write(tmp_path / "model.onnx", op, [X], attributes)
    model = onnx.load(tmp_path / "model.onnx")
    model.graph.node[0].input[0] = "h"
    model.graph.node.insert(0, helper.make_node("MatMul", ["x0", "w"], ["h"]))
    model.graph.initializer.append(numpy_helper.from_array(floats(3, 3), "w"))
    onnx.save(model, tmp_path / "model.onnx")
    np.save(tmp_path / "x0.npy", X)
    scores = "z" if op == "LinearClassifier" else "y"
    width = len(attributes.get("intercepts", X[0]))
    width = 2 if "1 2" in case else width
    np.save(tmp_path / "t.npy", floats(6, width))
    said = run("grad", "model.onnx", f"--loss=mse:{scores}", "--input=x0=x0.npy", "--input=labels=t.npy", "--precision=f64", "--check-gradients=9").stdout
    notes = json.loads(run("check", "--json", "model.onnx").stdout)["notes"]
    assert [n.startswith('1 linear models, the first one "n"') for n in notes] == [True] * op.startswith("Linear")
    errors = {line.split()[0]: float(line.split()[1]) for line in said.splitlines() if " at " in line}
    assert set(errors) == {"w"} and max(errors.values()) < 1e-6, said


FAULTS = {
    "strings": (("LabelEncoder", [np.array([5])], dict(keys_int64s=[5], values_strings=["a"])), 4, "labels that are strings"),
    "classes": (("LinearClassifier", [X], dict(coefficients=numbers(2, 3), intercepts=numbers(2), classlabels_strings=["a", "b"])), 4, "labels that are strings"),
    "probit": (("LinearRegressor", [X], dict(coefficients=numbers(2, 3), targets=2, post_transform="PROBIT")), 4, "post_transform PROBIT"),
    "features": (("LinearRegressor", [X], dict(coefficients=numbers(2, 4), targets=2)), 3, "8 coefficients and 0 intercepts do not fit 3 features and 2 scores"),
    "labels": (("LinearClassifier", [X], dict(coefficients=numbers(2, 3), intercepts=numbers(2), classlabels_ints=[1, 2, 3])), 3, "3 labels, needs one for each of 2 scores"),
    "scales": (("Scaler", [X], dict(scale=numbers(2), offset=numbers(2))), 3, "2 scales and 2 offsets: need one of each, or 3 of each, the number of features"),
    "keys": (("LabelEncoder", [np.array([5])], dict(keys_int64s=[5], values_floats=[1.0, 2.0])), 3, "needs as many keys as values"),
    "type": (("LabelEncoder", [np.array([5])], dict(keys_floats=[5.0], values_floats=[1.0])), 3, "keys of the type of input 0, s64"),
    "tree": (("TreeEnsembleRegressor", [X], {}), 4, "operators of ai.onnx.ml are not supported"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_refused(run, tmp_path, name):
    what, code, said = FAULTS[name]
    write(tmp_path / "model.onnx", *what)
    assert said in run("check", "model.onnx", exit=code).stderr
