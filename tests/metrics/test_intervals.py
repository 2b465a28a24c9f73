"""Intervals hold what they claim to hold: a small form of benchmarks/interval_coverage.py."""

from __future__ import annotations

import numpy as np
import pytest

from focalcal import metrics
from focalcal.metrics import METRICS, Sample

CLASSWISE = ("classwise_ece", "ace", "brier_calibration")


def softmax(z):
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(("k", "n"), [(2, 500), (10, 1000)])
def test_class_wise_intervals_of_calibrated_data_reach_zero(k, n):
    """The true value is 0; of 60 intervals at most 8 may miss it (binomial, once in 500)."""
    rng = np.random.default_rng(k)
    missed = dict.fromkeys(CLASSWISE, 0)
    for _ in range(60):
        p = softmax(2 * rng.normal(size=(n, k)))
        y = (p.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1).clip(max=k - 1)
        sample = Sample.read(y, p, ("sums", "top", "order", "classes", "even"))
        stats = sample.stats()
        for name in CLASSWISE:
            low, high = METRICS[name].interval(float(METRICS[name].of(stats)), sample, 0.95)
            missed[name] += low > 0
            assert low <= METRICS[name].of(stats) <= high
    assert max(missed.values()) <= 8, missed


def test_class_wise_intervals_hold_a_known_error():
    """One column, always 0.1 too high: the class-wise errors are 0.1 whatever the bins."""
    rng = np.random.default_rng(0)
    missed = dict.fromkeys(("classwise_ece", "ace"), 0)
    for _ in range(60):
        q = rng.uniform(0.2, 0.7, 400)
        y = (rng.random(400) < q).astype(int)
        sample = Sample.read(y, q + 0.1, ("sums", "top", "order", "classes", "even"))
        for name in missed:
            value = float(METRICS[name].of(sample.stats()))
            low, high = METRICS[name].interval(value, sample, 0.95)
            missed[name] += not low <= 0.1 <= high
    assert max(missed.values()) <= 8, missed


def test_shares_near_one_have_wilson_s_interval():
    """All of 20 right: 1 is no certainty. Independent: the roots of |p̂ − p| = z √(p(1−p)/n)."""
    e = metrics.evaluate(np.zeros(20, int), np.tile([0.999, 0.001], (20, 1)), resamples=10)
    z = 1.959964
    assert e["high_confidence_accuracy"].low == pytest.approx(20 / (20 + z**2), abs=1e-5)
    assert e["accuracy"].high == 1
    half = metrics.evaluate([0, 1], [[0.6, 0.4]] * 2, resamples=10)["accuracy"]
    for end in (half.low, half.high):
        assert abs(0.5 - end) == pytest.approx(z * np.sqrt(end * (1 - end) / 2), rel=1e-5)


def test_what_has_no_interval_says_why():
    for m in METRICS.values():
        assert (m.interval is None) == bool(m.why), m.name
