"""Tiny-ImageNet from its official folder of JPEG files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from focalcal.errors import FileFormatError, MissingExtraError
from focalcal_papers.data.files import PathLike, locate
from focalcal_papers.data.splits import CIFAR_MEAN, CIFAR_STD, DataSplits, cut_training

SOURCE = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
_SIZE = 64


def load_tiny_imagenet(
    folder: PathLike, *, seed: int = 0, calibration: int | None = None, complete: bool = True
) -> DataSplits:
    """Tiny-ImageNet: images (N, 3, 64, 64) uint8; 90,000 train, 10,000 calibration, 10,000 test.

    Calibration is cut from the training images by a seeded permutation; the official validation
    set is the test set, because the official test labels are not public. Needs Pillow.
    """
    needed = ["wnids.txt", "train", "val/images", "val/val_annotations.txt"]
    place = locate(folder, "Tiny-ImageNet", ["tiny-imagenet-200"], needed, SOURCE)
    codes = (place / "wnids.txt").read_text("utf-8").split()
    number = {code: i for i, code in enumerate(codes)}
    train = [
        (path, label)
        for code, label in number.items()
        for path in sorted((place / "train" / code / "images").glob("*.JPEG"))
    ]
    test = _annotations(place, number)
    for files, count, what in ((train, 100_000, "training"), (test, 10_000, "validation")):
        if not files or (complete and len(files) != count):
            raise FileFormatError(
                f"expected {count:,} {what} images, got {len(files):,} in {place}; "
                "unpack it again, or pass complete=False to use a shortened copy"
            )
    return cut_training(
        "tiny_imagenet",
        _read(train),
        _read(test),
        _names(place, codes),
        calibration=calibration,
        one_in=10,
        seed=seed,
        moments=(CIFAR_MEAN, CIFAR_STD),
        note="; the official validation set is the test set",
    )


def _annotations(place: Path, number: dict[str, int]) -> list[tuple[Path, int]]:
    path = place / "val" / "val_annotations.txt"
    files = []
    for row, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
        fields = line.split("\t")
        if len(fields) < 2 or fields[1] not in number:
            raise FileFormatError(
                f"expected an image and a code of wnids.txt, got {line[:40]!r} at line {row} "
                f"of {path}"
            )
        files.append((place / "val" / "images" / fields[0], number[fields[1]]))
    return files


def _names(place: Path, codes: Sequence[str]) -> tuple[str, ...]:
    """Readable names from words.txt where it is there; otherwise the WordNet codes."""
    path = place / "words.txt"
    lines = path.read_text("utf-8").splitlines() if path.is_file() else []
    names = dict(line.split("\t", 1) for line in lines if "\t" in line)
    return tuple(names.get(code, code) for code in codes)


def _read(files: Sequence[tuple[Path, int]]) -> tuple[Tensor, Tensor]:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError(
            "Pillow", "images", "reading Tiny-ImageNet's JPEG files", "focalcal-papers"
        ) from error
    images = torch.empty(len(files), 3, _SIZE, _SIZE, dtype=torch.uint8)
    for i, (path, _) in enumerate(files):
        try:
            with Image.open(path) as image:
                # A few of the official files are grey.
                pixels = np.asarray(image.convert("RGB"))
        except OSError as error:
            raise FileFormatError(
                f"expected a JPEG image, could not read {path}: {error}"
            ) from error
        if pixels.shape != (_SIZE, _SIZE, 3):
            raise FileFormatError(
                f"expected an image of {_SIZE}×{_SIZE} pixels, got {pixels.shape[:2]} in {path}"
            )
        images[i] = torch.tensor(pixels).permute(2, 0, 1)
    return images, torch.tensor([label for _, label in files])
