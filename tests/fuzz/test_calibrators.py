"""Every calibrator's fit on arbitrary arrays: probabilities or a FocalcalError, nothing else."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from focalcal.calibrators import METHODS, make
from focalcal.errors import FocalcalError

from .conftest import cases, count

SPECIAL = [0.0, -0.0, 1.0, -1.0, 1e4, -1e4, 1e-300, 1e30, -1e30, 1e300, -1.7e308, 5e-324]
FINITE = st.floats(-30, 30) | st.floats(allow_nan=False, allow_infinity=False)
ANY = FINITE | st.sampled_from(SPECIAL) | st.sampled_from([np.nan, np.inf, -np.inf])


@st.composite
def problems(draw):
    """Logits (N, K), (N, 1) or (N,) and labels: usable, degenerate or wrong."""
    n, k = draw(st.integers(1, 24)), draw(st.integers(1, 4))
    dtype = draw(st.sampled_from([np.float32, np.float64, np.float16]))
    limit = float(np.finfo(dtype).max)
    if draw(st.integers(0, 3)) == 0:
        entries = ANY
    else:
        entries = draw(
            st.sampled_from(
                [
                    st.floats(-30, 30),
                    st.sampled_from([0.0, 1.0, -2.0]),
                    st.sampled_from(SPECIAL),
                    st.floats(-limit, limit),
                ]
            )
        )
    values = draw(hnp.arrays(np.float64, (n, k), elements=entries, fill=st.nothing()))
    with np.errstate(over="ignore"):
        logits = values.astype(dtype)
    top = max(k, 2) - 1
    high = draw(st.sampled_from([top, top, top, top, 0, top + 1]))
    low = draw(st.sampled_from([0, 0, 0, 0, 0, 0, -1]))
    labels = draw(hnp.arrays(np.int64, n, elements=st.integers(low, high), fill=st.nothing()))
    return (logits[:, 0] if k == 1 and draw(st.booleans()) else logits), labels


@pytest.mark.parametrize("method", METHODS)
def test_fit_on_anything(method):
    share = 0.4 / len(METHODS)
    keeps = METHODS[method].preserves_accuracy

    @cases(share)
    @given(problems(), st.booleans())
    def run(problem, weighted: bool) -> None:
        logits, labels = problem
        weights = np.linspace(0, 2, len(labels)) if weighted and len(labels) > 1 else None
        name = f"fit of {method}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                fitted = make(method).fit(logits, labels, sample_weight=weights)
                probs = fitted.predict_proba(logits)
            except FocalcalError:
                count(name, "refused")
                return
        count(name, "fitted")
        k = 2 if logits.ndim == 1 or logits.shape[1] == 1 else logits.shape[1]
        assert np.isfinite(logits).all(), "fitted to logits that are not finite"
        assert labels.min() >= 0
        assert labels.max() < k
        assert probs.shape == (len(labels), k)
        assert np.isfinite(probs).all(), probs
        assert (probs >= 0).all()
        tolerance = 1e-4 if probs.dtype == np.float32 else 1e-6
        assert np.abs(probs.sum(axis=1) - 1).max() <= tolerance, probs
        if keeps and logits.ndim == 2 and k > 2:
            at = logits.argmax(axis=1)
            assert (probs[np.arange(len(at)), at] >= probs.max(axis=1) * (1 - tolerance)).all()
        d = fitted.diagnostics_
        if method == "temperature" and np.isfinite(d.before):
            assert d.after <= d.before + 1e-5 * (1 + abs(d.before)), d

    run()
