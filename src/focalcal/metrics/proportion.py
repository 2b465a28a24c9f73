"""Exact statements about a proportion: the binomial distribution and its intervals."""

from __future__ import annotations

import bisect
import math
from typing import Any

import numpy as np

from focalcal.metrics.summary import Estimate


def proportion(hits: int, n: int, level: float) -> Estimate:
    """hits of n with its Clopper–Pearson interval; NaN for n = 0.

    >>> e = proportion(0, 100, 0.95)
    >>> e.value, e.low, round(e.high, 4)
    (0.0, 0.0, 0.0362)
    """
    from scipy.special import betaincinv

    if n == 0:
        return Estimate(math.nan, math.nan, math.nan, 0)
    hits, tail = int(hits), (1 - level) / 2
    low = float(betaincinv(hits, n - hits + 1, tail)) if hits > 0 else 0.0
    high = float(betaincinv(hits + 1, n - hits, 1 - tail)) if hits < n else 1.0
    return Estimate(hits / n, low, high, int(n))


def binomial_cdf(hits: Any, n: Any, p: float) -> np.ndarray:
    """P(Bin(n, p) ≤ hits)."""
    from scipy.special import betainc

    hits, n = np.broadcast_arrays(hits, n)
    below = hits < n
    return np.where(below, betainc(np.where(below, n - hits, 1), hits + 1.0, 1 - p), 1.0)


def most_hits(n: int, p: float, alpha: float) -> int:
    """The most hits in n trials at which a probability ≥ p is rejected at level α; −1 if none is.

    >>> most_hits(299, 0.01, 0.05), most_hits(298, 0.01, 0.05)
    (0, -1)
    """
    return bisect.bisect_right(range(n + 1), alpha, key=lambda h: float(binomial_cdf(h, n, p))) - 1
