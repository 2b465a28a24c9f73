"""Histograms of confidence: all binning of samples happens here.

A bin is (lo, hi]: a value on an edge belongs to the bin below it, and 0 to the first bin. So every
sample is counted exactly once. All sums are float64.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Self

import numpy as np

from focalcal import kernels
from focalcal._arrays import Array, is_torch, to_numpy
from focalcal._blocks import map_blocks
from focalcal._checks import check_whole
from focalcal.errors import InputError

ROUNDING = 1e-14
"""Values within this relative distance share an equal-mass bin, as rounded sums of votes do."""
_BLOCK = 1 << 16  # numbers counted at a time by a thread


@dataclasses.dataclass(frozen=True)
class Bins:
    """Sums of samples per bin, from which every bin metric and reliability diagram is computed.

    edges: (M+1,) increasing; counts: (M,) sum of weights (the number of samples if unweighted);
    confidence_sums, correct_sums: (M,) weighted sums of confidence and of correctness. The three
    sums may have leading axes, (..., M), for many sets of samples, and so may their edges.
    """

    edges: np.ndarray
    counts: np.ndarray
    confidence_sums: np.ndarray
    correct_sums: np.ndarray

    @classmethod
    def empty(cls, edges: np.ndarray, *rows: int) -> Self:
        """Bins without samples; rows: leading axes of the sums."""
        return cls(edges, *np.zeros((3, *rows, len(edges) - 1)))

    def __len__(self) -> int:
        return self.counts.shape[-1]

    @property
    def total(self) -> np.ndarray:
        """Sum of weights over all bins."""
        return self.counts.sum(axis=-1)

    @property
    def mean_confidence(self) -> np.ndarray:
        """Mean confidence per bin, NaN where a bin is empty."""
        return ratio(self.confidence_sums, self.counts)

    @property
    def accuracy(self) -> np.ndarray:
        """Share of correct samples per bin, NaN where a bin is empty."""
        return ratio(self.correct_sums, self.counts)

    @property
    def gap(self) -> np.ndarray:
        """Confidence minus accuracy per bin (positive: over-confident), NaN where empty."""
        return ratio(self.confidence_sums - self.correct_sums, self.counts)

    @property
    def share(self) -> np.ndarray:
        """Share of all weight per bin."""
        return self.counts / self.total[..., None]

    def __add__(self, other: Bins) -> Bins:
        """The bins of both sets of samples; the edges must be the same."""
        if not np.array_equal(self.edges, other.edges):
            raise InputError(
                f"expected bins with the same edges, got {len(self)} and {len(other)} bins "
                "that differ; bin both sets with the same edges"
            )
        return Bins(
            self.edges,
            self.counts + other.counts,
            self.confidence_sums + other.confidence_sums,
            self.correct_sums + other.correct_sums,
        )


def check_bins(bins: int) -> int:
    """The number of bins as an int ≥ 1."""
    return check_whole(bins, "bins", 1)


def equal_width_edges(m: int) -> np.ndarray:
    """The m+1 edges of m equally wide bins on [0, 1].

    >>> equal_width_edges(4)
    array([0.  , 0.25, 0.5 , 0.75, 1.  ])
    """
    return np.linspace(0.0, 1.0, check_bins(m) + 1)


def equal_mass_edges(x: Any, m: int, weights: Any = None) -> np.ndarray:
    """Edges of at most m bins on [0, 1] that hold equal shares of `x`.

    Inner edge i is the i/m quantile: the smallest value with at least i/m of the weight at or
    below it. Values that are equal up to rounding share a bin, so ties (or N < m) give fewer bins,
    none of them empty.

    x: (N,) values in [0, 1]; weights: (N,) or None. Returns at most m+1 increasing edges.

    >>> equal_mass_edges([0.1, 0.2, 0.3, 0.9], 2)
    array([0. , 0.2, 1. ])
    >>> equal_mass_edges([0.5, 0.5, 0.5, 0.5], 2)
    array([0., 1.])
    """
    x = to_numpy(x)
    m = check_bins(m)
    if x.ndim != 1 or len(x) == 0:
        raise InputError(f"expected values of shape (N,) with N >= 1, got {x.shape}")
    if weights is None:
        return _edges_of(np.sort(x), np.arange(1, len(x) + 1), m)
    order = np.argsort(x, kind="stable")
    return _edges_of(x[order], np.cumsum(to_numpy(weights)[order], dtype=float), m)


def _edges_of(ordered: np.ndarray, cumulative: np.ndarray, m: int) -> np.ndarray:
    """Edges at the quantiles of ordered values with these cumulative weights."""
    top = ordered[np.searchsorted(cumulative, cumulative[-1])]
    inner = ordered[last_equal(ordered, quantile_positions(cumulative, m))].astype(np.float64)
    # A quantile at 0 separates the zeros from the rest, so its edge is the smallest number above 0.
    inner = np.unique(np.maximum(inner, np.nextafter(0.0, 1.0)))
    return np.concatenate(([0.0], inner[inner < min(top, 1.0)], [1.0]))


def quantile_positions(cumulative: np.ndarray, m: int) -> np.ndarray:
    """Positions of the 1/m … (m−1)/m quantiles in samples with these cumulative weights (N,)."""
    total = cumulative[-1]
    # Rounding in the running sum must not push a quantile past the sample that reaches it.
    targets = total * np.arange(1, m) / m * (1 - 1e-12)
    return np.minimum(np.searchsorted(cumulative, targets, side="left"), len(cumulative) - 1)


def last_equal(ordered: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """The last position of the value at each position, up to rounding."""
    return np.asarray(np.searchsorted(ordered, ordered[positions] * (1 + ROUNDING), "right")) - 1


def even_bins(x: np.ndarray, hits: np.ndarray, m: int, weights: np.ndarray | None) -> Bins:
    """Samples x (N,) in bins of equal mass, with those at the positions `hits` correct.

    One sort gives edges, counts and sums; only the few correct samples are binned separately.
    """
    if weights is not None:
        correct = np.zeros(len(x), bool)
        correct[hits] = True
        return bin_samples(x, correct, equal_mass_edges(x, m, weights), weights)
    ordered = np.sort(x)
    edges = _edges_of(ordered, np.arange(1, len(x) + 1), m)
    near = edges[1:-1].astype(x.dtype)
    starts = np.concatenate([[0], np.searchsorted(ordered, near, side="right"), [len(x)]])
    correct = np.bincount(np.searchsorted(near, x[hits]), minlength=len(edges) - 1)
    sums = np.diff(starts), np.add.reduceat(ordered, starts[:-1], dtype=np.float64), correct
    return Bins(edges, *(np.asarray(v, np.float64) for v in sums))


def bin_index(x: Array, edges: Any) -> Array:
    """The bin of each value: i with edges[i] < x ≤ edges[i+1]; the outer bins are open-ended.

    NaN falls into the last bin.

    x: any shape, NumPy or torch; edges: (M+1,) increasing. Returns integers 0..M−1 of the kind
    and shape of `x`. The edges are rounded to the precision of `x`, so that a confidence that was
    on an edge in float64 stays on it in float32.

    >>> bin_index(np.array([0.0, 0.5, 0.51, 1.0]), [0.0, 0.5, 1.0])
    array([0, 0, 1, 1])
    """
    return bin_between(x, np.asarray(to_numpy(edges), dtype=np.float64)[1:-1])


def bin_between(x: Array, inner: Array) -> Array:
    """`bin_index` by the inner edges (M−1,), which may be a tensor on the device of `x`."""
    if is_torch(x):
        import torch

        inner = torch.as_tensor(inner, dtype=x.dtype, device=x.device).contiguous()
        return torch.bucketize(x.contiguous(), inner)
    x = _wide(np.asarray(x))
    return kernels.bin_between(x, inner.astype(x.dtype))


def bin_samples(confidence: Any, correct: Any, edges: Any, weights: Any = None) -> Bins:
    """Count samples into bins.

    confidence: (N,) in [0, 1]; correct: (N,) 0/1 or bool; edges: (M+1,); weights: (N,) or None.

    >>> b = bin_samples([0.2, 0.6, 0.8], [0, 1, 1], equal_width_edges(2))
    >>> b.counts, b.accuracy
    (array([1., 2.]), array([0., 1.]))
    """
    x, hit = _wide(to_numpy(confidence)), to_numpy(correct) != 0
    edges = np.asarray(to_numpy(edges), dtype=np.float64)
    w = None if weights is None else to_numpy(weights).astype(np.float64, copy=False)
    kernel = kernels.pick(kernels.fast(8 * len(x)) and kernels.is_even(edges) and in_range(x))
    near = kernels.open_edges(edges, x.dtype)

    def block(rows: slice) -> np.ndarray:
        table, weight = np.zeros((3, len(edges) - 1)), None if w is None else w[rows]
        kernel.bins_of(x[rows], hit[rows], weight, near, table)
        return table

    none = np.zeros((3, len(edges) - 1))
    return Bins(edges, *sum(map_blocks(block, len(x), _BLOCK), none))


def bin_columns(labels: Any, probs: Any, edges: Any, weights: Any = None) -> Bins:
    """Count every class's probability into the same bins; a sample is correct for its label.

    labels: (N,) integers, −1 if a sample is of none of the classes; probs: (N, K); edges: (M+1,);
    weights: (N,) or None. Returns bins whose sums have shape (K, M).

    >>> bin_columns([1], [[0.2, 0.8]], equal_width_edges(2)).correct_sums
    array([[0., 0.],
           [0., 1.]])
    """
    p, y = _wide(to_numpy(probs)), to_numpy(labels).astype(np.intp, copy=False)
    edges = np.asarray(to_numpy(edges), dtype=np.float64)
    w = None if weights is None else to_numpy(weights).astype(np.float64, copy=False)
    kernel = kernels.pick(kernels.fast(p.size) and kernels.is_even(edges) and in_range(p))
    near = kernels.open_edges(edges, p.dtype)

    def block(rows: slice) -> np.ndarray:
        table = np.zeros((3, p.shape[1], len(edges) - 1))
        kernel.class_bins_of(p[rows], y[rows], None if w is None else w[rows], near, table)
        return table

    return Bins(edges, *sum(map_blocks(block, len(p), max(_BLOCK // p.shape[1], 64))))


def in_range(x: np.ndarray) -> bool:
    """Whether all values are in [0, 1], as compiled loops require."""
    return len(x) > 0 and bool(x.min() >= 0 and x.max() <= 1)


def mean_gap(b: Bins) -> np.ndarray:
    """Σ_b (n_b/n)·|gap_b|, for each leading axis of the bins."""
    return np.abs(b.confidence_sums - b.correct_sums).sum(axis=-1) / b.total


def squared_gap(b: Bins) -> np.ndarray:
    """Σ_b (n_b/n)·gap_b²."""
    return ratio_or_zero((b.confidence_sums - b.correct_sums) ** 2, b.counts).sum(axis=-1) / b.total


def ratio_or_zero(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    """top/bottom, 0 where the bottom is 0, so that empty bins add nothing to a sum."""
    return np.divide(top, bottom, out=np.zeros(np.shape(top)), where=bottom > 0)


def _wide(x: np.ndarray) -> np.ndarray:
    """float32 and float64 unchanged, everything else as float64."""
    return x if x.dtype in (np.float32, np.float64) else x.astype(np.float64)


def ratio(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    """top/bottom, NaN where the bottom is 0."""
    return np.divide(top, bottom, out=np.full(np.shape(top), np.nan), where=bottom > 0)
