"""docs/coverage.md is what `scripts/coverage-page` writes, and gradients are where the standard asks for them and checked where there are any."""
import importlib.util
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts/coverage-page"
# Read at compile time only, or with gradients by their own rules: tests/quantize, tests/import.
ELSEWHERE = {"ConcatFromSequence", "Optional", "OptionalGetElement", "SequenceAt", "SequenceConstruct", "SequenceErase", "SequenceInsert", "SequenceMap",
             "SplitToSequence", "DequantizeLinear", "QuantizeLinear", "QLinearConv", "QLinearMatMul", "MatMulBnb4", "MatMulNBits", "Gradient",
             "DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "MatMulIntegerToFloat", "QGemm", "QLinearAdd", "QLinearConcat", "QLinearGlobalAveragePool",
             "QLinearLeakyRelu", "QLinearMul", "ArrayFeatureExtractor", "LinearClassifier", "LinearRegressor", "Normalizer", "Scaler", "QLinearSigmoid", "QLinearSoftmax"}


@pytest.fixture(scope="module")
def page():
    loader = SourceFileLoader("coverage_page", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


def test_the_page_is_new(build):
    page = subprocess.run([sys.executable, SCRIPT, build], check=True, capture_output=True, text=True).stdout
    assert page == (ROOT / "docs/coverage.md").read_text(), "make docs"


def test_the_standards_gradients(page, build):
    read = page.rows(build)
    without = {name for (domain, name), rows in read.items() if domain == page.ONNX and rows[0][2] != "yes"}
    assert page.tagged() <= {name for domain, name in read if domain == page.ONNX}
    assert not page.tagged() & without


def test_every_gradient_is_checked(page, build):
    checked = page.checks()
    unchecked = {name for (domain, name), rows in page.rows(build).items() if rows[0][2] == "yes" and not checked[domain, name]}
    assert unchecked == ELSEWHERE
    by_torch = [key for key, by in checked.items() if "PyTorch" in by]
    assert len(by_torch) >= 100
