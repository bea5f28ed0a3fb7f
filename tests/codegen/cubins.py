"""What NVRTC makes of the kernels of a model, and what can be read from it without a GPU: the compiler's log, and the cubins."""
import re
import struct
import subprocess
from collections import Counter

import nvrtc

EIATTR_KPARAM_INFO = 0x17
KILO = 1024


def compile_kernels(gradc, model, folder, target, *options, cache=None):
    """An executable of a model for that target, and its sources, logs and cubins in folder/sources. cache: of compiled kernels,
    where others' are found, too."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run([gradc, "compile", model, *options, f"--target={target}", f"--keep-sources={folder / 'sources'}",
                           "-o", folder / "exe"], text=True, capture_output=True,
                          env=nvrtc.environment(nvrtc.real(), cache or folder / "cache"))
    assert done.returncode == 0, f"{model}: {done.stderr}"
    return folder / "exe", folder / "sources"


def facts(sources):
    """{kernel: registers, stack, spills, shared bytes of its own} from the logs."""
    found = {}
    for log in sources.glob("*.log"):
        for name, text in re.findall(r"Function properties for gradc_(\w+)\n(.*?Used .*?)\n", log.read_text(), re.S):
            shared = re.search(r"(\d+) bytes smem", text)
            found[name] = {"registers": int(re.search(r"Used (\d+) registers", text)[1]),
                           "stack": int(re.search(r"(\d+) bytes stack frame", text)[1]),
                           "spills": sum(map(int, re.findall(r"(\d+) bytes spill", text))),
                           "shared": int(shared[1]) if shared else 0}
    return found


def sections(elf):
    """[(name, bytes)] of an ELF file of 64 bits."""
    start, = struct.unpack_from("<Q", elf, 40)
    size, count, names = struct.unpack_from("<HHH", elf, 58)
    heads = [struct.unpack_from("<IIQQQQ", elf, start + i * size) for i in range(count)]
    text = elf[heads[names][4]:heads[names][4] + heads[names][5]]
    return [(text[h[0]:text.index(b"\0", h[0])].decode(), elf[h[4]:h[4] + h[5]]) for h in heads]


def parameters(sources):
    """{kernel: [(offset, size)] of its parameters, by ordinal} from the cubins."""
    found = {}
    for cubin in sources.glob("*.cubin"):
        for name, info in sections(cubin.read_bytes()):
            if not name.startswith(".nv.info.gradc_"):
                continue
            at, listed = 0, {}
            while at < len(info):
                kind, attribute, value = struct.unpack_from("<BBH", info, at)
                if (kind, attribute) == (4, EIATTR_KPARAM_INFO):
                    _, ordinal, offset, flags = struct.unpack_from("<IHHI", info, at + 4)
                    listed[ordinal] = (offset, flags >> 18)
                at += 4 + (value if kind == 4 else 0)
            found[name.removeprefix(".nv.info.gradc_")] = [listed[i] for i in sorted(listed)]
    return found


def instructions(sources):
    """{kernel: Counter of instructions}: LDG.E.128, HMMA.16816.F32.BF16 ..."""
    found = {}
    for cubin in sources.glob("*.cubin"):
        text = subprocess.run([nvrtc.tool("nvdisasm"), "-c", cubin], text=True, capture_output=True, check=True).stdout
        for part in re.split(r"^\s*\.section\s+\.text\.gradc_", text, flags=re.M)[1:]:
            name = re.match(r"\w+", part)[0]
            found[name] = Counter(re.findall(r"^\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+ )?([A-Z][\w.]*)", part, re.M))
    return found
