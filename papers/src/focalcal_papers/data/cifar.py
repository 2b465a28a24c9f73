"""CIFAR-10 and CIFAR-100: the official binary files, or the Python ones read without running them.

Images are (N, 3, 32, 32) uint8. Split: 45,000 train, 5,000 calibration by a seeded permutation of
the 50,000 training images, and the 10,000 test images.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch

from focalcal.errors import FileFormatError
from focalcal_papers.data.files import check_folder, find_folder, missing_files
from focalcal_papers.data.pickled import read_cifar_pickle
from focalcal_papers.data.splits import CIFAR_MEAN, CIFAR_STD, DataSplits, three_way

CIFAR10_CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
SOURCE = "https://www.cs.toronto.edu/~kriz/cifar.html"
_PIXELS = 3 * 32 * 32
_TRAIN10 = [f"data_batch_{i}" for i in range(1, 6)]


def load_cifar10(
    folder: str | os.PathLike[str],
    *,
    seed: int = 0,
    calibration: int | None = None,
    complete: bool = True,
) -> DataSplits:
    """CIFAR-10 from `cifar-10-batches-bin` (or `-py`) in `folder`, or from `folder` itself.

    `complete=False` accepts shortened files; a tenth of the training images then calibrates.
    """
    folder = check_folder(folder, "CIFAR-10")
    binary = [f"{name}.bin" for name in (*_TRAIN10, "test_batch")]
    python = [*_TRAIN10, "test_batch"]
    records = 10_000 if complete else None
    if place := find_folder(folder, ["cifar-10-batches-bin"], binary):
        parts = [_read_binary(place / file, 1, 10, records) for file in binary]
    elif place := find_folder(folder, ["cifar-10-batches-py"], python):
        parts = [_read_python(place / file, b"labels", 10, records) for file in python]
    else:
        absent = [file for file in binary if not (folder / file).exists()]
        raise missing_files("CIFAR-10 (binary version)", folder, absent, SOURCE)
    train = [np.concatenate(arrays) for arrays in zip(*parts[:-1])]
    return _splits("cifar10", train, parts[-1], CIFAR10_CLASSES, seed, calibration)


def load_cifar100(
    folder: str | os.PathLike[str],
    *,
    seed: int = 0,
    calibration: int | None = None,
    complete: bool = True,
) -> DataSplits:
    """CIFAR-100 with its 100 fine labels from `cifar-100-binary` (or `-python`) in `folder`."""
    folder = check_folder(folder, "CIFAR-100")
    records = {"train": 50_000, "test": 10_000} if complete else {"train": None, "test": None}
    if place := find_folder(folder, ["cifar-100-binary"], ["train.bin", "test.bin"]):
        train, test = (_read_binary(place / f"{p}.bin", 2, 100, n) for p, n in records.items())
    elif place := find_folder(folder, ["cifar-100-python"], ["train", "test"]):
        train, test = (
            _read_python(place / part, b"fine_labels", 100, n) for part, n in records.items()
        )
    else:
        absent = [file for file in ("train.bin", "test.bin") if not (folder / file).exists()]
        raise missing_files("CIFAR-100 (binary version)", folder, absent, SOURCE)
    return _splits("cifar100", train, test, _fine_names(place), seed, calibration)


def _read_binary(
    path: Path, label_bytes: int, n_classes: int, records: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels; a record is `label_bytes` labels (the last counts), then three planes."""
    raw = np.fromfile(path, np.uint8)
    size = label_bytes + _PIXELS
    if len(raw) == 0 or len(raw) % size:
        raise FileFormatError(
            f"expected whole records of {size} bytes, got {len(raw)} bytes in {path}; "
            "fetch it again, the file is cut off or of another kind"
        )
    table = raw.reshape(-1, size)
    images = table[:, label_bytes:].reshape(-1, 3, 32, 32)
    return _checked(path, images, table[:, label_bytes - 1], n_classes, records)


def _read_python(
    path: Path, label_key: bytes, n_classes: int, records: int | None
) -> tuple[np.ndarray, np.ndarray]:
    content = read_cifar_pickle(path)
    images, labels = content.get(b"data"), content.get(label_key)
    if (
        not isinstance(images, np.ndarray)
        or images.ndim != 2
        or images.shape[1] != _PIXELS
        or not isinstance(labels, list)
        or len(labels) != len(images)
        or not all(isinstance(label, int) and 0 <= label < n_classes for label in labels)
    ):
        raise FileFormatError(
            f"expected data (N, {_PIXELS}) and N {label_key.decode()} in 0..{n_classes - 1}, "
            f"got something else in {path}; fetch it again"
        )
    labels = np.asarray(labels, np.uint8)
    return _checked(path, images.reshape(-1, 3, 32, 32), labels, n_classes, records)


def _checked(
    path: Path, images: np.ndarray, labels: np.ndarray, n_classes: int, records: int | None
) -> tuple[np.ndarray, np.ndarray]:
    if records is not None and len(images) != records:
        raise FileFormatError(
            f"expected {records} images, got {len(images)} in {path}; "
            "fetch it again, or pass complete=False to use a shortened copy"
        )
    if len(labels) and labels.max() >= n_classes:
        row = int(labels.argmax())
        raise FileFormatError(
            f"expected labels in 0..{n_classes - 1}, got {labels[row]} at record {row} of {path}"
        )
    return images, labels


def _splits(name, train, test, classes, seed, calibration) -> DataSplits:
    tensors = [
        tensor
        for images, labels in (train, test)
        for tensor in (torch.tensor(images), torch.tensor(labels, dtype=torch.int64))
    ]
    n = len(tensors[1])
    calibration = n // 10 if calibration is None else calibration
    return DataSplits(
        name,
        **three_way(*tensors, calibration=calibration, seed=seed),
        classes=classes,
        n_source=n + len(tensors[3]),
        mean=torch.tensor(CIFAR_MEAN),
        std=torch.tensor(CIFAR_STD),
        note=f"{calibration} of the {n} training images calibrate (seed {seed})",
    )


def _fine_names(place: Path) -> tuple[str, ...]:
    """The 100 names, if the list lies beside the images; otherwise the numbers."""
    path = place / "fine_label_names.txt"
    names = path.read_text("utf-8").split() if path.is_file() else [str(i) for i in range(100)]
    if len(names) != 100:
        raise FileFormatError(f"expected 100 class names, got {len(names)} in {path}")
    return tuple(names)
