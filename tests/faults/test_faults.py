"""A minute's sample of what `make faults` runs whole: for each command a few of its allocations and calls fail, and a few
times every allocation from one on. Needs the sanitizer build, which has fault.c inside."""
import os

import inject
import pytest

SAMPLE = 18 if os.environ.get("GRADC_THOROUGH") else 12  # of each kind and command

pytestmark = pytest.mark.skipif(not (inject.ROOT / "build-asan/gradc").exists(), reason="`make asan` builds what this runs")


@pytest.fixture(scope="module")
def commands(models, tmp_path_factory):
    scratch = tmp_path_factory.mktemp("faults")
    return {c.name: c for c in inject.commands(inject.ROOT / "build-asan/gradc", models, scratch)}


@pytest.mark.parametrize("name", inject.NAMES)
def test_a_failing_call_harms_nothing(commands, name, tmp_path):
    command = commands[name]
    command.measure(tmp_path / "measured")
    faults = []
    for kind, calls in command.calls.items():
        faults += [f"{kind}:{n}" for n in inject.numbers(calls, 1, SAMPLE - 1)]
    faults += [f"alloc:{n}+" for n in inject.numbers(command.calls["alloc"], 1, 2)]
    came = 0
    for fault in faults:
        wrong, code, failed, _ = inject.try_fault(command, fault, tmp_path)
        assert not wrong, f"exit {code}, {failed}: tests/faults/inject.py --only {name} --fault {fault} --keep"
        came += failed != ""
    assert came >= 0.8 * len(faults)  # threads may make fewer calls than measured


def test_half_a_file_is_seen(tmp_path):
    output = inject.Output("file")
    assert output.fault(tmp_path, b"whole", True) and not output.fault(tmp_path, b"whole", False)
    for content, fine in [(inject.OLD, True), (b"whole", True), (b"who", False), (b"", False)]:
        (tmp_path / "file").write_bytes(content)
        assert bool(output.fault(tmp_path, b"whole", False)) != fine


@pytest.mark.parametrize("code, stderr, stdout, says", [
    (-11, b"", b"", "signal 11"), (99, b"SUMMARY: LeakSanitizer: 8 bytes", b"", "LeakSanitizer"),
    (3, b"gradc: error: x", b"", "exit code 3"), (5, b"", b"", "without a message"), (0, b"", b"lost", "stdout")])
def test_what_is_wrong_is_seen(tmp_path, code, stderr, stdout, says):
    command = inject.Command("x", [])
    command.stdout, command.names = b"", set()
    done = inject.subprocess.CompletedProcess([], code, stdout, stderr)
    assert says in " ".join(command.faults(tmp_path, done, "io 1 write"))


def test_what_is_left_is_seen(tmp_path):
    command = inject.Command("x", [])
    command.stdout, command.names = b"", set()
    (tmp_path / ".gradc-1-0.tmp").write_text("half")
    done = inject.subprocess.CompletedProcess([], 5, b"", b"gradc: error: x")
    assert "left" in command.faults(tmp_path, done, "io 1 write")[0]
    assert not command.faults(tmp_path, done, "io 1 unlink")
