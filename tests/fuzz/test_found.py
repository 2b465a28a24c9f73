"""What fuzzing found, kept: each of these once ended in a traceback or in NaN."""

from __future__ import annotations

import json

import numpy as np
import pytest

from focalcal import calibrators
from focalcal.calibrators.persistence import to_dict
from focalcal.errors import FileFormatError, InputError


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
