"""TfIdfVectorizer of numbers against ONNX's reference: pools of n-grams of several lengths, skips, modes, weights, repeated n-grams."""
import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

ENGINES = ["interp", "compiled"]


def save(path, x, **attributes):
    node = helper.make_node("TfIdfVectorizer", ["x"], ["y"], **attributes)
    graph = helper.make_graph([node], "tfidf", [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)],
                              [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.save(model, path)
    np.save(path.parent / "x.npy", x)
    return model


def pools(seed):
    """Up to 5 n-grams of each length, of numbers below 4, so that some stand there twice."""
    rng = np.random.default_rng(seed)
    pool, counts, total = [], [], 0
    for length in (1, 2, 3):
        counts.append(len(pool))
        n = int(rng.integers(1, 6))
        pool += rng.integers(0, 4, n * length).tolist()
        total += n
    least = int(rng.integers(1, 4))
    return rng, {"min_gram_length": least, "max_gram_length": int(rng.integers(least, 4)), "max_skip_count": int(rng.integers(0, 4)),
                 "ngram_counts": counts, "ngram_indexes": rng.permutation(total).tolist(), "pool_int64s": pool}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seed", range(9))
def test_counts(run, tmp_path, engine, seed):
    rng, attributes = pools(seed)
    attributes["mode"] = ["TF", "IDF", "TFIDF"][seed % 3]
    if attributes["mode"] != "TF":
        attributes["weights"] = rng.random(len(attributes["ngram_indexes"])).tolist()
    x = rng.integers(0, 4, [(3, 7), (7,), (1, 1)][seed % 3]).astype([np.int32, np.int64][seed % 2])
    model = save(tmp_path / "m.onnx", x, **attributes)
    run("run", "m.onnx", f"--engine={engine}", "--input=x=x.npy", "--output-dir=out")
    np.testing.assert_allclose(np.load(tmp_path / "out/y.npy"), ReferenceEvaluator(model).run(None, {"x": x})[0], rtol=1e-6)


GOOD = {"min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 0, "ngram_counts": [0, 2], "ngram_indexes": [0, 1, 2],
        "pool_int64s": [1, 2, 1, 2], "mode": "TF"}


@pytest.mark.parametrize("change, code, said", [
    ({"min_gram_length": 0}, 3, "n-grams of 0 to 2 items with at most 0 skipped"),
    ({"max_gram_length": 0}, 3, "n-grams of 1 to 0 items"),
    ({"max_skip_count": -1}, 3, "with at most -1 skipped"),
    ({"max_skip_count": 5000}, 4, "max_skip_count 5000, at most 1024 is supported"),
    ({"ngram_counts": [3, 2]}, 3, "ngram_counts has 3 and then 2: need ascending places in a pool of 4 items"),
    ({"ngram_counts": [0, 9]}, 3, "ngram_counts has 0 and then 9"),
    ({"ngram_indexes": [0]}, 3, "1 ngram_indexes, the pool has more n-grams"),
    ({"ngram_indexes": [0, 1, -2]}, 3, "ngram_indexes has -2"),
    ({"mode": "IDF", "weights": [1.0]}, 3, "1 weights, needs one for each of the result's 3 numbers a row"),
    ({"mode": "idf"}, 3, 'mode "idf" is not one of: TF IDF TFIDF'),
    ({"pool_strings": ["a"]}, 4, "a pool of strings"),
])
def test_what_cannot_be_is_refused(run, tmp_path, change, code, said):
    save(tmp_path / "m.onnx", np.zeros((2, 3), np.int64), **{**GOOD, **change})
    assert said in run("check", "m.onnx", exit=code).stderr
