"""
TensorBoard
===========

Log a model's calibration and reliability diagram at each step.

::

    pip install 'focalcal[integrations]'
    python examples/tensorboard_log.py && tensorboard --logdir runs/calibration
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch.utils.tensorboard import SummaryWriter

from focalcal.integrations.tracking import log_evaluation
from focalcal.metrics import evaluate


def main(folder: Path) -> Path:
    """The log folder: three steps of a model that becomes over-confident."""
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(1000, 4))
    labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    with SummaryWriter(folder) as writer:
        for step, sharpness in enumerate((1.0, 1.5, 2.0)):
            p = np.exp(sharpness * logits)
            p /= p.sum(axis=1, keepdims=True)
            log_evaluation(writer, evaluate(labels, p, resamples=100), step)
    return folder


if __name__ == "__main__":
    folder = main(Path("runs/calibration"))
    print(f"$ tensorboard --logdir {folder.parent}")
    for file in sorted(folder.glob("events.*")):
        print(f"{file.name.split('.')[0]}: {file.stat().st_size / 1000:.0f} kB, 3 steps")

# sphinx_gallery_thumbnail_path = '_build/cards/tensorboard_log.png'
