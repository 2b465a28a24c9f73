"""Panels of GEO's figures (Kimura and Naganuma 2025): 1 is theory, 2 to 4 are training runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from focalcal.errors import InputError
from focalcal.maps import focal_loss_derivative, focal_loss_value
from focalcal_papers.errata import logit_curvature
from focalcal_papers.figures.panels import Curve, Curves, Panel


@dataclass(frozen=True)
class CurvaturePoint:
    """A trained network's curvature and calibration: x is γ or τ; low..high is the trace's 95 %."""

    x: float
    trace: float
    low: float
    high: float
    top: float
    ece: float


@dataclass(frozen=True)
class CubicFit:
    """ECE ≈ polynomial of ln Tr(H): coefficients, highest power first, and R² over n networks."""

    coefficients: np.ndarray
    r_squared: float
    n: int

    def __call__(self, trace: np.ndarray) -> np.ndarray:
        return np.polyval(self.coefficients, np.log(trace))


def cubic_fit(traces: Sequence[float], errors: Sequence[float]) -> CubicFit:
    """The cubic of ECE on ln Tr(H); of lower degree where there are fewer than five networks.

    >>> cubic_fit([1, 2, 4, 8, 16], [0.0, 1.0, 2.0, 3.0, 4.0]).r_squared
    1.0
    """
    x, y = np.asarray(traces, dtype=float), np.asarray(errors, dtype=float)
    if len(x) < 2 or len(x) != len(y) or not (x > 0).all():
        raise InputError(f"expected two or more positive traces with as many errors, got {len(x)}")
    degree = min(3, len(np.unique(x)) - 2) if len(np.unique(x)) > 2 else 1
    coefficients = np.polyfit(np.log(x), y, degree)
    left = ((y - np.polyval(coefficients, np.log(x))) ** 2).sum()
    total = ((y - y.mean()) ** 2).sum()
    return CubicFit(coefficients, round(float(1 - left / total), 12) if total else 1.0, len(x))


def figure1(gammas: Sequence[float] = (0, 0.5, 1, 2, 5)) -> list[Curves]:
    """Loss, slope and curvature in the logit against p; γ = 0 is cross-entropy (errata applied)."""
    p = np.linspace(0.01, 0.99, 197)

    def name(g: float) -> str:
        return "γ = 0 (cross-entropy)" if g == 0 else f"γ = {g:g}"

    loss = tuple(Curve(name(g), p, focal_loss_value(p, g)) for g in gammas)
    slope = tuple(Curve(name(g), p, -focal_loss_derivative(p, g)) for g in gammas)
    bend = tuple(
        Curve(name(g), p, np.array([logit_curvature(float(v), g) for v in p])) for g in gammas
    )
    x = "probability of the true class"
    return [
        Curves("focal loss", x, "loss", loss),
        Curves("−dFL/dp", x, "slope", slope, yscale="log"),
        Curves("curvature in the logit", x, "d²FL/ds²", bend),
    ]


def figure2(models: Mapping[str, Sequence[CurvaturePoint]]) -> list[Panel]:
    """Trace and largest eigenvalue of the Hessian against the γ of training, by network."""
    traces, tops = [], []
    for name, points in models.items():
        x, trace, low, high, top, _ = _columns(points)
        traces.append(Curve(name, x, trace, low, high))
        tops.append(Curve(name, x, top))
    return [
        Curves("trace of the Hessian", "γ of training", "trace", tuple(traces), yscale="log"),
        Curves("largest eigenvalue", "γ of training", "λ max", tuple(tops), yscale="log"),
    ]


def figure3(models: Mapping[str, Sequence[CurvaturePoint]]) -> list[Panel]:
    """ECE against the trace over all networks, with the cubic fit in its logarithm."""
    curves, every = [], [p for points in models.values() for p in points]
    for name, points in models.items():
        _, trace, *_, ece = _columns(points)
        curves.append(Curve(name, np.log10(trace), 100 * ece, style="o"))
    _, trace, *_, ece = _columns(every)
    fit = cubic_fit(trace, 100 * ece)
    x = np.geomspace(trace.min(), trace.max(), 100)
    curves.append(Curve(f"cubic fit, R² = {fit.r_squared:.2f}", np.log10(x), fit(x), style="--"))
    return [Curves("calibration and curvature", "log₁₀ trace", "ECE, %", tuple(curves))]


def figure4(rates: Mapping[str, Sequence[CurvaturePoint]]) -> list[Panel]:
    """ECE and trace against the strength τ of the explicit curvature penalty, by learning rate."""
    errors, traces = [], []
    for name, points in rates.items():
        x, trace, low, high, _, ece = _columns(points)
        errors.append(Curve(name, x, 100 * ece))
        traces.append(Curve(name, x, trace, low, high))
    return [
        Curves("calibration", "τ", "ECE, %", tuple(errors)),
        Curves("curvature", "τ", "trace", tuple(traces), yscale="log"),
    ]


def _columns(points: Sequence[CurvaturePoint]) -> np.ndarray:
    rows = sorted(points, key=lambda p: p.x)
    return np.array([[p.x, p.trace, p.low, p.high, p.top, p.ece] for p in rows]).T
