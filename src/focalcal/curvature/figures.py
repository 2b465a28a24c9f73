"""Figures of curvature: they take results and axes, return the axes, and never call show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from focalcal.curvature.lanczos import SpectralDensity
from focalcal.curvature.logit import binary_logit_curvature
from focalcal.curvature.trace import TraceEstimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_density(densities: Mapping[str, SpectralDensity], ax: Axes) -> Axes:
    """Spectral densities by name on a logarithmic scale; negative curvature lies left of zero."""
    low = min(float(d.nodes.min()) for d in densities.values())
    high = max(float(d.nodes.max()) for d in densities.values())
    margin = 0.05 * (high - low) or 1.0
    width = 0.005 * (high - low) or 0.01
    grid = torch.linspace(low - margin, high + margin, 2000, dtype=torch.float64)
    for name, density in densities.items():
        # Densities below a thousandth of an eigenvalue are noise and are not drawn.
        floor = 1e-3 / (density.n * width)
        values = density.at(grid, width)
        ax.plot(grid, torch.where(values > floor, values, torch.nan), label=name, linewidth=1)
    ax.axvline(0, color="0.7", linewidth=0.8, zorder=0)
    ax.set(yscale="log", xlabel="eigenvalue", ylabel="density")
    ax.legend(frameon=False)
    return ax


def plot_traces(traces: Mapping[float, TraceEstimate], ax: Axes) -> Axes:
    """Trace against γ with its 95 % interval."""
    gammas = list(traces)
    values = [t.value for t in traces.values()]
    halves = [t.interval()[1] - t.value for t in traces.values()]
    ax.errorbar(gammas, values, yerr=halves, marker="o", markersize=4, capsize=3)
    ax.set(xlabel="γ of the measured loss", ylabel="trace of the Hessian")
    return ax


def plot_logit_curvature(ax: Axes, gammas: Sequence[float] = (0, 1, 2, 3, 5)) -> Axes:
    """The focal loss' second derivative in a binary logit against p: GEO Eq. 28, corrected.

    It exceeds cross-entropy's (γ = 0) at low p, falls below it at high p, and is negative near 0.
    """
    p = torch.linspace(0.002, 0.998, 400, dtype=torch.float64)
    for gamma in gammas:
        label = "γ = 0 (cross-entropy)" if gamma == 0 else f"γ = {gamma:g}"
        ax.plot(p, binary_logit_curvature(p, gamma), label=label)
    ax.axhline(0, color="0.7", linewidth=0.8, zorder=0)
    ax.set(xlabel="probability of the true class, p", ylabel="d²loss/dlogit²")
    ax.legend(frameon=False)
    return ax
