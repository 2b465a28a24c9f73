"""What a figure shows, before anything is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str


@dataclass(frozen=True)
class Curve:
    """A line or points: x, y (N,), with an optional band or error bars low..high (N,).

    style: "-", "--" or ":" for lines, "o" for points.
    """

    label: str
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    style: str = "-"


def by_gamma(
    gammas: Iterable[float], x: np.ndarray, y: Callable[[float], np.ndarray]
) -> tuple[Curve, ...]:
    """A curve for each γ over common x."""
    return tuple(Curve(f"γ = {gamma:g}", x, y(gamma)) for gamma in gammas)


@dataclass(frozen=True)
class Curves(Panel):
    """Curves over common axes; `diagonal` adds y = x."""

    xlabel: str
    ylabel: str
    curves: tuple[Curve, ...]
    diagonal: bool = False
    yscale: str = "linear"


@dataclass(frozen=True)
class Bars(Panel):
    """Shares (M,) of samples by name in common bins of `edges` (M+1,)."""

    xlabel: str
    edges: np.ndarray
    shares: dict[str, np.ndarray]
    yscale: str = "linear"


@dataclass(frozen=True)
class Simplex(Panel):
    """A field over three-class probabilities (N, 3): filled, or as isolines at `levels`."""

    probabilities: np.ndarray
    values: np.ndarray
    label: str
    levels: tuple[float, ...] = ()


@dataclass(frozen=True)
class Arrows(Panel):
    """Where a map moves three-class probabilities: start to end, both (N, 3)."""

    start: np.ndarray
    end: np.ndarray


@dataclass(frozen=True)
class HeatMap(Panel):
    """Values (len(y), len(x)) over a grid, with marked points and lines by name."""

    xlabel: str
    ylabel: str
    x: np.ndarray
    y: np.ndarray
    values: np.ndarray
    label: str
    points: dict[str, tuple[float, float]]
    lines: tuple[Curve, ...] = ()


@dataclass(frozen=True)
class Table(Panel):
    """Rows of text or numbers under column headings."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
