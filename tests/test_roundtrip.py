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


PASSES = ["memory", "instructions", "shard", "sums", "streams", "events"]
# with loops, batch statistics, tied weights, experts
MODELS = ["lstm_chars", "resnet_mini", "gpt2_mini", "moe_mini"]


@pytest.mark.parametrize("name, precision, modes", [(name, "f32", "zero2,zero3,ddp") for name in MODELS] + [
    ("gpt2_mini", "bf16", "zero1,zero2")])  # forward reads copies of weights instead of the divided weights
def test_passes_over_programs_go_on_from_the_text_of_the_pass_before(run, models, tmp_path, name, precision, modes):
    run("dump", models / name / "model.onnx", "--after=events", "--dump-after=all", "--dump-dir", tmp_path,
        f"--data-parallel={modes}", f"--precision={precision}", *reference.compile_options(name, "f32", drop=["--precision"]))
    files = {p.stem.split("-", 1)[1]: p for p in tmp_path.glob("[0-9]*.gir")}
    for before, after in zip(PASSES, PASSES[1:]):
        run("opt", files[before], f"--passes={after}", "-o", tmp_path / "after.gir")
        assert (tmp_path / "after.gir").read_bytes() == files[after].read_bytes(), after
