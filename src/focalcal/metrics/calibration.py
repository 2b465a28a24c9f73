"""Calibration errors: how far confidence is from accuracy."""

from __future__ import annotations

from typing import Any

import numpy as np

from focalcal import bins as _bins
from focalcal.bins import Bins, quantile_positions
from focalcal.metrics.declare import metric
from focalcal.metrics.intervals import class_error_interval, gap_interval, root_interval
from focalcal.metrics.sample import Sample, of_samples
from focalcal.stats import CalibrationStats


def _cut_bound(s: CalibrationStats) -> float:
    """Without the cells that hold a quantile, exact and histogram equal-mass bins are the same.

    Putting a cell back changes either error by at most its slack.
    """
    o = s.ordered
    cut = np.unique(quantile_positions(np.cumsum(o.weights), s.bins))
    return float(2 * o.slack[cut].sum() / o.total)


def _running_bound(s: CalibrationStats) -> float:
    """Running sums are exact between cells; inside a cell they deviate by at most its slack."""
    return float(s.ordered.slack.max() / s.ordered.total)


@metric("ECE", tested=True)
def ece(s: CalibrationStats) -> Any:
    """Expected calibration error Σ_b (n_b/n)·|accuracy_b − confidence_b|, equally wide bins.

    y_true: (N,) labels; y_prob or logits: (N, K), or (N,) for class 1 of a binary classifier;
    `ece(correct, confidence=c)` serves files of top-1 confidences; sample_weight: (N,).

    >>> ece([1, 0, 1, 1], [0.75, 0.75, 0.75, 0.75])
    0.0
    >>> round(ece([1, 0], confidence=[0.4, 0.4]), 3)
    0.1

    Naeini et al. 2015; Guo et al. 2017, Eq. 3.
    """
    return _bins.mean_gap(s.top)


@metric("ECE, equal-mass bins", needs=("top", "order"), tested=True, bound=_cut_bound)
def adaptive_ece(s: CalibrationStats) -> Any:
    """ECE with bins of equal mass. Equal confidences share a bin.

    >>> round(adaptive_ece([1, 0, 1, 0], [0.9, 0.8, 0.6, 0.55], bins=2), 4)
    0.2125

    Nguyen & O'Connor 2015; Mukhoti et al. 2020 (AdaECE).
    """
    return _bins.mean_gap(s.equal_mass)


@metric(
    "ECE, debiased",
    needs=("top", "order"),
    interval=root_interval(even=True),
    tested=True,
    show="terminal",
)
def debiased_ece(s: CalibrationStats) -> Any:
    """Debiased ℓ2 calibration error of the top label, in bins of equal mass.

    The root of max(0, Σ_b (n_b/n)·[(ȳ_b − p̄_b)² − ȳ_b(1−ȳ_b)/(n_b−1)]): the plug-in square is too
    large by the sampling variance of ȳ_b, which the second term subtracts. A bin with one sample
    has no variance estimate and keeps its square.

    >>> debiased_ece([1, 0, 1, 0], [0.5, 0.5, 0.5, 0.5])
    0.0

    Kumar et al. 2019, Def. 5.1.
    """
    b = s.equal_mass
    accuracy = _bins.ratio_or_zero(b.correct_sums, b.counts)
    variance = b.counts * accuracy * (1 - accuracy)
    bias = _bins.ratio_or_zero(variance, b.counts - 1)
    return np.sqrt(np.maximum(_bins.squared_gap(b) - bias.sum(axis=-1) / b.total, 0))


@metric(
    "ECE, class-wise", needs=("classes",), interval=class_error_interval("class_cells"), digits=3
)
def classwise_ece(s: CalibrationStats) -> Any:
    """Mean over classes of the ECE of each class's probability, equally wide bins.

    Classes are the columns of y_prob, including those absent from the labels.

    >>> round(classwise_ece([0, 1], [[0.8, 0.2], [0.3, 0.7]]), 3)
    0.25

    Nixon et al. 2019 (SCE); Kull et al. 2019.
    """
    return _bins.mean_gap(s.classes).mean(axis=-1)


@metric(
    "ACE",
    needs=("classes", "even"),
    interval=class_error_interval("even_cells"),
    show="terminal",
    digits=3,
)
def ace(s: CalibrationStats) -> Any:
    """Adaptive calibration error: mean over classes of each class's ECE in bins of equal mass.

    (1/K) Σ_k Σ_r (n_kr/n)·|ȳ_kr − p̄_kr|; n_kr/n is the paper's 1/R where no equal probabilities
    force a larger range.

    >>> round(ace([0, 1], [[0.8, 0.2], [0.3, 0.7]]), 3)
    0.25

    Nixon et al. 2019, Eq. 4.
    """
    return _bins.mean_gap(s.even).mean(axis=-1)


@metric(
    "MCE (worst bin)",
    interval=None,
    why="the largest of several noisy gaps is usually that of the bin with the fewest samples",
    show="terminal",
)
def mce(s: CalibrationStats) -> Any:
    """Maximum calibration error max_b |accuracy_b − confidence_b| over non-empty, equal bins.

    >>> round(mce([1, 0, 1], confidence=[0.9, 0.8, 0.1], bins=2), 3)
    0.9

    Naeini et al. 2015.
    """
    b = s.top
    return _bins.ratio_or_zero(np.abs(b.confidence_sums - b.correct_sums), b.counts).max(axis=-1)


@metric("RMS calibration error", interval=root_interval(even=False), tested=True, show="terminal")
def rms_calibration_error(s: CalibrationStats) -> Any:
    """Root of Σ_b (n_b/n)·(accuracy_b − confidence_b)², equally wide bins.

    >>> round(rms_calibration_error([1, 0], [0.9, 0.1]), 3)
    0.1

    Kumar et al. 2019, Def. 2.1 (ℓ2, binned); Hendrycks et al. 2019.
    """
    return np.sqrt(_bins.squared_gap(s.top))


@metric("KS error", needs=("top", "order"), tested=True, bound=_running_bound, show="terminal")
def ks_error(s: CalibrationStats) -> Any:
    """Kolmogorov–Smirnov error max_c |Σ_{i: confidence_i ≤ c} (confidence_i − correct_i)|/n.

    No bins: the largest distance between the running sums of confidence and of correctness.

    >>> round(ks_error([1, 0, 1], confidence=[0.9, 0.5, 0.8]), 4)
    0.1667

    Gupta et al. 2021, Eq. 6.
    """
    o = s.ordered
    return np.abs(np.cumsum(o.excess, axis=-1)).max(axis=-1) / o.total


@metric("confidence − accuracy", range=(-1, 1), better="", interval=gap_interval)
def confidence_gap(s: CalibrationStats) -> Any:
    """Mean confidence minus accuracy: positive means over-confident, negative under-confident.

    >>> round(confidence_gap([1, 0], [[0.2, 0.8], [0.1, 0.9]]), 2)
    0.35
    """
    return (s.top.confidence_sums - s.top.correct_sums).sum(axis=-1) / s.total


@of_samples("top")
def reliability(sample: Sample) -> Bins:
    """The top-label samples in equally wide confidence bins, as in `ece` and the diagrams.

    >>> reliability([1, 0], confidence=[0.8, 0.3], bins=2).gap
    array([ 0.3, -0.2])
    """
    return sample.stats().top


@of_samples("top")
def equal_mass_reliability(sample: Sample) -> Bins:
    """The top-label samples in bins of equal mass; see `focalcal.bins.equal_mass_edges`.

    >>> len(equal_mass_reliability([1, 0, 1], confidence=[0.8, 0.3, 0.8], bins=3))
    2
    """
    edges = _bins.equal_mass_edges(sample.confidence, sample.bins, sample.weights)
    return _bins.bin_samples(sample.confidence, sample.correct, edges, sample.weights)
