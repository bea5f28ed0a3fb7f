"""One PyTorch process of the comparison on a GPU: trains a bench model's twin on random data.

    python3 bench/gpu/torch_step.py MODEL eager|compile PRECISION ATTENTION ROWS STEPS

PRECISION is f32, tf32, or bf16 (autocast), ATTENTION math (stored scores) or fused (asked for; torch.compile did not see it). Prints one JSON object: step_ms of each step, loss, the memory's
peak, seconds to the end of the first step. The models are those of transformers and torchvision with the sizes of bench/workloads.py,
without dropout; what is trained is every parameter, by AdamW (fused).
"""
import json
import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

WITHOUT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def gpt2_124m():
    from transformers import GPT2Config, GPT2LMHeadModel
    return GPT2LMHeadModel(GPT2Config(attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, use_cache=False)), (1024,), 50257, (1024,), 50257


def llama_100m():
    from transformers import LlamaConfig, LlamaForCausalLM
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=32000, hidden_size=640, intermediate_size=1728, num_hidden_layers=12, num_attention_heads=10, num_key_value_heads=5,
        max_position_embeddings=2048, tie_word_embeddings=False, use_cache=False)), (1024,), 32000, (1024,), 32000


def bert_base():
    from transformers import BertConfig, BertForSequenceClassification
    return BertForSequenceClassification(BertConfig(num_labels=2, **WITHOUT_DROPOUT)), (128,), 30522, (), 2


def vit_small():
    from transformers import ViTConfig, ViTForImageClassification
    return ViTForImageClassification(ViTConfig(
        hidden_size=384, num_hidden_layers=12, num_attention_heads=6, intermediate_size=1536, num_labels=1000,
        **WITHOUT_DROPOUT)), (3, 224, 224), 0, (), 1000


def resnet50():
    import torchvision
    return torchvision.models.resnet50(weights=None), (3, 224, 224), 0, (), 1000


MODELS = {f.__name__: f for f in (gpt2_124m, llama_100m, bert_base, vit_small, resnet50)}


def batch(rows, shape, vocabulary, label_shape, classes):
    x = torch.randint(0, vocabulary, (rows, *shape)) if vocabulary else torch.randn(rows, *shape)
    return x.cuda(), torch.randint(0, classes, (rows, *label_shape)).cuda()


def main(name, mode, precision, attention, rows, steps):
    began = time.monotonic()
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    model, *sizes = MODELS[name]()
    model = model.cuda().train()
    x, labels = batch(int(rows), *sizes)

    def loss_of(x, labels):
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            out = model(x)
        logits = getattr(out, "logits", out).float()
        return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))

    step_loss = torch.compile(loss_of, dynamic=False) if mode == "compile" else loss_of
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
    times, loss, first = [], None, None
    with sdpa_kernel(SDPBackend.MATH if attention == "math" else [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION,
                                                                  SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH]):
        for _ in range(int(steps)):
            start = time.monotonic()
            optimizer.zero_grad(set_to_none=True)
            loss = step_loss(x, labels)
            loss.backward()
            optimizer.step()
            torch.cuda.synchronize()
            times.append(1e3 * (time.monotonic() - start))
            first = first or time.monotonic() - began
    print(json.dumps({"step_ms": times, "loss": loss.item(), "first_s": first, "torch": torch.__version__,
                      "peak_bytes": torch.cuda.max_memory_allocated()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
