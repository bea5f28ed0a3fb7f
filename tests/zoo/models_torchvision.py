"""Models of torchvision: convolutional nets and vision transformers, on images of 32 to 64 pixels."""
from torchvision import models as tv

from zoo_torch import RAW, SCRIPT, Row, floats, integers, main

TEN = integers(10)


def row(name, make, size=32, **kw):
    return Row(name, make, {"x": floats(3, size, size)}, labels=kw.pop("labels", TEN), **kw)


MODELS = [
    row("resnet18_raw", lambda: tv.resnet18(num_classes=10), exporter=RAW),
]

if __name__ == "__main__":
    main("torchvision", MODELS, ["torchvision"])
