"""Panels of CPE (Charoenphakdee et al., CVPR 2021): the minimiser table, K = 1000, and Ψ."""

from __future__ import annotations

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


def minimiser_table() -> Table:
    """The focal-risk minimiser for p = (.9, .1): under-confident for γ > 0; Ψ undoes this.

    >>> [round(row[1], 4) for row in minimiser_table().rows]
    [0.9, 0.7744, 0.6471, 0.5974]
    """
    rows = []
    for gamma in (0, 1, 3, 5):
        q = np.asarray(inverse_focal_map([0.9, 0.1], gamma))
        back = np.asarray(focal_map(q, gamma))
        rows.append((f"{gamma:g}", float(q[0]), float(q[1]), float(back[0])))
    columns = ("γ", "q₁", "q₂", "Ψ(q)₁")
    return Table("risk minimiser for p = (0.9, 0.1)", columns, tuple(rows))


def confidence_of_minimiser() -> list[Panel]:
    """Top probability of the minimiser against the true one: under-confident, or over for many."""
    panels: list[Panel] = []
    for k in (2, 1000):
        top = np.geomspace(1.02 / k, 0.99, 60)
        p = uniform_rest(top, k)
        curves = tuple(Curve(f"γ = {g:g}", top, inverse_focal_map(p, g)[:, 0]) for g in (1, 3, 5))
        labels = ("largest true probability", "largest predicted probability")
        panels.append(Curves(f"K = {k}", *labels, curves, diagonal=True))
    return panels
