"""What the tests share: the program under test, the reference models, a way to run things."""
import os
import subprocess
import sys
from pathlib import Path

import pytest
import reference

sys.path.insert(0, str(Path(__file__).resolve().parent / "models"))
import unpack  # noqa: E402  tests/models/unpack.py

ROOT = Path(__file__).resolve().parents[1]


# The longest cases among others like them; `*` ends a name that several begin with. `make thorough` runs them, too.
THOROUGH = """
test_ranks.py::test_ranks_must_agree[mpich* test_ranks.py::test_no_rank_outlives_another[mpich-2* test_ranks.py::test_a_suspended_job_goes_on[mpich]
test_ranks.py::test_ranks_are_accumulation[mpich-gpt2_mini* test_ranks.py::test_the_step_before_a_fault_is_in_the_log[2-cpu]
test_shard_checkpoints.py::test_each_mode_reads_each[zero2-async]
test_offload.py::test_activations test_offload.py::test_moments_in_a_file
test_offload.py::test_one_gpu[2] test_curves.py::test_losses[unet_mini-0-f32] test_curves.py::test_losses[vit_mini-0-f32]
test_curves.py::test_losses[moe_mini-0-f32] test_curves.py::test_losses[gpt2_mini-3-f32] test_nccl.py::test_conformance[3]
test_touched.py::test_parts_touch_little_twice[resnet50]
test_cuda.py::test_models[resnet_mini] test_curves.py::test_losses[resnet_mini-0-f32] test_curves.py::test_losses[cnn_mnist-0-f64]
test_cubins.py::test_resources[unet_mini] test_names.py::test_all_words_over_all_names[gpt2_mini_raw]
test_names.py::test_all_words_over_all_names[gpt2_mini_external] test_ranks.py::test_conformance[mpich-3]
test_printers.py::test_same_bits[resnet_mini-f32] test_printers.py::test_same_bits[unet_mini-f32]
test_curves.py::test_losses[bert_mini-0-f32] test_curves.py::test_losses[mobilenet_mini-0-f32] test_curves.py::test_losses[gpt2_mini-2-f32]
test_epilogues.py::test_16_bits[f16]
test_names.py::test_each_word_in_each_place[dimension] test_names.py::test_each_word_in_each_place[output]
test_names.py::test_each_word_in_each_place[input] test_names.py::test_each_word_in_each_place[value]
test_together.py::test_every_optimizer_trains_them[nesterov] test_together.py::test_every_optimizer_trains_them[lamb]
test_together.py::test_every_optimizer_trains_them[rmsprop] test_together.py::test_every_optimizer_trains_them[adam]
test_shard.py::test_groups_that_hold_copies[async-fast-zero1] test_shard.py::test_groups_that_hold_copies[async-fast-zero2]
test_shard.py::test_groups_that_hold_copies[cpu-ordered-zero1] test_shard.py::test_groups_that_hold_copies[cpu-ordered-zero2]
test_shard.py::test_modes_are_accumulation[2-options4-zero1] test_shard.py::test_modes_are_accumulation[2-options4-zero2]
test_shard.py::test_evaluations_of_uneven_shares[6]
test_shard_checkpoints.py::test_each_mode_reads_each[zero1-cpu] test_shard_checkpoints.py::test_each_mode_reads_each[zero3-async]
test_shard_checkpoints.py::test_damage_is_found_by_ranks[1] test_shard_checkpoints.py::test_damage_is_found_by_ranks[2]
test_offload.py::test_activations_change_nothing[async-llama_mini] test_offload.py::test_activations_change_nothing[async-vit_mini]
test_offload.py::test_activations_change_nothing[async-unet_mini]
test_deepspeed_config.py::test_no_value_of_any_key_is_a_crash[[]] test_deepspeed_config.py::test_no_value_of_any_key_is_a_crash[[[[]]]]
test_deepspeed_config.py::test_no_value_of_any_key_is_a_crash[-1e+300]
test_shard.py::test_parts_on_gpus[zero2-ordered] test_nccl.py::test_a_stopped_rank_is_named[1] test_nccl.py::test_conformance[4]
test_nccl.py::test_sums_are_those_of_accumulation[2-ordered-zero1]
test_launch.py::test_with_fewer_a_step_keeps_its_rows[mpich] test_launch.py::test_ranks_that_do_not_divide_a_step[mpich]
test_spellings.py::test_compiled_gradients_are_the_formulas[15] test_spellings.py::test_compiled_gradients_are_the_formulas[17]
test_spellings.py::test_compiled_gradients_are_the_formulas[19] test_spellings.py::test_compiled_gradients_are_the_formulas[21]
test_launch.py::test_srun_goes_on_with_fewer_tasks[mpich] test_launch.py::test_srun_takes_the_allocations_tasks[mpich]
test_nccl.py::test_models[gpt2_mini-zero3-ordered] test_attention.py::test_losses_in_16_bits[llama_mini]
""".split()


# Under sanitizers besides: what they see there they see in shorter tests, too; without sanitizers these run.
THOROUGH_SANITIZED = """
test_onnxruntime_files.py::test_an_optimized_transformer_is_the_same* test_onnxruntime_files.py::test_an_optimized_model_is_the_same*
test_malformed.py::test_malformed[G10-chain-100000] test_cli.py::test_grad_json
test_open_dims.py::test_how_long_sizes_are_looked_for_hangs_on_the_file_alone[50000-False]
""".split()


# What an importer computes runs under sanitizers in every third case of a test; what reads hostile files runs in every case.
THIRDS_SANITIZED = {"test_bits.py", "test_casts.py", "test_flags.py", "test_kinks.py", "test_ml.py", "test_roles.py", "test_sequences.py",
                    "test_tfidf.py", "test_ties.py", "test_unmerge_calls.py", "test_unsigned.py", "test_values.py"}


def is_another_of_three(item, seen):
    """Is it not the first, fourth, seventh ... case of its test?"""
    key = item.nodeid.split("[")[0]
    seen[key] = seen.get(key, -1) + 1
    return item.path.name in THIRDS_SANITIZED and seen[key] % 3 > 0


def is_among(name, names):
    return any(name == n or (n[-1] == "*" and name.startswith(n[:-1])) for n in names)


def pytest_collection_modifyitems(items):
    if os.environ.get("GRADC_THOROUGH"):
        return
    sanitized, seen = os.environ.get("GRADC_SANITIZED"), {}
    names = THOROUGH + (THOROUGH_SANITIZED if sanitized else [])
    for item in items:
        if is_among(item.nodeid.rsplit("/")[-1], names) or (sanitized and is_another_of_three(item, seen)):
            item.add_marker(pytest.mark.skip(reason="long, and others like it run: `make thorough`"))


@pytest.fixture(scope="session")
def build():
    """The build folder, from $GRADC_BUILD."""
    return ROOT / os.environ.get("GRADC_BUILD", "build")


@pytest.fixture(scope="session")
def gradc(build):
    """Path of the gradc program."""
    return build / "gradc"


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Folder of the reference models: $GRADC_MODELS, else the full ones where they lie beside the
    repository, else the copies of tests/models, unpacked (GRADC_MODELS=copies takes these too)."""
    given = os.environ.get("GRADC_MODELS")
    beside = ROOT.parent / "shared/models"
    if given and given != "copies":
        return Path(given)
    if beside.is_dir() and not given:
        return beside
    folder = tmp_path_factory.mktemp("models")
    for name in unpack.names():
        unpack.unpack(name, folder / name)
    return folder


@pytest.fixture(scope="session")
def of_trace(gradc, models, tmp_path_factory):
    """of_trace(MODEL, trace=0, precision="f32"): the executable of a reference model's compile line, made once for all tests;
    who changes it takes a copy."""
    made = {}

    def compile_it(name, trace=0, precision="f32"):
        key = name, trace, precision
        if key not in made:
            path = tmp_path_factory.mktemp("executable") / "train"
            done = subprocess.run([gradc, "compile", "model.onnx", "-o", path, *reference.compile_options(name, precision, trace)],
                                  cwd=models / name, text=True, capture_output=True)
            assert done.returncode == 0, done.stderr
            made[key] = path
        return made[key]

    return compile_it


@pytest.fixture
def run(gradc, tmp_path):
    """run(ARGUMENT..., exit=0, cwd=tmp_path): runs gradc, or the program given as a Path first,
    checks the exit code (None: any), and gives what it printed (.stdout, .stderr)."""

    def run_it(*arguments, exit=0, cwd=tmp_path, timeout=600, **options):
        command = list(arguments) if isinstance(arguments[0], Path) else [gradc, *arguments]
        done = subprocess.run([str(a) for a in command], cwd=cwd, timeout=timeout, text=True,
                              capture_output=True, **options)
        assert exit is None or done.returncode == exit, (
            f"exit {done.returncode}, expected {exit}: {' '.join(map(str, command))}\n"
            f"{done.stdout}\n{done.stderr}")
        return done

    return run_it
