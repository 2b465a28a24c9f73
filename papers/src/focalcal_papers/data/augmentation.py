"""Augmentation as pure batch functions on the device.

Shapes are fixed, nothing is read back to the host, and randomness comes from a `torch.Generator`
on the images' device: the functions can be captured in a CUDA graph.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def random_crop(images: Tensor, generator: torch.Generator | None, *, pad: int = 4) -> Tensor:
    """Shift each image by up to `pad` pixels both ways; what comes in from outside is zero.

    Padding by `pad` and cropping the old size, as one gather. (B, C, H, W) of any dtype in and
    out; the result lies in memory channels last.
    """
    n, _, height, width = images.shape
    device = images.device
    shifts = torch.randint(0, 2 * pad + 1, (2, n, 1), generator=generator, device=device)
    rows = shifts[0] + torch.arange(height, device=device)
    columns = shifts[1] + torch.arange(width, device=device)
    sample = torch.arange(n, device=device)[:, None, None]
    padded = F.pad(images, (pad, pad, pad, pad)).permute(0, 2, 3, 1)
    return padded[sample, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def random_flip(images: Tensor, generator: torch.Generator | None) -> Tensor:
    """Mirror each image left to right with probability one half."""
    coin = torch.rand(len(images), 1, 1, 1, generator=generator, device=images.device) < 0.5
    return torch.where(coin, images.flip(-1), images)


def normalise(
    images: Tensor, mean: Tensor, std: Tensor, dtype: torch.dtype = torch.float32
) -> Tensor:
    """(x/255 − mean)/std per channel of uint8 images; `mean` and `std` (C,) on the same device."""
    shape = (1, -1, 1, 1)
    scaled = images.to(torch.float32) / 255
    return ((scaled - mean.view(shape)) / std.view(shape)).to(dtype)


def augment(
    images: Tensor,
    mean: Tensor,
    std: Tensor,
    generator: torch.Generator | None,
    *,
    pad: int = 4,
    flip: bool = True,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The papers' training view of uint8 images: crop, flip, normalise. Digits: `flip=False`.

    >>> images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    >>> mean, std = torch.full((3,), 0.5), torch.full((3,), 0.25)
    >>> augment(images, mean, std, torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3, 32, 32])
    """
    images = random_crop(images, generator, pad=pad)
    if flip:
        images = random_flip(images, generator)
    return normalise(images, mean, std, dtype)
