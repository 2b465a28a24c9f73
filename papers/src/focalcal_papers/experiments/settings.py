"""Recipes at three scales, as plain settings of `focalcal_papers.training.TrainConfig`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from focalcal_papers.experiments.runs import IMAGES, TEXT, TEXT_STRENGTH
from focalcal_papers.recipes import recipe

Settings = dict[str, Any]

SMOKE: Settings = {
    "dataset": "blobs",
    "model": "mlp",
    "data_settings": {
        "n_train": 1600,
        "n_test": 2000,
        "calibration": 800,
        "n_classes": 10,
        "features": 16,
        "spread": 1.5,
    },
    "model_settings": {"hidden": 64},
    "schedule": "constant",
    "reduction": "mean",
    "clip_norm": 0.0,
    "epochs": 20,
    "batch_size": 64,
    "augment": "none",
    "optimizer": "adam",
    "lr": 5e-3,
    "weight_decay": 0.0,
    "trace_every": 5,
    "checkpoint_every": 1000,
}
"""Seconds on a CPU: a small perceptron that over-fits Gaussian clusters."""

PUBLISHED: Settings = recipe("cifar10-resnet50")
"""IE's CIFAR recipe: summed loss clipped at 2."""
LITE: Settings = PUBLISHED | {"model": "resnet18", "epochs": 30, "checkpoint_every": 10}
"""Minutes on one GPU: a smaller network for fewer epochs, marked in every table."""
TINY: Settings = recipe("tiny-imagenet-resnet50")
NEWSGROUPS: Settings = recipe("20newsgroups-cnn-random")
SST: Settings = recipe("sst-tree-lstm") | {"data_settings": {"vectors": "glove.6B.300d.txt"}}
WHOLE_EPOCHS = 100
"""From this many epochs a run on images is compared with the papers'."""
SAME_LOSS = {"flsd-53": "fla-53"}
"""FTS' name of a loss, and IE's."""
BASES = {"smoke": SMOKE, "lite": LITE, "paper": PUBLISHED}


def with_losses(base: Settings, losses: Iterable[str], **changes: Any) -> dict[str, Settings]:
    """The base recipe with each loss, by a label of its own.

    >>> list(with_losses(LITE, ("ce", "fl-3")))
    ['cifar10-resnet18-ce', 'cifar10-resnet18-fl-3']
    """
    found = {}
    for loss in losses:
        settings = base | {"loss": loss} | changes
        if loss == "mmce" and settings["dataset"] in TEXT:
            settings["loss_settings"] = {"strength": float(TEXT_STRENGTH)}
        found[f"{settings['dataset']}-{settings['model']}-{loss}"] = settings
    return found


def loss_recipes(losses: Iterable[str], scale: str) -> dict[str, Settings]:
    """The base recipe of a scale with each loss."""
    return with_losses(BASES[scale], losses)


def is_published(settings: Settings, shortened: bool = False) -> bool:
    """Whether stored settings follow the papers' recipe: summed and clipped for images.

    The number of epochs may differ, and tables name it; but images that were trained on for less
    than `WHOLE_EPOCHS` count only where shortened runs may.
    """
    if settings["dataset"] in TEXT:
        return True
    real = settings["dataset"] in IMAGES and (shortened or settings["epochs"] >= WHOLE_EPOCHS)
    plain = not settings.get("mixup") and not settings.get("sam")
    summed = settings.get("reduction", "sum") == "sum" and settings.get("clip_norm", 2.0) == 2.0
    return real and summed and plain and settings.get("weight_decay", 5e-4) == 5e-4
