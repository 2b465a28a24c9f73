"""CIFAR-10 and CIFAR-100: the official binary files, or the Python ones read without running them.

Images are (N, 3, 32, 32) uint8. Split: 45,000 train, 5,000 calibration by a seeded permutation of
the 50,000 training images, and the 10,000 test images.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from focalcal.errors import FileFormatError
from focalcal_papers.data.files import (
    PathLike,
    check_count,
    check_folder,
    find_folder,
    missing_files,
)
from focalcal_papers.data.pickled import read_cifar_pickle
from focalcal_papers.data.splits import CIFAR_MEAN, CIFAR_STD, DataSplits, cut_training

CIFAR10_CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
SOURCE = "https://www.cs.toronto.edu/~kriz/cifar.html"
_PIXELS = 3 * 32 * 32
_SPLIT: dict = {"one_in": 10, "moments": (CIFAR_MEAN, CIFAR_STD)}


class _Version(NamedTuple):
    """The files of one CIFAR, with the number of records in each; the last is the test set."""

    title: str
    folders: tuple[str, str]
    files: dict[str, int]
    n_classes: int
    label_bytes: int
    label_key: bytes


_CIFAR10 = _Version(
    "CIFAR-10",
    ("cifar-10-batches-bin", "cifar-10-batches-py"),
    dict.fromkeys((*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"), 10000),
    n_classes=10,
    label_bytes=1,
    label_key=b"labels",
)
_CIFAR100 = _Version(
    "CIFAR-100",
    ("cifar-100-binary", "cifar-100-python"),
    {"train": 50_000, "test": 10_000},
    n_classes=100,
    label_bytes=2,
    label_key=b"fine_labels",
)


def load_cifar10(
    folder: PathLike, *, seed: int = 0, calibration: int | None = None, complete: bool = True
) -> DataSplits:
    """CIFAR-10 from `cifar-10-batches-bin` (or `-py`) in `folder`, or from `folder` itself.

    `complete=False` accepts shortened files; a tenth of the training images then calibrate.
    """
    *parts, _ = _read(_CIFAR10, folder, complete)
    return cut_training("cifar10", *parts, CIFAR10_CLASSES, calibration, seed=seed, **_SPLIT)


def load_cifar100(
    folder: PathLike, *, seed: int = 0, calibration: int | None = None, complete: bool = True
) -> DataSplits:
    """CIFAR-100 with its 100 fine labels from `cifar-100-binary` (or `-python`) in `folder`."""
    *parts, place = _read(_CIFAR100, folder, complete)
    names = _fine_names(place)
    return cut_training("cifar100", *parts, names, calibration, seed=seed, **_SPLIT)


Part = tuple[Tensor, Tensor]


def _read(version: _Version, folder: PathLike, complete: bool) -> tuple[Part, Part, Path]:
    """Images and labels of the training and test files, and the folder they lie in."""
    folder = check_folder(folder, version.title)
    binary = [f"{name}.bin" for name in version.files]
    if place := find_folder(folder, version.folders[:1], binary):
        paths, read = [place / file for file in binary], _read_binary
    elif place := find_folder(folder, version.folders[1:], list(version.files)):
        paths, read = [place / file for file in version.files], _read_python
    else:
        raise missing_files(f"{version.title} (binary version)", folder, binary, SOURCE)
    parts = []
    for path, count in zip(paths, version.files.values()):
        images, labels = read(path, version)
        _check(path, labels, version.n_classes, count if complete else None)
        parts.append((torch.tensor(images), torch.tensor(labels, dtype=torch.int64)))
    images, labels = (torch.cat(tensors) for tensors in zip(*parts[:-1]))
    return (images, labels), parts[-1], place


def _read_binary(path: Path, version: _Version) -> tuple[np.ndarray, np.ndarray]:
    """A record is one or two bytes of labels (the last one counts), then three planes."""
    raw = np.fromfile(path, np.uint8)
    size = version.label_bytes + _PIXELS
    if len(raw) == 0 or len(raw) % size:
        raise FileFormatError(
            f"expected whole records of {size} bytes, got {len(raw)} bytes in {path}; "
            "fetch it again, the file is cut off or of another kind"
        )
    table = raw.reshape(-1, size)
    images = table[:, version.label_bytes :].reshape(-1, 3, 32, 32)
    return images, table[:, version.label_bytes - 1]


def _read_python(path: Path, version: _Version) -> tuple[np.ndarray, np.ndarray]:
    content = read_cifar_pickle(path)
    images, labels = content.get(b"data"), content.get(version.label_key)
    if (
        not isinstance(images, np.ndarray)
        or images.ndim != 2
        or images.shape[1] != _PIXELS
        or not isinstance(labels, list)
        or len(labels) != len(images)
        or not all(isinstance(label, int) and 0 <= label < version.n_classes for label in labels)
    ):
        raise FileFormatError(
            f"expected data (N, {_PIXELS}) and N {version.label_key.decode()} in "
            f"0..{version.n_classes - 1}, got something else in {path}; fetch it again"
        )
    return images.reshape(-1, 3, 32, 32), np.asarray(labels, np.uint8)


def _check(path: Path, labels: np.ndarray, n_classes: int, records: int | None) -> None:
    check_count(len(labels), records, "images", path, "fetch")
    if len(labels) and labels.max() >= n_classes:
        row = int(labels.argmax())
        raise FileFormatError(
            f"expected labels in 0..{n_classes - 1}, got {labels[row]} at record {row} of {path}"
        )


def _fine_names(place: Path) -> tuple[str, ...]:
    """The 100 names, if the list lies beside the images; otherwise the numbers."""
    path = place / "fine_label_names.txt"
    names = path.read_text("utf-8").split() if path.is_file() else [str(i) for i in range(100)]
    if len(names) != 100:
        raise FileFormatError(f"expected 100 class names, got {len(names)} in {path}")
    return tuple(names)
