"""How close Ψ^γ comes to temperature scaling."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import OptimizeResult, minimize_scalar

from focalcal._arrays import softmax
from focalcal._checks import check_gamma
from focalcal.errors import InputError
from focalcal.maps.focal import binary_focal_map, focal_log_map


@dataclass(frozen=True)
class TemperatureBounds:
    """Two temperatures whose softmaxes bound Ψ^γ for two classes: low ≤ T ≤ high."""

    gamma: float
    low: float
    high: float


@dataclass(frozen=True)
class ClosestTemperature:
    """The temperature closest to Ψ^γ.

    `temperature` minimises the largest difference in probability, `max_error`, over `n_points`
    points of the simplex; above four classes these are a sample, and `max_error` a lower bound.
    """

    gamma: float
    n_classes: int
    temperature: float
    max_error: float
    n_points: int


def quick_temperature(gamma: float) -> float:
    """The T that approximates Ψ^γ on two classes, 1/T = 1+γ−.38629γ/(1+.69315γ).

    1/T is the slope of the map at probability ½ (.38629 = ln 4 − 1, .69315 = ln 2); the difference
    to Ψ in probability is at most 2.2e-3 for γ in [0, 12].

    >>> round(quick_temperature(1.0), 4)
    0.5644
    """
    gamma = check_gamma(gamma)
    log2 = float(np.log(2))
    return 1 / (1 + gamma - (2 * log2 - 1) * gamma / (1 + log2 * gamma))


def temperature_bounds(gamma: float) -> TemperatureBounds:
    """Temperatures that bound Ψ^γ for two classes at every logit.

    σ(s(γ+1−ln(γ+1)/2)) ≤ Ψ ≤ σ(s(γ+1)) for s > 0, mirrored for s < 0; for γ < 0 the ends swap.

    >>> bounds = temperature_bounds(4.0)
    >>> round(bounds.low, 4), round(bounds.high, 4)
    (0.2, 0.2384)

    Komisarenko and Kull, ECAI 2024, Prop. 3 (printed with the inequality reversed).
    """
    gamma = check_gamma(gamma)
    ends = (1 / (1 + gamma), 1 / (1 + gamma - np.log1p(gamma) / 2))
    return TemperatureBounds(gamma, float(min(ends)), float(max(ends)))


def tightest_temperature_bounds(gamma: float, max_logit: float = 20.0) -> TemperatureBounds:
    """The smallest interval of temperatures around Ψ^γ for two classes and |logit| ≤ max_logit.

    The extremes of T(s) = s/logit Ψ(s) on a grid of 100,000 logits; T(0) is `quick_temperature`.

    >>> bounds = tightest_temperature_bounds(4.0)
    >>> round(bounds.low, 4), round(bounds.high, 4)
    (0.2033, 0.2178)

    Komisarenko and Kull, ECAI 2024, after Prop. 3.
    """
    gamma = check_gamma(gamma)
    if not 0 < max_logit < np.inf:
        raise InputError(f"expected a positive finite max_logit, got {max_logit}")
    s = max_logit * np.geomspace(1e-6, 1, 100_001)
    values = np.append(s / binary_focal_map(s, gamma), quick_temperature(gamma))
    return TemperatureBounds(gamma, float(values.min()), float(values.max()))


def temperature_error(gamma: float, temperature: float, n_classes: int = 2) -> float:
    """The largest difference, in probability, between Ψ^γ(q) and softmax(log q/T) over all q.

    For two to four classes, on the grid that `closest_temperature` starts from.

    >>> round(temperature_error(1.0, quick_temperature(1.0)), 4)
    0.0013
    """
    gamma = check_gamma(gamma)
    if n_classes not in (2, 3, 4):
        raise InputError(f"expected two to four classes, got {n_classes}")
    if not temperature > 0:
        raise InputError(f"expected a temperature > 0, got {temperature}")
    points = _grid(n_classes)
    return float(_errors(points, np.exp(focal_log_map(points, gamma)), 1 / temperature).max())


def closest_temperature(
    gamma: float, n_classes: int = 2, *, n_samples: int = 2000, seed: int = 0
) -> ClosestTemperature:
    """The T that minimises the largest difference between Ψ^γ(q) and softmax(log q/T) over all q.

    Up to four classes the simplex is covered by a grid whose worst points are refined until they
    no longer change the result; above, by a random sample and points with tied and absent classes.

    gamma: γ > −1; n_classes: K ≥ 2; n_samples and seed: of the sample above four classes.

    >>> best = closest_temperature(1.0)
    >>> round(best.temperature, 3), round(best.max_error, 4)
    (0.561, 0.0008)

    Komisarenko and Kull, ECAI 2024, §4.1.
    """
    gamma = check_gamma(gamma)
    if n_classes < 2:
        raise InputError(f"expected two or more classes, got {n_classes}")
    exact = n_classes <= 4
    points = _grid(n_classes) if exact else _sample(n_classes, n_samples, seed)
    mapped = np.exp(focal_log_map(points, gamma))

    def worst(inverse_t: float) -> float:
        return float(_errors(points, mapped, inverse_t).max())

    def best_between(low: float, high: float) -> OptimizeResult:
        options = {"xatol": 1e-9 * high}
        return minimize_scalar(worst, bounds=(low, high), method="bounded", options=options)

    scan = np.geomspace(1e-2, 2 * (1 + gamma) + 2, 60)  # the largest error may have two minima
    at = int(np.argmin([worst(inverse_t) for inverse_t in scan]))
    best = best_between(scan[max(at - 1, 0)], scan[min(at + 1, len(scan) - 1)])
    for _ in range(6 if exact else 0):
        # At the best T several points share the largest error: refine those of each class and sign.
        apart = mapped - softmax(points * best.x)
        ends = np.concatenate([apart.argmax(axis=0), apart.argmin(axis=0)])
        added = _climb(points[ends], best.x, gamma)
        points = np.concatenate([points, added])
        mapped = np.concatenate([mapped, np.exp(focal_log_map(added, gamma))])
        before, best = best, best_between(0.97 * best.x, 1.03 * best.x)
        if abs(best.fun - before.fun) < 1e-8:
            break
    return ClosestTemperature(gamma, n_classes, 1 / float(best.x), float(best.fun), len(points))


def _errors(points: np.ndarray, mapped: np.ndarray, inverse_t: float) -> np.ndarray:
    return np.abs(mapped - softmax(points * inverse_t)).max(axis=1)


def _climb(rows: np.ndarray, inverse_t: float, gamma: float) -> np.ndarray:
    """Points near the given ones with larger errors, by random search with a shrinking radius."""
    cloud = np.random.default_rng(0).normal(size=(1, 40, rows.shape[1]))
    cloud[:, 0] = 0  # the point itself stays a candidate
    for radius in 0.2 * 0.6 ** np.arange(16):
        tried = rows[:, None] + radius * cloud
        flat = tried.reshape(-1, rows.shape[1])
        error = _errors(flat, np.exp(focal_log_map(flat, gamma)), inverse_t)
        rows = tried[np.arange(len(rows)), error.reshape(len(rows), -1).argmax(axis=1)]
    return rows


def _grid(n_classes: int) -> np.ndarray:
    """Logits 0 ≥ −a ≥ −b ≥ −c covering the simplex up to order: both maps are symmetric."""
    size = {2: 1500, 3: 100, 4: 32}[n_classes]
    gaps = 0.05 * np.sinh(np.linspace(0, np.arcsinh(600), size))  # fine at ties, out to e^−30
    axes = np.meshgrid(*[gaps] * (n_classes - 1), indexing="ij")
    below = np.stack([axis.ravel() for axis in axes], axis=1)
    below = below[(np.diff(below, axis=1) >= 0).all(axis=1)]
    return np.concatenate([np.zeros((len(below), 1)), -below], axis=1)


def _sample(n_classes: int, n_samples: int, seed: int) -> np.ndarray:
    """Random logits, and the patterns that are worst for few classes: one class on top of ties."""
    rng = np.random.default_rng(seed)
    spread = rng.gamma(1.0, 3.0, size=(n_samples, 1))
    rows = [rng.normal(size=(n_samples, n_classes)) * spread]
    for beside in sorted({1, 2, 3, n_classes // 2, n_classes - 1}):
        tied = np.full((150, n_classes), -60.0)
        tied[:, 0] = 0
        tied[:, 1 : beside + 1] = -np.linspace(0, 8 + np.log(n_classes), 150)[:, None]
        rows.append(tied)
    return np.concatenate(rows)
