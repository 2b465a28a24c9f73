"""The loops over samples: each a NumPy reference and, beside it, a plain loop compiled by numba.

The reference is the specification, and what runs without numba, on small inputs and on a GPU.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from focalcal._arrays import Array, namespace, take_along_axis, to_numpy

LEAST = 1 << 22
"""Numbers in an input from which compiled loops are used; below, importing numba costs more."""


@functools.cache
def numba_module() -> Any:
    """numba, or None where it is missing or FOCALCAL_FAST=0 switches it off."""
    if os.environ.get("FOCALCAL_FAST") == "0":
        return None
    try:
        import numba
    except ImportError:
        return None
    return numba


def fast(size: int) -> bool:
    """Whether an input of `size` numbers goes through compiled loops."""
    return size >= LEAST and numba_module() is not None


class Loop:
    """A plain loop over arrays, compiled on its first call and cached on disk.

    numba caches beside this file, or in the user's cache folder where that is read-only; where
    neither can be written, the loop is compiled anew in each process.
    """

    __wrapped__: Callable

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)

    @functools.cached_property
    def compiled(self) -> Callable[..., Any]:
        jit = numba_module().njit
        try:
            return jit(nogil=True, cache=True, error_model="numpy")(self.__wrapped__)
        except RuntimeError:  # no folder to cache in
            return jit(nogil=True, error_model="numpy")(self.__wrapped__)

    def __call__(self, *arguments: Any) -> Any:
        return self.compiled(*arguments)


def top_label(p: Array, y: Array) -> tuple[Array, Array]:
    """The largest probability of each row of (n, K), and whether the label is its first class."""
    xp = namespace(p)
    at = xp.argmax(p, axis=1)
    return take_along_axis(p, at[:, None], axis=1)[:, 0], at == y


@Loop
def top_label_loop(p, y, tolerance, confidence, correct):
    """`top_label` into two vectors; False if a row is not a distribution or a label no class."""
    fine = True
    n, k = p.shape
    for i in range(n):
        at, best, least, total = 0, p[i, 0], p[i, 0], 0.0
        for j in range(k):
            v = p[i, j]
            total += v
            least = min(least, v)
            if v > best:
                at, best = j, v
        confidence[i] = best
        correct[i] = at == y[i]
        good = least >= 0 and best <= 1 and abs(total - 1) <= tolerance
        fine = fine and good and 0 <= y[i] < k
    return fine


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


@Loop
def scores_of_probs_loop(p, log_p, y, nll, entropy, square):
    """`scores_of_probs` into three vectors, given log p."""
    n, k = p.shape
    for i in range(n):
        mean, rest, own = 0.0, 0.0, np.float64(p[i, y[i]])
        for j in range(k):
            v = np.float64(p[i, j])
            if v > 0:
                mean += v * log_p[i, j]
            if j != y[i]:
                rest += v * v
        nll[i] = -log_p[i, y[i]]
        entropy[i] = -mean
        square[i] = rest + (1 - own) * (1 - own)


def scores_of_logits(z: Array, y: Array) -> tuple[Array, ...]:
    """Probabilities (n, K), top label and scores of logits: (p, confidence, correct, *scores).

    ln Σ exp z − z_y and ln Σ exp z − Σ p z in terms of z − max z: finite for every finite logit.
    """
    xp = namespace(z)
    at = xp.argmax(z, axis=1)
    with np.errstate(over="ignore"):
        below = z - take_along_axis(z, at[:, None], axis=1)
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


@Loop
def below_top_loop(z, below, top):
    """z − max z of each row, and where the maximum is."""
    n, k = z.shape
    for i in range(n):
        at, best = 0, z[i, 0]
        for j in range(1, k):
            if z[i, j] > best:
                at, best = j, z[i, j]
        top[i] = at
        for j in range(k):
            below[i, j] = z[i, j] - best


@Loop
def scores_of_logits_loop(below, e, top, y, confidence, correct, rest, nll, entropy, square):
    """Columns of logits given z − max z and its exponential, which becomes p.

    ln Σ exp z = log1p(rest) is left to be added to `nll` and `entropy`.
    """
    n, k = below.shape
    for i in range(n):
        others = 0.0
        for j in range(k):
            others += e[i, j]
        others -= 1.0
        if others < 1e-3:  # the difference has lost digits
            others = 0.0
            for j in range(k):
                if j != top[i]:
                    others += e[i, j]
        share = 1 / (1 + others)
        mean, squares = 0.0, 0.0
        for j in range(k):
            v = e[i, j] * share
            e[i, j] = v
            squares += v * v
            if v > 0:
                mean += v * below[i, j]
        own = np.float64(e[i, y[i]])
        confidence[i] = share
        correct[i] = top[i] == y[i]
        rest[i] = others
        nll[i] = -below[i, y[i]]
        entropy[i] = -mean
        square[i] = max(squares - own * own, 0.0) + (1 - own) * (1 - own)


def bins_of(x: np.ndarray, hit: np.ndarray, w: np.ndarray | None, edges: np.ndarray) -> np.ndarray:
    """Σ w, Σ w·x and Σ w·hit per bin, (3, M); x (n,), hit (n,) bool, w (n,) or None."""
    m = len(edges) - 1
    at = np.searchsorted(edges[1:-1], x)
    hits = hit.astype(np.float64) if w is None else hit * w
    sums = w, x if w is None else x * w, hits
    return np.stack([np.bincount(at, weights=v, minlength=m) for v in sums])


@Loop
def bins_loop(x, hit, w, edges, table):
    """`bins_of`, added to a table; the first guess is right for equally wide bins on [0, 1]."""
    m = len(edges) - 1
    for i in range(len(x)):
        v = x[i]
        b = min(max(int(v * m), 0), m - 1)
        while b > 0 and v <= edges[b]:
            b -= 1
        while b < m - 1 and v > edges[b + 1]:
            b += 1
        table[0, b] += w[i]
        table[1, b] += w[i] * v
        if hit[i]:
            table[2, b] += w[i]


@Loop
def search_bins_loop(x, hit, w, edges, table):
    """`bins_of`, added to a table, for bins of any width: a binary search per sample."""
    m = len(edges) - 1
    for i in range(len(x)):
        low, high = 0, m - 1
        while low < high:
            middle = (low + high) // 2
            if x[i] > edges[middle + 1]:
                low = middle + 1
            else:
                high = middle
        table[0, low] += w[i]
        table[1, low] += w[i] * x[i]
        if hit[i]:
            table[2, low] += w[i]


def class_bins_of(p: np.ndarray, y: np.ndarray, w: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Σ w, Σ w·p and Σ w·1[y=k] per class and bin, (3, K, M); a label of −1 is no class."""
    (n, k), m = p.shape, len(edges) - 1
    cell = np.searchsorted(edges[1:-1], p) + np.arange(k) * m
    flat, some = cell.ravel(), np.flatnonzero(y >= 0)
    each = np.broadcast_to(w[:, None], (n, k)).ravel()
    tables = (
        np.bincount(flat, weights=each, minlength=k * m),
        np.bincount(flat, weights=(p * w[:, None]).ravel(), minlength=k * m),
        np.bincount(cell[some, y[some]], weights=w[some], minlength=k * m),
    )
    return np.stack(tables).reshape(3, k, m)


@Loop
def class_bins_loop(p, y, w, edges, table):
    """`class_bins_of` for equally wide bins, added to a table.

    Most probabilities of many classes are in the first bin: it is summed without a branch.
    """
    n, k = p.shape
    m = len(edges) - 1
    first = edges[1] if m > 1 else np.inf
    for j in range(k):
        count, total = 0.0, 0.0
        for i in range(n):
            v = p[i, j]
            here = w[i] if v <= first else 0.0
            count += here
            total += here * v
            if v > first:
                b = min(int(v * m), m - 1)
                while b > 0 and v <= edges[b]:
                    b -= 1
                while b < m - 1 and v > edges[b + 1]:
                    b += 1
                table[0, j, b] += w[i]
                table[1, j, b] += w[i] * v
        table[0, j, 0] += count
        table[1, j, 0] += total
    for i in range(n):
        if 0 <= y[i] < k:
            v = p[i, y[i]]
            b = min(max(int(v * m), 0), m - 1)
            while b > 0 and v <= edges[b]:
                b -= 1
            while b < m - 1 and v > edges[b + 1]:
                b += 1
            table[2, y[i], b] += w[i]


@Loop
def cells_loop(x, odds, hit, w, edges, from_x, from_odds, reach, table):
    """`bins_of` for the cells of `fine_edges`: two tables say from which edge on to look.

    from_x[i]: an edge at or below i/len(from_x); from_odds[i]: the same for log-odds, which lie in
    [−reach, reach].
    """
    m, steps = len(edges) - 1, (len(from_odds) - 1) / (2 * reach)
    for i in range(len(x)):
        v = np.float64(x[i])
        near = min(max(odds[i], -reach), reach)
        b = max(from_x[int(v * (len(from_x) - 1))], from_odds[int((near + reach) * steps)])
        while b > 0 and v <= edges[b]:
            b -= 1
        while b < m - 1 and v > edges[b + 1]:
            b += 1
        table[0, b] += w[i]
        table[1, b] += w[i] * v
        if hit[i]:
            table[2, b] += w[i]


def log_odds(p: np.ndarray) -> np.ndarray:
    """ln p/(1 − p) in float64, infinite at 0 and 1."""
    wide = np.asarray(p, np.float64)
    with np.errstate(divide="ignore"):
        return np.log(wide) - np.log1p(-wide)


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


@Loop
def cell_scores_loop(p, y, inner, slope, level, out):
    """`cell_scores` into a vector."""
    n, k = p.shape
    m = slope.shape[1]
    for i in range(n):
        total = 0.0
        for j in range(k):
            b = 0
            while b < m - 1 and p[i, j] > inner[j, b]:
                b += 1
            hit = 1.0 if j == y[i] else 0.0
            total += slope[j, b] * (p[i, j] - hit) + level[j, b]
        out[i] = total
