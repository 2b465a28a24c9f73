"""The increasing spline: its identities, and its likelihood against a general optimiser."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.interpolate import BSpline, PPoly
from scipy.special import expit

from focalcal.calibrators import PlattScaling, SplineCalibration
from focalcal.calibrators._columns import Column, cubic_pieces, pack, piecewise, with_tails
from focalcal.calibrators.spline import _fit_spline, _padded
from focalcal.errors import FitWarning, InputError


@pytest.fixture(scope="module")
def curved():
    """Log-odds whose true map is strongly bent: f(s) = 4·tanh(s/2)."""
    rng = np.random.default_rng(1)
    s = rng.normal(scale=2, size=5000)
    return s, (rng.random(5000) < expit(4 * np.tanh(s / 2))).astype(int)


def test_spline_finds_a_bent_map_that_platt_cannot(curved):
    s, y = curved
    truth = expit(4 * np.tanh(s / 2))
    spline = SplineCalibration().fit(s, y)
    platt = PlattScaling().fit(s, y)
    error = np.mean(np.abs(spline.predict_proba(s)[:, 1] - truth))
    assert error < 0.015
    assert error < 0.5 * np.mean(np.abs(platt.predict_proba(s)[:, 1] - truth))


def test_spline_increases_and_has_straight_tails(curved):
    calibrator = SplineCalibration(n_knots=9, shrinkage=0.0).fit(*curved)
    grid = np.linspace(-50, 50, 5001)
    log_p = calibrator.predict_log_proba(grid)
    t = log_p[:, 1] - log_p[:, 0]
    assert np.diff(t).min() >= 0
    np.testing.assert_allclose(np.diff(t[:500], 2), 0, atol=1e-9)
    np.testing.assert_allclose(np.diff(t[-500:], 2), 0, atol=1e-9)


def test_strong_shrinkage_leaves_the_straight_line(curved):
    s, y = curved
    line = PlattScaling().fit(s, y)  # its smoothed labels move it by about 1/n
    spline = SplineCalibration(shrinkage=1e9).fit(s, y)
    np.testing.assert_allclose(spline.predict_proba(s), line.predict_proba(s), atol=2e-3)


def test_pieces_equal_the_fitted_b_spline(curved):
    # Independent: the basis matrix of scipy times β, not the polynomial pieces we keep.
    s, y = curved
    knots = np.array([-3.0, -1.0, 0.5, 2.0])
    column = Column(s, y.astype(float), np.ones(len(s)), 0.5)
    beta, fit = _fit_spline(s, column, knots, 1.0)
    assert fit.converged
    assert len(beta) == len(_padded(knots)) - 4
    spline = BSpline(_padded(knots), beta, 3)
    edges, pieces = cubic_pieces(PPoly.from_spline(spline))
    inside, grid = np.linspace(-3, 2, 301), np.linspace(-6, 6, 301)
    design = BSpline.design_matrix(inside, _padded(knots), 3).toarray()
    for x, expected in ((inside, design @ beta), (grid, with_tails(spline, knots, grid))):
        got = piecewise(x[:, None], *pack([edges], [pieces]))[:, 0]
        np.testing.assert_allclose(got, expected, atol=1e-9)


def test_greville_points_give_the_identity():
    knots = np.array([-2.0, 0.0, 1.0, 5.0])
    padded = _padded(knots)
    greville = np.array([padded[j + 1 : j + 4].mean() for j in range(len(padded) - 4)])
    grid = np.linspace(-9, 9, 101)
    found = with_tails(BSpline(padded, greville, 3), knots, grid)
    np.testing.assert_allclose(found, grid, atol=1e-9)


def test_constant_scores_and_reversed_scores_fall_back_to_a_line(curved):
    s, y = curved
    hits, weights = np.arange(40) % 4 == 0, np.full(40, 1e3)
    with pytest.warns(FitWarning, match="slopes are zero"):
        constant = SplineCalibration().fit(np.full(40, 0.7), hits, sample_weight=weights)
    np.testing.assert_allclose(constant.predict_proba(np.array([0.7]))[0, 1], 0.25, atol=1e-3)
    with pytest.warns(FitWarning, match="slopes are zero"):
        backwards = SplineCalibration().fit(-s, y)
    p = backwards.predict_proba(s)[:, 1]
    np.testing.assert_allclose(p, y.mean(), atol=1e-5)  # the best increasing map is constant


@pytest.mark.parametrize("settings", [{"n_knots": 1}, {"n_knots": 2.5}, {"shrinkage": -1.0}])
def test_settings_that_make_no_sense_are_refused(settings, curved):
    with pytest.raises(InputError, match="expected a"):
        SplineCalibration(**settings).fit(*curved)
