"""`evaluate --by`: in memory, out of core and on a cluster."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from focalcal.cli import app
from focalcal.predictions import Predictions

runner = CliRunner()


@pytest.fixture
def folder(tmp_path, rng):
    n = 1500
    z = 2 * rng.normal(size=(n, 3))
    country = np.array(["DE", "FI", "SE"])[np.arange(n) % 3]
    country[:7] = "XX"
    honesty = np.where(country == "SE", 0.5, 1.0)[:, None]
    y = np.argmax(honesty * z + rng.gumbel(size=z.shape), axis=1)
    extra = {"country": country, "age": rng.uniform(18, 80, n)}
    whole = Predictions(logits=z, labels=y, extra=extra)
    whole.save(tmp_path / "all.npz")
    (tmp_path / "parts").mkdir()
    for i in range(3):
        whole.take(np.arange(500 * i, 500 * i + 500)).save(tmp_path / "parts" / f"{i}.parquet")
    return tmp_path


def run(*arguments):
    result = runner.invoke(app, ["evaluate", *map(str, arguments)])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def test_the_worst_slice_is_in_the_first_line_and_it_fits(folder):
    out = run(folder / "all.npz", "--by", "country", "--resamples", 50)
    assert out.startswith("Worst slice: country=SE, ECE ")
    assert "Too few samples (under 100): country=XX (7)." in out
    assert all(len(line) <= 80 for line in out.splitlines())


@pytest.mark.parametrize("engine", ["stream", "dask"])
def test_out_of_core_says_the_same(folder, engine):
    if engine == "dask":
        pytest.importorskip("distributed", reason="dask is not installed")
    here = json.loads(
        run(folder / "all.npz", "--by", "country", "--by", "age", "--resamples", 50, "--json")
    )
    parts = folder / "parts" / "*.parquet"
    there = json.loads(run(parts, "--by", "country", "--by", "age", "--engine", engine, "--json"))
    assert there["worst"] == here["worst"] == "country=SE"
    a, b = ({s["name"]: s for s in found["slices"]} for found in (here, there))
    for name in ("country=DE", "country=FI", "country=SE"):
        assert b[name]["n"] == a[name]["n"]
        assert b[name]["ece"] == pytest.approx(a[name]["ece"])
    assert sum(name.startswith("age=") for name in b) == 5
    assert sum(s["n"] for name, s in b.items() if name.startswith("age=")) == 1500


def test_calibrated_slices_are_told_apart_by_nothing(folder, rng):
    z = 2 * rng.normal(size=(600, 3))
    y = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
    Predictions(logits=z, labels=y, extra={"g": np.arange(600) % 2}).save(folder / "fine.npz")
    out = run(folder / "fine.npz", "--by", "g", "--resamples", 20)
    assert out.startswith("No slice of 2 is shown to be miscalibrated.")


def test_columns_that_are_missing_are_said(folder):
    for file in ("all.npz", "parts/*.parquet"):
        result = runner.invoke(app, ["evaluate", str(folder / file), "--by", "planet"])
        assert "'planet'" in str(result.exception)
