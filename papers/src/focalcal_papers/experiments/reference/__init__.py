"""The papers' published numbers, as printed."""

from __future__ import annotations

import csv
import functools
from importlib import resources

Row = dict[str, str]
PRINTED_DATASETS = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "tiny_imagenet": "TinyImageNet",
    "20newsgroups": "20newsgroups",
    "sst": "sst-binary",
}
"""Our names of data sets, and those of the tables."""


@functools.cache
def rows(name: str) -> tuple[Row, ...]:
    """The rows of one table: intriguing_effects, intriguing_effects_s99, focal_temperature_scaling.

    >>> rows("intriguing_effects")[0]["value"]
    '17.52'
    """
    text = resources.files(__name__).joinpath(f"{name}.csv").read_text("utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def number(text: str | None) -> float | None:
    """A printed number, None for an empty cell."""
    return float(text) if text else None
