"""What `focalcal demo` shows: predictions included in the package, or networks trained live."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from focalcal.errors import needing
from focalcal.examples import FOLDER
from focalcal.predictions import Predictions
from focalcal.provenance import provenance
from focalcal.report.compute import Settings, default_methods
from focalcal.report.models import Model, load_folder

NAMES = {"ce": "cross-entropy", "fl3": "focal γ = 3"}
"""Names on the page of the folders with embedded predictions."""
LIVE = {"cross-entropy": "ce", "focal γ = 3": "fl-3"}
"""The losses that `focalcal demo --train` compares."""


def settings() -> Settings:
    """Fewer resamples and folds than by default, so that the page takes half a minute."""
    return Settings(methods=default_methods(10), resamples=100, folds=3)


def embedded_models() -> list[Model]:
    """The models whose predictions are included in the package."""
    return [load_folder(name, FOLDER / loss) for loss, name in NAMES.items()]


def trained_models(
    folder: Path, *, epochs: int = 40, progress: Callable[[float], None] | None = None
) -> list[Model]:
    """Two networks trained now, with cross-entropy and with focal loss, on the same synthetic data.

    Ten overlapping Gaussian classes; the predictions are saved in `folder`.
    """
    with needing("torch", "torch", "training a demo"):
        import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # threads slow down layers this small
    try:
        for i, loss in enumerate(LIVE.values()):
            _train(loss, Path(folder) / loss, epochs)
            if progress is not None:
                progress((i + 1) / len(LIVE))
    finally:
        torch.set_num_threads(threads)
    return [load_folder(name, Path(folder) / loss) for name, loss in LIVE.items()]


def _train(loss: str, folder: Path, epochs: int) -> None:
    """Train a multilayer perceptron by SGD and save its logits for two held-out sets."""
    import torch
    from torch import nn

    from focalcal.losses import make_loss

    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(10, 32, generator=generator) / 2
    labels = torch.randint(10, (24_000,), generator=generator)
    inputs = centres[labels] + torch.randn(24_000, 32, generator=generator)
    (x, *held_out), (y, *truth) = (a.split([10_000, 4_000, 10_000]) for a in (inputs, labels))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [layer for n in (32, 256, 256) for layer in (nn.Linear(n, 256), nn.ReLU())]
        network = nn.Sequential(*layers, nn.Linear(256, 10))
    criterion = make_loss(loss)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, [epochs // 2, epochs * 4 // 5])
    for _ in range(epochs):
        for batch in torch.randperm(len(x), generator=generator).split(128):
            optimiser.zero_grad()
            criterion(network(x[batch]), y[batch]).backward()
            optimiser.step()
        schedule.step()
    with torch.no_grad():
        for split, part, answer in zip(("val", "test"), held_out, truth):
            Predictions(
                logits=network(part).numpy(),
                labels=answer.numpy(),
                provenance=provenance() | {"loss": loss, "split": split},
            ).save(folder / f"{split}.npz")
