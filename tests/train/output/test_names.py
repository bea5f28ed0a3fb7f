"""A model may call its tensors what it likes: no name has a meaning for the compiler, the runtime or a file format."""
import itertools
import json
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
import reference

WORDS = ["labels", "sample_weight", "loss.sum", "loss.count", "metric.correct", "grad.x", "scalar.lr", "lr", "loss_scale",
         "accumulate", "forward", "eval", "update", "step", "seed", "unit.0.parameter", "grad_norm", "loss",
         "constant.0000000000000000", "main", "int", "dot_0", "gradc_model", "%0", "0", "@f", "_", "loc", "phase", "a=b",
         "../x", "a\nb", '"', "\\", "names.json", "onnx::MatMul_1", "val_0", "/fc/MatMul_output_0", "n" * 300]
PLACES = ["input", "output", "initializer", "node", "dimension", "value"]


def graph_names(graph):
    """{place: names in the order of the file}, each name in one place."""
    initializers = [t.name for t in graph.initializer]
    inputs = [i.name for i in graph.input if i.name not in initializers]
    outputs = [o.name for o in graph.output]
    given = {*inputs, *outputs, *initializers}
    dims = [d.dim_param for v in [*graph.input, *graph.output] for d in v.type.tensor_type.shape.dim]
    return {"input": inputs, "output": outputs, "initializer": initializers,
            "node": [n.name for n in graph.node], "dimension": list(dict.fromkeys(filter(None, dims))),
            "value": [o for n in graph.node for o in n.output if o and o not in given]}


def user_names(graph):
    """What an export must keep: an un-merged parameter is an initializer in place of an Identity's output."""
    names = graph_names(graph)
    return (names["input"], names["output"], names["dimension"], sorted(names["initializer"] + names["value"]),
            [n.name for n in graph.node if n.op_type != "Identity"])


def spread(names):
    """All words over all names, as often as it takes. Tensors share one room, nodes and dimensions have their own."""
    renamed, taken = {}, {}
    for place, list_ in names.items():
        room = place if place in ("node", "dimension") else "tensor"
        for name in list_:
            k = taken[room] = taken.get(room, -1) + 1
            word = WORDS[k % len(WORDS)]
            renamed[place, name] = word if k < len(WORDS) else f"{word}.{k // len(WORDS)}"
    return renamed


def rename(model, renamed):
    """Renames what `renamed` has; other names stay, unless they would be one of the new ones."""
    graph = model.graph
    names = graph_names(graph)
    tensors, nodes, dims = {}, {}, {}
    for place, list_ in names.items():
        table = {"node": nodes, "dimension": dims}.get(place, tensors)
        for name in list_:
            other = renamed.get((place, name), name)
            if (place, name) not in renamed and other in renamed.values():
                other += "_"
            table[name] = other
    for node in graph.node:
        node.name = nodes[node.name]
        node.input[:] = [tensors.get(i, i) for i in node.input]
        node.output[:] = [tensors.get(o, o) for o in node.output]
    for thing in [*graph.initializer, *graph.input, *graph.output, *graph.value_info]:
        thing.name = tensors.get(thing.name, thing.name)
    for v in [*graph.input, *graph.output, *graph.value_info]:
        for d in v.type.tensor_type.shape.dim:
            if d.dim_param:
                d.dim_param = dims.get(d.dim_param, d.dim_param)
    return tensors, dims


def glob_of(name):
    return "".join("?" if c in "*?[]\\" else c for c in name)


def compile_options(name, tensors, dims):
    options, words = [], iter(reference.compile_options(name, "f32"))
    for word in words:
        if word == "--dim":
            dim, value = next(words).split("=")
            options.append(f"--dim={dims[dim]}={value}")
        elif word.startswith("--loss="):
            kind, output = word.split(":", 1)
            options.append(f"{kind}:{tensors[output]}")
        elif word.startswith("--freeze="):
            options.append("--freeze=" + glob_of(tensors[word.removeprefix("--freeze=")]))
        else:
            options.append(word)
    return options


def train_options(name, tensors, labels, steps):
    options = []
    for word in reference.train_options(name, "f32"):
        if word.startswith("--steps"):
            word = f"--steps={steps}"
        match = re.fullmatch(r"--data[= ](\w+)=(.*)", word)
        if match:
            input_, file = match.groups()
            word = f"--data={labels if input_ == 'labels' else tensors[input_]}={file}"
        options.append(word)
    words = []  # --data NAME=FILE in two words
    for word in options:
        if words and words[-1] == "--data":
            input_, file = word.split("=", 1)
            word = f"{labels if input_ == 'labels' else tensors[input_]}={file}"
        words.append(word)
    return words


def labels_name(model):
    inputs = graph_names(model.graph)["input"]
    fresh = (name for name in ["labels", *(f"labels.{i}" for i in range(2, 9))] if name not in inputs)
    return next(fresh)


class Bench:
    def __init__(self, gradc, models, name, tmp_path):
        self.gradc, self.folder, self.name, self.tmp = gradc, models / name, name, tmp_path
        self.n = itertools.count()
        names = graph_names(onnx.load(self.folder / "model.onnx").graph)
        tensors = {n: n for place in ("input", "output", "initializer") for n in names[place]}
        options = compile_options(name, tensors, {d: d for d in names["dimension"]})
        self.original = self.trained(self.folder / "model.onnx", options)

    def run(self, *command):
        done = subprocess.run([str(c) for c in command], cwd=self.folder, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return done.stdout

    def trained(self, path, options):
        """Names of the parameters that a compile line trains."""
        shown = self.run(self.gradc, "check", path, "--json", *[o for o in options if not o.startswith("--optimizer")])
        return {p["name"] for p in json.loads(shown)["parameters"] if p["kind"] == "trainable"}

    def same_verdicts(self, path, options, tensors):
        """Who trains is the importer's judgement, for which names are evidence (frontend/weights/roles.c): here it is given."""
        want = {tensors.get(n, n) for n in self.original}
        return [f"--freeze={glob_of(n)}" for n in self.trained(path, options) - want]

    def losses(self, renamed, steps=2):
        """Of a model with other names: losses as text, after its export and its text form were looked at."""
        folder = self.tmp / str(next(self.n))
        folder.mkdir()
        model = onnx.load(self.folder / "model.onnx")
        tensors, dims = rename(model, renamed)
        path, exe, log, export = (folder / f for f in ("model.onnx", "train", "log.jsonl", "out.onnx"))
        onnx.save(model, path)
        options = compile_options(self.name, tensors, dims)
        options += self.same_verdicts(path, options, tensors)
        self.run(self.gradc, "compile", path, "-o", exe, *options)
        self.run(exe, *train_options(self.name, tensors, labels_name(model), steps), "--log", log, "--export", export,
                 "--export-form=as-imported", "--progress=off", "--table=off")
        after = onnx.load(export)
        assert user_names(after.graph) == user_names(model.graph)
        return [line["loss"] for line in reference.log_lines(log)], (path, options, folder)

    def check_text(self, path, options, folder):
        """What the compiler prints it reads, and prints again."""
        for stage in ("train", "memory"):
            dump = folder / f"dump-{stage}"
            self.run(self.gradc, "dump", path, f"--stage={stage}", f"--dump-dir={dump}", *options)
            first = dump / f"{stage}.gir"
            again = folder / f"{stage}.again.gir"
            self.run(self.gradc, "opt", first, "-o", again)
            assert again.read_text() == first.read_text(), stage


@pytest.mark.parametrize("name", reference.NAMES)
def test_all_words_over_all_names(gradc, models, tmp_path, name):
    bench = Bench(gradc, models, name, tmp_path)
    want, _ = bench.losses({})
    names = graph_names(onnx.load(models / name / "model.onnx", load_external_data=False).graph)
    got, made = bench.losses(spread(names))
    assert got == want
    bench.check_text(*made)


@pytest.mark.parametrize("place", PLACES)
def test_each_word_in_each_place(gradc, models, tmp_path, place):
    """Of a small model; test_all_words_over_all_names has larger ones."""
    name = "mlp_digits"
    bench = Bench(gradc, models, name, tmp_path)
    names = graph_names(onnx.load(models / name / "model.onnx").graph)[place]
    want, _ = bench.losses({})

    def try_words(i):
        """As many as there are names at that place."""
        renamed = {(place, old): word for old, word in zip(names, WORDS[i:])}
        got, made = bench.losses(renamed)
        assert got == want, renamed
        if i % 8 < len(names):
            bench.check_text(*made)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(try_words, range(0, len(WORDS), len(names))))


def test_gradients_and_results_are_files_of_their_own(run, models, tmp_path):
    """names.json has every name as it is; files lie in the folder, whatever the names say."""
    model = onnx.load(models / "mlp_digits/model.onnx")
    names = graph_names(model.graph)
    words = ["../x", "loss", "names.json", "grad.x", "a\nb", "..?x", "/x"]
    rename(model, dict(zip([("initializer", n) for n in names["initializer"]], words, strict=False)))
    onnx.save(model, tmp_path / "model.onnx")
    x = np.load(models / "mlp_digits/input.npy")[:3]
    labels = np.load(models / "mlp_digits/labels.npy")[:3]
    np.save(tmp_path / "x=1.npy", x)
    np.save(tmp_path / "y.npy", labels)
    for engine in ("compiled", "interp"):
        out = tmp_path / engine / "out"
        run("grad", tmp_path / "model.onnx", "--loss=cross_entropy", f"--engine={engine}", "--output-dir", out,
            "--input", f"input={tmp_path / 'x=1.npy'}", "--input", f"labels={tmp_path / 'y.npy'}")
        found = json.loads((out / "names.json").read_text())
        assert set(graph_names(model.graph)["initializer"]) <= set(found)
        assert {f.parent for f in (tmp_path / engine).rglob("*.npy")} == {out}
        assert len({entry["file"] for entry in found.values()}) == len(found)
        for entry in found.values():
            assert np.load(out / entry["file"]).shape == tuple(entry["shape"])


def test_an_input_with_an_equals_sign(run, models, tmp_path):
    """--input, --data and --fill take the longest name of an input that stands there."""
    model = onnx.load(models / "mlp_digits/model.onnx")
    rename(model, {("input", "input"): "a=b"})
    onnx.save(model, tmp_path / "model.onnx")
    file = Path(tmp_path / "c=d.npy")
    np.save(file, np.load(models / "mlp_digits/input.npy")[:4])
    results = []
    for engine in ("compiled", "interp"):
        run("run", tmp_path / "model.onnx", "--input", f"a=b={file}", f"--engine={engine}", "--output-dir",
            tmp_path / engine)
        results.append(reference.results(tmp_path / engine)["logits"])
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5, atol=1e-5)
    assert results[0].shape == (4, 10)


def test_the_table_shows_any_name(gradc, tmp_path):
    """Long names are cut between characters, and control bytes of names do not reach the terminal."""
    weight, x = "é" * 150, "\x1b[31mx\n"
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", [x, weight], ["y"])], "g",
        [onnx.helper.make_tensor_value_info(x, onnx.TensorProto.FLOAT, ["\x1bbatch", 3])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(np.ones((3, 2), np.float32), weight)])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8,
                                   producer_name="\x1b[2J")
    onnx.save(model, tmp_path / "m.onnx")
    done = subprocess.run([gradc, "check", tmp_path / "m.onnx"], capture_output=True)
    text = done.stdout.decode()  # valid UTF-8
    assert done.returncode == 0 and "\x1b" not in text and "\\x1B[31mx" in text
    assert re.search("  é+….*  f32", text)


def test_cut_names_keep_their_ends(gradc, tmp_path):
    """In the tables of check, of grad and before training; --table=full cuts nothing before training."""
    name = "base_model.model.transformer.decoder.layers.11.mlp.fc2.weight"
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", name], ["y"])], "g", [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 3])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", 2])],
        [onnx.numpy_helper.from_array(np.ones((3, 2), np.float32), name)])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.ones((4, 3), np.float32))
    np.save(tmp_path / "labels.npy", np.ones(4, np.int64))

    def say(*words):
        return subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, text=True)

    cut = re.compile(r"^  \"?base_mod\w*…[a-z.]*coder\.layers\.11\.mlp\.fc2\.weight\"? ", re.M)
    assert cut.search(say(gradc, "check", "m.onnx").stdout)
    data = ["--input=x=x.npy", "--input=labels=labels.npy", "--loss=cross_entropy"]
    assert cut.search(say(gradc, "grad", "m.onnx", *data, "--check-gradients=1").stdout)
    say(gradc, "compile", "m.onnx", "-o", "train", "--batch=4", "--loss=cross_entropy")
    train = [tmp_path / "train", "--data=x=x.npy", "--data=labels=labels.npy", "--steps=1"]
    table = say(*train).stderr
    assert cut.search(table) and all(len(line) < 110 for line in table.splitlines() if "fc2" in line)
    assert name in say(*train, "--table=full").stderr
