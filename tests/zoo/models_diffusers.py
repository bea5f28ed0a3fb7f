"""Models of diffusers: what removes noise, and what packs pictures."""
import diffusers as df
from torch import nn

from zoo_torch import RAW, SCRIPT, Row, floats, integers, main


def times(rng, rows):
    return rng.integers(0, 1000, rows)


def noises(rng, rows):
    return rng.uniform(0.1, 10, rows).astype("float32")


def positions(n):
    """The same for all rows, so a batch has one."""
    return lambda rng, rows: rng.integers(0, 8, (rows, n, 3)).astype("float32")


PICTURE = floats(3, 16, 16)
LATENT = floats(4, 8, 8)
TEXT = floats(6, 16)
UNET = dict(sample_size=16, block_out_channels=(16, 32), layers_per_block=1, norm_num_groups=4,
            down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"), attention_head_dim=8)
CONDITIONED = dict(sample_size=8, in_channels=4, out_channels=4, block_out_channels=(16, 32), layers_per_block=1, norm_num_groups=4,
                   cross_attention_dim=16, attention_head_dim=8, down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
                   up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"))
AUTOENCODER = dict(block_out_channels=(16, 32), layers_per_block=1, norm_num_groups=4, latent_channels=4,
                   down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2)


class Whole(nn.Module):
    """Encoder and decoder, at the distribution's mode."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model.decode(self.model.encode(x).latent_dist.mode()).sample


def row(name, make, inputs, labels, **kw):
    return Row(name, make, inputs, labels=labels, loss="mse", **kw)


DENOISE = {"sample": PICTURE, "timestep": times}
MODELS = [
    row("unet2d", lambda: df.UNet2DModel(**UNET), DENOISE, PICTURE),
    row("unet2d_script", lambda: df.UNet2DModel(**UNET), DENOISE, PICTURE, exporter=SCRIPT),
    row("unet2d_fresh", lambda: df.UNet2DModel(**UNET), DENOISE, PICTURE, exporter=RAW, is_moved=False),
    row("unet2d_fourier", lambda: df.UNet2DModel(**UNET, time_embedding_type="fourier"), {"sample": PICTURE, "timestep": noises},
        PICTURE, exporter=RAW),
    row("unet2d_classes", lambda: df.UNet2DModel(**UNET, num_class_embeds=10), DENOISE | {"class_labels": integers(10)}, PICTURE,
        exporter=RAW),
    row("unet2d_condition", lambda: df.UNet2DConditionModel(**CONDITIONED),
        {"sample": LATENT, "timestep": times, "encoder_hidden_states": TEXT}, LATENT),
    row("autoencoder_kl", lambda: Whole(df.AutoencoderKL(**AUTOENCODER)), {"x": PICTURE}, PICTURE, exporter=RAW),
    row("vq_free_decoder", lambda: df.AutoencoderTiny(encoder_block_out_channels=(16, 16), decoder_block_out_channels=(16, 16),
        num_encoder_blocks=(1, 1), num_decoder_blocks=(1, 1)), {"sample": PICTURE}, PICTURE, exporter=SCRIPT),
    row("dit", lambda: df.DiTTransformer2DModel(num_attention_heads=2, attention_head_dim=16, in_channels=4, num_layers=2, sample_size=8,
        patch_size=2, norm_num_groups=4, num_embeds_ada_norm=10), {"hidden_states": LATENT, "timestep": times, "class_labels": integers(10)},
        LATENT),
    row("pixart", lambda: df.PixArtTransformer2DModel(num_attention_heads=2, attention_head_dim=16, in_channels=4, out_channels=4, num_layers=2,
        sample_size=8, patch_size=2, cross_attention_dim=32, caption_channels=16, norm_num_groups=4),
        {"hidden_states": LATENT, "encoder_hidden_states": TEXT, "timestep": times}, LATENT, exporter=RAW),
    row("sd3", lambda: df.SD3Transformer2DModel(sample_size=8, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=16, caption_projection_dim=32, pooled_projection_dim=16, out_channels=4,
        pos_embed_max_size=8), {"hidden_states": LATENT, "encoder_hidden_states": TEXT, "pooled_projections": floats(16), "timestep": times},
        LATENT, exporter=RAW),
    row("flux", lambda: df.FluxTransformer2DModel(patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=16, pooled_projection_dim=16, axes_dims_rope=(4, 4, 8)),
        {"hidden_states": floats(16, 4), "encoder_hidden_states": TEXT, "pooled_projections": floats(16), "timestep": noises,
        "img_ids": positions(16), "txt_ids": positions(6)}, floats(16, 4), exporter=RAW, rows=1),
    row("aura_flow", lambda: df.AuraFlowTransformer2DModel(sample_size=8, patch_size=2, in_channels=4, num_mmdit_layers=1,
        num_single_dit_layers=1, attention_head_dim=16, num_attention_heads=2, joint_attention_dim=16, caption_projection_dim=32,
        out_channels=4, pos_embed_max_size=16), {"hidden_states": LATENT, "encoder_hidden_states": TEXT, "timestep": noises}, LATENT),
    row("unet1d", lambda: df.UNet1DModel(sample_size=16, in_channels=3, out_channels=3, block_out_channels=(32, 32), extra_in_channels=64,
        down_block_types=("DownBlock1DNoSkip", "AttnDownBlock1D"), up_block_types=("AttnUpBlock1D", "UpBlock1DNoSkip"), mid_block_type="UNetMidBlock1D"),
        {"sample": floats(3, 16), "timestep": noises}, floats(3, 16), exporter=RAW),
    row("controlnet_fresh", lambda: df.ControlNetModel(in_channels=4, block_out_channels=(16, 32), layers_per_block=1, norm_num_groups=4,
        cross_attention_dim=16, attention_head_dim=8, down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        conditioning_embedding_out_channels=(8, 16)), {"sample": LATENT, "timestep": times, "encoder_hidden_states": TEXT,
        "controlnet_cond": floats(3, 16, 16)}, floats(32, 4, 4), exporter=RAW, is_moved=False, pick=lambda out: out.mid_block_res_sample),
    row("prior", lambda: df.PriorTransformer(num_attention_heads=2, attention_head_dim=16, num_layers=2, embedding_dim=16, num_embeddings=6,
        additional_embeddings=4), {"hidden_states": floats(16), "timestep": times, "proj_embedding": floats(16),
        "encoder_hidden_states": TEXT}, floats(16), pick=lambda out: out.predicted_image_embedding),
]

if __name__ == "__main__":
    main("diffusers", MODELS, ["diffusers"])
