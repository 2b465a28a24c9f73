"""Identities of one-vs-rest and top-label, the same for every calibrator that uses them."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import torch

from focalcal.calibrators import METHODS
from focalcal.calibrators._columns import ColumnCalibrator, one_vs_rest_log_odds

KINDS = [kind for kind in METHODS.values() if issubclass(kind, ColumnCalibrator)]
pytestmark = pytest.mark.filterwarnings("ignore::focalcal.errors.FitWarning")


def test_log_odds_equal_fifty_digits():
    rng = np.random.default_rng(0)
    z = np.concatenate([rng.normal(scale=s, size=(5, 4)) for s in (1, 20, 300)])
    got = one_vs_rest_log_odds(z)
    with mpmath.workdps(400):
        for row, out in zip(z, got):
            e = [mpmath.exp(mpmath.mpf(float(v))) for v in row]
            for i in range(4):
                exact = mpmath.log(e[i] / (sum(e) - e[i]))
                assert abs(out[i] - float(exact)) <= 1e-14 * max(1, abs(float(exact)))


def test_log_odds_of_equal_logits():
    np.testing.assert_allclose(one_vs_rest_log_odds(np.zeros((2, 5))), -np.log(4))


@pytest.mark.parametrize("kind", KINDS)
def test_top_label_keeps_every_prediction(kind, calibrated_data):
    z, y = calibrated_data(300, 6)
    z = np.concatenate([z * 4, np.zeros((1, 6))])  # over-confident, and a tie
    calibrator = kind(mode="top-label").fit(z[:300], y)
    assert calibrator.preserves_accuracy
    for dtype in (np.float64, np.float32):
        p = calibrator.predict_proba(z.astype(dtype))
        np.testing.assert_array_equal(p.argmax(axis=1), z.argmax(axis=1))
        np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_top_label_rescales_the_others_in_proportion(kind, calibrated_data):
    z, y = calibrated_data(300, 5)
    p = kind(mode="top-label").fit(z, y).predict_log_proba(z)
    order = np.argsort(z, axis=1)
    second, third = order[:, -2:-1], order[:, -3:-2]
    change = np.take_along_axis(p - z, second, 1) - np.take_along_axis(p - z, third, 1)
    np.testing.assert_allclose(change, 0, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_one_vs_rest_says_that_it_may_change_predictions(kind):
    assert kind.preserves_accuracy is False
    assert kind().preserves_accuracy is False


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["ovr", "top-label"])
def test_weights_equal_repetition(kind, mode, calibrated_data):
    z, y = calibrated_data(200, 3)
    times = np.random.default_rng(0).integers(0, 3, 200)
    weighted = kind(mode=mode).fit(z, y, sample_weight=times)
    repeated = kind(mode=mode).fit(np.repeat(z, times, axis=0), np.repeat(y, times))
    rtol = 1e-4 if kind.method != "bbq" else 0.5  # BBQ's sizes depend on the count of rows
    np.testing.assert_allclose(weighted.predict_proba(z), repeated.predict_proba(z), rtol=rtol)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [2, 4])
def test_small_and_odd_data(kind, k):
    """One sample, three, one class only, equal logits, saturated logits: finite, rows sum to 1."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(40, k))
    cases = {
        "one": (z[:1], np.array([1])),
        "three": (z[:3], np.array([0, 1, 1])),
        "one class": (z, np.ones(40, int)),
        "equal": (np.zeros((40, k)), rng.integers(0, k, 40)),
        "saturated": (np.sign(z) * 1e4, rng.integers(0, k, 40)),
    }
    for name, (logits, labels) in cases.items():
        for mode in ("ovr", "top-label"):
            calibrator = kind(mode=mode).fit(logits, labels)
            log_p = calibrator.predict_log_proba(np.concatenate([z, 1e4 * z, logits]))
            assert np.isfinite(log_p).all(), (name, mode)
            np.testing.assert_allclose(np.exp(log_p).sum(axis=1), 1, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["ovr", "top-label"])
def test_torch_gives_what_numpy_gives_with_finite_gradients(kind, mode, calibrated_data):
    z, y = calibrated_data(200, 4)
    calibrator = kind(mode=mode).fit(torch.as_tensor(z), torch.as_tensor(y))
    tensor = torch.as_tensor(np.concatenate([z, 1e4 * z[:3]])).requires_grad_()
    out = calibrator.predict_log_proba(tensor)
    expected = kind(mode=mode).fit(z, y).predict_log_proba(tensor.detach().numpy())
    np.testing.assert_allclose(out.detach().numpy(), expected, rtol=1e-9, atol=1e-12)
    if out.requires_grad:  # steps alone have no slope to pass on
        out.sum().backward()
        assert torch.isfinite(tensor.grad).all()


@pytest.mark.parametrize("kind", KINDS)
def test_refit_equals_fit_and_files_keep_every_bit(kind, calibrated_data, tmp_path):
    from focalcal.calibrators import load

    z, y = calibrated_data(150, 3)
    calibrator = kind().fit(z, y)
    first = calibrator.predict_proba(z)
    kind().fit(z[:50], y[:50])
    np.testing.assert_array_equal(calibrator.fit(z, y).predict_proba(z), first)
    calibrator.save(tmp_path / "c.json")
    np.testing.assert_array_equal(load(tmp_path / "c.json").predict_proba(z), first)


def test_real_networks_gain_on_unseen_images(shared_data):
    """Validation logits in, test logits judged: every method lowers the test NLL or the ECE."""
    from focalcal.metrics import adaptive_ece, nll

    with np.load(shared_data / "logits" / "cifar10_test_logits_4resnets_akamaster.npz") as file:
        z, y = file["resnet56"].astype(np.float64), file["labels"]
    before = np.exp(z - np.log(np.sum(np.exp(z), axis=1, keepdims=True)))
    for kind in KINDS:
        for mode in ("ovr", "top-label"):
            p = kind(mode=mode).fit(z[:5000], y[:5000]).predict_proba(z[5000:])
            assert nll(y[5000:], p) < nll(y[5000:], before[5000:]), (kind, mode)
            # Venn–Abers keeps every class away from 0, one against the rest more than once.
            limit = 0.6 if kind.method == "venn-abers" else 0.5
            assert adaptive_ece(y[5000:], p) < limit * adaptive_ece(y[5000:], before[5000:])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_top_label_keeps_its_digits_at_large_logits(kind, offset, calibrated_data):
    """log Σ exp of tied logits of 1e4 lost digits in float32: rows missed a sum of 1 by 5e-4."""
    z, y = calibrated_data(300, 4)
    fitted = kind(mode="top-label").fit(z, y)
    ties = np.array([[0, 0, 0, 0], [0, 0, -1, -2], [1, 0, 0, 0]]) + offset
    expected = fitted.predict_proba(ties - offset)
    got = fitted.predict_proba(ties.astype(np.float32))
    np.testing.assert_allclose(got, expected, atol=2e-6)
    np.testing.assert_allclose(got.sum(axis=1), 1, atol=1e-6)
