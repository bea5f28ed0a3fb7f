"""What the host asks of the driver in a step."""
import json
import re

import pytest
from pretended import ON_GPU
from tables import ROOT

SYMBOLS = ROOT / "runtime/cuda/driver_symbols.def"
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
