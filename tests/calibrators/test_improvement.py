"""The split of a loss: its parts add up, and what was only memorised is not removed."""

from __future__ import annotations

import numpy as np
import pytest

from focalcal import metrics
from focalcal.calibrators import IsotonicCalibration, TemperatureScaling, improvement
from focalcal.calibrators.improvement import loss_split
from focalcal.errors import InputError


def test_the_parts_add_up_to_the_metric(calibrated_data):
    z, y = calibrated_data(400, 3)
    found = improvement(2 * z, y, TemperatureScaling())
    p = np.exp(2 * z) / np.exp(2 * z).sum(axis=1, keepdims=True)
    for name, value in (("nll", metrics.nll(y, p)), ("brier", metrics.brier(y, p))):
        assert found[name].value == pytest.approx(value, rel=1e-9)
        assert found[name].removed + found[name].stays == pytest.approx(value, rel=1e-9)


def test_what_stays_is_the_loss_of_the_true_probabilities(calibrated_data):
    z, y = calibrated_data(3000, 3)
    found = improvement(3 * z, y, TemperatureScaling())["nll"]
    assert found.stays == pytest.approx(improvement(z, y, TemperatureScaling())["nll"].value, 0.01)
    assert found.removed > 5 * found.standard_error


def test_memory_is_not_improvement(rng):
    # Labels at random: isotonic regression gains in sample, and loses on samples left out.
    z, y = rng.normal(size=(200, 2)), rng.integers(0, 2, 200)
    fitted = IsotonicCalibration().fit(1e-3 * z, y)
    assert fitted.diagnostics_.after < fitted.diagnostics_.before
    assert improvement(1e-3 * z, y, IsotonicCalibration())["nll"].removed < 0


def test_zeros_are_removed(rng):
    # shares of twenty votes; the labels follow probabilities that are never zero
    chances = rng.dirichlet([2.0, 1.0, 0.5], size=400)
    p = np.array([rng.multinomial(20, row) for row in chances]) / 20
    y = np.array([rng.choice(3, p=row) for row in chances])
    assert (p[np.arange(400), y] == 0).any()
    with np.errstate(divide="ignore"):
        found = improvement(np.log(p), y, TemperatureScaling())["nll"]
    assert found.value > 10
    assert found.stays < 1


def test_infinite_losses_are_removed_or_stay():
    with np.errstate(divide="ignore"):
        zero, corrected = np.log([[1.0, 0.0], [0.5, 0.5]]), np.log([[0.9, 0.1], [0.5, 0.5]])
    labels, sizes = np.array([1, 0]), np.ones(2)
    assert loss_split(labels, zero, corrected, sizes)["nll"].removed == np.inf
    same = loss_split(labels, zero, zero, sizes)["nll"]
    assert (same.value, same.removed, same.stays) == (np.inf, 0, np.inf)


def test_labels_that_do_not_fit_are_refused(rng):
    with pytest.raises(InputError):
        improvement(rng.normal(size=(10, 3)), np.zeros(9, dtype=int), TemperatureScaling())
