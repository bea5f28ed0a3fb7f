"""A model of pictures with a second input, and its rows as bytes and as the floats that NumPy makes of the bytes in double."""
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

BATCH, ROWS, CLASSES, EXTRA = 32, 80, 5, 2048  # two batches and a half; a batch of either input is worth a look-up
MUL, ADD = 1 / 255, 0.125
TABLE = np.array([[0.4, 0.5, 0.6], [0.2, 0.25, 0.3]], np.float32)


def model(shape):
    """logits = flat(image) w + extra v"""
    random = np.random.default_rng(0)
    kind = TensorProto.FLOAT
    weights = [numpy_helper.from_array((random.standard_normal((n, CLASSES)) / np.sqrt(n)).astype(np.float32), name)
               for name, n in (("w", int(np.prod(shape))), ("v", EXTRA))]
    nodes = [helper.make_node("Flatten", ["image"], ["flat"]), helper.make_node("MatMul", ["flat", "w"], ["x"]),
             helper.make_node("MatMul", ["extra", "v"], ["y"]), helper.make_node("Add", ["x", "y"], ["logits"])]
    inputs = [helper.make_tensor_value_info("image", kind, ["batch", *shape]), helper.make_tensor_value_info("extra", kind, ["batch", EXTRA])]
    graph = helper.make_graph(nodes, "pictures", inputs, [helper.make_tensor_value_info("logits", kind, ["batch", CLASSES])], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


class Pictures:
    """Files in a folder. bytes: np.uint8 or np.int8; channels: where they are, "first", "last" or None: a scale alone. both: the
    second input has bytes, too, with another scale."""

    def __init__(self, folder, bytes=np.uint8, channels="first", size=32, both=False):
        shape = (size, size, 3) if channels == "last" else (3, size, size)
        random = np.random.default_rng(1)
        limits = np.iinfo(bytes)
        raw = random.integers(limits.min, limits.max + 1, (ROWS, *shape), dtype=bytes)
        mean, std = (t.astype(np.float64).reshape([3] if channels == "last" else [3, 1, 1]) for t in TABLE)
        floats = raw * MUL + ADD
        more = random.integers(0, 256, (ROWS, EXTRA), dtype=np.uint8)
        self.folder, self.model = folder, model(shape)
        self.arrays = {"raw": raw, "floats": ((floats - mean) / std if channels else floats).astype(np.float32), "table": TABLE,
                       "more": more, "extra": (more * 0.01).astype(np.float32), "labels": random.integers(0, CLASSES, ROWS)}
        for name, array in self.arrays.items():
            np.save(folder / f"{name}.npy", array)
        onnx.save(self.model, folder / "model.onnx")
        labels, extra = f"--data=labels={folder}/labels.npy", [f"--data=extra={folder}/extra.npy"]
        self.floats = [f"--data=image={folder}/floats.npy", *extra, labels]
        extra = [f"--data=extra={folder}/more.npy", "--scale=extra=0.01"] if both else extra
        table = [f"--mean-std=image={folder}/table.npy"] if channels else []
        self.raw = [f"--data=image={folder}/raw.npy", f"--scale=image={MUL!r},{ADD}", *table, *extra, labels]
        self.table_bytes = ((3 if channels else 1) + both) * 256 * 4
