"""TensorBoard logs of a run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from focalcal.errors import InputError
from focalcal_papers.training.folder import RunFolder


@contextlib.contextmanager
def tensorboard_log(folder: RunFolder, *, used: bool) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yield a function that writes a trace to `RUN/tensorboard`, or does nothing if not `used`."""
    if not used:
        yield lambda row: None
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise InputError(
            "expected the package tensorboard for TensorBoard logs, got none; "
            "install it with: pip install tensorboard"
        ) from error

    def add(row: dict[str, Any]) -> None:
        for name, value in row.items():
            entries = value.items() if isinstance(value, dict) else [("", value)]
            for key, number in entries:
                if isinstance(number, int | float):
                    writer.add_scalar(f"{name}/{key}".strip("/"), number, row["epoch"])

    with contextlib.closing(SummaryWriter(folder.path / "tensorboard")) as writer:
        yield add
