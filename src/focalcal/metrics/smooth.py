"""The smooth calibration error: no bins, one bandwidth chosen by a fixed point."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from focalcal.metrics.declare import metric
from focalcal.ordered import Ordered
from focalcal.stats import CalibrationStats

_LAST_GRID = 1 << 16
_LAST_GRID_OF_RESAMPLES = 1 << 12
_CELLS_PER_BANDWIDTH = 8


def _moved_bound(s: CalibrationStats) -> float:
    """Moving a residual r by δ changes smECE_σ by at most |r|·δ·√(2/π)/σ.

    σ − smECE_σ has slope ≥ 1, so the fixed point moves at most as far as smECE_σ.
    """
    o = s.ordered
    moved = float((o.slack * o.width).sum() / o.total)
    if moved == 0:
        return 0.0
    sigma = float(smooth(o))
    return min(moved * math.sqrt(2 / math.pi) / sigma, 1.0) if sigma > 0 else 1.0


@metric("ECE, smooth", needs=("top", "order"), tested=True, bound=_moved_bound)
def smooth_ece(s: CalibrationStats) -> Any:
    """Smooth ECE: smECE_σ at the bandwidth σ with smECE_σ = σ, no bins.

    smECE_σ = ∫_0^1 |Σ_i (y_i − p_i)·K_σ(t, p_i)| dt / n, K_σ the Gaussian kernel reflected at 0
    and 1. It falls as σ grows, so the fixed point is unique. Computed on a grid by cosine
    transforms: reflected Gaussian smoothing multiplies the k-th cosine coefficient by
    exp(−σ²π²k²/2). Grids are refined until 8 cells fit into the bandwidth.

    >>> round(smooth_ece([1, 1, 0, 1], [0.9, 0.9, 0.9, 0.9]), 3)
    0.15

    Błasiok & Nakkiran 2023, Def. 5 and Eq. 3.
    """
    if s.ordered.weights.ndim == 1:
        return smooth(s.ordered)
    # Resamples need less precision, because they vary.
    return smooth(s.ordered, steps=10, grid=256, last=_LAST_GRID_OF_RESAMPLES)


def smooth(o: Ordered, steps: int = 26, grid: int = 1 << 10, last: int = _LAST_GRID) -> np.ndarray:
    """The smooth error of each row of weights, by `steps` bisections on grids up to `last`.

    A bandwidth below the cells of the last grid gives the error in bins of that width.
    """
    mass = o.excess / o.total[..., None]
    most = np.abs(mass).sum(axis=-1)
    if (most - np.abs(mass.sum(axis=-1)) <= 1e-12 * most).all():
        return most  # smoothing cancels nothing if all residuals have the same sign
    while True:
        sigma = _fixed_point(_deposit(o.confidence, mass, grid), most, steps)
        if grid >= last or np.median(sigma) >= _CELLS_PER_BANDWIDTH / grid:
            return sigma
        grid *= 4


def _deposit(position: np.ndarray, mass: np.ndarray, grid: int) -> np.ndarray:
    """Cosine coefficients (..., grid) of masses (..., G) at positions (G,) in [0, 1].

    Each mass is shared between the two nearest cell centres, which smooths it by a triangle; the
    coefficients are divided by the transform of that triangle.
    """
    from scipy.fft import dct

    x = position * grid - 0.5
    left = np.floor(x).astype(np.intp)
    right_share = x - left
    left, right = np.maximum(left, 0), np.minimum(left + 1, grid - 1)
    rows = mass.reshape(-1, mass.shape[-1])
    cells = np.empty((len(rows), grid))
    for row, out in zip(rows, cells):
        out[:] = np.bincount(left, weights=row * (1 - right_share), minlength=grid)
        out += np.bincount(right, weights=row * right_share, minlength=grid)
    coefficients = dct(cells) / np.sinc(np.arange(grid) / (2 * grid)) ** 2
    return coefficients.reshape(*mass.shape[:-1], grid)


def _fixed_point(coefficients: np.ndarray, most: np.ndarray, steps: int) -> np.ndarray:
    """The σ ≤ most with smECE_σ = σ by bisection, then one linear step in the last bracket."""
    from scipy.fft import idct

    grid = coefficients.shape[-1]
    decay = -0.5 * (np.pi * np.arange(grid)) ** 2

    def rest(sigma: np.ndarray) -> np.ndarray:
        smoothed = idct(coefficients * np.exp(decay * sigma[..., None] ** 2))
        return np.abs(smoothed).sum(axis=-1) - sigma

    low, high = np.zeros_like(most), most  # smoothing does not enlarge the sum of the residuals
    at_low, at_high = rest(low), np.minimum(rest(high), 0)
    for _ in range(steps):
        middle = (low + high) / 2
        value = rest(middle)
        up = value > 0
        low, at_low = np.where(up, middle, low), np.where(up, value, at_low)
        high, at_high = np.where(up, high, middle), np.where(up, at_high, value)
    between = np.where(at_low > at_high, at_low / np.maximum(at_low - at_high, 1e-300), 1.0)
    return low + (high - low) * between
