"""Resize and Upsample."""
import numpy as np
from case import Case, numbers


def interpolated(size, mode, corners, antialias):
    def run(x, *_):
        import torch.nn.functional as F
        kind = {"linear": {3: "linear", 4: "bilinear", 5: "trilinear"}.get(x.dim()), "cubic": "bicubic", "nearest": "nearest"}[mode]
        return F.interpolate(x, size, mode=kind, align_corners=None if mode == "nearest" else corners, antialias=antialias)
    return run


def resize(name, shape, size, mode, coordinates="half_pixel", torch=True, antialias=False, opset=19, **attrs):
    if mode == "nearest":
        coordinates, attrs = "asymmetric", {"nearest_mode": "floor", **attrs}
    none = np.zeros(0, np.float32) if opset < 13 else None  # was not yet optional
    return Case(f"Resize_{name}", "Resize", {"x": numbers(*shape), "roi": none, "scales": none, "sizes": np.array([*shape[:2], *size])},
                interpolated(size, mode, coordinates == "align_corners", antialias) if torch else None,
                {"mode": mode, "coordinate_transformation_mode": coordinates, **({"antialias": 1} if antialias else {}), **attrs},
                opset=opset, constants=("roi", "scales"))


def scaled(name, shape, scales, roi=None, opset=19, **attrs):
    return Case(f"Resize_{name}", "Resize", {"x": numbers(*shape), "roi": None if roi is None else np.array(roi, np.float32),
                                             "scales": np.array(scales, np.float32)}, None, attrs, opset=opset, constants=("roi", "scales"))


CASES = [
    resize("nearest", (1, 2, 3, 4), (6, 4), "nearest"), resize("linear_1d", (2, 3, 5), (7,), "linear"), resize("linear_2d", (1, 2, 3, 4), (5, 7), "linear"),
    resize("linear_3d", (1, 1, 2, 3, 4), (3, 4, 5), "linear"), resize("linear_corners", (1, 2, 3, 4), (5, 7), "linear", "align_corners"),
    resize("linear_down", (1, 1, 7, 8), (3, 5), "linear"), resize("cubic", (1, 2, 4, 5), (7, 8), "cubic"), resize("cubic_corners", (1, 2, 4, 5), (7, 8), "cubic", "align_corners"),
    resize("antialias_linear", (1, 2, 9, 8), (4, 3), "linear", antialias=True, exclude_outside=1), resize("antialias_cubic", (1, 1, 9, 8), (4, 3), "cubic", antialias=True, torch=False),
    resize("antialias_up", (1, 1, 3, 4), (6, 5), "linear", antialias=True), resize("pytorch", (1, 1, 4, 4), (1, 3), "linear", "pytorch_half_pixel", False),
    resize("symmetric", (1, 1, 4, 4), (3, 7), "linear", "half_pixel_symmetric", False), resize("outside", (1, 1, 4, 4), (3, 7), "cubic", exclude_outside=1, torch=False),
    resize("11", (1, 2, 3, 4), (5, 7), "linear", opset=11),
    scaled("scales", (1, 2, 3, 4), [1, 1, 2, 1.5], mode="linear"), scaled("crop", (1, 1, 4, 4), [1, 1, 0.75, 1.25], [0, 0, 0.25, 0.25, 1, 1, 0.75, 1.5], mode="linear",
                                                                          coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=2.0),
    Case("Resize_axes", "Resize", {"x": numbers(2, 3, 4), "roi": None, "scales": None, "sizes": np.array([5, 3])}, None,
         {"mode": "linear", "axes": [2, 0], "keep_aspect_ratio_policy": "not_larger"}, opset=19),
    Case("Resize_10", "Resize", {"x": numbers(1, 1, 3, 4), "scales": np.array([1, 1, 2, 2], np.float32)}, lambda x, _: x.repeat_interleave(2, 2).repeat_interleave(2, 3),
         {"mode": "nearest"}, opset=10, constants=("scales",)),
    Case("Upsample_9", "Upsample", {"x": numbers(1, 2, 3, 2), "scales": np.array([1, 1, 3, 2], np.float32)},
         lambda x, _: x.repeat_interleave(3, 2).repeat_interleave(2, 3), {"mode": "nearest"}, opset=9, constants=("scales",)),
    Case("Upsample_7", "Upsample", {"x": numbers(1, 2, 3, 2)}, None, {"mode": "linear", "scales": [1.0, 1.0, 2.0, 1.5]}, opset=7),
]
