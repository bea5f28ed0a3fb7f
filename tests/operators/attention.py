"""Attention, and what stands around it: positions, caches, the linear kinds."""
import numpy as np
from case import Case, numbers
from onnx import TensorProto, helper, numpy_helper


def attention(q, k, v, mask=None, past_key=None, past_value=None, lengths=None, *, heads=None, scale=None, cap=0, causal=False, mode=0, outputs=1, short=True):
    """The operator in PyTorch, heads behind tokens where `heads` says how many; short: a mask may lack the last keys."""
    import torch
    if heads:
        q, k, v = (x.unflatten(2, (h, -1)).transpose(1, 2) for x, h in zip((q, k, v), (heads[0], heads[1], heads[1])))
    past = 0 if past_key is None else past_key.shape[2]
    if past:
        k, v = torch.cat((past_key, k), 2), torch.cat((past_value, v), 2)
    group = q.shape[1] // k.shape[1]
    stages = [q @ k.repeat_interleave(group, 1).mT * (q.shape[3] ** -0.5 if scale is None else scale)]
    stages.append(cap * torch.tanh(stages[0] / cap) if cap else stages[0])
    x = stages[1]
    if mask is not None:
        lacks = x.shape[3] - mask.shape[-1] if short else 0
        if mask.dtype == torch.bool:
            x = x.masked_fill(~torch.nn.functional.pad(mask, (0, lacks)), -torch.inf)
        else:
            x = x + torch.nn.functional.pad(mask, (0, lacks), value=-torch.inf)
    row, column = torch.arange(x.shape[2])[:, None] + past, torch.arange(x.shape[3])
    if causal:
        x = x.masked_fill(row < column, -torch.inf)
    if lengths is not None:
        x = x.masked_fill(column >= lengths[:, None, None, None], -torch.inf)
    stages += [x, x.softmax(3)]
    y = stages[3] @ v.repeat_interleave(group, 1)
    if heads:
        y = y.transpose(1, 2).flatten(2)
    return (y, k, v, stages[mode])[:outputs]


def case(name, inputs, *, opset=24, outputs=1, **of):
    """A case; `of` says what attention() is told."""
    attrs = {"scale": of.get("scale"), "softcap": of.get("cap"), "is_causal": int(of["causal"]) if "causal" in of else None,
             "qk_matmul_output_mode": of.get("mode"), "q_num_heads": of["heads"][0] if "heads" in of else None,
             "kv_num_heads": of["heads"][1] if "heads" in of else None}
    every = dict.fromkeys(("q", "k", "v", "mask", "past_key", "past_value", "lengths")) | inputs
    return Case(f"Attention_{name}", "Attention", every, lambda *x: attention(*x, **of, outputs=outputs, short=opset > 23),
                {k: v for k, v in attrs.items() if v is not None}, outputs, opset=opset, fed=("lengths",) if "lengths" in inputs else ())


def qkv(batch=2, heads=2, kv=None, queries=3, keys=4, size=4, v_size=None):
    kv = kv or heads
    return {"q": numbers(batch, heads, queries, size), "k": numbers(batch, kv, keys, size, seed=1), "v": numbers(batch, kv, keys, v_size or size, seed=2)}


def flat(batch=2, heads=2, kv=None, queries=3, keys=4, size=4, v_size=None):
    return {n: x.transpose(0, 2, 1, 3).reshape(batch, x.shape[2], -1) for n, x in qkv(batch, heads, kv, queries, keys, size, v_size).items()}


def past(heads, count, size=4, v_size=None):
    return {"past_key": numbers(2, heads, count, size, seed=3), "past_value": numbers(2, heads, count, v_size or size, seed=4)}


BOOLS = np.arange(12).reshape(3, 4) % 5 < 3
ATTENTION = [
    *(case(f"{v}_plain", qkv(), opset=v) for v in (23, 24)),
    case("odd", qkv(1, 3, queries=5, keys=7, size=3, v_size=1), opset=23),
    case("one_token", qkv(1, 1, queries=1, keys=1, size=1), scale=2.0),
    case("no_samples", qkv(0)),
    case("no_queries", qkv(queries=0)),
    case("no_keys", qkv(keys=0)),
    case("flat", flat(), heads=(2, 2)),
    case("flat_groups", flat(heads=6, kv=2, v_size=5), heads=(6, 2), causal=True),
    case("groups", qkv(heads=4, kv=2)),
    case("one_kv_head", qkv(heads=3, kv=1), cap=0.5),
    case("scale", qkv(), scale=0.375),
    case("negative_scale", qkv(), scale=-0.375),
    case("softcap", qkv(), cap=0.75, causal=True),
    *(case(f"mask_{'x'.join(map(str, s))}", {**qkv(), "mask": numbers(*s, seed=5)}) for s in ((4,), (3, 4), (1, 4), (2, 1, 1, 4), (2, 2, 3, 4), (2, 3, 4))),
    case("mask_23_one_column", {**qkv(), "mask": numbers(3, 1, seed=5)}, opset=23),
    case("mask_bool", {**qkv(), "mask": BOOLS}),
    case("mask_short", {**qkv(), "mask": numbers(3, 3, seed=5)}),
    case("mask_bool_short", {**qkv(), "mask": np.array([[True, False, True]])}),
    case("mask_causal", {**qkv(), "mask": numbers(3, 4, seed=5)}, causal=True),
    case("past", {**qkv(), **past(2, 5)}, outputs=3),
    case("past_causal", {**qkv(keys=3), **past(2, 2)}, causal=True, outputs=3),
    case("past_none", {**qkv(), **past(2, 0)}, causal=True, outputs=3),
    case("past_groups", {**flat(heads=4, kv=2, v_size=3), **past(2, 2, v_size=3)}, heads=(4, 2), causal=True, outputs=3),
    *(case(f"mode_{mode}", {**qkv(), "mask": numbers(3, 4, seed=5)}, mode=mode, cap=0.875, outputs=4) for mode in range(4)),
    case("lengths", {**qkv(), "lengths": np.array([2, 4])}),
    case("lengths_causal", {**qkv(), "lengths": np.array([1, 3]), "mask": numbers(3, 3, seed=5)}, causal=True, cap=0.75),
]


def rotate(x, cos, sin, positions=None, *, pairs, interleaved=False, heads=None):
    import torch
    shape = x.shape
    if heads:
        x = x.unflatten(2, (heads, -1)).transpose(1, 2)
    cos, sin = (c if positions is None else c[positions] for c in (cos, sin))
    cos, sin = cos[:, None], sin[:, None]
    head, rest = x[..., :2 * pairs], x[..., 2 * pairs:]
    a, b = (head[..., 0::2], head[..., 1::2]) if interleaved else (head[..., :pairs], head[..., pairs:])
    turned = (a * cos - b * sin, a * sin + b * cos)
    y = torch.stack(turned, -1).flatten(3) if interleaved else torch.cat(turned, -1)
    y = torch.cat((y, rest), -1)
    return (y.transpose(1, 2) if heads else y).reshape(shape)


def rotary(name, x, pairs, positions=None, heads=None, **attrs):
    batch, tokens = x.shape[0], x.shape[1 if heads else 2]
    shape = (batch, tokens, pairs) if positions is None else (6, pairs)
    inputs = {"x": x, "cos": numbers(*shape, seed=1), "sin": numbers(*shape, seed=2), "positions": positions}
    interleaved = bool(attrs.get("interleaved"))
    return Case(f"RotaryEmbedding_{name}", "RotaryEmbedding", inputs,
                lambda *a: rotate(*a, pairs=pairs, interleaved=interleaved, heads=heads),
                attrs | ({"num_heads": heads} if heads else {}), opset=23, fed=("positions",) if name.startswith("fed") else ())


PLACES = np.array([[0, 2, 5], [3, 1, 1]])
ROTARY = [
    rotary("plain", numbers(2, 3, 3, 4), 2), rotary("interleaved", numbers(2, 3, 3, 4), 2, interleaved=1),
    rotary("places", numbers(2, 3, 3, 4), 2, PLACES), rotary("fed_places", numbers(2, 3, 3, 4), 2, PLACES),
    rotary("part", numbers(2, 1, 3, 5), 1, PLACES, rotary_embedding_dim=2),
    rotary("part_interleaved", numbers(2, 2, 3, 7), 3, rotary_embedding_dim=6, interleaved=1),
    rotary("flat", numbers(2, 3, 12), 2, PLACES, heads=3), rotary("flat_part", numbers(2, 3, 12), 2, heads=2, rotary_embedding_dim=4),
    rotary("no_tokens", numbers(2, 3, 0, 4), 2), rotary("no_samples", numbers(0, 3, 2, 4), 2), rotary("one_pair", numbers(1, 1, 1, 2), 1),
]


def scattered(past, update, at=None, *, axis=-2, circular=False):
    y, axis = past.clone(), axis % past.dim()
    for b in range(past.shape[0]):
        for i in range(update.shape[axis]):
            place = (0 if at is None else int(at[b])) + i
            y[b].select(axis - 1, place % past.shape[axis] if circular else place).copy_(update[b].select(axis - 1, i))
    return y


def cache(name, past, update, at=None, fed=False, **attrs):
    inputs = {"past": numbers(*past), "update": numbers(*update, seed=1), "at": None if at is None else np.array(at)}
    said = {"axis": attrs.get("axis", -2), "circular": attrs.get("mode") == "circular"}
    return Case(f"TensorScatter_{name}", "TensorScatter", inputs, lambda *x: scattered(*x, **said), attrs, opset=24, fed=("at",) if fed else ())


CACHES = [
    cache("plain", (2, 5, 3), (2, 2, 3)), cache("at", (2, 5, 3), (2, 2, 3), [3, 1]), cache("fed", (2, 5, 3), (2, 2, 3), [3, 0], fed=True),
    cache("whole", (2, 3, 1), (2, 3, 1)), cache("axis_1", (2, 4, 3, 2), (2, 2, 3, 2), [1, 2], axis=1), cache("heads", (2, 3, 4, 2), (2, 3, 1, 2), [3, 0]),
    cache("last", (2, 3, 5), (2, 3, 2), [3, 0], axis=-1), cache("circular", (2, 5, 3), (2, 3, 3), [4, 2], mode="circular"),
    cache("circular_far", (2, 5, 3), (2, 3, 3), [13, -1], mode="circular", fed=True),
    cache("no_tokens", (2, 5, 3), (2, 0, 3)), cache("no_samples", (0, 5, 3), (0, 2, 3)),
]


def causal_conv(x, weight, bias=None, past=None, *, silu=False):
    import torch
    count = weight.shape[2] - 1
    padded = torch.cat((x.new_zeros(*x.shape[:2], count) if past is None else past, x), 2)
    y = torch.nn.functional.conv1d(padded, weight, bias, groups=x.shape[1])
    return torch.nn.functional.silu(y) if silu else y, padded[:, :, padded.shape[2] - count:]


def conv(name, x, k, bias=False, past=False, **attrs):
    inputs = {"x": numbers(*x), "weight": numbers(x[1], 1, k, seed=1), "bias": numbers(x[1], seed=2) if bias else None,
              "past": numbers(x[0], x[1], k - 1, seed=3) if past else None}
    return Case(f"CausalConvWithState_{name}", "CausalConvWithState", inputs,
                lambda *a: causal_conv(*a, silu=attrs.get("activation") in ("silu", "swish")), attrs, 2, opset=27)


CONVS = [
    conv("plain", (2, 3, 5), 3), conv("bias", (2, 3, 5), 4, bias=True), conv("past", (2, 3, 5), 3, past=True), conv("silu", (2, 3, 5), 3, True, True, activation="silu"),
    conv("swish", (1, 1, 4), 2, activation="swish"), conv("none", (1, 2, 4), 2, activation="none"), conv("one_tap", (2, 3, 4), 1, past=True),
    conv("short", (2, 3, 1), 4), conv("short_past", (2, 3, 2), 4, True, True), conv("one", (1, 1, 1), 1),
]


def modifier(op, number, name):
    """A graph: op(x, number)"""
    ports = [helper.make_tensor_value_info(f"{name}.{p}", TensorProto.DOUBLE, None) for p in ("in", "out")]
    node = helper.make_node(op, [f"{name}.in", f"{name}.number"], [f"{name}.out"])
    return helper.make_graph([node], name, ports[:1], ports[1:], [numpy_helper.from_array(np.float64(number), f"{name}.number")])


def flex(q, k, v, scale=None, add=0, times=1):
    group = q.shape[1] // k.shape[1]
    x = q @ k.repeat_interleave(group, 1).mT * (q.shape[3] ** -0.5 if scale is None else scale) + add
    return (x.softmax(3) * times) @ v.repeat_interleave(group, 1)


FLEX = [
    Case("FlexAttention_plain", "FlexAttention", qkv(), flex, domain="ai.onnx.preview"),
    Case("FlexAttention_groups", "FlexAttention", qkv(heads=4, kv=2, v_size=3), lambda *x: flex(*x, scale=0.75), {"scale": 0.75}, domain="ai.onnx.preview"),
    Case("FlexAttention_modified", "FlexAttention", qkv(heads=1), lambda *x: flex(*x, add=0.5, times=3.0),
         {"score_mod": modifier("Add", 0.5, "score"), "prob_mod": modifier("Mul", 3.0, "prob")}, domain="ai.onnx.preview"),
    Case("FlexAttention_no_samples", "FlexAttention", qkv(0), flex, domain="ai.onnx.preview"),
]

def linear_attention(q, k, v, state=None, decay=None, beta=None, *, heads, scale=None):
    """Token after token."""
    import torch
    q, k, v = (x.unflatten(2, (h, -1)).transpose(1, 2) for x, h in zip((q, k, v), (heads[0], heads[1], heads[1])))
    s = q.new_zeros(q.shape[0], heads[1], k.shape[3], v.shape[3]) if state is None else state
    rows = []
    for t in range(q.shape[2]):
        w = v[:, :, t]
        if decay is not None:
            s = s * decay[:, t].unflatten(1, (heads[1], -1)).exp().unsqueeze(3)
        if beta is not None:
            w = (w - torch.einsum("bhdm,bhd->bhm", s, k[:, :, t])) * beta[:, t].unsqueeze(2)
        s = s + k[:, :, t].unsqueeze(3) * w.unsqueeze(2)
        rows.append(torch.einsum("bhd,bhdm->bhm", q[:, :, t], s.repeat_interleave(heads[0] // heads[1], 1)) * (scale or q.shape[3] ** -0.5))
    y = torch.stack(rows, 1).flatten(2) if rows else q.new_zeros(q.shape[0], 0, heads[0] * v.shape[3])
    return y, s


def linear(name, rule, heads=(2, 2), tokens=5, size=3, v_size=2, batch=2, state=False, per_key=False, one_beta=False, scale=None, chunk=None):
    flat = {n: numbers(batch, tokens, h * d, seed=i) for i, (n, h, d) in enumerate(
        zip("qkv", (heads[0], heads[1], heads[1]), (size, size, v_size)))}
    flat["state"] = numbers(batch, heads[1], size, v_size, seed=4) if state else None
    flat["decay"] = numbers(batch, tokens, heads[1] * (size if per_key else 1), seed=5, low=-1.5, high=0.1) if "gated" in rule else None
    flat["beta"] = numbers(batch, tokens, 1 if one_beta else heads[1], seed=6, low=0) if "delta" in rule else None
    attrs = {"q_num_heads": heads[0], "kv_num_heads": heads[1], "update_rule": rule} | ({"scale": scale} if scale else {}) | ({"chunk_size": chunk} if chunk else {})
    return Case(f"LinearAttention_{name}", "LinearAttention", flat, lambda *x: linear_attention(*x, heads=heads, scale=scale), attrs, 2, opset=27)


LINEAR = [
    linear("linear", "linear"), linear("linear_state", "linear", state=True, scale=0.75), linear("linear_groups", "linear", (6, 2)),
    linear("gated", "gated"), linear("gated_state", "gated", (4, 1), state=True), linear("gated_odd", "gated", (3, 3), 7, 1, 1, 1, scale=1.25),
    linear("no_tokens", "gated", tokens=0, state=True), linear("no_samples", "gated", batch=0),
    linear("one_token", "gated_delta", (4, 2), 1, state=True, per_key=True), linear("one_token_delta", "delta", tokens=1, one_beta=True),
]
# A loop over tokens, or over chunks of them.
LOOPS = [
    linear("chunks", "linear", tokens=6, chunk=3), linear("chunks_rest", "gated", (4, 2), tokens=7, state=True, chunk=3), linear("chunks_one", "gated", chunk=1),
    linear("delta_chunks", "gated_delta", (2, 1), tokens=19, state=True, batch=1), linear("delta_chunk_of_6", "delta", tokens=9, chunk=6, batch=1),
    linear("gated_keys", "gated", per_key=True), linear("delta", "delta", state=True), linear("delta_groups", "delta", (4, 2), one_beta=True),
    linear("gated_delta", "gated_delta"), linear("gated_delta_keys", "gated_delta", (2, 1), per_key=True, state=True, scale=0.375),
    linear("delta_no_tokens", "delta", tokens=0, state=True),
]

CASES = ATTENTION + ROTARY + CACHES + CONVS + FLEX + LINEAR + LOOPS
