"""Bins: edges, membership, sums, against plain loops that share no code with the kernel."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from focalcal import bins
from focalcal.bins import (
    ROUNDING,
    Bins,
    bin_index,
    bin_samples,
    check_bins,
    equal_mass_edges,
    equal_width_edges,
)
from focalcal.errors import InputError

unit = st.floats(0, 1, allow_subnormal=False)
values = hnp.arrays(np.float64, st.integers(1, 60), elements=unit)


def loop_index(x: float, edges: np.ndarray) -> int:
    """The definition: the first bin whose upper edge is not below x."""
    return next(i for i, hi in enumerate(edges[1:]) if x <= hi)


@given(values, st.integers(1, 70))
@settings(max_examples=60, deadline=None)
def test_index_is_the_definition(x, m):
    edges = equal_width_edges(m)
    np.testing.assert_array_equal(bin_index(x, edges), [loop_index(v, edges) for v in x])


@pytest.mark.parametrize("m", [1, 2, 10, 15, 49, 64, 1000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_values_on_edges_belong_to_the_bin_below(m, dtype):
    edges = equal_width_edges(m)
    expected = np.concatenate([[0], np.arange(m)])
    np.testing.assert_array_equal(bin_index(edges.astype(dtype), edges), expected)


def test_end_bins_are_open_ended():
    np.testing.assert_array_equal(bin_index(np.array([-1.0, 2.0]), equal_width_edges(3)), [0, 2])


def test_index_keeps_kind_and_shape():
    torch = pytest.importorskip("torch")
    x = np.linspace(0, 1, 12).reshape(3, 4)
    for edges in (equal_width_edges(5), equal_width_edges(100)):
        expected = bin_index(x, edges)
        assert expected.shape == (3, 4)
        got = bin_index(torch.as_tensor(x), edges)
        assert isinstance(got, torch.Tensor)
        np.testing.assert_array_equal(got.numpy(), expected)
    np.testing.assert_array_equal(bin_index([0, 1], [0, 0.5, 1]), [0, 1])


@given(values, st.integers(1, 20), st.booleans())
@settings(max_examples=60, deadline=None)
def test_every_sample_is_counted_once(x, m, equal_mass):
    edges = equal_mass_edges(x, m) if equal_mass else equal_width_edges(m)
    correct = np.arange(len(x)) % 2
    b = bin_samples(x, correct, edges)
    assert b.counts.sum() == len(x) == b.total
    index = np.array([loop_index(v, edges) for v in x])
    for i in range(len(b)):
        assert b.counts[i] == (index == i).sum()
        assert b.correct_sums[i] == correct[index == i].sum()
        assert b.confidence_sums[i] == pytest.approx(x[index == i].sum(), abs=1e-12)


@given(values, st.integers(1, 20))
@settings(max_examples=60, deadline=None)
def test_equal_mass_bins_hold_equal_mass_up_to_ties(x, m):
    edges = equal_mass_edges(x, m)
    assert len(edges) <= m + 1
    assert edges[0] == 0
    assert edges[-1] == 1
    b = bin_samples(x, x > 2, edges)
    assert (b.counts > 0).all()
    for lo, hi, count in zip(edges[:-1], edges[1:], b.counts):
        inside = np.sort(x[(x > lo) & (x <= hi) | ((x == 0) & (lo == 0))])
        # Without its last group of values equal up to rounding a bin is smaller than one share.
        assert count - (inside * (1 + 1.1 * ROUNDING) >= inside[-1]).sum() < len(x) / m


def test_equal_mass_without_ties_is_an_even_split(rng):
    x = rng.random(150)
    b = bin_samples(x, x > 0.5, equal_mass_edges(x, 15))
    np.testing.assert_array_equal(b.counts, np.full(15, 10))


@pytest.mark.parametrize("x", [[0.0] * 5, [1.0] * 5, [0.3] * 5, [0.7]])
def test_equal_values_share_one_bin(x):
    edges = equal_mass_edges(x, 4)
    b = bin_samples(x, np.ones(len(x)), edges)
    assert b.counts.max() == len(x)


@given(values, st.integers(1, 12), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_weights_equal_repetition(x, m, random):
    weights = np.array([random.randint(0, 3) for _ in x])
    weights[0] += 1
    repeated = np.repeat(x, weights)
    edges = equal_mass_edges(x, m, weights)
    np.testing.assert_array_equal(edges, equal_mass_edges(repeated, m))
    correct = (x * 1000).astype(int) % 2
    a = bin_samples(x, correct, edges, weights)
    b = bin_samples(repeated, np.repeat(correct, weights), edges)
    np.testing.assert_array_equal(a.counts, b.counts)
    np.testing.assert_array_equal(a.correct_sums, b.correct_sums)
    np.testing.assert_allclose(a.confidence_sums, b.confidence_sums, rtol=1e-12)


def test_sums_are_float64_whatever_comes_in():
    for dtype in (np.float16, np.float32, np.float64):
        b = bin_samples(np.full(5, 0.5, dtype), np.ones(5, bool), equal_width_edges(2))
        assert b.counts.dtype == b.confidence_sums.dtype == b.correct_sums.dtype == np.float64


def test_blocks_and_threads_change_nothing(rng):
    x = rng.random(200_000)
    correct = rng.random(200_000) < x
    b = bin_samples(x, correct, equal_width_edges(15))
    index = np.searchsorted(equal_width_edges(15)[1:-1], x)
    np.testing.assert_array_equal(b.counts, np.bincount(index))
    np.testing.assert_allclose(b.confidence_sums, np.bincount(index, weights=x), rtol=1e-13)
    again = bin_samples(x, correct, equal_width_edges(15))
    np.testing.assert_array_equal(b.confidence_sums, again.confidence_sums)


def test_means_gap_and_share():
    b = bin_samples([0.2, 0.6, 0.8], [1, 0, 1], [0, 0.25, 0.5, 1])
    np.testing.assert_allclose(b.mean_confidence, [0.2, np.nan, 0.7])
    np.testing.assert_allclose(b.accuracy, [1, np.nan, 0.5])
    np.testing.assert_allclose(b.gap, [-0.8, np.nan, 0.2])
    np.testing.assert_allclose(b.share, [1 / 3, 0, 2 / 3])


def test_addition_merges_and_checks_edges(rng):
    x = rng.random(100)
    edges = equal_width_edges(7)
    whole = bin_samples(x, x > 0.4, edges)
    parts = bin_samples(x[:30], x[:30] > 0.4, edges) + bin_samples(x[30:], x[30:] > 0.4, edges)
    assert isinstance(parts, Bins)
    np.testing.assert_array_equal(parts.counts, whole.counts)
    np.testing.assert_allclose(parts.confidence_sums, whole.confidence_sums, rtol=1e-14)
    with pytest.raises(InputError, match="same edges"):
        whole + bin_samples(x, x > 0.4, equal_width_edges(8))


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, "ten", None])
def test_bad_bin_counts(bad):
    with pytest.raises(InputError, match="whole number of bins"):
        check_bins(bad)
    with pytest.raises(InputError, match="whole number of bins"):
        equal_width_edges(bad)


@pytest.mark.parametrize("bad", [np.zeros(0), np.zeros((2, 2))])
def test_equal_mass_needs_a_vector(bad):
    with pytest.raises(InputError, match=r"shape \(N,\)"):
        equal_mass_edges(bad, 3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("m", [1, 2, 15])
def test_columns_are_counted_one_by_one(rng, dtype, m):
    """Independent: each class by itself through `bin_samples`, which has no rest to give away."""
    probs = rng.dirichlet(np.full(5, 0.3), size=400).astype(dtype)
    probs[:3] = np.eye(5)[:3]
    labels = rng.integers(-1, 5, 400)
    edges = bins.equal_width_edges(m)
    _each_class_alone(labels, probs, edges)


def _each_class_alone(labels, probs, edges):
    found = bins.bin_columns(labels, probs, edges)
    for k in range(probs.shape[1]):
        one = bins.bin_samples(probs[:, k], labels == k, edges)
        np.testing.assert_array_equal(found.counts[k], one.counts)
        np.testing.assert_array_equal(found.correct_sums[k], one.correct_sums)
        sums = found.confidence_sums[k], one.confidence_sums
        np.testing.assert_allclose(*sums, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("m", range(1, 50))
def test_every_number_at_an_edge_is_in_the_bin_a_search_finds(m, kind, rng):
    # Scaling and rounding up finds the bins of some m, and must do so to the last digit.
    edges = equal_width_edges(m)
    near = edges.astype(kind)
    up, down = (np.nextafter(near, kind(end)) for end in (2, -1))
    beyond = np.array([-1, -0.0, 2, 300, 1e30, np.inf, -np.inf, 1e-40], dtype=kind)
    x = np.concatenate([near, up, down, np.nextafter(up, kind(2)), beyond, rng.random(500)])
    x = x.astype(kind)
    expected = np.searchsorted(near[1:-1], x, side="left")
    np.testing.assert_array_equal(bin_index(x, edges), expected)


@pytest.mark.parametrize("m", [1, 10, 15, 100])
def test_nan_is_in_the_last_bin_as_with_torch(m):
    torch = pytest.importorskip("torch")
    edges = equal_width_edges(m)
    for kind in (np.float32, np.float64):
        x = np.array([np.nan, 0.0], dtype=kind)
        assert bin_index(x, edges).tolist() == [m - 1, 0]
        assert bin_index(torch.as_tensor(x), edges).tolist() == [m - 1, 0]


def test_no_samples_leave_empty_bins():
    b = bin_samples([], [], equal_width_edges(3))
    assert b.counts.tolist() == b.correct_sums.tolist() == [0, 0, 0]


@pytest.mark.parametrize("m", [1, 15, 32, 33, 200])
def test_counts_and_sums_do_not_depend_on_the_order(m, rng):
    x, right, w = rng.random(1001) ** 0.2, rng.random(1001) < 0.7, rng.random(1001)
    turn = rng.permutation(1001)
    for weights in (None, w):
        one = bin_samples(x, right, equal_width_edges(m), weights)
        other = bin_samples(
            x[turn], right[turn], equal_width_edges(m), None if weights is None else w[turn]
        )
        inside = (x[:, None] > one.edges[:-1]) & (x[:, None] <= one.edges[1:])
        each = np.ones(1001) if weights is None else w
        np.testing.assert_allclose(one.counts, each @ inside, rtol=1e-12)
        np.testing.assert_allclose(one.confidence_sums, (each * x) @ inside, rtol=1e-12)
        np.testing.assert_allclose(one.correct_sums, (each * right) @ inside, rtol=1e-12)
        np.testing.assert_allclose(other.confidence_sums, one.confidence_sums, rtol=1e-12)


def test_columns_outside_of_0_and_1_count_in_the_outer_bins():
    """As single samples do."""
    probs = np.array([[-0.5, 1.5], [0.3, 20.0], [0.9, 0.1]])
    _each_class_alone(np.array([1, 0, 0]), probs, bins.equal_width_edges(3))
