"""Products and convolutions run in the pretended libraries, in their turn of the pretended GPU's streams: the losses are PyTorch's."""
import json

import pytest
import reference
from pretended import ON_GPU
from tolerances import limit

LIBRARIES, STEPS = "--libraries=on", 3
CONVOLUTIONS = ("conv", "conv_grad_input", "conv_grad_weight")


def implementations(trainer, *options):
    """What --info says runs the calls: a set of (the op's name, the library's)."""
    told = json.loads(trainer.run(ON_GPU, LIBRARIES, "--info", "--json", *options).stdout)
    return {(c["call"].split(" ")[0], c["implementation"].split(" ")[0]) for c in told["library_calls"]}


@pytest.mark.parametrize("name", ["cnn_mnist", "mobilenet_mini"])
def test_losses(gpu, tmp_path, name):
    trainer = gpu.trainer(gpu.compile(name), tmp_path)
    want = reference.load(name)["traces"][0]["f32"]["losses"][:STEPS]
    losses = trainer.losses(ON_GPU, LIBRARIES, f"--steps={STEPS}", timeout=1200)
    assert implementations(trainer) - {("dot", "cuBLASLt")} == {(kind, "cuDNN") for kind in CONVOLUTIONS}
    assert len(losses) == STEPS
    assert max(abs(a - b) / abs(b) for a, b in zip(losses, want)) <= limit("loss f32", name)
