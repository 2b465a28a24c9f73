"""The focal calibration map Ψ^γ and the gradient factor g, from one log-space identity.

With r(q) = −q·ln q/(1−q) and g(q,γ) = (1−q)^γ·(1 + γ·r(q)), the map is
Ψ^γ(q)_i ∝ q_i/g(q_i,γ). It undoes focal-loss training: where the loss is minimised at q for true
class probabilities p, Ψ^γ(q) = p.
"""

from __future__ import annotations

from typing import Any

from focalcal._arrays import Array, namespace, take_along_axis
from focalcal._checks import check_gamma
from focalcal.maps._numerics import (
    as_classes,
    by_rows,
    in_double,
    log_deficit,
    not_above,
    safe_log,
    through_logs,
)

FAR = -1e12
"""A finite replacement for log 0, below any log-probability that the maps reach."""


def focal_log_map(logits: Any, gamma: float) -> Array:
    """Logits to calibrated log-probabilities, log Ψ^γ(softmax(z)).

    log Ψ_i = log_softmax_i( log q_i − γ·log(1−q_i) − log1p(γ·r(q_i)) ),  q = softmax(z)

    logits: (..., K), K ≥ 2, with −inf for impossible classes; gamma: γ > −1, 0 is log_softmax.

    Returns log-probabilities (..., K) with finite gradients. The top class keeps its relative
    accuracy however close to 0 its log-probability is.

    >>> import numpy as np
    >>> np.exp(focal_log_map(np.log([[0.7744, 0.2256]]), gamma=1.0)).round(3)
    array([[0.9, 0.1]])

    Charoenphakdee et al., CVPR 2021, Eq. 10 (Ψ); Komisarenko and Kull, ECAI 2024, Prop. 4.
    """
    gamma = check_gamma(gamma)
    return by_rows(lambda rows: _log_map_rows(rows, gamma), as_classes(logits, "logits"))


def focal_map(p: Any, gamma: float) -> Array:
    """Probabilities to calibrated probabilities, Ψ^γ(p)_i = h(p_i)/Σ_k h(p_k), h = p/g(p,γ).

    p: probabilities (..., K), K ≥ 2, whose rows are rescaled to sum to one; gamma: γ > −1.

    Returns probabilities (..., K); exact zeros stay zeros, and γ = 0 is the identity.

    >>> focal_map([0.7744, 0.2256], gamma=1.0).round(3)
    array([0.9, 0.1])

    Charoenphakdee et al., CVPR 2021, Eq. 10; Komisarenko and Kull, ECAI 2024, Prop. 4.
    """
    gamma = check_gamma(gamma)
    return by_rows(lambda rows: through_logs(_log_map_rows, rows, gamma), as_classes(p, "p"))


def binary_focal_map(logit: Any, gamma: float) -> Array:
    """The map for two classes as logit to logit, elementwise (also for multi-label problems).

    logit Ψ(s) = (1+γ)s − [log1p(γ·a(s)) − log1p(γ·a(−s))],  a(s) = e^s·log1p(e^−s)

    logit: s = log q/(1−q) of the positive class, any shape; gamma: γ > −1.

    >>> round(float(binary_focal_map(1.0, gamma=2.0)), 4)
    2.6817

    Komisarenko and Kull, ECAI 2024, Prop. 3.
    """
    gamma = check_gamma(gamma)

    def mapped(s: Array) -> Array:
        xp = namespace(s)
        size = xp.where(s < 0, -s, s)  # unlike abs, it has the right derivative at 0
        odds = xp.exp(-size)  # odds against the likelier class
        unlikely_r = odds * (size + xp.log1p(odds))
        log_factors = _log_one_plus_gamma_r(odds, gamma) - xp.log1p(gamma * unlikely_r)
        out = (1 + gamma) * size - log_factors
        return xp.where(s < 0, -out, out)

    return in_double(mapped, logit)


def gradient_factor(p: Any, gamma: float) -> Array:
    """g(p,γ) = (1−p)^γ·(1 + γ·r(p)), r = −p·ln p/(1−p): focal gradient over cross-entropy gradient.

    p: probability of the true class, any shape; gamma: γ > −1.

    g is 1 at p = 0; at p = 1 it is 0, 1 or infinite as γ is positive, zero or negative.

    >>> gradient_factor([0.0, 0.5, 1.0], gamma=1.0).round(4)
    array([1.    , 0.8466, 0.    ])

    Mukhoti et al., 2020, Prop. 1.
    """
    gamma = check_gamma(gamma)
    return in_double(lambda p: power(1 - p, gamma) * (1 + gamma * loss_ratio(p)), p)


def loss_ratio(p: Array) -> Array:
    """r(p) = −p·ln p/(1−p) in float64: 0 at p = 0, 1 at p = 1, with finite gradients at both."""
    xp = namespace(p)
    likely = p > 0.5
    ones = xp.ones_like(p)
    omega = xp.where(likely, 1 - p, ones)
    # odds against p; 1 − p is exact above one half, so nothing is lost near 1
    near_one = 1 - log_deficit(omega / xp.where(likely, p, ones))
    low = xp.where(likely, 0.5 * ones, p)
    near_zero = -low * safe_log(low) / (1 - low)
    return xp.where(likely, near_one, near_zero)


def power(base: Array, exponent: float) -> Array:
    """base^exponent for base ≥ 0 whose gradient at base = 0 is 0 where it would be infinite."""
    xp = namespace(base)
    if exponent == 1:
        return base
    zero = base <= 0  # rounding may make 1 − p slightly negative
    safe = xp.where(zero, 1.0, base)
    return xp.where(zero, 0.0**exponent if exponent >= 0 else xp.inf, safe**exponent)


def _log_map_rows(z: Array, gamma: float) -> Array:
    """log Ψ of float64 rows, computed relative to the two largest classes of each row.

    Differences of log(1−q) between classes are log1p of positive numbers, without cancellation;
    relative to the runner-up they never saturate, and the top class needs one number per row.
    """
    xp = namespace(z)
    top = xp.argmax(z, axis=-1, keepdims=True)
    is_top = xp.arange(z.shape[-1], device=z.device) == top
    z_top = take_along_axis(z, top)
    z_second = xp.max(xp.where(is_top, -xp.inf, z), axis=-1, keepdims=True)
    z_second = xp.maximum(z_second, z_top + FAR)  # finite for one class
    gap = z_second - z_top
    odds_second = xp.exp(gap)
    x = xp.where(is_top, FAR, z - z_second)
    e = xp.exp(x)
    total = xp.sum(e, axis=-1, keepdims=True)
    rest = xp.maximum(total, xp.ones_like(total)) - 1  # without the runner-up itself
    odds = odds_second * (1 + rest)
    beside_second = 1 + odds_second * rest

    q = e * (odds_second / (1 + odds))
    log_q = xp.maximum(x, FAR * xp.ones_like(gap)) + (gap - xp.log1p(odds))
    log_factor = xp.log(1 - gamma * q * log_q / (1 - q))
    log_rest = xp.log1p((1 - e) * (odds_second / beside_second))  # log (1−q_k)/(1−q_2)
    spread = xp.log1p(-rest * xp.expm1(gap) / beside_second)  # log (1−q_1)/(1−q_2) − gap
    of_row = (1 + gamma) * gap + gamma * spread + _log_one_plus_gamma_r(odds, gamma)
    below_top = x - gamma * log_rest - log_factor + of_row
    log_norm = xp.log1p(xp.sum(xp.exp(below_top), axis=-1, keepdims=True))
    return xp.where(is_top, -log_norm, not_above(below_top - log_norm, -log_norm, z == z_top))


def _log_one_plus_gamma_r(odds: Array, gamma: float) -> Array:
    """log(1 + γ·r(q)) from the odds (1−q)/q, accurate near r = 1 even as γ → −1."""
    xp = namespace(odds)
    deficit = log_deficit(odds)
    if gamma >= 0:
        return xp.log1p(gamma * (1 - deficit))
    return xp.log((1 + gamma) - gamma * deficit)
