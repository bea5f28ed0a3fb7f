"""What the machine is, what it could do at best, and whether others used it during a run."""
import functools
import os
import platform
import re
import resource
import time
from pathlib import Path

from process import Failure, call

ROOT = Path(__file__).resolve().parents[1]
ISA = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8", "asimd", "sve")
BUSY_CORES = 0.1  # what others may use of the machine without a warning


def first_line(*command):
    """The first line that a command prints, None where it cannot be run or prints none."""
    try:
        return next(iter(call(command).splitlines()), None)
    except Failure:
        return None


def cpu_field(text, names):
    """The first of these fields of /proc/cpuinfo's text; "" where it has none."""
    for name in names:
        found = re.search(rf"^{name}\s*: (.*)$", text, re.M)
        if found:
            return found[1]
    return ""


@functools.cache  # what is written between two models makes a tree dirty
def machine():
    """CPU, memory, system and compiler: what two results must share to be comparable."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    flags = cpu_field(cpuinfo, ["flags", "Features"]).split()
    return {
        "cpu": cpu_field(cpuinfo, ["model name", "CPU part"]) or platform.machine(),
        "isa": [name for name in ISA if name in flags],
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "versions": {"gradc": first_line(ROOT / "build/gradc", "--version"),
                     "commit": first_line("git", "-C", ROOT, "describe", "--always", "--dirty"),
                     "cc": first_line("cc", "--version"),
                     "python": platform.python_version()},
    }


def busy_seconds():
    """CPU seconds that all processes (and other guests of the host) took since the machine started."""
    user, nice, system, _, _, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split("\n")[0].split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def own_seconds():
    """CPU seconds of this process and of those that it has waited for."""
    return sum(usage.ru_utime + usage.ru_stime for usage in map(
        resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))


class Watch:
    """Load and CPU time between its making and facts()."""

    def __init__(self):
        self.load = os.getloadavg()[0]
        self.began, self.busy, self.own = time.monotonic(), busy_seconds(), own_seconds()

    def facts(self):
        """Load averages of a minute at start and end, and how many cores others kept busy."""
        seconds = time.monotonic() - self.began
        others = busy_seconds() - self.busy - (own_seconds() - self.own)
        return {"load_start": self.load, "load_end": os.getloadavg()[0], "seconds": seconds,
                "others_busy_cores": max(0.0, others / seconds)}


def load_warning(load):
    """A sentence when others were computing during the run, else None."""
    if load["others_busy_cores"] <= BUSY_CORES:
        return None
    return (f"others kept {load['others_busy_cores']:.2f} cores busy "
            f"(load {load['load_start']:.2f} at the start): these numbers are not to be published")


def columns(header, row):
    """{name: text} of a row of bench_gemm's table, whose columns end where their names end."""
    ends = [m.end() for m in re.finditer(r"\S+(?: \S+)*", header)]
    starts = [0, *ends]
    names = [header[a:b].strip() for a, b in zip(starts, ends)]
    return dict(zip(names, (row[a:b].strip() for a, b in zip(starts, ends))))


def parse_gemm(text):
    """(peak of the registers, best generated product, best product of the library or None), in GFLOP/s,
    of what bench_gemm prints: 0 for products that the library does not take or where there is none."""
    lines = text.splitlines()
    peak = float(re.search(r"peak ([\d.]+) GFLOP/s", lines[0])[1])
    best = {}
    for line in lines[2:]:
        for name, value in columns(lines[1], line).items():
            if re.fullmatch(r"[\d.]+", value):
                best[name] = max(best.get(name, 0.0), float(value))
    return peak, best["generated"], best.get("library") or None


def gemm_rates(threads):
    """parse_gemm of a run of bench_gemm: the library alone is measured there, not here."""
    return parse_gemm(call([ROOT / "build/bench_gemm", threads]))


def parse_bandwidth(text):
    """[{"bytes", "read_gbytes_per_s", "write_gbytes_per_s"}] of what bench_bandwidth prints: of loops that touch so many
    bytes. More bytes are never moved faster: a disturbance only ever lowers a rate."""
    rows = [list(map(float, line.split())) for line in text.splitlines()[2:]]
    found = [{"bytes": int(row[0]), "read_gbytes_per_s": row[-2], "write_gbytes_per_s": row[-1]} for row in rows]
    for small, large in reversed(list(zip(found, found[1:]))):
        for rate in ("read_gbytes_per_s", "write_gbytes_per_s"):
            small[rate] = max(small[rate], large[rate])
    return found


def limits(threads):
    """What the machine reaches at best with these threads. The FLOP/s are the highest that anything
    reached, since a disturbance only ever lowers one of them."""
    peak, generated, library = gemm_rates(threads)
    return {"gflops": max(peak, generated, library or 0.0), "generated_gemm_gflops": generated,
            "library_gemm_gflops": library,
            "memory": parse_bandwidth(call([ROOT / "build/bench_bandwidth", threads]))}


def better(a, b):
    """The higher of two measurements of limits, number by number."""
    if isinstance(a, dict):
        return {key: better(a[key], b[key]) for key in a}
    if isinstance(a, list):
        return [better(*pair) for pair in zip(a, b)]
    return a if b is None else b if a is None else max(a, b)
