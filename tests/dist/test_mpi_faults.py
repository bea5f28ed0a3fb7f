"""An MPI library that fails: what is said, and that no memory goes that it may still write to."""
import os
import subprocess
import time
from pathlib import Path

import pytest

from test_ranks import executable

FOLDER = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def fake(tmp_path_factory):
    path = tmp_path_factory.mktemp("fake") / "libmpi.so.40"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-Wl,-soname,libmpi.so.40",
                    FOLDER / "fake_mpi.c", "-o", path], check=True)
    return path


@pytest.fixture(scope="module")
def train(gradc, models, fake, tmp_path_factory):
    exe, data = executable(gradc, models, tmp_path_factory.mktemp("digits"), "mlp_digits", 8)

    def run(**settings):
        env = dict(os.environ, LD_PRELOAD=str(fake), OMPI_COMM_WORLD_SIZE="2", **settings)
        return subprocess.run([exe, *data, "--steps=3", "--progress=off"], env=env, text=True, capture_output=True,
                              timeout=60)

    return run


def test_the_fake_trains(train):
    done = train()
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("level, name", [(0, "MPI_THREAD_SINGLE"), (1, "MPI_THREAD_FUNNELED")])
def test_a_library_for_one_thread_is_refused(train, level, name):
    done = train(FAKE_THREADS=str(level))
    assert done.returncode == 9
    assert f"asked for MPI_THREAD_SERIALIZED, which is one thread at a time, got {name}" in done.stderr


@pytest.mark.parametrize("abort, cancel", [("no", "yes"), ("no", "no"), ("yes", "no")])
def test_memory_of_pending_receives_stays(train, abort, cancel):
    """A send fails, or nobody sends, while receives are under way: of an all_to_all into the region `gathered`, of the
    all_gather behind it into that of the states. The bucket before is so small that rank 0 has all of it: it receives and
    sends once."""
    for sends, receives, code in [(1, 1, 9), (2, 2, 9), (3, 2, 10)]:
        done = train(FAKE_SENDS=str(sends), FAKE_RECEIVES=str(receives), FAKE_CANCEL=cancel, FAKE_ABORT=abort,
                     GRADC_COMM_TIMEOUT="0.5")
        assert done.returncode == code, (sends, receives, done.stderr)
        assert "error: rank 0: " in done.stderr and "which answers" not in done.stderr


def test_a_silent_rank_is_lost(train):
    """After the time that it has, and not once more for each collective that is queued."""
    began = time.monotonic()
    done = train(FAKE_RECEIVES="0", GRADC_COMM_TIMEOUT="5")
    assert done.returncode == 10
    assert "rank 0: waited 5 s for rank 1 in all_to_all 0 of group data, without an answer" in done.stderr
    assert time.monotonic() - began < 9
