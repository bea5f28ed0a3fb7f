"""The tables inside a training executable, as far as tests change them: format/format.h and base/schedule/schedule.h have the
records."""
import re
import struct
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEADERS = ["format/format.h", "base/schedule/schedule.h", "base/program/program.h"]
HEADER = "".join((ROOT / name).read_text() for name in HEADERS)
INSTRUCTION = struct.Struct("<HBBIIHHII")  # kind, stream, when, what, args, n_args, phase, origin, only


def enum(name):
    """{constant: value} of `typedef enum {...} name`."""
    body = re.search(r"typedef enum \{([^}]*)\} " + name + ";", HEADER).group(1)
    body = re.sub(r"/\*.*?\*/", "", body, flags=re.S)
    words = [word.split("=") for word in body.split(",") if word.strip()]
    return {word[0].strip(): int(word[1]) if len(word) > 1 else i for i, word in enumerate(words)}


KIND, STREAM, EVENT = enum("InstructionKind"), enum("Stream"), enum("SharedEvent")
WHEN, ONLY = enum("When"), enum("RunOnly")
SECTIONS = enum("Section")


class Tables:
    """The instructions of an executable, which can be changed in place."""

    def __init__(self, path):
        self.path = path
        self.bytes = bytearray(path.read_bytes())
        magic, version = (int(re.search(name + r" (\w+)", HEADER).group(1).rstrip("ul"), 0)
                          for name in ("FORMAT_MAGIC", "FORMAT_VERSION"))
        heads = [struct.pack("<QII", magic, version, SECTIONS[name]) for name in ("SECTION_PLANS", "N_SECTIONS")]
        # the one that is linked; a copy for `dump` lies behind
        self.blob = min(at for at in map(self.bytes.find, heads) if at >= 0)
        at, n = struct.unpack_from("<qq", self.bytes, self.blob + 48 + 16 * SECTIONS["SECTION_INSTRUCTIONS"])
        self.first, self.n = self.blob + at, n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        fields = INSTRUCTION.unpack_from(self.bytes, self.first + i * INSTRUCTION.size)
        return dict(zip(("kind", "stream", "when", "what", "args", "n_args", "phase", "origin", "only"), fields))

    def never(self, i, ranks):
        """Instruction i does not run: with one rank it is for several, with several (and --accumulate=1) for later
        micro-batches."""
        at = self.first + i * INSTRUCTION.size
        if ranks > 1:
            struct.pack_into("<B", self.bytes, at + 3, WHEN["WHEN_LATER"])
        else:
            struct.pack_into("<I", self.bytes, at + 20, ONLY["ONLY_RANKS"])

    def write(self, path):
        path.write_bytes(self.bytes)
        path.chmod(0o755)
        return path


def blown_up(executable, section, size):
    """An executable that `dump` reads as one, whose tables have the records of a section again and again, about `size` bytes of them.
    None if the section has too few records to tell their size."""
    data = executable.read_bytes()
    at, n = struct.unpack("<qq", data[-16:])
    blob, first = data[at:at + n], 48 + 16 * SECTIONS[section]
    n_sections = struct.unpack_from("<I", blob, 12)[0]
    places = [struct.unpack_from("<qq", blob, 48 + 16 * i) for i in range(n_sections)]
    begin, count = dict(enumerate(places)).get(SECTIONS[section], (0, 0))
    end = min([offset for offset, _ in places if offset > begin], default=n)
    if count < 16:
        return None
    record = (end - begin) // count  # the next section begins less than 16 bytes behind
    times = max(2, size // (record * count))
    new = blob[begin:begin + record * count] * times
    new += b"\0" * (-len(new) % 16)
    head = bytearray(blob[:begin])
    for i, (offset, _) in enumerate(places):
        if offset > begin:
            struct.pack_into("<q", head, 48 + 16 * i, offset + len(new) - (end - begin))
    struct.pack_into("<q", head, first + 8, count * times)
    return only_tables(bytes(head) + new + blob[end:])


def only_tables(tables):
    """A file that `dump` reads as an executable, with these tables, whose header gets their size."""
    tables = tables[:16] + struct.pack("<q", len(tables)) + tables[24:]
    return tables + struct.pack("<8sqqqq", tables[:8], 0, 0, 0, len(tables))
