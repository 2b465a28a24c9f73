"""Piecewise polynomials, one per column: the common form of steps, isotonic lines and splines."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.interpolate import PPoly

from focalcal._arrays import Array, like, namespace, take_along_axis
from focalcal.calibrators._columns import ColumnCalibrator


class PiecewiseCalibrator(ColumnCalibrator):
    """A calibrator whose columns are piecewise polynomials of the log-odds.

    A subclass says in `state` how many numbers a piece has: origin, value, slope, …
    """

    def _calibrate(self, log_odds: Array) -> Array:
        return piecewise(log_odds, self.edges_, self.pieces_)


def pack(edges: list[np.ndarray], pieces: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Pad ragged columns to one size, L = 2^m − 1 edges, as `piecewise` takes them.

    edges[j]: (M_j,) increasing; pieces[j]: (M_j + 1, 1 + D). Padding repeats the last edge and the
    last piece, so it changes no value. Returns (J, L) and (J, L + 1, 1 + D).
    """
    size = (1 << max(len(e) for e in edges).bit_length()) - 1
    padded = [np.pad(e, (0, size - len(e)), "edge") if len(e) else np.zeros(size) for e in edges]
    rows = [np.pad(p, ((0, size + 1 - len(p)), (0, 0)), "edge") for p in pieces]
    return np.stack(padded).astype(np.float64), np.stack(rows).astype(np.float64)


def with_tails(spline: Any, knots: np.ndarray, x: np.ndarray) -> np.ndarray:
    """A spline of scipy's at x (N,), straight outside its knots."""
    ends = spline.derivative()(_inside(knots))
    tails = np.stack([np.minimum(x - knots[0], 0), np.maximum(x - knots[-1], 0)], axis=1)
    return spline(np.clip(x, knots[0], knots[-1])) + tails @ ends


def cubic_pieces(spline: PPoly) -> tuple[np.ndarray, np.ndarray]:
    """Edges (M,) and pieces (M + 1, 5) of a cubic spline that is straight outside its M knots."""
    apart = np.diff(spline.x) > 0
    knots = np.append(spline.x[:-1][apart], spline.x[-1])
    ends, straight = knots[[0, -1]], np.zeros(2)
    first, last = zip(ends, spline(ends), spline(_inside(knots), 1), straight, straight)
    inner = np.concatenate([knots[:-1, None], spline.c[::-1, apart].T], axis=1)
    return knots, np.concatenate([[first], inner, [last]])


def _inside(knots: np.ndarray) -> np.ndarray:
    """The first and the last knot, where derivatives are limits from inside."""
    return np.array([knots[0], np.nextafter(knots[-1], knots[0])])


def piecewise(x: Array, edges: Array, pieces: Array) -> Array:
    """Values at x (N, J): column j has edges (L,) and pieces (origin, c₀, c₁, …), L = 2^m − 1.

    Piece i is Σ c_d (x − origin)^d on edges[i−1] < x ≤ edges[i]; the first and the last are
    unbounded. The binary search takes m vectorised steps, because array libraries have none with
    different edges per column and ONNX has none at all.
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
    """table (M,) at index (N, J), which the standard takes along an axis only."""
    xp = namespace(index)
    flat = take_along_axis(table, xp.reshape(index, (-1,)), axis=0)
    return xp.reshape(flat, (-1, index.shape[1]))
