"""Binary calibrators for any number of classes: one-vs-rest, top-label, or binary.

A subclass maps log-odds to log-odds, column by column. Here logits become columns of log-odds, and
calibrated columns become log-probabilities. The log-odds s = log p − log(1 − p) are finite for
every finite logit, so nothing is clipped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import numpy as np
from scipy.interpolate import PPoly

from focalcal._arrays import Array, like, log_softmax, logsumexp, namespace, take_along_axis
from focalcal._blocks import map_blocks
from focalcal.calibrators.base import Calibrator, FitData
from focalcal.errors import InputError

T = TypeVar("T")

MODES = ("ovr", "top-label")
BELOW_ONE = float(np.nextafter(1.0, 0.0))
"""Replaces shares of ones that round to 1, whose log-odds would be infinite."""
KEEP_ARGMAX = 1e-5
"""Log-odds by which the top class stays ahead in top-label mode; float32 errors are about 1e-6."""


@dataclasses.dataclass(frozen=True)
class Column:
    """One binary problem: log-odds (N,), 0/1 outcomes (N,), weights (N,) > 0.

    `prior` is the smoothed share of ones, strictly inside (0, 1): the estimate where there are no
    data. The priors of K classes sum to one, so the floors made from them sum to less.
    """

    log_odds: np.ndarray
    hits: np.ndarray
    weights: np.ndarray
    prior: float

    @property
    def floor(self) -> float:
        """The lowest smoothed share of ones: none among N samples and one of `prior` ones."""
        return self.prior / (self.weights.sum() + 1)

    @property
    def ceiling(self) -> float:
        return min(1 - (1 - self.prior) / (self.weights.sum() + 1), BELOW_ONE)

    @property
    def balanced(self) -> np.ndarray:
        """Weights (N,) that give ones and zeros the same total."""
        share = float(self.weights @ self.hits / self.weights.sum())
        if not 0 < share < 1:
            return self.weights
        return self.weights * np.where(self.hits > 0, 0.5 / share, 0.5 / (1 - share))


class _AccuracyKept:
    """True for an instance in top-label mode, False for the class and its default mode."""

    def __get__(self, instance: Any, owner: type) -> bool:
        return instance is not None and instance.mode == "top-label"


class ColumnCalibrator(Calibrator):
    """Base class of calibrators that map one column of log-odds at a time, in either `mode`.

    Two classes in "ovr" mode are one binary problem on s = z₁ − z₀.
    """

    preserves_accuracy: ClassVar[bool] = _AccuracyKept()
    loss: ClassVar[str] = "nll"
    """What `diagnostics_` compares before and after, summed over columns: NLL, or "brier"."""

    def __init__(self, mode: str = "ovr", task: str = "auto") -> None:
        self.mode = mode
        self.task = task

    def _fit_columns(self, columns: list[Column]) -> dict[str, Any]:
        """Learn the attributes named in `state`, one row per column; return diagnostics."""
        raise NotImplementedError

    def _calibrate(self, log_odds: Array) -> Array:
        """Calibrated log-odds (N, J) of log-odds (N, J), finite, in array API operations.

        By default `piecewise` with the state `edges_` and `pieces_`.
        """
        return piecewise(log_odds, self.edges_, self.pieces_)

    def _check_params(self) -> None:
        if self.mode not in MODES:
            raise InputError(f"expected mode 'ovr' or 'top-label', got {self.mode!r}")

    @property
    def _n_columns(self) -> int:
        return self.n_classes_ if self.mode == "ovr" and self.n_classes_ > 2 else 1

    def _fit(self, data: FitData) -> dict[str, Any]:
        logits, labels, weights = data.counted()  # floors and smoothing count samples
        scores = self._scores(logits)
        if self.mode == "top-label":
            hits = (labels == np.argmax(logits, axis=1))[:, None]
        elif self._n_columns == 1:
            hits = (labels == 1)[:, None]
        else:
            hits = labels[:, None] == np.arange(self.n_classes_)
        sides = max(self._n_columns, 2)
        columns = [
            Column(s, h, weights, float((weights @ h + 1) / (weights.sum() + sides)))
            for s, h in zip(scores.T, hits.T.astype(np.float64))
        ]
        outcome = self._fit_columns(columns)
        several = "one-vs-rest " if self._n_columns > 1 else ""
        return {
            "objective": ("top-label " if self.mode == "top-label" else several) + self.loss,
            "before": self._loss(columns, scores),
            "after": self._loss(columns, self._calibrate(scores)),
            **outcome,
        }

    def _log_proba(self, logits: Array) -> Array:
        xp = namespace(logits)
        t = self._calibrate(self._scores(logits))
        if self.mode == "top-label":
            return replace_top(logits, t)
        if self._n_columns == 1:
            return xp.concat([-softplus(t), -softplus(-t)], axis=1)
        return log_softmax(-softplus(-t))

    def _scores(self, logits: Array) -> Array:
        """The columns (N, J) that are calibrated."""
        if self.mode == "top-label":
            return top_log_odds(logits)
        if self._n_columns == 1:
            return logits[:, 1:] - logits[:, :1]
        return one_vs_rest_log_odds(logits)

    def _loss(self, columns: list[Column], scores: np.ndarray) -> float:
        total = 0.0
        for column, s in zip(columns, scores.T):
            target = self._targets(column)
            if self.loss == "brier":
                each = (np.exp(-softplus(-s)) - target) ** 2
            else:
                each = softplus(s) - target * s
            total += float(np.average(each, weights=column.weights))
        return total

    def _targets(self, column: Column) -> np.ndarray:
        return column.hits


def per_column(function: Callable[[Column], T], columns: list[Column]) -> list[T]:
    """`function` applied to every column in threads, with results in order."""
    return map_blocks(lambda one: function(columns[one.start]), len(columns), 1)


def softplus(x: Array) -> Array:
    """log(1 + eˣ) without overflow."""
    xp = namespace(x)
    return xp.where(x > 0, x, xp.zeros_like(x)) + xp.log1p(xp.exp(-xp.abs(x)))


def one_vs_rest_log_odds(logits: Array) -> Array:
    """log p − log(1 − p) of every class (N, K).

    For the top class 1 − p is summed over the other classes, because 1 − p would cancel.
    """
    xp = namespace(logits)
    log_p = log_softmax(logits)
    # Below the top p ≤ ½; the top entry is overwritten, and capped here to keep log1p finite.
    p = xp.exp(xp.where(log_p < -0.5, log_p, xp.full_like(log_p, -0.5)))
    return xp.where(_is_top(logits), top_log_odds(logits), log_p - xp.log1p(-p))


def _is_top(logits: Array) -> Array:
    xp = namespace(logits)
    top = xp.argmax(logits, axis=1, keepdims=True)
    return top == like(np.arange(logits.shape[1]), top)


def _without_top(logits: Array) -> Array:
    xp = namespace(logits)
    return xp.where(_is_top(logits), xp.full_like(logits, -xp.inf), logits)


def top_log_odds(logits: Array) -> Array:
    below = logits - namespace(logits).max(logits, axis=1, keepdims=True)
    return -logsumexp(_without_top(below), axis=1, keepdims=True)


def replace_top(logits: Array, t: Array) -> Array:
    """Log-probabilities with log-odds t (N, 1) of the top class; the others stay in proportion.

    t is raised where the top class would lose its place.
    """
    xp = namespace(logits)
    share = log_softmax(_without_top(logits))  # log of the others' proportions
    least = xp.max(share, axis=1, keepdims=True) + KEEP_ARGMAX
    t = xp.where(t > least, t, least)
    return xp.where(_is_top(logits), -softplus(-t), share - softplus(t))


def pack(edges: list[np.ndarray], pieces: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Pad ragged columns to one size, L = 2^m − 1 edges, as `piecewise` expects.

    edges[j]: (M_j,) increasing; pieces[j]: (M_j + 1, 1 + D). Padding repeats the last edge and the
    last piece, so it changes no value. Returns (J, L) and (J, L + 1, 1 + D).
    """
    size = (1 << max(len(e) for e in edges).bit_length()) - 1
    padded = [np.pad(e, (0, size - len(e)), "edge") if len(e) else np.zeros(size) for e in edges]
    rows = [np.pad(p, ((0, size + 1 - len(p)), (0, 0)), "edge") for p in pieces]
    return np.stack(padded).astype(np.float64), np.stack(rows).astype(np.float64)


def with_tails(spline: Any, knots: np.ndarray, x: np.ndarray) -> np.ndarray:
    """A scipy spline at x (N,), extended linearly outside its knots."""
    ends = spline.derivative()(knots[[0, -1]])
    tails = np.stack([np.minimum(x - knots[0], 0), np.maximum(x - knots[-1], 0)], axis=1)
    return spline(np.clip(x, knots[0], knots[-1])) + tails @ ends


def cubic_pieces(spline: PPoly) -> tuple[np.ndarray, np.ndarray]:
    """Edges (M,) and pieces (M + 1, 5) of a cubic spline that is linear outside its M knots."""
    apart = np.diff(spline.x) > 0
    knots, coefficients = np.append(spline.x[:-1][apart], spline.x[-1]), spline.c[:, apart]
    spline, ends, straight = PPoly(coefficients, knots), knots[[0, -1]], np.zeros(2)
    first, last = zip(ends, spline(ends), spline(ends, 1), straight, straight)
    inner = np.concatenate([knots[:-1, None], coefficients[::-1].T], axis=1)
    return knots, np.concatenate([[first], inner, [last]])


def piecewise(x: Array, edges: Array, pieces: Array) -> Array:
    """Values at x (N, J): column j has edges (L,) and pieces (origin, c₀, c₁, …), L = 2^m − 1.

    Piece i is Σ c_d (x − origin)^d on edges[i−1] < x ≤ edges[i]; the first and the last are
    unbounded. The binary search is written out in m vectorised steps, because array libraries have
    none for different edges per column and ONNX has none at all.
    """
    xp = namespace(x)
    columns, size = edges.shape
    flat_edges = xp.reshape(like(edges, x), (-1,))
    index = xp.zeros_like(x, dtype=xp.int64)
    first = like(np.arange(columns) * size, index)
    step = (size + 1) // 2
    while step:
        below = _take(flat_edges, index + (first + (step - 1))) < x
        index = index + xp.where(below, step, 0)
        step //= 2
    index = index + like(np.arange(columns) * (size + 1), index)
    width = pieces.shape[-1]
    table = xp.reshape(like(pieces, x), (-1, width))
    value = _take(table[:, width - 1], index)
    if width > 2:
        u = x - _take(table[:, 0], index)
        for d in range(width - 2, 0, -1):
            value = value * u + _take(table[:, d], index)
    return value


def _take(table: Array, index: Array) -> Array:
    """table (M,) at index (N, J); the array API takes one-dimensional indices only."""
    xp = namespace(index)
    flat = take_along_axis(table, xp.reshape(index, (-1,)), axis=0)
    return xp.reshape(flat, (-1, index.shape[1]))
