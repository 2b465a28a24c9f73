"""Scores against scikit-learn and against sums written out."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import entropy as scipy_entropy
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss

from focalcal import metrics


def two_columns(p):
    return p if p.ndim == 2 else np.column_stack([1 - p, p])


def test_against_scikit_learn(case, rng):
    y, p = case
    w = rng.random(len(y))
    q = two_columns(p)
    labels = np.arange(q.shape[1])
    for weight in (None, w):
        got = metrics.accuracy(y, p, sample_weight=weight)
        assert got == pytest.approx(accuracy_score(y, q.argmax(1), sample_weight=weight))
        assert metrics.error(y, p, sample_weight=weight) == pytest.approx(1 - got)
        if (q[np.arange(len(y)), y] > 0).all():
            expected = log_loss(y, q, labels=labels, sample_weight=weight)
            assert metrics.nll(y, p, sample_weight=weight) == pytest.approx(expected)
    if p.ndim == 1:
        expected = brier_score_loss(y, p, sample_weight=w)
    else:
        expected = np.average(((p - np.eye(p.shape[1])[y]) ** 2).sum(axis=1), weights=w)
    assert metrics.brier(y, p, sample_weight=w) == pytest.approx(expected)


def test_nll_of_zero_probability_is_infinite_and_weight_zero_removes_it():
    y, p = [0, 1], [[1.0, 0.0], [1.0, 0.0]]
    assert metrics.nll(y, p) == np.inf
    assert metrics.nll(y, p, sample_weight=[1, 0]) == 0.0


def test_brier_has_no_cancellation_near_certainty():
    p = np.array([[1 - 1e-9, 1e-9]])
    assert metrics.brier([0], p) == pytest.approx(2e-18, rel=1e-6)


def test_ties_predict_the_first_class():
    assert metrics.accuracy([0, 1], [[0.5, 0.5], [0.5, 0.5]]) == 0.5
    assert metrics.accuracy([0, 1], [0.5, 0.5]) == 0.5


def test_decomposition_adds_up_and_has_its_parts(case):
    y, p = case
    d = metrics.brier_decomposition(y, p, bins=15)
    assert d.brier == metrics.brier(y, p)
    assert d.calibration + d.refinement == pytest.approx(d.brier, abs=1e-14)
    assert d.refinement == pytest.approx(d.uncertainty - d.resolution + d.within_bin, abs=1e-14)
    q, scale = two_columns(p), 0.5 if p.ndim == 1 else 1.0
    columns, hot = list(q.T), [(y == k).astype(float) for k in range(q.shape[1])]
    calibration = resolution = uncertainty = 0.0
    for c, h in zip(columns, hot):
        uncertainty += h.mean() * (1 - h.mean())
        for i in range(15):
            inside = (c > i / 15) & (c <= (i + 1) / 15) | ((i == 0) & (c == 0))
            if inside.any():
                calibration += inside.mean() * (c[inside].mean() - h[inside].mean()) ** 2
                resolution += inside.mean() * (h[inside].mean() - h.mean()) ** 2
    assert d.calibration == pytest.approx(calibration * scale, abs=1e-12)
    assert d.resolution == pytest.approx(resolution * scale, abs=1e-12)
    assert d.uncertainty == pytest.approx(uncertainty * scale, abs=1e-12)


def test_decomposition_of_constant_bins_has_nothing_within():
    # Murphy's identity is exact when every bin holds one probability.
    y = np.array([0, 1, 1, 0, 1, 1])
    p = np.array([0.25, 0.25, 0.75, 0.75, 0.75, 0.75])
    d = metrics.brier_decomposition(y, confidence=p, bins=4)
    assert d.within_bin == pytest.approx(0, abs=1e-15)
    assert d.calibration == pytest.approx((2 * 0.25**2) / 6)


def test_correctness_split(case):
    y, p = case
    q = two_columns(p)
    right = q.argmax(1) == y
    s = metrics.correctness_split(y, p)
    for group, means in ((right, s.right), (~right, s.wrong)):
        p_true = q[np.arange(len(y)), y][group]
        assert means.n == group.sum()
        assert means.share == pytest.approx(group.mean())
        assert means.entropy == pytest.approx(scipy_entropy(q[group], axis=1).mean())
        with np.errstate(divide="ignore"):
            assert means.nll == pytest.approx(-np.log(p_true).mean())
        assert means.true_class_probability == pytest.approx(p_true.mean())


def test_correctness_split_without_errors_is_nan_there():
    s = metrics.correctness_split([0], [[0.9, 0.1]])
    assert s.wrong.n == 0
    assert np.isnan([s.wrong.entropy, s.wrong.nll, s.wrong.true_class_probability]).all()


def test_parts_of_the_brier_score_of_one_column_are_those_of_class_1():
    """Bins (lo, hi] of class 1 are not the mirror images of those of class 0."""
    y, p = [0, 1, 1, 0, 1], np.array([0.5, 0.2, 0.4, 0.1, 0.7])
    cells = [[1, 3], [2], [0], [4]]  # (0, .2], (.2, .4], (.4, .6], (.6, .8]
    calibration = sum(len(i) * (p[i].mean() - np.mean([y[j] for j in i])) ** 2 for i in cells) / 5
    d = metrics.brier_decomposition(y, p, bins=5)
    assert d.calibration == pytest.approx(calibration)
    assert metrics.brier_calibration(y, p, bins=5) == pytest.approx(calibration)
    assert metrics.brier_refinement(y, p, bins=5) == pytest.approx(d.brier - calibration)
    assert d.uncertainty == pytest.approx(0.6 * 0.4)
    as_event = metrics.brier_decomposition(y, confidence=p, bins=5)
    assert as_event.resolution == pytest.approx(d.resolution)
