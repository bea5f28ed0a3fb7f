"""Running the training executables that gradc writes."""
import json
import os
import subprocess
import threading
import time
from pathlib import Path

from process import Failure

WARMUP = 3       # steps of a process that its medians leave out
# Seconds between two looks at a log of many lines: who looks at every line takes the cores from those that train.
NAP, MANY = 0.001, 100


def training(model, exe, folder, steps, threads):
    """The command that trains on write_data's files."""
    return [exe, "--data", f"{model.input}={folder / 'inputs.npy'}", "--data",
            f"labels={folder / 'labels.npy'}", f"--steps={steps}", f"--threads={threads}",
            "--shuffle=off", "--progress=off", "--table=off"]


def high_water(pid, before):
    """The process's largest resident bytes so far; `before` when it has gone. (getrusage would count
    what this process had when it forked.)"""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        return 1024 * int(status.split("VmHWM:")[1].split()[0])
    except (OSError, IndexError):
        return before


def timed_lines(fd):
    """Yields (seconds when they came, lines) of what is written to a pipe, until it is closed. A line ends in a newline."""
    rest = b""
    with os.fdopen(fd, "rb", buffering=0) as log:
        while chunk := log.read(1 << 20):
            *lines, rest = (rest + chunk).split(b"\n")
            yield time.monotonic(), lines


def log_lines(command, **options):
    """(seconds when it came, object) for each line of the training's log, and the memory's peak last. Behind the first
    MANY, lines of NAP seconds come together."""
    read, write = os.pipe()
    start, peak, lines = time.monotonic(), 0, []
    # by this process's own descriptor: a launcher of ranks does not hand descriptors on
    with subprocess.Popen([str(c) for c in command] + ["--log", f"/proc/{os.getpid()}/fd/{write}"],
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **options) as process:
        threading.Thread(target=lambda: (process.wait(), os.close(write))).start()
        for at, some in timed_lines(read):
            lines += [(at - start, line) for line in some]
            if len(lines) > WARMUP:
                peak = high_water(process.pid, peak)
            if len(lines) > MANY:
                time.sleep(NAP)
        said = process.stderr.read().strip()
    if process.returncode:
        raise Failure(f"{command[0]}: exit {process.returncode}: {said}")
    return [(at, json.loads(line)) for at, line in lines], peak
