"""Saved calibrators: exact round trips, and damaged files refused."""

from __future__ import annotations

import json

import numpy as np
import pytest

from focalcal.calibrators import (
    IsotonicCalibration,
    TemperatureScaling,
    VennAbers,
    load,
    make,
    persistence,
)
from focalcal.errors import FileFormatError, InputError, InputWarning


@pytest.fixture
def saved(tmp_path, calibrated_data):
    z, y = calibrated_data(300, 4)
    path = tmp_path / "cal.json"
    TemperatureScaling().fit(z * 3, y).save(path)
    return path


def rewrite(path, change):
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def test_round_trip_keeps_everything(saved, calibrated_data):
    z, y = calibrated_data(300, 4)
    original = TemperatureScaling().fit(z * 3, y)
    again = load(saved)
    assert again.get_params() == original.get_params()
    assert again.temperature_ == original.temperature_
    assert again.diagnostics_ == original.diagnostics_
    assert again.n_classes_ == 4


@pytest.mark.filterwarnings("ignore::focalcal.errors.FitWarning")
def test_infinite_temperature_survives(tmp_path, calibrated_data):
    z, _ = calibrated_data(100, 4)
    TemperatureScaling().fit(z, z.argmin(axis=1)).save(tmp_path / "cal.json")
    assert load(tmp_path / "cal.json").temperature_ == np.inf
    assert "Infinity" not in (tmp_path / "cal.json").read_text()


def test_class_names_are_kept_and_optional(saved, tmp_path, calibrated_data):
    assert not hasattr(load(saved), "class_names_")  # files of 0.1 have none
    z, y = calibrated_data(300, 4)
    names = np.array(["<a>", "b", "c", "d"])
    with pytest.warns(InputWarning, match="alphabetical"):
        fitted = TemperatureScaling().fit(z, names[y])
    assert fitted.class_names_ == ("<a>", "b", "c", "d")
    fitted.save(tmp_path / "named.json")
    assert load(tmp_path / "named.json").class_names_ == fitted.class_names_
    assert not hasattr(fitted.fit(z, y), "class_names_")


HOSTILE = {
    "too few class names": lambda d: d.update(class_names=["a"]),
    "class names that are numbers": lambda d: d.update(class_names=[1, 2, 3, 4]),
    "class names in one text": lambda d: d.update(class_names="abcd"),
    "another format": lambda d: d.update(format="pickle"),
    "a later version": lambda d: d.update(version=2),
    "a version that is true": lambda d: d.update(version=True),
    "an unknown method": lambda d: d.update(method="os.system"),
    "a method that is no text": lambda d: d.update(method=["temperature"]),
    "an extra field": lambda d: d.update(extra=1),
    "a missing field": lambda d: d.pop("state"),
    "an extra setting": lambda d: d["params"].update(shell="rm"),
    "a missing setting": lambda d: d["params"].pop("bins"),
    "a wrong setting": lambda d: d["params"].update(objective="magic"),
    "an unknown task": lambda d: d["params"].update(task="regression"),
    "an extra state": lambda d: d["state"].update(_log_proba=1),
    "a missing state": lambda d: d["state"].pop("temperature_"),
    "a state of the wrong size": lambda d: d["state"].update(temperature_=[1.0, 2.0]),
    "a state that is text": lambda d: d["state"].update(temperature_="hot"),
    "a state that is null": lambda d: d["state"].update(temperature_=None),
    "a ragged state": lambda d: d["state"].update(temperature_=[[1.0], [2.0, 3.0]]),
    "a truth value among numbers": lambda d: d["state"].update(temperature_=[True]),
    "a zero temperature": lambda d: d["state"].update(temperature_=0.0),
    "a negative temperature": lambda d: d["state"].update(temperature_=-2.0),
    "no classes": lambda d: d.update(n_classes=0),
    "too many classes": lambda d: d.update(n_classes=10**12),
    "classes as a float": lambda d: d.update(n_classes=4.0),
    "state as a list": lambda d: d.update(state=[]),
    "diagnostics without a field": lambda d: d["diagnostics"].pop("n"),
    "diagnostics of the wrong kind": lambda d: d["diagnostics"].update(iterations="many"),
    "counts that are not whole": lambda d: d["diagnostics"].update(n_per_class=[0.5]),
    "warnings that are not text": lambda d: d["diagnostics"].update(warnings=[1]),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_documents_are_refused(saved, change):
    rewrite(saved, change)
    with pytest.raises(FileFormatError, match=r"cal\.json"):
        load(saved)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{",
        '{"format": NaN}',
        '{"format": "a", "format": "b"}',
        "[" * 100_000,
        "9" * 10_000,
    ],
)
def test_text_that_is_no_calibrator_is_refused(tmp_path, text):
    path = tmp_path / "cal.json"
    path.write_text(text)
    with pytest.raises(FileFormatError):
        load(path)


def test_numbers_that_are_not_finite_are_refused(saved):
    text = saved.read_text()
    value = json.loads(text)["state"]["temperature_"]
    for bad in ("NaN", "1e999", "-Infinity"):
        saved.write_text(text.replace(repr(value), bad))
        with pytest.raises(FileFormatError):
            load(saved)


def test_columns_are_saved_without_their_padding(tmp_path, calibrated_data):
    path = tmp_path / "cal.json"
    z, y = calibrated_data(300, 4)
    fitted = VennAbers().fit(z, y)
    fitted.save(path)
    saved = json.loads(path.read_text())["state"]
    size = fitted.edges_.shape[1]
    for column, edges in zip(saved["edges_"][1:], fitted.edges_[1:]):
        assert len(column) == len(np.unique(edges)) < size
        np.testing.assert_array_equal(edges[len(column) :], column[-1])
    np.testing.assert_array_equal(load(path).predict_proba(z), fitted.predict_proba(z))

    # As written before: every column with its padding.
    rewrite(path, lambda d: d["state"].update(edges_=fitted.edges_.tolist()))
    np.testing.assert_array_equal(load(path).edges_, fitted.edges_)


@pytest.mark.filterwarnings("ignore::focalcal.errors.FitWarning")
@pytest.mark.parametrize("method", ["histogram", "bbq", "isotonic", "venn-abers", "spline"])
def test_columns_without_edges_are_saved(tmp_path, method):
    z, y = np.ones((60, 3)), np.arange(60) % 3
    fitted = make(method).fit(z, y)
    fitted.save(tmp_path / "cal.json")
    again = load(tmp_path / "cal.json").predict_proba(z)
    np.testing.assert_array_equal(again, fitted.predict_proba(z))


def test_columns_too_long_or_too_many_are_refused(tmp_path, calibrated_data, monkeypatch):
    path = tmp_path / "cal.json"
    IsotonicCalibration().fit(*calibrated_data(300, 4)).save(path)
    monkeypatch.setattr(persistence, "MAX_NUMBERS", 10)
    with pytest.raises(FileFormatError, match="expected up to 10 numbers"):
        load(path)
    monkeypatch.undo()
    rewrite(path, lambda d: d["state"]["edges_"][1].extend([1.0] * 100))
    with pytest.raises(FileFormatError, match="consistent isotonic calibrator"):
        load(path)


def test_binary_and_missing_files_are_refused(tmp_path):
    (tmp_path / "cal.json").write_bytes(b"\x80\x04\x95pickle")
    for path in (tmp_path / "cal.json", tmp_path / "none.json", tmp_path):
        with pytest.raises(FileFormatError, match="expected a calibrator file"):
            load(path)


def test_nan_is_not_saved(tmp_path, calibrated_data):
    fitted = TemperatureScaling().fit(*calibrated_data(100, 3))
    fitted.temperature_ = float("nan")
    with pytest.raises(InputError, match="NaN"):
        fitted.save(tmp_path / "cal.json")
    assert not (tmp_path / "cal.json").exists()


def test_settings_json_cannot_hold_are_refused(tmp_path, calibrated_data):
    fitted = TemperatureScaling().fit(*calibrated_data(100, 3))
    fitted.set_params(bins=1j)
    with pytest.raises(InputError, match="JSON"):
        fitted.save(tmp_path / "cal.json")


def test_infinite_pieces_are_refused(tmp_path, calibrated_data):
    """Far from the logits that are tried on loading, they gave probabilities of NaN."""
    path = tmp_path / "cal.json"
    IsotonicCalibration().fit(*calibrated_data(300, 4)).save(path)
    rewrite(path, lambda d: d["state"]["pieces_"][0][-1].__setitem__(1, "inf"))
    with pytest.raises(FileFormatError, match="finite numbers in pieces_"):
        load(path)
