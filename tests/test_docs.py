"""The man page is that of the programs' own help; pages are those of the rows."""
import json
import re
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def option_rows(run, command="help", *words):
    """Option -> its row, as the help says it in JSON."""
    return {row["name"]: row for row in json.loads(run(command, *words or ("--all",), "--json").stdout)["options"]}


def choices(row):
    return row["value"].split("|")


def test_the_man_page_is_that_of_the_help(build, run):
    """`make docs` writes it. A build without LLVM has other printers."""
    if option_rows(run)["printer"]["value"] != "llvm|c":
        pytest.skip("built without LLVM")
    page = subprocess.run([sys.executable, ROOT / "scripts/man-page", build], check=True,
                          capture_output=True, text=True)
    assert page.stdout == (ROOT / "docs/gradc.1").read_text()


def test_the_page_of_recipes_is_that_of_the_dumps(build):
    """`make docs` writes it."""
    page = subprocess.run([sys.executable, ROOT / "scripts/recipes-page", build], check=True, capture_output=True, text=True)
    assert page.stdout == (ROOT / "docs/recipes.md").read_text()


def test_tables_of_passes_stages_and_options_are_those_of_the_rows(build, run):
    """`make docs` writes them into their pages. A build without LLVM has other printers."""
    if option_rows(run)["printer"]["value"] != "llvm|c":
        pytest.skip("built without LLVM")
    done = subprocess.run([sys.executable, ROOT / "scripts/page-tables", "--check", build], capture_output=True, text=True)
    assert done.returncode == 0, f"stale tables: {done.stdout}{done.stderr}"


def test_pages_count_operators_as_coverage_does():
    coverage = (ROOT / "docs/coverage.md").read_text()
    read, of = re.search(r"gradc reads (\d+) of the (\d+) operators of ONNX", coverage).groups()
    others = len(re.findall(r"^\| `(?:com\.microsoft|ai\.onnx\.preview)\.", coverage, re.M))
    assert f"{read} of the {of} standard ONNX operators" in (ROOT / "README.md").read_text()
    assert f"{read} of the standard's {of} operators, and {others} operators of onnxruntime" in (ROOT / "docs/features.md").read_text()


def test_the_picture_of_the_rooms_is_that_of_the_includes():
    made = subprocess.run([ROOT / "scripts/rooms-picture"], check=True, capture_output=True, text=True).stdout
    assert made == (ROOT / "docs/pictures/rooms.svg").read_text(), "stale: make docs"


ROOMS = SourceFileLoader("check_folders", str(ROOT / "scripts/check-folders")).load_module().ROOMS
SOURCES = {".c", ".h", ".def", ".py", ".cuh", ".html"}


def folders_of_sources():
    """Those of the rooms, and folders inside of rooms: path -> names of their sources."""
    found = {}
    for path in sorted(p for top in {room.split("/")[0] for room in ROOMS} for p in (ROOT / top).rglob("*")):
        if path.suffix in SOURCES and "__pycache__" not in path.parts:
            found.setdefault(path.parent.relative_to(ROOT).as_posix(), []).append(path.name)
    return found


FOLDERS = folders_of_sources()


def test_every_room_has_sources():
    assert [room for room in ROOMS if not any((folder + "/").startswith(room + "/") for folder in FOLDERS)] == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_readme_of_a_room_lists_its_files(folder):
    """In at most 40 lines, of a folder with at most 30 sources."""
    lines = (ROOT / folder / "README.md").read_text().splitlines()
    cells = " ".join(line.split("|")[1] for line in lines if line.startswith("|"))
    named = {word for word in re.findall(r"`([^`]+)`", cells) if Path(word).suffix in SOURCES}
    assert sorted(named ^ set(FOLDERS[folder])) == []
    assert len(lines) <= 40 and len(FOLDERS[folder]) <= 30
    assert lines[0].strip("# /") == folder


PAGES = [p for p in sorted((ROOT / "docs").glob("*.md"))]
OF_OTHER_PROGRAMS = {
    "command-line.md": {"--name", "--optimzer"},
    "cost-model.md": {"--page"}, "precision.md": {"--models", "--precisions"}, "extending.md": {"--build", "--preset"},
    "runtime.md": {"--kill-on-bad-exit", "--mca", "--no-kill", "--no-python", "--nproc-per-node"}}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_in_pages_are_options(build, run, page):
    """Each option that a page names has a line in the help of gradc or of an executable."""
    said = run("--help", "--all").stdout + subprocess.run([build / "tests/executable_help"], check=True, capture_output=True, text=True).stdout
    option = r"(?<![\w-])--[a-z][a-z0-9-]*"
    assert set(re.findall(option, page.read_text())) - set(re.findall(option, said)) == OF_OTHER_PROGRAMS.get(page.name, set())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_paths_in_pages_lead_somewhere(page):
    """Those to other pages, and names of files in the repository's folders. Files that patches of extending.md make are not there."""
    text = page.read_text()
    made = set(re.findall(r"`([\w./]+)`", "".join(re.findall(r"^\| `\w+\.patch` \|.*", text, re.M)))) if page.name == "extending.md" else set()
    folders = "|".join(sorted(p.name for p in ROOT.iterdir() if p.is_dir() and p.name[0] != "." and not p.name.startswith("build")))
    for link in re.findall(r"\]\(([^)#\s]+)", text):
        assert "://" in link or (page.parent / link).exists(), link
    for name in re.findall(rf"`((?:{folders})/[\w./-]*)`", text):
        assert (ROOT / name).exists() or name in made or name.endswith("/NAME"), name


def first_cells(page, head):
    """The words in code of the first cell of each row, in the tables whose head begins so."""
    for block in (ROOT / "docs" / page).read_text().split("\n\n"):
        rows = block.split("\n")
        if rows[0].startswith(head):
            yield from (word for row in rows[2:] for word in re.findall(r"`([^`]+)`", row.split(" | ")[0]))


def test_the_table_of_optimizers_has_the_rows_and_their_settings(run):
    said = json.loads(run("help", "--all", "--json").stdout)
    rows = {row["name"]: {setting["name"] for setting in row["settings"]} for row in said["optimizers"]}
    assert sorted(first_cells("training.md", "| NAME |")) == sorted(choices(option_rows(run)["optimizer"])) == sorted(rows)
    for row in re.findall(r"^\| (`.*?) \| [^|]* \| (.*?) ?\|", (ROOT / "docs/training.md").read_text().split("| NAME |")[1].split("\n\n")[0], re.M):
        settings = {setting for name in re.findall(r"`([a-z0-9-]+)`", row[0]) for setting in rows[name]}
        assert settings == set(re.findall(r"`(\w+)`", row[1])), row


def test_the_tables_of_learning_rates_have_every_schedule(build):
    said = subprocess.run([build / "tests/executable_help", "--json"], check=True, capture_output=True, text=True).stdout
    row = next(row for row in json.loads(said)["options"] if row["name"] == "lr-schedule")
    named = [word.split("[")[0] for word in first_cells("training.md", "| `--lr-schedule` |")]
    assert {*named} - {"-decay", "-cosine", "-range", "-cycle"} == {*choices(row)}


def test_the_table_of_precisions_has_every_precision(run):
    assert list(first_cells("precision.md", "| `--precision` |")) == choices(option_rows(run)["precision"])


def plain(line):
    return re.sub(r"\s+", " ", line).strip()


def test_the_layer_of_the_architecture_page_is_that_of_the_dumps(gradc, models, tmp_path):
    """Each line of the section's blocks stands in a dump; `...` is any text."""
    def say(*words):
        return subprocess.run([gradc, *words], check=True, capture_output=True, text=True, cwd=models / "mlp_digits").stdout

    of = ["model.onnx", "--batch=32", "--loss=cross_entropy", "--target=cpu:x86-64-v3"]
    say("compile", *of, "-o", tmp_path / "train")
    dumps = [say("dump", *of, f"--stage={stage}") for stage in ["import", "train", "fused", "lowered", "memory", "c"]]
    dumps += [say("dump", *of, "--after=events"), say("dump", tmp_path / "train", "--stage=schedule")]
    lines = {plain(line) for text in dumps for line in text.splitlines()}
    section = (ROOT / "docs/architecture.md").read_text().split("\n## One layer, stage by stage\n")[1].split("\n## ")[0]
    blocks = "".join(re.findall(r"```c?\n(.*?)```", section, re.S)).replace("\n    role", " role")
    missing = [line for line in map(plain, blocks.splitlines()) if line not in lines | {"", "...", "}"} and not (
        "..." in line and any(re.fullmatch(".*".join(map(re.escape, line.split("..."))), other) for other in lines))]
    assert not missing and len(blocks) > 5000


def test_what_the_targets_say_of_bandwidth_is_what_was_measured():
    """The comment of codegen/target/cuda.c, against the result that it names."""
    measured = json.loads((ROOT / "bench/results/gpu-bench.json").read_text())
    of = {k["kernel"]: 1e8 * k["bytes"] / k["us"] / 4.8e12 for k in measured["models"]["gpt2_124m"]["kernels"]
          if k.get("class") == "loops" and k["us"] * k["launches"] >= 400}
    loss = [of.pop(name) for name in list(of) if name.startswith("max_sub_exp_sum_log_")]
    text = re.sub(r"\s+(\* )?", " ", next((ROOT / "codegen").rglob("target/cuda.c")).read_text())
    said = re.search(r"at least 0.4 ms of a step reach (\d+) to (\d+) % of an (\w+)'s 4.8 TB/s;.*? classes reaches (\d+) %", text).groups()
    assert said == (f"{min(of.values()):.0f}", f"{max(of.values()):.0f}", measured["gpu"]["name"].split()[-1], f"{loss[0]:.0f}")


def test_steps_on_a_gpu_are_those_of_the_results():
    """The table of docs/precision.md: milliseconds a step and planned memory."""
    tf32, bf16 = (json.loads((ROOT / f"bench/results/gpu-bench{name}.json").read_text())["models"] for name in ("", "-bf16"))
    rows = re.findall(r"^\| (\w+), [^|]*\| ([\d.]+) ms \| ([\d.]+) ms[^|]*\| ([\d.]+) GiB \| ([\d.]+) GiB \|$", (ROOT / "docs/precision.md").read_text(), re.M)
    assert [name for name, *_ in rows] == list(tf32)
    for name, *said in rows:
        found = [tf32[name]["step_ms"], bf16[name]["step_ms"], tf32[name]["planned_bytes"] / 2**30, bf16[name]["planned_bytes"] / 2**30]
        assert [float(x) for x in said] == pytest.approx(found, abs=0.06), name


def test_the_readme_of_scripts_lists_every_script():
    listed = re.findall(r"`([\w./-]+)`", "".join(re.findall(r"^\| (.*?) \|", (ROOT / "scripts/README.md").read_text(), re.M)))
    files = {str(p.relative_to(ROOT / "scripts")) for p in (ROOT / "scripts").rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    assert sorted(listed) == sorted(files - {"README.md", "op-questions.txt", "requirements-test.txt"})


def test_the_steps_of_codegen_are_its_passes_in_order():
    passes = re.findall(r"^PASS\((\w+)\)", (ROOT / "codegen/pass_list.def").read_text(), re.M)
    steps = re.findall(r"^\| (\w+) \|", (ROOT / "codegen/README.md").read_text(), re.M)
    assert [step for step in steps if step in passes] == passes


@pytest.fixture(scope="module")
def exe(gradc, models, tmp_path_factory):
    path = tmp_path_factory.mktemp("docs") / "train"
    subprocess.run([gradc, "compile", models / "lr_iris_ml/model.onnx", "-o", path,
                    "--dim=batch=1", "--loss=bce_with_logits"], check=True, capture_output=True)
    return path


def test_the_executables_help_is_that_of_the_page(build, run, exe):
    said = run(exe, "--help").stdout
    want = subprocess.run([build / "tests/executable_help"], check=True, capture_output=True,
                          text=True).stdout
    assert said.split("\n")[1:] == want.split("\n")[1:] and "EXE" in want


def test_prose_about_no_option_is_a_fault(build, tmp_path):
    for name in ["scripts/man-page", "docs/gradc.1.in"]:
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text((ROOT / name).read_text())
    with (tmp_path / "docs/gradc.1.in").open("a") as template:
        template.write("@about gradc --no-such-option\nGone.\n@end\n")
    done = subprocess.run([sys.executable, tmp_path / "scripts/man-page", build.resolve()],
                          capture_output=True, text=True)
    assert done.returncode == 1 and "--no-such-option" in done.stderr


def test_the_man_page_is_clean_troff():
    done = subprocess.run(["groff", "-t", "-man", "-ww", "-Tutf8", ROOT / "docs/gradc.1"],
                          capture_output=True, text=True) if subprocess.run(
        ["which", "groff"], capture_output=True).returncode == 0 else pytest.skip("no groff")
    assert not done.stderr


def row_names(kind):
    lines = ROOT / {"loss": "passes/losses/loss_list.def", "optimizer": "base/numbers/optimizer_list.def"}[kind]
    return [n.replace("_", "-") if kind == "optimizer" else n for n in re.findall(rf"^{kind.upper()}\((\w+)\)", lines.read_text(), re.M)]


@pytest.mark.parametrize("kind", ["loss", "optimizer"])
def test_help_has_every_row(run, kind):
    assert [v for v in choices(option_rows(run)[kind]) if ":" not in v and v != "model"] == row_names(kind)  # --loss=model: what the file says


def test_the_ops_page_is_that_of_the_rows(build):
    """`make docs` writes it."""
    page = subprocess.run([build / "tests/ops_page"], check=True, capture_output=True, text=True)
    assert page.stdout == (ROOT / "docs/ops.md").read_text()
