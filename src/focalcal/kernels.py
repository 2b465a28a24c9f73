"""The work over samples in NumPy: the specification of the compiled loops of the same names.

It is also what runs without numba, on small inputs and on a GPU.
"""

from __future__ import annotations

import functools
import os
from types import ModuleType

import numpy as np

from focalcal._arrays import Array, namespace, take_along_axis, to_numpy

LEAST = 1 << 22
"""Numbers in an input from which compiled loops are used; below, importing numba costs more."""


@functools.cache
def loops() -> ModuleType | None:
    """`focalcal.loops`, or None where numba is missing or FOCALCAL_FAST=0 switches it off."""
    if os.environ.get("FOCALCAL_FAST") == "0":
        return None
    try:
        from focalcal import loops
    except ImportError:
        return None
    return loops


def fast(size: int) -> bool:
    """Whether an input of `size` numbers goes through compiled loops."""
    return size >= LEAST and loops() is not None


def top_label(p: Array, y: Array) -> tuple[Array, Array]:
    """The largest probability of each row of (n, K), and whether the label is its first class."""
    xp = namespace(p)
    at = xp.argmax(p, axis=1)
    return take_along_axis(p, at[:, None], axis=1)[:, 0], at == y


def scores_of_probs(p: Array, y: Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """−ln p_y, entropy −Σ p ln p and squared error Σ (p − 1[y=k])² of each row of (n, K)."""
    xp = namespace(p)
    y = xp.astype(y, xp.int64)
    with np.errstate(divide="ignore"):
        log_p = xp.log(xp.astype(p, xp.float64))
    own = take_along_axis(p, y[:, None], axis=1)[:, 0]
    nll = -take_along_axis(log_p, y[:, None], axis=1)[:, 0]
    entropy = -xp.sum(xp.where(p > 0, p * xp.where(p > 0, log_p, 0.0), 0.0), axis=1)
    wide = xp.astype(own, xp.float64)
    rest = xp.sum(xp.astype(p, xp.float64) ** 2, axis=1) - wide**2
    return to_numpy(nll), to_numpy(entropy), to_numpy(xp.clip(rest, min=0.0) + (1 - wide) ** 2)


def scores_of_logits(z: Array, y: Array) -> tuple[Array, ...]:
    """Probabilities (n, K), top label and scores of logits: (p, confidence, correct, *scores).

    ln Σ exp z − z_y and ln Σ exp z − Σ p z in terms of z − max z: finite for every finite logit.
    """
    xp = namespace(z)
    at = xp.argmax(z, axis=1)
    with np.errstate(over="ignore"):
        below = z - take_along_axis(z, at[:, None], axis=1)
    below = xp.clip(below, min=float(xp.finfo(z.dtype).min))
    e = xp.exp(below)
    is_top = xp.arange(z.shape[1], device=z.device)[None, :] == at[:, None]
    rest = xp.sum(xp.astype(xp.where(is_top, 0.0, e), xp.float64), axis=1)
    total = 1 + rest
    p = xp.astype(e / total[:, None], z.dtype)
    own = take_along_axis(below, xp.astype(y, xp.int64)[:, None], axis=1)[:, 0]
    mean = xp.sum(xp.where(p > 0, p * xp.where(p > 0, below, 0.0), 0.0), axis=1)
    wide = xp.astype(p, xp.float64)
    hot = xp.arange(z.shape[1], device=z.device)[None, :] == y[:, None]
    square = xp.sum(xp.where(hot, 1 - wide, wide) ** 2, axis=1)
    log_total = xp.log1p(rest)
    confidence = xp.astype(1 / total, z.dtype)
    columns = confidence, at == y, log_total - own, log_total - mean, square
    return (p, *map(to_numpy, columns))


def bin_between(x: np.ndarray, inner: np.ndarray) -> np.ndarray:
    """How many of the increasing inner edges lie below each value; all of them below NaN."""
    if len(inner) > 32:
        return np.asarray(np.searchsorted(inner, x))
    at = np.full(x.shape, len(inner), np.int8)  # a comparison per edge beats a search
    for edge in inner:
        at -= x <= edge
    return at.astype(np.intp)


def bins_of(x: np.ndarray, hit: np.ndarray, w: np.ndarray | None, edges: np.ndarray) -> np.ndarray:
    """Σ w, Σ w·x and Σ w·hit per bin, (3, M); x (n,), hit (n,) bool, w (n,) or None."""
    m = len(edges) - 1
    at = bin_between(x, edges[1:-1])
    hits = hit.astype(np.float64) if w is None else hit * w
    sums = w, x if w is None else x * w, hits
    return np.stack([np.bincount(at, weights=v, minlength=m) for v in sums])


def class_bins_of(p: np.ndarray, y: np.ndarray, w: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Σ w, Σ w·p and Σ w·1[y=k] per class and bin, (3, K, M); a label of −1 is no class."""
    (n, k), m = p.shape, len(edges) - 1
    cell = bin_between(p, edges[1:-1]) + np.arange(k) * m
    flat, some = cell.ravel(), np.flatnonzero(y >= 0)
    each = np.broadcast_to(w[:, None], (n, k)).ravel()
    tables = (
        np.bincount(flat, weights=each, minlength=k * m),
        np.bincount(flat, weights=(p * w[:, None]).ravel(), minlength=k * m),
        np.bincount(cell[some, y[some]], weights=w[some], minlength=k * m),
    )
    return np.stack(tables).reshape(3, k, m)


def log_odds(p: np.ndarray) -> np.ndarray:
    """ln p/(1 − p), infinite at 0 and 1."""
    with np.errstate(divide="ignore"):
        return np.log(p / (1 - p))


def open_edges(edges: np.ndarray, kind: np.dtype) -> np.ndarray:
    """Edges in the precision of the values, the outer ones infinite, for the compiled loops."""
    return np.concatenate([[-np.inf], edges[1:-1], [np.inf]]).astype(kind)


def is_even(edges: np.ndarray) -> bool:
    """Whether edges are those of equally wide bins on [0, 1]."""
    return np.array_equal(edges, np.linspace(0.0, 1.0, len(edges)))


def cell_scores(
    p: np.ndarray, y: np.ndarray, inner: np.ndarray, slope: np.ndarray, level: np.ndarray
) -> np.ndarray:
    """Σ_k slope[k, b]·(p_k − 1[y=k]) + level[k, b] of each row, b the bin of p_k in class k.

    p: (n, K); inner: (K, M−1) inner edges of each class; slope, level: (K, M). Returns (n,).
    """
    out = np.zeros(len(p))
    for k in range(p.shape[1]):
        at = np.searchsorted(inner[k], p[:, k])
        out += slope[k, at] * (p[:, k] - (y == k)) + level[k, at]
    return out
