"""Corrupted images for studies of distribution shift (Hendrycks & Dietterich 2019).

Pure batch functions of uint8 images (B, C, H, W) with their strengths for 32×32 images.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from focalcal.errors import InputError

# Strength at severity 1 to 5, for pixels in 0..1.
_NOISE_STD = (0.04, 0.06, 0.08, 0.09, 0.10)
_BLUR_SIGMA = (0.4, 0.6, 0.7, 0.8, 1.0)
_CONTRAST = (0.75, 0.5, 0.4, 0.3, 0.15)


def gaussian_noise(images: Tensor, severity: int, generator: torch.Generator | None) -> Tensor:
    """Add independent normal noise to each pixel."""
    std = _strength(_NOISE_STD, severity)
    x = images.to(torch.float32) / 255
    noise = torch.randn(x.shape, generator=generator, device=x.device)
    return _to_bytes(x + std * noise)


def gaussian_blur(
    images: Tensor, severity: int, generator: torch.Generator | None = None
) -> Tensor:
    """Convolve each channel with a Gaussian; the border is repeated outwards."""
    sigma = _strength(_BLUR_SIGMA, severity)
    radius = int(4 * sigma + 0.5)
    steps = torch.arange(-radius, radius + 1, device=images.device)
    kernel = torch.exp(-0.5 * (steps / sigma) ** 2)
    kernel = kernel / kernel.sum()
    channels = images.shape[1]
    x = F.pad(images.to(torch.float32) / 255, [radius] * 4, mode="replicate")
    x = F.conv2d(x, kernel.view(1, 1, -1, 1).expand(channels, 1, -1, 1), groups=channels)
    x = F.conv2d(x, kernel.view(1, 1, 1, -1).expand(channels, 1, 1, -1), groups=channels)
    return _to_bytes(x)


def contrast(images: Tensor, severity: int, generator: torch.Generator | None = None) -> Tensor:
    """Draw each channel towards its mean over the image."""
    keep = _strength(_CONTRAST, severity)
    x = images.to(torch.float32) / 255
    mean = x.mean((2, 3), keepdim=True)
    return _to_bytes((x - mean) * keep + mean)


CORRUPTIONS = {
    "gaussian_noise": gaussian_noise,
    "gaussian_blur": gaussian_blur,
    "contrast": contrast,
}


def corrupt(
    images: Tensor, kind: str, severity: int, generator: torch.Generator | None = None
) -> Tensor:
    """The corruption `kind` at severity 1 to 5; uint8 in, uint8 out.

    >>> grey = torch.full((1, 3, 8, 8), 100, dtype=torch.uint8)
    >>> bool((corrupt(grey, "contrast", 5) == grey).all())
    True
    """
    if kind not in CORRUPTIONS:
        raise InputError(f"expected a corruption of {sorted(CORRUPTIONS)}, got {kind!r}")
    return CORRUPTIONS[kind](images, severity, generator)


def _strength(values: tuple[float, ...], severity: int) -> float:
    if severity not in range(1, 6):
        raise InputError(f"expected a severity of 1 to 5, got {severity}")
    return values[severity - 1]


def _to_bytes(x: Tensor) -> Tensor:
    return (255 * x).round().clamp(0, 255).to(torch.uint8)
