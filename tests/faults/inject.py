#!/usr/bin/env python3
"""Makes one call of a command fail, the first, the second and so on to the last, and judges what comes of each.

usage: tests/faults/inject.py [options]          (make faults runs all of it)
       tests/faults/inject.py --only train --fault io:17 --keep   one fault, its folder is kept

Each command runs in a folder of its own, where older outputs lie. A fault may be absorbed (exit 0, outputs as without
it) or end the command with the exit code of such faults and a message; it never crashes, hangs, leaks memory, leaves a
temporary file, or leaves an output half-written. Faults are made by fault.c, which the sanitizer build has inside.
"""
import argparse
import collections
import concurrent.futures
import contextlib
import copy
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SANITIZER_EXIT = 99
TIMEOUT = 60
# Where these fail something may have to be left.
REMOVALS = ("unlink", "unlinkat", "rmdir", "remove", "opendir", "readdir", "getdents64")
OLD = b"older\n"
STATE = ("step", "loss", "lr", "grad_norm", "count", "samples", "eval_loss", "eval_accuracy", "eval_rows")


# ---- what an output holds, without its times

def whole(path):
    return path.read_bytes()


def log_lines(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [([(key, line.get(key)) for key in STATE], sorted(line)) for line in lines]


def trace_names(path):
    """But those of waiting and of saving again, which depend on time and faults."""
    names = {event["name"] for event in json.loads(path.read_text())["traceEvents"]}
    return {name for name in names if not name.startswith(("save", "checkpoint", "wait"))}


def page_keys(path):
    """Of the page's data: every key, with how many values a list has."""
    text = path.read_text()
    assert text.endswith("</html>\n"), "the page is cut off"

    def keys(x):
        if isinstance(x, dict):
            return {k: keys(v) for k, v in x.items()}
        return len(x) if isinstance(x, list) else type(x) is not str
    data = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', text, re.S)
    return keys(json.loads(data[1])) if data else text


def event_records(folder):
    sizes = []
    data = b"".join(file.read_bytes() for file in folder.iterdir())  # one file, or none yet
    while data:
        n, = struct.unpack_from("<Q", data)
        assert len(data) >= n + 16, "a record is cut off"
        sizes.append(n)
        data = data[n + 16:]
    return sizes


def files_in(folder):
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def sources(folder):
    """Without the temporary folder that they name."""
    return {name: re.sub(rb'"[^"]*/gradc-\w{6}/', b'"', text) for name, text in files_in(folder).items()}


def checkpoint(folder):
    """A checkpoint's bytes, without what its manifest says of when and by whom it was written."""
    files = files_in(folder)
    manifest = json.loads(files.pop("manifest.json"))
    for name in ("checksum", "serial", "run", "time", "settings"):
        manifest.pop(name, None)
    return files, manifest


class Output:
    """streamed: it grows while the command runs, and may end early. whenever: it is written at any end, and tells of
    what there was until then."""

    def __init__(self, path, read=whole, streamed=False, whenever=False):
        self.path, self.read, self.streamed, self.whenever = path, read, streamed, whenever

    def fault(self, folder, wanted, must_be_complete):
        """Why this output is none that the command may leave; None: it may."""
        path = folder / self.path
        old = path.is_file() and path.read_bytes() == OLD
        if not path.exists() or old:
            return f"{self.path} was not written" if must_be_complete else None
        try:
            found = self.read(path)
        except (ValueError, AssertionError, KeyError, struct.error) as error:
            return f"{self.path} cannot be read: {error}"
        if found == wanted:
            return None
        if not must_be_complete and (self.whenever or self.streamed and is_start(found, wanted)):
            return None
        return f"{self.path} is not what it is without the fault"


def is_start(found, wanted):
    return found == wanted[:len(found)] if isinstance(found, list) else found.items() <= wanted.items()


class Command:
    """codes: the exit codes that a fault may have, besides 0. checkpoints: a folder that has some before, and
    afterwards at least one."""

    def __init__(self, name, argv, outputs=(), codes=(5,), checkpoints=None, prepare=None):
        self.name, self.argv, self.outputs, self.codes = name, [str(a) for a in argv], outputs, codes
        self.checkpoints, self.prepare = checkpoints, prepare
        self.calls = {}

    def new_folder(self, folder):
        folder.mkdir(parents=True)
        (folder / "tmp").mkdir()
        for output in self.outputs:
            if output.read in (whole, log_lines, page_keys, trace_names):
                (folder / output.path).write_bytes(OLD)
        if self.prepare:
            self.prepare(folder)

    def run(self, folder, fault=None, stack=False):
        """(finished process, what failed as fault.c says, counts)"""
        log = folder.parent / f"{folder.name}.log"
        log.unlink(missing_ok=True)
        env = {**os.environ, "GRADC_FAULT_LOG": str(log), "TMPDIR": str(folder / "tmp"),
               "ASAN_OPTIONS": f"exitcode={SANITIZER_EXIT}:detect_leaks=1:handle_abort=1",
               "UBSAN_OPTIONS": f"exitcode={SANITIZER_EXIT}:print_stacktrace=1"}
        if fault:
            env["GRADC_FAULT"] = fault
        if stack:
            env["GRADC_FAULT_STACK"] = "1"
        done = subprocess.run(self.argv, cwd=folder, env=env, capture_output=True, timeout=TIMEOUT)
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        failed = next((line for line in lines if not line.startswith("calls ")), "")
        counts = next((line for line in lines if line.startswith("calls ")), "").split()[1:]
        return done, failed, [int(n) for n in counts]

    def measure(self, folder):
        """Runs it undisturbed: what it calls, prints and writes."""
        self.new_folder(folder)
        done, _, counts = self.run(folder)
        assert done.returncode == 0, f"{self.name} without a fault: {done.returncode}\n{done.stderr.decode()}"
        assert len(counts) == 2, f"{self.argv[0]} was built without GRADC_FAULTS"
        self.calls = dict(zip(("alloc", "io"), counts))
        self.stdout = without_numbers(done.stdout)
        self.wanted = {o.path: o.read(folder / o.path) for o in self.outputs}
        self.names = names_under(folder)
        if self.checkpoints:
            self.wanted_checkpoints = [p.name for p in self.all_checkpoints(folder)]
            for path in self.all_checkpoints(folder):
                self.known_checkpoints[path.name].append(checkpoint(path))

    def all_checkpoints(self, folder):
        return sorted((folder / self.checkpoints).glob("step-*"))

    # ---- judging
    def left_untold(self, folder, stderr):
        """New files that no message names: the source at which a compiler's process died is kept, for people."""
        return {name for name in names_under(folder) - self.names if Path(name).name not in stderr}

    def faults(self, folder, done, failed):
        """What is wrong with a run in which a call failed."""
        stderr = done.stderr.decode(errors="replace")
        call = failed.split()[2] if failed else ""
        if done.returncode < 0 or done.returncode == SANITIZER_EXIT or "Sanitizer" in stderr or "runtime error:" in stderr:
            return [first_line(stderr, r"(ERROR|SUMMARY): \w+Sanitizer.*|runtime error:.*") or f"signal {-done.returncode}"]
        wrong = []
        if done.returncode not in (0, *self.codes):
            wrong.append(f"exit code {done.returncode}: {first_line(stderr, 'error: .*')}")
        if done.returncode and "error: " not in stderr and "stderr" not in failed:
            wrong.append(f"exit code {done.returncode} without a message")
        if done.returncode == 0 and without_numbers(done.stdout) != self.stdout:
            wrong.append("exit code 0, but stdout is not what it is without the fault")
        # A checkpoint that cannot be read is left out, with a warning: more steps are shown then, and end the same.
        left_out = "left out" in stderr
        ended_early = done.returncode == 6  # by a row that cannot be read: what came of the steps before is saved and exported
        for output in self.outputs:
            if not (left_out and output.read is not whole) and not (ended_early and (folder / output.path).exists() and output.read is not whole):
                wrong.append(output.fault(folder, self.wanted[output.path], done.returncode == 0))
        left = self.left_untold(folder, stderr)
        deadline = time.monotonic() + 60  # processes that gradc started end with it, and remove what they wrote
        while left and call not in REMOVALS and time.monotonic() < deadline:
            time.sleep(0.05)
            left = self.left_untold(folder, stderr)
        if left and call not in REMOVALS:
            wrong.append(f"left {', '.join(sorted(re.sub('[0-9]+', 'N', x) for x in left))}")
        if self.checkpoints:
            wrong += self.checkpoint_faults(folder, done.returncode == 0, call in REMOVALS, ended_early)
        return [w for w in wrong if w]

    def checkpoint_faults(self, folder, complete, may_be_more, may_be_earlier):
        found = self.all_checkpoints(folder)
        if not found and (complete or self.prepare):
            yield "no checkpoint is left"
        if complete and found and max(map(usual_name, found)) != max(self.wanted_checkpoints):
            yield "the last checkpoint is missing"
        for path in found:
            try:
                have = checkpoint(path)
            except (OSError, ValueError, KeyError) as error:
                if not may_be_more:
                    yield f"a checkpoint is damaged: {error}"
                continue
            name = usual_name(path)
            if may_be_earlier and name not in self.known_checkpoints:
                continue
            if have not in self.known_checkpoints[name]:
                yield f"{path.name} is not what it is without the fault"


def usual_name(path):
    """One that stays is saved beside, with one more zero."""
    return f"step-{int(path.name[5:]):08d}"


def without_numbers(data):
    return re.sub(rb"[0-9.]+", b"0", data)


def first_line(text, pattern):
    found = re.search(pattern, text)
    return re.sub(r"0x[0-9a-f]+|==\d+==", "", found[0])[:200] if found else ""


def names_under(folder):
    """Of all files and folders, but what lies inside of checkpoints; event files are named after the time."""
    names = set()
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if "tfevents" not in name and not re.search(r"step-\d+", name):
            names.add(name)
    return names


# ---- the commands

NAMES = ("check", "check-json", "compile", "compile-c", "compile-cuda", "dump", "dump-html", "dump-asm", "dump-exe", "run", "train",
         "resume", "library")


def commands(gradc, models, scratch):
    """All of them; the executables that train are compiled first."""
    def model(name):
        return models / name / "model.onnx"

    def compiled(name, *options):
        exe = scratch / f"{name}.exe"
        subprocess.run([gradc, "compile", model(name), "-o", exe, *options], check=True, capture_output=True)
        return exe

    def host(*options):
        """library.c, linked as training executables are, with its model."""
        library, program = scratch / "libdigits.so", scratch / "library"
        subprocess.run([gradc, "compile", model("mlp_digits"), "--emit=library", "-o", library, *options],
                       check=True, capture_output=True)
        names = re.findall(r"^(?:(?:CALL|DONE|STREAM)\([A-Z]+,[^,]+, |BY_HAND\()(\w+)", (HERE / "calls.def").read_text(),
                           re.M)
        wraps = "-Wl," + ",".join(f"--wrap={name}" for name in names)
        subprocess.run(["cc", "-g", "-fsanitize=address,undefined", "-D_GNU_SOURCE=", "-I", ROOT, HERE / "library.c",
                        library, gradc.parent / "lib/libgradc_rt.a", f"-Wl,-rpath,{scratch}", wraps, "-lm", "-lpthread",
                        "-o", program], check=True)
        return program

    def with_nvrtc(*command):
        """With a library that compiles nothing, and a cache of the run's own."""
        subprocess.run(["cc", "-shared", "-fPIC", "-o", scratch / "libnvrtc.so.13", ROOT / "tests/codegen/programs/fake_nvrtc.c"],
                       check=True)
        return ["sh", "-c", f'XDG_CACHE_HOME=$PWD/cache LD_LIBRARY_PATH={scratch} exec "$0" "$@"', *command]

    digits = compiled("mlp_digits", "--batch=16")
    folder = models / "mlp_digits"
    data = [f"--data=input={folder}/input.npy", f"--data=labels={folder}/labels.npy"]
    evaluation = [f"--eval-data=input={folder}/eval_input.npy", f"--eval-data=labels={folder}/eval_labels.npy"]
    train = [digits, *data, *evaluation, "--progress=off", "--table=off", "--save=ck", "--save-every=2"]
    before = scratch / "before"
    before.mkdir()
    subprocess.run([*train, "--steps=2"], cwd=before, check=True, capture_output=True)
    every = scratch / "every"
    every.mkdir()
    subprocess.run([*train, "--steps=4", "--keep=9"], cwd=every, check=True, capture_output=True)

    def old_checkpoint(to):
        shutil.copytree(before / "ck", to / "ck")

    views = [Output("log", log_lines, True), Output("trace.json", trace_names, whenever=True),
             Output("report.html", page_keys, whenever=True),
             Output("tb", event_records, True)]
    written = ["--log=log", "--export=export.onnx", "--trace=trace.json", "--report=report.html", "--tensorboard=tb"]
    list_ = [
        Command("check", [gradc, "check", model("mlp_digits")]),
        Command("check-json", [gradc, "check", model("mlp_diabetes"), "--loss=mse", "--json"]),
        Command("compile", [gradc, "compile", model("mlp_digits"), "-o", "exe", "--batch=16"], [Output("exe")]),
        Command("compile-c", [gradc, "compile", model("mlp_diabetes"), "-o", "exe", "--batch=4", "--loss=mse",
                              "--keep-sources=src", "--weights=w.bin"],
                [Output("exe"), Output("w.bin"), Output("src", sources, True)]),
        Command("compile-cuda", with_nvrtc(gradc, "compile", model("mlp_digits"), "-o", "exe", "--batch=16",
                                           "--target=cpu,cuda:sm_90a"), [Output("exe")]),
        Command("dump", [gradc, "dump", model("mlp_digits"), "--stage=memory"]),
        Command("dump-html", [gradc, "dump", model("mlp_digits"), "--loss=cross_entropy", "--stage=train",
                              "--format=html", "-o", "page"], [Output("page")]),
        Command("dump-asm", [gradc, "dump", model("mlp_digits"), "--stage=asm", "-o", "asm"], [Output("asm")]),
        Command("dump-exe", [gradc, "dump", digits, "--stage=schedule"]),
        Command("run", [gradc, "run", model("mlp_digits"), f"--input=input={folder}/eval_input.npy",
                        "--output-dir=out"], [Output("out", files_in, True)], (5, 6)),
        Command("train", [*train, "--keep=2", "--steps=4", *written], [Output("export.onnx"), *views], (5, 6, 7), "ck"),
        Command("resume", [*train, "--keep=2", "--steps=4", "--resume=auto", *written], [Output("export.onnx"), *views], (5, 6, 7),
                "ck", old_checkpoint),
        Command("library", [host("--batch=16"), folder / "input.npy", folder / "labels.npy"],
                [Output("trained.onnx"), Output("trace.json", trace_names, whenever=True)], (5, 6, 7), "ck"),
    ]
    known = collections.defaultdict(list)
    for path in [*every.glob("ck/step-*"), *before.glob("ck/step-*")]:
        known[path.name].append(checkpoint(path))
    for command in list_:
        command.known_checkpoints = copy.deepcopy(known)
    return list_


# ---- the runs

def numbers(calls, first, spread):
    """1 to `first`, then `spread` more, evenly over the rest."""
    rest = range(first + 1, calls + 1)
    step = max(1, len(rest) // spread) if spread else len(rest) + 1
    return [*range(1, min(first, calls) + 1), *rest[::step][:spread]]


def own_stack(stderr):
    """The innermost functions of gradc's where the call failed."""
    frames = []
    for line in stderr.splitlines():
        found = re.match(r"\s+#\d+ 0x[0-9a-f]+ in (\S+)", line)
        if found and not found[1].startswith(("__wrap", "fails", "note", "stream_fails")):
            frames.append(found[1])
        elif frames and not found:
            break
    return " < ".join(frames[:8])


def try_fault(command, fault, scratch, stack=False, keep=False):
    """(what is wrong, exit code, what failed, stack)"""
    folder = Path(tempfile.mkdtemp(dir=scratch)) / "run"
    command.new_folder(folder)
    try:
        done, failed, _ = command.run(folder, fault, stack)
        wrong = command.faults(folder, done, failed)
        stderr = done.stderr.decode(errors="replace")
        if keep:
            print(f"{folder}\nexit {done.returncode}, failed: {failed}\n{stderr}")
        return wrong, done.returncode, failed, own_stack(stderr) if stack else ""
    except subprocess.TimeoutExpired:
        return ["it hangs"], None, "", ""
    finally:
        if not keep:
            shutil.rmtree(folder.parent)


class Totals:
    def __init__(self):
        self.codes = collections.Counter()
        self.causes = collections.defaultdict(list)

    def add(self, command, fault, scratch, result):
        wrong, code, failed, _ = result
        self.codes[(command.name, fault.split(":")[0], "wrong" if wrong else code)] += 1
        if wrong:
            _, _, failed, stack = try_fault(command, fault, scratch, stack=True)
            call = failed.split()[2] if failed else "?"
            key = (command.name, tuple(re.sub(r"\d+", "N", w) for w in wrong), call, stack)
            self.causes[key].append(fault)

    def print(self):
        for (name, kind, code), n in sorted(self.codes.items(), key=str):
            print(f"{name:12} {kind:6} {'exit ' if code != 'wrong' else ''}{code}: {n}")
        for (name, wrong, call, stack), found in sorted(self.causes.items(), key=lambda x: -len(x[1])):
            print(f"\n{name}: {'; '.join(wrong)}\n\t{len(found)} times, as when {call} fails in {stack}\n"
                  f"\ttests/faults/inject.py --only {name} --fault {found[0]} --keep")


def jobs_of(list_, options):
    for command in list_:
        for kind in ("alloc", "io"):
            if options.kind in (None, kind):
                for n in numbers(command.calls[kind], options.first, options.spread):
                    yield command, f"{kind}:{n}"
                    if options.persistent and kind == "alloc":
                        yield command, f"{kind}:{n}+"


def progress(done, all_, begin, totals):
    left = (time.monotonic() - begin) / done * (all_ - done)
    end = "\r" if sys.stderr.isatty() else "\n"
    if sys.stderr.isatty() or done % 500 == 0:
        print(f"{done} of {all_} faults, {sum(map(len, totals.causes.values()))} wrong, {left / 60:.1f} minutes left",
              end=end, file=sys.stderr, flush=True)


def run_all(list_, todo, scratch, workers, seconds=None):
    """Totals of the jobs, or of those of them that fit the time."""
    totals, begin = Totals(), time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        def work(job):
            if seconds is None or time.monotonic() - begin < seconds:
                return job, try_fault(*job, scratch)
            return job, None
        for i, (job, result) in enumerate(pool.map(work, todo)):
            if result:
                totals.add(*job, scratch, result)
                progress(i + 1, len(todo), begin, totals)
    return totals


@contextlib.contextmanager
def scratch_folder(keep=False):
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder)


def reference_models(scratch):
    """As tests/conftest.py: the full ones beside the repository, else the copies of tests/models."""
    beside = ROOT.parent / "shared/models"
    if beside.is_dir():
        return beside
    sys.path.insert(0, str(ROOT / "tests/models"))
    import unpack
    for name in ("mlp_digits", "mlp_diabetes"):
        unpack.unpack(name, scratch / "models" / name)
    return scratch / "models"


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", default="build-asan", help="folder of a build with GRADC_FAULTS")
    parser.add_argument("--only", help="commands, with commas")
    parser.add_argument("--kind", choices=("alloc", "io"))
    parser.add_argument("--first", type=int, default=2000, help="how many from 1 on (2000)")
    parser.add_argument("--spread", type=int, default=2000, help="how many of the rest, evenly (2000)")
    parser.add_argument("--persistent", action="store_true", help="also faults after which every allocation fails")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--hours", type=float, default=2, help="no fault begins later (2)")
    parser.add_argument("--fault", help="this one only, as alloc:17")
    parser.add_argument("--keep", action="store_true", help="keeps the folders and shows what each run says")
    parser.add_argument("--list", action="store_true", help="the commands and how many calls they make")
    return parser.parse_args(argv)


def main(argv):
    options = parse(argv)
    with scratch_folder(options.keep) as scratch:
        gradc = ROOT / options.build / "gradc"
        list_ = [c for c in commands(gradc, reference_models(scratch), scratch)
                 if not options.only or c.name in options.only.split(",")]
        for command in list_:
            command.measure(scratch / f"measured-{command.name}")
            print(f"{command.name:12} {command.calls['alloc']:6} allocations {command.calls['io']:6} calls", flush=True)
        if options.list:
            return 0
        if options.fault:
            results = [try_fault(c, options.fault, scratch, stack=True, keep=options.keep) for c in list_]
            print(*results, sep="\n")
            return 1 if any(wrong for wrong, *_ in results) else 0
        totals = run_all(list_, list(jobs_of(list_, options)), scratch, options.workers, 3600 * options.hours)
        totals.print()
        return 1 if totals.causes else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
