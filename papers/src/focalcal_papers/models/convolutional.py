"""DenseNet-121, MobileNet-V2 and VGG-19 for 32×32 images, in their usual CIFAR forms.

Like the residual networks, they have no in-place operations and a mean as the last pooling.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from focalcal.errors import InputError
from focalcal_papers.models.resnet import conv as _conv


class DenseNet(nn.Module):
    """DenseNet-BC (Huang et al. 2017): each layer sees the outputs of all before it in its block.

    The default is DenseNet-121 with a 3×3 stem: 6,956,298 parameters for ten classes.
    """

    def __init__(
        self,
        n_classes: int,
        *,
        growth: int = 32,
        blocks: Sequence[int] = (6, 12, 24, 16),
        input_shape: Sequence[int] = (3, 32, 32),
    ) -> None:
        super().__init__()
        channels = 2 * growth
        layers: list[nn.Module] = [_conv(input_shape[0], channels, 3)]
        for i, n_layers in enumerate(blocks):
            if i > 0:
                layers.append(_Transition(channels, channels // 2))
                channels //= 2
            for _ in range(n_layers):
                layers.append(_DenseLayer(channels, growth))
                channels += growth
        self.features = nn.Sequential(*layers)
        self.bn = nn.BatchNorm2d(channels)
        self.linear = nn.Linear(channels, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(F.relu(self.bn(self.features(x))).mean((2, 3)))


class _DenseLayer(nn.Module):
    def __init__(self, c_in: int, growth: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(c_in)
        self.conv1 = _conv(c_in, 4 * growth, 1)
        self.bn2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = _conv(4 * growth, growth, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(F.relu(self.bn1(x)))
        out = self.conv2(F.relu(self.bn2(out)))
        return torch.cat([out, x], dim=1)


class _Transition(nn.Module):
    def __init__(self, c_in: int, c_out: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(c_in)
        self.conv = _conv(c_in, c_out, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(self.conv(F.relu(self.bn(x))), 2)


class MobileNetV2(nn.Module):
    """MobileNet-V2 (Sandler et al. 2018) with the first two strides removed for 32×32 images.

    2,296,922 parameters for ten classes.
    """

    # expansion, output channels, blocks, stride of the first block
    _STAGES = (
        (1, 16, 1, 1),
        (6, 24, 2, 1),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )

    def __init__(self, n_classes: int, *, input_shape: Sequence[int] = (3, 32, 32)) -> None:
        super().__init__()
        self.conv1 = _conv(input_shape[0], 32, 3)
        self.bn1 = nn.BatchNorm2d(32)
        blocks, channels = [], 32
        for expansion, c_out, n_blocks, stride in self._STAGES:
            for i in range(n_blocks):
                blocks.append(
                    _InvertedResidual(channels, c_out, expansion, stride if i == 0 else 1)
                )
                channels = c_out
        self.blocks = nn.Sequential(*blocks)
        self.conv2 = _conv(channels, 1280, 1)
        self.bn2 = nn.BatchNorm2d(1280)
        self.linear = nn.Linear(1280, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        out = self.blocks(F.relu(self.bn1(self.conv1(x))))
        return self.linear(F.relu(self.bn2(self.conv2(out))).mean((2, 3)))


class _InvertedResidual(nn.Module):
    """1×1 up, 3×3 per channel, 1×1 down; with a shortcut if the image size does not change."""

    def __init__(self, c_in: int, c_out: int, expansion: int, stride: int) -> None:
        super().__init__()
        hidden = expansion * c_in
        self.conv1, self.bn1 = _conv(c_in, hidden, 1), nn.BatchNorm2d(hidden)
        self.conv2 = _conv(hidden, hidden, 3, stride, groups=hidden)
        self.bn2 = nn.BatchNorm2d(hidden)
        self.conv3, self.bn3 = _conv(hidden, c_out, 1), nn.BatchNorm2d(c_out)
        self.residual = stride == 1
        self.shortcut: nn.Module = nn.Identity()
        if self.residual and c_in != c_out:
            self.shortcut = nn.Sequential(_conv(c_in, c_out, 1), nn.BatchNorm2d(c_out))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return out + self.shortcut(x) if self.residual else out


class VGG19(nn.Module):
    """VGG-19 (Simonyan & Zisserman 2015) with batch normalisation and one linear layer.

    20,040,522 parameters for ten classes.
    """

    # channels and convolutions per stage; each stage ends in a 2×2 maximum
    _STAGES = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))

    def __init__(self, n_classes: int, *, input_shape: Sequence[int] = (3, 32, 32)) -> None:
        super().__init__()
        if min(input_shape[1:]) < 32:
            raise InputError(
                f"expected images of at least 32×32 for VGG-19, got {tuple(input_shape)}; "
                "pad them or choose another network"
            )
        layers: list[nn.Module] = []
        c_in = input_shape[0]
        for channels, n_convs in self._STAGES:
            for _ in range(n_convs):
                layers += [nn.Conv2d(c_in, channels, 3, padding=1), nn.BatchNorm2d(channels)]
                layers.append(nn.ReLU())
                c_in = channels
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.linear = nn.Linear(c_in, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.features(x).mean((2, 3)))
