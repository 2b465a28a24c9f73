"""Panels of FTS' figures (Komisarenko and Kull, ECAI 2024): theory 1 to 7, a trained network 8.

Numbered as in the text; temperatures follow the corrected values, not the printed ones
(`focalcal_papers.errata`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import expit, softmax

from focalcal import maps
from focalcal_papers.figures.panels import Arrows, Curve, Curves, HeatMap, Panel, Simplex, by_gamma

INNER = np.linspace(0.002, 0.998, 250)


def simplex_grid(size: int, margin: float = 0.0) -> np.ndarray:
    """(N, 3) points of the probability simplex; `margin` keeps them off its border.

    >>> len(simplex_grid(4)), simplex_grid(4).sum(axis=1).round(9).tolist()[:2]
    (15, [1.0, 1.0])
    """
    i, j = (axis.ravel() for axis in np.meshgrid(*[np.arange(size + 1)] * 2))
    inside = i + j <= size
    grid = np.stack([i, j, size - i - j], axis=1)[inside] / size
    return margin + (1 - 3 * margin) * grid


def two_classes(p: np.ndarray) -> np.ndarray:
    """Probabilities (N, 2) with p for the first class."""
    return np.stack([p, 1 - p], axis=1)


def figure1(gammas: Sequence[float] = (0, 1, 3, 5)) -> list[Panel]:
    """The decomposition: focal loss = properised loss of the map Ψ^γ, for two classes."""
    p, first = two_classes(INNER), np.zeros(len(INNER), dtype=np.int64)
    mapped = by_gamma(gammas, INNER, lambda g: maps.focal_map(p, g)[:, 0])
    losses = by_gamma(gammas, INNER, lambda g: maps.focal_loss_value(INNER, g))
    proper = by_gamma(gammas, INNER, lambda g: maps.properized_focal_loss(p, first, g))
    x = "predicted probability"
    return [
        Curves("focal calibration map", x, "Ψ", mapped, diagonal=True),
        Curves("focal loss", x, "loss", losses),
        Curves("properised focal loss", x, "loss", proper),
    ]


def figure2(gammas: Sequence[float] = (0.5, 3)) -> list[Panel]:
    """Ψ^γ beside its closest temperature, two classes: T .731 and .276 (printed .76 and .36)."""
    panels: list[Panel] = []
    s = np.log(INNER) - np.log1p(-INNER)
    for gamma in gammas:
        best = maps.closest_temperature(gamma)
        curves = (
            Curve("Ψ", INNER, expit(maps.binary_focal_map(s, gamma))),
            Curve(f"T = {best.temperature:.3f}", INNER, expit(s / best.temperature), style="--"),
        )
        labels = ("predicted probability", "calibrated probability")
        panels.append(Curves(f"γ = {gamma:g}", *labels, curves, diagonal=True))
    return panels


def figure3(gammas: Sequence[float] = (1, 4)) -> list[Panel]:
    """Prop. 3: Ψ^γ between the two temperatures, and the tightest ones, for two classes."""
    panels: list[Panel] = []
    s = np.linspace(0, 6, 200)
    for gamma in gammas:
        wide, tight = maps.temperature_bounds(gamma), maps.tightest_temperature_bounds(gamma)
        shown = [Curve("Ψ", s, expit(maps.binary_focal_map(s, gamma)))]
        for name, bounds, style in (("Prop. 3", wide, "--"), ("tightest", tight, ":")):
            for t in (bounds.low, bounds.high):
                shown.append(Curve(f"{name}, T = {t:.4f}", s, expit(s / t), style=style))
        panels.append(Curves(f"γ = {gamma:g}", "logit", "probability", tuple(shown)))
    return panels


def figure4(gammas: Sequence[float] = (0.5, 2), size: int = 12) -> list[Panel]:
    """Where Ψ^γ moves three-class probabilities: arrows on the simplex."""
    start = simplex_grid(size, margin=0.01)
    return [Arrows(f"Ψ, γ = {g:g}", start, maps.focal_map(start, g)) for g in gammas]


def figure5(gammas: Sequence[float] = (0.5, 2), size: int = 40) -> list[Panel]:
    """The largest difference between Ψ^γ and its closest temperature on the simplex, K = 3."""
    p = simplex_grid(size, margin=1e-4)
    panels: list[Panel] = []
    for gamma in gammas:
        best = maps.closest_temperature(gamma, 3)
        scaled = softmax(np.log(p) / best.temperature, axis=1)
        apart = np.abs(maps.focal_map(p, gamma) - scaled).max(axis=1)
        title = f"γ = {gamma:g}, T = {best.temperature:.3f}"
        panels.append(Simplex(title, p, apart, "difference in probability"))
    return panels


def figure6(gammas: Sequence[float] = (0, 1, 3), size: int = 40) -> list[Panel]:
    """Isolines of the properised loss of class 1 on the simplex."""
    p = simplex_grid(size, margin=0.005)
    first = np.zeros(len(p), dtype=np.int64)
    panels: list[Panel] = []
    for gamma in gammas:
        values = np.asarray(maps.properized_focal_loss(p, first, gamma))
        levels = tuple(np.unique(np.quantile(values, np.linspace(0.1, 0.9, 8))).tolist())
        panels.append(Simplex(f"γ = {gamma:g}", p, values, "loss", levels))
    return panels


def figure7(classes: Sequence[int] = (2, 3, 4), points: int = 6) -> list[Curves]:
    """1/T of the closest temperature against γ with a straight line, and the error that is left."""
    gammas = np.linspace(0, 10, points)
    inverse, errors = [], []
    for k in classes:
        best = [maps.closest_temperature(g, k) for g in gammas]
        y = np.array([1 / b.temperature for b in best])
        slope, offset = np.polyfit(gammas, y, 1)
        inverse.append(Curve(f"K = {k}", gammas, y, style="o"))
        line = f"K = {k}: {slope:.3f}γ + {offset:.3f}"
        inverse.append(Curve(line, gammas, slope * gammas + offset, style="--"))
        errors.append(Curve(f"K = {k}", gammas, np.array([b.max_error for b in best])))
    return [
        Curves("closest temperature", "γ", "1/T", tuple(inverse)),
        Curves("error of the closest temperature", "γ", "difference", tuple(errors), yscale="log"),
    ]


def figure8(
    gammas: Any,
    temperatures: Any,
    errors: Any,
    points: dict[str, tuple[float, float]],
    line: tuple[float, float],
    title: str = "",
) -> list[Panel]:
    """Equal-mass ECE (len(gammas), len(temperatures)) over γ_ev and T, and the line T = a + bγ."""
    gammas, temperatures = np.asarray(gammas), np.asarray(temperatures)
    best = temperatures[np.asarray(errors).argmin(axis=1)]
    lines = [Curve("best T for each γ", gammas, best, style=":")]
    lines.append(Curve("line", gammas, line[0] + line[1] * gammas, style="--"))
    values = 100 * np.asarray(errors).T
    axes = ("γ", "T", gammas, temperatures)
    return [HeatMap(title, *axes, values, "equal-mass ECE, %", points, tuple(lines))]
