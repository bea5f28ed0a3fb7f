"""RNN, GRU and LSTM, against the standard's formulas in PyTorch."""
import numpy as np
from case import Case, numbers

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
DEFAULTS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}


def activations():
    import torch
    from torch.nn import functional as F
    return {"Sigmoid": torch.sigmoid, "Tanh": torch.tanh, "Relu": torch.relu, "Softsign": F.softsign, "Softplus": F.softplus,
            "Affine": lambda x: 0.75 * x + 0.25, "LeakyRelu": lambda x: F.leaky_relu(x, 0.375), "Elu": lambda x: F.elu(x, 0.625),
            "ScaledTanh": lambda x: 0.875 * torch.tanh(0.5 * x), "HardSigmoid": lambda x: torch.clamp(0.375 * x + 0.5, 0, 1),
            "ThresholdedRelu": lambda x: torch.where(x > 0.25, x, torch.zeros_like(x))}


def cell(op, f, xt, h, c, w, r, b, p, attrs):
    import torch
    clip, n = attrs.get("clip"), r.shape[1]
    gates = GATES[op]
    act = [lambda x, g=g: g(x if clip is None else torch.clamp(x, -clip, clip)) for g in f]
    b = torch.zeros(2 * gates * n, dtype=xt.dtype) if b is None else b
    x = (xt @ w.T + b[:gates * n]).split(n, -1)
    R, rb = r.split(n, 0), b[gates * n:].split(n, -1)
    if op == "RNN":
        return act[0](x[0] + h @ R[0].T + rb[0]), None
    if op == "GRU":
        z, reset = (act[0](x[k] + h @ R[k].T + rb[k]) for k in (0, 1))
        inner = reset * (h @ R[2].T + rb[2]) if attrs.get("linear_before_reset") else (reset * h) @ R[2].T + rb[2]
        return (1 - z) * act[1](x[2] + inner) + z * h, None
    pi, po, pf = p.split(n, -1) if p is not None else (0, 0, 0)
    pre = [x[k] + h @ R[k].T + rb[k] for k in range(4)]  # i o f c
    i = act[0](pre[0] + pi * c)
    forget = 1 - i if attrs.get("input_forget") else act[0](pre[2] + pf * c)
    c = forget * c + i * act[1](pre[3])
    return act[0](pre[1] + po * c) * f[2](c), c


def reference(op, attrs):
    def run(x, w, r, b=None, lengths=None, h0=None, c0=None, p=None):
        import torch
        layout, direction = attrs.get("layout", 0), attrs.get("direction", "forward")
        x = x.transpose(0, 1) if layout else x
        steps, batch, n = x.shape[0], x.shape[1], r.shape[2]
        dirs = w.shape[0]
        names, table = attrs.get("activations", DEFAULTS[op] * dirs), activations()
        ys, hs, cs = [], [], []
        for d in range(dirs):
            first = lambda v: torch.zeros(batch, n, dtype=x.dtype) if v is None else (v[:, d] if layout else v[d])
            h, c = first(h0), first(c0)
            f = [table[a] for a in names[d * len(names) // dirs:]]
            order = range(steps - 1, -1, -1) if direction == "reverse" or d else range(steps)
            rows = [None] * steps
            for t in order:
                new, cell_state = cell(op, f, x[t], h, c, w[d], r[d], None if b is None else b[d], None if p is None else p[d], attrs)
                live = torch.ones(batch, 1, dtype=torch.bool) if lengths is None else (t < lengths)[:, None]
                h = torch.where(live, new, h)
                c = torch.where(live, cell_state, c) if op == "LSTM" else c
                rows[t] = torch.where(live, new, torch.zeros_like(new))
            ys.append(torch.stack(rows) if rows else torch.zeros(0, batch, n, dtype=x.dtype))
            hs.append(h)
            cs.append(c)
        y, h, c = torch.stack(ys, 1), torch.stack(hs), torch.stack(cs)
        if layout:
            y, h, c = y.permute(2, 0, 1, 3), h.transpose(0, 1), c.transpose(0, 1)
        return (y, h, c) if op == "LSTM" else (y, h)
    return run


def recurrent(name, op, steps=4, batch=3, inputs=2, hidden=3, bias=True, lengths=None, initial=False, peepholes=False, **attrs):
    dirs = 2 if attrs.get("direction") == "bidirectional" else 1
    gates, layout = GATES[op], attrs.get("layout", 0)
    state = (batch, dirs, hidden) if layout else (dirs, batch, hidden)
    given = {"x": numbers(*((batch, steps, inputs) if layout else (steps, batch, inputs)), seed=1),
             "w": numbers(dirs, gates * hidden, inputs, seed=2), "r": numbers(dirs, gates * hidden, hidden, seed=3),
             "b": numbers(dirs, 2 * gates * hidden, seed=4) if bias else None,
             "lengths": None if lengths is None else np.int32(lengths),
             "h0": numbers(*state, seed=5) if initial else None}
    if op == "LSTM":
        given |= {"c0": numbers(*state, seed=6) if initial else None, "p": numbers(dirs, 3 * hidden, seed=7) if peepholes else None}
    return Case(f"{op}_{name}", op, given, reference(op, attrs), {"hidden_size": hidden, **attrs}, outputs=3 if op == "LSTM" else 2, opset=22)


CASES = [case for op in GATES for case in (
    recurrent("plain", op, bias=False), recurrent("biased", op, initial=True), recurrent("one", op, steps=1, batch=1, inputs=1, hidden=1),
    recurrent("empty", op, steps=0, initial=True), recurrent("reverse", op, direction="reverse", initial=True),
    recurrent("both", op, steps=5, direction="bidirectional", initial=True),
    recurrent("lengths", op, steps=5, lengths=[5, 0, 3], initial=True),
    recurrent("lengths_both", op, steps=5, lengths=[2, 5, 1], initial=True, direction="bidirectional"),
    recurrent("batch_first", op, layout=1, initial=True, direction="bidirectional"), recurrent("clipped", op, clip=0.3125),
)] + [
    recurrent("linear", "GRU", linear_before_reset=1, initial=True), recurrent("linear_both", "GRU", linear_before_reset=1, direction="bidirectional"),
    recurrent("relu", "GRU", activations=["HardSigmoid", "Softsign"], activation_alpha=[0.375], activation_beta=[0.5]),
    recurrent("peepholes", "LSTM", peepholes=True, initial=True), recurrent("coupled", "LSTM", input_forget=1, peepholes=True),
    recurrent("activations", "LSTM", direction="bidirectional", initial=True,
              activations=["Sigmoid", "Softplus", "Affine", "HardSigmoid", "ScaledTanh", "Elu"],
              activation_alpha=[0.75, 0.375, 0.875, 0.625], activation_beta=[0.25, 0.5, 0.5]),
    recurrent("leaky", "RNN", activations=["LeakyRelu"], activation_alpha=[0.375], direction="forward"),
    recurrent("thresholded", "RNN", activations=["ThresholdedRelu"], activation_alpha=[0.25]), recurrent("relu", "RNN", activations=["Relu"]),
]
