"""
PyTorch Lightning
=================

Log calibration every epoch and save a calibrator when training ends.

::

    pip install 'focalcal[integrations]'
    python examples/lightning_callback.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from focalcal.calibrators import Calibrator, load
from focalcal.integrations.lightning import CalibrationCallback
from focalcal.losses import FocalLoss


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(8, 3)
        self.loss = FocalLoss(gamma=2.0)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        x, y = batch
        return self.loss(self.net(x), y)

    def validation_step(self, batch: Any, _: int) -> dict[str, torch.Tensor]:
        x, y = batch
        return {"logits": self.net(x), "labels": y}  # what the callback reads

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.05)


def loader(n: int, seed: int) -> DataLoader:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 8, generator=generator)
    y = (2 * x[:, :3] + torch.randn(n, 3, generator=generator)).argmax(dim=1)
    return DataLoader(TensorDataset(x, y), batch_size=100)


def main(folder: Path) -> tuple[dict[str, float], Calibrator]:
    """The metrics of the last epoch, and the saved calibrator."""
    pl.seed_everything(0, verbose=False)
    callback = CalibrationCallback(n_classes=3, path=folder / "calibrator.json")
    trainer = pl.Trainer(
        max_epochs=3,
        accelerator="cpu",
        default_root_dir=folder,
        callbacks=[callback],
        logger=pl.loggers.TensorBoardLogger(folder),
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(Classifier(), loader(1000, 0), loader(500, 1))
    logged = {name: value.item() for name, value in trainer.callback_metrics.items()}
    return logged, load(folder / "calibrator.json")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        metrics, calibrator = main(Path(folder))
    for name in ("accuracy", "nll", "brier", "ece"):
        print(f"val_{name:12} {metrics[f'val_{name}']:.4f}")
    print(f"temperature      {calibrator.temperature_:.4f}")

# sphinx_gallery_thumbnail_path = '_build/cards/lightning_callback.png'
