"""Selective prediction: how accurate confident samples are, and risk against coverage."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from focalcal.bins import ratio, ratio_or_zero
from focalcal.metrics.declare import METRICS, metric
from focalcal.metrics.intervals import high_proportion_interval, proportion_interval
from focalcal.metrics.sample import Sample, of_samples
from focalcal.stats import CalibrationStats


@dataclasses.dataclass(frozen=True)
class HighConfidence:
    """Samples at or above a confidence: their share and their accuracy (NaN if there are none)."""

    threshold: float
    share: float
    accuracy: float
    n: int


@dataclasses.dataclass(frozen=True)
class RiskCoverage:
    """The error rate among the most confident samples, for every confidence threshold.

    threshold: (G,) decreasing confidences; coverage, risk: (G,) share of samples at or above each
    and their error rate. `area` is their mean risk over all sample counts (AURC).
    """

    threshold: np.ndarray
    coverage: np.ndarray
    risk: np.ndarray
    area: float
    n: int


def _tie_bound(s: CalibrationStats) -> float:
    """Pairs inside a cell count as ties: each is wrong by at most a half."""
    o = s.ordered
    wrong = o.weights - o.hits
    pairs = o.hits.sum() * wrong.sum()
    unsure = (o.hits * wrong)[o.slack > 0].sum() / 2
    return float(unsure / pairs) if pairs > 0 else 0.0


def _path_bound(s: CalibrationStats) -> float:
    """Inside a cell the count of errors deviates from a straight line by at most e·h/g."""
    o = s.ordered
    deviation = np.where(o.slack > 0, (o.weights - o.hits) * o.hits / o.weights, 0.0)[::-1]
    step = np.diff(_harmonic(np.cumsum(o.weights[::-1])), prepend=0.0)
    return float((deviation * step).sum() / o.total)


@metric(
    "share of confidence ≥ 99 %",
    better="",
    needs=("sums",),
    interval=proportion_interval,
    show="terminal",
)
def high_confidence_share(s: CalibrationStats) -> Any:
    """Share of samples with at least the threshold confidence, 99 % by default.

    >>> high_confidence_share([0, 1], [[0.99, 0.01], [0.4, 0.6]])
    0.5
    """
    return s.mean("high")


@metric(
    "accuracy at ≥ 99 %",
    better="higher",
    needs=("sums",),
    interval=high_proportion_interval,
    within="high",
    show="terminal",
)
def high_confidence_accuracy(s: CalibrationStats) -> Any:
    """Accuracy of the samples with at least the threshold confidence.

    >>> high_confidence_accuracy([0, 1], [[0.99, 0.01], [0.4, 0.6]])
    1.0
    """
    high = s.sums["high"]
    return ratio(high[..., 1], high.sum(axis=-1))


@metric(
    "AUROC of confidence",
    better="higher",
    needs=("top", "order"),
    bound=_tie_bound,
    show="terminal",
)
def auroc_of_confidence(s: CalibrationStats) -> Any:
    """Probability that a correct sample has higher confidence than a wrong one; ties count half.

    NaN when all samples are correct or all are wrong.

    >>> auroc_of_confidence([1, 1, 0], confidence=[0.9, 0.4, 0.4])
    0.75
    """
    o = s.ordered
    wrong = o.weights - o.hits
    below = np.cumsum(wrong, axis=-1) - wrong / 2
    pairs = o.hits.sum(axis=-1) * wrong.sum(axis=-1)
    won = (o.hits * below).sum(axis=-1)
    return ratio(won, pairs)


@metric("AURC (risk over coverage)", needs=("top", "order"), bound=_path_bound, show="terminal")
def aurc(s: CalibrationStats) -> Any:
    """Area under the risk–coverage curve: mean over k of the error of the k most confident.

    Tied samples count with the mean over all their orders.

    >>> round(aurc([1, 0], confidence=[0.9, 0.1]), 3)
    0.25

    Geifman et al. 2019.
    """
    o = s.ordered
    weights, errors = o.weights[..., ::-1], (o.weights - o.hits)[..., ::-1]
    after = np.cumsum(weights, axis=-1)
    before = after - weights
    errors_before = np.cumsum(errors, axis=-1) - errors
    rate = ratio_or_zero(errors, weights)
    step = np.diff(_harmonic(after), axis=-1, prepend=0.0)
    # A group of g tied samples with error rate r, entered after W samples with E errors, adds the
    # mean over its orders, Σ_{j≤g} (E + r·j)/(W + j) = r·g + (E − r·W)(H(W+g) − H(W)).
    return (errors + (errors_before - rate * before) * step).sum(axis=-1) / after[..., -1]


@of_samples("sums")
def high_confidence(sample: Sample) -> HighConfidence:
    """Share of samples with confidence ≥ threshold, and their accuracy (S99 of Table 6).

    >>> h = high_confidence([1, 0, 1, 1], confidence=[0.995, 0.99, 0.5, 0.2])
    >>> h.share, h.accuracy
    (0.5, 0.5)

    Mukhoti et al. 2020, Table 6.
    """
    s = sample.stats()
    names = "high_confidence_share", "high_confidence_accuracy"
    share, accuracy = (float(METRICS[name].of(s)) for name in names)
    return HighConfidence(sample.threshold, share, accuracy, sample.sizes()["high"])


@of_samples("top", "order")
def risk_coverage(sample: Sample) -> RiskCoverage:
    """The risk–coverage curve: error rate against the share of samples kept.

    One point per distinct confidence: a threshold keeps equal confidences together or not at all.

    >>> curve = risk_coverage([1, 1, 0, 0], confidence=[0.9, 0.8, 0.8, 0.1])
    >>> curve.coverage, curve.risk
    (array([0.25, 0.75, 1.  ]), array([0.        , 0.33333333, 0.5       ]))

    El-Yaniv & Wiener 2010; Geifman & El-Yaniv 2017.
    """
    s = sample.stats()
    o = s.ordered
    kept = np.cumsum(o.weights[::-1])
    wrong = np.cumsum((o.weights - o.hits)[::-1])
    return RiskCoverage(
        threshold=o.confidence[::-1],
        coverage=kept / kept[-1],
        risk=wrong / kept,
        area=float(METRICS["aurc"].of(s)),
        n=sample.n,
    )


def _harmonic(x: np.ndarray) -> np.ndarray:
    """H(x) = Σ_{j≤x} 1/j = ψ(x+1) + γ, also for fractional weights."""
    from scipy.special import digamma

    return digamma(x + 1) + np.euler_gamma
