"""Slices: each is an evaluation of its own rows, and the tests are corrected for their number."""

from __future__ import annotations

import doctest
import json
import math

import numpy as np
import pytest

from focalcal.errors import InputError, InputWarning
from focalcal.metrics import CalibrationStats, evaluate, evaluate_by, slicing
from focalcal.metrics.sample import slice_name
from focalcal.metrics.slicing import cut, edges_of, holm, named_rows, of_statistics


def draw(rng, n, off=0.0):
    p = rng.uniform(0.5, 1, n)
    return (rng.random(n) < p - off).astype(int), p


@pytest.fixture
def data(rng):
    country = np.repeat(["DE", "FI", "SE", "XX"], [500, 400, 300, 20])
    y, p = draw(rng, 1220, off=np.where(country == "SE", 0.15, 0.0))
    return y, p, country


def test_examples():
    assert doctest.testmod(slicing).failed == 0


def test_each_slice_is_evaluated_on_its_rows(data):
    y, p, country = data
    found = evaluate_by(y, p, by={"country": country}, resamples=50)
    assert [s.n for s in found.slices] == [500, 400, 300, 20]
    alone = evaluate(y[country == "FI"], p[country == "FI"], resamples=50, level=1 - 0.05 / 3)
    assert found["country=FI"].metrics.keys() == alone.metrics.keys()
    for name, estimate in alone.metrics.items():
        got = found["country=FI"].metrics[name]
        for field in ("value", "low", "high"):
            assert getattr(got, field) == pytest.approx(getattr(estimate, field), nan_ok=True)
    json.dumps(found.to_dict(), allow_nan=False)


def test_the_worst_slice_is_found_and_small_ones_are_named(data):
    y, p, country = data
    found = evaluate_by(y, p, by={"country": country}, resamples=200)
    assert found.worst.name == "country=SE"
    small = found["country=XX"]
    assert not small.enough
    assert math.isnan(small.p_value)


def test_without_miscalibration_there_is_no_worst_slice(rng):
    y, p = draw(rng, 900)
    assert evaluate_by(y, p, by={"g": np.arange(900) % 3}, resamples=100).worst is None


def test_holm_against_its_definition():
    slices = [
        slicing.Slice(str(i), 100, {"x": None}, 0.1, 0.0, p)
        for i, p in enumerate([0.04, 0.001, 0.03, 0.5])
    ]
    got = [s.p_value for s in holm([*slices, slicing.Slice("small", 3)])]
    assert got[:4] == pytest.approx([0.09, 0.004, 0.09, 0.5])
    assert math.isnan(got[4])


def test_false_alarms_among_many_slices_keep_the_level():
    """50 data sets of 5 calibrated slices: 10 % of them may name one, at level 90 %."""
    rng = np.random.default_rng(6)
    runs, named = 50, 0
    for _ in range(runs):
        y, p = draw(rng, 500)
        by = {"g": np.arange(500) % 5}
        named += evaluate_by(y, p, by=by, resamples=2, level=0.9).worst is not None
    assert named / runs <= 0.24


def test_merged_statistics_say_the_same(data):
    y, p, country = data
    stats = {
        name: CalibrationStats(1).update(y[rows], p[rows])
        for name, rows in named_rows({"country": country}, len(y))
    }
    whole, merged = evaluate_by(y, p, by={"country": country}, resamples=1000), of_statistics(stats)
    assert merged.worst.name == whole.worst.name
    for a, b in zip(whole.slices, merged.slices):
        assert (a.name, a.n) == (b.name, b.n)
        if a.enough:
            assert b.ece == pytest.approx(a.ece)
            assert b.expected_ece == pytest.approx(a.expected_ece, rel=0.05)
            assert b.p_value == pytest.approx(a.p_value, abs=0.05)


def test_one_error_where_few_are_expected_is_no_alarm_out_of_core(rng):
    """0.06 errors are expected per slice; in the normal limit, a single one is at 4 σ."""
    alarms = 0
    for _ in range(30):
        c = 1 - rng.exponential(0.0003, (10, 200))
        y = (rng.random(c.shape) < c).astype(int)
        stats = {str(j): CalibrationStats(1).update(y[j], c[j]) for j in range(10)}
        alarms += of_statistics(stats).worst is not None
    assert alarms <= 3  # 5 % of 30, and twice its standard deviation


def test_numbers_are_cut_into_parts_of_equal_mass(rng):
    age = rng.uniform(18, 80, 1000)
    parts = cut(age, edges_of(age))
    names, counts = np.unique(parts, return_counts=True)
    assert len(names) == 5
    assert counts.min() >= 199
    order = [age[parts == name].max() for name in names]
    assert order == sorted(order)
    assert edges_of(np.array([1, 2, 2])) is None


def test_several_columns_are_sliced_one_by_one(data):
    y, p, country = data
    by = {"country": country, "half": np.arange(len(y)) % 2}
    found = evaluate_by(y, p, by=by, resamples=5)
    assert [s.name for s in found.slices][-2:] == ["half=0", "half=1"]
    plain = evaluate_by(y, p, by=country, resamples=5)
    assert [s.name for s in plain.slices] == ["DE", "FI", "SE", "XX"]


def test_errors_say_what_is_wrong(data):
    y, p, country = data
    with pytest.raises(InputError, match="level between"):
        evaluate_by(y, p, by=country, level=0)
    with pytest.raises(InputError, match=r"shape \(1220,\)"):
        evaluate_by(y, p, by={"c": country[:5]})
    with pytest.raises(InputError, match="at least one column"):
        evaluate_by(y, p, by={})
    with pytest.raises(InputError, match="least"):
        evaluate_by(y, p, by=country, least=0)


def test_unknown_and_infinite_numbers_of_a_column(draw, rng):
    """NaN is a slice of its own and infinity lies in the last part; no part is named nan – nan."""
    y, p = draw(rng, 400, 3)
    column = rng.normal(size=400)
    column[:60], column[60] = np.nan, np.inf
    found = evaluate_by(y, p, by={"x": column}, least=10, resamples=20)
    sizes = {s.name: s.n for s in found.slices}
    assert sizes.pop("x=nan") == 60
    assert sum(sizes.values()) == 340
    assert len(sizes) == 5
    assert not any("nan" in name for name in sizes)


def test_texts_are_looked_up_among_all_samples(draw, rng):
    """One slice lacks two of the classes; its labels still mean the same columns."""
    y, p = draw(rng, 300, 4)
    names = np.array(["ant", "bee", "cow", "dog"])
    few = np.where(y >= 2, "late", "all")
    with pytest.warns(InputWarning, match="alphabetical") as said:
        texts = evaluate_by(names[y], p, by=few, least=10, resamples=20)
    assert len(said) == 1
    numbers = evaluate_by(y, p, by=few, least=10, resamples=20)
    for a, b in zip(texts.slices, numbers.slices):
        assert a.metrics["nll"] == b.metrics["nll"]


def test_numbers_with_missing_ones_are_cut(rng):
    """A column of a file in which some numbers are missing holds Python's objects."""
    age = rng.uniform(18, 80, 1000)
    whole = cut(age, edges_of(age))
    some = age.astype(object)
    some[:3] = None
    assert len(np.unique(cut(some, edges_of(some)))) == 6
    parts = cut(some, edges_of(age))  # edges from a sample without a missing number
    np.testing.assert_array_equal(parts[3:], whole[3:])
    assert set(parts[:3]) == {"nan"}
    assert edges_of(np.array([None, "x"] * 20, dtype=object)) is None
    weeks = np.array([10, None, 2, 10], dtype=object)
    rows = named_rows({"week": weeks}, 4)
    assert [(name, r.tolist()) for name, r in rows] == [
        ("week=2", [2]),
        ("week=10", [0, 3]),
        ("week=None", [1]),
    ]
    assert [name for name, _ in named_rows({"": np.array(["b", None, "a"], object)}, 3)] == [
        "None",
        "a",
        "b",
    ]


def test_slices_that_are_all_too_small_are_said():
    found = evaluate_by([0, 1, 0], [0.1, 0.8, 0.3], by={"g": ["a", "b", "a"]}, resamples=20)
    assert found.verdict == "No slice has the 100 samples that a test needs."


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (np.float32(0.1), "0.1"),
        (-0.0, "0"),
        (2.0, "2"),
        (True, "True"),
        (None, "None"),
        (math.nan, "nan"),
        (np.datetime64("2026-05-01"), "2026-05-01"),
        (np.datetime64("2026-05-01T00:00:00.000000000"), "2026-05-01"),
        (np.datetime64("2026-05-01T06:30:00.000"), "2026-05-01 06:30:00"),
        (np.datetime64("2026-05-01T06:30:00.250000"), "2026-05-01 06:30:00.25"),
        (np.datetime64("NaT"), "NaT"),
    ],
)
def test_names_of_slices_do_not_depend_on_the_type_of_the_column(value, name):
    """Times are called as pandas writes them to text files."""
    assert slice_name(value) == name
    column = np.array([value] * 2 + [1], dtype=object)
    assert name in [called for called, _ in named_rows({"": column}, 3)]
