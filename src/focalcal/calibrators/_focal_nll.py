"""NLL of Ψ^γ(softmax(z/T)): with its gradient for a search, or from log-odds for a grid."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import array_api_compat
import numpy as np
import scipy.optimize
from threadpoolctl import threadpool_limits

from focalcal._arrays import Array, namespace, to_numpy
from focalcal.calibrators._grid import GridLine, Pair, TopScores
from focalcal.calibrators._newton import Optimum, fit_inverse_temperature
from focalcal.calibrators._odds import Point, point_log_odds
from focalcal.calibrators._rows import map_rows
from focalcal.calibrators.base import FitData
from focalcal.calibrators.sums import SampledData, sums_temperature

STARTS = ((0.0, 1.0), (-0.5, 0.7), (3.0, 2.8), (9.0, 3.0), (-0.92, 1.0))
"""γ and T of the starting points, T relative to that of temperature scaling.

The NLL has a long curved valley in (γ, T) with several low points, and another near γ = −0.92,
where Ψ raises small confidences and lowers large ones.
"""
NLL_SPACING = 0.1
NLL_EPSILON = 2e-5
"""Error of interpolated losses relative to 1 + NLL."""
_START_ELEMENTS = 2**20  # starts are compared on this many logits; the best continues on all
_MAX_STEPS = 20
_NEAR = 1e-4  # distance of the points behind the Hessian; its relative error is of this size
_SMALL = 1e-6  # a step this short changes the NLL by less than 1e-12


@dataclasses.dataclass(frozen=True)
class FocalOptimum:
    """The best γ and T of a gradient search."""

    gamma: float
    temperature: float
    loss: float
    iterations: int
    converged: bool
    at_edge: bool
    kind: str


def focal_nll(
    logits: Array, labels: Array, weights: Array | None, gamma: float, beta: float
) -> np.ndarray:
    """Weighted mean NLL of Ψ^γ(softmax(βz)) and its derivatives by γ and β, (3,) float64."""
    xp = namespace(logits)

    def block(rows: slice) -> np.ndarray:
        z = xp.astype(logits[rows], xp.float64)
        index = xp.arange(z.shape[0], device=array_api_compat.device(z))
        top, own = xp.argmax(z, axis=1), xp.astype(labels[rows], xp.int64)
        margins = xp.max(z, axis=1, keepdims=True) - z
        # The other classes, through their odds R against the top class, which do not cancel. In the
        # matrices the top class has e = q = 0 and adds nothing to the sums.
        scaled = beta * margins
        scaled[index, top] = xp.inf
        nearest = xp.min(scaled, axis=1)
        e = xp.exp(nearest[:, None] - scaled)
        scaled[index, top] = 0.0
        sum_e = xp.sum(e, axis=1)
        log_r = xp.log(sum_e) - nearest
        r = xp.exp(log_r)
        log1p_r = xp.log1p(r)
        log_c = -nearest - log1p_r
        q = e * xp.exp(log_c)[:, None]
        rest = 1 - q
        log_rest = xp.log(rest)
        ratio = q * (scaled + log1p_r[:, None]) / rest
        below = 1 + gamma * ratio
        weight = e * xp.exp(-gamma * log_rest) / below
        total = xp.sum(weight, axis=1)
        # Derivatives of log h by γ and β, where d log q/dβ = mean margin − margin.
        others_mean = xp.vecdot(e, margins) / sum_e
        mean = others_mean * xp.exp(log_r - log1p_r)
        slope = mean[:, None] - margins
        by_gamma = -log_rest - ratio / below
        by_beta = slope * (1 + gamma * (q - (ratio - q) / below) / rest)
        # The same for the top class, whose 1/(1−q) cancels against the mean margin.
        tiny = r < 1e-8
        top_ratio = xp.where(tiny, 1 - r / 2, log1p_r / xp.where(tiny, xp.ones_like(r), r))
        top_below = 1 + gamma * top_ratio
        top_q, top_log_rest = xp.exp(-log1p_r), log_r - log1p_r
        top_log_h = -log1p_r - gamma * top_log_rest - xp.log(top_below)
        top_by_gamma = -top_log_rest - top_ratio / top_below
        top_by_beta = mean + gamma * others_mean * (top_q - (top_ratio - top_q) / top_below)

        odds = top_log_h - log_c - xp.log(total)
        small = xp.exp(-xp.abs(odds))
        others_p = xp.where(odds > 0, small, xp.ones_like(odds)) / (1 + small)
        is_top = own == top
        own_log_h = (
            -scaled[index, own] - log1p_r - gamma * log_rest[index, own] - xp.log(below[index, own])
        )
        softplus = xp.log1p(small) + xp.where(odds < 0, -odds, xp.zeros_like(odds))
        loss = softplus + xp.where(is_top, xp.zeros_like(odds), top_log_h - own_log_h)
        columns = [loss] + [
            (1 - others_p) * at_top
            + others_p * xp.vecdot(weight, d) / total
            - xp.where(is_top, at_top, d[index, own])
            for d, at_top in ((by_gamma, top_by_gamma), (by_beta, top_by_beta))
        ]
        w = xp.ones_like(loss) if weights is None else xp.astype(weights[rows], xp.float64)
        return np.asarray([float(xp.sum(w * c)) for c in columns] + [float(xp.sum(w))])

    sums = np.sum(map_rows(block, logits), axis=0)
    return sums[:3] / sums[3]


def gradient_search(data: FitData, gamma_range: tuple[float, float]) -> FocalOptimum:
    """The best (γ, T) by NLL: L-BFGS in (log(1+γ), log T) from several starts, γ in its range.

    Of large data the starts are compared on a part; Newton goes on with all.
    """
    plain = fit_inverse_temperature(data.logits, data.labels, data.weights)
    if plain.kind != "inner":
        return _degenerate(plain)
    everything = (data.logits, data.labels, data.weights)
    step = data.n * data.n_classes // _START_ELEMENTS
    if step <= 1:
        return _best_start(everything, plain.beta, gamma_range)
    few = tuple(None if a is None else a[::step] for a in everything)
    start = _best_start(few, plain.beta, gamma_range)
    with threadpool_limits(1, "blas"):
        return polish(lambda points: focal_sums(*everything, points), start, gamma_range)


def sums_search(
    data: SampledData, gamma_range: tuple[float, float]
) -> tuple[FocalOptimum, dict[str, Any]]:
    """`gradient_search` on the sample, then Newton on sums; and what `sums_temperature` returns."""
    plain, first = sums_temperature(data)
    if plain.kind != "inner":
        return _degenerate(plain), first
    start = gradient_search(data, gamma_range)
    if start.kind != "inner":  # the sample is degenerate, the whole is not
        start = dataclasses.replace(start, gamma=0.0, temperature=1 / plain.beta)
    total = partial(data.total, focal_sums, weights=None)
    return polish(lambda points: total(points=points), start, gamma_range), first


def _best_start(
    data: tuple[Any, ...], beta: float, gamma_range: tuple[float, float]
) -> FocalOptimum:
    low, high = gamma_range
    starts = [
        np.array([np.log1p(min(max(gamma, low), high)), np.log(relative / beta)])
        for gamma, relative in STARTS
    ]
    with threadpool_limits(1, "blas"):  # the blocks already run on all cores
        found = [_minimise(data, start, gamma_range) for start in starts]
    best = min(found, key=lambda f: f.fun)
    iterations = sum(f.nfev for f in found)
    return _optimum(best.x, best.fun, iterations, best.success, gamma_range)


def _optimum(
    x: np.ndarray, loss: float, iterations: int, converged: bool, gamma_range: tuple[float, float]
) -> FocalOptimum:
    low, high = np.log1p(gamma_range)
    return FocalOptimum(
        gamma=float(np.clip(np.expm1(x[0]), *gamma_range)),
        temperature=float(np.exp(x[1])),
        loss=float(loss),
        iterations=iterations,
        converged=bool(converged),
        at_edge=bool(min(x[0] - low, high - x[0]) < 1e-6),
        kind="inner",
    )


def _minimise(
    data: tuple[Any, ...], start: np.ndarray, gamma_range: tuple[float, float]
) -> scipy.optimize.OptimizeResult:
    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        logits, labels, weights = data
        loss, *gradient = focal_sums(logits, labels, weights, x[None])[:3] / logits.shape[0]
        return loss, np.array(gradient)

    bounds = [tuple(np.log1p(gamma_range)), (start[1] - 7, start[1] + 7)]
    options = {"maxiter": 200, "ftol": 1e-13, "gtol": 1e-7}
    return scipy.optimize.minimize(
        objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options
    )


def focal_sums(
    logits: Array, labels: Array, weights: Array | None, points: np.ndarray
) -> np.ndarray:
    """The NLL and its derivatives by x = (log(1+γ), log T) at points (M, 2), times N; and N."""
    out = []
    for a, b in points.tolist():
        gamma, beta = math.expm1(a), math.exp(-b)
        loss, by_gamma, by_beta = focal_nll(logits, labels, weights, gamma, beta)
        out += [loss, by_gamma * (1 + gamma), -beta * by_beta]
    return np.array([*out, 1.0]) * logits.shape[0]


def polish(
    sums: Callable[[np.ndarray], np.ndarray],
    start: FocalOptimum,
    gamma_range: tuple[float, float],
) -> FocalOptimum:
    """Newton from a start that is nearly right; `sums(points)` as `focal_sums`.

    One pass evaluates the gradient at three near points, which is a Hessian by differences: a pass
    costs reading, and near points share it.
    """
    low, high = np.log1p(gamma_range)
    x = np.array([np.log1p(start.gamma), np.log(start.temperature)])
    x[0] = np.clip(x[0], low, high)
    loss, previous, converged = np.inf, x, False
    for _steps in range(1, _MAX_STEPS + 1):
        points = x + _NEAR * np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        found = sums(points)
        values = (found[:-1] / found[-1]).reshape(3, 3)
        if values[0, 0] > loss + 1e-12:  # too far: back halfway to the last good point
            x = (x + previous) / 2
            continue
        loss, previous, gradient = values[0, 0], x, values[0, 1:]
        hessian = (values[1:, 1:] - gradient) / _NEAR
        step = _newton_step(x, gradient, (hessian + hessian.T) / 2, low, high)
        x = x + step
        converged = bool(np.abs(step).max() <= _SMALL)
        if converged:
            break
    return _optimum(x, loss, _steps, converged, gamma_range)


def _newton_step(
    x: np.ndarray, gradient: np.ndarray, hessian: np.ndarray, low: float, high: float
) -> np.ndarray:
    """The minimum of the quadratic model with γ in its range; steps are at most 1 in each."""
    # The valley can be flat to rounding: eigenvalues are kept positive.
    values, vectors = np.linalg.eigh(hessian)
    values = np.maximum(np.abs(values), 1e-9)
    free = -vectors @ (vectors.T @ gradient / values)
    lower = np.array([max(low - x[0], -1.0), -1.0])
    upper = np.maximum([min(high - x[0], 1.0), 1.0], lower + 1e-300)
    if ((lower <= free) & (free <= upper)).all():
        return free
    root = np.sqrt(values)[:, None] * vectors.T
    target = -(vectors.T @ gradient) / np.sqrt(values)
    return scipy.optimize.lsq_linear(root, target, (lower, upper), method="bvls").x


def _degenerate(plain: Optimum) -> FocalOptimum:
    """The optimum of temperature scaling, with γ = 0, where it has no inner optimum."""
    temperature = 1.0 / plain.beta if plain.beta > 0 else float("inf")
    return FocalOptimum(
        0.0, temperature, plain.loss, plain.iterations, True, plain.kind != "flat", plain.kind
    )


class NllScores(TopScores):
    """Mean NLL at (γ, T) instead of a calibration error."""

    def __init__(self, data: FitData) -> None:
        super().__init__(data, "nll", 1)
        logits = to_numpy(data.logits).astype(np.float64)
        labels = to_numpy(data.labels).astype(np.int64)
        self._margin = logits.max(axis=1) - logits[np.arange(len(labels)), labels]

    def exact(self, pairs: list[Pair]) -> np.ndarray:
        return self._at([Point(t, (g,)) for g, t in pairs], double=True)[:, 0]

    def plausible(self, gammas: tuple[float, ...], temperatures: np.ndarray) -> np.ndarray:
        return np.ones(len(temperatures), bool)

    def candidates(self, path: GridLine, pairs: list[list[Pair]]) -> list[Pair]:
        nodes, matrix = path.nodes(NLL_SPACING)
        losses = matrix @ self._at(nodes)
        slack = NLL_EPSILON * (1 + np.abs(losses))
        possible = losses - slack <= np.min(losses + slack)
        return [pairs[i][j] for i, j in np.argwhere(possible.T)]

    def _at(self, points: list[Point], double: bool = False) -> np.ndarray:
        """NLL at points with the same number of γ's each, (points, γ's)."""
        with_zero = [Point(p.temperature, (0.0, *p.gammas)) for p in points]
        odds = to_numpy(point_log_odds(self.logits, with_zero, double)).astype(np.float64)
        odds = odds.reshape(len(points), -1, odds.shape[1])
        return np.array(
            [
                [self._nll(g, p.temperature, o[0], row) for g, row in zip(p.gammas, o[1:])]
                for p, o in zip(points, odds)
            ]
        )

    def _nll(self, gamma: float, temperature: float, plain: np.ndarray, odds: np.ndarray) -> float:
        """Mean NLL from the top class's log-odds without and with Ψ, and the label's margin."""
        # log p_y = log σ(L) + log h_y − log h_top, where the last two cancel if y is the top
        log_q_top = -np.logaddexp(0.0, -plain)
        log_q = log_q_top - self._margin / temperature
        log_h_top = _log_h(log_q_top, -np.logaddexp(0.0, plain), gamma)
        with np.errstate(divide="ignore"):
            log_h = _log_h(log_q, np.log1p(-np.exp(np.minimum(log_q, -1e-9))), gamma)
        extra = np.where(self.correct, 0.0, log_h - log_h_top)
        losses = np.logaddexp(0.0, -odds) - extra
        return float(np.average(losses, weights=self.weights))


def _log_h(log_q: np.ndarray, log_rest: np.ndarray, gamma: float) -> np.ndarray:
    certain = log_q > -1e-12  # r(q) tends to 1 there, and its factors to ∞ and 0
    ratio = np.where(certain, 1.0, -np.exp(np.where(certain, 0.0, log_q - log_rest)) * log_q)
    return log_q - gamma * log_rest - np.log1p(gamma * ratio)
