"""Smooth ECE against the definition: kernel sums with mirror images, quadrature, a root finder."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import brentq

from focalcal import metrics
from focalcal.metrics import smooth


def brute_force(y, f, weights=None):
    """No grid, no transform: every sample's reflected Gaussian at every point of a fine rule."""
    w = np.ones(len(y)) if weights is None else np.asarray(weights, float)
    t = (np.arange(1500) + 0.5) / 1500
    f = np.asarray(f, float)

    def at(sigma):
        images = [f + 2 * k for k in range(-2, 3)] + [-f + 2 * k for k in range(-2, 3)]
        kernel = sum(np.exp(-((t[:, None] - x) ** 2) / (2 * sigma**2)) for x in images)
        kernel /= np.sqrt(2 * np.pi) * sigma
        return np.mean(np.abs(kernel @ (w * (np.asarray(y) - f)))) / w.sum()

    return brentq(lambda s: at(s) - s, 2e-3, 1.0, xtol=1e-8)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("power", [1.0, 1.3, 3.0])
def test_against_the_definition(seed, power):
    rng = np.random.default_rng(seed)
    f = rng.random(80) if seed % 2 else rng.beta(8, 1, size=80)
    y = (rng.random(80) < f**power).astype(int)
    assert metrics.smooth_ece(y, confidence=f) == pytest.approx(brute_force(y, f), abs=2e-6)


def test_ends_ties_and_weights():
    f = np.array([0.0, 0.0, 1.0, 1.0, 1.0, 0.3, 0.3])
    y = np.array([1, 0, 1, 0, 1, 0, 1])
    w = np.array([1.0, 2.0, 0.5, 1.0, 3.0, 1.0, 0.0])
    assert metrics.smooth_ece(y, confidence=f) == pytest.approx(brute_force(y, f), abs=2e-6)
    expected = brute_force(y, f, w)
    assert metrics.smooth_ece(y, confidence=f, sample_weight=w) == pytest.approx(expected, abs=2e-6)


def test_small_errors_refine_the_grid(rng):
    # One residual of known size at one point: smECE_σ is that size while the kernel keeps its sign.
    f = np.full(10_000, 0.5)
    y = np.zeros(10_000, dtype=int)
    y[:5003] = 1
    assert metrics.smooth_ece(y, confidence=f) == pytest.approx(3e-4, rel=1e-3)


def test_perfect_predictions_have_no_error():
    assert metrics.smooth_ece([0, 1, 1], [0.0, 1.0, 1.0]) == 0.0


def test_constant_bias_is_the_error():
    f = np.full(1000, 0.7)
    y = (np.arange(1000) < 500).astype(int)
    assert metrics.smooth_ece(y, f) == pytest.approx(0.2, abs=1e-6)


def test_residuals_of_one_sign_do_not_cancel():
    """All right at a confidence close to 1: the value is the mean residual at any bandwidth."""
    for rest in (1e-3, 1e-6, 1e-12):
        c = np.full(20, 1 - rest)
        assert metrics.smooth_ece(np.ones(20, int), c) == pytest.approx(1 - c[0], rel=1e-9)


def test_resamples_of_tiny_errors_stay_on_a_small_grid(monkeypatch, rng):
    """A bandwidth of 1e-5 would need a grid of 65,536 cells for each of 1,000 resamples."""
    sizes = []
    found = smooth._fixed_point

    def spy(coefficients, *rest):
        sizes.append(coefficients.shape)
        return found(coefficients, *rest)

    monkeypatch.setattr(smooth, "_fixed_point", spy)
    p = 1 - 10 ** -rng.uniform(3, 6, 500)
    y = np.ones(500, int)
    y[np.argmin(p)] = 0
    assert np.isfinite(metrics.evaluate(y, p, resamples=50)["smooth_ece"].high)
    assert max(shape[-1] for shape in sizes if len(shape) > 1) <= 4096
