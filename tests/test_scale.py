"""Large graphs go through every pass within few bytes a node, however many there are. How long it takes is bench/passes' question."""
import resource
import subprocess

import deep_models
import pytest

MIB = 1 << 20


@pytest.mark.parametrize("make, n, most", [(deep_models.layers, 2500, 384), (deep_models.nodes, 20000, 384), (deep_models.blocks, 1000, 384)])
def test_large_graphs_fit(gradc, tmp_path, make, n, most):
    """n times 2, 1 and 7 ONNX nodes, in `most` MiB of address space."""
    model = make(tmp_path / "model.onnx", n)
    done = subprocess.run(
        [gradc, "dump", model, "--stage=memory", "--batch=32", "--loss=mse", "--optimizer=adamw",
         "--time-passes"], capture_output=True, text=True, timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (most * MIB, most * MIB)))
    assert done.returncode == 0, done.stderr[-2000:]
    passes = [line.split()[0] for line in done.stderr.splitlines() if line and "%" not in line]
    assert passes[0] == "precision" and passes[-2:] == ["memory", "all"]
    assert done.stdout.count("launch") > 100
