"""Forms of loop IR that `lower` does not make, or not always: the same bits from the interpreter and every printer."""
import math
import re
import signal
import subprocess

import pytest


@pytest.fixture
def compare(build, tmp_path):
    """Compares kernels given as text; returns the line of counts."""
    path = build / "tests/compare_kernels"
    if not path.exists():
        pytest.skip(f"{path} is not built")

    def run(kernels):
        (tmp_path / "m.gir").write_text(f'module @"m" {{\n{kernels}}}\n')
        done = subprocess.run([path, tmp_path / "m.gir"], text=True, capture_output=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()[-1]

    return run


LANES = """
  kernel @lanesN(x0: in f32[3,70], y0: out f32[3,2]) flops 0 {
    parallel v0 < 3 {
      vector v1 < 70 (v2: add f32 lanes N, v3: max f32 lanes N) {
        v4 = load x0[70*v0 + v1] : f32
        accumulate v4, v2
        accumulate v4, v3
      }
      vector v5 < min(70, 20*v0 + 7) (v6: mul f32 lanes N) {
        v7 = load x0[70*v0 + v5] : f32
        accumulate v7, v6
      }
      v8 = add v3, v6 : f32
      store y0[2*v0] = v2
      store y0[2*v0 + 1] = v8
    }
  }
"""


def test_fewer_lanes(compare):
    counts = compare("".join(LANES.replace("N", str(n)) for n in (1, 2, 4, 8, 16)))
    assert counts.startswith("5 kernels")


NESTED = """
  kernel @nested(x0: in f32[5,70], y0: out f32[2]) flops 0 {
    for v0 < 5 (v1: add f32) {
      vector v2 < 70 {
        v3 = load x0[70*v0 + v2] : f32
        accumulate v3, v1
      }
      for v4 < min(3, v0) {
        v5 = load x0[70*v0 + v4] : f32
        accumulate v5, v1
      }
    }
    for v6 < 5 (v7: add f32) {
      vector v8 < min(70, 20*v6 + -3) (v9: max f32 lanes 16) {
        v10 = load x0[70*v6 + v8] : f32
        accumulate v10, v7
        accumulate v10, v9
      }
      accumulate v9, v7
    }
    store y0[0] = v1
    store y0[1] = v7
  }
"""


def test_an_outer_accumulator_takes_lanes_in_order(compare):
    assert compare(NESTED).startswith("1 kernels")


# A window of an image's rows, shifted over its edges: lanes side by side, apart, at random, one for all, and none.
MASKED = """
  kernel @masked_T(x0: in T[9,40], x1: in s64[40], y0: out f32[9,5,40]) flops 0 {
    local local3 : T[40]
    parallel v0 < 9 {
      v1 = affine v0 + -2 : s64
      v2 = const 0 : s64
      v3 = const 40 : s64
      v4 = ge v1, v2 : bool
      vector v5 < 40 {
        v6 = load x0[40*v0 + v5] : C
        store local3[v5] = v6
      }
      v7 = load x0[40*v0 + -80] if v4 : C
      vector v8 < L {
        v9 = affine v8 + -3 : s64
        v10 = ge v9, v2 : bool
        v11 = and v4, v10 : bool
        v12 = load x0[40*v0 + v8 + -83] if v11 : C
        v13 = cast v12 to f32 : f32
        store y0[200*v0 + v8] = v13
        v14 = affine 3*v8 + -4 : s64
        v15 = lt v14, v3 : bool
        v16 = ge v14, v2 : bool
        v17 = and v15, v16 : bool
        v18 = load local3[3*v8 + -4] if v17 : C
        v19 = cast v18 to f32 : f32
        store y0[200*v0 + v8 + 40] = v19
        v20 = load x1[v8] : s64
        v21 = ge v20, v2 : bool
        v22 = lt v20, v3 : bool
        v23 = and v21, v22 : bool
        v24 = load x0[40*v0 + v20] if v23 : C
        v25 = cast v24 to f32 : f32
        store y0[200*v0 + v8 + 80] = v25
        v26 = load x0[40*v0 + 7] if v10 : C
        v27 = cast v26 to f32 : f32
        store y0[200*v0 + v8 + 120] = v27
        v28 = cast v7 to f32 : f32
        store y0[200*v0 + v8 + 160] = v28
      }
    }
  }
"""
COMPUTED = {"f32": "f32", "f64": "f64", "bf16": "f32", "e8m0": "f32", "f4e2m1": "f32", "s64": "s64", "u8": "u32", "s4": "s32",
            "bool": "bool"}


def test_loads_under_a_mask(compare):
    text = ""
    for dtype, computed in COMPUTED.items():
        lines = MASKED.replace(": C", f": {computed}").replace("masked_T", f"masked_{dtype}").replace("T[", f"{dtype}[")
        if computed == "f32":
            for used, cast in [(12, 13), (18, 19), (24, 25), (26, 27), (7, 28)]:
                lines = lines.replace(f"v{cast} = cast v{used} to f32", f"v{cast} = neg v{used}")
        text += lines.replace("< L", "< 40") + lines.replace("< L", "< min(40, 5*v0)").replace("@masked", "@ragged")
    assert compare(text).startswith(f"{2 * len(COMPUTED)} kernels")


def test_a_load_under_a_mask_is_one_access(run, tmp_path):
    """Where lanes are neighbours and the CPU has masks; else no lane costs a branch."""
    lines = MASKED.replace(": C", ": f32").replace("T[", "f32[").replace("< L", "< 40")
    (tmp_path / "m.gir").write_text(f'module @"m" {{\n{lines}}}\n')
    for level, masked in [(4, {"load", "gather"}), (3, {"load"}), (2, set())]:
        text = run("dump", tmp_path / "m.gir", "--stage=llvm", f"--target=cpu:x86-64-v{level}").stdout
        assert set(re.findall(r"llvm\.masked\.(load|gather)\..*<16 x i1> %", text)) == masked
        assert text.count("br i1") == 2, "the parts' loop alone"


# A row in registers: each member keeps four elements of it from one team loop to the next.
REGISTERS = """
  kernel @registers(x0: in f32[6,64], y0: out f32[6,64]) team 16 flops 0 {
    parallel v0 < 6 {
      private p2 : f32[4]
      team v1 < 16 (v2: max f32 team 16) {
        unroll v3 < 4 {
          v4 = load x0[64*v0 + 16*v3 + v1] : f32
          store p2[v3] = v4
          accumulate v4, v2
        }
      }
      team v5 < 16 (v6: add f32 team 16) {
        unroll v7 < 4 {
          v8 = load p2[v7] : f32
          v9 = sub v8, v2 : f32
          v10 = exp v9 : f32
          store p2[v7] = v10
          accumulate v10, v6
        }
      }
      team v11 < 16 {
        unroll v12 < 4 {
          v13 = load p2[v12] : f32
          v14 = div v13, v6 : f32
          store y0[64*v0 + 16*v12 + v11] = v14
        }
      }
    }
  }
"""


def test_printers_unroll(run, tmp_path):
    """C asks for it, LLVM IR has copies: loops over parts and members are left, and no comparison of v3."""
    (tmp_path / "m.gir").write_text(f'module @"m" {{\n{REGISTERS}}}\n')
    assert run("dump", tmp_path / "m.gir", "--stage=c").stdout.count("#pragma GCC unroll 4\n") == 3
    text = run("dump", tmp_path / "m.gir", "--stage=llvm", "--target=cpu:x86-64-v3").stdout
    bounds = re.findall(r"icmp slt i64 %\S+, (\d+)\n", text)
    assert sorted(bounds, key=int) == ["2", "2", "4", "4", "8", "8", "16", "16", "16"], "trees and members"


# Four teams of eight: each transposes its own 8 x 8 elements and sums the columns; then each takes the sums of the next.
TWO_LEVELS = """
  kernel @levels(x0: in f32[3,4,8,8], y0: out f32[3,4,8,8], y1: out f32[3,4]) team 4x8 flops 0 {
    parallel v0 < 3 {
      local sums3 : f32[4]
      private own4 : f32[8]
      private packed5 : s4[3]
      team v1 < 4 {
        local turned6 : f32[8,8] pad 1
        team v2 < 8 {
          unroll v3 < 8 {
            v4 = load x0[256*v0 + 64*v1 + 8*v3 + v2] : f32
            store turned6[8*v3 + v2] = v4
            store own4[v3] = v4
          }
          v5 = affine v2 + v1 : s64
          v6 = cast v5 to s4 : s32
          store packed5[1] = v6
        }
        barrier
        team v7 < 8 (v8: add f32 team 8, v9: max f32 team 8) {
          for v10 < min(8, v7 + 3) {
            v11 = load turned6[8*v7 + v10] : f32
            accumulate v11, v8
          }
          vector v12 < 8 {
            v13 = load turned6[8*v7 + v12] : f32
            accumulate v13, v9
          }
        }
        v14 = add v8, v9 : f32
        store sums3[v1] = v14
      }
      barrier
      team v15 < 4 {
        v16 = affine v15 + 1 : s64
        v17 = const 3 : s64
        v18 = and v16, v17 : s64
        v19 = load sums3[v18] : f32
        store y1[4*v0 + v15] = v19
        team v20 < 8 {
          v21 = load packed5[1] : s32
          v22 = cast v21 to f32 : f32
          unroll v23 < 8 {
            v24 = load own4[v23] : f32
            v25 = add v24, v22 : f32
            store y0[256*v0 + 64*v15 + 8*v23 + v20] = v25
          }
        }
      }
    }
  }
"""


def test_teams(compare):
    assert compare(REGISTERS + TWO_LEVELS).startswith("2 kernels")


@pytest.fixture
def race(build, tmp_path):
    """Runs a kernel that has a race, on zeros; returns the interpreter's words about it."""
    def run(kernel):
        (tmp_path / "m.gir").write_text(f'module @"m" {{\n{kernel}}}\n')
        name, params = re.search(r"kernel @(\w+)\((.*?)\)", kernel).groups()
        files = [tmp_path / param for param in re.findall(r"(\w+): (?:in|out) ", params)]
        for file, dtype, dims in zip(files, *zip(*re.findall(r" [a-z]+(\d+)\[([\d,]+)\]", params))):
            file.write_bytes(bytes(int(dtype) * math.prod(map(int, dims.split(","))) // 8))
        done = subprocess.run([build / "tests/run_kernel", tmp_path / "m.gir", name, "interpreter", *files], text=True,
                              capture_output=True)
        assert done.returncode == -signal.SIGABRT, done.stdout + done.stderr
        return re.search(r"kernel \w+: (.*)", done.stderr)[1]

    return run


# Each member tells its neighbour a number, twice.
NEIGHBOURS = """
  kernel @k(x0: in f32[8], y0: out f32[8], y1: out f32[8]) team 8 flops 0 {
    local told3 : f32[9]
    team v0 < 8 {
      v1 = load x0[v0] : f32
      store told3[v0] = v1
      store told3[8] = v1  ; ALL
    }
    barrier  ; ONE
    team v2 < 8 {
      v3 = load told3[-1*v2 + 7] : f32
      store y0[v2] = v3
    }
    barrier  ; TWO
    team v4 < 8 {
      v5 = load y0[v4] : f32
      store told3[v4] = v5
    }
    barrier  ; THREE
    v6 = load told3[5] : f32
    team v7 < 8 {
      v8 = load y0[-1*v7 + 7] : f32
      v9 = add v8, v6 : f32
      store y1[v7] = v9
    }
  }
"""


def without(text, *words):
    """Drops the lines that are marked so."""
    return "".join(line + "\n" for line in text.splitlines() if not line.endswith(tuple("; " + w for w in words)))


def test_races_of_a_team(compare, race):
    assert compare(without(NEIGHBOURS, "ALL")).startswith("1 kernels")
    for dropped, words in [
            (["ALL", "ONE"], "place 7 of told3 races: member 0 reads what member 7 did, without a barrier between"),
            (["ALL", "TWO"], "place 0 of told3 races: member 0 writes what member 7 did, without a barrier between"),
            (["ALL", "THREE"], "place 5 of told3 races: the team reads what member 5 did, without a barrier between"),
            (["ALL", "TWO", "THREE"], "place 0 of told3 races: member 0 writes what member 7 did"),
            ([], "place 8 of told3 races: member 1 writes what member 0 did")]:
        assert race(without(NEIGHBOURS, *dropped)).startswith(words)


def test_races_between_levels(race):
    """A barrier within an outer member's iteration orders its inner members, and no others."""
    inner = TWO_LEVELS.replace("        barrier\n", "")
    assert race(inner) == "place 1 of turned6 races: member 0x0 reads what member 0x1 did, without a barrier between"
    outer = TWO_LEVELS.replace("\n      barrier\n", "\n")
    assert race(outer) == "place 1 of sums3 races: member 0 reads what member 1 did, without a barrier between"
    moved = outer.replace("        v19 = load", "        barrier\n        v19 = load")
    assert race(moved) == "place 1 of sums3 races: member 0 reads what member 1 did, without a barrier between"
    alone = TWO_LEVELS.replace("        v14 = add", "        v26 = load turned6[5] : f32\n        store turned6[5] = v26\n        v14 = add")
    assert race(alone) == "place 5 of turned6 races: member 0 writes what member 0x0 did, without a barrier between"


def test_races_within_a_byte(race):
    text = """
  kernel @k(x0: in f32[8], y0: out s4[8]) team 8 flops 0 {
    team v0 < 8 {
      v1 = load x0[v0] : f32
      v2 = cast v1 to s4 : s32
      store y0[v0] = v2
    }
  }
"""
    assert race(text) == "place 1 of y0 races: member 1 writes what member 0 did, without a barrier between"


# A product of an array that copies bring and a tile, with the greatest of each row, and its sum.
TILES = """
  kernel @tiles(x0: in f32[16,24], x1: in bf16[24,32], y0: out f32[16,32], y1: out f32[16]) team 4x8 flops 0 {
    local a4 : f32[16,24]
    local b5 : bf16[24,32] swizzle
    tile s6 : f32[16,32]
    tile m7 : f32[16]
    tile l8 : f32[16]
    tile p9 : f32[16,24]
    team v0 < 4 {
      team v1 < 8 {
        for v2 < 3 {
          v3 = affine 24*v0 + 3*v1 + v2 : s64
          copy a4[4*v3] = x0[4*v3] 4
          copy b5[8*v3] = x1[8*v3] 8
        }
      }
    }
    commit
    each v10, v11 of s6 {
      v12 = const 0.0 : f32
      store s6[v10, v11] = v12
    }
    wait 0  ; WAIT
    barrier  ; ARRIVED
    each v20, v21 of p9 {
      v22 = load a4[24*v20 + v21] : f32
      store p9[v20, v21] = v22
    }
    mma s6, p9, b5[0 : 32, 1] k 24
    each v13, v14 of s6 (v15: max f32 row 8 to m7, v16: add f32 row 4 to l8) {
      v17 = load s6[v13, v14] : f32
      accumulate v17, v15
      accumulate v17, v16
    }
    each v23, v24 of s6 {
      v25 = load s6[v23, v24] : f32
      v26 = load m7[v23] : f32
      v27 = sub v25, v26 : f32
      store y0[32*v23 + v24] = v27
    }
    each v28 of l8 {
      v29 = load l8[v28] : f32
      store y1[v28] = v29
    }
  }
"""


def test_tiles(compare, run, tmp_path):
    assert compare(TILES) == "1 kernels, 2 codes, 0 differences", "C and the interpreter"
    (tmp_path / "m.gir").write_text(f'module @"m" {{\n{TILES}}}\n')
    done = run("dump", tmp_path / "m.gir", "--stage=llvm", exit=4)
    assert "kernel @tiles: the LLVM printer has no tiles, mma or copies" in done.stderr


def test_llvm_counts_in_32_bits(run, tmp_path):
    """An array of more elements is refused, not cut."""
    (tmp_path / "m.gir").write_text("""module @"m" {
  kernel @k(x0: in f32[4], y0: out f32[4]) flops 0 {
    parallel v0 < 4 {
      local big2 : f32[4294967296]
      v1 = load x0[v0] : f32
      store big2[v0] = v1
      v2 = load big2[v0] : f32
      store y0[v0] = v2
    }
  }
}
""")
    done = run("dump", tmp_path / "m.gir", "--stage=llvm", exit=4)
    assert "kernel @k: LLVM cannot have an array of 4294967296 elements (big2)" in done.stderr
    assert "float local2[4294967296]" in run("dump", tmp_path / "m.gir", "--stage=c").stdout


def test_copies_arrive_at_a_wait(race):
    assert race(without(TILES, "ARRIVED")) == ("place 0 of a4 races: some member reads what member 0x0 did, without a barrier "
                                               "between")
    assert race(without(TILES, "WAIT")) == "place 0 of a4 is touched while a copy of it is in flight"
    assert race(TILES.replace("wait 0", "wait 1")) == "place 0 of a4 is touched while a copy of it is in flight"
    assert race(TILES.replace("    commit\n", "")) == "place 0 of a4 is touched while a copy of it is in flight"
    over = TILES.replace("    commit\n", "    v50 = load x0[0] : f32\n    store a4[0] = v50\n    commit\n")
    assert race(over) == "place 0 of a4 is touched while a copy of it is in flight"
    last = TILES.replace("    each v28", """    team v40 < 4 {
      team v41 < 8 {
        v42 = const 0 : s64
        v43 = eq v41, v42 : bool
        if v43 {
          copy a4[4*v40] = x0[4*v40] 4
        }
      }
    }
    each v28""")
    # Whoever reads the array in the product may be slower.
    assert race(last) == "place 0 of a4 races: member 0x0 writes what some member did, without a barrier between"
    last = last.replace("    team v40", "    barrier\n    team v40")
    assert race(last) == "place 0 of a4 is in flight where the part ends"


def test_races_of_tiles(race):
    """Nobody knows who owns an element: what one each writes to an array, another may read behind a barrier only."""
    told = TILES.replace("store y0[32*v23 + v24] = v27", "store told[v23] = v27").replace(
        "      store y1[v28] = v29", "      v30 = load told[v28] : f32\n      store y1[v28] = v30").replace(
        "    tile s6", "    local told : f32[16]\n    tile s6")
    assert race(told) == "place 0 of told races: some member writes what some member did, without a barrier between"
    told = told.replace("told[v23] = v27", "told[32*v23 + v24] = v27").replace("told : f32[16]", "told : f32[512]")
    assert race(told) == "place 0 of told races: some member reads what some member did, without a barrier between"


# Copies of two groups, in a ring of two; a masked one brings zeros.
RING = """
  kernel @ring(x0: in f32[40,8], y0: out f32[8]) team 8 flops 0 {
    local ring2 : f32[2,8]
    private sum3 : f32[1]
    team v0 < 8 {
      v1 = const 0.0 : f32
      store sum3[0] = v1
      copy ring2[v0] = x0[v0] 1
    }
    commit
    for v2 < 39 {
      v3 = const 1 : s64
      v4 = const 36 : s64
      v5 = lt v2, v4 : bool
      v6 = affine v2 + 1 : s64
      v7 = and v6, v3 : s64
      v8 = and v2, v3 : s64
      team v9 < 8 {
        copy ring2[8*v7 + v9] = x0[8*v2 + v9 + 8] 1 if v5
      }
      commit
      wait 1
      team v10 < 8 {
        v11 = load ring2[8*v8 + v10] : f32
        v12 = load sum3[0] : f32
        v13 = add v11, v12 : f32
        store sum3[0] = v13
      }
    }
    wait 0
    team v14 < 8 {
      v15 = load sum3[0] : f32
      store y0[v14] = v15
    }
  }
"""


def test_a_ring_of_copies(compare, race):
    assert compare(RING).startswith("1 kernels")
    assert race(RING.replace("wait 1", "wait 2")) == "place 0 of ring2 is touched while a copy of it is in flight"
    assert race(RING.replace("load ring2[8*v8 + v10]", "load ring2[8*v8 + -1*v10 + 7]")) == (
        "place 7 of ring2 races: member 0 reads what member 7 did, without a barrier between")


# Rows of segments: where they begin is a buffer's; and the blocks of a causal row, whose last one is shorter.
SEGMENTS = """
  kernel @segments(x0: in f32[200], x1: in s64[9], y0: out f32[8], y1: out f32[200]) flops 0 {
    parallel v0 < 8 {
      v1 = load x1[v0] : s64
      v2 = load x1[v0 + 1] : s64
      v3 = const 0 : s64
      v4 = max v1, v3 : s64
      v5 = affine 3*v0 + 4*v4 : s64
      vector v6 < min(40, 12*v2 + -9*v4 + 1) (v7: add f32 lanes 16) {
        v8 = load x0[v5 + v6] : f32
        accumulate v8, v7
      }
      for v9 < min(3, v2) (v10: max f32) {
        vector v11 < min(8, 2*v9 + v4) {
          v12 = load x0[v5 + 8*v9 + v11] : f32
          store y1[25*v0 + 8*v9 + v11] = v12
          accumulate v12, v10
        }
      }
      v13 = add v7, v10 : f32
      store y0[v0] = v13
    }
  }
"""


def test_places_and_ranges_of_computed_scalars(compare):
    """Integers of the buffers are 0 to 3."""
    assert compare(SEGMENTS).startswith("1 kernels")


def test_a_computed_place_is_checked_where_it_is_reached(race):
    assert race(SEGMENTS.replace("v5 = affine 3*v0", "v5 = affine 30*v0")).endswith(" of x0 lies outside")
