#!/usr/bin/env python3
"""Compares gradc with onnxruntime over mutated models; exit status 1 if a difference is not explained.

    tests/differential/fuzz.py --count 1000           cases 0 to 999
    tests/differential/fuzz.py --only 4711 --keep D   one case, its model and inputs left in D
    tests/differential/fuzz.py --minutes 30 --first 100000
"""
import argparse
import collections
import json
import multiprocessing
import multiprocessing.connection
import os
import resource
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import engines  # noqa: E402
import explained  # noqa: E402
import judge  # noqa: E402
import mutate  # noqa: E402

SECONDS_OF_A_CASE = 120
MEMORY = 8 << 30
LISTED = 40  # findings printed in full
MADE = "made"


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--first", type=int, default=0, metavar="K", help="number of the first case (0)")
    p.add_argument("--count", type=int, metavar="N", help="how many cases (1000, or what the minutes allow)")
    p.add_argument("--minutes", type=float, metavar="M", help="stop after so many minutes")
    p.add_argument("--compared", type=int, metavar="N", help="stop after N cases with outputs compared")
    p.add_argument("--only", type=int, metavar="K", help="one case alone, told in full")
    p.add_argument("--keep", type=Path, metavar="DIR", help="leave models and inputs of findings here")
    p.add_argument("--compiled-every", type=int, default=5, metavar="N",
                   help="every N-th case runs in the compiled engine too (5; 0: none)")
    p.add_argument("--gradc", type=Path, default=engines.ROOT / os.environ.get("GRADC_BUILD", "build") / "gradc")
    p.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N")
    p.add_argument("--log", type=Path, metavar="FILE", help="a line of JSON for each case")
    options = p.parse_args()
    if options.count is None:
        options.count = 1000 if options.minutes is None and options.compared is None else 1 << 30
    return options


def judge_case(case, options, folder, without_onnxruntime=False):
    """[(engine, Verdict)] of one case."""
    if without_onnxruntime:
        engines.ask_onnxruntime = lambda *_: engines.Answer(message="crashed")
    kinds = ["interp"]
    if options.compiled_every and case.number % options.compiled_every == 0:
        kinds.append("compiled")
    told = [(kind, judge.judge(case, options.gradc, folder, kind)) for kind in kinds]
    if options.keep and (options.only is not None or any(v.word == "finding" for _, v in told)):
        keep(case, options, told)
    return told


def keep(case, options, told):
    folder = options.keep / str(case.number)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(case.model.SerializeToString())
    commands = [" ".join(engines.command_line(options.gradc, folder, case.feed, kind)) for kind, _ in told]
    verdicts = [f"{kind}: {v.word}: {v.why} {v.detail}" for kind, v in told]
    (folder / "README").write_text("\n".join([case.seed, *case.notes, "", *commands, "", *verdicts, ""]))


def work(pipe, options):
    """A worker: reads numbers, says when the case is made, and answers with verdicts; it dies with the case
    that crashes onnx's checker or onnxruntime."""
    if "asan" not in str(options.gradc):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory(prefix="gradc-differential-") as scratch:
        while (message := pipe.recv()) is not None:
            number, alone = message
            try:
                case = mutate.make_case(number)
                pipe.send(MADE)
                pipe.send((number, case.seed, case.notes, judge_case(case, options, Path(scratch), alone)))
            except Exception:  # a fault of this tool must not pass for one of onnxruntime
                fault = judge.Verdict("finding", traceback.format_exc())
                pipe.send((number, "?", [], [("interp", fault)]))
            if alone:
                break


class Worker:
    """A process, and the case that it is at."""

    def __init__(self, options):
        self.options = options
        self.pipe, theirs = multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=work, args=(theirs, options), daemon=True)
        self.process.start()
        theirs.close()
        self.number = None

    def give(self, number, alone=False):
        self.number, self.since, self.alone, self.made = number, time.monotonic(), alone, False
        self.pipe.send((number, alone))

    def end(self):
        self.process.kill()
        self.process.join()
        self.pipe.close()


class Totals:
    def __init__(self):
        self.words = {kind: collections.Counter() for kind in ("interp", "compiled")}
        self.reasons = collections.Counter()
        self.findings = []
        self.cases = self.compared = self.unmade = 0

    def add(self, number, seed, notes, told):
        self.cases += 1
        for kind, v in told:
            self.words[kind][v.word] += 1
            if v.why:
                self.reasons[v.why] += 1
            if v.word == "finding":
                self.findings.append((number, seed, notes, v.detail))
        self.compared += any(v.word in judge.COMPARED for _, v in told)

    def print(self):
        for number, seed, notes, detail in self.findings[:LISTED]:
            print(f"case {number}, {seed}: {'; '.join(notes)}\n  {detail}")
        for kind, words in self.words.items():
            for word in judge.VERDICTS:
                if words[word]:
                    print(f"{kind:9} {words[word]:7}  {judge.VERDICTS[word]}")
        for why, n in self.reasons.most_common():
            print(f"{'':9} {n:7}  explained: {why}")
        if self.unmade:
            print(f"{'':9} {self.unmade:7}  numbers without a case: onnx's shape inference crashes on the model")
        print(f"{self.cases} cases, {self.compared} with outputs compared, "
              f"{sum(self.reasons.values())} explained, {len(self.findings)} findings")


def left(options, totals, at, start):
    """Seconds that are left, by the slowest of the limits; None: unknown."""
    spent = time.monotonic() - start
    done = [at / options.count if options.count < 1 << 30 else 0]
    if options.minutes:
        done.append(spent / 60 / options.minutes)
    if options.compared:
        done.append(totals.compared / options.compared)
    share = max(done)
    return spent / share - spent if share > 0.001 else None


def finished(options, totals, given, start):
    return (given >= options.count or
            (options.minutes and time.monotonic() - start > 60 * options.minutes) or
            (options.compared and totals.compared >= options.compared))


def died(worker, totals):
    """A worker that is gone or late: no case where onnx itself crashed, else the case once more without
    onnxruntime; a finding if that ends the same way."""
    number, alone, options = worker.number, worker.alone, worker.options
    worker.end()
    fresh = Worker(options)
    if not worker.made:
        totals.unmade += 1
    elif alone:
        totals.add(number, "?", [], [("interp", judge.Verdict("finding", "no end, or a crash of the tool"))])
    else:
        fresh.give(number, alone=True)
    return fresh


def run_all(options):
    totals, start, given, shown = Totals(), time.monotonic(), 0, 0
    workers = [Worker(options) for _ in range(max(options.jobs, 1))]
    log = options.log.open("w") if options.log else None
    while True:
        for w in workers:
            if w.number is None and not finished(options, totals, given, start):
                w.give(options.first + given)
                given += 1
        busy = [w for w in workers if w.number is not None]
        if not busy:
            break
        ready = multiprocessing.connection.wait([w.pipe for w in busy], timeout=5)
        for w in busy:
            late = time.monotonic() - w.since > SECONDS_OF_A_CASE
            if w.pipe in ready:
                try:
                    result = w.pipe.recv()
                    if result == MADE:
                        w.made = True
                        continue
                except (EOFError, ConnectionError):
                    workers[workers.index(w)] = died(w, totals)
                    continue
                totals.add(*result)
                if log:
                    number, seed, notes, told = result
                    print(json.dumps([number, seed, notes, [(k, v.word, v.why, v.detail) for k, v in told]]),
                          file=log, flush=True)
                w.number = None
                if w.alone:
                    w.end()
                    workers[workers.index(w)] = Worker(options)
            elif late:
                workers[workers.index(w)] = died(w, totals)
        if time.monotonic() - shown > 10:
            shown, seconds = time.monotonic(), left(options, totals, given, start)
            time_left = f"{seconds // 60:.0f}:{seconds % 60:02.0f}" if seconds is not None else "?"
            print(f"{totals.cases} cases, {totals.compared} compared, {len(totals.findings)} findings, "
                  f"left {time_left}", file=sys.stderr, flush=True)
    for w in workers:
        w.end()
    totals.print()
    return totals


def main():
    options = arguments()
    if not options.gradc.exists():
        sys.exit(f"fuzz.py: error: {options.gradc} is not built")
    if options.only is None:
        sys.exit(1 if run_all(options).findings else 0)
    with tempfile.TemporaryDirectory(prefix="gradc-differential-") as scratch:
        case = mutate.make_case(options.only)
        told = judge_case(case, options, Path(scratch))
    print(f"case {case.number}, {case.seed}", *case.notes, sep="\n  ")
    for kind, v in told:
        print(f"{kind}: {v.word}{': ' + explained.REASONS[v.why].reason if v.why else ''}\n  {v.detail}")
    sys.exit(any(v.word == "finding" for _, v in told))


if __name__ == "__main__":
    main()
