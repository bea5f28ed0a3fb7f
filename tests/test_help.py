"""What the programs say of themselves: help, version, how much they print, and what a misspelt word was meant to be."""
import json
import re
import subprocess

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper


@pytest.fixture(scope="module")
def exe(gradc, models, tmp_path_factory):
    path = tmp_path_factory.mktemp("help") / "train"
    subprocess.run([gradc, "compile", models / "mlp_digits/model.onnx", "-o", path, "--batch=32", "--optimizer=sgd"], check=True, capture_output=True)
    return path


@pytest.fixture
def model(models):
    return models / "mlp_digits/model.onnx"


@pytest.fixture
def train(run, exe, models):
    data = [f"--data={name}={models}/mlp_digits/{name}.npy" for name in ("input", "labels")]
    return lambda *words, **more: run(exe, *data, "--steps=2", *words, **more)


def commands(run):
    return [row["name"] for row in json.loads(run("help", "--json").stdout)["commands"]]


def test_help_has_one_option_a_line_of_80_columns(run, exe):
    texts = [run(command, "--help").stdout for command in commands(run)] + [run("help", "--all").stdout, run("help").stdout, run(exe, "-h").stdout]
    for text in texts:
        assert [line for line in text.splitlines() if len(line) > 80] == []
        assert not re.search(r"^ .*\S +--[a-z-]+=?\S*  .*  --", text, re.M)
    named = re.findall(r"^  (?:-., |    )--([a-z0-9-]+)", run(exe, "--help").stdout, re.M)
    assert named == [row["name"] for row in json.loads(run(exe, "--help", "--json").stdout)["options"]]
    joined = re.sub(r"\s+", "", run(exe, "--help").stdout)
    assert "WHATisconstant|linear|cosine|wsd|polynomial|step|one-cycle|plateau|deepspeed-warmup" in joined


# Options without a default: nothing happens unless they are given, or several values are on.
NOT_GIVEN = {"repair", "no-repair", "table", "machine", "stage", "loss"}


def test_choices_have_a_default(run, exe):
    for text in run("help", "--all", "--json").stdout, run(exe, "--help", "--json").stdout:
        rows = json.loads(text)["options"]
        without = [row["name"] for row in rows if re.fullmatch(r"[a-z0-9_:-]+(\|[a-z0-9_:-]+)+", row.get("value", "")) and "(" not in row["help"]]
        assert set(without) - NOT_GIVEN - {"completion"} == set()


def test_every_command_has_help(run):
    for command in commands(run):
        said = run(command, "-h").stdout
        assert said == run("help", command).stdout == run(command, "--help").stdout and "--config=FILE" in said
        assert {"-h, --help", "-q, --quiet", "-v, --verbose"} <= set(re.findall(r"^  (-., --\w+)", said, re.M))
        assert json.loads(run("help", command, "--json").stdout)["options"]
    assert run("-h").stdout == run("--help").stdout == run("help").stdout


def test_version_everywhere(run, exe):
    version = run("--version").stdout
    assert re.fullmatch(r"gradc \d+\.\d+\.\d+\n", version)
    for command in commands(run):
        assert run(command, "--version").stdout == version
    assert run(exe, "--version").stdout == version


def test_quiet_and_verbose_commands(run, model, tmp_path):
    compiled = ["compile", model, "--batch=32", "-o", "a", "--decay=0.*", "--freeze=0.*"]
    normal, quiet, verbose = run(*compiled), run(*compiled, "-q"), run(*compiled, "-v")
    assert "warning: --decay=0.*" in normal.stderr and "wrote a" in normal.stdout
    assert quiet.stdout == quiet.stderr == "" and (tmp_path / "a").exists()
    assert re.search(r"^autograd +[\d.]+", verbose.stderr, re.M) and "wrote a" in verbose.stdout
    assert "0.weight" in run("check", model, "-q").stdout  # the table is what was asked for
    assert json.loads(run(*compiled, "-q", "--json").stdout)["output"] == "a"
    said = run("check", model, "-q", "--loss=crossentropy", exit=2).stderr
    assert "unknown loss" in said and "hint: did you mean `cross_entropy`?" in said
    for command in "ops", "passes":
        assert run(command, "-q").stdout == run(command, "-v").stdout == run(command).stdout
    assert "--quiet and --verbose: one of them" in run("check", model, "-qv", exit=2).stderr


@pytest.mark.parametrize("engine", ["compiled", "interp"])
def test_a_quiet_run(run, tmp_path, engine):
    """Warnings of the program that `gradc run` compiles are left out, too."""
    ones = [numpy_helper.from_array(np.ones(3, np.float32), name) for name in ("scale", "bias", "mean", "var")]
    node = helper.make_node("BatchNormalization", ["x", "scale", "bias", "mean", "var"], ["y", "m", "v"], training_mode=1)
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", 1, [4, 3])], [helper.make_tensor_value_info("y", 1, [4, 3])], ones)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.ones((4, 3), np.float32))
    words = ["run", "m.onnx", "--input=x=x.npy", "--output-dir=out", f"--engine={engine}"]
    assert "in training form" in run(*words).stderr
    assert run(*words, "-q").stderr == "" and (tmp_path / "out/y.npy").exists()


def test_quiet_and_verbose_executables(run, train, exe):
    quiet, verbose = train("-q", "--min-lr=0.1"), train("-v")
    assert quiet.stderr == "" and quiet.stdout.startswith("steps 2, loss ")
    assert "0.weight" in train("-q", "--table=full").stderr
    assert "step" in train("-q", "--progress=plain").stderr
    assert "products that a library may compute: " in verbose.stderr and "step 2/2" in verbose.stderr
    assert "--quiet and --verbose: one of them" in train("-q", "-v", exit=2).stderr
    assert "has no meaning" not in run(exe, "-q", "--info").stderr


@pytest.mark.parametrize("words, meant", [
    (["comple"], "`compile`"),
    (["compile", "MODEL", "--optimzer=sgd"], "`--optimizer`"),
    (["compile", "MODEL", "--optimizer=Adam"], "`adam`"),
    (["compile", "MODEL", "--optimizer-for=*=sdg"], "`sgd`"),
    (["check", "MODEL", "--loss=CrossEntropy"], "`cross_entropy`"),
    (["compile", "MODEL", "--optimizer=rmsprop,centred=true"], "`centered`"),
    (["compile", "MODEL", "--disable=fsue"], "`fuse`"),
    (["compile", "MODEL", "--dump-after=simplfy"], "`simplify`"),
    (["compile", "MODEL", "--pass-option=lower.taget=x"], "`target`"),
    (["opt", "MODEL", "--passes=simplfy"], "`simplify`"),
    (["compile", "MODEL", "--precision=bf61"], "`bf16`"),
    (["compile", "MODEL", "--target=cuda:sm_91a"], "`cuda:sm_90a`"),
    (["compile", "MODEL", "--data-parallel=ddp,zreo1"], "`zero1`"),
    (["compile", "MODEL", "--train-mode=restor"], "`restore`"),
    (["compile", "MODEL", "--no-repair=batchnrm"], "`batchnorm`"),
    (["dump", "MODEL", "--stage=shcedule"], "`schedule`"),
    (["EXE", "--lr-shedule=cosine"], "`--lr-schedule`"),
    (["EXE", "--lr-schedule=cosin,x=1"], "`cosine`"),
    (["EXE", "--progress=plan"], "`plain`"),
])
def test_misspelt_words(run, model, exe, words, meant):
    known = {"MODEL": model, "EXE": exe}
    more = ["-o", "out", "--batch=4"] if words[0] == "compile" else []
    said = run(*(known.get(word, word) for word in words), *more, exit=2).stderr
    assert f"hint: did you mean {meant}?" in said


def test_misspelt_words_of_config_files(run, model, tmp_path):
    (tmp_path / "run.ini").write_text("optimzer = sgd\n")
    said = run("compile", model, "--config=run.ini", exit=2).stderr
    assert "run.ini: optimzer: no such option" in said and "did you mean `optimizer`?" in said


def test_words_that_are_like_no_other_get_no_guess(run, model):
    for words in (["xyzzy"], ["compile", model, "--xyzzy"], ["compile", model, "--optimizer=xyzzy"], ["compile", model, "--disable=xyzzy"]):
        said = run(*words, exit=2).stderr
        assert "did you mean" not in said and "hint: " in said
    assert "match" not in run("compile", model, "--matchh=*", exit=2).stderr.split("hint")[1]  # an option of check
