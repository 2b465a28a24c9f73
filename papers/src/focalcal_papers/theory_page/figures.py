"""The theory's figures for the page of `focalcal theory`, each from the functions of `maps`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.special import expit, logit

from focalcal import maps
from focalcal.report.figure import Figure, axis, line
from focalcal_papers.errata import logit_curvature
from focalcal_papers.theory_page.simplex import SLIDES, isolines_figure, simplex_figure

GAMMAS = (0.0, 0.5, 1.0, 2.0, 3.0, 5.0)
COLOURS = ("@muted", "@right", "@after", "@third", "@before", "@wrong")
_P = np.round(np.arange(1, 100) / 100, 2)
_SHOWN = np.array([0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95])


def everything() -> list[Figure]:
    """All figures of the theory, in the order of the page."""
    return [
        focal_map_figure(),
        minimiser_figure(),
        bounds_figure(),
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


def _band(x: Any, below: Any, above: Any, name: str) -> list[dict[str, Any]]:
    """The area between two lines."""
    edge: dict[str, Any] = {"line": {"width": 0}, "hoverinfo": "skip"}
    return [
        line(x, below, "", "@after", showlegend=False, **edge),
        line(x, above, name, "@after", fill="tonexty", fillcolor="@after-band", **edge),
    ]


def _two_classes(p: np.ndarray) -> np.ndarray:
    return np.stack([p, 1 - p], axis=-1)


def _family(
    id: str,
    title: str,
    text: str,
    of: Callable[[np.ndarray, float], np.ndarray],
    x_title: str,
    y_title: str,
    *,
    gammas: Sequence[float] = GAMMAS,
    **y_axis: Any,
) -> Figure:
    """One curve per γ over a probability."""
    traces = [
        line(
            _P,
            of(_P, gamma),
            f"γ = {gamma:g}",
            colour,
            hovertemplate="%{x:.2f}: %{y:.4f}<extra>γ = " + f"{gamma:g}</extra>",
        )
        for gamma, colour in zip(gammas, COLOURS[-len(gammas) :])
    ]
    return Figure(
        id=f"fig-{id}",
        title=title,
        text=text,
        traces=traces,
        layout=_layout(axis(x_title, range=[0, 1]), axis(y_title, **y_axis)),
        height=420,
        header=(x_title, *(f"γ = {g:g}" for g in gammas)),
        rows=tuple(
            (f"{p:g}", *(f"{float(of(np.array([p]), g)[0]):.4f}" for g in gammas)) for p in _SHOWN
        ),
    )


def _map_and_temperatures(gamma: float) -> list[dict[str, Any]]:
    """Ψ^γ of two classes with the identity, its temperature bounds and its closest temperature."""
    s = logit(_P)
    bounds, closest = maps.temperature_bounds(gamma), maps.closest_temperature(gamma)
    psi = maps.focal_map(_two_classes(_P), gamma)[:, 0]
    between = f"bounds, T {bounds.low:.3f} to {bounds.high:.3f}"
    nearest, near = expit(s / closest.temperature), f"closest T = {closest.temperature:.4f}"
    dotted, dashed = {"dash": "dot", "width": 1.5}, {"dash": "dash", "width": 2}
    return [
        line([0, 1], [0, 1], "unchanged", "@muted", line=dotted, hoverinfo="skip"),
        *_band(_P, expit(s / bounds.high), expit(s / bounds.low), between),
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
    return Figure(
        id="fig-map",
        title="The focal map Ψ^γ of two classes",
        text="Ψ^γ maps the output q of a network trained with focal loss to the probability that "
        "it stands for. It is close to temperature scaling: the band lies between the two bounds "
        "on T, the dashed line is the closest T.",
        traces=choices[4][1],
        choices=choices,
        layout=_layout(axis("q", range=[0, 1]), axis("Ψ(q)", range=[0, 1])),
        height=460,
        header=("γ", "bounds on T", "tightest, |s| ≤ 20", "closest T", "its error", "quick rule"),
        rows=tuple(_temperatures_row(gamma) for gamma in SLIDES),
        slides=True,
        start=4,
    )


def minimiser_figure() -> Figure:
    return _family(
        "minimiser",
        "What a network trained with focal loss predicts",
        "The minimiser q* of the focal risk of two classes against the true probability p: focal "
        "loss pulls towards ½, the more the larger γ. q* of p = .9 is .7744, .6471, .5974 for "
        "γ = 1, 3, 5.",
        lambda p, gamma: maps.inverse_focal_map(_two_classes(p), gamma)[:, 0],
        "p",
        "q*",
        range=[0, 1],
    )


def bounds_figure() -> Figure:
    """1/T of the closest temperature against γ, by number of classes."""
    gammas = np.array([0.0, 0.5, 1, 2, 3, 4, 5, 7, 10])
    closest = {k: [maps.closest_temperature(g, k) for g in gammas] for k in (2, 3, 4)}
    return Figure(
        id="fig-closest",
        title="The temperature closest to Ψ^γ",
        text="1/T against γ: nearly a straight line, flatter for more classes. The largest "
        "difference in probability is small for two classes "
        f"({max(c.max_error for c in closest[2]):.1e}) and grows with K "
        f"({100 * max(c.max_error for c in closest[4]):.1f} points for K = 4).",
        traces=_closest_traces(gammas, closest),
        layout=_layout(axis("γ"), axis("1/T", rangemode="tozero")),
        height=440,
        header=("γ", *(f"T, K = {k} (error)" for k in closest)),
        rows=tuple(
            (
                f"{g:g}",
                *(f"{c[i].temperature:.4f} ({c[i].max_error:.4f})" for c in closest.values()),
            )
            for i, g in enumerate(gammas)
        ),
    )


def _closest_traces(gammas: np.ndarray, closest: dict[int, list[Any]]) -> list[dict[str, Any]]:
    fine = np.linspace(0, 10, 41)
    ends = [maps.temperature_bounds(g) for g in fine]
    quick = [1 / maps.quick_temperature(g) for g in fine]
    traces = _band(fine, [1 / e.high for e in ends], [1 / e.low for e in ends], "bounds, K = 2")
    traces.append(line(fine, quick, "quick rule, K = 2", "@muted", line={"dash": "dot"}))
    for (k, found), colour in zip(closest.items(), ("@after", "@before", "@wrong")):
        traces.append(
            line(
                gammas,
                [1 / c.temperature for c in found],
                f"closest, K = {k}",
                colour,
                mode="lines+markers",
                customdata=[100 * c.max_error for c in found],
                hovertemplate="γ %{x:g}: 1/T %{y:.3f}, error %{customdata:.2f} points"
                + f"<extra>K = {k}</extra>",
            )
        )
    return traces


def difference_figure() -> Figure:
    gammas = GAMMAS[1:]
    closest = {g: maps.closest_temperature(g).temperature for g in gammas}

    def difference(p: np.ndarray, gamma: float) -> np.ndarray:
        psi = maps.focal_map(_two_classes(p), gamma)[:, 0]
        return psi - expit(logit(p) / closest[gamma])

    return _family(
        "difference",
        "Ψ^γ minus the closest temperature",
        "Two classes: the two maps differ by at most about a thousandth in probability.",
        difference,
        "q",
        "Ψ(q) − σ(s/T)",
        gammas=gammas,
        tickformat=".4f",
    )


def gradient_figure() -> Figure:
    return _family(
        "gradient",
        "The gradient of focal loss against that of cross-entropy",
        "g(p,γ), the factor on cross-entropy's gradient: above 1 for improbable classes, below 1 "
        "from p0 up, with γ*(p0) = γ: "
        + ", ".join(f"p0 = {maps.probability_for_gamma(g):.3f} for γ = {g:g}" for g in (1, 3, 5))
        + ".",
        maps.gradient_factor,
        "p of the true class",
        "g(p, γ)",
        rangemode="tozero",
    )


def curvature_figure() -> Figure:
    return _family(
        "curvature",
        "Curvature in the logit",
        "Second derivative of the binary focal loss in the logit of the true class: it rises where "
        "the network is wrong (small p) and falls where it is right.",
        lambda p, gamma: np.array([logit_curvature(float(x), gamma) for x in p]),
        "p of the true class",
        "d²FL/ds²",
    )


def lowered_figure() -> Figure:
    """Where Ψ lowers the top probability, by number of classes."""
    classes = (4, 5, 7, 10, 20, 50, 100, 200, 500, 1000)
    gammas = (1.0, 3.0, 5.0)
    region = {(g, k): maps.confidence_change_region(g, k) for g in gammas for k in classes}
    traces = []
    for gamma, colour in zip(gammas, ("@right", "@after", "@before")):
        ends = [region[gamma, k].lowered for k in classes]
        traces.append(
            line(
                classes,
                [np.nan if e is None else e[1] for e in ends],
                f"γ = {gamma:g}",
                colour,
                mode="lines+markers",
                hovertemplate="K = %{x}: lowered up to %{y:.4f}<extra>γ = " + f"{gamma:g}</extra>",
            )
        )
    return Figure(
        id="fig-lowered",
        title="Where Ψ^γ lowers the top probability",
        text="With the other classes equal, a top probability between 1/K and the curve is "
        "lowered; above it, raised. From ½ up it is never lowered.",
        traces=traces,
        layout=_layout(
            axis("number of classes K (log scale)", type="log", tickvals=list(classes)),
            axis("top probability", rangemode="tozero"),
        ),
        height=400,
        header=("K", *(f"γ = {g:g}" for g in gammas)),
        rows=tuple(
            (
                str(k),
                *(
                    "–"
                    if region[g, k].lowered is None
                    else "{:.4f} – {:.4f}".format(*region[g, k].lowered)
                    for g in gammas
                ),
            )
            for k in classes
        ),
    )
