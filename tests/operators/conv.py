"""Convolutions."""
from case import Case, numbers


def functional():
    import torch.nn.functional as F
    return F


def conv(name, x, w, bias=False, stride=1, pads=None, dilation=1, groups=1, opset=22, torch=None, **attrs):
    n = len(x) - 2
    pads = pads or [0] * (2 * n)

    def run(x, w, b=None):
        F = functional()
        padded = F.pad(x, [p for i in reversed(range(n)) for p in (pads[i], pads[i + n])])
        return getattr(F, f"conv{n}d")(padded, w, b, stride, 0, dilation, groups)
    attrs = attrs or {"pads": pads}
    return Case(f"Conv_{name}", "Conv", {"x": numbers(*x), "w": numbers(*w, seed=1), "b": numbers(w[0], seed=2) if bias else None}, torch or run,
                {"strides": [stride] * n, "dilations": [dilation] * n, "group": groups, **attrs}, opset=opset)


def transposed(name, x, w, bias=False, stride=1, pad=0, dilation=1, groups=1, extra=0, opset=22, torch=None, **attrs):
    n = len(x) - 2
    run = lambda x, w, b=None: getattr(functional(), f"conv_transpose{n}d")(x, w, b, stride, pad, extra, groups, dilation)  # noqa: E731
    attrs = attrs or {"pads": [pad] * (2 * n), "output_padding": [extra] * n}
    return Case(f"ConvTranspose_{name}", "ConvTranspose", {"x": numbers(*x), "w": numbers(*w, seed=1), "b": numbers(w[1] * groups, seed=2) if bias else None},
                torch or run, {"strides": [stride] * n, "dilations": [dilation] * n, "group": groups, **attrs}, opset=opset)


def longer(x, w):
    """output_shape has two rows more than the convolution gives"""
    F = functional()
    return F.pad(F.conv_transpose2d(x, w, None, 2), (0, 0, 0, 2))


CASES = [
    conv("1d", (2, 3, 7), (4, 3, 3)), conv("2d", (2, 3, 5, 6), (4, 3, 3, 2), True), conv("strides", (1, 2, 7, 8), (3, 2, 3, 3), True, 2, [1, 0, 2, 1]),
    conv("dilated", (1, 2, 7, 7), (2, 2, 2, 2), dilation=3), conv("groups", (2, 4, 5), (6, 2, 3), True, groups=2), conv("depthwise", (1, 3, 5, 5), (3, 1, 3, 3), groups=3),
    conv("3d", (1, 2, 3, 4, 5), (2, 2, 2, 2, 2)), conv("one", (1, 1, 1), (1, 1, 1)), conv("none", (0, 2, 5), (3, 2, 3)), conv("11", (1, 2, 5), (3, 2, 3), opset=11),
    conv("same", (1, 2, 5, 6), (2, 2, 3, 2), auto_pad="SAME_UPPER", torch=lambda x, w, b=None: functional().conv2d(x, w, b, padding="same")),
    conv("valid", (1, 2, 5), (2, 2, 3), auto_pad="VALID", torch=lambda x, w, b=None: functional().conv1d(x, w, b)),
    transposed("1d", (2, 3, 5), (3, 4, 3)), transposed("2d", (2, 3, 3, 4), (3, 2, 3, 2), True, 2, 1), transposed("extra", (1, 2, 3, 3), (2, 2, 3, 3), stride=2, extra=1),
    transposed("groups", (1, 4, 3), (4, 3, 2), True, groups=2), transposed("dilated", (1, 2, 3, 3), (2, 1, 2, 2), dilation=2), transposed("3d", (1, 1, 2, 3, 2), (1, 2, 2, 2, 2)),
    transposed("shape", (1, 2, 3, 3), (2, 2, 3, 3), stride=2, output_shape=[9, 7], torch=lambda x, w, b=None: longer(x, w)),
    transposed("same", (1, 1, 3), (1, 1, 3), stride=2, auto_pad="SAME_UPPER", torch=lambda x, w, b=None: functional().conv_transpose1d(x, w, b, 2)[..., :-1]),
]
