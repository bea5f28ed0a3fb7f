"""The graphs of the bench models: whole, and enough for gradc with random weights."""
import json
import math
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import workloads  # noqa: E402

# Trainable numbers, as PyTorch counts them.
PARAMETERS = {"mlp": 1_863_690, "gpt2_10m": 10_844_160, "gpt2_124m": 124_439_808, "llama_100m": 95_534_720,
              "bert_base": 109_483_778, "vit_small": 22_050_664, "resnet18": 11_689_512, "resnet50": 25_557_032,
              "gpt_256": 5_322_240}


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_graph_has_the_parameters_of_its_model(run, tmp_path, name):
    workloads.write_graph(name, tmp_path / "g.onnx")
    said = json.loads(run("check", "g.onnx", "--init=random", "--json", *workloads.sized(name)[1].options).stdout)
    shapes = [p["shape"] for p in said["parameters"] if p["kind"] == "trainable"]
    assert sum(map(math.prod, shapes)) == PARAMETERS[name]


def test_no_other_models():
    assert {*workloads.MODELS, *workloads.LONG} == set(PARAMETERS)
    assert {p.name for p in workloads.GRAPHS.glob("*.xz")} == {f"{name}.onnx.xz" for name in PARAMETERS}


def test_sizes():
    name, gpt2 = workloads.sized("gpt2_124m:1x1024")
    assert name == "gpt2_124m" and gpt2.text() == "1x1024" and gpt2.labels == (1024,)
    assert gpt2.options == ("--dim=batch=1", "--dim=seq=1024")
    assert workloads.sized("bert_base:2x64")[1].labels == ()
    assert workloads.sized("resnet18") == ("resnet18", workloads.MODELS["resnet18"])


@pytest.mark.parametrize("text,fault", [("gpt3", KeyError), ("gpt3:1x2", KeyError), ("gpt2_10m:8", ValueError), ("gpt2_10m:0x8", ValueError),
                                        ("gpt2_10m:ax8", ValueError), ("resnet18:1x2", ValueError), ("gpt2_10m:1x2x3", ValueError)])
def test_sizes_that_no_model_has(text, fault):
    with pytest.raises(fault):
        workloads.sized(text)
