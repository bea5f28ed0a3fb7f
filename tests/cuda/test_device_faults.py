"""What a user sees of a GPU's faults: one sentence and the exit code. The log has the steps that were done before, checkpoints
from before the fault resume with the bits of a run that was not disturbed, and nothing is half-written."""
import json
import re
import shutil
import time

import numpy as np
import pytest
from checkpoints import checkpoints, steps_of, temporaries
from pretended import ON_CPU, ON_GPU, settings
from tables import ROOT

SYSTEM, USAGE, LOST, HANG = 5, 2, 9, 10
SAVING = ("--steps=6", "--save=ck", "--save-every=2")
CALLS = re.findall(r'^CUDA_SYMBOL\(\w+, "(\w+)"', (ROOT / "runtime/device/cuda/driver_symbols.def").read_text(), re.M)


@pytest.fixture(scope="module")
def both(gpu):
    return gpu.compile("mlp_digits")


@pytest.fixture
def trainer(gpu, both, tmp_path):
    return gpu.trainer(both, tmp_path)


class Undisturbed:
    """The steps, the exported model and how often each function of the driver was called."""

    def __init__(self, trainer):
        calls = trainer.folder / "calls"
        self.result = trainer.result(ON_GPU, *SAVING, name="whole", fake={"COUNT": calls})
        self.calls = json.loads(calls.read_text())


@pytest.fixture(scope="module")
def undisturbed(gpu, both, tmp_path_factory):
    return Undisturbed(gpu.trainer(both, tmp_path_factory.mktemp("undisturbed")))


def sentences(done, kind):
    return [line for line in done.stderr.splitlines() if line.startswith(f"gradc: {kind}: ")]


def check_said(done, *words):
    """One error, with these words in this order; the pretended driver has nothing to complain of but the fault."""
    errors = sentences(done, "error")
    assert len(errors) == 1 and re.search(".*".join(map(re.escape, words)), errors[0]), done.stderr
    others = [line for line in done.stderr.splitlines() if line.startswith("pretended GPU")]
    assert all("planned" in line for line in others), done.stderr


def check_left(trainer, undisturbed):
    """What a fault left of SAVING is right; the checkpoints."""
    steps, model = undisturbed.result
    log, saved = trainer.folder / "log.jsonl", trainer.folder / "ck"
    done = steps_of(log) if log.exists() else []
    assert done == steps[:len(done)]
    assert not (trainer.folder / "out.onnx").exists() and temporaries(saved) == temporaries(trainer.folder) == []
    if checkpoints(saved):
        trainer.run(ON_GPU, *SAVING, "--resume=auto", "--log=log.jsonl", "--export=resumed.onnx")
        assert steps_of(log) == steps and (trainer.folder / "resumed.onnx").read_bytes() == model
    return checkpoints(saved) and [s["step"] for s in done]


# ---- at the start
TOO_OLD = "the NVIDIA driver here is made for CUDA 11.4: gradc needs one for CUDA 12.0 or newer"
HIDDEN = "CUDA: no GPU is visible, with CUDA_VISIBLE_DEVICES="
NO_GPU = {
    # environment, what it says
    "no driver": ({"LD_LIBRARY_PATH": "/none"}, "the NVIDIA driver's library libcuda.so.1 cannot be opened"),
    "old driver": (settings({"VERSION": 11040}), TOO_OLD),
    "no start": (settings({"FAIL": "cuInit:1=999"}), "CUDA: the driver does not start, and does not say why"),
    "hidden": ({"CUDA_VISIBLE_DEVICES": ""}, HIDDEN + ":"),
    "another instance": ({"CUDA_VISIBLE_DEVICES": "MIG-6f1"}, HIDDEN + "MIG-6f1: "),
    "another capability": (settings({"CAPABILITY": "8.0"}), "cuda:0: pretended GPU has compute capability 8.0, and does not run the "
                           "code for sm_90a: --target=cuda makes code for all GPUs from 8.0 on"),
}


@pytest.mark.parametrize("case", NO_GPU)
def test_no_gpu_that_was_asked_for(trainer, case):
    env, says = NO_GPU[case]
    check_said(trainer.run(ON_GPU, "--steps=2", exit=SYSTEM, env=env), says)


@pytest.mark.parametrize("case", NO_GPU)
def test_without_a_gpu_the_cpu_trains(trainer, case):
    env, says = NO_GPU[case]
    done = trainer.run("--steps=3", "--log=here.jsonl", env=env)
    assert len(sentences(done, "warning")) == 1 and f"gradc: warning: no GPU is used: {says}" in done.stderr
    trainer.run(ON_CPU, "--steps=3", "--log=cpu.jsonl")
    assert steps_of(trainer.folder / "here.jsonl") == steps_of(trainer.folder / "cpu.jsonl")


def test_code_for_gpus_only_needs_one(gpu, tmp_path):
    trainer = gpu.trainer(gpu.compile("mlp_digits", target="cuda:sm_90a"), tmp_path)
    check_said(trainer.run("--steps=2", exit=SYSTEM, env=NO_GPU["no driver"][0]), NO_GPU["no driver"][1])
    check_said(trainer.run(ON_CPU, "--steps=2", exit=SYSTEM), "compiled for cuda:sm_90a only", "--target=cpu,cuda")
    trainer.run("--steps=2")


def test_code_for_cpus_only(gpu, tmp_path):
    trainer = gpu.trainer(gpu.compile("mlp_digits", target="cpu"), tmp_path)
    check_said(trainer.run(ON_GPU, "--steps=2", exit=SYSTEM), "the model is compiled for cpu:native only",
               "--device=cuda runs code for GPUs: compile it with --target=cpu,cuda")


@pytest.mark.parametrize("options, words", [
    ((ON_CPU, "--target=cuda:sm_90a"), "--device=cpu runs code for CPUs, and --target=cuda:sm_90a is code for GPUs: leave one"),
    ((ON_GPU, "--target=cpu:native"), "--device=cuda runs code for GPUs, and --target=cpu:native is code for CPUs: leave one"),
    ((ON_GPU, "--target=cuda:sm_80"), "--target=cuda:sm_80: the model is compiled for"),
    (("--device=cuda:",), "--device=cuda:: need a number from 0 to 65535 after the colon"),
    (("--device=cuda:-1",), "--device=cuda:-1: need a number from 0 to 65535 after the colon"),
    (("--device=cuda:99999999999",), "--device=cuda:99999999999: need a number from 0 to 65535 after the colon"),
    (("--device=gpu",), "--device=gpu: not supported in this build: it has cpu, cuda, and cuda:N for the GPU of that number")], ids=str)
def test_options_that_contradict(trainer, options, words):
    check_said(trainer.run(*options, "--steps=2", exit=USAGE), words)


@pytest.mark.parametrize("n, visible, asked, words", [
    (1, None, "cuda:7", "cuda:7: there is 1 GPU, cuda:0"),
    (3, "2,1", "cuda:2", "cuda:2: there are 2 GPUs, from cuda:0 on, with CUDA_VISIBLE_DEVICES=2,1")])
def test_one_gpu_too_many(trainer, n, visible, asked, words):
    env = {"CUDA_VISIBLE_DEVICES": visible} if visible else {}
    check_said(trainer.run(f"--device={asked}", "--steps=2", exit=SYSTEM, env=env, fake={"DEVICES": n}), words)


@pytest.mark.parametrize("seconds", ["x", "0", "-1", ""])
def test_a_patience_that_is_none(trainer, seconds):
    done = trainer.run(ON_GPU, "--steps=2", exit=USAGE, env={"GRADC_DEVICE_TIMEOUT": seconds})
    check_said(done, f"GRADC_DEVICE_TIMEOUT={seconds}: need seconds above 0")


@pytest.mark.parametrize("pools", [0, 1])
def test_not_enough_memory(trainer, pools):
    done = trainer.run(ON_GPU, *SAVING, "--log=log.jsonl", exit=SYSTEM, fake={"MEMORY": 300000, "POOLS": pools})
    check_said(done, "cuda:0 (pretended GPU) does not have enough memory for ", " bytes: the plan needs ", " KiB (state ", "workspace ", "io ", "step ",
               " of 293.0 KiB are free, beside ", " of the plan: compile with fewer rows (--batch) and train with --accumulate")
    assert not list(trainer.folder.iterdir())


def test_not_enough_memory_for_libraries(gpu, tmp_path):
    trainer = gpu.trainer(gpu.compile("gpt2_mini_fresh"), tmp_path)
    trainer.run(ON_GPU, "--libraries=on", "--steps=1", "--log=log.jsonl")
    plan = json.loads((tmp_path / "log.jsonl").read_text())["gpu_peak_bytes"]
    done = trainer.run(ON_GPU, "--libraries=on", "--steps=1", exit=SYSTEM, fake={"MEMORY": plan - 1})
    check_said(done, "memory for libraries, which --libraries=off does without: cuda:0 (pretended GPU) does not have enough memory for 4096 bytes: "
               "the plan needs ", "state ", "library 4.0 KiB); ")


def test_a_fault_is_no_lack_of_memory(trainer):
    done = trainer.run(ON_GPU, "--steps=1", exit=SYSTEM, fake={"FAIL": "cuMemAllocFromPoolAsync:2=700"})
    check_said(done, "CUDA: memory: a kernel touched memory that it does not own")
    assert "the plan needs" not in done.stderr


# ---- what is no fault
def test_a_gpu_without_pools(trainer, undisturbed):
    assert trainer.result(ON_GPU, *SAVING, name="out", fake={"POOLS": 0}) == undisturbed.result


def test_the_second_gpu(trainer, undisturbed):
    assert trainer.result("--device=cuda:1", *SAVING, name="out", fake={"DEVICES": 2}) == undisturbed.result
    assert "bus 0000:1c:00.0" in trainer.run("--info", "--device=cuda:1", fake={"DEVICES": 2}).stdout


# ---- on the way
FAULTS = {
    # how a call fails: at once (=) or when its work has its turn (~); the exit code, what is said
    "lost": ("=999", LOST, "the driver has lost the GPU"),
    "lost at work": ("~999", LOST, "the driver has lost the GPU"),
    "memory that is not there": ("~700", SYSTEM, "a kernel touched memory that it does not own"),
    "ECC": ("~214", LOST, "the GPU's memory has a fault that cannot be corrected (ECC)"),
    "a kernel fails": ("~719", SYSTEM, "a kernel failed"),
}
HINTS = {SYSTEM: "this is a fault of gradc's: please report it", LOST: "training resumes from its last checkpoint with --resume=auto"}


@pytest.mark.parametrize("call", ["cuLaunchKernel", "cuGraphLaunch"])
@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_on_the_way(trainer, undisturbed, case, call):
    """The last kernel that is launched by itself is one of the first steps', the last graph is one of the last step's."""
    how, code, words = FAULTS[case]
    done = trainer.run(ON_GPU, *SAVING, "--log=log.jsonl", "--export=out.onnx", exit=code,
                       fake={"FAIL": f"{call}:{undisturbed.calls[call]}{how}"})
    check_said(done, "CUDA: ", words, HINTS[code])
    steps = check_left(trainer, undisturbed)
    if call == "cuGraphLaunch":
        assert steps in ([1, 2, 3, 4], [1, 2, 3, 4, 5])


def test_a_fault_while_the_model_is_exported(trainer, undisturbed):
    """All steps are done, and their checkpoints are there."""
    done = trainer.run(ON_GPU, *SAVING, "--log=log.jsonl", "--export=out.onnx", exit=LOST,
                       fake={"FAIL": f"cuMemcpyAsync:{undisturbed.calls['cuMemcpyAsync']}~214"})
    check_said(done, FAULTS["ECC"][2])
    assert check_left(trainer, undisturbed) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("how, code", [("=999", LOST), ("~999", LOST), ("~700", SYSTEM)])
def test_a_fault_while_the_last_checkpoint_is_written(trainer, how, code):
    """It is the GPU's, not the checkpoint's: nobody tries again."""
    counts = trainer.folder / "counts.json"
    trainer.run(ON_GPU, "--steps=3", "--save=ck", fake={"COUNT": counts})
    shutil.rmtree(trainer.folder / "ck")
    last = json.loads(counts.read_text())["cuMemcpyAsync"]
    done = trainer.run(ON_GPU, "--steps=3", "--save=ck", exit=code, fake={"FAIL": f"cuMemcpyAsync:{last}{how}"})
    check_said(done, "CUDA: ")
    assert not sentences(done, "warning")


def test_a_stuck_kernel(trainer, undisturbed):
    """The process ends by itself, and what was saved before resumes."""
    trainer.run(ON_GPU, *SAVING, "--steps=2", "--log=log.jsonl")
    began = time.monotonic()
    done = trainer.run(ON_GPU, *SAVING, "--resume=auto", "--log=log.jsonl", "--export=out.onnx", exit=HANG, timeout=60,
                       fake={"STUCK": "dot"}, env={"GRADC_DEVICE_TIMEOUT": "2"})
    assert 2 <= time.monotonic() - began < 20
    check_said(done, "cuda:0 (pretended GPU) has finished nothing for 2 seconds: a kernel is stuck, or the GPU hangs", "nvidia-smi",
               "GRADC_DEVICE_TIMEOUT=SECONDS waits longer")
    assert check_left(trainer, undisturbed) == [1, 2]


def test_a_stuck_kernel_of_an_evaluation(gpu, tmp_path):
    """Its results are read by a copy that would wait in the driver."""
    trainer = gpu.trainer(gpu.compile("mlp_digits"), tmp_path)
    evaluated = []
    for name in "input", "labels":
        np.save(tmp_path / f"{name}.npy", np.load(gpu.models / f"mlp_digits/{name}.npy")[:32])
        evaluated += ["--eval-data", f"{name}={tmp_path}/{name}.npy"]
    trainer.data += evaluated
    trainer.run(ON_GPU, "--steps=2", "--eval-every=1")
    done = trainer.run(ON_GPU, "--steps=2", "--eval-every=1", exit=HANG, timeout=60, fake={"STUCK": "argmax"},
                       env={"GRADC_DEVICE_TIMEOUT": "2"})
    check_said(done, "cuda:0 (pretended GPU) has finished nothing for 2 seconds")


@pytest.mark.parametrize("code, exit, words", [(999, LOST, "CUDA: a library's call: the driver has lost the GPU"),
                                               (1, SYSTEM, "cuBLASLt: a product failed: CUBLAS_STATUS_EXECUTION_FAILED")])
def test_a_fault_where_libraries_run(gpu, tmp_path, code, exit, words):
    """The pretended library asks the driver for work, and only says that something failed: whether the GPU is lost the driver knows."""
    trainer = gpu.trainer(gpu.compile("gpt2_mini_fresh"), tmp_path)
    done = trainer.run(ON_GPU, "--libraries=on", "--steps=2", exit=exit, fake={"FAIL": f"cuLaunchHostFunc:3={code}"})
    check_said(done, words, *([HINTS[LOST]] if exit == LOST else []))


@pytest.mark.parametrize("call", CALLS)
def test_each_call_fails(trainer, undisturbed, call):
    """The first of a function and the last, for lack of memory and because the GPU is lost. Training goes on as if nothing had been
    where nobody needs what was asked for; otherwise it ends."""
    for at in sorted({1, undisturbed.calls[call]} - {0}):
        for code in (2, 999):
            if call == "cuCtxSetCurrent" and code == 2:
                continue  # needs none
            for path in trainer.folder.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            done = trainer.run(ON_GPU, *SAVING, "--log=log.jsonl", "--export=out.onnx", exit=None,
                               fake={"FAIL": f"{call}:{at}={code}"})
            no_start = "the driver does not start" in done.stderr  # what is lost before it was opened never was there
            assert done.returncode in (0, SYSTEM if code == 2 or no_start else LOST)
            if done.returncode:
                check_said(done, {2: "memory", 999: "CUDA: "}[code])
                check_left(trainer, undisturbed)
            else:
                assert "pretended" not in done.stderr and not sentences(done, "error")
                result = steps_of(trainer.folder / "log.jsonl"), (trainer.folder / "out.onnx").read_bytes()
                assert result == undisturbed.result
