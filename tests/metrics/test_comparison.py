"""Paired comparisons: identities, intervals against a plain loop, and level in simulations."""

from __future__ import annotations

import doctest
import json
import math

import numpy as np
import pytest

from focalcal import metrics
from focalcal.errors import InputError, InputWarning
from focalcal.metrics import METRICS, compare, comparison, nll
from focalcal.predictions import Predictions


def softmax(z):
    p = np.exp(z - z.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def draw(rng, n, noise=0.7):
    """Two models of equal worth: the same logits, each with noise of its own."""
    z = 2 * rng.normal(size=(n, 4))
    y = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
    return (
        y,
        softmax(z + noise * rng.normal(size=z.shape)),
        softmax(z + noise * rng.normal(size=z.shape)),
    )


def test_examples():
    assert doctest.testmod(comparison).failed == 0


def test_every_declared_metric_is_compared(rng):
    y, a, b = draw(rng, 300)
    found = compare(y, a, b, resamples=50)
    assert list(found.metrics) == list(METRICS)
    for name, d in found.metrics.items():
        assert d.difference.value == pytest.approx(d.second - d.first, nan_ok=True), name
        assert math.isnan(d.p_value) or 0 < d.p_value <= 1
    json.dumps(found.to_dict(), allow_nan=False)


def test_a_model_cannot_be_told_from_itself(rng):
    y, a, _ = draw(rng, 200)
    for d in compare(y, a, a, resamples=50).metrics.values():
        assert d.better == ""
        assert d.difference.value == 0
        assert d.p_value == 1 or math.isnan(d.p_value)


def test_rounding_is_no_difference(rng):
    y, a, _ = draw(rng, 200)
    for d in compare(y, a, a * (1 + 4e-16), resamples=50).metrics.values():
        assert d.better == ""
        assert d.p_value == 1 or math.isnan(d.p_value)


def test_the_order_of_rows_changes_nothing(rng):
    y, a, b = draw(rng, 300)
    order = rng.permutation(300)
    one, other = (
        compare(*given, resamples=50) for given in ((y, a, b), (y[order], a[order], b[order]))
    )
    for name in METRICS:
        x, z = one[name], other[name]
        for key in ("low", "high"):
            ends = getattr(x.difference, key), getattr(z.difference, key)
            assert ends[0] == pytest.approx(ends[1], abs=1e-12, nan_ok=True), name
        assert x.p_value == pytest.approx(z.p_value, nan_ok=True), name


def test_swapping_the_models_changes_the_sign_only(rng):
    y, a, b = draw(rng, 300)
    one, other = compare(y, a, b, resamples=80), compare(y, b, a, resamples=80)
    for name in METRICS:
        x, z = one[name], other[name]
        assert x.difference.value == pytest.approx(-z.difference.value, nan_ok=True)
    assert one["classwise_ece"].p_value == pytest.approx(other["classwise_ece"].p_value)


def test_the_interval_holds_zero_unless_the_test_rejects():
    """Whatever the number of resamples: both count the same draws."""
    rng = np.random.default_rng(11)
    for resamples in (2, 19, 20, 39, 100):
        for level in (0.8, 0.9, 0.95):
            draws = rng.normal(size=resamples)
            for value in [*np.abs(draws) * (1 + 1e-9), *np.abs(draws) * (1 - 1e-9), 0.0]:
                found, p = comparison._tested(value, value + draws, level, 10, jackknife=False)
                if (1 - level) * (resamples + 1) >= 1:  # else nothing is ever rejected
                    assert (found.low <= 0 <= found.high) == (p > 1 - level + 1e-12)


def test_interval_of_a_mean_is_that_of_the_paired_differences(rng):
    """NLL is a mean: the bootstrap must agree with the paired t interval."""
    y, a, b = draw(rng, 2000)
    found = compare(y, a, b, resamples=1000)["nll"].difference
    rows = np.arange(len(y))
    each = np.log(a[rows, y]) - np.log(b[rows, y])
    assert found.value == pytest.approx(each.mean())
    half = 1.96 * each.std(ddof=1) / math.sqrt(len(y))
    assert found.high - found.value == pytest.approx(half, rel=0.12)


def test_better_follows_the_direction_of_the_metric(rng):
    z = 2 * rng.normal(size=(2000, 4))
    y = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
    found = compare(y, softmax(z + rng.normal(size=z.shape)), softmax(z), resamples=200)
    assert found["nll"].better == found["accuracy"].better == "second"
    assert found["nll"].difference.high < 0 < found["accuracy"].difference.low


def test_the_test_keeps_its_level():
    """50 pairs of models of equal worth; 10 % may be told apart at level 90 %."""
    rng = np.random.default_rng(4)
    names = ("nll", "accuracy", "ece", "classwise_ece")
    found = [compare(*draw(rng, 150), resamples=50, level=0.9) for _ in range(50)]
    for name in names:
        apart = np.mean([f[name].p_value <= 0.1 for f in found])
        assert apart <= 0.24, name  # three standard errors above


def test_predictions_with_logits_and_with_probabilities_compare_alike(rng):
    y, a, b = draw(rng, 200)
    one = compare(None, Predictions(probs=a, labels=y), Predictions(probs=b, labels=y), resamples=9)
    two = compare(
        None,
        Predictions(logits=np.log(a), labels=y),
        Predictions(logits=np.log(b), labels=y),
        resamples=9,
    )
    assert one["nll"].difference.value == pytest.approx(two["nll"].difference.value)
    assert one["nll"].first == pytest.approx(nll(y, a))


def test_too_many_probabilities_leave_class_wise_metrics_without_interval(rng, monkeypatch):
    monkeypatch.setattr(comparison, "MOST", 10)
    found = compare(*draw(rng, 50), resamples=9)["classwise_ece"]
    assert math.isnan(found.p_value)
    assert math.isfinite(found.difference.value)


def test_one_sample_proves_nothing():
    """All its resamples are the same, so the difference seemed certain."""
    found = compare([1], [0.2], [0.3], resamples=200)["nll"]
    assert math.isnan(found.p_value)
    assert math.isnan(found.difference.low)
    assert found.better == ""


def test_errors_say_what_is_wrong(rng):
    y, a, b = draw(rng, 20)
    with pytest.raises(InputError, match="level between"):
        compare(y, a, b, level=2)
    with pytest.raises(InputError, match="same samples"):
        compare(None, Predictions(probs=a, labels=y), Predictions(probs=b, labels=(y + 1) % 4))
    with pytest.raises(InputError, match="with labels"):
        compare(None, Predictions(probs=a), Predictions(probs=b))


def test_texts_are_looked_up_once(rng):
    """One sample of a rare class: groups that are left out have none of it."""
    y = np.r_[2, rng.integers(0, 2, 99)]
    p, q = rng.dirichlet(np.ones(3), (2, 100))
    names = np.array(["ant", "bee", "cow"])
    with pytest.warns(InputWarning, match="alphabetical"):
        texts = compare(names[y], p, q, resamples=20)
    numbers = compare(y, p, q, resamples=20)
    assert texts["classwise_ece"] == numbers["classwise_ece"]


@pytest.mark.parametrize("shape", [(300,), (300, 1)])
def test_one_column_and_two_are_compared_by_one_brier_score(rng, shape):
    """Without it, the file with two columns would have twice the Brier score."""
    p = rng.uniform(size=300)
    y = (rng.random(300) < p).astype(int)
    one, two = p.reshape(shape), np.column_stack([1 - p, p])
    for first, second in ((one, two), (two, one)):
        found = metrics.compare(y, first, second, resamples=20)
        for name, difference in found.metrics.items():
            assert difference.difference.value == pytest.approx(0, abs=1e-12), name
        assert found["brier"].first == pytest.approx(metrics.brier(y, p))
    z = np.log(two)
    as_logits = Predictions(logits=z, labels=y), Predictions(probs=one, labels=y)
    assert metrics.compare(None, *as_logits, resamples=20)["brier"].better == ""


def test_one_wrong_sample_of_a_model_shows_no_difference():
    """Resamples of a mean over one sample do not spread: nearly all pairs were distinguished."""
    rng = np.random.default_rng(5)
    y = np.zeros(40, int)
    a, b = rng.uniform(0.1, 0.4, (2, 40))
    a[0], b[1] = 0.6, 0.9
    found = compare(y, a, b, resamples=100)
    for name in ("nll_wrong", "entropy_wrong", "auroc_of_confidence"):
        assert math.isnan(found[name].p_value), name
        assert found[name].better == ""
    b[2] = 0.95  # Student's t with one degree of freedom
    a[3] = 0.55
    assert compare(y, a, b, resamples=100)["nll_wrong"].p_value > 0.05
    assert found["nll"].difference.n == 40
