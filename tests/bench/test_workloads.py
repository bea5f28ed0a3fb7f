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
              "bert_base": 109_483_778, "vit_small": 22_050_664, "resnet18": 11_689_512, "resnet50": 25_557_032}


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_graph_has_the_parameters_of_its_model(run, tmp_path, name):
    workloads.write_graph(name, tmp_path / "g.onnx")
    said = json.loads(run("check", "g.onnx", "--init=random", "--json", *workloads.MODELS[name].options).stdout)
    shapes = [p["shape"] for p in said["parameters"] if p["kind"] == "trainable"]
    assert sum(map(math.prod, shapes)) == PARAMETERS[name]


def test_no_other_models():
    assert set(workloads.MODELS) == set(PARAMETERS)
    assert {p.name for p in workloads.GRAPHS.glob("*.xz")} == {f"{name}.onnx.xz" for name in PARAMETERS}
