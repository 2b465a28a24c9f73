"""The focal loss of a probability, its derivatives, and the entropy bound on its risk."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from focalcal._arrays import Array, as_float, namespace
from focalcal._checks import check_gamma
from focalcal.errors import InputError
from focalcal.maps._numerics import in_double
from focalcal.maps.focal import gradient_factor, loss_ratio, power


def focal_loss_value(p: Any, gamma: float) -> Array:
    """FL(p) = (1−p)^γ·(−ln p): 0 at p = 1, infinite at p = 0.

    p: probability of the true class, any shape; gamma: γ > −1.

    >>> focal_loss_value([0.5, 1.0], gamma=2.0).round(4)
    array([0.1733, 0.    ])

    Lin et al., 2017, Eq. 4.
    """
    gamma = check_gamma(gamma)
    # (1−p)^(1+γ)·(−ln p/(1−p)): no 0·∞ at p = 1 when γ < 0
    return _of_positive(lambda p: power(1 - p, 1 + gamma) * loss_ratio(p) / p, p, math.inf)


def focal_loss_derivative(p: Any, gamma: float) -> Array:
    """dFL/dp = −g(p,γ)/p: it tends to 0 as p → 1 for every γ > 0, and to −∞ as p → 0.

    p: probability of the true class, any shape; gamma: γ > −1.

    >>> focal_loss_derivative([0.5, 1.0], gamma=1.0).round(4)
    array([-1.6931, -0.    ])

    Mukhoti et al., 2020, Prop. 1.
    """
    return _of_positive(lambda p: -gradient_factor(p, gamma) / p, p, -math.inf)


def focal_loss_second_derivative(p: Any, gamma: float) -> Array:
    """d²FL/dp² = (1−p)^(γ−1)·[1 − p + γp(2 + (γ−1)·r(p))]/p², positive for γ ≥ 0 (FL is convex).

    p: probability of the true class, any shape; gamma: γ > −1.

    >>> focal_loss_second_derivative([0.5, 1.0], gamma=1.0).round(4)
    array([6., 2.])

    Komisarenko and Kull, ECAI 2024, Prop. 1.
    """
    gamma = check_gamma(gamma)
    if gamma == 0:  # (1−p)/(1−p) cancels, also at p = 1
        return _of_positive(lambda p: 1 / p**2, p, math.inf)

    def second(p: Array) -> Array:
        bracket = 1 - p + gamma * p * (2 + (gamma - 1) * loss_ratio(p))
        return power(1 - p, gamma - 1) * bracket / p**2

    return _of_positive(second, p, math.inf)


def _of_positive(function: Callable[[Array], Array], p: Any, at_zero: float) -> Array:
    """`function` at p > 0, and its limit `at_zero` at 0, which has no gradient."""

    def extended(p: Array) -> Array:
        xp = namespace(p)
        return xp.where(p > 0, function(xp.where(p > 0, p, 1.0)), at_zero)

    return in_double(extended, p)


def focal_risk(p: Any, q: Any, gamma: float) -> Array:
    """Expected focal loss of predicting q when the class is drawn from p, Σ_k p_k·FL(q_k).

    p and q: probabilities (..., K) that broadcast; gamma: γ > −1.

    >>> float(focal_risk([0.9, 0.1], [0.7744, 0.2256], gamma=1.0).round(4))
    0.1672
    """
    p, q = as_float(p), as_float(q)
    xp = namespace(p, q)
    loss = focal_loss_value(q, gamma)
    return xp.sum(p * xp.where(p > 0, loss, 0.0), axis=-1)  # no 0·∞ where p = 0


def entropy_lower_bound(p: Any, q: Any, gamma: float) -> Array:
    """KL(p‖q) + H(p) − γ·H(q), a lower bound on the focal risk of predicting q under p.

    KL(p‖q) + H(p) is the cross-entropy, so focal loss is cross-entropy that rewards entropy of the
    prediction.

    p and q: probabilities (..., K) that broadcast; gamma: γ ≥ 0.

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
