"""If, Loop and Scan: nested, with captures, outputs that are stacked, and trips that are known or not."""
import numpy as np
from case import Case, numbers
from onnx import TensorProto, helper, numpy_helper

DOUBLE, INT64, BOOL = TensorProto.DOUBLE, TensorProto.INT64, TensorProto.BOOL


def graph(case, nodes, inputs="", outputs="", **constants):
    """Of the lines of `nodes`: RESULTS = OPERATOR OPERANDS; a name with a dot before it is one that `case` captures."""
    info = {"i": (INT64, ()), "go": (BOOL, ()), "again": (BOOL, ())}
    ports = [[helper.make_tensor_value_info(name, *info.get(name, (DOUBLE, None))) for name in names.split()] for names in (inputs, outputs)]
    made = []
    for line in nodes:
        (results, words), attrs = (line if isinstance(line, str) else line[0]).split(" = "), {} if isinstance(line, str) else line[1]
        op, *operands = words.split()
        made.append(helper.make_node(op, [case + x if x.startswith(".") else x for x in operands], results.split(), name=f"{case}/{op}", **attrs))
    return helper.make_graph(made, "g", *ports, [numpy_helper.from_array(np.asarray(x), name) for name, x in constants.items()])


# ---- Loop: h' = tanh(h W) + x; a row is i h'
def recurrence(case, more=(), outputs="again next row", **constants):
    return graph(case, ["a = MatMul h .w", "t = Tanh a", "next = Add t .x", ("number = Cast i", {"to": DOUBLE}), "row = Mul next number",
                        *(more or ["again = Identity go"])], "i go h", outputs, **constants)


def run_recurrence(most, goes_on=lambda h: True):
    def run(trips, begins, h, w, x):
        import torch
        rows, i = [], 0
        while i < most(trips):
            h = torch.tanh(h @ w) + x
            rows.append(i * h)
            i += 1
            if not goes_on(h):
                break
        return h, torch.stack(rows)
    return run


def loop(name, trips, begins=None, torch=None, body=None, outputs=2, captures=("w", "x"), **more):
    given = {"trips": None if trips is None else np.int64(trips), "begins": begins, "h": numbers(2, 3, seed=1), "w": numbers(3, 3, seed=2),
             "x": numbers(2, 3, seed=3)}
    given = {key: x for key, x in given.items() if key in ("trips", "begins", "h", *captures)}
    case = f"Loop_{name}"
    return Case(case, "Loop", given, torch or run_recurrence(int), {"body": (body or recurrence)(case)}, outputs=outputs, captures=captures, **more)


def ends(case):
    """Goes on while h's sum is below 3."""
    return recurrence(case, [("s = ReduceSum next", {"keepdims": 0}), "again = Less s three"], "again next", three=np.float64(3))


def few(case):
    """Goes on while i is below 5, which is known."""
    return recurrence(case, ["again = Less i five"], five=np.int64(5))


def grows(case):
    """Carries a tensor that is one row longer each time."""
    return graph(case, [("next = Concat h .x", {"axis": 0}), "row = ReduceSum next axis", "again = Identity go"],
                 "i go h", "again next row", axis=np.int64([0]))


def run_growing(trips, begins, h, x):
    import torch
    rows = []
    for _ in range(int(trips)):
        h = torch.cat([h, x])
        rows.append(h.sum(0, keepdim=True))
    return h, torch.stack(rows)


def nested(case):
    """In each iteration an inner loop, whose rows decide over a branch."""
    inner = graph(case, ["q = Mul v .x", "s = Sin q", "after = Add s h", ("more = Identity go2")], "", "")
    inner = helper.make_graph(inner.node, "inner", [helper.make_tensor_value_info("j", INT64, ()), helper.make_tensor_value_info("go2", BOOL, ()),
                                                    helper.make_tensor_value_info("v", DOUBLE, None)],
                              [helper.make_tensor_value_info("more", BOOL, ()), helper.make_tensor_value_info("after", DOUBLE, None),
                               helper.make_tensor_value_info("q", DOUBLE, None)])
    yes, no = graph(case, ["big = MatMul last .w"], "", "big"), graph(case, ["small = Sub h .x"], "", "small")
    return graph(case, [("last qs = Loop five none h", {"body": inner}), ("sum = ReduceSum qs", {"keepdims": 0}), "up = Greater sum zero",
                        ("next = If up", {"then_branch": yes, "else_branch": no}), ("row = ReduceMean qs first", {"keepdims": 0}),
                        "again = Identity go"], "i go h", "again next row", first=np.int64([0]), five=np.int64(5), none=np.bool_(True), zero=np.float64(0))


def run_nested(trips, begins, h, w, x):
    import torch
    rows = []
    for _ in range(int(trips)):
        v, qs = h, []
        for _ in range(5):
            qs.append(v * x)
            v = torch.sin(qs[-1]) + h
        qs = torch.stack(qs)
        h = v @ w if qs.sum() > 0 else h - x
        rows.append(qs.mean(0))
    return h, torch.stack(rows)


# ---- Scan: (s, a) -> s' = s W + a, a row of sin(s')
def scan_body(case):
    return graph(case, ["p = MatMul s .w", "next = Add p a", "row = Sin next"], "s a", "next row")


def run_scan(axis=0, reverse=False, out_axis=0, out_reverse=False):
    def run(s, a, w):
        import torch
        rows = []
        a = a.movedim(axis, 0)
        for t in reversed(range(len(a))) if reverse else range(len(a)):
            s = s @ w + a[t]
            rows.append(torch.sin(s))
        rows = torch.stack(rows[::-1] if out_reverse else rows) if rows else torch.zeros(0, 3, dtype=s.dtype)
        return s, rows.movedim(0, out_axis)
    return run


def scan(name, shape, torch, **attrs):
    case = f"Scan_{name}"
    return Case(case, "Scan", {"s": numbers(3, seed=1), "a": numbers(*shape, seed=2), "w": numbers(3, 3, seed=3)}, torch,
                {"body": scan_body(case), "num_scan_inputs": 1, **attrs}, outputs=2, captures=("w",))


def rows_of_rows(case):
    """Scans each row of what is scanned, itself scanned, and a value that is stacked as well."""
    inner = graph(case, ["after = Add v e", "line = Mul after f"], "v e f", "after line")
    return graph(case, ["made = Mul .w a", ("next lines = Scan s a made", {"body": inner, "num_scan_inputs": 2})], "s a", "next made lines")


def run_rows_of_rows(s, a, w):
    import torch
    made, lines = [], []
    for row in a:
        made.append(w * row)
        mine = []
        for k in range(len(row)):
            s = s + row[k]
            mine.append(s * made[-1][k])
        lines.append(torch.stack(mine))
    return s, torch.stack(made), torch.stack(lines)


# ---- If
def branch(name, condition, torch, fed=("c",), constants=()):
    case = f"If_{name}"
    return Case(case, "If", {"c": np.bool_(condition), "x": numbers(2, 3, seed=1), "w": numbers(3, 3, seed=2)}, torch,
                {"then_branch": graph(case, ["a = MatMul .x .w", "y = Exp a"], "", "y"), "else_branch": graph(case, ["z = Mul .x .x"], "", "z")},
                captures=("x", "w"), fed=fed, constants=constants)


CASES = [
    loop("many", 10), loop("few", 3), loop("one", 1), loop("given", 7, fed=("trips",)), loop("begins", 6, np.bool_(True)),
    loop("ends", 20, torch=run_recurrence(int, lambda h: float(h.sum().detach()) < 3), body=ends, outputs=1),
    loop("without_trips", None, np.bool_(True), run_recurrence(lambda _: 6), few), loop("grows", 6, torch=run_growing, body=grows, captures=("x",)),
    loop("nested", 8, torch=run_nested, body=nested),
    scan("plain", (5, 3), run_scan()), scan("one", (1, 3), run_scan()), scan("empty", (0, 3), run_scan()),
    scan("reverse", (5, 3), run_scan(reverse=True), scan_input_directions=[1]),
    scan("axes", (3, 6), run_scan(1, True, 1, True), scan_input_axes=[1], scan_input_directions=[1], scan_output_axes=[-1], scan_output_directions=[1]),
    Case("Scan_rows_of_rows", "Scan", {"s": numbers(3, seed=1), "a": numbers(4, 5, 3, seed=2), "w": numbers(5, 3, seed=3)}, run_rows_of_rows,
         {"body": rows_of_rows("Scan_rows_of_rows"), "num_scan_inputs": 1}, outputs=3, captures=("w",)),
    branch("yes", True, lambda c, x, w: (x @ w).exp()), branch("no", False, lambda c, x, w: x * x, constants=("w",)),
    branch("known", True, lambda c, x, w: (x @ w).exp(), fed=()),
]
