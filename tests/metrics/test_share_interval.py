"""The interval of a share against SciPy's, which inverts the test by root finding."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

from focalcal.bins import bin_samples
from focalcal.errors import InputError
from focalcal.figures import accuracy_interval
from focalcal.metrics.proportion import proportion, share_interval


@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
@pytest.mark.parametrize(("hits", "n"), [(0, 7), (3, 7), (7, 7), (1, 1), (250, 1000)])
def test_equals_the_exact_test(hits, n, level):
    own = binomtest(hits, n).proportion_ci(level, method="exact")
    found = share_interval(hits, n, level)
    assert tuple(map(float, found)) == pytest.approx((own.low, own.high), abs=1e-12)


def test_an_empty_bin_has_no_interval():
    assert np.isnan(share_interval([0], [0])).all()


def test_figures_and_decisions_have_the_same_interval():
    b = bin_samples([0.7] * 10, [1] * 7 + [0] * 3, [0.0, 0.5, 1.0])
    low, high = accuracy_interval(b, 0.9)
    found = proportion(7, 10, 0.9)
    assert (low[1], high[1]) == (found.low, found.high)


def test_a_level_outside_zero_and_one_is_refused():
    with pytest.raises(InputError, match="level between 0 and 1"):
        share_interval(1, 2, 1.0)
