"""MNIST and Fashion-MNIST in their idx format."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import torch

from focalcal.errors import FileFormatError
from focalcal_papers.data.files import PathLike, check_folder, missing_files, read_bytes
from focalcal_papers.data.splits import DataSplits, cut_training

MNIST_CLASSES = tuple("0123456789")
FASHION_CLASSES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
_MOMENTS = {"mnist": ([0.1307], [0.3081]), "fashion_mnist": ([0.2860], [0.3530])}
_SOURCES = {
    "mnist": "the MNIST database page of Y. LeCun, or any of its mirrors",
    "fashion_mnist": "the GitHub repository zalandoresearch/fashion-mnist (data/fashion) "
    "or Debian's package dataset-fashion-mnist",
}


def load_mnist(folder: PathLike, *, seed: int = 0, calibration: int | None = None) -> DataSplits:
    """MNIST: images (N, 1, 28, 28) uint8. See `load_fashion_mnist`."""
    return _load("mnist", folder, MNIST_CLASSES, seed, calibration)


def load_fashion_mnist(
    folder: PathLike, *, seed: int = 0, calibration: int | None = None
) -> DataSplits:
    """Fashion-MNIST: images (N, 1, 28, 28) uint8; one in twelve training images calibrates.

    Files `train-images-idx3-ubyte`, `train-labels-idx1-ubyte` and `t10k-...`, plain or .gz, with
    any number of images; a part of the training set may carry a name such as `train-12k-...`.
    """
    return _load("fashion_mnist", folder, FASHION_CLASSES, seed, calibration)


def read_idx(path: Path, ndim: int) -> np.ndarray:
    """An idx file of unsigned bytes with `ndim` dimensions.

    Layout: two zero bytes, 8 (unsigned byte), ndim, then ndim big-endian uint32 sizes, the data.
    """
    raw = read_bytes(path)
    head = 4 + 4 * ndim
    if len(raw) < head or raw[:4] != bytes([0, 0, 8, ndim]):
        raise FileFormatError(
            f"expected an idx file of bytes with {ndim} dimension(s), got another beginning "
            f"({raw[:4].hex(' ')}) in {path}; fetch it again"
        )
    shape = struct.unpack(f">{ndim}I", raw[4:head])
    if len(raw) - head != math.prod(shape):
        raise FileFormatError(
            f"expected {math.prod(shape)} bytes of data for shape {shape}, "
            f"got {len(raw) - head} in {path}; fetch it again"
        )
    return np.frombuffer(raw, np.uint8, offset=head).reshape(shape)


def _load(
    name: str, folder: PathLike, classes: tuple[str, ...], seed: int, calibration: int | None
) -> DataSplits:
    folder = check_folder(folder, name)
    paths = {
        (part, kind): _find(folder, part, kind)
        for part in ("train", "t10k")
        for kind in ("images-idx3", "labels-idx1")
    }
    absent = [f"{part}-{kind}-ubyte[.gz]" for (part, kind), path in paths.items() if path is None]
    if absent:
        raise missing_files(name, folder, absent, _SOURCES[name])
    parts = []
    for part in ("train", "t10k"):
        images = read_idx(paths[part, "images-idx3"], 3)
        labels = read_idx(paths[part, "labels-idx1"], 1)
        if len(images) != len(labels):
            raise FileFormatError(
                f"expected as many labels as images, got {len(labels)} in "
                f"{paths[part, 'labels-idx1']} and {len(images)} in {paths[part, 'images-idx3']}"
            )
        parts.append((torch.tensor(images)[:, None], torch.tensor(labels, dtype=torch.int64)))
    moments = _MOMENTS[name]
    return cut_training(name, *parts, classes, calibration, one_in=12, seed=seed, moments=moments)


def _find(folder: Path, part: str, kind: str) -> Path | None:
    """The official name first, then a shortened copy such as train-12k-images-idx3-ubyte.gz."""
    exact = [folder / f"{part}-{kind}-ubyte{end}" for end in ("", ".gz")]
    similar = sorted(folder.glob(f"{part}*-{kind}-ubyte*"))
    return next((path for path in (*exact, *similar) if path.is_file()), None)
