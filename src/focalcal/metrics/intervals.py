"""Intervals of metrics and the reasons for them; docs/metrics.md shows their coverage.

A mean has Hall's interval, which allows for skewness, and a share the exact one. A calibration
error is a sum of absolute values or squares: noise alone makes it positive, and resampling adds
noise once more. Squares have a known bias, which is subtracted. The bootstrap interval of the other
top-label errors has the larger of its half-widths on both sides, extended downwards by the bias of
the resamples; all of them reach 0 unless the test of "calibrated" rejects. A class-wise error sums
K·M noisy gaps, too many for a bootstrap; its interval comes from the known variance of each gap.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from focalcal import bins as _bins
from focalcal.bins import Bins
from focalcal.metrics.proportion import share_interval

if TYPE_CHECKING:
    from focalcal.metrics.cells import Cells
    from focalcal.metrics.declare import Metric
    from focalcal.metrics.sample import Sample

Ends = tuple[float, float]
Interval = Callable[[float, "Sample", float], Ends]

_NONE = math.nan, math.nan
_MOST_SKEWED = 0.3
"""Bound for resamples: skewness is known to ± 0.17 from 200; Hall's interval explodes at 0.4."""
_STEPS = 24


def bootstrap_interval(
    metric: Metric, value: float, draws: np.ndarray, level: float, few: float
) -> Ends:
    """The interval of a value from resampled ones; few: the smaller of right and wrong samples."""
    draws = draws[~np.isnan(draws)]
    if len(draws) < 2:
        return _NONE
    if not metric.tested:  # compares right samples with wrong ones
        _, spread, skewness = moments(draws, None)
        skewness = min(max(skewness, -_MOST_SKEWED), _MOST_SKEWED)
        return _hall(value, spread, skewness, level, few)
    tail = (1 - level) / 2
    reach = float(np.abs(np.quantile(draws, [tail, 1 - tail]) - value).max())
    bias = max(float(draws.mean()) - value, 0.0)  # resampling adds noise as sampling did
    return value - reach - bias, value + reach


def mean_interval(column: Callable[[Sample], np.ndarray], within: str = "") -> Interval:
    """The interval of the mean of a column (N,) over all samples, or the right or wrong ones."""

    def interval(value: float, sample: Sample, level: float) -> Ends:
        x, weights = column(sample), sample.weights
        if within:
            rows = sample.correct == (within == "right")
            x, weights = x[rows], None if weights is None else weights[rows]
        n = float(len(x) if weights is None else weights.sum())
        _, spread, skewness = moments(x, weights)
        root = math.sqrt(n)
        return _hall(value, spread / root, skewness / root, level, n)

    return interval


def loss_interval(name: str) -> Interval:
    """The interval of a mean loss, "nll" or "brier", over all samples."""

    def interval(value: float, sample: Sample, level: float) -> Ends:
        low, high = mean_interval(lambda s: s.values[name])(value, sample, level)
        more = _unseen_errors(name, sample, level)
        return _NONE if math.isnan(more) else (low, high + more)

    return interval


def _unseen_errors(name: str, sample: Sample, level: float) -> float:
    """What unseen errors may add to a mean loss if all samples are right; 0 if some are wrong.

    Losses of right samples tell nothing about those of wrong ones. As many errors are allowed for
    as in the interval of the accuracy. An error at confidence c costs its mean over the other
    classes: (H + c·ln c)/(1 − c) nats, or Σp² + 1 − 2·(Σp² − c²)/(1 − c) of the Brier score. The
    log-loss of errors at c = 1 is unknown: they are left out, NaN if there are no others.
    """
    errors = _unseen_share(sample, level)
    if errors == 0:
        return 0.0
    c, loss, w = sample.confidence, sample.values[name], sample.weights
    doubt = np.where(c < 1, 1 - c, 1.0)
    if name == "nll":
        cost = np.maximum((sample.values["entropy"] + c * np.log(c)) / doubt, -np.log(doubt))
        w = (c < 1) * (1.0 if w is None else w)
    else:
        scale = 1.0 if sample.data.kind == "classes" else 0.5
        squares = loss / scale + 2 * c - 1
        cost = scale * (squares + 1 - 2 * (squares - c**2) / doubt)
    if w is not None and w.sum() == 0:
        return math.nan
    return errors * float(np.average(cost - loss, weights=w))


def _unseen_share(sample: Sample, level: float) -> float:
    """If all samples are right, the share of errors they cannot exclude; 0 if some are wrong."""
    return 1 - _exact(1.0, sample.total, level)[0] if sample.correct.all() else 0.0


def skipped_share(few: float, n: float, level: float) -> float:
    """How much further up the exact interval of `few` of n samples reaches than the normal one.

    Few or no errors show too little variance: this share of further errors would reduce a
    calibration error caused by under-confidence.
    """
    share = few / n
    reach = NormalDist().inv_cdf((1 + level) / 2) * math.sqrt(share * (1 - share) / n)
    return max(_exact(share, n, level)[1] - share - reach, 0.0)


def gap_interval(value: float, sample: Sample, level: float) -> Ends:
    """The interval of confidence − accuracy; if all are right or all wrong, that of the accuracy.

    Correctness then shows no variance, but 20 right samples do not prove an accuracy of 1.
    """
    share = float(np.average(sample.correct, weights=sample.weights))
    if 0 < share < 1:
        return mean_interval(lambda s: s.confidence - s.correct)(value, sample, level)
    low, high = _exact(share, sample.total, level)
    return value + share - high, value + share - low


def moments(x: np.ndarray, weights: np.ndarray | None) -> tuple[float, float, float]:
    """Mean, standard deviation (divided by n − 1) and skewness; NaN, NaN, 0 where undefined."""
    w = np.ones(len(x)) if weights is None else weights
    n = w.sum()
    if n <= 1:
        return math.nan, math.nan, 0.0
    mean = x @ w / n
    off = x - mean
    largest = np.abs(off).max() or 1.0  # squares of 1e-200 would underflow
    off = off / largest
    square, cube = off**2 @ w, off**3 @ w
    skewness = cube / n / (square / n) ** 1.5 if square > 0 else 0.0
    return float(mean), float(largest) * math.sqrt(square / (n - 1)), float(skewness)


def _hall(value: float, error: float, skewness: float, level: float, n: float) -> Ends:
    """Hall's interval (1992) of a mean with this standard error and skewness, by Student's t."""
    from scipy.special import stdtrit

    if not (math.isfinite(error) and n > 1):
        return _NONE
    reach, a = float(stdtrit(n - 1, (1 + level) / 2)), skewness

    def ended(h: float) -> float:
        """T where T + a·T²/3 + a²·T³/27 + a/6 is h."""
        if abs(a) < 1e-6:
            return h
        return 3 / a * (math.cbrt(1 + a * (h - a / 6)) - 1)

    return value - error * ended(reach), value - error * ended(-reach)


def proportion_interval(value: float, sample: Sample, level: float) -> Ends:
    """The interval of a share of all samples."""
    return _exact(value, sample.total, level)


def high_proportion_interval(value: float, sample: Sample, level: float) -> Ends:
    """The same for a share of the samples of high confidence."""
    return _exact(value, float(sample.stats().sums["high"].sum()), level)


def _exact(share: float, n: float, level: float) -> Ends:
    """Clopper and Pearson's interval: Wilson's covers at 95 %, but not at the levels of slices.

    With less than half a (weighted) sample, a share is not known to be above 0.
    """
    hits = min(n * share, n)
    low, high = share_interval(hits, n, level)
    return float(low) if hits > 0.5 else 0.0, float(high) if n - hits > 0.5 else 1.0


def class_error_interval(part: str) -> Interval:
    """The interval of (1/K) Σ_k Σ_b |g_kb|, g the sum of p − 1[y=k] over a cell, divided by n.

    g = δ + s·Z with s = √(n_kb·p(1−p))/n, so E|g| = s·h(δ/s), h(x) = E|x + Z|. The interval holds
    t·Σ|δ|/K for every scale t at which the value is within z standard errors of its mean under gaps
    t·δ. The distribution of δ over the cells, and p itself, are unknown. The upper end uses δ = g
    and the mean probability p̄. The lower end uses g shrunk by James and Stein's rule, where small
    gaps are all noise, and of p̄ and the frequency ȳ the one with more noise. The interval is
    extended to the value, which lies above it if noise dominates, and, if all samples are right, by
    the errors that the accuracy allows for: each moves the gaps of two classes.
    """

    def interval(value: float, sample: Sample, level: float) -> Ends:
        cells, z = getattr(sample, part), NormalDist().inv_cdf((1 + level) / 2)
        least, most = (cells.gap / np.where(s > 0, s, 1.0) for s in cells.noise)
        shrunk = most * np.maximum(1 - 1 / np.maximum(most**2, 1e-300), 0)
        low = _error_end(cells, 1, shrunk if shrunk.any() else most, z, value)
        high = _error_end(cells, 0, least, -z, value)
        k = len(least)
        more = min(k, 2) / k * _unseen_share(sample, level)
        return min(low, value), max(high, value) + more

    return interval


def _error_end(cells: Cells, which: int, shape: np.ndarray, z: float, value: float) -> float:
    """t·Σ|δ|/K, δ = s·shape, at the t where the value is z standard errors from its mean."""
    s, linear = cells.noise[which], cells.linear[which]
    k = len(s)
    noiseless = float(np.abs(cells.gap[s == 0]).sum())

    def mean(t: float) -> float:
        u = t * shape
        h = mean_slope(u)
        absolute = u * h + math.sqrt(2 / math.pi) * np.exp(-0.5 * u**2)  # E|u + Z|
        folded = np.maximum(u**2 + 1 - absolute**2 - h**2, 0) * _shared(k)
        error = math.sqrt(float(np.sum(s**2 * (linear * h**2 + folded)))) / k
        return float((s * absolute).sum() + t * noiseless) / k + z * error

    return (float((s * np.abs(shape)).sum()) + noiseless) / k * _solve(mean, value)


def _shared(k: int) -> float:
    """Σ ρ² over the classes that share a sample, whose residuals have ρ = −1/(K−1) on average."""
    return k / (k - 1) if k > 1 else 1.0


def calibration_interval(value: float, sample: Sample, level: float) -> Ends:
    """The interval of Σ_k Σ_b (n_kb/n)·gap², whose bias is known; extended to the value.

    If all samples are right, it allows for as many errors as the accuracy does, each of which moves
    the gaps of two classes.
    """
    scale, errors = _brier_scale(sample), _unseen_share(sample, level)
    low, high = _brier_ends(value, -1, sample.class_cells.squares, sample, level)
    if errors:
        high = max(high, (math.sqrt(value) + math.sqrt(2 * scale) * errors) ** 2)
    return min(low, value), max(high, value)


def refinement_interval(value: float, sample: Sample, level: float) -> Ends:
    """The interval of the Brier score minus its calibration part, which is biased upwards."""
    rest = sample.values["brier"] / _brier_scale(sample) - sample.class_cells.squares
    low, high = _brier_ends(value, 1, rest, sample, level)
    return min(low, value), max(high + _unseen_errors("brier", sample, level), value)


def _brier_ends(value: float, sign: int, scores: np.ndarray, sample: Sample, level: float) -> Ends:
    """The interval of a part of the Brier score; the two parts have opposite biases."""
    k, scale = len(sample.classes.counts), _brier_scale(sample)
    bias, noise = _bias(sample.classes, k)
    ends = _square_ends(value / scale + sign * bias, scores, noise * _shared(k), sample, level)
    return scale * ends[0], scale * ends[1]


def _brier_scale(sample: Sample) -> float:
    """0.5 for a binary classifier with one column: half of the sum over both classes."""
    return 0.5 if sample.data.kind == "binary" else 1.0


def root_interval(even: bool) -> Interval:
    """The interval of the root of Σ_b (n_b/n)·gap² of the top label, from that of its square.

    even: bins of equal mass, else of equal width.
    """

    def interval(value: float, sample: Sample, level: float) -> Ends:
        c, w = sample.confidence, sample.weights
        edges = _bins.equal_width_edges(sample.bins)
        if even:
            edges = _bins.equal_mass_edges(c, sample.bins, w)
        b = _bins.bin_samples(c, sample.correct, edges, w)
        gap = b.gap[_bins.bin_index(c, edges)]
        bias, noise = _bias(b)
        scores = 2 * gap * (c - sample.correct) - gap**2
        ends = _square_ends(float(_bins.squared_gap(b)) - bias, scores, noise, sample, level)
        low, high = (math.sqrt(max(end, 0.0)) for end in ends)
        return min(low, value), max(high, value)

    return interval


def _bias(b: Bins, k: int = 1) -> tuple[float, float]:
    """The bias of Σ (n_b/n)·gap² over the bins of k classes, and the variance of its noise.

    E gap² = δ² + σ²/n_b, and ȳ(1−ȳ)/(n_b−1) estimates σ²/n_b; a single sample's gap² is all noise.
    """
    gap = _bins.ratio_or_zero(b.confidence_sums - b.correct_sums, b.counts)
    rate = _bins.ratio_or_zero(b.correct_sums, b.counts)
    noise = np.where(b.counts >= 2, rate * (1 - rate) / np.maximum(b.counts - 1, 1), gap**2)
    if k > 1:  # cells with only hits or none do not show their noise
        p, constant = gap + rate, (rate == 0) | (rate == 1)
        unseen = np.minimum(p * (1 - p) / np.maximum(b.counts, 1), gap**2)
        noise = np.where(constant, np.maximum(noise, unseen), noise)
    noise = b.share * noise
    return float(noise.sum()), 2 * float((noise**2).sum())


def _square_ends(
    estimate: float, scores: np.ndarray, noise: float, sample: Sample, level: float
) -> Ends:
    """Hall's interval of a debiased sum of squares to which each sample adds its score."""
    n = sample.total
    _, spread, skewness = moments(scores, sample.weights)
    error = math.sqrt(spread**2 / n + noise)
    part = spread / math.sqrt(n) / error if error > 0 else 0.0
    return _hall(estimate, error, skewness / math.sqrt(n) * part**3, level, n)


def mean_slope(x: np.ndarray) -> np.ndarray:
    """h'(x) = 2Φ(x) − 1."""
    from scipy.special import erf

    return erf(x / math.sqrt(2))


def _solve(mean: Callable[[float], float], target: float) -> float:
    """The t ≥ 0 with mean(t) = target, mean increasing; 0 if it starts above."""
    if mean(0.0) >= target:
        return 0.0
    low, high = 0.0, 1.0
    while mean(high) < target and high < 1e6:
        high *= 2
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if mean(middle) < target else (low, middle)
    return high
