"""Bootstrap values of the class-wise errors: one sparse product per group of classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from focalcal import bins as _bins
from focalcal._blocks import map_blocks
from focalcal.metrics.resampling import Sample, draw_counts, rows_per_chunk

NAMES = ("classwise_ece", "ace", "brier_calibration")
_GROUP_ENTRIES = 2_000_000
_WORK = 5e9


def affordable(resamples: int, n: int, n_classes: int) -> int:
    """As many resamples as N·K allows in reasonable time, at least 100."""
    return min(resamples, max(100, int(_WORK / (n * n_classes))))


def resample_classwise(
    labels: np.ndarray,
    probs: np.ndarray,
    sample: Sample,
    resamples: int,
    seed: int,
    progress: Callable[[int], None] | None = None,
) -> dict[str, np.ndarray]:
    """Values (resamples,) of `NAMES`, drawn as `resampling.resample` draws them.

    labels (N,) and probs (N, K) are in the order of `sample`. The edges of the equal-mass bins
    of `ace` are held at the quantiles of the sample itself.
    """
    n_classes = probs.shape[1]
    sums = {name: np.zeros(resamples) for name in NAMES}
    for classes in _groups(*probs.shape):
        width, count, mass = _cells(labels, probs, sample, classes)

        def chunk(rows: slice, width=width, count=count, mass=mass) -> None:
            weights = (draw_counts(sample.n, rows, seed) * sample.weights).T
            total = weights.sum(axis=0)
            excess = width @ weights
            square = _bins.ratio_or_zero(excess**2, count @ weights)
            sums["classwise_ece"][rows] += np.abs(excess).sum(axis=0) / total / n_classes
            sums["ace"][rows] += np.abs(mass @ weights).sum(axis=0) / total / n_classes
            sums["brier_calibration"][rows] += square.sum(axis=0) / total

        map_blocks(chunk, resamples, rows_per_chunk(sample.n))
        if progress is not None:
            progress(len(classes) * resamples // n_classes)
    return sums


def _groups(n: int, n_classes: int) -> Iterator[range]:
    size = max(_GROUP_ENTRIES // n, 1)
    for start in range(0, n_classes, size):
        yield range(start, min(start + size, n_classes))


def _cells(
    labels: np.ndarray, probs: np.ndarray, sample: Sample, classes: range
) -> tuple[Any, Any, Any]:
    """Sparse (cells, N): p − 1[y=k] and 1 in equally wide bins, p − 1[y=k] in equal-mass bins."""
    from scipy.sparse import csr_array

    n, m = sample.n, sample.bins
    columns = probs[:, classes.start : classes.stop].T
    excess = columns - (labels == np.arange(classes.start, classes.stop)[:, None])
    at = np.broadcast_to(np.arange(n), columns.shape).ravel()
    offsets = np.arange(len(classes))[:, None] * m
    wide = (_bins.bin_index(columns, _bins.equal_width_edges(m)) + offsets).ravel()
    even = np.stack(
        [_bins.bin_index(p, _bins.equal_mass_edges(p, m, sample.weights)) for p in columns]
    )
    shape = (len(classes) * m, n)
    return (
        csr_array((excess.ravel(), (wide, at)), shape=shape),
        csr_array((np.ones(excess.size), (wide, at)), shape=shape),
        csr_array((excess.ravel(), ((even + offsets).ravel(), at)), shape=shape),
    )
