"""A floor under the probabilities of classifiers that return zeros, such as forests.

A class without votes is not impossible. The floor ε is added to the softmax of the logits,
x = log(softmax(z) + ε), and is fitted together with the subsequent temperature.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from focalcal._arrays import Array, as_array, log_softmax, namespace, to_numpy
from focalcal.calibrators._folds import fold_shares
from focalcal.calibrators._newton import Optimum, fit_inverse_temperature

SHARES = (1e-9, 1e-7, 1e-5, 1e-4, 1e-3, 1e-2, 3e-2, 1e-1, 0.3, 1.0, 3.0)
"""K·ε: the floors that are tried, as shares of a uniform distribution."""
PRIOR = (-2.0, 2.0)
"""Mean and standard deviation of the prior of log₁₀(K·ε); no floor counts as −7."""
SHIFTS = 6
"""Rounds of shift and temperature, and steps of a shift."""
ENOUGH = 2**17
"""With more logits than this, a part of the samples suffices to fit one number."""
IMPOSSIBLE = 1e4
"""Without a floor, −∞ becomes the row's largest logit minus this, whose softmax is 0 too."""


def has_zeros(logits: Any) -> bool:
    """Whether rows (N, K) of logits contain −∞."""
    logits = as_array(logits)
    if logits.ndim != 2 or logits.shape[1] < 2 or 0 in logits.shape:
        return False
    xp = namespace(logits)
    if not xp.isdtype(logits.dtype, "real floating"):
        return False
    with np.errstate(over="ignore", invalid="ignore"):  # half precision ends at 65504
        if bool(xp.isfinite(xp.sum(logits))):
            return False
    return bool(xp.any(logits == -xp.inf))


def floored(logits: Array, floor: float) -> Array:
    """log(softmax(z) + ε); finite for logits of −∞ where ε > 0."""
    xp = namespace(logits)
    return xp.log(xp.exp(log_softmax(logits)) + floor)


def finite(logits: Array) -> Array:
    """Logits with −∞ replaced with finite numbers whose softmax is 0 as well."""
    xp = namespace(logits)
    least = xp.max(logits, axis=1, keepdims=True) - IMPOSSIBLE
    return xp.where(logits == -xp.inf, least, logits)


def temperature_loss(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> float:
    """Mean NLL at the best temperature."""
    return fit_inverse_temperature(logits, labels, weights).loss


def fit_shifted(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> Optimum:
    """The best temperature; if it is worse than the class frequencies, after a shift to match them.

    Naive Bayes can rank well and yet always favour a rare class: without a shift, T is infinite.
    """
    found = [fit_inverse_temperature(logits, labels, weights)]
    n, k = logits.shape
    counts = np.bincount(labels, weights, minlength=k) + 0.5  # a class may be missing
    frequencies = counts / counts.sum()
    if found[0].loss < -frequencies @ np.log(frequencies):
        return found[0]
    weights = np.ones(n) if weights is None else weights
    shift, beta = np.zeros(k), found[0].beta or 1.0
    for _ in range(SHIFTS):
        for _ in range(SHIFTS):
            p = np.exp(log_softmax(beta * (logits + shift)))
            shift += np.log(counts / (weights @ p + 0.5)) / beta
        found.append(fit_inverse_temperature(logits + shift, labels, weights))
        beta = found[-1].beta
        if found[-1].kind != "inner":
            break
    return min(found, key=lambda one: one.loss)


def fit_floor(
    logits: Array,
    labels: Array,
    weights: Array | None,
    loss: Callable[..., float] = temperature_loss,
) -> float:
    """The floor of lowest NLL, by default at the best temperature, under a weak prior.

    loss: a function of logits, labels and weights, for maps that cannot sharpen what a floor
    flattens. The prior counts as much as a few samples. It matters for small calibration sets in
    which no label happens to have a probability of zero.
    """
    z, y = to_numpy(logits), to_numpy(labels).astype(np.int64)
    w = np.ones(len(y)) if weights is None else to_numpy(weights).astype(np.float64)
    if z.size > 2 * ENOUGH:
        # Salted: an outer cross-validation may have left out one of the usual folds.
        parts = fold_shares(z, y, w, z.size // ENOUGH, salt=1) > 0
        few = parts[np.argmax(parts.any(axis=1))]
        z, y, w = z[few], y[few], w[few]
    n, k = float(w.sum()), z.shape[1]
    losses = {}
    if not np.isneginf(z).any():
        losses[0.0] = loss(z, y, w) + _prior_penalty(1e-7) / n
    p = np.exp(log_softmax(z))
    for share in SHARES:  # exhaustive, since naive Bayes can have two minima
        losses[share / k] = loss(np.log(p + share / k), y, w) + _prior_penalty(share) / n
    return min(losses, key=losses.__getitem__)


def _prior_penalty(share: float) -> float:
    mean, deviation = PRIOR
    return 0.5 * ((math.log10(share) - mean) / deviation) ** 2
