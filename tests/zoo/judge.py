"""Compiles and trains a folder of case_files.py with gradc and compares: every step's loss, and who trains.

A tensor of the ONNX file is a parameter of the framework if it has its values, in any order; then it must have the
parameter's values after training, too. Names help only where values are the same. What differs must have been said:
by a note, a warning, a doubt or a row of the table that names it.
"""
import json
import re
import subprocess
from collections import defaultdict

import numpy as np
import onnx
from onnx import numpy_helper

LOSS_LIMIT = 1e-4
# Wider limits of the relative difference of losses, each with its reason.
LOSS_LIMITS = {}
UNKNOWN, AMBIGUOUS = -1, -2
MOVED_LIMIT = 0.02     # of a parameter's largest movement: how far its values after training may be from the framework's
NOISE = 2e-6           # of the largest movement of all: rounding where a gradient is zero in exact arithmetic
ROUNDING = 1e-6        # of the largest value: five updates in f32


def onnx_tensors(path):
    """{name: array} of the float tensors: initializers, Constant nodes, and Identity nodes of initializers."""
    graph = onnx.load(path).graph
    found = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    for n in graph.node:
        if n.op_type == "Constant" and n.attribute and n.attribute[0].name == "value":
            found[n.output[0]] = numpy_helper.to_array(n.attribute[0].t)
        elif n.op_type == "Identity" and n.input[0] in found:
            found[n.output[0]] = found[n.input[0]]
    return {k: v for k, v in found.items() if v.dtype.kind == "f" and v.size}


def largest(a):
    return float(np.abs(a).max()) if a.size else 0.0


def change(before, after):
    """The difference; equal infinities have none."""
    with np.errstate(invalid="ignore"):
        return np.where(before == after, 0, after - before)


class Framework:
    """Its parameters and buffers before and after, to be found by their values."""

    def __init__(self, folder, buffers, noise):
        arrays = np.load(folder / "tensors.npz")
        self.before = {k[7:]: arrays[k] for k in arrays.files if k.startswith("before/") and arrays[k].size}
        self.after = {k: arrays["after/" + k] for k in self.before}
        self.buffers, self.noise = set(buffers), noise
        self.movement = {k: largest(change(v, self.after[k])) for k, v in self.before.items()}
        self.most = max(v for k, v in self.movement.items() if k not in self.buffers)
        self.covered = {k: np.zeros(v.size, bool) for k, v in self.before.items()}
        self.by_values = defaultdict(list)
        for k, v in self.before.items():
            self.by_values[np.sort(v, None).tobytes()].append(k)
        self.names = list(self.before)
        self.start = np.cumsum([0] + [v.size for v in self.before.values()])
        flat = np.concatenate([v.ravel() for v in self.before.values()])
        self.order = np.argsort(flat, kind="stable")
        self.sorted = flat[self.order]
        self.flat_after = np.concatenate([v.ravel() for v in self.after.values()])

    def moves(self, name):
        return self.movement[name] > ROUNDING * largest(self.before[name]) / 10 + NOISE * self.most

    def allowed(self, name):
        return (MOVED_LIMIT * self.movement[name] + NOISE * self.most + 10 * self.noise.get(name, 0) +
                ROUNDING * max(largest(self.before[name]), self.movement[name]))

    def same_values(self, array):
        return self.by_values.get(np.sort(array.astype(np.float32), None).tobytes(), [])

    def elements(self, array):
        """Where each element comes from: AMBIGUOUS if it is the value of several, UNKNOWN if of none, or 0 or 1. None if
        most are neither."""
        a = array.astype(np.float32).ravel()
        at = np.minimum(np.searchsorted(self.sorted, a), len(self.sorted) - 1)
        after = np.minimum(at + 1, len(self.sorted) - 1)
        found = (self.sorted[at] == a) & ~np.isin(a, (0, 1))
        once = found & ((after == at) | (self.sorted[after] != a))
        where = np.where(once, self.order[at], np.where(found, AMBIGUOUS, UNKNOWN))
        return where if once.mean() >= 0.5 and len(np.unique(a)) > 1 else None

    def difference(self, name, before, after):
        """How far the ONNX tensor is from the parameter after training, over what is allowed."""
        want, got = self.after[name].ravel(), after.ravel()
        if self.before[name].shape != before.shape or not np.array_equal(self.before[name], before):
            if len(np.unique(before)) < before.size:
                want, got = np.sort(want), np.sort(got)
            else:
                want = want[np.argsort(self.before[name], None, kind="stable")]
                got = got[np.argsort(before, None, kind="stable")]
        return largest(want - got) / self.allowed(name)


def plain(name):
    return re.sub(r"[^a-z0-9]+", ".", name.lower()).strip(".")


def who_trains(framework, before, after, unreached):
    """[(what differs, names of tensors, whether it is about who trains and not only about values)]. What is lost may have
    become a tensor of as many elements."""
    found, unknown, worst, orphans = [], [], {}, {}
    for name, b in before.items():
        a = after[name]
        moved = largest(change(b, a)) > ROUNDING * largest(b[np.isfinite(b)]) / 10 + NOISE * framework.most
        same = framework.same_values(b)
        named = [k for k in same if plain(k) == plain(name) or plain(name).endswith("." + plain(k))
                 or plain(k).endswith("." + plain(name))]
        at = None if same else framework.elements(b)
        if named or (same and (moved or b.size > 1)):
            best = min(named or same, key=lambda k: framework.difference(k, b, a))
            worst[name] = framework.difference(best, b, a), best, moved, b.size
        elif at is not None:
            compare_elements(framework, name, b.ravel(), a.ravel(), at, found)
        else:
            orphans[name] = b.size
            if moved:
                unknown.append(name)
    settle(framework, worst, unreached, found)
    for name in unknown:
        found.append((f"{name} trains and has the values of no parameter", [name], True))
    for name in framework.before:
        missing = ~framework.covered[name]
        if name not in framework.buffers and framework.moves(name) and missing.any():
            lost = largest(change(framework.before[name], framework.after[name]).ravel()[missing])
            if lost > framework.allowed(name):
                made_of_it = [k for k, size in orphans.items() if size == missing.size]
                found.append((f"{name} trains in the framework and is not in the file", [name, *made_of_it], True))
    return found


def compare_elements(framework, name, before, after, at, found):
    """A tensor that is made of parameters' elements: cut, joined with others, or with copies of some."""
    limit = ROUNDING * largest(before) / 10 + NOISE * framework.most
    if largest((after - before)[at == UNKNOWN]) > max(limit, framework.most * MOVED_LIMIT):
        found.append((f"elements of {name} train and are of no parameter", [name], True))
    owners = np.searchsorted(framework.start, at, side="right") - 1
    for i in np.unique(owners[at >= 0]):
        owner, mine = framework.names[i], owners == i
        moved = largest((after - before)[mine]) > limit
        off = largest(after[mine] - framework.flat_after[at[mine]])
        if owner in framework.buffers:
            if moved and off > framework.allowed(owner):
                found.append((f"{name} trains and is the buffer {owner}", [name, owner], True))
            continue
        covered = framework.covered[owner]
        covered[at[mine] - framework.start[i]] = True
        if (at == AMBIGUOUS).any():
            covered |= np.isin(framework.before[owner].ravel(), before[at == AMBIGUOUS])
        if off > framework.allowed(owner):
            copies = len(np.unique(at[mine])) < mine.sum()
            what = "trains as another number" if moved else "does not train"
            what = "has copies that train apart" if copies and moved else what
            found.append((f"{name}, of elements of {owner}, {what}", [name, owner], copies or not moved))


def settle(framework, worst, unreached, found):
    """Tensors of the file by the parameter whose values they have. A second copy that the loss does not reach may stay."""
    agreeing = {owner for off, owner, _, _ in worst.values() if off <= 1}
    for name, (off, owner, moved, _) in worst.items():
        framework.covered[owner][:] = True
        if off <= 1 or (name in unreached and owner in agreeing):
            continue
        names = [name, owner]
        if owner in framework.buffers:
            # ONNX's running variance is that of the population, PyTorch's that of a sample.
            if moved and not (owner.endswith("running_var") and framework.moves(owner)):
                found.append((f"{name} trains and is the buffer {owner}", names, True))
        elif not framework.moves(owner):
            found.append((f"{name} trains and {owner} does not in the framework", names, True))
        elif not moved:
            found.append((f"{name} does not train and {owner} does in the framework", names, True))
        else:
            found.append((f"{name} trains otherwise than {owner}: {off:.2g} of what is allowed", names, False))


def run(command, folder):
    return subprocess.run([str(c) for c in command], cwd=folder, text=True, capture_output=True, timeout=900)


def said_by(gradc, folder, options):
    """[(line of check that tells of what the export changed or what is in doubt, where in it the tensors' names are)], and
    what no gradient reaches."""
    done = run([gradc, "check", "--json", "model.onnx", *options], folder)
    if done.returncode:
        return [], set()
    told = json.loads(done.stdout)
    lines = [(f"note: {n}", n) for n in told["notes"]]
    lines += [(f'doubtful: {d["name"]} {d["kind"]}: for a parameter: {d["for"]}; against: {d["against"]}; '
               f'to {d["option"][2:].split("=")[0]} it: {d["option"]}', d["name"]) for d in told["doubtful"]]
    lines += [(f'{p["name"]}: {p["why"]}',) * 2 for p in told["parameters"] if "computed from" in p["why"]]
    unreached = {p["name"] for p in told["parameters"] if "reach" in p["why"]}
    return lines + [(line,) * 2 for line in done.stderr.splitlines() if "warning" in line], unreached


def is_told(what, names, lines):
    """The line that names one of the tensors; or, of what the exporter computed, one whose list was cut."""
    short = [n.removeprefix("module.") for n in names]
    layers = [n.split("/")[-2] for n in names if n.count("/") == 2 and ":" not in n]  # Keras: sequential/dense_3/bias
    for line, about in lines:
        if any(re.search(rf"(?<![\w.]){re.escape(n)}(?:_1)?(?![\w])", about) for n in [*names, *short, *layers]):
            return line
    if "does not" in what:
        return None
    return next((line for line, _ in lines if re.search(r"and \d+ more", line) or "batch norms folded into" in line), None)


def message_of(text):
    """The errors of a refusal, with the hints below them."""
    lines = [line.strip() for line in text.splitlines() if re.search(r"error:|hint:|unsupported|not supported", line)]
    return " / ".join(dict.fromkeys(lines))[:400]


def judge(gradc, folder):
    """The row of one model in results.json."""
    case = json.loads((folder / "case.json").read_text())
    result = {k: case.get(k) for k in ("exporter", "form", "is_moved", "parameters")}
    if "error" in case:
        return result | dict(result="not exported", message=case["error"])
    compiled = run([gradc, "compile", "model.onnx", "-o", "train", "--optimizer", "sgd", *case["options"]], folder)
    if compiled.returncode in (2, 3, 4):
        return result | dict(result="refused", message=message_of(compiled.stderr))
    if compiled.returncode:
        return result | dict(result="wrong", message=f"compile: exit {compiled.returncode}: {message_of(compiled.stderr)}")
    data = [w for name in case["inputs"] for w in ("--data", f"{name}={name}.npy")]
    trained = run([folder / "train", *data, "--shuffle", "off", "--steps", "5", "--lr", repr(case["lr"]), "--table", "off",
                   "--log", "log.jsonl", "--export", "out.onnx"], folder)
    (folder / "train").unlink()
    if trained.returncode:
        return result | dict(result="wrong", message=f"train: exit {trained.returncode}: {message_of(trained.stderr)}")
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in log if "lr" in line]
    want = np.array(case["losses"])
    off = np.abs(np.array(losses) - want) / np.maximum(np.abs(want), 1e-3)
    framework = Framework(folder, case["buffers"], case.get("noise", {}))
    lines, unreached = said_by(gradc, folder, case["options"])
    before, after = onnx_tensors(folder / "model.onnx"), onnx_tensors(folder / "out.onnx")
    # What the exporter had merged or dropped is in the export again, under the module's name.
    before |= {k: framework.before[k].reshape(after[k].shape) for k in after.keys() - before.keys()
               if k in framework.before and framework.before[k].size == after[k].size}
    found = who_trains(framework, before, after, unreached)
    result |= dict(loss_difference=float(off.max()))
    return result | verdict(off, found, lines, LOSS_LIMITS.get(folder.name, LOSS_LIMIT))


def verdict(off, found, lines, limit):
    about_who = [(text, names) for text, names, who in found if who]
    silent = [text for text, names in about_who if not is_told(text, names, lines)]
    if silent:
        return dict(result="wrong", message="; ".join(silent[:3]) + (f"; and {len(silent) - 3} more" if len(silent) > 3 else ""))
    by_statistics = next((line for line, _ in lines if "read running statistics in a model exported for training" in line), None)
    if off[0] > limit and not by_statistics:
        return dict(result="wrong", message=f"the first loss is {off[0]:.2g} off")
    told = [is_told(text, names, lines) for text, names in about_who] or ([by_statistics] if by_statistics else [])
    if about_who or (by_statistics and off.max() > limit):
        return dict(result="told", message="; ".join(dict.fromkeys(told))[:400], differs=[t for t, _ in about_who][:3])
    if off.max() > limit:
        return dict(result="wrong", message=f"losses are {off.max():.2g} off")
    if found:
        return dict(result="wrong", message="; ".join(text for text, _, _ in found[:3]))
    return dict(result="right")
