"""What the host asks of the driver in a step, and that the order between streams which a WAIT makes is needed."""
import json
import re

import pytest
from checkpoints import steps_of
from pretended import ON_GPU, openmpi
from tables import ROOT, Tables
from test_async import EDGES, waits

SYMBOLS = ROOT / "runtime/device/cuda/driver_symbols.def"
# In any number: the thread's context, and questions that do not wait.
ASKED = {"cuCtxSetCurrent", "cuEventQuery", "cuStreamQuery", "cuEventElapsedTime"}
QUEUED = {"cuGraphLaunch", "cuEventRecord", "cuStreamWaitEvent"}


def calls_of(trainer, steps, *options):
    path = trainer.folder / f"calls-{steps}"
    trainer.run(ON_GPU, f"--steps={steps}", *options, fake={"COUNT": path, "DELAY": 0})
    return json.loads(path.read_text())


def test_nothing_that_waits_is_called():
    """The host asks whether something is done: a driver that is stuck keeps no thread of ours."""
    names = re.findall(r'"(cu\w+)"', SYMBOLS.read_text())
    assert len(names) > 40
    assert not [n for n in names if "Synchron" in n or (n.startswith(("cuMemcpy", "cuMemset")) and not n.endswith("Async"))]


@pytest.mark.parametrize("name, options", [("mlp_digits", ()), ("mlp_digits", ("--accumulate=3",)), ("gpt2_mini_fresh", ())], ids=str)
def test_later_steps_are_graphs(gpu, tmp_path, name, options):
    """No kernel, copy or task is given to the driver by itself any more, and each step is as many graphs and events as any other."""
    trainer = gpu.trainer(gpu.compile(name), tmp_path)
    some, more, most = (calls_of(trainer, steps, *options) for steps in (6, 10, 14))
    steps = {call: (more[call] - some[call]) / 4 for call in more if call not in ASKED and more[call] != some[call]}
    assert {call: (most[call] - more[call]) / 4 for call in steps} == steps and steps.keys() == QUEUED
    micro_batches = int(options[0][-1]) if options else 1
    assert all(n == int(n) for n in steps.values()) and steps["cuGraphLaunch"] <= 3 * micro_batches + 3


# ---- test_async.py's edges
# In these orders, which FAKE_CUDA_SLOW counts, by the number of ranks.
MADE = {1: ("STREAM_COMPUTE", "STREAM_COPY_IN"), 2: ("STREAM_COMPUTE", "STREAM_COMMUNICATION", "STREAM_COPY_IN")}


@pytest.mark.parametrize("edge", EDGES)
def test_a_lost_wait_is_seen(gpu, tmp_path, edge):
    """With the producer made slow the schedule as compiled gives the right bits, and without that WAIT it does not."""
    stream, event, producer, ranks = EDGES[edge]
    exe = gpu.compile("mlp_digits")
    trainer = gpu.trainer(exe, tmp_path)
    if ranks > 1:
        trainer.launcher = openmpi()
    options = (ON_GPU, "--steps=4", f"--accumulate={4 if event == 'EVENT_IO_FREE' else 1}")
    slow = {"SLOW": MADE[ranks].index(producer)}
    want = trainer.result(*options, name="want")
    assert trainer.result(*options, name="slow", fake=slow) == want
    tables = Tables(exe.path)
    lost = waits(tables, stream, event)
    assert lost
    for i in lost:
        tables.never(i, ranks)
    trainer.exe = tables.write(tmp_path / "broken")
    for _ in range(3):  # a busy machine makes all of them slow
        trainer.run(*options, "--log=broken.jsonl", fake=slow, exit=None)
        if steps_of(tmp_path / "broken.jsonl") != want[0]:
            return
    raise AssertionError("nobody missed the wait")
