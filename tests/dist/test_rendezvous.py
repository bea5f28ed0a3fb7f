"""Ranks that meet over TCP: how they find each other, who does not belong to them, and ranks that stop or go.

They run control_calls.c: no MPI, no collectives of data.
"""
import contextlib
import os
import re
import signal
import socket
import struct
import subprocess
import time

import pytest

from test_ranks import digits  # noqa: F401

OURS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_", "SLURM_", "TORCHELASTIC_", "GRADC_", "OMPI_", "PMI", "MPI_")
ENDLESS = 10**9


@pytest.fixture
def program(build):
    path = build / "tests/control_calls"
    if not path.exists():
        pytest.skip(f"{path} is not built")
    return path


@pytest.fixture
def start(program):
    """start(ENVIRONMENT, WORD...): a process."""
    started = []

    def begin(env, *words, command=None):
        clean = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        process = subprocess.Popen([*(command or [program]), *map(str, words)], text=True, stderr=subprocess.PIPE, stdout=subprocess.PIPE,
                                   env={**clean, "GRADC_COMM_TIMEOUT": "1", **{k: str(v) for k, v in env.items()}})
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
            process.communicate()


def ends(processes, *codes, timeout=20):
    """What each says on stderr; they end with these codes, the last of them for all that follow."""
    said = [process.communicate(timeout=timeout)[1] for process in processes]
    want = [*codes, *[codes[-1]] * (len(processes) - len(codes))]
    assert [process.returncode for process in processes] == want, said
    return said


def line_of(process, pattern):
    """The next line that has it."""
    for line in process.stderr:
        if re.search(pattern, line):
            return line
    raise AssertionError(f"{pattern}: not said, exit {process.wait()}")


def free_port(n=1):
    """A port with n - 1 free ones behind it, of those that the system gives nobody by itself."""
    for first in range(20000 + os.getpid() % 1000 * 10, 31000, 10):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + n):
                stack.enter_context(socket.socket()).bind(("", port))
            return first
    raise AssertionError("no free ports")


def meet(folder, size):
    return [{"RANK": r, "WORLD_SIZE": size, "GRADC_RENDEZVOUS": f"file://{folder}/meet"} for r in range(size)]


def torchrun(size, port, **more):
    return [{"RANK": r, "WORLD_SIZE": size, "LOCAL_RANK": r, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "localhost", "MASTER_PORT": port,
             "TORCHELASTIC_RUN_ID": "run", **more} for r in range(size)]


def srun(size, **more):
    return [{"SLURM_PROCID": r, "SLURM_NTASKS": size, "SLURM_STEP_NUM_TASKS": size, "SLURM_LOCALID": r, "SLURM_JOB_ID": os.getpid(),
             "SLURM_STEP_ID": 0, "SLURM_STEP_NODELIST": "localhost", **more} for r in range(size)]


# ---- meeting
def ways(folder):
    port = free_port()
    agent = socket.create_server(("", port))  # torchrun's agent has the port for its own store
    return {
        "file": meet(folder, 3), "tcp": [{**env, "GRADC_RENDEZVOUS": f"tcp://localhost:{free_port()}"} for env in meet(folder, 3)],
        "torchrun": torchrun(3, free_port(), TORCHELASTIC_USE_AGENT_STORE="False"),
        "torchrun's store": torchrun(3, port, TORCHELASTIC_USE_AGENT_STORE="True"),
        "srun": srun(3), "srun with a port": srun(3, MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port()),
    }, agent


@pytest.mark.parametrize("way", ["file", "tcp", "torchrun", "torchrun's store", "srun", "srun with a port"])
@pytest.mark.parametrize("first", [0, 2])
def test_ranks_meet(start, tmp_path, way, first):
    """In any order."""
    all_ways, agent = ways(tmp_path)
    environments = all_ways[way]
    order = sorted(range(3), key=lambda r: r != first)
    processes = []
    for r in order:
        processes.append(start(environments[r], 20))
        time.sleep(0.1)
    agent.close() if way != "torchrun's store" else None
    for r, said in zip(order, ends(processes, 0)):
        assert said == f"rank {r} of 3\n"
    agent.close()
    assert not (tmp_path / "meet").exists()


def test_two_jobs_of_one_store_do_not_mix(start):
    """The second finds the first one's port taken, and takes the next."""
    port = free_port(4)
    agent = socket.create_server(("", port))
    jobs = [[start(env, ENDLESS if r == 0 else 0, f"{r}:0:sleep:1") for r, env in enumerate(torchrun(2, port, TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RUN_ID=name))]
            for name in ("a", "b")]
    for job in jobs:
        for r, process in enumerate(job):
            assert line_of(process, "rank") == f"rank {r} of 2\n"
    agent.close()


def test_a_stale_file_is_not_taken(start, tmp_path):
    """Of a run that was killed: nobody listens there; or another program does."""
    with socket.create_server(("localhost", 0)) as other:
        for port in (1, other.getsockname()[1]):
            (tmp_path / "meet").write_text(f"gradc rendezvous 1\njob {0:016x}\nnonce {7:016x}\nhost localhost\nport {port}\n")
            later = start(meet(tmp_path, 2)[1], 3)
            assert "has waited" in line_of(later, "rank 1: has waited [12] s for rank 0 at .*meet: (Connection refused|no answer)")
            ends([start(meet(tmp_path, 2)[0], 3), later], 0)
            assert not (tmp_path / "meet").exists()


@pytest.mark.parametrize("text", ["gradc rendezvous 1\njob x\n", "x" * 2000])
def test_a_file_of_something_else_is_waited_out(start, tmp_path, text):
    (tmp_path / "meet").write_text(text)
    later = start(meet(tmp_path, 2)[1], 3)
    assert "rank 0 has not written the file" in line_of(later, "has waited")
    said, = ends([start(meet(tmp_path, 2)[0], 3)], 2)
    assert "not a rendezvous file: it would be written over" in said and (tmp_path / "meet").read_text() == text
    (tmp_path / "meet").unlink()
    ends([start(meet(tmp_path, 2)[0], 3), later], 0)


def test_a_reserved_name_is_a_place(start, tmp_path):
    """An empty file, as mktemp makes."""
    (tmp_path / "meet").touch()
    ends([start(env, 3) for env in meet(tmp_path, 2)], 0)
    assert not (tmp_path / "meet").exists()


def test_a_file_is_for_one_run(start, tmp_path):
    first = start(meet(tmp_path, 2)[0], 3)
    line_of(first, "has waited")
    second = start(meet(tmp_path, 2)[0], 3)
    said, = ends([first], 9)
    assert re.search("another run has overwritten .*/meet: ", said)
    ends([second, start(meet(tmp_path, 2)[1], 3)], 0)


# ---- who is missing, who does not belong
def test_missing_ranks_are_named(start, tmp_path):
    environments = meet(tmp_path, 4)
    processes = [start(environments[0], 3), start(environments[2], 3)]
    assert re.fullmatch(r"warning: rank 0: has waited 1 s at port \d+ for rank 1, 3 to start; 2 of 4 are there\n",
                        line_of(processes[0], "has waited"))
    line_of(processes[0], "has waited 2 s")  # and goes on waiting
    ends([*processes, *[start(environments[r], 3) for r in (1, 3)]], 0)


def test_strangers_are_left_out(start, tmp_path):
    """A port scanner's connections: one says nothing, one closes, the others say something else."""
    port = free_port()
    environments = [{**env, "GRADC_RENDEZVOUS": f"tcp://localhost:{port}"} for env in meet(tmp_path, 2)]
    first = start(environments[0], 3)
    line_of(first, "has waited")
    silent = socket.create_connection(("localhost", port))
    socket.create_connection(("localhost", port)).close()
    for words in (b"GET / HTTP/1.1\r\n\r\n", b"gradcTCP", b"gradcTCX" * 100, os.urandom(4096)):
        with socket.create_connection(("localhost", port)) as stranger, contextlib.suppress(OSError):
            stranger.sendall(words)
    many = [socket.create_connection(("localhost", port)) for _ in range(200)]
    said, _ = ends([first, start(environments[1], 3)], 0)
    assert said.count("connected to port") == 1 and "but is not a rank: dropped" in said
    for s in (silent, *many):
        s.close()


def test_the_port_is_another_programs(start, tmp_path):
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        said, = ends([start({**meet(tmp_path, 2)[0], "GRADC_RENDEZVOUS": f"tcp://localhost:{port}"}, 3)], 9)
        assert f"rank 0 cannot listen at port {port}: Address already in use" in said


def test_an_unknown_host(start):
    said, = ends([start({**torchrun(2, 29500)[1], "MASTER_ADDR": "no-such-host.invalid"}, 3)], 9)
    assert "the host of rank 0, no-such-host.invalid, is not known" in said


@pytest.mark.parametrize("other, of_zero, of_other", [
    ({"WORLD_SIZE": 3}, "rank 0 has WORLD_SIZE=2, rank 1 from {} has 3", "rank 1 has WORLD_SIZE=3, rank 0 at localhost has 2"),
    ({"WORLD_SIZE": 3, "RANK": 2}, "rank 0 has WORLD_SIZE=2, rank 2 from {} has 3", "rank 2 has WORLD_SIZE=3, rank 0 at localhost has 2")])
def test_ranks_of_another_world(start, tmp_path, other, of_zero, of_other):
    said = ends([start({**env, **(other if r else {})}, 3) for r, env in enumerate(meet(tmp_path, 2))], 9)
    assert re.search(re.escape(of_zero).replace(r"\{\}", r"\S+"), said[0]) and of_other in said[1]


@pytest.mark.parametrize("version, rank, size, says", [(2, 1, 2, "rank 0 speaks version 1, a rank from \\S+ version 2"), (1, 5, 2, "a rank from \\S+ has RANK=5, and ranks are 0 to 1"),
                                                       (1, 0, 2, "a rank from \\S+ has RANK=0"), (1, -1, 2, "a rank from \\S+ has RANK=-1")])
def test_first_words(start, tmp_path, version, rank, size, says):
    """Of a rank that says what no rank of this version does."""
    port = free_port()
    first = start({**meet(tmp_path, 2)[0], "GRADC_RENDEZVOUS": f"tcp://localhost:{port}"}, 3)
    line_of(first, "has waited")
    with socket.create_connection(("localhost", port)) as other:
        other.sendall(struct.pack("8sIiiIQQ", b"gradcTCP", version, rank, size, 0, 0, 0))
        assert other.recv(8) == b"gradcTCP"
    said, = ends([first], 9)
    assert re.search(says, said)


def test_no_more_files(start, program, tmp_path):
    processes = [start(env, 3, command=["sh", "-c", 'ulimit -n 8; exec "$0" "$@"', program] if r == 0 else None) for r, env in enumerate(meet(tmp_path, 9))]
    assert re.search(r"rank 0: \d of 9 ranks are there, and no more files may be open", ends(processes[:1], 9)[0])


def test_a_rank_that_is_there_twice(start, tmp_path):
    environments = meet(tmp_path, 3)
    said = ends([start(environments[r], 3) for r in (0, 1, 1)], 9)
    assert re.search(r"two ranks have RANK=1, the second one from \S+", said[0])
    assert sum("RANK=1 is taken: another process with this rank has already joined rank 0 at localhost" in s for s in said[1:]) == 1
    assert sum("rank 1: rank 0 is gone before all ranks had started" in s for s in said[1:]) == 1


def test_a_rank_of_another_job_waits(start, tmp_path):
    environments = srun(2, MASTER_ADDR="localhost", MASTER_PORT=free_port())
    other = start({**environments[1], "SLURM_STEP_ID": 1}, 3)
    first = start(environments[0], 3)
    line_of(other, "rank 0 of another job listens there")
    assert "but is a rank of another job: dropped" in line_of(first, "connected")
    ends([first, start(environments[1], 3)], 0)


@pytest.mark.parametrize("gone", [0, 1])
def test_a_rank_that_is_gone_before_all_are_there(start, tmp_path, gone):
    processes = [start(env, 3) for env in meet(tmp_path, 3)[:2]]
    line_of(processes[0], "2 of 3 are there")
    processes[gone].kill()
    said, = ends([processes[1 - gone]], 9)
    assert f"rank {gone} is gone before all ranks had started" in said


def test_rank_0_stops_before_all_are_there(start, tmp_path):
    processes = [start(env, 3) for env in meet(tmp_path, 3)[:2]]
    line_of(processes[0], "2 of 3 are there")
    processes[0].send_signal(signal.SIGSTOP)
    said, = ends([processes[1]], 10)
    assert "rank 1: waited 1 s for rank 0 to start, without an answer: stopped or hanging" in said


# ---- ranks that are slow, stop or go
def run(start, folder, size, *words, rounds=5):
    return [start(env, rounds, *words) for env in meet(folder, size)]


@pytest.mark.parametrize("late, teller", [(0, 1), (1, 0), (2, 0)])
def test_a_late_rank_is_named_and_waited_for(start, tmp_path, late, teller):
    said = ends(run(start, tmp_path, 3, f"{late}:2:sleep:1.6"), 0)
    assert re.search(rf"warning: rank {teller}: has waited 1 s in all_gather 4 of the control connections for rank {late} \(saving a checkpoint\), "
                     "which answers\n", said[teller])
    assert sum("warning" in s for s in said) == 1 and said[teller].count("warning") == 1


@pytest.mark.parametrize("by", [signal.SIGSTOP, signal.SIGKILL])
@pytest.mark.parametrize("rank", [0, 2])
def test_a_lost_rank_ends_all(start, tmp_path, rank, by):
    processes = run(start, tmp_path, 3, rounds=ENDLESS)
    for process in processes:
        line_of(process, "rank")
    time.sleep(0.2)
    processes[rank].send_signal(by)
    began = time.monotonic()
    others = [p for r, p in enumerate(processes) if r != rank]
    said = ends(others, 10 if by == signal.SIGSTOP else 9)
    assert time.monotonic() - began < 6
    if by == signal.SIGSTOP:
        assert re.search(rf"rank \d: waited [12] s for rank {rank} in \w+ \d+ of the control connections, without an answer: stopped or hanging", "".join(said))
    else:
        assert all(f"rank {rank} is gone: " in s for s in said)


def test_a_suspended_rank_comes_back(start, tmp_path):
    """It stood still for less than the patience."""
    processes = run(start, tmp_path, 3, "1:2:sleep:0.9")
    for process in processes:
        line_of(process, "rank")
    processes[0].send_signal(signal.SIGSTOP)
    time.sleep(0.7)
    processes[0].send_signal(signal.SIGCONT)
    ends(processes, 0)


@pytest.mark.parametrize("rank, sleeper", [(0, []), (2, ["1:1:sleep:30"])])
def test_a_fault_of_one_ends_all(start, tmp_path, rank, sleeper):
    """Those that wait, and one that computes for long."""
    said = ends(run(start, tmp_path, 3, f"{rank}:1:sleep:0.3", f"{rank}:1:fail:6", *sleeper), 6)
    assert [s.count("error") for s in said] == [int(r == rank) for r in range(3)] and f"rank {rank} fails" in said[rank]


@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_has_ended_is_not_waited_for(start, tmp_path, rank):
    said = ends(run(start, tmp_path, 3, f"{rank}:1:leave:0"), *[0 if r == rank else 9 for r in range(3)])
    assert f"rank {rank} has ended, and all_gather 2 of the control connections waits for it" in "".join(said)  # who finds it first says so


def test_ranks_that_no_longer_do_the_same(start, tmp_path):
    said = ends(run(start, tmp_path, 2, "1:1:differ:24"), 9)
    assert "rank 0 is in all_gather 2 of the control connections with 16 bytes, rank 1 in all_gather 2 with 24: they no longer do the same" in said[0]


# ---- who waits by other means
def test_watching_a_lost_rank(start, tmp_path):
    """All but one wait for it as for a GPU's collective: gone, stopped, or slow."""
    watchers = [f"{r}:1:watch:{20}" for r in (0, 1)]
    said = ends(run(start, tmp_path, 3, *watchers, "2:1:crash:1"), 9, 9, 1)
    assert all("rank 2 is gone" in s for s in said[:2])
    processes = run(start, tmp_path, 3, *watchers, "2:1:sleep:20")
    line = line_of(processes[0], "warning")
    assert re.search(r"rank 0: has waited [12] s in all_reduce 3 of group data for rank 2 \(saving a checkpoint\), which answers", line)
    processes[2].send_signal(signal.SIGSTOP)
    said = ends(processes[:2], 10)
    assert re.search("rank 0: waited [2-4] s for rank 2 in all_reduce 3 of group data, without an answer", said[0])


# ---- executables
@pytest.mark.parametrize("way", ["file", "torchrun", "srun"])
def test_processors_of_ranks_need_mpi(start, digits, tmp_path, way):  # noqa: F811
    exe, data = digits
    environments = ways(tmp_path)[0][way][:2]
    for env in environments:
        env.update({name: 2 for name in env if name.endswith(("WORLD_SIZE", "TASKS"))})
    said = ends([start(env, *data, "--steps=1", command=[exe]) for env in environments], 9)
    assert said[0].count("error") == 1 and "2 ranks without MPI need --device=cuda and NCCL" in said[0]
    assert said[1] == ""


MANY = {"OMPI_COMM_WORLD_SIZE": 3}


@pytest.mark.parametrize("environment, says", [
    (torchrun(2, free_port())[0], "TCP"), ({**torchrun(2, free_port())[0], **MANY, **srun(3)[0]}, "TCP"),  # one torchrun for each machine
    (srun(2)[0], "TCP"), ({**srun(2)[0], "RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "localhost", "MASTER_PORT": free_port()}, "TCP"),
    ({"SLURM_PROCID": 0, "SLURM_NTASKS": 2, "SLURM_JOB_ID": 1}, "alone"),  # a batch script
    ({**srun(2)[0], **MANY}, "MPI of 3"), ({"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "localhost", "MASTER_PORT": 1, **MANY}, "MPI of 3"),
    ({**srun(2)[0], "PMI_FD": 1}, "MPI of 2")])
def test_which_way(start, digits, environment, says):  # noqa: F811
    exe, data = digits
    process = start(environment, *data, "--steps=1", "--progress=off", command=[exe])
    if says == "TCP":
        line_of(process, r"rank 0: has waited 1 s at port \d+ for rank 1 to start; 1 of 2 are there")
    elif says == "alone":
        ends([process], 0)
    else:
        ranks = says.split()[-1]
        said, = ends([process], 9)
        assert f"the launcher's variables say {ranks} ranks, its MPI library knows 1" in said


@pytest.mark.parametrize("environment", [{"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "localhost", "MASTER_PORT": 1}, srun(1)[0]])
def test_one_rank_meets_nobody(start, digits, environment):  # noqa: F811
    exe, data = digits
    ends([start(environment, *data, "--steps=1", "--progress=off", command=[exe])], 0)


@pytest.mark.parametrize("environment, says", [
    ({"RANK": 2, "WORLD_SIZE": 2, "MASTER_ADDR": "a", "MASTER_PORT": 1}, "RANK=2: need a number from 0 to 1"),
    ({"GRADC_RENDEZVOUS": "tcp://a:1"}, "RANK and WORLD_SIZE must say which"),
    ({"RANK": 0, "WORLD_SIZE": 2, "GRADC_RENDEZVOUS": "a:1"}, "GRADC_RENDEZVOUS=a:1: need tcp://HOST:PORT or file:///PATH")])
def test_variables_without_sense(start, digits, environment, says):  # noqa: F811
    exe, data = digits
    said, = ends([start(environment, *data, "--steps=1", command=[exe])], 2)
    assert says in said
