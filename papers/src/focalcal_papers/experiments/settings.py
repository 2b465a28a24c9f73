"""Recipes at three scales, as plain settings of `focalcal_papers.training.TrainConfig`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from focalcal_papers.experiments.runs import CHANGES, IMAGES, TEXT, TEXT_STRENGTH
from focalcal_papers.recipes import recipe

Settings = dict[str, Any]

OWN = Path(__file__).parent
"""Settings of stand-ins and small networks, which no paper has, are beside this module."""
SMOKE: Settings = recipe("smoke", OWN)
PUBLISHED: Settings = recipe("cifar10-resnet50")
"""IE's CIFAR recipe: summed loss clipped at 2."""
LITE: Settings = PUBLISHED | {"model": "resnet18", "epochs": 30, "checkpoint_every": 10}
"""Minutes on one GPU: a smaller network for fewer epochs, marked in every table."""
TINY: Settings = recipe("tiny-imagenet-resnet50")
NEWSGROUPS: Settings = recipe("20newsgroups-cnn-random")
SST: Settings = recipe("sst-tree-lstm") | {"data_settings": {"vectors": "glove.6B.300d.txt"}}
PERCEPTRON: Settings = recipe("perceptron", OWN)
EPOCHS = {"cifar10": 350, "cifar100": 350, "tiny_imagenet": 100, "20newsgroups": 50, "sst": 25}
"""How long the papers train."""
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

    On text the number of epochs may differ, and tables name it; shorter runs on images count only
    where `shortened` ones may.
    """
    if settings["dataset"] in TEXT:
        return True
    if settings["dataset"] not in IMAGES:
        return False
    whole = shortened or settings["epochs"] >= EPOCHS[settings["dataset"]]
    plain = not any(settings.get(name) for name in CHANGES)
    summed = settings.get("reduction", "sum") == "sum" and settings.get("clip_norm", 2.0) == 2.0
    return whole and summed and plain and settings.get("weight_decay", 5e-4) == 5e-4


def accepts_cifar10(settings: Settings, shortened: bool = False) -> bool:
    """Whether stored settings are of CIFAR-10 and follow the papers' recipe."""
    return settings["dataset"] == "cifar10" and is_published(settings, shortened)
