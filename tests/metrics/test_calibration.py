"""Calibration errors against loops over samples that share no code with the bin kernel."""

from __future__ import annotations

import numpy as np
import pytest

from focalcal import metrics


def top(y, p):
    p = p if p.ndim == 2 else np.column_stack([1 - p, p])
    return p.max(axis=1), (p.argmax(axis=1) == y).astype(int)


def loop_bins(c, h, edges):
    """[(count, mean confidence, accuracy)] of the non-empty bins, one sample at a time."""
    members = [[] for _ in edges[1:]]
    for pair in zip(c, h):
        members[next(i for i, hi in enumerate(edges[1:]) if pair[0] <= hi)].append(pair)
    return [(len(m), *np.mean(m, axis=0)) for m in members if m]


def rank_bins(c, h, m):
    """Equal-mass bins by rank, equal confidences never parted: the definition, in plain words."""
    order = np.argsort(c, kind="stable")
    c, h = c[order], h[order]
    groups, start = [], 0
    for i in range(1, m + 1):
        end = max(-(-i * len(c) // m), start)  # ceil
        while 0 < end < len(c) and c[end] == c[end - 1]:
            end += 1
        if end > start:
            groups.append((end - start, c[start:end].mean(), h[start:end].mean()))
        start = end
    return groups


def weighted_gap(groups, n):
    return sum(k * abs(conf - acc) for k, conf, acc in groups) / n


EDGES = np.linspace(0, 1, 16)


def test_fixed_bins(case):
    y, p = case
    c, h = top(y, p)
    groups = loop_bins(c, h, EDGES)
    assert metrics.ece(y, p) == pytest.approx(weighted_gap(groups, len(y)), abs=1e-12)
    assert metrics.mce(y, p) == pytest.approx(max(abs(a - b) for _, a, b in groups), abs=1e-12)
    rms = np.sqrt(sum(k * (a - b) ** 2 for k, a, b in groups) / len(y))
    assert metrics.rms_calibration_error(y, p) == pytest.approx(rms, abs=1e-12)


@pytest.mark.parametrize("m", [1, 2, 7, 15, 400])
def test_equal_mass_bins(case, m):
    y, p = case
    c, h = top(y, p)
    groups = rank_bins(c, h, m)
    assert metrics.adaptive_ece(y, p, bins=m) == pytest.approx(
        weighted_gap(groups, len(y)), abs=1e-12
    )
    square = sum(k * (a - b) ** 2 for k, a, b in groups)
    bias = sum(k * b * (1 - b) / (k - 1) for k, _, b in groups if k > 1)
    expected = np.sqrt(max(square - bias, 0) / len(y))
    assert metrics.debiased_ece(y, p, bins=m) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(300, 10), (300, 2), (70, 100), (200_000, 5), (300,)])
@pytest.mark.parametrize("bins", [1, 15, 100, 128, 129, 255, 256, 300, 2000])
def test_ece_is_the_mean_gap_of_the_bins(rng, dtype, shape, bins):
    p = rng.random(shape) ** 3
    p = (p / p.sum(axis=1, keepdims=True) if p.ndim == 2 else p).astype(dtype)
    y = rng.integers(0, shape[1] if len(shape) == 2 else 2, shape[0])
    c, h = top(y, p)
    wide = c.astype(dtype)
    inner = np.linspace(0, 1, bins + 1)[1:-1].astype(wide.dtype)
    at = np.searchsorted(inner, wide)
    gaps = np.bincount(at, weights=wide.astype(np.float64) - h, minlength=bins)
    expected = np.abs(gaps).sum() / shape[0]
    b = metrics.reliability(y, p, bins=bins)
    np.testing.assert_array_equal(b.counts, np.bincount(at, minlength=bins))
    np.testing.assert_array_equal(b.correct_sums, np.bincount(at, weights=h, minlength=bins))
    assert metrics.ece(y, p, bins=bins) == pytest.approx(expected, abs=1e-13)
    weighted = metrics.ece(y, p, bins=bins, sample_weight=np.ones(shape[0]))
    assert weighted == pytest.approx(expected, abs=1e-13)


def test_classwise(case):
    y, p = case
    q = p if p.ndim == 2 else np.column_stack([1 - p, p])
    columns = [(q[:, k], (y == k) * 1) for k in range(q.shape[1])]
    fixed = [weighted_gap(loop_bins(c, h, EDGES), len(y)) for c, h in columns]
    mass = [weighted_gap(rank_bins(c, h, 15), len(y)) for c, h in columns]
    assert metrics.classwise_ece(y, p) == pytest.approx(np.mean(fixed), abs=1e-12)
    assert metrics.ace(y, p) == pytest.approx(np.mean(mass), abs=1e-12)


def test_ace_is_the_papers_mean_over_ranges_without_ties(rng):
    # 1/(K·R) Σ_k Σ_r |acc − conf| with R ranges of exactly n/R samples (Nixon et al., Eq. 4).
    p = rng.dirichlet(np.ones(4), size=150)
    y = rng.integers(4, size=150)
    expected = np.mean(
        [[abs(a - b) for _, a, b in rank_bins(p[:, k], (y == k) * 1, 15)] for k in range(4)]
    )
    assert metrics.ace(y, p) == pytest.approx(expected, abs=1e-13)


def test_ks(case):
    y, p = case
    c, h = top(y, p)
    sums = [abs(np.sum((c - h)[c <= t])) / len(y) for t in c]
    assert metrics.ks_error(y, p) == pytest.approx(max(sums), abs=1e-12)


def test_confidence_gap_has_a_sign(case):
    y, p = case
    c, h = top(y, p)
    assert metrics.confidence_gap(y, p) == pytest.approx(c.mean() - h.mean())
    assert metrics.confidence_gap([1, 1], [0.6, 0.6]) == pytest.approx(-0.4)


def test_debiasing_removes_the_bias():
    # Calibrated forecasts: the plug-in square is positive by noise, the debiased one averages 0.
    rng = np.random.default_rng(5)
    plug, debiased = [], []
    for _ in range(200):
        c = rng.random(300)
        y = (rng.random(300) < c).astype(int)
        b = metrics.equal_mass_reliability(y, confidence=c)
        gap2 = np.sum(b.share * b.gap**2)
        plug.append(gap2)
        debiased.append(gap2 - np.sum(b.share * b.accuracy * (1 - b.accuracy) / (b.counts - 1)))
    assert np.mean(plug) > 0.005
    assert abs(np.mean(debiased)) < 3 * np.std(debiased) / np.sqrt(200)


@pytest.mark.parametrize(
    "name",
    [
        "ece",
        "mce",
        "rms_calibration_error",
        "adaptive_ece",
        "debiased_ece",
        "classwise_ece",
        "ace",
        "ks_error",
        "confidence_gap",
        "smooth_ece",
        "accuracy",
        "brier",
        "aurc",
        "auroc_of_confidence",
    ],
)
def test_weights_equal_repetition(case, name):
    y, p = case
    y, p = y[:120], p[:120]
    w = np.random.default_rng(3).integers(0, 4, size=len(y))
    metric = getattr(metrics, name)
    repeated = metric(np.repeat(y, w), np.repeat(p, w, axis=0))
    assert metric(y, p, sample_weight=w) == pytest.approx(repeated, abs=1e-8)


@pytest.mark.parametrize(
    "name", ["ece", "adaptive_ece", "ace", "ks_error", "smooth_ece", "auroc_of_confidence", "aurc"]
)
def test_order_of_samples_does_not_matter(case, name):
    y, p = case
    i = np.random.default_rng(4).permutation(len(y))
    metric = getattr(metrics, name)
    assert metric(y[i], p[i]) == pytest.approx(metric(y, p), abs=1e-12)


@pytest.mark.parametrize("votes", [7, 25, 101])
def test_confidences_that_differ_by_rounding_share_a_bin_of_equal_mass(rng, votes):
    """As sums of the votes of a forest do, whose trees are added in another order each time."""
    hits = rng.binomial(votes, rng.beta(2, 2, size=400))
    exact, y = hits / votes, (rng.random(400) < hits / votes).astype(int)
    rounded = exact * (1 + 2.0**-53 * rng.integers(-8, 9, size=400))
    assert len(np.unique(rounded)) > 2 * len(np.unique(exact))
    for metric in (metrics.adaptive_ece, metrics.ace):
        assert metric(y, rounded) == pytest.approx(metric(y, exact), abs=1e-12)
    for weights in (None, rng.random(400)):
        given = [
            metrics.evaluate(y, confidence=c, sample_weight=weights, resamples=20)["adaptive_ece"]
            for c in (exact, rounded)
        ]
        assert given[1].value == pytest.approx(given[0].value, abs=1e-12)
    apart = np.array([0.3, 0.3 + 1e-12, 0.3 + 2e-12])
    assert len(metrics.equal_mass_reliability([1, 0, 1], confidence=apart, bins=3)) == 3
