"""The kept models of the zoo train as in their frameworks, and the page of the zoo is what its results say."""
import json
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
