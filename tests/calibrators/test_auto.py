"""The automatic choice: what it prefers, what it shows, what it refuses."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from focalcal.calibrators import AutoCalibrator, TemperatureScaling, load
from focalcal.calibrators.auto import default_candidates, mean_and_error, simplest
from focalcal.errors import FileFormatError, FitWarning, InputError


def test_chooses_by_held_out_loss(calibrated_data):
    z, y = calibrated_data(600, 3)
    auto = AutoCalibrator().fit(3 * z, y)
    assert auto.method_ == "temperature"
    assert isinstance(auto.calibrator_, TemperatureScaling)
    again = TemperatureScaling().fit(3 * z, y)
    np.testing.assert_array_equal(auto.predict_proba(z), again.predict_proba(z))


def test_calibrated_logits_keep_the_identity(calibrated_data):
    assert AutoCalibrator().fit(*calibrated_data(800, 3)).method_ == "identity"


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
    assert [row.method for row in auto.table_ if row.chosen] == [auto.method_]
    assert all(row.n == 300 and row.standard_error > 0 for row in auto.table_)
    with pytest.raises(dataclasses.FrozenInstanceError):
        auto.table_[0].nll = 0.0


def test_held_out_loss_is_that_of_a_plain_loop(calibrated_data):
    # The identity learns nothing, so its held-out loss is its loss.
    z, y = calibrated_data(200, 3)
    auto = AutoCalibrator(("identity", "temperature")).fit(z, y)
    assert auto.table_[0].nll == pytest.approx(auto.diagnostics_.before, rel=1e-9)


def test_simpler_wins_within_one_standard_error():
    rng = np.random.default_rng(0)
    base, noise, ones = rng.random(1000), rng.normal(size=1000), np.ones(1000)
    noise -= noise.mean()
    error = mean_and_error(noise, ones)[1]
    within, beyond = base + noise - 0.5 * error, base + noise - 2 * error
    assert simplest({"a": base + 0.5, "b": base, "c": within}, ones) == "b"
    assert simplest({"a": base + 0.5, "b": base, "c": beyond}, ones) == "c"


def test_weights_count_as_samples():
    values, weights = np.array([1.0, 2.0, 4.0]), np.array([2.0, 1.0, 3.0])
    repeated = np.repeat(values, weights.astype(int))
    np.testing.assert_allclose(
        mean_and_error(values, weights), mean_and_error(repeated, np.ones(6))
    )


def test_few_samples_allow_few_candidates():
    assert default_candidates(5, 10) == ["identity"]
    assert default_candidates(50, 10) == ["identity", "temperature"]
    assert "focal-structured" not in default_candidates(1000, 100)
    assert "focal-structured" in default_candidates(5000, 100)
    assert "beta" in default_candidates(500, 2)
    assert "beta" not in default_candidates(500, 3)


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
    [("scores_", {"identity": [1.0]}), ("scores_", 3), ("calibrator_", 1.0)],
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
