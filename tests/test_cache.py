"""Compiled CUDA kernels on disk: what is there is not compiled again, what is damaged is, and there is room for so much."""
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent / "codegen"))
import nvrtc  # noqa: E402

LOSS = ("--batch=8", "--loss=cross_entropy")
ENTRY = re.compile(r"[0-9a-f]{32}\.cuda")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return nvrtc.fake(tmp_path_factory.mktemp("nvrtc") / "lib")


class Cache:
    """A cache of its own, and a compiler that counts its calls."""

    def __init__(self, run, model, library, folder):
        self.run, self.model, self.folder = run, model, folder / "cache/gradc"
        self.calls = folder / "calls"
        self.environment = nvrtc.environment(library, folder / "cache", FAKE_NVRTC_CALLS=str(self.calls))

    def entries(self):
        return sorted(p for p in self.folder.iterdir() if ENTRY.fullmatch(p.name)) if self.folder.exists() else []

    def compile(self, target="cuda:sm_90a", exit=0, **environment):
        """How many sources the compiler was asked for, as it says and as gradc does, and what gradc shows."""
        self.calls.unlink(missing_ok=True)
        done = self.run("compile", self.model, *LOSS, "-o", "e", f"--target=cpu,{target}", "--json", exit=exit,
                        env=dict(self.environment, **environment))
        calls = len(self.calls.read_text().split()) if self.calls.exists() else 0
        plan = json.loads(done.stdout)
        assert plan["gpu_compiled"] == calls
        return calls

    def list(self):
        return json.loads(self.run("cache", "--list", "--json", env=self.environment).stdout)


@pytest.fixture
def cache(run, models, library, tmp_path):
    return Cache(run, models / "mlp_digits/model.onnx", library, tmp_path)


def test_what_is_there_is_not_compiled(cache, tmp_path):
    n = cache.compile()
    assert n >= 2 and len(cache.entries()) == n
    cold = (tmp_path / "e").read_bytes()
    assert cache.compile(FAKE_NVRTC="crash") == 0
    assert (tmp_path / "e").read_bytes() == cold


def test_what_tells_entries_apart(cache, run):
    n = cache.compile()
    assert cache.compile("cuda:sm_90") == n, "another architecture, same kernels"
    assert cache.compile(FAKE_NVRTC_MINOR="1") == n, "another version"
    assert cache.compile() == 0
    seen = {(e["architecture"], e["nvrtc"]) for e in cache.list()["entries"]}
    assert seen == {("sm_90a", "13.0"), ("sm_90", "13.0"), ("sm_90a", "13.1")}


def test_another_build_of_one_version(cache, tmp_path):
    n = cache.compile()
    other = nvrtc.fake(tmp_path / "other", "-DPADDING", "-g")
    assert cache.compile(LD_LIBRARY_PATH=str(other)) == n


def change(entry, how):
    data = bytearray(entry.read_bytes())
    if how == "empty":
        data = b""
    elif how == "short":
        data = data[:-1]
    elif how == "long":
        data += b"\0"
    elif how == "header only":
        data = data[:100]
    else:
        data[how] ^= 1
    entry.write_bytes(data)


DAMAGE = ["empty", "short", "long", "header only", 0, 8, 23, 24, 31, 32, 40, 56, 72, 79, 80, 90, -1]


def test_damaged_entries_are_compiled_again(cache, tmp_path):
    n = cache.compile()
    cold = (tmp_path / "e").read_bytes()
    for how in DAMAGE:
        change(cache.entries()[0], how)
        assert any(e["damaged"] for e in cache.list()["entries"]) or how in range(8, 24), how
        assert cache.compile() == 1, how
        assert (tmp_path / "e").read_bytes() == cold
        assert not any(e["damaged"] for e in cache.list()["entries"])
    assert len(cache.entries()) == n


def test_a_link_in_the_cache_is_replaced(cache, tmp_path):
    """What it leads to is somebody's file: it is read as a damaged entry, and stays."""
    n = cache.compile()
    entry, mine = cache.entries()[0], tmp_path / "mine"
    for target in mine, tmp_path / "nowhere":
        mine.write_text("mine")
        entry.unlink()
        entry.symlink_to(target)
        before = mine.stat()
        assert cache.compile() == 1 and cache.compile() == 0 and len(cache.entries()) == n
        assert not entry.is_symlink() and mine.read_text() == "mine" and mine.stat().st_mtime_ns == before.st_mtime_ns
        assert not (tmp_path / "nowhere").exists()


def test_an_entry_under_another_key(cache):
    cache.compile()
    first, second, *_ = cache.entries()
    first.write_bytes(second.read_bytes())
    assert cache.compile() == 1


def test_what_is_no_file(cache):
    cache.compile()
    entry = cache.entries()[0]
    entry.unlink()
    entry.mkdir()
    assert cache.compile() == 1 == cache.compile()  # it cannot be kept


def test_several_at_once(cache, gradc, tmp_path):
    """From an empty cache, several times: all have the same result, and no entry is damaged."""
    single = cache.compile()
    expected = (tmp_path / "e").read_bytes()
    for _ in range(3):
        for entry in cache.entries():
            entry.unlink()
        running = [subprocess.Popen([gradc, "compile", cache.model, *LOSS, "-o", tmp_path / f"e{i}",
                                     "--target=cpu,cuda:sm_90a"], env=cache.environment, stdout=subprocess.DEVNULL)
                   for i in range(4)]
        assert [p.wait() for p in running] == [0] * 4
        assert all((tmp_path / f"e{i}").read_bytes() == expected for i in range(4))
        assert len(cache.entries()) == single == len(list(cache.folder.iterdir()))
        assert not any(e["damaged"] for e in cache.list()["entries"])


@pytest.mark.parametrize("places", [
    {"XDG_CACHE_HOME": "/dev/null"}, {"XDG_CACHE_HOME": "", "HOME": ""}, {"XDG_CACHE_HOME": "", "HOME": "/dev/null"},
    {"XDG_CACHE_HOME": "relative", "HOME": "relative"}])
def test_no_place_is_no_fault(cache, run, tmp_path, places):
    n = cache.compile(**places)
    assert n == cache.compile(**places) > 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["calls", "e"]
    for options in ["--list"], ["--list", "--json"], ["--clear"]:
        if places["XDG_CACHE_HOME"] != "/dev/null" and places["HOME"] != "/dev/null":
            run("cache", *options, env=dict(cache.environment, **places))


def test_below_home(cache, tmp_path):
    n = cache.compile(XDG_CACHE_HOME="", HOME=str(tmp_path / "home"))
    assert len(list((tmp_path / "home/.cache/gradc").iterdir())) == n


def place(path, size, age):
    """A file of that size that was used so many seconds ago, and takes no room."""
    with open(path, "wb") as f:
        f.truncate(size)
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_room_is_bounded(cache):
    n = cache.compile()
    most = cache.list()["most_bytes"]
    for entry in cache.entries():
        entry.unlink()
    old = [place(cache.folder / f"{i:032x}.cuda", most // 4, 1000 - i) for i in range(6)]
    others = [place(cache.folder / "README", most, 5000), place(cache.folder / ("f" * 31 + ".cuda"), most, 5000)]
    stale = place(cache.folder / ".gradc-1-0.tmp", 10, 5000)
    being_written = place(cache.folder / ".gradc-2-0.tmp", most, 10)
    assert cache.compile() == n
    assert [p.exists() for p in old] == [False] * 3 + [True] * 3, "least recently used go first"
    assert sum(p.stat().st_size for p in cache.entries()) <= most
    assert all(p.exists() for p in others) and not stale.exists() and being_written.exists()
    assert cache.compile() == 0


def test_use_counts(cache):
    n = cache.compile()
    for entry in cache.entries():
        os.utime(entry, (1, 1))
    cache.compile()
    assert all(time.time() - e["used"] < 100 for e in cache.list()["entries"])
    assert len(cache.entries()) == n


def test_list_and_clear(cache, run):
    n = cache.compile()
    bytes_of = sum(p.stat().st_size for p in cache.entries())
    (cache.folder / "README").write_text("not ours")
    listed = cache.list()
    assert listed["folder"] == str(cache.folder) and listed["most_bytes"] > 0
    assert {f"{e['key']}.cuda" for e in listed["entries"]} == {p.name for p in cache.entries()}
    assert sum(e["bytes"] for e in listed["entries"]) == bytes_of
    change(cache.entries()[0], -1)
    text = run("cache", "--list", env=cache.environment).stdout
    assert text.count("NVRTC 13.0") == n - 1 and text.count("damaged") == 1
    assert f"{cache.folder}: {n} entries, " in text
    assert f"removed {n} entries, " in run("cache", "--clear", env=cache.environment).stdout
    assert [p.name for p in cache.folder.iterdir()] == ["README"]
    assert "removed 0 entries" in run("cache", "--clear", env=cache.environment).stdout
    assert cache.list()["entries"] == [] and cache.compile() == n


def test_before_the_first(cache, run):
    assert cache.list()["entries"] == []
    assert ": 0 entries, " in run("cache", "--list", env=cache.environment).stdout
    assert not cache.folder.exists()


def test_command_line(cache, run):
    assert "need --list or --clear" in run("cache", exit=2).stderr
    assert "need --list or --clear, not both" in run("cache", "--list", "--clear", exit=2).stderr
    assert "unexpected argument" in run("cache", "--list", "x", exit=2, env=cache.environment).stderr
    assert "--list" in run("cache", "--help").stdout
    run("compile", cache.model, "--list", exit=2)
