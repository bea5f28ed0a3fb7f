"""print . parse is the identity, byte for byte, for every stage of every reference model."""
import pytest
import reference

STAGES = ["import", "forward", "train", "rematerialized", "fused", "lowered", "schedule", "memory"]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", reference.NAMES)
def test_reading_a_dump_gives_the_dump(run, models, tmp_path, name, stage):
    run("dump", models / name / "model.onnx", f"--stage={stage}", "--dump-dir", tmp_path,
        *reference.compile_options(name, "f32"))
    files = sorted(tmp_path.glob("*.gir"))
    assert len(files) == 1
    (tmp_path / "again").mkdir()
    run("opt", files[0], "--passes=", "-o", tmp_path / "again/m.gir")
    assert (tmp_path / "again/m.gir").read_bytes() == files[0].read_bytes()
    data = files[0].with_suffix(".safetensors")
    assert data.exists() == (tmp_path / "again/m.safetensors").exists()
    if data.exists():
        assert (tmp_path / "again/m.safetensors").read_bytes() == data.read_bytes()
