"""Calibration errors: how far confidence is from accuracy."""

from __future__ import annotations

from typing import Any

import numpy as np

from focalcal import bins as _bins
from focalcal.bins import Bins
from focalcal.metrics import _samples
from focalcal.metrics._ordered import in_order, ks


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
    if sample_weight is not None or bins > _bins.FINE:
        b = reliability(y_true, y_prob, bins=bins, sample_weight=sample_weight)
        return float(_bins.mean_gap(b))
    edges = _bins.equal_width_edges(bins)
    blocks = _samples.over_top_label(
        lambda confidence, correct: (len(correct), _bins.gap_sums(confidence, correct, edges)),
        y_true,
        y_prob,
    )
    sizes, gaps = zip(*blocks, strict=True)
    return float(np.abs(np.sum(gaps, axis=0)).sum() / sum(sizes))


def adaptive_ece(y_true: Any, y_prob: Any, *, bins: int = 15, sample_weight: Any = None) -> float:
    """ECE with bins of equal mass. Equal confidences share a bin.

    >>> round(adaptive_ece([1, 0, 1, 0], [0.9, 0.8, 0.6, 0.5], bins=2), 3)
    0.2

    Nguyen & O'Connor 2015; Mukhoti et al. 2020 (AdaECE).
    """
    b = equal_mass_reliability(y_true, y_prob, bins=bins, sample_weight=sample_weight)
    return float(_bins.mean_gap(b))


def mce(y_true: Any, y_prob: Any, *, bins: int = 15, sample_weight: Any = None) -> float:
    """Maximum calibration error max_b |accuracy_b − confidence_b| over non-empty, equal bins.

    >>> round(mce([1, 0, 1], [0.9, 0.8, 0.1], bins=2), 3)
    0.9

    Naeini et al. 2015.
    """
    b = reliability(y_true, y_prob, bins=bins, sample_weight=sample_weight)
    return float(_bins.max_gap(b))


def rms_calibration_error(
    y_true: Any, y_prob: Any, *, bins: int = 15, sample_weight: Any = None
) -> float:
    """Root of Σ_b (n_b/n)·(accuracy_b − confidence_b)², equally wide bins.

    >>> round(rms_calibration_error([1, 0], [0.9, 0.1]), 3)
    0.1

    Kumar et al. 2019, Def. 2.1 (ℓ2, binned); Hendrycks et al. 2019.
    """
    b = reliability(y_true, y_prob, bins=bins, sample_weight=sample_weight)
    return float(_bins.rms_gap(b))


def debiased_ece(y_true: Any, y_prob: Any, *, bins: int = 15, sample_weight: Any = None) -> float:
    """Debiased ℓ2 calibration error of the top label, in bins of equal mass.

    The root of max(0, Σ_b (n_b/n)·[(ȳ_b − p̄_b)² − ȳ_b(1−ȳ_b)/(n_b−1)]): the plug-in square is too
    large by the sampling variance of ȳ_b, which the second term takes off. A bin with one sample
    has no variance to estimate and keeps its square. Weights count as repetitions.

    >>> debiased_ece([1, 0, 1, 0], [0.5, 0.5, 0.5, 0.5])
    0.0

    Kumar et al. 2019, Def. 5.1.
    """
    b = equal_mass_reliability(y_true, y_prob, bins=bins, sample_weight=sample_weight)
    return float(_bins.debiased_gap(b))


def classwise_ece(y_true: Any, y_prob: Any, *, bins: int = 15, sample_weight: Any = None) -> float:
    """Mean over classes of the ECE of each class's probability, equally wide bins.

    Classes are the columns of y_prob, also those absent from the labels. For (N,) y_prob it is
    `ece`, the error of the one column given.

    >>> round(classwise_ece([0, 1], [[0.8, 0.2], [0.3, 0.7]]), 3)
    0.25

    Nixon et al. 2019 (SCE); Kull et al. 2019.
    """
    labels, probs = _samples.columns(y_true, y_prob)
    weights = _samples.sample_weights(sample_weight, len(labels))
    b = _bins.bin_columns(labels, probs, _bins.equal_width_edges(bins), weights)
    return float(np.mean(_bins.mean_gap(b)))


def ace(y_true: Any, y_prob: Any, *, bins: int = 15, sample_weight: Any = None) -> float:
    """Adaptive calibration error: mean over classes of each class's ECE in bins of equal mass.

    (1/K) Σ_k Σ_r (n_kr/n)·|ȳ_kr − p̄_kr|; n_kr/n is the paper's 1/R where no equal probabilities
    force a larger range.

    >>> round(ace([0, 1], [[0.8, 0.2], [0.3, 0.7]]), 3)
    0.25

    Nixon et al. 2019, Eq. 4.
    """
    labels, probs = _samples.columns(y_true, y_prob)
    weights = _samples.sample_weights(sample_weight, len(labels))

    def one_class(k: int) -> float:
        p = np.ascontiguousarray(probs[:, k])
        edges = _bins.equal_mass_edges(p, bins, weights)
        return float(_bins.mean_gap(_bins.bin_samples(p, labels == k, edges, weights)))

    return float(np.mean([one_class(k) for k in range(probs.shape[1])]))


def ks_error(y_true: Any, y_prob: Any, *, sample_weight: Any = None) -> float:
    """Kolmogorov–Smirnov error max_c |Σ_{i: confidence_i ≤ c} (confidence_i − correct_i)|/n.

    No bins: the largest distance between the running sums of confidence and of correctness.

    >>> round(ks_error([1, 0, 1], [0.9, 0.5, 0.8]), 4)
    0.1667

    Gupta et al. 2021, Eq. 6.
    """
    confidence, correct = _samples.top_label(y_true, y_prob)
    weights = _samples.sample_weights(sample_weight, len(confidence))
    return float(ks(in_order(confidence, correct, weights)))


def confidence_gap(y_true: Any, y_prob: Any, *, sample_weight: Any = None) -> float:
    """Mean confidence minus accuracy: positive means over-confident, negative under-confident.

    >>> round(confidence_gap([1, 0], [[0.2, 0.8], [0.1, 0.9]]), 2)
    0.35
    """
    confidence, correct = _samples.top_label(y_true, y_prob)
    weights = _samples.sample_weights(sample_weight, len(confidence))
    return _samples.mean(confidence, weights) - _samples.mean(correct, weights)
