"""Products and convolutions run in the pretended libraries, in their turn of the pretended GPU's streams: the losses are PyTorch's.

With a pretended cuDNN beside the compiler, they run as it planned.
"""
import json
import re
import subprocess

import pytest
import reference
from pretended import ON_GPU
from tolerances import limit

LIBRARIES, STEPS = "--libraries=on", 3
TARGETS = "cpu,cuda:sm_80,cuda:sm_90,cuda:sm_90a"
CONVOLUTIONS = ("conv", "conv_grad_input", "conv_grad_weight")


@pytest.fixture(scope="module")
def cudnn(gpu, tmp_path_factory):
    """A folder with the pretended cuDNN alone."""
    folder = tmp_path_factory.mktemp("cudnn")
    (folder / "libcudnn.so.9").symlink_to(gpu.libraries / "libcudnn.so.9")
    return folder


def told(trainer, **env):
    return json.loads(trainer.run(ON_GPU, LIBRARIES, "--info", "--json", env=env).stdout)


def convolutions(info):
    """What runs them: for each (the op's name, the implementation)."""
    calls = ((c["call"].split(" ")[0], c["implementation"]) for c in info["library_calls"])
    return [call for call in calls if call[0] in CONVOLUTIONS]


def losses(trainer, **env):
    return trainer.losses(ON_GPU, LIBRARIES, f"--steps={STEPS}", timeout=1200, env=env)


@pytest.mark.parametrize("name", ["cnn_mnist", "mobilenet_mini"])
def test_losses(gpu, tmp_path, name):
    trainer = gpu.trainer(gpu.compile(name), tmp_path)
    want = reference.load(name)["traces"][0]["f32"]["losses"][:STEPS]
    info, got = told(trainer), losses(trainer)
    assert set(convolutions(info)) <= {(kind, f"cuDNN 9.28.1 engine {n}") for kind in CONVOLUTIONS for n in (0, 1)}
    assert {kind for kind, _ in convolutions(info)} == set(CONVOLUTIONS)
    assert {c["implementation"].removesuffix(" beta 1") for c in info["library_calls"] if c["call"].startswith("dot")} <= {"cuBLASLt algo 7 tile 20 stages 4"}
    assert len(got) == STEPS
    assert max(abs(a - b) / abs(b) for a, b in zip(got, want)) <= limit("loss f32", name)


def dump(gpu, exe, stage):
    return subprocess.run([gpu.gradc, "dump", exe.path, f"--stage={stage}"], text=True, capture_output=True, check=True).stdout


def test_plans(gpu, cudnn, tmp_path):
    """Of both GPUs, as the executable's tables say; the run has that scratch, and what is planned is not chosen again."""
    exe = gpu.compile("cnn_mnist", target=TARGETS, cudnn=cudnn)
    plans = re.findall(r"^plan of (\w+) .* for (NVIDIA .*): (cuDNN [0-9.]*), (\d+) bytes of scratch$", dump(gpu, exe, "schedule"), re.M)
    assert {p[1:] for p in plans} == {(name, "cuDNN 9.28.1", "4096") for name in ("NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3")}
    assert "  library    4096 on NVIDIA H100 80GB HBM3\n" in dump(gpu, exe, "memory")
    trainer = gpu.trainer(exe, tmp_path)
    info = told(trainer, FAKE_CUDNN_ENGINES="|")  # the heuristic has nothing
    assert set(convolutions(info)) <= {(kind, f"cuDNN 9.28.1 engine {n} as planned") for kind in CONVOLUTIONS for n in (0, 1)}
    assert sorted(p[0] for p in plans if "H100" in p[1]) == sorted(kind for kind, _ in convolutions(info))
    assert {p[0] for p in plans} == set(CONVOLUTIONS) and info["library_bytes"] == 4096
    assert losses(trainer, FAKE_CUDNN_ENGINES="|") == losses(gpu.trainer(gpu.compile("cnn_mnist"), tmp_path))


def test_tf32(gpu, cudnn, tmp_path):
    """Plans have matrix units then, and the run takes them."""
    exe = gpu.compile("cnn_mnist", "f32", 0, "--precision=tf32", target="cpu,cuda:sm_90a", cudnn=cudnn)
    found = convolutions(told(gpu.trainer(exe, tmp_path), FAKE_CUDNN_ENGINES="|"))
    assert set(found) <= {(kind, f"cuDNN 9.28.1 engine {n} as planned") for kind in CONVOLUTIONS for n in (0, 67)}
    assert ("conv", "cuDNN 9.28.1 engine 67 as planned") in found


def test_another_gpu(gpu, cudnn, tmp_path):
    """What the plans are not for, the heuristic is asked for."""
    trainer = gpu.trainer(gpu.compile("cnn_mnist", target=TARGETS, cudnn=cudnn), tmp_path)
    for fake in {"FAKE_CUDNN_DEVICE": "1000"}, {"FAKE_CUDA_CAPABILITY": "8.9"}:
        found = convolutions(told(trainer, FAKE_CUDNN_ENGINES="5:0:0 5:0:0|5:0:0", **fake))
        assert set(found) == {(kind, "cuDNN 9.28.1 engine 5") for kind in CONVOLUTIONS}


@pytest.mark.parametrize("planned", [False, True])
def test_no_handle(gpu, cudnn, tmp_path, planned):
    """Loops run, and --info says why."""
    trainer = gpu.trainer(gpu.compile("cnn_mnist", **({"target": TARGETS, "cudnn": cudnn} if planned else {})), tmp_path)
    info = told(trainer, FAKE_CUDNN_NO_GPU="1")
    assert set(convolutions(info)) == {(kind, "generated") for kind in CONVOLUTIONS}
    assert "cuBLASLt 13.1.0, cuDNN: it does not start: CUDNN_STATUS_NOT_INITIALIZED" in info["device"]


@pytest.mark.parametrize("there, env, said", [
    (True, {}, r"convolutions: (\d+) plans by cuDNN 9.28.1"),
    (True, {"FAKE_CUDNN_ENGINES": "5:4096:16|"}, r"convolutions: 0 plans by cuDNN 9.28.1, (\d+) are planned when training starts"),
    (True, {"FAKE_CUDNN_ENGINES": "it crashes"}, r"convolutions: 0 plans by cuDNN 9.28.1, (\d+) are planned when training starts"),
    (False, {}, "convolutions: no cuDNN here: planned when training starts"),
], ids=["all", "none", "crash", "missing"])
def test_report(gpu, cudnn, tmp_path, there, env, said):
    """Whatever becomes of plans, the executable is made, and the compiler says what became of them."""
    done = subprocess.run([gpu.gradc, "compile", "model.onnx", "-o", tmp_path / "train", "--target=cuda:sm_90a",
                           *reference.compile_options("cnn_mnist", "f32", 0)], cwd=gpu.models / "cnn_mnist", text=True, capture_output=True,
                          env={**gpu.compiler_environment(cudnn if there else None), **env})
    assert done.returncode == 0, done.stderr
    assert re.search(f"^  {said}$", done.stdout, re.M), done.stdout
    assert not done.stderr
