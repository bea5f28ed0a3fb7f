"""Regions of interest."""
import numpy as np
from case import Case, numbers

BATCH = np.array([1, 0, 1], np.int64)
REGIONS = np.array([[0.613, 1.127, 5.381, 6.229], [2.241, 0.317, 3.133, 2.419], [-1.327, 3.271, 9.119, 8.753]])
POOLED = np.array([[1, 0, 1, 5, 6], [0, 2, 0, 3, 2], [1, 1, 3, 9, 8]], np.float64)


def aligned(size, scale, ratio, half):
    def run(x, rois, batch):
        import torch
        from torchvision.ops import roi_align
        boxes = torch.cat([batch[:, None].to(rois), rois], 1)
        return roi_align(x, boxes, size, scale, ratio or -1, half)
    return run


def align(name, size=(2, 3), scale=1.0, ratio=0, half=True, opset=22, mode="avg", torch=True, images=2):
    attrs = {"output_height": size[0], "output_width": size[1], "spatial_scale": scale, "sampling_ratio": ratio, "mode": mode}
    if opset >= 16:
        attrs["coordinate_transformation_mode"] = "half_pixel" if half else "output_half_pixel"
    # torch has no gradient of the regions: they are constants here, and have differences of their own below
    return Case(f"RoiAlign_{name}", "RoiAlign", {"x": numbers(images, 3, 6, 7), "rois": REGIONS, "batch": BATCH % images},
                aligned(size, scale, ratio, half) if torch else None, attrs, opset=opset, constants=("rois",) if torch else ())


def pooled(size, scale):
    def run(x, rois):
        from torchvision.ops import roi_pool
        return roi_pool(x, rois, size, scale)
    return run


CASES = [
    align("adaptive"), align("samples", ratio=2), align("scaled", (3, 1), 0.5, 3), align("whole", ratio=2, half=False),
    align("whole_adaptive", half=False), align("one_image", images=1), align("10", half=False, opset=10),
    align("regions", torch=False), align("regions_samples", ratio=2, torch=False),
    align("max", mode="max", torch=False), align("max_samples", ratio=2, mode="max", half=False, torch=False),
    Case("MaxRoiPool", "MaxRoiPool", {"x": numbers(2, 3, 8, 7), "rois": POOLED}, pooled((2, 3), 1.0), {"pooled_shape": [2, 3]}, constants=("rois",)),
    Case("MaxRoiPool_scaled", "MaxRoiPool", {"x": numbers(2, 2, 5, 5), "rois": POOLED}, pooled((3, 3), 0.5),
         {"pooled_shape": [3, 3], "spatial_scale": 0.5}, constants=("rois",)),
]
