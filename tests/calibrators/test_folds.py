"""Folds: what they depend on, and what they must not depend on."""

from __future__ import annotations

import numpy as np
import pytest

from focalcal.calibrators._folds import MOST_UNITS, fold_shares


@pytest.fixture
def data(rng):
    z = 3 * rng.normal(size=(400, 5))
    return z, rng.integers(0, 5, 400), np.ones(400)


def test_every_sample_is_left_out_once(data):
    shares = fold_shares(*data, 4)
    assert shares.shape == (4, 400)
    np.testing.assert_array_equal(np.sort(shares, axis=0)[:3], 0)
    np.testing.assert_array_equal(shares.sum(axis=0), 1)
    # multinomial: four standard deviations of 100 are 35
    assert np.abs(shares.sum(axis=1) - 100).max() < 35
    assert (fold_shares(*data, 4, salt=1) != shares).any()


@pytest.mark.parametrize("quantum", [None, 0.25])
def test_order_and_constants_do_not_matter(data, rng, quantum):
    z, y, w = data
    offset = 100 * rng.normal(size=(400, 1))
    if quantum is not None:
        z, offset = (np.round(a / quantum) * quantum for a in (z, offset))
    shares = fold_shares(z, y, w, 4)
    order, classes = rng.permutation(400), rng.permutation(5)
    np.testing.assert_array_equal(fold_shares(z[order], y[order], w, 4), shares[:, order])
    np.testing.assert_array_equal(fold_shares(z[:, classes], np.argsort(classes)[y], w, 4), shares)
    np.testing.assert_array_equal(fold_shares(z + offset, y, w, 4), shares)


@pytest.mark.parametrize("n_classes", [2, 3, 10, 300])
def test_rounding_to_float32_moves_hardly_a_sample_and_few_are_divided(rng, n_classes):
    z = 2 * rng.normal(size=(2000, n_classes)) + 10 * rng.normal(size=(2000, 1))
    y = np.where(rng.random(2000) < 0.8, z.argmax(axis=1), rng.integers(n_classes, size=2000))
    shares = fold_shares(z, y, np.ones(2000), 5)
    rounded = fold_shares(z.astype(np.float32).astype(float), y, np.ones(2000), 5)
    assert (shares != rounded).any(axis=0).mean() <= 0.005
    if n_classes > 2:  # for two, samples of one cell are all but equal
        assert ((shares > 0) & (shares < 1)).any(axis=0).mean() < 0.02


def test_weights_equal_repetition(data, rng):
    z, y, _ = data
    w = rng.integers(1, 5, 400)
    held = w * fold_shares(z, y, w.astype(float), 3)
    again = fold_shares(np.repeat(z, w, axis=0), np.repeat(y, w), np.ones(w.sum()), 3)
    start = np.cumsum(w) - w
    np.testing.assert_allclose(np.add.reduceat(again, start, axis=1), held, atol=1e-12)


def test_equal_samples_are_divided_as_if_they_were_different(rng):
    # One level of a forest's probability must not be left out as a whole.
    z, y = np.tile([0.0, 1.0], (10_000, 1)), np.repeat([0, 1], 5000)
    shares = fold_shares(z, y, np.ones(10_000), 5)
    np.testing.assert_allclose(shares.sum(axis=1), 2000, atol=5 * np.sqrt(10_000 / MOST_UNITS) * 40)
    assert len(np.unique(shares, axis=1).T) == 2  # one row of shares per label
    assert np.ptp(shares[:, 0]) > 0.001  # at random, not stratified


def test_zeros_and_flat_logits_have_folds():
    for z in (np.array([[0.0, -np.inf], [-np.inf, 0.0]]), np.zeros((2, 2))):
        np.testing.assert_array_equal(fold_shares(z, np.array([0, 1]), np.ones(2), 2).sum(0), 1)
