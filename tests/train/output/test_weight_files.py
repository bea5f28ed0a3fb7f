"""Weights go out as safetensors under the module's names, and come in from safetensors and ONNX, with one prefix more or less."""
import json
import subprocess

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

DATA = ["--data=x=x.npy", "--data=labels=y.npy", "--progress=off", "--table=off"]
SHAPES = {"net.fc1.weight": (5, 6), "net.fc1.bias": (6,), "onnx::MatMul_7": (6, 3)}


def numbers(*shape):
    n = int(np.prod(shape))
    return (np.arange(n, dtype=np.float32) / n - 0.5).reshape(shape)


def read(path):
    """name -> array, of a safetensors file; f32 alone."""
    raw = path.read_bytes()
    n = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + n])
    return {k: np.frombuffer(raw[8 + n:][slice(*t["data_offsets"])], np.float32).reshape(t["shape"]) for k, t in header.items() if k != "__metadata__"}


def write(path, tensors):
    header, at = {}, 0
    for name, a in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(a.shape), "data_offsets": [at, at + a.nbytes]}
        at += a.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(np.ascontiguousarray(a, np.float32).tobytes() for a in tensors.values()))


def model(weights, graph_name="g"):
    nodes = [helper.make_node("MatMul", ["x", "net.fc1.weight"], ["h"]), helper.make_node("Add", ["h", "net.fc1.bias"], ["a"]),
             helper.make_node("MatMul", ["a", "onnx::MatMul_7"], ["y"])]
    graph = helper.make_graph(nodes, graph_name, [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 5])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 3])], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def tensors(scale=1.0):
    return {name: scale * numbers(*shape) for name, shape in SHAPES.items()}


@pytest.fixture(scope="module")
def folder(gradc, tmp_path_factory):
    """`train`, whose matrix onnx::MatMul_7 is the transpose of the module's net.fc2.weight."""
    folder = tmp_path_factory.mktemp("weights")
    onnx.save(model([numpy_helper.from_array(a, n) for n, a in tensors().items()]), folder / "m.onnx")
    np.save(folder / "x.npy", numbers(8, 5))
    np.save(folder / "y.npy", numbers(8, 3))
    subprocess.run([gradc, "compile", "m.onnx", "-o", "train", "--loss=mse", "--adapter-name=onnx::MatMul_7=net.fc2.weight"],
                   cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture
def train(run, folder, tmp_path):
    for name in "m.onnx", "x.npy", "y.npy":
        (tmp_path / name).symlink_to(folder / name)
    return lambda *words, **more: run(folder / "train", *words, **more)


def loaded(train, tmp_path, file):
    """What an executable has that loads the file; what it said."""
    said = train(f"--load={file}", "--steps=0", "--export=loaded.safetensors").stderr
    return read(tmp_path / "loaded.safetensors"), said


def by_module(weights):
    out = dict(weights)
    out["net.fc2.weight"] = out.pop("onnx::MatMul_7").T
    return out


def same(found, want):
    assert found.keys() == want.keys()
    for name, a in want.items():
        np.testing.assert_array_equal(found[name], a, err_msg=name)


def test_weights_have_the_modules_names_and_layout(train, tmp_path):
    train(*DATA, "--steps=3", "--export=t.safetensors", "--export-merged=t.onnx", exit=2)  # no adapters to merge
    train(*DATA, "--steps=3", "--export=t.safetensors")
    train(*DATA, "--steps=3", "--export=t.onnx")
    exported = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "t.onnx").graph.initializer}
    same(read(tmp_path / "t.safetensors"), by_module({n: exported[n] for n in SHAPES}))
    assert not list(tmp_path.glob("t.safetensors?*")) and not list(tmp_path.glob(".gradc*"))
    assert all((exported[n] != a).any() for n, a in tensors().items())  # it was trained


@pytest.mark.parametrize("file", ["t.safetensors", "t.onnx"])
def test_what_goes_out_comes_in(train, tmp_path, file):
    """The same evaluation, and the same weights."""
    evaluation = ["--eval-data=x=x.npy", "--eval-data=labels=y.npy"]
    trained = train(*DATA, *evaluation, "--steps=20", "--lr=0.01", f"--export={file}").stdout
    train(*DATA, "--steps=20", "--lr=0.01", "--export=same.safetensors")
    again = train(*DATA, *evaluation, f"--load={file}", "--steps=1", "--lr=0").stdout
    loss = trained.split("-> ")[1].split(",")[0]
    assert f"eval loss {loss.strip()} -> {loss.strip()}" in again
    found, said = loaded(train, tmp_path, file)
    same(found, read(tmp_path / "same.safetensors"))
    assert "not a parameter" not in said and "keeps its initial value" not in said and "names with" not in said


def encoded(name, a, how):
    if how == "raw":
        return numpy_helper.from_array(a, name)
    if how in ("float_data", "double_data"):
        return helper.make_tensor(name, TensorProto.FLOAT if how == "float_data" else TensorProto.DOUBLE, a.shape, a.ravel().astype(float).tolist())
    kind = {"f16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16, "f16_int32": TensorProto.FLOAT16, "bf16_int32": TensorProto.BFLOAT16}[how]
    t = helper.make_tensor(name, kind, a.shape, a.ravel().tolist())
    if "int32" not in how and not t.raw_data:
        bits = np.array(t.int32_data, np.uint16)
        del t.int32_data[:]
        t.raw_data = bits.tobytes()
    return t


@pytest.mark.parametrize("how", ["raw", "float_data", "double_data", "f16", "bf16", "f16_int32", "bf16_int32"])
def test_encodings_of_onnx(train, tmp_path, how):
    weights = {n: np.round(a * 64) / 64 for n, a in tensors(2).items()}  # exact in bf16
    onnx.save(model([encoded(n, a, how) for n, a in weights.items()]), tmp_path / "other.onnx")
    same(loaded(train, tmp_path, "other.onnx")[0], by_module(weights))


def test_constants_and_external_data(train, tmp_path):
    weights = tensors(3)
    m = model([numpy_helper.from_array(weights[n], n) for n in list(SHAPES)[:2]])
    m.graph.node.insert(0, helper.make_node("Constant", [], ["onnx::MatMul_7"], value=numpy_helper.from_array(weights["onnx::MatMul_7"], "anything")))
    (tmp_path / "at").mkdir()
    onnx.save(m, tmp_path / "at/other.onnx", save_as_external_data=True, location="other.data", size_threshold=0, convert_attribute=False)
    same(loaded(train, tmp_path, "at/other.onnx")[0], by_module(weights))
    (tmp_path / "at/other.data").write_bytes(b"short")
    assert "which lacks them" in train("--load=at/other.onnx", "--steps=0", "--export=e.safetensors", exit=7).stderr
    (tmp_path / "at/other.data").unlink()
    assert "No such file" in train("--load=at/other.onnx", "--steps=0", "--export=e.safetensors", exit=7).stderr


@pytest.mark.parametrize("location, says", [("../secret", "not a plain path"), ("/etc/passwd", "not a plain path"), ("link", "outside of the model's folder"), ("", "without a location")])
def test_external_data_stays_in_its_folder(train, tmp_path, location, says):
    (tmp_path / "at").mkdir()
    (tmp_path / "secret").write_bytes(bytes(1000))
    (tmp_path / "at/link").symlink_to(tmp_path / "secret")
    t = TensorProto(name="net.fc1.weight", data_type=TensorProto.FLOAT, dims=[5, 6], data_location=TensorProto.EXTERNAL)
    t.external_data.add(key="location", value=location)
    onnx.save(model([t]), tmp_path / "at/other.onnx")
    said = train("--load=at/other.onnx", "--steps=0", "--export=e.safetensors", exit=7).stderr
    assert 'tensor "net.fc1.weight"' in said and says in said and not (tmp_path / "e.safetensors").exists()


@pytest.mark.parametrize("prefix", ["model.", "module.", "base_model.model.", "a/b/"])
@pytest.mark.parametrize("kind", ["safetensors", "onnx"])
def test_files_with_a_prefix(train, tmp_path, prefix, kind):
    weights = tensors(2) if kind == "onnx" else by_module(tensors(2))
    with_prefix = {prefix + n: a for n, a in weights.items()}
    if kind == "onnx":
        onnx.save(model([numpy_helper.from_array(a, n) for n, a in with_prefix.items()]), tmp_path / "other.onnx")
    else:
        write(tmp_path / "other.safetensors", with_prefix)
    found, said = loaded(train, tmp_path, f"other.{kind}")
    same(found, by_module(tensors(2)))
    assert f'--load: 3 tensors of other.{kind} match after the prefix "{prefix}" is removed' in said and "warning: other" not in said


def test_models_with_a_prefix(train, tmp_path):
    write(tmp_path / "other.safetensors", {n.removeprefix("net."): a for n, a in by_module(tensors(2)).items()})
    found, said = loaded(train, tmp_path, "other.safetensors")
    same(found, by_module(tensors(2)))
    assert 'match after the prefix "net." is added' in said


def test_a_prefix_of_some_names(train, tmp_path):
    """The prefix that finds most tensors counts; what is missing and what is left over is told."""
    weights = by_module(tensors(2))
    write(tmp_path / "other.safetensors", {"model." + n: a for n, a in list(weights.items())[:2]})
    said = loaded(train, tmp_path, "other.safetensors")[1]
    assert 'after the prefix "model." is removed' in said and said.count("it keeps its initial value") == len(weights) - 2
    # Without a prefix as many tensors fit: no prefix is taken.
    names = list(weights)
    write(tmp_path / "other.safetensors", {"model." + names[0]: weights[names[0]], names[1]: weights[names[1]]})
    said = loaded(train, tmp_path, "other.safetensors")[1]
    assert "after the prefix" not in said and f'"model.{names[0]}" is not a parameter' in said


def test_a_name_of_another_parameter(run, models):
    said = run("compile", models / "mlp_digits/model.onnx", "-o", "train", "--batch=32", "--adapter-name=0.weight=2.weight", exit=2).stderr
    assert '"2.weight" is the name of another parameter' in said


def test_two_prefixes_that_fit(train, tmp_path):
    weights = by_module(tensors(2))
    write(tmp_path / "other.safetensors", {p + n: a for p in ("ema.", "model.") for n, a in weights.items()})
    said = train("--load=other.safetensors", "--steps=0", "--export=e.safetensors", exit=7).stderr
    assert 'two prefixes of its names fit the model, "ema." and "model."' in said


def test_unknown_tensors_of_onnx_are_told_in_one_line(train, tmp_path):
    more = {f"more{i}": numbers(2, 2) for i in range(5)}
    shape = numpy_helper.from_array(np.array([2, 3]), "a shape")
    onnx.save(model([shape] + [numpy_helper.from_array(a, n) for n, a in {**tensors(2), **more}.items()]), tmp_path / "other.onnx")
    said = loaded(train, tmp_path, "other.onnx")[1]
    assert 'other.onnx: "more0", "more1", "more2" and 2 more: not parameters of this model: left out' in said and "a shape" not in said


@pytest.mark.parametrize("change, says", [
    (lambda t: t.dims.__setitem__(0, 6), "has more or fewer bytes"), (lambda t: t.dims.__setitem__(0, 2**62), "has an impossible shape"),
    (lambda t: t.dims.__setitem__(0, -1), "has an impossible shape"), (lambda t: setattr(t, "raw_data", b"x"), "has more or fewer bytes"),
    (lambda t: (t.ClearField("raw_data"), t.int32_data.append(1)), "in a field that its type does not use"),
    (lambda t: (t.ClearField("raw_data"), t.float_data.append(1)), "has more or fewer elements")])
def test_tensors_that_lie(train, tmp_path, change, says):
    m = model([numpy_helper.from_array(a, n) for n, a in tensors().items()])
    change(m.graph.initializer[0])
    onnx.save(m, tmp_path / "other.onnx")
    said = train("--load=other.onnx", "--steps=0", "--export=e.safetensors", exit=7).stderr
    assert 'other.onnx: tensor "net.fc1.weight"' in said and says in said


def test_broken_files(train, tmp_path):
    """No cut and no byte ends the program by a signal; a cut inside of the graph is a fault."""
    whole = model([numpy_helper.from_array(a, n) for n, a in tensors().items()]).SerializeToString()
    rng = np.random.default_rng(0)
    for k in range(60):
        bad = bytearray(whole[:rng.integers(len(whole))] if k % 2 else whole)
        if k % 2 == 0:
            for at in rng.integers(len(bad), size=4):
                bad[at] = rng.integers(256)
        (tmp_path / "other.onnx").write_bytes(bad)
        assert train("--load=other.onnx", "--steps=0", "--export=e.safetensors", exit=None).returncode in (0, 7)
    for bad in b"", b"\xff" * 100, b"not a model at all":
        (tmp_path / "other.onnx").write_bytes(bad)
        assert "other.onnx is no ONNX file" in train("--load=other.onnx", "--steps=0", "--export=e.safetensors", exit=7).stderr


def test_endings_of_exports(train, tmp_path):
    for option in "--export-form=as-imported", "--export-preprocessing=on":
        assert "needs --export FILE.onnx" in train(*DATA, "--steps=1", "--export=t.safetensors", option, exit=2).stderr
    assert "wrote t.safetensors (weights alone)" in train(*DATA, "--steps=1", "--export=t.safetensors").stderr
    assert train(*DATA, "--steps=1", "--export=t.safetensors", "-q").stderr == ""
    for option in "--export", "--export-merged":
        said = train(*DATA, "--steps=1", f"{option}=weights.pt", exit=2).stderr
        assert f"{option}=weights.pt: need FILE.onnx or FILE.safetensors" in said and not list(tmp_path.glob("*.pt"))


@pytest.mark.parametrize("name, dims, names", [
    ("mlp_digits", [], ["0.weight", "4.bias"]), ("vit_mini", [], ["vit.layers.0.attention.q_proj.weight", "vit.embeddings.cls_token"]),
    ("llama_mini", ["--dim=seq=8"], ["model.layers.0.self_attn.k_proj.weight", "model.embed_tokens.weight"])])
def test_reference_models(gradc, models, tmp_path, name, dims, names):
    """Names are those of the module, without a name that an exporter made; matrices have the module's layout."""
    subprocess.run([gradc, "compile", models / name / "model.onnx", "-o", tmp_path / "train", "--batch=2", *dims], check=True, capture_output=True)
    say = lambda *words: subprocess.run([tmp_path / "train", "--steps=0", *words], cwd=tmp_path, check=True, capture_output=True, text=True)
    say("--export=a.safetensors")
    say("--export=a.onnx")
    for file in "a.safetensors", "a.onnx":
        assert "no \"" not in say(f"--load={file}", "--export=b.safetensors").stderr
        assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    found = read(tmp_path / "a.safetensors")
    assert not [n for n in found if n.startswith(("onnx::", "val_", "/"))] and {*names} <= found.keys()
    assert name != "llama_mini" or found["model.layers.0.self_attn.k_proj.weight"].shape == (32, 64)


def test_statistics_go_out(gradc, tmp_path):
    values = {"w": numbers(5, 4), "bn.weight": numbers(4) + 1, "bn.bias": numbers(4), "bn.running_mean": numbers(4), "bn.running_var": numbers(4) + 1}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("BatchNormalization", ["h", *list(values)[1:]], ["y"])]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 5])], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 4])],
                              [numpy_helper.from_array(a, n) for n, a in values.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", numbers(8, 5))
    np.save(tmp_path / "y.npy", np.arange(8) % 4)
    say = lambda *words: subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, text=True)
    say(gradc, "compile", "m.onnx", "-o", "train", "--loss=cross_entropy", "--train-mode=restore")
    say(tmp_path / "train", *DATA, "--steps=5", "--export=t.safetensors")
    found = read(tmp_path / "t.safetensors")
    assert found.keys() == values.keys() and (found["bn.running_mean"] != values["bn.running_mean"]).any()
    say(tmp_path / "train", "--load=t.safetensors", "--steps=0", "--export=u.safetensors")
    same(read(tmp_path / "u.safetensors"), found)


def test_weights_with_adapters(gradc, tmp_path):
    """--export-merged has the sums; --export of the weights alone is refused."""
    onnx.save(model([numpy_helper.from_array(a, n) for n, a in tensors().items()]), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", numbers(8, 5))
    np.save(tmp_path / "y.npy", numbers(8, 3))
    say = lambda *words: subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, text=True)
    say(gradc, "compile", "m.onnx", "-o", "train", "--loss=mse", "--lora=net.fc1.weight,rank=2,alpha=2")
    say(tmp_path / "train", *DATA, "--steps=5", "--export-adapter=a", "--export-merged=u.safetensors")
    merged, parts = read(tmp_path / "u.safetensors"), read(tmp_path / "a/adapter_model.safetensors")
    a, b = (parts[f"base_model.model.net.fc1.lora_{p}.weight"] for p in "AB")
    assert merged.keys() == SHAPES.keys() and abs(b @ a).max() > 1e-5
    np.testing.assert_allclose(merged["net.fc1.weight"] - tensors()["net.fc1.weight"], (b @ a).T, atol=1e-6)
    done = subprocess.run([tmp_path / "train", *DATA, "--steps=5", "--export=t.safetensors"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "would lack the adapters" in done.stderr and "--export-merged" in done.stderr
