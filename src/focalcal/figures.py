"""Reliability diagrams: compute one, then plot it on an `ax` (matplotlib).

Nothing here calls show or touches global style.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from focalcal.bins import Bins, bin_columns, equal_width_edges
from focalcal.errors import InputError
from focalcal.metrics.proportion import share_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MANY = 12
"""More classes than this share one colour and no legend."""


@dataclass(frozen=True)
class Reliability:
    """A reliability diagram: bins, and the interval (M,) of each bin's accuracy at `level`.

    With bins of several classes (K, M) every class is a line, labelled by `names`.
    """

    title: str
    bins: Bins
    low: np.ndarray
    high: np.ndarray
    level: float
    names: tuple[str, ...] = ()


def accuracy_interval(b: Bins, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """The exact interval of each bin's accuracy, (..., M) low and high; NaN where a bin is empty.

    >>> from focalcal.bins import bin_samples
    >>> b = bin_samples([0.9] * 10, [1] * 9 + [0], [0.0, 0.5, 1.0])
    >>> [end.round(2).tolist() for end in accuracy_interval(b)]
    [[nan, 0.55], [nan, 1.0]]
    """
    return share_interval(b.correct_sums, b.counts, level)


def reliability_panel(b: Bins, title: str = "", level: float = 0.95) -> Reliability:
    """The diagram of top-label bins, e.g. of `focalcal.metrics.reliability`.

    >>> from focalcal.metrics import reliability
    >>> reliability_panel(reliability([1, 0], [0.8, 0.3])).level
    0.95
    """
    return Reliability(title, b, *accuracy_interval(b, level), level)


def classwise_reliability_panel(
    labels: Any,
    probs: Any,
    *,
    bins: int = 15,
    names: Sequence[str] = (),
    title: str = "",
    level: float = 0.95,
) -> Reliability:
    """The diagram of every class's own probability, a line per class.

    labels: (N,) integers; probs: (N, K); names: K class names, numbers if left out.
    """
    b = bin_columns(labels, probs, equal_width_edges(bins))
    k = len(b.counts)
    names = tuple(map(str, names)) or tuple(map(str, range(k)))
    if len(names) != k:
        raise InputError(f"expected {k} class names, got {len(names)}; give one per class")
    return Reliability(title, b, *accuracy_interval(b, level), level, names)


def plot_reliability(panel: Reliability, ax: Axes) -> Axes:
    """Draw one diagram; returns the axes."""
    ax.axline((0, 0), slope=1, color="0.7", linewidth=0.8, zorder=0)
    x, y = panel.bins.mean_confidence, panel.bins.accuracy
    if panel.names:
        few = len(panel.names) <= MANY
        style = {"linewidth": 1} if few else {"linewidth": 1, "color": "C0", "alpha": 0.3}
        lines = [
            ax.plot(px[~np.isnan(py)], py[~np.isnan(py)], label=_literal(name), **style)[0]
            for name, px, py in zip(panel.names, x, y)
        ]
        if few:
            ax.legend(lines, map(_literal, panel.names), frameon=False, fontsize="small")
        ax.set(xlabel="probability of the class", ylabel="frequency of the class")
    else:
        some = ~np.isnan(y)
        ax.fill_between(x[some], panel.low[some], panel.high[some], alpha=0.25, linewidth=0)
        ax.plot(x[some], y[some], marker="o", markersize=4, linewidth=1.3)
        share = panel.bins.share
        ax.stairs(0.25 * share / share.max(), panel.bins.edges, fill=True, color="0.85", zorder=0)
        ax.set(xlabel="confidence", ylabel="accuracy")
    ax.set(title=_literal(panel.title), xlim=(0, 1), ylim=(0, 1))
    return ax


def _literal(name: str) -> str:
    """Text with "$" escaped, so that matplotlib sees no formula."""
    return name.replace("$", r"\$")
