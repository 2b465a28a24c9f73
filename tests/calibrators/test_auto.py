"""The automatic choice: what it prefers, what it shows, what it refuses."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import scipy.optimize
import scipy.special

from focalcal.calibrators import AutoCalibrator, TemperatureScaling, load
from focalcal.calibrators.auto import (
    PRIOR_SAMPLES,
    HeldOut,
    average_weights,
    best_temperature,
    default_candidates,
    gains,
    mean_and_error,
    mixture_losses,
    mixture_weights,
    says_zero,
)
from focalcal.errors import FileFormatError, FitWarning, InputError


def test_one_part_is_that_method(calibrated_data):
    z, y = calibrated_data(600, 3)
    auto = AutoCalibrator(("temperature",)).fit(5 * z, y)
    assert auto.method_ == auto.formula_ == "temperature"
    again = TemperatureScaling().fit(5 * z, y)
    np.testing.assert_array_equal(auto.predict_proba(z), again.predict_proba(z))


def test_calibrated_logits_keep_the_identity(calibrated_data):
    assert AutoCalibrator().fit(*calibrated_data(800, 3)).formula_ == "identity"


def test_average_is_the_weighted_sum_of_its_parts(rng):
    # Half the samples are over-confident by 4: no temperature serves both halves.
    z = 2 * rng.normal(size=(2000, 3))
    y = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
    z[::2] *= 4
    auto = AutoCalibrator(("identity", "temperature")).fit(z, y)
    assert len(auto.parts_) == 2
    assert auto.weights_.sum() == pytest.approx(1)
    average = " + ".join(f"{w:.2f} {name}" for name, w in zip(auto.parts_, auto.weights_))
    assert auto.formula_ == f"{average}, T = {auto.temperature_:.2f}"
    parts = [part.predict_proba(z) for part in auto.parts_.values()]
    p = np.tensordot(auto.weights_, parts, 1) ** (1 / auto.temperature_)
    np.testing.assert_allclose(auto.predict_proba(z), p / p.sum(axis=1, keepdims=True), atol=1e-12)
    best = min(part.diagnostics_.after for part in auto.parts_.values())
    assert auto.diagnostics_.after < best - 0.01


def test_strong_structure_is_worth_a_complex_method(rng):
    truth = 2 * rng.normal(size=(1200, 3))
    y = np.argmax(truth + rng.gumbel(size=truth.shape), axis=1)
    z = truth @ np.linalg.inv([[1.0, 0.6, 0.0], [0.6, 1.0, 0.0], [0.0, 0.0, 1.0]])
    auto = AutoCalibrator(("identity", "temperature", "focal-structured"), folds=3).fit(z, y)
    assert auto.method_ == "focal-structured"


def test_table_is_of_frozen_rows_that_say_what_was_chosen(calibrated_data):
    z, y = calibrated_data(300, 4)
    auto = AutoCalibrator(("identity", "temperature", "structured-vector")).fit(2 * z, y)
    assert [row.method for row in auto.table_] == ["identity", "temperature", "structured-vector"]
    assert [row.method for row in auto.table_ if row.chosen] == list(auto.parts_)
    assert sum(row.weight for row in auto.table_) == pytest.approx(1)
    assert all(row.n == 300 and row.standard_error > 0 for row in auto.table_)
    with pytest.raises(dataclasses.FrozenInstanceError):
        auto.table_[0].nll = 0.0


def test_held_out_loss_is_that_of_a_plain_loop(calibrated_data):
    # The identity learns nothing, so its held-out loss is its loss.
    z, y = calibrated_data(200, 3)
    auto = AutoCalibrator(("identity", "temperature")).fit(z, y)
    assert auto.table_[0].nll == pytest.approx(auto.diagnostics_.before, rel=1e-9)


def test_weights_minimise_the_loss_of_the_average(rng):
    # A general optimiser knows nothing of expectation–maximisation; the prior costs a few samples.
    losses = rng.gamma(2.0, size=(3, 500)) + np.array([[0.0], [0.2], [2.0]])
    sizes = rng.random(500)

    def value(free):
        shares = np.exp(np.append(free, 0.0))
        return float(sizes @ mixture_losses(losses, shares / shares.sum()))

    found = scipy.optimize.minimize(value, np.zeros(2))
    shares = mixture_weights(losses, sizes)
    assert sizes @ mixture_losses(losses, shares) < found.fun + PRIOR_SAMPLES
    assert average_weights(losses + np.array([[0.0], [0.0], [5.0]]), sizes)[2] == 0


def test_temperature_minimises_the_loss_of_the_average(rng):
    # A general optimiser on the plain formula; many samples leave little of the shrinkage.
    z = 2 * rng.normal(size=(20_000, 3))
    y = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
    log_p = [scipy.special.log_softmax(c * z, axis=1) for c in (0.3, 0.9)]
    shares, rows = np.array([0.4, 0.6]), np.arange(len(y))

    def value(t):
        p = np.tensordot(shares, np.exp(log_p), 1) ** (1 / t)
        return -np.log(p[rows, y] / p.sum(axis=1)).mean()

    found = scipy.optimize.minimize_scalar(value, bounds=(0.2, 5), method="bounded").x
    assert found < 0.9
    held = HeldOut(y, np.ones(len(y)), log_p)
    assert best_temperature(held, shares) == pytest.approx(found ** (200 / 201), rel=1e-4)


def test_one_zero_is_enough_to_be_unsafe():
    with np.errstate(divide="ignore"):
        assert says_zero(np.log([[0.5, 0.5], [0.3, 0.7], [0.0, 1.0]]))


def test_where_zeros_did_no_harm_the_identity_keeps_most_of_the_weight(rng):
    p = rng.dirichlet([1.0, 1.0, 1.0], size=2000)
    p[:40] = [0.3, 0.7, 0.0]
    y = np.array([rng.choice(3, p=row) for row in p])
    with np.errstate(divide="ignore"):
        auto = AutoCalibrator().fit(np.log(p), y)
    assert auto.method_ == "identity"
    assert auto.weights_[0] >= 0.9
    assert len(auto.parts_) > 1


@pytest.mark.parametrize("raised_to", [0.0, 1e-12])
def test_the_identity_is_not_kept_where_it_says_zero(raised_to):
    # Zeros that never were a label: the identity looks best, and is not safe.
    p = np.tile([0.0, 1.0, 0.0], (150, 1))
    p[:75] = [0.1, 0.8, 0.1]
    y = np.ones(150, dtype=int)
    y[:8], y[8:15] = 0, 2
    with np.errstate(divide="ignore"):
        logits = np.log(np.maximum(p, raised_to))
    assert says_zero(logits)
    auto = AutoCalibrator(("identity", "focal-structured")).fit(logits, y)
    assert (auto.predict_proba(logits[-1:]) > 1e-5).all()


def test_small_probabilities_that_differ_are_not_zeros(rng):
    assert not says_zero(10 * rng.normal(size=(100, 5)))
    assert not says_zero(np.log(np.tile([0.999, 0.001], (100, 1))))


def test_the_first_candidate_stays_where_the_gain_is_chance(rng):
    noise = 0.1 * rng.normal(size=1000)
    noise -= noise.mean()
    base, error = 5 + np.zeros(1000), noise.std() / np.sqrt(1000)
    for errors, better in ((2.8, False), (3.2, True)):
        losses = np.stack([base, base - noise - errors * error])
        assert gains(losses, np.array([0.0, 1.0]), np.ones(1000)) is better


def test_the_first_candidate_does_not_stay_where_it_may_cost_a_lot(rng):
    noise = rng.normal(size=100)
    noise -= noise.mean()
    noise *= 0.03 * 10 / noise.std()  # three standard errors are 0.09
    for most, taken in ((0.099, False), (0.101, True)):
        losses = np.stack([5 + np.zeros(100), 5 - noise - (most - 0.09)])
        assert gains(losses, np.array([0.0, 1.0]), np.ones(100)) is taken


def test_weights_count_as_samples():
    values, weights = np.array([1.0, 2.0, 4.0]), np.array([2.0, 1.0, 3.0])
    repeated = np.repeat(values, weights.astype(int))
    np.testing.assert_allclose(
        mean_and_error(values, weights), mean_and_error(repeated, np.ones(6))
    )


def test_few_samples_allow_few_candidates():
    assert default_candidates(5, 10) == ["identity"]
    assert default_candidates(25, 10) == ["identity", "temperature"]
    assert default_candidates(400, 100) == ["identity", "temperature", "focal-structured"]
    assert default_candidates(500, 2) == ["identity", "beta", "focal-structured", "venn-abers"]


def test_files_of_the_first_release_are_read(calibrated_data, tmp_path):
    z, y = calibrated_data(300, 3)
    auto = AutoCalibrator(("temperature",)).fit(2 * z, y)
    auto.save(tmp_path / "auto.json")
    document = json.loads((tmp_path / "auto.json").read_text())
    state = document["state"]
    old = {"calibrator_": state["parts_"]["temperature"], "scores_": state["scores_"]}
    (tmp_path / "auto.json").write_text(json.dumps({**document, "state": old}))
    again = load(tmp_path / "auto.json")
    assert again.formula_ == "temperature"
    assert again.table_ == auto.table_
    np.testing.assert_array_equal(again.predict_proba(z), auto.predict_proba(z))


@pytest.mark.filterwarnings("ignore::focalcal.errors.FitWarning")
def test_too_few_samples_are_said(calibrated_data):
    with pytest.warns(FitWarning, match="too few samples to choose"):
        auto = AutoCalibrator().fit(*calibrated_data(10, 3))
    assert auto.method_ == "identity"


def test_saved_with_its_table(calibrated_data, tmp_path):
    z, y = calibrated_data(300, 3)
    auto = AutoCalibrator().fit(2 * z, y)
    auto.save(tmp_path / "auto.json")
    again = load(tmp_path / "auto.json")
    assert again.table_ == auto.table_
    assert again.method_ == auto.method_
    np.testing.assert_array_equal(again.predict_proba(z), auto.predict_proba(z))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("scores_", {"identity": [1.0]}),
        ("scores_", 3),
        ("parts_", 1.0),
        ("parts_", {}),
        ("weights_", [0.5]),
        ("weights_", [0.5, 0.5]),
        ("temperature_", 0.0),
    ],
)
def test_damaged_files_are_refused(calibrated_data, tmp_path, field, value):
    auto = AutoCalibrator(("identity", "temperature")).fit(*calibrated_data(100, 3))
    auto.save(tmp_path / "auto.json")
    document = json.loads((tmp_path / "auto.json").read_text())
    document["state"][field] = value
    (tmp_path / "auto.json").write_text(json.dumps(document))
    with pytest.raises(FileFormatError):
        load(tmp_path / "auto.json")


@pytest.mark.parametrize("candidates", [(), "temperature", ("tempreture",), ("auto",)])
def test_candidates_must_be_known(calibrated_data, candidates):
    with pytest.raises(InputError, match="candidates"):
        AutoCalibrator(candidates).fit(*calibrated_data(30, 3))


@pytest.mark.parametrize("folds", [1, 2.5])
def test_folds_must_be_two_or_more(calibrated_data, folds):
    with pytest.raises(InputError, match="folds"):
        AutoCalibrator(folds=folds).fit(*calibrated_data(30, 3))
