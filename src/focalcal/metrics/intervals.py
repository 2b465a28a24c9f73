"""Intervals of metrics, and why each is as it is; docs/METRICS.md shows how often they cover.

A calibration error is a sum of absolute values: noise alone makes it positive, and resampling adds
noise once more. The bootstrap interval of a top-label error is symmetric about the value with the
larger of its half-widths, and reaches 0 unless the test of "calibrated" rejects. A class-wise error
sums K·M noisy gaps, whose noise would swamp that; its interval comes from the known variance of
each gap.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from focalcal import bins as _bins
from focalcal import kernels
from focalcal._blocks import map_blocks
from focalcal.bins import Bins

if TYPE_CHECKING:
    from focalcal.metrics.declare import Metric
    from focalcal.metrics.sample import Sample

_STEPS = 24
_erf = np.frompyfunc(math.erf, 1, 1)
_log_factorial = np.frompyfunc(lambda n: math.lgamma(n + 1), 1, 1)
"""Element by element: SciPy would take longer to import than this takes for 1,000 classes."""


def bootstrap_interval(
    metric: Metric, value: float, draws: np.ndarray, level: float
) -> tuple[float, float]:
    """2·value − quantiles of resampled values, clipped to the range; symmetric if tested."""
    draws = draws[~np.isnan(draws)]
    if not math.isfinite(value) or len(draws) < 2:
        return math.nan, math.nan
    tail = (1 - level) / 2
    lower, upper = np.quantile(draws, [tail, 1 - tail]).tolist()
    below, above = max(upper - value, 0.0), max(value - lower, 0.0)
    if metric.tested:
        below = above = max(below, above)
    least, most = metric.range
    return max(value - below, least), min(value + above, most)


def proportion_interval(value: float, sample: Sample, level: float) -> tuple[float, float]:
    """The interval of a share of all samples (Wilson 1927): it holds up near 0 and 1."""
    return _wilson(value, sample.total, level)


def high_proportion_interval(value: float, sample: Sample, level: float) -> tuple[float, float]:
    """The same for a share of the samples of high confidence."""
    return _wilson(value, float(sample.stats().sums["high"].sum()), level)


def _wilson(share: float, n: float, level: float) -> tuple[float, float]:
    z = NormalDist().inv_cdf((1 + level) / 2)
    middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    reach = z * math.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2) / (1 + z**2 / n)
    return max(min(middle - reach, share), 0.0), min(max(middle + reach, share), 1.0)


def class_error_interval(part: str) -> Callable[[float, Sample, float], tuple[float, float]]:
    """The interval of (1/K) Σ_k Σ_b |g_kb|, g the sum of p − 1[y=k] over a cell, divided by n.

    g = δ + s·Z with known s = √(n_kb·p̄(1−p̄))/n, so E|g| = s·h(δ/s), h(x) = E|x + Z|. The interval
    holds t·Σ|δ|/K for every scale t at which the value is within z standard errors of the mean that
    gaps t·δ would give it. How δ spreads over the cells is unknown: the upper end takes δ = g, the
    lower one g shrunk by James and Stein's rule, where small gaps are all noise. The interval is
    extended to the value, which lies above it where noise is most of the value.
    """

    def interval(value: float, sample: Sample, level: float) -> tuple[float, float]:
        cells, k = _Cells(sample, part), sample.n_classes
        s, z = cells.noise * cells.lattice, NormalDist().inv_cdf((1 + level) / 2)
        x = np.divide(cells.gap, s, out=np.zeros_like(s), where=s > 0)
        sure = float(np.abs(cells.gap[s == 0]).sum())  # cells without noise
        slope = np.where(s > 0, _mean_slope(x), np.sign(cells.gap)) / k
        linear = cells.variance(slope, np.zeros_like(slope)) / sample.total
        linear /= max(float(np.sum((s * slope) ** 2)), 1e-300)

        def end(shape: np.ndarray, side: float) -> float:
            """t·Σ|δ|/K at the t where the value is z standard errors from its mean."""
            size = (float((s * np.abs(shape)).sum()) + sure) / k
            return size * _solve(lambda t: mean(t, shape, side), value)

        def mean(t: float, shape: np.ndarray, side: float) -> float:
            u = t * shape
            h = _mean_slope(u)
            absolute = u * h + math.sqrt(2 / math.pi) * np.exp(-0.5 * u**2)  # E|u + Z|
            folded = np.maximum(u**2 + 1 - absolute**2 - h**2, 0) * _shared(k)
            error = math.sqrt(float(np.sum(s**2 * (linear * h**2 + folded)))) / k
            return float((s * absolute).sum() + t * sure) / k + side * z * error

        shrunk = x * np.maximum(1 - 1 / np.maximum(x**2, 1e-300), 0)
        low, high = end(shrunk if shrunk.any() else x, 1), end(x, -1)
        return max(min(low, value), 0.0), min(max(high, value), 1.0)

    return interval


def _shared(k: int) -> float:
    """Σ ρ² over the classes that share a sample, whose residuals have ρ = −1/(K−1) on average."""
    return k / (k - 1) if k > 1 else 1.0


def calibration_interval(value: float, sample: Sample, level: float) -> tuple[float, float]:
    """The interval of Σ_k Σ_b (n_kb/n)·gap²: E gap² = δ² + p̄(1−p̄)/n_kb, so its bias is known.

    Debiased value ± z·standard error (delta method for δ, χ² for the noise), extended to the value.
    """
    scale = _scale(sample)
    estimate, reach, _ = _squared(sample, level)
    low, high = scale * (estimate - reach), scale * (estimate + reach)
    return max(min(low, value), 0.0), min(max(high, value), 2.0)


def refinement_interval(value: float, sample: Sample, level: float) -> tuple[float, float]:
    """The interval of the Brier score less its calibration part, which takes too much off it."""
    scale = _scale(sample)
    _, reach, bias = _squared(sample, level, losses=sample.values["brier"] / scale)
    middle = value + scale * bias
    low, high = middle - scale * reach, middle + scale * reach
    return max(min(low, value), 0.0), min(max(high, value), 2.0)


def _squared(
    sample: Sample, level: float, losses: np.ndarray | None = None
) -> tuple[float, float, float]:
    """Debiased Σ (n_kb/n)·gap², the half-width of its interval (of losses less it), its bias."""
    cells, n = _Cells(sample, "classes"), sample.total
    share = cells.counts / n
    gap = _bins.ratio_or_zero(cells.gap, share)
    noise = _bins.ratio_or_zero(cells.noise**2, share)  # (n_kb/n)·p̄(1−p̄)/n_kb
    plug_in = float(_bins.ratio_or_zero(cells.gap**2, share).sum())
    # Var g² = 4δ²s² + 2s⁴; the variance over samples has 4g²s², which is 4δ²s² + 4s⁴ on average.
    folded = 2 * float((noise**2).sum()) * _shared(sample.n_classes)
    linear = cells.variance(2 * gap, -(gap**2), losses) / n
    variance = max(linear - folded, folded)
    reach = NormalDist().inv_cdf((1 + level) / 2) * math.sqrt(variance)
    bias = float(noise.sum())
    return plug_in - bias, reach, bias


class _Cells:
    """The cells (class, bin) of a sample: their gaps, the noise of those, and sums over samples."""

    def __init__(self, sample: Sample, part: str) -> None:
        b: Bins = sample.classes if part == "classes" else sample.even.bins
        n, p = sample.total, _bins.ratio_or_zero(b.confidence_sums, b.counts)
        self._sample, self.counts = sample, b.counts
        self.gap = (b.confidence_sums - b.correct_sums) / n
        self.noise = np.sqrt(b.counts * np.maximum(p * (1 - p), 0)) / n
        self.lattice = _lattice(b.counts * np.minimum(p, 1 - p))
        kind = sample.probs.dtype
        inner = np.tile(b.edges[1:-1], (len(p), 1)) if part == "classes" else sample.even.edges
        self._inner = inner.astype(kind)

    def variance(
        self, slope: np.ndarray, level: np.ndarray, losses: np.ndarray | None = None
    ) -> float:
        """Variance over samples of Σ_k slope·(p_k − 1[y=k]) + level of the cells they lie in.

        Given losses (N,), of their difference from it.
        """
        s = self._sample
        p, y, out = s.probs, s.labels, np.empty(s.n)
        quick = kernels.fast(p.size)

        def block(rows: slice) -> None:
            if quick:
                kernels.loops().cell_scores(p[rows], y[rows], self._inner, slope, level, out[rows])
            else:
                out[rows] = kernels.cell_scores(p[rows], y[rows], self._inner, slope, level)

        map_blocks(block, s.n, max((1 << 16) // p.shape[1], 64))
        out = out if losses is None else losses - out
        return float(np.cov(out, aweights=s.weights, ddof=0)) if s.n > 1 else 0.0


def _lattice(expected: np.ndarray) -> np.ndarray:
    """E|X − λ| of a Poisson count over that of a normal one: whole counts matter in small cells."""
    some = np.clip(expected, 1e-12, 50.0)
    whole = np.floor(some)
    log_mean = math.log(2) - some + (whole + 1) * np.log(some) - _log_factorial(whole)
    ratio = np.exp(log_mean.astype(np.float64)) / np.sqrt(2 / math.pi * some)
    return np.where(expected < 50, ratio, 1.0)


def _mean_slope(x: np.ndarray) -> np.ndarray:
    """h'(x) = 2Φ(x) − 1."""
    return _erf(x / math.sqrt(2)).astype(np.float64)


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


def _scale(sample: Any) -> float:
    return 0.5 if sample.kind == "binary" else 1.0
