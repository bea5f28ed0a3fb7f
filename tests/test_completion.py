"""What a shell completes, of gradc and of executables: the candidates that the programs print, and the shells' scripts."""
import shutil
import subprocess

import pytest


@pytest.fixture(scope="module")
def folder(gradc, models, tmp_path_factory):
    """A folder with an executable `train` and files to complete."""
    folder = tmp_path_factory.mktemp("completion")
    subprocess.run([gradc, "compile", models / "lr_iris_ml/model.onnx", "-o", folder / "train", "--dim=batch=1", "--loss=bce_with_logits"],
                   check=True, capture_output=True)
    for name in ["model.onnx", "a.gir", "x.npy"]:
        (folder / name).touch()
    (folder / "inside").mkdir()
    return folder


@pytest.fixture
def ask(folder, build):
    def run(*command):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env={
            "PATH": f"{build.resolve()}:{folder}:/usr/bin:/bin", "HOME": str(folder)})
        assert done.returncode == 0, done.stderr
        return done.stdout
    return run


CASES = [  # words of the command line; the candidates; what else the shell offers
    (["gradc", "ch"], ["check"], ""),
    (["gradc", "compile", "--optim"], ["--optimizer=", "--optimizer-for="], "nospace"),
    (["gradc", "compile", "--optimizer=ne"], ["--optimizer=nesterov"], ""),
    (["gradc", "compile", "--loss", "cr"], ["cross_entropy"], "files"),
    (["gradc", "compile", "--loss", "o"], ["output:", "onnx:"], "files nospace"),
    (["gradc", "compile", "--init", "r"], ["random"], ""),
    (["gradc", "compile", "--train=ke"], [], ""),
    (["gradc", "compile", "--train-mode=ke"], ["--train-mode=keep"], ""),
    (["gradc", "compile", "--data-parallel=ddp,zero1"], ["--data-parallel=ddp,zero1"], ""),
    (["gradc", "compile", "--match"], [], ""),  # of check alone
    (["gradc", "check", "--table", "f"], ["full"], ""),
    (["gradc", "dump", "--after", "tr"], ["trainable"], ""),
    (["gradc", "dump", "--dump-after", "al"], ["all"], ""),
    (["gradc", "dump", "--stage", "lo"], ["lowered"], ""),
    (["gradc", "dump", "--pass-option=lower.tar"], ["--pass-option=lower.target="], "nospace"),
    (["gradc", "dump", "mo"], [], "files"),
    (["gradc", "opt", ""], [], "files gir"),
    (["gradc", "check", "mo"], [], "files onnx"),
    (["gradc", "run", "--input=x=x."], [], "files"),
    (["gradc", "compile", "-o", "x."], [], "files"),
    (["gradc", "completion", ""], ["bash", "zsh", "fish"], ""),
    (["gradc", "no_such_command", ""], [], ""),
    (["train", "--lr-s"], ["--lr-schedule="], "nospace"),
    (["train", "--keep-l"], ["--keep-last"], ""),
    (["train", "--lr-schedule=c"], ["--lr-schedule=constant", "--lr-schedule=cosine"], ""),
    (["train", "--data", "in"], ["input="], "nospace"),
    (["train", "--data=input=x."], [], "files"),
    (["train", "--resume", "au"], ["auto"], "folders"),
    (["train", "--shuffle="], ["--shuffle=on", "--shuffle=off"], ""),
    (["train", "--once", "--steps"], [], ""),
]


@pytest.mark.parametrize("words, want, also", CASES, ids=lambda x: " ".join(x) if isinstance(x, list) else "")
def test_candidates(ask, words, want, also):
    *lines, last = ask(words[0], "__complete", *words[1:]).splitlines()
    assert [line.split("\t")[0] for line in lines] == want
    assert last == (f": {also}" if also == "nospace" else f":{also}")


# bash: splits words at `=`; the function leaves its candidates in COMPREPLY
BASH = """
source <("$1" $2 bash); shift 2
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _${1}_complete; printf '%s\\n' "${COMPREPLY[@]}"
"""
# zsh: the builtins of its completion are replaced by functions that print
ZSH = """
compdef() { registered=$1 }
compadd() { print -l -- "${(@P)@[-1]}" }
compset() { PREFIX=${words[CURRENT]##*=} }
_files() { for file in $PREFIX*(N); do
	[[ -d $file || $1 = '' || ($1 = -g && $file = ${~2}) ]] && print -- $file
done; true }
source <("$1" $2 zsh); shift 2
words=("$@"); CURRENT=$#; PREFIX=$words[CURRENT]; $registered
"""
FISH = "$argv[1] $argv[2] fish | source; complete -C \"$argv[3]\""


@pytest.mark.parametrize("words, want", [
    (["gradc", "ch"], {"check"}),
    (["gradc", "compile", "--optim"], {"--optimizer=", "--optimizer-for="}),
    (["gradc", "compile", "--loss=cr"], {"cross_entropy"}),
    (["gradc", "check", "mo"], {"model.onnx"}),
    (["gradc", "opt", ""], {"a.gir", "inside"}),
    (["gradc", "run", "--input=x=x."], {"x.npy"}),
    (["train", "--lr-schedule=c"], {"constant", "cosine"}),
    (["train", "--data", "in"], {"input="}),
    (["train", "--resume", "i"], {"inside"}),
    (["train", "--data=input=x."], {"x.npy"}),
])
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_of_shells(ask, shell, words, want):
    if not shutil.which(shell):
        pytest.skip(f"no {shell}")
    how = "completion" if words[0] == "gradc" else "--completion"
    if shell == "bash":
        split = [part for word in words for part in word.replace("=", "\0=\0").split("\0") if part or not word]
        said = ask("bash", "-c", BASH, "_", words[0], how, *split)
    elif shell == "zsh":
        said = ask("zsh", "-f", "-c", ZSH, "_", words[0], how, *words)
    else:
        said = ask("fish", "--no-config", "-c", FISH, words[0], how, " ".join(words))
    found = {line.split("\t")[0].rstrip("/") for line in said.splitlines()}
    if shell != "bash":  # candidates are whole words
        found = {word if word.endswith("=") else word.split("=")[-1] for word in found}
    assert found == want


def test_unknown_shells(run, folder):
    assert "did you mean `bash`?" in run("completion", "bsh", exit=2).stderr
    assert "need bash, zsh or fish" in run("completion", exit=2).stderr
    said = run(folder / "train", "--completion=fihs", exit=2).stderr
    assert "need one of bash|zsh|fish" in said and "did you mean `fish`?" in said
