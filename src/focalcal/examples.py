"""Real predictions included in the package as examples."""

from __future__ import annotations

from pathlib import Path

from focalcal.errors import InputError
from focalcal.predictions import Predictions

LOSSES = ("ce", "fl3")
FOLDER = Path(__file__).parent / "demo_data"
"""Has a folder for each loss, with val.npz and test.npz."""


def resnet18(loss: str = "ce") -> tuple[Predictions, Predictions]:
    """Validation and test predictions of a ResNet-18 on CIFAR-10, 5,000 and 10,000 images.

    loss: the training loss, cross-entropy ("ce") or focal loss with γ = 3 ("fl3").

    >>> val, test = resnet18()
    >>> val.logits.shape, test.logits.shape
    ((5000, 10), (10000, 10))
    """
    if loss not in LOSSES:
        raise InputError(f"expected a network of {' or '.join(LOSSES)}, got {loss!r}")
    return Predictions.load(FOLDER / loss / "val.npz"), Predictions.load(FOLDER / loss / "test.npz")
