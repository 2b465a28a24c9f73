"""Resampling against a plain loop over drawn indices, and the meaning of intervals and p-value."""

from __future__ import annotations

import numpy as np
import pytest

from focalcal import metrics
from focalcal.errors import InputError
from focalcal.metrics import _classwise
from focalcal.metrics.resampling import (
    KERNELS,
    Replicates,
    consistency_values,
    draw_counts,
    point_values,
    read_sample,
    rows_per_chunk,
)


def value(name, y, p, **options):
    """The metric by its public function."""
    if name.startswith("high_confidence"):
        s = metrics.high_confidence(y, p, **options)
        return s.share if name.endswith("share") else s.accuracy
    if name.endswith(("_right", "_wrong")):
        name, group = name.rsplit("_", 1)
        return getattr(getattr(metrics.correctness_split(y, p, **options), group), name)
    return getattr(metrics, name)(y, p, **options)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("weighted", [False, True])
def test_kernels_are_the_public_functions(case, name, weighted):
    y, p = case
    w = np.random.default_rng(1).random(len(y)) if weighted else None
    sample = read_sample(y, p, [name], bins=15, threshold=0.99, sample_weight=w)
    expected = value(name, y, p, sample_weight=w)
    assert point_values(sample, [name])[name] == pytest.approx(expected, abs=1e-7, nan_ok=True)


@pytest.mark.parametrize("name", KERNELS)
def test_replicates_are_the_metric_of_drawn_samples(case, name):
    y, p = case
    y, p = y[:90], p[:90]
    sample = read_sample(y, p, [name], bins=15, threshold=0.99)
    counts = draw_counts(90, slice(0, 3), seed=11)
    got = KERNELS[name](Replicates(sample, counts))
    for row, result in zip(counts, got):
        drawn = np.repeat(sample.order, row.astype(int))
        expected = value(name, y[drawn], p[drawn])
        assert result == pytest.approx(expected, abs=2e-5, nan_ok=True)


def test_counts_are_multinomial():
    counts = draw_counts(50, slice(0, 4000), seed=0)
    np.testing.assert_array_equal(counts.sum(axis=1), 50)
    assert counts.mean(axis=0) == pytest.approx(np.ones(50), abs=0.08)
    # A multinomial count has variance 1 − 1/n, a Poisson one would have 1.
    assert counts.var() == pytest.approx(1 - 1 / 50, abs=0.01)
    pair = np.cov(counts[:, 0], counts[:, 1])[0, 1]
    assert pair == pytest.approx(-1 / 50, abs=0.05)


@pytest.mark.parametrize("n", [60_000, 70_000])
def test_counts_for_wide_and_narrow_integers(n):
    counts = draw_counts(n, slice(0, 1), seed=0)
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


def test_distribution_is_that_of_a_loop():
    rng = np.random.default_rng(2)
    c = rng.random(200)
    y = (rng.random(200) < c**1.5).astype(int)
    fast = metrics.bootstrap(y, c, resamples=2000)["ece"]
    loop = []
    for _ in range(1000):
        i = rng.integers(200, size=200)
        loop.append(metrics.ece(y[i], c[i]))
    assert fast.mean() == pytest.approx(np.mean(loop), abs=4 * np.std(loop) / np.sqrt(1000))
    assert fast.std() == pytest.approx(np.std(loop), rel=0.12)


def test_classwise_values_are_the_metrics_of_drawn_samples(rng):
    p = rng.dirichlet(np.ones(5), size=60)
    y = rng.integers(5, size=60)
    sample = read_sample(y, p, ["ece"], bins=15, threshold=0.99)
    got = _classwise.resample_classwise(y[sample.order], p[sample.order], sample, 4, seed=3)
    counts = draw_counts(60, slice(0, min(4, rows_per_chunk(60))), seed=3)
    for j, row in enumerate(counts):
        i = np.repeat(sample.order, row.astype(int))
        assert got["classwise_ece"][j] == pytest.approx(metrics.classwise_ece(y[i], p[i]))
        split = metrics.brier_decomposition(y[i], p[i])
        assert got["brier_calibration"][j] == pytest.approx(split.calibration)
    edges = [metrics.equal_mass_reliability(np.zeros(60, int), p[:, k]).edges for k in range(5)]
    i = np.repeat(sample.order, counts[0].astype(int))
    gaps = []
    for k in range(5):
        index = np.digitize(p[i, k], edges[k][1:-1], right=True)
        excess = p[i, k] - (y[i] == k)
        gaps.append(np.abs(np.bincount(index, weights=excess)).sum() / 60)
    assert got["ace"][0] == pytest.approx(np.mean(gaps))


def test_classwise_groups_of_classes_change_nothing(rng, monkeypatch):
    p = rng.dirichlet(np.ones(7), size=40)
    y = rng.integers(7, size=40)
    sample = read_sample(y, p, ["ece"], bins=10, threshold=0.99)
    ordered = y[sample.order], p[sample.order], sample
    whole = _classwise.resample_classwise(*ordered, 20, seed=0)
    monkeypatch.setattr(_classwise, "_GROUP_ENTRIES", 80)
    parts = _classwise.resample_classwise(*ordered, 20, seed=0)
    for name in whole:
        np.testing.assert_allclose(parts[name], whole[name], rtol=1e-12)


def test_consistency_values_follow_the_confidences(rng):
    c = rng.random(500)
    sample = read_sample((c > 0.5).astype(int), c, ["ece"], bins=15, threshold=0.99)
    fast = consistency_values(sample, 1000, seed=0)
    loop = [metrics.ece((rng.random(500) < c).astype(int), c) for _ in range(500)]
    assert fast.mean() == pytest.approx(np.mean(loop), abs=4 * np.std(loop) / np.sqrt(500))
    assert fast.std() == pytest.approx(np.std(loop), rel=0.15)


@pytest.mark.parametrize("bad", [0, 1, 2.5, -3])
def test_resamples_are_checked(bad):
    with pytest.raises(InputError, match="whole number of resamples"):
        metrics.bootstrap([1, 0], [0.5, 0.5], resamples=bad)


def test_unknown_names_are_refused():
    with pytest.raises(InputError, match="got ecce"):
        metrics.bootstrap([1, 0], [0.5, 0.5], ["ecce"])
