"""Models of JAX, by flax.nnx and equinox, exported with jax2onnx."""
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax2onnx import to_onnx

import case_files
from case_files import floats, integers


@dataclass
class Row:
    name: str
    make: object          # () -> module that takes a batch
    inputs: dict
    labels: object
    loss: str = "cross_entropy"
    rows: int = 4
    lr: float = 0.05
    is_moved: bool = True
    is_open: bool = False
    exporter: str = "jax2onnx"
    form: str = "inference"


def rngs():
    return nnx.Rngs(0)


class Mlp(nnx.Module):
    def __init__(self):
        self.first, self.norm, self.last = nnx.Linear(8, 16, rngs=rngs()), nnx.LayerNorm(16, rngs=rngs()), nnx.Linear(16, 3, rngs=rngs())

    def __call__(self, x):
        return self.last(nnx.gelu(self.norm(self.first(x))))


class Cnn(nnx.Module):
    def __init__(self, norm):
        self.conv, self.norm = nnx.Conv(3, 8, (3, 3), rngs=rngs()), norm()
        self.deeper, self.last = nnx.Conv(8, 16, (3, 3), strides=2, rngs=rngs()), nnx.Linear(16, 10, rngs=rngs())

    def __call__(self, x):
        x = nnx.relu(self.norm(self.conv(x)))
        x = nnx.relu(self.deeper(nnx.avg_pool(x, window_shape=(2, 2), strides=(2, 2))))
        return self.last(x.mean((1, 2)))


class Block(nnx.Module):
    def __init__(self, width, norm):
        self.norm, self.attention = norm(width, rngs=rngs()), nnx.MultiHeadAttention(4, width, decode=False, rngs=rngs())
        self.deep_norm = norm(width, rngs=rngs())
        self.up, self.down = nnx.Linear(width, 2 * width, rngs=rngs()), nnx.Linear(2 * width, width, rngs=rngs())

    def __call__(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.down(nnx.gelu(self.up(self.deep_norm(x))))


class Transformer(nnx.Module):
    def __init__(self, norm=nnx.LayerNorm):
        self.embed, self.positions = nnx.Embed(64, 32, rngs=rngs()), nnx.Param(0.02 * jax.random.normal(jax.random.key(1), (1, 12, 32)))
        self.blocks = nnx.List([Block(32, norm) for _ in range(2)])
        self.head = nnx.Linear(32, 64, rngs=rngs())

    def __call__(self, tokens):
        x = self.embed(tokens) + self.positions[...]
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Scaled(Mlp):
    def __init__(self):
        super().__init__()
        self.scale = nnx.Param(jnp.array(1.5))

    def __call__(self, x):
        return super().__call__(x) * self.scale[...]


class Tied(nnx.Module):
    def __init__(self):
        self.embed, self.block = nnx.Embed(64, 32, rngs=rngs()), Block(32, nnx.RMSNorm)

    def __call__(self, tokens):
        return self.embed.attend(self.block(self.embed(tokens)))


class Autoencoder(nnx.Module):
    def __init__(self):
        self.down, self.up = nnx.Conv(3, 8, (3, 3), strides=2, rngs=rngs()), nnx.ConvTranspose(8, 3, (3, 3), strides=2, rngs=rngs())

    def __call__(self, x):
        return self.up(nnx.silu(self.down(x)))


class Batched(eqx.Module):
    model: eqx.Module

    def __call__(self, x):
        return jax.vmap(self.model)(x)


class EquinoxCnn(eqx.Module):
    layers: list

    def __init__(self, key):
        a, b, c = jax.random.split(key, 3)
        self.layers = [eqx.nn.Conv2d(3, 8, 3, padding=1, key=a), eqx.nn.GroupNorm(2, 8), jax.nn.relu, eqx.nn.Conv2d(8, 16, 3, stride=2, key=b),
                       jax.nn.silu, eqx.nn.Linear(16, 10, key=c)]

    def __call__(self, x):
        for layer in self.layers[:-1]:
            x = layer(x)
        return self.layers[-1](x.mean((1, 2)))


def key():
    return jax.random.key(0)


TOKENS = integers(64, 12, dtype=np.int32)
PICTURE = floats(16, 16, 3)
MODELS = [
    Row("nnx_mlp", Mlp, {"x": floats(8)}, integers(3), is_open=True),
    Row("nnx_mlp_fresh", Mlp, {"x": floats(8)}, integers(3), is_moved=False, is_open=True),
    Row("nnx_scaled", Scaled, {"x": floats(8)}, integers(3)),
    Row("nnx_cnn_batch_norm", lambda: Cnn(lambda: nnx.BatchNorm(8, use_running_average=True, rngs=rngs())), {"x": PICTURE}, integers(10)),
    Row("nnx_cnn_group_norm", lambda: Cnn(lambda: nnx.GroupNorm(8, num_groups=2, rngs=rngs())), {"x": PICTURE}, integers(10)),
    Row("nnx_transformer", Transformer, {"tokens": TOKENS}, integers(64, 12)),
    Row("nnx_transformer_rms", lambda: Transformer(nnx.RMSNorm), {"tokens": TOKENS}, integers(64, 12)),
    Row("nnx_tied", Tied, {"tokens": TOKENS}, integers(64, 12)),
    Row("nnx_autoencoder", Autoencoder, {"x": PICTURE}, PICTURE, loss="mse"),
    Row("equinox_mlp", lambda: Batched(eqx.nn.MLP(8, 3, 16, 2, key=key())), {"x": floats(8)}, integers(3)),
    Row("equinox_cnn", lambda: Batched(EquinoxCnn(key())), {"x": floats(3, 16, 16)}, integers(10)),
]


def taken_apart(model):
    """(numbers that train, function of them and a batch, function that gives the module with them)"""
    if isinstance(model, nnx.Module):
        model.eval()
        graph, parameters, rest = nnx.split(model, nnx.Param, ...)
        def whole(p):
            return nnx.merge(graph, p, rest)
    else:
        parameters, rest = eqx.partition(model, eqx.is_inexact_array)
        def whole(p):
            return eqx.combine(p, rest)
    return parameters, whole


def loss_of(row, out, labels):
    if row.loss == "mse":
        return jnp.mean((out - labels) ** 2)
    logs = jax.nn.log_softmax(out)
    return -jnp.mean(jnp.take_along_axis(logs, labels[..., None], -1))


def train(row, parameters, whole, arrays, lr):
    step = jax.jit(jax.value_and_grad(lambda p, inputs, labels: loss_of(row, whole(p)(*inputs), labels)))
    losses = []
    for batch in case_files.batches(arrays, row.rows):
        loss, gradient = step(parameters, [batch[k] for k in row.inputs], batch["labels"])
        parameters = jax.tree.map(lambda a, g: a - lr * g, parameters, gradient)
        losses.append(float(loss))
    return losses, parameters


def named(parameters):
    return {jax.tree_util.keystr(k): np.asarray(v) for k, v in jax.tree_util.tree_leaves_with_path(parameters)}


def make(row, folder):
    parameters, whole = taken_apart(row.make())
    rng = case_files.random(7)
    if row.is_moved:
        parameters = jax.tree.map(lambda a: jnp.asarray(case_files.moved(np.asarray(a), rng)), parameters)
    arrays = case_files.draw(row.inputs | {"labels": row.labels}, row.rows)
    shapes = [jax.ShapeDtypeStruct((row.rows, *arrays[k].shape[1:]), arrays[k].dtype) for k in row.inputs]
    if row.is_open:
        shapes = [("B", *s.shape[1:]) for s in shapes]
    to_onnx(whole(parameters), shapes, opset=21, input_names=list(row.inputs), return_mode="file", output_path=str(folder / "model.onnx"))
    shaken = jax.tree.map(lambda a: jnp.asarray(case_files.moved(np.asarray(a), rng, case_files.SHAKEN * np.abs(a))), parameters)
    for lr in case_files.learning_rates(row.lr):
        losses, after = train(row, parameters, whole, arrays, lr)
        other_losses, other = train(row, shaken, whole, arrays, lr)
        if case_files.is_steady(losses, other_losses):
            break
    else:
        raise ValueError(f"no learning rate trains it steadily: losses {losses}")
    case_files.write(folder, arrays, named(parameters), named(after), [], losses, case_files.noise(named(after), named(other)),
                     exporter=row.exporter, form=row.form, is_moved=row.is_moved, lr=lr,
                     options=["--loss", row.loss, *(["--batch", str(row.rows)] if row.is_open else [])])


if __name__ == "__main__":
    case_files.main("jax", MODELS, make, ["jax", "jax2onnx", "flax", "equinox", "onnx"])
