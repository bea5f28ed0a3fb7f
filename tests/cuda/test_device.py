"""The suite that every device passes (tests/unit/runtime/runtime_device_test.c), on the pretended GPU. Under sanitizers it is built with them,
the pretended driver too."""
import os
import re
import subprocess

import nvrtc
import pytest
from pretended import ARCHITECTURE, tiny_text

SKIPPED = {"tables", "map", "hashed copies"}  # what a GPU's code says of itself is a bundle; it copies files; the host hashes


@pytest.fixture(scope="module")
def suite(gpu, build, tmp_path_factory):
    """suite(FAKE SETTING=VALUE...): the finished process."""
    program = build / "tests/runtime_device_test"
    if not program.exists():
        pytest.skip(f"{program} is not built")
    folder = tmp_path_factory.mktemp("tiny")
    (folder / f"kernels_{ARCHITECTURE}.cu").write_text(tiny_text())
    (folder / "cubin").write_bytes(nvrtc.cubin(tiny_text(), ARCHITECTURE))
    library = gpu.kernels(folder)

    def run(**fake):
        own = {"GRADC_TEST_DEVICE": "cuda", "GRADC_TINY_CODE": str(folder / "cubin")}
        return subprocess.run([program], text=True, capture_output=True, timeout=300,
                              env={**os.environ, **gpu.environment(library, fake), **own})

    return run


@pytest.mark.parametrize("fake", [{}, {"SEED": 2}, {"DELAY": 0}, {"POOLS": 0}], ids=str)
def test_suite(suite, fake):
    done = suite(**fake)
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    found = {state: set(re.findall(rf"^\[ +{state} \] (.*) cuda$", text, re.M)) for state in ("OK", "SKIPPED")}
    assert found["SKIPPED"] == SKIPPED
    assert len(found["OK"]) >= 12 and {"train", "waits", "recordings", "wait", "fault", "look-ups"} <= found["OK"]
    assert "pretended GPU" not in text, "the driver complains"
