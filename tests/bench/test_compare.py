"""bench/compare.py without PyTorch: what it computes, what it writes, and a whole comparison with gradc alone."""
import json
import sys
from pathlib import Path

import jsonschema
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import compare  # noqa: E402
import facts  # noqa: E402
import process  # noqa: E402
import summary  # noqa: E402
import workloads  # noqa: E402

SCHEMA = json.loads((ROOT / "bench/result.schema.json").read_text())
LIMITS = {"gflops": 100.0, "generated_gemm_gflops": 80.0, "library_gemm_gflops": 90.0, "memory": [
    {"bytes": 1000, "read_gbytes_per_s": 40.0, "write_gbytes_per_s": 20.0},
    {"bytes": 1_000_000, "read_gbytes_per_s": 10.0, "write_gbytes_per_s": 5.0}]}
LOAD = {"load_start": 0.1, "load_end": 1.5, "seconds": 60.0, "others_busy_cores": 0.01}
PROFILE = [
    {"name": "k0", "origin": '"fc"', "phase": "forward", "runs": 1.0, "ms": 2.0, "flops": 100_000_000},
    {"name": "k1", "origin": '"relu"', "phase": "forward", "runs": 1.0, "ms": 1.0, "flops": 1000},
    {"name": "k1", "origin": '"relu"', "phase": "forward", "runs": 2.0, "ms": 3.0, "flops": 1000},
    {"name": "copy", "origin": "", "phase": "update", "runs": 1.0, "ms": 0.5, "flops": 0},
]
ALONE = [{**k, "ms": ms} for k, ms in zip(PROFILE, (3.8, 1.0, 4.0, 0.5))]
TRAFFIC = {"k0": (1000, 10), "k1": (5_000_000, 2_000_000)}
PARTS = {"k0": 16, "k1": 256}
ROWS = summary.kernels(PROFILE, ALONE, TRAFFIC, PARTS, LIMITS)


def round_of(ms, loss=2.5, compile_s=0.25, **more):
    return {"step_ms": [90.0, *[ms] * 4], "loss": [loss, 2.0], "compile_s": compile_s, "start_ms": 7.0, "first_step_end_s": 0.097,
            "peak_bytes": 50_000_000, "steady_bytes": 40_000_000, **more}


def result(loss=2.5, load=LOAD, last_ms=3.0):
    """A result with numbers that can be followed by hand: 100 MFLOP a step of 2 ms."""
    settings = {"shape": "4x8", "rows": 4, "precision": "f32", "optimizer": "adamw", "threads": 2, "steps": 5,
                "warmup": 1, "rounds": 2, "compile_options": ["--batch=4"], "environment": {}}
    rounds = {"gradc": [round_of(1.0, planned_bytes=10, binary_bytes=400_000),
                        round_of(last_ms, planned_bytes=10, binary_bytes=400_000)],
              "eager": [round_of(4.0, loss, None), round_of(4.0, loss, None)]}
    return summary.of_model("tiny", settings, rounds, ROWS, facts.machine(), LIMITS, load,
                            [facts.load_warning(load)])


def test_spread():
    assert summary.spread([4, 1, 2, 3, 5]) == {"median": 3, "p25": 2, "p75": 4, "min": 1, "max": 5, "n": 5}
    assert summary.spread([7.0]) == {"median": 7, "p25": 7, "p75": 7, "min": 7, "max": 7, "n": 1}


def test_warm_up_counts_in_no_step_time():
    gradc = result()["contenders"]["gradc"]
    assert gradc["step_ms"] == {"median": 2, "p25": 1, "p75": 3, "min": 1, "max": 3, "n": 8, "round_medians": [1, 3]}
    assert gradc["first_step_ms"]["median"] == 90
    assert gradc["rows_per_s"] == 2000


def test_shares_of_the_limits():
    contenders = result()["contenders"]
    flops = 100_000_000 + 3 * 1000
    assert contenders["gradc"]["of_peak"] == pytest.approx(flops / 2e-3 / 100e9)
    assert contenders["eager"]["of_library_gemm"] == pytest.approx(flops / 4e-3 / 90e9)
    assert summary.shares(contenders["gradc"], flops, {**LIMITS, "library_gemm_gflops": None})["of_library_gemm"] is None


def test_kernels_are_added_up_and_held_against_the_nearest_limit():
    relu, fc, copy = ROWS
    assert (relu["name"], relu["runs"], relu["ms"], relu["read_bytes"]) == ("k1", 3, 4, 15_000_000)
    assert (relu["bound"], relu["limit_ms"], relu["of_limit"]) == ("memory", 1.5, 0.375)
    assert relu["gbytes_per_s"] == pytest.approx(21 / 4)
    assert (fc["bound"], fc["limit_ms"], fc["of_limit"], fc["gflops"]) == ("compute", 1, 0.5, 50)
    assert copy["of_limit"] is copy["bound"] is copy["gflops"] is None


@pytest.mark.parametrize("reads, writes, runs, ms", [
    (999, 1, 1, 999 / 40e6), (999_999, 1, 1, 999_999 / 40e6), (1_000_000, 1, 1, 0.1), (3_000_000, 0, 3, 0.3),
    (3_000_000, 3, 10, 3 / 40), (10_000_000, 10_000_000, 1, 2.0), (0, 0, 0, 0)])
def test_limits_of_memory_are_those_of_as_many_bytes(reads, writes, runs, ms):
    row = {"read_bytes": reads, "written_bytes": writes, "runs": runs}
    assert summary.memory_ms(row, LIMITS["memory"]) == pytest.approx(ms)


def test_scaling():
    relu, fc, copy = ROWS
    assert (relu["parts"], relu["one_thread_ms"], relu["scaling"]) == (256, 5, 1.25)
    assert (fc["parts"], fc["scaling"]) == (16, 1.9) and copy["parts"] is None
    lines = summary.scaling_lines([*ROWS, {**fc, "origin": "more"}], 2)
    assert lines[0] == "scaling: kernels take 13.10 ms on one thread, 8.50 ms on 2: 1.54x"
    assert [line.split()[0] for line in lines[2:]] == ["k1", "copy", "k0"]
    assert lines[2].split()[1:] == ["3", "256", "5.000", "ms", "4.000", "ms", "1.25x", "1.500", "ms", '"relu"']
    assert lines[4].split()[5:8] == ["4.000", "ms", "1.90x"]


def test_the_result_is_what_the_schema_says():
    jsonschema.validate(json.loads(json.dumps(result())), SCHEMA)


def test_warnings():
    assert result(last_ms=11.0)["warnings"] == []
    assert result()["warnings"] == ["the steps whose kernels were measured took 6.50 ms, the others 2.00 ms"]
    busy = result(loss=2.51, last_ms=11.0, load={**LOAD, "others_busy_cores": 0.5})["warnings"]
    assert "others kept 0.50 cores busy" in busy[0]
    assert busy[1] == "first losses differ: gradc 2.5, eager 2.51"
    assert summary.limit_warning(ROWS) is None
    assert summary.limit_warning([*ROWS, {**ROWS[0], "of_limit": 1.03}]) == (
        "k1 took 4.000 ms, less than its limit, 1.500 ms: limits are too low")


def test_table():
    lines = summary.table(result(loss=2.51)).splitlines()
    gradc, eager = (next(line for line in lines if line.startswith(name)) for name in ("gradc", "eager"))
    assert gradc.split()[:12] == "gradc 0.25 s 7 ms 90.0 ms 0.10 s 2.00 ms 1.00..3.00".split()
    assert gradc.endswith("1.00x")
    assert eager.split()[1] == "-" and eager.endswith("2.00x")
    assert any(line.split()[:2] == ["k1", "forward"] and " 38% " in line for line in lines)
    assert [line.split()[1] for line in lines[-2:]] == ["first", "the"]  # warnings


GEMM = """2 threads (libgomp, bound), peak 143 GFLOP/s
shape       generated  of peak  library  parts
512^3             120      84%%      %s
qkv dx             81      57%%      %s
"""


def test_rates_of_products():
    assert facts.parse_gemm(GEMM % ("130    256 brg:avx512_core +1", "  0    264 ")) == (143, 120, 130)
    assert facts.parse_gemm(GEMM % ("  0    256 ", "  0    264 ")) == (143, 120, None)


BANDWIDTH = """2 threads; GB/s
     bytes      read     fill     reads    writes
     65536     80.00    40.00     70.00     20.00
    262144     30.00    40.00     30.00     25.00
   1048576     31.00    10.00     31.00      5.00
"""


def test_more_bytes_are_never_faster():
    found = facts.parse_bandwidth(BANDWIDTH)
    assert [tuple(f.values()) for f in found] == [(65536, 70, 25), (262144, 31, 25), (1048576, 31, 5)]


def test_the_better_limits_of_two_measurements():
    other = {**LIMITS, "gflops": 99.0, "library_gemm_gflops": None, "memory": [
        {"bytes": 1000, "read_gbytes_per_s": 30.0, "write_gbytes_per_s": 21.0}, LIMITS["memory"][1]]}
    best = facts.better(LIMITS, other)
    assert best == {**LIMITS, "memory": [{**LIMITS["memory"][0], "write_gbytes_per_s": 21.0}, LIMITS["memory"][1]]}
    assert facts.better(other, LIMITS) == best


def test_own_seconds_count_children():
    before = facts.own_seconds()
    process.call([sys.executable, "-c", "import time\nwhile time.process_time() < 0.2: pass"])
    assert facts.own_seconds() > before + 0.1


def test_others_are_what_the_machine_did_less_our_own(monkeypatch):
    clock = {"monotonic": 100.0, "busy_seconds": 50.0, "own_seconds": 1.0}
    monkeypatch.setattr(facts.time, "monotonic", lambda: clock["monotonic"])
    monkeypatch.setattr(facts, "busy_seconds", lambda: clock["busy_seconds"])
    monkeypatch.setattr(facts, "own_seconds", lambda: clock["own_seconds"])
    watch = facts.Watch()
    clock.update(monotonic=110.0, busy_seconds=70.0, own_seconds=16.0)
    load = watch.facts()
    assert (load["seconds"], load["others_busy_cores"]) == (10, 0.5)
    assert facts.load_warning(load) and not facts.load_warning({**load, "others_busy_cores": 0.05})


def test_a_command_that_fails_is_one_line():
    with pytest.raises(process.Failure, match=r"^sh -c .*: exit 3: why$"):
        process.call(["sh", "-c", "echo more >&2; echo why >&2; exit 3"])
    with pytest.raises(process.Failure, match="^/nowhere/at/all: No such file"):
        process.call(["/nowhere/at/all"])


@pytest.mark.parametrize("arguments, said", [(["--models=gpt5"], "none of mlp"), (["--steps=2"], "no number from 5"),
                                             (["--contenders=jax"], "none of gradc")])
def test_wrong_options(arguments, said, capsys):
    with pytest.raises(SystemExit) as exit:
        compare.options(arguments)
    assert exit.value.code == 2 and said in capsys.readouterr().err


def write_tiny(path):
    random = np.random.default_rng(1)
    weight = random.standard_normal((6, 3)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="/fc")], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])], [numpy_helper.from_array(weight, "w")])
    path.parent.mkdir()
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def test_gradc_alone(tmp_path, monkeypatch, capsys):
    """All of it but PyTorch and the limits, which take long: compiles, trains, profiles, writes, prints."""
    write_tiny(tmp_path / "tiny/model.onnx")
    monkeypatch.setitem(compare.MODELS, "tiny", workloads.Model(4, "x", (6,), (), 3, options=("--batch=4",)))
    monkeypatch.setattr(facts, "limits", lambda threads: LIMITS)
    monkeypatch.setattr(compare, "prepare", lambda: None)
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    assert compare.main(["--models=tiny", "--contenders=gradc", "--steps=30000", "--rounds=2", "--threads=1",
                         f"--onnx={tmp_path}", f"--out={tmp_path / 'results'}"]) == 0
    written = json.loads((tmp_path / "results/tiny.json").read_text())
    jsonschema.validate(written, SCHEMA)
    assert written["settings"]["environment"]["OMP_WAIT_POLICY"] == "passive"
    gradc = written["contenders"]["gradc"]
    assert gradc["step_ms"]["n"] == 2 * 29997 and 0 < gradc["step_ms"]["median"] < gradc["start_ms"]["max"]
    assert gradc["peak_bytes"] >= gradc["planned_bytes"] > 0 and 1e5 < gradc["binary_bytes"] < 1e7
    assert gradc["first_loss"] != gradc["last_loss"]
    assert any('"/fc"' in k["origin"] and k["flops"] >= 2 * 4 * 6 * 3 for k in written["kernels"])
    forward = next(k for k in written["kernels"] if k["origin"] == '"/fc"' and k["phase"] == "forward")
    assert forward["parts"] >= 1 and forward["one_thread_ms"] > 0
    assert (forward["read_bytes"], forward["written_bytes"]) == (4 * (4 * 6 + 6 * 3 + 4 * 3), 4 * 4 * 3)
    rounded = 0.1  # ms, of the end
    assert 0 < gradc["start_ms"]["max"] <= 1e3 * gradc["first_step_end_s"]["max"] + rounded
    assert "tiny: 4x6, f32, 1 threads, 2 rounds of 30000 steps" in capsys.readouterr().out


def test_a_model_that_fails_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(compare, "prepare", lambda: None)
    assert compare.main(["--models=mlp", f"--onnx={tmp_path}", f"--reference={tmp_path}"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("bench: error: mlp: ") and said.count("\n") == 1
