"""
torchmetrics
============

Calibration metrics in a MetricCollection, batch by batch.

::

    pip install 'focalcal[integrations]'
    python examples/torchmetrics_collection.py
"""

from __future__ import annotations

import torch
from torchmetrics import MetricCollection

from focalcal.integrations.torchmetrics import (
    BrierScore,
    ExpectedCalibrationError,
    NegativeLogLikelihood,
)


def main() -> dict[str, float]:
    """Metrics of 1,000 over-confident predictions, seen in ten batches."""
    kinds = (ExpectedCalibrationError, NegativeLogLikelihood, BrierScore)
    metrics = MetricCollection([kind(num_classes=5) for kind in kinds])
    generator = torch.Generator().manual_seed(0)
    for _ in range(10):
        logits = 2 * torch.randn(100, 5, generator=generator)
        labels = torch.softmax(logits, dim=1).multinomial(1, generator=generator)[:, 0]
        metrics.update(torch.softmax(2 * logits, dim=1), labels)
    return {name: value.item() for name, value in metrics.compute().items()}


if __name__ == "__main__":
    for name, value in main().items():
        print(f"{name:26} {value:.4f}")

# sphinx_gallery_thumbnail_path = '_build/cards/torchmetrics_collection.png'
