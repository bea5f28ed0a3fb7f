"""Times two builds of gradc against each other: the executables that both compile of each model, by turns.

    .venv/bin/python bench/paired.py OLD_GRADC NEW_GRADC [--models gpt2_mini,resnet50] [--rounds 2]

The models are the reference models and the bench models, in f32; a token model takes another size as
gpt2_124m:1x1024, rows and tokens. bench/README.md says what the columns are.
"""
import argparse
import json
import math
import os
import shlex
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import executable
import workloads
from process import Failure, call

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/models"))
import unpack  # noqa: E402

SECONDS = 0.6    # that a run's steps should take at least,
FEWEST = 5       # and how many it has at least
MOST_STEPS = 50_000
WINDOWS = 10     # into which they are divided
STARTS = 2       # runs of one step
SETTLED = 0.02   # by which a build's second fastest run may be slower than its fastest; else more runs follow,
MOST = 2         # up to so many times as many
# What the ratios should not exceed: all models' mean, each one's, to the end of the first step, compiling.
LIMIT, WORST, START, COMPILE = 1.01, 1.05, 1.05, 1.15


@dataclass
class Case:
    """A model: its file, the options it is compiled with, and those that name its data."""
    name: str
    onnx: Path
    compile: list
    train: list


def bench_case(text, folder):
    """A bench model, with random weights."""
    name, model = workloads.sized(text)
    workloads.write_graph(name, folder / "model.onnx")
    workloads.write_data(model, folder)
    options = ["--init=random", "--loss=cross_entropy", "--optimizer=adamw", *model.options]
    return Case(text, folder / "model.onnx", options, executable.training(model, "", folder, 1, 1)[1:5])


def reference_case(name, folder):
    """A reference model, with the options of its first trace in f32."""
    source = ROOT.parent / "shared/models" / name
    if not source.is_dir():
        source = unpack.unpack(name, folder / "model")
    lines = json.loads((source / "reference.json").read_text())["traces"][0]["gradc"]["f32"]
    compiling, training = (shlex.split(line) for line in lines)
    data = [word if "=" not in word else word.replace("=", f"={source}/", 1)
            for option, word in zip(training, training[1:]) if option == "--data"]
    return Case(name, source / "model.onnx", compiling[5:], [w for d in data for w in ("--data", d)])


def case(name, folder):
    """The model of this name."""
    folder.mkdir()
    return reference_case(name, folder) if name in unpack.names() else bench_case(name, folder)


def compile_seconds(gradc, model, exe):
    """What gradc takes for the executable."""
    start = time.monotonic()
    call([gradc, "compile", model.onnx, "-o", exe, *model.compile])
    return time.monotonic() - start


RESOLUTION = 1e-3  # milliseconds: lines that a busy machine hands over together have no time between them


def fast_step(times):
    """Milliseconds from one line of the log to the next, logging and all, of the steps whose lines came at these times.
    Without the first fifth, which meets fresh pages and cold caches, and the last line: a step's may come when the next one is
    queued, and the last two together. Of the windows the one that a tenth is faster than, for it was disturbed least."""
    first, last = len(times) // 5, len(times) - 2
    n = min(WINDOWS, last - first)
    ends = [first + (last - first) * i // n for i in range(n + 1)]
    steps = sorted(1e3 * (times[b] - times[a]) / (b - a) for a, b in zip(ends, ends[1:]))
    return max(steps[n // 10], RESOLUTION)


def lines_at(exe, model, steps, o):
    """When the lines of a run's log came, in seconds from exec."""
    launch = [*shlex.split(o.launcher), str(o.ranks)] if o.ranks > 1 else []
    lines, _ = executable.log_lines([*launch, exe, *model.train, f"--steps={steps}", f"--threads={o.threads}",
                                     "--shuffle=off", "--progress=off", "--table=off"])
    return [at for at, _ in lines]


def train(exe, model, steps, o):
    """Milliseconds of a step."""
    return fast_step(lines_at(exe, model, steps, o))


def start(exe, model, o):
    """Seconds from exec to the end of the only step, the shortest of some runs."""
    return min(lines_at(exe, model, 1, o)[0] for _ in range(STARTS))


def steps_for(exe, model, o):
    """How many steps a run has."""
    few = train(exe, model, FEWEST, o)
    ms = few if few > 20 * executable.NAP * 1e3 else train(exe, model, 500, o)
    return max(FEWEST, min(MOST_STEPS, math.ceil(1e3 * SECONDS / max(ms, 1e-3))))


def unsettled(runs):
    """By how much the second fastest run of a build is slower than its fastest, of the build where that is most."""
    fastest = [sorted(times)[:2] for times in runs.values()]
    return max(second / first - 1 if first > 0 else math.inf for first, second in fastest)


def one_round(executables, model, steps, o):
    """({build: (the fastest run's step, the shortest way to the end of the first step)}, unsettled). The builds run by
    turns, another one first each time. What disturbs a run only ever makes it slower, so the fastest one counts, and
    there are more runs where no second one comes near it."""
    runs = {build: [] for build in executables}
    fewest = max(2, o.runs if steps > FEWEST else o.runs_of_large)
    for i in range(MOST * fewest):
        for build in sorted(executables, reverse=i % 2):
            runs[build].append(train(executables[build], model, steps, o))
        if i + 1 >= fewest and unsettled(runs) <= SETTLED:
            break
    return {build: (min(times), start(executables[build], model, o)) for build, times in runs.items()}, unsettled(runs)


def compare(model, folder, o):
    """{"old", "new": (ms of a step, seconds to the end of the first one), "ratios": one a round, "noise": unsettled of
    the worst round, "compile": ratio}"""
    executables = {"old": folder / "old", "new": folder / "new"}
    seconds = {build: min(compile_seconds(getattr(o, build), model, exe) for _ in range(2))
               for build, exe in executables.items()}
    steps = steps_for(executables["old"], model, o)
    rounds, noise = zip(*(one_round(executables, model, steps, o) for _ in range(o.rounds)))
    return {**{build: tuple(map(min, zip(*(r[build] for r in rounds)))) for build in executables},
            "ratios": [r["new"][0] / r["old"][0] for r in rounds], "noise": max(noise),
            "compile": seconds["new"] / seconds["old"]}


def mean(ratios):
    """Their geometric mean."""
    return math.exp(statistics.fmean(map(math.log, ratios)))


HEAD = (f"{'model':<20} {'old step':>11} {'new step':>11}  {'ratio, by round':<15} {'noise':>6} "
        f"{'to the end of step 1':>21} {'compile':>8}")


def row(name, result):
    """A model as a line of the table."""
    ratios = " ".join(f"{r:.3f}" for r in result["ratios"])
    first = f"{result['old'][1]:.3f} -> {result['new'][1]:.3f} s"
    return (f"{name:<20} {result['old'][0]:>8.3f} ms {result['new'][0]:>8.3f} ms  {ratios:<15} "
            f"{result['noise']:>6.1%} {first:>21} {result['compile']:>8.2f}")


def summary(results):
    """The lines below the table: whether new is as fast as old. A model is slower when it is so in every round."""
    slowest = {name: min(r["ratios"]) for name, r in results.items()}
    worst = max(slowest, key=slowest.get)
    compiling = mean(r["compile"] for r in results.values())
    starting = mean(r["new"][1] / r["old"][1] for r in results.values())
    rounds = zip(*(r["ratios"] for r in results.values()))
    return [f"geometric mean of the steps' ratios, by round: {' '.join(f'{mean(r):.3f}' for r in rounds)} "
            f"(at most {LIMIT})",
            f"worst in every round: {worst}, {slowest[worst]:.3f} (at most {WORST})",
            f"geometric mean to the end of the first step: {starting:.3f} (at most {START})",
            f"geometric mean of compiling: {compiling:.3f} (at most {COMPILE})"]


def options(arguments):
    """The command line."""
    known = [*unpack.names(), *workloads.MODELS, *workloads.LONG]
    p = argparse.ArgumentParser(prog="bench/paired.py", description=__doc__.splitlines()[0],
                                formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("old", type=Path, metavar="OLD_GRADC")
    p.add_argument("new", type=Path, metavar="NEW_GRADC")
    p.add_argument("--models", type=lambda text: text.split(","), default=known, help="names, comma-separated")
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--runs", type=int, default=4, help="fewest processes of each build in a round")
    p.add_argument("--runs-of-large", type=int, default=2, help=f"the same where {FEWEST} steps take long enough")
    p.add_argument("--ranks", type=int, default=1)
    p.add_argument("--launcher", default="mpirun.openmpi --allow-run-as-root --oversubscribe --bind-to none -n",
                   help="what starts several ranks, before their number")
    p.add_argument("--threads", type=int, help="of each process (default: this one's share of all cores)")
    o = p.parse_args(arguments)
    o.threads = o.threads or max(1, len(os.sched_getaffinity(0)) // o.ranks)
    for name in set(o.models) - set(known):
        try:
            workloads.sized(name)
        except (KeyError, ValueError):
            p.error(f"{name!r} is none of {', '.join(known)}, nor a token model of these with a size, as gpt2_124m:1x1024")
    o.old, o.new = o.old.absolute(), o.new.absolute()
    return o


def main(arguments):
    """A line a model, as it is done; what fails is said, and the next one follows."""
    o = options(arguments)
    results, failed = {}, 0
    print(HEAD, flush=True)
    for name in o.models:
        with tempfile.TemporaryDirectory(prefix="gradc-paired-") as scratch:
            try:
                results[name] = compare(case(name, Path(scratch) / "model"), Path(scratch), o)
            except Failure as failure:
                print(f"paired: error: {name}: {failure}", file=sys.stderr)
                failed = 1
                continue
        print(row(name, results[name]), flush=True)
    print(*(summary(results) if results else []), sep="\n")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
