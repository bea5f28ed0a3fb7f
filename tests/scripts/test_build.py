"""The build itself: what it says when a dependency is missing, and what the Makefile offers."""
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NEEDS = re.findall(r"^\s*need\((\w+) (\w+) NAMES (\S+) PACKAGE (\S+)\)",
                   (ROOT / "CMakeLists.txt").read_text(), re.M)


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    """without(VARIABLE): what configuring says where all is found but this."""

    def configure(missing):
        folder = tmp_path_factory.mktemp("configure")
        # What is given is not looked for; what is looked for, in a folder that holds nothing.
        given = [f"-D{v}=/" for v, *_ in NEEDS if v != missing]
        hide = folder / "hide.cmake"
        hide.write_text(f"set(CMAKE_FIND_ROOT_PATH {folder})\n" + "".join(
            f"set(CMAKE_FIND_ROOT_PATH_MODE_{kind} ONLY)\n"
            for kind in ("PROGRAM", "LIBRARY", "INCLUDE")))
        return subprocess.run(
            ["cmake", "-G", "Ninja", "-S", ROOT, "-B", folder / "build", *given,
             f"-DCMAKE_PROJECT_gradc_INCLUDE={hide}"], capture_output=True, text=True)

    return configure


@pytest.mark.parametrize("variable, kind, name, package",
                         [n for n in NEEDS if not n[0].startswith("CMOCKA")],
                         ids=lambda v: v)
def test_a_missing_dependency_names_its_package(without, variable, kind, name, package):
    done = without(variable)
    said = " ".join(done.stderr.split())
    assert done.returncode and f"{name} not found: install the package {package}" in said


def test_the_packages_are_those_that_setup_installs():
    setup = (ROOT / "scripts/setup").read_text()
    assert not [package for *_, package in NEEDS if package not in setup]


def test_what_is_installed_works(build, models, tmp_path):
    def call(*command):
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    call("cmake", "--install", build, "--prefix", tmp_path / "to")
    call(tmp_path / "to/bin/gradc", "compile", models / "mlp_digits/model.onnx", "-o", "train",
         "--batch=4")
    assert "cpu:native" in call(tmp_path / "train", "--info")
    (tmp_path / "client.c").write_text('#include "runtime/gradc.h"\n'
                                       "GradcOptions (*f)(void) = gradc_default_options;\n")
    call("cc", "-std=c11", "-Wall", "-Werror", "-I", tmp_path / "to/include/gradc", "-c",
         tmp_path / "client.c")


def test_make_help_lists_every_target():
    makefile = (ROOT / "Makefile").read_text()
    targets = re.search(r"^\.PHONY: (.*)$", makefile, re.M)[1].split()
    said = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert [line.split()[0] for line in said.stdout.splitlines()
            if not line.startswith("make")] == targets
