"""The programs that are compared: onnxruntime, gradc's two engines, and onnx's own evaluator."""
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

import seeds

os.environ.setdefault("ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")
ROOT = Path(__file__).resolve().parents[2]
NATIVE = frozenset("float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool".split())
TIMEOUT = 30


@dataclass
class Answer:
    """What one program did with one case: outputs by name, or why there are none."""
    outputs: dict = None
    message: str = ""
    code: int = 0

    @property
    def ran(self):
        return self.outputs is not None


def arrays_of(value):
    """The arrays of an input or output: an array, a list of them, or None."""
    return value if isinstance(value, list) else [] if value is None else [value]


# ---- onnxruntime
def _native(model, feed):
    ports = [seeds.tensor_type_in(v.type) for v in [*model.graph.input, *model.graph.output]]
    return all(helper.tensor_dtype_to_np_dtype(t.elem_type).name in NATIVE for t in ports if t and t.elem_type) and \
        all(a.dtype.name in NATIVE for v in feed.values() for a in arrays_of(v))


def onnxruntime_session(model):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.use_deterministic_compute = True
    return onnxruntime.InferenceSession(model.SerializeToString(), options,
                                        providers=["CPUExecutionProvider"])


def ask_onnxruntime(model, feed):
    if not _native(model, feed):
        return Answer(message="NOT_IMPLEMENTED: NumPy has no such type")
    try:
        session = onnxruntime_session(model)
        names = [o.name for o in session.get_outputs()]
        known = {i.name for i in session.get_inputs()} | \
            {i.name for i in session.get_overridable_initializers()}
        got = session.run(names, {k: np.asarray(v) if isinstance(v, np.generic) else v for k, v in feed.items() if k in known})
    except Exception as e:  # its exceptions have no common base
        return Answer(message=f"{type(e).__name__}: {e}")
    return Answer(outputs=dict(zip(names, got)))


# ---- onnx's evaluator
def _plain(value):
    """An optional that has nothing is None, or a list of None."""
    if isinstance(value, (list, tuple)):
        return None if len(value) == 1 and value[0] is None else [np.asarray(a) for a in value]
    return value if value is None else np.asarray(value)


def ask_onnx(model, feed):
    sys.path.insert(0, str(ROOT / "tests"))
    import widened
    from onnx.reference import ReferenceEvaluator

    widened.mend_evaluator()
    names = [o.name for o in model.graph.output]
    try:
        with np.errstate(all="ignore"):
            got = ReferenceEvaluator(model).run(names, feed)
    except Exception as e:
        return Answer(message=f"{type(e).__name__}: {e}")
    return Answer(outputs=dict(zip(names, (_plain(g) for g in got))))


# ---- gradc
def _as_message(value, name, kind):
    if kind == "optional_type":
        return numpy_helper.from_optional(value, name)
    if kind == "sequence_type":
        return numpy_helper.from_list(value, name, onnx.SequenceProto.TENSOR)
    return numpy_helper.from_array(np.asarray(value, order="C"), name)


def _write_feed(feed, folder):
    """As the model beside it declares its inputs."""
    model = onnx.load(folder / "model.onnx")
    kinds = {v.name: v.type.WhichOneof("value") for v in model.graph.input}
    arguments = []
    for i, (name, value) in enumerate(feed.items()):
        path = folder / f"input_{i}.pb"
        path.write_bytes(_as_message(value, name, kinds.get(name)).SerializeToString())
        arguments.append(f"--input={name}={path}")
    return arguments


def command_line(gradc, folder, feed, engine):
    return [str(gradc), "run", str(folder / "model.onnx"), f"--engine={engine}", "--output-format=pb",
            f"--output-dir={folder / ('out-' + engine)}", *_write_feed(feed, folder)]


MESSAGES = {"": onnx.TensorProto, "sequence": onnx.SequenceProto, "optional": onnx.OptionalProto}  # by names.json's kind

KINDS = {"tensor_type": "", "sequence_type": "sequence", "optional_type": "optional"}


def _read_outputs(folder, model):
    declared = {v.name: KINDS.get(v.type.WhichOneof("value")) for v in model.graph.output}
    outputs = {}
    for name, entry in json.loads((folder / "names.json").read_text()).items():
        kind = entry.get("kind", "").split(" ")[0]
        if declared[name] not in (None, kind):
            raise ValueError(f"{name} is written as \"{kind}\", declared as \"{declared[name]}\"")
        outputs[name] = seeds.read_message(folder / entry["file"], MESSAGES[kind])
    return outputs


def ask_gradc(gradc, model, feed, folder, engine):
    """gradc run on the case, in a folder of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    command = command_line(gradc, folder, feed, engine)
    try:
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return Answer(code=-1, message=f"no end after {TIMEOUT} s")
    message = (done.stderr + done.stdout).decode(errors="replace")
    answer = Answer(code=done.returncode, message=message)
    if done.returncode == 0:
        try:
            answer.outputs = _read_outputs(folder / f"out-{engine}", model)
        except (OSError, ValueError, KeyError) as e:
            answer.code, answer.message = -2, f"outputs cannot be read: {e}\n{message}"
    return answer
