"""Samples in order of confidence: what every metric that ranks or accumulates reads.

Equal confidences form one group, so no metric depends on the order of ties. Weights may have
leading axes: a bootstrap passes one row of weights per resample and pays for the sort once.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from focalcal.bins import Bins, bin_index, quantile_positions


@dataclasses.dataclass(frozen=True)
class Ordered:
    """Groups of equal confidence, in increasing order.

    confidence: (G,); weights: (..., G) summed weight of each group; hits: (..., G) the part of it
    that is correct.
    """

    confidence: np.ndarray
    weights: np.ndarray
    hits: np.ndarray

    @property
    def total(self) -> np.ndarray:
        return self.weights.sum(axis=-1)

    @property
    def excess(self) -> np.ndarray:
        """Weighted confidence minus correctness of each group, (..., G)."""
        return self.weights * self.confidence - self.hits

    def binned(self, edges: np.ndarray) -> Bins:
        """The groups in fixed bins, leaving out empty bins; the edges returned are positions."""
        starts = bin_starts(self.confidence, edges)
        return Bins(
            np.append(starts, len(self.confidence)),
            np.add.reduceat(self.weights, starts, axis=-1),
            np.add.reduceat(self.weights * self.confidence, starts, axis=-1),
            np.add.reduceat(self.hits, starts, axis=-1),
        )

    def equal_mass(self, m: int) -> Bins:
        """The groups in at most m bins of equal mass, quantiles taken per row of weights."""
        flat = self.weights.reshape(-1, self.weights.shape[-1])
        cumulative = np.cumsum(flat, axis=1)
        ends = np.stack([quantile_positions(row, m) for row in cumulative])
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
    """Sort samples (N,) by confidence and join equal ones; samples of weight 0 take no part."""
    if weights is not None and not weights.all():
        kept = weights > 0
        confidence, correct, weights = confidence[kept], correct[kept], weights[kept]
    order = np.argsort(confidence, kind="stable")
    sorted_confidence = confidence[order]
    starts = group_starts(sorted_confidence)
    w = np.ones(len(order)) if weights is None else weights[order]
    return Ordered(
        sorted_confidence[starts],
        np.add.reduceat(w, starts),
        np.add.reduceat(w * correct[order], starts),
    )


def group_starts(sorted_values: np.ndarray) -> np.ndarray:
    """Where each run of equal values begins."""
    return np.flatnonzero(np.append(True, sorted_values[1:] != sorted_values[:-1]))


def bin_starts(sorted_confidence: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Where each non-empty bin begins among sorted confidences."""
    return group_starts(bin_index(sorted_confidence, edges))


def ks(o: Ordered) -> np.ndarray:
    return np.abs(np.cumsum(o.excess, axis=-1)).max(axis=-1) / o.total


def auroc(o: Ordered) -> np.ndarray:
    """P(confidence of a correct sample > of a wrong one) + ½ P(equal); NaN without both kinds."""
    wrong = o.weights - o.hits
    below = np.cumsum(wrong, axis=-1) - wrong / 2
    pairs = o.hits.sum(axis=-1) * wrong.sum(axis=-1)
    won = (o.hits * below).sum(axis=-1)
    return np.divide(won, pairs, out=np.full(np.shape(pairs), np.nan), where=pairs > 0)


def area_under_risk_coverage(o: Ordered) -> np.ndarray:
    """Mean over k = 1..n of the error rate of the k most confident samples.

    A group of g tied samples with error rate r, entered after W samples with E errors, adds the
    mean over its orders, Σ_{j≤g} (E + r·j)/(W + j) = r·g + (E − r·W)(H(W+g) − H(W)). Harmonic
    numbers H extend to real weights by the digamma function.
    """
    weights, errors = o.weights[..., ::-1], (o.weights - o.hits)[..., ::-1]
    after = np.cumsum(weights, axis=-1)
    before = after - weights
    errors_before = np.cumsum(errors, axis=-1) - errors
    rate = np.divide(errors, weights, out=np.zeros_like(errors), where=weights > 0)
    harmonic = _harmonic(after)
    step = np.diff(harmonic, axis=-1, prepend=0.0)
    return (errors + (errors_before - rate * before) * step).sum(axis=-1) / after[..., -1]


def _harmonic(x: np.ndarray) -> np.ndarray:
    """H(x) = Σ_{j≤x} 1/j for whole x, ψ(x+1) + γ in between."""
    whole = x.astype(np.int64)
    if (whole == x).all() and x.max() < 1e8:
        table = np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, whole.max() + 1))])
        return table[whole]
    from scipy.special import digamma

    return digamma(x + 1) + np.euler_gamma
