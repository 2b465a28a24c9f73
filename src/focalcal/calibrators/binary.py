"""Platt, beta and quadratic scaling: logistic regressions on one class's log-odds."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy.optimize import lsq_linear
from scipy.special import expit

from focalcal._arrays import Array, like, namespace
from focalcal.calibrators._columns import Column, ColumnCalibrator, per_column, softplus
from focalcal.calibrators._newton import fit_inverse_temperature
from focalcal.calibrators.base import solved

MAX_ITERATIONS = 200
SLOPE_PRECISION = 3.0
"""Precision of the prior on a slope relative to the common slope (standard deviation 58 %)."""
OFFSET_PRECISION = 0.3
"""Precision of the prior on an offset around 0 (standard deviation 1.8 in log-odds)."""
_MOST_CERTAIN = 10.0  # bound on the common slope times the root mean square of the log-odds
_SMALLEST = 1e-20


class _Logistic(ColumnCalibrator):
    """logit p = Σ_j θ_j·f_j(s) + θ_last, with the coefficients θ in the order of `state`."""

    nonnegative: ClassVar[tuple[bool, ...]]

    def _features(self, s: Array) -> list[Array]:
        """f_j at log-odds of any shape."""
        raise NotImplementedError

    def _prior(self, slope: float, column: Column) -> tuple[np.ndarray, np.ndarray]:
        """Start and shrinkage of `fit_logistic`, given the common slope of all columns."""
        raise NotImplementedError

    def _fit_columns(self, columns: list[Column]) -> dict[str, Any]:
        slope = common_slope(columns)

        def fit(column: Column) -> LogisticFit:
            features = [*self._features(column.log_odds), np.ones(len(column.hits))]
            return fit_logistic(
                np.stack(features, axis=1),
                self._targets(column),
                column.weights,
                self._prior(slope, column),
                self.nonnegative,
            )

        fits = per_column(fit, columns)
        for name, values in zip(self.state, np.stack([f.coefficients for f in fits], axis=1)):
            setattr(self, name, values)
        return outcome(fits, columns, self._notes(columns))

    def _notes(self, columns: list[Column]) -> list[str]:
        return separated_notes(columns)

    def _calibrate(self, log_odds: Array) -> Array:
        *slopes, offset = (like(getattr(self, name), log_odds) for name in self.state)
        return sum(map(operator.mul, slopes, self._features(log_odds)), offset)


class PlattScaling(_Logistic):
    """logit p = a·s + b on the log-odds s of each class, by maximum likelihood.

    Platt's smoothed targets, (N₊+1)/(N₊+2) and 1/(N₋+2) instead of 1 and 0, keep a and b finite
    when the classes are separable.

    mode, task: as in `Calibrator`.

    Fitted: `slope_`, `intercept_` (J,), one entry per class; a single one for two classes and in
    top-label mode.

    >>> s = np.array([-2.0, -1.0, -1.0, 1.0, 1.0, 3.0] * 10)
    >>> y = np.array([0, 0, 1, 0, 1, 1] * 10)
    >>> PlattScaling().fit(s, y).slope_.round(2).tolist()
    [0.66]

    Platt (1999), "Probabilistic outputs for support vector machines", section 2.2.
    """

    method: ClassVar[str] = "platt"
    summary: ClassVar[str] = "slope and offset on the log-odds of each class (Platt 1999)"
    state: ClassVar[dict[str, str | None]] = {"slope_": "J", "intercept_": "J"}
    nonnegative: ClassVar[tuple[bool, ...]] = (False, False)
    loss: ClassVar[str] = "smoothed nll"

    def _targets(self, column: Column) -> np.ndarray:
        ones = float(column.weights @ column.hits)
        zeros = float(column.weights.sum()) - ones
        return np.where(column.hits > 0, (ones + 1) / (ones + 2), 1 / (zeros + 2))

    def _prior(self, slope: float, column: Column) -> tuple[np.ndarray, np.ndarray]:
        return np.array([slope, 0.0]), np.zeros(2)

    def _features(self, s: Array) -> list[Array]:
        return [s]

    def _notes(self, columns: list[Column]) -> list[str]:
        backwards = int(np.sum(self.slope_ < 0))
        if not backwards:
            return []
        return [
            f"{backwards} of {len(columns)} slopes are negative: these log-odds rank worse than "
            "chance, check that logits and labels belong together"
        ]


class BetaCalibration(_Logistic):
    """logit p = a·ln q − b·ln(1 − q) + c with a, b ≥ 0, where q is the uncalibrated probability.

    a = b is Platt scaling; a ≠ b gives the two tails different slopes. The bounds keep the map
    increasing. A weak prior shrinks a and b to the common slope of all classes and c to 0; without
    it, fitting a class with few samples would be far worse than leaving it as it is. Summed over
    the classes, the NLL never rises.

    mode, task: as in `Calibrator`.

    Fitted: `a_`, `b_`, `c_` (J,).

    Kull, Silva Filho & Flach (2017), "Beta calibration", equation 2.
    """

    method: ClassVar[str] = "beta"
    summary: ClassVar[str] = "beta calibration of each class: a slope for either tail (Kull 2017)"
    state: ClassVar[dict[str, str | None]] = {"a_": "J", "b_": "J", "c_": "J"}
    nonnegative: ClassVar[tuple[bool, ...]] = (True, True, False)

    def _prior(self, slope: float, column: Column) -> tuple[np.ndarray, np.ndarray]:
        return slope_prior(slope, 2)

    def _notes(self, columns: list[Column]) -> list[str]:
        return separated_notes(columns) + useless_notes((self.a_ == 0) & (self.b_ == 0))

    def _features(self, s: Array) -> list[Array]:
        return [-softplus(-s), softplus(s)]


class QuadraticScaling(_Logistic):
    """logit p = a·s² + b·s + c on the log-odds s of each class, by maximum posterior likelihood.

    Exact where the scores of both classes are normal with different variances. A weak prior
    shrinks b to the common slope β of all classes, a to 0 in units of β over the root mean square
    of s, and c to 0. A parabola is not monotone: do not extrapolate far beyond the calibration
    scores.

    mode, task: as in `Calibrator`.

    Fitted: `a_`, `b_`, `c_` (J,).
    """

    method: ClassVar[str] = "quadratic"
    summary: ClassVar[str] = "a parabola on the log-odds of each class: three numbers"
    state: ClassVar[dict[str, str | None]] = {"a_": "J", "b_": "J", "c_": "J"}
    nonnegative: ClassVar[tuple[bool, ...]] = (False, False, False)

    def _prior(self, slope: float, column: Column) -> tuple[np.ndarray, np.ndarray]:
        (slope, offset), (by_slope, by_offset) = slope_prior(slope, 1)
        square = float(np.average(column.log_odds**2, weights=column.weights))
        return np.array([0.0, slope, offset]), np.array([by_slope * square, by_slope, by_offset])

    def _features(self, s: Array) -> list[Array]:
        xp = namespace(s)
        farthest = float(xp.finfo(s.dtype).max) ** 0.5 / 2  # its square is finite
        near = xp.where((s > -farthest) & (s < farthest), s, farthest)
        return [near * near, s]


def separated_notes(columns: list[Column]) -> list[str]:
    """A warning for columns that a threshold separates: shrinkage alone then sets the slope."""
    count = 0
    for column in columns:
        ones = column.log_odds[column.hits > 0]
        zeros = column.log_odds[column.hits == 0]
        count += bool(len(ones) and len(zeros) and ones.min() > zeros.max())
    if not count:
        return []
    return [
        f"the log-odds separate {count} of {len(columns)} problems without error; the likelihood "
        "then has no maximum and shrinkage sets the slope: use more data"
    ]


def useless_notes(flat: np.ndarray) -> list[str]:
    """A warning for columns (J,) whose slope ended at its bound of zero."""
    count = int(np.sum(flat))
    if not count:
        return []
    return [
        f"{count} of {len(flat)} slopes are zero: these log-odds rank no better than chance, "
        "check that logits and labels belong together"
    ]


def flat_notes(columns: list[Column]) -> list[str]:
    """A warning for log-odds that hardly vary: slope and offset are then not identifiable."""
    for c in columns:
        mean = np.average(c.log_odds, weights=c.weights)
        spread = np.sqrt(np.average((c.log_odds - mean) ** 2, weights=c.weights))
        if not 0 < spread < 0.01 * abs(mean):
            return []
    return [
        "the log-odds of every class are nearly constant, so their slope cannot be determined; if "
        "the logits are on a small scale, multiply them, or use temperature scaling, which works "
        "at any scale"
    ]


def outcome(fits: list[LogisticFit], columns: list[Column], notes: list[str]) -> dict[str, Any]:
    return solved(
        iterations=max(f.iterations for f in fits),
        converged=all(f.converged for f in fits),
        notes=[*notes, *flat_notes(columns)],
    )


class LogisticFit(NamedTuple):
    """Coefficients (P,), the number of Newton steps, and whether they converged."""

    coefficients: np.ndarray
    iterations: int
    converged: bool


def fit_logistic(
    features: np.ndarray,
    target: np.ndarray,
    weights: np.ndarray,
    prior: tuple[np.ndarray, np.ndarray | float],
    nonnegative: Sequence[bool],
) -> LogisticFit:
    """Minimise Σ w [softplus(η) − t η] + ½ Σ ρ (θ − start)², η = features @ θ.

    features: (N, P); target: (N,) in [0, 1]; prior: start (P,) and ρ (P,); nonnegative: (P,). A
    small additional shrinkage keeps the optimum finite when the classes are separated or a feature
    is constant; because it pulls towards `start`, the fit is never worse than `start`. A good start
    has the scale of the optimum, such as `common_slope`.

    Each step minimises the quadratic model under the bounds, so bounded coefficients reach zero
    exactly.
    """
    start, shrinkage = prior
    scale = np.sqrt(np.average(features**2, axis=0, weights=weights))
    # The coefficients of much smaller features would overflow in a prediction.
    scale = np.maximum(np.where(scale == 0, 1.0, scale), _SMALLEST)
    ridge = shrinkage + max(1e-6, 1e-13 * weights.sum()) * scale**2
    lower = np.where(nonnegative, 0.0, -np.inf)

    def objective(theta: np.ndarray) -> float:
        eta = features @ theta
        return float(weights @ (softplus(eta) - target * eta) + ridge @ (theta - start) ** 2 / 2)

    theta, value = start, objective(start)
    for iteration in range(1, MAX_ITERATIONS + 1):
        eta = features @ theta
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
    return min(best.beta, max(1.0, _MOST_CERTAIN / max(scale, _SMALLEST)))


def slope_prior(slope: float, slopes: int) -> tuple[np.ndarray, np.ndarray]:
    """Start and shrinkage of `fit_logistic` for a number of slopes and an offset.

    >>> slope_prior(2.0, 1)
    (array([2., 0.]), array([0.75, 0.3 ]))
    """
    relative = SLOPE_PRECISION / slope**2 if slope > 0 else 0.0
    start = np.array([slope] * slopes + [0.0])
    return start, np.array([relative] * slopes + [OFFSET_PRECISION])
