"""Models of timm: its architectures, narrow and shallow, on images of 32 to 64 pixels."""
from functools import partial

import timm
from timm.models.convmixer import ConvMixer
from timm.models.focalnet import FocalNet
from timm.models.gcvit import GlobalContextVit
from timm.models.metaformer import Attention, GroupNorm1, LayerNorm2dNoBias, LayerNormNoBias, MetaFormer, SepConv
from timm.models.mlp_mixer import Affine, GatedMlp, MlpMixer, ResBlock, SpatialGatingBlock
from timm.models.mvitv2 import MultiScaleVit, MultiScaleVitCfg
from timm.models.nest import Nest
from timm.models.resnetv2 import ResNetV2, StdConv2d
from timm.models.volo import VOLO
from torch import nn

from zoo_torch import RAW, SCRIPT, Row, floats, integers, main

VIT = dict(img_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=4)

CAFORMER = dict(depths=(1, 1, 1, 1), dims=(16, 24, 32, 32), token_mixers=[SepConv, SepConv, Attention, Attention],
                norm_layers=[LayerNorm2dNoBias] * 2 + [LayerNormNoBias] * 2)


def row(name, model, size=32, **kw):
    """What Row knows is the row's, the rest the architecture's."""
    mine = {k: kw.pop(k) for k in ("exporter", "form", "is_moved", "is_open", "rows", "lr", "opset") if k in kw}
    make = partial(timm.create_model, model) if isinstance(model, str) else model
    return Row(name, lambda: make(num_classes=10, **kw), {"x": floats(3, size, size)},
               labels=integers(10), **mine)


MODELS = [
    row("vit_tiny", "vit_tiny_patch16_224", **VIT, is_open=True),
    row("vit_reg4_dinov2", "vit_small_patch14_reg4_dinov2", **VIT),
    row("vit_siglip_map", "vit_base_patch16_siglip_224", **VIT, exporter=SCRIPT),
    row("vit_fresh", "vit_tiny_patch16_224", **VIT, exporter=RAW, is_moved=False),
    row("deit_distilled", "deit_tiny_distilled_patch16_224", **VIT, exporter=RAW),
    row("deit_distilled_fresh", "deit_tiny_distilled_patch16_224", **VIT, exporter=SCRIPT, is_moved=False),
    row("beitv2_script", "beitv2_base_patch16_224", **VIT, exporter=SCRIPT),
    row("eva02", "eva02_tiny_patch14_224", **VIT, exporter=RAW),
    row("cait", "cait_xxs24_224", img_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=4),
    row("xcit", "xcit_nano_12_p16_224", img_size=32, embed_dim=32, depth=2, num_heads=4, exporter=RAW),
    row("mixer", MlpMixer, img_size=32, patch_size=8, embed_dim=48, num_blocks=2, is_open=True),
    row("resmlp", MlpMixer, img_size=32, patch_size=8, embed_dim=48, num_blocks=2, mlp_ratio=4, block_layer=ResBlock, norm_layer=Affine,
        exporter=SCRIPT),
    row("gmlp_fresh", MlpMixer, img_size=32, patch_size=8, embed_dim=48, num_blocks=2, mlp_ratio=6,
        block_layer=SpatialGatingBlock, mlp_layer=GatedMlp, exporter=RAW, is_moved=False),
    row("convmixer", ConvMixer, dim=48, depth=2, kernel_size=7, patch_size=4, exporter=SCRIPT, form="training", rows=8),
    row("convnext_atto", "convnext_atto", depths=(1, 1, 1, 1), dims=(16, 24, 32, 40)),
    row("convnextv2_atto", "convnextv2_atto", depths=(1, 1, 1, 1), dims=(16, 24, 32, 40), exporter=SCRIPT),
    row("edgenext", "edgenext_xx_small", 64, exporter=RAW),
    row("levit", "levit_128s", 64, img_size=64, exporter=SCRIPT, form="training", rows=8),
    row("mobilevit", "mobilevit_xxs", 64, exporter=RAW),
    row("mobilevitv2", "mobilevitv2_050", 64, exporter=SCRIPT, form="training", rows=8),
    row("poolformer", MetaFormer, depths=(1, 1, 1, 1), dims=(16, 24, 32, 40), downsample_norm=None, mlp_act=nn.GELU, mlp_bias=True,
        norm_layers=GroupNorm1, layer_scale_init_values=1e-5, res_scale_init_values=None, use_mlp_head=False),
    row("pvt_v2", "pvt_v2_b0", depths=(1, 1, 1, 1)),
    row("swinv2", "swinv2_tiny_window8_256", 64, img_size=64, window_size=4, embed_dim=24, depths=(1, 1), num_heads=(2, 4), exporter=RAW),
    row("twins", "twins_svt_small", 64, img_size=64, depths=(1, 1, 1, 1), embed_dims=(16, 32, 64, 64), num_heads=(1, 2, 4, 4),
        exporter=SCRIPT),
    row("coatnet_rel_pos", "coatnet_rmlp_nano_rw_224", 64, img_size=64, depths=(1, 1, 1, 1), embed_dim=(16, 32, 32, 64), exporter=RAW),
    row("nfnet", "test_nfnet", 64, exporter=RAW),
    row("nfnet_folded", "test_nfnet", 64),
    row("resnetv2_bit", ResNetV2, layers=(1, 1, 1, 1), channels=(128, 128, 128, 128), stem_chs=32, stem_type="fixed",
        conv_layer=partial(StdConv2d, eps=1e-8), exporter=SCRIPT),
    row("repvgg", "repvgg_a0", exporter=RAW),
    row("ghostnet", "ghostnet_050", exporter=RAW, is_open=True),
    row("fastvit", "fastvit_t8", 64, layers=(1, 1, 1, 1), exporter=RAW),
    row("mambaout", "test_mambaout", 64, is_open=True),
    row("efficientnet_test", "test_efficientnet", 64, exporter=SCRIPT, form="training", rows=8),
    row("byobnet_test", "test_byobnet", 64, exporter=RAW),
    row("focalnet", FocalNet, 64, depths=(1, 1, 1, 1), embed_dim=16),
    row("davit", "davit_tiny", 64, depths=(1, 1, 1, 1), embed_dims=(16, 32, 32, 64), num_heads=(1, 2, 2, 4), exporter=SCRIPT),
    row("hiera", "hiera_tiny_224", 64, img_size=(64, 64), embed_dim=16, num_heads=1, stages=(1, 1, 1, 1), exporter=SCRIPT),
    row("crossvit", "crossvit_tiny_240", 48, img_size=48, img_scale=(1.0, 1.0), patch_size=(12, 16), embed_dim=(24, 48),
        depth=((1, 1, 0),), num_heads=(2, 2), mlp_ratio=(2, 2, 1), exporter=RAW),
    row("tnt", "tnt_s_patch16_224", img_size=32, patch_size=16, embed_dim=48, inner_dim=12, depth=2, num_heads_outer=4,
        num_heads_inner=2),
    row("volo", VOLO, 64, img_size=64, layers=(1, 1, 1, 1), embed_dims=(24, 48, 48, 48), num_heads=(2, 4, 4, 4),
        exporter=RAW),
    row("sequencer", "sequencer2d_s", layers=(1, 1, 1, 1), embed_dims=(24, 48, 48, 48), exporter=SCRIPT),
    row("inception_next", "inception_next_atto", 64, depths=(1, 1, 1, 1), dims=(16, 32, 48, 64), exporter=SCRIPT, form="training",
        rows=8),
    row("starnet", "starnet_s050", 64, exporter=RAW),
    row("vit_reg4_fresh", "vit_small_patch14_reg4_dinov2", **VIT, is_moved=False),
    row("vit_relpos", "vit_relpos_small_patch16_224", **VIT, exporter=SCRIPT),
    row("samvit", "samvit_base_patch16_224", **VIT | dict(img_size=64, patch_size=16), size=64, exporter=SCRIPT),
    row("deit3", "deit3_small_patch16_224", **VIT, exporter=SCRIPT),
    row("caformer", MetaFormer, 64, **CAFORMER,
        exporter=RAW),
    row("caformer_fresh", MetaFormer, 64, **CAFORMER,
        is_moved=False),
    row("caformer_script", MetaFormer, 64, **CAFORMER,
        exporter=SCRIPT),
    row("gcvit", GlobalContextVit, 64, img_size=64, window_ratio=(16, 16, 16, 32), depths=(1, 1, 1, 1), embed_dim=16, num_heads=(1, 1, 2, 2),
        exporter=RAW),
    row("convit", "convit_tiny", img_size=32, patch_size=8, embed_dim=12, depth=2, local_up_to_layer=1, num_heads=4, exporter=RAW),
    row("convit_script", "convit_tiny", img_size=32, patch_size=8, embed_dim=12, depth=2, local_up_to_layer=1, num_heads=4, exporter=SCRIPT),
    row("swinv2_cr", "swinv2_cr_tiny_224", 64, img_size=64, window_size=4, embed_dim=24, depths=(1, 1), num_heads=(2, 4), exporter=RAW),
    row("hgnetv2_learned_affine", "hgnetv2_b0", 64, exporter=RAW),
    row("hgnetv2_learned_affine_fresh", "hgnetv2_b0", 64, exporter=SCRIPT, form="training", is_moved=False, rows=8),
    row("mvitv2", MultiScaleVit, 64, cfg=MultiScaleVitCfg(depths=(1, 1), embed_dim=16, num_heads=1, stride_q=((1, 1), (2, 2))), img_size=64,
        exporter=RAW),
    row("nest", Nest, 64, img_size=64, depths=(1, 1, 1), embed_dims=(16, 24, 32), num_heads=(1, 2, 2), exporter=SCRIPT),
    row("pit", "pit_ti_224", 64, img_size=64, depth=(1, 1, 1), base_dims=(8, 8, 8), heads=(2, 4, 8), exporter=SCRIPT),
]

if __name__ == "__main__":
    main("timm", MODELS, ["timm"])
