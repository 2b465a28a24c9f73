"""Confidence as a guide: what the confident predictions are worth, and what to refuse."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from focalcal.errors import InputError
from focalcal.metrics import _samples
from focalcal.metrics._ordered import area_under_risk_coverage, auroc, in_order


@dataclasses.dataclass(frozen=True)
class HighConfidence:
    """Samples at or above a confidence: their share and their accuracy (NaN if there are none)."""

    threshold: float
    share: float
    accuracy: float
    n: int


@dataclasses.dataclass(frozen=True)
class RiskCoverage:
    """The error rate among the most confident samples, for every confidence to stop at.

    threshold: (G,) decreasing confidences; coverage, risk: (G,) share of samples at or above each
    and their error rate. `area` is their mean risk over all sample counts (AURC).
    """

    threshold: np.ndarray
    coverage: np.ndarray
    risk: np.ndarray
    area: float
    n: int


def high_confidence(
    y_true: Any, y_prob: Any, *, threshold: float = 0.99, sample_weight: Any = None
) -> HighConfidence:
    """Share of samples with confidence ≥ threshold, and their accuracy (S99 of Table 6).

    y_true: (N,) labels; y_prob: (N, K), or (N,) = probability of y_true = 1; sample_weight: (N,).

    >>> h = high_confidence([1, 0, 1, 1], [0.995, 0.99, 0.5, 0.2])
    >>> h.share, h.accuracy
    (0.5, 0.5)

    Mukhoti et al. 2020, Table 6.
    """
    threshold = check_threshold(threshold)
    confidence, correct = _samples.top_label(y_true, y_prob)
    weights = _samples.sample_weights(sample_weight, len(confidence))
    high = at_least(confidence, threshold)
    share = _samples.mean(high, weights)
    hits = _samples.mean(high & correct, weights)
    n = int(np.count_nonzero(high if weights is None else high & (weights > 0)))
    return HighConfidence(threshold, share, hits / share if share > 0 else float("nan"), n)


def auroc_of_confidence(y_true: Any, y_prob: Any, *, sample_weight: Any = None) -> float:
    """Probability that a correct sample has more confidence than a wrong one; ties count half.

    NaN when all samples are correct or all are wrong. For (N,) y_prob it is the ordinary AUROC.

    >>> auroc_of_confidence([1, 1, 0], [0.9, 0.4, 0.4])
    0.75
    """
    confidence, correct = _samples.top_label(y_true, y_prob)
    weights = _samples.sample_weights(sample_weight, len(confidence))
    return float(auroc(in_order(confidence, correct, weights)))


def risk_coverage(y_true: Any, y_prob: Any, *, sample_weight: Any = None) -> RiskCoverage:
    """The risk–coverage curve: error rate against the share of samples kept.

    One point per distinct confidence: a threshold keeps equal confidences together or not at all.

    >>> curve = risk_coverage([1, 1, 0, 0], [0.9, 0.8, 0.8, 0.1])
    >>> curve.coverage, curve.risk
    (array([0.25, 0.75, 1.  ]), array([0.        , 0.33333333, 0.5       ]))

    El-Yaniv & Wiener 2010; Geifman & El-Yaniv 2017.
    """
    confidence, correct = _samples.top_label(y_true, y_prob)
    weights = _samples.sample_weights(sample_weight, len(confidence))
    o = in_order(confidence, correct, weights)
    kept = np.cumsum(o.weights[::-1])
    wrong = np.cumsum((o.weights - o.hits)[::-1])
    return RiskCoverage(
        threshold=o.confidence[::-1],
        coverage=kept / kept[-1],
        risk=wrong / kept,
        area=float(area_under_risk_coverage(o)),
        n=len(confidence),
    )


def aurc(y_true: Any, y_prob: Any, *, sample_weight: Any = None) -> float:
    """Area under the risk–coverage curve: mean over k of the error of the k most confident.

    Tied samples enter in the mean over all their orders. Weights count as repetitions.

    >>> round(aurc([1, 0], [0.9, 0.1]), 3)
    0.25

    Geifman et al. 2019.
    """
    return risk_coverage(y_true, y_prob, sample_weight=sample_weight).area


def check_threshold(threshold: float) -> float:
    """A confidence threshold in [0, 1]."""
    threshold = float(threshold)
    if not 0 <= threshold <= 1:
        raise InputError(f"expected a threshold in [0, 1], got {threshold}")
    return threshold


def at_least(confidence: np.ndarray, threshold: float) -> np.ndarray:
    """confidence ≥ threshold, the threshold rounded to the precision of the confidence."""
    return confidence >= confidence.dtype.type(threshold)
