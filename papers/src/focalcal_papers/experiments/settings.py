"""Recipes at three scales, as plain settings of `focalcal_papers.training.TrainConfig`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from focalcal_papers.experiments.runs import IMAGES, TEXT, TEXT_STRENGTH

Settings = dict[str, Any]

PLAIN: Settings = {"schedule": "constant", "reduction": "mean", "clip_norm": 0.0}
"""What everything but images has: one rate, the mean loss, no clipping."""

SMOKE: Settings = PLAIN | {
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

PUBLISHED: Settings = {
    "dataset": "cifar10",
    "model": "resnet50",
    "epochs": 350,
    "precision": "bf16",
    "trace_every": 5,
    "checkpoint_every": 25,
}
"""IE's CIFAR recipe (the rest are the defaults of `TrainConfig`): summed loss clipped at 2."""

LITE: Settings = PUBLISHED | {"model": "resnet18", "epochs": 30, "checkpoint_every": 10}
"""Minutes on one GPU: a smaller network for fewer epochs, marked in every table."""

TINY: Settings = PUBLISHED | {
    "dataset": "tiny_imagenet",
    "epochs": 100,
    "batch_size": 64,
    "drops": [40, 60],
    "drops_of": 100,
}
WORDS: Settings = PLAIN | {"data_settings": {"vectors": "glove.6B.100d.txt"}, "select": "best"}
NEWSGROUPS: Settings = WORDS | {
    "dataset": "20newsgroups",
    "model": "text_cnn",
    "epochs": 50,
    "optimizer": "adam",
    "lr": 1e-3,
    "weight_decay": 0.0,
    "eval_batch_size": 200,
}
SST: Settings = WORDS | {
    "dataset": "sst",
    "model": "tree_lstm",
    "epochs": 25,
    "batch_size": 25,
    "optimizer": "adagrad",
    "lr": 0.05,
    "weight_decay": 1e-4,
}
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
