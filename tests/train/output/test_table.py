"""Who is trainable, frozen, state: as each model's reference.json says, from the graph alone (without
the --freeze options of its command lines)."""
import json

import pytest
import reference


def expected(name):
    """{parameter: kind}; a tied parameter goes by its first initializer, the others are its copies."""
    meta = reference.load(name)
    copies = set((meta["tied"] or {}).get("initializers", [])[1:])
    kinds = {}
    for p in meta["parameters"]:
        if p["name"] not in copies:
            kinds[p["name"]] = ("trainable" if p["trainable"] else
                                "state" if p["kind"] == "state" else "frozen")
    return kinds


@pytest.mark.parametrize("name", reference.NAMES)
def test_table(run, models, name):
    dims = [f"--dim={k}={v}" for k, v in reference.load(name)["dims"].items()]
    said = json.loads(run("check", "--json", *dims, models / name / "model.onnx").stdout)
    rows = {p["name"]: p for p in said["parameters"]}
    want, faults = expected(name), []
    for key, kind in want.items():
        # What is no parameter may have been folded away.
        if kind == "frozen" and key not in rows:
            continue
        got = rows[key]["kind"] if key in rows else "absent"
        if got != kind:
            faults.append(f"{key}: {got}, expected {kind}")
    faults += [f"{k}: {r['kind']}, not in the reference" for k, r in rows.items()
               if k not in want and r["kind"] != "frozen"]
    assert not faults, "\n".join(faults)
    assert all(r["why"] for r in rows.values())
