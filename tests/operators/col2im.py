"""Columns of blocks that are added to an image."""
import numpy as np
from case import Case, numbers


def folded(image, block, dilations=(1, 1), pads=(0, 0), strides=(1, 1)):
    def run(x, *_):
        import torch.nn.functional as F
        return F.fold(x, image, block, dilations, pads, strides)
    return run


def col2im(name, x, image, block, torch=True, **attrs):
    both = {k: (v * 2 if k == "pads" else v) for k, v in attrs.items()}
    return Case(f"Col2Im_{name}", "Col2Im", {"x": x, "image": np.array(image), "block": np.array(block)},
                folded(image, block, **attrs) if torch else None, both)


CASES = [
    col2im("plain", numbers(2, 12, 12), [4, 5], [2, 2]), col2im("strides", numbers(1, 9, 4), [5, 6], [3, 3], strides=[2, 2]),
    col2im("pads", numbers(1, 6, 25), [4, 5], [2, 3], pads=[1, 1]), col2im("dilations", numbers(1, 4, 6), [4, 5], [2, 2], dilations=[2, 2]),
    col2im("1d", numbers(2, 6, 4), [6], [3], torch=False), col2im("3d", numbers(1, 16, 8), [3, 3, 3], [2, 2, 2], torch=False),
    col2im("one", numbers(1, 1, 1), [1, 1], [1, 1]),
]
