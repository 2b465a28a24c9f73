"""Every calibrator's fit on arbitrary arrays: probabilities or a FocalcalError, nothing else."""

from __future__ import annotations

import warnings
from random import Random

import numpy as np
import pytest

from focalcal.calibrators import METHODS, make
from focalcal.errors import FocalcalError

from .conftest import ODD, count, run_cases


def problem(random: Random) -> tuple[np.ndarray, np.ndarray]:
    """Logits (N, K), (N, 1) or (N,) and labels: usable, degenerate or wrong."""
    rng = np.random.default_rng(random.getrandbits(63))
    n, k = random.randint(1, 24), random.randint(1, 4)
    dtype = random.choice([np.float32, np.float64, np.float16])
    z = _entries(random, rng, (n, k), float(np.finfo(dtype).max))
    if random.random() < 0.3:  # ties and repeated rows
        z[:, -1] = z[:, 0]
        z[n // 2 :] = z[0]
    if random.random() < 0.3:
        z[rng.integers(n), rng.integers(k)] = random.choice(ODD)
    with np.errstate(over="ignore", invalid="ignore"):
        logits = z.astype(dtype)
    top = max(k, 2) - 1
    high = random.choice([top] * 8 + [0, top + 1])
    labels = rng.integers(random.choice([0] * 12 + [-1]), high + 1, n)
    return (logits[:, 0] if k == 1 and random.random() < 0.5 else logits), labels


def _entries(random: Random, rng: np.random.Generator, shape, limit: float) -> np.ndarray:
    kind = random.randrange(8)
    if kind < 3:
        return rng.normal(scale=10 ** rng.uniform(-2, 2), size=shape)
    if kind == 3:
        return rng.choice([0.0, 1.0, -2.0], shape)
    if kind == 4:
        return rng.choice(ODD[:-3], shape)
    if kind == 5:
        return rng.uniform(-1, 1, shape) * limit
    if kind == 6:  # every decade that floats have
        return rng.choice([-1, 1], shape) * 10.0 ** rng.uniform(-320, 308, shape)
    return rng.integers(0, 256, (*shape, 8), dtype=np.uint8).view(np.float64)[..., 0]


@pytest.mark.parametrize("method", METHODS)
def test_fit_on_anything(method):
    keeps = METHODS[method].preserves_accuracy
    name = f"fit of {method}"

    def case(random: Random) -> None:
        logits, labels = problem(random)
        weighted = len(labels) > 1 and random.random() < 0.5
        weights = np.linspace(0, 2, len(labels)) if weighted else None
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
        assert not (np.isnan(logits) | np.isposinf(logits)).any(), "fitted to NaN or infinity"
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
        # A floor, learnt where logits are −∞, has a prior and may cost a little.
        if method == "temperature" and np.isfinite(d.before) and not fitted.floor_:
            assert d.after <= d.before + 1e-5 * (1 + abs(d.before)), d

    run_cases(0.4 / len(METHODS), case)
