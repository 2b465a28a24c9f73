"""From a dataset on the device to batches: order, augmentation and mixup of an epoch.

Everything random about an epoch is drawn at its start from (seed, epoch) alone. A run can therefore
resume exactly inside an epoch, and sees the same images for any number of processes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from focalcal.errors import InputError
from focalcal_papers.data import Batch, DataSplits, normalise
from focalcal_papers.training.config import TrainConfig

PADDING = 4
"""Pixels added on each side before the random crop."""


def make_batches(
    splits: DataSplits, config: TrainConfig, device: torch.device
) -> TensorBatches | TreeBatches:
    """The batches of a data set: rows of a tensor, or trees."""
    if isinstance(splits.train.inputs, Tensor):
        return TensorBatches(splits, config, device)
    return TreeBatches(splits, config, device)


class TensorBatches:
    """Batches of samples that are rows of one tensor: images, vectors or token ids.

    Images are bytes (N, C, H, W). The training images are kept padded and channels last, so that
    a crop is one gather and its result needs no conversion. Other inputs are used unchanged.
    """

    capturable = True

    def __init__(self, splits: DataSplits, config: TrainConfig, device: torch.device) -> None:
        self.config, self.device = config, device
        self.splits = splits.to(device)
        self.n = len(splits.train)
        self.images = splits.train.inputs.dtype == torch.uint8
        if config.mixup and not (self.images or splits.train.inputs.is_floating_point()):
            raise InputError("expected mixup 0 with word numbers: they have no average; remove it")
        self.crops = self.images and config.augment != "none"
        if self.crops:
            padded = F.pad(self.splits.train.inputs, (PADDING,) * 4)
            self._padded = padded.permute(0, 2, 3, 1).contiguous()
            height, width = splits.input_shape[1:]
            self._rows = torch.arange(height, device=device)
            self._columns = torch.arange(width, device=device)
        # Filled in place each epoch: a captured step keeps reading the same memory.
        self._order = torch.zeros(self.n, dtype=torch.int64, device=device)
        self._down, self._right, self._flip = (torch.zeros_like(self._order) for _ in range(3))
        self._share = torch.ones(self.n, device=device)

    def start_epoch(self, epoch: int) -> None:
        """Draw this epoch's order, crops, flips and mixing shares."""
        rng = np.random.default_rng([self.config.seed, epoch])
        self._order.copy_(torch.from_numpy(rng.permutation(self.n)))
        if self.crops:
            shifts = rng.integers(0, 2 * PADDING + 1, (2, self.n))
            self._down.copy_(torch.from_numpy(shifts[0]))
            self._right.copy_(torch.from_numpy(shifts[1]))
        if self.config.augment == "crop-flip":
            self._flip.copy_(torch.from_numpy(rng.integers(0, 2, self.n)))
        if self.config.mixup:
            batches = -(-self.n // self.config.batch_size)
            shares = rng.beta(self.config.mixup, self.config.mixup, batches)
            repeated = np.repeat(shares, self.config.batch_size)[: self.n]
            self._share.copy_(torch.from_numpy(repeated))

    def batch(self, where: Tensor) -> Batch:
        """The samples at these positions (B,) of the epoch's order."""
        index = self._order[where]
        targets = self.splits.train.labels[index]
        inputs = self._crop(index, where) if self.crops else self.splits.train.inputs[index]
        inputs = self._prepare(inputs)
        if not self.config.mixup:
            return Batch(inputs, targets)
        share = self._share[where]
        by_sample = share.reshape(-1, *[1] * (inputs.ndim - 1)).to(inputs.dtype)
        # The order is random already, so the neighbour is a random partner.
        inputs = by_sample * inputs + (1 - by_sample) * inputs.roll(1, 0)
        return Batch(inputs, targets, targets.roll(1, 0), share)

    def evaluation(self, split: str, limit: int = 0) -> Iterator[Batch]:
        """The samples of a split in order, without augmentation; `limit` of them if given."""
        part = self.splits.parts()[split]
        for index in _chunks(len(part), limit, self.config.eval_batch_size):
            rows = index.to(self.device)
            yield Batch(self._prepare(part.inputs[rows]), part.labels[rows])

    def _crop(self, index: Tensor, where: Tensor) -> Tensor:
        """A shifted, perhaps mirrored, window of each padded image."""
        mirrored = self._flip[where][:, None].bool()
        columns = torch.where(mirrored, self._columns.flip(0), self._columns)
        columns = self._right[where][:, None] + columns
        rows = self._down[where][:, None] + self._rows
        windows = self._padded[index[:, None, None], rows[:, :, None], columns[:, None, :]]
        return windows.permute(0, 3, 1, 2)

    def _prepare(self, inputs: Tensor) -> Tensor:
        if not self.images:
            return inputs
        layout = torch.channels_last if self.config.channels_last else torch.contiguous_format
        images = normalise(inputs, self.splits.mean, self.splits.std)
        return images.contiguous(memory_format=layout)


class TreeBatches:
    """Batches of trees: the loss is over all labelled nodes, a prediction is the root's."""

    capturable = False  # trees are collated on the host

    def __init__(self, splits: DataSplits, config: TrainConfig, device: torch.device) -> None:
        if config.mixup:
            raise InputError("expected mixup 0 with trees: they have no average; remove it")
        self.config, self.device = config, device
        self.splits = splits.to(device)
        self.n = len(splits.train)
        self._order = torch.zeros(self.n, dtype=torch.int64)

    def start_epoch(self, epoch: int) -> None:
        """Draw this epoch's order."""
        rng = np.random.default_rng([self.config.seed, epoch])
        self._order = torch.from_numpy(rng.permutation(self.n))

    def batch(self, where: Tensor) -> Batch:
        """The trees at these positions (B,) of the epoch's order, and all their nodes' labels."""
        return self.splits.train.batch(self._order[where.cpu()])

    def evaluation(self, split: str, limit: int = 0) -> Iterator[Batch]:
        """The trees of a split in order with their roots' labels."""
        part = self.splits.parts()[split]
        for index in _chunks(len(part), limit, self.config.eval_batch_size):
            yield Batch(part.batch(index).inputs, part.labels[index.to(self.device)])


def _chunks(n: int, limit: int, size: int) -> Iterator[Tensor]:
    """Indices of all of n samples, or of `limit` spread evenly over them, `size` at a time."""
    limit = min(limit, n) if limit else n
    index = torch.arange(limit) * n // limit
    return iter(index.split(size))
