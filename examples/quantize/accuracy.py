"""Loss and accuracy of classifiers in onnxruntime, on the last rows of the data.

usage: accuracy.py FOLDER MODEL.onnx...
FOLDER has image.npy and labels.npy. Needs numpy and onnxruntime.
"""
import sys
from pathlib import Path

import numpy as np
import onnxruntime

HELD_BACK = 64


def main(folder, *models):
    x, labels = (np.load(Path(folder) / name)[-HELD_BACK:] for name in ("image.npy", "labels.npy"))
    for path in models:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        y = session.run(None, {session.get_inputs()[0].name: x})[0].astype(float)
        loss = np.mean(np.log(np.exp(y).sum(-1)) - y[np.arange(len(y)), labels])
        print(f"{Path(path).name:16} {Path(path).stat().st_size:8} bytes  loss {loss:.4f}  accuracy {np.mean(y.argmax(-1) == labels):.4f}")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__.strip())
    main(*sys.argv[1:])
