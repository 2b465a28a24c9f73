"""Data sets as tensors with checked train, calibration and test splits."""

from focalcal.data.augment import augment, normalise, random_crop, random_flip
from focalcal.data.registry import DATASETS, dataset_settings, load, needs_folder
from focalcal.data.splits import (
    CIFAR_MEAN,
    CIFAR_STD,
    IMAGENET_MEAN,
    IMAGENET_STD,
    Batch,
    DataSplits,
    Split,
    cut,
)

__all__ = [
    "CIFAR_MEAN",
    "CIFAR_STD",
    "DATASETS",
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "Batch",
    "DataSplits",
    "Split",
    "augment",
    "cut",
    "dataset_settings",
    "load",
    "needs_folder",
    "normalise",
    "random_crop",
    "random_flip",
]
