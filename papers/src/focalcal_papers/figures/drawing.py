"""Panels onto matplotlib axes."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from focalcal.errors import InputError
from focalcal.figures import MANY, Reliability, plot_reliability
from focalcal.files import atomic_path, check_suffix
from focalcal_papers.figures.panels import Arrows, Bars, Curves, HeatMap, Panel, Simplex, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".pdf", ".png", ".svg")
GREY = "0.7"
_COLOURS, _STYLES = 10, ("-", "--", ":", "-.")
"""Matplotlib has ten colours; the next ten lines are dashed, and so on."""


@functools.singledispatch
def plot(panel: Panel, ax: Axes) -> Axes:
    """Draw one panel; returns the axes."""
    raise InputError(f"expected a panel of focalcal_papers.figures, got {type(panel).__name__}")


def draw(panels: Sequence[Panel], columns: int = 3) -> Figure:
    """One figure with an `ax` per panel, at most `columns` side by side."""
    from matplotlib.figure import Figure

    if not panels:
        raise InputError("expected at least one panel, got none")
    wide = min(columns, len(panels))
    high = -(-len(panels) // wide)
    width = 4.2 * wide * (1.5 if any(map(_has_long_legend, panels)) else 1)
    figure = Figure(figsize=(width, 3.4 * high), layout="constrained")
    axes = np.atleast_1d(figure.subplots(high, wide)).ravel()
    for panel, ax in zip(panels, axes):
        plot(panel, ax)
    for ax in axes[len(panels) :]:
        ax.set_axis_off()
    return figure


def save(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Write the figure as .pdf, .png or .svg, atomically."""
    path = check_suffix(path, FORMATS)
    # A date inside would make equal figures differ.
    stamp = {".pdf": "CreationDate", ".svg": "Date"}.get(path.suffix)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=150, metadata={stamp: None} if stamp else None)
    return path


@plot.register(Curves)
def _(panel: Curves, ax: Axes) -> Axes:
    for i, curve in enumerate(panel.curves):
        style = {"linestyle": "none", "marker": "o", "markersize": 4}
        if curve.style != "o":
            solid = _STYLES[i // _COLOURS % len(_STYLES)]
            style = {"linestyle": solid if curve.style == "-" else curve.style, "linewidth": 1.3}
        (line,) = ax.plot(curve.x, curve.y, label=curve.label, **style)
        if curve.low is not None and curve.high is not None:
            if curve.style == "o":
                ax.vlines(curve.x, curve.low, curve.high, color=line.get_color(), linewidth=1)
            else:
                ax.fill_between(
                    curve.x, curve.low, curve.high, color=line.get_color(), alpha=0.2, linewidth=0
                )
    if panel.diagonal:
        ax.axline((0, 0), slope=1, color=GREY, linewidth=0.8, zorder=0)
    ax.set(title=panel.title, xlabel=panel.xlabel, ylabel=panel.ylabel, yscale=panel.yscale)
    if _has_long_legend(panel):
        place = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}
        ax.legend(frameon=False, fontsize="xx-small", ncols=-(-len(panel.curves) // 16), **place)
    elif any(curve.label for curve in panel.curves):
        ax.legend(frameon=False, fontsize="small")
    return ax


def _has_long_legend(panel: Panel) -> bool:
    return isinstance(panel, Curves) and sum(bool(c.label) for c in panel.curves) > MANY


@plot.register(Bars)
def _(panel: Bars, ax: Axes) -> Axes:
    for name, shares in panel.shares.items():
        ax.stairs(shares, panel.edges, label=name)
    ax.set(title=panel.title, xlabel=panel.xlabel, ylabel="share of samples", yscale=panel.yscale)
    ax.legend(frameon=False, fontsize="small")
    return ax


plot.register(Reliability)(plot_reliability)


@plot.register(Simplex)
def _(panel: Simplex, ax: Axes) -> Axes:
    x, y = corners(panel.probabilities)
    if panel.levels:
        drawn = ax.tricontour(x, y, panel.values, levels=panel.levels, linewidths=1)
        ax.clabel(drawn, fontsize="x-small")
    else:
        drawn = ax.tricontourf(x, y, panel.values, levels=20)
        ax.figure.colorbar(drawn, ax=ax, label=panel.label)
    return _triangle(ax, panel.title)


@plot.register(Arrows)
def _(panel: Arrows, ax: Axes) -> Axes:
    x, y = corners(panel.start)
    to_x, to_y = corners(panel.end)
    options: dict[str, Any] = {"angles": "xy", "scale_units": "xy", "scale": 1, "width": 0.004}
    ax.quiver(x, y, to_x - x, to_y - y, **options)
    return _triangle(ax, panel.title)


@plot.register(HeatMap)
def _(panel: HeatMap, ax: Axes) -> Axes:
    drawn = ax.pcolormesh(panel.x, panel.y, panel.values, shading="nearest")
    ax.figure.colorbar(drawn, ax=ax, label=panel.label)
    for line in panel.lines:
        ax.plot(line.x, line.y, label=line.label, color="white", linestyle=line.style)
    for (name, (x, y)), marker in zip(panel.points.items(), "*ox^sD"):
        ax.plot([x], [y], linestyle="none", marker=marker, label=name, color="C3")
    ax.set(title=panel.title, xlabel=panel.xlabel, ylabel=panel.ylabel)
    ax.set(xlim=(panel.x.min(), panel.x.max()), ylim=(panel.y.min(), panel.y.max()))
    if panel.points or panel.lines:
        ax.legend(fontsize="small")
    return ax


@plot.register(Table)
def _(panel: Table, ax: Axes) -> Axes:
    text = [[_text(cell) for cell in row] for row in panel.rows]
    ax.table(cellText=text, colLabels=list(panel.columns), loc="center")
    ax.set_title(panel.title)
    ax.set_axis_off()
    return ax


def corners(p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Three-class probabilities (N, 3) in the plane: classes 1, 2, 3 at left, right and top.

    >>> [end.round(3).tolist() for end in corners(np.eye(3))]
    [[0.0, 1.0, 0.5], [0.0, 0.0, 0.866]]
    """
    return p[:, 1] + p[:, 2] / 2, p[:, 2] * np.sqrt(3) / 2


def _triangle(ax: Axes, title: str) -> Axes:
    ax.plot([0, 1, 0.5, 0], [0, 0, np.sqrt(3) / 2, 0], color=GREY, linewidth=0.8)
    ax.set_title(title)
    ax.set_aspect("equal")
    ax.set_axis_off()
    return ax


def _text(cell: Any) -> str:
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)
