"""The references of `kernels` as plain loops compiled by numba.

Imported only by `kernels.loops`, for large inputs. Values to be binned must lie in [0, 1]. Bins are
unsigned integers: numba tests whether a signed index is negative.
"""

from __future__ import annotations

import numpy as np
from numba import njit


def loop(function):
    """Compile on the first call, cached on disk: beside this file, else in the user's cache."""
    # Sums may be reordered, so that they can be vectorised.
    options = {"nogil": True, "error_model": "numpy", "fastmath": {"reassoc", "contract", "nsz"}}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # no folder for the cache: compile in each process
        return njit(**options)(function)


@loop
def top_label(p, y, tolerance, confidence, correct):
    fine = True
    n, k = p.shape
    for i in range(n):
        at, best, least, total = 0, p[i, 0], p[i, 0], p[i, 0]
        for j in range(1, k):
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


@loop
def scores_of_probs(p, log_p, y, nll, entropy, square):
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


@loop
def below_top(z, least, top):
    k, n = z.shape
    best = z[0].copy()
    top[:] = 0
    for j in range(1, k):
        for i in range(n):
            top[i] = j if z[j, i] > best[i] else top[i]
            best[i] = max(z[j, i], best[i])
    for j in range(k):
        for i in range(n):
            z[j, i] = max(z[j, i] - best[i], least)


@loop
def scores_of_logits(below, e, top, y, confidence, correct, rest, nll, entropy, square):
    k, n = below.shape
    rest[:], entropy[:], square[:] = -1.0, 0.0, 0.0
    for j in range(k):
        for i in range(n):
            v = np.float64(e[j, i])
            rest[i] += v
            entropy[i] -= v * below[j, i]
            square[i] += v * v
    for i in range(n):
        own = np.uint64(y[i])
        if rest[i] < 1e-3:  # the difference has lost precision
            rest[i] = 0.0
            for j in range(k):
                if j != top[i]:
                    rest[i] += e[j, i]
        share = 1 / (1 + rest[i])
        p = e[own, i] * share
        confidence[i] = share
        correct[i] = top[i] == y[i]
        nll[i] = -below[own, i]
        entropy[i] *= share
        square[i] = max(square[i] * share * share - p * p, 0.0) + (1 - p) * (1 - p)
    for j in range(k):
        for i in range(n):
            e[j, i] *= confidence[i]


@loop
def moments(below, e, y, own, norm, mean, variance):
    """For z − max z, (K, n), with weights e: the label's value, Σ e, mean and variance."""
    k, n = below.shape
    norm[:], mean[:], variance[:] = 0.0, 0.0, 0.0
    for j in range(k):
        for i in range(n):
            v = e[j, i] * np.float64(below[j, i])
            norm[i] += e[j, i]
            mean[i] += v
            variance[i] += v * below[j, i]
    for i in range(n):
        own[i] = below[np.uint64(y[i]), i]
        mean[i] /= norm[i]
        variance[i] = variance[i] / norm[i] - mean[i] * mean[i]


@loop
def even_bin(v, edges):
    """The bin of v among equally wide ones; the slightly reduced product never overshoots it."""
    b = np.uint64(v * edges.dtype.type((len(edges) - 1) * (1 - 1e-6)))
    while v > edges[b + np.uint64(1)]:
        b += np.uint64(1)
    return b


@loop
def cell_bin(v, odds, edges, from_x, from_odds, reach):
    """The bin of v among `fine_edges`."""
    near = min(max(odds, -reach), reach)
    at = np.uint64((near + reach) / (2 * reach) * (len(from_odds) - 1))
    b = max(from_x[np.uint64(v * (len(from_x) - 1))], from_odds[at])
    while v <= edges[b]:
        b -= np.uint64(1)
    while v > edges[b + np.uint64(1)]:
        b += np.uint64(1)
    return b


@loop
def weight(w, i):
    return 1.0 if w is None else w[i]


@loop
def add(table, b, x, hit, w):
    table[0, b] += w
    table[1, b] += w * x
    table[2, b] += w * hit


@loop
def bins_of(x, hit, w, edges, table):
    """For equally wide bins."""
    for i in range(len(x)):
        add(table, even_bin(x[i], edges), x[i], hit[i], weight(w, i))


@loop
def class_bins_of(p, y, w, edges, table):
    """For equally wide bins."""
    n, k = p.shape
    for i in range(n):
        one = weight(w, i)
        for j in range(k):
            v = p[i, j]
            b = even_bin(v, edges)
            table[0, j, b] += one
            table[1, j, b] += one * v
        if y[i] >= 0:
            own = np.uint64(y[i])
            table[2, own, even_bin(p[i, own], edges)] += one


@loop
def cells_of(x, odds, hit, w, cells, table):
    for i in range(len(x)):
        v = np.float64(x[i])
        add(table, cell_bin(v, odds[i], *cells), v, hit[i], weight(w, i))


@loop
def split_sum(x, wrong, right, total):
    low, high = 0.0, 0.0
    for i in range(len(x)):
        low += x[i] * wrong[i]
        high += x[i] * right[i]
    total[0] += low
    total[1] += high


@loop
def cell_scores(p, y, inner, slope, level, out):
    k, n = p.shape
    at = np.empty(n, np.uint32)
    out[:] = 0.0
    for j in range(k):
        at[:] = 0
        for edge in inner[j]:
            for i in range(n):
                at[i] += p[j, i] > edge
        for s in range(len(slope)):
            for i in range(n):
                residual = p[j, i] - np.float64(y[i] == j)
                out[s, i] += slope[s, j, at[i]] * residual + level[s, j, at[i]]
