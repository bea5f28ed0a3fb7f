"""onnxruntime's own operators. test_onnxruntime.py compares results with its CPU kernels; where there is none, a case has PyTorch's."""
import numpy as np
from case import Case as Plain
from case import numbers

# Cases of one opset are one model, whose differences take time with the square of their number.
OPSETS = {"Attention": 18, "MultiHeadAttention": 18, "GroupQueryAttention": 19, "MoE": 20, "FusedConv": 20, "FusedGemm": 21, "FusedMatMul": 21}


def Case(name, op, inputs, *, torch=None, **attrs):
    attrs, outputs, fed = dict(attrs), attrs.pop("outputs", 1), attrs.pop("fed", ())
    attrs.pop("outputs", None), attrs.pop("fed", None)
    domain = "" if op == "SimplifiedLayerNormalization" else "com.microsoft"
    return Plain(name, op, inputs, torch, attrs, outputs, opset=OPSETS.get(op, 17), domain=domain, fed=fed)


def weights(n, seed):
    return numbers(n, seed=seed, low=0.5, high=1.5)


def skip(op, name, shape=(2, 3, 4), other=None, beta=True, bias=True, outputs=4, **attrs):
    x = {"x": numbers(*shape), "skip": numbers(*(other or shape), seed=1), "gamma": weights(shape[-1], 2)}
    if "Simplified" not in op:
        x["beta"] = numbers(shape[-1], seed=3) if beta else None
    x["bias"] = numbers(shape[-1], seed=4) if bias else None
    return Case(f"{op}_{name}", op, x, outputs=outputs, **attrs)


NORMS = [
    *(case for op in ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization") for case in (
        skip(op, "plain", outputs=1), skip(op, "bare", bias=False, beta=False, outputs=1, epsilon=0.01), skip(op, "flat", (5, 7), outputs=1),
        skip(op, "one_sample", other=(1, 3, 4), outputs=1), skip(op, "no_sample", other=(3, 4), outputs=1), skip(op, "none", (0, 3, 4), outputs=1))),
    Case("SimplifiedLayerNormalization_plain", "SimplifiedLayerNormalization", {"x": numbers(2, 3, 4), "scale": weights(4, 1)}, axis=-1, epsilon=0.01),
    Case("SimplifiedLayerNormalization_outputs", "SimplifiedLayerNormalization", {"x": numbers(2, 3, 4), "scale": weights(4, 1)}, outputs=2),
]

IDS, SEGMENTS, PLACES = np.array([[1, 4, 2], [0, 5, 3]], np.int32), np.array([[0, 0, 1], [1, 0, 1]], np.int32), np.array([[2, 0, 1]], np.int32)
MASK = np.array([[1, 1, 0], [1, 1, 1]], np.int32)


def embed(name, segments=True, mask=False, places=None, outputs=2, **attrs):
    return Case(f"EmbedLayerNormalization_{name}", "EmbedLayerNormalization", {
        "ids": IDS, "segments": SEGMENTS if segments else None, "words": numbers(6, 4), "positions": numbers(5, 4, seed=1),
        "kinds": numbers(2, 4, seed=2) if segments else None, "gamma": weights(4, 3), "beta": numbers(4, seed=4),
        "mask": MASK if mask else None, "places": places}, outputs=outputs, **attrs)


EMBED = [embed("plain"), embed("two", False, epsilon=0.01), embed("mask", mask=True), embed("places", places=np.repeat(PLACES, 2, 0)),
         embed("sum", mask=True, places=PLACES, outputs=3)]

GELUS = [
    *(Case(f"{op}_{'x'.join(map(str, s))}", op, {"x": numbers(*s, low=-3.0, high=3.0)}) for op in ("Gelu", "FastGelu", "QuickGelu") for s in ((3, 5), (0, 2), (1,))),
    Case("QuickGelu_alpha", "QuickGelu", {"x": numbers(3, 5)}, alpha=0.75),
    Case("BiasGelu_plain", "BiasGelu", {"x": numbers(2, 3, 5), "bias": numbers(5, seed=1)}),
    Case("FastGelu_bias", "FastGelu", {"x": numbers(2, 3, 5), "bias": numbers(5, seed=1)}),
]

PRODUCTS = [
    Case("FusedMatMul_plain", "FusedMatMul", {"x": numbers(3, 4), "y": numbers(4, 5, seed=1)}, alpha=0.5),
    Case("FusedMatMul_turned", "FusedMatMul", {"x": numbers(2, 4, 3), "y": numbers(2, 5, 4, seed=1)}, transA=1, transB=1),
    Case("FusedMatMul_batch_a", "FusedMatMul", {"x": numbers(3, 2, 4), "y": numbers(2, 4, 5, seed=1)}, transBatchA=1),
    Case("FusedMatMul_batch_both", "FusedMatMul", {"x": numbers(3, 2, 6, 4), "y": numbers(4, 2, 6, 5, seed=1)}, transBatchA=1, transBatchB=1, alpha=1.5),
    Case("FusedMatMul_batch_turned", "FusedMatMul", {"x": numbers(4, 2, 3), "y": numbers(5, 2, 4, seed=1)}, transBatchA=1, transA=1, transBatchB=1, transB=1),
    Case("FusedMatMul_broadcast", "FusedMatMul", {"x": numbers(2, 1, 4, 3), "y": numbers(5, 4, 2, seed=1)}, transA=1),
    Case("TransposeMatMul_plain", "TransposeMatMul", {"x": numbers(4, 3), "y": numbers(4, 5, seed=1)}, transA=1, alpha=2.0),
    Case("FusedGemm_relu", "FusedGemm", {"x": numbers(3, 4), "y": numbers(4, 5, seed=1), "z": numbers(5, seed=2)}, activation="Relu", alpha=0.5, beta=2.0),
    Case("FusedGemm_leaky", "FusedGemm", {"x": numbers(4, 3), "y": numbers(5, 4, seed=1)}, activation="LeakyRelu", activation_alpha=0.25, transA=1, transB=1),
    *(Case(f"FusedGemm_{a}", "FusedGemm", {"x": numbers(3, 4), "y": numbers(4, 5, seed=1)}, activation=a,
           **{f"activation_{k}": v for k, v in numbers_of.items()})
      for a, numbers_of in (("Tanh", {}), ("Sigmoid", {}), ("Softplus", {}), ("Softsign", {}), ("Elu", {"alpha": 0.5}), ("Selu", {"alpha": 1.5, "gamma": 1.25}),
                            ("HardSigmoid", {"alpha": 0.25, "beta": 0.375}), ("ThresholdedRelu", {"alpha": 0.125}))),
]


def conv(name, op="FusedConv", x=(2, 4, 5, 6), w=(6, 4, 3, 2), bias=True, add=None, **attrs):
    return Case(f"{op}_{name}", op, {"x": numbers(*x), "w": numbers(*w, seed=1), "b": numbers(w[0], seed=2) if bias else None,
                                     "z": numbers(*add, seed=3) if add else None}, **attrs)


CONVS = [
    conv("relu", activation="Relu"), conv("leaky", activation="LeakyRelu", activation_params=[0.25], strides=[2, 1], pads=[1, 0, 1, 2]),
    conv("clip", activation="Clip", activation_params=[-0.5, 0.75], bias=False), conv("tanh", activation="Tanh", group=2, w=(6, 2, 3, 2)),
    conv("hard", activation="HardSigmoid", activation_params=[0.25, 0.5], dilations=[1, 2]), conv("sigmoid", activation="Sigmoid", x=(1, 2, 7), w=(3, 2, 3)),
    conv("sum", activation="Relu", add=(2, 6, 3, 5)), conv("plain"),
]


def nhwc(x, w, b=None, z=None, *, relu=False, last=True, **attrs):
    import torch
    w = w.movedim(3, 1) if last else w
    y = torch.nn.functional.conv2d(x.movedim(3, 1), w, b, **attrs).movedim(1, 3)
    y = y if z is None else y + z
    return y.relu() if relu else y


NHWC = [
    Case("NhwcConv_plain", "NhwcConv", {"x": numbers(2, 5, 6, 4), "w": numbers(6, 3, 2, 4, seed=1), "b": numbers(6, seed=2)}, torch=nhwc),
    Case("NhwcConv_groups", "NhwcConv", {"x": numbers(1, 5, 6, 4), "w": numbers(6, 3, 3, 2, seed=1)}, torch=lambda x, w: nhwc(x, w, groups=2, padding=1, stride=2),
         group=2, pads=[1, 1, 1, 1], strides=[2, 2]),
    Case("NhwcFusedConv_sum", "NhwcFusedConv", {"x": numbers(1, 4, 4, 2), "w": numbers(3, 2, 3, 3, seed=1), "b": None, "z": numbers(1, 2, 2, 3, seed=3)},
         torch=lambda *a: nhwc(*a, relu=True, last=False), activation="Relu"),
]


def group_norm(x, gamma, beta, skip=None, bias=None, *, groups, last=True, silu=False, epsilon=1e-5, both=False):
    import torch
    move = (lambda t: t.movedim(-1, 1)) if last else (lambda t: t)
    s = move(x)
    if skip is not None:
        s = s + (skip[..., None, None] if skip.dim() == 2 else move(skip))
    if bias is not None:
        s = s + bias[:, None, None]
    y = torch.nn.functional.group_norm(s, groups, gamma, beta, epsilon)
    y = torch.nn.functional.silu(y) if silu else y
    back = (lambda t: t.movedim(1, -1)) if last else (lambda t: t)
    return (back(y), back(s)) if both else back(y)


EPSILON = 0.0078125
PARTS = {"gamma": weights(6, 1), "beta": numbers(6, seed=2)}
GROUPS = [
    Case("GroupNorm_last", "GroupNorm", {"x": numbers(2, 3, 4, 6), **PARTS}, torch=lambda *a: group_norm(*a, groups=3, epsilon=EPSILON),
         groups=3, activation=0, epsilon=EPSILON),
    Case("GroupNorm_first", "GroupNorm", {"x": numbers(2, 6, 3, 4), **PARTS}, torch=lambda *a: group_norm(*a, groups=2, last=False, silu=True, epsilon=EPSILON),
         groups=2, activation=1, channels_last=0, epsilon=EPSILON),
    *(Case(f"SkipGroupNorm_{name}", "SkipGroupNorm", {"x": numbers(2, 3, 4, 6), **PARTS, "skip": numbers(*shape, seed=3), "bias": bias},
           torch=lambda *a: group_norm(*a, groups=3, silu=True, epsilon=EPSILON, both=True), groups=3, activation=1, epsilon=EPSILON, outputs=2)
      for name, shape, bias in (("plain", (2, 3, 4, 6), None), ("bias", (2, 1, 1, 6), numbers(6, seed=4)), ("flat", (2, 6), numbers(6, seed=4)))),
]


def experts_of(x, router, w1, b1, w2, b2, w3=None, b3=None, *, k, kind, fused=0, alpha=1.0, beta=0.0, normalize=False):
    """Expert after expert."""
    import torch
    rows, p = x.flatten(0, -2), router.softmax(1)
    top, at = p.topk(k, 1)
    top = top / top.sum(1, keepdim=True) if normalize else top
    y = torch.zeros_like(rows)
    for e in range(w1.shape[0]):
        def layer(z, w, b):
            return torch.nn.functional.linear(z, w[e], None if b is None else b[e])
        h = layer(rows, w1, b1)
        if kind == "swiglu":
            g, l = h.chunk(2, 1) if fused == 2 else (h, layer(rows, w3, b3))
            h = g * torch.sigmoid(alpha * g) * (l + beta)
        else:
            h = {"silu": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu}[kind](h)
            h = h if w3 is None else h * layer(rows, w3, b3)
        y = y + layer(h, w2, b2) * (top * (at == e)).sum(1, keepdim=True)
    return y.reshape(x.shape)


def moe(name, k=2, kind="relu", tokens=(5,), experts=4, hidden=3, inner=2, bias=True, third=False, fused=0, **attrs):
    n = int(np.prod(tokens))
    rows = inner * (2 if fused else 1)
    x = {"x": numbers(*tokens, hidden), "router": numbers(n, experts, seed=1, low=-2.0, high=2.0),
         "w1": numbers(experts, rows, hidden, seed=2, low=-2.0, high=2.0), "b1": numbers(experts, rows, seed=3, low=-2.0, high=2.0) if bias else None,
         "w2": numbers(experts, hidden, inner, seed=4, low=-2.0, high=2.0), "b2": numbers(experts, hidden, seed=5, low=-2.0, high=2.0) if bias else None,
         "w3": numbers(experts, inner, hidden, seed=6, low=-2.0, high=2.0) if third else None, "b3": numbers(experts, inner, seed=7, low=-2.0, high=2.0) if third and bias else None}
    torch = attrs.pop("torch", False) and (lambda *a: experts_of(
        *a, k=k, kind=kind, fused=fused, alpha=attrs.get("activation_alpha", 1.0), beta=attrs.get("activation_beta", 0.0),
        normalize=bool(attrs.get("normalize_routing_weights"))))
    return Case(f"MoE_{name}", "MoE", x, torch=torch or None, k=k, activation_type=kind, **({"swiglu_fusion": fused} if fused else {}), **attrs)


EXPERTS = [
    moe("plain"), moe("one", 1, "gelu"), moe("normalized", 3, "silu", (4,), normalize_routing_weights=1), moe("batch", 2, "identity", (2, 3), bias=False),
    moe("all", 4, "relu"), moe("swiglu", 2, "swiglu", fused=1, activation_alpha=1.75, activation_beta=1.0, swiglu_limit=0.5),
    moe("swiglu_halves", 3, "swiglu", (3,), fused=2, activation_beta=1.0, normalize_routing_weights=1, torch=True),
    moe("third", 2, "swiglu", third=True, torch=True), moe("third_silu", 2, "silu", third=True, bias=False, torch=True),
]

CASES = NORMS + EMBED + GELUS + PRODUCTS + CONVS + NHWC + GROUPS + EXPERTS


def attention(name, tokens=3, width=5, heads=2, sizes=None, mask=None, past=0, bias=None, outputs=1, **attrs):
    sizes = sizes or (4, 4, 4)
    x = {"x": numbers(2, tokens, width), "w": numbers(width, sum(sizes), seed=1), "b": numbers(sum(sizes), seed=2), "mask": mask,
         "past": numbers(2, 2, heads, past, sizes[0] // heads, seed=3) if past else None, "bias": numbers(*bias, seed=4) if bias else None}
    if sizes != (4, 4, 4):
        attrs["qkv_hidden_sizes"] = sizes
    return Case(f"Attention_{name}", "Attention", x, num_heads=heads, outputs=2 if past else outputs, **attrs)


def ints(*rows):
    return np.array(rows, np.int32)


PROJECTING = [
    attention("plain"), attention("sizes", sizes=(4, 4, 6)), attention("causal", unidirectional=1), attention("scale", scale=0.375),
    attention("past", past=2), attention("past_causal", past=2, unidirectional=1), attention("present", outputs=2),
    attention("lengths", mask=ints(2, 3)), attention("ends", mask=np.array([2, 3, 0, 1], np.int32)), attention("keys", mask=ints([1, 1, 0], [0, 1, 1])),
    attention("rows", mask=(np.arange(18).reshape(2, 3, 3) % 4 < 3).astype(np.int32)), attention("filter", mask=ints([1, 1, 0], [0, 1, 1]), mask_filter_value=-2.0),
    attention("past_keys", mask=ints([1, 1, 0, 1, 1], [0, 1, 1, 1, 0]), past=2, unidirectional=1),
    attention("bias", bias=(2, 2, 3, 3)), attention("bias_one", bias=(1, 1, 3, 3), mask=ints([1, 1, 0], [0, 1, 1])),
]


def multi(name, tokens=3, keys=4, heads=2, size=2, v_size=3, bias=False, mask=None, added=None, past=0, cross=False, outputs=1, torch=None, **attrs):
    h = heads
    kv = ((2, h, keys, size), (2, h, keys, v_size)) if cross else ((2, keys, h * size), (2, keys, h * v_size))
    x = {"q": numbers(2, tokens, h * size), "k": numbers(*kv[0], seed=1), "v": numbers(*kv[1], seed=2), "bias": numbers(h * (2 * size + v_size), seed=3) if bias else None,
         "mask": mask, "added": numbers(*added, seed=4) if added else None,
         "past_k": numbers(2, h, past, size, seed=5) if past else None, "past_v": numbers(2, h, past, v_size, seed=6) if past else None}
    return Case(f"MultiHeadAttention_{name}", "MultiHeadAttention", x, num_heads=heads, outputs=outputs, torch=torch, **attrs)


def packed(name, parts):
    """Keys and values in one tensor, with queries or without."""
    x = {"q": numbers(2, 3, 2, 3, 4)} if parts == 3 else {"q": numbers(2, 3, 8), "kv": numbers(2, 5, 2, 2, 4, seed=1)}

    def torch(q, kv=None):
        import torch
        q, k, v = (q[:, :, :, i] for i in range(3)) if kv is None else (q.unflatten(2, (2, 4)), kv[:, :, :, 0], kv[:, :, :, 1])
        y = torch.nn.functional.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)))
        return y.transpose(1, 2).flatten(2)
    return Case(f"MultiHeadAttention_{name}", "MultiHeadAttention", x, num_heads=2, torch=torch)


KEYS = ints([1, 1, 0, 1], [0, 1, 1, 1])
MULTI = [
    multi("plain"), multi("bias", bias=True), multi("causal", keys=3, unidirectional=1), multi("scale", scale=0.375), multi("keys", mask=KEYS, size=3),
    multi("lengths", mask=ints(2, 4)), multi("filter", mask=KEYS, mask_filter_value=-2.0), multi("rows", mask=(np.arange(24).reshape(2, 3, 4) % 5 < 3).astype(np.int32)),
    multi("added", added=(2, 2, 3, 4)), multi("added_one", added=(1, 1, 3, 4), mask=KEYS), multi("present", outputs=3, v_size=2),
    multi("past", keys=3, past=2, outputs=3, v_size=2), multi("past_causal", keys=3, past=2, outputs=3, v_size=2, unidirectional=1, bias=True),
    multi("cross", cross=True, v_size=2), multi("scores", outputs=4, v_size=2, mask=KEYS, mask_filter_value=-2.0, added=(1, 1, 3, 4)), packed("packed", 3), packed("packed_pair", 2),
]


def group(name, tokens=3, heads=4, kv=2, size=8, past=None, total=None, lengths=None, packed=False, rotary=False, places=None, added=None, sink=None,
          outputs=3, fed=("lengths",), batch=2, **attrs):
    size = 16 if rotary else size  # what onnxruntime's kernel takes
    total = total or tokens + (past or 0)
    rows = (heads + 2 * kv) * size
    x = {"q": numbers(batch, tokens, rows if packed else heads * size), "k": None if packed else numbers(batch, tokens, kv * size, seed=1),
         "v": None if packed else numbers(batch, tokens, kv * size, seed=2), "past_k": None if past is None else numbers(batch, kv, past, size, seed=3),
         "past_v": None if past is None else numbers(batch, kv, past, size, seed=4), "lengths": np.array(lengths or (total - 1,) * batch, np.int32),
         "total": np.array(total, np.int32), "cos": numbers(12, size // 2, seed=5) if rotary else None, "sin": numbers(12, size // 2, seed=6) if rotary else None,
         "places": places, "added": numbers(*added, seed=7) if added else None, "sink": numbers(heads, seed=8) if sink else None}
    return Case(f"GroupQueryAttention_{name}", "GroupQueryAttention", x, num_heads=heads, kv_num_heads=kv, outputs=outputs, fed=fed,
                **({"do_rotary": 1} if rotary else {}), **attrs)


GROUP = [
    group("plain"), group("packed", packed=True), group("scale", scale=0.375, softcap=0.5), group("rotary", rotary=True, packed=True),
    group("interleaved", rotary=True, rotary_interleaved=1), group("past", tokens=1, past=4), group("past_uneven", tokens=1, past=4, lengths=(2, 4)),
    group("past_rotary", tokens=1, past=4, lengths=(2, 4), rotary=True), group("buffer", tokens=1, past=6, total=5, lengths=(2, 4), rotary=True),
    group("window", tokens=5, local_window_size=2), group("window_past", tokens=1, past=5, lengths=(3, 5), local_window_size=2),
    group("added", added=(1, 1, 3, 3)), group("sink", sink=True), group("smooth", smooth_softmax=1), group("scores", outputs=4, qk_output=1),
    group("probabilities", outputs=4, qk_output=2), group("places", rotary=True, places=np.array([[2, 3, 4], [0, 1, 2]])),
    group("mha", heads=2, kv=2), group("past_prompt", tokens=2, past=3, batch=1), group("first", past=0),
]


def turn(name, shape, pairs, at, heads=None, **attrs):
    x = {"x": numbers(*shape), "at": np.array(at), "cos": numbers(7, pairs, seed=1), "sin": numbers(7, pairs, seed=2)}
    return Case(f"RotaryEmbedding_{name}", "RotaryEmbedding", x, **({"num_heads": heads} if heads else {}), **attrs)


TURNS = [
    turn("plain", (2, 3, 8), 2, [[0, 1, 2], [4, 3, 6]]), turn("first", (2, 3, 8), 2, [2]), turn("heads", (2, 2, 3, 4), 2, [[0, 1, 2], [4, 3, 6]]),
    turn("interleaved", (2, 3, 8), 4, [1], interleaved=1), turn("part", (2, 3, 8), 1, [[0, 1, 2], [4, 3, 6]], heads=2, rotary_embedding_dim=2),
    turn("scale", (2, 3, 8), 2, [0], scale=0.5),
]

CASES += PROJECTING + MULTI + GROUP + TURNS
