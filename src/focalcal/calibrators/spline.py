"""Spline calibration: a smooth increasing curve from log-odds to log-odds."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from scipy.interpolate import BSpline, PPoly

from focalcal._checks import check_whole
from focalcal.calibrators._columns import (
    Column,
    ColumnCalibrator,
    cubic_pieces,
    pack,
    per_column,
    with_tails,
)
from focalcal.calibrators.binary import (
    LogisticFit,
    common_slope,
    fit_logistic,
    outcome,
    separated_notes,
    slope_prior,
    useless_notes,
)
from focalcal.errors import InputError

DEGREE = 3


class SplineCalibration(ColumnCalibrator):
    """logit p = f(s), f an increasing cubic spline of the log-odds s with linear tails.

    f(s) = Σ β_j B_j(a·s + b) with non-decreasing β, where a·s + b is fitted first, with a weak
    prior on a around the common slope of all classes. If β_j are the Greville points g_j, f is that
    line and the slopes θ_j = Δβ_j/Δg_j are 1; the penalty ½·shrinkage·Σ(θ_j − 1)² shrinks f to the
    line when samples are few. Summed over the classes, the NLL never rises. Knots are quantiles
    that give ones and zeros the same total weight, so rare classes get knots where they occur.

    n_knots: number of knots, at least 2; shrinkage: weight of the penalty, at least 0; mode, task:
    as in `Calibrator`.

    Fitted: `edges_` (J, L) and `pieces_` (J, L+1, 5): origin and cubic coefficients of each piece.

    >>> rng = np.random.default_rng(0)
    >>> s = rng.normal(size=500) * 3
    >>> y = (rng.random(500) < 1 / (1 + np.exp(-np.sinh(s / 3)))).astype(int)
    >>> calibrator = SplineCalibration().fit(s, y)
    >>> bool(calibrator.diagnostics_.after < calibrator.diagnostics_.before)
    True

    A monotone P-spline logistic regression, as in Lucena (2018), "Spline-based probability
    calibration"; not the KS spline of Gupta et al. (2021), which need not be increasing.
    """

    method: ClassVar[str] = "spline"
    summary: ClassVar[str] = "increasing cubic spline on the log-odds of each class"
    state: ClassVar[dict[str, str | None]] = {"edges_": "JL", "pieces_": "JP5"}

    def __init__(
        self, n_knots: int = 6, shrinkage: float = 10.0, mode: str = "ovr", task: str = "auto"
    ) -> None:
        super().__init__(mode, task)
        self.n_knots = n_knots
        self.shrinkage = shrinkage

    def _check_params(self) -> None:
        super()._check_params()
        check_whole(self.n_knots, "n_knots", 2)
        if not 0 <= self.shrinkage < np.inf:
            raise InputError(f"expected a finite shrinkage >= 0, got {self.shrinkage!r}")

    def _fit_columns(self, columns: list[Column]) -> dict[str, Any]:
        slope = common_slope(columns)
        edges, pieces, fits = zip(*per_column(lambda c: self._fit_column(c, slope), columns))
        self.edges_, self.pieces_ = pack(edges, pieces)
        flat = np.array([len(f.coefficients) == 2 and f.coefficients[0] == 0 for f in fits])
        return outcome(fits, columns, separated_notes(columns) + useless_notes(flat))

    def _fit_column(
        self, column: Column, common: float
    ) -> tuple[np.ndarray, np.ndarray, LogisticFit]:
        """Edges and pieces of one column's curve, as `piecewise` expects, and its fit."""
        s, y, w = column.log_odds, column.hits, column.weights
        straight = np.stack([s, np.ones_like(s)], axis=1)
        line = fit_logistic(straight, y, w, slope_prior(common, 1), (True, False))
        slope, intercept = line.coefficients
        knots = _apart(_knots(column, self.n_knots), slope, intercept)
        if slope == 0 or len(knots) < 2:
            return np.zeros(0), np.array([[0.0, intercept, slope, 0.0, 0.0]]), line
        x = slope * s + intercept
        beta, fit = _fit_spline(x, column, slope * knots + intercept, float(self.shrinkage))
        fit = fit._replace(converged=fit.converged and line.converged)
        # The same coefficients on the knots of s: B-splines are equivariant to affine maps.
        curve = PPoly.from_spline(BSpline(_padded(knots), beta, DEGREE))
        return *cubic_pieces(curve), fit


def _knots(column: Column, n: int) -> np.ndarray:
    """Distinct quantiles between 2 % and 98 %, with ones and zeros given the same total weight."""
    levels = np.linspace(0.02, 0.98, int(n))
    values = np.quantile(column.log_odds, levels, weights=column.balanced, method="inverted_cdf")
    return np.unique(values)


def _apart(knots: np.ndarray, slope: float, intercept: float) -> np.ndarray:
    """The knots whose images slope·knot + intercept differ by more than rounding."""
    moved = slope * knots + intercept
    least = 1e-9 * float(np.abs(moved).max())
    kept = [0]
    for i in range(1, len(moved)):
        if moved[i] - moved[kept[-1]] > least:
            kept.append(i)
    return knots[kept]


def _padded(knots: np.ndarray) -> np.ndarray:
    return np.concatenate([np.repeat(knots[0], DEGREE), knots, np.repeat(knots[-1], DEGREE)])


def _fit_spline(
    x: np.ndarray, column: Column, knots: np.ndarray, shrinkage: float
) -> tuple[np.ndarray, LogisticFit]:
    """Coefficients β of the increasing spline on x, the straight-line log-odds."""
    padded = _padded(knots)
    m = len(knots) + DEGREE - 1
    basis = with_tails(BSpline(padded, np.eye(m), DEGREE), knots, x)
    greville = np.array([padded[j + 1 : j + 1 + DEGREE].mean() for j in range(m)])
    steps = np.diff(greville)
    # β_j = θ_0 + Σ_{i≤j} θ_i Δg_i, so the features are sums of the basis from i upwards.
    upwards = np.cumsum(basis[:, ::-1], axis=1)[:, ::-1]
    features = np.concatenate([upwards[:, :1], upwards[:, 1:] * steps], axis=1)
    # At the start the curve is the straight line.
    start = np.concatenate([greville[:1], np.ones(m - 1)])
    stiff = np.arange(m) > 0
    fit = fit_logistic(features, column.hits, column.weights, (start, shrinkage * stiff), stiff)
    theta = fit.coefficients
    return np.cumsum(theta * np.concatenate([[1.0], steps])), fit
