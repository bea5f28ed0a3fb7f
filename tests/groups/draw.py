"""Draws choices so that each value of each axis occurs about as often as its weight says, in combinations that a seed decides."""
import random
from dataclasses import dataclass
from typing import Callable

NOTHING = "-"  # the value of an axis that a spelling does not have


@dataclass
class Axis:
    name: str
    weights: dict                        # value -> how often it is drawn
    applies: Callable = lambda c: True   # has a spelling with these earlier choices this axis?
    fits: Callable = lambda c, v: True   # may the value v stand beside these earlier choices?


class Drawer:
    def __init__(self, axes, seed):
        self.axes, self.random = axes, random.Random(seed)
        self.counts = {axis.name: dict.fromkeys(axis.weights, 0) for axis in axes}

    def value(self, axis, choices):
        """Mostly the value that occurred least, or another one that fits; only random() is the same in every Python."""
        counts = self.counts[axis.name]
        candidates = [v for v in axis.weights if axis.fits(choices, v)]
        assert candidates, (axis.name, choices)
        order = sorted(candidates, key=lambda v: ((counts[v] + self.random.random()) / axis.weights[v]))
        value = order[0] if self.random.random() < 0.7 else order[int(self.random.random() * len(order))]
        counts[value] += 1
        return value

    def draw(self):
        """{axis: value}, one value of each axis."""
        choices = {}
        for axis in self.axes:
            choices[axis.name] = self.value(axis, choices) if axis.applies(choices) else NOTHING
        return choices


def counted(drawn, name):
    """value -> how many of the drawn choices have it"""
    counts = {}
    for choices in drawn:
        counts[choices[name]] = counts.get(choices[name], 0) + 1
    return counts
