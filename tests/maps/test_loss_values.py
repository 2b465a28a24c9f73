"""The loss and its derivatives against arbitrary precision; convexity; the entropy bound."""

from __future__ import annotations

import doctest

import mpmath
import numpy as np
import pytest
import torch

import focalcal.maps.loss_values as module
from focalcal.errors import InputError
from focalcal.maps import (
    entropy_lower_bound,
    focal_loss_derivative,
    focal_loss_second_derivative,
    focal_loss_value,
    focal_risk,
)

GAMMAS = [-0.9, -0.5, 0.0, 0.5, 1.0, 2.0, 5.0, 20.0]
P = np.array([1e-12, 1e-3, 0.2, 0.5, 0.6, 0.9, 1 - 2**-16])


@pytest.mark.parametrize("gamma", GAMMAS)
def test_value_and_derivatives_equal_numerical_differentiation(gamma):
    """mpmath differentiates the definition by finite differences at 40 digits."""

    def loss(p):
        return (1 - p) ** mpmath.mpf(gamma) * -mpmath.log(p)

    for order, function in enumerate(
        (focal_loss_value, focal_loss_derivative, focal_loss_second_derivative)
    ):
        with mpmath.workdps(60):
            exact = [float(mpmath.diff(loss, mpmath.mpf(p), order, h=1e-25)) for p in P]
        np.testing.assert_allclose(function(P, gamma), exact, rtol=1e-12)
        single = function(torch.tensor(P[2:6]).float(), gamma)
        assert single.dtype == torch.float32
        np.testing.assert_allclose(single, function(P[2:6].astype(np.float32), gamma), rtol=1e-6)


@pytest.mark.parametrize("gamma", [0.0, 0.01, 0.5, 1.0, 3.0, 100.0])
def test_loss_is_convex_for_gamma_from_zero_up(gamma):
    assert (focal_loss_second_derivative(np.linspace(0.001, 0.999, 999), gamma) > 0).all()


def test_loss_is_not_convex_for_negative_gamma():
    assert focal_loss_second_derivative(0.99, -0.5) < 0


def test_values_at_the_ends():
    for gamma in GAMMAS:
        np.testing.assert_array_equal(focal_loss_value([0.0, 1.0], gamma), [np.inf, 0])
        assert focal_loss_derivative(0.0, gamma) == -np.inf
        assert focal_loss_second_derivative(0.0, gamma) == np.inf
    np.testing.assert_array_equal(focal_loss_derivative([1.0], 0.0), [-1])
    np.testing.assert_array_equal(focal_loss_second_derivative([1.0], 0.0), [1])
    np.testing.assert_array_equal(focal_loss_second_derivative([1.0], 1.0), [2])
    np.testing.assert_array_equal(focal_loss_second_derivative([1.0], 0.5), [np.inf])


def test_autograd_of_the_value_is_the_derivative():
    p = torch.tensor(P[1:], requires_grad=True)
    for gamma in GAMMAS:
        (grad,) = torch.autograd.grad(focal_loss_value(p, gamma).sum(), p)
        np.testing.assert_allclose(grad, focal_loss_derivative(P[1:], gamma), rtol=1e-9)


@pytest.mark.parametrize("gamma", [0.01, 0.1, 0.5, 0.9, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("n_classes", [2, 3, 10])
def test_focal_risk_is_at_least_kl_plus_entropy_minus_gamma_entropy(gamma, n_classes):
    rng = np.random.default_rng(n_classes)
    for concentration in (0.05, 0.5, 5.0):
        p, q = rng.dirichlet(np.full(n_classes, concentration), size=(2, 500))
        q = np.clip(q, 1e-12, None)
        q /= q.sum(1, keepdims=True)
        kl = np.sum(np.where(p > 0, p * np.log(np.where(p > 0, p, 1) / q), 0), axis=1)
        entropy_p = -np.sum(np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0), axis=1)
        entropy_q = -np.sum(q * np.log(q), axis=1)
        bound = entropy_lower_bound(p, q, gamma)
        np.testing.assert_allclose(bound, kl + entropy_p - gamma * entropy_q, atol=1e-9)
        assert (focal_risk(p, q, gamma) >= bound - 1e-12).all()


def test_risk_counts_no_loss_where_p_is_zero():
    assert focal_risk([1.0, 0.0], [1.0, 0.0], 2.0) == 0
    assert focal_risk([0.5, 0.5], [1.0, 0.0], 2.0) == np.inf


def test_gamma_is_checked():
    for function in (focal_loss_value, focal_loss_derivative, focal_loss_second_derivative):
        with pytest.raises(InputError, match="gamma > -1"):
            function([0.5], -1.0)
    with pytest.raises(InputError, match="gamma >= 0"):
        entropy_lower_bound([0.5, 0.5], [0.5, 0.5], -0.5)


def test_examples():
    assert doctest.testmod(module).failed == 0
