"""Resampling against a plain loop over drawn indices, and the meaning of intervals and p-value."""

from __future__ import annotations

import numpy as np
import pytest

from focalcal import metrics
from focalcal.errors import InputError
from focalcal.metrics import METRICS, Sample, calibration_test, sample
from focalcal.metrics.resampling import consistency_values, draw_counts, resample, resample_pair

RESAMPLED = [name for name, m in METRICS.items() if m.resampled]


def value(name, y, p, **options):
    """The metric by its public function."""
    if name.endswith(("_right", "_wrong")):
        name, group = name.rsplit("_", 1)
        return getattr(getattr(metrics.correctness_split(y, p, **options), group), name)
    return getattr(metrics, name)(y, p, **options)


@pytest.mark.parametrize("name", RESAMPLED)
@pytest.mark.parametrize("weighted", [False, True])
def test_one_sample_serves_every_metric(case, name, weighted):
    y, p = case
    w = np.random.default_rng(1).random(len(y)) if weighted else None
    stats = Sample.read(y, p, sample_weight=w).stats()
    expected = value(name, y, p, sample_weight=w)
    assert METRICS[name].of(stats) == pytest.approx(expected, abs=1e-7, nan_ok=True)


@pytest.mark.parametrize("name", RESAMPLED)
def test_replicates_are_the_metric_of_drawn_samples(case, name):
    y, p = case
    y, p = y[:90], p[:90]
    s = Sample.read(y, p)
    counts = draw_counts(s, slice(0, 3), seed=11)
    got = METRICS[name].of(s.resampled(counts))
    for row, result in zip(counts, got):
        drawn = np.repeat(s.order, row.astype(int))
        expected = value(name, y[drawn], p[drawn])
        assert result == pytest.approx(expected, abs=2e-5, nan_ok=True)


def test_joined_groups_keep_mean_and_spread(rng, monkeypatch, draw):
    y, p = draw(rng, 3000, 4)
    names = ["ece", "adaptive_ece", "smooth_ece", "ks_error", "auroc_of_confidence", "aurc"]
    exact = metrics.bootstrap(y, p, names, resamples=50)
    monkeypatch.setattr(sample, "GROUPS", 300)
    joined = metrics.bootstrap(y, p, names, resamples=50)
    for name in names:
        spread = exact[name].std()
        assert abs(exact[name].mean() - joined[name].mean()) < 0.15 * spread, name
        assert joined[name].std() == pytest.approx(spread, rel=0.15), name
    np.testing.assert_allclose(joined["ece"], exact["ece"], atol=3e-4)


def test_counts_are_multinomial():
    s = Sample.read(np.zeros(50, int), confidence=np.full(50, 0.5))
    counts = draw_counts(s, slice(0, 4000), seed=0)
    np.testing.assert_array_equal(counts.sum(axis=1), 50)
    assert counts.mean(axis=0) == pytest.approx(np.ones(50), abs=0.08)
    # A multinomial count has variance 1 − 1/n, a Poisson one would have 1.
    assert counts.var() == pytest.approx(1 - 1 / 50, abs=0.01)
    pair = np.cov(counts[:, 0], counts[:, 1])[0, 1]
    assert pair == pytest.approx(-1 / 50, abs=0.05)


@pytest.mark.parametrize("n", [60_000, 70_000])
def test_counts_for_wide_and_narrow_integers(n):
    s = Sample.read(np.zeros(n, int), confidence=np.full(n, 0.5))
    counts = draw_counts(s, slice(0, 1), seed=0)
    assert counts.sum() == n
    assert counts[0, n // 2 :].sum() == pytest.approx(n / 2, rel=0.02)


def test_same_seed_same_values_other_seed_other_values(case):
    y, p = case
    a = metrics.bootstrap(y, p, ["ece", "aurc"], resamples=300, seed=1)
    b = metrics.bootstrap(y, p, ["ece", "aurc"], resamples=300, seed=1)
    c = metrics.bootstrap(y, p, ["ece", "aurc"], resamples=300, seed=2)
    for name in a:
        np.testing.assert_array_equal(a[name], b[name])
        assert not np.array_equal(a[name], c[name])


def test_the_order_of_the_rows_changes_nothing(case):
    """Also where confidences tie and rows differ in what else is averaged."""
    y, p = case
    turn = np.random.default_rng(3).permutation(len(y))
    one = metrics.evaluate(y, p, resamples=50)
    other = metrics.evaluate(y[turn], p[turn], resamples=50)
    for name in METRICS:
        a, b = one[name], other[name]
        same = pytest.approx([b.value, b.low, b.high], abs=1e-9, nan_ok=True)
        assert [a.value, a.low, a.high] == same, name
    assert one.test.p_value == other.test.p_value


def test_weights_are_repetitions_in_intervals_and_test(draw, rng):
    """A weight of 4 narrows intervals as four times the samples do."""
    y, p = draw(rng, 250, 3)
    four = metrics.evaluate(y, p, sample_weight=np.full(250, 4.0), resamples=400)
    tiled = metrics.evaluate(np.tile(y, 4), np.tile(p, (4, 1)), resamples=400)
    for name, m in METRICS.items():
        a, b = four[name], tiled[name]
        assert a.value == pytest.approx(b.value, abs=1e-7, nan_ok=True), name
        if m.interval is not None and b.high > b.low:
            assert a.high - a.low == pytest.approx(b.high - b.low, rel=0.35), name
    assert four.test.expected_ece == pytest.approx(tiled.test.expected_ece, rel=0.1)


def test_pairs_draw_the_same_samples(draw, rng):
    y, p = draw(rng, 300, 3)
    q = rng.dirichlet(np.ones(3), 300)
    a, b = Sample.read(y, p), Sample.read(y, q)
    one, other = resample_pair(a, b, ["accuracy", "nll"], 40, seed=0)
    np.testing.assert_array_equal(one["nll"], resample(a, ["nll"], 40, seed=0)["nll"])
    counts = draw_counts(a, slice(0, 1), 0)[0]
    drawn = np.repeat(a.order, counts.astype(int))
    assert other["nll"][0] == pytest.approx(metrics.nll(y[drawn], q[drawn]))
    with pytest.raises(InputError, match="same samples, got 300 and 2"):
        resample_pair(a, b.take([0, 1]), ["nll"], 5, seed=0)


def test_slices_hold_every_row_once(rng):
    groups = rng.choice(["b", "a", "c"], 100)
    found = dict(metrics.slices(groups))
    assert list(found) == ["a", "b", "c"]
    for name, rows in found.items():
        np.testing.assert_array_equal(rows, np.flatnonzero(groups == name))


def test_distribution_is_that_of_a_loop():
    rng = np.random.default_rng(2)
    c = rng.random(200)
    y = (rng.random(200) < c**1.5).astype(int)
    fast = metrics.bootstrap(y, confidence=c, resamples=2000)["ece"]
    loop = []
    for _ in range(1000):
        i = rng.integers(200, size=200)
        loop.append(metrics.ece(y[i], confidence=c[i]))
    assert fast.mean() == pytest.approx(np.mean(loop), abs=4 * np.std(loop) / np.sqrt(1000))
    assert fast.std() == pytest.approx(np.std(loop), rel=0.12)


def test_consistency_values_follow_the_confidences(rng):
    c = rng.random(500)
    s = Sample.read((c > 0.5).astype(int), confidence=c)
    fast = consistency_values(s, 1000, seed=0)
    loop = [metrics.ece((rng.random(500) < c).astype(int), confidence=c) for _ in range(500)]
    assert fast.mean() == pytest.approx(np.mean(loop), abs=4 * np.std(loop) / np.sqrt(500))
    assert fast.std() == pytest.approx(np.std(loop), rel=0.15)


@pytest.mark.parametrize("bad", [0, 1, 2.5, -3])
def test_resamples_are_checked(bad):
    with pytest.raises(InputError, match="whole number of resamples"):
        metrics.bootstrap([1, 0], [0.5, 0.5], resamples=bad)


@pytest.mark.parametrize("name", ["ecce", "classwise_ece"])
def test_unknown_names_are_refused(name):
    with pytest.raises(InputError, match=f"got {name}"):
        metrics.bootstrap([1, 0], [0.5, 0.5], [name])


@pytest.mark.parametrize("doubt", [1e-6, 1e-9])
@pytest.mark.parametrize("n", [1000, 10_000])
def test_sums_that_round_differently_are_no_evidence(rng, doubt, n):
    """All are right, as nearly all draws are: p is 1, though ECE · n is rounded at 1e-16 · n."""
    right = calibration_test(np.ones(n, int), confidence=1 - doubt * rng.random(n), resamples=100)
    assert right.p_value > 0.9
