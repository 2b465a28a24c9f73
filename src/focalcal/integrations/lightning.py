"""PyTorch Lightning: measures calibration each validation epoch, saves a calibrator at the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from sklearn.base import clone
from torch import Tensor

from focalcal.calibrators import Calibrator, make
from focalcal.errors import InputError, needing
from focalcal.integrations.segmentation import IGNORE_INDEX, pixels
from focalcal.integrations.tracking import METRICS, reliability_figure
from focalcal.losses.distributed import gather_rows
from focalcal.metrics import CalibrationStats
from focalcal.metrics.streaming import check_streamed

with needing("pytorch-lightning", "integrations", "the callback"):
    try:
        from pytorch_lightning import Callback
    except ImportError:
        from lightning.pytorch import Callback

FILE = "calibrator.json"


def logits_and_labels(outputs: Any, batch: Any) -> tuple[Tensor, Tensor]:
    """Read {"logits": …, "labels": …} from `validation_step`; labels default to batch[1]."""
    if not isinstance(outputs, dict) or "logits" not in outputs:
        raise InputError(
            "expected validation_step to return a dict with 'logits' (and 'labels'), "
            f"got {type(outputs).__name__}; return them, or pass read="
        )
    return outputs["logits"], outputs["labels"] if "labels" in outputs else batch[1]


class CalibrationCallback(Callback):
    """Logs calibration after every validation epoch; fits and saves a calibrator when fit ends.

    The logits of one validation epoch are held in memory on the CPU. The calibrator is fitted to
    those of the last epoch; if validation also selects the epoch, calibrate on other data instead.

    n_classes: columns of the logits; calibrator: unfitted, or its name in `METHODS`;
    path: file of the fitted calibrator, None is `calibrator.json` in the trainer's log folder;
    metrics: names of `CalibrationStats` metrics; prefix: put before their names, as in `val_ece`;
    read: (outputs of validation_step, batch) to (logits, labels); ignore_index: a label that is
    left out.

    Attributes: `evaluation_` after each epoch, `calibrator_` at the end.
    """

    def __init__(
        self,
        n_classes: int,
        calibrator: Calibrator | str | None = None,
        path: str | Path | None = None,
        *,
        metrics: tuple[str, ...] = METRICS,
        prefix: str = "val_",
        read: Callable[[Any, Any], tuple[Tensor, Tensor]] = logits_and_labels,
        ignore_index: int = IGNORE_INDEX,
    ) -> None:
        self.n_classes = n_classes
        given = "temperature" if calibrator is None else calibrator
        self.calibrator = make(given) if isinstance(given, str) else given
        self.path = path
        self.metrics = check_streamed(metrics)
        self.prefix = prefix
        self.read = read
        self.ignore_index = ignore_index
        self._batches: list[tuple[Tensor, Tensor]] = []
        self._last: tuple[Tensor, Tensor] | None = None

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._batches = []

    def on_validation_batch_end(
        self,
        trainer: Any,
        pl_module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        logits, labels = self.read(outputs, batch)
        rows, flat = pixels(logits.detach(), labels, self.ignore_index)
        self._batches.append((rows.float().cpu(), flat.cpu()))

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if not self._batches:
            return
        logits, labels = (gather_rows(torch.cat(part)) for part in zip(*self._batches))
        self._batches = []
        if trainer.sanity_checking and len(labels) == 0:
            return
        evaluation = CalibrationStats(self.n_classes).update(labels, logits=logits).compute()
        if trainer.sanity_checking:  # so that a wrong n_classes does not cost an epoch
            return
        self.evaluation_, self._last = evaluation, (logits, labels)
        # All processes have the same gathered values, so there is nothing to synchronise.
        values = {f"{self.prefix}{name}": self.evaluation_[name].value for name in self.metrics}
        pl_module.log_dict(values, rank_zero_only=False, sync_dist=False)
        for logger in trainer.loggers:
            if hasattr(getattr(logger, "experiment", None), "add_figure"):
                figure = reliability_figure(self.evaluation_.reliability)
                name = f"{self.prefix}reliability"
                logger.experiment.add_figure(name, figure, trainer.global_step)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        if self._last is None:
            return
        self.calibrator_ = clone(self.calibrator).fit(*self._last)
        # Every process must read log_dir: Lightning broadcasts it and would otherwise hang.
        folder = Path(trainer.log_dir or trainer.default_root_dir)
        if trainer.is_global_zero:
            self.calibrator_.save(folder / FILE if self.path is None else self.path)
