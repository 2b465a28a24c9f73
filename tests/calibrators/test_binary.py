"""Platt and beta against scikit-learn, and the shared Newton against an independent optimiser."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression

from calibrators.conftest import mean_nll
from focalcal.calibrators import BetaCalibration, PlattScaling, QuadraticScaling, make
from focalcal.calibrators.binary import fit_logistic
from focalcal.errors import FitWarning, InputError

MANY = 1e6
"""With every sample counted so often the prior of beta calibration has nothing left to say."""


@pytest.fixture(scope="module")
def scores():
    rng = np.random.default_rng(1)
    s = 3 * rng.normal(size=2000)
    return s, (rng.random(2000) < expit(0.4 * s - 0.7)).astype(int)


def test_platt_equals_scikit_learns_sigmoid_calibration(scores):
    # Independent: scikit-learn minimises the same smoothed likelihood by L-BFGS in its own code.
    s, y = scores
    model = LogisticRegression().fit(s[:, None], y)
    decision = model.decision_function(s[:, None])
    theirs = CalibratedClassifierCV(FrozenEstimator(model), method="sigmoid")
    theirs.fit(s[:, None], y)
    sigmoid = theirs.calibrated_classifiers_[0].calibrators[0]
    ours = PlattScaling().fit(decision, y)
    np.testing.assert_allclose(ours.slope_, -sigmoid.a_, rtol=1e-4)
    np.testing.assert_allclose(ours.intercept_, -sigmoid.b_, rtol=1e-4, atol=1e-5)


def test_beta_equals_logistic_regression_on_log_p_and_log_one_minus_p(scores):
    # Independent: scikit-learn's own Newton solver on the features written out.
    s, y = scores
    features = np.stack([np.log(expit(s)), -np.log(expit(-s))], axis=1)
    theirs = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-10).fit(features, y)
    ours = BetaCalibration().fit(s, y, sample_weight=np.full(len(y), MANY))
    assert theirs.coef_.min() > 0
    np.testing.assert_allclose([ours.a_[0], ours.b_[0]], theirs.coef_[0], rtol=1e-5)
    np.testing.assert_allclose(ours.c_, theirs.intercept_, rtol=1e-4)


def test_beta_bounds_hold_exactly_and_are_the_constrained_optimum():
    rng = np.random.default_rng(0)
    s = 2 * rng.normal(size=1000)
    y = (rng.random(1000) < expit(-1.5 * np.log1p(np.exp(-s)) - 0.3 * s)).astype(int)
    ours = BetaCalibration().fit(s, y, sample_weight=np.full(len(y), MANY))
    assert ours.b_[0] == 0
    assert ours.a_[0] > 0

    def nll(theta):
        eta = -theta[0] * np.logaddexp(0, -s) + theta[1] * np.logaddexp(0, s) + theta[2]
        return np.mean(np.logaddexp(0, eta) - y * eta)

    # Independent: a general bounded quasi-Newton that only sees values.
    theirs = minimize(nll, [1, 1, 0], bounds=[(0, None), (0, None), (None, None)])
    np.testing.assert_allclose([ours.a_[0], ours.b_[0], ours.c_[0]], theirs.x, atol=2e-3)
    assert ours.diagnostics_.after <= theirs.fun + 1e-9


def test_quadratic_equals_logistic_regression_and_finds_the_truth_of_two_normals():
    # Independent: scikit-learn's Newton solver, and the log-odds of two normals written out.
    rng = np.random.default_rng(4)
    y = rng.integers(0, 2, 20_000)
    s = np.where(y, rng.normal(1.0, 2.0, len(y)), rng.normal(-1.0, 1.0, len(y)))
    features = np.stack([s**2, s], axis=1)
    theirs = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-10).fit(features, y)
    ours = QuadraticScaling().fit(s, y, sample_weight=np.full(len(y), MANY))
    found = [ours.a_[0], ours.b_[0], ours.c_[0]]
    np.testing.assert_allclose(found, [*theirs.coef_[0], theirs.intercept_[0]], rtol=1e-4)
    truth = np.array([-1 / 8 + 1 / 2, 1 / 4 + 1.0, -1 / 8 + 1 / 2 - np.log(2)])
    expected = expit(truth[0] * s**2 + truth[1] * s + truth[2])
    found = QuadraticScaling().fit(s, y).predict_proba(s)[:, 1]
    assert np.abs(found - expected).mean() < 0.01


def test_beta_of_few_samples_has_the_highest_posterior():
    # Independent: a general optimiser on the stated prior, the common slope by a grid of its own.
    rng = np.random.default_rng(3)
    s = 4 * rng.normal(size=40)
    y = (rng.random(40) < expit(0.5 * s - 0.5)).astype(int)
    grid = np.linspace(0, 2, 20001)
    losses = [np.sum(np.logaddexp(0, b * s) - y * b * s) for b in grid]
    slope = grid[np.argmin(losses)]

    def objective(theta):
        eta = -theta[0] * np.logaddexp(0, -s) + theta[1] * np.logaddexp(0, s) + theta[2]
        prior = 3 * np.sum((theta[:2] / slope - 1) ** 2) + 0.3 * theta[2] ** 2
        return np.sum(np.logaddexp(0, eta) - y * eta) + prior / 2

    theirs = minimize(objective, [1, 1, 0], bounds=[(0, None), (0, None), (None, None)])
    ours = BetaCalibration().fit(s, y)
    np.testing.assert_allclose([ours.a_[0], ours.b_[0], ours.c_[0]], theirs.x, atol=2e-3)


@pytest.mark.filterwarnings("ignore::focalcal.errors.FitWarning")
@pytest.mark.parametrize("method", ["platt", "beta", "spline", "quadratic"])
@pytest.mark.parametrize("k", [2, 5])
def test_logits_of_any_scale_give_the_same_probabilities(method, k, calibrated_data):
    """A trace of shrinkage towards slope 1 decided the fit from 1e8 on."""
    z, y = calibrated_data(800, k, scale=1e4)  # one-vs-rest log-odds are then proportional
    y = (y + (np.arange(800) % 5 == 0)) % k
    expected = make(method).fit(z, y).predict_proba(z)
    for scale in (1e4, 1e8, 1e20):
        got = make(method).fit(z * scale, y).predict_proba(z * scale)
        np.testing.assert_allclose(got, expected, atol=1e-4)


@pytest.mark.filterwarnings("ignore::focalcal.errors.FitWarning")
@pytest.mark.parametrize("method", ["beta", "spline", "quadratic"])
def test_few_samples_of_many_classes_are_not_far_worse_than_nothing(method, calibrated_data):
    """Ten samples of each class gave every class a line of its own: .84 to 1.09 against .37."""
    test_z, test_y = calibrated_data(4000, 10, scale=5.0, seed=99)
    nothing = mean_nll(make("identity").fit(test_z, test_y).predict_log_proba(test_z), test_y)
    found = []
    for seed in range(5):
        calibrator = make(method).fit(*calibrated_data(100, 10, scale=5.0, seed=seed))
        found.append(mean_nll(calibrator.predict_log_proba(test_z), test_y))
    assert np.mean(found) < nothing + 0.1


def test_fit_logistic_is_never_worse_than_its_start():
    rng = np.random.default_rng(2)
    for _ in range(20):
        features = rng.normal(size=(30, 3)) * rng.lognormal(sigma=3, size=3)
        target = rng.random(30)
        start = rng.random(3)
        fit = fit_logistic(features, target, np.ones(30), (start, 0.0), (True, False, True))
        eta = np.stack([features @ start, features @ fit.coefficients])
        before, after = np.sum(np.logaddexp(0, eta) - target * eta, axis=1)
        assert after <= before + 1e-9
        assert fit.converged
        assert fit.coefficients[[0, 2]].min() >= 0


@pytest.mark.parametrize("kind", [PlattScaling, BetaCalibration])
@pytest.mark.parametrize("k", [2, 4])
def test_true_slopes_are_found(kind, k, calibrated_data):
    z, y = calibrated_data(4000, k)
    calibrator = kind().fit(3 * z, y)
    before, after = calibrator.diagnostics_.before, calibrator.diagnostics_.after
    assert after < before
    p = calibrator.predict_proba(3 * z)
    truth = np.exp(z - np.log(np.sum(np.exp(z), axis=1, keepdims=True)))
    assert np.mean(np.abs(p - truth)) < (0.01 if k == 2 else 0.05)


def test_negative_slope_is_said(scores):
    s, y = scores
    with pytest.warns(FitWarning, match="worse than chance"):
        assert PlattScaling().fit(-s, y).slope_[0] < 0


def test_separated_classes_stay_finite_and_are_said():
    s = np.concatenate([np.linspace(-3, -1, 50), np.linspace(1, 3, 50)])
    y = (s > 0).astype(int)
    with pytest.warns(FitWarning, match="separate 1 of 1"):
        calibrator = BetaCalibration().fit(s, y)
    assert np.isfinite(calibrator.predict_log_proba(s)).all()
    assert np.isfinite(PlattScaling().fit(s, y).slope_).all()


def test_multi_label_calibrates_each_label(scores):
    s, y = scores
    both = PlattScaling(task="multilabel").fit(np.stack([s, -s], axis=1), np.stack([y, 1 - y], 1))
    one = PlattScaling().fit(s, y)
    p = both.predict_proba(np.stack([s, -s], axis=1))
    np.testing.assert_allclose(p[:, 0], one.predict_proba(s)[:, 1])
    np.testing.assert_allclose(p[:, 1], 1 - p[:, 0], atol=1e-9)


def test_unknown_mode_is_refused(scores):
    with pytest.raises(InputError, match="expected mode 'ovr' or 'top-label', got 'top'"):
        PlattScaling(mode="top").fit(*scores)


@pytest.mark.parametrize("method", ["platt", "beta", "quadratic", "spline"])
def test_nearly_constant_log_odds_are_said(method):
    """Four classes on a scale of 1e-6: all log-odds are −ln 3 but for the sixth digit."""
    rng = np.random.default_rng(0)
    z = 3 * rng.normal(size=(600, 4))
    y = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
    with pytest.warns(FitWarning, match="nearly constant"):
        make(method).fit(1e-6 * z, y)
    assert not make(method).fit(z, y).diagnostics_.warnings


@pytest.mark.parametrize("name", ["beta", "spline"])
@pytest.mark.parametrize("k", [2, 4])
def test_log_odds_worse_than_chance_are_said(name, k, calibrated_data):
    """The slope ended at zero, and every sample had the same probabilities without a word."""
    z, y = calibrated_data(1000, k)
    with pytest.warns(FitWarning, match=f"{k if k > 2 else 1} of .* slopes are zero"):
        fitted = make(name).fit(-z, y)
    p = fitted.predict_proba(z)
    np.testing.assert_allclose(p, np.broadcast_to(p[:1], p.shape), atol=1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(name).fit(z, y)
