"""Compiled loops against their NumPy references, on edges, ties, zeros and both precisions."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from focalcal import bins, kernels, metrics
from focalcal.columns import read
from focalcal.metrics.sample import Sample
from focalcal.ordered import add_cells, fine_edges

pytest.importorskip("numba")

KINDS = (np.float32, np.float64)
kinds = pytest.mark.parametrize("kind", KINDS)


def near_edges(edges, kind, rng):
    near = edges.astype(kind)
    ends = [np.nextafter(near, kind(end)) for end in (0, 1)]
    return np.concatenate([near, *ends, rng.random(500).astype(kind) ** 0.1]).clip(0, 1)


@kinds
@pytest.mark.parametrize("m", [1, 2, 7, 15, 49, 100, 2000])
def test_bins_bit_for_bit(m, kind, rng):
    """Counts are equal; sums differ by the order of their terms."""
    edges = bins.equal_width_edges(m)
    x = near_edges(edges, kind, rng)
    hit, w = rng.random(len(x)) < x, rng.random(len(x))
    one, other = (
        bins.add_samples(np.zeros((3, m)), x, hit, edges, w, quick) for quick in (False, True)
    )
    np.testing.assert_allclose(other, one, rtol=1e-13, atol=1e-13)
    uneven = bins.equal_mass_edges(x, m)
    table = np.zeros((3, len(uneven) - 1))
    one, other = (
        bins.add_samples(table.copy(), x, hit, uneven, w, quick) for quick in (False, True)
    )
    np.testing.assert_allclose(other, one, rtol=1e-13, atol=1e-13)


@kinds
def test_cells_bit_for_bit(kind, rng):
    x = np.concatenate([near_edges(fine_edges(), kind, rng), 1 - rng.random(500) ** 20])
    x = x.astype(kind)
    hit, w = rng.random(len(x)) < x, np.ones(len(x))
    table = np.zeros((3, len(fine_edges()) - 1))
    one, other = (add_cells(table.copy(), x, hit, w, quick) for quick in (False, True))
    np.testing.assert_array_equal(other[0], one[0])
    np.testing.assert_array_equal(other[2], one[2])
    np.testing.assert_allclose(other[1], one[1], rtol=1e-13)


@kinds
def test_class_bins(kind, rng):
    p = rng.dirichlet(np.full(6, 0.2), 500).astype(kind)
    p[:3] = np.eye(6)[:3]
    y, w, edges = rng.integers(-1, 6, 500), rng.random(500), bins.equal_width_edges(15)
    table = np.zeros((3, 6, 15))
    one, other = (bins.add_columns(table.copy(), y, p, edges, w, quick) for quick in (False, True))
    np.testing.assert_allclose(other, one, rtol=1e-13, atol=1e-13)


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
