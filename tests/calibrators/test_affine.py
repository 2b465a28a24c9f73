"""Vector, matrix, Dirichlet and structured scaling, and the ensemble."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
import scipy.special

from focalcal.calibrators import (
    DirichletScaling,
    EnsembleTemperatureScaling,
    MatrixScaling,
    StructuredMatrixScaling,
    StructuredVectorScaling,
    TemperatureScaling,
    VectorScaling,
)
from focalcal.calibrators.affine import Penalty, fit_affine
from focalcal.calibrators.temperature import mixture_weights
from focalcal.errors import FileFormatError, FitWarning, InputError


def nll(z, y):
    return -scipy.special.log_softmax(z, axis=1)[np.arange(len(y)), y].mean()


@pytest.mark.parametrize("off", [None, 0.3])
def test_fit_minimises_the_penalised_nll(calibrated_data, off):
    # Independent: scipy's derivative-free gradient of the objective written out plainly.
    x, y = calibrated_data(80, 3)
    w = np.random.default_rng(0).random(80)
    w *= 80 / w.sum()
    found = fit_affine(x, y, w, Penalty(0.2, 0.1, off))

    def objective(flat):
        m = flat[:-3].reshape(3, 3) if off else np.diag(flat[:3])
        log_p = scipy.special.log_softmax(x @ m.T + flat[-3:], axis=1)
        change = m - np.eye(3)
        value = -(w * log_p[np.arange(80), y]).mean() + 0.05 * (flat[-3:] ** 2).sum()
        outside = change[~np.eye(3, dtype=bool)]
        return value + 0.1 * (np.diag(change) ** 2).sum() + (off or 0) / 2 * (outside**2).sum()

    at = np.concatenate([found.weight.reshape(-1), found.bias])
    slope = scipy.optimize.approx_fprime(at, objective, 1e-7)
    np.testing.assert_allclose(slope, 0, atol=3e-6)
    assert found.success


def test_vector_scaling_recovers_weights_and_biases(calibrated_data):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(60_000, 3))
    z -= z.mean(axis=1, keepdims=True)
    w, b = np.array([1.0, 2.0, 0.5]), np.array([0.0, 1.0, -1.0])
    y = np.argmax(w * z + b + rng.gumbel(size=z.shape), axis=1)
    fitted = VectorScaling().fit(z, y)
    # Biases are free up to a common shift.
    np.testing.assert_allclose(fitted.bias_ - fitted.bias_.mean(), b - b.mean(), atol=0.05)
    np.testing.assert_allclose(fitted.weight_, w, atol=0.08)


@pytest.mark.parametrize(
    "kind",
    [
        VectorScaling,
        MatrixScaling,
        DirichletScaling,
        StructuredVectorScaling,
        StructuredMatrixScaling,
    ],
)
def test_shift_of_a_row_changes_nothing(calibrated_data, kind):
    z, y = calibrated_data(300, 4)
    shift = np.random.default_rng(2).normal(size=(300, 1)) * 10
    a, b = kind().fit(z, y), kind().fit(z + shift, y)
    np.testing.assert_allclose(a.predict_proba(z), b.predict_proba(z), atol=1e-5)
    np.testing.assert_allclose(a.predict_proba(z), a.predict_proba(z + shift), atol=1e-9)


@pytest.mark.parametrize("kind", [VectorScaling, MatrixScaling, DirichletScaling])
def test_data_worse_than_chance_are_fitted_alike_with_a_shift_or_repeated_rows(kind, rng):
    """There is no best temperature, so the scale comes from the logits themselves."""
    z = 2 * rng.normal(size=(40, 3))
    y, new = np.argmax(z + rng.gumbel(size=z.shape), axis=1), rng.normal(size=(5, 3))
    plain = kind().fit(-z, y).predict_proba(new)
    shifted = kind().fit(-z + 10 * rng.normal(size=(40, 1)), y).predict_proba(new)
    np.testing.assert_allclose(shifted, plain, atol=1e-7)
    w = rng.integers(0, 3, 40)
    weighted = kind().fit(-z, y, w).predict_proba(new)
    repeated = kind().fit(np.repeat(-z, w, axis=0), np.repeat(y, w)).predict_proba(new)
    np.testing.assert_allclose(weighted, repeated, atol=1e-7)


@pytest.mark.parametrize("kind", [StructuredVectorScaling, StructuredMatrixScaling])
def test_strong_shrinkage_is_temperature_scaling(calibrated_data, kind):
    z, y = calibrated_data(500, 5)
    plain = TemperatureScaling().fit(2 * z, y)
    fitted = kind(strength=1e9).fit(2 * z, y)
    assert fitted.temperature_ == pytest.approx(plain.temperature_, rel=1e-9)
    np.testing.assert_allclose(fitted.predict_proba(z), plain.predict_proba(z), atol=1e-6)


def test_structured_matrix_is_stable_with_many_classes(calibrated_data):
    # 100 classes, 10 samples of each: an unshrunk matrix has ten times more numbers than data.
    z, y = calibrated_data(3000, 100, seed=4)
    z = 1.6 * z
    fitted = StructuredMatrixScaling().fit(z[:1000], y[:1000])
    held_out = nll(fitted.predict_log_proba(z[1000:]), y[1000:])
    plain = TemperatureScaling().fit(z[:1000], y[:1000])
    assert held_out <= 1.01 * nll(plain.predict_log_proba(z[1000:]), y[1000:])
    assert fitted.diagnostics_.converged


def test_structured_finds_what_temperature_cannot(calibrated_data):
    z, y = calibrated_data(8000, 4)
    biased = z - np.array([1.0, 0, 0, -1.0])
    plain = TemperatureScaling().fit(biased[:4000], y[:4000])
    for kind in (StructuredVectorScaling, StructuredMatrixScaling):
        fitted = kind().fit(biased[:4000], y[:4000])
        gain = nll(plain.predict_log_proba(biased[4000:]), y[4000:]) - nll(
            fitted.predict_log_proba(biased[4000:]), y[4000:]
        )
        assert gain > 0.1


def test_non_convergence_is_said(calibrated_data, monkeypatch):
    monkeypatch.setattr("focalcal.calibrators.affine.MAX_ITERATIONS", 1)
    with pytest.warns(FitWarning, match="did not converge"):
        fitted = MatrixScaling().fit(*calibrated_data(200, 4))
    assert not fitted.diagnostics_.converged


@pytest.mark.parametrize("kind", [VectorScaling, MatrixScaling])
def test_negative_penalties_are_refused(kind):
    with pytest.raises(InputError, match="penalty"):
        kind(penalty=-1.0).fit([[0.0, 1.0]], [1])
    with pytest.raises(InputError, match="strength"):
        StructuredVectorScaling(strength=float("nan")).fit([[0.0, 1.0]], [1])


def test_mixture_weights_are_the_best_on_the_simplex():
    rng = np.random.default_rng(0)
    log_p = np.log(rng.dirichlet([1, 1, 1, 1], size=200)[:, :3])
    w = rng.random(200)
    found = mixture_weights(log_p, w)
    value = lambda v: -np.average(np.log(np.exp(log_p) @ v), weights=w)  # noqa: E731
    assert found.x.sum() == pytest.approx(1, abs=1e-6)
    best = min(value(v) for v in rng.dirichlet([0.5, 0.5, 0.5], size=5000))
    assert value(found.x / found.x.sum()) <= best + 1e-9


def test_ensemble_is_not_worse_than_its_parts(calibrated_data):
    z, y = calibrated_data(1000, 4, scale=4.0)
    z = 2 * z
    y = np.where(np.random.default_rng(0).random(1000) < 0.1, (y + 1) % 4, y)
    fitted = EnsembleTemperatureScaling().fit(z, y)
    assert fitted.diagnostics_.after <= TemperatureScaling().fit(z, y).diagnostics_.after + 1e-9
    assert fitted.weights_.sum() == pytest.approx(1)
    assert fitted.weights_[2] > 0.01  # labels flipped at random are what the uniform part is for


def test_ensemble_file_with_impossible_weights_is_refused(calibrated_data, tmp_path):
    import json

    from focalcal.calibrators import load

    path = tmp_path / "cal.json"
    EnsembleTemperatureScaling().fit(*calibrated_data(100, 3)).save(path)
    document = json.loads(path.read_text())
    document["state"]["weights_"] = [0.5, 0.6, -0.1]
    path.write_text(json.dumps(document))
    with pytest.raises(FileFormatError, match="weights_"):
        load(path)
