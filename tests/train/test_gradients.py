"""Gradients of the first batch against PyTorch's, every parameter, by `gradc grad`."""
import numpy as np
import pytest
import reference
from tolerances import limit


def expected(name, grads):
    """{parameter: gradient}: a tied parameter has the name and layout of its first initializer."""
    want = dict(grads)
    tied = reference.load(name)["tied"] or {}
    for key in [k for k in want if k.startswith("tied:")]:
        total = want.pop(key)
        for part in tied["initializers"]:
            want.pop(part)
        want[tied["initializers"][0]] = total
    return want


def compare(name, precision, got, want):
    """Faults, one line each."""
    zero = set(reference.load(name)["zero_gradient"])
    largest = max(np.linalg.norm(g) for g in want.values())
    faults = [f"no gradient of {k}" for k in want if k not in got]
    faults += [f"a gradient of {k}, which is not trained" for k in got if k not in want]
    for key in sorted(set(got) & set(want)):
        if got[key].shape != want[key].shape:
            faults.append(f"{key}: shape {got[key].shape}, expected {want[key].shape}")
            continue
        scale = largest if key in zero else np.linalg.norm(want[key])
        off = np.linalg.norm(got[key].astype(np.float64) - want[key]) / scale
        if not off <= limit(f"grad {precision}", name):
            faults.append(f"{key}: relative {off:.2e}")
    return faults


@pytest.mark.parametrize("precision", reference.PRECISIONS)
@pytest.mark.parametrize("name", reference.NAMES)
def test_gradients_are_pytorchs(run, models, tmp_path, name, precision):
    if not (models / name / "grads.npz").exists():
        pytest.skip("its gradients are not among the copies in tests/models")
    want = expected(name, np.load(models / name / "grads.npz"))
    run("grad", models / name / "model.onnx", "--output-dir", tmp_path / "out",
        *reference.compile_options(name, precision, drop=["--optimizer"]),
        *reference.first_batch(models / name, tmp_path))
    got = reference.results(tmp_path / "out")
    got = {k.removeprefix("grad."): v for k, v in got.items() if k != "loss"}
    faults = compare(name, precision, got, want)
    loss = float(np.load(tmp_path / "out/loss.npy"))
    first = reference.load(name)["traces"][0][precision]["losses"][0]
    if not abs(loss - first) <= limit(f"loss {precision}", name) * abs(first):
        faults.append(f"loss {loss!r}, PyTorch {first!r}")
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("name", ["mlp_digits", "cnn_mnist", "gpt2_mini"])
def test_compiled_gradients_are_the_interpreters(run, models, tmp_path, name):
    results = []
    for engine in ("interp", "compiled"):
        run("grad", models / name / "model.onnx", f"--engine={engine}", "--output-dir", tmp_path / engine,
            *reference.compile_options(name, "f32", drop=["--optimizer"]),
            *reference.first_batch(models / name, tmp_path))
        got = reference.results(tmp_path / engine)
        results.append({k.removeprefix("grad."): v for k, v in got.items() if k != "loss"})
    faults = compare(name, "f32", results[1], results[0])
    assert not faults, "\n".join(faults)
