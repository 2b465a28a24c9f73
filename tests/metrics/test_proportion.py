"""Binomial tails and intervals against SciPy's own."""

from __future__ import annotations

import doctest
import math

import numpy as np
import pytest
from scipy import stats

from focalcal.metrics import proportion as module
from focalcal.metrics.proportion import binomial_cdf, proportion


def test_examples():
    assert doctest.testmod(module).failed == 0


def test_binomial_tail_equals_scipy():
    hits, n = np.arange(0, 41), 40
    expected = stats.binom.cdf(hits, n, 0.13)
    np.testing.assert_allclose(binomial_cdf(hits, n, 0.13), expected, rtol=1e-12)


def test_clopper_pearson_equals_scipy():
    for hits, n in [(0, 7), (3, 7), (7, 7)]:
        low, high = stats.binomtest(hits, n).proportion_ci(0.9, "exact")
        found = proportion(hits, n, 0.9)
        assert (found.low, found.high) == pytest.approx((low, high))
    assert math.isnan(proportion(0, 0, 0.9).value)
