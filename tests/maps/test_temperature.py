"""Ψ against temperature scaling: bounds, the quick rule, the closest temperature."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
from scipy.special import expit

import focalcal.maps.temperature as module
from focalcal.errors import InputError
from focalcal.maps import (
    binary_focal_map,
    closest_temperature,
    focal_map,
    quick_temperature,
    temperature_bounds,
    temperature_error,
    tightest_temperature_bounds,
)


@pytest.mark.parametrize("gamma", [0.01, 0.1, 1.0, 4.0, 30.0, 1000.0])
def test_map_lies_between_the_theoretical_bounds(gamma):
    s = np.linspace(0.01, 20, 500)
    psi = binary_focal_map(s, gamma)
    bounds = temperature_bounds(gamma)
    assert bounds.low == pytest.approx(1 / (gamma + 1))
    assert bounds.high == pytest.approx(1 / (gamma + 1 - np.log(gamma + 1) / 2))
    assert (psi <= s / bounds.low * (1 + 1e-12)).all()
    assert (psi >= s / bounds.high * (1 - 1e-12)).all()
    np.testing.assert_allclose(binary_focal_map(-s, gamma), -psi)


@pytest.mark.parametrize("gamma", [-0.1, -0.5, -0.8])
def test_the_ends_swap_for_negative_gamma(gamma):
    bounds = temperature_bounds(gamma)
    assert bounds.high == pytest.approx(1 / (gamma + 1))
    s = np.linspace(0.01, 20, 500)
    psi = binary_focal_map(s, gamma)
    assert (psi >= s / bounds.high).all()
    assert (psi <= s / bounds.low).all()


def test_tightest_bounds_at_gamma_4_are_0_2033_and_0_2178():
    bounds = tightest_temperature_bounds(4.0, max_logit=20.0)
    assert bounds.low == pytest.approx(0.2033, abs=5e-5)
    assert bounds.high == pytest.approx(0.2178, abs=5e-5)


@pytest.mark.parametrize("gamma", [-0.5, 0.3, 2.0, 12.0])
def test_tightest_bounds_hold_touch_and_lie_inside_the_theoretical(gamma):
    tight, wide = tightest_temperature_bounds(gamma, 10.0), temperature_bounds(gamma)
    assert wide.low <= tight.low < tight.high <= wide.high
    s = np.linspace(1e-4, 10, 20_000)
    temperature = s / binary_focal_map(s, gamma)
    assert temperature.min() == pytest.approx(tight.low, rel=1e-6)
    assert temperature.max() == pytest.approx(tight.high, rel=1e-6)
    assert temperature.min() >= tight.low - 1e-9
    assert temperature.max() <= tight.high + 1e-9


def test_quick_rule_errs_by_2_2e3_in_probability_and_1_1e2_in_inverse_temperature():
    gammas = np.concatenate([np.linspace(0, 1.2, 25), np.linspace(1.5, 12, 22)])
    probability = max(temperature_error(g, quick_temperature(g)) for g in gammas)
    inverse = max(
        abs(1 / quick_temperature(g) - 1 / closest_temperature(g).temperature) for g in gammas[::2]
    )
    assert probability == pytest.approx(2.2e-3, abs=5e-5)
    assert inverse == pytest.approx(1.1e-2, abs=5e-4)
    assert 1 / quick_temperature(2.0) == pytest.approx(3 - 0.38629 * 2 / (1 + 0.69315 * 2), 1e-5)


def test_closest_temperature_of_two_classes_is_a_minimum():
    """The oracle is a plain scan over T and a dense grid of probabilities."""
    q = np.linspace(0.0005, 0.9995, 1999)
    psi = focal_map(np.stack([q, 1 - q], axis=1), 0.45)[:, 0]
    scan = np.linspace(0.7, 0.8, 201)
    worst = [np.abs(psi - expit(np.log(q / (1 - q)) / t)).max() for t in scan]
    best = closest_temperature(0.45)
    assert best.max_error == pytest.approx(min(worst), abs=5e-5)
    assert best.temperature == pytest.approx(scan[np.argmin(worst)], abs=1e-3)
    assert best.max_error == pytest.approx(1.21e-3, abs=5e-6)


@pytest.mark.parametrize("n_classes", [3, 4])
def test_closest_temperature_bounds_the_error_on_random_points(n_classes):
    best = closest_temperature(2.0, n_classes)
    q = np.random.default_rng(0).dirichlet(np.full(n_classes, 0.7), size=20_000)
    scaled = q ** (1 / best.temperature)
    scaled /= scaled.sum(1, keepdims=True)
    error = np.abs(focal_map(q, 2.0) - scaled).max()
    assert error <= best.max_error + 1e-6
    assert error >= 0.9 * best.max_error


def test_many_classes_are_sampled_with_a_seed():
    best = closest_temperature(1.0, 10, n_samples=500, seed=1)
    assert best == closest_temperature(1.0, 10, n_samples=500, seed=1)
    assert best.max_error >= closest_temperature(1.0, 4).max_error - 1e-3
    assert closest_temperature(0.0, 5, n_samples=50).temperature == pytest.approx(1, abs=1e-6)


def test_arguments_are_checked():
    with pytest.raises(InputError, match="two or more classes"):
        closest_temperature(1.0, 1)
    with pytest.raises(InputError, match="two to four classes"):
        temperature_error(1.0, 1.0, 5)
    with pytest.raises(InputError, match="temperature > 0"):
        temperature_error(1.0, 0.0)
    with pytest.raises(InputError, match="max_logit"):
        tightest_temperature_bounds(1.0, 0.0)
    with pytest.raises(InputError, match="gamma > -1"):
        quick_temperature(-1.0)


def test_examples():
    assert doctest.testmod(module).failed == 0
