"""Exact statements about a proportion: the binomial distribution and its intervals."""

from __future__ import annotations

import bisect
import dataclasses
import math
from typing import Any

import numpy as np

from focalcal._checks import check_level


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A metric with its interval (NaN if it has none) and its number of samples."""

    value: float
    low: float
    high: float
    n: int


def proportion(hits: int, n: int, level: float) -> Estimate:
    """hits of n with its Clopper–Pearson interval; NaN for n = 0.

    >>> e = proportion(0, 100, 0.95)
    >>> e.value, e.low, round(e.high, 4)
    (0.0, 0.0, 0.0362)
    """
    low, high = map(float, share_interval(hits, n, level))
    return Estimate(int(hits) / n if n else math.nan, low, high, int(n))


def share_interval(hits: Any, n: Any, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Exact interval (Clopper and Pearson 1934) of hits/n, elementwise; NaN where n is 0.

    >>> low, high = share_interval([9, 0], [10, 0])
    >>> low.round(3).tolist(), high.round(4).tolist()
    ([0.555, nan], [0.9975, nan])
    """
    from scipy.special import betaincinv

    check_level(level)
    hits, n = np.asarray(hits, dtype=np.float64), np.asarray(n, dtype=np.float64)
    misses, tail = n - hits, (1 - level) / 2
    # The quantile of Beta(0, ·) is 0 and that of Beta(·, 0) is 1, where SciPy returns NaN. The
    # floor only keeps arguments that np.where does not select in range.
    floor = 1e-9
    low = np.where(hits > 0, betaincinv(np.maximum(hits, floor), misses + 1, tail), 0.0)
    high = np.where(misses > 0, betaincinv(hits + 1, np.maximum(misses, floor), 1 - tail), 1.0)
    return np.where(n > 0, low, np.nan), np.where(n > 0, high, np.nan)


def binomial_cdf(hits: Any, n: Any, p: float) -> np.ndarray:
    """P(Bin(n, p) ≤ hits)."""
    from scipy.special import bdtr

    return bdtr(np.asarray(hits, np.float64), n, p)


def most_hits(n: int, p: float, alpha: float) -> int:
    """The most hits in n trials at which a probability ≥ p is rejected at level α; −1 if none is.

    >>> most_hits(299, 0.01, 0.05), most_hits(298, 0.01, 0.05)
    (0, -1)
    """
    return bisect.bisect_right(range(n + 1), alpha, key=lambda h: float(binomial_cdf(h, n, p))) - 1
