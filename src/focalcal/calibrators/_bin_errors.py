"""Calibration errors of many rows of top-class log-odds at once, each with a bound on its error.

This is the fast first look of a grid search; what it cannot decide goes to `focalcal.bins`.
"""

from __future__ import annotations

import numpy as np

from focalcal._arrays import Array, is_torch, namespace, to_numpy
from focalcal.bins import equal_width_edges, quantile_positions

CERTAIN = 38.0
"""Log-odds from here on are confidence 1 in float64."""
RESOLUTION = 2.3e-16


def bin_errors(
    odds: Array,
    correct: Array,
    weights: Array | None,
    objective: str,
    bins: int,
    epsilon: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """ECE or equal-mass ECE of each row, and how far off it can be.

    odds: (m, N) float32 log-odds of the top class, each within epsilon (m,)·(1+|L|); correct:
    (N,) bool; weights: (N,) or None. Binning by log-odds is binning by confidence, as far as
    float64 tells confidences apart.
    """
    xp = namespace(odds)
    odds = xp.clip(odds, max=CERTAIN)
    n = odds.shape[1]
    if weights is None:
        # Correctness rides in the last bit of the sort key: no index array, a third of the time.
        key = (odds.view(xp.int32) & -2) | xp.astype(correct, xp.int32)[None, :]
        key = xp.sort(key.view(xp.float32), axis=1, stable=False)
        right = xp.astype(key.view(xp.int32) & 1, xp.float32)
        gaps, mass = sigmoid(key) - right, None
    else:
        order = xp.argsort(odds, axis=1, stable=False)
        key = xp.take_along_axis(odds, order, axis=1)
        mass = xp.astype(weights, xp.float64)[order]
        gaps = mass * (sigmoid(key) - xp.astype(correct[order], xp.float32))

    total = float(n) if mass is None else float(xp.sum(xp.astype(weights, xp.float64)))
    largest = 1.0 if mass is None else float(xp.max(mass))
    if objective == "ece":
        inner = equal_width_edges(bins)[1:-1]
        edges = np.broadcast_to(np.log(inner / (1 - inner)), (key.shape[0], bins - 1))
        edges = _like(edges, key)
    else:
        edges = xp.take_along_axis(key, _quantiles(mass, key, bins), axis=1)
    # dp = p(1−p)·dL: this far apart two log-odds may still be the same confidence in float64
    reach = _like(epsilon[:, None], key) * (1 + xp.abs(edges)) + RESOLUTION * xp.exp(edges)
    low, cut, high = (_search(key, e) for e in (edges - reach, edges, edges + reach))
    # Scores that are certain are ties; only those below them may or may not tie with them.
    below = _search(key, _like(np.full((key.shape[0], 1), CERTAIN - 1e-4), key))
    high = xp.where(edges < CERTAIN, high, xp.maximum(below, low))
    unsure = to_numpy(xp.sum(high - low, axis=1))
    if objective != "ece":
        unsure = unsure - to_numpy(xp.sum(xp.astype(edges < CERTAIN, xp.int64), axis=1))

    errors = to_numpy(xp.sum(xp.abs(_between(gaps, cut)), axis=1)) / total
    # A shifted confidence moves the error by at most itself (σ'(L)(1+|L|) < 0.4); a sample that
    # could lie on either side of an edge moves it by at most twice its share.
    return errors, 0.4 * epsilon + 2 * largest / total * np.maximum(unsure, 0)


def _quantiles(mass: Array | None, key: Array, bins: int) -> Array:
    """Positions (m, bins−1) of the equal-mass edges in rows sorted by `key`."""
    xp = namespace(key)
    rows, n = key.shape
    if mass is None:
        ranks = np.maximum((np.arange(1, bins) * n + bins - 1) // bins - 1, 0)
        positions = np.broadcast_to(ranks, (rows, bins - 1))
    else:
        cumulative = to_numpy(xp.cumulative_sum(mass, axis=1))
        positions = np.stack([quantile_positions(row, bins) for row in cumulative])
    return _like(positions.astype(np.int64), xp.astype(key, xp.int64)[:1, :1])


def _search(rows: Array, values: Array) -> Array:
    """How many entries of each sorted row are ≤ each value of the same row of `values`."""
    if is_torch(rows):
        import torch

        return torch.searchsorted(rows.contiguous(), values.contiguous(), right=True)
    return np.stack([np.searchsorted(row, v, side="right") for row, v in zip(rows, values)])


def _between(x: Array, cuts: Array) -> Array:
    """Sums of each row of x (m, N) between its cuts (m, c), 0 and N: (m, c+1), in float64."""
    xp = namespace(x)
    if is_torch(x):
        running = xp.cumulative_sum(xp.astype(x, xp.float64), axis=1)
        running = xp.concat([xp.zeros_like(running[:, :1]), running], axis=1)
        ends = xp.take_along_axis(running, cuts, axis=1)
        return xp.concat([ends, running[:, -1:]], axis=1) - xp.concat(
            [running[:, :1], ends], axis=1
        )
    m, n = x.shape
    padded = np.zeros((m, n + 1), dtype=x.dtype)  # reduceat wants every start inside the array
    padded[:, :n] = x
    starts = np.concatenate([np.zeros((m, 1), dtype=np.int64), cuts], axis=1)
    flat = starts + np.arange(m)[:, None] * (n + 1)
    sums = np.add.reduceat(padded.reshape(-1), flat.reshape(-1), dtype=np.float64)
    sums = sums.reshape(starts.shape)
    ends = np.concatenate([cuts, np.full((m, 1), n)], axis=1)
    return np.where(ends > starts, sums, 0.0)  # of an empty stretch reduceat gives its first


def sigmoid(x: Array) -> Array:
    """1/(1 + e^−x), without overflow."""
    xp = namespace(x)
    e = xp.clip(x, min=-80.0)
    e *= -1
    e = xp.exp(e)
    e += 1
    return 1 / e


def _like(values: np.ndarray, reference: Array) -> Array:
    if not is_torch(reference):
        return np.asarray(values, dtype=reference.dtype)
    import torch

    return torch.as_tensor(np.array(values), dtype=reference.dtype, device=reference.device)
