"""What a machine with a GPU has: where gradc and the models are, NVRTC and cuBLASLt, and the GPU's own facts."""
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "bench"), str(ROOT / "tests")]
RESULTS = ROOT / "bench/results"


NOT_SUPPORTED = ("lstm_chars",)  # of the reference models


def build():
    """The folder with gradc and the tests in C: $GRADC_BUILD, else build/, else what scripts/gpu-pack has made."""
    given = os.environ.get("GRADC_BUILD")
    found = [Path(given)] if given else [f for f in (ROOT / "build", ROOT / "gpu/build") if (f / "gradc").exists()]
    if not found:
        sys.exit("no gradc: `make build`, or scripts/gpu-pack on another machine")
    return found[0].resolve()


def gradc():
    return build() / "gradc"


def program(name):
    """A test in C."""
    return build() / name


def models():
    """Folder of the reference models: $GRADC_MODELS, else those of gpu/, else where they lie beside the repository."""
    given = os.environ.get("GRADC_MODELS")
    places = [Path(given)] if given else [ROOT / "gpu/models", ROOT.parent / "shared/models", ROOT / "tests/models"]
    return next(p for p in places if any(p.glob("*/model.onnx"))).resolve()


def library_folders():
    """Where CUDA's libraries lie: a toolkit, and the packages of the Python that runs this."""
    found = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "lib64"]
    for site in map(Path, sys.path):
        if site.name in ("site-packages", "dist-packages"):
            found += [*site.glob("nvidia/*/lib"), *site.glob("nvidia/lib")]
    return [str(f) for f in found if any(f.glob("lib*.so*"))]


def kernel_times(folder):
    """kernel_times.c, built in `folder`; None where there is no CUPTI or no compiler, and why."""
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    packages = [f for site in map(Path, sys.path) if site.name in ("site-packages", "dist-packages") for f in site.glob("nvidia/*")]
    homes = [toolkit / "extras/CUPTI", toolkit, *packages]
    headers = next((h / "include" for h in homes if (h / "include/cupti.h").exists()), None)
    library = next((f for h in homes for f in sorted(h.glob("lib*/libcupti.so*"))), None)
    if not headers or not library:
        return None, "there is no CUPTI"
    made = folder / "libkernel_times.so"
    includes = [f"-I{headers}", *(f"-I{h / 'include'}" for h in homes if (h / "include/cuda.h").exists())]
    code, text, _ = call("cc", "-shared", "-fPIC", *includes, Path(__file__).with_name("kernel_times.c"), "-o", made, library,
                         f"-Wl,-rpath,{library.parent}")
    return (None, text[-600:]) if code else (made, "")


def environment():
    """That of gradc, its executables and tests."""
    paths = [*os.environ.get("LD_LIBRARY_PATH", "").split(":"), *library_folders(), str(build() / "tests")]
    return dict(os.environ, LD_LIBRARY_PATH=":".join(p for p in paths if p))


def call(*command, cwd=None, timeout=None, **variables):
    """(exit code, what it printed, seconds)."""
    start = time.monotonic()
    try:
        done = subprocess.run([str(c) for c in command], cwd=cwd, env={**environment(), **variables}, timeout=timeout, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        code, text = done.returncode, done.stdout
    except FileNotFoundError as missing:
        code, text = 127, str(missing)
    except subprocess.TimeoutExpired as late:
        code, text = 124, (late.stdout or b"").decode(errors="replace") + f"\nstopped after {timeout} s"
    return code, text, time.monotonic() - start


def facts():
    """Name, memory, driver and clocks, as nvidia-smi has them; the commit that is measured."""
    fields = ["name", "driver_version", "memory.total", "clocks.max.sm", "clocks.max.memory", "power.limit"]
    code, text, _ = call("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader")
    gpu = dict(zip(fields, [x.strip() for x in text.splitlines()[0].split(",")])) if code == 0 else {"name": "none"}
    code, commit, _ = call("git", "-C", ROOT, "rev-parse", "--short", "HEAD")
    return {"gpu": gpu, "commit": os.environ.get("GRADC_COMMIT") or (commit.strip() if code == 0 else "unknown")}


def result_path(name):
    """Where a result lies: in $GRADC_RESULTS, else bench/results."""
    return Path(os.environ.get("GRADC_RESULTS", RESULTS)) / f"{name}.json"


def write(name, result):
    """One JSON of what was found."""
    path = result_path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"wrote {path}")
