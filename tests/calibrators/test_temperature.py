"""Temperature scaling: known temperatures come back, and hopeless data say so."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.optimize
import scipy.special

from focalcal.calibrators import TemperatureScaling
from focalcal.errors import FitWarning, InputError


def nll(z, y, t):
    # Independent oracle: scipy's log_softmax in float64, no blocks, no Newton.
    return -scipy.special.log_softmax(z / t, axis=1)[np.arange(len(y)), y].mean()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("temperature", [0.05, 2.0, 20.0])
@pytest.mark.parametrize("k", [2, 10, 100])
def test_recovers_the_temperature(calibrated_data, temperature, dtype, k):
    z, y = calibrated_data(20_000, k)
    fitted = TemperatureScaling().fit((z * temperature).astype(dtype), y)
    assert fitted.temperature_ == pytest.approx(temperature, rel=0.03)
    assert fitted.diagnostics_.converged
    assert not fitted.diagnostics_.at_edge


def test_agrees_with_a_bounded_scalar_search(calibrated_data):
    # Brent's method knows nothing of derivatives, so it is independent of the Newton code.
    z, y = calibrated_data(9_000, 7, seed=3)
    z = z * 1.7
    best = scipy.optimize.minimize_scalar(
        lambda t: nll(z, y, t), bounds=(0.5, 5), method="bounded", options={"xatol": 1e-10}
    )
    fitted = TemperatureScaling().fit(z, y)
    assert fitted.temperature_ == pytest.approx(best.x, rel=1e-6)
    assert fitted.diagnostics_.after == pytest.approx(best.fun, abs=1e-10)
    assert fitted.diagnostics_.before == pytest.approx(nll(z, y, 1), abs=1e-12)


def test_torch_and_numpy_agree(calibrated_data):
    torch = pytest.importorskip("torch")
    z, y = calibrated_data(3_000, 6)
    a = TemperatureScaling().fit(3 * z, y)
    b = TemperatureScaling().fit(torch.as_tensor(3 * z), torch.as_tensor(y))
    assert b.temperature_ == pytest.approx(a.temperature_, rel=1e-9)


@pytest.mark.gpu
def test_fits_on_the_device(calibrated_data):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    z, y = calibrated_data(3_000, 6)
    a = TemperatureScaling().fit(3 * z, y)
    z_gpu = torch.as_tensor(3 * z, device="cuda")
    b = TemperatureScaling().fit(z_gpu, torch.as_tensor(y, device="cuda"))
    assert b.temperature_ == pytest.approx(a.temperature_, rel=1e-9)
    assert b.predict_proba(z_gpu).device == z_gpu.device


def test_weights_equal_repetition(calibrated_data):
    z, y = calibrated_data(500, 4)
    w = np.random.default_rng(1).integers(0, 4, 500)
    a = TemperatureScaling().fit(z * 2, y, sample_weight=w)
    b = TemperatureScaling().fit(np.repeat(z * 2, w, axis=0), np.repeat(y, w))
    assert a.temperature_ == pytest.approx(b.temperature_, rel=1e-8)


def test_shift_of_a_row_changes_nothing(calibrated_data):
    z, y = calibrated_data(1_000, 5)
    shift = np.random.default_rng(2).normal(size=(1_000, 1)) * 100
    assert TemperatureScaling().fit(z + shift, y).temperature_ == pytest.approx(
        TemperatureScaling().fit(z, y).temperature_, rel=1e-9
    )


@pytest.mark.parametrize("unit", [1e-20, 1e-6, 1e6, 1e30])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scale_of_the_logits_is_immaterial(calibrated_data, unit, dtype):
    z, y = calibrated_data(2_000, 5)
    expected = TemperatureScaling().fit(z, y).temperature_ * unit
    fitted = TemperatureScaling().fit((z * unit).astype(dtype), y)
    assert fitted.temperature_ == pytest.approx(expected, rel=1e-4)


def test_worse_than_chance_is_infinite_and_said(calibrated_data):
    z, _ = calibrated_data(1_000, 5)
    with pytest.warns(FitWarning, match="worse than chance"):
        fitted = TemperatureScaling().fit(z, z.argmin(axis=1))
    assert fitted.temperature_ == math.inf
    assert fitted.diagnostics_.at_edge
    np.testing.assert_allclose(fitted.predict_proba(z), 0.2)


def test_barely_better_than_chance_is_finite(calibrated_data):
    z, y = calibrated_data(4_000, 3, scale=1.0)
    y = np.where(np.random.default_rng(0).random(4_000) < 0.06, y, (y + 1) % 3)
    y = np.where(np.random.default_rng(1).random(4_000) < 0.5, y, y[::-1])
    slope = (z.mean(axis=1) - z[np.arange(4_000), y]).mean()
    with pytest.warns(FitWarning) if slope >= 0 else _nothing():
        fitted = TemperatureScaling().fit(z, y)
    assert (fitted.temperature_ == math.inf) == (slope >= 0)


def test_all_correct_stops_at_the_cold_bound_and_says_so(calibrated_data):
    z, _ = calibrated_data(1_000, 5)
    with pytest.warns(FitWarning, match="classified correctly"):
        fitted = TemperatureScaling().fit(z, z.argmax(axis=1))
    assert 0 < fitted.temperature_ < 1e-2
    assert fitted.diagnostics_.at_edge
    assert np.isfinite(fitted.predict_log_proba(z)).all()


def test_one_class_only_says_so():
    z = np.random.default_rng(0).normal(size=(200, 3)) + np.array([0.5, 0, 0])
    with pytest.warns(FitWarning, match="no calibration sample of 2 of 3 classes"):
        TemperatureScaling().fit(z, np.zeros(200, dtype=int))


@pytest.mark.parametrize("n", [50, 10_000])
def test_equal_logits_keep_one_and_say_so(n):
    with pytest.warns(FitWarning, match="every temperature"):
        fitted = TemperatureScaling().fit(np.full((n, 3), 7.0), np.arange(n) % 3)
    assert fitted.temperature_ == 1.0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_saturated_logits_have_the_closed_form(dtype):
    # ±1e4 one-hot logits that are right with share a: p_top = a solves exactly for T.
    k, n = 5, 1_000
    top = np.arange(n) % k
    y = np.where(np.arange(n) < 900, top, (top + 1) % k)
    z = np.where(np.arange(k) == top[:, None], 1e4, -1e4).astype(dtype)
    fitted = TemperatureScaling().fit(z, y)
    expected = 2e4 / math.log(0.9 * (k - 1) / 0.1)
    assert fitted.temperature_ == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(fitted.predict_proba(z).max(axis=1), 0.9, rtol=1e-4)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.filterwarnings("ignore::focalcal.errors.FitWarning")
def test_few_samples_fit_and_say_so(calibrated_data, n):
    z, y = calibrated_data(n, 4)
    fitted = TemperatureScaling().fit(z, y)
    assert any("calibration samples" in w for w in fitted.diagnostics_.warnings)
    assert np.isfinite(fitted.predict_proba(z)).all()


@pytest.mark.parametrize(
    "params",
    [
        {"objective": "accuracy"},
        {"objective": "ece", "temperatures": []},
        {"objective": "ece", "temperatures": [0.5, -1.0]},
        {"bins": "many"},
    ],
)
def test_bad_settings_are_refused(params):
    with pytest.raises(InputError, match="expected"):
        TemperatureScaling(**params).fit([[0.0, 1.0]], [1])


def _nothing():
    import contextlib

    return contextlib.nullcontext()
