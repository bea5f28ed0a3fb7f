"""Training on the pretended GPU gives PyTorch's losses, the CPU's by the same executable, and the same bits each time.

The first steps of all traces in f32, and of three in f64, of models with kernels of their own. GRADC_CUDA_FULL=1 (make cuda-full): all steps of all.
"""
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import reference
import unpack
from pretended import ON_CPU, ON_GPU
from tolerances import limit

FULL = bool(os.environ.get("GRADC_CUDA_FULL"))
SANITIZED = os.environ.get("GRADC_SANITIZED")
FIRST, PROCESSES = 5, 2
IN_F64 = ("cnn_mnist", "lr_iris_ml", "mlp_digits")
CASES = [t for t in reference.traces()
         if FULL or (unpack.has_kernels_of_its_own(t[0]) and (t[2] == "f32" or (t[0] in IN_F64 and t[1] == 0)))]


@pytest.fixture(scope="module")
def curves(request, gpu, tmp_path_factory):
    """curves(case): losses on the GPU and on the CPU. Those of all tests that were chosen, two cases at a time."""

    def both(case):
        name, trace, precision = case
        exe, folder = gpu.compile(name, precision, trace), tmp_path_factory.mktemp("curves")
        trainer = gpu.trainer(exe, folder)
        steps = [] if FULL else [f"--steps={FIRST}"]
        return [trainer.losses(device, *steps, name=device[9:], timeout=1200) for device in (ON_GPU, ON_CPU)]

    chosen = {item.callspec.params["case"]: None for item in request.session.items
              if item.path == Path(__file__) and item.originalname == "test_losses" and not item.get_closest_marker("skip")}
    pool = ThreadPoolExecutor(PROCESSES)
    started = {case: pool.submit(both, case) for case in chosen}
    yield lambda case: started[case].result()
    pool.shutdown(cancel_futures=True)


def far(got, want):
    return max(abs(a - b) / abs(b) for a, b in zip(got, want))


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_losses(curves, case):
    name, trace, precision = case
    want = reference.load(name)["traces"][trace][precision]["losses"]
    on_gpu, on_cpu = curves(case)
    assert len(on_gpu) == len(on_cpu) == (len(want) if FULL else FIRST)
    assert far(on_gpu, want) <= limit(f"loss {precision}", name)
    assert far(on_gpu[:FIRST], on_cpu) <= limit(f"devices {precision}", name)


@pytest.mark.parametrize("name", ["mlp_digits"] if SANITIZED else ["mlp_digits", "gpt2_mini_fresh"])
def test_three_runs_are_identical(gpu, tmp_path, name):
    """Whatever the order of blocks, and however long each piece of work waits: all that a log has of steps, and the exported weights."""
    trainer = gpu.trainer(gpu.compile(name), tmp_path)
    found = [trainer.result(ON_GPU, "--steps=4", name=str(seed), fake={"SEED": seed, "DELAY": 100 * seed}) for seed in range(3)]
    steps, weights = found[0]
    assert [s["step"] for s in steps] == [1, 2, 3, 4] and len({s["loss"] for s in steps}) == 4
    assert found[1] == found[2] == (steps, weights)
