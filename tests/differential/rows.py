#!/usr/bin/env python3
"""Whether rows of explained.VALUES explain what they are for, and no fault beside it. Exit status 1: one does not."""
import sys
from types import SimpleNamespace

import numpy as np
import onnx

import explained
import judge

NAN = np.float32(np.nan)
ROWS = {  # operator, attributes, inputs, what gradc gives, what is right; the row that explains it
    "log of zero": ("Log", {}, [np.float32([1e-8, 2])], np.float32([NAN, 0.693147]), np.float32([-18.42, 0.693147]), "cancellation"),
    "log": ("Log", {}, [np.float32([3, 2])], np.float32([1, 2]), np.float32([1.0986123, 0.693147]), None),
    "log of another": ("Log", {}, [np.float32([1e-8, 2])], np.float32([NAN, 2]), np.float32([-18.42, 0.693147]), None),
    "bits": ("BitCast", {}, [np.float32([NAN, 1])], np.int32([-1, 5]), np.int32([-1, 6]), None),
    "no batch": ("GRU", {}, [np.zeros((3, 0, 2), np.float32)], np.float32([1]), np.float32([2]), None),
    "no steps": ("GRU", {}, [np.zeros((0, 3, 2), np.float32)], np.float32([1]), np.float32([2]), "recurrence of nothing"),
    "within the windows": ("ConvTranspose", {"output_shape": [3]}, [np.ones((1, 1, 2), np.float32)] * 2, np.ones((1, 1, 3), np.float32),
                           np.zeros((1, 1, 3), np.float32), None),
}


def explains(op, attributes, inputs, got, want):
    model = onnx.helper.make_model(onnx.helper.make_graph([onnx.helper.make_node(op, ["x"], ["y"], **attributes)], "g", [], []))
    place = judge.Place(model.graph.node[0], "", inputs, got, want, False)
    return explained.of_values(SimpleNamespace(model=model, feed={}), place, {"y": "1 of 2 differ"})


def main():
    wrong = 0
    for name, (*fault, row) in ROWS.items():
        found = explains(*fault)
        if found != row:
            print(f"{name}: explained by {found}, want {row}")
            wrong += 1
    print(f"{len(ROWS)} rows, {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
