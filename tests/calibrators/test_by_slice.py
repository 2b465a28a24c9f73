"""Temperatures by slice: only where held-out samples say that they help."""

from __future__ import annotations

import dataclasses
import doctest
import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from focalcal._arrays import softmax
from focalcal.calibrators import TemperatureScaling, by_slice, load
from focalcal.calibrators.by_slice import fit_by
from focalcal.cli import app
from focalcal.errors import FitWarning, InputError, InputWarning
from focalcal.metrics import nll
from focalcal.predictions import Predictions


def draw(rng, n, slope_of_pt):
    country = rng.choice(["DE", "FI/x", "PT"], n)
    z = 2 * rng.normal(size=(n, 3))
    slope = np.where(country == "PT", slope_of_pt, 1.0)[:, None]
    return z, np.argmax(slope * z + rng.gumbel(size=z.shape), axis=1), country


def test_examples():
    assert doctest.testmod(by_slice).failed == 0


def test_slices_that_do_not_differ_get_one_calibrator(rng):
    found = fit_by(*draw(rng, 1500, 1.0))
    assert found.slices == {}
    assert found.gain <= found.error


def test_slices_that_differ_are_better_on_new_samples(rng):
    found = fit_by(*draw(rng, 3000, 0.4))
    assert found.slices["PT"].temperature_ > 1.8 > found.slices["DE"].temperature_
    z, y, country = draw(rng, 5000, 0.4)
    rows = country == "PT"
    own = nll(y[rows], found.slices["PT"].predict_proba(z[rows]))
    assert own < nll(y[rows], found.common.predict_proba(z[rows]))


def test_temperatures_are_shrunk_towards_the_common_one(rng):
    z, y, country = draw(rng, 900, 0.5)
    found = fit_by(z, y, country)
    rows = country == "PT"
    alone = TemperatureScaling().fit(z[rows], y[rows]).temperature_
    assert found.common.temperature_ < found.slices["PT"].temperature_ < alone


def test_small_slices_keep_the_common_calibrator(rng):
    z, y, country = draw(rng, 1500, 0.4)
    country[:50] = "XX"
    assert "XX" not in fit_by(z, y, country).slices


def test_the_column_is_checked(rng):
    z, y, country = draw(rng, 50, 1.0)
    with pytest.raises(InputError, match=r"shape \(50,\)"):
        fit_by(z, y, country[:9])


def run(*arguments):
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def test_calibrators_of_slices_that_a_later_fit_leaves_behind_are_reported(rng, tmp_path):
    z, y, country = draw(rng, 3000, 0.4)
    Predictions(logits=z, labels=y, extra={"country": country}).save(tmp_path / "val.npz")
    fit = ("fit", tmp_path / "val.npz", "-o", tmp_path / "cal.json")
    result = CliRunner().invoke(app, [*map(str, fit)])
    assert "earlier fit" not in result.output
    run(*fit, "--by", "country")
    result = CliRunner().invoke(app, [*map(str, fit)])
    assert result.exit_code == 0
    assert "such as cal.country=DE.json" in " ".join(result.output.split())


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_logits_worse_than_chance_have_no_slices_and_warn(rng, tmp_path):
    z, _, country = draw(rng, 1000, 1.0)
    Predictions(logits=z, labels=z.argmin(axis=1), extra={"country": country}).save(
        tmp_path / "val.npz"
    )
    with pytest.warns(FitWarning, match="worse than chance"):
        found = fit_by(z, z.argmin(axis=1), country)
    assert (found.common.temperature_, found.slices) == (np.inf, {})
    assert (found.gain, found.error) == (0, 0)
    out = run("fit", tmp_path / "val.npz", "--by", "country", "-o", tmp_path / "cal.json")
    assert "warning: the logits are worse than chance" in " ".join(out.split())


def test_the_command_line_fits_and_applies_by_slice(rng, tmp_path):
    z, y, country = draw(rng, 3000, 0.4)
    Predictions(logits=z, labels=y, extra={"country": country}).save(tmp_path / "val.npz")
    cal, out = tmp_path / "cal.json", tmp_path / "out.npz"
    assert run("fit", tmp_path / "val.npz", "--by", "country", "-o", cal).startswith(
        "A temperature for each country helps"
    )
    record = json.loads(run("fit", tmp_path / "val.npz", "--by", "country", "-o", cal, "--json"))
    assert set(record["slices"]) == {"DE", "FI/x", "PT"}
    assert (tmp_path / "cal.country=FI%2Fx.json").is_file()
    run("apply", cal, tmp_path / "val.npz", "-o", out, "--by", "country")
    probs = Predictions.load(out).probs
    for value in ("PT", "FI/x"):
        own = by_slice.load_slices(cal, "country")[value]
        rows = country == value
        np.testing.assert_allclose(probs[rows], own.predict_proba(z[rows]))
    # Fitted again where nothing differs, the files of the slices are gone.
    z, y, country = draw(rng, 1500, 1.0)
    Predictions(logits=z, labels=y, extra={"country": country}).save(tmp_path / "same.npz")
    out = run("fit", tmp_path / "same.npz", "--by", "country", "-o", cal)
    assert out.startswith("One calibrator for all")
    assert [f.name for f in tmp_path.glob("cal*.json")] == ["cal.json"]
    assert load(cal).temperature_ == pytest.approx(1, abs=0.2)
    # The same command as every week applies the common one.
    run("apply", cal, tmp_path / "same.npz", "-o", tmp_path / "x.npz", "--by", "country")
    np.testing.assert_allclose(
        Predictions.load(tmp_path / "x.npz").probs, load(cal).predict_proba(z)
    )


def test_probabilities_of_zero_get_a_floor_by_slice_too(rng, tmp_path):
    z, y, country = draw(rng, 3000, 0.4)
    probs = np.where(softmax(z) < 0.01, 0.0, softmax(z))
    probs /= probs.sum(axis=1, keepdims=True)
    Predictions(probs=probs, labels=y, extra={"country": country}).save(tmp_path / "val.csv")
    cal, out = tmp_path / "cal.json", tmp_path / "out.csv"
    run("fit", tmp_path / "val.csv", "--by", "country", "-o", cal)
    own = by_slice.load_slices(cal, "country")
    assert own["PT"].floor_ == load(cal).floor_ > 0
    run("apply", cal, tmp_path / "val.csv", "-o", out, "--by", "country")
    assert np.isfinite(nll(y, Predictions.load(out).probs))


def test_several_labels_per_sample_have_no_slices(tmp_path):
    labels = np.tile([[1, 1, 0], [0, 1, 0]], (3, 1))
    many = Predictions(logits=np.zeros((6, 3)), labels=labels, task="multilabel")
    many.save(tmp_path / "many.npz")
    options = ["--by", "labels", "-o", str(tmp_path / "cal.json")]
    result = CliRunner().invoke(app, ["fit", str(tmp_path / "many.npz"), *options])
    assert "one label per sample with --by, got a multi-label file" in str(result.exception)


def test_slices_that_a_batch_lacks_and_numbers_of_other_types(rng, tmp_path):
    z, y, country = draw(rng, 3000, 0.4)
    store = np.unique(country, return_inverse=True)[1]
    cal, rows = tmp_path / "cal.json", store == 1
    Predictions(logits=z, labels=y, extra={"store": store}).save(tmp_path / "val.csv")
    run("fit", tmp_path / "val.csv", "--by", "store", "-o", cal)
    own = by_slice.load_slices(cal, "store")
    assert set(own) == {"0", "1", "2"}
    batch = Predictions(logits=z, labels=y, extra={"store": store}).take(np.flatnonzero(rows))
    for ending in ("csv", "npz", "parquet"):
        batch.save(tmp_path / f"batch.{ending}")
        out = tmp_path / f"out.{ending}"
        run("apply", cal, tmp_path / f"batch.{ending}", "-o", out, "--by", "store")
        expected = own["1"].predict_proba(z[rows])
        np.testing.assert_allclose(Predictions.load(out).probs, expected)
    assert by_slice.slice_names([1.0, 2.5, np.nan]).tolist() == ["1", "2.5", "nan"]
    assert by_slice.slice_names(np.array([0.1, 3], np.float32)).tolist() == ["0.1", "3"]


@pytest.mark.parametrize("extra", [["--method", "vector"], ["--engine", "stream"]])
def test_only_temperatures_in_memory(tmp_path, extra):
    arguments = ["fit", "val.npz", "--by", "country", "-o", str(tmp_path / "c.json"), *extra]
    result = CliRunner().invoke(app, arguments)
    assert "--by with the temperature method" in str(result.exception)


def test_apply_by_slice_needs_no_engine(rng, tmp_path):
    z, y, country = draw(rng, 1500, 0.4)
    by_slice.save_slices(fit_by(z, y, country), tmp_path / "cal.json", "country")
    arguments = ["x", "-o", "y", "--by", "country", "--engine", "dask"]
    result = CliRunner().invoke(app, ["apply", str(tmp_path / "cal.json"), *arguments])
    assert "without an engine" in str(result.exception)


@pytest.mark.parametrize("name", ["parts [1]", "parts/*.parquet"])
def test_several_parquet_files_are_fitted_and_calibrated_by_slice_too(rng, tmp_path, name):
    z, y, country = draw(rng, 3000, 0.4)
    whole = Predictions(logits=z, labels=y, extra={"country": country})
    cal, parts = tmp_path / "cal.json", tmp_path / name
    folder = tmp_path / name.split("/")[0]
    folder.mkdir()
    for i in range(2):
        part = whole.take(np.arange(1500 * i, 1500 * i + 1500))
        part.save(folder / f"{i}.parquet")
    run("fit", parts, "--by", "country", "-o", cal)
    own = by_slice.load_slices(cal, "country")
    assert own.keys() == fit_by(z, y, country).slices.keys()
    run("apply", cal, parts, "--by", "country", "-o", tmp_path / "out")
    probs = [Predictions.load(tmp_path / f"out/{i}.parquet").probs for i in range(2)]
    rows = country == "PT"
    np.testing.assert_allclose(np.concatenate(probs)[rows], own["PT"].predict_proba(z[rows]))


def test_labels_may_be_texts():
    rng = np.random.default_rng(0)
    z = 2 * rng.normal(size=(2000, 3))
    y = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
    half = np.repeat(["a", "b"], 1000)
    z[:1000] *= 3
    with pytest.warns(InputWarning, match="alphabetical"):
        named = fit_by(z, np.array(["ant", "bee", "cat"])[y], half)
    expected = fit_by(z, y, half)
    assert named.common.class_names_ == named.slices["a"].class_names_ == ("ant", "bee", "cat")
    assert [c.temperature_ for c in named.slices.values()] == [
        c.temperature_ for c in expected.slices.values()
    ]


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_a_missing_number_or_other_units_of_time_change_no_slice(rng, tmp_path, ending):
    z, y, country = draw(rng, 3000, 0.4)
    store = np.unique(country, return_inverse=True)[1].astype(float)
    day = np.datetime64("2026-05-01", "us") + store.astype("timedelta64[D]")
    frame = pd.DataFrame({f"logits_{j}": z[:, j] for j in range(3)})
    frame = frame.assign(label=y, store=store, day=day)
    frame.to_parquet(tmp_path / "val.parquet")
    batch = frame.assign(day=day.astype("datetime64[ns]"))
    batch.loc[0, "store"], batch.loc[1, "day"] = None, None
    path, out = tmp_path / f"batch.{ending}", tmp_path / "out.npz"
    batch.to_parquet(path) if ending == "parquet" else batch.to_csv(path, index=False)
    for column in ("store", "day"):
        run("fit", tmp_path / "val.parquet", "--by", column, "-o", tmp_path / "cal.json")
        own = by_slice.load_slices(tmp_path / "cal.json", column)
        assert set(own) == {str(value).removesuffix(".0")[:10] for value in set(frame[column])}
        run("apply", tmp_path / "cal.json", path, "-o", out, "--by", column)
        values = by_slice.slice_names(frame[column].to_numpy())
        expected = [own[value].predict_proba(z[[i]])[0] for i, value in enumerate(values)]
        np.testing.assert_allclose(Predictions.load(out).probs[2:], expected[2:])


def test_values_too_long_for_file_names_change_no_file(rng, tmp_path):
    z, y, country = draw(rng, 3000, 0.4)
    found = fit_by(z, y, country)
    before = by_slice.save_slices(found, tmp_path / "cal.json", "country")
    long = {**found.slices, "東" * 23: found.common}
    with pytest.raises(InputError, match="country that fit into file names, got '東東"):
        by_slice.save_slices(
            dataclasses.replace(found, slices=long), tmp_path / "cal.json", "country"
        )
    assert sorted(tmp_path.iterdir()) == sorted(before)
