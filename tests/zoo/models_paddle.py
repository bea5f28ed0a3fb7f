"""Models of Paddle, exported with paddle2onnx."""
from dataclasses import dataclass

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F
from paddle.vision import models as pv

import case_files
from case_files import floats, integers

paddle.set_device("cpu")


@dataclass
class Row:
    name: str
    make: object          # () -> layer
    inputs: dict
    labels: object
    loss: str = "cross_entropy"
    rows: int = 4
    lr: float = 0.05
    is_moved: bool = True
    is_open: bool = True
    form: str = "inference"
    exporter: str = "paddle2onnx"


def cnn():
    return nn.Sequential(nn.Conv2D(3, 8, 3, padding=1), nn.BatchNorm2D(8), nn.ReLU(), nn.MaxPool2D(2), nn.Conv2D(8, 16, 3), nn.PReLU(16),
                         nn.AdaptiveAvgPool2D(1), nn.Flatten(), nn.Linear(16, 10))


def group_norm():
    return nn.Sequential(nn.Conv2D(3, 8, 3), nn.GroupNorm(2, 8), nn.Silu(), nn.Conv2DTranspose(8, 3, 3))


class Transformer(nn.Layer):
    def __init__(self, width=32):
        super().__init__()
        self.embed, self.positions = nn.Embedding(64, width), self.create_parameter([1, 12, width])
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, activation="gelu"), 2)
        self.head = nn.Linear(width, 64)

    def forward(self, tokens):
        return self.head(self.encoder(self.embed(tokens) + self.positions))


class Scaled(nn.Layer):
    """A learned number."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.scale = nn.Linear(8, 16), nn.Linear(16, 3), self.create_parameter([1])

    def forward(self, x):
        return self.last(F.tanh(self.first(x)) * self.scale)


def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 3))


IMAGE, PICTURE, TEN = {"x": floats(3, 32, 32)}, {"x": floats(3, 16, 16)}, integers(10)
MODELS = [
    Row("mlp", mlp, {"x": floats(8)}, integers(3)),
    Row("mlp_fresh", mlp, {"x": floats(8)}, integers(3), is_moved=False),
    Row("cnn", cnn, PICTURE, TEN),
    Row("cnn_fresh", cnn, PICTURE, TEN, is_moved=False),
    Row("group_norm", group_norm, PICTURE, floats(3, 16, 16), loss="mse"),
    Row("scaled", Scaled, {"x": floats(8)}, integers(3)),
    Row("transformer", Transformer, {"x": integers(64, 12)}, integers(64, 12), is_open=False),
    Row("lenet", lambda: pv.LeNet(10), {"x": floats(1, 28, 28)}, TEN),
    Row("mobilenet_v2", lambda: pv.MobileNetV2(scale=0.25, num_classes=10), IMAGE, TEN),
    Row("shufflenet_v2", lambda: pv.shufflenet_v2_x0_25(num_classes=10), IMAGE, TEN),
    Row("squeezenet", lambda: pv.squeezenet1_1(num_classes=10), {"x": floats(3, 64, 64)}, TEN),
]


def loss_of(row, out, labels):
    if row.loss == "mse":
        return F.mse_loss(out, labels)
    return F.cross_entropy(out, labels)


def train(row, layer, arrays, lr):
    optimizer, losses = paddle.optimizer.SGD(lr, parameters=layer.parameters()), []
    for batch in case_files.batches(arrays, row.rows):
        loss = loss_of(row, layer(paddle.to_tensor(batch["x"])), paddle.to_tensor(batch["labels"]))
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss))
    return losses


def tensors(layer):
    return {k: v.numpy().copy() for k, v in layer.state_dict().items() if "float" in str(v.dtype)}


def move(layer, rng, shaken=False):
    """Noise on top; variances stay positive."""
    for k, v in layer.state_dict().items():
        if "float" in str(v.dtype):
            a = v.numpy()
            a = case_files.moved(a, rng, case_files.SHAKEN * np.abs(a)) if shaken else case_files.moved(a, rng)
            v.set_value(np.abs(a) if k.endswith("_variance") else a)
    return layer


def make(row, folder):
    paddle.seed(0)
    layer = row.make()
    layer.eval()
    for m in layer.sublayers():
        if isinstance(m, nn.Dropout):
            m.p = 0.0
    rng = case_files.random(7)
    if row.is_moved:
        move(layer, rng)
    arrays = case_files.draw(row.inputs | {"labels": row.labels}, row.rows)
    shape = [None if row.is_open else row.rows, *arrays["x"].shape[1:]]
    paddle.onnx.export(layer, str(folder / "model"), input_spec=[paddle.static.InputSpec(shape, str(arrays["x"].dtype), "x")],
                       opset_version=17)
    before, state = tensors(layer), {k: v.numpy().copy() for k, v in layer.state_dict().items()}
    for lr in case_files.learning_rates(row.lr):
        layer.set_state_dict(state)
        other_losses, other = train(row, move(layer, rng, shaken=True), arrays, lr), tensors(layer)
        layer.set_state_dict(state)
        losses, after = train(row, layer, arrays, lr), tensors(layer)
        if case_files.is_steady(losses, other_losses):
            break
    else:
        raise ValueError(f"no learning rate trains it steadily: losses {losses}")
    case_files.write(folder, arrays, before, after, [k for k, _ in layer.named_buffers()], losses, case_files.noise(after, other),
                     exporter=row.exporter, form=row.form, is_moved=row.is_moved, lr=lr,
                     options=["--loss", row.loss, *(["--batch", str(row.rows)] if row.is_open else [])])


if __name__ == "__main__":
    case_files.main("paddle", MODELS, make, ["paddlepaddle", "paddle2onnx", "onnx"])
