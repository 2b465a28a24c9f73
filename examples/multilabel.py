"""
Multi-label training and calibration
====================================

One sigmoid, one binary map and one set of metrics per label.

::

    python examples/multilabel.py
"""

from __future__ import annotations

import numpy as np
import torch

from focalcal.calibrators import PlattScaling
from focalcal.losses import SigmoidFocalLoss
from focalcal.metrics import ece

NAMES = ("indoor", "people", "text")


def data(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits (n, 3), each label too sharp by its own factor, and 0/1 labels (n, 3)."""
    rng = np.random.default_rng(seed)
    s = 1.5 * rng.normal(size=(n, 3))
    labels = (rng.random((n, 3)) < 1 / (1 + np.exp(-s))).astype(int)
    return s * [1.5, 2.0, 3.0], labels


def main() -> dict[str, tuple[float, float]]:
    """ECE (before, after) of each label; any calibrator accepts task="multilabel"."""
    logits, labels = data(2000, seed=0)
    loss = SigmoidFocalLoss(gamma=2.0)(torch.as_tensor(logits), torch.as_tensor(labels).double())
    assert loss.isfinite()
    calibrator = PlattScaling(task="multilabel").fit(logits, labels)
    logits, labels = data(4000, seed=1)
    before, after = 1 / (1 + np.exp(-logits)), calibrator.predict_proba(logits)
    return {
        name: (ece(labels[:, j], before[:, j]), ece(labels[:, j], after[:, j]))
        for j, name in enumerate(NAMES)
    }


if __name__ == "__main__":
    for name, (before, after) in main().items():
        print(f"{name:7} ECE {100 * before:5.2f} % -> {100 * after:5.2f} %")

# sphinx_gallery_thumbnail_path = '_build/cards/multilabel.png'
