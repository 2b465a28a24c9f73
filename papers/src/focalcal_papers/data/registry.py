"""Data sets by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from focalcal.errors import InputError
from focalcal_papers.data import cifar, idx, newsgroups, sst, synthetic, tiny_imagenet
from focalcal_papers.data.files import PathLike
from focalcal_papers.data.splits import DataSplits

DATASETS: dict[str, Callable[..., DataSplits]] = {
    "cifar10": cifar.load_cifar10,
    "cifar100": cifar.load_cifar100,
    "mnist": idx.load_mnist,
    "fashion_mnist": idx.load_fashion_mnist,
    "tiny_imagenet": tiny_imagenet.load_tiny_imagenet,
    "20newsgroups": newsgroups.load_newsgroups,
    "sst": sst.load_sst,
    "blobs": synthetic.load_blobs,
    "synthetic_images": synthetic.load_synthetic_images,
    "square_clusters": synthetic.load_square_clusters,
}


def load(
    name: str,
    folder: PathLike | None = None,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    **settings: Any,
) -> DataSplits:
    """Read the data set `name` from `folder` and cut it into train, calibration and test.

    `seed` decides which training samples calibrate. Images stay uint8 on the device; synthetic
    sets need no folder. `settings` are the keyword arguments of the set's own loader, such as
    `calibration` (how many samples) or `complete=False` (accept a shortened copy).

    >>> data = load("blobs", n_train=80, n_test=20)
    >>> len(data.train), len(data.calibration), len(data.test), data.n_classes
    (70, 10, 20, 3)
    """
    known = dataset_settings(name)
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise InputError(f"expected settings of {name} among {known}, got {unknown}")
    loader = DATASETS[name]
    source = (folder,) if needs_folder(name) else ()
    splits = loader(*source, seed=seed, **settings)
    return splits if torch.device(device).type == "cpu" else splits.to(device)


def dataset_settings(name: str) -> list[str]:
    """The names of the settings that `load(name, ...)` accepts besides seed and device."""
    parameters = inspect.signature(_loader(name)).parameters.values()
    return sorted(p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "seed")


def needs_folder(name: str) -> bool:
    """Whether the data set is read from files."""
    return "folder" in inspect.signature(_loader(name)).parameters


def _loader(name: str) -> Callable[..., DataSplits]:
    if name not in DATASETS:
        raise InputError(f"expected a data set of {', '.join(sorted(DATASETS))}; got {name!r}")
    return DATASETS[name]
