"""Attention at its edges: rows whose keys are all hidden, infinities and NaN, lengths of 0 and 1, masks that broadcast. By the formula, with groups and
without; NaN where the formula has NaN. All cases of one kind are one model."""
import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import tolerances  # noqa: E402  tests/tolerances.py
from formula import attend  # noqa: E402
from heads import Heads  # noqa: E402
from masks import ADDS, Mask, masked  # noqa: E402
from products import probabilities, weighed  # noqa: E402
from running import differing, forward, gradients, need_recognize, written  # noqa: E402
from spelled import Sizes, Spelled  # noqa: E402
from spellings import Spelling  # noqa: E402

INF, NAN = np.inf, np.nan
LOWEST = float(np.finfo(np.float32).min)
FILLS = {"minus_inf": -INF, "lowest": LOWEST, "minus_1e9": float(np.float32(-1e9))}
USUAL = {"layout": "heads_first", "opset": 23, "reshapes": "stored", "mask": "input", "apply": "where", "fill": "minus_inf", "join": "bias_first",
         "cast": "f32", "softmax": "last", "guard": "none", "dropout": "none", "weigh": "matmul"}


def numbers(*shape, seed):
    return np.random.default_rng(seed).normal(size=shape)


def qkv(batch=2, heads=2, queries=3, keys=5, size=4, v_size=4):
    return [numbers(batch, heads, t, d, seed=i) for i, (t, d) in enumerate(((queries, size), (keys, size), (keys, v_size)))]


def sizes_of(q, k, v):
    return Sizes(q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2], q.shape[3], v.shape[3])


def feed_all(s, arrays):
    return [s.feed(part, x) for part, x in zip("qkv", arrays)]


def case(name, arrays, seen=None, added=None, **choices):
    """softmax(q k' with a mask) v in nodes; `seen` are booleans, `added` are numbers."""
    s = Spelled(name, {**USUAL, **choices}, sizes_of(*arrays), None)
    q, k, v = feed_all(s, arrays)
    x = s.op("MatMul", q, s.transpose(k, 0, 1, 3, 2))
    if added is not None:
        x = s.op("Add", x, s.feed("added", added))
    if seen is not None:
        x = masked(s, x, [Mask(s.feed("seen", seen), seen.ndim, seen)], None)
    p = probabilities(s, x, 4)
    out = weighed(s, p, Heads(v, "bhtd", *arrays[2].shape)).name
    return Spelling(name, s.choices, s, out, "bhtd", formula_of(s, arrays, seen, added))


def formula_of(s, arrays, seen, added):
    """The gradients are not the formula's: they are compared with groups and without."""
    fill, bias = FILLS[s.choices["fill"]], np.zeros(()) if added is None else added
    seen = np.array(True) if seen is None else seen
    if s.choices["apply"] in ADDS:
        bias, seen = bias + np.where(seen, 0.0, fill), np.array(True)

    def formula(cotangent):
        y = attend(*arrays, bias=bias, seen=seen, fill=fill).output
        if s.choices["guard"] != "none":
            y = np.where(np.isnan(y), 0.0, y)
        return y, dict.fromkeys(name for name, x in s.feeds.items() if x.dtype == np.float64)
    return formula


# ---- rows whose keys are all hidden
def hidden_rows():
    """[B, 1, Tq, Tk] with two hidden rows, and a sample [B, 1, 1, Tk] without keys"""
    rows = np.random.default_rng(3).random((2, 1, 3, 5)) < 0.6
    rows[..., 0], rows[0, 0, 1], rows[1, 0, 2] = True, False, False
    sample = np.array([[True, True, False, True, False], [False] * 5])[:, None, None]
    return {"rows": rows, "sample": sample}


def hidden_cases():
    cases = []
    for (where, seen), apply, fill, guard in itertools.product(
            hidden_rows().items(), ("where", "where_hidden", "add", "mul_add"), FILLS, ("none", "is_nan")):
        if fill != "minus_inf" or apply != "mul_add":
            cases.append(case(f"{where}-{apply}-{fill}-{guard}", qkv(), seen, apply=apply, fill=fill, guard=guard))
    cases += [case(f"rows-{softmax}-{guard}", qkv(), hidden_rows()["rows"], softmax=softmax, guard=guard)
              for softmax in ("exp", "shifted", "log") for guard in ("none", "is_nan")]
    return cases + [causal_case(guard) for guard in ("none", "is_nan")]


def causal_case(guard):
    """Five queries on three keys, the last query on the last key: the first two queries see no key."""
    arrays = qkv(queries=5, keys=3)
    s = Spelled(f"causal-{guard}", {**USUAL, "guard": guard}, sizes_of(*arrays), None)
    q, k, v = feed_all(s, arrays)
    row = s.op("Sub", s.unsqueeze(s.range(5), 1), s.int_scalar(2))
    seen = np.arange(3)[None] <= np.arange(5)[:, None] - 2
    mask = Mask(s.op("LessOrEqual", s.unsqueeze(s.range(3), 0), row), 2, seen)
    x = masked(s, s.op("MatMul", q, s.transpose(k, 0, 1, 3, 2)), [mask], None)
    out = weighed(s, probabilities(s, x, 4), Heads(v, "bhtd", *arrays[2].shape)).name
    return Spelling(s.name, s.choices, s, out, "bhtd", formula_of(s, arrays, seen, None))


# ---- infinities and NaN
def changed(x, value, *at):
    x = x.copy()
    x[at] = value
    return x


def odd_numbers_cases():
    q, k, v = qkv()
    seen = np.ones((2, 1, 3, 5), bool)
    seen[..., 2] = False  # key 2 is hidden
    cases = [case(f"{word}-{part}", changed_part(part, value))
             for word, value in (("nan", NAN), ("inf", INF), ("minus_inf", -INF)) for part in "qkv"]
    cases += [case(f"{word}-hidden_key-{apply}-{guard}", [q, changed(k, value, 0, 1, 2, 0), v], seen, apply=apply, guard=guard)
              for word, value in (("nan", NAN), ("inf", INF)) for apply in ("where", "add") for guard in ("none", "is_nan")]
    added = numbers(2, 2, 3, 5, seed=4)
    cases += [case(f"{word}-added-{guard}", [q, k, v], added=changed(added, value, 1, 0, 2, 3), guard=guard)
              for word, value in (("nan", NAN), ("inf", INF), ("minus_inf", -INF), ("lowest", LOWEST)) for guard in ("none", "is_nan")]
    return cases + [case("large", [1e3 * q, k, v]), case("large_16", [1e8 * q, 1e8 * k, v]),
                    case("row_of_minus_inf", [q, k, v], added=changed(added, -INF, 0, 1, 1))]


def changed_part(part, value):
    arrays = qkv()
    i = "qkv".index(part)
    arrays[i] = changed(arrays[i], value, 1, 0, 2, 1)
    return arrays


# ---- lengths of 0 and 1
LENGTHS = [dict(zip(("batch", "heads", "queries", "keys", "size", "v_size"), at)) for at in (
    (2, 2, 0, 3, 4, 4), (2, 2, 3, 0, 4, 4), (2, 2, 0, 0, 4, 4), (0, 2, 3, 5, 4, 4), (2, 2, 3, 5, 0, 4), (2, 2, 3, 5, 4, 0),
    (2, 2, 1, 1, 4, 4), (2, 2, 1, 5, 4, 4), (2, 2, 5, 1, 4, 4), (2, 2, 3, 5, 1, 1), (1, 1, 1, 1, 1, 1), (1, 1, 1, 13, 4, 3))]


def length_cases():
    cases = []
    for at in LENGTHS:
        name = "x".join(map(str, at.values()))
        seen = np.random.default_rng(5).random((at["batch"], 1, at["queries"], at["keys"])) < 0.7
        added = numbers(at["heads"], at["queries"], at["keys"], seed=6)
        cases += [case(f"{name}-plain", qkv(**at)), case(f"{name}-where-guard", qkv(**at), seen, guard="is_nan"),
                  case(f"{name}-add", qkv(**at), seen, added, apply="add")]
    return cases


# ---- masks that broadcast
def mask_shapes():
    full = (2, 2, 3, 5)
    shapes = [tuple(d if keep else 1 for d, keep in zip(full, keeps)) for keeps in itertools.product((True, False), repeat=4)]
    return shapes + [full[i:] for i in (1, 2, 3)] + [(1, 5), (3, 1), (1,), ()]


def broadcast_cases():
    cases = []
    for shape in mask_shapes():
        name = "x".join(map(str, shape)) or "scalar"
        seen = np.asarray(np.random.default_rng(7).random(shape) < 0.6)
        cases += [case(f"{name}-{apply}", qkv(), seen, apply=apply) for apply in ("where", "where_hidden", "add")]
        cases.append(case(f"{name}-added", qkv(), added=numbers(*shape, seed=8)))
    return cases + wider_cases()


def wider_cases():
    """Masks with axes that the scores do not have: the scores broadcast, and one key has a probability for each column of the mask."""
    full = dict(batch=2, heads=2, queries=3, keys=5)
    cases = []
    for axis in full:
        q, k, v = qkv(**{**full, axis: 1})
        v = numbers(2, 2, 5, 4, seed=9) if axis in ("batch", "keys") else v
        cases.append(wider_case(f"wider-{axis}", [q, k, v], numbers(2, 2, 3, 5, seed=10)))
    return cases


def wider_case(name, arrays, added):
    s = Spelled(name, USUAL, Sizes(2, 2, 2, 3, 5, 4, 4), None)
    q, k, v = feed_all(s, arrays)
    x = s.op("Add", s.op("MatMul", q, s.transpose(k, 0, 1, 3, 2)), s.feed("added", added))
    out = s.op("MatMul", probabilities(s, x, 4), v)

    def formula(cotangent):
        x = arrays[0] @ arrays[1].swapaxes(2, 3) + added
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True) @ arrays[2], dict.fromkeys(s.feeds)
    return Spelling(name, s.choices, s, out, "bhtd", formula)


# ---- operators
def operator_case(name, arrays, mask, bias=0.0, seen=True, empty=0.0, **attrs):
    """ONNX's Attention: a row whose keys are all hidden is zeros."""
    s = Spelled(name, USUAL, sizes_of(*arrays), None)
    names = feed_all(s, arrays)
    out = s.op("Attention", *names, *([] if mask is None else [s.feed("mask", mask)]), scale=1.0, **attrs)

    def formula(cotangent):
        r = attend(*arrays, bias=bias, seen=seen, cap=attrs.get("softcap", 0.0), cotangent=cotangent, empty=empty)
        return r.output, {**dict(zip(names, (r.dq, r.dk, r.dv)))}
    return Spelling(name, s.choices, s, out, "bhtd", formula)


def operator_cases():
    cases = []
    for where, seen in hidden_rows().items():
        numbers_of = np.where(seen, numbers(2, 1, *seen.shape[2:], seed=11), -INF)
        cases += [operator_case(f"Attention-{where}-booleans", qkv(), seen, seen=seen),
                  operator_case(f"Attention-{where}-numbers", qkv(), numbers_of, numbers_of),
                  operator_case(f"Attention-{where}-cap", qkv(), seen, seen=seen, softcap=2.0)]
    q, k, v = qkv()
    cases.append(operator_case("Attention-nan", [changed(q, NAN, 0, 1, 2, 1), k, v], hidden_rows()["rows"], seen=hidden_rows()["rows"]))
    cases += [operator_case(f"Attention-{'x'.join(map(str, at.values()))}", qkv(**at), None) for at in LENGTHS]
    return cases


KINDS = {"hidden": hidden_cases, "odd_numbers": odd_numbers_cases, "lengths": length_cases, "broadcast": broadcast_cases, "operators": operator_cases}
WITHOUT = "--disable=recognize"


@pytest.mark.parametrize("options", [(), (WITHOUT,)], ids=["groups", "nodes"])
@pytest.mark.parametrize("engine", ["interp", "compiled"])
@pytest.mark.parametrize("kind", KINDS)
def test_results_are_the_formulas(run, tmp_path, kind, engine, options):
    if options:
        need_recognize(run)
    cases = KINDS[kind]()
    words = written(tmp_path, cases)
    results = forward(run, tmp_path, words, "--precision=f64", f"--engine={engine}", *options)
    assert not differing({c.name: (results[c.output], c.formula(c.cotangent())[0]) for c in cases}, tolerances.limit("attention f64"))


@pytest.mark.parametrize("engine", ["interp", "compiled"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_with_groups_are_those_without(run, tmp_path, kind, engine):
    need_recognize(run)
    cases = KINDS[kind]()
    words = written(tmp_path, cases, losses=True)
    found, plain = (gradients(run, tmp_path, cases, words, f"--engine={engine}", *without)[1] for without in ((), (WITHOUT,)))
    # logits of 1e16 have steps of 2: where a scale is applied decides which keys share the weight
    assert not differing({name: (found[c][name], x) for c, xs in plain.items() for name, x in xs.items() if "large_16" not in c},
                         tolerances.limit("groups f64"))


def test_gradients_of_hidden_rows_of_the_operator_are_finite(run, tmp_path):
    cases = [c for c in operator_cases() if "nan" not in c.name]
    words = written(tmp_path, cases, losses=True)
    found = gradients(run, tmp_path, cases, words, "--engine=interp")[1]
    wanted = {c.name: c.wanted()[1] for c in cases}
    assert not differing({name: (found[c][name], x) for c, xs in wanted.items() for name, x in xs.items()}, tolerances.limit("attention f64"))
