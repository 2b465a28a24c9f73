"""Grid search for the (γ, T) of lowest calibration error, with the same result as a plain loop.

Along a path of search points the log-odds of each sample's top class are smooth, so a spline
through evenly spaced nodes gives them at all points. The points that could be the minimum, given
the error of the spline, are then evaluated exactly in float64, and the first of the best wins.

Ψ and T keep the argmax, so a calibration error of the top class needs one number per sample, its
log-odds. With R the odds of the other classes before Ψ and h = q/g(q,γ), these are

    L = log h(q_top) − log Σ_{k≠top} h(q_k),   q_top = 1/(1+R).

The second term is written as log c + log Σ_k e_k/g(q_k), where e_k = exp(−(margin of k − smallest
margin)/T) ≤ 1 and q_k = c·e_k, so nothing underflows however confident the network is.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy.interpolate import make_interp_spline
from scipy.special import expit

from focalcal import bins as _bins
from focalcal._arrays import Array, is_torch, like, log_softmax, namespace, to_numpy
from focalcal._blocks import map_blocks, map_rows
from focalcal.calibrators.base import FitData

SPACING = 0.05
"""Distance of the nodes in log T, or in log(1 + γ) along a line."""
DEGREE = 5
EPSILON = 1e-5
"""Error of interpolated log-odds L, relative to 1 + |L|."""
MEAN_EPSILON = 1e-4
"""Error of interpolated mean confidences."""
COARSE = 12
"""Number of temperatures evaluated first."""
CERTAIN = 38.0
"""Log-odds above this are a confidence of 1 in float64."""

Pair = tuple[float, float]
"""γ and T."""


@dataclasses.dataclass(frozen=True)
class Point:
    """One temperature and the γ to evaluate with it, which share what depends on T alone."""

    temperature: float
    gammas: tuple[float, ...]


def point_log_odds(logits: Array, points: list[Point], double: bool = False) -> Array:
    """L for every (T, γ) of `points` in order, shape (pairs, N); float32, or float64 if `double`.

    >>> import numpy as np
    >>> point_log_odds(np.array([[2.0, 0.0]]), [Point(0.5, (0.0,))], double=True)
    array([[4.]])
    """
    xp = namespace(logits)
    dtype = xp.float64 if double else xp.float32
    pairs = sum(len(point.gammas) for point in points)
    out = xp.empty((pairs, logits.shape[0]), dtype=dtype, device=logits.device)

    def block(rows: slice) -> None:
        z = xp.astype(xp.flip(xp.sort(logits[rows], axis=1, stable=False), axis=1), xp.float64)
        margins = xp.astype(z[:, 1:2] - z[:, 1:], dtype)
        nearest = to_numpy(xp.min(margins, axis=0))
        # Classes further away add less than rounding to a sum of at least 1.
        reach = math.log(len(nearest)) + (40.0 if double else 17.0)
        start = 0
        for point in points:
            used = int(np.searchsorted(nearest, reach * point.temperature, side="right"))
            found = _at_temperature(margins[:, : max(1, used)], z[:, 0] - z[:, 1], point)
            out[start : start + len(found), rows] = xp.stack(found)
            start += len(found)

    map_rows(block, logits)
    return out


def _at_temperature(margins: Array, smallest: Array, point: Point) -> list[Array]:
    """L for each γ at one T: margins (n, K−1) above the smallest one (n,)."""
    xp = namespace(margins)
    beta = 1.0 / float(point.temperature)  # a NumPy scalar would widen float32
    exponents = xp.clip(margins * -beta, min=-40.0)  # exp is slow where it underflows
    e = xp.exp(exponents)
    log_r = xp.log(_row_sums(e)) - beta * smallest
    if not any(point.gammas):
        return [-log_r] * len(point.gammas)
    r = xp.exp(log_r)
    log1p_r = xp.log1p(r)
    log_c = -beta * smallest - log1p_r
    # r(q_top) = log1p(R)/R, as a series where R is too small to divide by
    tiny = r < 1e-8
    top_ratio = xp.where(tiny, 1 - r / 2, log1p_r / xp.where(tiny, xp.ones_like(r), r))
    # The other classes have q = c·e ≤ ½, and 1/g(q, γ) = (1 − q)^−γ/(1 + γ·ratio).
    q = e * xp.astype(xp.exp(log_c), e.dtype)[:, None]
    ratio = -q * (exponents + xp.astype(log_c, e.dtype)[:, None]) / (1 - q)
    log_rest = xp.log(1 - q)

    def log_odds(gamma: float) -> Array:
        weight = xp.exp(exponents - gamma * log_rest)
        weight /= 1 + gamma * ratio
        total = _row_sums(weight)
        top = -log1p_r - gamma * (log_r - log1p_r) - xp.log1p(gamma * top_ratio)
        return top - log_c - xp.log(total)

    return [log_odds(float(gamma)) for gamma in point.gammas]


def _row_sums(x: Array) -> Array:
    """Σ over the classes, as float64; in NumPy a product with ones is the faster sum."""
    xp = namespace(x)
    sums = x @ np.ones(x.shape[1], x.dtype) if isinstance(x, np.ndarray) else xp.sum(x, axis=1)
    return xp.astype(sums, xp.float64)


@dataclasses.dataclass(frozen=True)
class GridLine:
    """Search points on a curve: positions (M,), and the temperature and γ's of any position."""

    positions: np.ndarray
    at: Callable[[float], Point]

    def nodes(self, spacing: float = SPACING) -> tuple[list[Point], np.ndarray]:
        """Points to evaluate, and the matrix from values there to values at all positions."""
        low, high = float(self.positions.min()), float(self.positions.max())
        n = max(DEGREE + 1, math.ceil((high - low) / spacing))
        if n >= len(self.positions):
            return [self.at(x) for x in self.positions.tolist()], np.eye(len(self.positions))
        x = np.linspace(low, high, n)
        matrix = make_interp_spline(x, np.eye(n), DEGREE)(self.positions)
        return [self.at(node) for node in x.tolist()], matrix


@dataclasses.dataclass(frozen=True)
class Best:
    """The best point of a search, its error, and how many points were compared."""

    gamma: float
    temperature: float
    error: float
    points: int


class TopScores:
    """Calibration errors of the top class at (γ, T), for one set of fitting data."""

    def __init__(self, data: FitData, objective: str, bins: int) -> None:
        # A tensor on the CPU shares its memory with NumPy, whose passes run on threads.
        on_device = is_torch(data.logits) and data.logits.device.type != "cpu"
        self.logits = data.logits.detach() if on_device else to_numpy(data.logits)
        top = to_numpy(namespace(self.logits).argmax(self.logits, axis=1))
        self.correct = top == to_numpy(data.labels)
        self.weights = None if data.weights is None else to_numpy(data.weights).astype(np.float64)
        self.objective = objective
        self.bins = _bins.check_bins(bins)

    def best(self, pairs: list[Pair], points: int) -> Best:
        """The first of the best pairs, evaluated exactly."""
        errors = self.exact(pairs)
        i = int(np.argmin(errors))
        return Best(*pairs[i], error=float(errors[i]), points=points)

    def exact(self, pairs: list[Pair]) -> np.ndarray:
        """The calibration error at each pair, from float64 confidences."""
        size = max(1, 2**24 // len(self.correct))
        errors = []
        for start in range(0, len(pairs), size):
            points = [Point(t, (g,)) for g, t in pairs[start : start + size]]
            odds = to_numpy(point_log_odds(self.logits, points, double=True))
            errors += [self._error(expit(row)) for row in odds]
        return np.array(errors)

    def measured(self, log_proba: Callable[[Array], Array]) -> dict[str, float]:
        """The error "before" and "after" a map, computed from probabilities as a metric would."""
        xp = namespace(self.logits)

        def error(log_proba: Callable[[Array], Array]) -> float:
            def block(rows: slice) -> np.ndarray:
                return to_numpy(xp.max(xp.exp(log_proba(self.logits[rows])), axis=1))

            return self._error(np.concatenate(map_rows(block, self.logits)))

        return {"before": error(log_softmax), "after": error(log_proba)}

    def _error(self, confidence: np.ndarray) -> float:
        if self.objective == "ece":
            edges = _bins.equal_width_edges(self.bins)
        else:
            edges = _bins.equal_mass_edges(confidence, self.bins, self.weights)
        return float(
            _bins.mean_gap(_bins.bin_samples(confidence, self.correct, edges, self.weights))
        )

    def plausible(self, gammas: tuple[float, ...], temperatures: np.ndarray) -> np.ndarray:
        """Which temperatures (M,) could be the best for one of the γ's: (M,) bool.

        An error is at least the distance of mean confidence and accuracy. Mean confidence falls as
        T rises, so the distance at a few temperatures bounds it between them.
        """
        wanted = np.geomspace(temperatures.min(), temperatures.max(), COARSE)
        ordered = np.sort(temperatures)
        coarse = np.unique(ordered[np.searchsorted(ordered, wanted * (1 - 1e-9))])
        odds = point_log_odds(self.logits, [Point(t, gammas) for t in coarse.tolist()])
        gaps = self._mean_gaps(odds)
        best = self._bounds(to_numpy(odds[int(np.abs(gaps).argmin())]))[1]
        gaps = gaps.reshape(len(coarse), -1)
        between = np.searchsorted(coarse, temperatures)
        above, below = gaps[np.maximum(between - 1, 0)], gaps[between]
        return (np.maximum(below, -above) - MEAN_EPSILON <= best).any(axis=1)

    def candidates(self, path: GridLine, pairs: list[list[Pair]]) -> list[Pair]:
        """The pairs (given per γ, per position) that could have the lowest error of a path."""
        nodes, matrix = path.nodes()
        odds = point_log_odds(self.logits, nodes)
        gaps = matrix @ self._mean_gaps(odds).reshape(len(nodes), -1)
        odds = namespace(odds).reshape(odds, (len(nodes), len(pairs), -1))
        low = np.abs(gaps).T - MEAN_EPSILON
        high = np.full_like(low, np.inf)

        def measure(gamma: int, positions: np.ndarray) -> None:
            rows = to_numpy(like(matrix[positions], odds) @ odds[:, gamma])
            bounds = map_blocks(lambda i: self._bounds(rows[i.start]), len(rows), 1)
            low[gamma, positions], high[gamma, positions] = np.transpose(bounds)

        for gamma, position in enumerate(low.argmin(axis=1)):
            measure(gamma, np.array([position]))
        for gamma, possible in enumerate(low <= high.min()):
            if possible.any():
                measure(gamma, np.flatnonzero(possible))
        return [pairs[i][j] for i, j in np.argwhere(low <= high.min())]

    def _mean_gaps(self, odds: Array) -> np.ndarray:
        """Mean confidence minus accuracy of log-odds (M, N), as (M,)."""
        xp = namespace(odds)
        mass = np.ones(len(self.correct)) if self.weights is None else self.weights
        share = mass / mass.sum()
        return to_numpy(1 / (1 + xp.exp(-odds)) @ like(share, odds)) - share @ self.correct

    def _bounds(self, odds: np.ndarray) -> tuple[float, float]:
        """The least and the largest possible error, given log-odds (N,) accurate to EPSILON."""
        error = self._error(expit(odds.astype(np.float64)))
        if self.weights is None:
            ordered, mass = np.sort(odds), np.ones(len(odds))
        else:
            order = np.argsort(odds)
            ordered, mass = odds[order], self.weights[order]
        ordered = np.minimum(ordered.astype(np.float64), CERTAIN)
        if self.objective == "ece":
            inner = _bins.equal_width_edges(self.bins)[1:-1]
            edges, own = np.log(inner / (1 - inner)), 0
        else:
            edges = ordered[_bins.quantile_positions(np.cumsum(mass), self.bins)]
            own = int(np.sum(edges < CERTAIN))  # each edge is a sample, which stays below it
        # dp = p(1−p)·dL: log-odds this far apart may have the same confidence in float64
        reach = EPSILON * (1 + np.abs(edges)) + 2.3e-16 * np.exp(edges)
        # Certain samples are ties, which no edge separates.
        above = np.searchsorted(ordered, np.where(edges < CERTAIN, edges + reach, CERTAIN))
        unsure = np.sum(above - np.searchsorted(ordered, edges - reach)) - own
        # A shifted confidence moves the error by at most itself (σ'(L)(1+|L|) < 0.4), a sample that
        # may lie on either side of an edge by at most twice its share.
        slack = 0.4 * EPSILON + 2 * float(mass.max() / mass.sum()) * max(int(unsure), 0)
        return error - slack, error + slack


def grid_search(scores: TopScores, gammas: Sequence[float], temperatures: np.ndarray) -> Best:
    """The best of gammas × temperatures; γ is the outer loop and the first of equals wins."""
    gammas = tuple(float(g) for g in gammas)
    possible = temperatures[scores.plausible(gammas, temperatures)]
    path = GridLine(np.log(possible), lambda x: Point(math.exp(x), gammas))
    pairs = [[(g, float(t)) for t in possible] for g in gammas]
    return scores.best(scores.candidates(path, pairs), len(gammas) * len(temperatures))


def line_search(
    scores: TopScores,
    gammas: Sequence[float],
    temperatures: np.ndarray,
    anchors: tuple[float, float] = (-0.25, 1.0),
) -> Best:
    """3m points for m temperatures: the best T at two values of γ defines a line T = a + bγ.

    The line is searched at m values of γ evenly over the range of `gammas`, without points where it
    falls below the lowest temperature.
    """
    m = len(temperatures)
    ends = [grid_search(scores, (g,), temperatures) for g in anchors]
    slope = (ends[1].temperature - ends[0].temperature) / (anchors[1] - anchors[0])
    start = ends[0].temperature - slope * anchors[0]
    along = np.linspace(min(gammas), max(gammas), m)
    along = along[start + slope * along >= float(np.min(temperatures))]
    found = [(e.gamma, e.temperature) for e in ends]
    if len(along):

        def at(x: float) -> Point:
            gamma = math.expm1(x)
            return Point(start + slope * gamma, (gamma,))

        pairs = [(float(g), float(start + slope * g)) for g in along]
        found += scores.candidates(GridLine(np.log1p(along), at), [pairs])
    return scores.best(found, 2 * m + len(along))
