"""Venn–Abers prediction: two isotonic regressions, one for each possible label of the sample."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from focalcal._arrays import Array, namespace
from focalcal.calibrators._columns import Column, ColumnCalibrator, each
from focalcal.calibrators._piecewise import pack, piecewise
from focalcal.calibrators.binning import ROUNDING, without_rounding
from focalcal.errors import InputError


class VennAbers(ColumnCalibrator):
    """The interval [p0, p1] of a Venn–Abers predictor and the probability p1/(1 − p0 + p1).

    p0 and p1 are isotonic regressions of the calibration outcomes with the sample itself added,
    labelled 0 and labelled 1. If the samples are exchangeable, one of the two is calibrated for any
    distribution; their distance measures how much the calibration data leave open. Scores within a
    relative 1e-5 of each other are merged, so that NumPy, torch and ONNX agree; this moves p0 and
    p1 by up to about .002 from the definition with distinct scores.

    mode: "ovr" (each class against the rest, then normalised) or "top-label" (only the confidence
    of the predicted class); task: "auto" or "multilabel", as in `Calibrator`.

    Fitted: `edges_` (J, L), in log-odds, `lower_` and `upper_` (J, L+1): p0 and p1 of each piece.

    >>> s = np.array([-2.0, -1.0, 0.0, 1.0, 2.0] * 10)
    >>> y = np.array([0, 0, 1, 0, 1] * 10)
    >>> VennAbers().fit(s, y).predict_interval(np.array([0.0, 3.0])).round(3).tolist()
    [[0.476, 0.524], [0.909, 1.0]]

    Vovk, Petej & Fedorova (2015), "Large-scale probabilistic predictors with and without
    guarantees of validity", sections 2 and 4 (the inductive predictor in O(N log N)).
    """

    method: ClassVar[str] = "venn-abers"
    summary: ClassVar[str] = "isotonic regression with both labels of the sample: [p0, p1]"
    state: ClassVar[dict[str, str | None]] = {"edges_": "JL", "lower_": "JP", "upper_": "JP"}

    def predict_interval(self, logits: Any) -> Array:
        """[p0, p1] of class 1, or of the predicted class being right with top-label: (N, 2).

        Of every class against the rest for three classes or more, and of every label of a
        multi-label task: (N, K, 2).
        """
        logits = self._checked(logits)
        xp = namespace(logits)
        if self.task == "multilabel":
            parts = [c.predict_interval(logits[:, j]) for j, c in enumerate(self.labels_)]
            return xp.stack(parts, axis=1)
        both = xp.stack(self._ends(self._scores(self._floored(logits))), axis=-1)
        return both[:, 0] if self._n_columns == 1 else both

    def _fit_columns(self, columns: list[Column]) -> dict[str, Any]:
        edges, ends = map(list, zip(*each(_fit_column, columns)))
        self.edges_, pieces = pack(edges, ends)
        self.lower_, self.upper_ = pieces[..., 0], pieces[..., 1]
        return {}

    def _ends(self, log_odds: Array) -> tuple[Array, Array]:
        lower = piecewise(log_odds, self.edges_, self.lower_[..., None])
        return lower, piecewise(log_odds, self.edges_, self.upper_[..., None])

    def _calibrate(self, log_odds: Array) -> Array:
        xp = namespace(log_odds)
        lower, upper = self._ends(log_odds)
        return xp.log(upper) - xp.log1p(-lower)

    def _check_state(self) -> None:
        lower, upper = np.asarray(self.lower_), np.asarray(self.upper_)
        if not ((lower >= 0) & (lower < 1) & (upper > 0) & (upper <= 1)).all():
            raise InputError("expected lower_ in [0, 1) and upper_ in (0, 1]")


def _fit_column(column: Column) -> tuple[np.ndarray, np.ndarray]:
    """Edges (2M,) and pieces (2M + 1, 2) of p0 and p1 for M distinct scores.

    At a score the sample joins its group; between two scores p0 is that of the score below and p1
    that of the score above. Edges lie just beside the scores, further than rounding.
    """
    s, group = np.unique(without_rounding(column.log_odds), return_inverse=True)
    totals = np.bincount(group, column.weights)
    ones = np.bincount(group, column.weights * column.hits)
    upper = with_a_one(totals, ones)
    lower = 1 - with_a_one(totals[::-1], (totals - ones)[::-1])[::-1]
    beside = ROUNDING / 4 * (np.abs(s) + (min(1.0, float(np.abs(s).max())) or 1.0))
    gaps = np.concatenate([[np.inf], np.diff(s), [np.inf]])
    beside = np.minimum(beside, np.minimum(gaps[:-1], gaps[1:]) / 4)
    edges = np.stack([s - beside, s + beside], axis=1).reshape(-1)
    p0 = np.repeat(np.append(0.0, lower), 2)[1:]
    p1 = np.repeat(np.append(upper, 1.0), 2)[:-1]
    return edges, np.stack([p0, p1], axis=1)


def with_a_one(totals: np.ndarray, ones: np.ndarray) -> np.ndarray:
    """p1 of each group (M,): its isotonic value with one more sample in it, an outcome 1.

    totals, ones: weights (M,) of all samples and of the ones, groups in increasing order. The
    slopes of the greatest convex minorant of the cumulative sums are the isotonic regression. The
    added sample shifts all points before it by (−1, −1); the stack holds the minorant of the points
    after it while it moves up by one group at a time.

    >>> with_a_one(np.array([1.0, 1.0]), np.array([0.0, 1.0])).tolist()
    [0.5, 1.0]
    """
    x = [-1.0, 0.0, *np.cumsum(totals).tolist()]
    y = [-1.0, 0.0, *np.cumsum(ones).tolist()]
    stack: list[tuple[float, float]] = []
    for point in zip(reversed(x), reversed(y)):
        _push(stack, point)
    found = []
    for i in range(2, len(x)):
        (x0, y0), (x1, y1) = stack[-1], stack[-2]
        found.append((y1 - y0) / (x1 - x0))
        # The sample changes places with group i: their common corner moves across.
        x[i - 1], y[i - 1] = x[i - 2] + x[i] - x[i - 1], y[i - 2] + y[i] - y[i - 1]
        if (y[i - 1] - y0) * (x1 - x0) < (y1 - y0) * (x[i - 1] - x0):
            stack.pop()
            _push(stack, (x[i - 1], y[i - 1]))
    return np.array(found)


def _push(stack: list[tuple[float, float]], point: tuple[float, float]) -> None:
    """Add a point on the left of a convex chain and drop the corners that are no longer convex."""
    x, y = point
    while len(stack) > 1:
        (x0, y0), (x1, y1) = stack[-1], stack[-2]
        if (y0 - y) * (x1 - x0) < (y1 - y0) * (x0 - x):
            break
        stack.pop()
    stack.append(point)
