#!/usr/bin/env python3
"""Writes docs/models.md from results.json.

usage: tests/zoo/page.py
"""
import json
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs/models.md"
MEANINGS = {
    "right": "the loss of every step and the set of trained tensors equal the framework's",
    "told": "gradc trains something other than the framework, and `check` says so",
    "refused": "gradc says what it cannot do, and exits",
    "wrong": "other losses, or another tensor trains, without a word",
    "not exported": "the framework's exporter failed; not counted",
}


def cell(text):
    return str(text).replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def totals(models):
    counts = Counter(m["result"] for m in models)
    counted = sum(counts.values()) - counts["not exported"]
    good = counts["right"] + counts["refused"]
    lines = ["| result | models | meaning |", "|---|---|---|"]
    lines += [f"| {k} | {counts[k]} | {v} |" for k, v in MEANINGS.items() if counts[k]]
    share = f" ({100 * good / counted:.1f} %)" if counted else ""
    return [f"{counted} models: {good}{share} right or refused.", "", *lines]


def table(framework, entry):
    versions = ", ".join(f"{k} {v}" for k, v in entry.get("versions", {}).items())
    lines = [f"## {framework}", "", versions + "." if versions else "", ""]
    if "problem" in entry:
        lines += [f"On the machine of this page {entry['problem']}.", ""]
    if not entry["models"]:
        return lines
    lines += ["| model | exporter | form | parameters | result | losses differ by | what was said |",
              "|---|---|---|---|---|---|---|"]
    for name, m in entry["models"].items():
        form = f"{m['form']}{'' if m.get('is_moved', True) else ', fresh'}"
        off = f"{m['loss_difference']:.1e}" if "loss_difference" in m else ""
        lines.append(f"| {name} | {m['exporter']} | {form} | {m.get('parameters') or ''} | {m['result']} | {off} | "
                     f"{cell(m.get('message', ''))} |")
    return lines + [""]


def text(results):
    models = [m for f in results["frameworks"].values() for m in f["models"].values()]
    head = ["# Models of the zoo", "",
            "Written by `tests/zoo/page.py` from `tests/zoo/results.json`; `make zoo` makes both. "
            "[tests/zoo](../tests/zoo/README.md) says how the", "models are made and compared. *fresh*: the weights "
            "are as the library initializes them; the weights of all other models have noise added. The column \"losses differ by\" has",
            "the largest relative difference of five steps, in f32.", "", f"Measured on {results['date']}.", ""]
    lines = head + totals(models) + [""]
    for framework, entry in results["frameworks"].items():
        lines += table(framework, entry)
    return "\n".join(lines).rstrip() + "\n"


def write(results):
    PAGE.write_text(text(results))


if __name__ == "__main__":
    write(json.loads((HERE / "results.json").read_text()))
