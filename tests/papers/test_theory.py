"""Maxwell–Boltzmann, PAC-Bayes and Fisher on small sets, against direct optimisation."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar
from scipy.special import expit, rel_entr

import focalcal_papers.theory as module
from focalcal.errors import InputError
from focalcal_papers.theory import (
    best_pac_bayes_bound,
    best_trade_off,
    gibbs_posterior,
    kl_and_fisher,
    maxwell_boltzmann,
    pac_bayes_bound,
    parameter_grid,
    two_parameter_problem,
)

LOSSES = np.array([0.1, 0.25, 0.4, 0.9])


@pytest.mark.parametrize("mean", [0.11, 0.3, 0.4125, 0.6, 0.89])
def test_boltzmann_maximises_the_entropy_at_its_mean(mean):
    """The oracle is a constrained optimiser that knows nothing of exponentials."""
    found = maxwell_boltzmann(LOSSES, mean)
    assert found.mean_loss == pytest.approx(mean, rel=1e-12)
    best = minimize(
        lambda p: np.sum(p * np.log(p)),
        np.full(4, 0.25),
        bounds=[(1e-9, 1)] * 4,
        constraints=[
            {"type": "eq", "fun": lambda p: p.sum() - 1},
            {"type": "eq", "fun": lambda p: p @ LOSSES - mean},
        ],
        method="SLSQP",
        options={"ftol": 1e-12},
    )
    np.testing.assert_allclose(found.probabilities, best.x, atol=2e-4)
    assert found.entropy >= -best.fun - 1e-9
    assert np.sign(found.beta) == pytest.approx(np.sign(LOSSES.mean() - mean), abs=1e-9) or (
        abs(found.beta) < 1e-9
    )


def test_boltzmann_on_the_grid_of_the_two_parameter_model():
    losses = two_parameter_problem().losses(parameter_grid(5.0, 41), gamma=1.0)
    target = 1.5 * losses.min()
    found = maxwell_boltzmann(losses, target)
    assert found.mean_loss == pytest.approx(target, rel=1e-10)
    ratio = np.log(found.probabilities[0] / found.probabilities[-1])
    assert ratio == pytest.approx(-found.beta * (losses[0] - losses[-1]), rel=1e-9)


@pytest.mark.parametrize(("risk", "kl", "n"), [(0.0, 1.0, 50), (0.1, 2.0, 1000), (0.4, 9.0, 200)])
def test_best_trade_off_minimises_the_bound(risk, kl, n):
    best = minimize_scalar(
        lambda lam: pac_bayes_bound(risk, kl, n, trade_off=lam).bound,
        bounds=(1e-6, 2 - 1e-6),
        method="bounded",
        options={"xatol": 1e-10},
    )
    assert best_trade_off(risk, kl, n) == pytest.approx(best.x, abs=1e-5)
    assert pac_bayes_bound(risk, kl, n).bound <= best.fun + 1e-12


def test_gibbs_posterior_minimises_the_bound_at_its_trade_off():
    n, lam, prior = 60, 0.7, np.array([0.4, 0.3, 0.2, 0.1])
    rho = gibbs_posterior(LOSSES, n, lam, prior)

    def bound(p):
        return pac_bayes_bound(p @ LOSSES, rel_entr(p, prior).sum(), n, trade_off=lam).bound

    for other in np.random.default_rng(0).dirichlet(np.ones(4), size=300):
        assert bound(rho) <= bound(0.99 * rho + 0.01 * other)


def test_best_bound_is_below_every_fixed_choice_and_carries_its_posterior():
    losses = two_parameter_problem(n=300).errors(parameter_grid(3.0, 21))
    best = best_pac_bayes_bound(losses, 300)
    for lam in (0.05, 0.2, 0.5, 1.0, 1.5):
        rho = gibbs_posterior(losses, 300, lam)
        kl = rel_entr(rho, np.full(len(rho), 1 / len(rho))).sum()
        assert best.bound <= pac_bayes_bound(rho @ losses, kl, 300).bound + 1e-6
    assert best.posterior.sum() == pytest.approx(1)
    assert best.posterior @ losses == pytest.approx(best.empirical_risk)
    assert best.empirical_risk < best.bound < 1


def test_kl_tends_to_half_delta_fisher_delta():
    problem = two_parameter_problem()
    theta, direction = np.array([1.0, -0.5]), np.array([0.6, 0.8])
    gaps = []
    for size in (0.1, 0.01):
        step = kl_and_fisher(problem.inputs, theta, size * direction)
        gaps.append(abs(step.exact / step.quadratic - 1))
    assert gaps[0] < 0.1
    assert gaps[1] < 0.2 * gaps[0]  # the remainder is of third order


def test_fisher_is_the_covariance_of_the_score_and_kl_the_definition():
    problem = two_parameter_problem(n=50)
    theta, delta = np.array([0.3, 0.7]), np.array([0.2, -0.1])
    step = kl_and_fisher(problem.inputs, theta, delta)
    p, moved = expit(problem.inputs @ theta), expit(problem.inputs @ (theta + delta))
    fisher = np.zeros((2, 2))
    for y, weight in ((1, p), (0, 1 - p)):
        score = (y - p)[:, None] * problem.inputs
        fisher += (weight[:, None] * score).T @ score / 50
    np.testing.assert_allclose(step.fisher, fisher, rtol=1e-12)
    exact = (rel_entr(p, moved) + rel_entr(1 - p, 1 - moved)).mean()
    assert step.exact == pytest.approx(exact, rel=1e-10)


def test_problem_has_its_share_of_flipped_labels_and_a_seed():
    problem = two_parameter_problem(n=5000, flipped=0.1, seed=3)
    assert problem.errors([[1.0, 0.0]])[0] == pytest.approx(0.1, abs=0.015)
    again = two_parameter_problem(n=5000, flipped=0.1, seed=3)
    np.testing.assert_array_equal(problem.inputs, again.inputs)


def test_arguments_are_checked():
    with pytest.raises(InputError, match="mean_loss between"):
        maxwell_boltzmann(LOSSES, 0.9)
    with pytest.raises(InputError, match="vector of finite numbers"):
        maxwell_boltzmann([[1.0]], 0.5)
    with pytest.raises(InputError, match="rescale the loss"):
        pac_bayes_bound(1.5, 1.0, 100)
    with pytest.raises(InputError, match="between 0 and 2"):
        pac_bayes_bound(0.5, 1.0, 100, trade_off=2.0)
    with pytest.raises(InputError, match="epsilon in"):
        pac_bayes_bound(0.5, 1.0, 100, epsilon=1.0)
    with pytest.raises(InputError, match="prior of 4 positive"):
        gibbs_posterior(LOSSES, 10, 1.0, prior=[1.0])


def test_examples():
    assert doctest.testmod(module).failed == 0
