"""The (γ, T) of lowest calibration error among many, with the optimum of a plain loop.

Along a path of search points the top class's log-odds of each sample is a smooth function, so a
few Chebyshev nodes give it at all of them by one small matrix product. Errors of the interpolated
confidences come with a bound; the points that could be the minimum within it are then evaluated
exactly in float64, and the first of the best wins.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from focalcal import bins as _bins
from focalcal._arrays import Array, is_torch, namespace, to_numpy
from focalcal._blocks import map_blocks
from focalcal.calibrators._bin_errors import bin_errors, sigmoid
from focalcal.calibrators._odds import Point, point_log_odds
from focalcal.calibrators._panels import Interpolated, Panel, Stretch, make_panels, product
from focalcal.calibrators._rows import map_rows
from focalcal.calibrators.base import FitData

PANEL = math.log(10) / 2
"""Length of a panel in log T: real logits are then met to about 1e-6."""
TOLERANCE = 1e-4  # of the log-odds; a panel that misses it on the check rows is halved
ROUNDING = 2e-6  # of float32 nodes and products, relative to 1 + |L|
SATURATED = 20.0  # log-odds past this are confidence 1 to 2e-9; how exactly does not matter
_CHECK_ROWS = 128
_FIRST = 32  # points measured before the others: those with the lowest bounds

Pair = tuple[float, float]
"""γ and T."""


@dataclasses.dataclass(frozen=True)
class GridLine:
    """Search points on a curve: positions (M,), and the temperature and γ's of any position."""

    positions: np.ndarray
    at: Callable[[float], Point]


@dataclasses.dataclass(frozen=True)
class Best:
    """The best point of a search, the error at γ = 0, T = 1, and how many points were compared."""

    gamma: float
    temperature: float
    before: float
    after: float
    points: int

    def outcome(self, objective: str, **searched: np.ndarray) -> dict[str, Any]:
        """Fields for `Diagnostics`; an optimum at the end of a searched range is said."""
        warnings = []
        for name, grid in searched.items():
            value = self.temperature if name == "temperatures" else self.gamma
            if len(grid) > 1 and value in (grid.min(), grid.max()):
                warnings.append(
                    f"the best of {name} is {value:g}, at the end of the searched range "
                    f"{grid.min():g}..{grid.max():g}; widen it or take another objective"
                )
        return {
            "objective": objective,
            "before": self.before,
            "after": self.after,
            "iterations": self.points,
            "at_edge": bool(warnings),
            "warnings": tuple(warnings),
        }


class TopScores:
    """Calibration errors of the top class at (γ, T), for one set of fitting data."""

    def __init__(self, data: FitData, objective: str, bins: int) -> None:
        # A tensor on the CPU shares its memory with NumPy, whose passes run on threads.
        on_device = is_torch(data.logits) and data.logits.device.type != "cpu"
        keep = (lambda x: x.detach()) if on_device else to_numpy
        self.logits = keep(data.logits)
        self.weights = None if data.weights is None else keep(data.weights)
        self.correct = namespace(self.logits).argmax(self.logits, axis=1) == keep(data.labels)
        self.objective = objective
        self.bins = _bins.check_bins(bins)

    def best(self, pairs: list[Pair], points: int) -> Best:
        """The first of the best pairs, evaluated exactly."""
        errors = self.exact([*pairs, (0.0, 1.0)])
        i = int(np.argmin(errors[:-1]))
        return Best(*pairs[i], before=float(errors[-1]), after=float(errors[i]), points=points)

    def exact(self, pairs: list[Pair]) -> np.ndarray:
        """The calibration error at each pair, from float64 confidences."""
        groups: dict[float, list[int]] = {}
        for i, (_, temperature) in enumerate(pairs):
            groups.setdefault(temperature, []).append(i)
        correct = to_numpy(self.correct)
        weights = None if self.weights is None else to_numpy(self.weights)
        out = np.empty(len(pairs))
        size = max(1, 2**24 // len(correct))
        members = list(groups.items())
        for start in range(0, len(members), size):
            part = members[start : start + size]
            points = [Point(t, tuple(pairs[i][0] for i in own)) for t, own in part]
            odds = to_numpy(point_log_odds(self.logits, points, double=True))
            for i, row in zip([i for _, own in part for i in own], odds):
                out[i] = self._error(1.0 / (1.0 + np.exp(-row)), correct, weights)
        return out

    def measured(self, log_proba: Callable[[Array], Array]) -> float:
        """The calibration error of a map's probabilities, as a metric sees them."""
        xp = namespace(self.logits)

        def block(rows: slice) -> np.ndarray:
            return to_numpy(xp.max(xp.exp(log_proba(self.logits[rows])), axis=1))

        weights = None if self.weights is None else to_numpy(self.weights)
        confidence = np.concatenate(map_rows(block, self.logits))
        return self._error(confidence, to_numpy(self.correct), weights)

    def _error(
        self, confidence: np.ndarray, correct: np.ndarray, weights: np.ndarray | None
    ) -> float:
        if self.objective == "ece":
            edges = _bins.equal_width_edges(self.bins)
        else:
            edges = _bins.equal_mass_edges(confidence, self.bins, weights)
        binned = _bins.bin_samples(confidence, correct, edges, weights)
        return float(np.abs(binned.confidence_sums - binned.correct_sums).sum() / binned.total)

    def candidates(self, path: GridLine, pairs: list[list[Pair]]) -> list[Pair]:
        """The pairs (given per γ, per position) that could have the lowest error of a path."""
        low, high = self._path_bounds(path, self._panels(path), len(pairs))
        possible = ~(low > np.nanmin(high))  # what is unknown is possible
        return [pairs[i][j] for i, j in np.argwhere(possible)]

    def _path_bounds(self, path: GridLine, panels: list[Panel], width: int) -> np.ndarray:
        """Bounds (2, width, M) of the errors at the points of a path with `width` γ's each.

        An error is at least the distance of mean confidence and accuracy, which takes no sorting.
        Points that this rules out keep it as their lower bound, and ∞ as the upper one.
        """
        found = self._interpolate(path, panels, width)
        low, high = np.full((2, len(found.place)), np.inf)
        accuracy = self._mean(self.correct)

        def bound(points: np.ndarray) -> None:
            gap = self._mean(sigmoid(found.odds(points))) - accuracy
            low[points] = np.abs(gap) - 0.4 * found.epsilon[points] - ROUNDING

        def measure(points: np.ndarray) -> None:
            odds, epsilon = found.odds(points), found.epsilon[points]
            errors, slack = bin_errors(
                odds, self.correct, self.weights, self.objective, self.bins, epsilon
            )
            low[points] = np.maximum(low[points], errors - slack)
            high[points] = errors + slack

        def run(work: Callable[[np.ndarray], None], points: np.ndarray) -> None:
            map_blocks(lambda part: work(points[part]), len(points), found.rows)

        # One product per thread is small; a BLAS that starts its own threads only gets in the way.
        with threadpool_limits(1, "blas"):
            run(bound, np.arange(len(low)))
            order = np.argsort(low)
            run(measure, np.sort(order[:_FIRST]))
            run(measure, np.sort([i for i in order[_FIRST:] if not low[i] > np.nanmin(high)]))
        bounds = np.empty((2, width * len(path.positions)))
        bounds[:, found.place] = low, high
        return bounds.reshape(2, width, -1)

    def _interpolate(self, path: GridLine, panels: list[Panel], width: int) -> Interpolated:
        nodes = [x for panel in panels for x in panel.nodes.tolist()]
        checks = [panel.check for panel in panels if panel.check is not None]
        values = point_log_odds(self.logits, [path.at(x) for x in nodes + checks])
        values = values.reshape(len(nodes) + len(checks), width, -1)
        stretches, start, check = [], 0, len(nodes)
        for panel in panels:
            own = values[start : start + len(panel.nodes)]
            start += len(panel.nodes)
            epsilon = [ROUNDING] * width
            if panel.check_row is not None:
                epsilon += 4 * _misses(panel, own, values[check])
                check += 1
            stretches += [
                Stretch(panel, own[:, g], float(epsilon[g]), g * len(path.positions))
                for g in range(width)
            ]
        return Interpolated(stretches)

    def _mean(self, values: Array) -> np.ndarray:
        """Weighted means over the last axis, in float64."""
        xp = namespace(values)
        if self.weights is None:
            return to_numpy(xp.mean(xp.astype(values, xp.float64), axis=-1))
        weights = xp.astype(self.weights, xp.float64)
        return to_numpy(xp.astype(values, xp.float64) @ weights / xp.sum(weights))

    def _panels(self, path: GridLine) -> list[Panel]:
        """Panels short enough that their nodes resolve a few check rows."""
        few = self.logits[:: max(1, self.logits.shape[0] // _CHECK_ROWS)]

        def extremes(x: float) -> Point:
            point = path.at(x)
            return Point(point.temperature, (min(point.gammas), max(point.gammas)))

        pending, done = make_panels(path.positions, PANEL), []
        while pending:
            panel = pending.pop()
            if panel.check is not None:
                points = [extremes(x) for x in [*panel.nodes.tolist(), panel.check]]
                values = point_log_odds(few, points).reshape(len(points), 1, -1)
                if _misses(panel, values[:-1], values[-1]).max() > TOLERANCE:
                    pending += panel.halves(path.positions)
                    continue
            done.append(panel)
        return done


def _misses(panel: Panel, values: Array, truth: Array) -> np.ndarray:
    """How far the interpolant is from the truth at the check, relative to 1 + |L|, for each γ.

    values: (nodes, γ's, N); truth: (γ's, N).
    """
    xp = namespace(values)
    flat = xp.reshape(values, (values.shape[0], -1))
    guess = xp.reshape(product(panel.check_row[None, :], flat), truth.shape)
    off = xp.abs(guess - truth) / (1 + xp.abs(truth))
    return to_numpy(xp.max(xp.where(truth < SATURATED, off, xp.zeros_like(off)), axis=1))


def grid_search(scores: TopScores, gammas: Sequence[float], temperatures: np.ndarray) -> Best:
    """The best of gammas × temperatures; γ is the outer loop and the first of equals wins."""
    gammas = tuple(float(g) for g in gammas)
    path = GridLine(np.log(temperatures), lambda x: Point(math.exp(x), gammas))
    pairs = [[(g, float(t)) for t in temperatures] for g in gammas]
    return scores.best(scores.candidates(path, pairs), len(gammas) * len(temperatures))


def line_search(
    scores: TopScores,
    gammas: Sequence[float],
    temperatures: np.ndarray,
    anchors: tuple[float, float] = (-0.25, 1.0),
) -> Best:
    """3m points for m temperatures: the best T at two γ fixes a line T = a + bγ to follow.

    The line is followed at m values of γ evenly over the range of `gammas`; where it would reach
    T ≤ 0 it has no points.
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
