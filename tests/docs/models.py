"""Small models that pages of docs/ compile: `models.py NAME` writes model.onnx, NAME is loop, sizes or training."""
import sys

import onnx
import onnx.parser

LOOP = """
<ir_version: 9, opset_import: ["" : 19]>
settles (float[batch,4] x) => (float[batch,1] out)
  <float[4,4] w = {0.08, -0.08, 0.38, 0.06, -0.32, 0.22, 0.78, 0.57, -0.42, -0.76, -0.37, 0.02, -1.4, -0.13, -0.75, -0.44},
   float[4,1] v = {-0.54, -0.32, 0.41, 1.04}, float limit = {1}>
{
  hidden = Loop ("", "", x) <body: graph = step (int64 i, bool go, float[batch,4] s) => (bool again, float[batch,4] next) {
    m = MatMul (s, w)
    next = Tanh (m)
    squares = Mul (next, next)
    size = ReduceSum <keepdims = 0> (squares)
    again = Greater (size, limit)
  }>
  out = MatMul (hidden, v)
}
"""
SIZES = """
<ir_version: 8, opset_import: ["" : 17]>
above (float[64,4] x) => (float loss) <float[4,1] w = {0.08, -0.32, 0.38, 0.57}, float least = {0}, int64[1] list = {-1}>
{
  product = MatMul (x, w)
  y = Reshape (product, list)
  above = Greater (y, least)
  kept = Compress <axis = 0> (y, above)
  squares = Mul (kept, kept)
  loss = ReduceMean <keepdims = 0> (squares)
}
"""
PREVIEW = "ai.onnx.preview.training"
LINEAR = """
<ir_version: 8, opset_import: ["" : 17, "ai.onnx.preview.training" : 1]>
linear (float[rows,3] x) => (float[rows,2] y) <float[3,2] w = {0.1, -0.2, 0.3, 0.4, -0.5, 0.6}> { y = MatMul (x, w) }
"""
ALGORITHM = """
algorithm (float[rows,2] labels) => (float loss, float[3,2] new) <float rate = {0.25}>
{
  d = Sub (y, labels)
  squares = Mul (d, d)
  loss = ReduceMean <keepdims = 0> (squares)
  dw = ai.onnx.preview.training.Gradient <xs = ["w"], zs = ["x", "labels"], y = "loss"> (w, x, labels)
  step = Mul (rate, dw)
  new = Sub (w, step)
}
"""


def training():
    """A model that holds its own training: descent on a mean of squares."""
    model = onnx.parser.parse_model(LINEAR)
    info = model.training_info.add()
    info.algorithm.CopyFrom(onnx.parser.parse_graph(ALGORITHM))
    info.update_binding.add(key="w", value="new")
    return model


MODELS = {"loop": lambda: onnx.parser.parse_model(LOOP), "sizes": lambda: onnx.parser.parse_model(SIZES), "training": training}

if __name__ == "__main__":
    onnx.save(MODELS[sys.argv[1]](), "model.onnx")
