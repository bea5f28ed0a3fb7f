"""Gradients of convolutions too large for the interpreter, as loops: the library has none in f64. Weights whose
groups have few outputs go in planes of several blocks, of which the last may be shorter; inputs in a product for each
rest of a place divided by the stride, if these are not too many."""
import re

import numpy as np
import onnx
import pytest

# batch, groups, inputs and outputs of each, sizes of x, window, stride, dilation, pads before and behind
PLANES = {
    "rows": (2, 16, 1, 1, [50, 47], [3, 3], [1, 1], [1, 1], [1, 1, 1, 1]),
    "rest": (1, 16, 1, 2, [53, 61], [5, 7], [1, 1], [1, 1], [2, 3, 2, 3]),
    "even": (2, 24, 1, 1, [64, 64], [7, 7], [1, 1], [1, 1], [3, 3, 3, 3]),
    "stride": (2, 32, 1, 1, [112, 96], [3, 3], [2, 2], [1, 1], [1, 1, 1, 1]),
    "tensorflow": (1, 20, 1, 1, [64, 64], [5, 5], [2, 2], [1, 1], [1, 1, 2, 2]),
    "dilation": (1, 16, 1, 1, [40, 33], [3, 5], [1, 1], [3, 2], [3, 4, 3, 4]),
    "stride and dilation": (1, 16, 1, 1, [41, 70], [4, 5], [4, 3], [6, 2], [5, 0, 7, 2]),
    "stride beyond the window": (1, 16, 1, 2, [40, 40], [2, 1], [3, 4], [1, 1], [0, 0, 0, 0]),
    "channels": (2, 8, 4, 4, [20, 20], [3, 3], [1, 1], [1, 1], [1, 1, 1, 1]),
    "one output": (2, 1, 40, 3, [30, 30], [3, 3], [1, 1], [1, 1], [1, 1, 1, 1]),
    "sequence": (3, 48, 1, 1, [5000], [31], [1], [1], [15, 15]),
    "causal": (2, 64, 1, 1, [200], [4], [1], [1], [3, 0]),
    "volume": (1, 16, 1, 1, [20, 18, 16], [3, 3, 3], [1, 2, 1], [1, 1, 1], [1, 1, 1, 1, 1, 1]),
    "blocks within a plane": (2, 16, 1, 1, [3, 51, 60], [2, 3, 3], [1, 1, 2], [1, 2, 1], [1, 2, 1, 0, 2, 1]),
    "parts of rows": (1, 16, 1, 1, [2, 4500], [2, 3], [1, 1], [1, 1], [1, 1, 0, 1]),
}
PRODUCTS = {
    "halves": (2, 1, 20, 70, [33, 47], [3, 3], [2, 2], [1, 1], [1, 1, 1, 1]),
    "window of two strides": (2, 2, 9, 14, [40, 40], [4, 4], [2, 2], [1, 1], [1, 1, 1, 1]),
    "places of no window": (1, 1, 8, 10, [31, 30], [2, 3], [4, 3], [1, 2], [0, 0, 0, 0]),
    "common divisor": (1, 1, 8, 24, [37, 40], [3, 3], [2, 4], [2, 6], [2, 5, 2, 7]),
    "many rests": (1, 1, 6, 12, [42, 37], [7, 5], [5, 4], [1, 1], [2, 1, 3, 2]),
    "stride beyond x": (1, 1, 4, 12, [3, 64], [3, 3], [40, 2], [1, 1], [0, 1, 0, 1]),
    "samples": (2, 1, 40, 33, [1000], [10], [5], [1], [3, 4]),
    "sums of images and rows": (2, 1, 48, 40, [60, 41], [1, 1], [1, 1], [1, 1], [0, 0, 0, 0]),
    "sums of rows": (1, 1, 48, 40, [60, 41], [1, 1], [1, 1], [1, 1], [0, 0, 0, 0]),
}


def model(path, groups, inputs, outputs, size, window, stride, dilation, pads, batch):
    """The sum of the convolution's places, each times a number of `c`: dy is c."""
    def info(name, shape):
        return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.DOUBLE, shape)

    rank = len(size)
    spans = [(w - 1) * d + 1 for w, d in zip(window, dilation)]
    y = [(x + pads[i] + pads[i + rank] - spans[i]) // stride[i] + 1 for i, x in enumerate(size)]
    random = np.random.default_rng(0)
    x = random.standard_normal([batch, groups * inputs, *size])
    c = random.standard_normal([batch, groups * outputs, *y])
    w = random.standard_normal([groups * outputs, inputs, *window])
    make = onnx.helper.make_node
    nodes = [make("Conv", ["x", "w"], ["y"], group=groups, strides=stride, dilations=dilation, pads=pads),
             make("Mul", ["y", "c"], ["z"]), make("ReduceSum", ["z"], ["total"], keepdims=0)]
    graph = onnx.helper.make_graph(nodes, "planes", [info("x", x.shape), info("c", c.shape)], [info("total", [])],
                                   [onnx.numpy_helper.from_array(w, "w")])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    return x, c, w


def gradients(x, c, w, groups, stride, dilation, pads):
    """Of x and of w."""
    rank = x.ndim - 2
    padded = np.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:])])
    padded = padded.reshape(x.shape[0], groups, -1, *padded.shape[2:])
    c = c.reshape(c.shape[0], groups, -1, *c.shape[2:])
    w = w.reshape(groups, -1, *w.shape[1:])
    dx, dw = np.zeros_like(padded), np.empty_like(w)
    for place in np.ndindex(*w.shape[3:]):
        all3 = (slice(None),) * 3
        at = all3 + tuple(slice(q * d, q * d + (n - 1) * s + 1, s)
                          for q, d, s, n in zip(place, dilation, stride, c.shape[3:]))
        flat = c.reshape(*c.shape[:3], -1)
        dw[all3 + place] = np.einsum("bgop,bgip->goi", flat, padded[at].reshape(*padded.shape[:3], -1))
        dx[at] += np.einsum("bgop,goi->bgip", flat, w[all3 + place]).reshape(padded[at].shape)
    inner = tuple(slice(low, low + n) for low, n in zip(pads, x.shape[2:]))
    return dx.reshape(*x.shape[:2], *dx.shape[3:])[(slice(None),) * 2 + inner], dw.reshape(-1, *w.shape[2:])


def in_planes(lowered):
    """Whether the convolution's gradient adds lanes at its end, as no product does."""
    kernel = re.search(r"^  kernel (?:(?!^  kernel).)*? loc grad\(\"y\"\) \{\n(.*?)^  \}$", lowered, re.M | re.S)
    return re.search(r"vector v\d+ < 16 \(v\d+: add f64 lanes 16\)", kernel[1]) is not None


@pytest.mark.parametrize("case, target", [*((name, "native") for name in [*PLANES, *PRODUCTS]),
                                          *((name, "x86-64-v2") for name in ["rest", "channels", "common divisor"])])
def test_gradients(run, tmp_path, case, target):
    planes = case in PLANES
    batch, groups, inputs, outputs, size, window, stride, dilation, pads = (PLANES if planes else PRODUCTS)[case]
    x, c, w = model(tmp_path / "m.onnx", groups, inputs, outputs, size, window, stride, dilation, pads, batch)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "c.npy", c)
    options = [tmp_path / "m.onnx", "--loss=output:total", "--precision=f64", f"--target=cpu:{target}"]
    assert in_planes(run("dump", *options, "--stage=lowered").stdout) == planes
    run("grad", *options, f"--input=x={tmp_path}/x.npy", f"--input=c={tmp_path}/c.npy", "--wrt=x", "--output-dir",
        tmp_path / "out")
    for name, want in zip("xw", gradients(x, c, w, groups, stride, dilation, pads)):
        off = np.abs(np.load(tmp_path / f"out/grad.{name}.npy") - want).max()
        assert off < 1e-12 * np.sqrt(c.size), (name, off)
