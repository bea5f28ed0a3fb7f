"""bitsandbytes' bytes of 4-bit weights, in tests/references/four_bit/: x.npy, and of KIND nf4 and fp4 KIND_{codes,absmax,numbers}.npy; absmax_{codes,
nested,offset,numbers}.npy of nf4's absmax ("double quantization") and nested_numbers.npy of both.

The codes of absmax are those of its reference code and of its CUDA kernels (the nearest number): its CPU library looks up 2/65535 steps of [-1, 1] instead
and takes a neighbour for some codes in a thousand. The mean is rounded from f64: torch's f32 sum depends on the CPU's vectors.
"""
from pathlib import Path

import bitsandbytes.functional as F
import numpy as np
import torch

OUT = Path(__file__).with_name("four_bit")
BLOCK, OF_ABSMAX = 64, 256


def blockwise(x, code):
    """bitsandbytes/backends/default/ops.py, quantize_blockwise."""
    whole = len(x) - len(x) % OF_ABSMAX
    blocks = x[:whole].reshape(-1, OF_ABSMAX)
    absmax = blocks.abs().amax(-1) if whole else torch.empty(0)
    scaled = torch.clamp(blocks * (1.0 / absmax.clamp(min=1e-38).view(-1, 1)), -1, 1).reshape(-1)
    if whole < len(x):
        last = x[whole:].abs().max().clamp(min=1e-38)
        absmax, scaled = torch.cat([absmax, last[None]]), torch.cat([scaled, torch.clamp(x[whole:] / last, -1, 1)])
    return torch.bucketize(scaled, (code[:-1] + code[1:]) / 2).to(torch.uint8), absmax


def nested(absmax):
    """(codes, their absmax, offset, the numbers that they stand for)"""
    code = F.create_dynamic_map()
    offset = absmax.double().mean().float()
    codes, sizes = blockwise(absmax - offset, code)
    return codes, sizes, offset, code[codes.long()] * sizes.repeat_interleave(OF_ABSMAX)[:len(codes)] + offset


def numbers(codes, absmax, kind, shape):
    state = F.QuantState(absmax=absmax, shape=torch.Size(shape), code=F.get_4bit_type(kind, "cpu"), blocksize=BLOCK, quant_type=kind, dtype=torch.float32)
    return F.dequantize_4bit(codes, state)


def dequantized(weight, kind="nf4", double=True):
    """What QLoRA multiplies by in place of a weight [outputs, inputs]."""
    codes, state = F.quantize_4bit(weight.float().contiguous(), quant_type=kind, blocksize=BLOCK)
    return numbers(codes, nested(state.absmax)[3] if double else state.absmax, kind, weight.shape)


def main():
    OUT.mkdir(exist_ok=True)
    torch.manual_seed(0)
    x = torch.randn(149, 117) * torch.logspace(-3, 1, 149)[:, None]  # 17433: rest of a block, 272 and a rest of absmax, an odd number
    x[3], x[7, :40], x[9, 5] = 0, -0.0, 1e-42
    np.save(OUT / "x.npy", x.numpy())
    for kind in ("nf4", "fp4"):
        codes, state = F.quantize_4bit(x, quant_type=kind, blocksize=BLOCK)
        for name, value in (("codes", codes.reshape(-1)), ("absmax", state.absmax), ("numbers", numbers(codes, state.absmax, kind, x.shape))):
            np.save(OUT / f"{kind}_{name}.npy", value.numpy())
        np.save(OUT / f"{kind}_nested_numbers.npy", dequantized(x, kind).numpy())
    for name, value in zip(("codes", "nested", "offset", "numbers"), nested(state.absmax)):
        np.save(OUT / f"absmax_{name}.npy", value.reshape(-1).numpy())


if __name__ == "__main__":
    main()
