"""Showing a run while it goes: a progress line on a terminal, and TensorBoard."""

from __future__ import annotations

import sys
import time
from typing import Any, Self

from focalcal.errors import InputError
from focalcal_papers.training.config import TrainConfig
from focalcal_papers.training.folder import RunFolder


class Progress:
    """Steps done, loss and time left, on stderr; nothing unless `shown` and it is a terminal."""

    def __init__(self, config: TrainConfig, session: Any, *, shown: bool) -> None:
        self._bar = None
        if not (shown and sys.stderr.isatty()):
            return
        from rich import progress
        from rich.console import Console

        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.TaskProgressColumn(),
            progress.TextColumn("loss {task.fields[loss]:.4f}"),
            progress.TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task(
            f"{config.model} {config.dataset} {config.loss}",
            total=config.epochs * len(session.sizes),
            completed=session.total_steps,
            loss=float("nan"),
        )
        self._shown_at = 0.0

    def update(self, session: Any) -> None:
        if self._bar is None or time.monotonic() - self._shown_at < 0.2:
            return
        self._shown_at = time.monotonic()
        total, samples = session.step.loss_sum, session.step.samples
        loss = float(total / samples)
        self._bar.update(self._task, completed=session.total_steps, loss=loss)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


class TensorBoard:
    """Writes each trace's numbers to `RUN/tensorboard`, where it is asked for and installed."""

    def __init__(self, folder: RunFolder, *, used: bool) -> None:
        self._writer = None
        if not used:
            return
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise InputError(
                "expected the package tensorboard for TensorBoard logs, got none; "
                "install it with: pip install tensorboard"
            ) from error
        self._writer = SummaryWriter(folder.path / "tensorboard")

    def add(self, row: dict[str, Any]) -> None:
        """Add one trace, its splits as `train/nll` and so on."""
        if self._writer is None:
            return
        for name, value in row.items():
            entries = value.items() if isinstance(value, dict) else [("", value)]
            for key, number in entries:
                if isinstance(number, int | float):
                    self._writer.add_scalar(f"{name}/{key}".strip("/"), number, row["epoch"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()
