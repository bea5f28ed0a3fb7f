"""Large graphs go through every pass within 1 GiB. How long it takes is bench/passes' question."""
import resource
import subprocess

import deep_models
import pytest

GIB = 1 << 30


@pytest.mark.parametrize("make, n", [(deep_models.layers, 1000), (deep_models.nodes, 20000)])
def test_large_graphs_fit_a_gibibyte(gradc, tmp_path, make, n):
    model = make(tmp_path / "model.onnx", n)
    done = subprocess.run(
        [gradc, "dump", model, "--stage=memory", "--batch=32", "--loss=mse", "--optimizer=adamw",
         "--time-passes"], capture_output=True, text=True, timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (GIB, GIB)))
    assert done.returncode == 0, done.stderr[-2000:]
    passes = [line.split()[0] for line in done.stderr.splitlines() if line and "%" not in line]
    assert passes[0] == "precision" and passes[-2:] == ["memory", "all"]
    assert done.stdout.count("launch") > 100
