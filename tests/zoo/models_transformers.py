"""Models of transformers: text, images, sound and both, of two layers and 32 to 64 channels."""
import transformers as hf
from torch import nn

from zoo_torch import RAW, SCRIPT, Row, fixed, floats, integers, main

VOCABULARY, LENGTH = 96, 16
TOKENS = integers(VOCABULARY, LENGTH, first=3)  # no padding: PyTorch does not train its row, and no file says so
SMALL = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
             max_position_embeddings=32, pad_token_id=0, bos_token_id=1, eos_token_id=2)
GROUPED = SMALL | dict(num_key_value_heads=2, head_dim=8)
VISION = dict(image_size=32, patch_size=8, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
SEQUENCES = dict(vocab_size=VOCABULARY, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                 decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=32, pad_token_id=0,
                 bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)


def made(model, config):
    """Dropouts are 0 in the configuration, too: some are functions and no modules."""
    def make():
        for name in list(vars(config)):
            if "drop" in name and isinstance(getattr(config, name), float):
                setattr(config, name, 0.0)
        if hasattr(config, "use_cache"):
            config.use_cache = False
        return model(config)
    return make


def text(name, model, config, labels=TOKENS, inputs=None, **kw):
    return Row(name, made(model, config), inputs or {"input_ids": TOKENS}, labels=labels, **kw)


def with_mask(name, model, config, **kw):
    return text(name, model, config, inputs={"input_ids": TOKENS, "attention_mask": fixed([1] * 12 + [0] * 4)}, **kw)


def own_loss(name, model, config, **kw):
    """The model computes its loss from labels that are an input."""
    return text(name, model, config, labels=None, inputs={"input_ids": TOKENS, "labels": TOKENS}, **kw)


def pictures(name, model, config, size=32, **kw):
    config.num_labels = 10
    return Row(name, made(model, config), {"pixel_values": floats(3, size, size)}, labels=integers(10), **kw)


def both(name, model, config, **kw):
    return Row(name, made(model, config), {"input_ids": TOKENS, "decoder_input_ids": TOKENS}, labels=TOKENS, **kw)


class Contrast(nn.Module):
    """CLIP's loss: each text with its picture."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, pixel_values):
        return self.model(input_ids=input_ids, pixel_values=pixel_values).logits_per_text


def clip(model, config):
    return lambda: Contrast(made(model, config)())


CLIP = dict(text_config=SMALL | dict(projection_dim=16), vision_config=VISION | dict(projection_dim=16), projection_dim=16)
PAIRS = {"input_ids": TOKENS, "pixel_values": floats(3, 32, 32)}

MODELS = [
    text("gpt2", hf.GPT2LMHeadModel, hf.GPT2Config(vocab_size=VOCABULARY, n_positions=32, n_embd=32, n_layer=2, n_head=4)),
    text("gpt2_fresh", hf.GPT2LMHeadModel, hf.GPT2Config(vocab_size=VOCABULARY, n_positions=32, n_embd=32, n_layer=2, n_head=4),
         is_moved=False, exporter=RAW),
    own_loss("gpt2_own_loss", hf.GPT2LMHeadModel, hf.GPT2Config(vocab_size=VOCABULARY, n_positions=32, n_embd=32, n_layer=2, n_head=4)),
    with_mask("gpt_neo", hf.GPTNeoForCausalLM, hf.GPTNeoConfig(vocab_size=VOCABULARY, max_position_embeddings=32, hidden_size=32, num_layers=2,
         num_heads=4, attention_types=[[["global", "local"], 1]], window_size=8), exporter=SCRIPT),
    text("gpt_neox", hf.GPTNeoXForCausalLM, hf.GPTNeoXConfig(**SMALL)),
    text("bloom", hf.BloomForCausalLM, hf.BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4)),
    text("opt", hf.OPTForCausalLM, hf.OPTConfig(vocab_size=VOCABULARY, hidden_size=32, ffn_dim=64, num_hidden_layers=2,
         num_attention_heads=4, max_position_embeddings=32, word_embed_proj_dim=32), exporter=RAW),
    text("llama", hf.LlamaForCausalLM, hf.LlamaConfig(**GROUPED), is_open=True),
    with_mask("llama_fresh", hf.LlamaForCausalLM, hf.LlamaConfig(**GROUPED), exporter=SCRIPT, is_moved=False),
    text("qwen3", hf.Qwen3ForCausalLM, hf.Qwen3Config(**GROUPED), exporter=RAW),
    text("gemma", hf.GemmaForCausalLM, hf.GemmaConfig(**GROUPED), exporter=RAW),
    text("gemma2", hf.Gemma2ForCausalLM, hf.Gemma2Config(**GROUPED, query_pre_attn_scalar=8), exporter=RAW),
    with_mask("phi", hf.PhiForCausalLM, hf.PhiConfig(**SMALL), exporter=SCRIPT),
    text("falcon", hf.FalconForCausalLM, hf.FalconConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2,
         num_attention_heads=4, alibi=True, bos_token_id=1, eos_token_id=2)),
    text("mixtral", hf.MixtralForCausalLM, hf.MixtralConfig(**GROUPED, num_local_experts=4, num_experts_per_tok=2, experts_implementation="batched_mm"), exporter=RAW),
    text("mamba", hf.MambaForCausalLM, hf.MambaConfig(vocab_size=VOCABULARY, hidden_size=32, state_size=4, num_hidden_layers=2), exporter=RAW),
    text("t5_encoder", hf.T5EncoderModel, hf.T5Config(vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, attn_implementation="eager"),
         labels=floats(LENGTH, 32), loss="mse", exporter=RAW),
    both("t5", hf.T5ForConditionalGeneration, hf.T5Config(vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, attn_implementation="eager",
         decoder_start_token_id=0), exporter=RAW),
    both("bart", hf.BartForConditionalGeneration, hf.BartConfig(**SEQUENCES), exporter=RAW),
    both("marian", hf.MarianMTModel, hf.MarianConfig(**SEQUENCES), exporter=SCRIPT),
    with_mask("bert", hf.BertForMaskedLM, hf.BertConfig(**SMALL)),
    with_mask("bert_classifier_script", hf.BertForSequenceClassification, hf.BertConfig(**SMALL, num_labels=3), labels=integers(3), exporter=SCRIPT),
    with_mask("roberta", hf.RobertaForMaskedLM, hf.RobertaConfig(**SMALL | dict(max_position_embeddings=40)), exporter=RAW),
    with_mask("albert", hf.AlbertForMaskedLM, hf.AlbertConfig(**SMALL, embedding_size=16)),
    with_mask("distilbert", hf.DistilBertForMaskedLM, hf.DistilBertConfig(vocab_size=VOCABULARY, max_position_embeddings=32, dim=32,
              hidden_dim=64, n_layers=2, n_heads=4, sinusoidal_pos_embds=True), exporter=SCRIPT),
    with_mask("electra", hf.ElectraForTokenClassification, hf.ElectraConfig(**SMALL, embedding_size=16, num_labels=5),
              labels=integers(5, LENGTH), exporter=RAW),
    with_mask("deberta_v2", hf.DebertaV2ForSequenceClassification, hf.DebertaV2Config(**SMALL, num_labels=3, relative_attention=True,
              position_buckets=8, pos_att_type=["p2c", "c2p"]), labels=integers(3), exporter=RAW),
    with_mask("mpnet", hf.MPNetForMaskedLM, hf.MPNetConfig(**SMALL | dict(max_position_embeddings=40)), exporter=SCRIPT),
    text("modernbert", hf.ModernBertForMaskedLM, hf.ModernBertConfig(**SMALL), exporter=RAW),
    text("xlnet", hf.XLNetForSequenceClassification, hf.XLNetConfig(vocab_size=VOCABULARY, d_model=32, n_layer=2, n_head=4, d_inner=64,
         num_labels=3), labels=integers(3), exporter=SCRIPT),
    with_mask("xglm", hf.XGLMForCausalLM, hf.XGLMConfig(vocab_size=VOCABULARY, max_position_embeddings=32, d_model=32, ffn_dim=64, num_layers=2,
              attention_heads=4, pad_token_id=0), exporter=SCRIPT),
    text("ctrl", hf.CTRLLMHeadModel, hf.CTRLConfig(vocab_size=VOCABULARY, n_positions=32, n_embd=32, dff=64, n_layer=2, n_head=4), exporter=RAW),
    with_mask("roformer", hf.RoFormerForMaskedLM, hf.RoFormerConfig(**SMALL), exporter=SCRIPT),
    with_mask("roformer_dynamo", hf.RoFormerForMaskedLM, hf.RoFormerConfig(**SMALL)),
    with_mask("squeezebert", hf.SqueezeBertForMaskedLM, hf.SqueezeBertConfig(**SMALL | dict(embedding_size=32), q_groups=2, k_groups=2, v_groups=2,
              post_attention_groups=2, intermediate_groups=2, output_groups=2)),
    with_mask("mobilebert", hf.MobileBertForMaskedLM, hf.MobileBertConfig(**SMALL, embedding_size=16, intra_bottleneck_size=16,
              true_hidden_size=16), exporter=RAW),
    with_mask("nystromformer", hf.NystromformerForMaskedLM, hf.NystromformerConfig(**SMALL, segment_means_seq_len=16, num_landmarks=16), exporter=SCRIPT),
    text("mamba2", hf.Mamba2ForCausalLM, hf.Mamba2Config(vocab_size=VOCABULARY, hidden_size=16, state_size=4, num_hidden_layers=2, num_heads=4,
         head_dim=8, expand=2, n_groups=1, chunk_size=8), exporter=RAW),
    text("mamba_fresh", hf.MambaForCausalLM, hf.MambaConfig(vocab_size=VOCABULARY, hidden_size=32, state_size=4, num_hidden_layers=2),
         is_moved=False),
    text("stablelm", hf.StableLmForCausalLM, hf.StableLmConfig(**SMALL, num_key_value_heads=4)),
    text("olmo2", hf.Olmo2ForCausalLM, hf.Olmo2Config(**SMALL), exporter=RAW),
    text("cohere", hf.CohereForCausalLM, hf.CohereConfig(**SMALL, logit_scale=0.0625), is_open=True),
    text("granite", hf.GraniteForCausalLM, hf.GraniteConfig(**SMALL, embedding_multiplier=12.0, logits_scaling=8.0, residual_multiplier=0.22)),
    text("gptj", hf.GPTJForCausalLM, hf.GPTJConfig(vocab_size=VOCABULARY, n_positions=32, n_embd=32, n_layer=2, n_head=4, rotary_dim=4), exporter=RAW),
    both("pegasus", hf.PegasusForConditionalGeneration, hf.PegasusConfig(**SEQUENCES), exporter=RAW),
    both("blenderbot_fresh", hf.BlenderbotForConditionalGeneration, hf.BlenderbotConfig(**SEQUENCES), is_moved=False, exporter=SCRIPT),
    both("umt5", hf.UMT5ForConditionalGeneration, hf.UMT5Config(vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
         decoder_start_token_id=0, attn_implementation="eager"), exporter=RAW),
    Row("yolos_fresh", made(hf.YolosModel, hf.YolosConfig(**VISION | dict(image_size=[32, 32]), num_detection_tokens=4, use_mid_position_embeddings=False)),
        {"pixel_values": floats(3, 32, 32)}, labels=floats(21, 32), loss="mse", exporter=RAW, is_moved=False),
    pictures("cvt", hf.CvtForImageClassification, hf.CvtConfig(embed_dim=[8, 16, 16], num_heads=[1, 2, 2], depth=[1, 2, 3]), size=64, exporter=RAW),
    pictures("vit_fresh", hf.ViTForImageClassification, hf.ViTConfig(**VISION), exporter=RAW, is_moved=False),
    Row("speech_to_text", made(hf.Speech2TextForConditionalGeneration, hf.Speech2TextConfig(**SEQUENCES | dict(max_source_positions=64,
        max_target_positions=32, input_feat_per_channel=16, num_conv_layers=1, conv_kernel_sizes=(5,), conv_channels=32))),
        {"input_features": floats(32, 16), "decoder_input_ids": TOKENS}, labels=TOKENS, exporter=RAW),
    Row("hubert_fresh", made(hf.HubertForCTC, hf.HubertConfig(**SMALL | dict(vocab_size=12), conv_dim=(16, 16), conv_kernel=(10, 3),
        conv_stride=(5, 2), num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4, mask_time_prob=0.0, mask_feature_prob=0.0)),
        {"input_values": floats(205)}, labels=integers(12, 19), pick=lambda out: out.logits, exporter=RAW, is_moved=False),
    pictures("vit", hf.ViTForImageClassification, hf.ViTConfig(**VISION), is_open=True),
    pictures("deit_fresh", hf.DeiTForImageClassificationWithTeacher, hf.DeiTConfig(**VISION), exporter=SCRIPT, is_moved=False),
    pictures("beit", hf.BeitForImageClassification, hf.BeitConfig(**VISION, use_relative_position_bias=True, attn_implementation="eager"), exporter=RAW),
    pictures("dinov2", hf.Dinov2ForImageClassification, hf.Dinov2Config(image_size=32, patch_size=8, hidden_size=32, num_hidden_layers=2,
             num_attention_heads=4, mlp_ratio=2)),
    pictures("swin", hf.SwinForImageClassification, hf.SwinConfig(image_size=32, patch_size=2, embed_dim=16, depths=[1, 1], num_heads=[2, 4],
             window_size=4), exporter=SCRIPT),
    pictures("convnext", hf.ConvNextForImageClassification, hf.ConvNextConfig(hidden_sizes=[16, 24, 32, 40], depths=[1, 1, 1, 1])),
    pictures("resnet_train", hf.ResNetForImageClassification, hf.ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1],
             layer_type="basic"), exporter=SCRIPT, form="training"),
    Row("segformer", made(hf.SegformerForSemanticSegmentation, hf.SegformerConfig(hidden_sizes=[16, 16, 32, 32], depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 2, 4], decoder_hidden_size=32, num_labels=4)), {"pixel_values": floats(3, 64, 64)},
        labels=integers(4, 16, 16), exporter=RAW),
    Row("clip", clip(hf.CLIPModel, hf.CLIPConfig(**CLIP)), PAIRS, labels=integers(4), exporter=RAW),
    Row("clip_folded", clip(hf.CLIPModel, hf.CLIPConfig(**CLIP)), PAIRS, labels=integers(4)),
    Row("siglip_script", clip(hf.SiglipModel, hf.SiglipConfig(text_config=SMALL, vision_config=VISION)), PAIRS, labels=integers(4), exporter=SCRIPT),
    Row("whisper", made(hf.WhisperForConditionalGeneration, hf.WhisperConfig(**SEQUENCES | dict(
        num_mel_bins=16, max_source_positions=16, max_target_positions=32, suppress_tokens=None, begin_suppress_tokens=None))),
        {"input_features": floats(16, 32), "decoder_input_ids": TOKENS}, labels=TOKENS),
    Row("wav2vec2", made(hf.Wav2Vec2ForCTC, hf.Wav2Vec2Config(**SMALL | dict(vocab_size=12), conv_dim=(16, 16), conv_kernel=(10, 3), conv_stride=(5, 2),
        num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4, feat_extract_norm="layer", mask_time_prob=0.0, mask_feature_prob=0.0)),
        {"input_values": floats(205)}, labels=integers(12, 19), exporter=RAW, pick=lambda out: out.logits),
    Row("wav2vec2_folded", made(hf.Wav2Vec2ForCTC, hf.Wav2Vec2Config(**SMALL | dict(vocab_size=12), conv_dim=(16, 16), conv_kernel=(10, 3),
        conv_stride=(5, 2), num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4, mask_time_prob=0.0, mask_feature_prob=0.0)),
        {"input_values": floats(205)}, labels=integers(12, 19), pick=lambda out: out.logits),
    Row("patchtst", made(hf.PatchTSTForRegression, hf.PatchTSTConfig(num_input_channels=3, context_length=32, patch_length=8, patch_stride=8, d_model=32,
        num_hidden_layers=2, num_attention_heads=4, ffn_dim=64, num_targets=2, loss="mse", scaling=None, positional_encoding_type="random")), {"past_values": floats(32, 3)}, labels=floats(2),
        loss="mse", pick=lambda out: out.regression_outputs, exporter=RAW),
]

if __name__ == "__main__":
    main("transformers", MODELS, ["transformers"])
