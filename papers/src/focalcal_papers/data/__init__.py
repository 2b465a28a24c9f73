"""Data sets as tensors with checked train, calibration and test splits."""

from focalcal_papers.data.corruption import CORRUPTIONS, corrupt
from focalcal_papers.data.registry import DATASETS, dataset_settings, load, needs_folder
from focalcal_papers.data.splits import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Batch,
    DataSplits,
    Split,
    cut,
    normalise,
)
from focalcal_papers.data.text import Vocabulary, WordVectors, read_word_vectors, tokenize

__all__ = [
    "CORRUPTIONS",
    "DATASETS",
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "Batch",
    "DataSplits",
    "Split",
    "Vocabulary",
    "WordVectors",
    "corrupt",
    "cut",
    "dataset_settings",
    "load",
    "needs_folder",
    "normalise",
    "read_word_vectors",
    "tokenize",
]
