"""Resampling: bootstrap values of every metric, and the test of "calibrated".

A bootstrap sample is a row of counts, how often each sample was drawn. Samples are sorted and
binned once; every metric is then a few sums over rows of counts, for many rows at a time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

import numpy as np

from focalcal import bins as _bins
from focalcal._blocks import map_blocks
from focalcal._checks import check_whole
from focalcal.bins import Bins
from focalcal.errors import InputError
from focalcal.metrics import _samples
from focalcal.metrics._ordered import (
    Ordered,
    area_under_risk_coverage,
    auroc,
    bin_starts,
    group_starts,
    ks,
)
from focalcal.metrics.selective import at_least, check_threshold
from focalcal.metrics.smooth import smooth

_CHUNK = 1 << 17
"""Counts held at a time per thread: 1 MB stays in the cache."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """Samples sorted by confidence, with what the metrics average. All vectors are (N,)."""

    confidence: np.ndarray
    correct: np.ndarray
    weights: np.ndarray
    means: dict[str, np.ndarray]
    group_starts: np.ndarray
    order: np.ndarray
    bins: int

    @property
    def n(self) -> int:
        return len(self.confidence)


@dataclasses.dataclass(frozen=True)
class Replicates:
    """A sample under b rows of weights, (b, N) in the order of the sample."""

    sample: Sample
    weights: np.ndarray

    @cached_property
    def total(self) -> np.ndarray:
        return self.weights.sum(axis=1)

    @cached_property
    def ordered(self) -> Ordered:
        starts = self.sample.group_starts
        weights, hits = self.weights, self.weights * self.sample.correct
        if len(starts) < self.sample.n:
            weights = np.add.reduceat(weights, starts, axis=1)
            hits = np.add.reduceat(hits, starts, axis=1)
        return Ordered(self.sample.confidence[starts], weights, hits)

    @cached_property
    def fixed(self) -> Bins:
        return self.ordered.binned(_bins.equal_width_edges(self.sample.bins))

    @cached_property
    def equal_mass(self) -> Bins:
        return self.ordered.equal_mass(self.sample.bins)

    def mean(self, name: str, within: str | None = None) -> np.ndarray:
        """Weighted mean of a named vector, over the samples where the vector `within` is true."""
        values, total = self.sample.means[name], self.total
        if within is not None:
            group = self.sample.means[within]
            values = np.where(group, values, 0.0)
            total = self.weights @ group
        infinite = np.isinf(values)
        sums = self.weights @ np.where(infinite, 0.0, values)
        if infinite.any():
            sums = np.where(self.weights @ infinite > 0, np.inf, sums)
        return np.divide(sums, total, out=np.full(len(sums), np.nan), where=total > 0)


KERNELS: dict[str, Callable[[Replicates], np.ndarray]] = {
    "accuracy": lambda r: r.mean("right"),
    "error": lambda r: 1 - r.mean("right"),
    "nll": lambda r: r.mean("nll"),
    "brier": lambda r: r.mean("brier"),
    "ece": lambda r: _bins.mean_gap(r.fixed),
    "mce": lambda r: _bins.max_gap(r.fixed),
    "rms_calibration_error": lambda r: _bins.rms_gap(r.fixed),
    "adaptive_ece": lambda r: _bins.mean_gap(r.equal_mass),
    "debiased_ece": lambda r: _bins.debiased_gap(r.equal_mass),
    "smooth_ece": lambda r: smooth(r.ordered, steps=16 if len(r.weights) > 1 else 26),
    "ks_error": lambda r: ks(r.ordered),
    "confidence_gap": lambda r: r.mean("confidence") - r.mean("correct"),
    "high_confidence_share": lambda r: r.mean("high"),
    "high_confidence_accuracy": lambda r: r.mean("correct", within="high"),
    "auroc_of_confidence": lambda r: auroc(r.ordered),
    "aurc": lambda r: area_under_risk_coverage(r.ordered),
    "entropy_right": lambda r: r.mean("entropy", within="right"),
    "entropy_wrong": lambda r: r.mean("entropy", within="wrong"),
    "nll_right": lambda r: r.mean("nll", within="right"),
    "nll_wrong": lambda r: r.mean("nll", within="wrong"),
    "true_class_probability_right": lambda r: r.mean("true_class_probability", within="right"),
    "true_class_probability_wrong": lambda r: r.mean("true_class_probability", within="wrong"),
}
"""Each metric as a function of replicates; the class-wise ones are in `classwise`."""


def bootstrap(
    y_true: Any,
    y_prob: Any,
    names: Iterable[str] = ("ece",),
    *,
    resamples: int = 1000,
    bins: int = 15,
    threshold: float = 0.99,
    sample_weight: Any = None,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Values (resamples,) of the named metrics on samples of N drawn with replacement.

    Bins of equal mass are formed anew in every resample. The same seed gives the same values
    on any number of threads. Names: the keys of `KERNELS`.

    >>> values = bootstrap([1, 0, 1, 1], [0.9, 0.4, 0.8, 0.7], ["ece", "nll"], resamples=100)
    >>> values["ece"].shape
    (100,)

    Efron 1979.
    """
    names = tuple(names)
    unknown = sorted(set(names) - set(KERNELS))
    if unknown:
        raise InputError(f"expected names among {', '.join(KERNELS)}; got {', '.join(unknown)}")
    sample = read_sample(
        y_true, y_prob, names, bins=bins, threshold=threshold, sample_weight=sample_weight
    )
    return resample(sample, names, check_resamples(resamples), seed)


def read_sample(
    y_true: Any,
    y_prob: Any,
    names: Iterable[str],
    *,
    bins: int,
    threshold: float,
    sample_weight: Any = None,
) -> Sample:
    """Sort the samples and compute, once, what the named metrics need."""
    labels, probs = _samples.labels_and_probs(y_true, y_prob)
    confidence, correct = _samples.top_of(labels, probs)
    threshold = check_threshold(threshold)
    weights = _samples.sample_weights(sample_weight, len(confidence))
    order = np.argsort(confidence, kind="stable")
    means = {"confidence": confidence, "correct": correct, "high": at_least(confidence, threshold)}
    if any(name not in _TOP_LABEL_ONLY for name in names):
        right = _samples.predicted_right(labels, probs)
        p_true = _samples.true_class_probability(labels, probs)
        means |= {
            "right": right,
            "wrong": ~right,
            "nll": _samples.negative_log(p_true),
            "brier": _samples.squared_error(labels, probs),
            "entropy": _samples.entropy(labels, probs),
            "true_class_probability": p_true,
        }
    sorted_confidence = confidence[order]
    return Sample(
        confidence=sorted_confidence,
        correct=correct[order].astype(np.float64),
        weights=np.ones(len(order)) if weights is None else weights[order],
        means={name: values[order].astype(np.float64) for name, values in means.items()},
        group_starts=group_starts(sorted_confidence),
        order=order,
        bins=_bins.check_bins(bins),
    )


_TOP_LABEL_ONLY = {
    "ece",
    "mce",
    "rms_calibration_error",
    "adaptive_ece",
    "debiased_ece",
    "smooth_ece",
    "ks_error",
    "confidence_gap",
    "high_confidence_share",
    "high_confidence_accuracy",
    "auroc_of_confidence",
    "aurc",
}


def resample(
    sample: Sample,
    names: Iterable[str],
    resamples: int,
    seed: int,
    progress: Callable[[int], None] | None = None,
) -> dict[str, np.ndarray]:
    """Bootstrap values of the named metrics; `progress` hears the number of new resamples."""

    def chunk(rows: slice) -> dict[str, np.ndarray]:
        r = Replicates(sample, draw_counts(sample.n, rows, seed) * sample.weights)
        values = {name: KERNELS[name](r) for name in names}
        if progress is not None:
            progress(rows.stop - rows.start)
        return values

    parts = map_blocks(chunk, resamples, rows_per_chunk(sample.n))
    return {name: np.concatenate([part[name] for part in parts]) for name in names}


def point_values(sample: Sample, names: Iterable[str]) -> dict[str, float]:
    """The named metrics on the sample itself."""
    r = Replicates(sample, sample.weights[None, :])
    return {name: float(KERNELS[name](r)[0]) for name in names}


def draw_counts(n: int, rows: slice, seed: int) -> np.ndarray:
    """How often each of n samples is drawn in n draws with replacement, (rows, n) float64."""
    b = rows.stop - rows.start
    rng = np.random.Generator(np.random.SFC64([seed, rows.start]))
    small = np.uint16 if n <= 1 << 16 else np.uint32 if n <= 1 << 32 else np.uint64
    drawn = rng.integers(0, n, size=(b, n), dtype=small).astype(np.intp)
    drawn += np.arange(b)[:, None] * n
    return np.bincount(drawn.ravel(), minlength=b * n).reshape(b, n).astype(np.float64)


def consistency_values(sample: Sample, resamples: int, seed: int) -> np.ndarray:
    """ECE when every sample is correct with probability equal to its confidence, (resamples,).

    Confidences (and so bins) stay as they are; only correctness is drawn.

    Bröcker & Smith 2007; Vaicenavicius et al. 2019.
    """
    starts = bin_starts(sample.confidence, _bins.equal_width_edges(sample.bins))
    mass = np.add.reduceat(sample.weights * sample.confidence, starts)
    total = sample.weights.sum()

    def chunk(rows: slice) -> np.ndarray:
        rng = np.random.Generator(np.random.SFC64([seed, 1, rows.start]))
        uniform = rng.random((rows.stop - rows.start, sample.n), dtype=np.float32)
        hits = np.where(uniform < sample.confidence, sample.weights, 0.0)
        return np.abs(mass - np.add.reduceat(hits, starts, axis=1)).sum(axis=1) / total

    return np.concatenate(map_blocks(chunk, resamples, rows_per_chunk(sample.n)))


def rows_per_chunk(n: int) -> int:
    return max(_CHUNK // n, 1)


def check_resamples(resamples: int) -> int:
    """The number of resamples as an int ≥ 2."""
    return check_whole(resamples, "resamples", 2)
