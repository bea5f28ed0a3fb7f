"""Engines of the pretended libraries are timed at the start of a run; checkpoints, files of --tune and other ranks keep the choice."""
import json
import os

import numpy as np
import pytest
from checkpoints import checkpoints, read_manifest
from onnx import TensorProto, helper, numpy_helper
from pretended import ON_GPU, openmpi
from tolerances import limit

LIBRARIES, BATCH, STEPS = "--libraries=on", 32, 4
# as much time as a busy machine needs for all trials
ENGINES = {"GRADC_TUNE_SECONDS": "1000", "FAKE_CUDNN_ENGINES": "1:4096:0 2:64:0 3:0:0|0:4096:0"}  # each finds no fault in any convolution of the model
FIRST = {"dot": "tile 20", "conv": "engine 1"}


@pytest.fixture(scope="module")
def exe(gpu):
    """Two convolutions, one of them with windows of one element, and two products."""
    rng = np.random.default_rng(3)
    weights = {"w0": (8, 4, 3, 3), "p": (24, 8, 1, 1), "w1": (2400, 16), "w2": (16, 10)}
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w0"], ["c"]), helper.make_node("Conv", ["c", "p"], ["q"]), helper.make_node("Relu", ["q"], ["r"]), helper.make_node("Flatten", ["r"], ["f"]),
         helper.make_node("MatMul", ["f", "w1"], ["h"]), helper.make_node("Tanh", ["h"], ["t"]), helper.make_node("MatMul", ["t", "w2"], ["z"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4, 12, 12])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array((rng.standard_normal(shape) / 10).astype(np.float32), name) for name, shape in weights.items()])
    inputs = {"x": rng.standard_normal((STEPS * BATCH, 4, 12, 12)).astype(np.float32), "labels": rng.integers(0, 10, STEPS * BATCH)}
    return gpu.compile_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), inputs, "--loss=cross_entropy", f"--batch={BATCH}",
                             "--max-accumulate=1", train=["--lr=0.1"])


@pytest.fixture
def trainer(gpu, exe, tmp_path):
    return gpu.trainer(exe, tmp_path)


def train(trainer, *options, engines="", **more):
    return trainer.run(ON_GPU, LIBRARIES, "--steps=1", "--table=full", "--tune=tuned.txt", *options, env={**ENGINES, "FAKE_ENGINES": engines}, timeout=1200, **more)


def taken(trainer, *options, engines=""):
    """{the call's kind: what runs such calls}: the file's choices, or the first."""
    done = trainer.run(ON_GPU, LIBRARIES, "--info", "--json", *options, env={**ENGINES, "FAKE_ENGINES": engines})
    calls = json.loads(done.stdout)["library_calls"]
    return {kind: {c["implementation"] for c in calls if c["call"].startswith(kind)} for kind in FIRST}


def engines_of(folder):
    return read_manifest(folder / f"step-{checkpoints(folder)[-1]:08}")["engines"]


def is_word(implementations, word):
    return implementations and all(word in i for i in implementations)


def test_the_first_engine_is_not_the_fastest(trainer, tmp_path):
    """Slow engines come first. The file keeps the choice of another engine; the next run reads it, and times nothing."""
    slow = "20:slow 1:slow"
    assert all(is_word(taken(trainer)[kind], word) for kind, word in FIRST.items())
    said = train(trainer, engines=slow).stderr
    assert "engines of libraries: " in said and " timed in " in said
    found = taken(trainer, "--tune=tuned.txt")
    assert found["dot"] and not any("tile 20" in i for i in found["dot"])
    assert found["conv"] and not any("engine 1" in i for i in found["conv"])
    first, *lines = (tmp_path / "tuned.txt").read_text().splitlines()
    assert first == "gradc tune 1" and all(line.startswith("pretended GPU, cuBLASLt 13.1.0, cuDNN 9.28.1, f32, at most ") for line in lines)
    said = train(trainer, engines="21:slow 22:slow 2:slow 3:slow").stderr
    assert " timed in " not in said and f"engines of libraries: {len(lines)} known" in said
    assert (tmp_path / "tuned.txt").read_text().splitlines() == [first, *lines]


def test_faulty_engines(trainer, tmp_path):
    """Engines that the library offers first are never taken, by runs that time nothing either."""
    faulty = "20:nan 21:fails 1:behind 2:nan"
    train(trainer, engines=faulty)
    found = taken(trainer, "--tune=tuned.txt")
    assert is_word(found["dot"], "tile 22") and not any("engine 1" in i or "engine 2" in i for i in found["conv"])
    faults = {tuple(line.split("\t")[1:]) for line in (tmp_path / "tuned.txt").read_text().splitlines() if line.count("\t") == 2}
    assert {(engine.split()[0], says) for engine, says in faults} == {
        ("cuBLASLt", "gives numbers that are not finite"), ("cuBLASLt", "fails"),
        ("cuDNN", "writes beyond its workspace"), ("cuDNN", "gives numbers that are not finite")}
    loss = trainer.losses(ON_GPU, LIBRARIES, "--steps=1", "--tune=tuned.txt", env={**ENGINES, "FAKE_ENGINES": faulty}, timeout=1200)
    (want,) = trainer.losses(ON_GPU, LIBRARIES, "--steps=1", env=ENGINES, name="plain", timeout=1200)
    assert abs(loss[0] - want) <= limit("devices f32") * want


def test_a_convolution_as_a_product(trainer):
    """Of windows of one element, where no engine of cuDNN is sound: the losses are those of cuDNN."""
    faulty = " ".join(f"{i}:nan" for i in range(4))
    train(trainer, engines=faulty)
    assert {i.split()[0] for i in taken(trainer, "--tune=tuned.txt")["conv"]} == {"cuBLASLt", "generated"}
    runs = {"--tune=off": ENGINES, "--tune=tuned.txt": {**ENGINES, "FAKE_ENGINES": faulty}}
    (want, *_), (got, *_) = (trainer.losses(ON_GPU, LIBRARIES, "--steps=3", tune, env=env, name=tune[7:], timeout=1200)[-1:] for tune, env in runs.items())
    assert abs(got - want) <= limit("devices f32") * want


def test_an_engine_hangs(trainer, tmp_path):
    """The run says which, and ends; the next run with the file leaves the engine out."""
    hangs = {"engines": "21:hangs 2:slow", "exit": 10}
    os.environ["GRADC_DEVICE_TIMEOUT"] = "1"
    try:
        said = train(trainer, **hangs).stderr
    finally:
        del os.environ["GRADC_DEVICE_TIMEOUT"]
    assert "a trial of an engine did not end: cuBLASLt " in said and "the next run leaves the engine out" in said
    train(trainer, engines="21:fails 2:slow")
    assert "\thangs\n" in (tmp_path / "tuned.txt").read_text()


def test_a_checkpoint_counts_more_than_a_file(trainer, tmp_path):
    """Than a file in which other engines are chosen for the same calls: the resumed run has the engines of the run before it, and saves
    them again."""
    train(trainer, "--save=run", engines="20:slow 1:slow")
    (tmp_path / "tuned.txt").unlink()
    train(trainer, engines="21:slow 22:slow 2:slow 3:slow")
    engines = engines_of(tmp_path / "run")
    keys = {line.split("\t")[0]: line for line in (tmp_path / "tuned.txt").read_text().splitlines()[1:]}
    assert any(keys[line.split("\t")[0]] != line for line in engines)
    done = trainer.run(ON_GPU, LIBRARIES, "--steps=2", "--resume=run", "--save=again", "--tune=tuned.txt", "--table=full", env=ENGINES, timeout=1200)
    assert f"engines of libraries: {len(engines)} known" in done.stderr and " timed in " not in done.stderr
    assert engines_of(tmp_path / "again") == engines


def test_a_damaged_checkpoint(trainer, tmp_path):
    """The engines are those of the checkpoint that is resumed."""
    trainer.run(ON_GPU, LIBRARIES, "--tune=none.txt", "--steps=2", "--save=run", "--save-every=1", env=ENGINES, timeout=1200)
    newest = tmp_path / "run" / "step-00000002" / "manifest.json"
    newest.write_bytes(newest.read_bytes()[:400])
    done = trainer.run(ON_GPU, LIBRARIES, "--tune=off", "--steps=3", "--resume=auto", "--save=run", "--table=full", env=ENGINES, timeout=1200)
    assert "step-00000001" in done.stderr and " known\n" in done.stderr and " first choice" not in done.stderr


def test_deterministic_runs_time_nothing(trainer, tmp_path):
    said = train(trainer, "--deterministic")
    assert "--tune: tuned.txt does not exist: a run without --deterministic writes it" in said.stderr
    assert " timed in " not in said.stderr and " first choice" in said.stderr and not (tmp_path / "tuned.txt").exists()


def test_ranks_take_the_choice_of_rank_0(gpu, exe, tmp_path):
    """Engines that are slow for rank 0 give NaN for rank 1: it does not take them, though they come first."""
    trainer = gpu.trainer(exe, tmp_path)
    own = 'if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then FAKE_ENGINES="20:nan 1:nan"; fi; exec "$@"'
    trainer.launcher = [*openmpi(), "sh", "-c", own, "sh"]
    train(trainer, "--save=run", engines="20:slow 1:slow")
    lines = (tmp_path / "tuned.txt").read_text().splitlines()
    assert len(lines) == len(set(lines)) > 6
    assert sorted(engines_of(tmp_path / "run")) == sorted(lines[1:])


def test_a_lost_engine(trainer, tmp_path):
    """A choice that the library does not offer any more: a warning, and the checkpoint has what took its place."""
    train(trainer)
    first, *lines = (tmp_path / "tuned.txt").read_text().splitlines()
    lost = [line.split("\t")[0] + "\tcuBLASLt 00" if "dot {" in line else line for line in lines]
    (tmp_path / "tuned.txt").write_text("\n".join([first, *lost, ""]))
    said = train(trainer, "--save=run").stderr
    assert "is not offered by the library: the last bits of results may differ" in said
    assert sorted(line.split("\t")[0] for line in engines_of(tmp_path / "run")) == sorted(line.split("\t")[0] for line in lines)
    assert not any(line.endswith("cuBLASLt 00") for line in engines_of(tmp_path / "run"))


def test_all_engines_are_faulty(trainer, tmp_path):
    """Loops run, also in a resumed run that tries nothing: its checkpoint says which engines are faulty."""
    faulty = {**ENGINES, "FAKE_ENGINES": " ".join(f"{i}:nan" for i in (20, 21, 22, 0, 1, 2, 3))}
    done = trainer.run(ON_GPU, LIBRARIES, "--tune=none.txt", "--steps=1", "--save=run", "--table=full", env=faulty, timeout=1200)
    assert "left out as faulty" in done.stderr
    trainer.run(ON_GPU, LIBRARIES, "--steps=2", "--resume=run", "--deterministic", env=faulty, timeout=1200)


def test_only_for_a_gpu(trainer, tmp_path):
    said = trainer.run(ON_GPU, "--steps=1", "--tune=tuned.txt").stderr  # --libraries=off
    assert "--tune is only for libraries on a GPU" in said and not (tmp_path / "tuned.txt").exists()


@pytest.mark.parametrize("what, says", [("no/file", "no/file: No such file or directory"), ("a folder", "a folder: Is a directory"),
                                        ("a model", "a model exists and is not a file of --tune"), ("a pipe", "a pipe is not a regular file")])
def test_refuses(trainer, tmp_path, what, says):
    """Nothing is written to what is not its own."""
    (tmp_path / "a folder").mkdir()
    (tmp_path / "a model").write_bytes(b"gradc tune 2\n")
    os.mkfifo(tmp_path / "a pipe")
    said = trainer.run(ON_GPU, LIBRARIES, "--steps=1", f"--tune={tmp_path}/{what}", exit=5).stderr
    assert f"--tune: {tmp_path}/{says}" in said
    assert (tmp_path / "a model").read_bytes() == b"gradc tune 2\n"
