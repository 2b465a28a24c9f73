"""Panels of CPE (Charoenphakdee et al., CVPR 2021): the minimiser table, K = 1000, and Ψ."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from focalcal.maps import focal_map, inverse_focal_map
from focalcal_papers.figures.panels import Curve, Curves, Panel, Table


def uniform_rest(top: np.ndarray, n_classes: int) -> np.ndarray:
    """Probabilities (N, K) with the given top class and all others equal.

    >>> uniform_rest(np.array([0.4]), 3).tolist()
    [[0.4, 0.3, 0.3]]
    """
    top = np.asarray(top, dtype=float)
    rest = (1 - top) / (n_classes - 1)
    return np.concatenate([top[:, None], np.repeat(rest[:, None], n_classes - 1, axis=1)], axis=1)


def minimiser_table(p: float = 0.9, gammas: Sequence[float] = (0, 1, 3, 5)) -> Table:
    """The focal-risk minimiser for p = (.9, .1): under-confident for γ > 0; Ψ takes it back.

    >>> [round(row[1], 4) for row in minimiser_table().rows]
    [0.9, 0.7744, 0.6471, 0.5974]
    """
    rows = []
    for gamma in gammas:
        q = np.asarray(inverse_focal_map([p, 1 - p], gamma))
        back = np.asarray(focal_map(q, gamma))
        rows.append((f"{gamma:g}", float(q[0]), float(q[1]), float(back[0])))
    columns = ("γ", "q₁", "q₂", "Ψ(q)₁")
    return Table(f"risk minimiser for p = ({p:g}, {1 - p:g})", columns, tuple(rows))


def confidence_of_minimiser(
    classes: Sequence[int] = (2, 1000), gammas: Sequence[float] = (1, 3, 5), points: int = 60
) -> list[Panel]:
    """Top probability of the minimiser against the true one: under-confident, or over for many."""
    panels: list[Panel] = []
    for k in classes:
        top = np.geomspace(1.02 / k, 0.99, points)
        p = uniform_rest(top, k)
        curves = tuple(Curve(f"γ = {g:g}", top, inverse_focal_map(p, g)[:, 0]) for g in gammas)
        labels = ("largest true probability", "largest predicted probability")
        panels.append(Curves(f"K = {k}", *labels, curves, diagonal=True))
    return panels
