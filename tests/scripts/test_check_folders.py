"""scripts/check-folders accepts this repository, and refuses what it is there to refuse."""
import subprocess
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts/check-folders"


def check(root):
    return subprocess.run([SCRIPT, root], text=True, capture_output=True)


def test_this_repository():
    done = check(ROOT)
    assert done.returncode == 0, done.stdout


def put(root, name, line):
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(line + "\n")


@pytest.mark.parametrize("folder, line, why", [
    ("base", '#include "ir/ir.h"', "base/ may include nothing else"),
    ("runtime/train", '#include "ir/ir.h"', "runtime/train/ may include runtime/checkpoint"),
    ("cudnn", '#include "format/format.h"', "cudnn/ may include base*"),
    ("tools", '#include "cudnn/cudnn.h"', "tools/ may include"),
    ("passes", '#include "frontend/frontend.h"', "passes/ may include ir ir/groups base*"),
    ("tools", '#include "runtime/device/device.h"', "tools/ may include"),
    ("codegen/emit", '#include "onnx.pb-c.h"', "only frontend/ knows protobuf"),
    ("ir", '#include "ir.h"', "not a path from the root"),
    # Rooms of one folder have an order, and only a room's public header is seen from outside.
    ("runtime/data", '#include "runtime/train/train.h"', "runtime/data/ may include"),
    ("runtime/train", '#include "runtime/data/sources.h"', "private to runtime/data/, whose public header is data.h"),
    ("codegen/emit", '#include "codegen/lower/nest.h"', "codegen/emit/ may include"),
    ("driver", '#include "passes/lora/lora.h"', "private to passes/lora/"),
    ("runtime/comm/tcp", '#include "runtime/comm/mpi/mpi.h"', "runtime/comm/tcp/ may include"),
    ("passes", '#include "codegen/pass_list.def"', "passes/ may include"),
])
def test_refuses(tmp_path, folder, line, why):
    put(tmp_path, f"{folder}/x.c", line)
    done = check(tmp_path)
    assert done.returncode == 1
    assert f"{folder}/x.c:1: " in done.stdout and why in done.stdout


@pytest.mark.parametrize("name, line", [
    ("tools/x.c", '#include "runtime/gradc.h"\n#include <stdio.h>'),
    ("runtime/data/x.c", '#include "runtime/data/sources.h"'),
    ("runtime/comm/comm.c", '#include "runtime/comm/tcp/tcp.h"'),
    ("runtime/comm/tcp/x.c", '#include "runtime/comm/comm.h"'),
    ("frontend/operators/nn/x.c", '#include "frontend/operators/tensor/y.h"'),
    ("passes/update/x.c", '#include "base/numbers/optimizer_list.def"'),
])
def test_accepts(tmp_path, name, line):
    put(tmp_path, name, line)
    assert check(tmp_path).returncode == 0, check(tmp_path).stdout


def test_the_table_has_the_lowest_first():
    """A room's row names rooms of its own folder that stand above it in the table."""
    rooms = SourceFileLoader("check_folders", str(SCRIPT)).load_module()
    before = []
    for room in rooms.ROOMS:
        inside = [r for r in rooms.ROOMS if r.split("/")[0] == room.split("/")[0] and rooms.may_see(room, r) and not r.startswith(room + "/")]
        assert set(inside) <= {*before, room}, room
        before.append(room)
