"""Compiled loops against their NumPy references, on edges, ties, zeros and both precisions."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from focalcal import bins, kernels, metrics
from focalcal.calibrators._newton import moment_sums
from focalcal.columns import read
from focalcal.metrics.sample import Sample
from focalcal.ordered import fine_edges

pytest.importorskip("numba")

KINDS = (np.float32, np.float64)
kinds = pytest.mark.parametrize("kind", KINDS)


def near_edges(edges, kind, rng):
    near = edges.astype(kind)
    ends = [np.nextafter(near, kind(end)) for end in (0, 1)]
    return np.concatenate([near, *ends, rng.random(500).astype(kind) ** 0.1]).clip(0, 1)


@kinds
@pytest.mark.parametrize("m", [1, 2, 7, 15, 49, 100, 2000])
@pytest.mark.parametrize("even", [True, False])
def test_bins_bit_for_bit(m, even, kind, rng, monkeypatch):
    """Counts are equal; sums differ by the order of their terms."""
    x = near_edges(bins.equal_width_edges(m), kind, rng)
    edges = bins.equal_width_edges(m) if even else bins.equal_mass_edges(x, m)
    hit, w = rng.random(len(x)) < x, rng.random(len(x))
    found = []
    for least in (1 << 60, 1):
        monkeypatch.setattr(kernels, "LEAST", least)
        b = bins.bin_samples(x, hit, edges, w)
        found.append((b.counts, b.confidence_sums, b.correct_sums))
    np.testing.assert_allclose(*found, rtol=1e-13, atol=1e-13)


def test_values_outside_are_in_the_end_bins(monkeypatch):
    monkeypatch.setattr(kernels, "LEAST", 1)
    b = bins.bin_samples([-1.0, 0.5, 2.0, np.nan], [0, 1, 1, 0], [0.0, 0.6, 1.0])
    np.testing.assert_array_equal(b.counts, [2, 2])


@kinds
@pytest.mark.parametrize("logits", [True, False])
def test_statistics(kind, logits, rng, monkeypatch):
    """Of confidences on and beside the edges of bins and cells, certain and impossible ones."""
    c = np.concatenate([near_edges(fine_edges(), kind, rng), 1 - rng.random(500) ** 20])
    c = np.maximum(c, 0.5).astype(kind)
    p = np.stack([c, 1 - c], axis=1)
    y, w = (rng.random(len(c)) > c).astype(int), rng.random(len(c))
    with np.errstate(divide="ignore"):
        given = {"logits": np.maximum(np.log(p), -200)} if logits else {"y_prob": p}
    one, other = (
        metrics.CalibrationStats(2).update(y, sample_weight=w, quick=quick, **given)
        for quick in (False, True)
    )
    for name, value in one.sums.items():
        np.testing.assert_allclose(other.sums[name], value, rtol=1e-6, err_msg=name)
    for name, b in one.tables().items():
        found = other.tables()[name]
        total, expected = found.confidence_sums.sum(), b.confidence_sums.sum()
        np.testing.assert_allclose(total, expected, rtol=1e-6, err_msg=name)
        if not logits:  # rounding of the softmax moves samples over edges
            np.testing.assert_allclose(found.counts, b.counts, rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(found.correct_sums, b.correct_sums, rtol=1e-12, atol=1e-12)


@kinds
def test_class_bins(kind, rng):
    p = rng.dirichlet(np.full(6, 0.2), 500).astype(kind)
    p[:3] = np.eye(6)[:3]
    y, w = rng.integers(-1, 6, 500), rng.random(500)
    edges = kernels.open_edges(bins.equal_width_edges(15), kind)
    tables = np.zeros((2, 3, 6, 15))
    for quick in (False, True):
        kernels.pick(quick).class_bins_of(p, y, w, edges, tables[int(quick)])
    np.testing.assert_allclose(*tables, rtol=1e-13, atol=1e-13)


@kinds
@pytest.mark.parametrize("k", [2, 3, 10, 300])
@pytest.mark.parametrize("layout", ["C", "F"])
def test_columns(kind, k, layout, rng, monkeypatch):
    """float64 to 1e-13, float32 to its own rounding."""
    z = np.asarray(5 * rng.normal(size=(200, k)), kind, order=layout)
    z[:20] *= 30
    z[20:25] = 0
    y = rng.integers(k, size=200)
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    if k > 2:
        p[30] = np.eye(k)[0]
    bound = 1e-12 if kind is np.float64 else 3e-6
    for given in ({"logits": z}, {"y_prob": p}):
        found = []
        for least in (1 << 60, 1):
            monkeypatch.setattr(kernels, "LEAST", least)
            found.append(read(y, **given).columns(slice(None)))
        one, other = found
        np.testing.assert_array_equal(other.correct, one.correct)
        for name in ("confidence", "nll", "entropy", "brier"):
            a, b = getattr(one, name), getattr(other, name)
            assert a.dtype == b.dtype
            np.testing.assert_allclose(b, a, rtol=bound, atol=bound, err_msg=name)


@kinds
def test_cell_scores(kind, rng, monkeypatch):
    p = rng.dirichlet(np.ones(4), 300).astype(kind)
    y = rng.integers(4, size=300)
    values = []
    for least in (1 << 60, 1):
        monkeypatch.setattr(kernels, "LEAST", least)
        e = metrics.evaluate(y, p, resamples=5)
        names = ("classwise_ece", "ace", "brier_calibration", "brier_refinement")
        values.append([(e[n].value, e[n].low, e[n].high) for n in names])
    np.testing.assert_allclose(*values, rtol=1e-6, atol=1e-7)


def test_small_inputs_never_import_numba():
    code = (
        "import sys, numpy as np\n"
        "from focalcal import metrics\n"
        "metrics.evaluate([0, 1], [[0.5, 0.5], [0.4, 0.6]], resamples=5)\n"
        "assert 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("off", [True, False])
def test_switched_off_or_without_a_cache_folder(off, tmp_path):
    """FOCALCAL_FAST=0 uses the references; where nothing can be written, loops still compile."""
    code = (
        "import numpy as np\n"
        "from focalcal import kernels, bins\n"
        "kernels.LEAST = 1\n"
        "print(bins.bin_samples([0.2, 0.7], [1, 1], [0, 0.5, 1]).counts)\n"
        "print(kernels.fast(10))"
    )
    extra = {"FOCALCAL_FAST": "0"} if off else {"NUMBA_CACHE_DIR": "/proc/none", "HOME": "/proc"}
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **extra},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.split("\n")[:2] == ["[1. 1.]", str(not off)]


def test_large_inputs_take_the_loops(monkeypatch, rng):
    """Through the public functions: a compiled evaluation equals the reference one."""
    p = rng.dirichlet(np.ones(5), 2000)
    y = rng.integers(5, size=2000)
    reference = metrics.evaluate(y, p, resamples=10)
    monkeypatch.setattr(kernels, "LEAST", 1)
    assert Sample.read(y, p).n == 2000
    compiled = metrics.evaluate(y, p, resamples=10)
    for name in metrics.METRICS:
        assert compiled[name].value == pytest.approx(reference[name].value, abs=1e-12, nan_ok=True)
        assert compiled[name].low == pytest.approx(reference[name].low, abs=1e-9, nan_ok=True)


@kinds
@pytest.mark.parametrize("k", [2, 10, 64])
@pytest.mark.parametrize("weighted", [False, True])
def test_moments_of_a_temperature(kind, k, weighted, rng):
    """The reference sums rows in their precision, the loop in float64."""
    z = (4 * rng.normal(size=(500, k))).astype(kind)
    z[:3] *= 50
    y, w = rng.integers(k, size=500), rng.random(500) if weighted else None
    for beta in (0.0, 0.4, 3.0):
        one, other = (moment_sums(z, y, w, beta, quick=q) for q in (False, True))
        bound = 1e-12 if kind is np.float64 else 2e-6
        np.testing.assert_allclose(other, one, rtol=bound, atol=bound)
