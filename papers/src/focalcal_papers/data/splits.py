"""Train, calibration and test as objects whose index sets are checked to be disjoint."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from focalcal.errors import InputError

if TYPE_CHECKING:
    from focalcal_papers.data.trees import Trees

CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Batch:
    """Inputs and targets (B,); with mixup also the partners' targets and the first's share."""

    inputs: Any
    targets: Tensor
    partner: Tensor | None = None
    share: Tensor | None = None


@dataclass(frozen=True)
class Split:
    """One part of a data set.

    `inputs` (N, ...) or trees, `labels` (N,) int64, both on one device; `indices` (N,) int64 on
    the CPU: the place of each sample in the source, official training files first, then test.
    """

    inputs: Tensor | Trees
    labels: Tensor
    indices: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, index: Tensor) -> Batch:
        """Samples by their position in this split: tensors are indexed, trees are collated.

        The targets are the labels; for trees, the labels of all nodes.
        """
        if isinstance(self.inputs, Tensor):
            return Batch(self.inputs[index], self.labels[index])
        inputs = self.inputs.batch(index)
        return Batch(inputs, inputs.targets)

    def to(self, device: torch.device | str) -> Split:
        return Split(self.inputs.to(device), self.labels.to(device), self.indices)


@dataclass(frozen=True)
class DataSplits:
    """A data set cut into train, calibration and test; the cut is checked on construction.

    `classes` names the labels; `n_source` counts the samples the indices point into; `mean` and
    `std` (C,) normalise images given as 0..1; `vocabulary` and `vectors` (V, D) belong to text;
    `note` describes how the calibration part was chosen.

    >>> x, y = torch.zeros(6, 2), torch.tensor([0, 1, 0, 1, 0, 1])
    >>> part = lambda *i: Split(x[list(i)], y[list(i)], torch.tensor(i))
    >>> data = DataSplits("toy", part(0, 1, 2), part(3), part(4, 5), ("a", "b"), n_source=6)
    >>> data.n_classes, data.input_shape
    (2, (2,))
    >>> DataSplits("toy", part(0, 1, 2), part(2), part(4, 5), ("a", "b"), n_source=6)
    Traceback (most recent call last):
    focalcal.errors.InputError: expected disjoint splits, got 1 sample(s) in both train and \
calibration (first: 2); cut them again
    """

    name: str
    train: Split
    calibration: Split
    test: Split
    classes: tuple[str, ...]
    n_source: int
    mean: Tensor | None = None
    std: Tensor | None = None
    vocabulary: object | None = None
    vectors: Tensor | None = None
    note: str = ""

    def __post_init__(self) -> None:
        for name, split in self.parts().items():
            _check_split(name, split, self.n_source, self.n_classes)
        _check_disjoint(self.parts())

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample, for `make_model(..., input_shape=...)`; () for trees."""
        inputs = self.train.inputs
        return tuple(inputs.shape[1:]) if isinstance(inputs, Tensor) else ()

    def described(self) -> dict[str, Any]:
        """Name and sizes, and a hash of the samples and labels in each part."""
        digest = hashlib.sha256()
        sizes = {}
        for name, part in self.parts().items():
            sizes[name] = len(part)
            digest.update(part.labels.cpu().numpy().tobytes() + part.indices.numpy().tobytes())
        return {"name": self.name, "sizes": sizes, "labels": digest.hexdigest()}

    def parts(self) -> dict[str, Split]:
        return {"train": self.train, "calibration": self.calibration, "test": self.test}

    def to(self, device: torch.device | str) -> DataSplits:
        """The same splits with every tensor on `device`."""
        moved = {
            name: None if (value := getattr(self, name)) is None else value.to(device)
            for name in ("train", "calibration", "test", "mean", "std", "vectors")
        }
        return dataclasses.replace(self, **moved)


def cut(n: int, calibration: int, seed: int) -> tuple[Tensor, Tensor]:
    """Disjoint (train, calibration) indices of 0..n−1 by a seeded permutation, each sorted.

    >>> train, calibration = cut(10, 3, seed=0)
    >>> len(train), len(calibration)
    (7, 3)
    """
    if not 0 < calibration < n:
        raise InputError(f"expected a calibration size in 1..{n - 1}, got {calibration}")
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    return order[calibration:].sort().values, order[:calibration].sort().values


def cut_training(
    name: str,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    classes: Sequence[str],
    calibration: int | None,
    *,
    one_in: int,
    seed: int,
    moments: tuple[Sequence[float], Sequence[float]] | None = None,
    note: str = "",
) -> DataSplits:
    """The usual cut: calibration out of the official training files, test as published.

    `train` and `test` are inputs and labels; `calibration` by default one in `one_in` of them;
    `moments` the mean and standard deviation by channel.
    """
    inputs, labels = train
    n, n_test = len(labels), len(test[1])
    calibration = n // one_in if calibration is None else calibration
    chosen = dict(zip(("train", "calibration"), cut(n, calibration, seed)))
    mean, std = map(torch.tensor, moments) if moments else (None, None)
    return DataSplits(
        name,
        **{part: Split(inputs[i], labels[i], i) for part, i in chosen.items()},
        test=Split(*test, torch.arange(n, n + n_test)),
        classes=tuple(classes),
        n_source=n + n_test,
        mean=mean,
        std=std,
        note=f"{calibration} of the {n} training samples calibrate (seed {seed}){note}",
    )


def normalise(
    images: Tensor, mean: Tensor, std: Tensor, dtype: torch.dtype = torch.float32
) -> Tensor:
    """(x/255 − mean)/std per channel of uint8 images; `mean` and `std` (C,) on the same device."""
    shape = (1, -1, 1, 1)
    scaled = images.to(torch.float32) / 255
    return ((scaled - mean.view(shape)) / std.view(shape)).to(dtype)


def _check_split(name: str, split: Split, n_source: int, n_classes: int) -> None:
    n = len(split.labels)
    if n == 0:
        raise InputError(f"expected at least one sample in {name}, got none")
    if split.labels.dtype != torch.int64 or split.indices.dtype != torch.int64:
        raise InputError(
            f"expected int64 labels and indices in {name}, "
            f"got {split.labels.dtype} and {split.indices.dtype}"
        )
    if not len(split.inputs) == n == len(split.indices):
        raise InputError(
            f"expected as many inputs, labels and indices in {name}, "
            f"got {len(split.inputs)}, {n} and {len(split.indices)}"
        )
    for what, values, end in (
        ("indices", split.indices, n_source),
        ("labels", split.labels, n_classes),
    ):
        low, high = int(values.min()), int(values.max())
        if low < 0 or high >= end:
            raise InputError(f"expected {name} {what} in 0..{end - 1}, got {low}..{high}")


def _check_disjoint(parts: dict[str, Split]) -> None:
    for name, split in parts.items():
        values, counts = split.indices.unique(return_counts=True)
        if len(values) < len(split.indices):
            twice = int(values[counts > 1][0])
            raise InputError(f"expected each sample once in {name}, got index {twice} twice")
        for other, before in parts.items():
            if other == name:
                break
            both = values[torch.isin(values, before.indices)]
            if len(both):
                raise InputError(
                    f"expected disjoint splits, got {len(both)} sample(s) in both {other} and "
                    f"{name} (first: {int(both[0])}); cut them again"
                )
