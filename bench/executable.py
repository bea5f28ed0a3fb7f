"""Running the training executables that gradc writes."""
import json
import os
import subprocess
import threading
import time
from pathlib import Path

from process import Failure

WARMUP = 3       # steps of a process that its medians leave out


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


def log_lines(command, **options):
    """(seconds when it came, object) for each line of the training's log, and the memory's peak last."""
    read, write = os.pipe()
    start, peak, lines = time.monotonic(), 0, []
    # by this process's own descriptor: a launcher of ranks does not hand descriptors on
    with subprocess.Popen([str(c) for c in command] + ["--log", f"/proc/{os.getpid()}/fd/{write}"],
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **options) as process:
        threading.Thread(target=lambda: (process.wait(), os.close(write))).start()
        with os.fdopen(read) as log:
            for line in log:
                lines.append((time.monotonic() - start, json.loads(line)))
                if len(lines) > WARMUP:
                    peak = high_water(process.pid, peak)
        said = process.stderr.read().strip()
    if process.returncode:
        raise Failure(f"{command[0]}: exit {process.returncode}: {said}")
    return lines, peak
