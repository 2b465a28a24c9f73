"""Fits from merged sums against the same fits in memory, whose code sees all rows at once."""

from __future__ import annotations

import numpy as np
import pytest

from focalcal import calibrators
from focalcal.errors import FitWarning, InputError
from focalcal.predictions import Predictions
from focalcal.scale import METHODS, Source, StreamEngine, fit

from .conftest import write

FAST = {"sample_rows": 2000}


def test_temperature_equals_memory(memory, pattern):
    found = fit(Source.open(pattern), **FAST)
    there = calibrators.make("temperature").fit(*memory)
    assert found.calibrator.temperature_ == pytest.approx(there.temperature_, rel=1e-9)
    mine, theirs = found.calibrator.diagnostics_, there.diagnostics_
    assert mine.after == pytest.approx(theirs.after, abs=1e-9)
    assert mine.before == pytest.approx(theirs.before, abs=1e-7)  # float32 sums in two orders
    assert (mine.n, mine.n_per_class) == (theirs.n, theirs.n_per_class)
    assert found.passes <= 3
    assert found.n == len(memory[1])


@pytest.mark.parametrize("method", [m for m in METHODS if m != "temperature"])
def test_other_methods_reach_the_same_loss(memory, pattern, method):
    z, y = memory
    found = fit(Source.open(pattern), method, **FAST).calibrator
    there = calibrators.make(method).fit(z, y)
    assert found.diagnostics_.converged
    # In memory the solver stops when the loss with its penalty falls by less than 1e-11 of it.
    assert found.diagnostics_.after == pytest.approx(there.diagnostics_.after, abs=3e-8)
    for name in there.state:
        np.testing.assert_allclose(getattr(found, name), getattr(there, name), atol=2e-3)
    probs = found.predict_proba(z)
    assert -np.log(probs[np.arange(len(y)), y]).mean() == pytest.approx(
        found.diagnostics_.after, abs=1e-6
    )


def test_structured_without_whitening(memory, pattern, monkeypatch):
    monkeypatch.setattr("focalcal.calibrators.affine.MAX_WHITENED", 0)
    source = Source.open(pattern)
    slow = fit(source, "structured-vector", **FAST)
    there = calibrators.make("structured-vector").fit(*memory).diagnostics_
    assert slow.calibrator.diagnostics_.after == pytest.approx(there.after, abs=1e-8)


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("temperature", {"objective": "ece", "temperatures": [1.0, 1.7, 2.0, 2.3]}),
        ("temperature", {"objective": "adaptive_ece", "temperatures": [1.0, 1.7, 2.0, 2.6]}),
        (
            "focal-temperature",
            {"objective": "ece", "gammas": [-0.5, 0.3, 1.0], "temperatures": [1.0, 2.0, 2.5, 3.0]},
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::focalcal.errors.FitWarning")
def test_grid_searches_find_the_same_point(memory, pattern, method, params, monkeypatch):
    monkeypatch.setattr("focalcal.calibrators.sums.POINTS_PER_PASS", 5)
    found = fit(Source.open(pattern), method, **FAST, **params)
    there = calibrators.make(method, **params).fit(*memory)
    for name in there.state:
        assert getattr(found.calibrator, name) == getattr(there, name)
    # In memory the ECE is that of the float32 probabilities themselves.
    bound = 1e-8 if params["objective"] == "ece" else 5e-3
    assert found.calibrator.diagnostics_.after == pytest.approx(there.diagnostics_.after, abs=bound)
    assert found.passes == (1 if method == "temperature" else 3)


@pytest.mark.parametrize("kind", ["chance", "separable", "flat"])
@pytest.mark.parametrize("method", ["temperature", "focal-temperature", "structured-vector"])
def test_ends_of_the_range_are_recognised(tmp_path, rng, kind, method):
    z = rng.normal(size=(3000, 3))
    y = z.argmax(axis=1) if kind == "separable" else z.argmin(axis=1)
    z = np.zeros_like(z) if kind == "flat" else z
    source = Source.open(write(tmp_path, z, y))
    with pytest.warns(FitWarning):
        found = fit(source, method, **FAST).calibrator
    with pytest.warns(FitWarning):
        there = calibrators.make(method).fit(z, y)
    assert found.temperature_ == pytest.approx(there.temperature_, rel=1e-9)
    assert found.diagnostics_.at_edge == there.diagnostics_.at_edge


@pytest.mark.parametrize("unit", [1e-20, 1e20])
def test_logits_of_any_scale(memory, tmp_path, unit):
    z, y = memory
    source = Source.open(write(tmp_path, z.astype(np.float64) * unit, y))
    found = fit(source, **FAST).calibrator
    there = calibrators.make("temperature").fit(z.astype(np.float64) * unit, y)
    assert found.temperature_ == pytest.approx(there.temperature_, rel=1e-9)


def test_logits_far_beyond_those_of_the_sample(memory, tmp_path):
    z, y = memory[0].copy(), memory[1].copy()
    z[-1], y[-1] = [0, 1e25, -1e25, 0], 1  # its square leaves the range of float32
    found = fit(Source.open(write(tmp_path, z, y)), sample_rows=64).calibrator
    there = calibrators.make("temperature").fit(z, y)
    assert found.temperature_ == pytest.approx(there.temperature_, rel=1e-9)


def test_binary_and_probabilities(tmp_path, rng):
    s = 4 * rng.normal(size=4000)
    y = (rng.random(4000) < 1 / (1 + np.exp(-s / 2))).astype(int)
    source = Source.open(write(tmp_path / "s", s[:, None], y))
    there = calibrators.make("temperature").fit(s, y)
    assert source.n_classes == 2
    assert fit(source, **FAST).calibrator.temperature_ == pytest.approx(there.temperature_, 1e-9)
    p = 1 / (1 + np.exp(-np.stack([-s, s], axis=1)))
    source = Source.open(write(tmp_path / "p", p, y, name="probs"))
    assert fit(source, **FAST).calibrator.temperature_ == pytest.approx(there.temperature_, 1e-9)


def drawn(p: np.ndarray, rng) -> np.ndarray:
    return (p.cumsum(axis=1) < rng.random((len(p), 1))).sum(axis=1).clip(0, p.shape[1] - 1)


@pytest.mark.parametrize("method", ["temperature", "focal-temperature", "structured-vector"])
def test_a_floor_is_learnt_for_zeros_as_in_memory(tmp_path, rng, method):
    p = rng.multinomial(10, [0.5, 0.3, 0.2], size=3000) / 10
    y = drawn(0.95 * p + 0.05 / 3, rng)
    source = Source.open(write(tmp_path, p, y, name="probs"))
    found = fit(source, method, sample_rows=3000).calibrator
    given = Predictions(probs=p, labels=y)
    there = calibrators.make(method).fit(given.as_logits(), y)
    assert found.floor_ == there.floor_ > 0
    assert found.diagnostics_.before == pytest.approx(there.diagnostics_.before, abs=1e-7)
    assert found.diagnostics_.after == pytest.approx(there.diagnostics_.after, abs=1e-7)
    lifted = fit(source, method, floor=1e-9, **FAST).calibrator
    assert lifted.floor_ == 0


def test_zeros_that_the_sample_lacks_are_an_error(tmp_path, rng):
    p = rng.dirichlet([1, 1, 1], size=3000)
    p[-1] = [1.0, 0.0, 0.0]
    source = Source.open(write(tmp_path, p, drawn(p, rng), name="probs"))
    with pytest.raises(InputError, match=r"expected no probabilities of 0.*give a floor"):
        fit(source, sample_rows=64)
    assert fit(source, sample_rows=64, floor=1e-9).calibrator.floor_ == 0


def test_missing_class_is_said(tmp_path, rng):
    z = rng.normal(size=(2000, 3))
    source = Source.open(write(tmp_path, z, np.argmax(z[:, :2] + rng.gumbel(size=(2000, 2)), 1)))
    with pytest.warns(FitWarning, match="no calibration sample of 1 of 3 classes"):
        fit(source, **FAST)


def test_focal_gamma_at_its_end(memory, pattern):
    with pytest.warns(FitWarning, match="gamma ran to the end of its range"):
        found = fit(Source.open(pattern), "focal-temperature", gamma_range=(2.0, 3.0), **FAST)
    with pytest.warns(FitWarning):
        there = calibrators.make("focal-temperature", gamma_range=(2.0, 3.0)).fit(*memory)
    assert found.calibrator.gamma_ == pytest.approx(there.gamma_, abs=1e-6)
    assert found.calibrator.diagnostics_.after == pytest.approx(there.diagnostics_.after, abs=1e-8)


def test_what_cannot_be_fitted_at_scale(pattern):
    source = Source.open(pattern)
    with pytest.raises(InputError, match="which is fitted in memory"):
        fit(source, "isotonic")
    with pytest.raises(InputError, match="expected task 'auto'"):
        fit(source, task="multilabel")
    with pytest.raises(InputError, match="expected the search 'grid' by ECE"):
        fit(source, "focal-temperature", search="line", objective="ece")


def test_any_number_of_threads_gives_the_same_bits(pattern):
    source = Source.open(pattern)
    one, three = (fit(source, engine=StreamEngine(n), **FAST).calibrator for n in (1, 3))
    assert one.temperature_ == three.temperature_
