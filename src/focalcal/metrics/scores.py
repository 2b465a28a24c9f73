"""Scores: accuracy and the proper scoring rules."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from focalcal import bins as _bins
from focalcal.metrics import _samples


@dataclasses.dataclass(frozen=True)
class BrierDecomposition:
    """brier = calibration + refinement; refinement = uncertainty − resolution + within_bin.

    calibration: squared distance of probability from frequency, bin by bin (0 is calibrated);
    uncertainty: variance of the labels; resolution: how far the bins' frequencies spread;
    within_bin: what differences of probability inside a bin add (0 for constant bins).
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


def accuracy(y_true: Any, y_prob: Any, *, sample_weight: Any = None) -> float:
    """Share of samples whose most probable class is the label (for (N,): y_prob > ½).

    y_true: (N,) integer labels; y_prob: (N, K) or (N,) probabilities; sample_weight: (N,).

    >>> accuracy([0, 1, 1], [[0.9, 0.1], [0.4, 0.6], [0.7, 0.3]])
    0.6666666666666666
    """
    labels, probs = _samples.labels_and_probs(y_true, y_prob)
    right = _samples.predicted_right(labels, probs)
    return _samples.mean(right, _samples.sample_weights(sample_weight, len(right)))


def error(y_true: Any, y_prob: Any, *, sample_weight: Any = None) -> float:
    """1 − accuracy.

    >>> error([0, 1], [[0.9, 0.1], [0.8, 0.2]])
    0.5
    """
    return 1.0 - accuracy(y_true, y_prob, sample_weight=sample_weight)


def nll(y_true: Any, y_prob: Any, *, sample_weight: Any = None) -> float:
    """Mean negative log-likelihood −ln p_y in nats; infinite if a true class got probability 0.

    y_true: (N,) integer labels; y_prob: (N, K) or (N,) probabilities; sample_weight: (N,).

    >>> round(nll([0, 1], [[0.5, 0.5], [0.75, 0.25]]), 4)
    1.0397
    """
    labels, probs = _samples.labels_and_probs(y_true, y_prob)
    losses = _samples.negative_log(_samples.true_class_probability(labels, probs))
    weights = _samples.sample_weights(sample_weight, len(losses))
    if weights is not None:  # a sample of weight 0 takes no part, whatever its loss
        losses, weights = losses[weights > 0], weights[weights > 0]
    return _samples.mean(losses, weights)


def brier(y_true: Any, y_prob: Any, *, sample_weight: Any = None) -> float:
    """Mean of Σ_k (p_k − 1[y=k])², in [0, 2]; of (p − y)², in [0, 1], for (N,) probabilities.

    y_true: (N,) integer labels; y_prob: (N, K) or (N,) probabilities; sample_weight: (N,).

    >>> round(brier([0, 1], [[0.9, 0.1], [0.4, 0.6]]), 4)
    0.17
    >>> round(brier([0, 1], [0.1, 0.6]), 4)
    0.085
    """
    labels, probs = _samples.labels_and_probs(y_true, y_prob)
    losses = _samples.squared_error(labels, probs)
    return _samples.mean(losses, _samples.sample_weights(sample_weight, len(losses)))


def brier_decomposition(
    y_true: Any, y_prob: Any, *, bins: int = 15, sample_weight: Any = None
) -> BrierDecomposition:
    """Split the Brier score into calibration and refinement, class by class in equal-width bins.

    calibration = Σ_k Σ_b (n_kb/n)(p̄_kb − ȳ_kb)²; refinement is the rest, so they add up exactly.

    >>> d = brier_decomposition([0, 1], [[0.9, 0.1], [0.4, 0.6]])
    >>> round(d.calibration, 3), round(d.refinement, 3), round(d.brier, 3)
    (0.17, 0.0, 0.17)

    Murphy 1973; Stephenson et al. 2008 for the within-bin term.
    """
    labels, probs = _samples.columns(y_true, y_prob)
    weights = _samples.sample_weights(sample_weight, len(labels))
    b = _bins.bin_columns(labels, probs, _bins.equal_width_edges(bins), weights)
    score = brier(y_true, y_prob, sample_weight=sample_weight)
    return decompose_brier(score, b, n=len(labels))


def decompose_brier(score: float, b: _bins.Bins, n: int) -> BrierDecomposition:
    """The split of a Brier score by the bins (K, M) of its classes."""
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
        n=n,
    )


def correctness_split(y_true: Any, y_prob: Any, *, sample_weight: Any = None) -> CorrectnessSplit:
    """Entropy, NLL and p_y, each averaged over right and over wrong predictions.

    y_true: (N,) integer labels; y_prob: (N, K) or (N,) probabilities; sample_weight: (N,).

    >>> s = correctness_split([0, 1], [[0.5, 0.5], [0.75, 0.25]])
    >>> round(s.right.entropy, 4), round(s.wrong.nll, 4), s.wrong.true_class_probability
    (0.6931, 1.3863, 0.25)

    Mukhoti et al. 2020, Fig. 1 and 3.
    """
    labels, probs = _samples.labels_and_probs(y_true, y_prob)
    right = _samples.predicted_right(labels, probs)
    weights = _samples.sample_weights(sample_weight, len(right))
    p_true = _samples.true_class_probability(labels, probs)
    values = (_samples.entropy(labels, probs), _samples.negative_log(p_true), p_true)

    def means(group: np.ndarray) -> GroupMeans:
        if weights is not None:
            group = group & (weights > 0)
        if not group.any():
            return GroupMeans(0, 0.0, *[float("nan")] * 3)
        w = None if weights is None else weights[group]
        inside = (_samples.mean(v[group], w) for v in values)
        return GroupMeans(int(group.sum()), _samples.mean(group, weights), *inside)

    return CorrectnessSplit(right=means(right), wrong=means(~right))
