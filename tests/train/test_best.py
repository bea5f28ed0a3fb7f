"""--keep-best, --metric, --early-stop, --export-weights, and evaluations with averaged weights."""
import json
import re
import shutil
import subprocess

import numpy as np
import pytest

MPIRUN = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2"]
# A learning rate with which the loss rises again.
TRAIN = ["--split=0.2", "--lr=0.3", "--epochs=2", "--eval-every=5", "--progress=off", "--table=off"]


@pytest.fixture(scope="module")
def compiled(gradc, models, tmp_path_factory):
    """compiled(OPTION...): an executable of mlp_digits."""
    made = {}

    def compile_it(*options, model=models / "mlp_digits/model.onnx"):
        key = (*options, model)
        if key not in made:
            made[key] = tmp_path_factory.mktemp("best") / "train"
            subprocess.run([gradc, "compile", model, "-o", made[key], "--batch=32", *options], check=True, capture_output=True)
        return made[key]

    return compile_it


@pytest.fixture
def data(models):
    return [f"--data={name}={models}/mlp_digits/{name}.npy" for name in ("input", "labels")]


def evaluations(path):
    lines = map(json.loads, path.read_text().splitlines())
    return [line for line in lines if "eval_loss" in line and line["step"] > 0]


def checkpoints(folder):
    return sorted(int(p.name[5:]) for p in folder.glob("step-*"))


@pytest.mark.parametrize("metric, sign", [("loss", 1), ("accuracy", -1)])
def test_the_best_step(run, compiled, data, tmp_path, metric, sign):
    """Of all evaluations; its checkpoint stays, its weights are exported, all other steps' leave with --keep."""
    exe, options = compiled(), [*data, *TRAIN, f"--metric={metric}", "--keep-best", "--keep=1", f"--save={tmp_path}/saved"]
    said = run(exe, *options, f"--export={tmp_path}/best.onnx", f"--log={tmp_path}/log", f"--report={tmp_path}/page.html")
    of = evaluations(tmp_path / "log")
    best = min(of, key=lambda line: sign * line[f"eval_{metric}"])
    last = of[-1]
    assert last["best"] == {"step": best["step"], "metric": metric, "value": best[f"eval_{metric}"]}
    assert f"best step {best['step']} ({metric} " in said.stdout
    assert re.search(rf'"best":\{{"step":{best["step"]},"metric":"{metric}"', (tmp_path / "page.html").read_text())
    assert checkpoints(tmp_path / "saved") == sorted({best["step"], last["step"]})
    # Without --keep, too, the earlier best ones leave.
    run(exe, *[o for o in options if o not in ("--keep=1", f"--save={tmp_path}/saved")], f"--save={tmp_path}/all")
    assert checkpoints(tmp_path / "all") == sorted({best["step"], last["step"]})
    assert best["step"] < last["step"] and f"exporting the best step, {best['step']} " in said.stderr
    run(exe, *data, *TRAIN[:2], f"--steps={best['step']}", "--progress=off", f"--export={tmp_path}/then.onnx")
    assert (tmp_path / "best.onnx").read_bytes() == (tmp_path / "then.onnx").read_bytes()
    # Afterwards, from the checkpoints alone.
    run(exe, f"--resume={tmp_path}/saved", "--steps=0", f"--export={tmp_path}/again.onnx", "--export-weights=best")
    assert (tmp_path / "best.onnx").read_bytes() == (tmp_path / "again.onnx").read_bytes()
    run(exe, *options, f"--export={tmp_path}/last.onnx", "--export-weights=last", "--resume=auto")
    assert (tmp_path / "best.onnx").read_bytes() != (tmp_path / "last.onnx").read_bytes()


def stop_of(losses, patience, min_delta):
    """The index of the evaluation after which Keras' EarlyStopping ends the training."""
    mark, since = float("inf"), 0
    for i, loss in enumerate(losses):
        since += 1
        if loss < mark - min_delta:
            mark, since = loss, 0
        if since >= patience:
            return i
    return len(losses) - 1


@pytest.mark.parametrize("patience, min_delta", [(1, 0), (2, 0), (3, 0.1), (100, 0)])
def test_early_stop(run, compiled, data, tmp_path, patience, min_delta):
    exe, options = compiled(), [*data, *TRAIN]
    run(exe, *options, f"--log={tmp_path}/all")
    of = evaluations(tmp_path / "all")
    at = stop_of([line["eval_loss"] for line in of if line["step"] % 5 == 0], patience, min_delta)
    stop = f"--early-stop={patience}" + (f",min-delta={min_delta}" if min_delta else "")
    said = json.loads(run(exe, *options, stop, "--json", f"--log={tmp_path}/log").stdout)
    assert said["stopped_early"] == (patience < 100)
    if patience < 100:
        assert said["steps"] == 5 * (at + 1)
    # In two parts, up to the evaluation before the last one, with another evaluation that does not count: the count goes on.
    options.remove("--epochs=2")
    options += [stop, f"--save={tmp_path}/saved", "--keep-best", "--save-every=3"]
    run(exe, *options, f"--steps={5 * at or 3}")
    for i in range(2):  # the second time there is nothing left to do
        again = json.loads(run(exe, *options, f"--steps={of[-1]['step']}", "--resume=auto", "--json").stdout)
        assert again["steps"] == said["steps"] and again["eval_loss"] == said["eval_loss"]


@pytest.mark.parametrize("options", [["--precision=f64"], ["--precision=bf16"]])
def test_averaged_weights_are_evaluated(run, compiled, data, tmp_path, options):
    """The evaluation with averages is that of the exported averages; training goes on as if there were none."""
    exe, train = compiled("--ema=0.8", *options), [*data, *TRAIN[:2], "--steps=10", "--eval-every=5", "--progress=off"]
    run(exe, *train, f"--log={tmp_path}/log", f"--export={tmp_path}/ema.onnx", "--export-weights=ema", f"--tensorboard={tmp_path}/events")
    of = evaluations(tmp_path / "log")[-1]
    exported = compiled(*options, model=tmp_path / "ema.onnx")
    said = run(exported, *data, "--split=0.2", "--lr=0", "--steps=1", "--json", "--progress=off", "--keep-last")
    assert json.loads(said.stdout)["eval_loss"] == pytest.approx(of["ema"]["eval_loss"], rel=1e-6)
    assert of["ema"]["eval_loss"] != of["eval_loss"]
    run(compiled(*options), *train, f"--log={tmp_path}/plain")
    assert [line["loss"] for line in map(json.loads, (tmp_path / "plain").read_text().splitlines()) if "loss" in line] == \
        [line["loss"] for line in map(json.loads, (tmp_path / "log").read_text().splitlines()) if "loss" in line]


@pytest.mark.parametrize("mode", ["ddp", "zero1", "zero3"])
def test_on_two_ranks(run, compiled, data, tmp_path, mode):
    """As one rank with two micro-batches: the same best step, averages and export."""
    exe = compiled("--ema=0.8", "--data-parallel=ddp,zero1,zero3")
    options = [*data, *TRAIN, "--keep-best", "--early-stop=3"]
    run(exe, *options, "--accumulate=2", f"--save={tmp_path}/one", f"--log={tmp_path}/log1", f"--export={tmp_path}/one.onnx")
    subprocess.run([*MPIRUN, exe, *options, f"--data-parallel={mode}", f"--save={tmp_path}/two", f"--log={tmp_path}/log2",
                    f"--export={tmp_path}/two.onnx"], check=True, capture_output=True)
    one, two = evaluations(tmp_path / "log1"), evaluations(tmp_path / "log2")
    keys = ("step", "eval_loss", "ema", "best")
    assert [[line[k] for k in keys] for line in one] == [[line[k] for k in keys] for line in two]
    assert one[-1]["best"]["step"] < one[-1]["step"]
    assert (tmp_path / "one.onnx").read_bytes() == (tmp_path / "two.onnx").read_bytes()


def test_a_resumed_run_that_kept_no_best(run, compiled, data, tmp_path):
    """The best of its own steps is kept, not a step whose checkpoint is gone."""
    exe, options = compiled(), [*data, "--split=0.2", "--lr=0.3", "--eval-every=5", "--progress=off", f"--save={tmp_path}/saved"]
    run(exe, *options, "--steps=60")
    said = run(exe, *options, "--steps=80", "--resume=auto", "--keep-best", "--json", f"--export={tmp_path}/best.onnx")
    best = json.loads(said.stdout)["best"]["step"]
    assert best > 60 and best in checkpoints(tmp_path / "saved")


@pytest.mark.parametrize("options, code, says", [
    (["--early-stop=0", "--split=0.2", "--eval-every=5"], 2, "--early-stop=0: need a number of evaluations"),
    (["--early-stop=2,min-delta=-1", "--split=0.2", "--eval-every=5"], 2, "need a number of evaluations"),
    (["--early-stop=2,patience=1", "--split=0.2", "--eval-every=5"], 2, "need a number of evaluations"),
    (["--early-stop=2", "--split=0.2"], 2, "--early-stop needs --eval-every"),
    (["--early-stop=2", "--eval-every=5"], 2, "there are no evaluation data"),
    (["--metric=perplexity", "--split=0.2"], 2, "--metric=perplexity: has no meaning for this model: the labels are not tokens of a sequence; it has loss, accuracy"),
    (["--metric=acuracy", "--split=0.2"], 2, "--metric=acuracy"),
    (["--export=o.onnx", "--export-weights=best", "--split=0.2"], 2, "--export-weights=best needs --keep-best"),
    (["--export=o.onnx", "--export-weights=trained"], 2, "best"),
    (["--metric=accuracy"], 2, "--metric: there are no evaluation data"),
    (["--keep-best", "--save=s"], 2, "--keep-best: there are no evaluation data"),
    (["--keep-best", "--split=0.2"], 2, "--keep-best needs --save"),
])
def test_refused(run, compiled, data, options, code, says):
    assert says in run(compiled(), *data, *options, "--steps=5", exit=code).stderr


def test_the_best_of_no_evaluation(run, compiled, data, tmp_path):
    exe = compiled()
    run(exe, *data, "--steps=3", f"--save={tmp_path}/saved", "--progress=off")
    done = run(exe, f"--resume={tmp_path}/saved", "--steps=0", f"--export={tmp_path}/o.onnx", "--export-weights=best", exit=2)
    assert "no evaluation after a step had a loss" in done.stderr and not (tmp_path / "o.onnx").exists()


def test_with_steps_queued(run, compiled, data, tmp_path):
    """On a device that computes a step while the next one is queued: the same best step, log and export."""
    exe = compiled()
    for device in "cpu", "async":
        run(exe, *data, *TRAIN, "--keep-best", "--early-stop=3", f"--device={device}", f"--save={tmp_path}/{device}", f"--log={tmp_path}/{device}.jsonl",
            f"--export={tmp_path}/{device}.onnx")
    cpu, queued = (evaluations(tmp_path / f"{device}.jsonl") for device in ("cpu", "async"))
    assert [(e["step"], e["eval_loss"], e["best"]) for e in cpu] == [(e["step"], e["eval_loss"], e["best"]) for e in queued]
    assert checkpoints(tmp_path / "cpu") == checkpoints(tmp_path / "async")
    assert (tmp_path / "cpu.onnx").read_bytes() == (tmp_path / "async.onnx").read_bytes()


def test_the_newest_checkpoint_stays(run, compiled, data, tmp_path):
    """The last step is the best one; a run without --keep-best that resumes from it removes nothing before it has saved."""
    exe, options = compiled(), [*data, "--split=0.2", "--lr=0.001", "--progress=off", f"--save={tmp_path}/saved", "--eval-every=5"]
    run(exe, *options, "--steps=10", "--keep-best")
    assert checkpoints(tmp_path / "saved") == [10]
    said = run(exe, *options, "--steps=10", "--resume=auto")
    assert checkpoints(tmp_path / "saved") == [10] and "step 10\n" in said.stderr
    run(exe, *options, "--steps=20", "--resume=auto", "--keep-best")
    assert checkpoints(tmp_path / "saved") == [20]


def test_a_best_step_that_no_longer_counts(run, compiled, data, models, tmp_path):
    """By another metric, of other rows, or without its checkpoint: the resumed run says so."""
    exe, options = compiled(), [*data, "--progress=off", "--eval-every=5", "--keep-best"]
    rows = [f"--eval-data={name}={tmp_path}/{name}.npy" for name in ("input", "labels")]

    def write_rows(n):
        for name in "input", "labels":
            np.save(tmp_path / f"{name}.npy", np.load(models / f"mlp_digits/{name}.npy")[:n])

    write_rows(100)
    run(exe, *options, *rows, "--steps=10", f"--save={tmp_path}/saved")
    for more, n, why in (["--metric=accuracy"], 100, "it was the best by loss"), ([], 99, "other rows are evaluated now"):
        shutil.copytree(tmp_path / "saved", tmp_path / "copy")
        write_rows(n)
        said = run(exe, *options, *rows, *more, "--steps=15", f"--save={tmp_path}/copy", "--resume=auto").stderr
        assert f"is forgotten: {why}" in said
        shutil.rmtree(tmp_path / "copy")
    # Another folder: the best step's checkpoint is found beside the resumed one.
    write_rows(100)
    said = run(exe, *options, *rows, "--lr=10", "--steps=15", f"--save={tmp_path}/other", f"--resume={tmp_path}/saved", f"--export={tmp_path}/o.onnx").stderr
    assert "forgotten" not in said and "has no checkpoint" not in said and "exporting the best step, 10 " in said
    # Its checkpoint is damaged: the fault is told, and the last step is exported.
    next((tmp_path / "saved").glob("step-*10/shard*")).write_bytes(b"x")
    said = run(exe, *options, *rows, "--lr=10", "--steps=15", f"--save={tmp_path}/other", "--resume=auto", exit=None)
    assert "has no checkpoint" in said.stderr
    shutil.rmtree(tmp_path / "other")


def test_a_damaged_best_checkpoint(run, compiled, data, tmp_path):
    """The fault decides the exit code; the last step is exported all the same, unless the best was asked for."""
    exe, options = compiled(), [*data, *TRAIN, "--keep-best", f"--save={tmp_path}/saved"]
    said = run(exe, *options, f"--export={tmp_path}/best.onnx", "--json")
    best = json.loads(said.stdout)["best"]["step"]
    next((tmp_path / "saved").glob(f"step-*{best}/shard*")).write_bytes(b"x")
    said = run(exe, *options, f"--export={tmp_path}/last.onnx", "--resume=auto", exit=7).stderr
    assert "exporting the last step" in said and (tmp_path / "last.onnx").exists()
    run(exe, *options, f"--export={tmp_path}/none.onnx", "--export-weights=best", "--resume=auto", exit=7)
    assert not (tmp_path / "none.onnx").exists()


def test_the_best_stays_without_keep_best(run, compiled, data, tmp_path):
    """A resumed run that does not ask for the best step leaves its checkpoint alone."""
    exe, options = compiled(), [*data, *TRAIN[:2], f"--save={tmp_path}/saved", "--progress=off"]
    said = run(exe, *options, "--eval-every=5", "--steps=74", "--keep-best", "--json")
    best = json.loads(said.stdout)["best"]["step"]
    run(exe, *options, "--steps=80", "--resume=auto")
    assert checkpoints(tmp_path / "saved") == sorted({best, 74, 80})
