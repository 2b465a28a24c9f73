"""Platt, beta and quadratic scaling: logistic regressions on one class's log-odds."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from focalcal._arrays import Array, like
from focalcal.calibrators._columns import Column, ColumnCalibrator, each, softplus
from focalcal.calibrators._logistic import LogisticFit, common_slope, fit_logistic, slope_prior


class PlattScaling(ColumnCalibrator):
    """logit p = a·s + b on the log-odds s of each class, by maximum likelihood.

    Platt's smoothed targets, (N₊+1)/(N₊+2) and 1/(N₋+2) in place of 1 and 0, keep a and b finite
    on separated classes.

    Arguments: mode, "ovr" (each class against the rest, then normalised) or "top-label"; task.
    Fitted: `slope_`, `intercept_` (J,), one entry per class, or one in all for two classes and
    for top-label.

    >>> s = np.array([-2.0, -1.0, -1.0, 1.0, 1.0, 3.0] * 10)
    >>> y = np.array([0, 0, 1, 0, 1, 1] * 10)
    >>> PlattScaling().fit(s, y).slope_.round(2).tolist()
    [0.66]

    Platt (1999), "Probabilistic outputs for support vector machines", section 2.2.
    """

    method: ClassVar[str] = "platt"
    summary: ClassVar[str] = "slope and offset on the log-odds of each class (Platt 1999)"
    state: ClassVar[tuple[str, ...]] = ("slope_", "intercept_")

    def __init__(self, mode: str = "ovr", task: str = "auto") -> None:
        self.mode = mode
        self.task = task

    def _targets(self, column: Column) -> np.ndarray:
        ones = float(column.weights @ column.hits)
        zeros = float(column.weights.sum()) - ones
        return np.where(column.hits > 0, (ones + 1) / (ones + 2), 1 / (zeros + 2))

    def _fit_columns(self, columns: list[Column]) -> dict[str, Any]:
        slope = common_slope(columns)

        def fit(column: Column) -> LogisticFit:
            features = np.stack([column.log_odds, np.ones_like(column.log_odds)], axis=1)
            targets, start = self._targets(column), np.array([slope, 0.0])
            free = np.zeros(2, bool)
            return fit_logistic(features, targets, column.weights, start, nonnegative=free)

        fits = each(fit, columns)
        self.slope_, self.intercept_ = np.stack([f.coefficients for f in fits], axis=1)
        backwards = int(np.sum(self.slope_ < 0))
        notes = []
        if backwards:
            notes.append(
                f"{backwards} of {len(fits)} slopes are negative: these log-odds rank worse than "
                "chance, check that logits and labels belong together"
            )
        return {"objective": self._objective("smoothed nll"), **outcome(fits, notes)}

    def _calibrate(self, log_odds: Array) -> Array:
        return log_odds * like(self.slope_, log_odds) + like(self.intercept_, log_odds)

    def _state_shapes(self) -> dict[str, tuple[int, ...]]:
        return dict.fromkeys(self.state, (self._n_columns,))


class BetaCalibration(ColumnCalibrator):
    """logit p = a·ln q − b·ln(1 − q) + c with a, b ≥ 0, where q is the uncalibrated probability.

    a = b is Platt scaling; a ≠ b bends the two tails apart. The bounds keep the map increasing
    and are met exactly. A weak prior pulls a and b to the one slope that suits all classes best,
    and c to 0: without it a class with few samples would get a line of its own that is far worse
    than none. In sum over the columns the fit is never worse than the uncalibrated NLL.

    Arguments: mode, "ovr" (each class against the rest, then normalised) or "top-label"; task.
    Fitted: `a_`, `b_`, `c_` (J,).

    >>> s = np.array([-2.0, -1.0, -1.0, 1.0, 1.0, 3.0] * 10)
    >>> y = np.array([0, 0, 1, 0, 1, 1] * 10)
    >>> calibrator = BetaCalibration().fit(s, y)
    >>> bool(calibrator.diagnostics_.after <= calibrator.diagnostics_.before)
    True

    Kull, Silva Filho & Flach (2017), "Beta calibration", equation 2.
    """

    method: ClassVar[str] = "beta"
    summary: ClassVar[str] = "beta calibration of each class: own slopes for both tails (Kull 2017)"
    state: ClassVar[tuple[str, ...]] = ("a_", "b_", "c_")

    def __init__(self, mode: str = "ovr", task: str = "auto") -> None:
        self.mode = mode
        self.task = task

    def _fit_columns(self, columns: list[Column]) -> dict[str, Any]:
        start, shrinkage = slope_prior(common_slope(columns), 2)

        def fit(column: Column) -> LogisticFit:
            s = column.log_odds
            return fit_logistic(
                np.stack([-softplus(-s), softplus(s), np.ones_like(s)], axis=1),
                column.hits,
                column.weights,
                start,
                nonnegative=np.array([True, True, False]),
                shrinkage=shrinkage,
            )

        fits = each(fit, columns)
        self.a_, self.b_, self.c_ = np.stack([f.coefficients for f in fits], axis=1)
        return outcome(fits, separated_notes(columns))

    def _calibrate(self, log_odds: Array) -> Array:
        a, b, c = (like(value, log_odds) for value in (self.a_, self.b_, self.c_))
        return c - a * softplus(-log_odds) + b * softplus(log_odds)

    def _state_shapes(self) -> dict[str, tuple[int, ...]]:
        return dict.fromkeys(self.state, (self._n_columns,))


class QuadraticScaling(ColumnCalibrator):
    """logit p = a·s² + b·s + c on the log-odds s of each class, by maximum posterior likelihood.

    Exact where the scores of both classes are normal, with variances of their own. A weak prior
    pulls b to the one slope β that suits all classes best, a to 0 in units of β over the root
    mean square of s, and c to 0. Unlike Platt's line a parabola turns around somewhere: far
    beyond the calibration scores it is not to be trusted.

    Arguments: mode, "ovr" (each class against the rest, then normalised) or "top-label"; task.
    Fitted: `a_`, `b_`, `c_` (J,).

    >>> s = np.array([-2.0, -1.0, -1.0, 1.0, 1.0, 3.0] * 10)
    >>> y = np.array([0, 0, 1, 0, 1, 1] * 10)
    >>> calibrator = QuadraticScaling().fit(s, y)
    >>> bool(calibrator.diagnostics_.after <= calibrator.diagnostics_.before)
    True
    """

    method: ClassVar[str] = "quadratic"
    summary: ClassVar[str] = "a parabola on the log-odds of each class: three numbers"
    state: ClassVar[tuple[str, ...]] = ("a_", "b_", "c_")

    def __init__(self, mode: str = "ovr", task: str = "auto") -> None:
        self.mode = mode
        self.task = task

    def _fit_columns(self, columns: list[Column]) -> dict[str, Any]:
        (slope, offset), (slope_shrinkage, offset_shrinkage) = slope_prior(common_slope(columns), 1)
        start = np.array([0.0, slope, offset])

        def fit(column: Column) -> LogisticFit:
            s = column.log_odds
            square = float(np.average(s**2, weights=column.weights))
            return fit_logistic(
                np.stack([s**2, s, np.ones_like(s)], axis=1),
                column.hits,
                column.weights,
                start,
                nonnegative=np.zeros(3, bool),
                shrinkage=np.array([slope_shrinkage * square, slope_shrinkage, offset_shrinkage]),
            )

        fits = each(fit, columns)
        self.a_, self.b_, self.c_ = np.stack([f.coefficients for f in fits], axis=1)
        return outcome(fits, separated_notes(columns))

    def _calibrate(self, log_odds: Array) -> Array:
        a, b, c = (like(value, log_odds) for value in (self.a_, self.b_, self.c_))
        return log_odds * (a * log_odds + b) + c

    def _state_shapes(self) -> dict[str, tuple[int, ...]]:
        return dict.fromkeys(self.state, (self._n_columns,))


def separated_notes(columns: list[Column]) -> list[str]:
    """A sentence on columns where a threshold splits ones from zeros: the slope is then a guess."""
    count = 0
    for column in columns:
        ones = column.log_odds[column.hits > 0]
        zeros = column.log_odds[column.hits == 0]
        count += bool(len(ones) and len(zeros) and ones.min() > zeros.max())
    if not count:
        return []
    return [
        f"the log-odds separate {count} of {len(columns)} problems without error; likelihood then "
        "has no optimum and the slope is set by shrinkage: use more data"
    ]


def outcome(fits: list[LogisticFit], notes: list[str]) -> dict[str, Any]:
    stuck = sum(not f.converged for f in fits)
    if stuck:
        notes = [*notes, f"{stuck} of {len(fits)} regressions did not converge; check the logits"]
    return {
        "iterations": max(f.iterations for f in fits),
        "converged": not stuck,
        "warnings": tuple(notes),
    }
