"""The search for a value's bin, against a binary search, where it is hardest: beside the edges."""

from __future__ import annotations

import numpy as np
import pytest

from focalcal._bin_index import _even, edges_below


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_even_bins_are_found_beside_every_edge(dtype, rng):
    ways = set()
    for m in range(1, 300):
        inner = np.linspace(0, 1, m + 1)[1:-1].astype(dtype)
        near = [inner]
        for end in (-1, 2):
            step = inner
            for _ in range(3):
                step = np.nextafter(step, dtype(end))
                near.append(step)
        x = np.concatenate(
            [*near, rng.random(50).astype(dtype), [0, 1, -1, 2, np.inf, 1e-30, -0.0]]
        )
        x = x.astype(dtype)
        np.testing.assert_array_equal(edges_below(x, inner), np.searchsorted(inner, x), str(m))
        even, exact = _even(inner.tobytes(), np.dtype(dtype))
        ways.add((even is not None, exact))
    assert ways == {(True, True), (True, False), (False, False)}  # every way was taken


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_uneven_bins(dtype, rng):
    for m in (2, 10, 47, 48, 49, 300):
        inner = np.unique(rng.random(m).astype(dtype))
        x = np.concatenate([inner, np.nextafter(inner, dtype(2)), rng.random(70_000).astype(dtype)])
        np.testing.assert_array_equal(edges_below(x, inner), np.searchsorted(inner, x))


@pytest.mark.parametrize("m", [2, 15, 20, 100, 300])
@pytest.mark.parametrize("even", [True, False])
def test_not_a_number_is_in_the_last_bin_and_shapes_are_kept(m, even):
    inner = np.linspace(0, 1, m + 1)[1:-1] ** (1 if even else 2)
    for dtype in (np.float32, np.float64):
        x = np.array([[np.nan, 1.0], [0.0, np.nan]], dtype=dtype)
        np.testing.assert_array_equal(edges_below(x, inner), [[m - 1, m - 1], [0, m - 1]])
    assert edges_below(np.ones((3, 0)), inner).shape == (3, 0)
