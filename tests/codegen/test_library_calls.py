"""Products that a GPU's library computes: operands whose rows begin at multiples of 16 bytes, and one launch for all products of a batch.

    .venv/bin/python tests/codegen/test_library_calls.py     what library_calls.json lacks or has too much
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import costs
import pytest
import reference
import schedules
import workloads

REASONS = Path(__file__).with_name("library_calls.json")
PRECISIONS = ("bf16", "f16", "tf32")
ALIGNED = 16
MODELS = {**{name: None for name in costs.MODELS}, **{name: None for name in reference.NAMES}}


def arguments(name, models, scratch):
    """The model's file and the options that it is compiled with."""
    if name in costs.MODELS:
        workloads.write_graph(name, scratch / f"{name}.onnx")
        return [scratch / f"{name}.onnx", *costs.TRAINS, *costs.MODELS[name]]
    return [models / name / "model.onnx", *(o for o in reference.compile_options(name, "f32") if not o.startswith("--precision"))]


def found_in(gradc, name, models, scratch):
    """{"heads PLACE" or "rows PLACE": launches of a step}: products in several launches, or not aligned, in any precision."""
    found = {}
    for precision in PRECISIONS:
        done = subprocess.run([gradc, "dump", *arguments(name, models, scratch), f"--precision={precision}", "--stage=schedule",
                               "--format=json", "--machine=h100"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{name} {precision}: {done.stderr}"
        for launch in (x for step in json.loads(done.stdout)["steps"] for x in step["launches"] if x["class"] == "product"):
            kinds = [kind for kind, holds in (("heads", launch["runs"] > 1), ("rows", launch["alignment"] < ALIGNED)) if holds]
            for kind in kinds:
                found[f"{kind} {schedules.place(launch)}"] = launch["times"]
    return found


@pytest.fixture(scope="module")
def found(gradc, models, tmp_path_factory):
    scratch = tmp_path_factory.mktemp("calls")
    return {name: found_in(gradc, name, models, scratch) for name in MODELS}


def test_calls_are_aligned_and_whole(found):
    """Or listed in library_calls.json: {"why": reason, "kernels": {model: [pattern]}}."""
    unexplained, useless = costs.judge(found, json.loads(REASONS.read_text()))
    assert not unexplained, f"no reason in {REASONS.name}"
    assert not useless, f"{REASONS.name} explains what does not exist"


def main():
    with tempfile.TemporaryDirectory() as scratch:
        found = {name: found_in(schedules.ROOT / "build/gradc", name, schedules.ROOT.parent / "shared/models", Path(scratch)) for name in MODELS}
    unexplained, useless = costs.judge(found, json.loads(REASONS.read_text()) if REASONS.exists() else [])
    print("not explained:", json.dumps(unexplained, indent=1))
    print("matching nothing:", json.dumps(useless, indent=1))


if __name__ == "__main__":
    sys.path.insert(0, str(schedules.ROOT / "tests"))
    main()
