"""Models of Keras 3 on TensorFlow, exported by its own export() and by tf2onnx."""
from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf
import tf2onnx
from keras import layers as kl

import case_files
from case_files import floats, integers

TF2ONNX, OWN = "tf2onnx", "model.export"


@dataclass
class Row:
    name: str
    make: object          # () -> model
    inputs: dict
    labels: object
    exporter: str = OWN
    loss: str = "cross_entropy"
    rows: int = 4
    lr: float = 0.05
    is_moved: bool = True
    form: str = "inference"


def stack(shape, *layers, dtype="float32", name="x"):
    return lambda: keras.Sequential([keras.Input(shape, dtype=dtype, name=name), *(layer() for layer in layers)])


def layer(kind, *args, **kw):
    return lambda: kind(*args, **kw)


class Positions(kl.Layer):
    """A learned vector for each position."""

    def build(self, shape):
        self.table = self.add_weight(shape=shape[1:], initializer="random_normal", name="table")

    def call(self, x):
        return x + self.table


def transformer():
    tokens = keras.Input((12,), dtype="int32", name="x")
    x = Positions()(kl.Embedding(64, 32)(tokens))
    for _ in range(2):
        h = kl.LayerNormalization()(x)
        x = x + kl.MultiHeadAttention(4, 8)(h, h)
        h = kl.LayerNormalization()(x)
        x = x + kl.Dense(32)(kl.Dense(64, activation="silu")(h))
    return keras.Model(tokens, kl.Dense(64)(kl.LayerNormalization()(x)))


def scaled_attention():
    """Attention with a learned scale."""
    x = keras.Input((12, 8), name="x")
    h = kl.Attention(use_scale=True)([kl.Dense(16)(x), kl.Dense(16)(x)])
    return keras.Model(x, kl.Dense(3)(kl.GlobalAveragePooling1D()(h)))


def residual():
    x = keras.Input((16, 16, 3), name="x")
    h = kl.Conv2D(16, 3, padding="same")(x)
    for _ in range(2):
        y = kl.ReLU()(kl.BatchNormalization()(h))
        h = h + kl.Conv2D(16, 3, padding="same", use_bias=False)(y)
    return keras.Model(x, kl.Dense(10)(kl.GlobalAveragePooling2D()(kl.ReLU()(kl.BatchNormalization()(h)))))


def application(make, **kw):
    return lambda: make(input_tensor=keras.Input((32, 32, 3), name="x"), weights=None, classes=10, classifier_activation=None, **kw)


PICTURE, TOKENS, TEN = {"x": floats(16, 16, 3)}, {"x": integers(64, 12, dtype=np.int32)}, integers(10)
MLP = stack((8,), layer(kl.Dense, 16, activation="relu"), layer(kl.Dense, 16, activation="tanh"), layer(kl.Dense, 3))
CNN = stack((16, 16, 3), layer(kl.Conv2D, 8, 3), layer(kl.BatchNormalization), layer(kl.ReLU), layer(kl.MaxPooling2D), layer(kl.Flatten),
            layer(kl.Dense, 10))
MODELS = [
    Row("mlp", MLP, {"x": floats(8)}, integers(3)),
    Row("mlp_fresh", MLP, {"x": floats(8)}, integers(3), is_moved=False),
    Row("mlp_tf2onnx", MLP, {"x": floats(8)}, integers(3), exporter=TF2ONNX),
    Row("cnn", CNN, PICTURE, TEN),
    Row("residual", residual, PICTURE, TEN),
    Row("separable", stack((16, 16, 3), layer(kl.SeparableConv2D, 8, 3, activation="silu"), layer(kl.DepthwiseConv2D, 3, padding="same"),
        layer(kl.LayerNormalization), layer(kl.GlobalAveragePooling2D), layer(kl.Dense, 10)), PICTURE, TEN),
    Row("group_norm_prelu", stack((16, 16, 3), layer(kl.Conv2D, 8, 3), layer(kl.GroupNormalization, 4), layer(kl.PReLU, shared_axes=[1, 2]),
        layer(kl.GlobalAveragePooling2D), layer(kl.Dense, 10)), PICTURE, TEN),
    Row("autoencoder", stack((16, 16, 3), layer(kl.Conv2D, 8, 3, strides=2, padding="same", activation="elu"),
        layer(kl.Conv2DTranspose, 3, 3, strides=2, padding="same")), PICTURE, floats(16, 16, 3), loss="mse"),
    Row("text_conv", stack((12,), layer(kl.Embedding, 64, 16), layer(kl.Conv1D, 16, 3, activation="relu"), layer(kl.GlobalMaxPooling1D),
        layer(kl.Dense, 3), dtype="int32"), TOKENS, integers(3)),
    Row("transformer", transformer, TOKENS, integers(64, 12)),
    Row("transformer_tf2onnx", transformer, TOKENS, integers(64, 12), exporter=TF2ONNX),
    Row("scaled_attention", scaled_attention, {"x": floats(12, 8)}, integers(3)),
    Row("gelu", stack((8,), layer(kl.Dense, 16, activation="gelu"), layer(kl.Dense, 3)), {"x": floats(8)}, integers(3)),
    Row("gelu_approximate", stack((8,), layer(kl.Dense, 16, activation=lambda x: keras.activations.gelu(x, approximate=True)),
        layer(kl.Dense, 3)), {"x": floats(8)}, integers(3)),
    Row("lstm", stack((12, 8), layer(kl.LSTM, 16), layer(kl.Dense, 3)), {"x": floats(12, 8)}, integers(3)),
    Row("gru_tf2onnx", stack((12, 8), layer(kl.GRU, 16), layer(kl.Dense, 3)), {"x": floats(12, 8)}, integers(3), exporter=TF2ONNX),
    Row("mobilenet_v2", application(keras.applications.MobileNetV2, alpha=0.35), {"x": floats(32, 32, 3)}, TEN),
]


def export(row, model, path):
    if row.exporter == OWN:
        model.export(str(path), format="onnx", verbose=False)
        return
    signature = [tf.TensorSpec((None, *t.shape[1:]), t.dtype, t.name) for t in model.inputs]
    tf2onnx.convert.from_function(tf.function(lambda *x: model(*x, training=False), input_signature=signature), signature, opset=17,
                                  output_path=str(path))


def train(row, model, arrays, lr):
    losses = []
    for batch in case_files.batches(arrays, row.rows):
        with tf.GradientTape() as tape:
            out, labels = model(batch["x"], training=False), batch["labels"]
            loss = (tf.reduce_mean((out - labels) ** 2) if row.loss == "mse" else
                    tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, out)))
        for v, g in zip(model.trainable_variables, tape.gradient(loss, model.trainable_variables)):
            if g is not None:
                v.assign_sub(lr * tf.convert_to_tensor(g))
        losses.append(float(loss))
    return losses


def tensors(model):
    return {v.path: np.array(v) for v in model.variables if v.dtype.startswith("float")}


def make(row, folder):
    keras.utils.set_random_seed(0)
    model, rng = row.make(), case_files.random(7)
    arrays = case_files.draw(row.inputs | {"labels": row.labels}, row.rows)
    model(arrays["x"][:row.rows])
    for v in model.variables if row.is_moved else ():
        v.assign(abs(case_files.moved(np.array(v), rng)) if "variance" in v.path else case_files.moved(np.array(v), rng))
    export(row, model, folder / "model.onnx")
    weights = model.get_weights()
    before = tensors(model)
    for lr in case_files.learning_rates(row.lr):
        model.set_weights([case_files.moved(w, rng, case_files.SHAKEN * np.abs(w)) for w in weights])
        other_losses, other = train(row, model, arrays, lr), tensors(model)
        model.set_weights(weights)
        losses, after = train(row, model, arrays, lr), tensors(model)
        if case_files.is_steady(losses, other_losses):
            break
    else:
        raise ValueError(f"no learning rate trains it steadily: losses {losses}")
    case_files.write(folder, arrays, before, after, [v.path for v in model.non_trainable_variables], losses, case_files.noise(after, other),
                     exporter=row.exporter, form=row.form, is_moved=row.is_moved, lr=lr,
                     options=["--loss", row.loss, "--batch", str(row.rows)])


if __name__ == "__main__":
    case_files.main("keras", MODELS, make, ["keras", "tensorflow-cpu", "tf2onnx", "onnx"])
