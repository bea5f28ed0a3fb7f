"""The command line, option by option: values that work, a bad one (exit 2 and a message that names it),
and what this build lacks (exit 2, and it says so)."""
import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

LACKS = "not supported in this build"
OF_EXECUTABLE = "this is an option of the training executable"

# Of gradc: what is accepted (commands' words), then (what is refused, what the message must have).
GRADC = {
    "--target": (["=auto", "=cpu", " cpu", "=cuda", "=cpu,cuda:sm_90a,sm_80"],
                 [("=hip", LACKS), ("=cuda:sm_91", LACKS), ("=", "names no CPU and no GPU"), ("=,", "names no CPU and no GPU")]),
    "--dim": (["=batch=4", " batch=4"], [("=batch", "batch"), ("=batch=x", "batch=x"), ("=batch=1,,2", "batch=1,,2"), ("=batch=4,", "batch=4,")]),
    "--batch-axis": (["=input=0", " input=none"], [("=input", "need NAME=VALUE"), ("=input=x", "need INPUT=AXIS"), ("=input=-1", "need INPUT=AXIS"),
                                                   ("=foo=0", "no such input"), ("=input=7", "the input has rank 2")]),
    "--bound": (["=y=4", " y=0"], [("=y", "need NAME=VALUE"), ("=y=x", "y=x"), ("=y=-1", "y=-1")]),
    "--batch": (["=4", " 4"], [("=0", "--batch=0"), ("=x", "--batch=x")]),
    "--loss": (["=cross_entropy", " mse", "=l1", "=huber", "=nll", "=cross_entropy,axis=1",
                "=bce_with_logits"],
               [("=foo", "foo"), ("=", "need cross_entropy|"), ("=", "|mse|"), ("=", "|output:NAME|onnx:FILE|model"), ("=mse:foo", '"foo"'), ("=output:foo", '"foo"'), ("=model", "0 TrainingInfoProto"),
                ("=onnx:", "onnx:"), ("=cross_entropy,axis=x", "axis=x"),
                  ("=cross_entropy,target=t", "no input \"t\""),
                  ("=cross_entropy:x", "no output \"x\""),
                  ("=cross_entropy,axis=1,axis=1", "axis is given twice"), ("=cross_entropy,axis=1,rows=0,axis=1", "axis is given twice"),
                  ("=cross_entropy,no_such=1", "loss cross_entropy has no option no_such")]),
    "--optimizer": (["=adamw", " sgd", "=momentum", "=nesterov", "=adam", "=rmsprop,centered=true,eps=1e-6", "=onnx-adam", " lion,beta1=0.5"],
                    [("=no_such_optimizer", LACKS), ("=Adam", LACKS), ("=adamw,rho=1", "rho=1"), ("=adamw,lr=1,lr=2", "lr is given twice"), ("=rmsprop,centered,centered=true", "centered is given twice"), ("=,", LACKS)]),
    "--loss-scale": (["=none", "=torch", "=megatron", "=deepspeed,interval=10", "=deepspeed,consecutive=true", " 1024"],
                     [("=apex", "apex"), ("=0", "=0"), ("=1e39", "that f32 holds"), ("=torch,init=5,init=6", "init is given twice"), ("=torch,init=0", "init=0"), ("=torch,x=1", "x")]),
    "--optimizer-for": (["=*=sgd", " *=muon,lr=0.02"], [("=sgd", "need GLOB=NAME"), ("=*=x", "not supported"), ("=*=sgd,lr=1,lr=2", "lr is given twice"), ("=q*=sgd", "no trained parameter")]),
    "--master": (["=on", " on"], [("=none", "none"), ("=", "--master")]),
    "--gradients": (["=f32", " f32"], [("=f16", "f16"), ("=bf16", "--max-accumulate=1")]),
    "--rounding": (["=nearest", " nearest"], [("=up", "up"), ("=stochastic", "no weights or moments of 16 bits")]),
    "--moments": (["=f32", " bf16"], [("=f16", "f16"), ("=", "--moments")]),
    "--mixed": ([], [("=a", "need GLOB=f32"), ("=a=bf16", "need GLOB=f32"), ("=*=f32", "--mixed needs")]),
    "--precision": (["=f32", " f64", "=tf32", "=bf16", " f16"],
                    [(f"={name}", LACKS) for name in (
                        "fp8", "fp8-current", "mxfp8", "int8",
                        "int8-weights", "quartet", "nvfp4", "int4-group")]),
    "--scale-learning": (["=none", " none"], [("=pact", "must be none, lsq or torch"), ("=lsq", "no scale of codes"), ("=lsq,scale-grad=x", "need none, inv_n or lsq"), ("=lsq,zero-points=2", "need on or off in zero-points="), ("=lsq,", "need scale-grad= or zero-points="), ("=lsq,scale-grad", "need none, inv_n or lsq"), ("=lsq,scale-grad=none,scale-grad=lsq", "scale-grad is given twice")]),
    "--train": (["=*"], [("=foo*", "foo*")]),
    "--freeze": (["=0.*"], [("=foo*", "foo*")]),
    "--decay": (["=*"], [("=foo*", "foo*")]),
    "--no-decay": ([" *.bias"], [("=foo*", "foo*")]),
    "--lr-scale": (["=0.*=0.5", "=0.*=0"], [("=0.*=x", "x"), ("=foo*=2", "foo*"), ("=0.*=-1", "-1"), ("=0.*=nan", "nan"), ("=0.*=inf", "inf"), ("=0.*=1e39", "1e39"), ("=0.weight", "need GLOB=X"), ("=0.weight=0.5=", "need GLOB=X")]),
    "--init": (["=model", "=random", " random:7", "=0.weight=normal(0,0.1)",
                "=0.weight=uniform(-1,1)", "=*.bias=zeros", "=*.bias=ones"],
               [("=foo", "foo"), ("=random:x", "random:x"), ("=0.weight=foo", "foo"),
                ("=0.weight=normal(0,-1)", "-1"), ("=0.weight=normal(nan,1)", "nan"), ("=0.weight=normal(0,1e39)", "numbers of f32"), ("=0.weight=normal(0,1e-60)", "numbers of f32"), ("=0.weight=uniform(1,0)", "uniform(1,0)"),
                ("=0.weight=uniform(0,inf)", "inf"), ("=0.weight=normal(0,1)x", "x"), ("=0.weight=normal(0,1", "normal(0,1"),
                ("=foo*=zeros", "foo*")]),
    "--fill": (["=input=ones", "=input=zeros", "=input=iota", " input=0.5"],
               [("=foo=ones", "foo"), ("=input=foo", "input=foo"), ("=input", "input")]),
    "--tie": ([], [("=a", "a"), ("=foo=0.weight", "foo")]),
    "--no-tie": ([], []),
    "--repair": (["=constants", " transposes"], [("=foo", "foo")]),
    "--no-repair": (["=merged", "=ties", "=batchnorm", "=dropout", "=tables", "=batch"],
                    [("=foo", "foo")]),
    "--max-accumulate": (["=1", " 4"], [("=0", "0"), ("=x", "x")]),
    "--sync-batchnorm": ([], [("=x", "x")]),
    "--offload": (["=optimizer", "=params", "=activations", "=optimizer,params"], [("=moments", "need some of optimizer, params"),
                  ("=params,params", "need some of optimizer, params"), ("=", "offload")]),
    "--data-parallel": (["=ddp", "=zero1", "=zero2,zero3"], [("=zero4", "need some of ddp"), ("=ddp,ddp", "need some of ddp"),
                                                             ("=,", "need some of ddp"), ("=zero3,", "need some of ddp")]),
    "--weights": (["=embed"], [("=", "--weights")]),
    "--keep-metadata": ([""], [("=yes", "--keep-metadata=yes")]),
    "--label-smoothing": (["=0.1", " 0"], [("=x", "x"), ("=1.5", "1.5"), ("=-0.1", "-0.1")]),
    "--class-weight": ([], [("=", "--class-weight")]),
    "--eval-mode": (["=inference", "=as-exported"], [("=foo", "foo")]),
    "--train-mode": (["=keep", "=restore"], [("=foo", "foo")]),
    "--statistics": (["=keep", "=update"], [("=foo", "foo")]),
    "--ema": (["=0.9", " 0.9999"], [("=0", "between 0 and 1"), ("=1", "between 0 and 1"), ("=x", "x"), ("=nan", "nan")]),
    "--layer-decay": (["=0.75", " 1"], [("=0", "above 0"), ("=1.1", "up to 1"), ("=-1", "-1"), ("=x", "x"), ("=nan", "nan")]),
    "--unit-bytes": (["=1", " 64M"], [("=0", "0"), ("=x", "x"), ("=M", "M"), ("=9000000000G", "9000000000G")]),
    "--cores": (["=8", " 4096"], [("=0", "0"), ("=x", "x"), ("=5000", "4096")]),
    "--lora": (["=0.*", " 0.weight,rank=2,alpha=4,rslora"], [("=foo", "fits no parameter"), ("=0.bias", "can be adapted"), ("=,rank=2", "need GLOB"),
                                                             ("=0.*,rank=0", "rank=0"), ("=0.*,alpha=x", "alpha=x"), ("=0.*,foo", "no option foo")]),
    "--qlora": (["=0.*", " 0.weight,rank=2,bits=fp4,double=off"], [("=foo", "fits no parameter"), ("=0.bias", "can be adapted"), ("=0.weight,bits=5", "is not nf4 or fp4")]),
    "--adapter-name": ([], [("=0.weight", "NAME=VALUE"), ("=foo=a", "is not a parameter"), ("=0.weight=head", "need PARAM=MODULE.NAME")]),
    "--load-adapter": ([], [("=a", "need NAME=VALUE"), ("=a=b", "the model has no adapters; give --lora")]),
    "--quantize": (["=w8a8", " w8-tensor"], [("=int8", "need wN[aN]"), ("=w8-token", "need wN[aN]")]),
    "--opset": ([], [("=21", "needs --quantize"), ("=x", "x")]),
    "--remat": ([], [("=all", LACKS)]),
    "--mesh": (["=tensor=1,pipeline=1"], [("=tensor=2", LACKS), ("=pipeline=2", LACKS)]),
    "--schedule": ([], [("=1f1b", LACKS)]),
    "--dump-after": (["=simplify", "=all"], [("=foo", "foo")]),
    "--dump-dir": (["=dumps"], [("=", "--dump-dir")]),
    "--dump-changed": ([""], [("=x", "--dump-changed=x")]),
    "--stop-after": (["=simplify"], [("=foo", "foo")]),
    "--disable": (["=simplify"], [("=foo", "foo")]),
    "--enable": (["=initialize"], [("=foo", "foo")]),
    "--pass-option": (["=lower.target=cpu-128", " inline.final"],
                      [("=lower", "PASS.NAME=VALUE"), ("=foo.x=1", "foo.x"),
                       ("=lower.foo=1", "pass lower has no option foo"),
                       ("=lower.cores=x", "x")]),
    "--verify-each": ([""], [("=x", "--verify-each=x")]),
    "--time-passes": ([""], [("=x", "--time-passes=x")]),
    "--stage": (["=import", "=forward", "=train", "=rematerialized", "=fused", "=lowered", " schedule",
                 "=memory", "=llvm", "=asm", "=c", "=cuda"], [("=foo", "foo"), ("=sharded", "sharded")]),
    "--format": (["=text", "=dot", "=json", "=html"], [("=svg", LACKS)]),
    "--log": ([], [("=none.jsonl", "needs --format=html")]),
    "--after": (["=simplify"], [("=foo", "foo")]),
    "--emit": (["=executable", " library"], [("=object", LACKS)]),
    "--printer": (["=llvm", " c"], [("=fortran", LACKS), ("=cuda", LACKS)]),
    "--keep-sources": ([""], [(" sources", "unexpected argument `sources`")]),
    "--export": ([], [("=m.onnx", OF_EXECUTABLE)]),
    "--export-adapter": ([], [("=a", OF_EXECUTABLE)]),
    "--export-merged": ([], [("=m.onnx", OF_EXECUTABLE)]),
    "--foo": ([], [("", "--foo"), ("=1", "--foo=1")]),
}

# Of a training executable.
EXECUTABLE = {
    "--data": ([], [("=foo", "foo"), ("=foo=", "foo=")]),
    "--scale": (["=input=0.5", " input=0.5,1"], [("=input=x", '"x"'), ("=foo=1", "foo")]),
    "--mean-std": ([], [("=input", "input")]),
    "--tokens": ([], [("=", "--tokens")]),
    "--text": ([], [("=", "--text")]),
    "--fill": ([], [("=foo=ones", "foo"), ("=foo", "foo")]),
    "--steps": (["=2", " 1"], [("=x", "x"), ("=-1", "-1"), (f"={2 ** 63 - 1}", "9007199254740992"), (f"={2 ** 63}", "2")]),
    "--epochs": (["=1"], [("=x", "x"), (f"={2 ** 63 - 1}", "2147483648"), (f"={2 ** 31 + 1}", "2147483648")]),
    "--accumulate": (["=2"], [("=0", "0"), ("=x", "x"), (f"={2 ** 63 - 1}", "2147483648"), (f"={2 ** 62}", "2147483648")]),
    "--shuffle": (["=on", " off"], [("=x", "x")]),
    "--seed": (["=3"], [("=x", "x")]),
    "--keep-last": ([""], [("=x", "x")]),
    "--lr": (["=0.1", " 1e-3"], [("=x", "x"), ("=1e-400", "1e-400"), ("=-1", "-1"), ("=nan", "nan"), ("=inf", "inf")]),
    "--global-batch": (["=32", " 64"], [("=0", "0"), ("=x", "x"), ("=48", "no multiple of 32 rows of a micro-batch times 1 ranks"), (f"={2 ** 62}", "2147483648")]),
    "--micro-batch": (["=32"], [("=0", "0"), ("=x", "x"), ("=8", "32 rows are compiled in")]),
    "--lr-schedule": (["=constant", "=linear", "=cosine", " wsd", "=polynomial,power=2", "=step,size=5,gamma=0.5", "=one-cycle,pct_start=0.5", "=deepspeed-warmup",
                       "=deepspeed-decay,steps=5,log=0,total=9", "=deepspeed-cosine,min_ratio=0.1", "=deepspeed-range,stairs=1", "=deepspeed-cycle,first=3"],  # plateau: test_plateau
                      [("=step,size=3,size=4", "size is given twice"), ("=foo", "foo"), ("=step,size=0", "size=0"), ("=step,power=1", "power"), ("=polynomial,power", "power"), ("=linear,x=1", "x"),
                       ("=one-cycle,pct_start=2", "pct_start=2"), ("=step,size=nan", "size=nan"), ("=", "need constant|linear"), ("=plateau", "needs --eval-every"),
                       *[(f"=plateau,{s} --eval-every=1", s) for s in ("patience=1.5", "factor=1", "threshold=-1", "cooldown=-1")], ("=plateau,size=1 --eval-every=1", "no setting")]),
    "--find-lr": (["=1e-6,1 --steps=5"], [("=1", "1e-7,10"), ("=1,0.1", "1,0.1"), ("=0,1", "0,1"), ("=x,1", "x,1"), ("=1,inf", "inf"), ("=1e-6,1 --epochs=1", "needs --steps")]),
    "--warmup": (["=2"], [("=x", "x")]),
    "--min-lr": (["=0.001"], [("=x", "x")]),
    "--weight-decay": (["=0.1"], [("=x", "x"), ("=-1", "-1")]),
    "--beta1": (["=0.8"], [("=x", "x"), ("=2", "2")]),
    "--beta2": (["=0.99"], [("=x", "x"), ("=2", "2")]),
    "--eps": (["=1e-6"], [("=x", "x"), ("=-1", "-1")]),
    "--momentum": ([], [("=x", "x"), ("=0.5", "--momentum")]),  # adamw has none
    "--clip-norm": (["=1"], [("=x", "x"), ("=-1", "-1"), ("=0", "above 0"), ("=nan", "nan"), ("=inf", "inf")]),
    "--clip-value": (["=1"], [("=x", "x"), ("=-1", "-1"), ("=0", "above 0"), ("=nan", "nan"), ("=inf", "inf")]),
    "--eval-data": ([], [("=foo", "foo")]),
    "--eval-tokens": ([], [("=", "--eval-tokens")]),
    "--eval-text": ([], [("=", "--eval-text")]),
    "--eval-every": ([], [("=x", "x"), ("=1", "--eval-data")]),
    "--save": (["=d"], [("=", "--save")]),
    "--save-every": (["=1 --save=d"], [("=0 --save=d", "0"), ("=1", "--save-every needs --save")]),
    "--keep": ([" 1 --save=d"], [("=x", "x"), (" 1", "--keep needs --save")]),
    "--split": (["=0.2"], [("=1.5", "need a share"), ("=0.2,-1", "need a share")]),
    "--metric": (["=accuracy --split=0.2"], [("=x --split=0.2", "--metric=x")]),
    "--early-stop": ([], [("=1", "--eval-every"), ("=0 --eval-every=1 --split=0.2", "need a number")]),
    "--keep-best": ([], [("", "--keep-best needs --save"), (" --save=d", "--eval-data")]),
    "--resume": ([" auto --save=d"], [("=", "--resume"), (" auto", "--resume=auto needs --save")]),
    "--load": ([], [("=", "--load")]),
    "--weights": ([], [("=", "--weights")]),
    "--once": ([], [("", "has no meaning for `--once`")]),
    "--input": ([], [("=foo", "foo")]),
    "--export": (["=out.onnx"], [("=", "--export")]),
    "--export-weights": (["=last --export=out.onnx"], [("=x", "x"), ("=last", "needs --export"), ("=ema --export=out.onnx", "--ema=")]),
    "--export-form": (["=inference --export=out.onnx", "=as-imported --export=out.onnx"],
                      [("=imported --export=out.onnx", "imported"), ("=inference", "--export-form needs --export FILE.onnx")]),
    "--export-preprocessing": (["=off --export=out.onnx", "=on --scale=input=2 --export=out.onnx"],
                               [("=x", "x"), ("=on --scale=input=2", "--export-preprocessing needs --export FILE.onnx"), ("=on --export=out.onnx", "no input is preprocessed")]),
    "--log": (["=log.jsonl"], [("=", "--log")]),
    "--tensorboard": (["=events"], [("=", "--tensorboard")]),
    "--report": (["=report.html"], [("=", "--report")]),
    "--trace": (["=t.json"], [("=", "--trace")]),
    "--progress": (["=auto", "=bar", "=plain", "=off"], [("=foo", "foo")]),
    "--table": (["=auto", "=full", "=off"], [("=foo", "foo")]),
    "--device": (["=cpu", " cpu:0"], [("=gpu", LACKS), ("=cuda:x", "need a number"), ("=cuda:-1", "need a number")]),
    "--target": (["=cpu:native"], [("=cpu:pentium", "the model is compiled for cpu:native"), ("=", "--target")]),
    "--threads": (["=1", "=2"], [("=0", "0"), ("=x", "x"), ("=100000", "at most")]),
    "--offload": ([], [("=optimizer", "compiled without --offload"), ("=", "offload")]),
    "--offload-dir": ([], [("=/tmp", "compile with --offload"), ("=", "offload-dir")]),
    "--data-parallel": (["=ddp"], [("=zero1", "compiled with --data-parallel=ddp"), ("=fsdp", "zero3")]),
    "--shard-size": ([], [("=0", "0"), ("=x", "x"), ("=2", "every rank holds all")]),
    "--libraries": (["=on", " off"], [("=x", "x")]),
    "--tune": (["=tuned.txt", "=off"], [("=", "--tune")]),
    "--deterministic": ([""], [("=x", "x")]),
    "--dump-gradients": (["=grads"], [("=", "--dump-gradients")]),
    "--info": (["", " --json"], [("=x", "x")]),
    "--json": ([""], [("=x", "x")]),
    "--help": ([""], [("=x", "x")]),
    "--find-nan": ([""], [("=x", "x")]),
    "--reduce": (["=ordered", " fast"], [("=x", "x")]),
    "--collectives": (["=auto", " host", "=nccl"], [("=x", "x")]),
    "--load-adapter": ([], [("=a", "has no adapters")]),
    "--adapter": ([], [("=a", "this executable has none")]),
    "--merge": ([], [("", "--merge needs --load-adapter"), ("=x", "x")]),
    "--unmerge": ([], [("", "--unmerge needs --load-adapter"), ("=x", "x")]),
    "--export-merged": ([], [("=m.onnx", "has no adapters")]),
    "--export-adapter": ([], [("=a", "has no adapters")]),
    "--foo": ([], [("", "--foo")]),
}


def words(option, value):
    return shlex.split(option + value.replace("*", "'*'").replace("(", "'('").replace(")", "')'"))


def accepted(table):
    return [(o, v) for o, (values, _) in table.items() for v in values]


def refused(table):
    return [(o, v, says) for o, (_, values) in table.items() for v, says in values]


@pytest.fixture
def model(models):
    return models / "mlp_digits/model.onnx"


@pytest.fixture(scope="module")
def exe(gradc, models, tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "train"
    subprocess.run([gradc, "compile", models / "mlp_digits/model.onnx", "-o", path, "--batch=32"],
                   check=True, capture_output=True)
    return path


@pytest.fixture
def train(run, exe, models):
    def train_it(*arguments, **options):
        folder = models / "mlp_digits"
        length = [] if {"--steps", "--epochs"} & {a.split("=")[0] for a in arguments} else [
            "--steps=1"]
        return run(exe, "--data", f"input={folder}/input.npy", "--data",
                   f"labels={folder}/labels.npy", *length, *arguments, **options)

    return train_it


OF_COMPILE = {"--adapter-name", "--load-adapter", "--weights", "--keep-metadata", "--emit", "--keep-sources"}  # the others are dump's, too


def command_for(option):
    loss = [] if option == "--loss" else ["--loss=cross_entropy"]
    if option in OF_COMPILE:
        return ["compile", *loss, "--batch=4", "-o", "out"]
    stage = [] if option in ("--stage", "--after") else ["--stage=train"]
    return ["dump", *loss, *stage, "-o", "out.gir"]


@pytest.mark.parametrize("option, value", accepted(GRADC))
def test_gradc_takes(run, model, option, value):
    run(*command_for(option), *words(option, value), model)


@pytest.mark.parametrize("option, value, says", refused(GRADC))
def test_gradc_refuses(run, model, option, value, says):
    command, *others = command_for(option)
    said = run(command, model, *words(option, value), *others, exit=2).stderr
    assert said.startswith("gradc: error: ") and says in said.replace("\\", "")


@pytest.mark.parametrize("option, value", accepted(EXECUTABLE))
def test_an_executable_takes(train, option, value):
    train(*words(option, value))


@pytest.mark.parametrize("option, value, says", refused(EXECUTABLE))
def test_an_executable_refuses(train, option, value, says):
    said = train(*words(option, value), exit=2).stderr
    assert said.startswith("gradc: error: ") and says in said


def test_the_tables_have_every_option(run, exe):
    """Those of --help, which test_docs holds to the man page."""
    for table, text in ((GRADC, run("compile", "--help", "--json").stdout),
                        (EXECUTABLE, run(exe, "--help", "--json").stdout)):
        named = {f"--{row['name']}" for row in json.loads(text)["options"]}
        # Tried below, or by tests of what they do.
        others = {"--config", "--help", "--output", "--output-dir", "--output-format", "--input",
                  "--cc", "--wrt", "--check-gradients", "--engine", "--real", "--passes", "--json",
                  "--table", "--match", "--quiet", "--verbose", "--version", "--completion", "--classes"}
        assert named - set(table) <= others


def test_commands_that_are_not_there_yet(run, model):
    for command in ("plan",):
        assert LACKS in run(command, model, exit=2).stderr
    assert "`foo`" in run("foo", model, exit=2).stderr


# ---- what a table does not show
def test_keep_sources_never_takes_the_next_word(run, model, tmp_path):
    run("compile", "--keep-sources", model, "-o", "a", "--batch=2")
    assert list((tmp_path / "a.sources").glob("*.c"))
    run("compile", model, "-o", "a", "--batch=2", "--keep-sources=there")
    assert list((tmp_path / "there").glob("*.c"))


@pytest.mark.parametrize("command, what", [
    ("check", []), ("dump", ["--stage=forward"]), ("compile", ["-o", "a"]), ("ops", None),
    ("passes", None)])
def test_config_for_every_command(run, model, tmp_path, command, what):
    (tmp_path / "run.ini").write_text("; what all runs share\n[gradc]\nbatch = 8\njson = true\n")
    files = [] if what is None else [model, *what]
    run(command, *files, "--config=run.ini")
    run(command, *files, "--config", "run.ini")
    (tmp_path / "bad.ini").write_text("batch = x\nfoo = 1\n")
    said = run(command, *files, "--config=bad.ini", exit=2).stderr
    # What is another command's stands there for that one.
    assert ("bad.ini: --batch=x" in said) == (what is not None) and "bad.ini: foo" in said
    assert "nosuch.ini" in run(command, *files, "--config=nosuch.ini", exit=5).stderr


def test_one_config_serves_gradc_and_its_executables(run, exe, train, model, models, tmp_path):
    data = ["--data", f"input={models}/mlp_digits/input.npy", "--data", f"labels={models}/mlp_digits/labels.npy"]
    (tmp_path / "both.ini").write_text("[gradc]\nbatch = 4\nstage = train\n[executable]\nsteps = 3\njson = on\n")
    assert "f32[4,64]" in run("dump", model, "--loss=mse", "--config=both.ini").stdout
    assert json.loads(run(exe, *data, "--config=both.ini").stdout)["steps"] == 3
    (tmp_path / "typo.ini").write_text("[exec]\nsteps = 3\nbatch = 2\n")
    for said in (run("check", model, "--config=typo.ini", exit=2), train("--config=typo.ini", exit=2)):
        assert said.stderr.count("typo.ini: [exec]: need [gradc] or [executable]") == 1
    (tmp_path / "slip.ini").write_text("[gradc]\nsteps = 3\n")
    assert "slip.ini: steps: no such option" in run("check", model, "--config=slip.ini", exit=2).stderr


def test_a_config_says_one_thing_once(run, train, model, tmp_path):
    (tmp_path / "twice.ini").write_text("batch = 4\nbatch = 8\n")
    assert "twice.ini: --batch=4 and --batch=8: one of them" in run("check", model, "--config=twice.ini", exit=2).stderr
    (tmp_path / "lr.ini").write_text("lr = 4\nlr = 8\n")
    assert "lr.ini: --lr=4 and --lr=8: one of them" in train("--config=lr.ini", exit=2).stderr
    (tmp_path / "more.ini").write_text("train = *\nfreeze = 0.*\ninit = random\n")
    run("check", model, "--config=more.ini", "--init=model")


def test_a_config_is_text(run, train, model, tmp_path):
    """What stands behind a byte that is 0 would not be read."""
    (tmp_path / "c.ini").write_bytes(b"loss = mse\nseed = 1\0\nbatch = 3\n")
    assert "c.ini:2: a byte that is 0: not a text file" in run("check", model, "--config=c.ini", exit=2).stderr
    assert "c.ini:2: a byte that is 0: not a text file" in train(f"--config={tmp_path / 'c.ini'}", exit=2).stderr


def test_config_line_wins(run, train, model, tmp_path):
    (tmp_path / "run.ini").write_text("stage = import\ndim = batch=8\nloss = mse\n")
    said = run("dump", model, "--config=run.ini", "--dim=batch=4", "--stage=train").stdout
    assert "@accumulate" in said and "f32[4,64]" in said and "f32[8,64]" not in said
    (tmp_path / "run.ini").write_text("steps = 3\nkeep-last = true\ndata = labels=nosuch.npy\n"
                                      "progress = off\njson = on\n")
    assert json.loads(train("--config=run.ini").stdout)["steps"] == 1


@pytest.mark.parametrize("command", ["check", "ops", "passes"])
def test_json_results(run, model, command):
    text = run(command, *([model] if command == "check" else []), "--json").stdout
    assert [json.loads(t) for t in ([text] if command == "check" else text.splitlines())]


CONTRADICTIONS = [
    (["--dim=batch=4", "--batch=8"], ["--dim batch=4", "--batch 8"]),
    (["--dim=batch=4", "--dim=batch=8"], ["--dim=batch=4", "--dim=batch=8"]),
    (["--loss=mse", "--loss=cross_entropy"], ["--loss=mse", "--loss=cross_entropy"]),
    (["--loss=mse", "--label-smoothing=0.1"], ["--label-smoothing", "--loss=mse"]),
    (["--loss=mse", "--class-weight=w.npy"], ["--class-weight", "--loss=mse"]),
    (["--loss=l1,axis=1"], ["axis=", "--loss=l1"]),
    (["--loss=output:logits", "--label-smoothing=0.1"], ["--label-smoothing", "--loss=output:logits"]),
    (["--loss=mse,count=1"], ["count=", "--loss=mse,count=1"]),
    (["--loss=cross_entropy,count=logits"], ["count=", "--loss=cross_entropy"]),
    (["--loss=output:logits,target=input"], ["target=", "--loss=output:logits"]),
    (["--loss=output:logits,rows=0"], ["rows=", "--loss=output:logits"]),
    (["--precision=f32", "--precision=f64"], ["--precision=f32", "--precision=f64"]),
    (["--batch=2", "--batch=4"], ["--batch=2", "--batch=4"]),
    (["--fill=input=ones", "--fill=input=zeros"], ["--fill=input=ones", "--fill=input=zeros"]),
    (["--repair=ties", "--no-repair=ties"], ["--repair=ties", "--no-repair=ties"]),
    (["--train-mode=keep", "--train-mode=restore"], ["--train-mode=keep", "--train-mode=restore"]),
    (["--init=random", "--init=model"], ["--init=random", "--init=model"]),
    (["--sync-batchnorm", "--eval-mode=as-exported"], ["--sync-batchnorm", "--eval-mode=as-exported"]),
    (["--dim=input[0]=4", "--dim=batch=8"], ["--dim input[0]=4", "--dim batch=8", "both bind batch"]),
]


@pytest.mark.parametrize("options, named", CONTRADICTIONS)
def test_contradictions_name_both(run, model, tmp_path, options, named):
    batch = [] if any("batch" in o for o in options) else ["--batch=4"]
    said = run("compile", model, "-o", "out", *batch, *options, exit=2).stderr
    assert all(n in said for n in named) and not (tmp_path / "out").exists()


def test_the_same_twice_is_no_contradiction(run, model):
    run("dump", model, "--dim=batch=4", "--batch=4", "--loss=mse", "--loss=mse", "--stage=train")


@pytest.mark.parametrize("options, named", [
    (["--fill=input=ones"], ["--data input=", "--fill input=ones"]), (["--lr=1", "--lr=2"], ["--lr=1", "--lr=2"]),
    (["--shuffle=on", "--shuffle=off"], ["--shuffle=on", "--shuffle=off"]),
    (["--input=input=x.npy"], ["--input=input=x.npy: has no meaning for `training`", "it is for --once"]), (["--output-dir=out"], ["--output-dir=out: has no meaning for `training`"]),
    (["--once", "--output-dir=out"], ["--data=input=", "--steps=1: has no meaning for `--once`", "it is for training"]), (["--scale=input=nan"], ["--scale input", "nan"]),
    (["--scale=input=1,inf"], ["--scale input", "inf"])])
def test_contradictions_of_a_training(train, options, named):
    said = train(*options, exit=2).stderr
    assert all(n in said for n in named)


@pytest.mark.parametrize("option", ["--lr=3", "--accumulate=7", "--warmup=5", "--shuffle=off", "--eval-every=3", "--clip-norm=1", "--export=e.onnx"])
def test_one_run_takes_no_option_of_training(run, exe, models, tmp_path, option):
    said = run(exe, "--once", "--output-dir=out", f"--input=input={models}/mlp_digits/input.npy", option, exit=2).stderr
    assert f"{option}: has no meaning for `--once`" in said and not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", ["fill", "scale", "mean-std"])
def test_one_value_for_each_name(train, option):
    said = train(f"--{option}=input=1", f"--{option}=input=2", exit=2).stderr
    assert f"--{option}=input=1 and --{option}=input=2: one of them" in said


def test_options_of_a_run_that_would_do_nothing(run, model, models):
    inputs = ["--input", f"input={models}/mlp_digits/input.npy", "--output-dir=out"]
    assert "--real needs --engine=interp" in run("run", model, *inputs, "--real", exit=2).stderr
    said = run("run", model, *inputs, "--batch=4", exit=2).stderr
    assert "has 1500 rows, but --batch is 4" in said
    run("run", model, *inputs, "--batch=1500")


@pytest.mark.parametrize("axis, says", [("4294967297", "axis 4294967297 of a rank-2 output"), ("-9223372036854775808", "axis -9223372036854775808"),
                                        ("0", "axis 0 of the output holds the rows"), ("-2", "axis -2 of the output holds the rows"),
                                        ("2", "axis 2 of a rank-2 output"), ("-3", "axis -3 of a rank-2 output")])
def test_axes_of_classes(run, model, axis, says):
    assert says in run("compile", model, "-o", "out", "--batch=4", f"--loss=cross_entropy,axis={axis}", exit=2).stderr


@pytest.mark.parametrize("loss, says", [
    ("cross_entropy:", "behind a colon"), ("cross_entropy,", "behind a comma"), ("cross_entropy,,", "behind a comma"), ("huber:logits,,", "behind a comma"),
    ("mse:,target=input", "behind a colon"), ("mse:logits,,target=input", "behind a comma"), ("output:", "behind a colon")])
def test_empty_parts_of_a_loss(run, model, tmp_path, loss, says):
    said = run("compile", model, "-o", "out", "--batch=4", f"--loss={loss}", exit=2).stderr
    assert f"--loss={loss}: there is no text {says}" in said and not (tmp_path / "out").exists()


def test_unknown_parts_of_a_loss(run, model):
    for part, says in (("axes=1", "loss mse has no option axes"), ("size", 'has no output "size"'), ("=1", "loss mse has no option"),
                       ("target=", 'has no input ""'), ("axis=", "need axis=N"), ("rows=x", "need rows=N")):
        assert says in run("check", model, f"--loss=mse,{part}", exit=2).stderr
    for loss in ",axis=0", ":", "foo,axis=0":
        said = run("check", model, f"--loss={loss}", exit=2).stderr
        assert f"unknown loss `{loss[:-7]}`" in said and "`gradc compile --help` lists the losses" in said
    assert "need onnx:FILE or onnx:FILE,count=NAME" in run("check", model, "--loss=onnx:loss.onnx,count=", exit=2).stderr


def test_options_without_a_loss_to_change(run, model, tmp_path):
    for command in ("check",), ("dump", "--stage=forward"):
        assert "--label-smoothing: needs --loss" in run(*command, model, "--label-smoothing=0.1", exit=2).stderr
    (tmp_path / "w.npy").write_bytes(b"")
    assert "--class-weight: needs --loss" in run("check", model, "--class-weight=w.npy", exit=2).stderr


def test_one_stop_of_a_dump(run, model):
    assert "--stage=import and --after=loss: one of them" in run("dump", model, "--stage=import", "--after=loss", exit=2).stderr


def test_dimensions_by_input_and_axis(run, model):
    assert "f32[4 batch,64]" in run("check", model, "--dim=input[0]=4").stdout
    assert "its open dimensions: batch" in run("check", model, "--dim=input[1]=4", exit=2).stderr


def test_options_that_find_nothing_to_do_are_told(run, model):
    said = run("check", model, "--train-mode=restore", "--statistics=update").stderr
    assert "--train-mode=restore: the model has no dropout" in said and "--statistics=update: the model has no frozen" in said
    for rule in "--decay=0.*", "--no-decay=0.*", "--lr-scale=0.*":
        said = run("compile", model, "--batch=4", "-o", "out", "--freeze=0.*", rule + "=2" * ("scale" in rule)).stderr
        assert f"warning: {rule}: no parameter that it matches is trained" in said
    said = run("compile", model, "--batch=4", "-o", "out", "--freeze=*").stderr
    assert "nothing is trained: no parameter is trainable" in said
    assert "warning" not in run("compile", model, "--batch=4", "-o", "out", "--decay=0.*").stderr


def test_a_check_reads_the_loss_as_compile_does(run, model):
    for command in ("check",), ("compile", "-o", "out", "--batch=4"):
        assert "axis 7 of a rank-2 output" in run(*command, model, "--loss=cross_entropy,axis=7", exit=2).stderr
    assert "target  labels: s64[1]" in run("check", model, "--loss=cross_entropy").stdout


def test_a_run_takes_no_loss_that_it_would_not_show(run, model, models):
    inputs = ["--input", f"input={models}/mlp_digits/input.npy", "--output-dir=out"]
    said = run("run", model, *inputs, "--loss=cross_entropy", exit=2).stderr
    assert "--loss=cross_entropy: has no meaning for `gradc run`" in said and "`gradc grad`" in said
    assert "one of them" in run("run", model, *inputs, "--input=input=other.npy", exit=2).stderr


def test_rules_show_in_the_table(run, model):
    said = run("check", model, "--lr-scale=0.weight=0.5", "--no-decay=4.weight", "--init=2.bias=ones").stdout
    for name, remark in (("0.weight", "learning rate times 0.5"), ("4.weight", "does not decay"), ("2.bias", "starts as --init says")):
        line = next(l for l in said.splitlines() if l.startswith(f"  {name} "))
        assert remark in line
    assert "; " not in next(l for l in said.splitlines() if l.startswith("  2.weight "))


def test_hints_name_the_executable(run, exe):
    assert f"hint: `{exe} --help` lists the options" in run(exe, "--nope", exit=2).stderr


def test_gradients_of_nothing(run, model, models, tmp_path):
    inputs = ["--input", f"input={models}/mlp_digits/input.npy", "--input", f"labels={models}/mlp_digits/labels.npy"]
    for engine in "compiled", "interp":
        said = run("grad", model, *inputs, "--freeze=*", "--output-dir=out", f"--engine={engine}").stderr
        assert "nothing is trained" in said and (tmp_path / "out/loss.npy").exists()
    assert "--fill input=ones and --input input=" in run("grad", model, *inputs, "--fill=input=ones", "--output-dir=o", exit=2).stderr


def test_a_rate_that_never_falls_has_no_least(train):
    assert "--min-lr: has no meaning for a constant learning rate" in train("--min-lr=0.1").stderr
    assert "--min-lr" not in train("--min-lr=0.1", "--lr-schedule=linear").stderr


@pytest.mark.parametrize("command, options", [
    ("check", ["--optimizer=sgd"]), ("check", ["-o", "out"]), ("check", ["--engine=interp"]), ("ops", ["--batch=2"]), ("passes", ["--loss=mse"]),
    ("dump", ["--input=input=x.npy"]), ("dump", ["--weights=w"]), ("compile", ["--passes=simplify"]), ("compile", ["--match=*"]),
    ("run", ["--optimizer=sgd"]), ("run", ["--freeze=*"]), ("run", ["--algorithm=awq"]), ("compile", ["--bias-correction"]), ("grad", ["--format=dot"]), ("opt", ["--batch=2"]), ("opt", ["--loss=mse"])])
def test_options_of_other_commands_are_refused(run, model, command, options):
    files = [] if command in ("ops", "passes") else ["text.gir"] if command == "opt" else [model]
    said = run(command, *files, *options, exit=2).stderr
    assert f"has no meaning for `gradc {command}`" in said and "hint: it is for " in said
    assert not re.search(rf"^  (-., |    ){options[0].split('=')[0]}\\b", run(command, "--help").stdout, re.M) or options[0] == "-o"


def test_passes_without_which_nothing_runs(run, model, tmp_path):
    for name in "trainable", "loss", "autograd", "optimizer", "inline", "legalize", "fuse", "lower", "schedule", "memory":
        said = run("compile", model, "-o", "out", "--batch=4", f"--disable={name}", exit=2).stderr
        assert f"--disable={name}" in said
    for name in "fuse", "autograd", "memory":
        said = run("compile", model, "-o", "out", "--batch=4", f"--stop-after={name}").stderr
        assert f"stopped after `{name}`: no executable is written" in said
    assert not (tmp_path / "out").exists()
    run("compile", model, "-o", "out", "--batch=4", "--disable=simplify", "--disable=rematerialize")


def test_compile_json(run, model):
    facts = json.loads(run("compile", model, "-o", "a", "--batch=2", "--json").stdout)
    assert facts["output"] == "a" and facts["memory"]["state"] > 0 and facts["kernels"] > 0
    assert facts["parameters"][0]["name"] == "0.weight"


def test_grad_json(run, model, models):
    folder = models / "mlp_digits"
    done = run("grad", model, "--engine=interp", "--json", "--input",
               f"input={folder}/input.npy", "--input", f"labels={folder}/labels.npy",
               "--check-gradients=1")
    assert {p["name"] for p in json.loads(done.stdout)["parameters"]} >= {"0.weight", "0.bias"}


@pytest.mark.parametrize("stage", ["import", "forward"])
def test_grad_refuses_stages_without_gradients(run, model, models, tmp_path, stage):
    inputs = [f"--input={name}={models}/mlp_digits/{name}.npy" for name in ("input", "labels")]
    done = run("grad", model, "--engine=interp", f"--stage={stage}", *inputs, "--output-dir=out", exit=2)
    assert "this module has no loss or no gradients to interpret" in done.stderr
    assert not list((tmp_path / "out").glob("*.npy"))


def test_the_scripts_have_help(run):
    assert "usage:" in run(Path(__file__).resolve().parents[1] / "scripts/test", "--help").stdout
