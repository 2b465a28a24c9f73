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
    WORTH,
    HeldOut,
    average_weights,
    best_alone,
    best_temperature,
    default_candidates,
    gains,
    mean_and_error,
    mixture_weights,
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


def test_says_why_the_first_is_kept_where_another_has_a_lower_loss():
    found = set()
    for seed in range(6):
        rng = np.random.default_rng(seed)
        z = 2 * rng.normal(size=(100, 3))
        y = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
        auto = AutoCalibrator(("identity", "temperature")).fit(z, y)
        first, other = auto.table_
        surprising = first.weight == 1 and other.nll < first.nll
        assert ("identity is kept" in auto.table_text()) == surprising
        found.add(surprising)
    assert found == {True, False}


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

    def loss(shares):
        return float(sizes @ -np.log(shares @ np.exp(-losses)))

    def value(free):
        shares = np.exp(np.append(free, 0.0))
        return loss(shares / shares.sum())

    found = scipy.optimize.minimize(value, np.zeros(2))
    shares = mixture_weights(losses, sizes)
    assert loss(shares) < found.fun + PRIOR_SAMPLES
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


def zeros_that_never_were_a_label():
    p = np.tile([0.0, 1.0, 0.0], (150, 1))
    p[:75] = [0.1, 0.8, 0.1]
    y = np.ones(150, dtype=int)
    y[:8], y[8:15] = 0, 2
    with np.errstate(divide="ignore"):
        return np.log(p), y


def test_no_loss_is_infinite_where_the_identity_says_zero():
    logits, y = zeros_that_never_were_a_label()
    auto = AutoCalibrator(("identity", "focal-structured")).fit(logits, y)
    assert auto.method_ == "identity"
    p = auto.predict_proba(logits)
    assert (p > 0).all()
    np.testing.assert_allclose(p, np.exp(logits), atol=2e-9)


def test_few_samples_do_not_prove_that_zeros_are_safe():
    logits, y = zeros_that_never_were_a_label()
    auto = AutoCalibrator().fit(logits[::3], y[::3])
    assert auto.weights_[0] < 0.5
    assert (auto.predict_proba(logits) > 1e-5).all()


def held_log_odds(first, second, labels):
    """Two candidates' log-probabilities from the log-odds of class 1; all weight on the second."""
    log_p = [-np.logaddexp(0, np.outer(z, [1, -1])) for z in (first, second)]
    return HeldOut(labels, np.ones(len(labels)), log_p), np.array([0.0, 1.0])


@pytest.mark.parametrize(("least", "taken"), [(1e-4, False), (1e-6, True), (0.0, True)])
def test_the_expected_gain_counts_labels_that_did_not_occur(least, taken):
    # The second candidate gives class 1 a chance of 1 %; 300 labels of class 0 contradict it.
    with np.errstate(divide="ignore"):
        log_p = [np.log([[1 - p, p]] * 300) for p in (least, 0.01)]
    held = HeldOut(np.zeros(300, dtype=int), np.ones(300), log_p)
    found = np.log(0.99 / (1 - least))
    if_right = 0.99 * found + 0.01 * np.log(0.01 / max(least, 1e-12))
    assert bool((found + if_right) / 2 > WORTH) is taken
    assert gains(held, np.array([0.0, 1.0]), 1.0) is taken


def test_the_first_candidate_stays_where_the_gain_is_small_and_may_be_chance():
    # Of 1,000 samples at even odds, the second candidate is right about a few more than half.
    second = np.full(1000, 0.1)
    for right, better in ((545, False), (580, True)):
        labels = (np.arange(1000) < right).astype(int)
        held, shares = held_log_odds(np.zeros(1000), second, labels)
        gain = np.log(2) - np.logaddexp(0, np.where(labels == 1, -0.1, 0.1))
        assert (gain.mean() > 3 * gain.std() / np.sqrt(1000)) is np.bool_(better)
        assert gains(held, shares, 1.0) is better


def held_losses(*excess):
    """Held-out predictions of two classes, whose losses are 0.5 and an excess (n,) above it."""
    log_p = [np.log([[1, 1]]) - 0.5 - x[:, None] for x in excess]
    return HeldOut(np.zeros(len(excess[0]), int), np.ones(len(excess[0])), log_p)


@pytest.mark.parametrize(
    ("identity", "default", "chosen"),
    [
        (0.9, 0.9, "identity"),
        (1.1, 0.9, "focal-structured"),
        (1.1, 1.1, "spline"),
        (-0.5, 0.0, "identity"),
    ],
)
def test_one_method_alone_must_be_better_by_a_standard_error(identity, default, chosen):
    """Excess losses are 0.3 above or below a mean, given in standard errors, 0.3/√n."""
    n = 10_000
    signs = 0.3 * (-1.0) ** np.arange(n)
    names = ["spline", "focal-structured", "identity"]
    held = held_losses(
        np.zeros(n), signs + 0.3 * default / n**0.5, signs[::-1] + 0.3 * identity / n**0.5
    )
    assert best_alone(names, held) == chosen
    order = [2, 0, 1]
    turned = dataclasses.replace(held, log_p=[held.log_p[i] for i in order])
    assert best_alone([names[i] for i in order], turned) == chosen
    assert best_alone(names[:1], dataclasses.replace(held, log_p=held.log_p[:1])) == "spline"


@pytest.mark.parametrize("worst", [10.0, 1e4, np.inf])
def test_a_few_large_losses_are_no_reason_to_keep_the_identity(worst):
    n = 400
    excess = np.zeros(n)
    excess[:3] = worst
    assert best_alone(["identity", "spline"], held_losses(excess, np.zeros(n))) == "spline"


def test_the_gain_is_that_of_the_tempered_average():
    labels = (np.arange(1000) < 600).astype(int)
    held, shares = held_log_odds(np.zeros(1000), np.full(1000, 4.0), labels)
    assert not gains(held, shares, 1.0)
    assert gains(held, shares, 10.0)


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
