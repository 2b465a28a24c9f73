"""Samples in order of confidence, for all metrics that rank or accumulate.

Equal confidences form one group, so no metric depends on the order of ties. Weights may have
leading axes: a bootstrap passes one row of weights per resample and pays for the sort once. The
groups of a stream are the cells of a fine histogram, with bounds on what is unknown inside them.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import numpy as np

from focalcal import kernels
from focalcal.bins import Bins, bin_index, last_equal, quantile_positions

_UNIFORM = 8192
_LOGIT = 8192
_MAX_LOGIT = 37.0
"""ln(2^53): beyond it 1 − p is below the resolution of float64."""


@dataclasses.dataclass(frozen=True)
class Ordered:
    """Groups of equal confidence, in increasing order.

    confidence: (G,); weights: (..., G) total weight of each group; hits: (..., G) the correct part
    of it. For cells of a histogram, slack (G,) is an upper bound of Σ|confidence − correct| over a
    cell's samples and width (G,) its extent; both are None for exact groups, and 0 for a cell with
    a single possible value.
    """

    confidence: np.ndarray
    weights: np.ndarray
    hits: np.ndarray
    slack: np.ndarray | None = None
    width: np.ndarray | None = None

    @classmethod
    def of_cells(cls, fine: Bins) -> Ordered:
        """The non-empty cells of a histogram, each as one group at its mean confidence."""
        some = fine.counts > 0
        low, high = fine.edges[:-1][some], fine.edges[1:][some]
        weights, hits = fine.counts[some], fine.correct_sums[some]
        single = np.nextafter(low, 1.0) >= high
        # A wrong sample is off by its confidence, at most hi; a right one by at most 1 − lo.
        slack = np.where(single, 0.0, (weights - hits) * high + hits * (1 - low))
        mean = fine.confidence_sums[some] / weights
        return cls(mean, weights, hits, slack, np.where(single, 0.0, high - low))

    def cells(self) -> Bins:
        """The groups in the cells of `fine_edges`."""
        edges = fine_edges()
        at = bin_index(self.confidence, edges)
        sums = self.weights, self.weights * self.confidence, self.hits
        return Bins(edges, *(np.bincount(at, weights=v, minlength=len(edges) - 1) for v in sums))

    @property
    def total(self) -> np.ndarray:
        return self.weights.sum(axis=-1)

    @property
    def excess(self) -> np.ndarray:
        """Weighted confidence minus correctness of each group, (..., G)."""
        return self.weights * self.confidence - self.hits

    def equal_mass(self, m: int) -> Bins:
        """The groups in at most m bins of equal mass, quantiles taken per row of weights."""
        flat = self.weights.reshape(-1, self.weights.shape[-1])
        cumulative = np.cumsum(flat, axis=1)
        ends = np.stack([quantile_positions(row, m) for row in cumulative])
        ends = last_equal(self.confidence, ends)
        last = np.full((len(flat), 1), flat.shape[1] - 1)
        ends = np.concatenate([ends, last], axis=1).reshape(*self.weights.shape[:-1], m)

        def between(running: np.ndarray) -> np.ndarray:
            at_ends = np.take_along_axis(running, ends, axis=-1)
            return np.diff(at_ends, axis=-1, prepend=0.0)

        return Bins(
            np.linspace(0, 1, m + 1),
            between(cumulative.reshape(self.weights.shape)),
            between(np.cumsum(self.weights * self.confidence, axis=-1)),
            between(np.cumsum(self.hits, axis=-1)),
        )


def in_order(
    confidence: np.ndarray, correct: np.ndarray, weights: np.ndarray | None = None
) -> Ordered:
    """Sort samples (N,) by confidence and join equal ones."""
    order = np.argsort(confidence, kind="stable")
    sorted_confidence = confidence[order]
    starts = group_starts(sorted_confidence)
    w = np.ones(len(order)) if weights is None else weights[order]
    return Ordered(
        sorted_confidence[starts].astype(np.float64),
        np.add.reduceat(w, starts),
        np.add.reduceat(w * correct[order], starts),
    )


def group_starts(sorted_values: np.ndarray) -> np.ndarray:
    """The start of each run of equal values."""
    return np.flatnonzero(np.append(True, sorted_values[1:] != sorted_values[:-1]))


def bin_starts(sorted_confidence: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The start of each non-empty bin in sorted confidences."""
    return group_starts(bin_index(sorted_confidence, edges))


@cache
def fine_edges() -> np.ndarray:
    """Edges that are at most 1/8192 apart in probability and 0.0091 apart in logit.

    Networks put most confidences close to 1, where equally wide cells would lump them together.
    Exactly 0 and exactly 1 have cells of their own.
    """
    logits = np.linspace(-_MAX_LOGIT, _MAX_LOGIT, _LOGIT + 1)
    even = np.linspace(0.0, 1.0, _UNIFORM + 1)
    ends = [np.nextafter(0.0, 1.0), np.nextafter(1.0, 0.0)]
    edges = np.unique(np.concatenate([even, 1 / (1 + np.exp(-logits)), ends]))
    edges.flags.writeable = False
    return edges


@cache
def cell_search() -> tuple[Any, ...]:
    """For `loops.cell_bin`: the edges, the cell of each multiple of 1/8192 and of each log-odds."""
    logits = np.linspace(-_MAX_LOGIT, _MAX_LOGIT, _LOGIT + 1)
    values = np.linspace(0.0, 1.0, _UNIFORM + 1), 1 / (1 + np.exp(-logits))
    edges = fine_edges()
    starts = (np.searchsorted(edges, v).astype(np.uint64) for v in values)
    return kernels.open_edges(edges, edges.dtype), *starts, _MAX_LOGIT
