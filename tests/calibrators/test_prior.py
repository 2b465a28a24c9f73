"""Prior correction against data of which both proportions and every posterior are known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from focalcal.calibrators import PriorCorrection, TemperatureScaling, load, make
from focalcal.calibrators.prior import _largest_error, estimate_prior
from focalcal.errors import FileFormatError, FitWarning, InputError, InputWarning
from focalcal.metrics import nll

MEANS = np.array([[0.0, 0.0], [1.5, 0.0], [0.0, 2.0]])
OLD, NEW = np.array([0.5, 0.3, 0.2]), np.array([0.1, 0.3, 0.6])


def sample(n, prior, seed=0):
    """Samples of three normals: logits of the true posterior under OLD, and labels."""
    rng = np.random.default_rng(seed)
    y = rng.choice(3, n, p=prior)
    x = MEANS[y] + rng.normal(size=(n, 2))
    log_likelihood = -0.5 * ((x[:, None] - MEANS) ** 2).sum(axis=2)
    return log_likelihood + np.log(OLD), y


def posterior(z, prior):
    p = np.exp(z) / OLD * prior
    return p / p.sum(axis=1, keepdims=True)


def test_known_priors_give_the_true_posterior():
    z, y = sample(2000, OLD)
    corrected = PriorCorrection(OLD, NEW).fit(z, y)
    new, _ = sample(500, NEW, seed=1)
    np.testing.assert_allclose(corrected.predict_proba(new), posterior(new, NEW), atol=1e-12)


def test_estimated_prior_maximises_the_likelihood_and_is_near_the_truth():
    # Independent: a general optimiser over the simplex, which knows nothing of EM.
    z, y = sample(4000, OLD)
    new, new_y = sample(5000, NEW, seed=1)
    corrected = PriorCorrection(OLD).fit(z, y).adapt(new)
    np.testing.assert_allclose(corrected.target_prior_, NEW, atol=0.03)
    likelihood = posterior(new, OLD) / OLD

    def loss(u):
        q = np.exp(u - u.max())
        return -np.mean(np.log(likelihood @ (q / q.sum())))

    u = minimize(loss, np.zeros(3), tol=1e-12).x
    np.testing.assert_allclose(corrected.target_prior_, np.exp(u) / np.exp(u).sum(), atol=1e-4)
    before = nll(new_y, PriorCorrection(OLD).fit(z, y).predict_proba(new))
    assert nll(new_y, corrected.predict_proba(new)) < before - 0.1


def test_undoing_resampling():
    """A network trained on balanced data, used where classes are not balanced."""
    z, y = sample(20_000, NEW)
    balanced = z - np.log(OLD)  # the log-odds of a model of balanced data
    undone = PriorCorrection([1 / 3] * 3, NEW).fit(balanced, y).predict_proba(balanced)
    np.testing.assert_allclose(undone, posterior(z, NEW), atol=1e-12)


def test_it_composes_with_any_calibrator(tmp_path):
    z, y = sample(3000, OLD)
    inside = PriorCorrection(target_prior=NEW, calibrator="temperature").fit(3 * z, y)
    fitted = TemperatureScaling().fit(3 * z, y)
    around = PriorCorrection(target_prior=NEW).wrap(fitted)
    np.testing.assert_array_equal(inside.predict_proba(3 * z), around.predict_proba(3 * z))
    np.testing.assert_allclose(around.train_prior_, np.bincount(y) / 3000)
    around.save(tmp_path / "c.json")
    again = load(tmp_path / "c.json")
    np.testing.assert_array_equal(again.predict_proba(z), around.predict_proba(z))
    np.testing.assert_allclose(around.predict_proba(3 * z), posterior(z, NEW), atol=0.05)


def test_export_is_a_bias():
    onnx = pytest.importorskip("onnx")
    from focalcal.calibrators.to_onnx import build

    z, y = sample(500, OLD)
    graph = build(PriorCorrection(OLD, NEW).fit(z, y), compute="float64").graph
    constants = [onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer]
    assert any(c.shape == (3,) and np.allclose(c, np.log(NEW / OLD)) for c in constants)


def test_multilabel_estimates_one_prior_per_label():
    rng = np.random.default_rng(0)
    z = 3 * rng.normal(size=(4000, 2))
    y = (rng.random(z.shape) < 1 / (1 + np.exp(-z))).astype(int)
    fitted = PriorCorrection(task="multilabel").fit(z, y)
    rare = z[(y[:, 0] == 0) | (rng.random(4000) < 0.2)]
    fitted.adapt(rare)
    assert fitted.labels_[0].target_prior_[1] == pytest.approx(1 / 6, abs=0.04)


def test_a_class_without_calibration_samples_has_a_prior():
    z, y = sample(200, OLD)
    with pytest.warns(FitWarning, match="no calibration sample"):
        fitted = PriorCorrection().fit(z, np.minimum(y, 1))
    assert (fitted.train_prior_ > 0).all()


def test_classes_that_look_alike_are_said(monkeypatch):
    monkeypatch.setattr("focalcal.calibrators.prior.MAX_STEPS", 3)
    z, y = sample(500, OLD)
    fitted = PriorCorrection().fit(z, y)
    with pytest.warns(FitWarning, match="EM did not converge"):
        fitted.adapt(sample(500, NEW)[0])


@pytest.mark.parametrize("k", [2, 5])
def test_classes_without_any_difference_are_said_though_em_stands_still(k):
    fitted = PriorCorrection().fit(np.zeros((40, k)), np.arange(40) % k)
    with pytest.warns(FitWarning, match="hard to distinguish: .* standard error of 1;"):
        fitted.adapt(np.zeros((1000, k)))


def test_the_standard_error_is_that_of_simulations():
    """Against the spread of 200 estimates."""
    train, target = np.array([0.5, 0.5]), np.array([0.7, 0.3])
    rng = np.random.default_rng(3)
    found, errors = [], []
    for _ in range(200):
        y = (rng.random(300) < target[1]).astype(int)
        p = 1 / (1 + np.exp(0.5 - y - rng.normal(size=300)))  # x | y is N(y − 1/2, 1)
        proba = np.column_stack([1 - p, p])
        found.append(estimate_prior(proba, train)[0])
        errors.append(_largest_error(proba, train, found[-1]))
    assert np.mean(errors) == pytest.approx(np.std(np.array(found)[:, 1]), rel=0.15)


def test_absent_classes_keep_a_trace():
    proba = np.array([[1.0, 0.0]] * 50)
    prior, converged = estimate_prior(proba, np.array([0.5, 0.5]))
    assert converged
    assert 0 < prior[1] < 1e-9


@pytest.mark.parametrize(
    "prior", [[0.5, 0.5], [0.5, 0.5, 0.0], [0.5, 0.4, 0.4], 0.3, [np.nan, 0.5, 0.5]]
)
def test_priors_that_make_no_sense_are_refused(prior):
    z, y = sample(100, OLD)
    with pytest.raises(InputError, match="expected target_prior as 3 numbers > 0 with sum 1"):
        PriorCorrection(OLD, prior).fit(z, y)


def test_other_bad_settings_are_refused(tmp_path):
    z, y = sample(100, OLD)
    with pytest.raises(InputError, match="expected calibrator as one of"):
        PriorCorrection(calibrator="prior-correction").fit(z, y)
    many = make("temperature", task="multilabel").fit(z, np.eye(3, dtype=int)[y])
    with pytest.raises(InputError, match="got a multi-label one"):
        PriorCorrection().wrap(many)
    fitted = PriorCorrection().fit(z, y)
    fitted.calibrator_ = make("identity").fit(z[:, :2], np.minimum(y, 1))
    fitted.save(tmp_path / "c.json")
    with pytest.raises(FileFormatError, match="expected a calibrator for 3 classes inside"):
        load(tmp_path / "c.json")


def test_wrapping_keeps_the_class_names(calibrated_data):
    z, y = calibrated_data(200, 3)
    with pytest.warns(InputWarning, match="alphabetical"):
        named = TemperatureScaling().fit(z, np.array(["x", "y", "z"])[y])
    wrapped = PriorCorrection(target_prior=[0.2, 0.3, 0.5]).wrap(named)
    assert wrapped.class_names_ == named.class_names_ == ("x", "y", "z")
    assert not hasattr(wrapped.wrap(TemperatureScaling().fit(z, y)), "class_names_")
