"""Focal temperature by NLL: Newton in (log(1+γ), log T) on merged gradients.

One pass evaluates the gradient at three near points, which is a Hessian by differences: a pass
costs reading, and near points share it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.optimize

from focalcal.calibrators import FocalTemperatureScaling
from focalcal.calibrators._focal_nll import focal_nll

if TYPE_CHECKING:
    from focalcal.scale.fitting import StreamedData

MAX_STEPS = 20
_NEAR = 1e-4  # distance of the points behind the Hessian; its relative error is of this size
_SMALL = 1e-6  # a step this short changes the NLL by less than 1e-12


def fit_focal(data: StreamedData, calibrator: FocalTemperatureScaling) -> dict[str, Any]:
    """Set γ and T of the calibrator; return fields for `Diagnostics`."""
    low, high = np.log1p(np.asarray(calibrator.gamma_range, dtype=float))
    start = FocalTemperatureScaling(gamma_range=calibrator.gamma_range)
    start._fit(_fit_data(data))
    x = np.array([np.log1p(start.gamma_), np.log(start.temperature_)])
    x[0] = np.clip(x[0], low, high)
    loss, steps, converged = np.inf, 0, False
    previous = x
    while steps < MAX_STEPS:
        steps += 1
        value, gradient, hessian = _quadratic(data, x)
        if value > loss + 1e-12:  # too far: back halfway to the last good point
            x = (x + previous) / 2
            continue
        loss, previous = value, x
        step = _newton_step(x, gradient, hessian, low, high)
        x = x + step
        if np.abs(step).max() <= _SMALL:
            converged = True
            break
    calibrator.gamma_, calibrator.temperature_ = float(np.expm1(x[0])), float(np.exp(x[1]))
    at_edge = bool(min(x[0] - low, high - x[0]) < 1e-6)
    notes = []
    if at_edge:
        notes.append(
            f"gamma ran to the end of its range, {calibrator.gamma_:g}; the fit is valid but gamma "
            "is not meaningful: widen gamma_range, or use temperature scaling"
        )
    if not converged:
        notes.append(f"the search did not converge in {steps} passes")
    return {
        "after": loss,
        "iterations": steps,
        "converged": converged,
        "at_edge": at_edge,
        "warnings": tuple(notes),
    }


def focal_sums(logits: np.ndarray, labels: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Sums of NLL and its derivatives by x = (log(1+γ), log T) at points (M, 2), and the count."""
    n, out = len(labels), []
    for a, b in points.tolist():
        gamma, beta = float(np.expm1(a)), float(np.exp(-b))
        loss, by_gamma, by_beta = focal_nll(logits, labels, None, gamma, beta)
        out += [loss, by_gamma * (1 + gamma), -beta * by_beta]
    return np.array([*out, 1.0]) * n


def _quadratic(data: StreamedData, x: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    points = x + _NEAR * np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    sums = data.total(focal_sums, points=points)
    values = (sums[:-1] / sums[-1]).reshape(3, 3)
    gradient = values[0, 1:]
    hessian = (values[1:, 1:] - gradient) / _NEAR
    return float(values[0, 0]), gradient, (hessian + hessian.T) / 2


def _newton_step(
    x: np.ndarray, gradient: np.ndarray, hessian: np.ndarray, low: float, high: float
) -> np.ndarray:
    """The minimum of the quadratic model with γ in its range; steps are at most 1 in each."""
    # The valley can be flat to rounding: eigenvalues are kept positive.
    values, vectors = np.linalg.eigh(hessian)
    values = np.maximum(np.abs(values), 1e-9)
    model = (vectors * values) @ vectors.T
    bounds = [(max(low - x[0], -1.0), min(high - x[0], 1.0)), (-1.0, 1.0)]
    root = np.sqrt(values)[:, None] * vectors.T
    target = -(vectors.T @ gradient) / np.sqrt(values)
    free = -np.linalg.solve(model, gradient)
    if all(a <= s <= b for s, (a, b) in zip(free, bounds)):
        return free
    lower, upper = (np.array(side) for side in zip(*bounds))
    upper = np.maximum(upper, lower + 1e-300)
    return scipy.optimize.lsq_linear(root, target, (lower, upper), method="bvls").x


def _fit_data(data: StreamedData) -> Any:
    from focalcal.calibrators.base import FitData

    return FitData(data.logits, data.labels, None)
