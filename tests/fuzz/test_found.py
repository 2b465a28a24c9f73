"""What fuzzing found, kept: each of these once ended in a traceback or in NaN."""

from __future__ import annotations

import json

import numpy as np
import pytest

from focalcal import calibrators
from focalcal.calibrators.persistence import to_dict
from focalcal.errors import FileFormatError, FitWarning, InputError
from focalcal.metrics import CalibrationStats
from focalcal.predictions import Predictions
from focalcal.scale import Source


@pytest.fixture
def problem(rng):
    z = rng.normal(size=(60, 3))
    return z, np.argmax(z + rng.gumbel(size=z.shape), axis=1)


@pytest.mark.parametrize("method", calibrators.METHODS)
@pytest.mark.parametrize("mask", [-3.4e38, 1.7e308])
def test_masks_are_refused(problem, method, mask):
    """Squares, differences and products of such logits overflow: the fit ended in NaN."""
    z, y = problem
    z[3, 1] = mask
    with pytest.raises(InputError, match="replace masks of impossible classes"):
        calibrators.make(method).fit(z, y)


def test_masks_are_refused_by_a_fitted_calibrator(problem):
    z, y = problem
    fitted = calibrators.make("temperature").fit(z, y)
    with pytest.raises(InputError, match="expected logits up to 1e\\+35"):
        fitted.predict_proba(np.array([[0.0, 1.0, -1e300]]))


def test_integers_too_large_for_a_float(problem, tmp_path):
    document = to_dict(calibrators.make("structured-matrix").fit(*problem))
    document["state"]["bias_"][2] = 10**400
    (tmp_path / "c.json").write_text(json.dumps(document))
    with pytest.raises(FileFormatError, match="expected"):
        calibrators.load(tmp_path / "c.json")


@pytest.mark.filterwarnings("ignore::focalcal.errors.FitWarning")
@pytest.mark.parametrize("method", ["temperature", "dirichlet", "vector", "structured-matrix"])
def test_logits_that_are_all_but_zero(method):
    """1/T was infinite, and infinity times zero NaN."""
    z = np.full((30, 4), 5e-324)
    z[::2, 1] = 0.0
    probs = calibrators.make(method).fit(z, np.arange(30) % 4).predict_proba(z)
    np.testing.assert_allclose(probs.sum(axis=1), 1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("method", ["identity", "temperature", "ensemble-temperature"])
@pytest.mark.filterwarnings("ignore::focalcal.errors.FitWarning")
def test_ties_of_large_logits_share_the_probability(method, dtype):
    """ln 2 was lost in 65500 + ln 2, and two classes had probability one each."""
    for large in (65500.0, 2e16, -2e16):
        z = np.array([[large, large, large - 480]], dtype=dtype).repeat(30, axis=0)
        probs = calibrators.make(method).fit(z, np.arange(30) % 2).predict_proba(z)
        np.testing.assert_allclose(probs.sum(axis=1), 1, rtol=1e-6)


@pytest.mark.filterwarnings("ignore::focalcal.errors.FitWarning")
def test_spline_knots_closer_than_rounding():
    """scipy saw a repeated knot, which has no derivative."""
    s = np.array([9e-298, 10.4, 17.5, -2e-309, 2.6, 19.9, 2.0, 25.5])
    probs = calibrators.make("spline").fit(s, np.arange(8) % 2).predict_proba(s)
    np.testing.assert_allclose(probs.sum(axis=1), 1)


@pytest.mark.filterwarnings("ignore::focalcal.errors.FitWarning")
def test_a_huge_logit_of_no_weight_does_not_hide_the_others():
    """All logits were divided by the largest, and the rest vanished: T became 1e30."""
    z = np.array([[1e30, 0.0], [1.0, -1.0], [2.0, 0.0], [0.0, 1.5]], dtype=np.float32)
    weights = np.array([0.0, 1.0, 1.0, 1.0])
    y = np.array([1, 0, 1, 1])
    found = calibrators.make("temperature").fit(z, y, sample_weight=weights)
    alone = calibrators.make("temperature").fit(z[1:], y[1:])
    assert found.temperature_ == pytest.approx(alone.temperature_, rel=1e-6)


@pytest.mark.filterwarnings("ignore::focalcal.errors.FitWarning")
@pytest.mark.parametrize("method", ["dirichlet", "structured-vector", "temperature"])
@pytest.mark.parametrize(
    ("z", "y", "w"),
    [
        ([-1.3e-08, 1.8e-142], [1, 1], [0.0, 2.0]),
        ([-2.5e-268, -1e30, -1.05e-260, -2.5e-268, -2.5e-268, -2.5e-268], [1, 0, 0, 0, 0, 0], None),
    ],
)
def test_no_temperature_leaves_the_range_of_floats(method, z, y, w):
    """1/T ran past 3e38, and an OverflowError came out."""
    z = np.array(z)[:, None]
    probs = calibrators.make(method).fit(z, np.array(y), sample_weight=w).predict_proba(z)
    np.testing.assert_allclose(probs.sum(axis=1), 1)


@pytest.mark.filterwarnings("ignore::focalcal.errors.FitWarning")
def test_slopes_of_vanishing_features():
    """ln(1 + e^-228) is 1e-100: its coefficient became 1e100, and infinity minus infinity NaN."""
    z = np.array([[-0.0055, 228.4, 1.0, -81.8]], dtype=np.float32)
    probs = calibrators.make("beta").fit(z, np.array([2])).predict_proba(z)
    np.testing.assert_allclose(probs.sum(axis=1), 1, rtol=1e-6)
    s = np.array([-3.6e-155, -1.3e-179, -3.6e-155, -3.6e-155, -3.6e-155])
    probs = calibrators.make("spline").fit(s, np.zeros(5, int)).predict_proba(s)
    np.testing.assert_allclose(probs.sum(axis=1), 1)


@pytest.mark.filterwarnings("ignore::focalcal.errors.FitWarning")
def test_a_line_search_that_leaps(problem):
    z, y = problem
    z = z[:12].astype(np.float32)
    z[3, 0] = -1e30
    fitted = calibrators.make("focal-structured").fit(
        z, y[:12], sample_weight=np.linspace(0, 2, 12)
    )
    np.testing.assert_allclose(fitted.predict_proba(z).sum(axis=1), 1, rtol=1e-5)


def test_parquet_metadata_that_is_no_text(problem, tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    table = pa.table({"logits": [[0.0, 1.0]], "labels": [1]})
    pq.write_table(table.replace_schema_metadata({"focalcal": b"{\xbb}"}), tmp_path / "p.parquet")
    with pytest.raises(FileFormatError, match="the focalcal metadata is not JSON"):
        Predictions.load(tmp_path / "p.parquet")


@pytest.mark.parametrize(
    ("field", "value"),
    [("weight", [0, 9.0]), ("high", [3.0, 0]), ("zero", [0, 2.5]), ("weight", [1.0, 1.0])],
)
def test_statistics_that_contradict_themselves(field, value):
    """An accuracy of 3 and an error of −2 came out."""
    stats = CalibrationStats(2, bins=2).update([0, 1], [[0.9, 0.1], [0.4, 0.6]])
    document = json.loads(stats.to_json())
    document["sums"][field] = value
    with pytest.raises(FileFormatError, match="statistics of one set of samples"):
        CalibrationStats.from_json(json.dumps(document))


@pytest.mark.parametrize(
    ("field", "value"), [("threshold", 10**400), ("n_classes", 10**9), ("bins", 10**12)]
)
def test_settings_of_statistics_are_read_before_anything_is_made(field, value):
    stats = CalibrationStats(2, bins=2).update([0, 1], [[0.9, 0.1], [0.4, 0.6]])
    document = json.loads(stats.to_json())
    with pytest.raises(FileFormatError, match="expected"):
        CalibrationStats.from_json(json.dumps({**document, field: value}))
    document["sums"]["brier"] = 10**400
    with pytest.raises(FileFormatError, match="expected numbers in sums"):
        CalibrationStats.from_json(json.dumps(document))


def test_an_object_in_a_list_of_numbers(problem, tmp_path):
    document = to_dict(calibrators.make("ensemble-temperature").fit(*problem))
    name = next(iter(document["state"]))
    document["state"][name] = [{"a": 1}, {"b": 2}]
    (tmp_path / "c.json").write_text(json.dumps(document))
    with pytest.raises(FileFormatError, match="expected"):
        calibrators.load(tmp_path / "c.json")


def test_parquet_column_names_that_are_no_text(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "p.parquet"
    pq.write_table(pa.table({"logits": [[0.0, 1.0]], "labels": [1]}), path)
    path.write_bytes(path.read_bytes().replace(b"labels", b"lab\xfels"))
    for load in (Predictions.load, Source.open):
        with pytest.raises(FileFormatError, match="parquet"):
            load(path)


@pytest.mark.filterwarnings("ignore::focalcal.errors.FitWarning")
def test_separable_logits_are_never_made_warmer():
    """One logit of 1e29 raised T to 1e25, and the other samples became coin tosses."""
    z = np.array([[0.0, 1e29], [1.5, 0.0], [0.0, 1.5], [0.0, 2.0]])
    found = calibrators.make("temperature").fit(z, np.array([1, 0, 1, 1]))
    assert found.temperature_ <= 1
    assert found.diagnostics_.after <= found.diagnostics_.before


def test_a_leap_in_gamma_ends_at_its_bounds():
    """A line search asked for u = −8341, and exp overflowed."""
    from focalcal.calibrators._focal_affine import GAMMA_BOUNDS, gamma_of

    for u, bound in ((-8341.4, GAMMA_BOUNDS[0]), (8341.4, GAMMA_BOUNDS[1])):
        gamma, slope = gamma_of(u)
        assert gamma == pytest.approx(bound)
        assert slope == pytest.approx(0, abs=1e-30)


def test_a_parabola_of_log_odds_whose_square_overflows():
    """0 · ∞ in float32, where the coefficient of the square is 0."""
    z = np.array([[1e30, 0.0]], np.float32)
    with pytest.warns(FitWarning):
        fitted = calibrators.make("quadratic").fit(z, [0])
    assert fitted.predict_proba(z).tolist() == [[1, 0]]


def test_columns_of_different_lengths_side_by_side(tmp_path):
    np.savez(
        tmp_path / "t.npz", logits_0=np.zeros(6), logits_1=np.zeros(3), labels=np.zeros(6, int)
    )
    with pytest.raises(
        FileFormatError, match="expected 6 numbers in logits_1, as in logits_0, got 3"
    ):
        Predictions.load(tmp_path / "t.npz")
