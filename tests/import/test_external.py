"""External data where others keep it: in a Hugging Face cache, beside a link, behind a link. Whatever is refused
has a hint that helps."""
import os
import subprocess
import sys

import pytest
from onnx import TensorProto

sys.path.insert(0, os.path.dirname(__file__))
from make_malformed import model, node, value  # noqa: E402


def files(path, location):
    """A model of one tensor outside, and the tensor's bytes."""
    t = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=(3, 2), data_location=TensorProto.EXTERNAL)
    t.external_data.add(key="location", value=location)
    path.parent.mkdir(parents=True, exist_ok=True)
    m = model([node("MatMul", ["x", "w"])], inputs=[value("x", ("batch", 3))], initializers=[t])
    path.write_bytes(m.SerializeToString())


def data(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(24))


def link(path, target):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def hub(d):
    """As huggingface_hub lays a repository out: a snapshot has links alone."""
    files(d / "models--a--b/blobs/1111", "model.onnx_data")
    data(d / "models--a--b/blobs/2222")
    link(d / "models--a--b/snapshots/abc/onnx/model.onnx", "../../../blobs/1111")
    link(d / "models--a--b/snapshots/abc/onnx/model.onnx_data", "../../../blobs/2222")
    return d / "models--a--b/snapshots/abc/onnx/model.onnx"


def hub_edited(d):
    """A model of its own in a snapshot, over the cache's data."""
    path = hub(d)
    path.unlink()
    files(path, "./model.onnx_data")
    return path


def linked_model(d):
    """The link is elsewhere than the model and its data."""
    files(d / "store/m.onnx", "m.data")
    data(d / "store/m.data")
    link(d / "work/model.onnx", "../store/m.onnx")
    return d / "work/model.onnx"


def linked_twice(d):
    """The data lie beside the link in the middle."""
    files(d / "store/m.onnx", "m.data")
    data(d / "middle/m.data")
    link(d / "middle/m.onnx", "../store/m.onnx")
    link(d / "work/model.onnx", "../middle/m.onnx")
    return d / "work/model.onnx"


def linked_into_hub(d):
    link(d / "work/model.onnx", hub(d))
    return d / "work/model.onnx"


def folder_called_snapshots(d):
    """Of somebody's own; its neighbour `blobs` is none of the model's."""
    files(d / "snapshots/a/m.onnx", "w.bin")
    data(d / "blobs/1")
    link(d / "snapshots/a/w.bin", "../../blobs/1")
    return d / "snapshots/a/m.onnx"


def two(d):
    path = linked_model(d)
    data(d / "work/m.data")
    return path


def circle(d):
    files(d / "m.onnx", "w.bin")
    link(d / "w.bin", "v.bin")
    link(d / "v.bin", "w.bin")
    return d / "m.onnx"


def circle_beside_link(d):
    files(d / "store/m.onnx", "m.data")
    link(d / "work/m.data", "m.data")
    link(d / "work/model.onnx", "../store/m.onnx")
    return d / "work/model.onnx"


def linked_folder(d):
    files(d / "store/m.onnx", "m.data")
    data(d / "store/m.data")
    link(d / "work", "store")
    return d / "work/m.onnx"


def out_of_cache(d):
    path = hub(d)
    data(d / "models--c--d/blobs/2222")
    path.with_name("model.onnx_data").unlink()
    link(path.with_name("model.onnx_data"), "../../../../models--c--d/blobs/2222")
    return path


def hard(d):
    files(d / "m.onnx", "w.bin")
    data(d / "v.bin")
    os.link(d / "v.bin", d / "w.bin")
    return d / "m.onnx"


def missing(d):
    files(d / "m.onnx", "w.bin")
    return d / "m.onnx"


def above(d):
    files(d / "a/m.onnx", "../w.bin")
    data(d / "w.bin")
    return d / "a/m.onnx"


def pointer(d):
    files(d / "m.onnx", "w.bin")
    (d / "w.bin").write_bytes(b"version https://")
    return d / "m.onnx"


def check(gradc, *arguments, **where):
    return subprocess.run([gradc, "check", *map(str, arguments)], capture_output=True, text=True, **where)


@pytest.mark.parametrize("make", [hub, hub_edited, linked_model, linked_folder, linked_twice, linked_into_hub])
def test_found(gradc, tmp_path, make):
    path = make(tmp_path)
    run = check(gradc, path)
    assert run.returncode == 0, run.stderr
    run = check(gradc, path.name, cwd=path.parent)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("make,code,words", [
    (out_of_cache, 3, ["a link leads out of the model's folder", "models--c--d/blobs/2222", "copy that file into"]),
    (hard, 3, ["hard link", "2 names", "cp FILE COPY"]),
    (missing, 5, ["No such file", "second file", "w.bin"]),
    (above, 3, ["../w.bin", "save_as_external_data=True"]),
    (folder_called_snapshots, 3, ["a link leads out of the model's folder"]),
    (two, 3, ["two files of that name", "work/model.onnx"]),
    (pointer, 5, ["git lfs pull"]),
])
def test_refused_with_a_hint(gradc, tmp_path, make, code, words):
    run = check(gradc, make(tmp_path))
    assert run.returncode == code, run.stderr
    assert "hint: " in run.stderr
    for word in words:
        assert word in run.stderr, run.stderr


@pytest.mark.parametrize("make", [circle, circle_beside_link])
def test_links_in_a_circle_are_named(gradc, tmp_path, make):
    run = check(gradc, make(tmp_path))
    assert run.returncode == 3 and "levels of symbolic links" in run.stderr and "leads out" not in run.stderr


def test_outputs_do_not_become_the_data(gradc, tmp_path):
    """Beside a link to a model, an output of the data's name would be taken for the data."""
    path = linked_model(tmp_path)
    run = subprocess.run([gradc, "quantize", str(path), "-o", "m.data"], capture_output=True, text=True, cwd=path.parent)
    assert run.returncode == 2 and "the model's data" in run.stderr and not (path.parent / "m.data").exists()


@pytest.mark.parametrize("make", [hub, linked_model])
def test_outputs_spare_the_file_behind_the_link(gradc, tmp_path, make):
    """-o over the data that links lead to is refused, whatever path names them."""
    path = make(tmp_path)
    blob = next(p for p in tmp_path.rglob("*") if p.is_file() and not p.is_symlink() and p.stat().st_size == 24)
    run = subprocess.run([gradc, "quantize", str(path), "-o", str(blob)], capture_output=True, text=True)
    assert run.returncode == 2, run.stderr
    assert blob.read_bytes() == bytes(24)
