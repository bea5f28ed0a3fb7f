"""Races that the thread sanitizer reported, less those of libFuzzer's own counters, which count a byte per edge without locks.

usage: tests/fuzz/races.py LOG; exits 1 and prints the first others if there are any."""
import re
import sys

text = open(sys.argv[1], errors="replace").read()
counters = [(int(a, 16), int(b, 16)) for a, b in re.findall(r"inline 8-bit counters\): \d+ \[(0x\w+), (0x\w+)\)", text)]
reports = text.split("WARNING: ThreadSanitizer: ")[1:]


def is_counter(report):
    at = re.search(r"of size 1 at (0x\w+)", report)
    return bool(at) and any(a <= int(at[1], 16) < b for a, b in counters)


others = [r for r in reports if not is_counter(r)]
for report in others[:3]:
    print("ThreadSanitizer: " + report[:3000])
print(f"  races    {len(others)}, and {len(reports) - len(others)} of the fuzzer's counters")
sys.exit(bool(others))
