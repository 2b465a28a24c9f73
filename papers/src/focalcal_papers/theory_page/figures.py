"""The theory's figures for the page of `focalcal theory`: panels of the papers' figures, and more.

Panels are drawn as Plotly figures; the map's own figure adds its temperatures and a slider.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import expit, logit

from focalcal import maps
from focalcal.report.figure import Figure, axis, band, line
from focalcal_papers.figures import Curve, Curves, fts, geo, ie
from focalcal_papers.theory_page.simplex import SLIDES, isolines_figure, simplex_figure, sliding

GAMMAS = (0.0, 0.5, 1.0, 2.0, 3.0, 5.0)
COLOURS = ("@wrong", "@before", "@third", "@after", "@right", "@muted")
_P = np.linspace(0.01, 0.99, 99)
_SHOWN = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)


def everything() -> list[Figure]:
    """All figures of the theory, in the order of the page."""
    return [
        focal_map_figure(),
        minimiser_figure(),
        closest_figure(),
        difference_figure(),
        simplex_figure(),
        isolines_figure(),
        gradient_figure(),
        curvature_figure(),
        lowered_figure(),
    ]


def _layout(xaxis: dict[str, Any], yaxis: dict[str, Any]) -> dict[str, Any]:
    legend = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "traceorder": "normal"}
    return {"xaxis": xaxis, "yaxis": yaxis, "legend": legend}


def _drawn(
    id: str,
    title: str,
    text: str,
    panel: Curves,
    shown: Any = _SHOWN,
    x_axis: dict[str, Any] | None = None,
    **y_axis: Any,
) -> Figure:
    """A panel as a figure, with a table of its curves at the x to be shown."""
    curves = panel.curves
    traces = [
        line(
            c.x,
            c.y,
            c.label,
            colour,
            mode="lines+markers" if c.style == "o" else "lines",
            hovertemplate="%{x:.4g}: %{y:.4f}<extra>" + c.label + "</extra>",
        )
        for c, colour in zip(curves, COLOURS[: len(curves)][::-1])
    ]
    at = [int(np.abs(curves[0].x - x).argmin()) for x in shown]
    return Figure(
        id=f"fig-{id}",
        title=title,
        text=text,
        traces=traces,
        layout=_layout(axis(panel.xlabel, **(x_axis or {})), axis(panel.ylabel, **y_axis)),
        height=420,
        header=(panel.xlabel, *(c.label for c in curves)),
        rows=tuple((f"{x:g}", *(f"{c.y[i]:.4f}" for c in curves)) for x, i in zip(shown, at)),
    )


def _two_classes(p: np.ndarray) -> np.ndarray:
    return np.stack([p, 1 - p], axis=-1)


def _map_and_temperatures(gamma: float) -> list[dict[str, Any]]:
    """Ψ^γ of two classes with the identity, its temperature bounds and its closest temperature."""
    s = logit(_P)
    bounds, closest = maps.temperature_bounds(gamma), maps.closest_temperature(gamma)
    psi = maps.focal_map(_two_classes(_P), gamma)[:, 0]
    between = f"bounds, T {bounds.low:.3f} to {bounds.high:.3f}"
    nearest, near = expit(s / closest.temperature), f"closest T = {closest.temperature:.4f}"
    dotted, dashed = {"dash": "dot", "width": 1.5}, {"dash": "dash", "width": 2}
    area = band(_P, expit(s / bounds.high), expit(s / bounds.low), "@after")
    return [
        line([0, 1], [0, 1], "unchanged", "@muted", line=dotted, hoverinfo="skip"),
        area | {"name": between, "showlegend": True},
        line(_P, psi, f"Ψ, γ = {gamma:g}", "@after"),
        line(_P, nearest, near, "@before", line=dashed),
    ]


def _temperatures_row(gamma: float) -> tuple[str, ...]:
    bounds, tight = maps.temperature_bounds(gamma), maps.tightest_temperature_bounds(gamma)
    closest = maps.closest_temperature(gamma)
    return (
        f"{gamma:g}",
        f"{bounds.low:.4f} – {bounds.high:.4f}",
        f"{tight.low:.4f} – {tight.high:.4f}",
        f"{closest.temperature:.4f}",
        f"{closest.max_error:.2e}",
        f"{maps.quick_temperature(gamma):.4f}",
    )


def focal_map_figure() -> Figure:
    """Ψ^γ for two classes between its temperature bounds, for the γ that is picked."""
    choices = tuple((f"γ = {g:g}", _map_and_temperatures(g)) for g in SLIDES)
    return sliding(
        "map",
        choices,
        title="The focal map Ψ^γ of two classes",
        text="Ψ^γ maps the output q of a network trained with focal loss to the probability that "
        "it stands for. It is close to temperature scaling: the band lies between the two bounds "
        "on T, the dashed line is the closest T.",
        layout=_layout(axis("q", range=[0, 1]), axis("Ψ(q)", range=[0, 1])),
        height=460,
        header=("γ", "bounds on T", "tightest, |s| ≤ 20", "closest T", "its error", "quick rule"),
        rows=tuple(_temperatures_row(gamma) for gamma in SLIDES),
    )


def minimiser_figure() -> Figure:
    return _drawn(
        "minimiser",
        "What a network trained with focal loss predicts",
        "The minimiser q* of the focal risk of two classes against the true probability p: focal "
        "loss pulls towards ½, the more the larger γ. q* of p = .9 is .7744, .6471, .5974 for "
        "γ = 1, 3, 5.",
        *ie.figure7(GAMMAS),
        range=[0, 1],
    )


def closest_figure() -> Figure:
    """1/T of the closest temperature against γ, by number of classes."""
    inverse, errors = fts.figure7()
    curves = tuple(c for c in inverse.curves if c.style == "o")
    worst = [float(c.y.max()) for c in errors.curves]
    return _drawn(
        "closest",
        "The temperature closest to Ψ^γ",
        "1/T against γ: nearly a straight line, flatter for more classes. The largest difference "
        f"in probability is small for two classes ({worst[0]:.1e}) and grows with K "
        f"({100 * worst[-1]:.1f} points for K = 4).",
        Curves("", "γ", "1/T", curves),
        curves[0].x,
        rangemode="tozero",
    )


def difference_figure() -> Figure:
    curves = []
    for gamma in GAMMAS[1:]:
        psi = maps.focal_map(_two_classes(_P), gamma)[:, 0]
        closest = expit(logit(_P) / maps.closest_temperature(gamma).temperature)
        curves.append(Curve(f"γ = {gamma:g}", _P, psi - closest))
    return _drawn(
        "difference",
        "Ψ^γ minus the closest temperature",
        "Two classes: the two maps differ by at most about a thousandth in probability.",
        Curves("", "q", "Ψ(q) − σ(s/T)", tuple(curves)),
        tickformat=".4f",
    )


def gradient_figure() -> Figure:
    return _drawn(
        "gradient",
        "The gradient of focal loss against that of cross-entropy",
        "g(p,γ), the factor on cross-entropy's gradient: above 1 for improbable classes, below 1 "
        "from p0 up, with γ*(p0) = γ: "
        + ", ".join(f"p0 = {maps.probability_for_gamma(g):.3f} for γ = {g:g}" for g in (1, 3, 5))
        + ".",
        ie.figure4a(GAMMAS)[0],
        rangemode="tozero",
    )


def curvature_figure() -> Figure:
    return _drawn(
        "curvature",
        "Curvature in the logit",
        "Second derivative of the binary focal loss in the logit of the true class: it rises where "
        "the network is wrong (small p) and falls where it is right.",
        geo.figure1(GAMMAS)[2],
    )


def lowered_figure() -> Figure:
    """Where Ψ lowers the top probability, by number of classes."""
    classes = np.array([4, 5, 7, 10, 20, 50, 100, 200, 500, 1000])
    curves = []
    for gamma in (1.0, 3.0, 5.0):
        ends = (maps.confidence_change_region(gamma, int(k)).lowered for k in classes)
        upper = np.array([np.nan if e is None else e[1] for e in ends])
        curves.append(Curve(f"γ = {gamma:g}", classes, upper, style="o"))
    return _drawn(
        "lowered",
        "Where Ψ^γ lowers the top probability",
        "With the other classes equal, a top probability between 1/K and the curve is "
        "lowered; above it, raised. From ½ up it is never lowered.",
        Curves("", "number of classes K (log scale)", "top probability", tuple(curves)),
        classes,
        {"type": "log", "tickvals": classes},
        rangemode="tozero",
    )
