"""Cells (class, bin) of the probabilities: the basis of the intervals of class-wise errors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from focalcal import kernels
from focalcal._blocks import map_blocks
from focalcal.bins import Bins, ratio_or_zero
from focalcal.metrics.intervals import mean_slope, moments

if TYPE_CHECKING:
    from focalcal.metrics.sample import Sample

_BLOCK = 1 << 15


class Cells:
    """Gaps of cells and their noise, from one pass over the samples of bins (K, M).

    gap: Σ (p − 1[y=k]) over a cell, divided by n, (K, M); noise: its standard deviation, the
    smaller and the larger of two estimates; linear: for both, the first-order variance of E|gap|,
    relative to that of independent cells; squares: the first-order contribution of each sample to
    Σ (n_kb/n)·gap², (N,).
    """

    def __init__(self, sample: Sample, b: Bins) -> None:
        n, k = sample.total, len(b.counts)
        p, y = (ratio_or_zero(sums, b.counts) for sums in (b.confidence_sums, b.correct_sums))
        self.gap = (b.confidence_sums - b.correct_sums) / n
        either = _noise(b.counts, p) / n, _noise(b.counts, y) / n
        either = [np.where(s > 1e-9 * np.abs(self.gap), s, 0.0) for s in either]  # rounding
        self.noise = np.minimum(*either), np.maximum(*either)
        slopes = [
            np.where(s > 0, mean_slope(self.gap / np.where(s > 0, s, 1.0)), np.sign(self.gap)) / k
            for s in self.noise
        ]
        slope, level = np.stack([*slopes, 2 * (p - y)]), np.zeros((3, *p.shape))
        level[2] = -((p - y) ** 2)
        *scores, self.squares = _scores(sample, b.edges, slope, level)
        self.linear = [
            np.nan_to_num(moments(x, sample.weights)[1]) ** 2
            / (n * max(float(np.sum((s * slope) ** 2)), 1e-300))
            for x, s, slope in zip(scores, self.noise, slopes)
        ]


def _scores(sample: Sample, edges: np.ndarray, slope: np.ndarray, level: np.ndarray) -> np.ndarray:
    """`kernels.cell_scores` of all samples, (S, N)."""
    p, y = sample.probs, sample.data.labels
    inner = np.tile(edges[..., 1:-1], (1 if edges.ndim == 2 else len(p), 1)).astype(p.dtype)
    kernel = kernels.pick(kernels.fast(p.size))

    def block(rows: slice) -> np.ndarray:
        found = np.empty((len(slope), rows.stop - rows.start))
        some = np.ascontiguousarray(p[:, rows])
        kernel.cell_scores(some, y[rows], inner, slope, level, found)
        return found

    return np.concatenate(map_blocks(block, sample.n, max(_BLOCK // len(p), 64)), axis=1)


def _noise(counts: np.ndarray, p: np.ndarray) -> np.ndarray:
    """√(π/2)·E|X − np| of X hits in n = `counts`: normal, or Poisson in cells with few hits."""
    from scipy.special import gammaln

    expected = counts * np.minimum(p, 1 - p)
    some = np.clip(expected, 1e-12, 50.0)
    whole = np.floor(some)
    log_mean = math.log(2) - some + (whole + 1) * np.log(some) - gammaln(whole + 1)
    lattice = np.exp(log_mean) / np.sqrt(2 / math.pi * some)
    return np.sqrt(counts * np.maximum(p * (1 - p), 0)) * np.where(expected < 50, lattice, 1.0)
