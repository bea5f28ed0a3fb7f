"""How gradc is compared with PyTorch on a GPU: which runs there are, the formula of MFU, what is printed."""
import importlib.util
import sys
from pathlib import Path

import pytest

GPU = Path(__file__).resolve().parents[2] / "bench/gpu"
sys.path.append(str(GPU))
spec = importlib.util.spec_from_file_location("gpu_compare", GPU / "compare.py")  # bench/ has a compare.py, too
compare = importlib.util.module_from_spec(spec)
spec.loader.exec_module(compare)


def test_llm_cs_formula():
    """(6 N + 6 L C T) operations a token: 468,000 tokens a second are 38 % of an H100's 989.4 TFLOP/s."""
    assert compare.llm_c_mfu("gpt2_124m", 468e3, 1024, 989.4e12) == pytest.approx(0.3800, abs=1e-4)
    assert compare.llm_c_mfu("resnet50", 468e3, 1, 989.4e12) is None
    assert compare.llm_c_mfu("gpt2_124m", None, 1024, 989.4e12) is None


def test_the_peer_is_run_as_its_users_run_it():
    assert {o for options in compare.KINDS.values() for o in options} == {"--compile=default", "--compile=max-autotune-no-cudagraphs"}
    assert all(words % 64 == 0 and words >= 50257 for words in compare.PADDED.values())


def test_what_is_printed(capsys):
    compare.show("gpt2_124m", {
        "gradc": {"step_ms": 30.0, "tokens_per_s": 546133.0, "llm_c_mfu": 0.4434},
        "eager": {"step_ms": 60.0, "tokens_per_s": 273066.0, "attention_fused": True},
        "compile": {"fault": "no compiler"}, "llm.c": {**compare.LLM_C, "llm_c_mfu": 0.38}, "peer": "eager"})
    assert capsys.readouterr().out.splitlines() == [
        "gpt2_124m    gradc                      30.00 ms a step, 546133 tokens/s, MFU 0.443",
        "gpt2_124m    eager                      60.00 ms a step, gradc takes 0.500 of it, 273066 tokens/s, fused attention",
        "gpt2_124m    compile                no compiler",
        "gpt2_124m    llm.c                                     , 468000 tokens/s, MFU 0.380",
        "gpt2_124m    peer                   eager"]
