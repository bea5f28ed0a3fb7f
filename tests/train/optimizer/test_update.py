"""What @update decides by itself: after a loss or norm that is not finite, and where nothing was counted, every saved
state is what it was, to the bit; what was not applied is not counted."""
import re
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
import reference
from checkpoints import tensors
from onnx import helper, numpy_helper

ROOT = Path(__file__).resolve().parents[3]
ROWS, WIDTH = 4, 3

# Takes steps whatever they end with, then saves: program FOLDER STEPS
STEPPER = r"""
#include "runtime/gradc.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
GRADC_MODEL(model);

int
main(int argc, char **argv)
{
	GradcPair data[] = {{"x", "x.npy"}, {"labels", "labels.npy"}};
	GradcOptions o = gradc_default_options();
	Gradc *run;

	o.data.at = data;
	o.data.n = o.data.cap = 2;
	o.steps = atoi(argv[2]);
	o.shuffle = false;
	o.threads = 1;
	o.lr = 0.01;
	o.save = argv[1];
	Status status = gradc_open(&gradc_model_model, &o, NULL, &run);
	if (!status)
		status = gradc_bind_data(run);
	for (int i = 0; !status && i < atoi(argv[2]); i++) {
		GradcStep step;
		Status fault = gradc_step(run, &step);
		printf("step %d: exit code %d: %s\n", i + 1, fault ? fault->exit_code : 0, fault ? fault->message : "");
		status_free(fault);
	}
	if (!status)
		status = gradc_save(run, NAN);
	if (!status)
		status = gradc_save_poll(run, true);
	if (status)
		printf("%s\n", status->message);
	gradc_close(run);
	return status != NULL;
}
"""


def write_model(path):
    """The root of a product, which has no gradient at 0, then a batch norm over its columns."""
    random = np.random.default_rng(0)
    bn = {"bn.weight": 1 + random.random(WIDTH), "bn.bias": random.random(WIDTH),
          "bn.mean": random.random(WIDTH), "bn.var": 1 + random.random(WIDTH)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Abs", ["p"], ["a"]), helper.make_node("Sqrt", ["a"], ["h"]),
             helper.make_node("BatchNormalization", ["h", *bn], ["y", "m", "v"], "norm", training_mode=1, momentum=0.5)]
    ports = [helper.make_tensor_value_info(n, 1, ["batch", WIDTH]) for n in "xy"]
    weights = [numpy_helper.from_array(v.astype(np.float32), n)
               for n, v in {"w": random.standard_normal((WIDTH, WIDTH)), **bn}.items()]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def saved(folder):
    """The tensors of a folder's newest checkpoint, by name."""
    return tensors(sorted(Path(folder).glob("step-*"))[-1])


def call(*command, cwd):
    done = subprocess.run([str(c) for c in command], text=True, capture_output=True, cwd=cwd, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build_stepper(gradc, build, folder, second, *options):
    """In a folder with model.onnx: the program `stepper`, which feeds `x` and a second input."""
    (folder / "stepper.c").write_text(STEPPER.replace("labels", second))
    call(gradc, "compile", "model.onnx", "--emit=library", "-o", "libmodel.so", f"--batch={ROWS}", *options, cwd=folder)
    call("cc", "-std=c11", "-I", ROOT, "stepper.c", "libmodel.so", build / "lib/libgradc_rt.a", "-lm", "-lpthread",
         f"-Wl,-rpath,{folder}", "-o", "stepper", cwd=folder)


@pytest.fixture(scope="module")
def stepper(gradc, build, tmp_path_factory):
    """stepper(folder, {input: factor}, STEPS): trains on six batches, of the third of which inputs are so many times what
    they would be; what it said, and the saved tensors."""
    folder = tmp_path_factory.mktemp("stepper")
    write_model(folder / "model.onnx")
    build_stepper(gradc, build, folder, "labels", "--loss=mse", "--optimizer=adamw")

    def run(where, factors, steps):
        random = np.random.default_rng(1)
        for name in ("x", "labels"):
            values = random.standard_normal((6, ROWS, WIDTH)).astype(np.float32)
            values[2] *= np.float32(factors.get(name, 1))
            np.save(where / f"{name}.npy", values.reshape(-1, WIDTH))
        said = call(folder / "stepper", f"save{steps}", steps, cwd=where).splitlines()
        return said, saved(where / f"save{steps}")

    return run


@pytest.mark.parametrize("factors, what", [({"labels": 1e30}, "the loss is inf"), ({"x": 0}, "the norm of the gradients is nan")])
def test_after_a_failure_no_state_changes(stepper, tmp_path, factors, what):
    """The third of five steps fails; the two behind it are finite, change nothing either, and say so."""
    _, before = stepper(tmp_path, factors, 2)
    said, after = stepper(tmp_path, factors, 5)
    assert [line.split(": ")[1] for line in said] == [f"exit code {c}" for c in (0, 0, 8, 8, 8)], said
    assert "step 5 changed nothing: the loss or norm of step 3 was not finite" in said[4]
    assert f"step 3: {what}" in said[2] and "the parameters are those before the step" in said[2]
    assert before["updates"] == 2
    assert sorted(before) == sorted(after)
    assert any("exp_avg" in name for name in before) and "bn.mean" in before
    for name, value in before.items():
        assert np.array_equal(value, after[name]), name
    _, more = stepper(tmp_path, {}, 3)
    assert more["updates"] == 3
    assert not any(np.array_equal(v, more[n]) for n, v in before.items() if n not in ("failed", "loss_scale"))


def test_a_step_that_counts_nothing_changes_nothing(run, tmp_path):
    """Its labels are all ignored. It is a step, but no update: Adam's corrections are those of the updates."""
    weights = [numpy_helper.from_array(np.eye(WIDTH, dtype=np.float32), "w")]
    ports = [helper.make_tensor_value_info(n, 1, ["batch", WIDTH]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", ports[:1], ports[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx")
    x = np.random.default_rng(0).standard_normal((3, ROWS, WIDTH)).astype(np.float32)
    labels = np.arange(3 * ROWS).reshape(3, ROWS) % WIDTH
    run("compile", "m.onnx", "-o", "train", f"--batch={ROWS}", "--loss=cross_entropy", "--optimizer=adamw")

    def trained(name, parts, ignored):
        np.save(tmp_path / "x.npy", x[parts].reshape(-1, WIDTH))
        own = labels[parts].copy()
        own[ignored] = -100
        np.save(tmp_path / "labels.npy", own.reshape(-1))
        run(tmp_path / "train", "--data=x=x.npy", "--data=labels=labels.npy", "--shuffle=off", f"--save={name}",
            "--progress=off", f"--log={name}.jsonl")
        return saved(tmp_path / name), [l for l in reference.log_lines(tmp_path / f"{name}.jsonl") if "lr" in l]

    with_gap, log = trained("gap", [0, 1, 2], [1])
    without, _ = trained("no-gap", [0, 2], [])
    assert [line["count"] for line in log] == [ROWS, 0, ROWS] and log[1]["grad_norm"] is None
    assert with_gap["updates"] == 2
    for name, value in without.items():
        assert np.array_equal(value, with_gap[name]), name


def test_pending_statistics_are_those_of_all_micro_batches(run, tmp_path):
    """running = running / 2 + batch / 2 in each micro-batch in turn, and evaluation reads what the step has committed."""
    write_model(tmp_path / "model.onnx")
    x, labels = np.random.default_rng(2).standard_normal((2, 3 * ROWS, WIDTH)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "labels.npy", labels)
    run("compile", "model.onnx", "-o", "train", f"--batch={ROWS}", "--loss=mse", "--optimizer=sgd")
    run(tmp_path / "train", "--data=x=x.npy", "--data=labels=labels.npy", "--shuffle=off", "--accumulate=3", "--steps=1",
        "--lr=0", "--save=ck", "--progress=off")
    weights = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "model.onnx").graph.initializer}
    mean, var = weights["bn.mean"], weights["bn.var"]
    for part in np.sqrt(abs(x @ weights["w"])).reshape(3, ROWS, WIDTH):
        mean, var = mean / 2 + part.mean(0) / 2, var / 2 + part.var(0) / 2
    after = saved(tmp_path / "ck")
    assert np.allclose(after["bn.mean"], mean, rtol=1e-5) and np.allclose(after["bn.var"], var, rtol=1e-5)


def test_statistics_of_ranks_are_committed_as_their_mean(run, tmp_path):
    """@accumulate leaves the committed statistics alone; @update divides what ranks have added up by their number."""
    write_model(tmp_path / "model.onnx")
    text = run("dump", "model.onnx", f"--batch={ROWS}", "--loss=mse", "--stage=train").stdout
    accumulate, update = (text.split(f"func @{name}(")[1].split("\n  }")[0] for name in ("accumulate", "update"))
    assert "{state = @pending.bn.mean} phase forward when first" in accumulate
    assert "{state = @pending.bn.mean} phase forward when later" in accumulate
    assert "{state = @bn.mean}" not in accumulate
    unit = re.search(r"state @bn.mean : .* in (@\S+)\+0 ", text)[1]
    assert f"{{state = {unit}}}" in update
    assert "%ranks: f64[] is hyperparameter ranks" in update


@pytest.mark.parametrize("log_of, said", [(-1, "nan"), (np.exp(-5), "-2")])
def test_a_count_that_is_no_number_of_targets_is_a_failure(gradc, build, tmp_path, log_of, said):
    """A model that computes its own loss says of how many targets; nothing can be divided by these. The device decides so,
    too: the step behind changes nothing."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Mul", ["y", "y"], ["s"]),
             helper.make_node("ReduceMean", ["s"], ["loss"], keepdims=0), helper.make_node("Log", ["c"], ["l"]),
             helper.make_node("ReduceSum", ["l"], ["n"], keepdims=0)]
    ports = [helper.make_tensor_value_info("x", 1, ["batch", WIDTH]), helper.make_tensor_value_info("c", 1, ["batch"]),
             helper.make_tensor_value_info("loss", 1, []), helper.make_tensor_value_info("n", 1, [])]
    weights = [numpy_helper.from_array(np.eye(WIDTH, dtype=np.float32), "w")]
    graph = helper.make_graph(nodes, "g", ports[:2], ports[2:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "model.onnx")
    build_stepper(gradc, build, tmp_path, "c", "--loss=output:loss,count=n", "--optimizer=sgd")
    np.save(tmp_path / "x.npy", np.ones((3 * ROWS, WIDTH), np.float32))
    counts = np.full(3 * ROWS, np.e, np.float32)
    counts[ROWS] = log_of
    np.save(tmp_path / "c.npy", counts)
    call(tmp_path / "stepper", "one", 1, cwd=tmp_path)
    lines = call(tmp_path / "stepper", "three", 3, cwd=tmp_path).splitlines()
    assert f"exit code 8: step 2: the count of the loss is {said}; the parameters are those before the step" in lines[1]
    assert "exit code 8: step 3 changed nothing" in lines[2]
    one, three = saved(tmp_path / "one"), saved(tmp_path / "three")
    assert not np.array_equal(one["w"], np.eye(WIDTH, dtype=np.float32))
    assert all(np.array_equal(one[name], three[name]) for name in one)
