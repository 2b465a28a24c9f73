"""Calibration errors: how far confidence is from accuracy."""

from __future__ import annotations

from typing import Any

import numpy as np

from focalcal import bins as _bins
from focalcal.bins import Bins
from focalcal.metrics import _samples


def reliability(y_true: Any, y_prob: Any, *, bins: int = 15, sample_weight: Any = None) -> Bins:
    """The top-label samples in equally wide confidence bins: what `ece` and the diagrams read.

    y_true: (N,) labels; y_prob: (N, K), or (N,) = probability of y_true = 1; sample_weight: (N,).

    >>> reliability([1, 0], [0.8, 0.3], bins=2).gap
    array([ 0.3, -0.2])
    """
    confidence, correct = _samples.top_label(y_true, y_prob)
    weights = _samples.sample_weights(sample_weight, len(confidence))
    return _bins.bin_samples(confidence, correct, _bins.equal_width_edges(bins), weights)


def equal_mass_reliability(
    y_true: Any, y_prob: Any, *, bins: int = 15, sample_weight: Any = None
) -> Bins:
    """The top-label samples in bins of equal mass; see `focalcal.bins.equal_mass_edges`.

    >>> len(equal_mass_reliability([1, 0, 1], [0.8, 0.3, 0.8], bins=3))
    2
    """
    confidence, correct = _samples.top_label(y_true, y_prob)
    weights = _samples.sample_weights(sample_weight, len(confidence))
    edges = _bins.equal_mass_edges(confidence, bins, weights)
    return _bins.bin_samples(confidence, correct, edges, weights)


def ece(y_true: Any, y_prob: Any, *, bins: int = 15, sample_weight: Any = None) -> float:
    """Expected calibration error Σ_b (n_b/n)·|accuracy_b − confidence_b|, equally wide bins.

    y_true: (N,) labels; y_prob: (N, K), or (N,) = probability of y_true = 1, so that
    `ece(correct, confidence)` serves top-1 results; sample_weight: (N,).

    >>> ece([1, 0, 1, 1], [0.75, 0.75, 0.75, 0.75])
    0.0

    Naeini et al. 2015; Guo et al. 2017, Eq. 3.
    """
    return mean_gap(reliability(y_true, y_prob, bins=bins, sample_weight=sample_weight))


def adaptive_ece(y_true: Any, y_prob: Any, *, bins: int = 15, sample_weight: Any = None) -> float:
    """ECE with bins of equal mass. Equal confidences share a bin.

    >>> round(adaptive_ece([1, 0, 1, 0], [0.9, 0.8, 0.6, 0.5], bins=2), 3)
    0.2

    Nguyen & O'Connor 2015; Mukhoti et al. 2020 (AdaECE).
    """
    return mean_gap(equal_mass_reliability(y_true, y_prob, bins=bins, sample_weight=sample_weight))


def mean_gap(b: Bins) -> float:
    """Σ_b (n_b/n)·|gap_b| of bins."""
    return float(np.abs(b.confidence_sums - b.correct_sums).sum() / b.total)
