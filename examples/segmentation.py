"""
Segmentation, image by image
============================

Per-pixel calibration with an ignored label, one image at a time.

::

    python examples/segmentation.py
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from focalcal.calibrators import TemperatureScaling
from focalcal.integrations.segmentation import calibrated_pixels, pixels
from focalcal.losses import FocalLoss
from focalcal.metrics import CalibrationStats

VOID = 255


def batches(count: int, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Over-confident logits (4, 5, 32, 32) and masks (4, 32, 32) with an unlabelled border."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        z = 1.5 * torch.randn(4, 5, 32, 32, generator=generator)
        p = torch.softmax(z, dim=1).movedim(1, -1).reshape(-1, 5)
        mask = p.multinomial(1, generator=generator).reshape(4, 32, 32)
        mask[:, 0], mask[:, -1] = VOID, VOID
        yield 2 * z, mask


def main() -> dict[str, float]:
    """A training loss, the temperature, and the ECE over 30,720 pixels before and after."""
    logits, mask = next(batches(1, seed=0))
    loss = FocalLoss(gamma=2.0, ignore_index=VOID)(logits, mask)
    calibrator = TemperatureScaling().fit(*pixels(logits, mask, VOID))
    before, after = CalibrationStats(n_classes=5), CalibrationStats(n_classes=5)
    for logits, mask in batches(8, seed=1):
        for stats, probs in (
            (before, torch.softmax(logits, dim=1)),
            (after, calibrated_pixels(calibrator, logits)),
        ):
            rows, labels = pixels(probs, mask, VOID)
            stats.update(labels, rows)
    return {
        "loss": loss.item(),
        "temperature": calibrator.temperature_,
        "pixels": after.n,
        "before": before.compute()["ece"].value,
        "after": after.compute()["ece"].value,
    }


if __name__ == "__main__":
    for name, value in main().items():
        print(f"{name:12} {value:>10,.4g}")

# sphinx_gallery_thumbnail_path = '_build/cards/segmentation.png'
