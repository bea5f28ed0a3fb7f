"""Adam, Adagrad and Momentum of ai.onnx.preview.training: one update, differentiable by all that it reads."""
import numpy as np

from case import Case, numbers

DOMAIN = "ai.onnx.preview.training"
RATE = np.float64(0.3)


def adam(alpha=0.9, beta=0.999, epsilon=1e-6, norm=0.0, post=0.0):
    alpha, beta, epsilon, norm, post = (float(np.float32(v)) for v in (alpha, beta, epsilon, norm, post))

    def update(r, t, *tensors):
        n = len(tensors) // 4
        moved, first, second = [], [], []
        for x, g, v, h in zip(*(tensors[i * n:(i + 1) * n] for i in range(4))):
            g = norm * x + g
            v, h = alpha * v + (1 - alpha) * g, beta * h + (1 - beta) * g * g
            k = int(t)
            rate = r * (1 - beta**k) ** 0.5 / (1 - alpha**k) if k else r
            moved.append((1 - post) * (x - rate * v / (h.sqrt() + epsilon)))
            first.append(v)
            second.append(h)
        return (*moved, *first, *second)
    return update


def adagrad(epsilon=1e-6, decay=0.0, norm=0.0):
    epsilon, decay, norm = (float(np.float32(v)) for v in (epsilon, decay, norm))

    def update(r, t, *tensors):
        n, moved, sums = len(tensors) // 3, [], []
        for x, g, h in zip(*(tensors[i * n:(i + 1) * n] for i in range(3))):
            g = norm * x + g
            h = h + g * g
            moved.append(x - r / (1 + int(t) * decay) * g / (h.sqrt() + epsilon))
            sums.append(h)
        return (*moved, *sums)
    return update


def momentum(alpha, beta, norm, nesterov=False):
    alpha, beta, norm = (float(np.float32(v)) for v in (alpha, beta, norm))

    def update(r, t, x, g, v):
        g = norm * x + g
        v = alpha * v + (beta if int(t) else 1) * g
        return x - r * (g + alpha * v if nesterov else v), v
    return update


def inputs(kinds, *shapes, t=0, rate=RATE):
    """R, T, then X1 X2 ..., G1 G2 ..., and each kind of moment; moments are positive, as sums of squares are."""
    out = {"R": rate, "T": np.int64(t)}
    for i, kind in enumerate(["X", "G", *kinds]):
        for k, shape in enumerate(shapes):
            low = 0.2 if kind == "H" else -1
            out[f"{kind}{k}"] = numbers(*shape, seed=10 * i + k, low=low)
    return out


def case(name, op, kinds, update, shapes, attrs, t=0, rate=RATE):
    return Case(name, op, inputs(kinds, *shapes, t=t, rate=rate), update, attrs, outputs=(1 + len(kinds)) * len(shapes), opset=17,
                domain=DOMAIN)


PAIR = [(3, 5), (7,)]
CASES = [
    case("Adam", "Adam", "VH", adam(), [(5,)], {}),
    case("Adam_later", "Adam", "VH", adam(), [(5,)], {}, t=3),
    case("Adam_all", "Adam", "VH", adam(0.7, 0.8, 0.1, 0.3, 0.2), PAIR,
         {"alpha": 0.7, "beta": 0.8, "epsilon": 0.1, "norm_coefficient": 0.3, "norm_coefficient_post": 0.2}, t=2),
    case("Adam_rate_of_rank_1", "Adam", "VH", adam(), [(2, 3)], {}, rate=np.array([0.2])),
    case("Adam_one", "Adam", "VH", adam(), [(1,)], {}, t=1),
    case("Adam_scalar", "Adam", "VH", adam(), [()], {}, t=1),
    case("Adam_none", "Adam", "VH", adam(), [(0, 3)], {}, t=1),
    case("Adagrad", "Adagrad", "H", adagrad(), [(5,)], {}),
    case("Adagrad_all", "Adagrad", "H", adagrad(0.1, 0.5, 0.3), PAIR, {"epsilon": 0.1, "decay_factor": 0.5, "norm_coefficient": 0.3}, t=3),
    case("Momentum", "Momentum", "V", momentum(0.9, 0.5, 0.1), [(3, 5)],
         {"mode": "standard", "alpha": 0.9, "beta": 0.5, "norm_coefficient": 0.1}),
    case("Momentum_later", "Momentum", "V", momentum(0.9, 0.5, 0.1), [(3, 5)],
         {"mode": "standard", "alpha": 0.9, "beta": 0.5, "norm_coefficient": 0.1}, t=2),
    case("Momentum_nesterov", "Momentum", "V", momentum(0.9, 0.5, 0.1, True), [(1, 7)],
         {"mode": "nesterov", "alpha": 0.9, "beta": 0.5, "norm_coefficient": 0.1}, t=2),
]
