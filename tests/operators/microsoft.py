"""onnxruntime's own operators. test_onnxruntime.py compares results with its CPU kernels; where there is none, a case has PyTorch's."""
import numpy as np
from case import Case as Plain
from case import numbers

OPSET = 17


def Case(name, op, inputs, *, torch=None, **attrs):
    attrs, outputs, fed = dict(attrs), attrs.pop("outputs", 1), attrs.pop("fed", ())
    attrs.pop("outputs", None), attrs.pop("fed", None)
    domain = "" if op == "SimplifiedLayerNormalization" else "com.microsoft"
    return Plain(name, op, inputs, torch, attrs, outputs, opset=OPSET, domain=domain, fed=fed)


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


def nhwc(x, w, b=None, z=None, *, relu=False, **attrs):
    import torch
    y = torch.nn.functional.conv2d(x.movedim(3, 1), w, b, **attrs).movedim(1, 3)
    y = y if z is None else y + z
    return y.relu() if relu else y


NHWC = [
    Case("NhwcConv_plain", "NhwcConv", {"x": numbers(2, 5, 6, 4), "w": numbers(6, 4, 3, 2, seed=1), "b": numbers(6, seed=2)}, torch=nhwc),
    Case("NhwcConv_groups", "NhwcConv", {"x": numbers(1, 5, 6, 4), "w": numbers(6, 2, 3, 3, seed=1)}, torch=lambda x, w: nhwc(x, w, groups=2, padding=1, stride=2),
         group=2, pads=[1, 1, 1, 1], strides=[2, 2]),
    Case("NhwcFusedConv_sum", "NhwcFusedConv", {"x": numbers(1, 4, 4, 2), "w": numbers(3, 2, 3, 3, seed=1), "b": None, "z": numbers(1, 2, 2, 3, seed=3)},
         torch=lambda *a: nhwc(*a, relu=True), activation="Relu"),
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
    moe("plain"), moe("one", 1, "gelu"), moe("normalized", 3, "silu", normalize_routing_weights=1), moe("batch", 2, "identity", (2, 3), bias=False),
    moe("all", 4, "relu"), moe("swiglu", 2, "swiglu", fused=1, activation_alpha=1.75, activation_beta=1.0, swiglu_limit=0.5),
    moe("swiglu_halves", 2, "swiglu", fused=2, activation_beta=1.0, normalize_routing_weights=1, torch=True),
    moe("third", 2, "swiglu", third=True, torch=True), moe("third_silu", 2, "silu", third=True, bias=False, torch=True),
]

CASES = NORMS + EMBED + GELUS + PRODUCTS + CONVS + NHWC + GROUPS + EXPERTS
