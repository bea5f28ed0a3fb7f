"""PyTorch's losses in f64 of the model of tests/train/while_model.py, by SGD: while_losses.json."""
import json
import sys
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "train"))
import while_model as m  # noqa: E402


def main():
    w, v, x, y = (torch.from_numpy(m.data()[name]).double() for name in ("W", "V", "x", "y"))
    w, v = w.requires_grad_(), v.requires_grad_()
    losses, trips, branches = [], [], []
    for step in range(m.STEPS):
        at = step * m.BATCH % m.ROWS
        s, n = x[at:at + m.BATCH], 0
        while n < m.TRIPS and (n == 0 or (s * s).sum() > 1):
            s, n = torch.tanh(s @ w), n + 1
        positive = bool(s.sum() > 0)
        loss = (((s @ w if positive else -s) @ v - y[at:at + m.BATCH]) ** 2).mean()
        grads = torch.autograd.grad(loss, [w, v])
        with torch.no_grad():
            w -= m.LR * grads[0]
            v -= m.LR * grads[1]
        losses.append(loss.item())
        trips.append(n)
        branches.append(positive)
    found = {"torch": torch.__version__, "losses": losses, "trips": trips, "branches": branches}
    (HERE / "while_losses.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
