"""What the workspace holds when a training step needs most of it: each buffer has a reader to come, and nothing lies there twice. The printed plan
is read again, so the sum of the buffers must be the planned size, to the byte."""
import re

import pytest

CLASSES = "--loss=cross_entropy"
MODELS = {"gpt2_mini": ["--dim=batch=8", "--dim=seq=64", CLASSES], "llama_mini": ["--dim=batch=8", "--dim=seq=64", CLASSES], "bert_mini": ["--batch=8", CLASSES], "vit_mini": ["--batch=8", CLASSES],
          "resnet_mini": ["--batch=8", CLASSES], "mobilenet_mini": ["--batch=8", CLASSES], "unet_mini": ["--batch=8", "--loss=mse"], "lstm_chars": ["--batch=8", CLASSES]}
BITS = {"f64": 64, "f32": 32, "f16": 16, "bf16": 16, "bool": 8, "u8": 8, "s8": 8}
PLACES = r"(?:workspace|state|io|param|result|host)\+\d+"
NODE = re.compile(rf"    (?:(?P<results>%[\w.]+(?:, %[\w.]+)*) = )?(?P<op>\w+) ?(?P<operands>.*?)(?: \{{(?P<attributes>.*?)\}})?"
                  rf"(?: : (?P<types>\w+\[[\d,]*\](?:, \w+\[[\d,]*\])*))?(?: phase \w+)?(?: when (?P<when>\w+))?(?: at (?P<places>{PLACES}(?:, {PLACES})*))?(?: loc .*)?")


def size(written):
    """Bytes of a block for a value of this type."""
    dtype, dims = re.fullmatch(r"(\w+)\[([\d,]*)\]", written).groups()
    n = 1
    for d in filter(None, dims.split(",")):
        n *= int(d)
    return max(64, -(-n * BITS.get(dtype, int(dtype[1:]) if dtype[1:].isdigit() else 64) // 8 // 64) * 64)


def functions(text):
    """{name: nodes}; a node has its results with (offset, bytes) in the workspace, operands, and bodies."""
    found = {}
    for name, body in re.findall(r"^  func @([\w.]+)\(.*?\{\n(.*?)^  \}", text, re.S | re.M):
        nodes = found[name] = []
        for line in body.splitlines():
            m = NODE.fullmatch(line)
            assert m, line
            results = (m["results"] or "").split(", ") if m["results"] else []
            places = dict(zip(results, zip((m["places"] or "").split(", "), (m["types"] or "").replace("], ", "] ").split(" "))))
            nodes.append({"line": line.strip(), "operands": re.findall(r"%[\w.]+", m["operands"]), "when": m["when"], "op": m["op"],
                          "bodies": re.findall(r"(?:body|then|else) = @([\w.]+)", m["attributes"] or ""),
                          "kernel": re.findall(r"kernel = @([\w.]+)", m["attributes"] or ""),
                          "results": {v: (int(p.split("+")[1]), size(t)) for v, (p, t) in places.items() if p.startswith("workspace+")}})
    return found


def body_ranges(found, name):
    for n in found[name]:
        yield from n["results"].values()
        for b in n["bodies"]:
            yield from body_ranges(found, b)


class Plan:
    def __init__(self, text):
        self.bytes = int(re.search(r"regions state \d+ workspace (\d+)", text)[1])
        found = functions(text)
        self.nodes = found["accumulate"]
        self.born, self.place, self.readers = {}, {}, {}
        for at, n in enumerate(self.nodes):
            for v, place in n["results"].items():
                self.born[v], self.place[v], self.readers[v] = at, place, []
            for v in n["operands"]:
                if v in self.readers:
                    self.readers[v].append(at)
        self.inside = {at: [r for b in n["bodies"] for r in body_ranges(found, b)] for at, n in enumerate(self.nodes) if n["bodies"]}

    def live(self, at):
        return [v for v in self.born if self.born[v] <= at <= max(self.readers[v], default=self.born[v])]

    def bytes_at(self, at):
        covered, end = 0, 0
        bodies = self.inside.get(at, [])
        whole = [(min(r[0] for r in bodies), max(r[0] + r[1] for r in bodies))] if bodies else []
        for begin, last in sorted([(self.place[v][0], sum(self.place[v])) for v in self.live(at)] + whole):
            covered += max(0, last - max(begin, end))
            end = max(end, last)
        return covered

    def table(self, at):
        rows = [f"at most {self.bytes} bytes, at: {self.nodes[at]['line'][:120]}"]
        for v in sorted(self.live(at), key=lambda v: -self.place[v][1]):
            readers = [self.nodes[r]["line"].split(" = ")[0] for r in self.readers[v]]
            rows.append(f"{self.place[v][1]:>10}  {v:<6} {self.nodes[self.born[v]]['line'].split(' : ')[0][-60:]:<60} read by {readers}")
        return "\n".join(rows)


@pytest.mark.parametrize("target", ["cpu:x86-64-v4", "cuda:sm_90a"])
@pytest.mark.parametrize("most", ["--max-accumulate=1", "--max-accumulate=4"])
@pytest.mark.parametrize("model", MODELS)
def test_buffers_at_the_peak(run, models, model, most, target):
    options = [*MODELS[model], "--optimizer=adamw", f"--target={target}", most]
    plan = Plan(run("dump", models / model / "model.onnx", "--stage=memory", *options).stdout)
    peak = max(range(len(plan.nodes)), key=plan.bytes_at)
    print(plan.table(peak))
    assert plan.bytes_at(peak) == plan.bytes
    kernels = {v: plan.nodes[plan.born[v]]["kernel"] for v in plan.live(peak)}
    for v in plan.live(peak):
        assert plan.born[v] == peak or max(plan.readers[v]) >= peak, v
        copied = [u for u in plan.nodes[plan.born[v]]["operands"] if u in kernels] if any("copy" in k for k in kernels[v]) else []
        assert not copied, (v, copied)
    if most == "--max-accumulate=1":
        assert all(bytes <= 64 for n in plan.nodes if n["when"] for _, bytes in n["results"].values())  # sums of the loss, and of its targets
