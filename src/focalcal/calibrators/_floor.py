"""A floor under the probabilities of classifiers that return zeros, such as forests.

A class without votes is not impossible. The floor ε is added to the softmax of the logits,
x = log(softmax(z) + ε), and is fitted together with the subsequent temperature.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from focalcal._arrays import Array, as_array, log_softmax, namespace, to_numpy
from focalcal.calibrators._focal_affine import FocalAffine, groups, minimise, prior, scale_of
from focalcal.calibrators._folds import fold_shares
from focalcal.calibrators._newton import Optimum, fit_inverse_temperature

SHARES = (1e-9, 1e-7, 1e-5, 1e-4, 1e-3, 1e-2, 3e-2, 1e-1, 0.3, 1.0, 3.0)
"""K·ε: the floors that are tried, as shares of a uniform distribution."""
PRIOR = (-2.0, 2.0)
"""Mean and standard deviation of the prior of log₁₀(K·ε); no floor counts as −7."""
SHIFTED = 0.5
"""Of the class frequencies' NLL: a temperature that leaves less needs no shift."""
RIDGE = 0.01
"""Precision of ln(1/T) and of what is added to the logits: classes may be missing."""
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


def fit_shifted(
    logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None
) -> tuple[Optimum, np.ndarray]:
    """The best temperature, and what to add to the logits (K,) after it where that pays.

    Naive Bayes can rank well and yet always favour a rare class: T alone is then infinite. Numbers
    are added where T alone leaves half of the class frequencies' NLL or more, and each of the K − 1
    gains over ½ ln N (BIC), which the loss includes. Elsewhere they are zeros.
    """
    plain = fit_inverse_temperature(logits, labels, weights)
    n, k = logits.shape
    weights = np.ones(n) if weights is None else weights
    counts = np.bincount(labels, weights, minlength=k) + 0.5  # a class may be missing
    frequencies, total = counts / counts.sum(), float(weights.sum())
    clear = plain.loss < -SHIFTED * float(frequencies @ np.log(frequencies))
    if plain.kind == "flat" or clear:
        return plain, np.zeros(k)
    x = logits.astype(np.float64)  # squares of float32 may overflow
    x -= x.mean(axis=1, keepdims=True)
    mean = np.average(x, axis=0, weights=weights)
    size, spread = (
        math.sqrt(np.average((a**2).mean(axis=1), weights=weights)) for a in (x, x - mean)
    )
    if spread <= 1e-9 * size:
        return plain, np.zeros(k)
    model, biases = FocalAffine((x - mean) / spread, None, labels, weights), groups(k)[1]
    free, ridge = prior(k, RIDGE, None, None, RIDGE, None)
    start = np.zeros(len(free))
    start[biases] = np.log(frequencies)
    root = np.sqrt(model.curvature(start) + ridge)[free]
    options = {"maxiter": 100, "ftol": 1e-9, "gtol": 1e-6}
    with threadpool_limits(1, "blas"):  # the blocks already run on all cores
        found = minimise(model.nll, start, free, (start, ridge), root, **options)
    loss = model.nll(found.x)[0] / total + (k - 1) * math.log1p(total) / (2 * total)
    if loss >= plain.loss:
        return plain, np.zeros(k)
    beta = scale_of(found.x[0]) / spread
    best = dataclasses.replace(plain, beta=beta, loss=loss, kind="inner")
    return best, found.x[biases] - beta * mean


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
        shares = fold_shares(z, y, w, z.size // ENOUGH, salt=1)
        share = shares[np.argmax((shares > 0).any(axis=1))]
        few = share > 0
        z, y, w = z[few], y[few], (w * share)[few]
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
