"""The page of the zoo is what its results say."""
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import page  # noqa: E402


def test_the_page_is_made_of_the_results():
    assert page.PAGE.read_text() == page.text(json.loads((HERE / "results.json").read_text()))
