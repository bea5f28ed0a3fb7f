"""What the parts of a kernel touch, each element once for a part, is little more than what the kernel reads and stores: members of a
team share what they load, and nothing is loaded by many teams that one of them could have kept.

The loop interpreter counts, of kernels that memory bounds, in batches that fill a GPU."""
import json
import subprocess
from fnmatch import fnmatchcase
from pathlib import Path

import costs
import pytest
import schedules

MOST = 1.15  # times the bytes of inputs and outputs
REASONS = json.loads(Path(__file__).with_name("touched.json").read_text())


@pytest.mark.parametrize("name", costs.MODELS)
def test_parts_touch_little_twice(gradc, build, tmp_path, name):
    tool = build / "tests/touched_bytes"
    if not tool.exists():
        pytest.skip(f"{tool} is not built")
    costs.workloads.write_graph(name, tmp_path / "graph.onnx")
    subprocess.run([gradc, "dump", "graph.onnx", *costs.TRAINS, *costs.MODELS[name], "--stage=lowered", "--target=cuda:sm_90a",
                    "-o", "lowered.gir"], cwd=tmp_path, check=True)
    lines = subprocess.run([tool, tmp_path / "lowered.gir"], text=True, capture_output=True, check=True).stdout.splitlines()
    rows = [(int(touched) / int(read), schedules.named(origin)) for _, read, touched, origin in (line.split(" ", 3) for line in lines)]
    patterns = {p for r in REASONS for p in r["kernels"].get(name, ())}
    much = {origin: round(n, 2) for n, origin in rows if n > MOST}
    assert len(rows) >= 45
    assert not {o: n for o, n in much.items() if not any(fnmatchcase(o, p) for p in patterns)}
    assert all(any(fnmatchcase(o, p) for o in much) for p in patterns), f"matching nothing: {patterns}"
