"""Ranks that compute the loss in chunks of rows: a loop, and sums in the gradient's own place."""
import pytest
from test_ranks import openmpi  # noqa: F401
from test_shard import same, shard_executable

MODES = ["ddp", "zero1", "zero2", "zero3"]
LOOP, TWO_AXES, TWO_CHUNKS = 20, 24, 64  # rows of a chunk, of 128 rows: two samples of 64
CASES = [("gpt2_mini", rows, mode) for rows in (LOOP, TWO_AXES, TWO_CHUNKS) for mode in MODES] + [("llama_mini", LOOP, mode) for mode in MODES]


@pytest.mark.parametrize("name, rows, mode", CASES)
def test_modes_are_accumulation(openmpi, gradc, models, tmp_path, name, rows, mode):  # noqa: F811
    exe, data = shard_executable(gradc, models, tmp_path, name, f"--pass-option=ungroup.loss_rows={rows}", batch=2)
    same(openmpi, exe, data, tmp_path, mode, 2, 3, *(["--device=async"] if rows == TWO_AXES else []))
