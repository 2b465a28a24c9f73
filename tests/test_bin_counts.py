"""Counts of classes against one search and one addition per number, in exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from focalcal._bin_counts import count_columns, count_labels, in_turn, lanes_for
from focalcal.bins import equal_mass_edges, equal_width_edges


def columns_of(rng, n: int, k: int, dtype: type, edges: np.ndarray) -> np.ndarray:
    """Probabilities with many on the edges, at 0 and at 1."""
    p = rng.dirichlet(np.full(k, 0.3), size=n).T.astype(dtype)
    p[:, : len(edges)] = edges[: min(n, len(edges))].astype(dtype)
    return np.ascontiguousarray(p)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("m", [1, 2, 10, 15, 16, 17, 20, 32, 63, 64, 128, 255, 256, 300])
def test_counts_and_sums(rng, m, dtype):
    k, n, edges = 3, 700, equal_width_edges(m)
    p = columns_of(rng, n, k, dtype, edges)
    totals = np.array([float(sum(map(Fraction, map(float, row)))) for row in p])
    counts, sums = count_columns(p, totals, edges[1:-1])
    for row, c, s in zip(p, counts, sums):
        at = np.searchsorted(edges[1:-1].astype(dtype), row, side="left")
        exact = [Fraction(0)] * m
        for i, value in zip(at, row):
            exact[i] += Fraction(float(value))
        assert np.array_equal(c, np.bincount(at, minlength=m))
        np.testing.assert_allclose(s, np.array(exact, float), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("n", [65_519, 131_055, 131_056, 200_000])
def test_one_sum_for_number_and_sum_is_exact(n):
    """All in one bin of one class, up to the most that fits and beyond: not a bit is lost."""
    inner = equal_width_edges(15)[1:-1]
    value = np.nextafter(np.float32(1 / 16 + 1 / 128), np.float32(1))  # bin 2, all 24 bits in use
    p = np.full((2, n), value)
    total = float(value) * n
    counts, sums = count_columns(p, np.full(2, total), inner)
    assert np.array_equal(counts, [[0, n] + [0] * 13] * 2)
    assert np.array_equal(sums, [[0, total] + [0] * 13] * 2)


def test_uneven_edges(rng):
    p = rng.dirichlet(np.ones(4), size=5_000).T.astype(np.float32)
    edges = equal_mass_edges(p.reshape(-1), 12)
    counts, sums = count_columns(p, p.sum(axis=1, dtype=np.float64), edges[1:-1])
    for row, c, s in zip(p, counts, sums):
        at = np.searchsorted(edges[1:-1].astype(np.float32), row, side="left")
        assert np.array_equal(c, np.bincount(at, minlength=12))
        np.testing.assert_allclose(s, np.bincount(at, row.astype(float), 12), rtol=1e-12)


@pytest.mark.parametrize("m", [1, 15, 40, 300])
def test_labels(rng, m):
    edges = equal_width_edges(m)
    p = rng.random(3_000)
    p[:5] = 0, 1, 0, *edges[[-1, 0]]
    y = rng.integers(0, 6, 3_000)
    expected = np.zeros((6, m), int)
    np.add.at(expected, (y, np.searchsorted(edges[1:-1], p, side="left")), 1)
    assert np.array_equal(count_labels(p, y, 6, edges[1:-1]), expected)


def test_turns():
    assert lanes_for(64) == 4
    assert lanes_for(65) == 1
    assert in_turn(5, 4, 16).tolist() == [0, 16, 32, 48, 0]
    assert len(in_turn(0, 4, 16)) == 0
