"""usage: write.py MODEL.onnx...: lines that each model writes in onnxruntime, byte by byte from the likely ones."""
import sys

import numpy as np
import onnxruntime

BEGIN, LENGTH, TEMPERATURE, CONTEXT = b"And the ", 240, 0.6, 64

for path in sys.argv[1:]:
    session, random = onnxruntime.InferenceSession(path), np.random.default_rng(0)
    text = list(BEGIN)
    while len(text) < LENGTH:
        logits = session.run(None, {"input_ids": np.array([text[-CONTEXT:]], np.int64)})[0][0, -1].astype(np.float64)
        likely = np.exp((logits - logits.max()) / TEMPERATURE)
        text.append(int(random.choice(len(likely), p=likely / likely.sum())))
    print(f"{path}:\n{bytes(text).decode('ascii', 'replace')}\n")
