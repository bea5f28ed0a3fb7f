"""Writes dynamic_map.json: bitsandbytes' map of 256 numbers (functional.py, create_dynamic_map), with and without a sign, by torch's own
arithmetic in f32, as the bits of each number."""
import json
from pathlib import Path

import torch

BITS, DECADES = 8, 7


def dynamic_map(is_signed):
    numbers = [0.0, 1.0]
    for decade in range(DECADES):
        edges = torch.linspace(0.1, 1, 2 ** (decade + (not is_signed)) + 1)
        middles = (edges[:-1] + edges[1:]) / 2.0
        scale = 10 ** (decade - DECADES + 1)
        numbers += (scale * middles).tolist() + ((-scale * middles).tolist() if is_signed else [])
    numbers += [0.0] * (2 ** BITS - len(numbers))
    return torch.tensor(sorted(numbers), dtype=torch.float32).view(torch.int32).tolist()


def main():
    path = Path(__file__).with_name("dynamic_map.json")
    path.write_text(json.dumps({"torch": torch.__version__, "signed": dynamic_map(True), "unsigned": dynamic_map(False)}) + "\n")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
