"""Values between elements at computed places: GridSample, AffineGrid, DeformConv."""
import numpy as np
from case import Case, numbers

MODES = {"linear": "bilinear", "nearest": "nearest", "cubic": "bicubic"}


def grid(*shape, reach=1.4):
    """Places in and around [-1, 1], none of them midway between elements."""
    return numbers(*shape, seed=3, low=-reach, high=reach)


def sampled(mode, padding, corners):
    def run(x, at):
        import torch.nn.functional as F
        return F.grid_sample(x, at, MODES[mode], padding, bool(corners))
    return run


def sample(name, x, at, mode="linear", padding="zeros", corners=0, torch=True, opset=22, **options):
    word = MODES[mode] if opset < 20 else mode
    return Case(f"GridSample_{name}", "GridSample", {"x": x, "grid": at}, sampled(mode, padding, corners) if torch else None,
                {"mode": word, "padding_mode": padding, "align_corners": corners},
                opset=opset, constants=("grid",) if mode == "nearest" else (), **options)


def affine(size, corners):
    def run(theta, _):
        import torch.nn.functional as F
        return F.affine_grid(theta, size, bool(corners))
    return Case(f"AffineGrid_{'x'.join(map(str, size))}_{corners}", "AffineGrid",
                {"theta": numbers(size[0], len(size) - 2, len(size) - 1), "size": np.array(size)}, run, {"align_corners": corners})


def deform(name, x, w, offset, mask=None, bias=None, stride=(1, 1), pad=(0, 0), dilation=(1, 1), groups=1, offsets=1, opset=22):
    def run(x, w, offset, bias=None, mask=None):
        from torchvision.ops import deform_conv2d
        return deform_conv2d(x, offset, w, bias, stride, pad, dilation, mask)
    return Case(f"DeformConv_{name}", "DeformConv", {"x": x, "w": w, "offset": offset, "bias": bias, "mask": mask}, run,
                {"strides": stride, "pads": [*pad, *pad], "dilations": dilation, "group": groups, "offset_group": offsets}, opset=opset)


# torch keeps cubic places beyond the border, ONNX brings them back first: no case of torch's where these differ.
CASES = [
    *(sample(f"{mode}_{padding}_{corners}", numbers(2, 3, 5, 4), grid(2, 3, 3, 2), mode, padding, corners,
             torch=(mode, padding) != ("cubic", "border"))
      for mode in MODES for padding in ("zeros", "border", "reflection") for corners in (0, 1)),
    *(sample(f"3d_{mode}_{padding}", numbers(1, 2, 3, 4, 5), grid(1, 2, 3, 2, 3), mode, padding, 0, differences=padding != "reflection")
      for mode in ("linear", "nearest") for padding in ("zeros", "border", "reflection")),
    sample("3d_cubic", numbers(1, 1, 2, 2, 3), grid(1, 1, 2, 1, 3), "cubic", torch=False),
    sample("1d", numbers(2, 3, 5), grid(2, 4, 1), torch=False),
    sample("one", numbers(1, 1, 1, 1), grid(1, 1, 2, 2), padding="reflection", corners=1, differences=False),
    sample("single", numbers(1, 1, 1, 1), grid(1, 3, 1, 2), padding="zeros"),
    sample("none", numbers(1, 2, 3, 3), grid(1, 0, 2, 2), torch=False),
    *(sample(f"16_{mode}", numbers(2, 2, 4, 5), grid(2, 3, 2, 2), mode, opset=16) for mode in MODES),

    *(affine(size, corners) for size in ([2, 3, 4, 5], [1, 1, 1, 7], [2, 1, 3, 4, 5]) for corners in (0, 1)
      if not (corners == 1 and 1 in size[2:])),

    deform("plain", numbers(2, 2, 5, 6), numbers(3, 2, 2, 3, seed=1), numbers(2, 12, 4, 4, seed=2, low=-1.5, high=1.5)),
    deform("all", numbers(1, 4, 6, 7), numbers(4, 2, 3, 3, seed=1), numbers(1, 36, 3, 4, seed=2, low=-2, high=2), numbers(1, 18, 3, 4, seed=4, low=0),
           numbers(4, seed=5), (2, 2), (1, 1), groups=2, offsets=2),
    deform("dilated", numbers(1, 1, 7, 6), numbers(2, 1, 2, 2, seed=1), numbers(1, 8, 5, 3, seed=2), dilation=(2, 3), opset=19),
]
