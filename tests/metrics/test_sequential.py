"""E-processes: their mean under the hypothesis by enumeration, and Ville's bound in simulations."""

from __future__ import annotations

import doctest
import itertools
import math

import numpy as np
import pytest
from scipy import stats

from focalcal.bins import Bins, bin_samples
from focalcal.errors import FileFormatError
from focalcal.metrics import sequential
from focalcal.metrics.sequential import (
    EProcess,
    accuracy_ratios,
    confidence_ratios,
    miscalibration_ratios,
)

EDGES = np.linspace(0, 1, 6)


def test_examples():
    assert doctest.testmod(sequential).failed == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ratios_have_mean_one_if_calibrated(dtype):
    """Over all outcomes of three samples, weighted by their probability: no simulation."""
    c = np.array([0.55, 0.9, 0.999], dtype=dtype)
    mean = 0.0
    for outcome in itertools.product([False, True], repeat=3):
        y = np.array(outcome)
        chance = np.prod(np.where(y, c.astype(float), 1 - c.astype(float)))
        mean = mean + chance * np.exp(miscalibration_ratios(c, y))
    np.testing.assert_allclose(mean, 1, rtol=1e-9)


@pytest.mark.parametrize("off", [-0.05, -0.02, 0.0, 0.03, 0.05])
def test_within_the_tolerance_ratios_have_mean_at_most_one(off):
    c, y = np.array([0.7]), np.array([True])
    p = 0.7 + off
    mean = p * np.exp(miscalibration_ratios(c, y, 0.05)) + (1 - p) * np.exp(
        miscalibration_ratios(c, ~y, 0.05)
    )
    assert (mean <= 1 + 1e-12).all()


def test_a_confidence_of_one_that_is_wrong_is_strong_but_finite_evidence():
    ratios = miscalibration_ratios(np.array([1.0, 0.0]), np.array([False, True]))
    assert np.isfinite(ratios).all()
    assert ratios.max() > 10


def test_ratios_add_up_over_parts_of_a_batch(rng):
    c = rng.uniform(0.5, 1, 100)
    y = rng.random(100) < c
    parts = miscalibration_ratios(c[:30], y[:30]) + miscalibration_ratios(c[30:], y[30:])
    np.testing.assert_allclose(parts, miscalibration_ratios(c, y), rtol=1e-12, atol=1e-12)


def test_the_mixture_is_the_sum_over_starts(rng):
    """The recursion against the double sum of the module's formula."""
    logs = rng.normal(size=(6, 4))
    process = EProcess()
    for row in logs:
        process = process.update(row)
    direct = sum(
        np.exp(logs[s:].sum(axis=0)).mean() / ((s + 1) * (s + 2)) for s in range(len(logs))
    )
    running = [
        sum(np.exp(logs[s : t + 1].sum(axis=0)).mean() / ((s + 1) * (s + 2)) for s in range(t + 1))
        + 1 / (t + 2)
        for t in range(len(logs))
    ]
    assert np.exp(process.logs).mean() == pytest.approx(direct)
    assert process.p_value == pytest.approx(1 / max(1, *running))


def test_evidence_is_never_taken_back():
    strong = EProcess().update(np.array([9.0]))
    assert strong.update(np.array([-50.0])).p_value == strong.p_value < 0.01


def test_extreme_evidence_stays_finite():
    process = EProcess().update(np.array([-1e6, -1e6]))
    assert process.p_value == 1
    assert math.isfinite(process.update(np.array([2e6, 0.0])).largest)


def table_of(counts, right):
    counts = np.asarray(counts, float)
    return Bins(np.linspace(0, 1, len(counts) + 1), counts, counts * 0.5, np.asarray(right, float))


def test_ratios_of_accuracy_have_mean_one_however_rare_errors_are():
    """Over all numbers of right samples in the batch, given those of past and batch together."""
    n, m, right = [4, 5], [30, 40], [33, 40]
    laws = [stats.hypergeom(a + b, r, a) for a, b, r in zip(n, m, right)]
    mean = 0.0
    for hits in itertools.product(range(5), range(6)):
        batch = table_of(n, hits)
        past = table_of(m, np.subtract(right, hits))
        mean = mean + np.prod([x.pmf(h) for x, h in zip(laws, hits)]) * np.exp(
            accuracy_ratios(past, batch)
        )
    np.testing.assert_allclose(mean, 1, rtol=1e-9)


def test_ratios_of_confidences_have_mean_one_however_uneven_bins_are():
    """Over all counts of the batch in the bins, given those of past and batch together."""
    both, n = np.array([40, 2, 1]), 5
    law = stats.multivariate_hypergeom(both, n)
    mean = 0.0
    for counts in itertools.product(range(6), range(3), range(2)):
        if sum(counts) == n:
            past, batch = table_of(both - counts, [0, 0, 0]), table_of(counts, [0, 0, 0])
            mean = mean + law.pmf(counts) * np.exp(confidence_ratios(past, batch))
    np.testing.assert_allclose(mean, 1, rtol=1e-9)


def normal_limit(z):
    effects = np.concatenate([-np.array(sequential.EFFECTS), sequential.EFFECTS])
    return effects * z - effects**2 / 2


def test_the_signed_statistic_is_that_of_cochran_mantel_and_haenszel():
    past, batch = (
        table_of([60_000, 80_000], [30_000, 60_000]),
        table_of([20_000, 30_000], [9_900, 22_380]),
    )
    tables = [np.array([[9_900, 10_100], [30_000, 30_000]])]
    tables += [np.array([[22_380, 7_620], [60_000, 20_000]])]
    expected = sum(stats.hypergeom(t.sum(), t[:, 0].sum(), t[0].sum()).mean() for t in tables)
    variance = sum(stats.hypergeom(t.sum(), t[:, 0].sum(), t[0].sum()).var() for t in tables)
    z = (9_900 + 22_380 - expected) / math.sqrt(variance)
    signed = accuracy_ratios(past, batch)[: 2 * len(sequential.EFFECTS)]
    np.testing.assert_allclose(signed, normal_limit(z), atol=0.05)


def test_the_signed_statistic_of_confidences_is_that_of_wilcoxon(rng):
    x, y = rng.integers(0, 5, 40_000), np.minimum(rng.integers(0, 1005, 10_000) // 200, 4)
    past, batch = (table_of(np.bincount(v, minlength=5), np.zeros(5)) for v in (x, y))
    p = stats.mannwhitneyu(y, x, alternative="less", use_continuity=False).pvalue
    signed = confidence_ratios(past, batch)[: 2 * len(sequential.EFFECTS)]
    np.testing.assert_allclose(signed, normal_limit(stats.norm.isf(p)), atol=0.1)


@pytest.mark.parametrize("up", [[0.5, 0.5, 0.5], [0.6, 0.4, 0.5]])
def test_a_change_in_any_direction_of_each_bin_is_evidence(up):
    past, batch = table_of([4000] * 3, [2000] * 3), table_of([1000] * 3, 1000 * np.array(up))
    largest = accuracy_ratios(past, batch)[2 * len(sequential.EFFECTS) :].max()
    assert largest > 10 if up[0] > 0.5 else largest < 0


def test_batches_without_spread_are_no_evidence():
    past, batch = table_of([10, 0], [10, 0]), table_of([5, 0], [5, 0])
    for ratios in (accuracy_ratios(past, batch), confidence_ratios(past, batch)):
        assert (ratios <= 0).all()


@pytest.mark.parametrize("test", ["accuracy", "confidence"])
def test_looking_every_week_keeps_the_level(test):
    """200 histories of 25 weeks; p ≤ 0.1 may come in 10 % of them."""
    rng = np.random.default_rng(2)
    function = {"accuracy": accuracy_ratios, "confidence": confidence_ratios}[test]
    alarms = 0
    for _ in range(200):
        process = EProcess()
        c = rng.uniform(0, 1, (26, 150))
        tables = [bin_samples(x, rng.random(150) < x, EDGES) for x in c]
        past = tables[0]
        for batch in tables[1:]:
            process = process.update(function(past, batch))
            past = past + batch
        alarms += process.p_value <= 0.1
    assert alarms / 200 <= 0.17


@pytest.mark.parametrize("function", [accuracy_ratios, confidence_ratios])
def test_rare_errors_and_rare_confidences_keep_the_level(function):
    """A nearly perfect classifier; normal limits gave alarms in 12 % of such years at 5/3 %."""
    rng = np.random.default_rng(3)
    alarms = 0
    for _ in range(60):
        process, edges = EProcess(), np.array([0, 0.9, 0.99, 0.999, 1])
        c = rng.beta(300, 1, (53, 20))
        tables = [bin_samples(x, rng.random(20) < x, edges) for x in c]
        past = sum(tables[1:11], tables[0])
        for batch in tables[11:]:
            process = process.update(function(past, batch))
            past = past + batch
        alarms += process.p_value <= 0.05 / 3
    assert alarms <= 3


def test_json_round_trip_and_damage():
    process = EProcess().update(np.array([0.1, -2.0, 3.0]))
    again = EProcess.from_dict(process.to_dict())
    assert again.p_value == process.p_value
    np.testing.assert_array_equal(again.logs, process.logs)
    assert EProcess.from_dict(EProcess().to_dict()).p_value == 1
    with pytest.raises(FileFormatError, match="expected an e-process"):
        EProcess.from_dict({"logs": [1]})
