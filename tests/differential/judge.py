"""Says of one case what the programs' answers mean.

The standard decides, not onnxruntime: where two programs differ, onnx's checker, the types that the
operators' schemas allow, and onnx's evaluator are asked too. A verdict is a word of VERDICTS; "finding"
is what nobody has explained.
"""
import re
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

import engines
import explained
import seeds

# Relative to the largest finite number of the tensor; integers and bool are equal.
TOLERANCES = {"float64": 1e-6, "float32": 1e-4, "float16": 4e-3, "bfloat16": 3e-2}
SMALL_FLOAT = 0.13  # of 8 bits and fewer: half a step of two mantissa bits
EXIT_USAGE, EXIT_INVALID, EXIT_UNSUPPORTED, EXIT_DATA = 2, 3, 4, 6
EXITS_OF_A_REFUSAL = (EXIT_INVALID, EXIT_UNSUPPORTED, EXIT_DATA)

VERDICTS = {
    "agree": "outputs agree with onnxruntime's",
    "agree onnx": "onnxruntime has no such kernel; outputs agree with onnx's evaluator's",
    "explained": "outputs differ, for a reason of explained.py",
    "alone": "outputs of gradc alone: neither onnxruntime nor onnx's evaluator has the operator or type",
    "both refuse": "gradc and onnxruntime refuse the model",
    "unsupported": "gradc says that it does not support the model (exit 4), or a file for an initializer (exit 2)",
    "invalid": "gradc and onnx's checker or schemas call the model invalid, onnxruntime runs it",
    "refusal explained": "one side refuses, for a reason of explained.py",
    "finding": "not explained",
}
COMPARED = ("agree", "agree onnx", "explained")


@dataclass
class Verdict:
    word: str
    detail: str = ""
    why: str = ""  # key of explained.py


# ---- arrays
def tolerance(dtype):
    if dtype.name in TOLERANCES:
        return TOLERANCES[dtype.name]
    return SMALL_FLOAT if dtype.kind not in "biu" and dtype.name.startswith("float") else 0


def difference(got, want, slack=None, limit=None):
    """None where the arrays agree, else one line. slack: an array of what is allowed beyond."""
    if isinstance(got, list) and isinstance(want, list):
        if len(got) != len(want):
            return f"a sequence of {len(got)}, expected {len(want)}"
        found = [difference(g, w) for g, w in zip(got, want)]
        return next((f"[{i}]: {d}" for i, d in enumerate(found) if d), None)
    if got is None or want is None:
        return None if got is want else "nothing and a value"
    if isinstance(got, list) or isinstance(want, list):
        return "a sequence and a tensor"
    if got.shape != want.shape:
        return f"shape {list(got.shape)}, expected {list(want.shape)}"
    if got.dtype != want.dtype:
        return f"type {got.dtype}, expected {want.dtype}"
    limit = tolerance(got.dtype) if limit is None else limit
    if not limit:
        if np.array_equal(got, want):
            return None
        i = np.unravel_index(np.argmax(got != want), got.shape)
        return f"{np.sum(got != want)} of {got.size} differ; {got[i]} expected {want[i]} at {list(map(int, i))}"
    with np.errstate(all="ignore"):
        g, w = got.astype(np.float64), want.astype(np.float64)
        finite = np.isfinite(w)
        scale = np.max(np.abs(w[finite]), initial=0)
        room = limit * scale + float(np.finfo(np.float32).tiny) + (0 if slack is None else slack)
        same = (np.isnan(g) & np.isnan(w)) | (g == w) | (np.abs(g - w) <= room) | np.isinf(room)
        if same.all():
            return None
        off = np.where(same, 0, np.where(np.isfinite(g - w), np.abs(g - w), np.inf))
    i = np.unravel_index(np.argmax(off), off.shape)
    return f"{np.sum(~same)} of {got.size} differ; {g[i]:.9g} expected {w[i]:.9g} at {list(map(int, i))}, " \
           f"largest {scale:.3g}"


def differences(got, want, slack=None):
    """{output: what differs}"""
    if sorted(got) != sorted(want):
        return {"": f"outputs {sorted(got)}, expected {sorted(want)}"}
    found = {k: difference(got[k], want[k], (slack or {}).get(k)) for k in want}
    return {k: d for k, d in found.items() if d}


# ---- models
def _has_rank(v):
    return v.type.WhichOneof("value") not in (None, "tensor_type") or v.type.tensor_type.HasField("shape")


def _with_ranks(model):
    """The checker wants a shape of each output; where nobody knows the rank, the output is left out."""
    known = [v for v in model.graph.output if _has_rank(v)]
    m = onnx.ModelProto()
    m.CopyFrom(onnx.shape_inference.infer_shapes(model) if len(known) < len(model.graph.output) else model)
    known = [v for v in m.graph.output if _has_rank(v)]
    del m.graph.output[:]
    m.graph.output.extend(known)
    return m


def checker_refuses(model):
    """What onnx's checker says against the model; None where it is content."""
    try:
        onnx.checker.check_model(_with_ranks(model), full_check=True)
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    except Exception as e:
        return f"{type(e).__name__}: {str(e)[:300]}"
    return None


def _type_name(element):
    return "tensor(" + onnx.TensorProto.DataType.Name(element).lower() + ")"


def _allowed(schema, kind):
    """The types of a formal parameter's type string."""
    constraint = next((c for c in schema.type_constraints if c.type_param_str == kind), None)
    return set(constraint.allowed_type_strs) if constraint else {kind}


def schema_refuses(model, types):
    """Which input has a type that its operator's schema does not allow; None where all do."""
    version = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
    for node in model.graph.node:
        if node.domain not in ("", "ai.onnx"):
            continue
        try:
            schema = onnx.defs.get_schema(node.op_type, version, "")
        except onnx.defs.SchemaError:
            return f"{node.op_type} does not exist in opset {version}"
        bound = {}
        for i, name in enumerate(node.input):
            if not schema.inputs:
                continue
            formal = schema.inputs[min(i, len(schema.inputs) - 1)]
            if name not in types:
                continue
            kind = _type_name(types[name])
            if kind not in _allowed(schema, formal.type_str) and \
                    not any("(" in t and t.startswith(("seq", "optional")) for t in
                            _allowed(schema, formal.type_str)):
                return f"{node.op_type}: input {i} is {kind}"
            if formal.is_homogeneous and bound.setdefault(formal.type_str, kind) != kind:
                return f"{node.op_type}: input {i} is {kind}, another {bound[formal.type_str]}"
    return None


def element_types(model):
    """{tensor: element type} by onnx's inference."""
    try:
        graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except Exception:
        graph = model.graph
    types = {v.name: v.type.tensor_type.elem_type for v in
             [*graph.input, *graph.value_info, *graph.output] if v.type.HasField("tensor_type")}
    types |= {t.name: t.data_type for t in model.graph.initializer}
    return {k: t for k, t in types.items() if t}


def standard_refuses(model):
    """What the standard says against the model, by onnx's checker and schemas; None: nothing."""
    return checker_refuses(model) or schema_refuses(model, element_types(model))


# ---- one answer of gradc
SANITIZER = re.compile(r"runtime error:|AddressSanitizer|LeakSanitizer|UndefinedBehavior")


def misbehaves(answer):
    """A crash, a hang, a report of a sanitizer, an exit code or silence that CLI.md does not know."""
    if SANITIZER.search(answer.message):
        return "sanitizer: " + "; ".join(line for line in answer.message.splitlines()
                                         if SANITIZER.search(line))[:300]
    if answer.ran:
        return None
    if answer.code == EXIT_USAGE and "no input of this name" in answer.message:
        return None  # onnxruntime lets a file replace an initializer; gradc says no
    if answer.code not in EXITS_OF_A_REFUSAL:
        return f"exit {answer.code}: {answer.message[-300:]}"
    if "gradc: error: " not in answer.message:
        return f"exit {answer.code} without a message"
    return None


def first_error(message):
    return next((line for line in message.splitlines() if ": error: " in line), message[:200])


# ---- where outputs differ
def with_all_outputs(model):
    """The model with every tensor that nodes compute as an output."""
    m = onnx.ModelProto()
    m.CopyFrom(model)
    held = {v.name for v in m.graph.output}
    types = element_types(model)
    for node in m.graph.node:
        for name in node.output:
            if name in types and name not in held:
                m.graph.output.append(helper.make_tensor_value_info(name, types[name], None))
                held.add(name)
    return m


@dataclass
class Place:
    """The first node whose outputs differ although its inputs agree."""
    node: onnx.NodeProto
    what: str
    inputs: list  # arrays; None where unknown
    got: np.ndarray
    want: np.ndarray
    by_evaluator: bool  # `want` is of onnx's evaluator, not of onnxruntime

    @property
    def off(self):
        """Where the two differ, as a mask."""
        with np.errstate(all="ignore"):
            g, w = self.got.astype(np.float64), self.want.astype(np.float64)
        return ~((g == w) | (np.isnan(g) & np.isnan(w)))

    def within(self, limit):
        """Whether all numbers agree within this share of the largest."""
        return difference(self.got.astype(np.float64), self.want.astype(np.float64), limit=limit) is None


def read_by(node):
    """Names that a node reads, those that its branches read from outside too."""
    names = list(node.input)
    for a in node.attribute:
        if a.type == a.GRAPH:
            names += [i for n in seeds.nodes_of(a.g) for i in n.input]
    return names


def first_difference(case, ask, ask_them):
    """A Place; None where the difference goes away when all tensors are outputs."""
    model = with_all_outputs(case.model)
    ours, theirs = ask(model), ask_them(model, case.feed)
    if not ours.ran or not theirs.ran:
        return None
    known = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    known |= {k: v for k, v in case.feed.items()} | theirs.outputs
    for node in model.graph.node:
        for name in node.output:
            if name in theirs.outputs and name in ours.outputs:
                got, want = ours.outputs[name], theirs.outputs[name]
                what = difference(got, want)
                if what and isinstance(got, np.ndarray) and isinstance(want, np.ndarray):
                    return Place(node, what, [known.get(i) for i in read_by(node)], got, want,
                                 ask_them is engines.ask_onnx)
    return None


def sensitivity(model, feed, base, ask_them):
    """{output: array}: how far the other side's own outputs move when float inputs move by their last bits;
    infinite where a number turns into NaN or back.

    Rounding before a jump (Floor, a comparison, a cancelled sum) makes any two programs differ; a
    difference within a few times of this says nothing."""
    moved = {}
    random = np.random.default_rng(0)
    for _ in range(4):
        m = onnx.ModelProto()
        m.CopyFrom(model)
        near = {k: _nudged(v, random) for k, v in feed.items()}
        for t in m.graph.initializer:
            if t.data_type in (1, 10, 11):
                t.CopyFrom(onnx.numpy_helper.from_array(
                    _nudged(onnx.numpy_helper.to_array(t), random), t.name))
        got = ask_them(m, near)
        if not got.ran:
            return {}
        for k, v in base.items():
            if not isinstance(v, np.ndarray) or got.outputs[k].shape != v.shape or v.dtype.kind not in "fiub":
                continue
            with np.errstate(all="ignore"):
                off = np.abs(np.asarray(got.outputs[k].astype(np.float64) - v.astype(np.float64)))
            same = ~np.isfinite(got.outputs[k].astype(float)) & ~np.isfinite(v.astype(float))
            moved[k] = np.maximum(moved.get(k, 0), np.where(np.isfinite(off), off, np.where(same, 0, np.inf)))
    return moved


def _nudged(a, random):
    if isinstance(a, list):
        return [_nudged(e, random) for e in a]
    if a is None or a.dtype.kind != "f" or a.dtype.name not in TOLERANCES:
        return a
    with np.errstate(all="ignore"):
        step = random.choice([-3, 0, 3], a.shape) * float(np.finfo(a.dtype).eps)
        return (a * (1 + step)).astype(a.dtype).reshape(a.shape)


# ---- verdicts
def _of_two_results(case, ask, ours, theirs, engine):
    found = differences(ours.outputs, theirs.outputs)
    if not found:
        return Verdict("agree")
    detail = f"{engine}: " + "; ".join(f"{k}: {d}" for k, d in list(found.items())[:3])
    place = first_difference(case, ask, engines.ask_onnxruntime)
    why = explained.of_values(case, place, found)
    if why:
        return Verdict("explained", detail, why)
    if is_conditioning(case, ours, theirs, found, engines.ask_onnxruntime):
        return Verdict("explained", detail, "conditioning")
    third = engines.ask_onnx(case.model, case.feed)
    where = f"first at {place.node.op_type}: {place.what}" if place else "no single node"
    if third.ran and not differences(ours.outputs, third.outputs):
        return Verdict("explained", f"{detail}\n  {where}", "onnx's evaluator")
    says = f"onnx's evaluator: {third.message[:200]}" if not third.ran else \
        f"onnx's evaluator agrees with onnxruntime: {not differences(theirs.outputs, third.outputs)}"
    return Verdict("finding", f"values {detail}\n  {where}\n  {says}")


def is_conditioning(case, ours, theirs, found, ask_them):
    """Whether rounding alone explains all that differs."""
    if "" in found:
        return False
    room = sensitivity(case.model, case.feed, theirs.outputs, ask_them)
    return bool(room) and not any(difference_with_room(ours.outputs[k], theirs.outputs[k], room.get(k))
                                  for k in found)


def difference_with_room(got, want, room):
    """difference(), with 8 times the room that rounding alone takes."""
    if room is None or not isinstance(got, np.ndarray) or got.shape != want.shape or got.dtype != want.dtype:
        return difference(got, want)
    if got.dtype.kind in "biu":
        with np.errstate(all="ignore"):
            off = np.abs(got.astype(np.float64) - want.astype(np.float64))
        return None if (off <= 8 * room).all() else difference(got, want)
    return difference(got, want, 8 * room)


def _of_gradc_alone(case, ask, ours, theirs, engine):
    """gradc gives outputs, onnxruntime refuses: onnx's evaluator is asked instead."""
    refusal = theirs.message.splitlines()[0][:300] if theirs.message else ""
    why = explained.of_onnxruntime(case, theirs.message)
    if why:
        return Verdict("refusal explained", refusal, why)
    against = standard_refuses(case.model)
    third = engines.ask_onnx(case.model, case.feed)
    why = explained.of_standard(case, against or "")
    if against and not why:
        return Verdict("finding", f"{engine} runs what the standard forbids: {against}\n  {refusal}")
    if not third.ran:
        if why or explained.lacks(theirs.message) and explained.evaluator_lacks(third.message):
            return Verdict("alone", f"{refusal}\n  {third.message[:200]}", why)
        return Verdict("finding", f"{engine} runs alone: onnxruntime: {refusal}\n  "
                                  f"onnx's evaluator: {third.message[:300]}")
    found = differences(ours.outputs, third.outputs)
    if not found:
        return Verdict("agree onnx", refusal, why)
    place = first_difference(case, ask, engines.ask_onnx)
    why = explained.of_values(case, place, found)
    if why:
        return Verdict("explained", str(found), why)
    if is_conditioning(case, ours, third, found, engines.ask_onnx):
        return Verdict("explained", str(found), "conditioning")
    where = f"first at {place.node.op_type}: {place.what}" if place else "no single node"
    return Verdict("finding", f"{engine} against onnx's evaluator: {found}\n  {where}\n  {refusal}")


def _of_gradcs_refusal(case, ours, theirs, engine):
    """onnxruntime gives outputs, gradc refuses."""
    error = first_error(ours.message)
    if ours.code in (EXIT_UNSUPPORTED, EXIT_USAGE):
        return Verdict("unsupported", error)
    against = standard_refuses(case.model)
    if against:
        return Verdict("invalid", f"{error}\n  {against}")
    why = explained.of_gradc(case, ours.message)
    if why:
        return Verdict("refusal explained", error, why)
    return Verdict("finding", f"{engine} refuses, exit {ours.code}: {error}")


def judge(case, gradc, folder, engine):
    """The verdict on one case by one engine of gradc."""
    def ask(model):
        return engines.ask_gradc(gradc, model, case.feed, folder, engine)

    ours = ask(case.model)
    wrong = misbehaves(ours)
    if wrong:
        return Verdict("finding", f"{engine}: {wrong}")
    theirs = engines.ask_onnxruntime(case.model, case.feed)
    if ours.ran and theirs.ran:
        return _of_two_results(case, ask, ours, theirs, engine)
    if ours.ran:
        return _of_gradc_alone(case, ask, ours, theirs, engine)
    if theirs.ran:
        return _of_gradcs_refusal(case, ours, theirs, engine)
    return Verdict("both refuse", first_error(ours.message))
