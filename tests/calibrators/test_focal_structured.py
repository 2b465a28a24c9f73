"""Focal structured scaling: its gradient, its limits, its choices, and what it gains."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from scipy.special import expit

from calibrators.conftest import mean_nll
from focalcal import metrics
from focalcal._arrays import log_softmax
from focalcal.calibrators import FocalStructuredScaling, TemperatureScaling, _shrinkage, load
from focalcal.calibrators._columns import pack, piecewise, top_log_odds
from focalcal.calibrators._focal_affine import GAMMA_BOUNDS, FocalAffine, gamma_of, groups
from focalcal.calibrators._shrinkage import not_worse
from focalcal.calibrators.focal_structured import features, fit_top_label, identity_curve
from focalcal.errors import FileFormatError, InputError
from focalcal.maps import focal_log_map, inverse_focal_map

quiet = pytest.mark.filterwarnings("ignore::focalcal.errors.FitWarning")


def random_model(rng, n=40, k=4, scale=3.0):
    x, mean = features(scale * rng.normal(size=(n, k)))
    return FocalAffine(x, mean, rng.integers(0, k, n), rng.random(n))


def random_theta(rng, model, size=0.3):
    k = model.x.shape[1]
    theta = size * rng.normal(size=2 + 3 * k + k * k)
    np.fill_diagonal(theta[-k * k :].reshape(k, k), 0)
    return theta


@pytest.mark.parametrize("k", [2, 3, 6])
def test_gradient_is_that_of_the_loss(rng, k):
    # Finite differences of the loss know nothing of the chain rule through Ψ.
    model = random_model(rng, k=k)
    theta = random_theta(rng, model)
    free = np.ones(len(theta), dtype=bool)
    free[-k * k :] = ~np.eye(k, dtype=bool).ravel()
    numerical = approx_fprime(theta, lambda t: model.nll(t)[0], 1e-7)
    gradient = model.nll(theta)[1]
    np.testing.assert_allclose(gradient[free], numerical[free], rtol=1e-4, atol=2e-4)
    assert not gradient[~free].any()


def test_fitted_loss_is_that_of_the_map(rng):
    # focal_log_map is written for accuracy, from other formulas than the fast one of the fit.
    model = random_model(rng)
    theta = random_theta(rng, model)
    delta, bias, extra, matrix = (theta[group] for group in groups(4))
    scores = np.exp(theta[0]) * (1 + delta) * model.x + bias
    scores += model.mean[:, None] * extra + model.x @ matrix.reshape(4, 4)
    expected = focal_log_map(scores, gamma_of(theta[1])[0])
    np.testing.assert_allclose(model.log_proba(theta), expected, atol=1e-6)
    rows = np.arange(len(model.labels))
    loss = -float(model.weights @ expected[rows, model.labels])
    assert model.nll(theta)[0] == pytest.approx(loss, rel=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_saturated_scores_have_finite_loss_and_gradient(rng, dtype):
    x, mean = features(1e4 * rng.normal(size=(30, 3)))
    model = FocalAffine(x.astype(dtype), mean, rng.integers(0, 3, 30), np.ones(30))
    for u in (-5.0, 0.0, 5.0):
        theta = np.zeros(2 + 3 * 3 + 3 * 3)
        theta[1] = u
        loss, gradient = model.nll(theta)
        assert np.isfinite(loss)
        assert np.isfinite(gradient).all()
        assert (model.curvature(theta) >= 0).all()


def test_gamma_stays_inside_its_bounds():
    assert gamma_of(0.0)[0] == pytest.approx(0.0)
    for u in (-700.0, 30.0):
        assert GAMMA_BOUNDS[0] <= gamma_of(u)[0] <= GAMMA_BOUNDS[1]


def test_features_are_unchanged_by_a_constant(rng):
    z = rng.normal(size=(5, 4))
    for a, b in zip(features(z), features(z + 100.0)):
        np.testing.assert_allclose(a, b, atol=1e-12)
    np.testing.assert_allclose(features(z)[1], log_softmax(z).mean(axis=1), atol=1e-12)


def test_recovers_the_focal_map(calibrated_data):
    # Labels follow p, the network reports the focal minimiser q of p: Ψ^γ(q) = p undoes it.
    z, y = calibrated_data(6000, 3)
    p = np.exp(log_softmax(z))
    q = inverse_focal_map(p, 3.0)
    fitted = FocalStructuredScaling().fit(np.log(q), y)
    truth = mean_nll(log_softmax(z), y)
    assert fitted.diagnostics_.before > truth + 0.02
    held, labels = calibrated_data(6000, 3, seed=7)
    log_q = np.log(inverse_focal_map(np.exp(log_softmax(held)), 3.0))
    found = mean_nll(fitted.predict_log_proba(log_q), labels)
    assert found < mean_nll(log_softmax(held), labels) + 0.003


def test_learns_a_confusion_that_temperature_cannot(rng):
    # Class 0 and 1 are mixed up by the network: only a matrix can repair the log-odds.
    truth = 2 * rng.normal(size=(6000, 4))
    y = np.argmax(truth + rng.gumbel(size=truth.shape), axis=1)
    mixing = np.eye(4)
    mixing[0, 1] = mixing[1, 0] = 0.4
    z = truth @ np.linalg.inv(mixing)
    half = slice(0, 3000), slice(3000, None)
    fitted = FocalStructuredScaling().fit(z[half[0]], y[half[0]])
    plain = TemperatureScaling().fit(z[half[0]], y[half[0]])
    best = mean_nll(log_softmax(truth[half[1]]), y[half[1]])
    reached = mean_nll(fitted.predict_log_proba(z[half[1]]), y[half[1]])
    assert fitted.weight_.shape == (4, 4)
    assert reached < best + 0.015 < mean_nll(plain.predict_log_proba(z[half[1]]), y[half[1]])


def test_calibrated_logits_are_left_alone(calibrated_data):
    z, y = calibrated_data(5000, 5)
    fitted = FocalStructuredScaling().fit(z, y)
    held, labels = calibrated_data(5000, 5, seed=3)
    cost = mean_nll(fitted.predict_log_proba(held), labels) - mean_nll(log_softmax(held), labels)
    assert cost < 0.004


@quiet
def test_under_regularised_matrix_cannot_diverge(rng):
    # 60 classes, 9 samples of each: a free matrix would separate them.
    z = 2 * rng.normal(size=(540, 60))
    y = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
    fitted = FocalStructuredScaling(matrix=True).fit(3 * z, y)
    held = 2 * rng.normal(size=(2000, 60))
    labels = np.argmax(held + rng.gumbel(size=held.shape), axis=1)
    plain = TemperatureScaling().fit(3 * z, y)
    cost = mean_nll(fitted.predict_log_proba(3 * held), labels)
    assert cost < mean_nll(plain.predict_log_proba(3 * held), labels) + 0.02


@quiet
def test_strongly_underconfident_data_stay_bounded(rng):
    # Accuracy far above the confidence: γ wants to run away.
    n, k = 1500, 20
    y = rng.integers(0, k, n)
    shown = np.where(rng.random(n) < 0.92, y, rng.integers(0, k, n))
    z = rng.normal(size=(n, k)) * 0.3
    z[np.arange(n), shown] += 3.5
    fitted = FocalStructuredScaling().fit(z, y)
    assert GAMMA_BOUNDS[0] < fitted.gamma_ < GAMMA_BOUNDS[1]
    assert metrics.ece(y, fitted.predict_proba(z)) < 0.03
    assert fitted.diagnostics_.at_edge == any("γ" in w for w in fitted.diagnostics_.warnings)


@quiet
@pytest.mark.parametrize("n", [1, 3, 20])
def test_few_samples_stay_near_the_network(calibrated_data, n):
    z, y = calibrated_data(n, 3)
    fitted = FocalStructuredScaling().fit(z, y)
    held, labels = calibrated_data(2000, 3, seed=5)
    cost = mean_nll(fitted.predict_log_proba(held), labels) - mean_nll(log_softmax(held), labels)
    assert cost < 0.6
    assert fitted.weight_.shape == (3,)


def test_without_choosing_many_classes_are_shrunk_enough(calibrated_data, monkeypatch):
    # 15 samples of each class: a weak prior would fit their noise.
    monkeypatch.setattr(_shrinkage, "TOO_MANY", 1)
    z, y = calibrated_data(900, 60)
    fitted = FocalStructuredScaling().fit(2 * z, y)
    assert fitted.weight_.shape == (60,)
    held, labels = calibrated_data(4000, 60, seed=5)
    cost = mean_nll(fitted.predict_log_proba(2 * held), labels)
    assert cost < mean_nll(log_softmax(held), labels) + 0.05


@quiet
def test_missing_classes_and_useless_logits(rng):
    z = rng.normal(size=(200, 5))
    for y in (np.zeros(200, int), rng.integers(0, 2, 200)):
        p = FocalStructuredScaling().fit(z, y).predict_proba(z)
        assert np.isfinite(p).all()
        assert mean_nll(np.log(p), y) <= mean_nll(log_softmax(z), y)
    same = FocalStructuredScaling().fit(np.zeros((150, 3)), np.arange(150) % 3)
    np.testing.assert_allclose(same.predict_proba(np.zeros((1, 3))), 1 / 3, atol=1e-3)


def test_top_label_curve_learns_the_true_log_odds(rng):
    c = rng.normal(size=20_000) * 2 + 1
    truth = c - 0.8 * np.tanh(c / 2)
    hits = (rng.random(len(c)) < expit(truth)).astype(float)
    curve = fit_top_label(c, hits, np.ones(len(c)))
    at = np.linspace(-1, 3, 30)[:, None]
    found = piecewise(at, *pack(*([part] for part in curve)))
    np.testing.assert_allclose(found, at - 0.8 * np.tanh(at / 2), atol=0.15)


def test_top_label_curve_is_increasing_and_shrinks_to_nothing(rng):
    c = rng.normal(size=300)
    backwards = (c < 0).astype(float)
    curve = fit_top_label(c, backwards, np.ones(300))
    x = np.linspace(-4, 4, 300)
    t = piecewise(x[:, None], *pack(*([part] for part in curve)))[:, 0]
    assert (np.diff(t) > 0).all()
    always = fit_top_label(c, np.ones(300), np.ones(300))
    np.testing.assert_array_equal(always[1], identity_curve()[1])


def test_predicted_class_is_kept_by_the_last_step(calibrated_data):
    z, y = calibrated_data(2000, 5)
    fitted = FocalStructuredScaling().fit(3 * z, y)
    x, mean = features(3 * z)
    s = x @ fitted.weight_.T if fitted.weight_.ndim == 2 else x * fitted.weight_
    s = s + fitted.bias_ + mean[:, None] * fitted.mean_weight_
    np.testing.assert_array_equal(fitted.predict(3 * z), s.argmax(axis=1))
    assert top_log_odds(s).shape == (2000, 1)


@quiet
@pytest.mark.parametrize("zeros", [False, True])
def test_a_classifier_that_always_favours_a_rare_class_keeps_its_ranking(rng, zeros):
    # Any temperature is worse than none of the logits: the best is infinite.
    truth = 3 * rng.normal(size=2000) - 4
    y = (rng.random(2000) < expit(truth)).astype(int)
    z = np.stack([np.zeros(2000), truth + 14], axis=1)
    if zeros:
        z[truth > 2, 0] = -np.inf
    own, other = slice(0, 1000), slice(1000, None)
    fitted = FocalStructuredScaling().fit(z[own], y[own])
    best = mean_nll(log_softmax(np.stack([0 * truth, truth], axis=1))[other], y[other])
    constant = mean_nll(np.log([[1 - y.mean(), y.mean()]] * 1000), y[other])
    assert mean_nll(fitted.predict_log_proba(z[other]), y[other]) < 0.8 * best + 0.2 * constant


def test_no_class_is_less_probable_than_the_samples_can_show(calibrated_data, tmp_path):
    z, y = calibrated_data(200, 3)
    fitted = FocalStructuredScaling().fit(z, y)
    u = fitted.unseen_
    assert u == pytest.approx(0.3 / (3 * 201))
    found = fitted.predict_proba(100 * z)
    assert found.min() >= u / (1 + 3 * u) - 1e-15
    fitted.save(tmp_path / "c.json")
    document = json.loads((tmp_path / "c.json").read_text())
    del document["state"]["unseen_"]  # a file of an earlier version
    (tmp_path / "c.json").write_text(json.dumps(document))
    earlier = load(tmp_path / "c.json").predict_proba(100 * z)
    np.testing.assert_allclose(found, (earlier + u) / (1 + 3 * u), rtol=1e-12)
    document["state"]["unseen_"] = -1e-9
    (tmp_path / "c.json").write_text(json.dumps(document))
    with pytest.raises(FileFormatError, match="unseen_ of at least 0"):
        load(tmp_path / "c.json")


def test_matrix_must_be_a_known_choice(calibrated_data):
    with pytest.raises(InputError, match="matrix"):
        FocalStructuredScaling(matrix="full").fit(*calibrated_data(30, 3))


def test_beats_temperature_on_a_real_network(shared_data):
    file = np.load(shared_data / "logits" / "cifar10_test_probs_netcal.npz")
    name = next(k for k in file.files if "wide" in k)
    z, y = np.log(np.maximum(file[name].astype(float), 1e-30)), file["labels"].astype(int)
    own = np.random.default_rng(0).permutation(len(y)) < len(y) // 2
    fitted = FocalStructuredScaling().fit(z[own], y[own])
    plain = TemperatureScaling().fit(z[own], y[own])
    ours, theirs = (c.predict_log_proba(z[~own]) for c in (fitted, plain))
    assert mean_nll(ours, y[~own]) < mean_nll(theirs, y[~own]) - 0.01
    assert metrics.adaptive_ece(y[~own], np.exp(ours)) < metrics.adaptive_ece(
        y[~own], np.exp(theirs)
    )


def shown(rng, n, k=4):
    labels = rng.integers(0, k, n)
    logits = 2 * rng.normal(size=(n, k))
    logits[np.arange(n), labels] += 1.5
    return logits, labels


@pytest.mark.parametrize("quantum", [None, 0.25])
def test_what_is_added_to_all_logits_of_a_sample_does_not_matter(rng, quantum):
    logits, labels = shown(rng, 600)
    offset = 3 * rng.normal(size=(600, 1))
    if quantum is not None:
        logits, offset = (np.round(a / quantum) * quantum for a in (logits, offset))
    moved = logits + offset
    found = FocalStructuredScaling().fit(logits, labels).predict_proba(logits)
    again = FocalStructuredScaling().fit(moved, labels).predict_proba(moved)
    np.testing.assert_allclose(again, found, atol=1e-4)


@pytest.mark.parametrize("n", [200, 600])
def test_order_of_the_classes_does_not_matter(rng, n):
    logits, labels = shown(rng, n)
    found = FocalStructuredScaling().fit(logits, labels).predict_proba(logits)
    for _ in range(3):
        order = rng.permutation(4)
        fitted = FocalStructuredScaling().fit(logits[:, order], np.argsort(order)[labels])
        again = fitted.predict_proba(logits[:, order])
        np.testing.assert_allclose(again, found[:, order], atol=1e-3)


def test_a_weaker_prior_must_gain_more_than_chance(rng):
    noise = rng.normal(size=1000)
    noise -= noise.mean()
    error = noise.std() / np.sqrt(1000)
    assert not_worse(noise + 0.9 * error, np.ones(1000))
    assert not not_worse(noise + 1.1 * error, np.ones(1000))
    assert not_worse(np.zeros(10), np.ones(10))


@pytest.mark.parametrize("offset", [14, 40, 200])
def test_a_class_that_is_far_above_the_others_is_shifted_back(calibrated_data, offset):
    """The solver did not converge, and the result was hardly better than the class frequencies."""
    z, y = calibrated_data(800, 4)
    plain = FocalStructuredScaling().fit(z[:400], y[:400])
    z_far = z + offset * (np.arange(4) == 1)
    fitted = FocalStructuredScaling().fit(z_far[:400], y[:400])
    assert fitted.diagnostics_.converged
    expected = mean_nll(plain.predict_log_proba(z[400:]), y[400:])
    found = mean_nll(fitted.predict_log_proba(z_far[400:]), y[400:])
    assert found < expected + 0.03


def test_few_samples_of_a_confident_network_are_safe(shared_data):
    # A weak prior chosen by chance cost .16 of NLL here.
    file = np.load(shared_data / "logits" / "cifar10_test_probs_netcal.npz")
    name = next(k for k in file.files if "wide" in k)
    z, y = np.log(np.maximum(file[name].astype(float), 1e-30)), file["labels"].astype(int)
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(y))
        own, other = order[:200], order[5000:]
        fitted = FocalStructuredScaling().fit(z[own], y[own])
        plain = TemperatureScaling().fit(z[own], y[own])
        ours, theirs = (mean_nll(c.predict_log_proba(z[other]), y[other]) for c in (fitted, plain))
        assert ours < theirs + 0.02
