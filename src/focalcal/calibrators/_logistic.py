"""Logistic regression with few coefficients, some of them bounded below by zero: exact Newton."""

from __future__ import annotations

import dataclasses

import numpy as np
from scipy.optimize import lsq_linear
from scipy.special import expit

from focalcal.calibrators._columns import Column, softplus
from focalcal.calibrators._newton import fit_inverse_temperature

MAX_ITERATIONS = 200
SLOPE_PRECISION = 3.0
"""Precision of the prior on a slope relative to the common slope (standard deviation 58 %)."""
OFFSET_PRECISION = 0.3
"""Precision of the prior on an offset around 0 (standard deviation 1.8 in log-odds)."""
_SURE = 10.0  # the common slope raises the root mean square of the log-odds to at most this
_SMALLEST = 1e-20


@dataclasses.dataclass(frozen=True)
class LogisticFit:
    """Coefficients (P,), the number of Newton steps, and whether they converged."""

    coefficients: np.ndarray
    iterations: int
    converged: bool


def fit_logistic(
    features: np.ndarray,
    target: np.ndarray,
    weights: np.ndarray,
    start: np.ndarray,
    *,
    nonnegative: np.ndarray,
    shrinkage: np.ndarray | float = 0.0,
    offset: float = 0.0,
) -> LogisticFit:
    """Minimise Σ w [softplus(η) − t η] + ½ Σ ρ (θ − start)², η = offset + features @ θ.

    features: (N, P); target: (N,) in [0, 1]; nonnegative: (P,) bool; shrinkage ρ: (P,). A trace
    of shrinkage on top keeps the optimum finite when the classes are separated or a feature is
    constant; because it pulls towards `start`, the fit is never worse than `start`. A good start
    has the scale of the optimum, as `common_slope` has.

    Each step minimises the quadratic model under the bounds, so bounded coefficients reach zero
    exactly.
    """
    scale = np.sqrt(np.average(features**2, axis=0, weights=weights))
    # Coefficients of features far below one would overflow in a prediction.
    scale = np.maximum(np.where(scale == 0, 1.0, scale), _SMALLEST)
    ridge = np.asarray(shrinkage) + 1e-6 * scale**2
    lower = np.where(nonnegative, 0.0, -np.inf)

    def objective(theta: np.ndarray) -> float:
        eta = offset + features @ theta
        return float(weights @ (softplus(eta) - target * eta) + ridge @ (theta - start) ** 2 / 2)

    theta, value = start, objective(start)
    for iteration in range(1, MAX_ITERATIONS + 1):
        eta = offset + features @ theta
        p = expit(eta)
        gradient = features.T @ (weights * (p - target)) + ridge * (theta - start)
        hessian = (features.T * (weights * p * expit(-eta))) @ features + np.diag(ridge)
        scaled = hessian / np.outer(scale, scale)
        step = -np.linalg.solve(scaled, gradient / scale) / scale
        if np.any(theta + step < lower):
            root = np.linalg.cholesky(scaled).T * scale
            goal = root @ (theta + step)
            bounded = lsq_linear(root, goal, bounds=(lower, np.inf), method="bvls", tol=1e-12)
            step = np.maximum(bounded.x, lower) - theta
        decrement = -float(gradient @ step)
        if decrement <= 1e-12 * (1 + abs(value)):
            return LogisticFit(theta, iteration, True)
        length = 1.0
        while (following := objective(theta + length * step)) > value - 1e-4 * length * decrement:
            length /= 2
            if length < 1e-10:  # below the rounding of the objective
                return LogisticFit(theta, iteration, decrement <= 1e-6 * (1 + abs(value)))
        theta, value = theta + length * step, following
    return LogisticFit(theta, MAX_ITERATIONS, False)


def common_slope(columns: list[Column]) -> float:
    """The slope β ≥ 0 of highest likelihood when logit p = β·s in all columns.

    The regressions of the columns are shrunk to it: it has the scale of the logits, and it is never
    worse than β = 1. It is bounded where the likelihood always rises with β.
    """
    s = np.concatenate([c.log_odds for c in columns])
    hits = np.concatenate([c.hits for c in columns]).astype(np.int64)
    weights = np.concatenate([c.weights for c in columns])
    scale = np.sqrt(np.average(s**2, weights=weights))
    best = fit_inverse_temperature(np.stack([np.zeros_like(s), s], axis=1), hits, weights)
    return min(best.beta, max(1.0, _SURE / max(scale, _SMALLEST)))


def slope_prior(slope: float, slopes: int) -> tuple[np.ndarray, np.ndarray]:
    """Start and shrinkage of `fit_logistic` for a number of slopes and an offset.

    >>> slope_prior(2.0, 1)
    (array([2., 0.]), array([0.75, 0.3 ]))
    """
    relative = SLOPE_PRECISION / slope**2 if slope > 0 else 0.0
    start = np.array([slope] * slopes + [0.0])
    return start, np.array([relative] * slopes + [OFFSET_PRECISION])
