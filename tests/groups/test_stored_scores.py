"""No program of a model with attention keeps a matrix of scores: of queries times keys. Lengths are prime, so that a shape with
the length twice is such a matrix."""
import re

import pytest

PRIME = 67
CASES = {"gpt2_mini": ["--dim=batch=2", f"--dim=seq={PRIME}"], "gpt2_mini_opset14": ["--dim=batch=2", f"--dim=seq={PRIME}"],
         "gpt2_mini_raw": ["--dim=batch=2", f"--dim=seq={PRIME}"], "llama_mini": ["--dim=batch=2", f"--dim=seq={PRIME}"],
         "bert_mini": ["--batch=3"], "vit_mini": ["--batch=3"]}
LENGTHS = {"bert_mini": 48, "vit_mini": 50}


def values(text):
    """(program, type) of every value that has memory."""
    program = None
    for line in text.splitlines():
        if match := re.match(r"  func @\S+\(.* role (\w+)", line):
            program = match[1]
        elif " = launch " in line or " = loop " in line:
            types = line[line.index("} : ") + 4:]
            for shape in re.findall(r"\w+\[([\d,]*)\]", types.split(" phase ")[0]):
                yield program, [int(x) for x in shape.split(",") if x]


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("name", CASES)
def test_no_scores_are_stored(run, models, name, precision):
    length = LENGTHS.get(name, PRIME)
    text = run("dump", models / name / "model.onnx", *CASES[name], "--loss=cross_entropy", "--optimizer=adamw", f"--precision={precision}",
               "--stage=memory", "--target=cpu:x86-64-v4").stdout
    found = list(values(text))
    assert {p for p, _ in found} >= {"accumulate", "eval", "update"} and "kernel @attention_grad" in text
    assert not [(p, shape) for p, shape in found if shape.count(length) > 1]


def test_stored_scores_are_found(run, models):
    text = run("dump", models / "gpt2_mini/model.onnx", *CASES["gpt2_mini"], "--loss=cross_entropy", "--optimizer=adamw", "--stage=memory",
               "--disable=recognize").stdout
    assert any(shape.count(PRIME) > 1 for _, shape in values(text))
