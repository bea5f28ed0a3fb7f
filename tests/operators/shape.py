"""Operators that rename, cut and join places."""
import numpy as np
from case import Case, numbers


def ints(*values):
    return np.array(values, np.int64)


def functional():
    import torch.nn.functional as F
    return F


def concat(name, axis, *shapes):
    def run(*x):
        import torch
        return torch.cat(x, axis)
    return Case(f"Concat_{name}", "Concat", {f"x{i}": numbers(*s, seed=i) for i, s in enumerate(shapes)}, run, {"axis": axis})


def split(name, shape, sizes, axis, given=True, opset=18):
    """Not given: num_outputs says how many parts there are."""
    attrs = {"axis": axis, **({} if given or opset < 18 else {"num_outputs": len(sizes)})}
    inputs = {"x": numbers(*shape), **({"sizes": ints(*sizes)} if given else {})}
    return Case(f"Split_{name}", "Split", inputs, lambda x, *_: x.split(sizes, axis), attrs, len(sizes), opset=opset)


def slice_(name, shape, cut, starts, ends, axes=None, steps=None, **options):
    inputs = {"x": numbers(*shape), "starts": ints(*starts), "ends": ints(*ends), "axes": None if axes is None else ints(*axes),
              "steps": None if steps is None else ints(*steps)}
    return Case(f"Slice_{name}", "Slice", inputs, lambda x, *_: cut(x), **options)


def pad(name, shape, pads, mode, torch, value=None, axes=None, opset=19):
    inputs = {"x": numbers(*shape), "pads": ints(*pads), "value": None if value is None else np.array(value), "axes": None if axes is None else ints(*axes)}
    return Case(f"Pad_{name}", "Pad", inputs, lambda x, *_: torch(x), {"mode": mode}, opset=opset, constants=("value",))


def depth(op, name, shape, f, **attrs):
    return Case(f"{op}_{name}", op, {"x": numbers(*shape)}, f, {"blocksize": 2, **attrs})


def depth_to_space(x):
    """DCR: a pixel's place comes before the channel"""
    n, c, h, w = x.shape
    return x.reshape(n, 2, 2, c // 4, h, w).permute(0, 3, 4, 1, 5, 2).reshape(n, c // 4, 2 * h, 2 * w)


def space_to_depth(x):
    n, c, h, w = x.shape
    return x.reshape(n, c, h // 2, 2, w // 2, 2).permute(0, 3, 5, 1, 2, 4).reshape(n, 4 * c, h // 2, w // 2)


def center(name, shape, sizes, torch, axes=None):
    return Case(f"CenterCropPad_{name}", "CenterCropPad", {"x": numbers(*shape), "shape": ints(*sizes)}, lambda x, _: torch(x), {} if axes is None else {"axes": axes})


def shaped(op, name, shape, second, torch, opset=21, **attrs):
    return Case(f"{op}_{name}", op, {"x": numbers(*shape), "shape": ints(*second)}, lambda x, _: torch(x), attrs, opset=opset)


CASES = [
    shaped("Reshape", "plain", (2, 3, 4), (4, 6), lambda x: x.reshape(4, 6)), shaped("Reshape", "open", (2, 3, 4), (0, -1), lambda x: x.reshape(2, 12)),
    shaped("Reshape", "scalar", (1, 1), (), lambda x: x.reshape(())), shaped("Reshape", "zero", (0, 3), (3, 0), lambda x: x.reshape(3, 0), allowzero=1),
    shaped("Expand", "rows", (3, 1), (2, 3, 5), lambda x: x.expand(2, 3, 5), 13), shaped("Expand", "back", (3, 4), (1, 1), lambda x: x * 1, 13),
    shaped("Tile", "plain", (2, 3), (2, 3), lambda x: x.tile(2, 3), 13), shaped("Tile", "none", (2, 3), (1, 0), lambda x: x.tile(1, 0), 13),
    shaped("Squeeze", "one", (1, 3, 1), (0,), lambda x: x.squeeze(0)), Case("Squeeze_all", "Squeeze", {"x": numbers(1, 3, 1)}, lambda x: x.squeeze()),
    Case("Squeeze_11", "Squeeze", {"x": numbers(1, 3, 1)}, lambda x: x.squeeze(2), {"axes": [2]}, opset=11),
    shaped("Unsqueeze", "two", (3, 4), (0, -1), lambda x: x[None, ..., None]), Case("Unsqueeze_11", "Unsqueeze", {"x": numbers(3)}, lambda x: x[:, None], {"axes": [1]}, opset=11),
    *(Case(f"Flatten_{axis}", "Flatten", {"x": numbers(2, 3, 4)}, lambda x, axis=axis: x.reshape(int(np.prod(x.shape[:axis])), -1), {"axis": axis}) for axis in (0, 1, 2)),
    Case("Transpose_order", "Transpose", {"x": numbers(2, 3, 4)}, lambda x: x.permute(2, 0, 1), {"perm": [2, 0, 1]}),
    Case("Transpose_plain", "Transpose", {"x": numbers(2, 3, 4)}, lambda x: x.permute(2, 1, 0)),
    depth("DepthToSpace", "dcr", (1, 8, 2, 3), depth_to_space), depth("DepthToSpace", "crd", (2, 4, 2, 3), lambda x: functional().pixel_shuffle(x, 2), mode="CRD"),
    depth("SpaceToDepth", "plain", (2, 1, 4, 6), space_to_depth),

    concat("rows", 0, (2, 3), (1, 3), (4, 3)), concat("last", -1, (2, 1), (2, 4)), concat("one", 0, (5,)), concat("empty", 1, (2, 0), (2, 3)),
    split("sizes", (2, 7), [1, 4, 2], 1), split("equal", (6, 2), [2, 2, 2], 0, False), split("uneven", (7,), [3, 3, 1], 0, False), split("empty", (3, 2), [0, 3], 0),
    Case("Split_11", "Split", {"x": numbers(2, 5)}, lambda x: x.split([2, 3], 1), {"axis": 1, "split": [2, 3]}, 2, opset=11),
    slice_("plain", (4, 5), lambda x: x[1:3, 2:5], (1, 2), (3, 9)), slice_("steps", (7, 5), lambda x: x[::3, 1:4:2], (0, 1), (7, 4), (0, -1), (3, 2)),
    slice_("back", (5, 4), lambda x: x.flip(0)[::2], (-1,), (-9,), (0,), (-2,)), slice_("empty", (4,), lambda x: x[2:2], (2,), (2,), differences=False),
    pad("constant", (2, 3), (1, 0, 0, 2), "constant", lambda x: functional().pad(x, (0, 2, 1, 0), value=0.5), 0.5),
    Case("Pad_computed", "Pad", {"x": numbers(2, 3), "pads": ints(1, 0, 0, 2), "value": np.array(0.7)},
         lambda x, _, value: value + functional().pad(x - value, (0, 2, 1, 0)), opset=19),
    pad("crop", (4, 5), (0, -1, -2, 2), "constant", lambda x: functional().pad(x, (-1, 2, 0, -2))),
    pad("reflect", (1, 2, 4, 5), (0, 0, 2, 1, 0, 0, 1, 3), "reflect", lambda x: functional().pad(x, (1, 3, 2, 1), "reflect")),
    pad("edge", (1, 2, 3, 4), (0, 0, 2, 1, 0, 0, 1, 3), "edge", lambda x: functional().pad(x, (1, 3, 2, 1), "replicate")),
    pad("wrap", (1, 2, 3, 4), (0, 0, 2, 1, 0, 0, 1, 3), "wrap", lambda x: functional().pad(x, (1, 3, 2, 1), "circular")),
    pad("axes", (2, 3, 4), (1, 2), "constant", lambda x: functional().pad(x, (0, 0, 1, 2)), axes=(1,)),
    center("crop", (7, 6), (4, 3), lambda x: x[1:5, 1:4]), center("pad", (3, 2), (6, 5), lambda x: functional().pad(x, (1, 2, 1, 2))),
    center("both", (5, 2), (2, 5), lambda x: functional().pad(x[1:3], (1, 2))), center("axes", (2, 5, 3), (4, 3), lambda x: functional().pad(x[:, 1:4], (0, 1)), [-1, 1]),
    *(Case(f"Trilu_{upper}_{k}", "Trilu", {"x": numbers(2, 4, 5), "k": np.array(k)}, lambda x, _, upper=upper, k=k: x.triu(k) if upper else x.tril(k), {"upper": upper})
      for upper in (0, 1) for k in (-1, 0, 2)),
    Case("Trilu_computed", "Trilu", {"x": numbers(4, 3), "k": np.array(-1)}, lambda x, _: x.triu(-1), fed=("k",)),
    Case("Trilu_plain", "Trilu", {"x": numbers(3, 3)}, lambda x: x.triu()),
]
