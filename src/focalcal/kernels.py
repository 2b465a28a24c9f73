"""Loops over samples in NumPy: the specification of the compiled loops with the same names.

A function and its loop in `loops` take the same arguments and write into the last ones. The NumPy
version also runs without numba and on small inputs; `pick` chooses. Outer edges are infinite
(`open_edges`); weights w are (n,), or None if all are 1.
"""

from __future__ import annotations

import functools
import math
import os
import sys
from types import ModuleType
from typing import Any

import numpy as np

LEAST = 1 << 22
"""Compiled loops are used from this input size; for less, importing numba costs more."""


@functools.cache
def loops() -> ModuleType | None:
    """`focalcal.loops`, or None if numba is missing or FOCALCAL_FAST=0 disables it."""
    if os.environ.get("FOCALCAL_FAST") == "0":
        return None
    try:
        from focalcal import loops
    except ImportError:
        return None
    return loops


def fast(size: int) -> bool:
    """Whether compiled loops are used for an input of `size` numbers."""
    return size >= LEAST and loops() is not None


def pick(quick: bool) -> ModuleType:
    """`loops` if `quick` and available, else this module."""
    return (loops() if quick else None) or sys.modules[__name__]


def open_edges(edges: np.ndarray, kind: Any) -> np.ndarray:
    """Edges in the precision of the values, the outer ones infinite."""
    return np.concatenate([[-np.inf], edges[1:-1], [np.inf]]).astype(kind)


def is_even(edges: np.ndarray) -> bool:
    """Whether edges are those of equally wide bins on [0, 1]."""
    return np.array_equal(edges, np.linspace(0.0, 1.0, len(edges)))


def log_odds(p: np.ndarray) -> np.ndarray:
    """ln p/(1 − p), infinite at 0 and 1."""
    with np.errstate(divide="ignore"):
        return np.log(p / (1 - p))


def top_label(
    p: np.ndarray, y: np.ndarray, tolerance: float, confidence: np.ndarray, correct: np.ndarray
) -> bool:
    """The largest probability of each row of (n, K), and whether the label is its first class.

    Returns False if a row is not a distribution or a label is not a class.
    """
    n, k = p.shape
    by_class = np.ascontiguousarray(p.T)  # a maximum over short rows is slow
    confidence[:] = by_class.max(axis=0)
    is_top = by_class == confidence
    total = by_class.sum(axis=0)
    if y.min() < 0 or y.max() >= k:
        return False
    correct[:] = is_top.take(y * n + np.arange(n))
    if np.count_nonzero(is_top) > n:  # the first of equal ones counts
        correct[:] = p.argmax(axis=1) == y
    fine = p.min() >= 0 and confidence.max() <= 1
    return bool(fine and np.abs(total - 1).max() <= tolerance)


def scores_of_probs(
    p: np.ndarray,
    log_p: np.ndarray,
    y: np.ndarray,
    nll: np.ndarray,
    entropy: np.ndarray,
    square: np.ndarray,
) -> None:
    """−ln p_y, entropy −Σ p ln p and squared error Σ (p − 1[y=k])² of each row of (n, K)."""
    rows = np.arange(len(p))
    own = p[rows, y].astype(np.float64)
    nll[:] = -log_p[rows, y]
    entropy[:] = -np.einsum("nk,nk->n", p, np.where(p > 0, log_p, 0.0), dtype=np.float64)
    rest = np.einsum("nk,nk->n", p, p, dtype=np.float64) - own**2
    square[:] = np.maximum(rest, 0) + (1 - own) ** 2


def below_top(z: np.ndarray, least: float, top: np.ndarray) -> None:
    """Overwrite logits (K, n) with z − max z of each sample, at least `least`; top: the argmax."""
    best = z.max(axis=0)
    last = np.min_scalar_type(len(z)).type(len(z))
    index = np.arange(len(z), dtype=last.dtype)[:, None]
    top[:] = last - ((z == best) * (last - index)).max(axis=0)  # argmax over columns is slower
    with np.errstate(over="ignore"):
        z -= best
    if z.size and z.min() < least:
        np.maximum(z, least, out=z)


def scores_of_logits(
    below: np.ndarray,
    e: np.ndarray,
    top: np.ndarray,
    y: np.ndarray,
    confidence: np.ndarray,
    correct: np.ndarray,
    rest: np.ndarray,
    nll: np.ndarray,
    entropy: np.ndarray,
    square: np.ndarray,
) -> None:
    """Top label and scores from z − max z, (K, n), and its exponential e, overwritten with p.

    rest: Σ exp of all but the largest; the caller adds log1p(rest) to `nll` and `entropy`.
    """
    n = len(y)
    largest, labelled = top * n + np.arange(n), y * n + np.arange(n)  # positions in (K, n)
    e.put(largest, 0)
    rest[:] = e.sum(axis=0, dtype=np.float64)
    e.put(largest, 1)
    share = 1 / (1 + rest)
    own = e.take(labelled) * share
    confidence[:] = share
    correct[:] = top == y
    nll[:] = -below.take(labelled)
    entropy[:] = -share * np.einsum("kn,kn->n", e, below, dtype=np.float64)
    squares = share**2 * np.einsum("kn,kn->n", e, e, dtype=np.float64)
    square[:] = np.maximum(squares - own**2, 0) + (1 - own) ** 2
    e *= confidence


def bin_between(x: np.ndarray, inner: np.ndarray) -> np.ndarray:
    """How many of the increasing inner edges lie below each value; all of them for NaN."""
    if len(inner) > 32:
        return np.asarray(np.searchsorted(inner, x))
    below = x <= inner.reshape(-1, *[1] * x.ndim)  # a comparison per edge beats a search
    return (len(inner) - below.view(np.int8).sum(axis=0, dtype=np.int8)).astype(np.intp)


def bins_of(
    x: np.ndarray, hit: np.ndarray, w: np.ndarray | None, edges: np.ndarray, table: np.ndarray
) -> None:
    """Add Σ w, Σ w·x and Σ w·hit per bin to a table (3, M); x: (n,), hit: (n,) bool."""
    _count(bin_between(x, edges[1:-1]), x, hit, w, table)


def _count(
    at: np.ndarray, x: np.ndarray, hit: np.ndarray, w: np.ndarray | None, table: np.ndarray
) -> None:
    for sums, v in zip(table, (w, x, hit) if w is None else (w, x * w, hit * w)):
        sums += np.bincount(at, weights=v, minlength=len(sums))


def class_bins_of(
    p: np.ndarray, y: np.ndarray, w: np.ndarray | None, edges: np.ndarray, table: np.ndarray
) -> None:
    """Add Σ w, Σ w·p and Σ w·1[y=k] per class and bin to (3, K, M); the label −1 is no class."""
    _, k, m = table.shape
    p = np.ascontiguousarray(p)  # interleaved classes avoid store-forwarding stalls
    rows = math.gcd(len(p), 64)  # broadcasting over short rows is slow: use several at once
    cell = bin_between(p, edges[1:-1]).reshape(-1, rows * k)
    cell += np.tile(m * np.arange(k), rows)
    some = np.flatnonzero(y >= 0)
    at, own = cell.ravel(), cell.take(some * k + y[some])
    parts = [(at, None), (at, p.ravel()), (own, None)]
    if w is not None:
        parts = [(at, np.repeat(w, k)), (at, (p.T * w).T.ravel()), (own, w[some])]
    for sums, (where, v) in zip(table, parts):
        sums += np.bincount(where, weights=v, minlength=k * m).reshape(k, m)


def cells_of(
    x: np.ndarray,
    odds: np.ndarray,
    hit: np.ndarray,
    w: np.ndarray | None,
    cells: tuple[Any, ...],
    table: np.ndarray,
) -> None:
    """`bins_of` for the cells of `ordered.fine_edges`, given log-odds and `ordered.cell_search`.

    from_x[i]: an edge at or below i/len(from_x); from_odds[i]: the same for log-odds, which lie in
    [−reach, reach]. The search continues from there.
    """
    edges, from_x, from_odds, reach = cells
    x = x.astype(np.float64)
    near = (np.clip(odds, -reach, reach) + reach) / (2 * reach) * (len(from_odds) - 1)
    at = from_x[(x * (len(from_x) - 1)).astype(np.intp)]
    at = np.maximum(at, from_odds[near.astype(np.intp)]).astype(np.intp)
    while (below := x <= edges[at]).any():
        at -= below
    while (above := x > edges[at + 1]).any():
        at += above
    _count(at, x, hit, w, table)


def split_sum(x: np.ndarray, wrong: np.ndarray, right: np.ndarray, total: np.ndarray) -> None:
    """Add Σ wrong·x and Σ right·x to a pair of numbers; wrong and right: weights (n,), or 0."""
    x = x.astype(np.float64, copy=False)
    # A product with `@` would start BLAS threads in addition to ours.
    total += np.einsum("i,i", x, wrong), np.einsum("i,i", x, right)


def cell_scores(
    p: np.ndarray,
    y: np.ndarray,
    inner: np.ndarray,
    slope: np.ndarray,
    level: np.ndarray,
    out: np.ndarray,
) -> None:
    """Σ_k slope[k, b]·(p_k − 1[y=k]) + level[k, b] of each sample, b the bin of p_k in class k.

    p: (K, n); inner: (K, M−1) inner edges of each class; slope, level: (S, K, M); out: (S, n).
    """
    k, m = slope.shape[1:]
    at = np.zeros(p.shape, np.int32)
    for edge in inner.T:
        at += p > edge[:, None]
    cell = at + m * np.arange(k)[:, None]
    residual = p.astype(np.float64)
    residual[y, np.arange(len(y))] -= 1
    for a, b, total in zip(slope.reshape(-1, k * m), level.reshape(-1, k * m), out):
        total[:] = (a[cell] * residual + b[cell]).sum(axis=0)
