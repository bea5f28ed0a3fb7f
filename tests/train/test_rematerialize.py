"""What the backward pass computes again has the bits that the forward pass would have kept, and takes less memory where
layers are many."""
import json

import pytest
import reference


@pytest.mark.parametrize("name, most", [("gpt2_mini", 0.9), ("cnn_mnist", 1.05), ("vit_mini", 1.05),
                                        ("resnet_mini", 1.05)])
def test_same_bits_in_less_memory(run, models, tmp_path, name, most):
    logs, workspaces = [], []
    for disabled in [], ["--disable=rematerialize"]:
        exe, log = tmp_path / "train", tmp_path / "log.jsonl"
        run("compile", "model.onnx", "-o", exe, *reference.compile_options(name, "f32"), *disabled,
            cwd=models / name)
        run(exe, *reference.train_options(name, "f32"), "--log", log, "--progress=off", cwd=models / name)
        logs.append([(line["loss"], line["grad_norm"]) for line in reference.log_lines(log) if "lr" in line])
        info = json.loads(run(exe, "--info", "--json").stdout)
        workspaces.append(info["regions"]["workspace"])
    assert logs[0] == logs[1] and len(logs[0]) > 1
    assert workspaces[0] < most * workspaces[1]
