"""scripts/check-folders accepts this repository, and refuses what it is there to refuse."""
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts/check-folders"


def check(root):
    return subprocess.run([SCRIPT, root], text=True, capture_output=True)


def test_this_repository():
    done = check(ROOT)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("folder, line, why", [
    ("base", '#include "ir/ir.h"', "base/ may include base"),
    ("runtime", '#include "ir/ir.h"', "runtime/ may include runtime, cudnn, format, base"),
    ("cudnn", '#include "format/format.h"', "cudnn/ may include cudnn, base"),
    ("tools", '#include "cudnn/cudnn.h"', "tools/ may include"),
    ("passes", '#include "frontend/frontend.h"', "passes/ may include passes, ir, base"),
    ("tools", '#include "runtime/device/device.h"', "tools/ may include"),
    ("codegen", '#include "onnx.pb-c.h"', "only frontend/ knows protobuf"),
    ("format", '#include "base/base.h"', "private to base/"),
    ("ir", '#include "ir.h"', "not a path from the root"),
])
def test_refuses(tmp_path, folder, line, why):
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "x.c").write_text(line + "\n")
    done = check(tmp_path)
    assert done.returncode == 1
    assert f"{folder}/x.c:1: " in done.stdout and why in done.stdout


def test_accepts(tmp_path):
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/x.c").write_text('#include "runtime/gradc.h"\n#include <stdio.h>\n')
    assert check(tmp_path).returncode == 0
