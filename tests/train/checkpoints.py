"""What the tests of checkpoints share: a small model, its data, runs of it, and faults."""
import json
import os
import shutil
import signal
import struct
import subprocess
from pathlib import Path

import numpy as np
import reference

HERE = Path(__file__).resolve().parent


class Trainer:
    """One executable with its data. run(...) gives the finished process; exit codes are checked."""

    def __init__(self, exe, data, folder):
        self.exe, self.data, self.folder = exe, [str(d) for d in data], folder

    def command(self, *options):
        """Later ones of an option take the place of earlier ones."""
        last = {str(o).split("=")[0]: o for o in ("--progress=off", "--table=off", *options) if "=" in str(o)}
        given = [str(o) for o in ("--progress=off", "--table=off", *options)]
        return [str(self.exe), *self.data, *[o for o in given if str(last.get(o.split("=")[0], o)) == o]]

    def run(self, *options, exit=0, env=None, timeout=120):
        done = subprocess.run(self.command(*options), cwd=self.folder, capture_output=True, text=True,
                              timeout=timeout, env={**os.environ, **(env or {})})
        assert exit is None or done.returncode == exit, (
            f"exit {done.returncode}, expected {exit}\n{done.stdout}\n{done.stderr}")
        return done

    def start(self, *options, hangup=signal.SIG_DFL, env=None):
        return subprocess.Popen(self.command(*options), cwd=self.folder, stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})},
                                preexec_fn=lambda: signal.signal(signal.SIGHUP, hangup))

    def result(self, *options, name, **more):
        """(log lines of the steps without their times, exported bytes) of a run."""
        log, model = self.folder / f"{name}.jsonl", self.folder / f"{name}.onnx"
        self.run(*options, "--log", log, "--export", model, **more)
        return steps_of(log), model.read_bytes()


def steps_of(log):
    """What a log has of its steps but times and memory."""
    keys = ("step", "loss", "lr", "grad_norm", "count", "samples", "eval_loss")
    return [{k: line[k] for k in keys if k in line} for line in reference.log_lines(log)]


def digits_data(models, prefix=""):
    option = "--eval-data" if prefix else "--data"
    return [option, f"input={models}/mlp_digits/{prefix}input.npy", option,
            f"labels={models}/mlp_digits/{prefix}labels.npy"]


def checkpoints(folder):
    """Steps of the checkpoints of a folder."""
    return sorted(int(p.name[5:]) for p in Path(folder).glob("step-*"))


def temporaries(folder):
    return sorted(p.name for p in Path(folder).glob(".gradc-*"))


def build_faults(folder):
    library = folder / "faults.so"
    subprocess.run(["cc", "-D_GNU_SOURCE", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library,
                    HERE / "checkpoint/faults.c", "-ldl"], check=True)
    return library


def fault(library, call, at, how, times=1, path=".gradc-checkpoint", log=None):
    """The environment in which this call fails."""
    env = {"LD_PRELOAD": str(library), "FAULT_CALL": call, "FAULT_AT": str(at), "FAULT_HOW": str(how),
           "FAULT_TIMES": str(times), "FAULT_PATH": path}
    return {**env, "FAULT_LOG": str(log)} if log else env


# ---- a checkpoint edited as an adversary would: with checksums that fit

CHECKSUM = b'{\n "checksum": "'


def read_manifest(folder):
    return json.loads((Path(folder) / "manifest.json").read_text())


def write_manifest(folder, manifest, text=None):
    """With the checksum that belongs to it; text: instead of the JSON, from its second entry on."""
    import xxhash
    body = {k: v for k, v in (manifest or {}).items() if k != "checksum"}
    tail = (text or json.dumps(body, indent=1)[1:] + "\n").encode()
    tail = b'",' + tail
    hexed = xxhash.xxh3_64_hexdigest(tail).encode()
    (Path(folder) / "manifest.json").write_bytes(CHECKSUM + hexed + tail)


def read_shard(path):
    raw = Path(path).read_bytes()
    n, = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8:8 + n]), raw[8 + n:]


def write_shard(path, header, data, text=None):
    text = (text or json.dumps(header)).encode()
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def vouch_for(folder):
    """Gives the manifest the sizes and header checksums of the shards as they are."""
    import xxhash
    manifest = read_manifest(folder)
    for shard in manifest["shards"]:
        raw = (Path(folder) / shard["file"]).read_bytes()
        n, = struct.unpack("<Q", raw[:8])
        shard["bytes"] = len(raw)
        shard["header"] = xxhash.xxh3_64_hexdigest(raw[:8 + n])
    write_manifest(folder, manifest)


def copy(source, target):
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    return Path(target)


SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
TYPES = {"f32": np.float32, "f64": np.float64}


def pieces_of(entry):
    """Those of a tensor of a manifest; a whole one is one."""
    whole = {"first": 0, "count": int(np.prod(entry["shape"])), **{k: entry[k] for k in ("shard", "checksum") if k in entry}}
    return entry.get("pieces", [whole])


def tensors(folder):
    """{name: array} of a checkpoint, read without gradc."""
    manifest, found = read_manifest(folder), {}
    shards = [read_shard(Path(folder) / shard["file"]) for shard in manifest["shards"]]
    for entry in manifest["tensors"]:
        rows = []
        for piece in pieces_of(entry):
            header, data = shards[piece["shard"]]
            of = header[entry["name"]]
            first, last = of["data_offsets"]
            rows.append(np.frombuffer(data[first:last], {"F32": np.float32, "F64": np.float64, "I64": np.int64}[of["dtype"]]))
            assert len(rows[-1]) == piece["count"]
        found[entry["name"]] = np.concatenate(rows).reshape(entry["shape"])
    return found
