"""From measurements to what a result file says, and the table that people read."""
import json
import re
import statistics

DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.S)


def spread(values, digits=4):
    """Median, quartiles, extremes and number of some measurements."""
    quarters = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return {"median": round(statistics.median(values), digits), "p25": round(quarters[0], digits),
            "p75": round(quarters[2], digits), "min": round(min(values), digits),
            "max": round(max(values), digits), "n": len(values)}


def of_contender(rounds, rows, warmup):
    """A contender's part of the result, from its processes: one a round, each with what
    compare.run_gradc or compare.run_torch found out."""
    steps = [ms for r in rounds for ms in r["step_ms"][warmup:]]
    step = spread(steps)
    medians = [round(statistics.median(r["step_ms"][warmup:]), 4) for r in rounds]
    return {
        "step_ms": {**step, "round_medians": medians},
        "rows_per_s": round(1e3 * rows / step["median"], 2),
        "compile_s": spread([r["compile_s"] for r in rounds]) if rounds[0]["compile_s"] is not None else None,
        "start_ms": spread([r["start_ms"] for r in rounds]),
        "first_step_ms": spread([r["step_ms"][0] for r in rounds]),
        "first_step_end_s": spread([r["first_step_end_s"] for r in rounds]),
        "peak_bytes": max(r["peak_bytes"] for r in rounds),
        "steady_bytes": max(r["steady_bytes"] for r in rounds),
        "planned_bytes": rounds[0].get("planned_bytes"),
        "binary_bytes": rounds[0].get("binary_bytes"),
        "first_loss": rounds[0]["loss"][0],
        "last_loss": rounds[0]["loss"][-1],
    }


def profile_of(report):
    """The times by kernel in the page that --report wrote."""
    return json.loads(DATA.search(report)[1])["profile"]["kernels"]


def sums(profile, traffic):
    """{(name, origin, phase): row}: the places where a kernel runs in a phase, added up. `traffic`: what a launch reads
    and writes, by kernel."""
    rows = {}
    for k in profile:
        key = k["name"], k["origin"], k["phase"]
        row = rows.setdefault(key, {"name": k["name"], "origin": k["origin"], "phase": k["phase"], "runs": 0, "ms": 0,
                                    "flops": 0, "read_bytes": 0, "written_bytes": 0})
        reads, writes = traffic.get(k["name"], (0, 0))
        row["runs"] += k["runs"]
        row["ms"] += k["ms"]
        row["flops"] += k["flops"] * k["runs"]
        row["read_bytes"] += reads * k["runs"]
        row["written_bytes"] += writes * k["runs"]
    return rows


def kernels(profile, alone, traffic, parts, limits):
    """One row a kernel and phase, longest first. `alone`: the profile of one thread."""
    single = sums(alone, traffic)
    rows = [scaled(rated(row, limits), single.get(key), parts.get(row["name"]))
            for key, row in sums(profile, traffic).items()]
    return sorted(rows, key=lambda r: -r["ms"])


def memory_ms(row, memory):
    """Milliseconds that its bytes take at the machine's best: both directions at once, at the rates of loops that touch
    as many bytes or fewer. (A launch touches what it reads.)"""
    touched = row["read_bytes"] / row["runs"] if row["runs"] else 0
    rates = max((m for m in memory if m["bytes"] <= touched), key=lambda m: m["bytes"], default=memory[0])
    return max(row["read_bytes"] / rates["read_gbytes_per_s"], row["written_bytes"] / rates["write_gbytes_per_s"]) / 1e6


def rated(row, limits):
    """The row with its rates; null where the executable does not say what a copy moves. `limit_ms` is what its FLOPs or
    its bytes take at the machine's best, `of_limit` that by what it took."""
    compute, memory = row["flops"] / limits["gflops"] / 1e6, memory_ms(row, limits["memory"])
    known = row["ms"] > 0 and max(compute, memory) > 0
    return {**row, "gflops": row["flops"] / row["ms"] / 1e6 if known else None,
            "gbytes_per_s": (row["read_bytes"] + row["written_bytes"]) / row["ms"] / 1e6 if known else None,
            "bound": ("compute" if compute > memory else "memory") if known else None,
            "limit_ms": max(compute, memory) if known else None,
            "of_limit": max(compute, memory) / row["ms"] if known else None}


def scaled(row, single, parts):
    """The row with the parts of a launch, and what one thread takes, by itself and by what all take."""
    alone = single["ms"] if single else None
    return {**row, "parts": parts, "one_thread_ms": alone,
            "scaling": alone / row["ms"] if alone is not None and row["ms"] > 0 else None}


def shares(contender, flops, limits):
    """What of the machine's and of the library's best the whole step reaches."""
    gflops = flops / contender["step_ms"]["median"] / 1e6
    library = limits["library_gemm_gflops"]
    return {"gflops": gflops, "of_peak": gflops / limits["gflops"],
            "of_library_gemm": gflops / library if library else None}


def loss_warning(contenders, tolerance=1e-3):
    """A sentence when the first losses differ by more than tolerance, relatively: then the contenders
    did not compute the same. Else None."""
    losses = {name: c["first_loss"] for name, c in contenders.items()}
    low, high = min(losses.values()), max(losses.values())
    if high - low <= tolerance * abs(high):
        return None
    return "first losses differ: " + ", ".join(f"{name} {loss:.6g}" for name, loss in losses.items())


def profile_warning(rows, contenders, tolerance=0.25):
    """A sentence when gradc's kernels took, relatively, more than tolerance longer or shorter than its steps:
    then a disturbance hit one of the two. Else None."""
    if "gradc" not in contenders:
        return None
    kernels, step = sum(r["ms"] for r in rows), contenders["gradc"]["step_ms"]["median"]
    if abs(kernels - step) <= tolerance * step:
        return None
    return f"the steps whose kernels were measured took {kernels:.2f} ms, the others {step:.2f} ms"


def limit_warning(rows, tolerance=0.02):
    """A sentence when a kernel was faster than its limit allows: then something disturbed what measured the limits.
    Else None."""
    fastest = max(rows, key=lambda r: r["of_limit"] or 0)
    if (fastest["of_limit"] or 0) <= 1 + tolerance:
        return None
    return (f"{fastest['name']} took {fastest['ms']:.3f} ms, less than its limit, {fastest['limit_ms']:.3f} ms: "
            "limits are too low")


def of_model(name, settings, rounds, rows, machine, limits, load, warnings):
    """The result of a model, as result.schema.json describes it."""
    flops = sum(r["flops"] for r in rows)
    contenders = {c: of_contender(r, settings["rows"], settings["warmup"]) for c, r in rounds.items()}
    for contender in contenders.values():
        contender.update(shares(contender, flops, limits))
    warnings = [w for w in (*warnings, loss_warning(contenders), profile_warning(rows, contenders),
                            limit_warning(rows)) if w]
    return {"model": name, "settings": settings, "machine": machine, "load": load, "limits": limits,
            "warnings": warnings, "flops_per_step": round(flops), "contenders": contenders,
            "kernels": rows}


def unit(value, scale, form):
    """The value in a unit, as text; "-" where there is none."""
    return "-" if value is None else form.format(value * scale)


HEAD = (f"{'':<10}{'compile':>9} {'start':>9} {'1st step':>10} {'its end':>8} {'step':>10} {'quartiles':>19} "
        f"{'rows/s':>9} {'peak':>9} {'steady':>9} {'binary':>8} {'of peak':>8} {'of lib.':>8} {'gradc is':>9}")


def contender_line(name, c, gradc):
    """A contender as a line of the table; the last column says how many times faster gradc's step is."""
    step = c["step_ms"]
    quarters = f"{step['p25']:.2f}..{step['p75']:.2f}"
    times = step["median"] / gradc["step_ms"]["median"] if gradc else None
    return (f"{name:<10}{unit(c['compile_s'] and c['compile_s']['median'], 1, '{:.2f} s'):>9} "
            f"{c['start_ms']['median']:>6.0f} ms {c['first_step_ms']['median']:>7.1f} ms "
            f"{c['first_step_end_s']['median']:>6.2f} s {step['median']:>7.2f} ms {quarters:>19} {c['rows_per_s']:>9.1f} "
            f"{c['peak_bytes'] / 1e6:>6.0f} MB {c['steady_bytes'] / 1e6:>6.0f} MB "
            f"{unit(c['binary_bytes'], 1e-6, '{:.2f} MB'):>8} {unit(c['of_peak'], 100, '{:.0f}%'):>8} "
            f"{unit(c['of_library_gemm'], 100, '{:.0f}%'):>8} {unit(times, 1, '{:.2f}x'):>9}")


def kernel_line(k, total):
    """A kernel as a line of the table."""
    return (f"  {k['name']:<8} {k['phase']:<9} {k['runs']:>5.0f} {k['ms']:>9.3f} ms {100 * k['ms'] / total:>4.0f}% "
            f"{unit(k['gflops'], 1, '{:.1f}'):>9} {unit(k['gbytes_per_s'], 1, '{:.1f}'):>8} "
            f"{k['bound'] or '-':>8} {unit(k['of_limit'], 100, '{:.0f}%'):>6} {unit(k['parts'], 1, '{}'):>7} "
            f"{unit(k['one_thread_ms'], 1, '{:.3f} ms'):>12} {unit(k['scaling'], 1, '{:.2f}x'):>6}  {k['origin'][:60]}")


def by_kernel(rows):
    """The rows of each kernel added up: where it comes from is that of the one which takes longest."""
    sums = {}
    for row in rows:
        total = sums.setdefault(row["name"], {**row, "runs": 0, "ms": 0, "one_thread_ms": 0})
        for field in ("runs", "ms", "one_thread_ms"):
            total[field] += row[field] or 0
    return list(sums.values())


def scaling_lines(rows, threads, most=12):
    """How kernels scale: those first that lose most, which is what they take more than their part of one thread's
    time."""
    kernels = by_kernel(rows)
    lost = {k["name"]: k["ms"] - k["one_thread_ms"] / threads for k in kernels}
    ms, alone = (sum(k[field] for k in kernels) for field in ("ms", "one_thread_ms"))
    lines = [f"scaling: kernels take {alone:.2f} ms on one thread, {ms:.2f} ms on {threads}: {alone / (ms or 1):.2f}x",
             f"  {'kernel':<8} {'runs':>5} {'parts':>7} {'1 thread':>12} {f'{threads} threads':>12} {'ratio':>6} "
             f"{'lost':>12}  from"]
    for k in sorted(kernels, key=lambda k: -lost[k["name"]])[:most]:
        ratio = k["one_thread_ms"] / k["ms"] if k["ms"] else None
        lines.append(f"  {k['name']:<8} {k['runs']:>5.0f} {unit(k['parts'], 1, '{}'):>7} {k['one_thread_ms']:>9.3f} ms "
                     f"{k['ms']:>9.3f} ms {unit(ratio, 1, '{:.2f}x'):>6} {lost[k['name']]:>9.3f} ms  {k['origin'][:60]}")
    return lines


def table(result, most=12):
    """The result as text: contenders, the kernels that take longest, and those that scale worst."""
    s, m, limits = result["settings"], result["machine"], result["limits"]
    total = sum(k["ms"] for k in result["kernels"]) or 1.0
    lines = [f"{result['model']}: {s['shape']}, f32, {s['threads']} threads, {s['rounds']} rounds of "
             f"{s['steps']} steps, on {m['cpu']} ({m['cores']} cores)",
             f"limits: {limits['gflops']:.0f} GFLOP/s, memory reads {limits['memory'][-1]['read_gbytes_per_s']:.1f} and "
             f"writes {limits['memory'][-1]['write_gbytes_per_s']:.1f} GB/s, library's products "
             f"{unit(limits['library_gemm_gflops'], 1, '{:.0f} GFLOP/s')}",
             "", HEAD]
    lines += [contender_line(name, c, result["contenders"].get("gradc"))
              for name, c in result["contenders"].items()]
    lines += ["", f"  {'kernel':<8} {'phase':<9} {'runs':>5} {'time':>12} {'':>5} {'GFLOP/s':>9} {'GB/s':>8} "
              f"{'bound':>8} {'limit':>6} {'parts':>7} {'1 thread':>12} {'scales':>6}  from"]
    lines += [kernel_line(k, total) for k in result["kernels"][:most]]
    if s["threads"] > 1:
        lines += ["", *scaling_lines(result["kernels"], s["threads"], most)]
    return "\n".join(lines + [f"warning: {w}" for w in result["warnings"]]) + "\n"
