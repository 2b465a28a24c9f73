"""Small synthetic data sets for tests, examples and IE's appendix G."""

from __future__ import annotations

import torch
from torch import Tensor

from focalcal.errors import InputError
from focalcal_papers.data.splits import CIFAR_MEAN, CIFAR_STD, DataSplits, cut_training

_SYNTHETIC = {"one_in": 8, "note": "; synthetic data"}


def _names(n_classes: int) -> list[str]:
    return [f"class {i}" for i in range(n_classes)]


def load_blobs(
    *,
    seed: int = 0,
    n_train: int = 800,
    n_test: int = 400,
    calibration: int | None = None,
    n_classes: int = 3,
    features: int = 8,
    spread: float = 1.0,
) -> DataSplits:
    """Gaussian clusters, one per class: inputs (N, features) float32."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(n_classes, features, generator=generator)

    def draw(n: int) -> tuple[Tensor, Tensor]:
        labels = torch.randint(n_classes, (n,), generator=generator)
        noise = torch.randn(n, features, generator=generator)
        return centres[labels] + spread * noise, labels

    train, test = draw(n_train), draw(n_test)
    return cut_training(
        "blobs", train, test, _names(n_classes), calibration, seed=seed, **_SYNTHETIC
    )


def load_synthetic_images(
    *,
    seed: int = 0,
    n_train: int = 800,
    n_test: int = 400,
    calibration: int | None = None,
    n_classes: int = 10,
    input_shape: tuple[int, int, int] = (3, 32, 32),
    contrast: float = 0.25,
) -> DataSplits:
    """One random pattern per class under noise: images (N, C, H, W) uint8, learnable in seconds."""
    generator = torch.Generator().manual_seed(seed)
    patterns = torch.rand(n_classes, *input_shape, generator=generator)

    def draw(n: int) -> tuple[Tensor, Tensor]:
        labels = torch.randint(n_classes, (n,), generator=generator)
        noise = torch.rand(n, *input_shape, generator=generator)
        mixed = contrast * patterns[labels] + (1 - contrast) * noise
        return (255 * mixed).to(torch.uint8), labels

    channels = input_shape[0]
    moments = (CIFAR_MEAN, CIFAR_STD) if channels == 3 else ([0.5] * channels, [0.25] * channels)
    names = _names(n_classes)
    options = {"calibration": calibration, "seed": seed, "moments": moments, **_SYNTHETIC}
    return cut_training("synthetic_images", draw(n_train), draw(n_test), names, **options)


def load_square_clusters(
    *,
    seed: int = 0,
    n_train: int = 4000,
    n_test: int = 4000,
    calibration: int | None = None,
    flipped: float = 0.1,
    spread: float = 0.2,
) -> DataSplits:
    """IE appendix G: two Gaussian clusters per class on the corners of a square.

    The corners are (±1, ±1); the class is the sign of the first coordinate, so that a logistic
    regression with two weights separates it; a share `flipped` of all labels is flipped.
    """
    if not 0 <= flipped < 0.5:
        raise InputError(f"expected a flipped share in [0, 0.5), got {flipped}")
    generator = torch.Generator().manual_seed(seed)

    def draw(n: int) -> tuple[Tensor, Tensor]:
        corners = torch.randint(2, (n, 2), generator=generator)
        inputs = 2.0 * corners - 1 + spread * torch.randn(n, 2, generator=generator)
        flip = torch.rand(n, generator=generator) < flipped
        return inputs, torch.where(flip, 1 - corners[:, 0], corners[:, 0])

    train, test = draw(n_train), draw(n_test)
    return cut_training(
        "square_clusters", train, test, _names(2), calibration, seed=seed, **_SYNTHETIC
    )
