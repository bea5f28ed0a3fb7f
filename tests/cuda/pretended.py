"""Executables with code for the pretended GPU, their kernels as a library for it, and runs of them.

Where a test does not say which libraries it wants, products are run by loops: --libraries=off. Libraries take their first engines:
--tune=off.
"""
import re
import shlex
import shutil
import subprocess
import threading
from pathlib import Path

import harness
import numpy as np
import nvrtc
import onnx
import pytest
import reference
from checkpoints import Trainer

ARCHITECTURE = "sm_90a"
ON_GPU, ON_CPU = "--device=cuda", "--device=cpu"
ROOT = Path(__file__).resolve().parents[2]


def tiny_text():
    """tiny.cu, behind the numbers of the scalars that it reads, and the look-up's kernel."""
    lists = (ROOT / f"base/numbers/{name}_list.def" for name in ("optimizer", "scalar"))
    scalars = re.findall(r"^(?:HYPER|SCALAR)\((\w+),", "".join(f.read_text() for f in lists), re.M)
    numbers = ", ".join(f"SCALAR_{name} = {scalars.index(name)}" for name in ("LR", "CLIP_NORM"))
    return f"enum {{ {numbers} }};\n" + "".join((ROOT / name).read_text() for name in ("tests/cuda/tiny.cu", "codegen/cuda/look_up.cuh"))


class Executable:
    """Its file, its kernels as a library (None: it has none for the GPU), and what its trace is trained with."""

    def __init__(self, path, library, data, options):
        self.path, self.library, self.data, self.options = path, library, data, options


class Pretended:
    def __init__(self, build, gradc, models, folder):
        self.build, self.gradc, self.models, self.folder = build, gradc, models, folder
        self.libraries = build / "tests/cuda"
        self.lock, self.made = threading.Lock(), {}
        if not (self.libraries / "libcuda.so.1").exists():
            pytest.skip(f"{self.libraries}/libcuda.so.1 is not built")

    # ---- compiling: once for the same options
    def once(self, key, make):
        with self.lock:
            entry = self.made.setdefault(key, {"lock": threading.Lock()})
        with entry["lock"]:
            if "value" not in entry:
                entry["value"] = make()
            return entry["value"]

    def compile(self, name, precision="f32", trace=0, *more, target=f"cpu,cuda:{ARCHITECTURE}", cudnn=None):
        """more: options, in place of the trace's of that name. cudnn: a folder with the one that plans convolutions; None: none does."""
        dropped = [option.split("=")[0] for option in more]
        options = (*reference.compile_options(name, precision, trace, dropped), f"--target={target}", *more)
        path, library = self.once((name, options, cudnn), lambda: self.compile_it(name, options, cudnn))
        words = [o for o in reference.train_options(name, precision, trace) if o.startswith("--") and "=" in o]
        return Executable(path, library, data_of(self.models, name), words)

    def compile_model(self, model, inputs, *options, train=()):
        """An onnx.ModelProto and an array for each of its inputs and `labels`; train: the options that its runs have."""
        folder = self.folder / f"model-{len(list(self.folder.iterdir()))}"
        folder.mkdir()
        onnx.save(model, folder / "model.onnx")
        for name, array in inputs.items():
            np.save(folder / f"{name}.npy", array)
        data = [word for name in inputs for word in ("--data", f"{name}={folder}/{name}.npy")]
        made = self.compile_it(folder.name, (f"--target=cpu,cuda:{ARCHITECTURE}", *options), None, folder)
        return Executable(*made, data, list(train))

    def compile_it(self, name, options, cudnn, folder=None):
        path = self.folder / f"{name}-{len(self.made)}"
        sources = path.with_suffix(".sources")
        done = subprocess.run([self.gradc, "compile", "model.onnx", "-o", path, f"--keep-sources={sources}", *options],
                              cwd=folder or self.models / name, text=True, capture_output=True,
                              env=self.compiler_environment(cudnn))
        assert done.returncode == 0, f"{name} {shlex.join(options)}: {done.stderr}"
        on_gpu = any(sources.glob(f"kernels*_{ARCHITECTURE}.cu"))
        return path, self.kernels(sources) if on_gpu else None

    def compiler_environment(self, cudnn):
        """Without a pretended driver, which NVRTC would call. No loader takes the file that stands in for the machine's own cuDNN."""
        if not cudnn:
            cudnn = self.folder / "no_cudnn"
            cudnn.mkdir(exist_ok=True)
            (cudnn / "libcudnn.so.9").write_text("no library\n")
        return nvrtc.environment(f"{cudnn}:{nvrtc.real()}", self.libraries / "cache", CUDA_HOME=str(cudnn))

    def kernels(self, sources):
        return harness.build_kernels(sources, ARCHITECTURE, self.libraries / "kernels")

    # ---- running
    def environment(self, library, fake=None):
        """fake: {"SLOW": 1} is FAKE_CUDA_SLOW=1."""
        return {"LD_LIBRARY_PATH": str(self.libraries), "FAKE_CUDA_KERNELS": str(library), **settings(fake)}

    def trainer(self, exe, folder, fake=None):
        return OnGpu(exe, folder, self.environment(exe.library, fake))


def openmpi():
    """What starts two ranks; a test without it is skipped."""
    if not shutil.which("mpirun.openmpi"):
        pytest.skip("mpirun.openmpi is not installed")
    return ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2"]


def settings(fake):
    return {f"FAKE_CUDA_{name}": str(value) for name, value in (fake or {}).items()}


class OnGpu(Trainer):
    """Each of its runs finds the pretended GPU, and trains as the trace does where nothing else is said."""

    def __init__(self, exe, folder, environment):
        super().__init__(exe.path, exe.data, folder)
        self.options, self.environment, self.launcher = exe.options, environment, []

    def command(self, *options):
        return [*self.launcher, *super().command("--libraries=off", "--tune=off", *self.options, *options)]

    def around(self, env, fake):
        """Each of two ranks has a GPU."""
        of_ranks = settings({"DEVICES": 2}) if self.launcher else {}
        return {**self.environment, **of_ranks, **settings(fake), **(env or {})}

    def run(self, *options, env=None, fake=None, **more):
        return super().run(*options, env=self.around(env, fake), **more)

    def start(self, *options, env=None, fake=None, **more):
        return super().start(*options, env=self.around(env, fake), **more)

    def losses(self, *options, name="losses", **more):
        """Of each step."""
        log = self.folder / f"{name}.jsonl"
        self.run(*options, "--log", log, **more)
        return reference.step_losses(log)


def data_of(models, name):
    known = reference.load(name)
    files = [(i["name"], i["file"]) for i in known["inputs"]] + [("labels", known["labels"]["file"])]
    return [word for n, file in files for word in ("--data", f"{n}={models}/{name}/{file}")]
