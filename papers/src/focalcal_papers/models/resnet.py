"""Residual networks for small images: He et al. 2016, Zagoruyko & Komodakis 2016.

One class builds them all; they differ in block, depth, width and shortcut. Parameter names are
those of the widely used CIFAR implementations, so that published weights load unchanged. ReLU is
never in place and pooling is a mean, so double backward, `torch.func` and CUDA graphs work.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from focalcal.errors import InputError

SHORTCUTS = ("projection", "pad")


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut."""

    expansion = 1

    def __init__(self, c_in: int, channels: int, stride: int, shortcut: str) -> None:
        super().__init__()
        self.conv1 = conv(c_in, channels, 3, stride)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = conv(channels, channels, 3)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = _shortcut(c_in, channels, stride, shortcut)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class Bottleneck(nn.Module):
    """1×1, 3×3, 1×1 convolutions with four times the channels at the end, and a shortcut."""

    expansion = 4

    def __init__(self, c_in: int, channels: int, stride: int, shortcut: str) -> None:
        super().__init__()
        c_out = self.expansion * channels
        self.conv1 = conv(c_in, channels, 1)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = conv(channels, channels, 3, stride)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = conv(channels, c_out, 1)
        self.bn3 = nn.BatchNorm2d(c_out)
        self.shortcut = _shortcut(c_in, c_out, stride, shortcut)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        return F.relu(self.bn3(self.conv3(out)) + self.shortcut(x))


class ResNet(nn.Module):
    """A 3×3 stem, stages of residual blocks (each but the first halves the image), a mean, a layer.

    Arguments: `block` BasicBlock or Bottleneck; `blocks` per stage; `channels` per stage (before
    the block's expansion); `stem` channels; `shortcut` "projection" (1×1 convolution) or "pad"
    (subsample and pad with zero channels: option A of He et al., no parameters).
    Input (B, C, H, W), output logits (B, n_classes).
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        blocks: Sequence[int],
        channels: Sequence[int],
        n_classes: int,
        *,
        stem: int = 64,
        shortcut: str = "projection",
        input_shape: Sequence[int] = (3, 32, 32),
    ) -> None:
        super().__init__()
        if shortcut not in SHORTCUTS:
            raise InputError(f"expected a shortcut of {SHORTCUTS}, got {shortcut!r}")
        self.conv1 = conv(input_shape[0], stem, 3)
        self.bn1 = nn.BatchNorm2d(stem)
        self.stages = []
        c_in = stem
        for stage, (n_blocks, width) in enumerate(zip(blocks, channels)):
            layers = []
            for i in range(n_blocks):
                stride = 2 if stage > 0 and i == 0 else 1
                layers.append(block(c_in, width, stride, shortcut))
                c_in = width * block.expansion
            self.stages.append(f"layer{stage + 1}")
            self.add_module(self.stages[-1], nn.Sequential(*layers))
        self.linear = nn.Linear(c_in, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        for stage in self.stages:
            out = self.get_submodule(stage)(out)
        return self.linear(out.mean((2, 3)))


def four_stages(
    block: type[BasicBlock] | type[Bottleneck],
    blocks: Sequence[int],
    n_classes: int,
    *,
    width: float = 1,
    input_shape: Sequence[int] = (3, 32, 32),
) -> ResNet:
    """64, 128, 256 and 512 channels, times `width`."""
    base = round(64 * width)
    if base < 1:
        raise InputError(f"expected a width multiplier of at least 1/64, got {width}")
    channels = [base, 2 * base, 4 * base, 8 * base]
    return ResNet(block, blocks, channels, n_classes, stem=base, input_shape=input_shape)


resnet18 = partial(four_stages, BasicBlock, (2, 2, 2, 2))
"""11,173,962 parameters for ten classes."""
resnet50 = partial(four_stages, Bottleneck, (3, 4, 6, 3))
"""23,520,842 parameters for ten classes."""
resnet110 = partial(four_stages, Bottleneck, (3, 4, 26, 3))
"""The ResNet-110 of "The Intriguing Effects of Focal Loss"."""


def three_stages(
    shortcut: str,
    n_classes: int,
    *,
    depth: int = 26,
    width: int = 10,
    input_shape: Sequence[int] = (3, 32, 32),
) -> ResNet:
    """(depth − 2)/6 basic blocks in each of three stages of 16, 32, 64 channels, times `width`."""
    if depth < 8 or (depth - 2) % 6:
        raise InputError(f"expected a depth of 6n + 2 (8, 14, 20, 26, ...), got {depth}")
    blocks, channels = [(depth - 2) // 6] * 3, [16 * width, 32 * width, 64 * width]
    options = {"stem": 16, "shortcut": shortcut, "input_shape": input_shape}
    return ResNet(BasicBlock, blocks, channels, n_classes, **options)


wide_resnet = partial(three_stages, "projection")
"""WRN-26-10, counted without the shortcuts' convolutions; with them it is called WRN-28-10."""
# The CIFAR ResNets of He et al. §4.2, option A.
resnet20, resnet32, resnet44, resnet56 = (
    partial(three_stages, "pad", depth=depth, width=1) for depth in (20, 32, 44, 56)
)


def conv(c_in: int, c_out: int, size: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    """A convolution without bias that keeps the image's size at stride 1."""
    return nn.Conv2d(c_in, c_out, size, stride, padding=size // 2, groups=groups, bias=False)


def _shortcut(c_in: int, c_out: int, stride: int, kind: str) -> nn.Module:
    if stride == 1 and c_in == c_out:
        return nn.Identity()
    if kind == "pad":
        return _PadShortcut(stride, c_out - c_in)
    return nn.Sequential(conv(c_in, c_out, 1, stride), nn.BatchNorm2d(c_out))


class _PadShortcut(nn.Module):
    def __init__(self, stride: int, extra: int) -> None:
        super().__init__()
        self.stride, self.extra = stride, extra

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, :, :: self.stride, :: self.stride]
        before = self.extra // 2
        return F.pad(x, (0, 0, 0, 0, before, self.extra - before))
