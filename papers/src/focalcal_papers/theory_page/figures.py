"""The theory's figures for the page of `focalcal theory`: panels of the papers' figures, and more.

Panels are drawn as Plotly figures; the map's own figure adds its temperatures and a slider.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.special import expit, logit

from focalcal import maps
from focalcal.report.figure import Figure, axis, band, line
from focalcal_papers.figures import Curve, Curves, fts, geo, ie
from focalcal_papers.figures.drawing import corners

SLIDES = (-0.5, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0)
"""The γ that the theory's sliders offer."""
GAMMAS = (0.0, 0.5, 1.0, 2.0, 3.0, 5.0)
COLOURS = ("@wrong", "@before", "@third", "@after", "@right", "@muted")
_P = np.linspace(0.01, 0.99, 99)
_SHOWN = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)


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
            # Grey and the next colour look alike to the colour-blind.
            line={"dash": "dash"} if colour == "@muted" else {},
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


def _sliding(
    id: str, gammas: Sequence[float], of: Callable[[float], list[dict[str, Any]]], **more: Any
) -> Figure:
    """A figure with a slider over the traces `of` each γ, which starts at the fifth."""
    choices = tuple((f"γ = {g:g}", of(g)) for g in gammas)
    drawn = {"traces": choices[4][1], "choices": choices, "slides": True, "start": 4}
    return Figure(id=f"fig-{id}", **drawn, **more)


def _map_and_temperatures(gamma: float) -> list[dict[str, Any]]:
    """Ψ^γ of two classes with the identity, its temperature bounds and its closest temperature."""
    s = logit(_P)
    bounds, closest = maps.temperature_bounds(gamma), maps.closest_temperature(gamma)
    psi = maps.focal_map(fts.two_classes(_P), gamma)[:, 0]
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
    return _sliding(
        "map",
        SLIDES,
        _map_and_temperatures,
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
        "loss pulls towards ½, more so for larger γ. q* of p = .9 is .7744, .6471, .5974 for "
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
        psi = maps.focal_map(fts.two_classes(_P), gamma)[:, 0]
        closest = expit(logit(_P) / maps.closest_temperature(gamma).temperature)
        curves.append(Curve(f"γ = {gamma:g}", _P, psi - closest))
    return _drawn(
        "difference",
        "Ψ^γ minus the closest temperature",
        "Two classes: the two maps differ by at most about a thousandth in probability.",
        Curves("", "q", "Ψ(q) − σ(s/T)", tuple(curves)),
        tickformat=".4f",
    )


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


def simplex_figure() -> Figure:
    """Arrows from q to Ψ^γ(q) on the simplex of three classes."""
    start = fts.simplex_grid(14)
    start = start[(start > 0).all(axis=1)]
    size = [0, 9, 0] * len(start)
    head = {"symbol": "arrow", "angleref": "previous", "color": "@after", "size": size}

    def of(gamma: float) -> list[dict[str, Any]]:
        # From q to Ψ(q), then a gap.
        ends = zip(corners(start), corners(maps.focal_map(start, gamma)))
        x, y = (np.stack([a, b, np.full(len(a), np.nan)], axis=1).ravel() for a, b in ends)
        arrows = line(x, y, "", "@after", line={"width": 1.4}, hoverinfo="skip")
        return [_triangle(), arrows | {"mode": "lines+markers", "marker": head}]

    shown = np.array([[0.5, 0.3, 0.2], [0.4, 0.35, 0.25], [0.7, 0.2, 0.1]])
    return _sliding(
        "simplex",
        SLIDES,
        of,
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

    def loss(p: np.ndarray, label: int, gamma: float) -> Any:
        return maps.properized_focal_loss(p, np.full(p.shape[:-1], label), gamma)

    def of(gamma: float) -> list[dict[str, Any]]:
        z = np.full(x.shape, np.nan)
        z[inside] = loss(p[inside], 2, gamma)
        contour = {
            "type": "contour",
            "x": xs,
            "y": ys,
            "z": z,
            "contours": {"coloring": "none", "showlabels": True},
            "line": {"width": 1.8, "color": "@after"},
            "ncontours": 16,
            "showscale": False,
            "hovertemplate": "loss %{z:.3f}<extra></extra>",
        }
        return [_triangle(), contour]

    gammas = (0.0, *SLIDES[1:])
    shown = np.array([[0.1, 0.1, 0.8], [0.3, 0.3, 0.4], [0.6, 0.2, 0.2], [0.2, 0.6, 0.2]])
    return _sliding(
        "isolines",
        gammas,
        of,
        title="Isolines of the properised loss L*",
        text="L*(p) = FL(Ψ⁻¹(p)) when the label is class 2: focal loss made proper. At γ = 0 it is "
        "cross-entropy, whose isolines are straight; larger γ bends them.",
        layout=_SIMPLEX_LAYOUT,
        height=520,
        header=("p", *(f"γ = {g:g}" for g in gammas)),
        rows=tuple((_vector(q), *(f"{loss(q, 2, g):.4f}" for g in gammas)) for q in shown),
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
