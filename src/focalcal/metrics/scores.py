"""Scores: accuracy and the proper scoring rules."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from focalcal import bins as _bins
from focalcal.metrics.declare import metric
from focalcal.metrics.intervals import (
    calibration_interval,
    loss_interval,
    mean_interval,
    proportion_interval,
    refinement_interval,
)
from focalcal.metrics.sample import Sample, of_samples
from focalcal.stats import CalibrationStats

_SPLIT = {"right": "rightly", "wrong": "wrongly"}


@dataclasses.dataclass(frozen=True)
class BrierDecomposition:
    """brier = calibration + refinement; refinement = uncertainty − resolution + within_bin.

    calibration: squared distance of probability from frequency, bin by bin (0 is calibrated);
    uncertainty: variance of the labels; resolution: variance of the bins' frequencies; within_bin:
    the contribution of different probabilities inside a bin (0 for constant bins).
    """

    brier: float
    calibration: float
    refinement: float
    uncertainty: float
    resolution: float
    within_bin: float
    n: int


@dataclasses.dataclass(frozen=True)
class GroupMeans:
    """Means over a group of samples (NaN if it is empty): entropy and NLL in nats, p_y."""

    n: int
    share: float
    entropy: float
    nll: float
    true_class_probability: float


@dataclasses.dataclass(frozen=True)
class CorrectnessSplit:
    """The same means over rightly and wrongly predicted samples."""

    right: GroupMeans
    wrong: GroupMeans


@metric("accuracy", better="higher", interval=proportion_interval)
def accuracy(s: CalibrationStats) -> Any:
    """Share of samples whose most probable class is the label (the first of equal ones).

    >>> accuracy([0, 1, 1], [[0.9, 0.1], [0.4, 0.6], [0.7, 0.3]])
    0.6666666666666666
    """
    return s.top.correct_sums.sum(axis=-1) / s.total


@metric("error rate", show="", interval=proportion_interval)
def error(s: CalibrationStats) -> Any:
    """1 − accuracy.

    >>> error([0, 1], [[0.9, 0.1], [0.8, 0.2]])
    0.5
    """
    return (s.total - s.top.correct_sums.sum(axis=-1)) / s.total


@metric(
    "log-loss (NLL)", unit="", range=(0, np.inf), needs=("sums",), interval=loss_interval("nll")
)
def nll(s: CalibrationStats) -> Any:
    """Mean negative log-likelihood −ln p_y in nats; infinite if a true class got probability 0.

    Logits stay in log space: no finite logit gives an infinite loss.

    >>> round(nll([0, 1], [[0.5, 0.5], [0.75, 0.25]]), 4)
    1.0397
    >>> nll([1], logits=np.array([[200, 0, -5]], np.float32))
    200.0
    """
    return s.mean("nll")


@metric("Brier score", unit="", range=(0, 2), needs=("sums",), interval=loss_interval("brier"))
def brier(s: CalibrationStats) -> Any:
    """Mean of Σ_k (p_k − 1[y=k])², in [0, 2]; of (p − y)², in [0, 1], for one column (N,).

    The latter is the convention of scikit-learn for a binary classifier, half of the former.

    >>> round(brier([0, 1], [[0.9, 0.1], [0.4, 0.6]]), 4)
    0.17
    >>> round(brier([0, 1], [0.1, 0.6]), 4)
    0.085
    """
    return s.mean("brier")


@metric(
    "Brier score, calibration part",
    unit="",
    range=(0, 2),
    needs=("classes",),
    interval=calibration_interval,
    show="",
)
def brier_calibration(s: CalibrationStats) -> Any:
    """Σ_k Σ_b (n_kb/n)(p̄_kb − ȳ_kb)²: the part of the Brier score that calibration can remove.

    >>> round(brier_calibration([0, 1], [[0.9, 0.1], [0.4, 0.6]]), 3)
    0.17
    """
    return _bins.squared_gap(s.brier_classes).sum(axis=-1)


@metric(
    "Brier score, refinement part",
    unit="",
    range=(0, 2),
    needs=("sums", "classes"),
    interval=refinement_interval,
    show="",
)
def brier_refinement(s: CalibrationStats) -> Any:
    """The rest of the Brier score: the uncertainty that remains given the bins' frequencies."""
    return s.mean("brier") - _bins.squared_gap(s.brier_classes).sum(axis=-1)


@of_samples("sums", "classes")
def brier_decomposition(sample: Sample) -> BrierDecomposition:
    """Split the Brier score into calibration and refinement, class by class in equal-width bins.

    calibration = Σ_k Σ_b (n_kb/n)(p̄_kb − ȳ_kb)²; refinement is the rest, so they add up exactly.

    >>> d = brier_decomposition([0, 1], [[0.9, 0.1], [0.4, 0.6]])
    >>> round(d.calibration, 3), round(d.refinement, 3), round(d.brier, 3)
    (0.17, 0.0, 0.17)

    Murphy 1973; Stephenson et al. 2008 for the within-bin term.
    """
    s = sample.stats()
    b, score = s.brier_classes, float(s.mean("brier"))
    total = b.total[:, None]
    frequency = _bins.ratio_or_zero(b.correct_sums, b.counts)
    base = b.correct_sums.sum(axis=-1, keepdims=True) / total
    calibration = float(np.sum(_bins.squared_gap(b)))
    resolution = float(np.sum(b.counts * (frequency - base) ** 2 / total))
    uncertainty = float(np.sum(base * (1 - base)))
    refinement = score - calibration
    return BrierDecomposition(
        brier=score,
        calibration=calibration,
        refinement=refinement,
        uncertainty=uncertainty,
        resolution=resolution,
        within_bin=refinement - (uncertainty - resolution),
        n=sample.n,
    )


@of_samples("sums")
def correctness_split(sample: Sample) -> CorrectnessSplit:
    """Entropy, NLL and p_y, each averaged over right and over wrong predictions.

    >>> s = correctness_split([0, 1], [[0.5, 0.5], [0.75, 0.25]])
    >>> round(s.right.entropy, 4), round(s.wrong.nll, 4), s.wrong.true_class_probability
    (0.6931, 1.3863, 0.25)

    Mukhoti et al. 2020, Fig. 1 and 3.
    """
    s, counts = sample.stats(), sample.sizes()
    share = s.sums["weight"] / s.total

    def means(at: int, group: str) -> GroupMeans:
        names = ("entropy", "nll", "true_class_probability")
        values = (float(s.mean(name, group)) for name in names)
        return GroupMeans(counts[group], float(share[at]), *values)

    return CorrectnessSplit(right=means(1, "right"), wrong=means(0, "wrong"))


def _declare_split(name: str, title: str, unit: str, most: float, group: str) -> None:
    """The mean of a sum over rightly or over wrongly predicted samples."""

    def mean(s: CalibrationStats) -> Any:
        return s.mean(name, group)

    title = f"{title} of {_SPLIT[group]} predicted samples"
    mean.__doc__ = f"Mean {title}."
    metric(
        title,
        name=f"{name}_{group}",
        unit=unit,
        range=(0, most),
        better="",
        needs=("sums",),
        interval=mean_interval(lambda s: s.values[name], group),
        within=group,
        show="",
    )(mean)


for _sum in (
    ("entropy", "entropy", "", np.inf),
    ("nll", "log-loss", "", np.inf),
    ("true_class_probability", "probability of the true class", "%", 1.0),
):
    for _group in _SPLIT:
        _declare_split(*_sum, _group)
