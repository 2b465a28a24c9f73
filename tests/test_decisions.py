"""Thresholds and costs: exact bounds against brute force, and guarantees in simulations."""

from __future__ import annotations

import doctest
import math

import numpy as np
import pytest
from scipy import stats

from focalcal import decisions
from focalcal.errors import InputError


def draw(rng, n, sharpness=0.6):
    """Calibrated binary forecasts: confidences, and whether each is wrong."""
    confidence = 1 - 0.5 * rng.beta(sharpness, 2, n)
    return confidence, rng.random(n) >= confidence


@pytest.fixture(scope="module")
def population():
    return np.sort(draw(np.random.default_rng(99), 200_000)[0])


def risk_of(population, goal, at):
    """The true value of what a goal limits: the forecasts are calibrated by construction."""
    kept = population[np.searchsorted(population, at) :]
    wrong = (1 - kept).sum()
    return {
        "target_accuracy": wrong / max(len(kept), 1),
        "max_error": wrong / len(population),
        "review_budget": 1 - len(kept) / len(population),
    }[goal]


def test_examples():
    failed, tried = doctest.testmod(decisions)
    assert failed == 0
    assert tried > 0


@pytest.mark.parametrize(
    ("goal", "value", "most"),
    [("target_accuracy", 0.95, 0.05), ("max_error", 0.03, 0.03), ("review_budget", 0.2, 0.2)],
)
def test_the_guarantee_holds_in_simulations(population, goal, value, most):
    rng = np.random.default_rng(1)
    runs, broken = 200, 0
    for _ in range(runs):
        found = decisions.choose(*draw(rng, 1000), goal, value, 0.9)
        broken += found.found and risk_of(population, goal, found.threshold) > most
    # 10 % may break; 17 % of 200 would be 3.3 standard errors more.
    assert broken / runs <= 0.17


def test_max_error_is_the_lowest_threshold_that_passes_the_binomial_test(rng):
    confidence, wrong = draw(rng, 600)
    found = decisions.choose(confidence, wrong, "max_error", 0.05, 0.95)
    passes = [
        t
        for t in [0.0, *np.nextafter(confidence, 2)]
        if stats.binom.cdf(wrong[confidence >= t].sum(), 600, 0.05) <= 0.05
    ]
    assert found.threshold == min(passes)
    assert found.decided.value == np.mean(confidence >= found.threshold)
    assert found.error.value == wrong[confidence >= found.threshold].mean()


def test_review_budget_keeps_as_little_as_it_may(rng):
    confidence, wrong = draw(rng, 600)
    found = decisions.choose(confidence, wrong, "review_budget", 0.3, 0.95)
    reviewed = np.count_nonzero(confidence < found.threshold)
    assert stats.binom.cdf(reviewed, 600, 0.3) <= 0.05 < stats.binom.cdf(reviewed + 1, 600, 0.3)


def test_equal_confidences_stay_together(rng):
    confidence = np.repeat([0.6, 0.8, 0.95], 400)
    wrong = rng.random(1200) >= confidence
    found = decisions.choose(confidence, wrong, "target_accuracy", 0.9, 0.95)
    assert np.count_nonzero(confidence >= found.threshold) == 400
    assert 0.8 < found.threshold <= 0.95


@pytest.mark.parametrize("wrong", range(5, 20))
def test_samples_of_one_confidence_take_one_test(wrong):
    """All or none can be decided alone: nothing is left to correct for."""
    from scipy.stats import binom

    found = decisions.choose(np.full(200, 0.9), np.arange(200) < wrong, "target_accuracy", 0.9)
    assert found.found == (binom.cdf(wrong, 200, 0.1) <= 0.05)


def test_single_precision_thresholds_leave_out_what_was_left_out(rng):
    confidence, wrong = draw(rng, 2000)
    confidence = confidence.astype(np.float32)
    found = decisions.choose(confidence, wrong, "max_error", 0.03, 0.95)
    assert np.mean(confidence >= found.threshold) == found.decided.value


def test_all_or_nothing():
    sure = decisions.choose(np.full(1000, 0.9), np.zeros(1000, bool), "target_accuracy", 0.9)
    assert sure.threshold == 0
    assert sure.decided.value == 1
    assert sure.error.value == 0
    never = decisions.choose(np.full(50, 0.9), np.ones(50, bool), "target_accuracy", 0.9)
    assert not never.found
    assert never.decided.value == 0
    assert math.isnan(never.error.value)
    assert never.guarantee.startswith("none")
    few = decisions.choose(np.full(20, 0.9), np.zeros(20, bool), "max_error", 0.01)
    assert not few.found  # 20 samples without an error cannot show 1 %


def test_threshold_reads_probabilities_of_every_shape(rng):
    p = rng.uniform(0.5, 1, 3000)
    y = (rng.random(3000) < p).astype(int)
    flat = decisions.threshold(y, p, target_accuracy=0.9)
    both = decisions.threshold(y, np.column_stack([1 - p, p]), target_accuracy=0.9)
    assert flat == both
    assert flat.found


def test_costs_of_errors_are_the_error_rate(rng):
    probs = rng.dirichlet(np.ones(4), 500)
    y = rng.integers(0, 4, 500)
    cost = decisions.expected_cost(probs, y_true=y)
    assert cost.measured.value == pytest.approx(np.mean(probs.argmax(axis=1) != y))
    assert cost.expected.value == pytest.approx(np.mean(1 - probs.max(axis=1)))
    assert cost.difference.value == pytest.approx(cost.measured.value - cost.expected.value)
    assert cost.decided.value == 1


def test_abstaining_from_errors_is_a_threshold_on_confidence(rng):
    """Chow's rule: with 0–1 costs, ask where confidence < 1 − abstain_cost."""
    probs = rng.dirichlet(np.ones(3) / 2, 300)
    priced = decisions.decide(probs, abstain_cost=0.25)
    np.testing.assert_array_equal(priced, decisions.decide(probs, threshold=0.75))
    cost = decisions.expected_cost(probs, abstain_cost=0.25)
    assert cost.decided.value == np.mean(priced != decisions.ASK)
    assert cost.measured is None
    assert cost.at_most is None


def test_no_rule_is_cheaper_in_expectation(rng):
    probs, costs = rng.dirichlet(np.ones(3), 200), rng.uniform(0, 5, (3, 4))
    best = decisions.expected_cost(probs, costs, abstain_cost=1.0).expected.value
    for _ in range(20):
        other = rng.integers(0, 4, 200)
        assert best <= np.einsum("nk,kn->n", probs, costs[:, other]).mean()


def test_the_cost_bound_holds_in_simulations():
    rng = np.random.default_rng(3)
    costs = np.array([[0.0, 1.0], [5.0, 0.0]])
    truth = decisions.expected_cost(rng.beta(1, 1, 200_000), costs, abstain_cost=0.5)
    broken = 0
    for _ in range(200):
        p = rng.beta(1, 1, 300)
        y = (rng.random(300) < p).astype(int)
        cost = decisions.expected_cost(p, costs, abstain_cost=0.5, y_true=y, level=0.9)
        broken += cost.at_most < truth.expected.value
    assert broken / 200 <= 0.17


@pytest.mark.parametrize(("doubt", "n"), [(0.003, 100), (0.01, 100), (0.03, 200), (0.3, 50)])
def test_calibrated_costs_are_not_called_miscalibrated(doubt, n):
    """Samples without an error have no spread of their own: 72 % were outside at the first."""
    rng = np.random.default_rng(4)
    outside = 0
    for _ in range(300):
        p = rng.exponential(doubt, n).clip(0, 0.5)
        found = decisions.expected_cost(p, y_true=(rng.random(n) < p).astype(int)).difference
        outside += not found.low <= 0 <= found.high
    assert outside / 300 <= 0.08


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda y, p: decisions.threshold(y, p), "one goal"),
        (lambda y, p: decisions.threshold(y, p, max_error=0.1, review_budget=0.1), "one goal"),
        (lambda y, p: decisions.threshold(y, p, max_error=1.5), "between 0 and 1"),
        (lambda y, p: decisions.threshold(y, p, max_error=0.1, level=1.0), "level"),
        (lambda y, p: decisions.threshold([], np.empty((0, 2)), max_error=0.1), "N >= 1"),
        (lambda y, p: decisions.expected_cost(p, [[0, 1]]), "one row for each"),
        (lambda y, p: decisions.expected_cost(p, abstain_cost=math.nan), "finite abstain_cost"),
        (lambda y, p: decisions.decide(p, threshold=0.5, abstain_cost=1), "got both"),
    ],
)
def test_errors_say_what_is_wrong(call, message):
    with pytest.raises(InputError, match=message):
        call([0, 1], [[0.9, 0.1], [0.2, 0.8]])


def test_one_sample_bounds_the_cost_by_the_largest():
    assert decisions.expected_cost([[0.9, 0.1]], [[0, 1], [7, 0]], y_true=[0]).at_most == 7
    one = decisions.threshold([0], [[0.9, 0.1]], max_error=0.5)
    assert one.guarantee.startswith("none; 1 sample does not suffice")


def test_target_accuracy_is_reached_closely_where_samples_are_many():
    n = 20_000
    right = np.arange(n) < 0.95 * n  # the least confident are wrong
    p = np.linspace(1, 0.5, n)
    for goal in (0.951, 0.96, 0.97, 0.98, 0.99):
        found = decisions.threshold(right.astype(int), p, target_accuracy=goal)
        assert 0.95 / goal - 1 / 20 < found.decided.value < 0.95 / goal
