"""The optimizers in numpy, in f64: what a parameter p becomes with gradient g at update t, from 1. state is a dict that starts empty."""
import numpy as np


def sign(x):
    return np.sign(x)


def sgd(p, g, state, t, lr, weight_decay=0.0):
    return p - lr * (g + weight_decay * p)


def momentum(p, g, state, t, lr, momentum=0.9, weight_decay=0.0, dampening=0.0, nesterov=False):
    g = g + weight_decay * p
    state["buf"] = g if t == 1 else momentum * state["buf"] + (1 - dampening) * g
    return p - lr * (g + momentum * state["buf"] if nesterov else state["buf"])


def adam(p, g, state, t, lr, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0, decoupled=False, amsgrad=False):
    if decoupled:
        p = p * (1 - lr * weight_decay)
    else:
        g = g + weight_decay * p
    state["m"] = beta1 * state.get("m", 0) + (1 - beta1) * g
    v = state["v"] = beta2 * state.get("v", 0) + (1 - beta2) * g * g
    if amsgrad:
        v = state["largest"] = np.maximum(state.get("largest", 0), v)
    return p - lr / (1 - beta1 ** t) * state["m"] / (np.sqrt(v) / np.sqrt(1 - beta2 ** t) + eps)


def lion(p, g, state, t, lr, beta1=0.9, beta2=0.99, weight_decay=0.0):
    m = state.get("m", np.zeros_like(p))
    state["m"] = beta2 * m + (1 - beta2) * g
    return p * (1 - lr * weight_decay) - lr * sign(beta1 * m + (1 - beta1) * g)


def adagrad(p, g, state, t, lr, eps=1e-10, weight_decay=0.0, lr_decay=0.0):
    g = g + weight_decay * p
    state["sum"] = state.get("sum", 0) + g * g
    return p - lr / (1 + (t - 1) * lr_decay) * g / (np.sqrt(state["sum"]) + eps)


def rmsprop(p, g, state, t, lr, alpha=0.99, eps=1e-8, weight_decay=0.0, momentum=0.0, centered=False):
    g = g + weight_decay * p
    v = state["v"] = alpha * state.get("v", 0) + (1 - alpha) * g * g
    if centered:
        state["a"] = alpha * state.get("a", 0) + (1 - alpha) * g
        v = v - state["a"] ** 2
    step = state["buf"] = momentum * state.get("buf", 0) + g / (np.sqrt(v) + eps)
    return p - lr * step


def adadelta(p, g, state, t, lr, rho=0.9, eps=1e-6, weight_decay=0.0):
    g = g + weight_decay * p
    state["v"] = rho * state.get("v", 0) + (1 - rho) * g * g
    delta = np.sqrt(state.get("a", 0) + eps) / np.sqrt(state["v"] + eps) * g
    state["a"] = rho * state.get("a", 0) + (1 - rho) * delta * delta
    return p - lr * delta


def nadam(p, g, state, t, lr, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0, momentum_decay=0.004, decoupled=False):
    if decoupled:
        p = p * (1 - lr * weight_decay)
    else:
        g = g + weight_decay * p
    here, after = (beta1 * (1 - 0.5 * 0.96 ** (i * momentum_decay)) for i in (t, t + 1))
    state["product"] = state.get("product", 1) * here
    state["m"] = beta1 * state.get("m", 0) + (1 - beta1) * g
    state["v"] = beta2 * state.get("v", 0) + (1 - beta2) * g * g
    d = np.sqrt(state["v"] / (1 - beta2 ** t)) + eps
    return p - lr * (1 - here) / (1 - state["product"]) * g / d - lr * after / (1 - state["product"] * after) * state["m"] / d


def radam(p, g, state, t, lr, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0, decoupled=False):
    if decoupled:
        p = p * (1 - lr * weight_decay)
    else:
        g = g + weight_decay * p
    state["m"] = beta1 * state.get("m", 0) + (1 - beta1) * g
    state["v"] = beta2 * state.get("v", 0) + (1 - beta2) * g * g
    m, c2, most = state["m"] / (1 - beta1 ** t), 1 - beta2 ** t, 2 / (1 - beta2) - 1
    r = most - 2 * t * beta2 ** t / c2
    if r <= 5:
        return p - lr * m
    return p - lr * m * np.sqrt(c2) / (np.sqrt(state["v"]) + eps) * np.sqrt((r - 4) * (r - 2) * most / ((most - 4) * (most - 2) * r))


def lamb(p, g, state, t, lr, beta1=0.9, beta2=0.999, eps=1e-6, weight_decay=0.0, adapts=True):
    state["m"] = beta1 * state.get("m", 0) + (1 - beta1) * g
    state["v"] = beta2 * state.get("v", 0) + (1 - beta2) * g * g
    r = state["m"] / (1 - beta1 ** t) / (np.sqrt(state["v"] / (1 - beta2 ** t)) + eps) + weight_decay * p
    return p - lr * (np.linalg.norm(p) / np.linalg.norm(r) if adapts else 1) * r


def rms(x):
    return np.sqrt(np.mean(x * x))


def adafactor(p, g, state, t, lr, eps=1e-3, weight_decay=0.0, beta2_decay=-0.8, d=1.0):
    """eps1 is torch's for the dtype of the program; f64's here, as it hardly matters."""
    by, least = t ** beta2_decay, np.finfo(np.float64).eps
    alpha = max(eps, rms(p)) * min(lr, 1 / np.sqrt(t))
    p = p * (1 - lr * weight_decay)
    if p.ndim > 1:
        for name, axis in (("rows", -1), ("columns", -2)):
            old = state.get(name, 0)
            state[name] = old + by * (np.mean(g * g, axis=axis, keepdims=True) - old)
        v = state["rows"] @ state["columns"] / max(state["rows"].mean(), least)
    else:
        v = state["v"] = state.get("v", 0) + by * (g * g - state.get("v", 0))
    step = g / np.sqrt(np.maximum(v, least ** 2))
    return p - alpha / max(1, rms(step) / d) * step


def newton_schulz(x, steps=5, eps=1e-7, a=3.4445, b=-4.775, c=2.0315):
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / max(np.linalg.norm(x), eps)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


def muon(p, g, state, t, lr, momentum=0.95, weight_decay=0.1, nesterov=True, match_rms=False, **iteration):
    m = state["m"] = state.get("m", 0) + (1 - momentum) * (g - state.get("m", 0))
    step = newton_schulz(g + momentum * (m - g) if nesterov else m, **iteration)
    inputs, outputs = p.shape
    size = 0.2 * np.sqrt(max(inputs, outputs)) if match_rms else np.sqrt(max(1, outputs / inputs))
    return p * (1 - lr * weight_decay) - lr * size * step


def schedule_free(x, gradient, state, t, lr, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0, r=0.0, weight_lr_power=2.0):
    """As the reference: y and z are kept, and x follows from them. gradient is a function of the point that it is taken at."""
    y, z = state.get("y", x), state.get("z", x)
    g = gradient(y)
    state["largest"] = max(state.get("largest", 0), lr)
    weight = t ** r * state["largest"] ** weight_lr_power
    state["sum"] = state.get("sum", 0) + weight
    c = weight / state["sum"]
    state["v"] = beta2 * state.get("v", 0) + (1 - beta2) * g * g
    d = g / (np.sqrt(state["v"] / (1 - beta2 ** t)) + eps) + weight_decay * y
    state["y"] = y + c * (z - y) + lr * (beta1 * (1 - c) - 1) * d
    state["z"] = z - lr * d
    return state["y"] + (1 - 1 / beta1) * (state["z"] - state["y"])
