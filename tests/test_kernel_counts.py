"""How many kernels the usual pieces become, counted on dumps after `lower`."""
import re

import pytest

PIPELINE = ("trainable,loss{kind=%s,axis=%d},autograd,inline,simplify,"
            "optimizer{name=adamw},units,simplify,fuse,lower")

SOFTMAX = """
  %1 = reduce %0 {kind = max, axes = [1]} : f32[64] loc "piece"
  %2 = broadcast %1 {shape = [64,96], axes = [0]} : f32[64,96] loc "piece"
  %3 = sub %0, %2 : f32[64,96] loc "piece"
  %4 = exp %3 : f32[64,96] loc "piece"
  %5 = reduce %4 {kind = sum, axes = [1]} : f32[64] loc "piece"
  %6 = broadcast %5 {shape = [64,96], axes = [0]} : f32[64,96] loc "piece"
  %7 = div %4, %6 : f32[64,96] loc "piece"
"""
LAYER_NORM = """
  %n = constant {value = f32[] [0.010416667]} : f32[] loc "piece"
  %nw = broadcast %n {shape = [64]} : f32[64] loc "piece"
  %eps = constant {value = f32[] [1e-05]} : f32[] loc "piece"
  %epsw = broadcast %eps {shape = [64]} : f32[64] loc "piece"
  %1 = reduce %0 {kind = sum, axes = [1]} : f32[64] loc "piece"
  %2 = mul %1, %nw : f32[64] loc "piece"
  %3 = broadcast %2 {shape = [64,96], axes = [0]} : f32[64,96] loc "piece"
  %4 = sub %0, %3 : f32[64,96] loc "piece"
  %5 = mul %4, %4 : f32[64,96] loc "piece"
  %6 = reduce %5 {kind = sum, axes = [1]} : f32[64] loc "piece"
  %v = mul %6, %nw : f32[64] loc "piece"
  %ve = add %v, %epsw : f32[64] loc "piece"
  %r = rsqrt %ve : f32[64] loc "piece"
  %rw = broadcast %r {shape = [64,96], axes = [0]} : f32[64,96] loc "piece"
  %h = mul %4, %rw : f32[64,96] loc "piece"
  %g = broadcast @gamma {shape = [64,96], axes = [1]} : f32[64,96] loc "piece"
  %hg = mul %h, %g : f32[64,96] loc "piece"
  %b = broadcast @beta {shape = [64,96], axes = [1]} : f32[64,96] loc "piece"
  %7 = add %hg, %b : f32[64,96] loc "piece"
"""
# The piece stands between two products, so that no neighbour joins its kernels.
AROUND = """
state @w1 : f32[32,96] parameter saved trainable decay
state @w2 : f32[96,48] parameter saved trainable decay
%s
func @forward(%%x: f32[64,32] is input 0) -> f32[64,48] role forward {
  %%0 = dot %%x, @w1 {x_contract = [1], y_contract = [0]} : f32[64,96] loc "first"
%s
  %%8 = dot %%7, @w2 {x_contract = [1], y_contract = [0]} : f32[64,48] loc "second"
  return %%8
}
"""
GAMMA = """
state @gamma : f32[96] parameter saved trainable decay
state @beta : f32[96] parameter saved trainable decay
"""


@pytest.fixture
def launches(run, tmp_path):
    """launches(text, loss, axis): {function: [line of a kernel's launch]}."""

    def of(text, loss="mse", axis=-1):
        (tmp_path / "m.gir").write_text(text)
        out = run("opt", tmp_path / "m.gir", "--passes=" + PIPELINE % (loss, axis)).stdout
        bodies = re.findall(r"^  func @(\w+)\((.*?)^  }", out, re.M | re.S)
        return {name: [line for line in body.splitlines() if " launch " in line]
                for name, body in bodies}

    return of


def count(lines, *words):
    return sum(all(w in line for w in words) for line in lines)


def test_softmax_is_one_kernel_and_its_gradient_one(launches):
    kernels = launches(AROUND % ("", SOFTMAX))["accumulate"]
    assert count(kernels, '"piece"', "phase forward") == 1, kernels
    assert count(kernels, '"piece"', "phase backward") == 1, kernels


def test_layer_norm_is_one_kernel_and_its_gradient_at_most_two(launches):
    kernels = launches(AROUND % (GAMMA, LAYER_NORM))["accumulate"]
    assert count(kernels, '"piece"', "phase forward") == 1, kernels
    assert 1 <= count(kernels, '"piece"', "phase backward") <= 2, kernels


def test_cross_entropy_is_one_kernel_an_addition_of_partials_and_one_gradient(launches):
    text = AROUND % ("", "  %7 = neg %0 : f32[64,96]")
    kernels = launches(text, "cross_entropy", 1)
    # The gradient may lie in the same kernel.
    assert 1 <= count(kernels["accumulate"], '"loss"') <= 3, kernels["accumulate"]
    assert 1 <= count(kernels["eval"], '"loss"') <= 4, kernels["eval"]  # and the metric


def test_optimizer_is_one_kernel_per_group(launches):
    """Kernels that write something as large as a unit; the rest are scalars for all groups."""
    unit = re.compile(r": .*f32\[\d{4,}\]")
    for text, groups in ((AROUND % ("", SOFTMAX), 1),
                         (AROUND % (GAMMA.replace(" decay", ""), LAYER_NORM), 2)):
        kernels = launches(text)["update"]
        assert sum(bool(unit.search(line)) for line in kernels) == groups, "\n".join(kernels)
