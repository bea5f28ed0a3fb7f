"""Models of torchvision: convolutional nets, vision transformers and segmentation, on images of 32 to 64 pixels."""
from torch import nn
from torchvision import models as tv
from torchvision.models.convnext import CNBlockConfig
from torchvision.models.resnet import BasicBlock, Bottleneck
from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformerBlockV2

from zoo_torch import RAW, SCRIPT, Row, floats, integers, main

TEN = integers(10)


def row(name, make, size=32, labels=TEN, **kw):
    return Row(name, make, {kw.pop("input", "x"): floats(3, size, size)}, labels=labels, **kw)


def vgg():
    model = tv.vgg11_bn(num_classes=10)
    model.avgpool, model.classifier = nn.AdaptiveAvgPool2d(1), nn.Linear(512, 10)
    return model


def convnext():
    blocks = [CNBlockConfig(16, 32, 1), CNBlockConfig(32, 48, 1), CNBlockConfig(48, None, 1)]
    return tv.ConvNeXt(blocks, num_classes=10)


def vit():
    return tv.VisionTransformer(image_size=32, patch_size=8, num_layers=2, num_heads=4, hidden_dim=48, mlp_dim=96,
                                num_classes=10)


def swin(**kw):
    return tv.SwinTransformer(patch_size=[2, 2], embed_dim=24, depths=[2, 2], num_heads=[2, 4], window_size=[4, 4],
                              num_classes=10, stochastic_depth_prob=0.0, **kw)


def swin_v2():
    return swin(block=SwinTransformerBlockV2, downsample_layer=PatchMergingV2)


def maxvit():
    return tv.MaxVit(input_size=(32, 32), stem_channels=16, partition_size=4, block_channels=[16, 32], block_layers=[1, 1],
                     head_dim=8, stochastic_depth_prob=0.0, num_classes=10)


def segmentation(make):
    return lambda: make(weights=None, weights_backbone=None, num_classes=4)


MODELS = [
    row("resnet18", lambda: tv.resnet18(num_classes=10), exporter=RAW),
    row("resnet_basic_train", lambda: tv.ResNet(BasicBlock, [1, 1, 1, 1], num_classes=10), exporter=SCRIPT, form="training", size=64, rows=8),
    row("resnet_basic_fresh", lambda: tv.ResNet(BasicBlock, [1, 1, 1, 1], num_classes=10), exporter=SCRIPT, form="training", size=64, rows=8,
        is_moved=False),
    row("resnext", lambda: tv.ResNet(Bottleneck, [1, 1, 1, 1], groups=4, width_per_group=16, num_classes=10), exporter=RAW, is_open=True),
    row("vgg11_bn", vgg, exporter=SCRIPT, form="training", size=64, rows=8),
    row("squeezenet1_1", lambda: tv.squeezenet1_1(num_classes=10), size=64, exporter=SCRIPT, is_open=True),
    row("shufflenet_v2", lambda: tv.shufflenet_v2_x0_5(num_classes=10), exporter=RAW),
    row("mobilenet_v2", lambda: tv.mobilenet_v2(num_classes=10, width_mult=0.25), exporter=RAW),
    row("mobilenet_v3_small", lambda: tv.mobilenet_v3_small(num_classes=10), exporter=RAW, is_open=True),
    row("mnasnet0_5", lambda: tv.mnasnet0_5(num_classes=10), exporter=RAW, is_moved=False),
    row("efficientnet_b0", lambda: tv.efficientnet_b0(num_classes=10, stochastic_depth_prob=0.0), exporter=RAW),
    row("regnet_y_400mf", lambda: tv.regnet_y_400mf(num_classes=10), exporter=SCRIPT),
    row("densenet", lambda: tv.DenseNet(8, (2, 2, 2), 16, num_classes=10), exporter=RAW, form="training", size=64, rows=8),
    row("densenet_restored", lambda: tv.DenseNet(8, (2, 2, 2), 16, num_classes=10), exporter=RAW, form="training", size=64, rows=8,
        options=["--train-mode=restore"]),
    row("googlenet", lambda: tv.googlenet(num_classes=10, aux_logits=False, init_weights=False), exporter=RAW),
    row("convnext", convnext),
    row("convnext_fresh", convnext, exporter=RAW, is_moved=False),
    row("vit", vit, is_open=True),
    row("vit_fresh", vit, exporter=RAW, is_moved=False),
    row("vit_script", vit, exporter=SCRIPT),
    row("swin", swin),
    row("swin_v2", swin_v2, exporter=RAW),
    row("maxvit", maxvit, exporter=RAW),
    row("lraspp", segmentation(tv.segmentation.lraspp_mobilenet_v3_large), size=64, labels=integers(4, 64, 64),
        exporter=RAW, pick=lambda out: out["out"], input="input"),
]

if __name__ == "__main__":
    main("torchvision", MODELS, ["torchvision"])
