"""The γ of a target probability, and where Ψ raises or lowers confidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq

from focalcal._arrays import Array, as_float, like, to_numpy
from focalcal._checks import check_gamma
from focalcal.errors import InputError
from focalcal.maps._numerics import log_deficit
from focalcal.maps.focal import gradient_factor


def gamma_for_probability(p0: Any) -> Array:
    """γ*(p0): the γ whose gradients are larger than cross-entropy's below p0 and smaller above.

    γ* = a/b + W₋₁(−a^(1−a/b)·ln(a)/b)/ln a, a = 1−p0, b = p0·ln p0: the root of g(p0,γ) = 1 other
    than γ = 0. For p0 ≥ ½ every γ ≥ 0 satisfies g ≤ 1, and the result is 0.

    p0: probabilities in (0, 1), any shape. Accurate even just below ½, where W₋₁ loses all digits.

    >>> gamma_for_probability([0.2, 0.25, 0.5]).round(3)
    array([4.851, 3.07 , 0.   ])

    Mukhoti et al., 2020, Prop. 2.
    """
    given = as_float(p0)
    p = to_numpy(given).astype(np.float64)
    if not np.all((p > 0) & (p < 1)):
        raise InputError(f"expected p0 strictly between 0 and 1, got {p0}")
    half = p >= 0.5
    p = np.where(half, 0.25, p)
    twice = 1 - 2 * p
    ratio = p / (1 - p)
    r = -ratio * np.log(p)
    # ln(1−p) + r cancels near ½; written in 1 − 2p every term is small there
    margin = np.log1p(twice) - ratio * np.log(2 * p) - 2 * twice / (1 + twice) * np.log(2)
    keep = -np.log1p(-p) / r
    lost = np.where(p > 0.25, margin / r, 1 - keep)
    # Newton for x = γr with log1p(x) = keep·x, a concave function, from above its root.
    x = lost * (1 + keep) / keep**2  # log1p(x) ≤ x/√(1+x)
    for _ in range(10):
        excess = np.where(lost < 0.5, log_deficit(x) - lost, keep - np.log1p(x) / x)
        x = x - excess * x / (x / (1 + x) - lost)
    return like(np.where(half, 0.0, x / r), given)


def probability_for_gamma(gamma: float) -> float:
    """p0 with γ*(p0) = γ, for γ ≥ 0: the largest probability with g(p0,γ) = 1, from ½ at 0 down.

    >>> round(probability_for_gamma(5.0), 4)
    0.1968

    Mukhoti et al., 2020, Prop. 2, solved for p0.
    """
    gamma = check_gamma(gamma)
    if gamma < 0:
        raise InputError(f"expected gamma >= 0, got {gamma}; no probability gives a negative one")
    if gamma == 0:
        return 0.5

    def excess(log_p: float) -> float:
        return float(gamma_for_probability(np.exp(log_p))) - gamma

    return float(np.exp(brentq(excess, -700, np.log(0.5), xtol=1e-15)))


@dataclass(frozen=True)
class ConfidenceChangeRegion:
    """Where Ψ^γ raises or lowers the largest probability.

    A top probability of at least `never_lowered_from` is never lowered. If all other classes are
    equally likely, exactly those strictly inside `lowered` are lowered; None means that none is.
    """

    gamma: float
    n_classes: int
    never_lowered_from: float
    lowered: tuple[float, float] | None


def confidence_change_region(gamma: float, n_classes: int) -> ConfidenceChangeRegion:
    """Where Ψ^γ raises or lowers the top probability q.

    Ψ does not lower it iff Σ_k q_k/g(q_k) ≤ 1/g(q). Hence it never does if g(q,γ) ≤ 1, that is
    q ≥ p0 with γ*(p0) = γ; and with the rest equal, u = (1−q)/(K−1) each, iff g(u) ≥ g(q).

    gamma: γ ≥ 0; n_classes: K ≥ 2; for two and three classes no probability is lowered.

    >>> region = confidence_change_region(3.0, 1000)
    >>> [round(end, 4) for end in region.lowered], round(region.never_lowered_from, 4)
    ([0.001, 0.2472], 0.2526)

    Corrects Komisarenko and Kull, ECAI 2024, Prop. 5, which holds for few classes only.
    """
    never = probability_for_gamma(gamma)
    if n_classes < 2:
        raise InputError(f"expected two or more classes, got {n_classes}")

    def change(q: float) -> float:
        both = gradient_factor(np.array([q, (1 - q) / (n_classes - 1)]), gamma)
        return float(both[1] - both[0])

    lowered = None
    start = 1 / n_classes * (1 + 1e-6)
    # g rises from q = 0 to one maximum: top classes below it are lowered from 1/K on
    if gamma > 0 and start < never and change(start) < 0:
        lowered = (1 / n_classes, float(brentq(change, start, never, xtol=1e-14)))
    return ConfidenceChangeRegion(float(gamma), int(n_classes), never, lowered)
