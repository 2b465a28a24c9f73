"""Scores: accuracy and the proper scoring rules."""

from __future__ import annotations

from typing import Any

from focalcal.metrics import _samples


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
