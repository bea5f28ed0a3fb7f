"""PEFT's adapters on reference models: its losses in f64, and its files.

    make references         writes, of all cases or of those that are named, tests/references/peft/CASE/: {start,trained}/adapter_{config.json,model.safetensors} and curve.json

Models are transformers' with the weights of the ONNX files; the batches are those of the reference traces. With `--read FOLDER` it checks a
folder that an executable wrote instead: `--read FOLDER MODEL LOGITS.npy` prints the largest difference from these logits of the first batch;
`--check GRADC MODELS` makes such executables, and their logits.
"""
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import four_bit
import numpy as np
import onnx
import peft
import torch
import torch.nn.functional as F
import transformers
from onnx import numpy_helper

OUT = Path(__file__).with_name("peft")
STEPS, ROWS = 20, 8
ADAMW = {"lr": 0.003, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# Settings of PEFT, and with "four_bit" of what the base's weights are kept as: (kind, double quantization).
CASES = {
    "gpt2_lora": ("gpt2_mini", {"r": 4, "lora_alpha": 8, "target_modules": ["c_attn", "c_fc"]}),
    "gpt2_rslora": ("gpt2_mini", {"r": 8, "lora_alpha": 4, "use_rslora": True, "target_modules": ["c_attn", "c_proj", "c_fc"],
                                  "rank_pattern": {"c_fc": 3}, "alpha_pattern": {"mlp.c_proj": 16}}),
    "llama_lora": ("llama_mini", {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"], "modules_to_save": ["lm_head"]}),
    "gpt2_dora": ("gpt2_mini", {"r": 4, "lora_alpha": 8, "use_dora": True, "target_modules": ["c_attn", "c_fc"]}),
    "llama_dora": ("llama_mini", {"r": 8, "lora_alpha": 4, "use_rslora": True, "use_dora": True, "target_modules": ["o_proj", "down_proj", "v_proj"]}),
    "llama_qlora": ("llama_mini", {"r": 8, "lora_alpha": 16, "target_modules": LINEARS, "four_bit": ("nf4", True)}),
    "gpt2_qlora": ("gpt2_mini", {"r": 4, "lora_alpha": 8, "target_modules": ["c_attn", "c_proj", "c_fc"], "four_bit": ("fp4", False)}),
    "llama_rslora": ("llama_mini", {"r": 4, "lora_alpha": 6, "use_rslora": True, "target_modules": [*LINEARS, "embed_tokens"]}),
}


def base(folder):
    """transformers' model with the weights of the ONNX file, in f64."""
    reference = json.loads((folder / "reference.json").read_text())
    if folder.name == "gpt2_mini":
        config = transformers.GPT2Config(vocab_size=256, n_positions=64, n_embd=64, n_layer=4, n_head=4, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
                                         use_cache=False, bos_token_id=0, eos_token_id=0)
        model = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=176, num_hidden_layers=4, num_attention_heads=4,
                                          num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False, use_cache=False,
                                          bos_token_id=0, eos_token_id=0, pad_token_id=None)
        model = transformers.LlamaForCausalLM(config)
    graph = onnx.load(folder / "model.onnx").graph
    tensors = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    parameters, seen = dict(model.named_parameters()), set()
    with torch.no_grad():
        for row in reference["parameters"]:
            if row["torch"] not in parameters:
                continue
            value = torch.from_numpy(tensors[row["name"]].copy())
            parameters[row["torch"]].copy_(value.t() if row["layout"] == "transposed" else value)
            seen.add(row["torch"])
    assert seen == set(parameters), set(parameters) - seen
    model.config._attn_implementation = "eager"
    return model.eval()


def keep_in_four_bit(model, targets, kind, double):
    """Weights of the modules become what their codes stand for: [outputs, inputs], as transformers turns GPT-2's before it quantizes them."""
    for name, module in model.named_modules():
        if name.rsplit(".")[-1] in targets:
            turned = isinstance(module, transformers.pytorch_utils.Conv1D)
            weight = module.weight.data.t() if turned else module.weight.data
            numbers = four_bit.dequantized(weight, kind, double)
            module.weight.data = (numbers.t() if turned else numbers).contiguous()


def batches(folder):
    ids, labels = (torch.from_numpy(np.load(folder / f"{name}.npy")) for name in ("input_ids", "labels"))
    for step in range(STEPS):
        at = step % (len(ids) // ROWS) * ROWS
        yield ids[at:at + ROWS], labels[at:at + ROWS]


def save(model, folder):
    """Its two files: the page about the model stays out."""
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)


def run(model, folder, autocast=False):
    """Losses of the steps."""
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], foreach=False, **ADAMW)
    losses = []
    for ids, labels in batches(folder):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            logits = model(input_ids=ids).logits
            loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]).to(torch.promote_types(logits.dtype, torch.float32)), labels.reshape(-1).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def adapted(folder, settings):
    settings, model = dict(settings), base(folder)
    kept = settings.pop("four_bit", None)
    if kept:
        keep_in_four_bit(model, settings["target_modules"], *kept)
    torch.manual_seed(0)
    return peft.get_peft_model(model, peft.LoraConfig(**settings))


def train(folder, settings, out):
    model = adapted(folder, settings).double()
    save(model, out / "start")
    losses = run(model, folder)
    save(model, out / "trained")
    record = {"model": folder.name, "peft": peft.__version__, "torch": torch.__version__, "trained": sum(p.numel() for p in model.parameters() if p.requires_grad),
              "losses": losses}
    if "four_bit" in settings:  # products in bf16, as that recipe has it
        record["autocast"] = run(adapted(folder, settings), folder, autocast=True)
    (out / "curve.json").write_text(json.dumps(record, indent=1) + "\n")
    print(out.name, losses[0], losses[-1])


def difference(folder, model_folder, logits, four_bit_of=None):
    """The largest one between PEFT's logits of the first batch with that adapter and those of a file."""
    model = base(model_folder)
    if four_bit_of:
        keep_in_four_bit(model, four_bit_of["target_modules"], *four_bit_of["four_bit"])
    model = peft.PeftModel.from_pretrained(model, folder).double().eval()
    ids = next(iter(batches(model_folder)))[0]
    with torch.no_grad():
        got = model(input_ids=ids).logits.numpy()
    return float(np.abs(got - np.load(logits)).max())


# Of executables whose adapters PEFT is to read: their options.
WRITTEN = {
    "gpt2_rslora": ["--lora=*c_attn.weight,alpha=4,rslora", "--lora=*c_proj.weight,alpha=4,rslora", "--lora=*c_fc.weight,rank=3,alpha=4,rslora"],
    "gpt2_dora": ["--lora=*c_attn.weight,rank=4,alpha=8,dora"],
    "llama_lora": ["--train=lm_head.*", "--lora=*.q_proj.weight,alpha=16"],
    "llama_qlora": ["--qlora=*proj.weight,alpha=16"],
    "llama_pissa": ["--lora=*proj.weight,alpha=16,init=pissa"],
}


def check(gradc, models):
    """What executables write, PEFT reads: both compute the same logits."""
    for name, options in WRITTEN.items():
        settings = CASES.get(name, (None, {}))[1]
        folder = Path(models) / ("gpt2_mini" if name.startswith("gpt2") else "llama_mini")
        with tempfile.TemporaryDirectory() as scratch:
            out = Path(scratch)
            np.save(out / "ids.npy", np.load(folder / "input_ids.npy")[:ROWS])
            for line in ([gradc, "compile", folder / "model.onnx", "-o", out / "t", "--dim=batch=8", "--dim=seq=64", "--loss=cross_entropy:logits", *options],
                         [out / "t", f"--data=input_ids={folder / 'input_ids.npy'}", f"--data=labels={folder / 'labels.npy'}", "--steps=5", "--lr=0.01",
                          "--progress=off", f"--export-adapter={out / 'adapter'}", f"--export-merged={out / 'merged.onnx'}"],
                         [gradc, "run", out / "merged.onnx", f"--input=input_ids={out / 'ids.npy'}", f"--output-dir={out / 'run'}"]):
                subprocess.run([str(word) for word in line], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            far = difference(out / "adapter", folder, out / "run/logits.npy", settings if "four_bit" in settings else None)
        print(f"{name}: PEFT reads it, logits differ by {far:.2g}")
        assert far < 1e-4


if __name__ == "__main__":
    if sys.argv[1] == "--read":
        print(difference(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]))
    elif sys.argv[1] == "--check":
        check(Path(sys.argv[2]).resolve(), sys.argv[3])
    else:
        for name, (model, settings) in CASES.items():
            if len(sys.argv) > 2 and name not in sys.argv[2:]:
                continue
            train(Path(sys.argv[1]) / model, settings, OUT / name)
