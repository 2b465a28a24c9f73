"""`CalibrationStats` of logits in one sweep over blocks that stay in cache.

The same numbers as `CalibrationStats.update` of their softmax, at half the cost: classes go first,
so that everything runs in SIMD; entropies need no logarithm of each probability; and one sort of
the confidences serves both histograms.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from focalcal import bins as _bins
from focalcal._blocks import scratch
from focalcal.bins import Bins
from focalcal.metrics import CalibrationStats
from focalcal.metrics._cells import fine_edges
from focalcal.metrics.selective import at_least

MAX_CLASSES = 64
"""Past this, rows are long enough for the general way."""
_BLOCK_ELEMENTS = 2**19
_TRANSPOSED = 4096
_PENDING = 2**18
"""Confidences sorted at a time: fewer would spend their time on the edges of the histogram."""


class LogitStats:
    """Collects batches of logits (N, K) and labels (N,), already checked; 1 < K ≤ MAX_CLASSES."""

    def __init__(self, n_classes: int, bins: int) -> None:
        self._stats = CalibrationStats(n_classes, bins=bins)
        self._samples: list[tuple[np.ndarray, np.ndarray]] = []
        self._pending = 0

    def update(self, logits: np.ndarray, labels: np.ndarray) -> None:
        """Add a batch."""
        size = max(_BLOCK_ELEMENTS // logits.shape[1], 1)
        for start in range(0, len(labels), size):
            rows = slice(start, start + size)
            self._add_block(logits[rows], labels[rows].astype(np.intp))
        if self._pending >= _PENDING:
            self._sort()

    def result(self) -> CalibrationStats:
        """The statistics of all batches."""
        if self._pending:
            self._sort()
        return self._stats

    def _add_block(self, logits: np.ndarray, y: np.ndarray) -> None:
        n, k = logits.shape
        below, probs = (scratch(name, (k, n), logits.dtype) for name in ("below", "probs"))
        for start in range(0, n, _TRANSPOSED):  # so many rows stay in cache for all classes
            rows = slice(start, start + _TRANSPOSED)
            np.copyto(below[:, rows], logits[rows].T)
        below -= below.max(axis=0)
        np.exp(below, out=probs)
        total = probs.sum(axis=0)
        probs /= total
        confidence = 1 / total  # the largest logit is 0 below itself
        own = y * n
        own += np.arange(n)
        p_true = probs.reshape(-1).take(own)
        right = p_true == confidence
        is_top = np.equal(probs, confidence, out=scratch("many", (k, n), bool))
        if np.count_nonzero(is_top) != n:
            right = probs.argmax(axis=0) == y  # ties: the first class is predicted
        stats = self._stats
        stats.n += n
        edges = stats._columns.edges
        stats._columns += Bins(edges, *_bins.count_columns(probs, y, edges[1:-1]))
        below *= probs
        # Entropy, logarithm and probability of the true class; −Σ p ln p = ln Σ exp z − Σ p z.
        split = scratch("split", (3, n), np.float64)
        np.subtract(np.log(total), below.sum(axis=0), out=split[0])
        split[2] = p_true
        # Summed in float64: a row's sum in float32 would lose its small terms, always downwards.
        squares = np.multiply(probs, probs, out=below).sum(dtype=np.float64)
        self._add_sums(float(squares), split, confidence, right)
        self._samples.append((confidence, right))
        self._pending += n

    def _add_sums(
        self, squares: float, split: np.ndarray, confidence: np.ndarray, right: np.ndarray
    ) -> None:
        zero = split[2] == 0
        with np.errstate(divide="ignore"):
            np.log(split[2], out=split[1])
        split[1, zero] = 0.0
        high = at_least(confidence, self._stats.threshold)
        whole = split.sum(axis=1)
        of_right = np.einsum("ij,j->i", split, right.astype(np.float64))
        new = {
            "weight": len(right),
            "right": np.count_nonzero(right),
            "high": np.count_nonzero(high),
            "high_correct": np.count_nonzero(high & right),
            "zero_right": np.count_nonzero(zero & right),
            "zero_wrong": np.count_nonzero(zero & ~right),
            "brier": squares - 2 * whole[2] + len(right),
        }
        names = ("entropy", "nll", "true_class_probability")
        for name, sign, every, some in zip(names, (1, -1, 1), whole, of_right):
            new[f"{name}_right"], new[f"{name}_wrong"] = sign * some, sign * (every - some)
        for name, value in new.items():
            self._stats._sums[name] += float(value)

    def _sort(self) -> None:
        confidence, right = (np.concatenate(parts) for parts in zip(*self._samples))
        samples = _bins.sort_samples(confidence, right)
        stats = self._stats
        stats._fixed += _bins.bin_sorted(samples, stats._fixed.edges)
        fine = _bins.bin_sorted(samples, _edges_below(confidence.dtype))
        stats._fine += Bins(stats._fine.edges, fine.counts, fine.confidence_sums, fine.correct_sums)
        self._samples, self._pending = [], 0


@cache
def _edges_below(kind: np.dtype) -> np.ndarray:
    """The fine edges rounded down to a precision: exactly as many of its numbers lie below each."""
    edges = fine_edges()
    near = edges.astype(kind)
    return np.where(near > edges, np.nextafter(near, kind.type(-1)), near).astype(np.float64)
