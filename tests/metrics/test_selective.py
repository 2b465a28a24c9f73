"""Confidence as a ranking: against scikit-learn and against averages over tie orders."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from focalcal import metrics
from focalcal.errors import InputError


def top(y, p):
    p = p if p.ndim == 2 else np.column_stack([1 - p, p])
    return p.max(axis=1), (p.argmax(axis=1) == y).astype(int)


def test_auroc_against_scikit_learn(case, rng):
    y, p = case
    c, h = top(y, p)
    w = rng.random(len(y))
    assert metrics.auroc_of_confidence(y, p) == pytest.approx(roc_auc_score(h, c))
    weighted = metrics.auroc_of_confidence(y, p, sample_weight=w)
    assert weighted == pytest.approx(roc_auc_score(h, c, sample_weight=w))


@pytest.mark.parametrize("y", [[1, 1], [0, 0]])
def test_auroc_needs_both_kinds(y):
    assert np.isnan(metrics.auroc_of_confidence(y, confidence=[0.3, 0.8]))


def mean_over_orders(c, h):
    """AURC averaged over every order in which tied samples could enter."""
    c, h = np.asarray(c), np.asarray(h)
    groups = [np.flatnonzero(c == v) for v in sorted(set(c), reverse=True)]
    areas = []
    for choice in itertools.product(*(itertools.permutations(g) for g in groups)):
        wrong = 1 - h[np.concatenate(choice)]
        areas.append(np.mean(np.cumsum(wrong) / np.arange(1, len(wrong) + 1)))
    return np.mean(areas)


@pytest.mark.parametrize(
    ("c", "h"),
    [
        ([0.9, 0.8, 0.7, 0.6], [1, 0, 1, 0]),
        ([0.9, 0.8, 0.8, 0.8, 0.1], [1, 0, 1, 1, 0]),
        ([0.5, 0.5, 0.5, 0.5], [1, 0, 0, 1]),
        ([0.7], [0]),
    ],
)
def test_aurc_is_the_mean_over_tie_orders(c, h):
    assert metrics.aurc(h, confidence=c) == pytest.approx(mean_over_orders(c, h), abs=1e-14)


def test_aurc_takes_real_weights_continuously():
    h, c = [1, 0, 1, 0], [0.9, 0.6, 0.6, 0.2]
    whole = metrics.aurc(h, confidence=c, sample_weight=[1, 2, 1, 3])
    near = metrics.aurc(h, confidence=c, sample_weight=[1, 2 + 1e-9, 1, 3])
    assert near == pytest.approx(whole, abs=1e-8)


def test_risk_coverage_points(case):
    y, p = case
    c, h = top(y, p)
    curve = metrics.risk_coverage(y, p)
    assert curve.n == len(y)
    assert curve.coverage[-1] == 1
    assert curve.risk[-1] == pytest.approx(1 - h.mean())
    for t, coverage, risk in zip(curve.threshold, curve.coverage, curve.risk):
        assert coverage == pytest.approx((c >= t).mean())
        assert risk == pytest.approx(1 - h[c >= t].mean())


def test_high_confidence(case):
    y, p = case
    c, h = top(y, p)
    s = metrics.high_confidence(y, p, threshold=0.8)
    assert s.share == pytest.approx((c >= 0.8).mean())
    assert s.accuracy == pytest.approx(h[c >= 0.8].mean())
    assert s.n == (c >= 0.8).sum()


def test_high_confidence_includes_the_threshold_in_every_precision():
    for dtype in (np.float32, np.float64):
        s = metrics.high_confidence([1, 1], np.array([0.99, 0.98], dtype))
        assert s.share == 0.5
    none = metrics.high_confidence([1], [0.5])
    assert none.share == 0
    assert np.isnan(none.accuracy)


def test_high_confidence_threshold_is_checked():
    with pytest.raises(InputError, match="threshold in"):
        metrics.high_confidence([1], [0.5], threshold=1.5)
