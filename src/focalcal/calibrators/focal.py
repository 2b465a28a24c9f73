"""The focal map as a calibrator: with the training γ, or with γ and T fitted together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from focalcal._arrays import Array, is_torch, namespace, to_numpy
from focalcal._blocks import map_rows
from focalcal._checks import check_gamma
from focalcal.calibrators._focal_affine import nll_by_scores
from focalcal.calibrators._newton import Optimum
from focalcal.calibrators.base import Calibrator, FitData, map_nll, softmax_nll
from focalcal.calibrators.grid import GridLine, Pair, Point, TopScores, point_log_odds
from focalcal.calibrators.sums import SampledData
from focalcal.calibrators.temperature import TemperatureScaling, scaled
from focalcal.errors import InputError
from focalcal.maps import focal_log_map

GAMMAS = (-0.5, -0.25, 0.05, 0.25, 0.37, 0.5, 0.75, 1.0, 5.0)
TEMPERATURES = tuple((np.arange(1, 501) / 100).tolist())
"""The search grid of Komisarenko & Kull (2024): 9 γ × 500 temperatures 0.01, 0.02, …, 5."""
SEARCHES = ("grid", "line", "gradient")
NLL_SPACING = 0.1
NLL_EPSILON = 2e-5
"""Error of interpolated losses, relative to 1 + NLL."""
START_GAMMAS = 13
START_TEMPERATURES = np.geomspace(0.25, 6, 200)
"""The grid of starting points for Newton, T relative to the best one without Ψ: the NLL has a long
curved valley in (γ, T) with several local minima."""
_START_ROWS = 2**13  # of the grid
_START_ELEMENTS = 2**20  # logits of the first Newton search, before that on all
_MAX_STEPS = 50
_DIFFERENCE = 1e-4  # step of the finite-difference Hessian; its relative error is of this size
_SMALL = 1e-13  # Newton stops where a further step would lower the NLL by less


class FocalCalibration(Calibrator):
    """p = Ψ^γ(softmax(z)) with the γ of the training loss: nothing is fitted.

    A network that minimises the focal loss predicts q with Ψ^γ(q) = p(y|x), so the map with the
    training γ undoes the bias of the loss. `fit` measures how the map changes the NLL and warns if
    the NLL rises.

    gamma: the γ of the training loss; task: as in `Calibrator`.

    >>> FocalCalibration(gamma=1.0).fit([[1.233, 0.0]] * 20, [0] * 18 + [1] * 2).predict_proba(
    ...     [[1.233, 0.0]]).round(2).tolist()
    [[0.9, 0.1]]

    Charoenphakdee et al., CVPR 2021.
    """

    method: ClassVar[str] = "focal"
    summary: ClassVar[str] = "the focal map with the training γ: nothing is fitted"
    preserves_accuracy: ClassVar[bool] = True

    def __init__(self, gamma: float = 3.0, task: str = "auto") -> None:
        self.gamma = gamma
        self.task = task

    def _check_params(self) -> None:
        check_gamma(self.gamma)

    def _fit(self, data: FitData) -> dict[str, Any]:
        before, after = softmax_nll(data), map_nll(self._log_proba, data)
        notes = []
        if after > before:
            notes.append(
                f"the focal map with gamma = {self.gamma:g} raises the NLL from {before:.4g} to "
                f"{after:.4g}; was the network trained with this gamma?"
            )
        return {"after": after, "warnings": tuple(notes)}

    def _floor_loss(self, data: FitData) -> float:
        return map_nll(self._log_proba, data)

    def _log_proba(self, logits: Array) -> Array:
        return focal_log_map(logits, self.gamma)


class FocalTemperatureScaling(TemperatureScaling):
    """p = Ψ^γ(softmax(z / T)), γ and T fitted together.

    objective: "nll", "ece" (equal-width bins) or "adaptive_ece" (equal-mass bins); search:
    "gradient" (NLL only, from several starts), "grid" (the best of gammas × temperatures, the first
    of equals, as a plain loop finds it), "line" (the best T at γ = −.25 and at γ = 1 define a line
    T = a + bγ, which is searched at as many γ as there are temperatures), or None for "gradient"
    with "nll" and "grid" otherwise; gammas, temperatures: the grid, by default the paper's 9 × 500;
    gamma_range: bounds of γ in the gradient search; bins: number of bins of the ECE; task: as in
    `Calibrator`.

    Fitted: `gamma_`, `temperature_`. Where temperature scaling has no finite optimum by NLL (worse
    than chance, all correct, all logits equal), γ is 0 and T and the warning are those of
    `TemperatureScaling`.

    >>> from focalcal.examples import resnet18
    >>> val, _ = resnet18()
    >>> fitted = FocalTemperatureScaling().fit(val.logits, val.labels)
    >>> round(fitted.gamma_, 1), round(fitted.temperature_, 1)
    (-0.3, 2.0)

    Komisarenko & Kull, ECAI 2024, Sec. 4.2.
    """

    method: ClassVar[str] = "focal-temperature"
    summary: ClassVar[str] = "the focal map after a temperature, γ and T fitted together"
    state: ClassVar[dict[str, str | None]] = {"gamma_": "", "temperature_": ""}
    grid: ClassVar[tuple[Sequence[float], Sequence[float]]] = GAMMAS, TEMPERATURES

    def __init__(
        self,
        objective: str = "nll",
        search: str | None = None,
        gammas: Sequence[float] | None = None,
        temperatures: Sequence[float] | None = None,
        gamma_range: tuple[float, float] = (-0.95, 10.0),
        bins: int = 15,
        task: str = "auto",
    ) -> None:
        super().__init__(objective, temperatures, bins, task)
        self.search = search
        self.gammas = gammas
        self.gamma_range = gamma_range

    def _check_params(self) -> None:
        super()._check_params()
        if self.search is not None and self.search not in SEARCHES:
            raise InputError(f"expected search in {SEARCHES} or None, got {self.search!r}")
        if self.search == "gradient" and self.objective != "nll":
            raise InputError(
                f"expected objective 'nll' for the gradient search, got {self.objective!r}; "
                "calibration errors have no gradient, use search='grid' or 'line'"
            )
        low, high = (check_gamma(g) for g in self.gamma_range)
        if not low < high:
            raise InputError(f"expected an increasing gamma_range, got {self.gamma_range}")

    def _scores(self, data: FitData) -> TopScores:
        return NllScores(data) if self.objective == "nll" else super()._scores(data)

    def _check_state(self) -> None:
        check_gamma(self.gamma_)
        super()._check_state()

    def _best(self, data: FitData) -> Optimum:
        return gradient_search(data, super()._best(data), self.gamma_range)

    def _log_proba(self, logits: Array) -> Array:
        return focal_log_map(scaled(logits, self.temperature_), self.gamma_)


def focal_sums(
    logits: Array, labels: Array, weights: Array | None, points: np.ndarray
) -> np.ndarray:
    """Σ w·NLL and its gradient in x = (log(1+γ), log T) at points x (M, 2), followed by Σ w."""
    xp = namespace(logits)

    def block(rows: slice) -> np.ndarray:
        z, own = xp.astype(logits[rows], xp.float64), xp.astype(labels[rows], xp.int64)
        margins = (xp.max(z, axis=1, keepdims=True) - z).T
        margins = margins.contiguous() if is_torch(margins) else np.ascontiguousarray(margins)
        w = xp.ones_like(z[:, 0]) if weights is None else xp.astype(weights[rows], xp.float64)
        sums = []
        for a, b in points.tolist():
            gamma, beta = math.expm1(a), math.exp(-b)
            loss, by_gamma, by_s = nll_by_scores(margins * -beta, own, w, gamma)
            sums += [loss, by_gamma * (1 + gamma), beta * float(xp.sum(by_s * margins))]
        return np.asarray([*sums, float(xp.sum(w))])

    return np.sum(map_rows(block, logits), axis=0)


def gradient_search(data: FitData, plain: Optimum, gamma_range: tuple[float, float]) -> Optimum:
    """The best (γ, T) by NLL: Newton from the local minima of a small grid, γ within its range.

    plain: the optimum without Ψ, which is returned if it is not inner.
    """
    if plain.kind != "inner":
        return plain
    few = _thinned(data, data.n * data.n_classes // _START_ELEMENTS)
    total: Callable[..., np.ndarray] | None = None
    if isinstance(data, SampledData):
        total = partial(data.total, focal_sums, weights=None)
    elif few.n < data.n:
        total = partial(focal_sums, data.logits, data.labels, data.weights)
    sums = partial(focal_sums, few.logits, few.labels, few.weights)
    starts = _local_minima(_thinned(few, few.n // _START_ROWS), plain.beta, gamma_range)
    found = [polish(sums, x, gamma_range) for x in starts]
    if total is not None:  # the best on a part may be only the second best on all
        found = [polish(total, x, gamma_range) for x in _distinct(found)]
    return min(found, key=lambda x: x.loss)


def _distinct(found: list[Optimum]) -> list[Optimum]:
    """One of each group of optima that differ little."""
    kept: list[Optimum] = []
    for x in found:
        if all(
            abs(math.log((1 + x.gamma) / (1 + y.gamma))) + abs(math.log(x.beta / y.beta)) > 0.01
            for y in kept
        ):
            kept.append(x)
    return kept


def _thinned(data: FitData, step: int) -> FitData:
    """One in `step` of the samples."""
    if step < 2:
        return data
    weights = None if data.weights is None else data.weights[::step]
    return FitData(data.logits[::step], data.labels[::step], weights)


def _local_minima(
    data: FitData, beta: float, gamma_range: tuple[float, float]
) -> Iterator[Optimum]:
    """The grid points (γ, best T) whose NLL is no higher than at the neighbouring γ."""
    gammas = tuple(np.expm1(np.linspace(*np.log1p(gamma_range), START_GAMMAS)).tolist())
    path = GridLine(np.log(START_TEMPERATURES / beta), lambda x: Point(math.exp(x), gammas))
    losses = NllScores(data).along(path, spacing=0.2)
    least = np.pad(losses.min(axis=0), 1, constant_values=np.inf)
    for j in np.flatnonzero((least[1:-1] <= least[:-2]) & (least[1:-1] <= least[2:])):
        t = START_TEMPERATURES[losses[:, j].argmin()]
        yield Optimum(beta / t, float(least[j + 1]), 0, False, gamma=gammas[j])


def polish(
    sums: Callable[..., np.ndarray], start: Optimum, gamma_range: tuple[float, float]
) -> Optimum:
    """Newton for x = (log(1+γ), log T) from a start; sums(points=x): as `focal_sums`.

    One pass evaluates the gradient at three close points, which gives a finite-difference Hessian
    for the price of reading the data once.
    """
    low, high = np.log1p(gamma_range)
    x = np.array([np.clip(np.log1p(start.gamma), low, high), -np.log(start.beta)])
    loss, previous, converged = np.inf, x, False
    for _steps in range(1, _MAX_STEPS + 1):
        found = sums(points=x + _DIFFERENCE * np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
        values = (found[:-1] / found[-1]).reshape(3, 3)
        if values[0, 0] > loss + 1e-12:  # overshot: go back half-way to the last good point
            x = (x + previous) / 2
            continue
        loss, previous, gradient = values[0, 0], x, values[0, 1:]
        hessian = (values[1:, 1:] - gradient) / _DIFFERENCE
        step = _newton_step(gradient, (hessian + hessian.T) / 2, low - x[0], high - x[0])
        converged = bool(-gradient @ step <= _SMALL)
        x = x + step
        if converged:
            break
    kind = "gamma" if min(x[0] - low, high - x[0]) < 1e-6 else "inner"
    gamma = float(np.clip(np.expm1(x[0]), *gamma_range))
    return Optimum(float(np.exp(-x[1])), float(loss), _steps, converged, kind, gamma)


def _newton_step(
    gradient: np.ndarray, hessian: np.ndarray, lowest: float, highest: float
) -> np.ndarray:
    """The minimum of the quadratic model; the first step is bounded, and both are at most 1."""
    # The valley can be flat within rounding: eigenvalues are kept positive.
    values, vectors = np.linalg.eigh(hessian)
    positive = (vectors * np.maximum(np.abs(values), 1e-9)) @ vectors.T
    step = -np.linalg.solve(positive, gradient)
    if not lowest <= step[0] <= highest:
        step[0] = np.clip(step[0], lowest, highest)
        step[1] = -(gradient[1] + positive[1, 0] * step[0]) / positive[1, 1]
    return step / max(1.0, float(np.abs(step).max()))


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

    def along(self, path: GridLine, spacing: float = NLL_SPACING) -> np.ndarray:
        """NLL at the positions of a path, (positions, γ's), interpolated between nodes."""
        nodes, matrix = path.nodes(spacing)
        return matrix @ self._at(nodes)

    def candidates(self, path: GridLine, pairs: list[list[Pair]]) -> list[Pair]:
        losses = self.along(path)
        slack = NLL_EPSILON * (1 + np.abs(losses))
        possible = losses - slack <= np.min(losses + slack)
        return [pairs[i][j] for i, j in np.argwhere(possible.T)]

    def measured(self, log_proba: Callable[[Array], Array]) -> dict[str, float]:
        return {}  # as for any calibrator

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
