"""The kept models of the zoo train as in their frameworks, and the page of the zoo is what its results say."""
import json
import re
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import judge  # noqa: E402
import keep  # noqa: E402
import page  # noqa: E402

NAMES = [name.replace("/", "_") for name in keep.KEPT]


def judged(gradc, folder, name, *options):
    """(case, what the comparison says) of a kept model, compiled with more options."""
    keep.unpack(HERE / "models" / name, folder)
    case = json.loads((folder / "case.json").read_text())
    case["options"] += options
    (folder / "case.json").write_text(json.dumps(case))
    return case, judge.judge(gradc, folder)


@pytest.mark.parametrize("name", NAMES)
def test_a_kept_model_trains_as_in_its_framework(gradc, tmp_path, name):
    case, said = judged(gradc, tmp_path, name)
    assert said["result"] == case["result"], said.get("message")
    assert keep.changed(tmp_path) == case["changed"]


@pytest.mark.parametrize("option, what", [
    ("--freeze=coefficient", "coefficient does not train and coefficients.0 does in the framework"),
    ("--train=transform_matrix", "transform_matrix trains and has the values of no parameter"),
    ("--lr-scale=intercepts=2", "losses are"),
])
def test_the_comparison_sees_what_trains_otherwise(gradc, tmp_path, option, what):
    _, said = judged(gradc, tmp_path, "sklearn_pca_and_mlp", option)
    assert said["result"] == "wrong" and what in said["message"]


def test_the_page_is_made_of_the_results():
    assert page.PAGE.read_text() == page.text(json.loads((HERE / "results.json").read_text()))


ATTENTIONS = {"timm_deit_distilled_fresh": 2, "transformers_marian": 6, "transformers_clip": 4, "transformers_whisper": 6,
              "transformers_wav2vec2_folded": 2, "diffusers_prior": 2, "keras_scaled_attention": 1}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_is_recognized(run, tmp_path, name):
    """Each softmax of scores is part of an attention that a kernel computes, forward and backward."""
    keep.unpack(HERE / "models" / name, tmp_path)
    options = json.loads((tmp_path / "case.json").read_text())["options"]
    text = run("dump", "model.onnx", *options, "--optimizer=sgd", "--after=recognize").stdout
    forward = text[text.index("  func @forward"):]
    forward = forward[:forward.index("\n  }")]
    assert len(re.findall(r" = call .*callee = @attention", forward)) == ATTENTIONS[name]
    assert not re.search(r" = exp .* : \w+\[\d", forward)
    loops = run("dump", "model.onnx", *options, "--optimizer=sgd", "--stage=memory").stdout
    assert "kernel @attention_" in loops and "kernel @attention_grad_" in loops and "callee = @attention" not in loops
