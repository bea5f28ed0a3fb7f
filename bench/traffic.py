"""How many bytes a kernel reads and writes: from the loops as `gradc dump --stage=lowered` prints them, and from the
executable's schedule. bandwidth.c counts in the same way.

Memory moves lines. A write of a line that is not in the cache reads the line first, and writes it later: it counts as
both. Where an output lies where an input lay, the kernel has read the line, and the write is a write only. What loops do
not touch does not count: the other rows of an embedding table, the other columns of a joined product.
"""
import math
import re

BITS = {"bool": 8, "f64": 64, "f32": 32, "tf32": 32, "bf16": 16, "f16": 16}
KERNEL = re.compile(r"^  kernel @(\w+)\((.*?)\) flops .*?^  }", re.M | re.S)
BUFFER = re.compile(r"(\w+): (in|out|inout) (\w+)\[([\d,]*)\]")
LOOP = re.compile(r"(\s+)\w+ (v\d+) < (?:min\()?(\d+)")
ACCESS = re.compile(r"(\s+).*\b(load|store) (\w+)\[(.*?)\]")
RUN = re.compile(r"^\s+\d+\s+(?:[*|]+\s+)?run (\w+).*? \((.*)\)(?: when \w+)?(?: phase \w+)?  loc ", re.M)
SLOT = re.compile(r"(\w+\+\d+):\w+ \"")


def bits(dtype):
    """Of an element: what its name says."""
    return BITS.get(dtype) or int(re.match(r"[a-z]+(\d+)", dtype)[1])


def iterations(place, loops):
    """How many different places an access has at most: those of the loops whose variables it names. A scalar that was
    computed may depend on all of them."""
    names = re.findall(r"v\d+", place)
    extents = dict(loops)
    return math.prod(extents.values() if any(n not in extents for n in names) else (extents[n] for n in set(names)))


def touched(text):
    """{(buffer, "load" or "store"): elements that a kernel's loops touch at most}"""
    loops, counts = [], {}
    for line in text.splitlines():
        access, loop = ACCESS.match(line), LOOP.match(line)
        depth = len(line) - len(line.lstrip())
        loops = [entry for entry in loops if entry[0] < depth]
        if loop:
            loops.append((depth, loop[2], int(loop[3])))
        if access:
            key = access[3], access[2]
            counts[key] = counts.get(key, 0) + iterations(access[4], [entry[1:] for entry in loops])
    return counts


def buffers(header, counts):
    """[(bytes read, bytes written)] of a kernel's buffers, inputs first."""
    found = []
    for name, mode, dtype, shape in BUFFER.findall(header):
        elements = math.prod(map(int, filter(None, shape.split(","))))
        loads, stores = (min(elements, counts.get((name, kind), 0)) * bits(dtype) / 8 for kind in ("load", "store"))
        found.append((loads if mode != "out" else 0, stores))
    return found


def kernels(lowered):
    """{kernel: its buffers} of the text of a module whose kernels have loops."""
    return {m[1]: buffers(m[2], touched(m[0])) for m in KERNEL.finditer(lowered)}


def moved(found, slots):
    """(bytes read, bytes written) by a launch on these slots, one a buffer. The read ones are all that it touches."""
    read = {slot for (loads, _), slot in zip(found, slots) if loads}
    allocated = sum(stores for (loads, stores), slot in zip(found, slots) if not loads and slot not in read)
    loads, stores = map(sum, zip(*found))
    return loads + allocated, stores


def of_kernels(lowered, schedule):
    """{kernel: what a launch moves}, the least of all its launches in the executable's schedule."""
    found, least = kernels(lowered), {}
    for name, arguments in RUN.findall(schedule):
        slots = SLOT.findall(arguments)
        if name in found and len(slots) == len(found[name]):
            least[name] = min(moved(found[name], slots), least.get(name, (math.inf,)))
    return least
