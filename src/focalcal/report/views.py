"""The test set as one calibrator sees it: what the figures and tables of a report show."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from focalcal import bins as _bins
from focalcal import metrics
from focalcal.metrics import RiskCoverage
from focalcal.metrics.proportion import share_interval
from focalcal.report.data import MethodResult, View, WrongSample

FINE_BINS = 20
CURVE_POINTS = 200
SHOWN_WRONG = 15
STOPS = np.round(np.arange(0, 101) / 100, 2)


def view(result: MethodResult, labels: np.ndarray, probs: np.ndarray) -> View:
    """Everything that is drawn of one calibrator's test probabilities (N, K)."""
    b = result.evaluation.reliability
    classes = _bins.bin_columns(labels, probs, b.edges)
    curve = metrics.risk_coverage(labels, probs)
    low, high = share_interval(b.correct_sums, b.counts, result.evaluation.level)
    return View(
        method=result.method,
        evaluation=result.evaluation,
        accuracy_low=low,
        accuracy_high=high,
        confidence=metrics.reliability(labels, probs, bins=FINE_BINS),
        classes=classes,
        class_ece=_bins.mean_gap(classes),
        curve=_thinned(curve),
        stops=_at_stops(curve),
    )


def _thinned(curve: RiskCoverage) -> RiskCoverage:
    at = np.searchsorted(curve.coverage, np.linspace(0, 1, CURVE_POINTS))
    at = np.unique(np.minimum(at, len(curve.coverage) - 1))
    found = {name: getattr(curve, name)[at] for name in ("threshold", "coverage", "risk")}
    return dataclasses.replace(curve, **found)


def _at_stops(curve: RiskCoverage) -> RiskCoverage:
    """Coverage and risk of the samples at or above each fixed threshold."""
    kept = np.searchsorted(-curve.threshold, -STOPS, side="right")
    coverage = np.append(0.0, curve.coverage)[kept]
    risk = np.append(np.nan, curve.risk)[kept]
    return dataclasses.replace(curve, threshold=STOPS, coverage=coverage, risk=risk)


def wrong_samples(
    labels: np.ndarray, before: np.ndarray, after: np.ndarray, names: Sequence[str]
) -> tuple[WrongSample, ...]:
    """The wrong predictions of greatest calibrated confidence."""
    predicted, confidence = after.argmax(axis=1), after.max(axis=1)
    rows = np.flatnonzero(predicted != labels)
    rows = rows[np.argsort(-confidence[rows], kind="stable")][:SHOWN_WRONG]
    return tuple(
        WrongSample(
            row=int(i),
            predicted=names[predicted[i]],
            true=names[labels[i]],
            confidence_before=float(before[i].max()),
            confidence_after=float(confidence[i]),
            true_class_probability=float(after[i, labels[i]]),
        )
        for i in rows
    )
