"""A device whose streams run on threads of their own, with random delays and memory that the host cannot read: training
gives the bits of the CPU, and each kind of WAIT is needed."""
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import reference
import unpack
from checkpoints import steps_of
from tables import EVENT, KIND, STREAM, Tables

ON_CPU, ON_ASYNC = ("--libraries=off",), ("--device=async",)
RANKS = ("mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", 2)
QUIET = ("--progress=off", "--table=off")


def train(models, name, folder, executable, *options, steps=7, env=None, command=(), exit=0):
    """(losses, norms and so on of all steps, the exported model)"""
    folder = Path(tempfile.mkdtemp(dir=folder))
    given = [o for o in reference.train_options(name, "f32")
             if not o.startswith(("--steps", "--accumulate", "--log", "--progress", "--threads"))]
    words = [*command, executable, *given, f"--steps={steps}", "--log", folder / "log.jsonl", "--export",
             folder / "model.onnx", *QUIET, *options]
    done = subprocess.run([str(w) for w in words], cwd=models / name, text=True, capture_output=True, timeout=300,
                          env=dict(os.environ, **(env or {})))
    assert exit is None or done.returncode == exit, done.stderr
    model = folder / "model.onnx"
    return steps_of(folder / "log.jsonl"), model.read_bytes() if model.exists() else None


@pytest.mark.parametrize("name", [*filter(unpack.has_kernels_of_its_own, reference.NAMES)])
@pytest.mark.parametrize("accumulate, steps", [(1, 7), (3, 3)])
def test_the_bits_of_the_cpu(of_trace, models, tmp_path, name, accumulate, steps):
    """Over seven micro-batches or more: each of the two turns of an input comes several times."""
    option = f"--accumulate={accumulate}"
    want = train(models, name, tmp_path, of_trace(name), *ON_CPU, option, steps=steps)
    assert len(want[0]) == steps and len({s["loss"] for s in want[0]}) > 1
    assert train(models, name, tmp_path, of_trace(name), *ON_ASYNC, option, steps=steps) == want


@pytest.mark.parametrize("name", ["cnn_mnist", "gpt2_mini"])
@pytest.mark.parametrize("reduce", ["ordered", "fast"])
def test_ranks_have_the_bits_of_the_cpu(of_trace, models, tmp_path, name, reduce):
    """Gradients, sums and running statistics of two ranks, through the host's memory."""
    if not shutil.which("mpirun.openmpi"):
        pytest.skip("mpirun.openmpi is not installed")
    want = train(models, name, tmp_path, of_trace(name), *ON_CPU, f"--reduce={reduce}", steps=4, command=RANKS)
    assert train(models, name, tmp_path, of_trace(name), *ON_ASYNC, f"--reduce={reduce}", steps=4, command=RANKS) == want


# ---- edges: what must be ordered, on which stream its WAIT stands, and the stream of the producer
def waits(tables, stream, event=None):
    return [i for i in range(len(tables)) if tables[i]["kind"] == KIND["WAIT"]
            and tables[i]["stream"] == STREAM[stream]
            and (tables[i]["what"] == EVENT[event] if event else tables[i]["what"] >= EVENT["N_SHARED_EVENTS"])]


EDGES = {
    "input before compute": ("STREAM_COMPUTE", "EVENT_IO_FILLED", "STREAM_COPY_IN", 1),
    "compute before the input's next turn": ("STREAM_COPY_IN", "EVENT_IO_FREE", "STREAM_COMPUTE", 1),
    "scalars before the update": ("STREAM_COMPUTE", "EVENT_STEP_FILLED", "STREAM_COPY_IN", 1),
    "results before the host reads": ("STREAM_COPY_OUT", "EVENT_STEP_FREE", "STREAM_COMPUTE", 1),
    "compute before communication": ("STREAM_COMMUNICATION", None, "STREAM_COMPUTE", 2),
    "communication before update": ("STREAM_COMPUTE", None, "STREAM_COMMUNICATION", 2),
}


@pytest.mark.parametrize("edge", EDGES)
def test_a_lost_wait_is_seen(of_trace, models, tmp_path, edge):
    """With the producer made slow the schedule as compiled gives the right bits, and without that WAIT it does not: in one
    of a few tries, since a busy machine may hold the consumer up for longer than the producer."""
    stream, event, producer, ranks = EDGES[edge]
    command = ()
    if ranks > 1:
        if not shutil.which("mpirun.openmpi"):
            pytest.skip("mpirun.openmpi is not installed")
        command = RANKS
    whole = of_trace("mlp_digits")
    slow = {"GRADC_ASYNC_SLOW": str(STREAM[producer])}
    options = (f"--accumulate={4 if event == 'EVENT_IO_FREE' else 1}",)
    want = train(models, "mlp_digits", tmp_path, whole, *ON_CPU, *options, steps=3, command=command)
    tables = Tables(whole)
    lost = waits(tables, stream, event)
    assert lost
    for i in lost:
        tables.never(i, ranks)
    broken = tables.write(tmp_path / "broken")

    def slowly(executable, exit):
        return train(models, "mlp_digits", tmp_path, executable, *ON_ASYNC, *options, steps=3, env=slow, command=command, exit=exit)

    with ThreadPoolExecutor(2) as pool:  # both sleep nearly all the time
        got, without = pool.map(slowly, (whole, broken), (0, None))
    assert got == want
    assert without[0] != want[0] or any(slowly(broken, None)[0] != want[0] for _ in range(4))
