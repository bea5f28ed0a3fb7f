"""--config takes DeepSpeed's JSON: the examples of its documentation, whose keys they are, what contradicts, hostile files."""
import copy
import json
import math
import random
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def options(build, tmp_path):
    """options(CONFIG, OF, exit=0): what a file has for gradc or executable, {name: value}, the last of each name; or the messages."""

    def read(config, of, exit=0):
        (tmp_path / "ds.json").write_text(config if isinstance(config, str) else json.dumps(config))
        done = subprocess.run([build / "tests/deepspeed_page", "ds.json", of], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == exit, done.stdout + done.stderr
        return dict(line.split(" = ", 1) for line in done.stdout.splitlines()) if exit == 0 else done.stderr

    return read


# ---- the examples of https://www.deepspeed.ai/docs/config-json/: (for gradc, for the executable)
ADAM = {"lr": "0.001", "beta1": "0.8", "beta2": "0.999", "eps": "1e-08", "weight-decay": "3e-07"}
EXAMPLES = {
    "adam": ({"optimizer": {"type": "Adam", "params": {"lr": 0.001, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7}}},
             {"optimizer": "adamw,weight_decay=3e-07,lr=0.001,beta1=0.8,beta2=0.999,eps=1e-08"}, ADAM),
    "muon": ({"optimizer": {"type": "Muon", "params": {"lr": 0.001, "momentum": 0.9, "weight_decay": 0.0, "muon_lr": 0.001}},
              "zero_optimization": {"stage": 3, "save_muon_momentum_buffer_in_memory": True}},
             {"optimizer": "muon,lr=0.001,momentum=0.9,weight_decay=0,rest_lr=0.001,rest_weight_decay=0,rest_beta1=0.9,rest_beta2=0.95,rest_eps=1e-10",
              "data-parallel": "zero3"}, {"lr": "0.001", "momentum": "0.9", "weight-decay": "0", "data-parallel": "zero3"}),
    "warmup": ({"scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 0.001, "warmup_num_steps": 1000}}},
               {}, {"lr-schedule": "deepspeed-warmup,steps=1000", "min-lr": "0", "lr": "0.001"}),
    "fp16": ({"fp16": {"enabled": True, "auto_cast": False, "loss_scale": 0, "initial_scale_power": 16, "loss_scale_window": 1000, "hysteresis": 2,
                       "consecutive_hysteresis": False, "min_loss_scale": 1, "fp16_master_weights_and_grads": False}},
             {"precision": "f16", "loss-scale": "deepspeed,init=65536,interval=1000,hysteresis=2,consecutive=false,least=1"}, {}),
    "bf16": ({"bf16": {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}},
             {"precision": "bf16", "master": "off", "moments": "bf16"}, {}),
    "torch_autocast": ({"torch_autocast": {"enabled": True, "dtype": "bfloat16", "lower_precision_safe_modules": ["torch.nn.Linear", "torch.nn.Conv2d"]}},
                       {"precision": "bf16"}, {}),
    "zero": ({"zero_optimization": {
        "stage": 2, "allgather_partitions": True, "allgather_bucket_size": 5e8, "overlap_comm": False, "reduce_scatter": True, "reduce_bucket_size": 5e8,
        "contiguous_gradients": True, "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9, "stage3_prefetch_bucket_size": 5e8,
        "stage3_param_persistence_threshold": 1e6, "sub_group_size": 1e12, "elastic_checkpoint": False, "stage3_gather_16bit_weights_on_model_save": True,
        "ignore_unused_parameters": True, "round_robin_gradients": True, "zero_hpz_partition_size": 1, "zero_quantized_weights": False,
        "zero_quantized_gradients": False, "log_trace_cache_warnings": True}}, {"data-parallel": "zero2"}, {"data-parallel": "zero2"}),
    "offload_param": ({"zero_optimization": {"stage": 3, "offload_param": {
        "device": "nvme", "nvme_path": "/local_nvme", "pin_memory": True, "buffer_count": 5, "buffer_size": 1e8, "max_in_cpu": 1e9}}},
        {"data-parallel": "zero3", "offload": "params"}, {"data-parallel": "zero3", "offload": "params", "offload-dir": "/local_nvme"}),
    "offload_optimizer": ({"zero_optimization": {"offload_optimizer": {
        "device": "cpu", "nvme_path": "/local_nvme", "pin_memory": False, "ratio": 0.3, "buffer_count": 4, "fast_init": False}}},
        {"offload": "optimizer"}, {"offload": "optimizer"}),
    "all_of_offload": ({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/disk"}, "cpu_offload_param": True},
                        "activation_checkpointing": {"cpu_checkpointing": True}},
                       {"data-parallel": "zero3", "offload": "optimizer,params,activations"},
                       {"data-parallel": "zero3", "offload": "optimizer,params,activations", "offload-dir": "/disk"}),
    "aio": ({"aio": {"block_size": 1048576, "queue_depth": 8, "thread_count": 1, "single_submit": False, "overlap_events": True}}, {}, {}),
    "autotuning": ({"autotuning": {
        "enabled": False, "results_dir": "autotuning_results", "exps_dir": "autotuning_exps", "overwrite": False, "metric": "throughput", "start_profile_step": 3,
        "end_profile_step": 5, "fast": True, "max_train_batch_size": None, "mp_size": 1, "num_tuning_micro_batch_sizes": 3, "tuner_type": "model_based",
        "tuner_early_stopping": 5, "tuner_num_trials": 50, "arg_mappings": None}}, {}, {}),
    "flops_profiler": ({"flops_profiler": {"enabled": False, "profile_step": 1, "module_depth": -1, "top_modules": 1, "detailed": True, "output_file": None}}, {}, {}),
    "activation_checkpointing": ({"activation_checkpointing": {
        "partition_activations": False, "cpu_checkpointing": False, "contiguous_memory_optimization": False, "number_checkpoints": None,
        "synchronize_checkpoint_boundary": False, "profile": False}}, {}, {}),
    "tensorboard": ({"tensorboard": {"enabled": True, "output_path": "output/ds_logs/", "job_name": "train_bert"}},
                    {}, {"tensorboard": "output/ds_logs/train_bert"}),
    "comms_logger": ({"comms_logger": {"enabled": True, "verbose": False, "prof_all": False, "debug": False, "prof_ops": ["all_reduce", "all_gather"]}}, {}, {}),
    "checkpoint": ({"checkpoint": {"tag_validation": "Warn", "load_universal": False, "use_node_local_storage": False, "parallel_write": {"pipeline_stage": False}}},
                   {}, {}),
    "grad_accum_dtype": ({"data_types": {"grad_accum_dtype": "fp32"}}, {"gradients": "f32"}, {}),
    "batches": ({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2},
                {"batch": "4"}, {"global-batch": "32", "micro-batch": "4", "accumulate": "2"}),
    "scalars": ({"gradient_clipping": 1.0, "prescale_gradients": True, "gradient_predivide_factor": 1.0, "sparse_gradients": False, "communication_data_type": "fp32",
                 "steps_per_print": 10, "wall_clock_breakdown": True, "dump_state": False}, {}, {"clip-norm": "1"}),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(options, name):
    config, gradc, executable = EXAMPLES[name]
    assert options(config, "gradc") == gradc
    assert options(config, "executable") == executable


@pytest.mark.parametrize("of", ["gradc", "executable"])
def test_examples_together(options, of):
    """Those that do not say one thing twice."""
    config = {}
    for name in EXAMPLES:
        if name not in ("muon", "fp16", "torch_autocast", "offload_param", "offload_optimizer", "all_of_offload"):
            config |= EXAMPLES[name][0]
    want = {k: v for name in EXAMPLES if name not in ("muon", "fp16", "torch_autocast", "offload_param", "offload_optimizer", "all_of_offload") for k, v in EXAMPLES[name][1 if of == "gradc" else 2].items()}
    assert options(config, of) == want


# What the documentation shows that is not there: the keys that are told, and by whom.
BOTH = ("gradc", "executable")
REFUSED = {
    "onebit_adam": ({"optimizer": {"type": "OneBitAdam", "params": {"lr": 0.001, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7, "freeze_step": 400,
                                                                  "cuda_aware": False, "comm_backend_name": "nccl"}}}, ["optimizer.type"], ("gradc",)),
    "zero_one_adam": ({"optimizer": {"type": "ZeroOneAdam", "params": {
        "lr": 1e-3, "weight_decay": 0.01, "bias_correction": True, "var_freeze_step": 1000, "var_update_scaler": 16, "local_step_scaler": 1000, "local_step_clipper": 16,
        "cuda_aware": False, "comm_backend_name": "nccl"}}}, ["optimizer.type"], ("gradc",)),
    "onebit_lamb": ({"optimizer": {"type": "OneBitLamb", "params": {
        "lr": 11e-3, "weight_decay": 0.01, "max_coeff": 0.3, "min_coeff": 0.01, "freeze_step": 1000, "cuda_aware": False, "comm_backend_name": "nccl",
        "coeff_beta": 0.9, "factor_max": 4.0, "factor_min": 0.5, "factor_threshold": 0.1}}}, ["optimizer.type"], ("gradc",)),
    "bias_correction": ({"optimizer": {"type": "Adam", "params": {"bias_correction": False}}}, ["optimizer.params.bias_correction"], ("gradc",)),
    "amp": ({"amp": {"enabled": True, "opt_level": "O1"}}, ["amp.enabled"], ("gradc",)),
    "tensor_parallel": ({"tensor_parallel": {"autotp_size": 4, "preset_model": "llama", "tp_overlap_comm": False, "partition_config": {
        "use_default_specs": False, "layer_specs": [{"patterns": [".*\\.o_proj\\.weight$"], "partition_type": "row"}]}}}, ["tensor_parallel.autotp_size"], ("gradc",)),
    "sparse_attention": ({"sparse_attention": {"mode": "fixed", "block": 16, "different_layout_per_head": True, "num_local_blocks": 4, "num_global_blocks": 1,
                                               "attention": "bidirectional", "num_sliding_window_blocks": 3}}, ["sparse_attention"], ("gradc",)),
    "data_efficiency": ({"data_efficiency": {"enabled": True, "seed": 1234, "data_routing": {"enabled": True, "random_ltd": {"enabled": True}},
                                             "data_sampling": {"enabled": True, "num_epochs": 1}}}, ["data_efficiency.enabled"], ("executable",)),
    "curriculum_learning": ({"curriculum_learning": {
        "enabled": True, "curriculum_type": "seqlen", "min_difficulty": 8, "max_difficulty": 1024, "schedule_type": "fixed_linear",
        "schedule_config": {"total_curriculum_step": 40000, "difficulty_step": 8}}}, ["curriculum_learning.enabled"], ("executable",)),
    "wandb": ({"wandb": {"enabled": True, "group": "my_group", "team": "my_team", "project": "my_project"}}, ["wandb.enabled"], ("executable",)),
    "comet": ({"comet": {"enabled": True, "workspace": "my_workspace", "project": "my_project", "samples_log_interval": 50, "experiment_name": "llama-fine-tuning",
                         "experiment_key": "0c4a1c4a90664f2a8084e600b19a9d7", "online": False, "mode": "get"}}, ["comet.enabled"], ("executable",)),
    "csv_monitor": ({"csv_monitor": {"enabled": True, "output_path": "output/ds_logs/", "job_name": "train_bert"}}, ["csv_monitor.enabled"], ("executable",)),
    "elasticity": ({"elasticity": {"enabled": True, "max_train_batch_size": 2000, "micro_batch_sizes": [2, 4], "min_gpus": 1, "max_gpus": 10000, "min_time": 0,
                                   "version": 0.2, "ignore_non_elastic_batch_info": False, "num_gpus_per_node": 1, "model_parallel_size": 1}},
                   ["elasticity.enabled"], BOTH),
    "layer_reduction": ({"compression_training": {"layer_reduction": {
        "enabled": True, "keep_number_layer": 5, "module_name_prefix": "bert.encoder.layer", "teacher_layer": [2, 4, 6, 8, 10],
        "other_module_name": ["bert.pooler"]}}}, ["compression_training.layer_reduction.enabled"], ("gradc",)),
    "weight_quantization": ({"compression_training": {"weight_quantization": {
        "shared_parameters": {"enabled": True, "quantizer_kernel": False, "schedule_offset": 0, "quantize_groups": 1, "quantize_verbose": False,
                              "quantization_type": "symmetric", "rounding": "nearest", "quantize_weight_in_forward": False,
                              "fp16_mixed_quantize": {"enabled": False, "quantize_change_ratio": 0.001}},
        "different_groups": {"wq1": {"params": {"start_bits": 8, "target_bits": 8, "quantization_period": 50}, "modules": ["attention.self"]}}}}},
        ["compression_training.weight_quantization.shared_parameters.enabled"], ("gradc",)),
    "pruning": ({"compression_training": {
        "sparse_pruning": {"shared_parameters": {"enabled": True, "schedule_offset": 30, "schedule_offset_end": 90, "schedule_offset_stride": 15,
                                                 "method": "snip_momentum", "block_pattern": "4x1", "dense_ratio": 0.4, "excluded_modules": ["classifier"]},
                           "different_groups": {}},
        "head_pruning": {"shared_parameters": {"enabled": True, "schedule_offset": 10, "method": "topk", "num_heads": 12},
                         "different_groups": {"rp1": {"params": {"dense_ratio": 0.5}, "modules": ["attention.output.dense"], "related_modules": [["self.query"]]}}}}},
        ["compression_training.sparse_pruning.shared_parameters.enabled", "compression_training.head_pruning.shared_parameters.enabled"], ("gradc",)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(options, name):
    config, keys, by = REFUSED[name]
    for of in BOTH:
        said = options(config, of, exit=2 if of in by else 0)
        for key in keys if of in by else []:
            assert re.search(rf"ds\.json: {re.escape(key)} = .*: \w", said), said


def off(value):
    """The same, asking for nothing."""
    if isinstance(value, dict):
        return {k: off(v) if k != "enabled" else False for k, v in value.items()}
    return value


@pytest.mark.parametrize("name", ["amp", "data_efficiency", "curriculum_learning", "wandb", "comet", "csv_monitor", "elasticity", "layer_reduction",
                                  "weight_quantization", "pruning"])
def test_what_is_off_is_not_refused(options, name):
    for of in BOTH:
        assert options(off(REFUSED[name][0]), of) == {}


# ---- what the keys become
@pytest.mark.parametrize("kind, params, want", [
    ("Adam", {}, "adamw,weight_decay=0"), ("adam", {"adam_w_mode": True}, "adamw,weight_decay=0"), ("Adam", {"adam_w_mode": False}, "adam"),
    ("Adam", {"torch_adam": True}, "adamw,weight_decay=0.01"), ("Adam", {"torch_adam": True, "adam_w_mode": False, "amsgrad": True}, "adam,amsgrad=true"),
    ("AdamW", {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}, "adamw,weight_decay=0"),
    ("AdamW", {"adam_w_mode": False}, "adamw,weight_decay=0"), ("AdamW", {"torch_adam": True, "weight_decay": 0.1}, "adamw,weight_decay=0.1"),
    ("Lion", {"betas": [0.95, 0.98]}, "lion,lr=0.001,beta1=0.95,beta2=0.98"),
    ("SGD", {"lr": 0.1}, "sgd,lr=0.1"), ("SGD", {"lr": 0.1, "momentum": 0}, "sgd,lr=0.1"),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}, "momentum,lr=0.1,momentum=0.9,dampening=0.5"),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}, "nesterov,lr=0.1,momentum=0.9"),
    ("RMSprop", {"alpha": 0.9, "centered": True}, "rmsprop,alpha=0.9,centered=true"), ("Adagrad", {"lr_decay": 0.1}, "adagrad,lr_decay=0.1"),
    ("Adadelta", {"rho": 0.8}, "adadelta,rho=0.8"), ("NAdam", {"decoupled_weight_decay": True}, "nadam,decoupled=true"), ("RAdam", {}, "radam"),
    ("Muon", {"lr": 0.01, "adam_lr": 0.002, "betas": [0.8, 0.9], "eps": 1e-9, "weight_decay": 0.1},
     "muon,lr=0.01,momentum=0.95,weight_decay=0.1,rest_lr=0.002,rest_weight_decay=0.1,rest_beta1=0.8,rest_beta2=0.9,rest_eps=1e-09"),
])
def test_optimizers(run, models, options, kind, params, want):
    config = {"optimizer": {"type": kind, "params": params}}
    assert options(config, "gradc") == {"optimizer": want}
    if kind != "Muon":
        assert "optimizer" not in options(config, "executable")
    run("dump", models / "mlp_digits/model.onnx", "--config=ds.json", "--batch=2", "--loss=cross_entropy", "--stage=train", "-o", "out.gir")


@pytest.mark.parametrize("config, says", [
    ({"optimizer": {"type": "Adam", "params": {"momentum": 0.9}}}, "optimizer.params.momentum: Adam has no such parameter"),
    ({"optimizer": {"type": "Foo"}}, "optimizer.type = \"Foo\": there is no such type"), ({"optimizer": {"params": {"lr": 1}}}, "optimizer.type: is missing"),
    ({"optimizer": {"type": "SGD", "params": {"nesterov": True}}}, "wants a momentum"), ({"optimizer": {"type": "Lamb"}}, "min_coeff and max_coeff"),
    ({"optimizer": {"type": "Adam", "params": {"betas": [0.9]}}}, "betas = [0.9]: need a list of two numbers"),
    ({"optimizer": {"type": "Adam", "params": {"betas": [0.9, 1]}}}, "betas = [0.9,1]: need a number from 0 to below 1"),
    ({"optimizer": {"type": "Adam", "params": {"lr": "1e-3"}}}, "optimizer.params.lr = \"1e-3\": need a number"),
    ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, "fp16.enabled and bf16.enabled: one of them"),
    ({"fp16": {"enabled": True, "initial_scale_power": 3, "min_loss_scale": 16}}, "fp16.min_loss_scale = 16: above the first scale, 8"),
    ({"fp16": {"enabled": True, "fp16_master_weights_and_grads": True}}, "fp16.fp16_master_weights_and_grads = true: not supported"),
    ({"fp16": {"enabled": "yes"}}, "fp16.enabled = \"yes\": need true or false"), ({"fp16": {"initial_scale_power": 128}}, "need a whole number from 0 to 127"),
    ({"fp16": {"loss_scale_window": 0}}, "fp16.loss_scale_window = 0: need a whole number from 1"), ({"fp16": 1}, "fp16 = 1: need an object"),
    ({"data_types": {"grad_accum_dtype": "bf16"}, "gradient_accumulation_steps": 2}, "with gradient_accumulation_steps = 2: sums over micro-batches are of f32"),
    ({"data_types": {"grad_accum_dtype": "fp16"}}, "gradients are f32 or bf16"), ({"data_types": {"grad_accum_dtype": "f8"}}, "need one of fp32|bf16|fp16"),
    ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage = 4: need a whole number from 0 to 3"),
    ({"zero_optimization": {"stage": 1.5}}, "zero_optimization.stage = 1.5: need a whole number"), ({"zero_optimization": True}, "zero_optimization = true: need an object"),
    ({"train_batch_size": 0}, "train_batch_size = 0: need a whole number from 1"), ({"train_batch_size": -4}, "train_batch_size = -4"),
    ({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 4},
     "train_batch_size = 32: not a multiple of train_micro_batch_size_per_gpu = 3 times gradient_accumulation_steps = 4"),
    ({"train_batchsize": 1}, "the nearest is train_batch_size"), ({"fp16": {"enable": True}}, "the nearest is fp16.enabled"),
    ({"zero_optimisation": {}}, "the nearest is zero_optimization"), ({"zero_optimization": {"stage3_max_live_params": 1}}, "stage3_max_live_parameters"),
    ({"a.b": 1}, "has no such key"), ({"": 1}, "has no such key"), ({"autotuning": {"fats": True}}, "autotuning.fats: DeepSpeed's configuration has no such key"),
    ({"compression_training": {"foo": {"shared_parameters": {}}}}, "compression_training.foo: DeepSpeed's"),
])
def test_faults_of_compiling(options, config, says):
    assert says in options(config, "gradc", exit=2)


SCHEDULES = [
    ("WarmupLR", {}, "deepspeed-warmup"), ("WarmupLR", {"warmup_type": "linear", "warmup_num_steps": 5}, "deepspeed-warmup,steps=5,log=0"),
    ("WarmupLR", {"warmup_num_steps": 0}, "deepspeed-warmup,steps=0"), ("WarmupDecayLR", {"total_num_steps": 20, "warmup_num_steps": 0}, "deepspeed-decay,steps=0,total=20"),
    ("WarmupDecayLR", {"total_num_steps": 20, "warmup_num_steps": 5}, "deepspeed-decay,steps=5,total=20"),
    ("WarmupDecayLR", {"total_num_steps": "auto", "warmup_num_steps": 5, "warmup_type": "log", "warmup_max_lr": 0.1}, "deepspeed-decay,steps=5,log=1"),
    ("WarmupCosineLR", {"total_num_steps": 20, "warmup_num_steps": 4, "warmup_min_ratio": 0.1, "cos_min_ratio": 0.01},
     "deepspeed-cosine,steps=4,total=20,min_ratio=0.1,cos_min_ratio=0.01"),
    ("LRRangeTest", {"lr_range_test_min_lr": 0.0001, "lr_range_test_step_size": 3, "lr_range_test_step_rate": 5, "lr_range_test_staircase": True},
     "deepspeed-range,size=3,rate=5,stairs=1"),
    ("LRRangeTest", {"lr_range_test_step_size": 3}, "deepspeed-range,size=3"),
    ("OneCycle", {"cycle_min_lr": 0.01, "cycle_max_lr": 0.1, "cycle_first_step_size": 4, "cycle_momentum": False}, "deepspeed-cycle,first=4"),
    ("OneCycle", {"cycle_min_lr": 0.01, "cycle_max_lr": 0.1, "cycle_first_step_size": 4, "cycle_second_step_size": 6, "decay_step_size": 2, "decay_lr_rate": 0.5,
                  "cycle_momentum": False}, "deepspeed-cycle,first=4,second=6,size=2,rate=0.5"),
]


def deepspeed_rates(kind, p, base, steps):
    """Of each step, as deepspeed/runtime/lr_schedules.py: last_batch_iteration is -1 in the first one."""
    warm = max(2, p.get("warmup_num_steps", 1000))
    total = p.get("total_num_steps", steps)
    total = steps if total == "auto" else total

    def gamma(last):
        return last / warm if p.get("warmup_type") == "linear" else math.log(last + 1) / math.log(warm)

    def rate(last):
        if kind in ("WarmupLR", "WarmupDecayLR"):
            low, high = p.get("warmup_min_lr", 0), p.get("warmup_max_lr", base if kind == "WarmupLR" else 0.001)
            if last < 0:
                return low
            behind = 1 if kind == "WarmupLR" else max(0, (total - last) / max(1, total - warm))
            return low + (high - low) * (gamma(last) if last < warm else behind)
        if kind == "WarmupCosineLR":
            if last < 0:
                return 0
            if last < warm:
                return base * (p["warmup_min_ratio"] + (1 - p["warmup_min_ratio"]) * gamma(last))
            part = min(1, (last - warm + 1) / max(1, total - warm))
            return base * (p["cos_min_ratio"] + (1 - p["cos_min_ratio"]) * (1 + math.cos(math.pi * part)) / 2)
        if kind == "LRRangeTest":
            interval = (last + 1) / p["lr_range_test_step_size"]
            interval = math.floor(interval) if p.get("lr_range_test_staircase") else interval
            return p.get("lr_range_test_min_lr", 0.001) * (1 + p.get("lr_range_test_step_rate", 1) * interval)
        first = p["cycle_first_step_size"]
        size = first + p.get("cycle_second_step_size", first)
        if last < size:
            x = 1 + (last + 1) / size - math.floor(1 + (last + 1) / size)
            ratio = first / size
            return p["cycle_min_lr"] + (p["cycle_max_lr"] - p["cycle_min_lr"]) * (x / ratio if x <= ratio else (x - 1) / (ratio - 1))
        if not p.get("decay_step_size"):
            return p["cycle_min_lr"]
        return p["cycle_min_lr"] / (1 + p["decay_lr_rate"] * (last - size + 1) / p["decay_step_size"])

    return [rate(s - 1) for s in range(steps)]


ROWS, WIDTH = 4, 8


@pytest.fixture(scope="module")
def small(gradc, tmp_path_factory):
    """A folder with a small model, data and an executable of micro-batches of 4 rows."""
    folder = tmp_path_factory.mktemp("small")
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"])], "g", [helper.make_tensor_value_info("x", 1, ["batch", WIDTH])],
        [helper.make_tensor_value_info("y", 1, ["batch", 1])],
        [numpy_helper.from_array(np.zeros((WIDTH, 1), np.float32), "w"), numpy_helper.from_array(np.zeros(1, np.float32), "b")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "model.onnx")
    rng = np.random.default_rng(0)
    np.save(folder / "x.npy", rng.standard_normal((200, WIDTH)).astype(np.float32))
    np.save(folder / "labels.npy", rng.standard_normal((200, 1)).astype(np.float32))
    subprocess.run([gradc, "compile", folder / "model.onnx", "-o", folder / "train", "--loss=mse", f"--batch={ROWS}"], check=True, capture_output=True)
    return folder


def train(run, small, *arguments, exit=0, exe="train", **options):
    done = run(small / exe if (small / exe).exists() else Path(exe), f"--data=x={small}/x.npy", f"--data=labels={small}/labels.npy", "--log=log.jsonl", *arguments,
               exit=exit, **options)
    return done.stderr


def log_of(folder):
    return [x for x in map(json.loads, (folder / "log.jsonl").read_text().splitlines()) if "lr" in x]


@pytest.mark.parametrize("kind, params, want", SCHEDULES)
def test_learning_rates_are_deepspeeds(run, small, options, tmp_path, kind, params, want):
    config = {"optimizer": {"type": "Adam", "params": {"lr": 0.05}}, "scheduler": {"type": kind, "params": params}}
    assert options(config, "executable")["lr-schedule"] == want
    assert "lr-schedule" not in options(config, "gradc")
    train(run, small, "--config=ds.json", "--steps=20")
    np.testing.assert_allclose([s["lr"] for s in log_of(tmp_path)], deepspeed_rates(kind, params, 0.05, 20), rtol=1e-12, atol=1e-18)


@pytest.mark.parametrize("config, says", [
    ({"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1, "cycle_max_lr": 1}}}, "changes the momentum"),
    ({"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1, "cycle_momentum": False}}}, "cycle_max_lr: OneCycle needs it"),
    ({"scheduler": {"type": "OneCycle", "params": {"cycle_first_stair_count": 3, "cycle_momentum": False}}}, "cycle_first_stair_count = 3: not supported"),
    ({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}}}, "warmup_num_steps = \"auto\""),
    ({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": -1}}}, "need a whole number from 0"),
    ({"scheduler": {"type": "WarmupLR", "params": {"total_num_steps": 9}}}, "WarmupLR has no such parameter"),
    ({"scheduler": {"type": "CosineAnnealingLR"}}, "WarmupDecayLR"), ({"scheduler": {"type": "WarmupLR", "params": {"warmup_type": "cubic"}}}, "need one of linear|log"),
    ({"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": [0.1, 0.2]}}}, "warmup_max_lr = [0.1,0.2]: need a number"),
    ({"gradient_clipping": -1}, "gradient_clipping = -1: need a number from 0"),
    ({"zero_optimization": {"offload_optimizer": {"device": "nvme"}}}, "zero_optimization.offload_optimizer.nvme_path: device nvme needs a folder"),
    ({"zero_optimization": {"offload_param": {"device": "disk"}}}, "offload_param.device = \"disk\": need one of none|cpu|nvme"),
])
def test_faults_of_running(options, config, says):
    assert says in options(config, "executable", exit=2)


@pytest.mark.parametrize("text, want", [
    ("{\n  // rows\n  \"gradient_clipping\": 0.5, # of a norm\n}", {"clip-norm": "0.5"}), ("# a head\n/* and\nmore */ {\"gradient_clipping\": 0.5,}", {"clip-norm": "0.5"}),
    ("{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"betas\": [0.8, 0.9, ], /* , */ }, }, // }\n}", {"beta1": "0.8", "beta2": "0.9"}),
    ("\ufeff{\"gradient_clipping\": 0.5 /* } */ , }", {"clip-norm": "0.5"}),
])
def test_comments_and_last_commas_say_nothing(options, text, want):
    got = options(text, "executable")
    assert {name: got[name] for name in want} == want


@pytest.mark.parametrize("text, says", [
    ("{\"gradient_clipping\": 1, \"a // b, }\": 1}", "a // b, }: DeepSpeed's configuration has no such key"), ("{\n // x\n\n\"gradient_clipping\" 1}", "ds.json:4: not JSON"),
    ("{\"gradient_clipping\": 1,,}", "ds.json:1: not JSON"), ("{,}", "ds.json:1: not JSON"), ("{\"gradient_clipping\": 1 /* open }", "ds.json:1: not JSON"),
    ("{\"gradient_clipping\": \"a\\\\\"}", "gradient_clipping = \"a\\\\\""), ("{\"gradient_clipping\": 1} #\n }", "ds.json:2: not JSON"),
])
def test_what_is_no_comment_stays(options, text, says):
    assert says in options(text, "executable", exit=2)


def test_no_value_says_nothing(options):
    for of in BOTH:
        assert options({"train_batch_size": "auto", "gradient_clipping": "auto", "bf16": {"enabled": "auto"}, "fp16": {"enabled": False, "loss_scale": 0},
                        "optimizer": None, "zero_optimization": {"reduce_bucket_size": "auto", "offload_param": None, "offload_optimizer": {"device": "none"}}}, of) == {}
        assert options({"gradient_clipping": 0, "zero_optimization": False, "fp16": {"enabled": False, "hysteresis": 3}}, of) == {}


def test_bf16_gradients_have_one_micro_batch(options):
    assert options({"data_types": {"grad_accum_dtype": "bf16"}, "gradient_accumulation_steps": 1}, "gradc") == {"gradients": "bf16", "max-accumulate": "1"}


def test_a_fixed_loss_scale(options):
    assert options({"fp16": {"enabled": True, "loss_scale": 128, "hysteresis": 3}}, "gradc") == {"precision": "f16", "loss-scale": "128"}


# ---- both programs
CONFIG = {"train_batch_size": 16, "train_micro_batch_size_per_gpu": 8, "gradient_clipping": 0.5,
          "optimizer": {"type": "Adam", "params": {"lr": 0.01, "betas": [0.8, 0.99], "eps": 1e-7}},
          "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.02, "warmup_num_steps": 2}},
          "zero_optimization": {"stage": 1}, "bf16": {"enabled": True}}


def test_one_file_for_both(run, small, tmp_path):
    (tmp_path / "ds.json").write_text(json.dumps(CONFIG))
    run("compile", small / "model.onnx", "-o", "own", "--loss=mse", "--config=ds.json")
    info = json.loads(run(tmp_path / "own", "--info", "--json").stdout)
    assert {k: info[k] for k in ("rows", "precision", "optimizer", "data_parallel", "loss_scale", "default.lr", "default.beta1", "default.eps", "default.weight_decay")} == {
        "rows": "8", "precision": "bf16", "optimizer": "adamw", "data_parallel": "zero1", "loss_scale": "none", "default.lr": "0.01", "default.beta1": "0.8",
        "default.eps": "1e-07", "default.weight_decay": "0"}
    train(run, small, "--config=ds.json", "--steps=4", exe=tmp_path / "own")
    first = log_of(tmp_path)[0]["settings"]
    assert {k: first[k] for k in ("lr", "beta1", "beta2", "eps", "clip_norm", "lr_schedule", "rows_per_step", "weight_decay")} == {
        "lr": 0.02, "beta1": 0.8, "beta2": 0.99, "eps": 1e-7, "clip_norm": 0.5, "lr_schedule": "deepspeed-warmup,steps=2", "rows_per_step": 16, "weight_decay": 0}


def test_the_line_wins(run, small, tmp_path):
    config = copy.deepcopy(CONFIG) | {"fp16": {"enabled": True}}
    config["bf16"]["enabled"] = False
    config["optimizer"] = {"type": "Lamb", "params": {"lr": 0.01}}
    config["scheduler"] = {"type": "OneCycle", "params": {"cycle_max_lr": 0.3}}
    (tmp_path / "ds.json").write_text(json.dumps(config))
    run("compile", small / "model.onnx", "-o", "own", "--loss=mse", "--config=ds.json", "--optimizer=lamb", "--precision=f32", "--batch=4", "--data-parallel=ddp")
    info = json.loads(run(tmp_path / "own", "--info", "--json").stdout)
    assert {k: info[k] for k in ("rows", "precision", "optimizer", "data_parallel", "loss_scale")} == {
        "rows": "4", "precision": "f32", "optimizer": "lamb", "data_parallel": "ddp", "loss_scale": "none"}
    (tmp_path / "more.json").write_text(json.dumps({"bf16": {"enabled": True}, "fp16": {"enabled": True, "initial_scale_power": 1, "min_loss_scale": 8},
                                                    "data_types": {"grad_accum_dtype": "bf16"}, "gradient_accumulation_steps": 2}))
    run("compile", small / "model.onnx", "-o", "more", "--loss=mse", "--config=more.json", "--precision=f16", "--loss-scale=64", "--gradients=f32", "--batch=2")
    line = ["--config=ds.json", "--steps=2", "--data-parallel=ddp"]
    assert "ds.json: train_micro_batch_size_per_gpu: --micro-batch=8: 4 rows are compiled in" in train(
        run, small, *line, "--lr-schedule=constant", exe=tmp_path / "own", exit=2)
    train(run, small, *line, "--micro-batch=4", "--lr-schedule=constant", "--accumulate=3", exe=tmp_path / "own")
    first = log_of(tmp_path)[0]
    assert first["lr"] == 0.01 and first["settings"]["rows_per_step"] == 12
    assert "scheduler.type = \"OneCycle\": DeepSpeed's cycle changes the momentum" in train(run, small, *line, "--micro-batch=4", exe=tmp_path / "own", exit=2)


@pytest.mark.parametrize("config, line, says", [
    ({"train_batch_size": 12}, [], None), ({"train_batch_size": 12, "gradient_accumulation_steps": 3}, [], None),
    ({"train_batch_size": 12, "gradient_accumulation_steps": 1}, [],
     "ds.json: train_batch_size: --global-batch=12: 4 rows of a micro-batch times --accumulate=1 times 1 ranks are 4"),
    ({"train_batch_size": 10}, [], "ds.json: train_batch_size: --global-batch=10: no multiple of 4 rows of a micro-batch times 1 ranks, 4"),
    ({"train_batch_size": 12, "gradient_accumulation_steps": 1}, ["--accumulate=3"], None),
    ({"train_batch_size": 12, "gradient_accumulation_steps": 1}, ["--global-batch=12"], None),
    ({"train_batch_size": 13}, ["--global-batch=12"], None), ({}, ["--global-batch=12", "--accumulate=2"], "--global-batch=12: 4 rows"),
])
def test_rows_of_a_step(run, small, tmp_path, config, line, says):
    (tmp_path / "ds.json").write_text(json.dumps(config))
    said = train(run, small, "--config=ds.json", "--steps=1", *line, exit=2 if says else 0)
    if says:
        assert says in said
    else:
        assert log_of(tmp_path)[0]["settings"]["rows_per_step"] == 12


def test_ranks_share_the_batch(run, small, tmp_path):
    mpirun = shutil.which("mpirun.openmpi")
    if not mpirun:
        pytest.skip("no Open MPI")
    command = [Path(mpirun), "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2", small / "train", f"--data=x={small}/x.npy",
               f"--data=labels={small}/labels.npy", "--log=log.jsonl", "--steps=1", "--config=ds.json"]
    (tmp_path / "ds.json").write_text(json.dumps({"train_batch_size": 16}))
    run(*command)
    assert log_of(tmp_path)[0]["samples"] == 16
    (tmp_path / "ds.json").write_text(json.dumps({"train_batch_size": 16, "gradient_accumulation_steps": 4, "train_micro_batch_size_per_gpu": 4}))
    assert "4 rows of a micro-batch times --accumulate=4 times 2 ranks are 32" in run(*command, exit=2).stderr


def scales(overflows, steps, power, window, hysteresis, consecutive, least):
    """deepspeed/runtime/fp16/loss_scaler.py: the scale in each step."""
    scale, last, left, seen = 2.0 ** power, -1, hysteresis, []
    for i in range(steps):
        seen.append(scale)
        if i + 1 in overflows:
            if hysteresis == 1 or left == 1:
                scale = max(scale / 2, least)
            else:
                left -= 1
            last = i
        else:
            if consecutive:
                left = hysteresis
            stable = i - last - 1
            if stable > 0 and stable % window == 0:
                left = left if consecutive else hysteresis
                scale *= 2
    return seen


@pytest.mark.parametrize("consecutive", [False, True])
def test_loss_scale_is_deepspeeds(run, small, tmp_path, consecutive):
    overflows = (3, 4, 10, 12)
    np.save(tmp_path / "x.npy", np.random.default_rng(1).standard_normal((ROWS * 17, WIDTH)).astype(np.float32))
    np.save(tmp_path / "y.npy", np.repeat(np.float32([1e4 if s + 1 in overflows else 0.1 for s in range(17)]), ROWS)[:, None])
    (tmp_path / "ds.json").write_text(json.dumps({"train_micro_batch_size_per_gpu": ROWS, "fp16": {
        "enabled": True, "initial_scale_power": 16, "loss_scale_window": 5, "hysteresis": 2, "consecutive_hysteresis": consecutive, "min_loss_scale": 1}}))
    run("compile", small / "model.onnx", "-o", "own", "--loss=mse", "--config=ds.json")
    run(tmp_path / "own", "--data=x=x.npy", "--data=labels=y.npy", "--shuffle=off", "--lr=1e-3", "--log=log.jsonl", "--config=ds.json")
    assert [s["loss_scale"] for s in log_of(tmp_path)] == scales(overflows, 17, 16, 5, 2, consecutive, 1)


def test_lines_of_an_ini_file_are_still_read(run, small, tmp_path):
    (tmp_path / "a.ini").write_text("; {\"json\": no}\n[executable]\nsteps = 2\n")
    train(run, small, "--config=a.ini")
    assert len(log_of(tmp_path)) == 2


# ---- hostile files
@pytest.mark.parametrize("text, says", [
    ("{", "ds.json:1: not JSON"), ('{"fp16": {"enabled": true}', "not JSON"), ('{"train_batch_size": 1,,}', "not JSON"), ("{} {}", "not JSON"),
    ('{"train_batch_size": 1, "train_batch_size": 2}', "duplicate object key"), ('{"train_batch_size": 1e999}', "not JSON"),
    ('{"train_batch_size": 99999999999999999999999}', "not JSON"), ('{"train_batch_size": NaN}', "not JSON"), ('{"gradient_clipping": 1e300}', "need a number from 0"),
    ('{"zenflow": ' + "[" * 100000 + "]" * 100000 + "}", "not JSON"), ("{" + '"a": {' * 5000, "not JSON"), ('{"a": ' * 500 + "1" + "}" * 500, "a: DeepSpeed's"),
    ('{"\\u0000": 1}', "not JSON"), ('{"\\u001b[31m": 1}', "\\x1B"), ('{"optimizer": {"type": "' + "A" * 5000 + '"}}', "..."),
    ('{"train_batch_size": 1' + " " * (1 << 20) + "}", "options have at most a MiB"),
    ('{"%s": 1, "%n": 2}', "%s: DeepSpeed's"),
    ("{" + ", ".join(f'"x{i}": 1' for i in range(60000)) + "}", "ds.json: x99: "), ('{"' + "k" * 900000 + '": 1}', "kkk: DeepSpeed's"),
])
def test_hostile_files(run, small, tmp_path, text, says):
    (tmp_path / "ds.json").write_text(text)
    said = run("check", small / "model.onnx", "--config=ds.json", exit=2).stderr
    assert says in said and "ds.json" in said and "\x1b" not in said and len(said) < 20000


def test_bytes_that_are_no_text(run, small, tmp_path):
    for data in (b'{"\xff\xfe": 1}', b'{"a": "\xc3"}', b'\xef\xbb\xbf{"a\x00": 1}', b'{"train_batch_size": 8}\x00'):
        (tmp_path / "ds.json").write_bytes(data)
        run("check", small / "model.onnx", "--config=ds.json", exit=2)
    (tmp_path / "ds.json").write_bytes(b'\xef\xbb\xbf \n{"train_micro_batch_size_per_gpu": 8}')
    run("check", small / "model.onnx", "--config=ds.json")


def table(build):
    """Rows of the page's keys: (key, whose, fate, text)."""
    page = subprocess.run([build / "tests/deepspeed_page"], check=True, capture_output=True, text=True).stdout
    return [tuple(c.strip() for c in re.split(r"(?<!\\)\|", line)[1:5]) for line in page.split("## Optimizers")[0].splitlines() if line.startswith("| `")]


def nested(path, value):
    for name in reversed(path.split(".")):
        value = {name: value}
    return value


@pytest.mark.parametrize("wrong", [[], {"x": 1}, "\u00e9", 1.5, -1e300, True, [[[]]], [1, "x"]], ids=str)
def test_no_value_of_any_key_is_a_crash(build, options, tmp_path, wrong):
    for key, *_ in table(build):
        path = key.strip("`").replace("*", "sparse_pruning")
        (tmp_path / "k.json").write_text(json.dumps(nested(path, wrong)))
        for of in BOTH:
            done = subprocess.run([build / "tests/deepspeed_page", "k.json", of], cwd=tmp_path, capture_output=True, text=True)
            assert done.returncode in (0, 2), (path, of)
            assert (done.returncode == 2) == ("k.json: " in done.stderr), (path, of)


def test_mutations(build, tmp_path):
    rng = random.Random(0)
    whole = {}
    for name in EXAMPLES:
        whole |= EXAMPLES[name][0]
    text = json.dumps(whole).encode()
    for _ in range(300):
        bad = bytearray(text)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(bad))
            bad[at:at + rng.randint(0, 3)] = bytes(rng.choice(b'{}[]",:0e-\x00\xff trueln') for _ in range(rng.randint(0, 3)))
        (tmp_path / "m.json").write_bytes(bad)
        done = subprocess.run([build / "tests/deepspeed_page", "m.json", rng.choice(BOTH)], cwd=tmp_path, capture_output=True)
        assert done.returncode in (0, 2), bad


# ---- the page
def test_the_page_is_that_of_the_keys(build):
    """`make docs` writes it."""
    page = subprocess.run([build / "tests/deepspeed_page"], check=True, capture_output=True, text=True).stdout
    assert page == (ROOT / "docs/deepspeed.md").read_text()


def test_every_key_has_its_reason(build):
    rows = table(build)
    keys = [r[0] for r in rows]
    assert len(keys) == len(set(keys)) and all(r[3] for r in rows)
    for key, whose, fate, _ in rows:
        assert whose in ("both", "gradc", "executable") and fate in ("becomes", "ignored", "refused"), key


# All names of keys that the documentation's page has.
NAMED = """train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps optimizer type params lr betas eps weight_decay torch_adam adam_w_mode momentum muon_lr
freeze_step cuda_aware comm_backend_name var_freeze_step var_update_scaler local_step_scaler local_step_clipper bias_correction max_coeff min_coeff coeff_beta
factor_max factor_min factor_threshold scheduler warmup_min_lr warmup_max_lr warmup_num_steps communication_data_type prescale_gradients gradient_predivide_factor
sparse_gradients fp16 enabled auto_cast loss_scale initial_scale_power loss_scale_window hysteresis consecutive_hysteresis min_loss_scale
fp16_master_weights_and_grads bf16 bf16_master_weights_and_grads bf16_optimizer_states amp torch_autocast dtype lower_precision_safe_modules gradient_clipping
zero_optimization stage allgather_partitions allgather_bucket_size overlap_comm reduce_scatter reduce_bucket_size contiguous_gradients load_from_fp32_weights
grad_hooks round_robin_gradients offload_param offload_optimizer stage3_max_live_parameters stage3_max_reuse_distance stage3_prefetch_bucket_size
stage3_param_persistence_threshold stage3_gather_16bit_weights_on_model_save stage3_module_granularity_threshold zero_hpz_partition_size zero_quantized_weights
zero_quantized_gradients log_trace_cache_warnings cpu_offload sub_group_size elastic_checkpoint ignore_unused_parameters save_muon_momentum_buffer_in_memory device
nvme_path pin_memory buffer_count buffer_size max_in_cpu ratio fast_init aio block_size queue_depth thread_count single_submit overlap_events tensor_parallel
autotp_size preset_model tp_overlap_comm partition_config use_default_specs layer_specs patterns partition_type shape partition_dim model_types steps_per_print
wall_clock_breakdown dump_state autotuning results_dir exps_dir overwrite metric start_profile_step end_profile_step fast max_train_batch_size mp_size
num_tuning_micro_batch_sizes tuner_type tuner_early_stopping tuner_num_trials arg_mappings flops_profiler profile_step module_depth top_modules detailed output_file
activation_checkpointing partition_activations cpu_checkpointing contiguous_memory_optimization number_checkpoints synchronize_checkpoint_boundary profile
sparse_attention mode block different_layout_per_head num_local_blocks num_global_blocks attention horizontal_global_attention num_different_global_patterns
num_random_blocks local_window_blocks global_block_indices global_block_end_indices num_sliding_window_blocks data_efficiency seed data_routing data_sampling
random_ltd num_epochs num_workers curriculum_learning total_layer_num random_ltd_layer_num random_ltd_layer_id model_mask_name model_type hidden_state_order
random_ltd_schedule min_value max_value schedule_type schedule_config require_steps seq_per_step data_cluster_path curriculum_metrics index_to_sample_path
index_to_metric_path difficulty_type clustering_type min_difficulty max_difficulty total_curriculum_step difficulty_step root_degree difficulty max_step
curriculum_type tensorboard output_path job_name wandb group team project comet workspace samples_log_interval experiment_name api_key experiment_key online
csv_monitor elasticity micro_batch_sizes min_gpus max_gpus min_time prefer_large_batch version ignore_non_elastic_batch_info num_gpus_per_node model_parallel_size
comms_logger verbose prof_all debug prof_ops compression_training layer_reduction keep_number_layer module_name_prefix teacher_layer other_module_name
weight_quantization shared_parameters quantizer_kernel schedule_offset quantize_groups quantize_verbose quantization_type rounding quantize_weight_in_forward
fp16_mixed_quantize different_groups start_bits target_bits quantization_period modules activation_quantization range_calibration bits sparse_pruning
schedule_offset_end schedule_offset_stride method block_pattern dense_ratio excluded_modules row_pruning related_modules head_pruning num_heads channel_pruning
checkpoint tag_validation load_universal use_node_local_storage parallel_write pipeline_stage data_types grad_accum_dtype""".split()


def test_every_documented_key_is_on_the_page(build):
    words = set(re.findall(r"\w+", " ".join(f"{key} {text}" for key, _, _, text in table(build))))
    assert set(NAMED) <= words


def test_the_example_of_the_page(options):
    text = (ROOT / "docs/training.md").read_text()
    config = json.loads(re.search(r"\$ cat ds.json\n(.*?)\n\$ ", text, re.S)[1])
    assert options(config, "gradc") | {"optimizer": ""} == {"batch": "8", "optimizer": "", "precision": "bf16", "data-parallel": "zero2"}
    assert options(config, "executable")["global-batch"] == "64"
