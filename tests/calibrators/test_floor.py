"""Probabilities of zero: a floor is learnt, acts first, and goes wherever the calibrator goes."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax

from calibrators.conftest import mean_nll
from focalcal.calibrators import (
    METHODS,
    FocalStructuredScaling,
    PriorCorrection,
    TemperatureScaling,
    VennAbers,
    _floor,
    _folds,
    load,
    make,
)
from focalcal.calibrators._floor import fit_floor, fit_shifted, floored, temperature_loss
from focalcal.calibrators._folds import fold_shares
from focalcal.calibrators.prior import estimate_prior
from focalcal.errors import FileFormatError, InputError

pytestmark = pytest.mark.filterwarnings("ignore::focalcal.errors.FitWarning")


@pytest.fixture(scope="module")
def votes():
    """Logarithms of the shares of ten votes, as of a small forest, and labels."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet([0.5, 0.5, 0.5], 900)
    y = np.array([rng.choice(3, p=row) for row in p])
    shares = np.stack([rng.multinomial(10, row) for row in p]) / 10
    with np.errstate(divide="ignore"):
        return np.log(shares), y


@pytest.mark.parametrize("method", [m for m in METHODS if m not in ("identity", "focal")])
def test_zeros_become_possible(votes, method):
    z, y = (a[:300] for a in votes)
    fitted = make(method).fit(z, y)
    log_p = fitted.predict_log_proba(votes[0])
    assert np.isfinite(log_p).all()
    held_out = -log_p[np.arange(300, 900), votes[1][300:]].mean()
    assert held_out < 0.95 < np.log(3)


def test_floor_is_that_of_the_best_temperature(votes):
    z, y = votes
    fitted = TemperatureScaling().fit(z, y)
    assert fitted.floor_ > 0
    assert fitted.diagnostics_.before == np.inf
    np.testing.assert_allclose(np.exp(floored(z, 0.01)), np.exp(z) + 0.01, atol=1e-12)
    plain = TemperatureScaling().fit(floored(z, fitted.floor_), y)
    np.testing.assert_allclose(
        fitted.predict_proba(z), plain.predict_proba(floored(z, fitted.floor_)), atol=1e-12
    )
    for other in (1e-6, 0.3):
        worse = TemperatureScaling().fit(floored(z, other), y)
        assert worse.diagnostics_.after > fitted.diagnostics_.after


@pytest.mark.parametrize("method", ["focal", "prior-correction"])
def test_floor_without_a_temperature_is_that_of_the_lowest_nll(votes, method):
    """It was that of the best temperature, which flattens what these maps cannot sharpen."""
    z, y = votes
    fitted = make(method).fit(z, y)
    for share in (1e-5, 1e-3, 1e-2, 0.1, 1.0):
        other = make(method).fit(floored(z, share / 3), y)
        assert fitted.diagnostics_.after < other.diagnostics_.after + 0.01
    assert fitted.diagnostics_.after < 0.95 or method == "focal"


@pytest.mark.parametrize("parts", [5, 10])
def test_sample_of_the_floor_is_not_the_fold_left_out(calibrated_data, monkeypatch, parts):
    """`auto` failed where the fold it had left out was the sample that its parts took."""
    z, y = calibrated_data(600, 3)
    rest = fold_shares(z, y, np.ones(len(y)), 5)[0] == 0
    z, y = z[rest], y[rest]
    monkeypatch.setattr(_floor, "ENOUGH", z.size // parts)
    assert fit_floor(z, y, None) >= 0


def test_sample_of_the_floor_looks_like_the_data(calibrated_data, monkeypatch):
    """Equal samples counted in full in every part that had one of them: labels were too good."""
    z, y = calibrated_data(40_000, 2)
    monkeypatch.setattr(_floor, "ENOUGH", z.size // 15)
    monkeypatch.setattr(_folds, "RESOLUTION", 2.0**-9)  # so that few samples have many equals
    found = []

    def loss(logits, labels, weights):
        own = -log_softmax(logits, axis=1)[np.arange(len(labels)), labels]
        found.append((np.average(own, weights=weights), weights.sum()))
        return found[-1][0]

    fit_floor(z, y, None, loss)
    whole = -log_softmax(z, axis=1)[np.arange(len(y)), y]
    first, size = found[0]
    assert size == pytest.approx(len(y) / 15, rel=0.2)
    assert first == pytest.approx(whole.mean(), abs=4 * whole.std() / np.sqrt(size))


def favoured(n, k, offset, seed=0):
    """Logits that rank well, of which one column is far too large, and labels."""
    rng = np.random.default_rng(seed)
    z = 3 * rng.normal(size=(n, k))
    y = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
    return z + offset * (np.arange(k) == 1), y


@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("offset", [14, 60])
def test_shift_and_temperature_have_the_lowest_loss(k, offset):
    # A general optimiser, started from the truth, knows nothing of the scales used.
    z, y = favoured(800, k, offset)
    best, shift = fit_shifted(z, y, None)

    def nll(theta):
        return mean_nll(log_softmax(theta[0] * z + theta[1:], axis=1), y)

    truth = np.append(1.0, -offset * (np.arange(k) == 1))
    cost = (k - 1) * np.log(801) / 1600
    assert best.loss - cost == pytest.approx(minimize(nll, truth).fun, abs=1e-4)
    assert best.loss - cost == pytest.approx(nll(np.append(best.beta, shift)), rel=1e-9)


def test_shift_is_zero_where_it_does_not_pay(calibrated_data):
    z, y = calibrated_data(300, 4)
    for logits in (3 * z, (1e34 * z).astype(np.float32), 0 * z, np.tile(z[:1], (300, 1))):
        best, shift = fit_shifted(logits, y, None)
        np.testing.assert_array_equal(shift, 0)
        assert best.loss == pytest.approx(temperature_loss(logits, y, None))


@pytest.mark.parametrize("method", ["platt", "vector", "isotonic", "venn-abers"])
def test_floor_of_a_classifier_that_favours_a_class_keeps_its_ranking(method):
    """By temperature alone every floor is as good, and a large one hid the other classes."""
    z, y = favoured(3000, 3, 14)
    log_p = log_softmax(z, axis=1)
    zeros = np.where(log_p < np.log(1e-9), -np.inf, log_p)
    own, other = slice(0, 1500), slice(1500, None)
    found, full = (
        mean_nll(make(method).fit(x[own], y[own]).predict_log_proba(x[other]), y[other])
        for x in (zeros, z)
    )
    assert found < full + 0.25 * (np.log(3) - full)


def test_without_zeros_nothing_changes_but_for_focal_structured(votes, calibrated_data):
    z, y = calibrated_data(500, 3)
    assert TemperatureScaling().fit(z, y).floor_ == 0
    clipped = np.maximum(votes[0], np.log(1e-12))
    assert FocalStructuredScaling().fit(clipped, votes[1]).floor_ == pytest.approx(
        fit_floor(votes[0], votes[1], None)
    )


@pytest.mark.parametrize("method", ["identity", "structured-matrix", "auto"])
def test_zeros_in_new_data_only(calibrated_data, method):
    z, y = calibrated_data(500, 3)
    z_new = np.array([[0.0, -np.inf, 1.0]])
    p = make(method).fit(3 * z, y).predict_proba(z_new)
    assert np.isfinite(p).all()
    assert p[0, 1] < 0.05


@pytest.mark.parametrize("method", ["temperature", "focal-structured", "auto", "isotonic"])
def test_floor_survives_json_torch_and_onnx(votes, tmp_path, method):
    torch = pytest.importorskip("torch")
    runtime = pytest.importorskip("onnxruntime")
    z, y = votes
    fitted = make(method).fit(z, y)
    expected = fitted.predict_proba(z)
    fitted.save(tmp_path / "c.json")
    np.testing.assert_array_equal(load(tmp_path / "c.json").predict_proba(z), expected)
    np.testing.assert_allclose(fitted.to_torch()(torch.tensor(z)), expected, atol=1e-9)
    fitted.to_onnx(tmp_path / "c.onnx", dtype="float64")
    session = runtime.InferenceSession(str(tmp_path / "c.onnx"))
    np.testing.assert_allclose(session.run(None, {"logits": z})[0], expected, atol=1e-6)


@pytest.mark.parametrize("floor", [-0.1, "inf", "no"])
def test_damaged_floors_are_refused(votes, tmp_path, floor):
    TemperatureScaling().fit(*votes).save(tmp_path / "c.json")
    document = json.loads((tmp_path / "c.json").read_text())
    document["state"]["floor_"] = floor
    (tmp_path / "c.json").write_text(json.dumps(document))
    with pytest.raises(FileFormatError):
        load(tmp_path / "c.json")


@pytest.mark.parametrize("bad", [[np.inf, 0.0], [-np.inf, -np.inf], [np.nan, -np.inf]])
def test_other_infinities_are_errors(bad):
    with pytest.raises(InputError, match="finite"):
        TemperatureScaling().fit(np.array([[0.0, 1.0], bad]), [0, 1])
    with pytest.raises(InputError, match="finite"):
        TemperatureScaling().fit(np.array([-np.inf, 1.0, 2.0]), [0, 1, 0])


def test_floors_inside_a_prior_correction_count(votes, tmp_path):
    """The floor of the calibrator that is corrected was left out of its predictions."""
    z, y = votes
    inner = TemperatureScaling().fit(z, y)
    by_name = PriorCorrection(calibrator="focal-structured").fit(np.maximum(z, np.log(1e-12)), y)
    assert inner.floor_ > 0 < by_name.calibrator_.floor_
    refitted = PriorCorrection().fit(z, y)
    assert refitted.floor_ > 0
    for corrected in (refitted.wrap(inner), by_name):
        expected = corrected.calibrator_.predict_proba(z)
        np.testing.assert_allclose(corrected.predict_proba(z), expected, atol=1e-12)
        corrected.to_onnx(tmp_path / "c.onnx")


def test_prior_is_estimated_after_the_floor(votes):
    z, y = votes
    fitted = PriorCorrection(calibrator="temperature").fit(z, y)
    assert fitted.floor_ > 0
    proba = fitted.predict_proba(z)
    expected = estimate_prior(proba, fitted.train_prior_)[0]
    np.testing.assert_allclose(fitted.adapt(z).target_prior_, expected, atol=1e-9)


def test_interval_is_that_of_the_floored_logits(votes):
    z, y = votes[0][:, :2], (votes[1] == 1).astype(int)
    some = np.isfinite(z).any(axis=1)
    fitted = VennAbers().fit(z[some], y[some])
    assert fitted.floor_ > 0
    p0, p1 = fitted.predict_interval(z[some]).T
    expected = fitted.predict_proba(z[some])[:, 1]
    np.testing.assert_allclose(p1 / (1 - p0 + p1), expected, atol=1e-12)


def test_a_multi_label_fit_forgets_an_earlier_floor(votes):
    z, y = (a[:100] for a in votes)
    calibrator = make("temperature").fit(z, y)
    assert calibrator.floor_ > 0
    labels = (np.arange(300).reshape(100, 3) % 2) ^ (z > -1)
    assert calibrator.set_params(task="multilabel").fit(np.maximum(z, -9), labels).floor_ == 0


def test_a_zero_does_not_change_other_rows(calibrated_data):
    """Logits further than 1e4 below the largest of their row were raised if any row had a zero."""
    fitted = make("temperature").fit(*calibrated_data(100, 3))
    fitted.temperature_ = 1e4
    row, other = [[3e4, 0.0, 0.0]], [[0.0, -np.inf, 0.0]]
    np.testing.assert_array_equal(fitted.predict_proba(row + other)[:1], fitted.predict_proba(row))
