"""One PyTorch process of the comparison on a GPU: trains a bench model's twin on random data, as users of PyTorch do.

    python3 bench/gpu/torch_step.py MODEL ROWS STEPS [--compile default] [--precision bf16] [--vocabulary 50304] [--length 1024] [--device cuda]

Attention is scaled_dot_product_attention, which chooses its kernel; a step behind the timed ones is profiled, and says which kernel that
was. --compile: a mode of torch.compile; without it, eager. --precision: f32, tf32, or bf16 (autocast). --vocabulary: words of the table
and the head, as nanoGPT pads them; labels stay below the model's own number of words. Prints one JSON object: step_ms of each step, loss,
the memory's peak, seconds to the end of the first step, attention_kernels {name: microseconds of a step}. The models are those of
transformers and torchvision with the sizes of bench/workloads.py, without dropout; every parameter is trained, by AdamW (fused).
"""
import argparse
import json
import re
import time

import torch

WITHOUT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SDPA = {"attn_implementation": "sdpa"}
# Names of kernels, or of ops on a CPU: of attention without stored scores, and of a softmax over stored scores.
FUSED = re.compile(r"flash|fmha|mem_eff|efficient_attention|cudnn.*(sdpa|attention)", re.IGNORECASE)
STORED = re.compile(r"softmax", re.IGNORECASE)


def gpt2_124m(words):
    from transformers import GPT2Config, GPT2LMHeadModel
    return GPT2LMHeadModel(GPT2Config(attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, use_cache=False, vocab_size=words or 50257, **SDPA)), \
        (1024,), 50257, (1024,), 50257


def llama_100m(words):
    from transformers import LlamaConfig, LlamaForCausalLM
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=words or 32000, hidden_size=640, intermediate_size=1728, num_hidden_layers=12, num_attention_heads=10, num_key_value_heads=5,
        max_position_embeddings=2048, tie_word_embeddings=False, use_cache=False, **SDPA)), (1024,), 32000, (1024,), 32000


def bert_base(_words):
    from transformers import BertConfig, BertForSequenceClassification
    return BertForSequenceClassification(BertConfig(num_labels=2, **WITHOUT_DROPOUT, **SDPA)), (128,), 30522, (), 2


def vit_small(_words):
    from transformers import ViTConfig, ViTForImageClassification
    return ViTForImageClassification(ViTConfig(
        hidden_size=384, num_hidden_layers=12, num_attention_heads=6, intermediate_size=1536, num_labels=1000,
        **WITHOUT_DROPOUT, **SDPA)), (3, 224, 224), 0, (), 1000


def resnet50(_words):
    import torchvision
    return torchvision.models.resnet50(weights=None), (3, 224, 224), 0, (), 1000


MODELS = {f.__name__: f for f in (gpt2_124m, llama_100m, bert_base, vit_small, resnet50)}


def batch(o, shape, vocabulary, label_shape, classes):
    """Random rows; --length in place of the model's own tokens."""
    length = (o.length,) if o.length and vocabulary else shape
    x = torch.randint(0, vocabulary, (o.rows, *length)) if vocabulary else torch.randn(o.rows, *shape)
    labels = torch.randint(0, classes, (o.rows, *(length if label_shape else ())))
    return x.to(o.device), labels.to(o.device)


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def attention_kernels(step, device):
    """{name: microseconds} of a step's kernels that compute attention, by PyTorch's profiler."""
    kind = torch.profiler.ProfilerActivity.CUDA if device == "cuda" else torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[kind]) as profile:
        step()
        synchronize(device)
    found = {}
    for event in profile.key_averages():
        time_us = event.device_time_total if device == "cuda" else event.cpu_time_total
        if FUSED.search(event.key) or STORED.search(event.key):
            found[event.key] = found.get(event.key, 0) + time_us
    return found


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", choices=MODELS)
    p.add_argument("rows", type=int)
    p.add_argument("steps", type=int)
    p.add_argument("--compile", choices=("default", "max-autotune-no-cudagraphs"))
    p.add_argument("--precision", choices=("f32", "tf32", "bf16"), default="f32")
    p.add_argument("--vocabulary", type=int, default=0)
    p.add_argument("--length", type=int, default=0)
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    o = p.parse_args()
    began = time.monotonic()
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = o.precision == "tf32"
    model, *sizes = MODELS[o.model](o.vocabulary)
    model = model.to(o.device).train()
    x, labels = batch(o, *sizes)

    def loss_of(x, labels):
        with torch.autocast(o.device, torch.bfloat16, enabled=o.precision == "bf16"):
            out = model(x)
        logits = getattr(out, "logits", out).float()
        return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))

    step_loss = torch.compile(loss_of, dynamic=False, mode=o.compile) if o.compile else loss_of
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = step_loss(x, labels)
        loss.backward()
        optimizer.step()
        return loss

    times, loss, first = [], None, None
    for _ in range(o.steps):
        start = time.monotonic()
        loss = step()
        synchronize(o.device)
        times.append(1e3 * (time.monotonic() - start))
        first = first or time.monotonic() - began
    peak = torch.cuda.max_memory_allocated() if o.device == "cuda" else None
    kernels = attention_kernels(step, o.device)
    print(json.dumps({"step_ms": times, "loss": loss.item(), "first_s": first, "torch": torch.__version__, "peak_bytes": peak,
                      "attention_kernels": kernels, "attention_fused": any(FUSED.search(k) for k in kernels)}))


if __name__ == "__main__":
    main()
