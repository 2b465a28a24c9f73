"""Figures of the theory on the simplex of three classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from focalcal import maps
from focalcal.report.figure import Figure, line
from focalcal_papers.figures.drawing import corners
from focalcal_papers.figures.fts import simplex_grid

SLIDES = (-0.5, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0)
"""The γ that the theory's sliders offer."""


def _triangle() -> dict[str, Any]:
    edge: dict[str, Any] = {"line": {"width": 1.5}, "hoverinfo": "skip", "showlegend": False}
    return line(*corners(np.eye(3)[[0, 1, 2, 0]]), "", "@muted", **edge)


_SIMPLEX_LAYOUT = {
    "xaxis": {"visible": False, "range": [-0.06, 1.06]},
    "yaxis": {"visible": False, "range": [-0.08, 0.94], "scaleanchor": "x"},
    "showlegend": False,
    "annotations": [
        {"x": x, "y": y, "text": f"class {k}", "showarrow": False}
        for k, (x, y) in enumerate(((0, -0.05), (1, -0.05), (0.5, 0.91)))
    ],
}


def sliding(id: str, choices: Sequence[tuple[str, list[dict[str, Any]]]], **more: Any) -> Figure:
    """A figure with a slider over `choices`, which starts at the fifth."""
    drawn = {"traces": choices[4][1], "choices": tuple(choices), "slides": True, "start": 4}
    return Figure(id=f"fig-{id}", **drawn, **more)


def simplex_figure() -> Figure:
    """Arrows from q to Ψ^γ(q) on the simplex of three classes."""
    start = simplex_grid(14)
    start = start[(start > 0).all(axis=1)]
    size = [0, 9, 0] * len(start)
    head = {"symbol": "arrow", "angleref": "previous", "color": "@after", "size": size}

    def of(gamma: float) -> list[dict[str, Any]]:
        # From q to Ψ(q), then a gap.
        ends = zip(corners(start), corners(maps.focal_map(start, gamma)))
        x, y = (np.stack([a, b, np.full(len(a), np.nan)], axis=1).ravel() for a, b in ends)
        arrows = line(x, y, "", "@after", line={"width": 1.4}, hoverinfo="skip")
        return [_triangle(), arrows | {"mode": "lines+markers", "marker": head}]

    choices = tuple((f"γ = {g:g}", of(g)) for g in SLIDES)
    shown = np.array([[0.5, 0.3, 0.2], [0.4, 0.35, 0.25], [0.7, 0.2, 0.1]])
    return sliding(
        "simplex",
        choices,
        title="Where Ψ^γ moves probabilities of three classes",
        text="Each arrow leads from q to Ψ^γ(q): away from the centre for γ > 0, towards it for "
        "γ < 0. The largest class stays the largest.",
        layout=_SIMPLEX_LAYOUT,
        height=520,
        header=("q", *(f"Ψ, γ = {g:g}" for g in SLIDES)),
        rows=tuple((_vector(q), *(_vector(maps.focal_map(q, g)) for g in SLIDES)) for q in shown),
    )


def _vector(p: np.ndarray) -> str:
    return "(" + ", ".join(f"{x:.3f}" for x in np.asarray(p)) + ")"


def isolines_figure() -> Figure:
    """Isolines of the properised focal loss of class 2 over the simplex."""
    xs, ys = np.linspace(0, 1, 61), np.linspace(0, np.sqrt(3) / 2, 53)
    x, y = np.meshgrid(xs, ys)
    top = y / (np.sqrt(3) / 2)
    right = x - top / 2
    p = np.stack([1 - right - top, right, top], axis=-1)
    inside = (p > 1e-6).all(axis=-1)

    def of(gamma: float) -> list[dict[str, Any]]:
        loss = np.full(x.shape, np.nan)
        loss[inside] = maps.properized_focal_loss(p[inside], np.full(inside.sum(), 2), gamma)
        contour = {
            "type": "contour",
            "x": xs,
            "y": ys,
            "z": loss,
            "contours": {"coloring": "none", "showlabels": True},
            "line": {"width": 1.8, "color": "@after"},
            "ncontours": 16,
            "showscale": False,
            "hovertemplate": "loss %{z:.3f}<extra></extra>",
        }
        return [_triangle(), contour]

    gammas = (0.0, *SLIDES[1:])
    choices = tuple((f"γ = {g:g}", of(g)) for g in gammas)
    return sliding(
        "isolines",
        choices,
        title="Isolines of the properised loss L*",
        text="L*(p) = FL(Ψ⁻¹(p)) when the label is class 2: focal loss made proper. At γ = 0 it is "
        "cross-entropy, whose isolines are straight; larger γ bends them.",
        layout=_SIMPLEX_LAYOUT,
        height=520,
        header=("p", *(name for name, _ in choices)),
        rows=tuple(
            (
                _vector(q),
                *(f"{float(maps.properized_focal_loss(q, np.array(2), g)):.4f}" for g in gammas),
            )
            for q in np.array([[0.1, 0.1, 0.8], [0.3, 0.3, 0.4], [0.6, 0.2, 0.2], [0.2, 0.6, 0.2]])
        ),
    )
