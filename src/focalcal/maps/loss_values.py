"""The focal loss of a probability, its derivatives, and the entropy bound on its risk."""

from __future__ import annotations

from typing import Any

from focalcal._arrays import Array, as_float, namespace
from focalcal._checks import check_gamma
from focalcal.errors import InputError
from focalcal.maps._numerics import log_deficit, widen
from focalcal.maps.focal import gradient_factor, loss_ratio, power


def focal_loss_value(p: Any, gamma: float) -> Array:
    """FL(p) = (1−p)^γ·(−ln p).

    Args:
        p: probability of the true class, any shape, values in [0, 1].
        gamma: focal parameter γ > −1.

    Returns:
        The loss, same shape, kind and float dtype: 0 at p = 1, infinite at p = 0.

    >>> focal_loss_value([0.5, 1.0], gamma=2.0).round(4)
    array([0.1733, 0.    ])

    Lin et al., 2017, Eq. 4.
    """
    gamma = check_gamma(gamma)
    given = as_float(p)
    xp = namespace(given)
    p = widen(given)
    positive = xp.where(p > 0, p, 1.0)
    # (1−p)^(1+γ)·(−ln p/(1−p)): no 0·∞ at p = 1 when γ < 0
    value = power(1 - p, 1 + gamma) * loss_ratio(positive) / positive
    return xp.astype(xp.where(p > 0, value, xp.inf), given.dtype)


def focal_loss_derivative(p: Any, gamma: float) -> Array:
    """dFL/dp = −g(p,γ)/p: it tends to 0 as p → 1 for every γ > 0.

    Args:
        p: probability of the true class, any shape, values in (0, 1].
        gamma: focal parameter γ > −1.

    Returns:
        The derivative, same shape, kind and float dtype; −∞ at p = 0.

    >>> focal_loss_derivative([0.5, 1.0], gamma=1.0).round(4)
    array([-1.6931, -0.    ])

    Mukhoti et al., 2020, Prop. 1.
    """
    given = as_float(p)
    xp = namespace(given)
    p = widen(given)
    positive = xp.where(p > 0, p, 1.0)
    value = -gradient_factor(positive, gamma) / positive
    return xp.astype(xp.where(p > 0, value, -xp.inf), given.dtype)


def focal_loss_second_derivative(p: Any, gamma: float) -> Array:
    """d²FL/dp² = (1−p)^(γ−1)·[1 − p + γp(2 + (γ−1)·r(p))]/p², positive for γ ≥ 0 (FL is convex).

    Args:
        p: probability of the true class, any shape, values in (0, 1].
        gamma: focal parameter γ > −1.

    Returns:
        The second derivative, same shape, kind and float dtype; ∞ at p = 0.

    >>> focal_loss_second_derivative([0.5, 1.0], gamma=1.0).round(4)
    array([6., 2.])

    Komisarenko and Kull, ECAI 2024, Prop. 1.
    """
    gamma = check_gamma(gamma)
    given = as_float(p)
    xp = namespace(given)
    p = widen(given)
    positive = xp.where(p > 0, p, 1.0)
    bracket = 1 - positive + gamma * positive * (2 + (gamma - 1) * loss_ratio(positive))
    if gamma == 0:  # (1−p)/(1−p), also at p = 1
        bracket, exponent = xp.ones_like(positive), 0.0
    else:
        exponent = gamma - 1
    value = power(1 - positive, exponent) * bracket / positive**2
    return xp.astype(xp.where(p > 0, value, xp.inf), given.dtype)


def focal_risk(p: Any, q: Any, gamma: float) -> Array:
    """Expected focal loss of predicting q when the class is drawn from p, Σ_k p_k·FL(q_k).

    Args:
        p, q: probabilities (..., K) that broadcast.
        gamma: focal parameter γ > −1.

    Returns:
        Risks (...).

    >>> float(focal_risk([0.9, 0.1], [0.7744, 0.2256], gamma=1.0).round(4))
    0.1672
    """
    p, q = as_float(p), as_float(q)
    xp = namespace(p, q)
    loss = focal_loss_value(q, gamma)
    return xp.sum(p * xp.where(p > 0, loss, 0.0), axis=-1)  # a class that never comes costs nothing


def entropy_lower_bound(p: Any, q: Any, gamma: float) -> Array:
    """KL(p‖q) + H(p) − γ·H(q), which the focal risk of predicting q under p never goes below.

    KL(p‖q) + H(p) is the cross-entropy, so focal loss is cross-entropy with a bonus on the entropy
    of the prediction.

    Args:
        p, q: probabilities (..., K) that broadcast.
        gamma: focal parameter γ ≥ 0.

    Returns:
        Bounds (...).

    >>> float(entropy_lower_bound([0.9, 0.1], [0.8, 0.2], gamma=0.5).round(4))
    0.1116

    Mukhoti et al., 2020, App. H; Kimura and Naganuma, Lemma 1.
    """
    if not gamma >= 0:
        raise InputError(
            f"expected gamma >= 0 for the entropy bound, got {gamma}; it does not hold below"
        )
    entropy = focal_risk(q, q, 0.0)
    return focal_risk(p, q, 0.0) - check_gamma(gamma) * entropy


def log_space_focal_loss(log_q: Array, log_rest: Array, gamma: float) -> Array:
    """FL from log q and log(1−q), exact at both ends, with finite gradients."""
    xp = namespace(log_q)
    likely = log_q > log_rest
    ones = xp.ones_like(log_q)
    odds = xp.exp(xp.where(likely, log_rest - log_q, -ones))
    # −ln q/(1−q) = (1 − t)/q with t = 1 − log1p(odds)/odds
    ratio = (1 - log_deficit(odds)) * xp.exp(-xp.where(likely, log_q, -ones))
    near_one = xp.exp((1 + gamma) * xp.where(likely, log_rest, -ones)) * ratio
    near_zero = xp.exp(gamma * xp.where(likely, -ones, log_rest)) * -log_q
    return xp.where(likely, near_one, near_zero)
