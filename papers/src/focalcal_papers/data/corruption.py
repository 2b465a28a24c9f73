"""Corrupted images for studies of distribution shift (Hendrycks & Dietterich 2019).

Pure batch functions of images (B, C, H, W) in 0..1, with their strengths for 32×32 pixels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from focalcal.errors import InputError


def gaussian_noise(x: Tensor, std: float, generator: torch.Generator | None) -> Tensor:
    """Add independent normal noise to each pixel."""
    return x + std * torch.randn(x.shape, generator=generator, device=x.device)


def gaussian_blur(x: Tensor, sigma: float, generator: torch.Generator | None = None) -> Tensor:
    """Convolve each channel with a Gaussian; the border is repeated outwards."""
    radius = int(4 * sigma + 0.5)
    steps = torch.arange(-radius, radius + 1, device=x.device)
    kernel = torch.exp(-0.5 * (steps / sigma) ** 2)
    kernel = kernel / kernel.sum()
    channels = x.shape[1]
    x = F.pad(x, [radius] * 4, mode="replicate")
    x = F.conv2d(x, kernel.view(1, 1, -1, 1).expand(channels, 1, -1, 1), groups=channels)
    return F.conv2d(x, kernel.view(1, 1, 1, -1).expand(channels, 1, 1, -1), groups=channels)


def contrast(x: Tensor, keep: float, generator: torch.Generator | None = None) -> Tensor:
    """Draw each channel towards its mean over the image."""
    mean = x.mean((2, 3), keepdim=True)
    return (x - mean) * keep + mean


CORRUPTIONS = {
    "gaussian_noise": (gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10)),
    "gaussian_blur": (gaussian_blur, (0.4, 0.6, 0.7, 0.8, 1.0)),
    "contrast": (contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
}
"""Each function with its strengths at severity 1 to 5."""


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
    if severity not in range(1, 6):
        raise InputError(f"expected a severity of 1 to 5, got {severity}")
    change, strengths = CORRUPTIONS[kind]
    x = change(images.to(torch.float32) / 255, strengths[severity - 1], generator)
    return (255 * x).round().clamp(0, 255).to(torch.uint8)
