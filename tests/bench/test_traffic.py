"""bench/traffic.py: bytes that kernels read and write, from their loops' text and the slots of a launch."""
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import traffic  # noqa: E402

LOWERED = """
  kernel @k0(x0: in f32[1000,384], x1: in s64[8], y0: out bf16[8,384]) flops 0 loc "embedding" {
    local local2 : f32[64]
    parallel v0 < 8 {
      v1 = load x1[v0] : s64
      vector v2 < 384 {
        v3 = load x0[384*v1 + v2] : f32
        store local2[v2] = v3
        store y0[384*v0 + v2] = v3
      }
    }
  }
  kernel @k1(x0: in f32[8,96], x1: in f32[32], x3: in s4[7], y0: inout f32[8,32]) flops 512 loc fused("a", "b") {
    parallel v0 < 8 {
      vector v2 < min(32, v0) {
        v3 = load x0[96*v0 + v2] : f32
        v4 = load x1[v2] : f32
        v5 = load x1[v2] : f32
        v6 = load y0[32*v0 + v2] : f32
        store y0[32*v0 + v2] = v6
      }
    }
    for v7 < 3 {
      v8 = load x3[2] : s32
    }
    for v9 < 2 {
      v10 = affine v9 : s64
      v11 = load x3[v10] : s32
    }
  }
"""
SCHEDULE = """program accumulate "batch=8": 3 instructions
      0  run k0 (state+0:f32 "w (1)", io+0:s64 "x", workspace+0:bf16 "y") phase forward  loc "embedding"
      1  run k1 or dot {x = f32[1,1] at 0, y = f32[1,1] at 1, z = f32[1,1] at 3} (workspace+0:f32 "a", state+8:f32 "b", io+0:s4 "c", state+64:f32 "d") when later phase backward  loc fused("a", "b")
      2  copy (workspace+0:f32 "a", state+8:f32 "b") phase backward  loc "k0"
"""


def test_what_loops_touch_counts():
    """Rows of a table, columns of a joined product, a few elements, all of a small buffer; a local array is in the
    cache, and a computed place may be any of the loops around it."""
    found = traffic.kernels(LOWERED)
    assert found["k0"] == [(8 * 384 * 4, 0), (8 * 8, 0), (0, 8 * 384 * 2)]
    assert found["k1"] == [(8 * 32 * 4, 0), (32 * 4, 0), ((1 + 2) / 2, 0), (8 * 32 * 4, 8 * 32 * 4)]


def test_a_write_reads_its_line_unless_the_kernel_has():
    assert traffic.moved([(100, 0), (10, 0), (0, 50)], ["a+0", "b+0", "a+64"]) == (160, 50)
    assert traffic.moved([(100, 0), (10, 0), (0, 50)], ["a+0", "b+0", "a+0"]) == (110, 50)
    assert traffic.moved([(100, 0), (50, 50)], ["a+0", "b+0"]) == (150, 50)


def test_launches_of_a_schedule():
    found = traffic.of_kernels(LOWERED, SCHEDULE)
    assert found == {"k0": (12288 + 64 + 6144, 6144), "k1": (1024 + 128 + 1.5 + 1024, 1024)}
    in_place = '      3  run k0 (workspace+0:f32 "w", io+0:s64 "x", workspace+0:bf16 "y")  loc "embedding"\n'
    for schedule in SCHEDULE + in_place, in_place + SCHEDULE:
        assert traffic.of_kernels(LOWERED, schedule)["k0"] == (12288 + 64, 6144)


@pytest.mark.parametrize("dtype, bits", [("bool", 8), ("s4", 4), ("u64", 64), ("f8e4m3", 8), ("bf16", 16), ("f32", 32)])
def test_bits(dtype, bits):
    assert traffic.bits(dtype) == bits


def test_a_model(run, tmp_path):
    """y = exp(table[x]), 3 rows of 1000: the schedule counts the table, the loops read 3 rows."""
    nodes = [helper.make_node("Gather", ["table", "x"], ["g"]), helper.make_node("Exp", ["g"], ["y"])]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.INT64, [3])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 40])],
                              [numpy_helper.from_array(np.ones((1000, 40), np.float32), "table")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx")
    run("compile", "m.onnx", "-o", "e", "--loss=mse")
    lowered = run("dump", "m.onnx", "--loss=mse", "--optimizer=adamw", "--stage=lowered").stdout
    found = traffic.of_kernels(lowered, run("dump", "e", "--stage=schedule").stdout)
    assert (3 * 40 * 4 + 3 * 8 + 3 * 40 * 4, 3 * 40 * 4) in found.values()
