"""Isotonic, histogram and Bayesian binning against scikit-learn and against counting by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.special import expit
from sklearn.isotonic import IsotonicRegression

from focalcal.bins import bin_index, equal_mass_edges
from focalcal.calibrators import (
    BayesianBinning,
    HistogramBinning,
    IsotonicCalibration,
    binning,
    load,
    make,
    to_onnx,
)
from focalcal.calibrators._columns import pack, piecewise
from focalcal.calibrators.binning import without_rounding
from focalcal.errors import FileFormatError, InputError


@pytest.fixture(scope="module")
def scores():
    rng = np.random.default_rng(1)
    s = np.round(3 * rng.normal(size=600), 1)  # rounded, so that there are ties
    return s, (rng.random(600) < expit(0.4 * s - 0.7)).astype(int)


def test_isotonic_equals_scikit_learn_at_every_sample(scores):
    # Independent of our interpolation: scikit-learn's predictions, clipped at the stated floor.
    s, y = scores
    theirs = IsotonicRegression().fit(s, y).predict(s)
    prior = (y.sum() + 1) / (len(y) + 2)
    floor, ceiling = prior / (len(y) + 1), 1 - (1 - prior) / (len(y) + 1)
    ours = IsotonicCalibration().fit(s, y).predict_proba(s)[:, 1]
    np.testing.assert_allclose(ours, np.clip(theirs, floor, ceiling), atol=1e-12)


def test_isotonic_increases_between_samples_and_is_flat_outside(scores):
    s, y = scores
    calibrator = IsotonicCalibration().fit(s, y)
    grid = np.linspace(-30, 30, 2001)
    p = calibrator.predict_proba(grid)[:, 1]
    assert np.diff(p).min() >= -1e-15
    assert p[0] == calibrator.predict_proba(s)[:, 1].min()
    assert p[-1] == calibrator.predict_proba(s)[:, 1].max()


@pytest.mark.parametrize("scheme", ["balanced", "equal-mass", "equal-width"])
def test_histogram_equals_counting_by_hand(scores, scheme):
    s, y = scores
    calibrator = HistogramBinning(bins=7, scheme=scheme).fit(s, y)
    p = expit(s)
    edges = {
        "balanced": equal_mass_edges(p, 7, np.where(y == 1, 1 / y.sum(), 1 / (1 - y).sum())),
        "equal-mass": equal_mass_edges(p, 7),
        "equal-width": np.linspace(0, 1, 8),
    }[scheme]
    prior = (y.sum() + 1) / (len(y) + 2)
    expected = np.empty(len(s))
    for lo, hi in itertools.pairwise(edges):
        inside = (p > lo) & (p <= hi)
        expected[inside] = (y[inside].sum() + prior) / (inside.sum() + 1)
    np.testing.assert_allclose(calibrator.predict_proba(s)[:, 1], expected, atol=1e-12)


def test_an_empty_bin_keeps_its_middle():
    s = np.array([-3.0, 3.0] * 20)
    y = np.array([0, 1] * 20)
    calibrator = HistogramBinning(bins=4, scheme="equal-width").fit(s, y)
    np.testing.assert_allclose(
        calibrator.predict_proba(np.array([-0.5, 0.5]))[:, 1], [0.375, 0.625]
    )


def test_bayesian_binning_equals_enumeration(scores):
    # Independent: every binning written out with gamma functions of Naeini's equation, no sharing
    # of sorted sums, no merging into one step map.
    s, y = scores[0][:60], scores[1][:60]
    p = expit(s)
    n = len(s)
    root = n ** (1 / 3)
    votes, values, seen = [], [], []
    for b in range(max(1, int(root / 10)), min(n, math.ceil(10 * root)) + 1):
        edges = equal_mass_edges(p, b)
        if any(np.array_equal(edges, e) for e in seen):
            continue
        seen.append(edges)
        log_score, value = 0.0, np.empty(n)
        for lo, hi in itertools.pairwise(edges):
            inside = (p > lo) & (p <= hi)
            m, total = int(y[inside].sum()), int(inside.sum())
            strength = 2 / (len(edges) - 1)
            alpha, beta = strength * (lo + hi) / 2, strength * (1 - (lo + hi) / 2)
            log_score += math.lgamma(strength) - math.lgamma(total + strength)
            log_score += math.lgamma(m + alpha) - math.lgamma(alpha)
            log_score += math.lgamma(total - m + beta) - math.lgamma(beta)
            value[inside] = (m + alpha) / (total + strength)
        votes.append(log_score)
        values.append(value)
    weights = np.exp(np.array(votes) - max(votes))
    expected = weights @ np.array(values) / weights.sum()
    got = BayesianBinning().fit(s, y).predict_proba(s)[:, 1]
    # What lies outside Occam's window weighs at most 1e-4 per binning.
    assert len(votes) > 10
    np.testing.assert_allclose(got, expected, atol=1e-4 * len(votes))


def test_weights_in_the_millions_do_not_add_binnings(scores, monkeypatch):
    """Their number grew with the cube root of the total weight: 11 s for 3,000 rows."""
    s, y = scores
    tried = []
    inner = binning._binning
    monkeypatch.setattr(binning, "_binning", lambda *a: tried.append(1) or inner(*a))
    counts = []
    for weight in (1.0, 10.0, 1e9):
        tried.clear()
        BayesianBinning().fit(s, y, np.full(len(s), weight))
        counts.append(len(tried))
    assert counts[0] <= counts[1] == counts[2]


def test_bayesian_binning_prefers_few_bins_when_there_is_nothing_to_learn():
    rng = np.random.default_rng(0)
    s = rng.normal(size=2000)
    p = BayesianBinning().fit(s, rng.integers(0, 2, 2000)).predict_proba(s)[:, 1]
    assert np.abs(p - 0.5).max() < 0.1


@pytest.mark.parametrize("kind", [IsotonicCalibration, HistogramBinning, BayesianBinning])
def test_no_probability_is_zero_however_extreme(kind):
    s = np.array([-1e4, -50.0, -1.0, 1.0, 50.0, 1e4] * 5)
    y = (s > 0).astype(int)
    log_p = kind().fit(s, y).predict_log_proba(np.array([-1e4, 0.0, 1e4]))
    assert np.isfinite(log_p).all()
    np.testing.assert_allclose(np.exp(log_p).sum(axis=1), 1)


@pytest.mark.filterwarnings("ignore::focalcal.errors.FitWarning")  # few samples per class
def test_floors_of_many_classes_do_not_add_up(calibrated_data):
    # With Laplace's rule every one of 200 classes would keep 1/(n+2) of its own.
    z, y = calibrated_data(1000, 200, scale=6.0)
    confident = np.full((1, 200), -30.0)
    confident[0, 3] = 0
    assert IsotonicCalibration().fit(z, y).predict_proba(confident)[0, 3] > 0.8


def test_piecewise_evaluation_equals_bin_index():
    rng = np.random.default_rng(0)
    edges = [np.sort(rng.normal(size=m)) for m in (0, 1, 5, 7, 8)]
    pieces = [np.stack([np.zeros(len(e) + 1), np.arange(len(e) + 1)], axis=1) for e in edges]
    x = rng.normal(size=(200, 5))
    x[:8, 4] = edges[4]  # on the edges themselves
    got = piecewise(x, *pack(edges, pieces))
    for j, e in enumerate(edges):
        expected = bin_index(x[:, j], np.concatenate([[-9], e, [9]]))
        np.testing.assert_array_equal(got[:, j], expected)


def test_settings_that_make_no_sense_are_refused(scores):
    with pytest.raises(InputError, match="expected scheme"):
        HistogramBinning(scheme="quantile").fit(*scores)
    with pytest.raises(InputError, match="bins"):
        HistogramBinning(bins=0).fit(*scores)


def test_a_file_with_another_number_of_edges_is_refused(scores, tmp_path):
    fitted = HistogramBinning().fit(*scores)
    fitted.edges_ = fitted.edges_[:, :4]
    fitted.save(tmp_path / "cal.json")
    with pytest.raises(FileFormatError, match="expected 2\\^m - 1 edges per column, got 4"):
        load(tmp_path / "cal.json")


def forest_scores(n=600, k=3, trees=20):
    """Log-probabilities as a random forest votes: few distinct values, equal but for rounding."""
    rng = np.random.default_rng(k)
    p = rng.dirichlet(np.full(k, 0.7), size=n)
    votes = np.stack([rng.multinomial(trees, row) for row in p]) / trees
    z = np.log(np.maximum(votes, 1e-6))
    y = (p.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    return z - np.log(np.exp(z).sum(axis=1, keepdims=True)), np.minimum(y, k - 1)


@pytest.mark.parametrize("k", [2, 3, 5])
@pytest.mark.parametrize("method", ["histogram", "bbq", "isotonic"])
@pytest.mark.parametrize("scheme", ["balanced", "equal-width"])
def test_tied_scores_fall_into_the_same_bin_in_every_precision(k, method, scheme):
    """Edges lay on scores: rounding moved probabilities by up to 0.2."""
    pytest.importorskip("onnx")
    if method != "histogram" and scheme == "equal-width":
        pytest.skip("has no scheme")
    z, y = forest_scores(k=k)
    calibrator = make(method, **({"scheme": scheme, "bins": 10} if method == "histogram" else {}))
    expected = calibrator.fit(z, y).predict_proba(z)
    tolerance = 1e-6 if method != "isotonic" else 1e-3  # steep lines between close scores
    np.testing.assert_allclose(calibrator.predict_proba(z + 7.3), expected, atol=1e-9)
    single = z.astype(np.float32)
    np.testing.assert_allclose(calibrator.predict_proba(single), expected, atol=tolerance)
    for dtype, compute in (("float64", "float64"), ("float32", "float64"), ("float32", "float32")):
        model = to_onnx.build(calibrator, dtype=dtype, compute=compute)
        got = to_onnx._run(model, z.astype(dtype))
        np.testing.assert_allclose(got, expected, atol=tolerance)
    again = calibrator.fit(single, y).predict_proba(z)
    np.testing.assert_allclose(again, expected, atol=tolerance)


def test_scores_that_differ_by_rounding_are_one_score():
    s = np.array([2.0, 0.1, np.nextafter(0.1, 1), 2.0 * (1 + 1e-7), -3.0])
    np.testing.assert_array_equal(without_rounding(s), [2.0, 0.1, 0.1, 2.0, -3.0])
    continuum = np.linspace(0, 1, 1_000_001)  # each within rounding of the next
    np.testing.assert_array_equal(without_rounding(continuum), continuum)
    tiny = np.array([1e-9, 2e-9, 3e-9])
    np.testing.assert_array_equal(without_rounding(tiny), tiny)
