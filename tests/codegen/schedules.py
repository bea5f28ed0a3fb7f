"""Schedules of the reference and bench models, cut for 64 cores, and the large launches in them that have few parts.

    .venv/bin/python tests/codegen/schedules.py     what few_parts.json lacks or has too much, and the bench models' shares
"""
import json
import re
import subprocess
import sys
import tempfile
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("bench", "tests", "tests/models")]
import reference  # noqa: E402
import unpack  # noqa: E402
import workloads  # noqa: E402

CORES = 64
TARGET = "cpu:x86-64-v4"  # whatever CPU compiles: lists of launches are those of one target
PARTS = 4 * CORES       # of a large launch
LARGE = 65536           # element operations from which a launch is large
FEW = Path(__file__).with_name("few_parts.json")
# The server that a launch's roofline time is of: 64 cores with 100 GFLOP/s each (about 2 GHz, two units of 16 lanes),
# and 12 channels of DDR5 that reach 300 GB/s.
FLOPS, BYTES = CORES * 100e9, 300e9


def schedule(gradc, model, *options):
    """The programs of a model's schedule."""
    done = subprocess.run([gradc, "dump", model, *options, f"--cores={CORES}", f"--target={TARGET}", "--stage=schedule", "--format=json"],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{model}: {done.stderr}"
    return json.loads(done.stdout)["programs"]


def schedules(gradc, models, scratch):
    """{model: programs} of all bench models and of the reference models in the folder `models`."""
    found = {}
    for name, model in workloads.MODELS.items():
        workloads.write_graph(name, scratch / "graph.onnx")
        found[name] = schedule(gradc, scratch / "graph.onnx", "--init=random", "--loss=cross_entropy",
                               "--optimizer=adamw", *model.options)
    for name in reference.NAMES:
        found[name] = schedule(gradc, models / name / "model.onnx", *reference.compile_options(name, "f32"))
    return found


def launches(programs):
    """The instructions that run a kernel."""
    return [i for p in programs for i in p["instructions"] if i["op"] == "run"]


def operations(launch):
    """Element operations; of what only moves elements, half of the 4-byte elements that it reads and writes."""
    return launch["flops"] or launch["bytes"] // 8


def named(origin):
    """Without the number of places that a fused location leaves out."""
    return re.sub(r", \d+ more\)", ")", origin)


def place(launch):
    """Where a kernel comes from, without the numbers that tell layers apart: the names of few_parts.json."""
    return re.sub(r"\d+", "#", named(launch["origin"]))


def few_parts(found):
    """{place: [(parts, FLOPs)]} of the large launches with less than PARTS, each once, fewest parts first."""
    few = {}
    for launch in (i for programs in found.values() for i in launches(programs)):
        if operations(launch) >= LARGE and launch["parts"] < PARTS:
            few.setdefault(place(launch), set()).add((launch["parts"], launch["flops"]))
    return {where: sorted(several) for where, several in few.items()}


def is_small(where, launch, reasons):
    """Whether a reason says of it that a part has so many FLOPs, and it has as many parts as that gives."""
    parts, flops = launch
    return any(parts >= flops // r["part_flops"] for r in reasons if "part_flops" in r
               for pattern in r["kernels"] if fnmatchcase(where, pattern))


def judge(few, reasons):
    """({place: fewest parts} that no reason explains, patterns that match no launch, {pattern: fewest parts} of those that
    say less). few_parts.json is a list of {"why": reason, "part_flops": of a part, "kernels": [pattern]} and of {"why":
    reason, "kernels": {pattern: fewest parts}}; the latter are of what the former don't explain."""
    by_size = [p for r in reasons if "part_flops" in r for p in r["kernels"]]
    by_parts = {p: least for r in reasons if "part_flops" not in r for p, least in r["kernels"].items()}
    others = {where: parts for where, several in few.items()
              for parts in [min((n for n, flops in several if not is_small(where, (n, flops), reasons)), default=0)] if parts}
    matches = {p: [n for where, n in others.items() if fnmatchcase(where, p)] for p in by_parts}
    unexplained = {where: n for where, n in others.items()
                   if not any(fnmatchcase(where, p) and n >= least for p, least in by_parts.items())}
    useless = [p for p in by_size if not any(fnmatchcase(where, p) for where in few)]
    return (unexplained, useless + [p for p, parts in matches.items() if not parts],
            {p: min(parts) for p, parts in matches.items() if parts and min(parts) > by_parts[p]})


def roofline(launch):
    """Seconds that the server needs at least."""
    return max(launch["flops"] / FLOPS, launch["bytes"] / BYTES)


def step(programs):
    """The launches of a step of one micro-batch."""
    return [i for p in programs if p["role"] in ("accumulate", "update")
            for i in launches([p]) if i["when"] != "later"]


def share_in_parts(programs):
    """Which share of a step's roofline time lies in launches of at least PARTS parts."""
    whole = step(programs)
    return sum(roofline(i) for i in whole if i["parts"] >= PARTS) / sum(map(roofline, whole))


def shares_of_few(programs, most=6):
    """[(share of the step's roofline time, place)] of launches with less than PARTS parts, the largest first."""
    whole, shares = step(programs), {}
    for launch in whole:
        if launch["parts"] < PARTS:
            shares[place(launch)] = shares.get(place(launch), 0) + roofline(launch) / sum(map(roofline, whole))
    return sorted(((share, where) for where, share in shares.items()), reverse=True)[:most]


def main():
    models = ROOT.parent / "shared/models"
    with tempfile.TemporaryDirectory() as scratch:
        if not models.is_dir():
            models = Path(scratch) / "models"
            for name in unpack.names():
                unpack.unpack(name, models / name)
        found = schedules(ROOT / "build/gradc", models, Path(scratch))
    unexplained, useless, loose = judge(few_parts(found), json.loads(FEW.read_text()) if FEW.exists() else [])
    print("not explained:", json.dumps(unexplained, indent=1))
    print("matching nothing:", json.dumps(useless, indent=1))
    print("now with more parts:", json.dumps(loose, indent=1))
    for name in workloads.MODELS:
        print(f"{name}: {share_in_parts(found[name]):.3f} of the roofline time in launches of {PARTS} parts; the rest:")
        for share, where in shares_of_few(found[name]):
            print(f"  {share:.4f}  {where[:110]}")


if __name__ == "__main__":
    main()
