"""What `focalcal demo` shows: predictions that come with the package, or networks trained live."""

from __future__ import annotations

import contextlib
import importlib.resources
from collections.abc import Iterator
from pathlib import Path

from focalcal.errors import MissingExtraError
from focalcal.report.compute import Model, Settings, default_methods, load_folder

NAMES = {"ce": "cross-entropy", "fl3": "focal γ = 3"}
"""What the folders of the embedded predictions are called on the page."""
LIVE = {"cross-entropy": "ce", "focal γ = 3": "fl-3"}
"""The losses that `focalcal demo --train` compares."""


def settings() -> Settings:
    """Fewer resamples and folds than a report has, so that the page is there in half a minute."""
    return Settings(methods=tuple(default_methods(10)), resamples=100, folds=3)


@contextlib.contextmanager
def embedded_models() -> Iterator[list[Model]]:
    """The models whose predictions come with the package; their files exist while this is open."""
    with importlib.resources.as_file(importlib.resources.files("focalcal") / "demo_data") as place:
        found = sorted(f for f in Path(place).iterdir() if (f / "test.npz").is_file())
        yield [load_folder(NAMES.get(f.name, f.name), f) for f in found]


def trained_models(folder: Path, *, epochs: int = 40, progress: bool = False) -> list[Model]:
    """Two networks trained now, with cross-entropy and with focal loss, on the same made-up data.

    Ten overlapping Gaussian classes; their run folders are left in `folder`.
    """
    try:
        import torch

        from focalcal.training import TrainConfig, train
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "torch", "torch", "training a demo") from error

    models = []
    for name, loss in LIVE.items():
        config = TrainConfig(
            dataset="blobs",
            model="mlp",
            loss=loss,
            data_settings={
                "n_train": 10_000,
                "calibration": 4000,
                "n_test": 10_000,
                "n_classes": 10,
                "features": 32,
                "spread": 2.0,
            },
            model_settings={"hidden": 256, "layers": 3, "input_shape": [32]},
            epochs=epochs,
            lr=0.05,
            drops=(0.5 * epochs, 0.8 * epochs),
            drops_of=epochs,
            trace_every=0,
            checkpoint_every=epochs,
        )
        run = Path(folder) / loss
        threads = torch.get_num_threads()
        try:
            torch.set_num_threads(1)  # layers this small lose more to waiting than they gain
            train(config, None, run, progress=progress)
        finally:
            torch.set_num_threads(threads)
        models.append(load_folder(name, run))
    return models
