"""Executables whose tables are damaged: none of them crashes or hangs, and none runs a kernel that the tables lie about."""
import random
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from checkpoints import digits_data

MAGIC = b"!GRADCX1"
SECTIONS = ("info", "dims", "states", "slots", "arguments", "instructions", "kernels", "kernel_arguments", "library",
            "collectives", "bindings", "targets", "ports", "programs", "export", "literal", "strings", "adapters", "four_bit", "kept_adapters", "kept")
# Of a kernel's record (format/format.h): its size, and where its iterations and elements stand; the size of an argument's.
KERNEL, ITERATIONS, ELEMENTS, ARGUMENT = 112, 24, 40, 24
EXITS = {0, 3, 4, 5, 6, 7, 8}


@pytest.fixture(scope="module")
def whole(gradc, models, tmp_path_factory):
    """The bytes of an executable, and where the tables that it runs by begin: a copy for `gradc dump` lies at its end."""
    path = tmp_path_factory.mktemp("tables") / "train"
    subprocess.run([gradc, "compile", models / "mlp_digits/model.onnx", "-o", path, "--batch=64"], check=True,
                   capture_output=True)
    data = path.read_bytes()
    at = data.index(MAGIC)
    while not 0 < struct.unpack_from("<q", data, at + 16)[0] < len(data):  # the runtime's own word for it
        at = data.index(MAGIC, at + 1)
    return data, at


def section(data, at, name):
    """Where its records begin, how many they are, and how many bytes, up to the next section."""
    offset, count, behind = struct.unpack_from("<qqq", data, at + 48 + 16 * SECTIONS.index(name))
    return at + offset, count, behind - offset


def run(tmp_path, models, data):
    path = tmp_path / "train"
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    path.chmod(0o755)
    return subprocess.run([path, *digits_data(models), "--steps=2", "--threads=2"], cwd=tmp_path, capture_output=True,
                          text=True, timeout=60)


@pytest.mark.parametrize("name", SECTIONS[3:SECTIONS.index("literal")])
def test_flipped_bytes(whole, models, tmp_path, name):
    data, at = whole
    first, count, size = section(data, at, name)
    assert count
    rng = random.Random(name)
    for _ in range(12):
        place = first + rng.randrange(size)
        changed = bytearray(data)
        changed[place] ^= 1 << rng.randrange(8)
        done = run(tmp_path, models, changed)
        assert done.returncode in EXITS, (place - first, done.returncode, done.stderr[-500:])
        assert done.returncode == 0 or "error: " in done.stderr


@pytest.mark.parametrize("change", [1, -1, 1 << 40])
def test_iterations_are_those_of_the_code(whole, models, tmp_path, change):
    data, at = whole
    first, count, _ = section(data, at, "kernels")
    whole_kernels = [k for k in range(count) if not struct.unpack_from("<q", data, first + k * KERNEL + ELEMENTS)[0]]
    for kernel in (whole_kernels[0], whole_kernels[-1]):
        place = first + kernel * KERNEL + ITERATIONS
        iterations, = struct.unpack_from("<q", data, place)
        assert 1 <= iterations < 1 << 20
        changed = bytearray(data)
        struct.pack_into("<q", changed, place, iterations + change)
        done = run(tmp_path, models, changed)
        assert done.returncode == 5
        assert "executable tables: the record of kernel" in done.stderr


def test_a_kernel_is_cut_only_where_its_code_can_be(whole, models, tmp_path):
    """Of a kernel that may be cut, a launch with less memory runs a part; the code of others would touch all of it."""
    data, at = whole
    first, count, _ = section(data, at, "kernels")
    arguments, _, _ = section(data, at, "kernel_arguments")
    said = ""
    for kernel in range(count):
        place = first + kernel * KERNEL
        first_argument, = struct.unpack_from("<I", data, place + 8)
        elements, = struct.unpack_from("<q", data, place + ELEMENTS)
        size, = struct.unpack_from("<q", data, arguments + ARGUMENT * first_argument)
        changed = bytearray(data)
        struct.pack_into("<q", changed, place + ELEMENTS, 0 if elements else size // 4)  # as many as f32 has
        done = run(tmp_path, models, changed)
        assert done.returncode == 5 and "executable tables: " in done.stderr, kernel
        said += done.stderr
    assert "executable tables: the record of kernel" in said


def test_a_kernel_needs_all_its_bytes(whole, models, tmp_path):
    """A kernel that is said to touch less than its code does would write behind a smaller slot."""
    data, at = whole
    first, count, _ = section(data, at, "kernel_arguments")
    changed = bytearray(data)
    for i in range(count):
        struct.pack_into("<q", changed, first + ARGUMENT * i, 0)
    done = run(tmp_path, models, changed)
    assert done.returncode == 5
    assert "executable tables: " in done.stderr


# Of an export's record: its bytes, and the kinds that --quantize leaves: codes, their scales, what follows from a range.
ENDS, STATES = (4, 5), (16, 17)  # of a range: the words that name what is added to it, and the state of its upper end
EXPORT, OF_CODES = 240, {2: "codes", 3: "scales", 4: "the scale of a range", 5: "the zero point of a range"}


def compiled(gradc, models, tmp_path, *options):
    """The bytes of mlp_digits' executable, and where its tables begin."""
    path = tmp_path / "whole"
    subprocess.run([gradc, "compile", models / "mlp_digits/model.onnx", "-o", path, "--batch=64", *options], check=True, capture_output=True)
    data = path.read_bytes()
    at = data.index(MAGIC)
    while not 0 < struct.unpack_from("<q", data, at + 16)[0] < len(data):
        at = data.index(MAGIC, at + 1)
    return data, at


ADAPTER = 56  # bytes of a record


def test_adapters_are_checked(gradc, models, tmp_path):
    """Each word of a record: another number is refused, or nothing is read that is not there."""
    data, at = compiled(gradc, models, tmp_path, "--lora=*.weight,rank=3", "--train=4.bias")
    first, count, _ = section(data, at, "adapters")
    assert count == 3
    twice = bytearray(data)  # two adapters of one weight
    twice[first + ADAPTER:first + 2 * ADAPTER] = data[first:first + ADAPTER]
    (tmp_path / "train").write_bytes(twice)
    (tmp_path / "train").chmod(0o755)
    done = subprocess.run([tmp_path / "train", *digits_data(models), "--steps=0"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 5 and "adapter 1: it shares a state with adapter 0" in done.stderr
    refused = 0
    for word in range(ADAPTER // 4):
        for value in (0x7FFFFFFF, 0xFFFFFFFE, 0x7FF80000, 1, 2):
            changed = bytearray(data)
            struct.pack_into("<I", changed, first + ADAPTER + 4 * word, value)
            (tmp_path / "train").unlink(missing_ok=True)
            (tmp_path / "train").write_bytes(changed)
            (tmp_path / "train").chmod(0o755)
            done = subprocess.run([tmp_path / "train", *digits_data(models), "--steps=0", "--export=out.onnx", "--export-merged=m.onnx", "--export-adapter=a"],
                                  cwd=tmp_path, capture_output=True, text=True, timeout=60)
            assert done.returncode in EXITS | {2}, (word, value, done.returncode, done.stderr[-500:])
            refused += done.returncode == 5
    assert refused > 20


@pytest.mark.parametrize("what, size", [("four_bit", 40), ("kept_adapters", 40)])
def test_other_records_of_adapters_are_checked(gradc, models, tmp_path, what, size):
    """As those of adapters: each word with other numbers."""
    kept = Path(__file__).resolve().parents[2] / "references/peft/gpt2_lora/trained"
    data, at = compiled(gradc, models, tmp_path, "--qlora=*.weight,rank=3", f"--load-adapter=a={kept}")
    first, count, _ = section(data, at, what)
    assert count == (3 if what == "four_bit" else 1)
    refused = 0
    for word in range(size // 4):
        for value in (0x7FFFFFFF, 0xFFFFFFFE, 0, 1, 2):
            changed = bytearray(data)
            struct.pack_into("<I", changed, first + 4 * word, value)
            (tmp_path / "train").unlink(missing_ok=True)
            (tmp_path / "train").write_bytes(changed)
            (tmp_path / "train").chmod(0o755)
            done = subprocess.run([tmp_path / "train", *digits_data(models), "--steps=0", "--export=out.onnx", "--export-merged=m.onnx",
                                   *(["--adapter=a"] if what == "kept_adapters" else [])], cwd=tmp_path, capture_output=True, text=True, timeout=60)
            assert done.returncode in EXITS | {2}, (word, value, done.returncode, done.stderr[-500:])
            refused += done.returncode == 5
    assert refused > 10


def test_what_is_exported_as_codes_is_checked(gradc, models, tmp_path):
    """Each word of a record: another number is refused, or written without reading what is not there."""
    data, at = compiled(gradc, models, tmp_path, "--quantize=w8a8")
    first, count, size = section(data, at, "export")
    assert count * EXPORT <= size < (count + 1) * EXPORT
    records = {}
    for i in range(count):
        kind, = struct.unpack_from("<I", data, first + i * EXPORT)
        records.setdefault(kind, first + i * EXPORT)
    assert OF_CODES.keys() <= records.keys()
    refused = 0
    for kind in OF_CODES:
        for word in range(EXPORT // 4):
            changed = bytearray(data)
            struct.pack_into("<I", changed, records[kind] + 4 * word, (0x7FFFFFFF, 0xFFFFFFFE, 1)[word % 3])
            (tmp_path / "train").unlink(missing_ok=True)
            (tmp_path / "train").write_bytes(changed)
            (tmp_path / "train").chmod(0o755)
            done = subprocess.run([tmp_path / "train", *digits_data(models), "--steps=0", "--export=out.onnx"], cwd=tmp_path, capture_output=True,
                                  text=True, timeout=60)
            assert done.returncode in EXITS, (OF_CODES[kind], word, done.returncode, done.stderr[-500:])
            refused += done.returncode == 5
            assert done.returncode == 5 or not (kind in ENDS and word in STATES)
    assert refused > 24


def test_preprocessings_are_checked(gradc, models, tmp_path):
    """Likewise of the records of --export-preprocessing: the input's type, factor, term, means and deviations, and the graph's length."""
    data, at = compiled(gradc, models, tmp_path)
    first, count, _ = section(data, at, "export")
    records = {struct.unpack_from("<I", data, first + i * EXPORT)[0]: first + i * EXPORT for i in range(count)}
    assert {8, *range(10, 15)} <= records.keys()
    np.save(tmp_path / "ms.npy", np.ones((2, 64), np.float32))
    refused = 0
    for kind in records.keys() & {8, *range(10, 15)}:
        for word in (0, 1, 2, 3, 4, 5, 7, 10, 11, 54, 55, 56, 57, 58):
            changed = bytearray(data)
            struct.pack_into("<I", changed, records[kind] + 4 * word, (0x7FFFFFFF, 1)[word % 2])
            (tmp_path / "train").unlink(missing_ok=True)
            (tmp_path / "train").write_bytes(changed)
            (tmp_path / "train").chmod(0o755)
            done = subprocess.run([tmp_path / "train", "--steps=0", "--export=out.onnx", "--scale=input=2,1", "--mean-std=input=ms.npy", "--export-preprocessing=on"],
                                  cwd=tmp_path, capture_output=True, text=True, timeout=60)
            assert done.returncode in EXITS | {2, 4}, (kind, word, done.returncode, done.stderr[-500:])
            refused += done.returncode == 5
    assert refused > 20
