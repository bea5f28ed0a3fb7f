"""What tests of training options share: y = x w + b with the mean of squares as loss, in f64, and its gradients by formula."""
import numpy as np
import onnx
import reference
from onnx import helper, numpy_helper

ROWS, WIDTH, OUT = 8, 5, 3


def exact(x):
    """In f64, numbers that f32 has."""
    return np.asarray(x).astype(np.float32).astype(np.float64)


class Regression:
    """The model and its data, in files of a folder."""

    def __init__(self, folder, steps=20, seed=0):
        random = np.random.default_rng(seed)
        self.folder = folder
        self.start = {"w": exact(random.standard_normal((WIDTH, OUT))), "b": exact(random.standard_normal(OUT))}
        self.x = exact(random.standard_normal((steps, ROWS, WIDTH)))
        self.y = exact(3 * random.standard_normal((steps, ROWS, OUT)))
        nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Add", ["p", "b"], ["y"])]
        graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, ["batch", WIDTH])],
                                  [helper.make_tensor_value_info("y", 1, ["batch", OUT])],
                                  [numpy_helper.from_array(v.astype(np.float32), n) for n, v in self.start.items()])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "model.onnx")
        np.save(folder / "x.npy", self.x.astype(np.float32).reshape(-1, WIDTH))
        np.save(folder / "y.npy", self.y.astype(np.float32).reshape(-1, OUT))
        self.data = ["--data=x=x.npy", "--data=labels=y.npy", "--shuffle=off", "--progress=off", "--table=off"]
        self.eval_data = ["--eval-data=x=x.npy", "--eval-data=labels=y.npy"]

    def gradients(self, p, step):
        x, rest = self.x[step], self.x[step] @ p["w"] + p["b"] - self.y[step]
        return {"w": 2 / rest.size * x.T @ rest, "b": 2 / rest.size * rest.sum(0)}

    def log(self):
        return [line for line in reference.log_lines(self.folder / "log.jsonl") if line["step"] > 0]

    def exported(self, name="out.onnx"):
        return {t.name: numpy_helper.to_array(t).astype(np.float64) for t in onnx.load(self.folder / name).graph.initializer}
