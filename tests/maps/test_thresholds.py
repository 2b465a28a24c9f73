"""γ from a target probability, and where Ψ raises or lowers confidence."""

from __future__ import annotations

import doctest

import mpmath
import numpy as np
import pytest
import torch

import focalcal.maps.thresholds as module
from focalcal.errors import InputError
from focalcal.maps import (
    confidence_change_region,
    focal_map,
    gamma_for_probability,
    gradient_factor,
    probability_for_gamma,
)


@pytest.mark.parametrize(
    ("p0", "gamma"), [(0.2, 4.851), (0.19, 5.337), (0.25, 3.070), (0.5, 0.0), (0.9, 0.0)]
)
def test_check_values(p0, gamma):
    assert float(gamma_for_probability(p0)) == pytest.approx(gamma, abs=5e-4)


@pytest.mark.parametrize(
    "p0", [1e-30, 1e-6, 0.01, 0.2, 0.3, 0.49, 0.5 - 1e-5, 0.5 - 1e-9, 0.5 - 1e-13]
)
def test_equals_a_500_digit_root(p0):
    """The oracle finds the root of ln g at 500 digits from the printed formula of g."""
    with mpmath.workdps(500):
        p = mpmath.mpf(p0)
        log_rest, r = mpmath.log(1 - p), -p * mpmath.log(p) / (1 - p)
        guess = float(gamma_for_probability(p0))
        root = mpmath.findroot(
            lambda x: log_rest + mpmath.log1p(x * r) / x,
            (mpmath.mpf(guess) * 0.99, mpmath.mpf(guess) * 1.01),
            solver="anderson",
            tol=1e-60,
        )
    assert guess == pytest.approx(float(root), rel=1e-12)


def test_gamma_separates_larger_from_smaller_gradients():
    for p0 in (0.15, 0.3, 0.45):
        gamma = float(gamma_for_probability(p0))
        below, above = np.linspace(0.01, p0 - 0.01, 50), np.linspace(p0 + 0.01, 0.99, 50)
        assert (gradient_factor(below, gamma) > 1).all()
        assert (gradient_factor(above, gamma) < 1).all()
        assert probability_for_gamma(gamma) == pytest.approx(p0, rel=1e-12)


def test_from_one_half_up_every_gamma_gives_g_at_most_one():
    p = np.linspace(0.5, 1, 51)
    for gamma in (0.0, 1e-6, 0.1, 1.0, 10.0):
        assert (gradient_factor(p, gamma) <= 1 + 1e-15).all()
    assert probability_for_gamma(0.0) == 0.5
    assert probability_for_gamma(1e5) < 1e-3


def test_gamma_comes_in_the_kind_that_was_given():
    out = gamma_for_probability(torch.tensor([0.2, 0.6], dtype=torch.float32))
    assert out.dtype == torch.float32
    np.testing.assert_allclose(out, [4.8505545, 0.0], rtol=1e-6)


def lowered(q, gamma):
    return focal_map(q, gamma)[..., 0] < q[..., 0]


@pytest.mark.parametrize("n_classes", [2, 3, 4, 10, 100, 1000])
@pytest.mark.parametrize("gamma", [0.3, 1.0, 3.0, 7.0])
def test_region_with_the_rest_uniform(gamma, n_classes):
    region = confidence_change_region(gamma, n_classes)
    top = np.linspace(1 / n_classes, 1, 203)[1:-1]
    rest = np.repeat(((1 - top) / (n_classes - 1))[:, None], n_classes - 1, axis=1)
    is_lowered = lowered(np.concatenate([top[:, None], rest], axis=1), gamma)
    if region.lowered is None:
        assert not is_lowered.any()
        assert n_classes <= 10
    else:
        low, high = region.lowered
        np.testing.assert_array_equal(is_lowered, (top > low) & (top < high))
        assert high <= region.never_lowered_from <= 0.5


@pytest.mark.parametrize("n_classes", [2, 3, 5, 10, 1000])
@pytest.mark.parametrize("gamma", [0.3, 1.0, 3.0])
def test_a_top_class_of_one_half_or_of_p0_is_never_lowered(gamma, n_classes):
    rng = np.random.default_rng(n_classes)
    least = confidence_change_region(gamma, n_classes).never_lowered_from
    for floor in {0.5, max(least, 1 / n_classes)}:
        top = rng.uniform(floor, 1, size=(300, 1))
        rest = rng.dirichlet(np.full(n_classes - 1, 0.3), size=300) * (1 - top)
        q = np.concatenate([top, rest], axis=1)[(rest <= top).all(axis=1)]
        assert (focal_map(q, gamma)[:, 0] >= q[:, 0] * (1 - 1e-13)).all()


def test_not_lowered_iff_weighted_inverse_factors_say_so():
    q = np.random.default_rng(1).dirichlet(np.full(20, 2.0), size=2000)
    q = -np.sort(-q, axis=1)
    g = gradient_factor(q, 3.0)
    np.testing.assert_array_equal(lowered(q, 3.0), (q / g).sum(1) > 1 / g[:, 0])


def test_arguments_are_checked():
    for p0 in (0.0, 1.0, float("nan")):
        with pytest.raises(InputError, match="between 0 and 1"):
            gamma_for_probability(p0)
    with pytest.raises(InputError, match="gamma >= 0"):
        confidence_change_region(-0.5, 10)
    with pytest.raises(InputError, match="two or more classes"):
        confidence_change_region(1.0, 1)


def test_examples():
    assert doctest.testmod(module).failed == 0
